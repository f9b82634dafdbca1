// SPDX-License-Identifier: MIT OR Apache-2.0
//! How messages are cut into chunks, and how chunks are written.
//!
//! Where stores need the lines that they write, the sender asks for those of its next chunks while the receiver copies
//! out. A message of one chunk goes as a whole, one of up to two in halves, so that both copy at the same time. Where
//! the string instruction takes lines without reading them, to own them ahead is work for nothing. Then messages of
//! more than 8 KiB are cut in halves, too, if the two ranks send in turn, one thread each (docs/performance.md).

use onecopy_obs::Knobs;
use onecopy_shm::copy::Kernel;

/// Bytes of a cache line.
const LINE: u64 = onecopy_shm::layout::LINE as u64;

/// The longest message that goes in one piece, by vectors, where longer ones go by strings. Strings begin too slowly
/// for it. Measured on B, Zen 5 (11-22 to 11-27; docs/performance.md, "Chunks on processors whose strings take lines").
/// With half of it, 8 KiB near take 0.52 instead of 0.29 us, and 7 % less far. With twice as much, 16 KiB near take
/// 0.62 instead of 0.60 us in a bare loop. It only counts where the profile or the maker says that strings take lines.
const VECTORS_MAX: usize = 8192;

/// The longest message that is copied out of chunks by vectors behind prefetches there. Longer ones go by strings,
/// which are as fast far, and faster near: with twice as much, on B (11-27), 16 KiB near take 0.41 instead of 0.385 us.
/// On G, Zen 3, vectors for longer ones gain nothing either: 64 KiB far 6.1 → 6.9 us.
const AHEAD_MAX: usize = VECTORS_MAX;

/// The plan of a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks {
    /// Bytes in one.
    pub(crate) bytes: usize,
    /// How many messages to one peer may occupy.
    pub(crate) share: usize,
    /// How many a pipelined transfer recycles.
    pub(crate) depth: usize,
    /// Bytes of a piece at most.
    pub(crate) step: u64,
    /// Bytes of the longest message that is not cut in halves.
    whole: u64,
    strings: bool,
}

impl Chunks {
    pub(crate) fn new(knobs: &Knobs) -> Self {
        let step = knobs.pipeline_step() as u64;
        // So that pieces end where lines do.
        let step = step - step % LINE;
        let strings = knobs.writes_strings();
        Self {
            bytes: knobs.chunk_bytes(),
            share: knobs.chunks_per_peer(),
            depth: knobs.pipeline_chunks(),
            step,
            whole: if strings {
                step.min(VECTORS_MAX as u64)
            } else {
                step
            },
            strings,
        }
    }

    /// The plan for a peer that a stream leads to. Its pieces lie nowhere in between, so they are as long as a call of
    /// the kernel should be. The stream says how many may be under way.
    pub(crate) fn of_stream(knobs: &Knobs) -> Self {
        let piece = knobs.stream().piece;
        Self {
            bytes: piece,
            share: usize::MAX,
            depth: usize::MAX,
            step: piece as u64,
            // Nobody reads one half while the other is written.
            whole: u64::MAX,
            strings: true,
        }
    }

    /// How an eager message of `len` bytes is cut, of which the first lies `begin` bytes behind a cache line.
    #[inline]
    pub(crate) fn cut(&self, len: u64, alone: bool, begin: usize) -> Cut {
        let step = self.step_of(len, alone);
        let begin = begin as u64;
        // Vectors care less, and short messages more for a further line. A whole message is not cut for that.
        let is_short = len <= VECTORS_MAX as u64 || len <= step && len + begin > self.step;
        if begin == 0 || is_short {
            return Cut { step, begin: 0 };
        }
        let all = len + begin;
        let even = |pieces: u64| all.div_ceil(pieces).next_multiple_of(LINE);
        let pieces = len.div_ceil(step).max(1);
        if even(pieces) <= self.step {
            let step = even(pieces);
            return Cut { step, begin };
        }
        // What is sent before anyone asks must not need more chunks than there are, nor two of it if they had enough.
        let share = self.share as u64;
        let had_two = 2 * pieces <= share;
        match pieces < share && (!had_two || 2 * (pieces + 1) <= share) {
            true => Cut {
                step: even(pieces + 1).min(self.step),
                begin,
            },
            false => Cut { step, begin: 0 },
        }
    }

