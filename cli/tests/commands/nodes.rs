// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the commands say of several nodes: memory, layers, protocols, and the benchmark.

#[path = "../../../tests/harness/resident.rs"]
mod resident;

use super::command::{onecopy, text};
use super::{ALONE, json, shared_bytes};
use onecopy::memory::nodes::{Spread, Streams};
use onecopy::memory::{Formula, Traffic};
use onecopy::{Knobs, local_of_nodes};
use serde_json::Value;
use std::sync::{Barrier, Mutex};

/// Connections of this process by TCP, each end of one that is within it.
fn connections() -> usize {
    let mut inodes = Vec::new();
    let fds = std::fs::read_dir("/proc/self/fd").expect("readable");
    for entry in fds.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy().into_owned();
        inodes.extend(
            target
                .strip_prefix("socket:[")
                .map(|rest| rest.trim_end_matches(']').to_owned()),
        );
    }
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("readable");
    let rows = table
        .lines()
        .skip(1)
        .map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
    const ESTABLISHED: &str = "01";
    rows.filter(|row| row[3] == ESTABLISHED && inodes.iter().any(|inode| inode == row[9]))
        .count()
}

/// What a job of several nodes takes, of which all ranks are threads of this process.
struct Took {
    shared: u64,
    connections: usize,
    private: u64,
}

fn took(ranks: usize, nodes: usize, knobs: &Knobs) -> Took {
    let meet = Barrier::new(ranks);
    let took = Mutex::new(None);
    local_of_nodes(ranks, nodes as u32, knobs, |rt| {
        let (world, rank) = (rt.world(), rt.rank());
        meet.wait();
        let before = resident::private();
        meet.wait();
        let mut back = [0u32; 10];
        for distance in 1..ranks {
            let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            world
                .sendrecv(&[1u32; 10], to, 0, &mut back, from, 0)
                .expect("exchanged");
        }
        world.barrier().expect("met");
        meet.wait();
        if rank == 0 {
            let private = resident::private().saturating_sub(before);
            let now = Took {
                shared: shared_bytes(),
                connections: connections(),
                private,
            };
            *took.lock().expect("not poisoned") = Some(now);
        }
        meet.wait();
        rt.finalize().expect("finalize");
    });
    took.into_inner().expect("not poisoned").expect("rank 0")
}

/// Ten integers from each to each. The shared memory of all nodes is what the formula says, to the byte, and so is the
/// number of connections. A connection takes about as much memory as it says.
#[test]
fn the_formula_of_several_nodes_is_what_a_run_takes() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let knobs = Knobs::default();
    for (ranks, nodes) in [(4, 2), (9, 3), (12, 12)] {
        let spread = Spread::new(ranks, nodes, ranks - 1);
        let traffic = Traffic {
            ranks: spread.per_node,
            peers: spread.near,
            heap: 0,
        };
        let shared = Formula::on_node(&knobs, traffic, ranks).shared_least();
        let streams = Streams::new(&knobs, spread.far);
        let took = took(ranks, nodes, &knobs);
        assert_eq!(took.shared, nodes as u64 * shared, "{ranks} on {nodes}");
        assert_eq!(
            took.connections,
            ranks * streams.peers as usize,
            "{ranks} on {nodes}"
        );
        if nodes == ranks {
            // Nothing but connections: half of the estimate at least, and no more than with all of what they read into.
            let (ranks, estimate) = (ranks as u64, streams.least());
            let most = estimate + streams.peers * streams.input;
            let range = ranks * estimate / 2..=ranks * most;
            assert!(
                range.contains(&took.private),
                "{} of {range:?}",
                took.private
            );
        }
    }
}

