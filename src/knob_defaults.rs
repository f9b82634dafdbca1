// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests: what the table of knobs says that `auto` stands for is what the runtime does.

mod found;
mod policies;

use crate::memory::geometry;
use crate::runtime::{Runtime, local_with};
use crate::select::Thresholds;
use crate::select::chunks::Chunks;
use crate::wireup::unset;
use onecopy_btl::LayerId;
use onecopy_btl::cost::{Costs, Curve};
use onecopy_btl::registry::{LayerSet, Power};
use onecopy_obs::knobs::auto::{Auto, Situation, Value};
use onecopy_obs::{ChunkCopy, KNOBS, Knobs};
use onecopy_shm::copy::Kernel;
use std::sync::Mutex;

fn rule(name: &str) -> &'static Auto {
    let info = onecopy_obs::knobs::info(name).expect("a knob");
    info.auto.expect("a knob with auto")
}

fn auto_value(name: &str, knobs: &Knobs, situation: Situation) -> Value {
    let value = rule(name).value(knobs, &situation);
    value.unwrap_or_else(|| panic!("{name}: no rule that knobs and situation decide"))
}

fn auto_number(name: &str, knobs: &Knobs, situation: Situation) -> u64 {
    match auto_value(name, knobs, situation) {
        Value::Never => u64::MAX,
        value => value.number() as u64,
    }
}

fn written(chunk_copy: ChunkCopy) -> Knobs {
    Knobs {
        chunk_copy,
        ..Knobs::default()
    }
}

/// Knobs for each way to write chunks.
fn each_writing() -> [Knobs; 3] {
    [ChunkCopy::Auto, ChunkCopy::Owned, ChunkCopy::String].map(written)
}

/// The seeds of both kinds of processors.
fn each_costs() -> [Costs; 2] {
    [ChunkCopy::Owned, ChunkCopy::String].map(|writing| Costs::seeds(&written(writing)))
}

fn curve(costs: &Costs, name: &str) -> Curve {
    let mut costs = *costs;
    *costs.named(name).expect("a curve")
}

/// Where the curves cross, as the rule says; `u64::MAX` for nowhere.
fn crossing(name: &str, costs: &Costs) -> u64 {
    let Auto::Crossing {
        cheaper,
        than,
        from,
        ..
    } = rule(name)
    else {
        panic!("{name}: its rule names no curves");
    };
    let (cheaper, than) = (curve(costs, cheaper), curve(costs, than));
    Costs::crossing(&cheaper, &than, *from as u64).unwrap_or(u64::MAX)
}

/// The layer whose row has this knob.
fn layer_of(name: &str) -> Option<LayerId> {
    LayerId::SINGLE.into_iter().find(|layer| {
        layer
            .row()
            .min
            .as_ref()
            .is_some_and(|knob| knob.name == name)
    })
}

fn layer_min(name: &str) {
    let layer = layer_of(name).expect("a layer");
    let alone = Knobs {
        coop: false,
        ..Knobs::default()
    };
    for costs in each_costs() {
        let found = |knobs: &Knobs| Thresholds::with_layers(knobs, &costs, LayerSet::ALL);
        let both = crossing(name, &costs);
        assert_eq!(found(&Knobs::default()).min[layer], both, "{name}");
        // With one side that copies, the layer's other curve.
        let [one_sided, _] = layer.labels().expect("labels").curves;
        let expected = match layer.power() {
            Power::Copy => {
                let one_sided = curve(&costs, one_sided);
                Costs::crossing(&one_sided, &costs.pipeline, 4 << 10).unwrap_or(u64::MAX)
            }
            _ => both,
        };
        assert_eq!(found(&alone).min[layer], expected, "{name}");
        let found = found(&without_chunks());
        let expected = match layer.power() {
            Power::Map => found.slots_max as u64 + 1,
            _ => 0,
        };
        assert_eq!(found.min[layer], expected, "{name}");
    }
}

/// Knobs of a job without the layer cico.
fn without_chunks() -> Knobs {
    let mut knobs = Knobs::default();
    let others = LayerId::SINGLE.map(LayerId::name).join(",");
    knobs.set("ONECOPY_LAYERS", &others).expect("layers");
    knobs
}

