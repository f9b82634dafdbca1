// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a job takes, as a formula: before it starts, and exactly. [`pool`] has the temporary buffers,
//! [`nodes`] what leads to other nodes.
//!
//! Shared memory is made of these parts, each reserved in full when it is first needed, so the sum is what the kernel
//! counts:
//!
//! | part | where | when |
//! | --- | --- | --- |
//! | base | in each rank's segment; its statistics page | at the start |
//! | channel | in each rank's segment, per communicator | its lines with the communicator; 32 KiB of slots, 128 KiB in jobs of up to four ranks, and 32 KiB of stages, with the first collective that needs them: [`Formula::collectives_at_most`] |
//! | ring | in the receiver's segment, one per sender | with the first record of the pair |
//! | chunks | in the sender's segment | when messages need them, some at first, then doubling; given back when cold |
//! | heap | in the segment of the rank that calls `alloc` | at the call; given back on drop |
//! | buffers | in the segment, from its heap | while in use; what is retained is bounded and ages out |

mod geometry;
pub mod nodes;
pub mod pool;

#[doc(hidden)]
pub use geometry::geometry;
pub(crate) use geometry::{channels, warn_of_small_heap};
use onecopy_obs::Knobs;
use onecopy_shm::layout::{Geometry, PAGE};
use onecopy_shm::pool::ChunkPool;
use onecopy_shm::stats;

/// Private bytes of a rank that do not depend on the number of ranks. An estimate from a measurement: 140 KiB of
/// anonymous memory, as much of relocated program, 40 KiB of page tables; rounded up.
pub const PRIVATE_BASE: u64 = 384 << 10;

/// Private bytes per peer that a rank talks with, estimated likewise and rounded up. They are 8.5 KiB of page tables
/// for what is mapped of it, its state, and its queues.
pub const PRIVATE_PER_PEER: u64 = 12 << 10;

/// What a job does, as far as memory depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Ranks of the job.
    pub ranks: usize,
    /// Peers that each rank sends to.
    pub peers: usize,
    /// Bytes that each rank allocates with `alloc`.
    pub heap: u64,
}

/// The formula with its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formula {
    geometry: Geometry,
    /// What the job does.
    pub traffic: Traffic,
    /// Bytes of header and control lines per rank, and of its statistics page.
    pub base: u64,
    /// Bytes of one ring.
    pub ring: u64,
    /// Bytes of one chunk.
    pub chunk: u64,
    /// Chunks that one peer may have outstanding.
    pub share: u64,
    /// Chunks that one sender may have in all.
    pub chunks_max: u64,
    /// Bytes of unmatched eager messages per pair.
    pub credit: u64,
    /// Communicators of a rank that can have a channel of collectives.
    pub channels: u64,
    /// Bytes of temporary buffers of collectives on the node at most.
    pub coll_pool: u64,
}

impl Formula {
    /// The formula for a job with these knobs.
    #[must_use]
    pub fn new(knobs: &Knobs, traffic: Traffic) -> Self {
        Self::on_node(knobs, traffic, traffic.ranks)
    }

    /// The formula for one node of a job of `size` ranks. Each segment has places for all of them, but only ranks of
    /// the node write there. `traffic` is that of the node's own ranks among each other.
    #[must_use]
    pub fn on_node(knobs: &Knobs, traffic: Traffic, size: usize) -> Self {
        let geometry = geometry(knobs, size.max(traffic.ranks));
        Self {
            geometry,
            traffic,
            base: geometry.base_bytes() + stats::memory_of(size.max(traffic.ranks) as u32),
            ring: geometry.ring_bytes(),
            chunk: u64::from(geometry.chunk_bytes),
            share: knobs.chunks_per_peer().max(knobs.pipeline_chunks()) as u64,
            chunks_max: u64::from(geometry.chunks),
            credit: knobs.eager_credit as u64,
            channels: u64::from(geometry.coll_channels),
            coll_pool: knobs.coll_pool as u64,
        }
    }

    /// Ordered pairs that talk.
    #[must_use]
    pub fn pairs(&self) -> u64 {
        self.traffic.ranks as u64 * self.traffic.peers as u64
    }

    /// Bytes of the bases of all ranks: all that a job takes before the first message.
    #[must_use]
    pub fn bases(&self) -> u64 {
        self.traffic.ranks as u64 * self.base
    }

    /// Bytes that the ring of one pair takes at most; rings smaller than a page share it.
    #[must_use]
    pub fn ring_at_most(&self) -> u64 {
        self.ring.next_multiple_of(PAGE as u64)
    }

    /// Bytes of the rings in the segment of one rank that hears from `senders`.
    #[must_use]
    pub fn rings_of(&self, senders: impl IntoIterator<Item = usize>) -> u64 {
        let page = PAGE as u64;
        let mut pages: Vec<u64> = senders
            .into_iter()
            .flat_map(|sender| {
                let begin = self.geometry.ring_offset(sender as u32).0;
                begin / page..(begin + self.ring).div_ceil(page)
            })
            .collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len() as u64 * page
    }

    /// Bytes of all rings: when every rank sends to all others exactly, otherwise at most.
    #[must_use]
    pub fn rings(&self) -> u64 {
        let ranks = self.traffic.ranks;
        if self.traffic.peers + 1 == ranks {
            (0..ranks)
                .map(|rank| self.rings_of((0..ranks).filter(|&other| other != rank)))
                .sum()
        } else {
            self.pairs() * self.ring_at_most()
        }
    }

