// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which protocol carries which size: computed once per pair from cost curves, capabilities and knobs.
//!
//! [`Thresholds::send_path`] is the sender's decision, `decide` the receiver's. The runtime makes them with what it knows of one message;
//! [`explain`] makes the same ones for every size, and says why the others lost.

pub(crate) mod chunks;
pub(crate) mod decide;
pub mod explain;
pub(crate) mod observed;
pub(crate) mod rewritten;

use onecopy_btl::LayerId;
use onecopy_btl::cost::Costs;
use onecopy_btl::link::Link;
use onecopy_btl::registry::LayerSet;
use onecopy_obs::Knobs;
use onecopy_shm::ring::{MAX_RECORD_SLOTS, payload_of};

/// From which size on a pair does what. `usize::MAX` or `u64::MAX` stand for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Up to this payload in slots.
    pub slots_max: usize,
    /// Up to this payload in slots whatever else is known of the message.
    pub fast_max: usize,
    /// From here on announced, if the buffer lies in no heap.
    pub announce_min: u64,
    /// From here on announced, if the buffer lies in the heap.
    pub heap_min: u64,
    /// Up to here in chunks all the same, if the buffer lies in no heap and has changed since it was last sent.
    pub rewritten_max: u64,
    /// As before, if it lies in the heap.
    pub rewritten_heap_max: u64,
    /// From here on the receiver prefers reading by the kernel to chunks.
    pub cma_min: u64,
    /// From here on the receiver loads from attached memory.
    pub xpmem_min: u64,
    /// From here on the receiver prefers reading by the kernel module to chunks.
    pub knem_min: u64,
    /// From here on both sides copy, through heaps.
    pub coop_heap_min: u64,
    /// From here on both sides copy, through attached memory.
    pub coop_xpmem_min: u64,
    /// From here on both sides copy, through the kernel.
    pub coop_cma_min: u64,
    /// From here on both sides copy, through the kernel module.
    pub coop_knem_min: u64,
}

/// Messages above this size are announced wherever a layer can copy them at once; where chunks are written by strings, above the other one.
const EAGER_MOST: u64 = 128 << 10;
const EAGER_STRINGS_MOST: u64 = 256 << 10;

/// Up to these sizes copying through chunks is cheaper for a sender that rewrites its buffer than to have it read in place.
const REWRITTEN_MAX: usize = 128 << 10;
const REWRITTEN_HEAP_MAX: usize = 64 << 10;

/// Largest payload that fits into the slots of one record.
pub const SLOTS_LIMIT: usize = payload_of(MAX_RECORD_SLOTS);

/// Slots of the largest record that always finds room in an emptied ring of `slots`: it may need as many again, less one, to fill the
/// ring's end, one slot stays free, and the consumer may keep back a quarter of the ring that it has not given back yet.
const fn largest_record(slots: usize) -> usize {
    let kept_back = slots / 4 - 1;
    (slots - kept_back) / 2
}

impl Thresholds {
    /// Computes the thresholds of a pair.
    #[must_use]
    pub fn compute(knobs: &Knobs, costs: &Costs, link: &Link) -> Self {
        Self::with_layers(knobs, costs, link.proven())
    }

