// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which protocol carries which size: computed once per pair from cost curves, capabilities and knobs.
//!
//! [`Thresholds::send_protocol`] is the sender's decision, `decide` the receiver's. The runtime makes them with what it
//! knows of one message; [`explain`] makes the same ones for every size, and says why the others lost.

pub(crate) mod chunks;
pub(crate) mod decide;
pub mod explain;
pub(crate) mod observed;
mod rate;
pub(crate) mod rewritten;
pub(crate) mod unasked;

use crate::endpoint::{MAX_RECORD_SLOTS, largest_payload, payload_of};
use observed::Rival;
use onecopy_btl::cost::{Costs, LayerCosts};
use onecopy_btl::registry::{LayerSet, PerLayer, Power};
use onecopy_btl::{LayerId, Refusal};
use onecopy_obs::{Knobs, seeds};

/// Why no layer copies between ranks on different nodes.
pub(crate) fn other_node() -> Refusal {
    Refusal::new("the rank is on another node", "start it on this one")
}

/// From which size on a pair does what. `usize::MAX` or `u64::MAX` stand for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Up to this payload in slots.
    pub slots_max: usize,
    /// Up to this payload in slots where no chunk would return, or there is none.
    pub slots_limit: usize,
    /// Up to this payload in slots whatever else is known of the message.
    pub fast_max: usize,
    /// The same of a message that is not answered.
    pub fast_limit: usize,
    /// From here on announced, if the buffer lies in no heap.
    pub announce_min: u64,
    /// Up to here in chunks all the same, if the buffer lies in no heap and has changed since it was last sent.
    pub rewritten_max: u64,
    /// As before, if it lies in the heap.
    pub rewritten_heap_max: u64,
    /// From here on the receiver takes the layer; of the one that maps, from here on announced, if the buffer lies in
    /// the heap.
    pub min: PerLayer<u64>,
    /// From here on both sides copy by it.
    pub coop_min: PerLayer<u64>,
}

/// Largest payload that fits into the slots of one record.
pub const SLOTS_LIMIT: usize = payload_of(MAX_RECORD_SLOTS);

/// What the thresholds of a pair are computed from.
struct Inputs<'a> {
    knobs: &'a Knobs,
    costs: &'a Costs,
    /// The layers that the pair has.
    proven: LayerSet,
    /// Whether the user permits chunks.
    chunks: bool,
    slots_max: usize,
    slots_limit: usize,
}

const NEVER: u64 = u64::MAX;

/// What the user has set, or else what follows.
fn set_or(set: Option<usize>, auto: u64) -> u64 {
    set.map_or(auto, |set| set as u64)
}

/// The layers that read memory which is not mapped from the start.
fn unmapped() -> impl Iterator<Item = LayerId> {
    LayerId::SINGLE
        .into_iter()
        .filter(|layer| layer.power() != Power::Map)
}

impl<'a> Inputs<'a> {
    fn new(knobs: &'a Knobs, costs: &'a Costs, proven: LayerSet, returns: bool) -> Self {
        let slots = |most: usize| most.min(SLOTS_LIMIT).min(largest_payload(knobs));
        let slots_limit = slots(knobs.slots_limit());
        Self {
            knobs,
            costs,
            proven,
            chunks: knobs.layers.allows(LayerId::CHUNKS.name()),
            slots_max: if returns {
                slots(knobs.slots_most())
            } else {
                slots_limit
            },
            slots_limit,
        }
    }

    /// From where on a layer's single copy is cheaper than two.
    fn min(&self, layer: LayerId) -> u64 {
        if !self.proven.has(layer) {
            return NEVER;
        }
        let LayerCosts {
            one_sided,
            cooperative,
        } = &self.costs.by[layer];
        let cheaper = match layer.power() {
            // With the fewest calls that are possible.
            Power::Copy => {
                let best = if self.knobs.coop {
                    cooperative
                } else {
                    one_sided
                };
                Costs::crossing(best, &self.costs.pipeline, seeds::CALLS_FROM as u64)
            }
            // Mapped memory competes with eager messages: it beats the pipeline everywhere.
            _ => Costs::crossing(one_sided, &self.costs.eager, seeds::LOADS_FROM as u64),
        };
        let auto = match (self.chunks, layer.power()) {
            (true, _) => cheaper.unwrap_or(NEVER),
            (false, Power::Map) => self.slots_max as u64 + 1,
            (false, _) => 0,
        };
        set_or(layer.min(self.knobs), auto)
    }

