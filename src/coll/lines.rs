// SPDX-License-Identifier: MIT OR Apache-2.0
//! The members' lines of a collective under way. Each line is read and checked once. Every later step uses that copy,
//! as the owner may write to the line meanwhile.

use super::ByteRange;
use super::contribution::ENTRY;
use super::state::CommState;
use crate::error::{Error, Result};
use onecopy_btl::RemoteRange;
use onecopy_shm::coll::{BufferLocation, CheckedLine, kind};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::HeapOffset;

/// A line that was read.
#[derive(Debug, Clone, Copy)]
struct LineRead {
    line: CheckedLine,
    /// This rank's part, by its table, if that was read.
    entry: Option<ByteRange>,
}

/// The lines of one collective, by place.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<Option<LineRead>>);

impl Lines {
    /// The line of `place` for `seq`, read at most once; none as long as it is not published. An error fails the
    /// member.
    pub(crate) fn get_or_read(
        &mut self,
        state: &CommState,
        place: usize,
        seq: u32,
    ) -> Result<Option<CheckedLine>> {
        Ok(self.known(state, place, seq)?.map(|known| known.line))
    }

    /// The line of `place`, if it was read.
    pub(crate) fn cached(&self, place: usize) -> Option<CheckedLine> {
        self.0.get(place)?.map(|known| known.line)
    }

    fn known(
        &mut self,
        state: &CommState,
        place: usize,
        seq: u32,
    ) -> Result<Option<&mut LineRead>> {
        if self.0.is_empty() {
            self.0.resize(state.size(), None);
        }
        let Some(known) = self.0.get_mut(place) else {
            return Ok(None);
        };
        if known.is_none() {
            if state.channel_ends[place].phase(seq) == 0 {
                return Ok(None);
            }
            let line = read(state, place, seq)?;
            *known = Some(LineRead { line, entry: None });
        }
        Ok(known.as_mut())
    }

    /// This rank's part of what `place` offers, by the table in its slot.
    pub(crate) fn entry(
        &mut self,
        state: &CommState,
        place: usize,
        seq: u32,
    ) -> Result<Option<ByteRange>> {
        let Some(known) = self.known(state, place, seq)? else {
            return Ok(None);
        };
        if known.entry.is_none()
            && known.line.has(kind::TABLE)
            && let Some(view) = state.channel_ends[place].in_slot(seq, state.me * ENTRY, ENTRY)
        {
            let mut bytes = [0; ENTRY];
            view.copy_to(&mut bytes, Kernel::Memcpy);
            let (offset, len) = bytes.split_at(8);
            let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default()) as usize;
            known.entry = Some(ByteRange {
                offset: word(offset),
                len: word(len),
            });
        }
        Ok(known.entry)
    }
}

/// Reads the line of `place`, which is published. For a collective that reads it once and needs no [`Lines`].
pub(crate) fn read(state: &CommState, place: usize, seq: u32) -> Result<CheckedLine> {
    state.channel_ends[place]
        .read_line(seq)
        .map_err(|bad| Error::Protocol {
            rank: state.members[place] as usize,
            detail: bad.to_string(),
        })
}

/// A buffer that a line describes.
pub(crate) fn range(described: BufferLocation) -> RemoteRange {
    RemoteRange {
        address: described.address,
        heap: described.heap.map(HeapOffset),
        region: None,
        len: described.len,
    }
}
