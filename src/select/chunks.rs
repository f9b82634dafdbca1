// SPDX-License-Identifier: MIT OR Apache-2.0
//! How messages are cut into chunks, and how chunks are written.
//!
//! Where stores need the lines that they write, the sender asks for those of its next chunks while the receiver copies
//! out. A message of one chunk goes as a whole, one of up to two in halves, so that both copy at the same time. Where
//! the string instruction takes lines without reading them, to own them ahead is work for nothing. Then messages of
//! more than 8 KiB are cut in halves, too, if the two ranks send in turn, one thread each (docs/performance.md).

use onecopy_obs::Knobs;
use onecopy_shm::copy::Kernel;

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

    /// Bytes per chunk of an eager message of `len` bytes. `alone`: the receiver has nothing to do before it comes.
    #[inline]
    pub(crate) fn step_of(&self, len: u64, alone: bool) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_obs::ChunkCopy;

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
        assert_eq!((strings.bytes, strings.share), (16384, 32));
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
