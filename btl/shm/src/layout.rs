// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where everything is in a segment: computed from the geometry, never stored as an address.

use std::fmt;

/// Bytes of a cache line, and of a ring slot.
pub const LINE: usize = 64;
/// Bytes of a page; all parts of a segment begin on a page.
pub const PAGE: usize = 4096;
/// Bytes of control data per sending peer: a line that the receiver writes, a line of what is seldom written, two lines
/// of cooperative state. What a receiver writes often shares no line with what each message looks at
/// (docs/performance.md, "Keep what a sender looks at").
pub const CTRL_STRIDE: usize = 256;
/// Collectives of one communicator that may be under way at a time: each has a line and a slot in the channel. Chosen
/// by magnitude: a rank that runs ahead finds room for seven more, and the short slots of a channel stay at 32 KiB.
pub const COLL_DEPTH: usize = 8;
/// Slots of an end of a channel: one for each line, and a spare one. Two ranks hand the spare ones to each other.
pub const COLL_SLOTS: usize = COLL_DEPTH + 1;
/// Bytes of a slot of a channel, at least: what a rank contributes to a small collective. From a page on, memory that
/// others map is read in place. Chosen by magnitude: with 32 ranks the default budget has four channels; with long
/// slots it would have one.
pub const COLL_SLOT: usize = 4096;
/// Bytes of a slot in jobs of few ranks. What fits goes without a request. Together with lines asked for ahead, gathers
/// of 8 KiB take 1.4 instead of 2.4 us (A, near, 11-29; docs/performance.md, "Collectives").
pub const COLL_SLOT_LONG: usize = 4 * COLL_SLOT;
/// Jobs of up to so many ranks have long slots. With them a rank has fewer channels. Chosen by magnitude: with long
/// slots a channel has 180 KiB, of which four ranks find room for fourteen each in the default budget of 20 MiB.
pub const LONG_SLOT_RANKS: usize = 4;
/// Areas of a channel into which a peer copies what its owner cannot read itself. One is filled while its owner empties
/// the other.
pub const COLL_STAGES: usize = 2;
/// Bytes of one of them. Chosen by magnitude, as pieces of a reduction are: a hand-off costs little beside its copy,
/// and it stays in the first cache.
pub const COLL_STAGE: usize = 16384;
/// Channels that a rank has at most. Members agree on a free one by a word, with a bit for each.
pub const MAX_CHANNELS: u32 = 64;
/// First bytes of every segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"onecopy\x06");
/// Most ranks that a job may have, on one node or several. The header page of a segment has a bitmap of active senders,
/// with a bit for each rank.
pub const MAX_RANKS: u32 = ((PAGE - BITMAP_OFFSET) * 8) as u32;
/// Byte offset of the bitmap of active senders. The header's fields lie before it; what is left of the page bounds the
/// ranks.
pub const BITMAP_OFFSET: usize = 1024;

/// The heap begins at a multiple of this. So its place does not depend on the number of ranks, as long as everything
/// else is smaller. Memory can be put there before the rest is known. What lies between is a hole. In the largest job
/// that the bitmap permits, control lines and rings take some 200 MiB.
pub const HEAP_AT: u64 = 4 << 30;

/// A part of a channel, reserved when it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelPart {
    /// The lines; those of the channel of all ranks are reserved from the start.
    Lines,
    /// The slots, for contributions that do not fit into a line.
    Slots,
    /// The stages, for what this rank cannot read itself.
    Stages,
}

impl ChannelPart {
    /// First byte in a channel whose slots have `slot` bytes, and bytes.
    #[must_use]
    pub fn range(self, slot: usize) -> (u64, u64) {
        let slots = (COLL_SLOTS * slot) as u64;
        match self {
            Self::Lines => (0, PAGE as u64),
            Self::Slots => (PAGE as u64, slots),
            Self::Stages => (PAGE as u64 + slots, (COLL_STAGES * COLL_STAGE) as u64),
        }
    }
}

/// What determines the place of everything in a segment. All ranks of a job have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of ranks.
    pub ranks: u32,
    /// Slots of 64 bytes per ring; a power of two.
    pub ring_slots: u32,
    /// Bytes of one chunk of the payload pool.
    pub chunk_bytes: u32,
    /// Chunks in the payload pool.
    pub chunks: u32,
    /// Bytes of the heap's address range.
    pub heap_bytes: u64,
    /// Channels for collectives.
    pub coll_channels: u32,
}

/// A geometry that cannot be used, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("segment geometry: {0}")]
pub struct BadGeometry(pub String);

const fn page_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE as u64)
}

