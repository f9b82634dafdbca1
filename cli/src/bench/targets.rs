// SPDX-License-Identifier: MIT OR Apache-2.0
//! What collectives are to reach, in microseconds: two ranks on processors of their own in the near state, and more
//! ranks than processors.

use onecopy_bench::{Mechanism, Pattern};

/// From this size on the target is for buffers from `alloc`.
const LARGE: usize = 64 << 10;

/// The target of a collective; none where none was set.
#[must_use]
pub fn target(pattern: Pattern, mechanism: Mechanism, size: usize, ranks: usize) -> Option<f64> {
    if size >= LARGE && mechanism != Mechanism::Heap {
        return None;
    }
    let column = |columns: [f64; 4]| {
        let sizes = [8, 1 << 10, 64 << 10, 1 << 20];
        sizes
            .iter()
            .position(|&other| other == size)
            .map(|index| columns[index])
    };
    match (ranks, pattern) {
        (2, Pattern::Barrier) => Some(0.13),
        (2, Pattern::Bcast) => column([0.13, 0.20, 2.5, 25.0]),
        (2, Pattern::Allreduce) => column([0.20, 0.40, 5.0, 55.0]),
        (2, Pattern::ReduceScatter) => column([0.20, 0.40, 4.0, 45.0]),
        (2, Pattern::Allgather) => column([0.16, 0.32, 4.0, 50.0]),
        (2, Pattern::Alltoall) => column([0.16, 0.30, 4.0, 50.0]),
        // With more ranks than processors.
        (4 | 8, Pattern::Allreduce) => {
            let times = if ranks == 8 { 3.0 } else { 1.0 };
            match size {
                8 => Some(5.0 * times),
                0x10_0000 => Some(250.0 * times),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_targets_are_for_memory_that_peers_can_read() {
        let bcast_target = |mechanism, size| target(Pattern::Bcast, mechanism, size, 2);
        assert_eq!(bcast_target(Mechanism::Auto, 8), Some(0.13));
        assert_eq!(bcast_target(Mechanism::Heap, 1 << 20), Some(25.0));
        assert_eq!(bcast_target(Mechanism::Auto, 1 << 20), None);
        assert_eq!(bcast_target(Mechanism::Heap, 100), None);
    }
}