    /// Computes the thresholds of a pair that has these copy layers.
    #[must_use]
    pub fn with_layers(knobs: &Knobs, costs: &Costs, has: LayerSet) -> Self {
        let never = u64::MAX;
        let [heap, xpmem, cma, knem] = LayerId::SINGLE.map(|layer| has.has(layer));
        let knob = |value: Option<usize>, auto: u64| value.map_or(auto, |v| v as u64);
        let slots_max = knobs
            .eager_slots_max
            .min(SLOTS_LIMIT)
            .min(payload_of(largest_record(knobs.ring_slots)));
        let coop = |curve, single, layer: bool| {
            if !layer || !knobs.coop {
                return never;
            }
            let auto = Costs::crossing(curve, single, 16 << 10).unwrap_or(never);
            knob(knobs.coop_min, auto)
        };
        let coop_heap_min = coop(&costs.map_coop, &costs.map, heap);
        // The sender attaches, too, and so must have earned it.
        let coop_xpmem_min = coop(&costs.attach_coop, &costs.attach, xpmem);
        let coop_xpmem_min = match knobs.coop_min {
            None => coop_xpmem_min.max(knobs.attach_min as u64),
            Some(_) => coop_xpmem_min,
        };
        let coop_cma_min = coop(&costs.get_coop, &costs.get, cma);
        let coop_knem_min = coop(&costs.module_coop, &costs.module, knem);

        let cico_allowed = knobs.layers.allows("cico");
        // From where on a single copy is cheaper than two, with the fewest system calls that are possible.
        let single = |has: bool, set, alone, together, rival, from| {
            let best = if knobs.coop { together } else { alone };
            let auto = Costs::crossing(best, rival, from).unwrap_or(never);
            match has {
                true => knob(set, if cico_allowed { auto } else { 0 }),
                false => never,
            }
        };
        let (get, get_coop) = (&costs.get, &costs.get_coop);
        let cma_min = single(cma, knobs.cma_min, get, get_coop, &costs.pipeline, 4096);
        let (get, get_coop) = (&costs.module, &costs.module_coop);
        let knem_min = single(knem, knobs.knem_min, get, get_coop, &costs.pipeline, 4096);
        // Attached memory competes with eager messages: it beats the pipeline everywhere.
        let (load, set) = (&costs.attach, knobs.xpmem_min);
        let xpmem_min = single(xpmem, set, load, load, &costs.eager, 512);

        let heap_auto = Costs::crossing(&costs.map, &costs.eager, 512).unwrap_or(never);
        let heap_min = if heap {
            knob(
                knobs.heap_min,
                if cico_allowed {
                    heap_auto
                } else {
                    slots_max as u64 + 1
                },
            )
        } else {
            never
        };

        // Without a copy layer an announcement only bounds memory: half the credit may travel unasked. With one it also saves a copy.
        let eager_auto = if xpmem || cma || knem {
            let first = xpmem_min.min(cma_min).min(knem_min);
            // Owned lines are asked for while the receiver still reads those of the message before.
            let (most, chunks) = if knobs.writes_strings() {
                (EAGER_STRINGS_MOST, knobs.pool_per_peer)
            } else {
                (EAGER_MOST, knobs.pool_per_peer / 2)
            };
            let most = most.min(knobs.eager_credit as u64 / 2).min(chunks as u64);
            first.clamp(slots_max as u64 + 1, most.max(slots_max as u64) + 1)
        } else {
            (knobs.eager_credit as u64 / 2).max(slots_max as u64 + 1)
        };
        let announce_min = match knobs.eager_max {
            Some(max) => max as u64 + 1,
            None if cico_allowed => eager_auto,
            None => slots_max as u64 + 1,
        };
        // Who has said from where on a layer is used means it. At most two messages wait for their receiver.
        let rewritten = |most: usize, decided: bool| match decided || !cico_allowed {
            true => 0,
            false => knob(knobs.rewritten_max, most as u64)
                .min(knobs.eager_credit as u64 / 2)
                .min(knobs.pool_per_peer as u64 / 2),
        };
        let by_user = knobs.eager_max.is_some();
        let single = [knobs.cma_min, knobs.xpmem_min, knobs.knem_min];
        let rewritten_max = rewritten(REWRITTEN_MAX, by_user || single.iter().any(Option::is_some));
        // Strings do not mind where the buffer's lines are, and to read it in place is one copy less.
        let heap_most = if knobs.writes_strings() {
            0
        } else {
            REWRITTEN_HEAP_MAX
        };
        let rewritten_heap_max = rewritten(heap_most, by_user || knobs.heap_min.is_some());
        let earliest = announce_min.min(heap_min).saturating_sub(1);
        let fast_max = slots_max.min(usize::try_from(earliest).unwrap_or(usize::MAX));
        Self {
            slots_max,
            fast_max,
            announce_min,
            heap_min,
            rewritten_max,
            rewritten_heap_max,
            cma_min,
            xpmem_min,
            knem_min,
            coop_heap_min,
            coop_xpmem_min,
            coop_cma_min,
            coop_knem_min,
        }
    }

