// SPDX-License-Identifier: MIT OR Apache-2.0
//! `info`, `memory` and `tune`: what they say is what the runtime does.

#[path = "../../tests/harness/command.rs"]
mod command;
#[path = "commands/nodes.rs"]
mod nodes;
#[path = "commands/tune.rs"]
mod tune;

use command::{onecopy, text};
use onecopy::memory::{Formula, Traffic};
use onecopy::select::explain::{Layers, Memory, Protocol, Table};
use onecopy::{Costs, Knobs, LayerId, Runtime, local_with};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Barrier, Mutex};

/// Tests that count this process's segments, or that time something, take turns.
static ALONE: Mutex<()> = Mutex::new(());

fn json(args: &[&str], env: &[(&str, &str)]) -> Value {
    let output = onecopy(args, env);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new()),
        "{args:?}"
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn info_names_each_layer_with_what_was_seen() {
    let info = json(&["info", "--json"], &[]);
    assert_eq!(info["onecopy"], env!("CARGO_PKG_VERSION"));
    let layers = info["layers"].as_array().expect("a list");
    let names: Vec<_> = layers.iter().map(|layer| layer["name"].as_str()).collect();
    let all = [
        "self", "heap", "xpmem", "cma", "knem", "cico", "verbs", "tcp",
    ];
    assert_eq!(names, all.map(Some));
    for module in info["modules"].as_array().expect("a list") {
        let there = module["behind"].is_string();
        assert_eq!(module["guarantees"].is_array(), there);
        assert_eq!(module["interface"].is_string(), there);
    }
    for layer in layers {
        match layer["state"].as_str() {
            Some("available") => assert!(layer["seen"].as_str().is_some_and(|s| !s.is_empty())),
            Some("unavailable") => {
                assert!(layer["reason"].is_string() && layer["remedy"].is_string())
            }
            state => assert_eq!(state, Some("undetermined")),
        }
    }
    assert!(info["has_slow_rep_movsb"].is_boolean());
    let machine = &info["machine"];
    assert!(machine["polling_ranks"].as_u64().is_some());
    assert_eq!(machine["abilities"].as_array().map(Vec::len), Some(4));
    assert!(
        machine["kernel"]
            .as_str()
            .is_some_and(|kernel| !kernel.is_empty())
    );
}

#[test]
fn info_memory_shows_what_a_pool_does() {
    let info = json(
        &["info", "memory", "-n", "4", "--json"],
        &[("ONECOPY_BUFFERS_CAP", "100K")],
    );
    let kib: Vec<u64> = info["buckets"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|bytes| Some(bytes.as_u64()? >> 10))
        .collect();
    assert_eq!(kib[..8], [4, 8, 12, 16, 24, 32, 48, 64]);
    assert_eq!(kib.last(), Some(&4096));
    // A part of the rank's 5 MiB is for channels.
    let rest = info["collectives_rank"].as_u64().expect("bytes");
    assert!((5 << 19..5 << 20).contains(&rest), "{rest}");
    let trial = info["trial"].as_array().expect("a list");
    let sum = |name: &str| trial.last().and_then(|row| row[name].as_u64());
    // Mebibytes at a time in a pool of 100 KiB.
    assert!(sum("beyond_cap") > Some(0), "{trial:#?}");
    assert_eq!((sum("size"), sum("grown")), (Some(0), sum("released")));
    let roomy = json(&["info", "memory", "--json"], &[]);
    let last = roomy["trial"].as_array().and_then(|trial| trial.last());
    let field = |name: &str| last.and_then(|row| row[name].as_u64());
    assert!(
        field("hits") > Some(0) && field("beyond_cap") == Some(0),
        "{roomy:#}"
    );
    let table = onecopy(&["info", "memory"], &[]);
    assert!(text(&table.stdout).contains("beyond cap"));
}

#[test]
fn info_tells_why_a_layer_is_off() {
    let info = json(&["info", "--json"], &[("ONECOPY_LAYERS", "cico")]);
    let cma = &info["layers"][2];
    assert_eq!(cma["state"], "unavailable");
    assert!(
        cma["reason"]
            .as_str()
            .is_some_and(|r| r.contains("ONECOPY_LAYERS"))
    );
    let protocols = json(
        &["info", "protocols", "--size", "1M", "--json"],
        &[("ONECOPY_LAYERS", "cico")],
    );
    let heap = &protocols["cases"][1]["ranges"][0];
    assert_eq!(heap["protocol"], "pipeline");
    let map = heap["losers"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|loser| loser["protocol"] == "map")
        .expect("map");
    assert_eq!(
        (&map["kind"], &map["reason"]),
        (&"knob".into(), &"off by ONECOPY_LAYERS=cico".into())
    );
}