#[test]
fn memory_shows_each_wire_and_why_one_is_chosen() {
    let args = ["memory", "-n", "64", "--nodes", "4", "--json"];
    let listing = json(&args, &[("ONECOPY_TCP_BUFFER", "64K")]);
    assert_eq!(listing["ranks"], 16, "of one node");
    let between = &listing["between_nodes"];
    assert_eq!(
        (&between["nodes"], &between["peers"]),
        (&4.into(), &48.into())
    );
    let wires = between["wires"].as_array().expect("a list");
    let names: Vec<_> = wires.iter().map(|wire| wire["name"].as_str()).collect();
    assert_eq!(names, ["tcp", "rc", "xrc", "ud"].map(Some));
    let number = |index: usize, what: &str| wires[index][what].as_u64().expect("a number");
    assert_eq!(number(0, "connections"), 48);
    assert_eq!(number(0, "kernel"), 48 * (256 << 10));
    assert_eq!(
        (number(1, "connections"), number(3, "connections")),
        (48, 1)
    );
    assert!(number(3, "pinned") < number(1, "pinned") && number(0, "pinned") == 0);
    for (index, wire) in wires.iter().enumerate() {
        let most = wire["private"][1].as_u64().expect("a number");
        assert_eq!(number(index, "at_most"), most + number(index, "kernel"));
    }
    // Each further rail has its pairs and its pools; datagrams go by one.
    let by = |rails: &str| {
        let more = ["--rails", rails];
        let listing = json(&[&args[..], &more].concat(), &[]);
        let between = &listing["between_nodes"];
        assert_eq!(between["rails"].to_string(), rails);
        let number =
            |index: usize, what: &str| between["wires"][index][what].as_u64().expect("a number");
        (
            number(1, "connections"),
            number(1, "pinned"),
            number(1, "kernel"),
            number(3, "at_most"),
        )
    };
    let (one, three) = (by("1"), by("3"));
    assert_eq!(
        (3 * one.0, 3 * one.1, 3 * one.2),
        (three.0, three.1, three.2)
    );
    assert_eq!(one.3, three.3);
    if !std::path::Path::new("/sys/class/infiniband").exists() {
        assert_eq!(between["chosen"], "tcp");
    }
    assert!(
        between["reasons"]
            .as_array()
            .is_some_and(|all| all.len() >= 3)
    );
    // Lanes are made by the wire: without it none of them leads anywhere.
    let off = json(&args, &[("ONECOPY_LAYERS", "^tcp")]);
    let between = &off["between_nodes"];
    assert_eq!(between["chosen"], "none", "{between}");
    assert!(
        between["reasons"]
            .to_string()
            .contains("ONECOPY_LAYERS switches tcp off"),
        "{between}"
    );
    let short = [
        "memory",
        "-n",
        "64",
        "--nodes",
        "4",
        "--wire-budget",
        "1M",
        "--json",
    ];
    let reasons = json(&short, &[])["between_nodes"]["reasons"].to_string();
    assert!(reasons.contains("would be ud"), "{reasons}");
    let shown = onecopy(&args[..5], &[]);
    let shown = text(&shown.stdout);
    for part in ["64 ranks on 4 nodes", "Chosen: ", "tcp ", "xrc "] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(json(&["memory", "-n", "4", "--json"], &[])["between_nodes"].is_null());
}

#[test]
fn info_names_the_layer_of_each_pair_of_nodes() {
    let listing = json(&["info", "nodes", "-n", "5", "--nodes", "3", "--json"], &[]);
    let nodes = listing["nodes"].as_array().expect("a list");
    let ranks: Vec<_> = nodes.iter().map(|node| node["ranks"].to_string()).collect();
    assert_eq!(ranks, ["[0,1]", "[2,3]", "[4]"]);
    let here = json(&["info", "--json"], &[]);
    let layers = here["layers"].as_array().expect("a list");
    let verbs = layers.iter().find(|layer| layer["name"] == "verbs");
    let no_device = verbs.expect("a layer")["reason"].as_str();
    let pairs = listing["pairs"].as_array().expect("a list");
    let between: Vec<_> = pairs.iter().map(|pair| pair["nodes"].to_string()).collect();
    assert_eq!(between, ["[0,1]", "[0,2]", "[1,2]"]);
    for pair in pairs {
        assert_eq!(pair["layer"], "tcp", "{pair}");
        let place = pair["place"].as_str().expect("a place");
        assert!(place.starts_with("127.0.0.1:"), "{place}");
        // What there is in place of a lane, and why.
        let reason = pair["reason"].as_str().expect("a reason");
        assert!(reason.contains("no verbs: "), "{reason}");
        if let Some(why) = no_device {
            assert!(reason.contains(why), "{reason}");
        }
    }
    let off = ["info", "nodes", "--nodes", "2", "--json"];
    let pair = &json(&off, &[("ONECOPY_LAYERS", "^verbs")])["pairs"][0];
    assert_eq!(pair["layer"], "tcp", "{pair}");
    let reason = pair["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("no verbs: switched off by ONECOPY_LAYERS"),
        "{reason}"
    );
    // Without a wire there is a reason.
    let pair = &json(&off, &[("ONECOPY_LAYERS", "^tcp")])["pairs"][0];
    assert!(pair["layer"].is_null(), "{pair}");
    let reason = pair["reason"].as_str().expect("a reason");
    assert!(reason.contains("ONECOPY_LAYERS"), "{reason}");
    // As a rank of a job of one node.
    let program = env!("CARGO_BIN_EXE_onecopy");
    let one = onecopy(&["run", "-n", "2", program, "info", "nodes"], &[]);
    assert!(text(&one.stdout).contains("One node"), "{one:?}");
}

