// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making an engine: its segment, its place in the job, and what it knows of the ranks before it connects with one.

use super::polling::Polling;
use super::wires::{OtherNodes, Wires};
use super::{Core, Engine, Exports};
use crate::endpoint::Home;
use crate::error::Result;
use crate::machine::quota;
use crate::memory::pool::Settings;
use crate::memory::{geometry, warn_of_small_heap};
use crate::select::chunks::Chunks;
use crate::state::{Agenda, Buffers, Lives, Receives, Statistics, WaitPolicy, Waits};
use crate::wireup::{Card, Wireup};
use onecopy_btl::LayerId;
use onecopy_btl::contract::LayerSettings;
use onecopy_btl::cost::Costs;
use onecopy_btl::link::Permitted;
use onecopy_btl::module::{Exposed, Module};
use onecopy_btl::rcache::Limits;
use onecopy_btl::registry::{self, LayerSet};
use onecopy_obs::{CopyKernel, Knobs};
use onecopy_shm::copy::{CopyPlan, Kernel};
use onecopy_shm::fault;
use onecopy_shm::gate::Threads;
use onecopy_shm::stats::StatsPage;
use onecopy_shm::sync::HeavyFence;
use std::hash::{BuildHasher, RandomState};

fn copy_plan(knobs: &Knobs) -> CopyPlan {
    let small = if knobs.copy_kernel == CopyKernel::Rep {
        Kernel::RepMovsb
    } else {
        Kernel::Memcpy
    };
    CopyPlan {
        small,
        nt_min: knobs.nt_from(),
    }
}

/// What a rank has when all have joined the job.
struct Joined {
    home: Home,
    layers: LayerSet,
    module: Module,
    exposed: Exposed,
    cards: Vec<Card>,
    other_nodes: OtherNodes,
}

/// Makes the segment and joins the job; see [`Engine::start`].
fn join(knobs: &Knobs, wireup: &mut dyn Wireup, prepare: impl FnOnce(&Home)) -> Result<Joined> {
    let size = wireup.size();
    let me = u32::try_from(wireup.rank()).unwrap_or(u32::MAX);
    let fence = HeavyFence::register();
    let geometry = geometry(knobs, size);
    warn_of_small_heap(knobs, &geometry);
    let nonce = RandomState::new().hash_one(std::process::id()) | 1;
    let home = Home::create(me, geometry, fence, nonce)?;
    let card = Card {
        quota_cpus: quota(),
        ..Card::of_this_process()
    };
    // Before anyone can look at it.
    prepare(&home);
    registry::permit(knobs, None);
    let mut layers = LayerSet::default();
    if size > 1 {
        layers = LayerSet::permitted(&knobs.layers);
    }
    let module = layers.open_module(knobs.module_abi);
    let exposed = Exposed::new(&module, home.nonce_address());
    let other_nodes = open_wires(knobs, me, wireup, &home)?;
    let card = Card {
        export: exposed.export(),
        listens: other_nodes.wires().and_then(Wires::address),
        ..card
    };
    wireup.grant(exposed.grant())?;
    fault::point("join.before");
    let cards = wireup.join(card, home.fd())?;
    fault::point("join.after");
    Ok(Joined {
        home,
        layers,
        module,
        exposed,
        cards,
        other_nodes,
    })
}

/// Opens what leads to ranks on other nodes, if the launcher and the knobs provide for it.
fn open_wires(knobs: &Knobs, me: u32, wireup: &dyn Wireup, home: &Home) -> Result<OtherNodes> {
    let Some(net) = wireup.net() else {
        let reason = "it is on another node, and the launcher provides no address for it";
        return Ok(OtherNodes::Unreachable(reason.into()));
    };
    let wire = LayerId::WIRE;
    if !knobs.layers.allows(wire.name()) {
        let reason = format!(
            "it is on another node, and ONECOPY_LAYERS switches {wire} off, by which nodes are reached; add {wire} to it"
        );
        return Ok(OtherNodes::Unreachable(reason.into()));
    }
    let wires = Wires::open(knobs, me, &net, home, wireup.lanes())?;
    Ok(OtherNodes::Wires(Box::new(wires)))
}

