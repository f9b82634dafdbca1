// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiver's decision about an announced message. The runtime makes it of one message, [`super::explain`] of every
//! size: the same function, with facts from two sources.

use super::observed::Observed;
use super::{Ends, Thresholds, Way};
use onecopy_btl::LayerId;

/// What the receiver can find out about a range of an announced message. It is asked only for what matters: to be attached,
/// for instance, costs something.
pub(crate) trait Facts {
    /// Whether the bytes lie in the sender's heap, which the receiver maps.
    fn heap_reads(&self) -> bool;
    /// Whether the bytes are attached, or may be now.
    fn is_attached(&self) -> bool;
    /// Whether the receiver may have them read by a layer of the kernel.
    fn kernel_reads(&self, layer: LayerId) -> bool;
    /// Whether the buffer lies in the receiver's heap, which the sender maps, and the sender was not asked yet.
    fn heap_writes(&self) -> bool;
    /// Whether both sides could copy: the buffer is in one piece, and no other message uses the pair's block for that.
    fn block_free(&self) -> bool;
}

/// How `len` bytes of an announced message come. What the pair has seen decides between the kernel and chunks.
pub(crate) fn decide(
    len: u64,
    facts: &impl Facts,
    thresholds: &Thresholds,
    observed: &mut Observed,
) -> Way {
    let heap_reads = facts.heap_reads();
    let xpmem_reads = !heap_reads && len >= thresholds.xpmem_min && facts.is_attached();
    let by_kernel = |layer| !heap_reads && !xpmem_reads && facts.kernel_reads(layer);
    let ends = Ends {
        heap_reads,
        xpmem_reads,
        cma_reads: by_kernel(LayerId::Cma),
        knem_reads: by_kernel(LayerId::Knem),
        heap_writes: facts.heap_writes(),
        block_free: facts.block_free(),
    };
    if (ends.cma_reads || ends.knem_reads) && !ends.heap_writes {
        observed.decide(*thresholds, len).way(len, &ends)
    } else {
        thresholds.way(len, &ends)
    }
}