impl Geometry {
    /// Checks all fields. A geometry that came from a peer must pass before it is used.
    ///
    /// # Errors
    /// [`BadGeometry`] names the first field that is wrong.
    pub fn check(&self) -> Result<(), BadGeometry> {
        let fail = |what: String| Err(BadGeometry(what));
        if self.ranks == 0 || self.ranks > MAX_RANKS {
            return fail(format!(
                "{} ranks; 1 to {MAX_RANKS} are possible",
                self.ranks
            ));
        }
        if !self.ring_slots.is_power_of_two() || !(16..=32768).contains(&self.ring_slots) {
            return fail(format!(
                "{} ring slots; a power of two from 16 to 32768 is needed",
                self.ring_slots
            ));
        }
        if !(1024..=1 << 20).contains(&self.chunk_bytes)
            || !(self.chunk_bytes as usize).is_multiple_of(LINE)
        {
            return fail(format!(
                "chunks of {} bytes; a multiple of 64 from 1 KiB to 1 MiB is needed",
                self.chunk_bytes
            ));
        }
        if self.chunks == 0 || self.chunks > 1 << 20 {
            return fail(format!(
                "{} chunks; 1 to {} are possible",
                self.chunks,
                1 << 20
            ));
        }
        if !self.heap_bytes.is_multiple_of(PAGE as u64) || self.heap_bytes > 1 << 44 {
            return fail(format!(
                "a heap of {} bytes; a multiple of {PAGE} up to 16 TiB is needed",
                self.heap_bytes
            ));
        }
        if self.coll_channels > MAX_CHANNELS {
            return fail(format!(
                "{} channels for collectives; at most {MAX_CHANNELS} are possible",
                self.coll_channels
            ));
        }
        Ok(())
    }

    /// Whether a segment of this geometry has everything where one of `other` has it. Only its chunks may be of another
    /// size. They are the business of the rank that writes them, and how large is best depends on what processor it
    /// believes to have.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let alike = Self {
            chunk_bytes: self.chunk_bytes,
            chunks: self.chunks,
            ..*other
        };
        *self == alike && self.check().is_ok() && self.pool_bytes() == other.pool_bytes()
    }

    /// Bytes of one ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        u64::from(self.ring_slots) * LINE as u64
    }
    /// Where the control lines of sender `rank` are.
    #[must_use]
    pub fn ctrl_offset(&self, rank: u32) -> SegOffset {
        SegOffset(PAGE as u64 + u64::from(rank) * CTRL_STRIDE as u64)
    }
    /// Where the rings begin; header and control lines lie before.
    #[must_use]
    pub fn rings_offset(&self) -> SegOffset {
        SegOffset(page_up(
            PAGE as u64 + u64::from(self.ranks) * CTRL_STRIDE as u64,
        ))
    }
    /// Where the ring written by sender `rank` is.
    #[must_use]
    pub fn ring_offset(&self, rank: u32) -> SegOffset {
        SegOffset(self.rings_offset().0 + u64::from(rank) * self.ring_bytes())
    }
    /// Bytes of a slot of a channel in a job of `ranks`.
    #[must_use]
    pub const fn slot_for(ranks: usize) -> usize {
        if ranks <= LONG_SLOT_RANKS {
            COLL_SLOT_LONG
        } else {
            COLL_SLOT
        }
    }
    /// Bytes of a channel in a job of `ranks`: a page of lines, slots, stages.
    #[must_use]
    pub const fn channel_bytes_for(ranks: usize) -> u64 {
        let slots = COLL_SLOTS * Self::slot_for(ranks);
        (PAGE + slots + COLL_STAGES * COLL_STAGE) as u64
    }
    /// How many channels each of `ranks` has when collectives may take `budget` bytes of a node. Half of a rank's part
    /// is theirs, the other half is for temporary buffers.
    #[must_use]
    pub fn channels_for(budget: usize, ranks: usize) -> u32 {
        let channels = (budget / 2 / ranks.max(1)) as u64 / Self::channel_bytes_for(ranks);
        u32::try_from(channels).map_or(MAX_CHANNELS, |count| count.min(MAX_CHANNELS))
    }
    /// Bytes of a slot of a channel.
    #[inline]
    #[must_use]
    pub const fn slot_bytes(&self) -> usize {
        Self::slot_for(self.ranks as usize)
    }
    /// Where a channel for collectives is.
    #[must_use]
    pub fn channel_offset(&self, channel: u32) -> SegOffset {
        let rings = self.rings_offset().0 + u64::from(self.ranks) * self.ring_bytes();
        let each = Self::channel_bytes_for(self.ranks as usize);
        SegOffset(page_up(rings) + u64::from(channel) * each)
    }
    /// Where the payload pool begins; everything before it is written by peers too.
    #[inline]
    #[must_use]
    pub fn pool_offset(&self) -> SegOffset {
        self.channel_offset(self.coll_channels)
    }
    /// Bytes of the payload pool.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        page_up(u64::from(self.chunks) * u64::from(self.chunk_bytes))
    }
    /// Where the payload pool ends; what lies between it and the heap is a hole.
    #[inline]
    #[must_use]
    pub fn pool_end(&self) -> SegOffset {
        SegOffset(self.pool_offset().0 + self.pool_bytes())
    }
    /// Where the heap begins.
    #[must_use]
    pub fn heap_offset(&self) -> SegOffset {
        let end = self.pool_end().0;
        SegOffset(match self.heap_bytes {
            0 => end,
            _ => end.next_multiple_of(HEAP_AT),
        })
    }
    /// Bytes of the whole segment, holes included.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.heap_offset().0 + self.heap_bytes
    }
    /// Bytes reserved when a rank starts: header, control lines, and the lines of the channel of all ranks.
    #[must_use]
    pub fn base_bytes(&self) -> u64 {
        let channel = if self.coll_channels > 0 { PAGE } else { 0 };
        self.rings_offset().0 + channel as u64
    }
}