    /// The same of a part of a pipelined transfer, which goes in whole chunks.
    #[inline]
    pub(crate) fn cut_whole(&self, begin: usize) -> Cut {
        Cut {
            step: self.step,
            begin: begin as u64,
        }
    }

    /// Bytes per chunk of an eager message of `len` bytes. `alone`: the receiver has nothing to do before it comes.
    #[inline]
    fn step_of(&self, len: u64, alone: bool) -> u64 {
        let piece = if len <= self.whole || self.strings && !alone {
            len
        } else {
            // The receiver copies out while the sender copies in.
            len.div_ceil(2).next_multiple_of(64)
        };
        piece.min(self.step)
    }

    /// What copies the pieces of a message of `total` bytes out of chunks.
    #[inline]
    pub(crate) fn kernel_out(&self, total: usize) -> Kernel {
        if self.strings && total <= AHEAD_MAX {
            Kernel::Ahead
        } else {
            self.kernel(total)
        }
    }

    /// What copies the pieces of a message of `total` bytes into chunks.
    #[inline]
    pub(crate) fn kernel(&self, total: usize) -> Kernel {
        if self.owned_ahead(total) {
            Kernel::Memcpy
        } else {
            Kernel::RepMovsb
        }
    }

    /// Whether the lines of the pieces of a message of `total` bytes are asked for before they are written.
    #[inline]
    pub(crate) fn owned_ahead(&self, total: usize) -> bool {
        !self.strings || total <= VECTORS_MAX
    }
}

/// How a message is cut: where its pieces end, and where they lie in their chunks.
///
/// Each byte lies as far behind a cache line in its chunk as it does in its sender's buffer. Buffers of `malloc` begin
/// 16 bytes behind one, as a rule at both ends. So both copies go between addresses that are alike, where strings are
/// fastest (docs/performance.md, "Lay bytes in a chunk as they lie in their buffer").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Bytes of a chunk that are used at most.
    pub(crate) step: u64,
    /// How far behind a line the first byte of the message lies.
    begin: u64,
}

/// A piece of a message, and where in its chunk it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CutPiece {
    pub(crate) begin: u64,
    pub(crate) len: u64,
}

impl Cut {
    /// The piece from `offset` on of what ends at `end`.
    #[inline]
    pub(crate) fn piece(&self, offset: u64, end: u64) -> CutPiece {
        let begin = match self.begin {
            0 => 0,
            behind => (behind + offset) % LINE,
        };
        let len = (self.step - begin).min(end - offset);
        CutPiece { begin, len }
    }

