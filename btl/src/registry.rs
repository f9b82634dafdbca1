// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers: one row each, in the order in which they are tried. Nothing else names them as a set; a user of one asks
//! for what it can do (docs/adding-a-layer.md).

mod set;

pub use set::{LayerSet, PerLayer};

use crate::contract::{
    AttachLayer, CopyLayer, LayerSettings, NodeFacts, PeerAccess, Probe, Refusal,
};
use crate::curve::{CALLED, MAPPED, Seeds};
use crate::lanes::{LaneJob, Lanes, Open};
use crate::layers::{cico, cma, heap, knem, tcp, verbs, xpmem};
use crate::module::{self, Behind, Guarantees, Module};
use onecopy_obs::stats::{self, is_same};
use onecopy_obs::{Counters, Knobs, ModuleAbi};
use onecopy_shm::segment::PeerSegment;
use std::fmt;
use std::io;

/// A layer's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LayerId {
    /// Within one process.
    Own,
    /// Memory that both share from the start.
    Heap,
    /// Memory of the peer, attached by a kernel module.
    Xpmem,
    /// Cross-memory attach.
    Cma,
    /// Copies by a kernel module.
    Knem,
    /// Copy in, copy out.
    Cico,
    /// Between nodes, by a device for RDMA.
    Verbs,
    /// Between nodes.
    Tcp,
}

/// How a layer gets at the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// They never leave the process.
    Own,
    /// Both sides map the memory from the start: a copy is loads and stores, without a cost per message.
    Map,
    /// Maps the peer's memory after a message has earned that; then as [`Self::Map`].
    Attach,
    /// A call copies.
    Copy,
    /// Through chunks of the sender's segment: works wherever there is one.
    Chunks,
    /// Lanes beside a wire: they carry what the wire would, as long as a device works.
    Lane,
    /// A wire: it reaches peers on other nodes, whose memory nothing else reaches.
    Wire,
}

/// A row: what there is to know of a layer, apart from its code.
#[derive(Debug)]
pub struct Layer {
    /// Which one.
    pub id: LayerId,
    /// As users write it.
    pub name: &'static str,
    /// How it gets at the bytes.
    pub power: Power,
    /// The labels of its transfers; none if it has none of its own.
    pub labels: Option<Labels>,
    /// What they cost, before `onecopy tune` has measured.
    pub seeds: Option<Seeds>,
    /// The knob that says from where on it is used.
    pub min: Option<Knob>,
    /// What counts its bytes.
    pub bytes: Option<Counter>,
    /// Whether it can write to the peer, if the pair permits that.
    pub writes: bool,
    /// What counts messages that their owner had to expose first; none if it never has to.
    pub exposes: Option<Exposures>,
    /// What stands behind it in the kernel module; none if it needs no module.
    pub of_module: Option<ModuleLayer>,
    /// What a look at the machine says of it.
    pub probe: fn(&NodeFacts) -> Probe,
    /// What this process permits to its peers: when it starts, and when it connects with a process.
    pub permit: fn(&Knobs, Option<i32>),
    /// How it is proven when a pair connects.
    pub prove: Prove,
    /// What opens the device of its lanes; none if it has none.
    pub lanes: Option<OpenLanes>,
    /// How its device reads memory of peers on other nodes; none if it does not.
    pub reads: Option<DeviceReads>,
    /// What a failed call means: call, rank, error.
    pub explain: fn(&str, u32, &io::Error) -> Refusal,
}

