// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics pages as tools read them, from outside.
//!
//! The owner of a file is not trusted. All is checked that a mapping of it relies on, and nothing is followed that lies
//! in it. Each value is loaded atomically, so it is torn from no other; values of one look may be of moments that
//! differ.

use super::{COUNTERS_AT, COUNTERS_LEN, Head, MAGIC, ROWS_AT, VERSION, bytes_of, names};
use crate::layout::MAX_RANKS;
use crate::mapping::Mapping;
use crate::sync::{AtomicU64, Ordering};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use onecopy_obs::COUNTERS;
use onecopy_obs::stats::{MECHANISMS, Row, Totals};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;

/// Why a file is no page that can be read here.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// It cannot be looked at.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is not sealed as pages are.
    #[error("it is not sealed as a statistics page is")]
    Unsealed,
    /// It does not begin as a page does.
    #[error("it does not begin as a statistics page does")]
    NoPage,
    /// It is of another version.
    #[error(
        "its layout has version {0}, and this tool reads version {VERSION}; use the tool of the same release"
    )]
    Version(u32),
    /// It has other names, or an order of its own.
    #[error(
        "its counters are not those that this tool knows, though its layout is; use the tool of the same build"
    )]
    Names,
    /// It contradicts itself.
    #[error("invalid field: {0}")]
    InvalidField(String),
}

impl From<nix::errno::Errno> for PageError {
    fn from(errno: nix::errno::Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A page that was found fit.
#[derive(Debug)]
pub struct CheckedPage {
    map: Mapping,
    head: Head,
}

impl CheckedPage {
    /// Takes a file for a page; it is open for reading.
    ///
    /// # Errors
    /// [`PageError`] says why it is no page of this version.
    pub fn of(file: &File) -> Result<Self, PageError> {
        let wanted =
            SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL;
        let seals = fcntl(file, FcntlArg::F_GET_SEALS).map_err(|_| PageError::Unsealed)?;
        if !SealFlag::from_bits_truncate(seals).contains(wanted) {
            return Err(PageError::Unsealed);
        }
        // Sealed, it cannot become shorter.
        let len = file.metadata()?.len();
        if len < ROWS_AT as u64 {
            return Err(PageError::NoPage);
        }
        if len > bytes_of(MAX_RANKS) {
            return Err(PageError::InvalidField(format!("a length of {len} bytes")));
        }
        let map = Mapping::of_file(file.as_fd(), len, false)?;
        let head = check(load_head(&map), len)?;
        Ok(Self { map, head })
    }

    /// What it begins with.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The counters at this moment, by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let values = (0..COUNTERS.len()).map(|index| load(&self.map, COUNTERS_AT + 8 * index));
        COUNTERS.iter().map(|counter| counter.name).zip(values)
    }

    /// What came from each rank, at this moment.
    pub fn rows(&self) -> impl Iterator<Item = (u32, Row)> + '_ {
        (0..self.head.size).map(|peer| {
            let offset = ROWS_AT + peer as usize * size_of::<Row>();
            let mut row = Row::default();
            for (mechanism, totals) in row.by.iter_mut().enumerate() {
                let offset = offset + mechanism * size_of::<Totals>();
                totals.messages = load(&self.map, offset + offset_of!(Totals, messages));
                totals.bytes = load(&self.map, offset + offset_of!(Totals, bytes));
            }
            (peer, row)
        })
    }
}

/// A word of the page.
fn load(map: &Mapping, offset: usize) -> u64 {
    map.shared::<AtomicU64>(offset as u64)
        .load(Ordering::Relaxed)
}

/// What the page begins with, word by word.
fn load_head(map: &Mapping) -> Head {
    let word = |offset: usize| load(map, offset);
    let halves = |offset: usize| {
        let bytes = word(offset).to_ne_bytes();
        let [a, b, c, d, e, f, g, h] = bytes;
        let halves = [[a, b, c, d], [e, f, g, h]];
        halves.map(u32::from_ne_bytes)
    };
    let [version, mechanisms] = halves(offset_of!(Head, version));
    let [pid, rank] = halves(offset_of!(Head, pid));
    let [size, counters] = halves(offset_of!(Head, size));
    Head {
        magic: word(offset_of!(Head, magic)),
        version,
        mechanisms,
        bytes: word(offset_of!(Head, bytes)),
        names: word(offset_of!(Head, names)),
        job: word(offset_of!(Head, job)),
        pid,
        rank,
        size,
        counters,
        spare: word(offset_of!(Head, spare)),
    }
}

/// Whether a file of so many bytes can begin so.
fn check(head: Head, len: u64) -> Result<Head, PageError> {
    if head.magic != MAGIC {
        return Err(PageError::NoPage);
    }
    if head.version != VERSION {
        return Err(PageError::Version(head.version));
    }
    let counted = head.counters as usize * 8 == COUNTERS_LEN;
    if !counted || head.mechanisms as usize != MECHANISMS.len() || head.names != names() {
        return Err(PageError::Names);
    }
    if head.rank >= head.size || head.size > MAX_RANKS {
        let claim = format!("rank {} of {}", head.rank, head.size);
        return Err(PageError::InvalidField(claim));
    }
    if head.bytes != len || len != bytes_of(head.size) {
        let claim = format!(
            "a job of {} ranks with {} bytes, in a file of {len}",
            head.size, head.bytes
        );
        return Err(PageError::InvalidField(claim));
    }
    Ok(head)
}
