// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which protocol carries which size, and why the others do not: the runtime's own decisions, made for every size.

use super::decide::{Facts, decide};
use super::observed::{self, Observed};
use super::{Path, Thresholds, Way};
use onecopy_btl::cost::{Costs, Curve};
use onecopy_btl::registry::LayerSet;
use onecopy_btl::{LayerId, Refusal};
use onecopy_obs::Knobs;
use onecopy_shm::cells::FIRST_PAYLOAD;
use std::fmt;

/// How a message's bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// In one slot of the ring.
    Inline,
    /// In several slots.
    Slots,
    /// In chunks of the sender's pool, before anyone asks.
    Chunks,
    /// Announced; in recycled chunks on the receiver's request.
    Pipeline,
    /// Announced; the receiver loads from the sender's heap.
    Map,
    /// Announced; both sides load and store.
    MapCoop,
    /// Announced; the sender stores into the receiver's heap.
    Put,
    /// Announced; the receiver loads from the sender's attached memory.
    Attach,
    /// Announced; both sides copy between attached memory.
    AttachCoop,
    /// Announced; the receiver reads by the kernel.
    Get,
    /// Announced; the receiver reads and the sender writes by the kernel.
    GetCoop,
    /// Announced; the receiver reads by the kernel module.
    Module,
    /// Announced; the receiver reads and the sender may write by the kernel module.
    ModuleCoop,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Inline,
        Self::Slots,
        Self::Chunks,
        Self::Pipeline,
        Self::Map,
        Self::MapCoop,
        Self::Put,
        Self::Attach,
        Self::AttachCoop,
        Self::Get,
        Self::GetCoop,
        Self::Module,
        Self::ModuleCoop,
    ];

    /// The name as users see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Slots => "slots",
            Self::Chunks => "chunks",
            Self::Pipeline => "pipeline",
            Self::Map => "map",
            Self::MapCoop => "map+coop",
            Self::Put => "put",
            Self::Attach => "attach",
            Self::AttachCoop => "attach+coop",
            Self::Get => "get",
            Self::GetCoop => "get+coop",
            Self::Module => "module",
            Self::ModuleCoop => "module+coop",
        }
    }

    fn curve(self, costs: &Costs) -> &Curve {
        match self {
            Self::Inline | Self::Slots | Self::Chunks => &costs.eager,
            Self::Pipeline => &costs.pipeline,
            // One side copies between two buffers that it maps, whichever side that is.
            Self::Map | Self::Put => &costs.map,
            Self::MapCoop => &costs.map_coop,
            Self::Attach => &costs.attach,
            Self::AttachCoop => &costs.attach_coop,
            Self::Get => &costs.get,
            Self::GetCoop => &costs.get_coop,
            Self::Module => &costs.module,
            Self::ModuleCoop => &costs.module_coop,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where the two buffers of a message lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// The sender's is memory from `alloc`.
    pub from_heap: bool,
    /// The receiver's is memory from `alloc`.
    pub to_heap: bool,
}

/// The copy layers of a pair: none is refused, or why.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// Why the heap layer is not used.
    pub heap: Option<Refusal>,
    /// Why attached memory is not used.
    pub xpmem: Option<Refusal>,
    /// Why cross-memory attach is not used.
    pub cma: Option<Refusal>,
    /// Why copies by the kernel module are not used.
    pub knem: Option<Refusal>,
}

impl Layers {
    fn has(&self) -> LayerSet {
        let all = [&self.heap, &self.xpmem, &self.cma, &self.knem];
        let layers = LayerId::SINGLE.into_iter().zip(all);
        layers
            .filter_map(|(layer, refusal)| refusal.is_none().then_some(layer))
            .collect()
    }
}

/// Why a protocol does not carry a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// A layer or the place of a buffer does not permit it.
    Refused(String),
    /// A knob keeps it out.
    Knob(String),
    /// It would be slower.
    Slower,
    /// It is slower by the curves, which a pair replaces by the times that it sees.
    Learned,
    /// It serves other sizes.
    Range(String),
}

