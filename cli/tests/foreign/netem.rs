// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks on two nodes that a bad network joins, in a bed of two network namespaces. Each rank has several lanes, by one
//! device or by two, and checks all that comes.

use std::process::Command;
use std::time::Instant;

use onecopy::Runtime;
use onecopy::coll::PredefinedOp;

use crate::between_nodes::exchange_with_all;
use crate::nodes::{Start, TWO, expect_success};
use crate::processes::{limit, say};

/// A network.
#[derive(Clone, Copy, Debug)]
struct Network {
    /// What it does to packets of both sides, in netem's words.
    words: &'static str,
    /// Whether devices read in it.
    ///
    /// The software device may tell of a read that it has succeeded, with wrong bytes. That happens where a request and
    /// an answer of one pair are lost or overtaken at a time, and ends the pair. No lane can know; so nothing is read
    /// where that is likely.
    has_reads: bool,
}

const NETWORKS: [Network; 5] = [
    Network {
        words: "loss 2%",
        has_reads: true,
    },
    Network {
        words: "loss 10%",
        has_reads: false,
    },
    Network {
        words: "delay 2ms reorder 25%",
        has_reads: false,
    },
    Network {
        words: "duplicate 10%",
        has_reads: true,
    },
    Network {
        words: "corrupt 2%",
        has_reads: true,
    },
];

/// Lanes that a bad network carries.
#[derive(Clone, Copy, Debug)]
struct Lanes {
    mode: &'static str,
    /// Devices of each rank.
    devices: usize,
}

/// Lengths of messages: one packet of a lane, several, and such as a device reads.
const LENGTHS: [usize; 7] = [0, 1, 200, 5000, 40_000, 200_000, 600_000];

/// Numbers of a reduction between the nodes.
const NUMBERS: usize = 5000;

/// A sum over vectors that crosses between the nodes.
fn reduce(runtime: &Runtime, round: usize) {
    let (me, size) = (runtime.rank(), runtime.size());
    let mut sum: Vec<u64> = (0..NUMBERS)
        .map(|at| ((at + round) * (me + 1)) as u64)
        .collect();
    runtime
        .world()
        .allreduce_in_place(&mut sum, PredefinedOp::Sum)
        .expect("allreduce");
    let wanted = |at: usize| ((at + round) * size * (size + 1) / 2) as u64;
    assert!(sum.iter().enumerate().all(|(at, &sum)| sum == wanted(at)));
}

/// Whether this holds on all ranks.
fn on_all(runtime: &Runtime, holds: bool) -> bool {
    let mut least = [u64::from(holds)];
    runtime
        .world()
        .allreduce_in_place(&mut least, PredefinedOp::Min)
        .expect("allreduce");
    least[0] == 1
}

/// Ranks of one node lie side by side.
fn peers(runtime: &Runtime) -> impl Iterator<Item = usize> {
    let (half, me) = (runtime.size() / 2, runtime.rank());
    (0..runtime.size()).filter(move |&peer| (peer < half) != (me < half))
}

/// Talks with all until every pair of ranks on two nodes has a lane, by so many devices; then sends all kinds.
pub(crate) fn as_rank(rails: usize, runtime: Runtime) {
    let mut round = 0;
    let has_lanes = || {
        let rails_of = |peer| runtime.rails(peer).expect("a rank").len();
        let lanes = peers(&runtime).all(|peer| rails_of(peer) == rails);
        lanes && (rails == 1 || runtime.counters().lane_striped > 0)
    };
    while !on_all(&runtime, has_lanes()) {
        exchange_with_all(&runtime, 1 << 20, round);
        round += 1;
    }
    let before = runtime.counters();
    for round in 0..4 {
        for len in LENGTHS {
            exchange_with_all(&runtime, len, round);
        }
        reduce(&runtime, round);
    }
    let after = runtime.counters();
    let by_lanes = after.verbs_bytes - before.verbs_bytes;
    say(&format!(
        "rank {} after {round} rounds: {by_lanes} bytes by lanes, {} by TCP; {} reads, {} bytes striped, {} rails lost, {} demotions, {} resends",
        runtime.rank(),
        after.tcp_bytes - before.tcp_bytes,
        after.lane_reads - before.lane_reads,
        after.lane_striped - before.lane_striped,
        after.lane_rails_lost,
        after.lane_demotions,
        after.lane_resends,
    ));
    let sent: usize = 4 * LENGTHS.iter().sum::<usize>() * peers(&runtime).count();
    // A lane that is given up for a while leaves a part of them to the wire.
    let least = if after.lane_demotions == 0 { sent } else { 1 };
    assert!(by_lanes >= least as u64, "{by_lanes} bytes by lanes");
    runtime.finalize().expect("finalize");
    say("all is right");
}

/// What the network did to packets, on both links and in both directions.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    packets: u64,
    lost: u64,
}