#[test]
fn protocols_between_nodes_have_no_estimates_and_name_the_wire() {
    // Whatever device there is.
    let off = ("ONECOPY_LAYERS", "^verbs");
    let listing = json(&["info", "protocols", "--between-nodes", "--json"], &[off]);
    assert_eq!(listing["shares_memory"], false);
    assert_eq!(listing["piece"], 256 << 10);
    let ranges = listing["cases"][0]["ranges"].as_array().expect("a list");
    let names: Vec<_> = ranges
        .iter()
        .map(|range| range["protocol"].as_str())
        .collect();
    assert_eq!(names, ["inline", "slots", "chunks", "pipeline"].map(Some));
    assert!(ranges.iter().all(|range| range["cost_from_us"].is_null()));
    let cma = ranges[2]["losers"].as_array().expect("a list").iter();
    let cma = cma
        .clone()
        .find(|loser| loser["protocol"] == "get")
        .expect("get");
    assert!(
        cma["reason"]
            .as_str()
            .is_some_and(|text| text.contains("another node")),
        "{cma}"
    );
    let last = ranges[3]["losers"].as_array().expect("a list");
    let read = last.iter().find(|loser| loser["protocol"] == "rdma-read");
    let reason = &read.expect("rdma-read")["reason"];
    assert!(reason.to_string().contains("ONECOPY_LAYERS"), "{reason}");
    // The same of a pair of a job.
    let program = env!("CARGO_BIN_EXE_onecopy");
    let words = [
        "run",
        "-n",
        "2",
        program,
        "__on-node",
        "2",
        program,
        "info",
        "protocols",
        "--peer",
        "1",
        "--json",
    ];
    let of_pair = json(&words, &[("ONECOPY_NODE_TIMEOUT", "60"), off]);
    assert_eq!(of_pair["pair"]["wire"]["layer"], "tcp");
    assert_eq!(of_pair["cases"], listing["cases"]);
}

#[test]
fn bench_net_measures_two_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rows");
    let file = file.to_str().expect("a path in UTF-8");
    let words = [
        "bench",
        "net",
        "pingpong",
        "--sizes",
        "8,64K",
        "--batches",
        "2",
        "--batch",
        "1",
        "--json",
        file,
    ];
    let output = onecopy(&words, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rows = std::fs::read_to_string(file).expect("the rows");
    let rows: Vec<Value> = rows
        .lines()
        .map(|row| serde_json::from_str(row).expect("JSON"))
        .collect();
    let sizes: Vec<_> = rows.iter().map(|row| row["bytes"].as_u64()).collect();
    assert_eq!(sizes, [Some(8), Some(64 << 10)]);
    for row in &rows {
        assert!(row["us"].as_f64().is_some_and(|us| us > 0.0) && row["bare_us"].as_f64().is_some());
    }
    assert_eq!(text(&output.stdout).matches("pingpong").count(), 2);
}