impl Why {
    /// One word for the kind of reason.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Knob(_) => "knob",
            Self::Slower | Self::Learned => "slower",
            Self::Range(_) => "range",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(text) => write!(f, "refused: {text}"),
            Self::Knob(text) => write!(f, "off by {text}"),
            Self::Slower => f.write_str("slower"),
            Self::Learned => {
                f.write_str("slower at first; then the pair goes by the times it sees")
            }
            Self::Range(text) => f.write_str(text),
        }
    }
}

/// A protocol that does not carry a size.
#[derive(Debug, Clone)]
pub struct Loser {
    /// Which.
    pub protocol: Protocol,
    /// Estimated microseconds, if it could be used at all.
    pub cost_us: Option<f64>,
    /// Why not.
    pub why: Why,
}

/// A range of sizes that one protocol carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First size.
    pub from: u64,
    /// Last size; `u64::MAX` for no end.
    pub to: u64,
    /// The protocol.
    pub protocol: Protocol,
}

/// What is taken for granted of a message: its receive is posted, its buffer in one piece, and the pair otherwise idle.
struct Assumed {
    has: LayerSet,
    memory: Memory,
}

impl Facts for Assumed {
    fn heap_reads(&self) -> bool {
        self.memory.from_heap && self.has.has(LayerId::Heap)
    }

    /// Its memory was asked for before, or it is so large that it is attached at first sight.
    fn is_attached(&self) -> bool {
        self.has.has(LayerId::Xpmem)
    }

    fn kernel_reads(&self, layer: LayerId) -> bool {
        match layer {
            LayerId::Knem => self.has.has(LayerId::Knem),
            _ => self.has.has(LayerId::Cma),
        }
    }

    fn heap_writes(&self) -> bool {
        self.memory.to_heap && self.has.has(LayerId::Heap)
    }

    fn block_free(&self) -> bool {
        true
    }
}

/// Everything that decides between the protocols of one pair.
#[derive(Debug)]
pub struct Table<'a> {
    knobs: &'a Knobs,
    costs: &'a Costs,
    layers: Layers,
    thresholds: Thresholds,
}

impl<'a> Table<'a> {
    /// The table of a pair with these layers.
    #[must_use]
    pub fn new(knobs: &'a Knobs, costs: &'a Costs, layers: Layers) -> Self {
        Self {
            thresholds: Thresholds::with_layers(knobs, costs, layers.has()),
            knobs,
            costs,
            layers,
        }
    }

    /// The thresholds.
    #[must_use]
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Estimated one-way microseconds.
    #[must_use]
    pub fn cost_us(&self, protocol: Protocol, size: u64) -> f64 {
        protocol.curve(self.costs).estimate(size) / 1000.0
    }

    /// The protocol of a message of `size` bytes whose receive is posted, while the pair is otherwise idle.
    #[must_use]
    pub fn choose(&self, size: u64, memory: Memory) -> Protocol {
        let heap = self.layers.heap.is_none();
        match self
            .thresholds
            .send_path(size, 0, memory.from_heap && heap, true)
        {
            Path::Slots if size <= FIRST_PAYLOAD as u64 => return Protocol::Inline,
            Path::Slots => return Protocol::Slots,
            Path::Chunks => return Protocol::Chunks,
            Path::Announced => {}
        }
        let facts = Assumed {
            has: self.layers.has(),
            memory,
        };
        // A pair that has seen no transfer yet.
        let way = decide(size, &facts, &self.thresholds, &mut self.unobserved());
        match way {
            Way::Get(LayerId::Heap) => Protocol::Map,
            Way::Get(LayerId::Xpmem) => Protocol::Attach,
            Way::Get(LayerId::Knem) => Protocol::Module,
            Way::Get(_) => Protocol::Get,
            Way::Together {
                reader: Some(LayerId::Heap),
                ..
            } => Protocol::MapCoop,
            Way::Together {
                reader: Some(LayerId::Xpmem),
                ..
            } => Protocol::AttachCoop,
            Way::Together {
                reader: Some(LayerId::Knem),
                ..
            } => Protocol::ModuleCoop,
            Way::Together {
                reader: Some(_), ..
            } => Protocol::GetCoop,
            Way::Together { reader: None, .. } => Protocol::Put,
            Way::Pipeline => Protocol::Pipeline,
        }
    }

