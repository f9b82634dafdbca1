// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private memory whose pages have a known size.

use memmap2::{Advice, MmapMut};
use std::io;
use std::ops::{Deref, DerefMut};

/// Size of the pages behind a [`PageBuf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// The processor's base pages, whatever the system's setting.
    Small,
    /// Transparent huge pages where the system allows them to be asked for.
    Huge,
}

/// Anonymous private memory, zeroed and present.
#[derive(Debug)]
pub struct PageBuf {
    map: MmapMut,
    bytes: usize,
}

impl PageBuf {
    /// `bytes` bytes on pages of this kind.
    ///
    /// # Errors
    ///
    /// If the memory cannot be mapped.
    pub fn new(bytes: usize, pages: Pages) -> io::Result<Self> {
        let mut map = MmapMut::map_anon(bytes.max(1))?;
        // Advice is a wish: a kernel built without huge pages refuses both, and then all pages are small anyway.
        let _ = map.advise(match pages {
            Pages::Small => Advice::NoHugePage,
            Pages::Huge => Advice::HugePage,
        });
        if map.advise(Advice::PopulateWrite).is_err() {
            for offset in (0..bytes).step_by(4096) {
                map[offset] = 0;
            }
        }
        Ok(Self { map, bytes })
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[..self.bytes]
    }
}

impl DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.bytes]
    }
}