/// The core of a rank, which has done nothing yet.
fn core(knobs: Knobs, costs: Costs, threads: Threads, home: Home, wireup: &dyn Wireup) -> Core {
    let size = wireup.size();
    let me = u32::try_from(wireup.rank()).unwrap_or(u32::MAX);
    Core {
        me,
        size: size as u32,
        costs,
        single_threaded: threads == Threads::Single,
        loans: Default::default(),
        stages: Default::default(),
        requests: Default::default(),
        chunks: Chunks::new(&knobs),
        buffers: Buffers::new(home.heap(), Settings::new(&knobs, size, threads)),
        rewritten: Default::default(),
        counters: Statistics::new(StatsPage::new(wireup.job(), me, size as u32)),
        agenda: Agenda::default(),
        knobs,
        home,
    }
}

impl Engine {
    /// Makes the segment, joins the job and waits for all ranks. `prepare` may write to the segment before a peer sees
    /// it.
    pub(crate) fn start(
        knobs: Knobs,
        costs: Costs,
        threads: Threads,
        mut wireup: Box<dyn Wireup>,
        prepare: impl FnOnce(&Home),
    ) -> Result<Self> {
        let Joined {
            home,
            layers,
            module,
            exposed,
            cards,
            other_nodes,
        } = join(&knobs, &mut *wireup, prepare)?;
        let (me, size) = (wireup.rank(), wireup.size());
        onecopy_shm::copy::prefer_vectors(knobs.writes_strings());
        onecopy_shm::copy::probe_strings();
        let permitted = permitted(&knobs, layers, module, &home);
        let wait_policy = wait_policy(&knobs, &cards, &*wireup);
        let core = core(knobs, costs, threads, home, &*wireup);
        let none = || (0..size).map(|_| None);
        let nodes: Vec<u32> = (0..size).map(|rank| wireup.node(rank)).collect();
        let several_nodes = nodes.iter().any(|&node| node != nodes[me]);
        let mut engine = Self {
            waits: Waits::new(core.home.doorbell(), wait_policy),
            core,
            receives: Receives::default(),
            peers: none().collect(),
            polling: Polling::new(several_nodes),
            lives: Lives::new(size),
            wireup,
            permitted,
            exports: Exports {
                of_ranks: cards.iter().map(|card| card.export).collect(),
                _own: exposed,
            },
            nodes,
            other_nodes,
        };
        if let Some(wires) = engine.other_nodes.wires_mut() {
            wires.set_addresses(&cards, me, &engine.nodes);
        }
        Ok(engine)
    }
}

/// The layers by which this rank talks with peers on its node, and on which terms.
fn permitted(knobs: &Knobs, layers: LayerSet, module: Module, home: &Home) -> Permitted {
    let layers = match home.heap_bytes() {
        0 => layers.without(LayerId::MAP),
        _ => layers,
    };
    Permitted {
        layers,
        terms: LayerSettings {
            pool_writable: knobs.maps_writable(),
            plan: copy_plan(knobs),
            module,
            limits: attach_limits(knobs),
        },
    }
}

/// How this rank waits, by the ranks that want processors of its machine. Those on nodes of one machine listen at its
/// loopback.
fn wait_policy(knobs: &Knobs, cards: &[Card], wireup: &dyn Wireup) -> WaitPolicy {
    let me = wireup.rank();
    let same = |rank: usize| {
        let listens = cards[rank].listens;
        wireup.node(rank) == wireup.node(me)
            || listens.is_some_and(|address| address.ip().is_loopback())
    };
    let here: Vec<usize> = (0..cards.len()).filter(|&rank| same(rank)).collect();
    let place = here.iter().position(|&rank| rank == me);
    let of_machine: Vec<Card> = here.iter().map(|&rank| cards[rank].clone()).collect();
    WaitPolicy::new(knobs, &of_machine, place.unwrap_or(usize::MAX))
}

/// Windows of one peer's memory that are attached at a time. Chosen by magnitude: they have 4 GiB of the default size.
/// The kernel permits 65530 mappings (`vm.max_map_count`), so 127 peers may have as many.
const WINDOWS_MAX: usize = 512;

/// What bounds the windows that are attached of one peer.
fn attach_limits(knobs: &Knobs) -> Limits {
    Limits {
        window: (knobs.attach_window as u64).next_multiple_of(2 << 20),
        bytes: knobs.attach_bytes as u64,
        count: WINDOWS_MAX,
        earn: knobs.attach_min as u64,
        end: u64::MAX,
    }
}