/// The labels of the transfers of a layer.
#[derive(Debug)]
pub struct Labels {
    /// The protocol in which the receiver copies, as users see it.
    pub one_sided: &'static str,
    /// The one in which both sides copy.
    pub cooperative: &'static str,
    /// Their cost curves in a tune file.
    pub curves: [&'static str; 2],
}

macro_rules! labels {
    ($verb:literal) => {
        Some(Labels {
            one_sided: $verb,
            cooperative: concat!($verb, "+coop"),
            curves: [$verb, concat!($verb, "_coop")],
        })
    };
}

/// A knob of one layer.
#[derive(Debug)]
pub struct Knob {
    /// Its variable.
    pub name: &'static str,
    /// Its value, if the user has set it.
    pub value: fn(&Knobs) -> Option<usize>,
}

/// A counter of one layer.
pub type Counter = fn(&mut Counters) -> &mut u64;

/// Opens the device of a layer that makes lanes.
pub type OpenLanes = fn(&Knobs, &mut LaneJob<'_>) -> Result<Box<dyn Lanes>, Refusal>;

/// How a device reads announced messages where they lie.
#[derive(Debug)]
pub struct DeviceReads {
    /// The knob that says from which size on.
    pub min: &'static str,
    /// Its value.
    pub from: fn(&Knobs) -> usize,
    /// The setting that rules such reads out, if one does.
    pub ruled_out: fn(&Knobs) -> Option<String>,
}

/// What counts the messages that a layer exposes.
#[derive(Debug)]
pub struct Exposures {
    /// Those that were exposed.
    pub done: Counter,
    /// Those that could not be.
    pub refused: Counter,
}

/// A layer of the kernel module.
#[derive(Debug)]
pub struct ModuleLayer {
    /// Which module, and by which interface.
    pub behind: fn(&Module) -> Behind,
    /// What holds by each interface.
    pub guarantees: &'static Guarantees,
}

/// Proves a layer by a transfer.
pub type ProvePair = fn(&PeerSegment, &PeerAccess, &LayerSettings) -> Result<Proven, Refusal>;

/// How a layer is proven.
#[derive(Debug, Clone, Copy)]
pub enum Prove {
    /// There is no pair.
    Nothing,
    /// It is what a pair talks by: without it there is no pair. Whether the pool is mapped writable.
    Segment(fn(&mut PeerSegment, bool) -> Result<(), Refusal>),
    /// By a transfer.
    Pair(ProvePair),
}

/// A layer that is proven for a pair.
#[derive(Debug)]
pub enum Proven {
    /// It maps. By its type, so that the shortest path has no dispatch in it.
    Map(heap::HeapLayer),
    /// It attaches.
    Attach(Box<dyn AttachLayer>),
    /// A call copies.
    Copy(Box<dyn CopyLayer>),
}

/// What a row has by default.
const NONE: Layer = Layer {
    id: LayerId::Own,
    name: "",
    power: Power::Own,
    labels: None,
    seeds: None,
    min: None,
    bytes: None,
    writes: false,
    exposes: None,
    of_module: None,
    probe: within,
    permit: |_, _| {},
    prove: Prove::Nothing,
    lanes: None,
    reads: None,
    explain: plain,
};

/// All layers, in the order in which they are tried: when one fails, the next is used. First what costs no call per
/// copy, then what pins and registers nothing.
pub const LAYERS: &[Layer] = &[
    Layer {
        id: LayerId::Own,
        name: "self",
        power: Power::Own,
        ..NONE
    },
    Layer {
        id: LayerId::Heap,
        name: "heap",
        power: Power::Map,
        labels: labels!("map"),
        seeds: Some(MAPPED),
        min: Some(Knob {
            name: "ONECOPY_HEAP_MIN",
            value: |knobs| knobs.heap_min,
        }),
        bytes: Some(|counters| &mut counters.map_bytes),
        writes: true,
        probe: |here| heap::probe(here.heap_bytes),
        prove: Prove::Pair(|peer, _, terms| {
            heap::HeapLayer::prove(peer, terms.plan).map(Proven::Map)
        }),
        ..NONE
    },
    Layer {
        id: LayerId::Xpmem,
        name: "xpmem",
        power: Power::Attach,
        labels: labels!("attach"),
        // As heap memory once attached, plus the lookup and the looks at the count of holes, or the guard. These take
        // the same time at every size.
        seeds: Some(MAPPED.plus(550.0, 720.0)),
        min: Some(Knob {
            name: "ONECOPY_XPMEM_MIN",
            value: |knobs| knobs.xpmem_min,
        }),
        bytes: Some(|counters| &mut counters.attach_bytes),
        writes: true,
        of_module: Some(ModuleLayer {
            behind: Module::behind_xpmem,
            guarantees: &xpmem::GUARANTEES,
        }),
        probe: |here| module::probe(here.module.behind_xpmem()),
        prove: Prove::Pair(|peer, means, terms| {
            let layer = xpmem::XpmemLayer::prove(peer, means, terms)?;
            Ok(Proven::Attach(Box::new(layer)))
        }),
        explain: xpmem::explain,
        ..NONE
    },
    Layer {
        id: LayerId::Cma,
        name: "cma",
        power: Power::Copy,
        labels: labels!("get"),
        seeds: Some(CALLED),
        min: Some(Knob {
            name: "ONECOPY_CMA_MIN",
            value: |knobs| knobs.cma_min,
        }),
        bytes: Some(|counters| &mut counters.get_bytes),
        writes: true,
        probe: |_| cma::probe(),
        permit: cma::permit,
        prove: Prove::Pair(|peer, means, _| {
            let layer = cma::CmaLayer::prove(peer, means.pid)?;
            Ok(Proven::Copy(Box::new(layer)))
        }),
        explain: cma::explain,
        ..NONE
    },
    Layer {
        id: LayerId::Knem,
        name: "knem",
        power: Power::Copy,
        labels: labels!("module"),
        // The same copy, and a region to make and to end where the interface wants one. That takes the same time at
        // every size.
        seeds: Some(CALLED.plus(1200.0, 1200.0)),
        min: Some(Knob {
            name: "ONECOPY_KNEM_MIN",
            value: |knobs| knobs.knem_min,
        }),
        bytes: Some(|counters| &mut counters.knem_bytes),
        writes: true,
        exposes: Some(Exposures {
            done: |counters| &mut counters.knem_regions,
            refused: |counters| &mut counters.knem_refused,
        }),
        of_module: Some(ModuleLayer {
            behind: Module::behind_knem,
            guarantees: &knem::GUARANTEES,
        }),
        probe: |here| module::probe(here.module.behind_knem()),
        prove: Prove::Pair(|peer, means, terms| {
            let layer = knem::KnemLayer::prove(peer, means, terms)?;
            Ok(Proven::Copy(Box::new(layer)))
        }),
        explain: knem::explain,
        ..NONE
    },
    Layer {
        id: LayerId::Cico,
        name: "cico",
        power: Power::Chunks,
        probe: cico::probe,
        prove: Prove::Segment(cico::prove),
        ..NONE
    },
    Layer {
        id: LayerId::Verbs,
        name: "verbs",
        power: Power::Lane,
        bytes: Some(|counters| &mut counters.verbs_bytes),
        probe: verbs::probe,
        lanes: Some(verbs::open),
        reads: Some(DeviceReads {
            min: "ONECOPY_VERBS_READ_MIN",
            from: Knobs::read_min,
            ruled_out: verbs::reads_ruled_out,
        }),
        ..NONE
    },
    Layer {
        id: LayerId::Tcp,
        name: "tcp",
        power: Power::Wire,
        bytes: Some(|counters| &mut counters.tcp_bytes),
        probe: tcp::probe,
        ..NONE
    },
];

/// What is there in every process.
fn within(_: &NodeFacts) -> Probe {
    Probe::Available {
        detail: "messages of a rank to itself".into(),
    }
}

/// What a failed call means, by default.
fn plain(call: &str, peer: u32, error: &io::Error) -> Refusal {
    let reason = format!("{call} with rank {peer}: {error}");
    Refusal::new(reason, "it failed in use; the pair goes on without it")
}

/// What this process permits to its peers: when it starts, and when it connects with the process `peer`.
pub fn permit(knobs: &Knobs, peer: Option<i32>) {
    for layer in LAYERS {
        (layer.permit)(knobs, peer);
    }
}

/// What opens this host's device for lanes.
#[must_use]
pub fn lanes_of_this_host() -> Open {
    Open::by(|knobs, job| match LayerId::LANE.row().lanes {
        Some(open) => open(knobs, job),
        None => Err(Refusal::new("the layer makes no lanes", "report this")),
    })
}

const COUNT: usize = LAYERS.len();

// A row stands where its name points, and where tools look for it.
const _: () = {
    assert!(COUNT == stats::LAYERS.len(), "a row without a name");
    let mut index = 0;
    while index < COUNT {
        assert!(LAYERS[index].id as usize == index, "a row in another place");
        let same = is_same(LAYERS[index].name, stats::MECHANISMS[index]);
        assert!(same, "another name than in MECHANISMS");
        index += 1;
    }
};

/// The one layer of a kind.
const fn the(power: Power) -> LayerId {
    let mut index = 0;
    while LAYERS[index].power as u8 != power as u8 {
        index += 1;
    }
    LAYERS[index].id
}

impl Power {
    /// Whether it copies straight between the buffers of two processes.
    #[must_use]
    pub const fn is_single(self) -> bool {
        matches!(self, Self::Map | Self::Attach | Self::Copy)
    }

    /// Whether a copy is this processor's own loads and stores.
    #[must_use]
    pub const fn loads(self) -> bool {
        matches!(self, Self::Map | Self::Attach)
    }
}

const SINGLES: usize = {
    let (mut index, mut count) = (0, 0);
    while index < COUNT {
        count += LAYERS[index].power.is_single() as usize;
        index += 1;
    }
    count
};

impl LayerId {
    /// All layers, in the order in which they are tried.
    pub const ALL: [Self; COUNT] = {
        let mut all = [Self::OWN; COUNT];
        let mut index = 0;
        while index < COUNT {
            all[index] = LAYERS[index].id;
            index += 1;
        }
        all
    };
    /// Those that copy straight between the buffers of two processes, in that order.
    pub const SINGLE: [Self; SINGLES] = {
        let mut all = [Self::OWN; SINGLES];
        let (mut index, mut count) = (0, 0);
        while index < COUNT {
            if LAYERS[index].power.is_single() {
                all[count] = LAYERS[index].id;
                count += 1;
            }
            index += 1;
        }
        all
    };
    /// Those for which a message may have to be exposed first.
    pub(crate) const EXPOSING: [Option<Self>; SINGLES] = {
        let mut all = [None; SINGLES];
        let (mut index, mut count) = (0, 0);
        while index < COUNT {
            if LAYERS[index].exposes.is_some() {
                all[count] = Some(LAYERS[index].id);
                count += 1;
            }
            index += 1;
        }
        all
    };
    /// The layer within one process.
    pub const OWN: Self = the(Power::Own);
    /// The layer of memory that is mapped from the start.
    pub const MAP: Self = the(Power::Map);
    /// The first layer that loads from memory that is attached.
    pub const ATTACH: Self = the(Power::Attach);
    /// The first layer that copies by a call.
    pub const CALL: Self = the(Power::Copy);
    /// The layer whose lanes take over what the wire carries.
    pub const LANE: Self = the(Power::Lane);
    /// The layer that reaches other nodes.
    pub const WIRE: Self = the(Power::Wire);
    /// The layer that always works.
    pub const CHUNKS: Self = the(Power::Chunks);

    /// Its row.
    #[inline]
    #[must_use]
    pub const fn row(self) -> &'static Layer {
        &LAYERS[self as usize]
    }

    /// The name as users write it.
    #[inline]
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The labels of its transfers.
    #[inline]
    #[must_use]
    pub const fn labels(self) -> Option<&'static Labels> {
        self.row().labels.as_ref()
    }