fn coop_min() {
    let alone = Knobs {
        coop: false,
        ..Knobs::default()
    };
    let found = Thresholds::with_layers(&alone, &Costs::default(), LayerSet::ALL);
    for layer in LayerId::SINGLE {
        assert_eq!(found.coop_min[layer], u64::MAX, "{layer}");
    }
    let earned = 64 << 20;
    let knobs = Knobs {
        attach_min: earned,
        ..Knobs::default()
    };
    for costs in each_costs() {
        let found = Thresholds::with_layers(&knobs, &costs, LayerSet::ALL);
        assert_eq!(
            found.coop_min[LayerId::MAP],
            crossing("ONECOPY_COOP_MIN", &costs)
        );
        for layer in LayerId::SINGLE {
            let [one_sided, cooperative] = layer.labels().expect("labels").curves;
            let (one_sided, cooperative) = (curve(&costs, one_sided), curve(&costs, cooperative));
            let crossing = Costs::crossing(&cooperative, &one_sided, 16 << 10).unwrap_or(u64::MAX);
            let expected = match layer.power() {
                Power::Attach => crossing.max(earned as u64),
                _ => crossing,
            };
            assert_eq!(found.coop_min[layer], expected, "{layer}");
        }
    }
}

/// Lets a layer begin at this size.
fn take_from(knobs: &mut Knobs, layer: LayerId, size: &str) {
    let knob = layer.row().min.as_ref().expect("a knob");
    knobs.set(knob.name, size).expect("a size");
}

/// In numbers that were worked out by hand, and by the rule.
fn eager_max() {
    let announced_from = |settings: &[(&str, &str)], proven: LayerSet| {
        let mut knobs = written(ChunkCopy::Owned);
        for (name, value) in settings {
            knobs.set(name, value).expect("a value");
        }
        Thresholds::with_layers(&knobs, &Costs::default(), proven).announce_min
    };
    let (nothing, all) = (LayerSet::default(), LayerSet::ALL);
    let slots = found_slots(&Knobs::default());
    for (settings, proven, expected) in [
        (&[][..], nothing, 260 << 10),
        (&[("ONECOPY_EAGER_CREDIT", "64K")], nothing, 32 << 10),
        (
            &[("ONECOPY_EAGER_CREDIT", "4K")],
            nothing,
            (2 << 10).max(slots + 1),
        ),
        (
            &[
                ("ONECOPY_CMA_MIN", "8K"),
                ("ONECOPY_XPMEM_MIN", "1T"),
                ("ONECOPY_KNEM_MIN", "1T"),
            ],
            all,
            8 << 10,
        ),
        (&[("ONECOPY_LAYERS", "heap,cma")], all, slots + 1),
    ] {
        assert_eq!(announced_from(settings, proven), expected, "{settings:?}");
    }
    let long = Knobs {
        eager_slots_max: Some(4096),
        ..without_chunks()
    };
    let found = Thresholds::with_layers(&long, &Costs::default(), LayerSet::ALL);
    assert_eq!(found.announce_min, found.slots_max as u64 + 1);
    assert!(found.slots_max < 4096, "what the slots take");
    for mut knobs in each_writing() {
        for pool_per_peer in [Some(64 << 10), None] {
            knobs.pool_per_peer = pool_per_peer;
            for costs in each_costs() {
                for proven in [LayerSet::default(), LayerSet::ALL] {
                    let found = Thresholds::with_layers(&knobs, &costs, proven);
                    let plain = LayerId::SINGLE
                        .into_iter()
                        .filter(|&layer| layer != LayerId::MAP);
                    let first = plain.map(|layer| found.min[layer]).min();
                    let situation = Situation {
                        copied_from: first
                            .filter(|_| proven.has(LayerId::CALL))
                            .map(|first| first as usize),
                        ..Situation::here()
                    };
                    let unasked = auto_number("ONECOPY_EAGER_MAX", &knobs, situation);
                    assert_eq!(found.announce_min - 1, unasked);
                }
            }
        }
    }
}

/// Bytes that slots take of a message.
fn found_slots(knobs: &Knobs) -> u64 {
    Thresholds::with_layers(knobs, &Costs::default(), LayerSet::ALL).slots_max as u64
}

fn slots_most() {
    let slots = |knobs: &Knobs| {
        let value = auto_number("ONECOPY_EAGER_SLOTS_MAX", knobs, Situation::here());
        assert_eq!(found_slots(knobs), value);
        value
    };
    for return_min in [512, 3 << 10] {
        for writable in [true, false] {
            let knobs = Knobs {
                return_min,
                pool_writable: Some(writable),
                ..Knobs::default()
            };
            let expected = if writable {
                (return_min - 1).min(1 << 10)
            } else {
                1 << 10
            };
            assert_eq!(slots(&knobs), expected as u64, "{return_min}, {writable}");
        }
    }
    let without = Knobs {
        return_min: 512,
        pool_writable: Some(true),
        ..without_chunks()
    };
    assert_eq!(slots(&without), 1 << 10);
}

