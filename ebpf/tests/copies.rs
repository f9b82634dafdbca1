// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is observed of known traffic is that traffic, on this kernel.

#![allow(
    clippy::print_stdout,
    reason = "what is skipped is told, and tests talk to what they start"
)]

#[path = "../../tests/harness/limit.rs"]
mod limit;
#[path = "support/roles.rs"]
mod roles;

use std::path::Path;

use onecopy_trace::bpf::{Collector, Options, WithinLimit};
use onecopy_trace::missed::{System, missed};
use onecopy_trace::observed::{Mechanism, Observed, PairCounts, Peer};
use onecopy_trace::proc::Stat;
use onecopy_trace::report;
use roles::{Actor, act, counts, observe};

#[test]
fn acts_if_it_is_told_to() {
    act();
}

fn read_counts(observed: &Observed, caller: &Actor, peer: &Actor) -> PairCounts {
    let peer = Peer::Process(peer.pid);
    counts(observed, caller.pid, peer, Mechanism::CmaRead)
}

#[test]
fn counts_and_bytes_are_those_that_were_made() {
    let Some((mut collector, probes)) = observe(&Options::default()) else {
        return;
    };
    assert!(!probes.is_empty());
    let (mut a, mut b) = (Actor::start(&[]), Actor::start(&[]));
    assert_eq!(
        a.tell(&format!("read {} {} 4096 1000", b.pid, b.memory)),
        "4096000"
    );
    assert_eq!(
        a.tell(&format!("read {} {} 65536 100", b.pid, b.memory)),
        "6553600"
    );
    assert_eq!(
        a.tell(&format!("write {} {} 8192 10", b.pid, b.memory)),
        "81920"
    );
    assert_eq!(b.tell(&format!("read {} {} 1 7", a.pid, a.memory)), "7");
    assert_eq!(
        a.tell(&format!("pieces {} {} 65536 16", b.pid, b.memory)),
        "65536"
    );
    let observed = collector.observe();
    let forth = read_counts(&observed, &a, &b);
    assert_eq!(
        (forth.calls, forth.bytes),
        (1101, 4_096_000 + 6_553_600 + 65536)
    );
    assert_eq!(forth.missing_bytes, 0);
    assert_eq!(forth.vectored, (1, 16));
    assert!(forth.errors.is_empty());
    assert_eq!(forth.latency_ns.total(), 1101);
    assert!(forth.time_ns > 0);
    let sizes: Vec<_> = forth.sizes.bins().collect();
    assert_eq!(sizes, [(4096, 5120, 1000), (65536, 81920, 101)]);
    let write = counts(&observed, a.pid, Peer::Process(b.pid), Mechanism::CmaWrite);
    assert_eq!((write.calls, write.bytes), (10, 81920));
    let back = read_counts(&observed, &b, &a);
    assert_eq!((back.calls, back.bytes), (7, 7));
    for actor in [&a, &b] {
        let task = &observed.tasks[&actor.pid];
        assert!(task.comm.starts_with("copies-"), "{task:?}");
        assert!(!task.ended);
        assert_eq!(task.local_pid, actor.own);
        // The kernel's program and /proc agree.
        let place = format!("/proc/{}", actor.pid);
        let stat = Stat::read(Path::new(&place)).expect("it lives");
        assert_eq!(task.started, stat.start_ticks());
    }
    // Whatever others on the node call meanwhile.
    assert!(observed.overhead.events >= 1118, "{:?}", observed.overhead);
    assert_eq!(observed.overhead.not_counted, 0);
    // What it measured itself is not shown.
    assert!(
        !observed
            .pairs
            .keys()
            .any(|key| key.caller == std::process::id())
    );
}

/// Nobody looks while they live, and nobody can look later.
#[test]
fn a_refusal_has_its_reason_after_both_have_ended() {
    const OTHER: u32 = 65534;
    let Some((mut collector, _)) = observe(&Options::default()) else {
        return;
    };
    let user = OTHER.to_string();
    let b = Actor::start(&[]);
    let mut a = Actor::start(&["setpriv", "--reuid", &user, "--clear-groups"]);
    assert_eq!(
        a.tell(&format!("read {} {} 8192 3", b.pid, b.memory)),
        "EPERM"
    );
    let (caller, peer) = (a.pid, b.pid);
    a.end();
    b.end();
    let observed = collector.observe();
    let own = nix::unistd::getuid().as_raw();
    assert_eq!(observed.tasks[&caller].owner.user, Some(OTHER));
    assert_eq!(observed.tasks[&peer].owner.user, Some(own));
    let namespace = |pid| observed.tasks[pid].owner.namespace;
    assert!(namespace(&caller).is_some());
    assert_eq!(namespace(&caller), namespace(&peer));
    let name = |pid| report::who(&observed, pid);
    let found = missed(&observed, name, System::default());
    let users = format!("different users ({OTHER} and {own})");
    assert!(
        found.iter().any(|missed| missed.why.contains(&users)),
        "{found:?}"
    );
}

