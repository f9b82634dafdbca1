// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which protocol carries which size, and why the others do not: the runtime's own decisions, made for every size.

use super::decide::{Facts, decide};
use super::observed::{self, Observed};
use super::rewritten;
use super::{RDMA_READ, ReceiveProtocol, SendProtocol, SenderState, Thresholds, other_node};
use crate::endpoint::FIRST_PAYLOAD;
use onecopy_btl::cost::{Costs, Curve};
use onecopy_btl::registry::{DeviceReads, LayerSet, PerLayer, Power};
use onecopy_btl::{LayerId, Refusal};
use onecopy_obs::Knobs;
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
    /// Announced; a device of the receiver reads it from the sender's memory on another node.
    Read,
    /// Announced; the sender stores into the receiver's heap.
    Put,
    /// Announced; the receiver copies by this layer.
    Single(LayerId),
    /// Announced; both sides copy by this layer, each as far as it can.
    Cooperative(LayerId),
}

impl Protocol {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let by = |layer: LayerId| {
            let put = (layer == LayerId::MAP).then_some(Self::Put);
            [Self::Single(layer), Self::Cooperative(layer)]
                .into_iter()
                .chain(put)
        };
        [
            Self::Inline,
            Self::Slots,
            Self::Chunks,
            Self::Pipeline,
            Self::Read,
        ]
        .into_iter()
        .chain(LayerId::SINGLE.into_iter().flat_map(by))
    }

    /// The name as users see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Slots => "slots",
            Self::Chunks => "chunks",
            Self::Pipeline => "pipeline",
            Self::Read => RDMA_READ,
            Self::Put => "put",
            Self::Single(layer) => layer
                .labels()
                .map_or(layer.name(), |labels| labels.one_sided),
            Self::Cooperative(layer) => layer
                .labels()
                .map_or(layer.name(), |labels| labels.cooperative),
        }
    }

    /// None: how long it takes is the network's.
    fn curve(self, costs: &Costs) -> Option<&Curve> {
        Some(match self {
            Self::Read => return None,
            Self::Inline | Self::Slots | Self::Chunks => &costs.eager,
            Self::Pipeline => &costs.pipeline,
            // One side copies between two buffers that it maps.
            Self::Put => &costs.by[LayerId::MAP].one_sided,
            Self::Single(layer) => &costs.by[layer].one_sided,
            Self::Cooperative(layer) => &costs.by[layer].cooperative,
        })
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

/// A message, as far as the way it goes depends on more than its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Message {
    /// Where the two buffers lie.
    pub memory: Memory,
    /// The sender's buffer is in several pieces.
    pub from_pieces: bool,
    /// The receiver's is.
    pub to_pieces: bool,
    /// The sender's buffer has changed since it was last sent.
    pub rewritten: bool,
}

/// The copy layers of a pair: none is refused, or why.
pub type Layers = PerLayer<Option<Refusal>>;

/// The layers of a pair on two nodes: none copies, and a wire, or a lane in its place, carries records and chunks.
#[must_use]
pub fn between_nodes() -> Layers {
    Layers::new(|layer| match layer.power() {
        Power::Own | Power::Wire | Power::Lane => None,
        _ => Some(other_node()),
    })
}

