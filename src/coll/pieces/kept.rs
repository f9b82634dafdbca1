// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounce buffers that a communicator of two ranks keeps. A rank writes fastest where it has read just now: those lines
//! are in its cache. So who has read pieces answers in the same buffer, whosever it is.
//!
//! Each rank has a buffer of its own at most. It is *lent* from the collective whose pieces the other rank reads there.
//! It is back when that one has answered there, and this rank has read that. A line says which of the two buffers has
//! the pieces.
//!
//! Only a buffer that is not lent is replaced by a longer one. It stays until the communicator is gone on the other
//! rank, too. Blocking collectives alone use kept buffers, where no other one is under way on this rank: so both ranks
//! see the same order. No collective waits until its pieces in a kept buffer are read.

use crate::memory::pool::{Pool, PoolBuf};
use onecopy_btl::RemoteRange;

/// Bytes of a piece, and between two pieces in a bounce buffer. Long enough that its hand-off costs little beside it;
/// short enough that the other rank begins soon (docs/performance.md, "Collectives").
pub(in crate::coll) const PIECE: usize = 16 << 10;
/// Bytes of the longest buffer that is kept. In a shorter one than the vector, pieces wait for lines that return. 256
/// KiB took 24 us with 128 KiB, 6.5 with 256 (D, near, 11-30; a bare loop). Beyond, the second cache has no room for it
/// besides the program's buffers: a bcast of 1 MiB took 1.25 of a message's time.
pub(in crate::coll) const LONGEST: usize = 512 << 10;
/// And of the shortest: it serves most lengths.
const SHORTEST: usize = 128 << 10;

/// What a rank keeps for pieces.
#[derive(Default)]
pub(crate) struct KeptBounce {
    pub(super) own: Option<PoolBuf>,
    /// The collective whose pieces the other rank reads in this rank's buffer, and may answer there.
    lent: Option<u32>,
    /// The other rank's buffer, if this one has read there last.
    theirs: Option<RemoteRange>,
    /// Whether the other rank was seen to map this one's memory.
    is_mapped: bool,
}

/// The kept buffer in which a rank gives pieces.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeptBuffer {
    Own,
    Theirs(RemoteRange),
}

impl KeptBounce {
    /// Bytes of this rank's own buffer.
    pub(in crate::coll) fn own_bytes(&self) -> usize {
        self.own.as_ref().map_or(0, |own| own.len())
    }

    pub(in crate::coll) fn own(&self) -> &[u8] {
        self.own.as_deref().unwrap_or_default()
    }

    pub(super) fn own_mut(&mut self) -> &mut [u8] {
        self.own.as_deref_mut().unwrap_or_default()
    }

    /// Whether this rank need not wait until what it gives in a kept buffer is read: the other one reads it without
    /// help.
    pub(super) fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// Whether a blocking collective that begins now, in which this rank gives and takes nothing, finds a buffer whose
    /// lines are here.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.theirs.is_some() || self.lent.is_none()
    }

    /// Whether that holds for the other rank.
    pub(crate) fn is_at_others_hand(&self) -> bool {
        self.lent.is_some() || self.theirs.is_none()
    }

    /// The other rank's line says that it maps this rank's memory.
    pub(super) fn note_mapped(&mut self) {
        self.is_mapped = true;
    }

    /// This rank has written pieces of collective `seq`, which the other one reads, to its own buffer.
    pub(super) fn lend(&mut self, seq: u32) {
        self.lent = Some(seq);
    }

    /// All pieces in this rank's buffer are read, by this rank.
    pub(super) fn is_returned(&mut self) {
        self.lent = None;
    }

    /// This rank has read all pieces in the other one's buffer, which is there.
    pub(super) fn borrow(&mut self, theirs: RemoteRange) {
        self.theirs = Some(theirs);
    }

    /// The other rank's buffer is not this rank's to write any more.
    pub(super) fn give_back(&mut self) {
        self.theirs = None;
    }

    /// The collective for which this rank's buffer is lent.
    pub(super) fn lent(&self) -> Option<u32> {
        self.lent
    }

    /// The kept buffer for pieces of `len` bytes in a blocking collective that is alone. In one in which `both` ranks
    /// give, it is this rank's own. None: there is none, or it is being read. `is_read`: it is not.
    pub(super) fn choose(
        &mut self,
        pool: &Pool,
        len: usize,
        both: bool,
        is_read: bool,
    ) -> Option<KeptBuffer> {
        let wanted = if both { SHORTEST } else { wanted(len) };
        if let (Some(theirs), false) = (self.theirs, both)
            && theirs.len as usize >= wanted
        {
            return Some(KeptBuffer::Theirs(theirs));
        }
        if !is_read {
            return None;
        }
        // While it is lent, the other rank may believe that it can write there.
        if self.own_bytes() < wanted && self.lent.is_none() {
            let longer = pool.try_take_kept(wanted);
            let longer = longer.or_else(|| pool.try_take_kept(SHORTEST));
            if longer.as_ref().map_or(0, |longer| longer.len()) > self.own_bytes() {
                self.own = longer;
            }
        }
        self.own.is_some().then_some(KeptBuffer::Own)
    }
}

/// Bytes of the buffer that suits `len` bytes.
fn wanted(len: usize) -> usize {
    len.next_multiple_of(PIECE)
        .next_power_of_two()
        .clamp(SHORTEST, LONGEST)
}