    fn unobserved(&self) -> Observed {
        Observed::of(self.knobs, self.costs, self.layers.has())
    }

    /// Whether reading by the kernel and the pipeline compete for this size by what the pair sees.
    fn contested(&self, size: u64, memory: Memory) -> bool {
        let heap = self.layers.heap.is_none() && (memory.from_heap || memory.to_heap);
        let has = self.layers.has();
        let mapped = heap || has.has(LayerId::Xpmem) && size >= self.thresholds.xpmem_min;
        let fixed = self.unobserved().is_fixed()
            || self.thresholds.cma_min.min(self.thresholds.knem_min) == 0;
        size >= observed::MIN
            && (has.has(LayerId::Cma) || has.has(LayerId::Knem))
            && !mapped
            && !fixed
    }

    /// All sizes, in ranges.
    #[must_use]
    pub fn ranges(&self, memory: Memory) -> Vec<Range> {
        let t = &self.thresholds;
        let mut begins = vec![
            0,
            FIRST_PAYLOAD as u64 + 1,
            t.slots_max as u64 + 1,
            t.fast_max as u64 + 1,
            t.announce_min,
            t.heap_min,
            t.xpmem_min,
            t.cma_min,
            t.knem_min,
            t.coop_heap_min,
            t.coop_xpmem_min,
            t.coop_cma_min,
            t.coop_knem_min,
            observed::MIN,
        ];
        begins.extend(self.unobserved().crossing());
        begins.retain(|&begin| begin != u64::MAX);
        begins.sort_unstable();
        begins.dedup();
        let mut ranges: Vec<Range> = Vec::new();
        for begin in begins {
            let protocol = self.choose(begin, memory);
            match ranges.last_mut() {
                Some(last) if last.protocol == protocol => {}
                last => {
                    if let Some(last) = last {
                        last.to = begin - 1;
                    }
                    ranges.push(Range {
                        from: begin,
                        to: u64::MAX,
                        protocol,
                    });
                }
            }
        }
        ranges
    }

    /// Why each other protocol does not carry `size`.
    #[must_use]
    pub fn losers(&self, size: u64, memory: Memory) -> Vec<Loser> {
        let chosen = self.choose(size, memory);
        Protocol::ALL
            .into_iter()
            .filter(|&protocol| protocol != chosen)
            .map(|protocol| {
                let why = self.why_not(protocol, chosen, size, memory);
                let possible = !matches!(why, Why::Refused(_));
                Loser {
                    protocol,
                    cost_us: possible.then(|| self.cost_us(protocol, size)),
                    why,
                }
            })
            .collect()
    }

    fn why_not(&self, protocol: Protocol, chosen: Protocol, size: u64, memory: Memory) -> Why {
        self.impossible(protocol, size, memory)
            .or_else(|| self.kept_out(protocol, size, memory))
            .unwrap_or_else(|| {
                let rival = |p| {
                    let (get, coop) = if self.layers.cma.is_none() {
                        (Protocol::Get, Protocol::GetCoop)
                    } else {
                        (Protocol::Module, Protocol::ModuleCoop)
                    };
                    p == Protocol::Pipeline || p == get || p == coop
                };
                if rival(protocol) && rival(chosen) && self.contested(size, memory) {
                    return Why::Learned;
                }
                if self.cost_us(protocol, size) >= self.cost_us(chosen, size) {
                    return Why::Slower;
                }
                match self.first_size(protocol, memory) {
                    Some(from) if from > size => Why::Range(format!("used from {from} B on")),
                    _ => Why::Range(format!("{chosen} moves the bytes with fewer copies")),
                }
            })
    }

