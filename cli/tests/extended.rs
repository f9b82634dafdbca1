// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs whose ranks lie on several nodes of this machine and reach one another by extended connections (XRC). They run
//! over libibverbs in software: the whole way from `onecopy run` to what is posted to a queue pair.

#[path = "../../tests/harness/between_nodes.rs"]
mod between_nodes;
#[path = "../../tests/harness/command.rs"]
mod command;
#[path = "../../tests/harness/say.rs"]
mod say;
#[path = "../../btl/verbs/tests/library/world.rs"]
mod world;

use between_nodes::{exchange_with_all, flood, pattern, send_before_leaving, sleep_until_woken};
use command::limit;
use command::{onecopy, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onecopy::coll::PredefinedOp;
use onecopy::{Error, LayerId, Runtime};
use say::say;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use world::{Counts, World};

/// Says what a rank of a test does; no test then.
const RANK: &str = "EXTENDED_RANK";

/// A world of devices, and what a job is started with.
struct Bed {
    world: World,
    folder: TempDir,
}

impl Bed {
    /// None where the library cannot be built.
    fn new() -> Option<Self> {
        if let Some(reason) = world::missing() {
            // A test that is left out says so.
            say(&format!("left out: {reason}"));
            return None;
        }
        let folder = tempfile::Builder::new()
            .prefix("xrc")
            .tempdir()
            .expect("a folder");
        Some(Self {
            world: World::new(folder.path()),
            folder,
        })
    }

    /// Runs the command with these settings; its outputs.
    fn command(&self, args: &[&str], more: &[(&str, &str)]) -> (bool, String, String) {
        let env = self.world.env();
        let env = env.iter().map(|(name, value)| (*name, value.as_str()));
        // One port, so that no mode has several rails.
        let one = [("MODEL_VERBS_DEVICES", "1")];
        let all: Vec<_> = env.chain(one).chain(more.iter().copied()).collect();
        let output = onecopy(args, &all);
        (
            output.status.success(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }

    /// Runs a job of this program's ranks, which do `what`.
    fn job(&self, what: &str, ranks: usize, nodes: usize, more: &[(&str, &str)]) -> Counts {
        let (ok, out, err) = self.run(what, (ranks, nodes), &[], more);
        assert!(ok, "{what}: {out}{err}");
        let counts = self.world.counts();
        // All went as it came.
        assert_eq!((counts.initiators, counts.targets), (0, 0), "{counts:?}");
        counts
    }

    /// The same, with options of `onecopy run`; the outputs of the command.
    fn run(
        &self,
        what: &str,
        (ranks, nodes): (usize, usize),
        options: &[&str],
        more: &[(&str, &str)],
    ) -> (bool, String, String) {
        let program = std::env::current_exe().expect("this program");
        let program = program.to_str().expect("a path of text");
        let (ranks, nodes) = (ranks.to_string(), nodes.to_string());
        let onecopy = env!("CARGO_BIN_EXE_onecopy");
        let program = [program, "as_a_rank", "--exact", "--nocapture"];
        let begin = ["-n", &ranks, onecopy, "__on-node", &nodes];
        let args = [&["run"], options, &begin, &program].concat();
        let env = [
            (RANK, what),
            ("ONECOPY_NODE_TIMEOUT", "60"),
            ("ONECOPY_LOG", "warn"),
        ];
        let env: Vec<_> = env.into_iter().chain(more.iter().copied()).collect();
        self.command(&args, &env)
    }
}

const XRC: (&str, &str) = ("ONECOPY_VERBS_MODE", "xrc");

/// Talks with all ranks of other nodes until lanes carry what they say, in both directions.
fn until_taken_over(rt: &Runtime) {
    let world = rt.world();
    let (me, size) = (rt.rank(), rt.size());
    let own = rt.node(me).expect("a node");
    for round in 0.. {
        exchange_with_all(rt, 100, round);
        let mut missing = 0u32;
        for peer in (0..size).filter(|&peer| rt.node(peer).expect("a node") != own) {
            let reached = rt.reach(peer).expect("reached").expect("another node");
            missing += u32::from(reached.carrier != LayerId::LANE);
        }
        let mut most = [0];
        world
            .allreduce(&[missing], &mut most, PredefinedOp::Max)
            .expect("the most");
        if most[0] == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a rank of a job does.
#[test]
fn as_a_rank() {
    let Ok(what) = std::env::var(RANK) else {
        return;
    };
    let rt = Runtime::init().expect("join");
    match what.as_str() {
        "all" | "pinned" => all_with_all(&rt, &what),
        "leaving" => leaving(&rt),
        "flood" => {
            until_taken_over(&rt);
            flood(&rt);
        }
        "ahead" => {
            until_taken_over(&rt);
            send_before_leaving(&rt, 500);
        }
        "asleep" => sleep_until_woken(&rt),
        "one port" => by_ports(&rt, 1),
        "two ports" => by_ports(&rt, 2),
        "killed" => killed(&rt),
        _ => panic!("{what}"),
    }
    rt.finalize().expect("finalize");
}

/// Exchanges long messages by so many ports.
fn by_ports(rt: &Runtime, ports: usize) {
    until_taken_over(rt);
    let own = rt.node(rt.rank()).expect("a node");
    let far = |peer: &usize| rt.node(*peer).expect("a node") != own;
    let far: Vec<usize> = (0..rt.size()).filter(far).collect();
    let ports_to = |peer: usize| rt.rails(peer).expect("the ports").len();
    // Connections beside the first one are made while that carries messages.
    for round in 0.. {
        exchange_with_all(rt, 300_000, round);
        let missing = far.iter().any(|&peer| ports_to(peer) < ports);
        let mut most = [0];
        rt.world()
            .allreduce(&[u32::from(missing)], &mut most, PredefinedOp::Max)
            .expect("the most");
        if most[0] == 0 {
            break;
        }
    }
    (0..6).for_each(|round| exchange_with_all(rt, 1 << 20, round));
    for &peer in &far {
        assert_eq!(ports_to(peer), ports, "to {peer}");
    }
    let counters = rt.counters();
    assert!(counters.lane_reads > 0);
    assert_eq!((counters.lane_demotions, counters.lane_rails_lost), (0, 0));
}

/// The last rank is killed while all others wait for it. They hear of it, and talk on by their lanes, which lead to its
/// node, too.
fn killed(rt: &Runtime) {
    let (me, world) = (rt.rank(), rt.world());
    let last = rt.size() - 1;
    until_taken_over(rt);
    let mut got = [0u8; 100];
    if me == last {
        for peer in 0..last {
            world.recv(&mut got[..1], peer, 5).expect("a word");
        }
        kill(Pid::this(), Signal::SIGKILL).expect("the end");
        unreachable!("killed");
    }
    world.send(&[1u8], last, 5).expect("a word");
    let error = world.recv(&mut got, last, 6).expect_err("it is dead");
    let named = matches!(error, Error::PeerDied { rank, .. } if rank == last);
    assert!(named, "{error}");
    let others: Vec<usize> = (0..last).collect();
    let own = rt.node(me).expect("a node");
    let mut by_lane = false;
    for round in 0.. {
        talk_among(rt, &others, round);
        let far = others
            .iter()
            .filter(|&&peer| rt.node(peer).expect("a node") != own);
        let carriers = far.map(|&peer| rt.reach(peer).expect("reached"));
        by_lane |= carriers
            .flatten()
            .all(|reached| reached.carrier == LayerId::LANE);
        if round > 50 && agree(rt, &others, by_lane) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    say(&format!("talks on: {me}"));
}

/// Each of these ranks exchanges a message with each other one.
fn talk_among(rt: &Runtime, ranks: &[usize], round: usize) {
    let (me, world) = (rt.rank(), rt.world());
    for &peer in ranks.iter().filter(|&&peer| peer != me) {
        let len = [9, 9000, 200_000][round % 3];
        let (out, mut got) = (pattern(len, me + round), vec![0; len]);
        world
            .sendrecv(&out, peer, 8, &mut got, peer, 8)
            .expect("exchange");
        assert!(got == pattern(len, peer + round), "from {peer}");
    }
}

/// Whether something holds for all of these ranks.
fn agree(rt: &Runtime, ranks: &[usize], holds: bool) -> bool {
    let (me, world) = (rt.rank(), rt.world());
    let mut all = holds;
    for &peer in ranks.iter().filter(|&&peer| peer != me) {
        let mut other = [0u8];
        world
            .sendrecv(&[u8::from(holds)], peer, 9, &mut other, peer, 9)
            .expect("a word");
        all &= other[0] == 1;
    }
    all
}

fn all_with_all(rt: &Runtime, what: &str) {
    until_taken_over(rt);
    let pinned = rt.counters().lane_pinned;
    for round in 0..12 {
        exchange_with_all(rt, [0, 8, 900, 9000, 70_000, 1 << 20][round % 6], round);
    }
    let counters = rt.counters();
    assert_eq!(counters.lane_demotions, 0);
    assert!(counters.verbs_bytes > 2 << 20 && counters.lane_reads > 0);
    if what == "pinned" && rt.rank() == 0 {
        say(&format!("pinned {pinned} {}", counters.lane_pinned));
    }
}

/// The ranks of the first node leave one after the other. Those that are left talk on with those of the second node.
///
/// All ranks of the second node talk with the last one of the first node before they talk with others. So that one
/// makes their targets. It leaves first; the lowest one is the node's host, and leaves when all others have.
fn leaving(rt: &Runtime) {
    let half = rt.size() / 2;
    talk(rt, half - 1);
    until_taken_over(rt);
    for last in (0..half).rev() {
        if (last + 1..half).contains(&rt.rank()) {
            return;
        }
        // The rank that leaves may be gone meanwhile, or wait in its end until all have left.
        for round in 0..200 {
            if round % 50 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            (0..=last).for_each(|left| talk(rt, left));
        }
        let demotions = rt.counters().lane_demotions;
        assert_eq!(demotions, 0, "those beyond {last} have left");
    }
}

/// Each rank of the second node exchanges a message with that rank of the first one.
fn talk(rt: &Runtime, with: usize) {
    let (me, size, world) = (rt.rank(), rt.size(), rt.world());
    let peers = match me {
        _ if me == with => size / 2..size,
        _ if me >= size / 2 => with..with + 1,
        _ => 0..0,
    };
    let (out, mut got) = (pattern(9000, me), vec![0; 9000]);
    for peer in peers {
        world
            .sendrecv(&out, peer, 8, &mut got, peer, 8)
            .expect("exchange");
        assert!(got == pattern(9000, peer), "from {peer}");
    }
}

#[test]
fn a_job_goes_by_one_connection_to_each_node() {
    let Some(bed) = Bed::new() else { return };
    let counts = bed.job("all", 6, 2, &[XRC]);
    // Each rank has one, and so many targets are on its node.
    assert_eq!((counts.most_initiators, counts.most_targets), (6, 6));
    assert_eq!(counts.most_connections, 0);
    assert!(
        counts.xrc_sends > 500 && counts.xrc_reads > 100,
        "{counts:?}"
    );
    // Of three ranks there, two hold the target that the third has made.
    assert_eq!(counts.opened_targets, 6 * 2);
}

#[test]
fn a_job_of_three_nodes_has_two_connections_a_rank() {
    let Some(bed) = Bed::new() else { return };
    let counts = bed.job("all", 6, 3, &[XRC]);
    assert_eq!((counts.most_initiators, counts.most_targets), (12, 12));
    assert_eq!(counts.opened_targets, 12);
}

#[test]
fn who_leaves_takes_no_connection_of_the_others_along() {
    let Some(bed) = Bed::new() else { return };
    bed.job("leaving", 6, 2, &[XRC]);
}

/// Where a node has two ports, connections to each peer go by both, and extended connections by one.
#[test]
fn extended_connections_go_by_one_of_two_ports() {
    let Some(bed) = Bed::new() else { return };
    let two = ("MODEL_VERBS_DEVICES", "2");
    let counts = bed.job("one port", 4, 2, &[XRC, two]);
    assert_eq!((counts.most_initiators, counts.most_targets), (4, 4));
    assert_eq!(counts.most_connections, 0);
    let Some(bed) = Bed::new() else { return };
    let connections = ("ONECOPY_VERBS_MODE", "rc");
    let counts = bed.job("two ports", 4, 2, &[connections, two]);
    assert_eq!(counts.most_initiators, 0);
    // Each of four ranks has two peers on the other node.
    assert_eq!(counts.most_connections, 4 * 2 * 2);
}

/// A process that ends without a word: its peers hear of it, whatever it has made of their connections.
#[test]
fn a_rank_that_is_killed_takes_no_connection_of_the_others_along() {
    let Some(bed) = Bed::new() else { return };
    let (ok, out, err) = bed.run("killed", (4, 2), &["--keep-going"], &[XRC]);
    assert!(!ok, "one was killed: {out}{err}");
    for rank in 0..3 {
        assert!(err.contains(&format!("talks on: {rank}")), "{out}{err}");
    }
    let counts = bed.world.counts();
    assert_eq!(counts.most_connections, 0);
}

#[test]
fn floods_sleepers_and_ranks_that_leave_at_once() {
    let Some(bed) = Bed::new() else { return };
    let little = [
        XRC,
        ("ONECOPY_VERBS_SLOT", "1K"),
        ("ONECOPY_VERBS_RECEIVES", "8"),
        ("ONECOPY_VERBS_RECEIVES_MAX", "16"),
        ("ONECOPY_VERBS_WINDOW", "4"),
    ];
    bed.job("flood", 2, 2, &[XRC, between_nodes::FLOOD_CREDIT]);
    bed.job("ahead", 2, 2, &[XRC, ("ONECOPY_EAGER_CREDIT", "16M")]);
    bed.job("ahead", 2, 2, &little);
    let waits = [
        XRC,
        ("ONECOPY_WAIT_SPIN", "0"),
        ("ONECOPY_WAIT_YIELD", "0"),
        ("ONECOPY_LIVENESS_PERIOD", "40"),
    ];
    bed.job("asleep", 3, 3, &waits);
}

/// What `onecopy memory` says of queue pairs is what a job takes. By the same figures the mode is chosen where
/// connections to each peer would take more.
#[test]
fn the_formula_is_what_a_run_takes() {
    let Some(bed) = Bed::new() else { return };
    let ranks = 6;
    let args = ["memory", "-n", "6", "--nodes", "2", "--json"];
    let (ok, out, err) = bed.command(&args, &[]);
    assert!(ok, "{err}");
    let listing: Value = serde_json::from_str(&out).expect("JSON");
    let between = &listing["between_nodes"];
    assert_eq!(between["chosen"], "rc", "there is memory for it");
    let wires = between["wires"].as_array().expect("a list");
    let of = |name: &str| wires.iter().find(|wire| wire["name"] == name).expect(name);
    let number = |value: &Value| value.as_u64().expect("a number");
    let (rc, xrc) = (of("rc"), of("xrc"));
    // So much that one fits, and the other one does not.
    let need = |wire: &Value| number(&wire["private"][0]) + number(&wire["kernel"]);
    assert!(need(xrc) < need(rc));
    let budget = (need(rc) - 1).to_string();
    let little = ("ONECOPY_VERBS_MEMORY", budget.as_str());
    let (_, out, _) = bed.command(&args, &[little]);
    let listing: Value = serde_json::from_str(&out).expect("JSON");
    let between = &listing["between_nodes"];
    assert_eq!(between["chosen"], "xrc", "{between}");
    let reasons = between["reasons"].to_string();
    assert!(reasons.contains("not Connections: "), "{reasons}");
    let counts = bed.job("pinned", ranks, 2, &[little]);
    let pairs = counts.most_initiators + counts.most_targets;
    assert_eq!(pairs, ranks as u64 * number(&xrc["connections"]));
    assert_eq!(
        counts.most_connections, 0,
        "all by the mode that was chosen"
    );
    // Of a device without them it is datagrams.
    let plain = ("MODEL_VERBS_XRC", "0");
    let (_, out, _) = bed.command(&args, &[little, plain]);
    let listing: Value = serde_json::from_str(&out).expect("JSON");
    let between = &listing["between_nodes"];
    assert_eq!(between["chosen"], "ud", "{between}");
    assert!(between["reasons"].to_string().contains("XRC"), "{between}");
}

#[test]
fn what_is_registered_is_what_the_formula_says() {
    let Some(bed) = Bed::new() else { return };
    let (_, out, _) = bed.command(&["memory", "-n", "4", "--nodes", "2", "--json"], &[]);
    let listing: Value = serde_json::from_str(&out).expect("JSON");
    let wires = listing["between_nodes"]["wires"]
        .as_array()
        .expect("a list");
    let xrc = wires
        .iter()
        .find(|wire| wire["name"] == "xrc")
        .expect("xrc");
    let number = |value: &Value| value.as_u64().expect("a number");
    let [least, most] = [0, 1].map(|index| number(&xrc["private"][index]));
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path of text");
    let onecopy = env!("CARGO_BIN_EXE_onecopy");
    let args = [
        "run",
        "-n",
        "4",
        onecopy,
        "__on-node",
        "2",
        program,
        "as_a_rank",
        "--exact",
        "--nocapture",
    ];
    let (ok, out, err) = bed.command(&args, &[(RANK, "pinned"), XRC]);
    assert!(ok, "{out}{err}");
    let line = err.lines().find_map(|line| line.split_once("pinned "));
    let (_, figures) = line.expect("the figures of rank 0");
    let mut figures = figures
        .split(' ')
        .map(|word| word.parse::<u64>().expect("a number"));
    assert_eq!(figures.next(), Some(least), "before it reads");
    let later = figures.next().expect("a figure");
    assert!(
        least < later && later <= most,
        "{least} < {later} <= {most}"
    );
}

#[test]
fn the_benchmark_goes_by_them() {
    let Some(bed) = Bed::new() else { return };
    let args = [
        "bench",
        "net",
        "pingpong",
        "--mode",
        "xrc",
        "--sizes",
        "8,1M",
        "--batches",
        "2",
        "--batch",
        "1",
    ];
    let (ok, out, err) = bed.command(&args, &[]);
    assert!(ok, "{out}{err}");
    assert!(out.contains("pingpong") && out.contains("1M"), "{out}");
    let counts = bed.world.counts();
    // The bare loop beside it goes by a connection.
    assert_eq!((counts.most_initiators, counts.most_connections), (2, 2));
    assert!(counts.xrc_sends > 10 && counts.xrc_reads > 2, "{counts:?}");
}

/// The sides of a program of perftest end with the rank that has started them. What started the ranks is stopped, so
/// nobody else ends them.
#[test]
fn what_the_benchmark_compares_with_ends_with_its_rank() {
    let Some(bed) = Bed::new() else { return };
    let folder = bed.folder.path();
    let (bin, told) = (folder.join("bin"), folder.join("told"));
    std::fs::create_dir(&bin).expect("a folder");
    let program = bin.join("ib_send_lat");
    let script = format!(
        "#!/bin/sh\necho $$ $PPID >>{}\nexec sleep 600\n",
        told.display()
    );
    std::fs::write(&program, script).expect("a program");
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("executable");
    let path = std::env::var("PATH").expect("a path");
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command
        .args(["bench", "net", "pingpong", "--mode", "rc", "--sizes", "8"])
        .args(["--batches", "2", "--batch", "1"])
        .envs(bed.world.env())
        .env("MODEL_VERBS_DEVICES", "1")
        .env("ONECOPY_TUNE_FILE", "none")
        .env("PATH", format!("{}:{path}", bin.display()))
        .stdout(Stdio::null());
    // The sides are waited for, and not for the end of all that this starts.
    let running = limit::start_for(&mut command, 2 * limit::limit()).expect("the command");
    let sides = || -> Vec<(i32, i32)> {
        let text = std::fs::read_to_string(&told).unwrap_or_default();
        let numbers = |line: &str| {
            let (own, parent) = line.split_once(' ')?;
            Some((own.parse().ok()?, parent.parse().ok()?))
        };
        text.lines().filter_map(numbers).collect()
    };
    assert!(limit::wait_until(|| sides().len() == 2), "both sides begin");
    let sides = sides();
    let rank = sides[0].1;
    let launcher = stat(rank).expect("the rank").1;
    let signal = |pid: i32, signal| kill(Pid::from_raw(pid), signal).expect("a signal");
    signal(launcher, Signal::SIGSTOP);
    signal(rank, Signal::SIGKILL);
    for (side, _) in sides {
        let has_ended = || stat(side).is_none_or(|(state, _)| state == 'Z');
        assert!(limit::wait_until(has_ended), "{side} has outlived its rank");
    }
    signal(launcher, Signal::SIGCONT);
    drop(running);
}

/// The state of a process, and its parent.
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// A device without them: the mode is refused with the reason, and messages go by sockets.
#[test]
fn a_device_without_them_refuses_the_mode() {
    let Some(bed) = Bed::new() else { return };
    let plain = ("MODEL_VERBS_XRC", "0");
    let reason = "ONECOPY_VERBS_MODE=xrc: x0 has no extended connections (XRC)";
    let (_, out, _) = bed.command(&["info", "--json"], &[plain, XRC]);
    let info: Value = serde_json::from_str(&out).expect("JSON");
    let layers = info["layers"].as_array().expect("a list");
    let verbs = layers.iter().find(|layer| layer["name"] == "verbs");
    let verbs = verbs.expect("the layer");
    assert_eq!(
        (&verbs["state"], &verbs["reason"]),
        (&"unavailable".into(), &reason.into())
    );
    assert!(
        verbs["remedy"].as_str().expect("a remedy").contains("rc"),
        "{verbs}"
    );
    let (_, out, _) = bed.command(&["info", "nodes", "--nodes", "2", "--json"], &[plain, XRC]);
    let nodes: Value = serde_json::from_str(&out).expect("JSON");
    let pair = &nodes["pairs"][0];
    assert_eq!(pair["layer"], "tcp", "{pair}");
    assert!(pair["reason"].to_string().contains(reason), "{pair}");
    let args = ["bench", "net", "pingpong", "--mode", "xrc", "--sizes", "8"];
    let (ok, _, err) = bed.command(&args, &[plain]);
    assert!(!ok && err.contains(reason), "{err}");
    // Where it has them, both say so.
    let (_, out, _) = bed.command(&["info", "--json"], &[XRC]);
    assert!(out.contains("extended connections (XRC)"), "{out}");
    let (_, out, _) = bed.command(&["info", "nodes", "--nodes", "2"], &[XRC]);
    assert!(out.contains("verbs"), "{out}");
    assert_eq!(bed.world.counts().most_connections, 0);
}