    /// From where on both sides copy by a layer.
    fn coop_min(&self, layer: LayerId) -> u64 {
        if !self.proven.has(layer) || !self.knobs.coop {
            return NEVER;
        }
        let LayerCosts {
            one_sided,
            cooperative,
        } = &self.costs.by[layer];
        let auto =
            Costs::crossing(cooperative, one_sided, seeds::BOTH_FROM as u64).unwrap_or(NEVER);
        match (self.knobs.coop_min, layer.power()) {
            // The sender attaches, too, and so must have earned it.
            (None, Power::Attach) => auto.max(self.knobs.attach_min as u64),
            (set, _) => set_or(set, auto),
        }
    }

    /// From where on a message that lies in no heap is announced.
    fn announce_min(&self, min: &PerLayer<u64>) -> u64 {
        let copied_from = unmapped()
            .any(|layer| self.proven.has(layer))
            .then(|| unmapped().map(|layer| min[layer]).min())
            .flatten()
            .map(|first| usize::try_from(first).unwrap_or(usize::MAX));
        let knobs = self.knobs;
        let set = knobs.eager_max;
        set.unwrap_or_else(|| knobs.eager_most(copied_from, self.slots_max)) as u64 + 1
    }
}

impl Thresholds {
    /// Computes the thresholds of a pair that has these copy layers, and whose chunks may return if the knobs let them.
    #[must_use]
    pub fn with_layers(knobs: &Knobs, costs: &Costs, proven: LayerSet) -> Self {
        Self::compute(knobs, costs, proven, true)
    }

    /// The same; `returns`: whether chunks may.
    #[must_use]
    pub fn compute(knobs: &Knobs, costs: &Costs, proven: LayerSet, returns: bool) -> Self {
        let inputs = Inputs::new(knobs, costs, proven, returns);
        let min = PerLayer::new(|layer| inputs.min(layer));
        let announce_min = inputs.announce_min(&min);
        let earliest = announce_min.min(min[LayerId::MAP]).saturating_sub(1);
        let earliest = usize::try_from(earliest).unwrap_or(usize::MAX);
        let slots_max = inputs.slots_max;
        Self {
            slots_max,
            slots_limit: inputs.slots_limit,
            fast_max: slots_max.min(earliest),
            fast_limit: inputs.slots_limit.min(earliest),
            announce_min,
            rewritten_max: knobs.rewritten_most(false) as u64,
            rewritten_heap_max: knobs.rewritten_most(true) as u64,
            min,
            coop_min: PerLayer::new(|layer| inputs.coop_min(layer)),
        }
    }

    /// Up to which payload a message travels in slots. The chunk of one that is not `answered` would not return.
    #[inline]
    fn slots_max_if(&self, answered: bool) -> usize {
        match answered {
            true => self.slots_max,
            false => self.slots_limit,
        }
    }

    /// From which size on a message that lies in the heap, or not, is announced.
    #[inline]
    #[must_use]
    pub fn announce_from(&self, in_heap: bool) -> u64 {
        if in_heap {
            self.min[LayerId::MAP].min(self.announce_min)
        } else {
            self.announce_min
        }
    }

    /// Whether the receiver surely copies an announced message alone: it maps the sender's heap, and copies too little
    /// to share that. Else it may ask the sender to copy, too.
    #[inline]
    #[must_use]
    pub fn receiver_copies_alone(&self, len: u64, in_heap: bool) -> bool {
        in_heap && (self.min[LayerId::MAP]..self.coop_min[LayerId::MAP]).contains(&len)
    }

    /// Up to which size a message goes in chunks if its buffer has changed since it was last sent.
    #[inline]
    #[must_use]
    pub fn chunks_if_rewritten(&self, in_heap: bool) -> u64 {
        if in_heap {
            self.rewritten_heap_max
        } else {
            self.rewritten_max
        }
    }

    /// From which size on the receiver prefers some call of the kernel to chunks.
    pub(crate) fn call_min(&self) -> u64 {
        let calls = LayerSet::ALL.by(Power::Copy);
        calls.map(|layer| self.min[layer]).min().unwrap_or(u64::MAX)
    }