    /// What makes the protocol impossible for the message.
    fn impossible(&self, protocol: Protocol, size: u64, memory: Memory) -> Option<Why> {
        let no = |text: &str| Some(Why::Refused(text.to_owned()));
        let refusal = |refusal: &Option<Refusal>| {
            let refusal = refusal.as_ref()?;
            Some(if refusal.reason.contains("ONECOPY_LAYERS") {
                Why::Knob(format!("ONECOPY_LAYERS={}", self.knobs.layers))
            } else {
                Why::Refused(refusal.to_string())
            })
        };
        match protocol {
            Protocol::Inline if size > FIRST_PAYLOAD as u64 => Some(Why::Range(format!(
                "one slot holds up to {FIRST_PAYLOAD} bytes"
            ))),
            Protocol::Slots if size <= FIRST_PAYLOAD as u64 => {
                Some(Why::Range("one slot is enough".into()))
            }
            Protocol::Chunks | Protocol::Pipeline if size == 0 => {
                Some(Why::Range("there is nothing to copy".into()))
            }
            Protocol::Map | Protocol::MapCoop => refusal(&self.layers.heap).or_else(|| {
                (!memory.from_heap)
                    .then(|| no("the sender's buffer is not from alloc"))
                    .flatten()
            }),
            Protocol::Put => refusal(&self.layers.heap).or_else(|| {
                (!memory.to_heap)
                    .then(|| no("the receiver's buffer is not from alloc"))
                    .flatten()
            }),
            Protocol::Get | Protocol::GetCoop => refusal(&self.layers.cma),
            Protocol::Attach | Protocol::AttachCoop => refusal(&self.layers.xpmem),
            Protocol::Module | Protocol::ModuleCoop => refusal(&self.layers.knem),
            _ => None,
        }
    }

    /// What the user set that keeps the protocol out.
    fn kept_out(&self, protocol: Protocol, size: u64, memory: Memory) -> Option<Why> {
        let k = self.knobs;
        let below = |name: &str, knob: Option<usize>| {
            knob.filter(|&min| size < min as u64)
                .map(|min| Why::Knob(format!("{name}={min}")))
        };
        let slots = || {
            let max = self.thresholds.slots_max;
            let text = || format!("slots carry up to {max} bytes, ONECOPY_EAGER_SLOTS_MAX");
            (size > max as u64).then(|| Why::Range(text()))
        };
        let eager = || {
            k.eager_max
                .filter(|&max| size > max as u64)
                .map(|max| Why::Knob(format!("ONECOPY_EAGER_MAX={max}")))
        };
        let still_eager = || {
            k.eager_max
                .filter(|_| size < self.thresholds.announce_from(memory.from_heap))
                .map(|max| Why::Knob(format!("ONECOPY_EAGER_MAX={max}")))
        };
        match protocol {
            Protocol::Inline => eager(),
            Protocol::Slots => eager().or_else(slots),
            Protocol::Chunks => eager(),
            Protocol::MapCoop | Protocol::GetCoop | Protocol::AttachCoop | Protocol::ModuleCoop
                if !k.coop =>
            {
                Some(Why::Knob("ONECOPY_COOP=off".into()))
            }
            Protocol::Map => below("ONECOPY_HEAP_MIN", k.heap_min).or_else(still_eager),
            Protocol::Get => below("ONECOPY_CMA_MIN", k.cma_min).or_else(still_eager),
            Protocol::Attach => below("ONECOPY_XPMEM_MIN", k.xpmem_min).or_else(still_eager),
            Protocol::Module => below("ONECOPY_KNEM_MIN", k.knem_min).or_else(still_eager),
            Protocol::AttachCoop => below("ONECOPY_COOP_MIN", k.coop_min)
                .or_else(|| below("ONECOPY_XPMEM_MIN", k.xpmem_min)),
            Protocol::ModuleCoop => below("ONECOPY_COOP_MIN", k.coop_min)
                .or_else(|| below("ONECOPY_KNEM_MIN", k.knem_min)),
            Protocol::MapCoop => below("ONECOPY_COOP_MIN", k.coop_min)
                .or_else(|| below("ONECOPY_HEAP_MIN", k.heap_min)),
            Protocol::GetCoop => below("ONECOPY_COOP_MIN", k.coop_min)
                .or_else(|| below("ONECOPY_CMA_MIN", k.cma_min)),
            Protocol::Put | Protocol::Pipeline => still_eager(),
        }
    }