/// A network that does this to packets. It is good again when this is dropped.
struct Bad(&'static str);

impl Bad {
    fn new(network: &'static str) -> Self {
        for (side, interface) in interfaces() {
            // A queue that is full would lose packets, too.
            let line = format!("qdisc add dev {interface} root netem limit 20000 {network}");
            tc(side, &line);
        }
        Self(network)
    }

    fn passed(&self) -> Passed {
        let mut passed = Passed::default();
        for (side, interface) in interfaces() {
            let text = tc(side, &format!("-s qdisc show dev {interface}"));
            assert!(text.contains(self.0), "{}: {text}", self.0);
            passed.packets += number_before(&text, " pkt ");
            passed.lost += number_before(&text, ", overlimits");
        }
        passed
    }
}

impl Drop for Bad {
    fn drop(&mut self) {
        for (side, interface) in interfaces() {
            tc(side, &format!("qdisc del dev {interface} root"));
        }
    }
}

/// Those that join the two sides of the bed.
fn interfaces() -> impl Iterator<Item = (&'static str, String)> {
    let links = ["v", "w"].into_iter();
    links.flat_map(|link| ["a", "b"].map(|side| (side, format!("{link}{side}"))))
}

/// The number that ends where this mark begins.
fn number_before(text: &str, mark: &str) -> u64 {
    let (before, _) = text.split_once(mark).unwrap_or_else(|| panic!("{text}"));
    let (_, number) = before.rsplit_once(' ').unwrap_or_else(|| panic!("{text}"));
    number.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn tc(side: &str, line: &str) -> String {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{side}"));
    // busybox has a `tc` that knows less.
    command.arg("/payload/bin/tc").args(line.split(' '));
    let output = limit::output(&mut command);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "tc {line}: {text}");
    text
}

/// What starts a rank on a side, with so many of the devices there.
fn on_side(side: &str, rails: usize) -> Vec<String> {
    let devices = [format!("rx{side}"), format!("ry{side}")];
    let devices = format!("ONECOPY_VERBS_DEVICE={}", devices[..rails].join(","));
    let space = format!("--net=/run/netns/{side}");
    ["env", &devices, "nsenter", &space]
        .map(str::to_owned)
        .to_vec()
}

fn over_bad_networks(lanes: Lanes) {
    if std::env::var("BED").as_deref() != Ok("spaces") {
        return say("skipped: `cargo xtask vm verbs --bed spaces` runs this");
    }
    // A second device carries nothing but what it reads.
    let needs_reads = lanes.devices > 1;
    for network in NETWORKS {
        if network.has_reads || !needs_reads {
            over(network, lanes);
        }
    }
}

fn over(network: Network, Lanes { mode, devices }: Lanes) {
    let bad = Bad::new(network.words);
    let started = Instant::now();
    // By itself this device reads nothing.
    let read_min = if network.has_reads { "64K" } else { "auto" };
    let ranks = Start {
        body: &format!("netem-{devices}"),
        names: &TWO,
        // A connection asks for a lost answer six times within its time, so each takes a while. The other times are for
        // a guest that is translated.
        env: &[
            ("ONECOPY_VERBS_MODE", mode),
            ("ONECOPY_VERBS_READ_MIN", read_min),
            ("ONECOPY_VERBS_TIMEOUT", "2"),
            ("ONECOPY_VERBS_UD_TIMEOUT", "20"),
            ("ONECOPY_NODE_TIMEOUT", "60"),
            ("ONECOPY_TCP_TIMEOUT", "150"),
        ],
        wrapper: &|side| on_side(side, devices),
    }
    .go();
    let (mut reads, mut resends) = (0, 0);
    for rank in &ranks {
        rank.expect("all is right");
        let story = rank.story();
        let figures = story.lines().find(|line| line.contains(" resends"));
        let figures = figures.expect("its figures");
        reads += number_before(figures, " reads");
        resends += number_before(figures, " resends");
        say(figures);
    }
    expect_success(ranks);
    let passed = bad.passed();
    let (words, seconds) = (network.words, started.elapsed().as_secs_f64());
    say(&format!(
        "{mode}, {devices} devices, {words}: {passed:?}, {seconds:.1} s"
    ));
    assert!(passed.packets > 1000, "the network carried it");
    assert_eq!(reads > 0, mode == "rc" && network.has_reads);
    if words.starts_with("loss") {
        assert!(passed.lost > 10, "it lost packets");
        assert!(mode != "ud" || resends > 0, "they were sent again");
    }
}

#[test]
fn connections_over_bad_networks() {
    over_bad_networks(Lanes {
        mode: "rc",
        devices: 1,
    });
}

#[test]
fn connections_by_two_devices_over_bad_networks() {
    over_bad_networks(Lanes {
        mode: "rc",
        devices: 2,
    });
}

#[test]
fn datagrams_over_bad_networks() {
    over_bad_networks(Lanes {
        mode: "ud",
        devices: 1,
    });
}