#[test]
fn info_as_a_rank_shows_the_pair() {
    let program = env!("CARGO_BIN_EXE_onecopy");
    let info = json(
        &["run", "-n", "2", program, "info", "--json", "--peer", "1"],
        &[],
    );
    assert_eq!(info["pair"]["rank"], 0);
    assert_eq!(info["pair"]["peer"], 1);
    let alone = onecopy(&["info", "--peer", "0"], &[]);
    assert_eq!(alone.status.code(), Some(2));
    assert!(text(&alone.stderr).contains("--peer 0"));
}

#[test]
fn ranges_of_protocols_have_no_gap() {
    let listing = json(&["info", "protocols", "--json"], &[]);
    let cases = listing["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 4);
    for case in cases {
        let mut next = Some(0);
        for range in case["ranges"].as_array().expect("a list") {
            assert_eq!(range["from"].as_u64(), next);
            let losers = Protocol::all().count() - 1;
            assert_eq!(range["losers"].as_array().map(Vec::len), Some(losers));
            assert!(range["cost_from_us"].as_f64().is_some());
            next = range["to"].as_u64().map(|to| to + 1);
        }
        assert_eq!(next, None, "the last range has no end");
    }
}

#[test]
fn collectives_are_explained_on_several_nodes() {
    let explained = |nodes: &str| {
        let args = ["info", "collectives", "-n", "8", "--nodes", nodes, "--json"];
        json(&args, &[])
    };
    let algorithms = |listing: &Value, name: &str| -> Vec<String> {
        let rows = listing["collectives"].as_array().expect("a list");
        let own = rows.iter().filter(|row| row["collective"] == name);
        own.filter_map(|row| row["how"].as_str().map(str::to_owned))
            .collect()
    };
    let two = explained("2");
    assert_eq!(two["nodes"], 2);
    assert!(
        algorithms(&two, "allreduce")
            .iter()
            .all(|name| name == "levels")
    );
    assert_eq!(algorithms(&two, "scan"), ["messages"]);
    assert_eq!(
        algorithms(&two, "alltoall").last().map(String::as_str),
        Some("messages")
    );
    // Each rank alone: only reductions gain by leaders.
    let eight = explained("8");
    assert_eq!(algorithms(&eight, "bcast"), ["messages"]);
    assert!(
        algorithms(&eight, "allreduce")
            .iter()
            .all(|name| name == "leaders")
    );
    let table = onecopy(&["info", "collectives", "-n", "8", "--nodes", "2"], &[]);
    let table = text(&table.stdout);
    assert!(table.contains("8 ranks on 2 nodes"), "{table}");
}

/// The protocol that the counters of sender and receiver show.
fn went_by(sender: &BTreeMap<&str, u64>, receiver: &BTreeMap<&str, u64>) -> Protocol {
    let coop = receiver["coop_chunks_receiver"] + sender["coop_chunks_sender"] > 0;
    let moved = [
        (LayerId::Heap, receiver["map_bytes"]),
        (LayerId::Xpmem, receiver["attach_bytes"]),
        (LayerId::Knem, receiver["knem_bytes"]),
        (LayerId::Cma, receiver["get_bytes"]),
    ];
    if sender["sends_inline"] > 0 {
        Protocol::Inline
    } else if sender["sends_slots"] > 0 {
        Protocol::Slots
    } else if sender["sends_chunk"] > 0 {
        Protocol::Chunks
    } else if sender["pipeline_bytes"] > 0 {
        Protocol::Pipeline
    } else if let Some((layer, _)) = moved.into_iter().find(|(_, bytes)| *bytes > 0) {
        if coop {
            Protocol::Cooperative(layer)
        } else {
            Protocol::Single(layer)
        }
    } else {
        Protocol::Put
    }
}

fn counters_since(rt: &Runtime, before: &onecopy::CounterSnapshot) -> BTreeMap<&'static str, u64> {
    let now = rt.counters();
    now.since(before)
        .map(|(info, value)| (info.name, value))
        .collect()
}

