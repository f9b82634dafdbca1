// SPDX-License-Identifier: MIT OR Apache-2.0
//! How large the parts of a segment are, by the knobs and the limits of the process.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use onecopy_btl::LayerId;
use onecopy_obs::Knobs;
use onecopy_shm::layout::{Geometry, PAGE};
use onecopy_shm::segment::{default_heap_bytes, machine_heap_bytes};

/// The geometry that the knobs ask for in a job of `ranks`.
#[doc(hidden)]
pub fn geometry(knobs: &Knobs, ranks: usize) -> Geometry {
    let heap = knobs
        .heap_size
        .unwrap_or_else(|| default_heap(ranks))
        .next_multiple_of(PAGE) as u64;
    let heap = if maps(knobs) { heap } else { 0 };
    Geometry {
        ranks: u32::try_from(ranks).unwrap_or(u32::MAX),
        ring_slots: knobs.ring_slots_among(ranks) as u32,
        chunk_bytes: knobs.chunk_bytes() as u32,
        chunks: u32::try_from(knobs.pool_max / knobs.chunk_bytes())
            .unwrap_or(u32::MAX)
            .max(1),
        heap_bytes: heap,
        coll_channels: channels(knobs, ranks),
    }
}

/// Channels for collectives that a rank has in a job of `ranks`.
pub(crate) fn channels(knobs: &Knobs, ranks: usize) -> u32 {
    Geometry::channels_for(knobs.coll_pool, ranks)
}

/// Whether the user permits the layer that reads heaps.
fn maps(knobs: &Knobs) -> bool {
    knobs.layers.allows(LayerId::MAP.name())
}

/// As much address range as the machine has memory: no single rank can use more. Where the address space is limited,
/// this lets a rank map the heaps of all and leaves half of the limit to the program. All ranks must come to the same:
/// the limit itself counts, not what is left of it.
fn default_heap(ranks: usize) -> usize {
    let wanted = default_heap_bytes();
    let limit = match getrlimit(Resource::RLIMIT_AS) {
        Ok((soft, _)) if soft != RLIM_INFINITY => usize::try_from(soft).unwrap_or(usize::MAX),
        _ => return wanted,
    };
    let each = (limit / 2 / ranks.max(1)).max(1 << 20);
    wanted.min(1 << each.ilog2())
}

/// Warns if the heap is smaller than it would be without limits.
pub(crate) fn warn_of_small_heap(knobs: &Knobs, geometry: &Geometry) {
    let (wanted, got) = (machine_heap_bytes() as u64, geometry.heap_bytes);
    if knobs.heap_size.is_none() && maps(knobs) && got < wanted {
        let limited = match default_heap_bytes() as u64 {
            most if most < wanted && most <= got => "the size of files is limited (ulimit -f)",
            _ => "the address space is limited (ulimit -v)",
        };
        tracing::warn!(
            "{limited}, so each rank has a heap of {} MiB for 'alloc' instead of {} MiB; \
             set ONECOPY_HEAP_SIZE or raise the limit",
            got >> 20,
            wanted >> 20
        );
    }
}