    /// How many pieces a message of `total` bytes has.
    #[inline]
    pub(crate) fn pieces(&self, total: u64) -> u64 {
        (total + self.begin).div_ceil(self.step.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_obs::ChunkCopy;
    use proptest::prelude::*;

    fn plan(chunk_copy: ChunkCopy) -> Chunks {
        Chunks::new(&Knobs {
            chunk_copy,
            ..Knobs::default()
        })
    }

    #[test]
    fn pieces_are_halves_of_what_is_not_short() {
        let (owned, strings) = (plan(ChunkCopy::Owned), plan(ChunkCopy::String));
        assert_eq!((owned.bytes, owned.share), (16384, 64));
        assert_eq!((strings.bytes, strings.share), (16384, 34));
        for len in [1, 4096, 8192] {
            assert_eq!(owned.step_of(len, true), len);
            assert_eq!(strings.step_of(len, true), len);
        }
        assert_eq!(owned.step_of(16_384, true), 16_384);
        assert_eq!(owned.step_of(20_000, true), 10_048);
        assert_eq!(owned.step_of(1 << 20, true), 16_384);
        for (len, step) in [
            (8193, 4096 + 64),
            (16_384, 8192),
            (24_000, 12_032),
            (32_768, 16_384),
            (1 << 20, 16_384),
        ] {
            assert_eq!(strings.step_of(len, true), step);
            assert!(len.div_ceil(step) >= 2, "{len}: both copy at the same time");
        }
        for len in 8193u64..=16_384 {
            assert_eq!(len.div_ceil(strings.step_of(len, true)), 2);
        }
        for len in 16_385u64..=32_768 {
            assert_eq!(len.div_ceil(owned.step_of(len, true)), 2);
        }
        // A receiver that is busy with earlier ones is not helped by a half.
        assert_eq!(strings.step_of(16_384, false), 16_384);
        assert_eq!(strings.step_of(24_000, false), 16_384);
        assert_eq!(owned.step_of(20_000, false), 10_048);
        assert_eq!(strings.kernel_out(8192), Kernel::Ahead);
        assert_eq!(strings.kernel_out(8193), Kernel::RepMovsb);
        assert_eq!(owned.kernel_out(4096), Kernel::Memcpy);
        assert!(owned.owned_ahead(8192) && owned.kernel(8192) == Kernel::Memcpy);
        assert!(!strings.owned_ahead(16_384) && strings.kernel(16_384) == Kernel::RepMovsb);
        assert!(strings.owned_ahead(8192) && strings.kernel(8192) == Kernel::Memcpy);
    }

    proptest! {
        /// Pieces follow one another, fit into chunks, lie in them as in the buffer, and are no more than were counted.
        #[test]
        fn pieces_lie_in_their_chunks_as_in_the_buffer(
            len in 1u64..300_000,
            begin in 0usize..64,
            alone: bool,
            strings: bool,
            share in 1usize..64,
            step in 1024usize..20_000,
        ) {
            let chunks = Chunks::new(&Knobs {
                chunk_copy: if strings { ChunkCopy::String } else { ChunkCopy::Owned },
                pool_per_peer: Some(share * 16_384),
                pipeline_chunk: Some(step),
                ..Knobs::default()
            });
            let cut = chunks.cut(len, alone, begin);
            let (mut sent, mut count) = (0, 0);
            while sent < len {
                let piece = cut.piece(sent, len);
                prop_assert!(piece.len > 0 && piece.begin + piece.len <= chunks.bytes as u64);
                prop_assert!(cut.begin == 0 || piece.begin == (begin as u64 + sent) % 64);
                sent += piece.len;
                count += 1;
            }
            prop_assert_eq!(sent, len);
            prop_assert_eq!(count, cut.pieces(len));
            let least = len.div_ceil(chunks.step_of(len, alone));
            prop_assert!(count <= least + 1 && (least > 1 || count == least));
            let share = chunks.share as u64;
            prop_assert!(count <= least.max(share) && (2 * count <= share || 2 * least > share));
        }
    }

    #[test]
    fn what_a_stream_carries_is_cut_only_where_a_call_would_be_too_long() {
        let stream = Chunks::of_stream(&Knobs::default());
        for len in [8193, stream.step] {
            assert_eq!(stream.step_of(len, true), len);
        }
        for len in [stream.step + 1, 4 * stream.step] {
            assert_eq!(stream.step_of(len, true), stream.step);
        }
    }

    #[test]
    fn a_small_share_has_a_chunk() {
        for chunk_copy in [ChunkCopy::Owned, ChunkCopy::String] {
            let knobs = Knobs {
                chunk_copy,
                pool_per_peer: Some(4096),
                ..Knobs::default()
            };
            assert!(knobs.check().is_ok());
            let chunks = Chunks::new(&knobs);
            assert_eq!((chunks.bytes, chunks.share, chunks.step), (4096, 1, 4096));
        }
    }
}