/// What `explain` says, against what one message of each size did.
fn transfers_go_as_explained(pairs: &[(&str, &str)], heap: bool) {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let knobs = Knobs::from_iter(pairs.iter().copied()).expect("valid").0;
    let sizes: &[usize] = &[0, 8, 48, 49, 1024, 1025, 4096, 40_000, 200_000, 3 << 20];
    let seen = Mutex::new([Vec::new(), Vec::new()]);
    let meet = Barrier::new(2);
    let found = Mutex::new(Layers::default());
    local_with(2, &knobs, |rt| {
        let (world, rank) = (rt.world(), rt.rank());
        let states = rt.layers(1 - rank).expect("connected");
        if rank == 1 {
            let mut layers = found.lock().expect("not poisoned");
            for state in states {
                layers[state.layer] = state.refusal;
            }
        }
        for &size in sizes {
            let (mut plain, mut own) = (
                vec![rank as u8; size],
                rt.alloc(if heap { size } else { 0 }),
            );
            let buffer: &mut [u8] = if heap {
                own.as_mut().expect("memory")
            } else {
                &mut plain
            };
            meet.wait();
            let before = rt.counters();
            if rank == 0 {
                // The receive is to be posted first: as the explanation has it.
                std::thread::sleep(std::time::Duration::from_millis(20));
                world.send(buffer, 1, 5).expect("sent");
            } else {
                world.recv(buffer, 0, 5).expect("received");
            }
            seen.lock().expect("not poisoned")[rank].push(counters_since(&rt, &before));
            meet.wait();
        }
    });
    let layers = found.into_inner().expect("not poisoned");
    let costs = Costs::seeds(&Knobs::default());
    let table = Table::new(&knobs, &costs, layers);
    let memory = Memory {
        from_heap: heap,
        to_heap: heap,
    };
    let seen = seen.into_inner().expect("not poisoned");
    for (index, &size) in sizes.iter().enumerate() {
        let went = went_by(&seen[0][index], &seen[1][index]);
        let expected = table.choose(size as u64, memory);
        // Between these a pair decides by the times that it has seen.
        let rivals = [
            Protocol::Pipeline,
            Protocol::Single(LayerId::Cma),
            Protocol::Cooperative(LayerId::Cma),
            Protocol::Single(LayerId::Knem),
            Protocol::Cooperative(LayerId::Knem),
        ];
        let fixed = pairs.iter().any(|(name, _)| *name == "ONECOPY_CMA_MIN");
        if !heap && !fixed && rivals.contains(&expected) && rivals.contains(&went) {
            continue;
        }
        assert_eq!(expected, went, "{size} bytes with {pairs:?}, heap {heap}");
    }
}

#[test]
fn transfers_of_plain_memory_go_as_explained() {
    transfers_go_as_explained(&[], false);
    transfers_go_as_explained(&[("ONECOPY_EAGER_MAX", "100")], false);
    transfers_go_as_explained(&[("ONECOPY_LAYERS", "cico")], false);
    transfers_go_as_explained(
        &[
            ("ONECOPY_EAGER_MAX", "4K"),
            ("ONECOPY_CMA_MIN", "0"),
            ("ONECOPY_COOP", "off"),
        ],
        false,
    );
}

#[test]
fn transfers_of_heap_memory_go_as_explained() {
    transfers_go_as_explained(&[], true);
    transfers_go_as_explained(
        &[("ONECOPY_HEAP_MIN", "500"), ("ONECOPY_COOP", "off")],
        true,
    );
    transfers_go_as_explained(&[("ONECOPY_LAYERS", "cico,heap")], true);
}

/// Bytes that the kernel counts for the segments of this process, each once.
fn shared_bytes() -> u64 {
    let mut segments = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd")
        .expect("readable")
        .flatten()
    {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with("/memfd:onecopy")
            && let Ok(found) = std::fs::metadata(entry.path())
        {
            segments.insert(found.ino(), found.blocks() * 512);
        }
    }
    segments.values().sum()
}

/// Every rank sends `bytes` to every other, in turn, and one looks at what that took.
fn measured(ranks: usize, knobs: &Knobs, bytes: usize, heap: usize) -> u64 {
    let meet = Barrier::new(ranks);
    let sum = Mutex::new(0);
    local_with(ranks, knobs, |rt| {
        let (world, rank) = (rt.world(), rt.rank());
        let _own = (heap > 0).then(|| rt.alloc(heap).expect("memory"));
        let mut back = vec![0u8; bytes];
        for distance in 1..ranks {
            let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            world
                .sendrecv(&vec![1u8; bytes], to, 0, &mut back, from, 0)
                .expect("exchanged");
            world.barrier().expect("met");
        }
        meet.wait();
        if rank == 0 {
            *sum.lock().expect("not poisoned") = shared_bytes();
        }
        meet.wait();
    });
    sum.into_inner().expect("not poisoned")
}

#[test]
fn the_formula_is_what_the_kernel_counts() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let small = Knobs::from_iter([
        ("ONECOPY_RING_SLOTS", "32"),
        ("ONECOPY_EAGER_SLOTS_MAX", "512"),
    ]);
    for knobs in [Knobs::default(), small.expect("valid").0] {
        for (ranks, heap) in [(1, 0), (2, 0), (4, 0), (5, 100_000)] {
            let traffic = Traffic {
                ranks,
                peers: ranks - 1,
                heap: heap as u64,
            };
            let formula = Formula::new(&knobs, traffic);
            assert_eq!(
                measured(ranks, &knobs, 40, heap),
                formula.shared_least(),
                "{ranks} ranks, heap {heap}"
            );
            if ranks > 1 {
                let with_chunks = measured(ranks, &knobs, 20_000, heap);
                assert!(with_chunks > formula.shared_least());
                assert!(with_chunks <= formula.shared_most());
            }
        }
    }
}

