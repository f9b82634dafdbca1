// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages and collectives of jobs that span nodes, started by hydra and by the test itself. Also what a rank is told
//! when a node ends under it.

use std::process::Command;

use nix::sys::signal::Signal;
use onecopy::coll::PredefinedOp;
use onecopy::{Error, Runtime};

use crate::launchers::Launcher;
use crate::meeting::{TRACES, add_rank, finish};
use crate::namespaces::Bed;
use crate::nodes::{Start, TWO, expect_all, expect_success};
use crate::processes::say;

/// What a rank does with messages.
pub(crate) fn as_rank(what: &str, runtime: Runtime) {
    let world = runtime.world();
    let (rank, size) = (runtime.rank(), runtime.size());
    match what {
        "talk" => {
            for len in [0, 1, 48, 1000, 5000, 100_000, 3 << 20] {
                let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
                let fill = |rank: usize| (0..len).map(move |index: usize| (index * 7 + rank) as u8);
                let sent: Vec<u8> = fill(rank).collect();
                let mut got = vec![0; len];
                world
                    .sendrecv(&sent, next, 1, &mut got, before, 1)
                    .expect("sendrecv");
                assert!(got.iter().copied().eq(fill(before)), "{len} bytes");
            }
            let mut sum = [rank as u64];
            world
                .allreduce_in_place(&mut sum, PredefinedOp::Sum)
                .expect("allreduce");
            assert_eq!(sum[0] as usize, size * (size - 1) / 2);
            world.barrier().expect("barrier");
            runtime.finalize().expect("finalize");
            say(&format!("talked: {rank} of {size}"));
        }
        // Each waits for one that ends without a word.
        "wait" => {
            world.barrier().expect("barrier");
            say(&format!("waits: {rank}"));
            let mut never = [0_u8; 1];
            let peer = (rank + size / 2) % size;
            match world.recv(&mut never, peer, 9) {
                Err(Error::PeerDied { rank: who, death }) => {
                    assert_eq!(who, peer);
                    say(&format!("told: {rank}: rank {who} is dead: {death}"));
                }
                other => panic!("{other:?}"),
            }
            drop(runtime);
            say(&format!("over: {rank}"));
        }
        other => panic!("no such body: hosts-{other}"),
    }
}

#[test]
fn ranks_of_several_nodes_talk() {
    let (env, wrapper) = (&[("ONECOPY_NODE_TIMEOUT", "60")][..], &|_: &str| Vec::new());
    for names in [&TWO[..], &["a", "b", "a"], &["a", "b", "c", "c"]] {
        let body = "hosts-talk";
        expect_success(
            Start {
                body,
                names,
                env,
                wrapper,
            }
            .go(),
        );
    }
}

#[test]
fn who_waits_for_a_rank_of_a_dead_node_is_told() {
    let (body, names) = ("hosts-wait", &TWO[..]);
    let (env, wrapper) = (&[("ONECOPY_NODE_TIMEOUT", "60")][..], &|_: &str| Vec::new());
    for (killed, kept) in [([2, 3], [0, 1]), ([0, 1], [2, 3])] {
        let mut ranks = Start {
            body,
            names,
            env,
            wrapper,
        }
        .go();
        expect_all(&ranks, |rank| format!("waits: {rank}"));
        for rank in killed {
            ranks[rank].signal(Signal::SIGKILL);
        }
        for rank in kept {
            ranks[rank].expect(&format!("told: {rank}: rank {} is dead", (rank + 2) % 4));
            ranks[rank].expect(&format!("over: {rank}"));
        }
        let kept = ranks.drain(kept[0]..=kept[1]).collect();
        expect_success(kept);
    }
}

#[test]
fn who_waits_for_a_rank_of_a_silent_node_is_told() {
    let Some(bed) = Bed::new("quiet") else { return };
    let (body, names, env) = ("hosts-wait", &TWO[..], &[("ONECOPY_NODE_TIMEOUT", "2")][..]);
    let wrapper = |name: &str| bed.wrapper(name);
    let mut ranks = Start {
        body,
        names,
        env,
        wrapper: &wrapper,
    }
    .go();
    expect_all(&ranks, |rank| format!("waits: {rank}"));
    bed.cut("b");
    for rank in [2, 3] {
        ranks[rank].signal(Signal::SIGKILL);
    }
    for rank in [0, 1] {
        ranks[rank].expect(&format!("told: {rank}: rank {} is dead", rank + 2));
    }
    expect_success(ranks.drain(..2).collect());
}

/// Ranks by `mpiexec`, two to a node.
fn by_hydra(launcher: Launcher, body: &str) -> Option<Command> {
    let mut command = launcher.command(4)?;
    let text = "ONECOPY_NODE=n$((PMI_RANK / 2)) exec \"$@\"";
    command.args(["sh", "-c", text, "sh"]);
    add_rank(&mut command, body);
    command.env("ONECOPY_NODE_TIMEOUT", "60");
    Some(command)
}

#[test]
fn jobs_of_hydra_span_nodes() {
    for launcher in [Launcher::Mpich, Launcher::Intel] {
        let ran = |body| by_hydra(launcher, body).map(|mut command| finish(&mut command));
        let Some(met) = ran("nodes-meet") else {
            continue;
        };
        assert_eq!(met.code, Some(0), "{launcher:?}: {}", met.text);
        for node in [0, 1] {
            let joined = met.lines_with(&format!("of 4 on node {node} at 127.0.0.1"));
            assert_eq!(joined, 2, "{launcher:?}: {}", met.text);
        }
        let talked = ran("hosts-talk").expect("the same launcher");
        assert_eq!(talked.code, Some(0), "{launcher:?}: {}", talked.text);
        assert_eq!(talked.lines_with("talked: "), 4, "{}", talked.text);
        let aborted = ran("nodes-abort").expect("the same launcher");
        assert_eq!(aborted.code, Some(7), "{launcher:?}: {}", aborted.text);
    }
}

/// Four ranks by `mpiexec` on two hosts.
fn on_hosts(bed: &Bed, body: &str) -> Option<Command> {
    let home = Launcher::Mpich.home()?;
    let (a, b) = (bed.address("a"), bed.address("b"));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &bed.name("a")]);
    command.arg(home.join("bin/mpiexec"));
    command.args(["-launcher", "ssh", "-launcher-exec"]);
    command.arg(bed.remote_shell());
    let hosts = format!("{a},{b}");
    command.args(["-localhost", &a, "-hosts", &hosts, "-n", "4", "-ppn", "2"]);
    // One machine plays both hosts: only the names tell them apart.
    let text = "ONECOPY_NODE=$(ip netns identify $$) exec \"$@\"";
    command.args(["sh", "-c", text, "sh"]);
    add_rank(&mut command, body);
    for name in TRACES {
        command.env_remove(name);
    }
    command.env("ONECOPY_NODE_TIMEOUT", "60");
    Some(command)
}

#[test]
fn hydra_starts_ranks_on_several_hosts() {
    let Some(bed) = Bed::new("hosts") else { return };
    let Some(mut command) = on_hosts(&bed, "nodes-meet") else {
        return;
    };
    let ran = finish(&mut command);
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    for (node, name) in ["a", "b"].into_iter().enumerate() {
        let address = bed.address(name);
        let joined = ran.lines_with(&format!("of 4 on node {node} at {address}"));
        assert_eq!(joined, 2, "{}", ran.text);
    }
    let mut command = on_hosts(&bed, "hosts-talk").expect("the same launcher");
    let ran = finish(&mut command);
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    assert_eq!(ran.lines_with("talked: "), 4, "{}", ran.text);
}