fn proven(layers: &Layers) -> LayerSet {
    let all = LayerId::SINGLE.into_iter();
    all.filter(|&layer| layers[layer].is_none()).collect()
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

/// What is taken for granted of a message: its receive is posted, and the pair otherwise idle.
struct Assumed {
    proven: LayerSet,
    is_shown: bool,
    block_free: bool,
    message: Message,
}

impl Facts for Assumed {
    fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Memory that is to be attached was asked for before, or it is so large that it is attached at first sight.
    fn is_read_by(&self, layer: LayerId) -> bool {
        let there = layer.power() != Power::Map || self.message.memory.from_heap;
        there && self.proven.has(layer)
    }

    fn is_rewritten(&self) -> bool {
        self.message.rewritten && !self.message.from_pieces && !self.message.memory.from_heap
    }

    fn sender_maps(&self) -> bool {
        let one_piece = !self.message.to_pieces;
        self.message.memory.to_heap && one_piece && self.proven.has(LayerId::MAP)
    }

    fn block_free(&self) -> bool {
        self.block_free
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
            thresholds: Thresholds::compute(
                knobs,
                costs,
                proven(&layers),
                layers[LayerId::CHUNKS].is_none(),
            ),
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

    fn proven(&self) -> LayerSet {
        proven(&self.layers)
    }

    /// Whether the pair shares memory: else a wire carries everything.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.layers[LayerId::CHUNKS].is_none()
    }

    /// Estimated one-way microseconds; none, if a wire carries the message: how long that takes is the network's.
    #[must_use]
    pub fn cost_us(&self, protocol: Protocol, size: u64) -> Option<f64> {
        let curve = protocol.curve(self.costs);
        let curve = curve.filter(|_| self.shares_memory())?;
        Some(curve.estimate(size) / 1000.0)
    }

    /// The protocol of a message of `size` bytes whose receive is posted, while the pair is otherwise idle.
    #[must_use]
    pub fn choose(&self, size: u64, memory: Memory) -> Protocol {
        let message = Message {
            memory,
            ..Message::default()
        };
        self.choose_of(size, message)
    }

    /// As [`Self::choose`], of any message.
    #[must_use]
    pub fn choose_of(&self, size: u64, message: Message) -> Protocol {
        // A rank that may not use the layer that maps has no heap that its peers see.
        let shown = self.knobs.layers.allows(LayerId::MAP.name());
        let in_heap = message.memory.from_heap && !message.from_pieces && shown;
        let sender = SenderState {
            len: size,
            extra: 0,
            in_heap,
            has_credit: true,
            answered: true,
            // What has been seen of no pair is not said.
            wanted: u64::MAX,
        };
        // Too short a buffer is not looked at.
        let changed =
            message.rewritten && !message.from_pieces && size >= rewritten::SHORTEST as u64;
        match self.thresholds.send_protocol(&sender, || changed) {
            SendProtocol::Slots if size <= FIRST_PAYLOAD as u64 => return Protocol::Inline,
            SendProtocol::Slots => return Protocol::Slots,
            SendProtocol::Chunks => return Protocol::Chunks,
            SendProtocol::Announced => {}
        }
        let facts = Assumed {
            proven: self.proven(),
            // A sender whose pieces are listed takes part only where both are to copy.
            block_free: !message.to_pieces && (self.knobs.coop || !message.from_pieces),
            is_shown: !message.from_pieces && self.no_read(size).is_none(),
            message,
        };
        // A pair that has seen no transfer yet.
        let receive_protocol = decide(size, &facts, &self.thresholds, &mut self.unobserved());
        match receive_protocol {
            ReceiveProtocol::Get(layer) => Protocol::Single(layer),
            ReceiveProtocol::Cooperative {
                reader: Some(layer),
                ..
            } => Protocol::Cooperative(layer),
            ReceiveProtocol::Cooperative { reader: None, .. } => Protocol::Put,
            ReceiveProtocol::Pipeline => Protocol::Pipeline,
            ReceiveProtocol::Read => Protocol::Read,
        }
    }

    /// Why no device reads `size` bytes in one piece from the sender's memory, if none does. A lane whose kind is left
    /// to the job is taken for a connection.
    fn no_read(&self, size: u64) -> Option<Why> {
        if self.shares_memory() {
            let text = "the ranks share memory, so no device is between them";
            return Some(Why::Refused(text.to_owned()));
        }
        if let Some(why) = self.refused(LayerId::LANE) {
            return Some(why);
        }
        let Some(reads) = Self::device_reads() else {
            let text = format!("{} reads no memory of peers", LayerId::LANE);
            return Some(Why::Refused(text));
        };
        if let Some(setting) = (reads.ruled_out)(self.knobs) {
            return Some(Why::Knob(setting));
        }
        let min = (reads.from)(self.knobs) as u64;
        (size < min || size == 0)
            .then(|| Why::Range(format!("a device reads from {min} B on, {}", reads.min)))
    }

    /// How the device of a lane reads what a peer on another node has announced.
    fn device_reads() -> Option<&'static DeviceReads> {
        LayerId::LANE.row().reads.as_ref()
    }

    fn unobserved(&self) -> Observed {
        Observed::of(self.knobs, self.costs, self.proven())
    }

    /// Whether reading by the kernel and the pipeline compete for this size by what the pair sees.
    fn contested(&self, size: u64, memory: Memory) -> bool {
        let proven = self.proven();
        let maps = proven.has(LayerId::MAP) && (memory.from_heap || memory.to_heap);
        let mut attaching = proven.by(Power::Attach);
        let loads = maps || attaching.any(|layer| size >= self.thresholds.min[layer]);
        let fixed = self.unobserved().is_fixed() || self.thresholds.call_min() == 0;
        let calls = proven.by(Power::Copy).next().is_some();
        size >= observed::MIN && calls && !loads && !fixed
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
            observed::MIN,
        ];
        begins.extend(Self::device_reads().map(|reads| (reads.from)(self.knobs) as u64));
        for layer in LayerId::SINGLE {
            begins.extend([t.min[layer], t.coop_min[layer]]);
        }
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
        Protocol::all()
            .filter(|&protocol| protocol != chosen)
            .map(|protocol| {
                let why = self.why_not(protocol, chosen, size, memory);
                let possible = !matches!(why, Why::Refused(_));
                Loser {
                    protocol,
                    cost_us: self.cost_us(protocol, size).filter(|_| possible),
                    why,
                }
            })
            .collect()
    }

    fn why_not(&self, protocol: Protocol, chosen: Protocol, size: u64, memory: Memory) -> Why {
        self.impossible(protocol, size, memory)
            .or_else(|| self.kept_out(protocol, size, memory))
            .unwrap_or_else(|| {
                let by = self
                    .proven()
                    .by(Power::Copy)
                    .next()
                    .unwrap_or(LayerId::CALL);
                let rival = |p| match p {
                    Protocol::Pipeline => true,
                    Protocol::Single(layer) | Protocol::Cooperative(layer) => layer == by,
                    _ => false,
                };
                if rival(protocol) && rival(chosen) && self.contested(size, memory) {
                    return Why::Learned;
                }
                let cost = |protocol| self.cost_us(protocol, size);
                if self.shares_memory() && cost(protocol) >= cost(chosen) {
                    return Why::Slower;
                }
                match self.first_size(protocol, memory) {
                    Some(from) if from > size => Why::Range(format!("used from {from} B on")),
                    _ if protocol == Protocol::Pipeline && chosen == Protocol::Read => {
                        Why::Range("a device reads the bytes where they lie".into())
                    }
                    _ if !self.shares_memory() => Why::Range(
                        "up to half of ONECOPY_EAGER_CREDIT goes before it is asked for".into(),
                    ),
                    _ => Why::Range(format!("{chosen} moves the bytes with fewer copies")),
                }
            })
    }

    /// Why the pair lacks the layer, if it does.
    fn refused(&self, layer: LayerId) -> Option<Why> {
        let refusal = self.layers[layer].as_ref()?;
        Some(if refusal.reason.contains("ONECOPY_LAYERS") {
            Why::Knob(format!("ONECOPY_LAYERS={}", self.knobs.layers))
        } else {
            Why::Refused(refusal.to_string())
        })
    }

    /// What makes the protocol impossible for the message.
    fn impossible(&self, protocol: Protocol, size: u64, memory: Memory) -> Option<Why> {
        let no = |text: &str| Some(Why::Refused(text.to_owned()));
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
            Protocol::Read => self.no_read(size),
            Protocol::Put => self.refused(LayerId::MAP).or_else(|| {
                (!memory.to_heap)
                    .then(|| no("the receiver's buffer is not from alloc"))
                    .flatten()
            }),
            Protocol::Single(layer) | Protocol::Cooperative(layer) => {
                let lies_there = layer.power() != Power::Map || memory.from_heap;
                self.refused(layer).or_else(|| {
                    (!lies_there)
                        .then(|| no("the sender's buffer is not from alloc"))
                        .flatten()
                })
            }
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
        let least = |layer: LayerId| {
            let knob = layer.row().min.as_ref()?;
            below(knob.name, (knob.value)(k))
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
            Protocol::Cooperative(_) if !k.coop => Some(Why::Knob("ONECOPY_COOP=off".into())),
            Protocol::Single(layer) => least(layer).or_else(still_eager),
            Protocol::Cooperative(layer) => {
                below("ONECOPY_COOP_MIN", k.coop_min).or_else(|| least(layer))
            }
            Protocol::Put | Protocol::Pipeline | Protocol::Read => still_eager(),
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
        let refused = |these: &[LayerId]| {
            Layers::new(|layer| {
                let refused = these.contains(&layer);
                refused.then(|| Refusal::new("no", "none"))
            })
        };
        for knobs in [
            Knobs::default(),
            knobs(&[("ONECOPY_EAGER_MAX", "100")]),
            knobs(&[("ONECOPY_HEAP_MIN", "0"), ("ONECOPY_COOP_MIN", "0")]),
            knobs(&[("ONECOPY_LAYERS", "heap,cma")]),
        ] {
            for layers in [
                Layers::default(),
                refused(&[LayerId::Xpmem]),
                refused(&[LayerId::Heap, LayerId::Xpmem]),
                refused(&[LayerId::Heap, LayerId::Xpmem, LayerId::Cma]),
                refused(&LayerId::SINGLE),
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
                        let losers = table.losers(range.from, memory).len();
                        assert_eq!(losers, Protocol::all().count() - 1);
                    }
                }
            }
        }
    }

    #[test]
    fn a_device_reads_long_messages_between_nodes() {
        let costs = Costs::default();
        let ranges = |knobs: &Knobs, layers: Layers| -> Vec<_> {
            let ranges = Table::new(knobs, &costs, layers).ranges(PLAIN);
            let last = ranges.iter().rev().take(2).rev();
            last.map(|range| (range.from, range.protocol)).collect()
        };
        let plain = ranges(&Knobs::default(), between_nodes());
        assert_eq!(plain[1].1, Protocol::Read);
        let min = knobs(&[("ONECOPY_VERBS_READ_MIN", "512M")]);
        let late = ranges(&min, between_nodes());
        assert_eq!(
            (late[0].1, late[1]),
            (Protocol::Pipeline, (512 << 20, Protocol::Read))
        );
        let why = |knobs: &Knobs, layers: Layers| {
            let losers = Table::new(knobs, &costs, layers).losers(1 << 20, PLAIN);
            let read = losers
                .into_iter()
                .find(|loser| loser.protocol == Protocol::Read);
            read.map(|loser| loser.why.to_string()).unwrap_or_default()
        };
        assert!(why(&min, between_nodes()).contains("ONECOPY_VERBS_READ_MIN"));
        let datagrams = knobs(&[("ONECOPY_VERBS_MODE", "ud")]);
        assert_eq!(
            why(&datagrams, between_nodes()),
            "off by ONECOPY_VERBS_MODE=ud"
        );
        let mut without = between_nodes();
        without[LayerId::LANE] = Some(Refusal::new("no device", "buy one"));
        assert_eq!(
            why(&Knobs::default(), without),
            "refused: no device; buy one"
        );
        assert!(why(&Knobs::default(), Layers::default()).contains("share memory"));
    }

    #[test]
    fn each_loser_has_its_own_reason() {
        let costs = Costs::default();
        let knobs = knobs(&[("ONECOPY_COOP", "off"), ("ONECOPY_EAGER_MAX", "8K")]);
        let mut layers = Layers::default();
        layers[LayerId::Cma] = Some(Refusal::new("EPERM", "ask"));
        for of_module in [LayerId::Xpmem, LayerId::Knem] {
            layers[of_module] = Some(Refusal::new("no module", "load it"));
        }
        let table = Table::new(&knobs, &costs, layers);
        let why = |protocol| {
            let losers = table.losers(1 << 20, PLAIN);
            let found = losers.into_iter().find(|l| l.protocol == protocol);
            found.expect("a loser").why.to_string()
        };
        assert_eq!(table.choose(1 << 20, PLAIN), Protocol::Pipeline);
        assert_eq!(why(Protocol::Single(LayerId::Cma)), "refused: EPERM; ask");
        assert_eq!(why(Protocol::Chunks), "off by ONECOPY_EAGER_MAX=8192");
        assert!(why(Protocol::Single(LayerId::Heap)).contains("alloc"));
        assert_eq!(table.choose(1 << 20, HEAP), Protocol::Single(LayerId::Heap));
        let losers = table.losers(1 << 20, HEAP);
        let coop = losers
            .iter()
            .find(|l| l.protocol == Protocol::Cooperative(LayerId::Heap));
        assert_eq!(
            coop.map(|l| l.why.to_string()).as_deref(),
            Some("off by ONECOPY_COOP=off")
        );
    }
}