    /// How a message leaves its sender. `changed` looks whether its buffer has changed since it was last sent, and is
    /// asked at most once.
    #[inline]
    #[must_use]
    pub fn send_protocol(
        &self,
        message: &SenderState,
        changed: impl FnOnce() -> bool,
    ) -> SendProtocol {
        let &SenderState {
            len,
            extra,
            in_heap,
            has_credit,
            answered,
            wanted,
        } = message;
        if !has_credit {
            SendProtocol::Announced
        } else if len >= self.announce_from(in_heap).min(wanted) && len > self.fast_max as u64 {
            match len <= self.chunks_if_rewritten(in_heap) && changed() {
                true => SendProtocol::Chunks,
                false => SendProtocol::Announced,
            }
        } else if len + extra <= self.slots_max_if(answered) as u64 {
            SendProtocol::Slots
        } else if len > 0 {
            SendProtocol::Chunks
        } else {
            SendProtocol::Announced
        }
    }

    /// How the receiver has the `len` bytes of an announced message come. `seen`: which of two ways is faster, if the
    /// pair knows that.
    #[inline]
    #[must_use]
    pub(crate) fn receive_protocol(
        &self,
        len: u64,
        receiver: &ReceiverState,
        seen: Option<Rival>,
    ) -> ReceiveProtocol {
        // What maps was announced for that, whatever its size.
        let pays = |layer: LayerId| match (layer.power(), seen) {
            (Power::Map, _) => true,
            (Power::Copy, Some(rival)) => rival == Rival::Kernel,
            _ => len >= self.min[layer],
        };
        let reads = |&layer: &LayerId| receiver.reads.has(layer) && pays(layer);
        let reader = LayerId::SINGLE.into_iter().find(reads);
        if receiver.block_free {
            let cooperative = reader.is_some_and(|layer| len >= self.coop_min[layer]);
            // The bytes are not in memory that we map, but are to be in memory that the sender maps. A copy by the
            // sender alone is still a single one.
            let mapped = reader.is_some_and(|layer| layer.power().loads());
            let by_sender = !mapped && receiver.sender_maps;
            if cooperative {
                return ReceiveProtocol::Cooperative {
                    reader,
                    ask: by_sender,
                };
            }
            if by_sender {
                return ReceiveProtocol::Cooperative {
                    reader: None,
                    ask: true,
                };
            }
        }
        reader.map_or(ReceiveProtocol::Pipeline, ReceiveProtocol::Get)
    }
}

/// How a message leaves its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendProtocol {
    /// In the ring's slots.
    Slots,
    /// In chunks of the sender's pool.
    Chunks,
    /// Announced: the receiver decides.
    Announced,
}

/// What the sender of a message knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderState {
    /// Bytes of the message.
    pub len: u64,
    /// Bytes that travel with it in slots.
    pub extra: u64,
    /// Whether its buffer lies in the sender's heap.
    pub in_heap: bool,
    /// Whether the receiver has room for it.
    pub has_credit: bool,
    /// Whether the receiver answers messages of this rank before the next one is sent.
    pub answered: bool,
    /// From which size on the receiver wants it announced, by the times that it has seen; `u64::MAX`: it has no such
    /// wish.
    pub wanted: u64,
}

/// What the receiver of an announced message knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiverState {
    /// The layers by which the receiver may read.
    pub(crate) reads: LayerSet,
    /// The buffer lies in the receiver's heap, which the sender maps, and the sender was not asked yet.
    pub(crate) sender_maps: bool,
    /// Both sides could copy: the buffer is in one piece, and no other message of the pair uses the block for that.
    pub(crate) block_free: bool,
}

/// How users see that a device reads the bytes.
const RDMA_READ: &str = "rdma-read";

/// How an announced message's bytes come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiveProtocol {
    /// A device of the receiver reads what the sender has shown to it.
    Read,
    /// The receiver copies by this layer.
    Get(LayerId),
    /// Both sides may copy.
    Cooperative {
        /// How the receiver copies; none: it leaves that to the sender.
        reader: Option<LayerId>,
        /// Whether the sender is asked to copy also while it does not wait.
        ask: bool,
    },
    /// The sender sends chunks.
    Pipeline,
}

impl ReceiveProtocol {
    /// Its name, as users see it. Inlined: tracepoints take it on the way of each message, where it is a constant as a
    /// rule.
    #[inline(always)]
    pub(crate) fn name(self) -> &'static str {
        let labels = |layer: LayerId| {
            layer
                .labels()
                .map(|labels| (labels.one_sided, labels.cooperative))
        };
        match self {
            Self::Read => RDMA_READ,
            Self::Get(layer) => labels(layer).map_or(layer.name(), |(one_sided, _)| one_sided),
            Self::Cooperative {
                reader: Some(layer),
                ..
            } => labels(layer).map_or(layer.name(), |(_, cooperative)| cooperative),
            Self::Cooperative { reader: None, .. } => "put",
            Self::Pipeline => "pipeline",
        }
    }
}