    fn first_size(&self, protocol: Protocol, memory: Memory) -> Option<u64> {
        self.ranges(memory)
            .into_iter()
            .find(|range| range.protocol == protocol)
            .map(|range| range.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Memory = Memory {
        from_heap: false,
        to_heap: false,
    };
    const HEAP: Memory = Memory {
        from_heap: true,
        to_heap: true,
    };

    fn knobs(pairs: &[(&str, &str)]) -> Knobs {
        Knobs::from_iter(pairs.iter().copied()).expect("valid").0
    }

    #[test]
    fn ranges_cover_every_size_once_and_agree_with_the_choice() {
        let costs = Costs::default();
        let refused = || Some(Refusal::new("no", "none"));
        for knobs in [
            Knobs::default(),
            knobs(&[("ONECOPY_EAGER_MAX", "100")]),
            knobs(&[("ONECOPY_HEAP_MIN", "0"), ("ONECOPY_COOP_MIN", "0")]),
            knobs(&[("ONECOPY_LAYERS", "heap,cma")]),
        ] {
            for layers in [
                Layers::default(),
                Layers {
                    xpmem: refused(),
                    ..Layers::default()
                },
                Layers {
                    heap: refused(),
                    xpmem: refused(),
                    ..Layers::default()
                },
                Layers {
                    heap: refused(),
                    xpmem: refused(),
                    cma: refused(),
                    knem: None,
                },
                Layers {
                    heap: refused(),
                    xpmem: refused(),
                    cma: refused(),
                    knem: refused(),
                },
            ] {
                let table = Table::new(&knobs, &costs, layers);
                for memory in [PLAIN, HEAP] {
                    let ranges = table.ranges(memory);
                    assert_eq!(ranges[0].from, 0);
                    assert_eq!(ranges[ranges.len() - 1].to, u64::MAX);
                    for pair in ranges.windows(2) {
                        assert_eq!(pair[0].to + 1, pair[1].from);
                    }
                    for range in &ranges {
                        let to = range.to.min(1 << 62);
                        let middle = range.from + (to - range.from) / 2;
                        for size in [range.from, middle, to] {
                            assert_eq!(table.choose(size, memory), range.protocol, "{size}");
                        }
                        assert_eq!(table.losers(range.from, memory).len(), 12);
                    }
                }
            }
        }
    }

    #[test]
    fn each_loser_has_its_own_reason() {
        let costs = Costs::default();
        let knobs = knobs(&[("ONECOPY_COOP", "off"), ("ONECOPY_EAGER_MAX", "8K")]);
        let gone = || Some(Refusal::new("no module", "load it"));
        let layers = Layers {
            heap: None,
            xpmem: gone(),
            cma: Some(Refusal::new("EPERM", "ask")),
            knem: gone(),
        };
        let table = Table::new(&knobs, &costs, layers);
        let why = |protocol| {
            let losers = table.losers(1 << 20, PLAIN);
            let found = losers.into_iter().find(|l| l.protocol == protocol);
            found.expect("a loser").why.to_string()
        };
        assert_eq!(table.choose(1 << 20, PLAIN), Protocol::Pipeline);
        assert_eq!(why(Protocol::Get), "refused: EPERM; ask");
        assert_eq!(why(Protocol::Chunks), "off by ONECOPY_EAGER_MAX=8192");
        assert!(why(Protocol::Map).contains("alloc"));
        assert_eq!(table.choose(1 << 20, HEAP), Protocol::Map);
        let losers = table.losers(1 << 20, HEAP);
        let coop = losers.iter().find(|l| l.protocol == Protocol::MapCoop);
        assert_eq!(
            coop.map(|l| l.why.to_string()).as_deref(),
            Some("off by ONECOPY_COOP=off")
        );
    }
}