#[test]
fn errors_are_told_apart() {
    let Some((mut collector, _)) = observe(&Options::default()) else {
        return;
    };
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    assert_eq!(a.tell(&format!("read {} 4096 100 3", b.pid)), "EFAULT");
    // No thread has an id like this.
    let nobody = 2_147_480_000;
    assert_eq!(a.tell(&format!("read {nobody} 4096 100 2")), "ESRCH");
    // The end of the memory is in the middle: a short copy.
    let end = b.memory + roles::MEMORY - 4096;
    let copied: u64 = a
        .tell(&format!("read {} {end} 1048576 1", b.pid))
        .parse()
        .unwrap_or(0);
    let observed = collector.observe();
    let faulty = read_counts(&observed, &a, &b);
    assert_eq!(faulty.errors.get(&libc::EFAULT), Some(&3));
    assert_eq!(faulty.calls, 4);
    assert_eq!(faulty.bytes, copied);
    let missing = 300 + (1 << 20) - copied;
    assert_eq!(faulty.missing_bytes, missing);
    let none = Peer::Process(nobody);
    let none = counts(&observed, a.pid, none, Mechanism::CmaRead);
    assert_eq!(none.errors.get(&libc::ESRCH), Some(&2));
    assert_eq!((none.calls, none.bytes), (2, 0));
}

#[test]
fn what_is_forbidden_is_an_error_of_the_caller() {
    let Some((mut collector, _)) = observe(&Options::default()) else {
        return;
    };
    let b = Actor::start(&[]);
    let mut a = Actor::start(&[
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ]);
    assert_eq!(
        a.tell(&format!("read {} {} 4096 5", b.pid, b.memory)),
        "EPERM"
    );
    let observed = collector.observe();
    let refused = read_counts(&observed, &a, &b);
    assert_eq!(refused.errors.get(&libc::EPERM), Some(&5));
    assert_eq!((refused.calls, refused.missing_bytes), (5, 5 * 4096));
}

#[test]
fn each_page_that_was_never_touched_is_one_fault() {
    let Some((mut collector, probes)) = observe(&Options::default()) else {
        return;
    };
    let wanted = "page_fault_kernel";
    let refused = |probe: &onecopy_trace::bpf::Probe| {
        probe.name == wanted && probe.state != onecopy_trace::bpf::State::Attached
    };
    if let Some(refused) = probes.iter().find(|probe| refused(probe)) {
        println!("skipped: {refused:?}");
        return;
    }
    let (mut a, mut c, b) = (Actor::start(&[]), Actor::start(&[]), Actor::start(&[]));
    let whole = roles::MEMORY;
    assert_eq!(
        a.tell(&format!("fresh {} {} {whole} 1", b.pid, b.memory)),
        whole.to_string()
    );
    assert_eq!(
        c.tell(&format!("read {} {} {whole} 1", b.pid, b.memory)),
        whole.to_string()
    );
    let observed = collector.observe();
    assert_eq!(read_counts(&observed, &a, &b).faults, 4096);
    assert_eq!(read_counts(&observed, &c, &b).faults, 0);
    let faults = |pid| -> u64 {
        let pairs = observed.pairs.iter();
        pairs
            .filter(|(key, _)| key.caller == pid)
            .map(|(_, counts)| counts.faults)
            .sum()
    };
    assert_eq!(faults(a.pid), 4096);
    assert_eq!(faults(c.pid), 0);
}

#[test]
fn a_thread_id_stands_for_its_process() {
    let Some((mut collector, _)) = observe(&Options::default()) else {
        return;
    };
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    assert_ne!(b.tid, b.own, "its copies are made by a thread");
    assert_eq!(
        a.tell(&format!("read {} {} 4096 3", b.tid, b.memory)),
        "12288"
    );
    let observed = collector.observe();
    assert_eq!(read_counts(&observed, &a, &b).calls, 3);
}

#[test]
fn ids_of_an_inner_namespace_are_translated_while_alive_and_after_the_end() {
    let Some((mut collector, _)) = observe(&Options::default()) else {
        return;
    };
    let before = ["unshare", "-p", "-f"];
    let mut a = Actor::start(&before);
    assert_eq!(a.own, 1);
    // It reads from itself, by an id that is the first process of the node outside.
    assert_eq!(a.tell(&format!("read 1 {} 4096 9", a.memory)), "36864");
    let check = |observed: &Observed, ended: bool| {
        let mut found = observed.pairs.iter().filter(|(key, counts)| {
            let task = &observed.tasks[&key.caller];
            task.local_pid == 1 && task.namespace != 0xefff_fffc && counts.calls == 9
        });
        let (key, counts) = found.next().expect("a pair of the namespace");
        assert_eq!(key.peer, Peer::Process(key.caller), "it is its own peer");
        assert_ne!(key.caller, 1);
        assert_eq!(counts.bytes, 36864);
        let task = &observed.tasks[&key.caller];
        assert!(task.comm.starts_with("copies-"), "{task:?}");
        assert_eq!(task.ended, ended);
    };
    check(&collector.observe(), false);
    a.end();
    check(&collector.observe(), true);
}