    /// What the user has set for it to begin at.
    #[must_use]
    pub fn min(self, knobs: &Knobs) -> Option<usize> {
        self.row().min.as_ref().and_then(|knob| (knob.value)(knobs))
    }

    /// Counts bytes that it has moved to this rank.
    #[inline]
    pub fn count(self, counters: &mut Counters, bytes: u64) {
        if let Some(counter) = self.row().bytes {
            *counter(counters) += bytes;
        }
    }

    /// The bytes that it has moved to this rank.
    #[must_use]
    pub fn bytes(self, counters: &Counters) -> u64 {
        let mut counters = *counters;
        self.row()
            .bytes
            .map_or(0, |counter| *counter(&mut counters))
    }

    /// How it gets at the bytes.
    #[inline]
    #[must_use]
    pub const fn power(self) -> Power {
        self.row().power
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl LayerSet {
    /// Opens what these layers use of the kernel module.
    #[must_use]
    pub fn open_module(self, abi: ModuleAbi) -> Module {
        Module::open(self.has(LayerId::Xpmem), self.has(LayerId::Knem), abi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Costs;

    #[test]
    fn rows_have_labels_costs_and_a_proof_if_they_copy() {
        for layer in LAYERS {
            let single = layer.power.is_single();
            assert_eq!(layer.labels.is_some(), single, "{}", layer.name);
            assert_eq!(layer.seeds.is_some(), single, "{}", layer.name);
            assert_eq!(matches!(layer.prove, Prove::Pair(_)), single);
            assert!(single || layer.exposes.is_none() && !layer.writes);
        }
        assert_eq!(LayerId::SINGLE.len(), LAYERS.len() - 4);
    }

    #[test]
    fn every_curve_is_found_by_its_name_alone() {
        let names: Vec<_> = Costs::names().collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[index + 1..].contains(name), "{name} stands twice");
            let mut costs = Costs::default();
            costs.named(name).expect("a curve").setup_ns = -1.0;
            assert_ne!(costs, Costs::default(), "{name}");
        }
        assert!(Costs::default().named("self").is_none());
    }
}