#[test]
fn memory_prints_the_formula_with_its_figures() {
    let listing = json(&["memory", "-n", "4", "--json"], &[]);
    assert_eq!(listing["pairs"], 12);
    let bytes = |path: &str| {
        listing
            .pointer(path)
            .and_then(Value::as_u64)
            .expect("a number")
    };
    assert_eq!(
        bytes("/shared/at_start"),
        4 * bytes("/shared/base_per_rank")
    );
    assert_eq!(
        bytes("/shared/without_chunks"),
        bytes("/shared/at_start") + 12 * bytes("/shared/ring_per_pair")
    );
    assert_eq!(
        bytes("/shared/at_most"),
        bytes("/shared/without_chunks") + 4 * bytes("/shared/pool_per_rank_at_most")
    );
    assert!(bytes("/worst") > bytes("/shared/at_most"));
    let output = onecopy(&["memory", "-n", "4"], &[("ONECOPY_EAGER_CREDIT", "64K")]);
    let text = text(&output.stdout);
    let ring = bytes("/shared/ring_per_pair");
    assert!(text.contains(&format!("12 x {ring}")), "{text}");
    assert!(text.contains("3 x 65536 (ONECOPY_EAGER_CREDIT)"), "{text}");
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for (args, word) in [
        (&["memory"][..], "--ranks"),
        (&["memory", "-n", "0"], "0"),
        (&["memory", "-n", "4", "--peers", "4"], "--peers 4"),
        (&["memory", "-n", "60000"], "1..=24576"),
        (&["memory", "-n", "2", "--nodes", "3"], "--nodes 3"),
        (&["info", "nodes", "-n", "2", "--nodes", "3"], "--nodes 3"),
        (&["info", "nodes", "-n", "2"], "--nodes"),
        (&["memory", "-n", "4", "--heap", "much"], "much"),
        (&["info", "protocols", "--size", "1Q"], "1Q"),
        (&["info", "nonsense"], "nonsense"),
        (&["tune", "--no"], "--no"),
    ] {
        let output = onecopy(args, &[]);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            text(&output.stderr).contains(word),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn rank_0_prints_the_knobs_that_are_set() {
    let program = env!("CARGO_BIN_EXE_onecopy");
    let output = onecopy(
        &["run", "-n", "2", program, "info", "--json", "--peer", "1"],
        &[("ONECOPY_PRINT_ENV", "on"), ("ONECOPY_COOP", "off")],
    );
    let printed = text(&output.stderr);
    let lines: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains("ONECOPY_"))
        .collect();
    assert_eq!(
        lines,
        [
            "onecopy: ONECOPY_COOP=off",
            // So that no test depends on the machine's own.
            "onecopy: ONECOPY_TUNE_FILE=none",
            "onecopy: ONECOPY_PRINT_ENV=on"
        ]
    );
}

#[test]
fn the_pages_name_knobs_that_exist() {
    for page in ["tuning.md", "trust-model.md", "memory-model.md"] {
        let path = format!("{}/../docs/{page}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("readable");
        for (start, _) in text.match_indices("ONECOPY_") {
            let name: String = text[start..]
                .chars()
                .take_while(|c| c.is_ascii_uppercase() || *c == '_')
                .collect();
            assert!(
                name.starts_with("ONECOPY_JOB_") || onecopy_obs::knobs::info(&name).is_some(),
                "{page}: {name}"
            );
        }
    }
}

#[test]
fn every_collective_is_measured_and_checked() {
    let file = std::env::temp_dir().join(format!("onecopy-coll-{}.json", std::process::id()));
    let path = file.to_string_lossy();
    let args = [
        "bench",
        "coll",
        "-n",
        "3",
        "--sizes",
        "100",
        "--batches",
        "1",
    ];
    let more = ["--mechanism", "heap", "--json", &*path];
    let output = onecopy(&[&args[..], &more[..]].concat(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = std::fs::read_to_string(&file).expect("records");
    std::fs::remove_file(&file).expect("remove");
    let records: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(records.len(), 11);
    for record in &records {
        let bytes = record["checked_bytes"].as_u64();
        assert_eq!(bytes > Some(0), record["pattern"] != "barrier", "{record}");
        assert!(
            record["pool_bytes"].is_u64() && record["ranks"] == 3,
            "{record}"
        );
    }
}