    /// Bytes that a sender's pool has reserved once `outstanding` chunks were out at the same time.
    #[must_use]
    pub fn pool_after(&self, outstanding: u64) -> u64 {
        let mut pool = ChunkPool::new(self.geometry.chunks);
        let reserve = |_, _| Ok::<(), std::convert::Infallible>(());
        for _ in 0..outstanding.min(self.chunks_max) {
            if !matches!(pool.take(reserve), Ok(Some(_))) {
                break;
            }
        }
        (u64::from(pool.reserved()) * self.chunk).next_multiple_of(PAGE as u64)
    }

    /// Bytes of one sender's pool at most.
    #[must_use]
    pub fn pool_at_most(&self) -> u64 {
        if self.traffic.peers == 0 {
            return 0;
        }
        self.pool_after(self.share * self.traffic.peers as u64)
    }

    /// Bytes of what one rank allocates.
    #[must_use]
    pub fn heap_of_rank(&self) -> u64 {
        self.traffic.heap.next_multiple_of(PAGE as u64)
    }

    /// Shared memory of a job whose messages need no chunks.
    #[must_use]
    pub fn shared_least(&self) -> u64 {
        self.bases() + self.rings() + self.traffic.ranks as u64 * self.heap_of_rank()
    }

    /// Shared memory of a job in which every sender has filled its pool.
    #[must_use]
    pub fn shared_most(&self) -> u64 {
        self.shared_least() + self.traffic.ranks as u64 * self.pool_at_most()
    }

    /// Address range of each segment; only what is reserved takes memory.
    #[must_use]
    pub fn address_range(&self) -> u64 {
        self.geometry.pool_end().0 + self.geometry.heap_bytes
    }

    /// Private bytes of one rank, estimated.
    #[must_use]
    pub fn private_of_rank(&self) -> u64 {
        PRIVATE_BASE + PRIVATE_PER_PEER * self.traffic.peers as u64
    }

    /// Private bytes that unmatched eager messages may take at one rank.
    #[must_use]
    pub fn unexpected_of_rank(&self) -> u64 {
        self.credit * self.traffic.peers as u64
    }

    /// Bytes of a channel at one rank, once a communicator's collectives have used its slots and stages.
    #[must_use]
    pub fn channel(&self) -> u64 {
        Geometry::channel_bytes_for(self.traffic.ranks)
    }

    /// Shared bytes that collectives take at most: all channels of all ranks, and all temporary buffers.
    #[must_use]
    pub fn collectives_at_most(&self) -> u64 {
        self.coll_pool
    }

    /// Bytes of temporary buffers of all ranks at most: what the channels leave.
    #[must_use]
    pub fn temporary_at_most(&self) -> u64 {
        self.coll_pool - self.traffic.ranks as u64 * self.channels * self.channel()
    }

    /// Everything at once but for collectives, the worst that can be.
    #[must_use]
    pub fn worst(&self) -> u64 {
        self.shared_most()
            + self.traffic.ranks as u64 * (self.private_of_rank() + self.unexpected_of_rank())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_shm::gate::Threads;

    fn formula(ranks: usize) -> Formula {
        let traffic = Traffic {
            ranks,
            peers: ranks - 1,
            heap: 0,
        };
        Formula::new(&Knobs::default(), traffic)
    }

    /// What ranks take for channels and what their pools may hold comes to the knob, and no more.
    #[test]
    fn collectives_take_their_part_and_no_more() {
        let knobs = Knobs::default();
        for ranks in [1, 2, 7, 32, 100] {
            let f = formula(ranks);
            let held = pool::Settings::new(&knobs, ranks, Threads::Single).collective_share;
            let all = ranks as u64 * (f.channels * f.channel() + held);
            assert!(all <= f.collectives_at_most(), "{ranks}: {all}");
            assert!(
                all + ranks as u64 > f.collectives_at_most(),
                "{ranks}: {all}"
            );
            assert_eq!(
                f.temporary_at_most(),
                f.collectives_at_most() - ranks as u64 * f.channels * f.channel()
            );
        }
    }

    #[test]
    fn one_pair_takes_at_most_16_kib() {
        let (two, one) = (formula(2), formula(1));
        let per_pair = (two.shared_least() - 2 * one.shared_least()) / 2;
        assert!(per_pair <= 16 << 10, "{per_pair}");
    }

    #[test]
    fn pools_double_up_to_their_limit() {
        let f = formula(4);
        assert_eq!(f.pool_after(0), 0);
        let first = f.pool_after(1);
        assert!(first > 0 && first < f.chunks_max * f.chunk);
        assert_eq!(f.pool_after(first / f.chunk), first);
        assert_eq!(f.pool_after(first / f.chunk + 1), 2 * first);
        assert_eq!(f.pool_after(u64::MAX), f.chunks_max * f.chunk);
    }

    #[test]
    fn small_rings_share_pages() {
        let (knobs, ..) = Knobs::from_iter([
            ("ONECOPY_RING_SLOTS", "32"),
            ("ONECOPY_EAGER_SLOTS_MAX", "512"),
        ])
        .expect("valid");
        let f = Formula::new(
            &knobs,
            Traffic {
                ranks: 4,
                peers: 3,
                heap: 0,
            },
        );
        assert_eq!(f.ring, 2048);
        assert_eq!(f.rings_of([0, 1]), 4096);
        assert_eq!(f.rings_of([1, 2]), 8192);
    }
}