fn rewritten_max() {
    let found = |knobs: &Knobs| {
        let found = Thresholds::with_layers(knobs, &Costs::default(), LayerSet::ALL);
        [found.rewritten_max, found.rewritten_heap_max]
    };
    // Set by the user or not, half of these bounds it.
    for (knob, bytes) in [
        ("ONECOPY_POOL_PER_PEER", "64K"),
        ("ONECOPY_EAGER_CREDIT", "64K"),
    ] {
        let mut knobs = Knobs::default();
        knobs.set(knob, bytes).expect("a size");
        let [plain, heap] = found(&knobs);
        assert!(plain == 32 << 10 && heap <= 32 << 10, "{knob}");
        knobs.set("ONECOPY_REWRITTEN_MAX", "1M").expect("a size");
        assert_eq!(found(&knobs), [32 << 10; 2], "{knob}");
    }
    // A layer whose size the user has set is meant for its kind of memory.
    for layer in LayerId::SINGLE
        .into_iter()
        .filter(|layer| layer.row().min.is_some())
    {
        let mut knobs = written(ChunkCopy::Owned);
        take_from(&mut knobs, layer, "8K");
        for set in [None, Some(1 << 20)] {
            knobs.rewritten_max = set;
            let [plain, heap] = found(&knobs);
            let maps = layer.power() == Power::Map;
            assert_eq!((plain == 0, heap == 0), (!maps, maps), "{layer}");
        }
    }
    assert_eq!(found(&without_chunks()), [0; 2]);
    for knobs in each_writing() {
        for (mapped, max) in [false, true].into_iter().zip(found(&knobs)) {
            let situation = Situation {
                mapped,
                ..Situation::here()
            };
            let value = auto_number("ONECOPY_REWRITTEN_MAX", &knobs, situation);
            assert_eq!(value, max, "mapped: {mapped}");
            assert!(mapped || value > 0, "plain memory");
        }
    }
}

fn chunks() {
    let here = Situation::here();
    for knobs in each_writing() {
        let found = Chunks::new(&knobs);
        let number = |name| auto_number(name, &knobs, here);
        assert_eq!(found.bytes as u64, number("ONECOPY_CHUNK_SIZE"));
        assert_eq!(found.step, number("ONECOPY_PIPELINE_CHUNK"));
    }
    // In chunks of 16 KiB: what a pipelined transfer recycles.
    for (share, depth) in [(16 << 10, 2), (64 << 10, 4), (4 << 20, 64)] {
        let knobs = Knobs {
            pool_per_peer: Some(share),
            ..Knobs::default()
        };
        assert_eq!(Chunks::new(&knobs).depth, depth, "{share}");
    }
    let by_string =
        auto_value("ONECOPY_CHUNK_COPY", &Knobs::default(), here) == Value::Word("string");
    let long = Chunks::new(&Knobs::default()).kernel(64 << 10);
    assert_eq!(long == Kernel::RepMovsb, by_string);
}

/// What `find` makes of a rank that runs with these knobs.
fn of_a_rank<R: Send>(knobs: &Knobs, find: impl Fn(&Runtime) -> R + Sync) -> R {
    let found = Mutex::new(None);
    local_with(1, knobs, |rank| {
        *found.lock().expect("no rank panics") = Some(find(&rank));
    });
    let found = found.into_inner().expect("no rank panics");
    found.expect("one rank")
}

fn pool_per_peer() {
    for pool_max in [4 << 10, 64 << 10, Knobs::default().pool_max] {
        let knobs = Knobs {
            pool_max,
            ..Knobs::default()
        };
        assert!(knobs.check().is_ok());
        let chunks = Chunks::new(&knobs);
        let share = auto_number("ONECOPY_POOL_PER_PEER", &knobs, Situation::here());
        assert_eq!((chunks.share * chunks.bytes) as u64, share);
    }
}

fn pool_writable() {
    for knobs in each_writing() {
        let writable = of_a_rank(&knobs, |rank| {
            rank.handle()
                .gate
                .enter()
                .engine
                .permitted
                .terms
                .pool_writable
        });
        let value = auto_value("ONECOPY_POOL_WRITABLE", &knobs, Situation::here());
        assert_eq!(value == Value::Word("on"), writable);
    }
}