#[test]
fn short_lived_processes_keep_their_names() {
    let Some((mut collector, _)) = observe(&Options::default()) else {
        return;
    };
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    assert_eq!(a.tell(&format!("read {} {} 100 2", b.tid, b.memory)), "200");
    let (caller, peer) = (a.pid, b.pid);
    // Both have ended before anybody looked; the peer was given by a thread's id.
    a.end();
    b.end();
    let observed = collector.observe();
    let pair = counts(&observed, caller, Peer::Process(peer), Mechanism::CmaRead);
    assert_eq!(pair.calls, 2);
    for pid in [caller, peer] {
        let task = &observed.tasks[&pid];
        assert!(task.comm.starts_with("copies-"), "{task:?}");
        assert!(task.ended);
    }
}

#[test]
fn processes_are_found_without_figures() {
    let Some((mut collector, _)) = observe(&Options::default()) else {
        return;
    };
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    assert_eq!(a.tell(&format!("read {} {} 100 2", b.tid, b.memory)), "200");
    let found = collector.processes();
    assert!(
        found.contains(&a.pid) && found.contains(&b.pid),
        "{found:?}"
    );
    let again = collector.processes();
    assert!(again.contains(&a.pid), "{again:?}");
    let (caller, peer) = (a.pid, b.pid);
    a.end();
    b.end();
    let ended = collector.processes();
    assert!(!ended.contains(&caller) && !ended.contains(&peer));
}

#[test]
fn waits_for_an_address_space_are_waits_for_its_process() {
    let Some((mut collector, probes)) = observe(&Options::default()) else {
        return;
    };
    let locks = |probe: &&onecopy_trace::bpf::Probe| probe.name.starts_with("contention");
    if let Some(refused) = probes
        .iter()
        .filter(locks)
        .find(|probe| !probe.lost.is_empty())
    {
        println!("skipped: {refused:?}");
        return;
    }
    let (mut a, mut b) = (Actor::start(&[]), Actor::start(&[]));
    let (caller, owner) = (a.pid, b.pid);
    let line = format!("read {} {} 65536 2000", b.pid, b.memory);
    let mut found = None;
    for _ in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| b.tell("churn 0 0 262144 2000"));
            scope.spawn(|| a.tell(&line));
        });
        let waits = collector.observe().waits;
        // Its own, its peer's, and before it began to be this program, that of who started it.
        let known = [caller, owner, std::process::id()];
        for wait in waits.iter().filter(|wait| wait.waiter == caller) {
            assert!(
                wait.owner.is_none_or(|owner| known.contains(&owner)),
                "{wait:?}"
            );
        }
        let is_ours = |wait: &&onecopy_trace::observed::Wait| {
            wait.waiter == caller && wait.owner == Some(owner)
        };
        found = waits.iter().find(is_ours).copied();
        if found.is_some() {
            break;
        }
    }
    let Some(wait) = found else {
        println!("skipped: nobody had to wait for long");
        return;
    };
    assert!(wait.waits > 0, "{wait:?}");
    assert!((1..=wait.total_ns).contains(&wait.longest_ns), "{wait:?}");
    let observed = collector.observe();
    let pair = counts(&observed, caller, Peer::Process(owner), Mechanism::CmaRead);
    assert!(pair.wait_ns >= wait.total_ns, "{pair:?} {wait:?}");
    println!("{wait:?}");
}

#[test]
fn detail_is_given_up_in_order() {
    let options = Options {
        events: true,
        ..Options::default()
    };
    let Some((mut collector, _)) = observe(&options) else {
        return;
    };
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    let order = [
        "events of the timeline",
        "page faults, flushes and waits",
        "latencies",
    ];
    assert_eq!(
        collector.limit(0.0),
        WithinLimit::Yes,
        "the first call only looks"
    );
    let mut work = |collector: &mut Collector| {
        assert_eq!(
            a.tell(&format!("read {} {} 4096 2000", b.pid, b.memory)),
            "8192000"
        );
        collector.limit(0.0)
    };
    for what in order {
        assert_eq!(work(&mut collector), WithinLimit::GaveUp(what));
    }
    assert_eq!(work(&mut collector), WithinLimit::No);
    let observed = collector.observe();
    assert_eq!(observed.overhead.given_up, order);
    let pair = read_counts(&observed, &a, &b);
    assert_eq!(pair.calls, 8000);
    assert_eq!(pair.latency_ns.total(), 6000);
    // Tests beside this one copy, too.
    let events = collector.events().into_iter();
    assert_eq!(events.filter(|event| event.pid == a.pid).count(), 2000);
}

#[test]
fn without_tracefs_the_same_is_counted() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can hide tracefs");
        return;
    }
    let exe = std::env::current_exe().expect("own path");
    let hide = "for at in /sys/kernel/tracing /sys/kernel/debug; do mount -t tmpfs none $at; done; \
        exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", hide]).arg(exe);
    command.args(["--exact", "counts_and_bytes_are_those_that_were_made"]);
    command.args(["errors_are_told_apart", "--nocapture"]);
    let output = limit::output(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("2 passed"), "{text}");
}
