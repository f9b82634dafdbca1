// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiver's decision about an announced message. The runtime makes it of one message, [`super::explain`] of every
//! size: the same function, with facts from two sources.

use super::observed::{Observed, Source};
use super::{ReceiveProtocol, ReceiverState, Thresholds};
use onecopy_btl::LayerId;
use onecopy_btl::registry::{LayerSet, Power};

/// What the receiver can find out about a range of an announced message. It is asked only for what matters: to be
/// attached, for instance, costs something.
pub(crate) trait Facts {
    /// Whether the sender has shown the bytes to a device of the receiver, which can read them.
    fn is_shown(&self) -> bool;
    /// Whether the receiver may read the bytes by the layer. They lie where it maps, they are attached or may be now,
    /// or its calls reach them.
    fn is_read_by(&self, layer: LayerId) -> bool;
    /// Whether the sender has rewritten its buffer since it sent it last.
    fn is_rewritten(&self) -> bool;
    /// Whether the buffer lies in the receiver's heap, which the sender maps, and the sender was not asked yet.
    fn sender_maps(&self) -> bool;
    /// Whether both sides could copy: the buffer is in one piece, and no other message uses the pair's block for that.
    fn block_free(&self) -> bool;
}

/// How `len` bytes of an announced message come. What the pair has seen decides between the kernel and chunks.
pub(crate) fn decide(
    len: u64,
    facts: &impl Facts,
    thresholds: &Thresholds,
    observed: &mut Observed,
) -> ReceiveProtocol {
    // The sender has registered the bytes for that, and no layer reaches another node's memory.
    if facts.is_shown() {
        return ReceiveProtocol::Read;
    }
    let mut reads = LayerSet::default();
    let mut by_call = false;
    for layer in LayerId::SINGLE {
        let power = layer.power();
        let asked = power != Power::Attach || len >= thresholds.min[layer];
        if asked && facts.is_read_by(layer) {
            reads = reads.with(layer);
            by_call |= power == Power::Copy;
            // Nothing is cheaper.
            if power.loads() {
                break;
            }
        }
    }
    let receiver = ReceiverState {
        reads,
        sender_maps: facts.sender_maps(),
        block_free: facts.block_free(),
    };
    let source = Source {
        bytes: len,
        rewritten: facts.is_rewritten(),
    };
    let seen = (by_call && !receiver.sender_maps)
        .then(|| observed.decide(thresholds, source))
        .flatten();
    thresholds.receive_protocol(len, &receiver, seen)
}