/// A place in a segment, in bytes from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegOffset(pub u64);

/// A place in a rank's heap, in bytes from the heap's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeapOffset(pub u64);

/// One chunk of a payload pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkIndex(pub u32);

/// A chunk as a record names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChunkName {
    /// One of the sender's pool, which the receiver gives back when it has read it.
    Sent(ChunkIndex),
    /// One of the receiver's own pool: it was sent before, and returns with a message in it.
    Returned(ChunkIndex),
}

impl ChunkName {
    /// No pool has so many chunks ([`Geometry::check`]).
    const RETURNED: u32 = 1 << 31;

    /// The name as it stands in a record.
    #[inline]
    #[must_use]
    pub const fn to_word(self) -> u32 {
        match self {
            Self::Sent(ChunkIndex(index)) => index,
            Self::Returned(ChunkIndex(index)) => index | Self::RETURNED,
        }
    }

    /// What a word in a record names. The index may lie in no pool.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        let index = ChunkIndex(word & !Self::RETURNED);
        if word & Self::RETURNED == 0 {
            Self::Sent(index)
        } else {
            Self::Returned(index)
        }
    }
}

impl fmt::Display for HeapOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "heap+{:#x}", self.0)
    }
}

/// A range that does not lie in what it should lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {len} bytes at {offset:#x} do not lie in {limit:#x} bytes")]
pub struct OutOfBounds {
    /// What the range was to lie in.
    pub what: &'static str,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Size of what it was to lie in.
    pub limit: u64,
}

impl OutOfBounds {
    /// A range in what is not there.
    #[must_use]
    pub const fn nowhere(what: &'static str) -> Self {
        Self {
            what,
            offset: 0,
            len: 0,
            limit: 0,
        }
    }
}

/// Checks that `len` bytes at `offset` lie in `limit` bytes.
///
/// # Errors
/// [`OutOfBounds`] names `what` and the numbers. A sum that overflows is one.
#[inline]
pub fn check_range(
    what: &'static str,
    offset: u64,
    len: u64,
    limit: u64,
) -> Result<(), OutOfBounds> {
    match offset.checked_add(len) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(OutOfBounds {
            what,
            offset,
            len,
            limit,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            ranks: 32,
            ring_slots: 128,
            chunk_bytes: 8192,
            chunks: 512,
            heap_bytes: 1 << 30,
            coll_channels: 3,
        }
    }

    #[test]
    fn parts_follow_one_another_without_overlap() {
        let g = geometry();
        g.check().unwrap();
        assert_eq!(g.ctrl_offset(0).0, PAGE as u64);
        assert!(g.ctrl_offset(31).0 + CTRL_STRIDE as u64 <= g.rings_offset().0);
        assert!(g.ring_offset(31).0 + g.ring_bytes() <= g.channel_offset(0).0);
        assert_eq!(g.channel_offset(3), g.pool_offset());
        assert!(g.heap_offset().0 >= g.pool_end().0);
        assert_eq!(g.heap_offset().0, HEAP_AT);
        let without = Geometry { heap_bytes: 0, ..g };
        assert_eq!(without.heap_offset(), g.pool_end());
        assert_eq!(without.total_bytes(), g.pool_end().0);
        assert_eq!(g.total_bytes() % PAGE as u64, 0);
    }

    #[test]
    fn bad_geometries_are_named() {
        for (change, word) in [
            (
                Geometry {
                    ranks: 0,
                    ..geometry()
                },
                "ranks",
            ),
            (
                Geometry {
                    ring_slots: 100,
                    ..geometry()
                },
                "ring slots",
            ),
            (
                Geometry {
                    chunk_bytes: 100,
                    ..geometry()
                },
                "chunks of",
            ),
            (
                Geometry {
                    chunks: 0,
                    ..geometry()
                },
                "chunks",
            ),
            (
                Geometry {
                    heap_bytes: 5,
                    ..geometry()
                },
                "heap",
            ),
            (
                Geometry {
                    coll_channels: 65,
                    ..geometry()
                },
                "channels",
            ),
        ] {
            assert!(
                change.check().unwrap_err().to_string().contains(word),
                "{change:?}"
            );
        }
    }

    #[test]
    fn ranges_do_not_wrap() {
        assert!(check_range("x", u64::MAX, 2, 10).is_err());
        assert!(check_range("x", 8, 2, 10).is_ok());
        assert!(check_range("x", 9, 2, 10).is_err());
    }
}