fn heap_size() {
    let limit = |resource| nix::sys::resource::getrlimit(resource).map(|(soft, _)| soft);
    let none = Ok(nix::sys::resource::RLIM_INFINITY);
    let resources = [
        nix::sys::resource::Resource::RLIMIT_AS,
        nix::sys::resource::Resource::RLIMIT_FSIZE,
    ];
    let info = std::fs::read_to_string("/proc/meminfo").expect("readable");
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|text| text.trim().strip_suffix(" kB"));
    let bytes: u64 = kib.expect("a total").trim().parse().expect("a number");
    let whole = (bytes << 10).next_power_of_two();
    let found = geometry(&Knobs::default(), 2).heap_bytes;
    assert!(found <= whole);
    assert_eq!(found == whole, resources.map(limit) == [none; 2], "{found}");
}

fn ring_slots() {
    let knobs = Knobs::default();
    for ranks in [1, 2, 31, 32, 33, 64, 65, 1000] {
        let situation = Situation {
            ranks,
            ..Situation::here()
        };
        let value = auto_number("ONECOPY_RING_SLOTS", &knobs, situation);
        assert_eq!(u64::from(geometry(&knobs, ranks).ring_slots), value);
        assert!(value >= knobs.ring_slots_at_least() as u64);
    }
}

/// Knobs, and what compares their `auto` with what is done.
type Comparison = (&'static [&'static str], fn());

/// What compares each knob's `auto` with what is done; those of a layer's size ([`layer_min`]) come besides.
const COMPARED: &[Comparison] = &[
    (&["ONECOPY_COOP_MIN"], coop_min),
    (&["ONECOPY_EAGER_MAX"], eager_max),
    (&["ONECOPY_EAGER_SLOTS_MAX"], slots_most),
    (&["ONECOPY_REWRITTEN_MAX"], rewritten_max),
    (
        &[
            "ONECOPY_CHUNK_SIZE",
            "ONECOPY_CHUNK_COPY",
            "ONECOPY_PIPELINE_CHUNK",
        ],
        chunks,
    ),
    (&["ONECOPY_POOL_PER_PEER"], pool_per_peer),
    (&["ONECOPY_POOL_WRITABLE"], pool_writable),
    (
        &["ONECOPY_COPY_KERNEL", "ONECOPY_NT_MIN"],
        policies::copy_kernel,
    ),
    (
        &[
            "ONECOPY_WAIT_SPIN",
            "ONECOPY_WAIT_YIELD",
            "ONECOPY_WAIT_SLEEP",
        ],
        policies::waiting,
    ),
    (&["ONECOPY_COLL_RELAY_MIN"], policies::broadcasts_by_shares),
    (&["ONECOPY_COLL_ASK"], policies::owners_that_are_asked),
    (&["ONECOPY_HEAP_SIZE"], heap_size),
    (&["ONECOPY_COOP_CHUNK"], policies::coop_chunk),
    (&["ONECOPY_MODULE_ABI"], found::module_abi),
    (&["ONECOPY_TUNE_FILE"], found::tune_file),
    (&["ONECOPY_NET_ADDRESS"], unset::address),
    (&["ONECOPY_NODE"], unset::node),
    (&["ONECOPY_RING_SLOTS"], ring_slots),
    (
        &[
            "ONECOPY_VERBS_DEVICE",
            "ONECOPY_VERBS_PORT",
            "ONECOPY_VERBS_GID",
        ],
        found::device_port_and_address,
    ),
    (&["ONECOPY_VERBS_MODE"], found::mode_of_lanes),
    (&["ONECOPY_VERBS_READ_MIN"], found::reads_of_devices),
];

#[test]
fn what_auto_stands_for_is_what_is_done() {
    let compared = |name: &str| {
        COMPARED
            .iter()
            .filter(|(names, _)| names.contains(&name))
            .count()
    };
    for knob in KNOBS.iter().filter(|knob| knob.auto.is_some()) {
        match (layer_of(knob.name), compared(knob.name)) {
            (Some(_), 0) => layer_min(knob.name),
            (None, 1) => {}
            (_, times) => panic!("{}: its auto is compared {times} times", knob.name),
        }
    }
    for (names, compare) in COMPARED {
        for name in *names {
            rule(name);
        }
        compare();
    }
}