    /// From which size on a message that lies in the heap, or not, is announced.
    #[inline]
    #[must_use]
    pub fn announce_from(&self, in_heap: bool) -> u64 {
        if in_heap {
            self.heap_min.min(self.announce_min)
        } else {
            self.announce_min
        }
    }

    /// Whether a message of `len` bytes goes in chunks, though it would be announced, if its buffer has changed since it was last sent.
    #[inline]
    #[must_use]
    pub fn minds_rewriting(&self, len: u64, in_heap: bool) -> bool {
        let most = if in_heap {
            self.rewritten_heap_max
        } else {
            self.rewritten_max
        };
        len <= most && len >= self.announce_from(in_heap) && len > self.fast_max as u64
    }

    /// From which size on both sides copy by `layer`.
    #[inline]
    #[must_use]
    pub fn coop_min(&self, layer: LayerId) -> u64 {
        match layer {
            LayerId::Heap => self.coop_heap_min,
            LayerId::Xpmem => self.coop_xpmem_min,
            LayerId::Knem => self.coop_knem_min,
            _ => self.coop_cma_min,
        }
    }

    /// How a message of `len` bytes leaves its sender. `extra` bytes travel with it in slots.
    #[inline]
    #[must_use]
    pub fn send_path(&self, len: u64, extra: u64, in_heap: bool, credit: bool) -> Path {
        if !credit || len >= self.announce_from(in_heap) && len > self.fast_max as u64 {
            Path::Announced
        } else if len + extra <= self.slots_max as u64 {
            Path::Slots
        } else if len > 0 {
            Path::Chunks
        } else {
            Path::Announced
        }
    }

    /// How the receiver has the `len` bytes of an announced message come.
    #[inline]
    #[must_use]
    pub(crate) fn way(&self, len: u64, ends: &Ends) -> Way {
        let reader = if ends.heap_reads {
            Some(LayerId::Heap)
        } else if ends.xpmem_reads && len >= self.xpmem_min {
            Some(LayerId::Xpmem)
        } else if ends.cma_reads && len >= self.cma_min {
            Some(LayerId::Cma)
        } else if ends.knem_reads && len >= self.knem_min {
            Some(LayerId::Knem)
        } else {
            None
        };
        if ends.block_free {
            let together = reader.is_some_and(|layer| len >= self.coop_min(layer));
            // The bytes are not in memory that we map but are to be in memory that the sender maps: a copy by the sender alone is still a
            // single one.
            let mapped = matches!(reader, Some(LayerId::Heap | LayerId::Xpmem));
            let by_sender = !mapped && ends.heap_writes;
            if together {
                return Way::Together {
                    reader,
                    ask: by_sender,
                };
            }
            if by_sender {
                return Way::Together {
                    reader: None,
                    ask: true,
                };
            }
        }
        reader.map_or(Way::Pipeline, Way::Get)
    }
}

/// How a message leaves its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// In the ring's slots.
    Slots,
    /// In chunks of the sender's pool.
    Chunks,
    /// Announced: the receiver decides.
    Announced,
}

/// What the receiver of an announced message knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The bytes lie in the sender's heap, which the receiver maps.
    pub(crate) heap_reads: bool,
    /// The receiver may attach the sender's memory, or has done so, and the message has earned that.
    pub(crate) xpmem_reads: bool,
    /// The receiver may read the sender's memory by the kernel.
    pub(crate) cma_reads: bool,
    /// The receiver may read the sender's memory by the kernel module.
    pub(crate) knem_reads: bool,
    /// The buffer lies in the receiver's heap, which the sender maps, and the sender was not asked yet.
    pub(crate) heap_writes: bool,
    /// Both sides could copy: the buffer is in one piece, and no other message of the pair uses the block for that.
    pub(crate) block_free: bool,
}

/// How an announced message's bytes come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The receiver copies by this layer.
    Get(LayerId),
    /// Both sides may copy.
    Together {
        /// How the receiver copies; none: it leaves that to the sender.
        reader: Option<LayerId>,
        /// Whether the sender is asked to copy also while it does not wait.
        ask: bool,
    },
    /// The sender sends chunks.
    Pipeline,
}
