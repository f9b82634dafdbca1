// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs that span nodes, at the level of the wire-up: who meets whom, who hears of whose end. Nodes are names on this
//! machine, and network namespaces where the test may make them.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onecopy::wireup::{Card, Event, Wireup, WireupError, from_environment};

use crate::ends;
use crate::meeting::possible;
use crate::namespaces::Bed;
use crate::processes::limit::{Limited, limit, start, wait_until};
use crate::processes::say;
use crate::table::Table;

/// What a rank does that knows no more than the wire-up.
pub(crate) fn as_rank(what: &str) {
    let (knobs, ..) = onecopy_obs::Knobs::from_env().expect("knobs");
    let mut job = match from_environment(&knobs) {
        Ok(job) => job,
        Err(error) => {
            say(&format!("init failed: {error}"));
            std::process::exit(3);
        }
    };
    let (rank, size) = (job.rank(), job.size());
    if what == "late" && rank == size - 1 {
        say(&format!("late {rank}"));
        std::thread::sleep(limit());
    }
    let segment = memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd");
    let cards = match job.join(Card::of_this_process(), segment.as_fd()) {
        Ok(cards) => cards,
        Err(error) => {
            say(&format!("join failed: {rank}: {error}"));
            std::process::exit(4);
        }
    };
    assert_eq!(cards.len(), size);
    let node = job.node(rank);
    let address = job.net().map(|net| net.address.to_string());
    let address = address.unwrap_or_else(|| "nowhere".to_owned());
    say(&format!(
        "joined: {rank} of {size} on node {node} at {address}"
    ));
    match what {
        "meet" => {
            for peer in 0..size {
                match job.introduce(peer) {
                    Ok(_) => assert_eq!(job.node(peer), node),
                    Err(WireupError::OtherNode { .. }) => assert_ne!(job.node(peer), node),
                    Err(error) => panic!("{error}"),
                }
            }
            job.leave().expect("leave");
            say(&format!("left: {rank}"));
        }
        "wait" => {
            hear(&mut *job, size - 1);
            job.leave().expect("leave");
            say(&format!("alone: {rank}"));
        }
        "abort" => {
            if rank == size - 1 {
                job.abort(7).expect("abort");
            }
            hear(&mut *job, usize::MAX);
        }
        // The host of a node is the first to leave, its last rank long after.
        "linger" => {
            if rank == size - 1 {
                std::thread::sleep(Duration::from_millis(500));
                say(&format!("leaves: {rank}"));
            } else if rank == 0 {
                hear(&mut *job, size - 1);
            }
            job.leave().expect("leave");
            say(&format!("left: {rank}"));
        }
        "late" => panic!("all have joined"),
        other => panic!("no such body: nodes-{other}"),
    }
}

/// Tells of all events until so many ranks are gone. An abort ends this process.
fn hear(job: &mut dyn Wireup, count: usize) {
    let rank = job.rank();
    let mut gone = 0;
    say(&format!("waits: {rank}"));
    while gone < count {
        match job.poll().expect("poll") {
            Some(Event::Died { rank: who, death }) => {
                gone += 1;
                say(&format!("event: {rank} hears: {who} died: {death}"));
            }
            Some(Event::Left { rank: who }) => {
                gone += 1;
                say(&format!("event: {rank} hears: {who} left"));
            }
            Some(Event::Abort { code }) => {
                say(&format!("event: {rank} hears: abort {code}"));
                std::process::exit(code);
            }
            None => {
                let fd = job.event_fd().expect("a descriptor");
                let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
                // It must wake by itself: this is only what a program does besides.
                poll(&mut fds, PollTimeout::NONE).expect("poll");
            }
        }
    }
}

/// A rank that runs, and what it has printed so far.
pub(crate) struct Rank {
    child: Limited,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Rank {
    pub(crate) fn has_printed(&self, what: &str) -> bool {
        let lines = self.lines.lock().expect("lock");
        lines.iter().any(|line| line.contains(what))
    }

    #[track_caller]
    pub(crate) fn expect(&self, what: &str) {
        assert!(
            wait_until(|| self.has_printed(what)),
            "not printed: {what}: {}",
            self.story()
        );
    }

    pub(crate) fn story(&self) -> String {
        self.lines.lock().expect("lock").join("\n")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).expect("kill");
    }

    /// All that it printed, and how it ended.
    #[cfg(feature = "fault-points")]
    pub(crate) fn story_and_status(mut self) -> (String, ExitStatus) {
        let status = self.child.wait().expect("wait");
        // What it printed last may be read a moment later than its end is known.
        let said_all = || self.has_printed("lost: ") || self.has_printed("left");
        if status.code().is_some() {
            wait_until(said_all);
        }
        (self.story(), status)
    }

    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.wait().expect("wait")
    }
}

/// How a job is started.
pub(crate) struct Start<'a> {
    pub(crate) body: &'a str,
    /// By rank: the name of its node.
    pub(crate) names: &'a [&'a str],
    pub(crate) env: &'a [(&'a str, &'a str)],
    /// By the name of the node: what its ranks are started by.
    pub(crate) wrapper: &'a dyn Fn(&str) -> Vec<String>,
}

impl Start<'_> {
    pub(crate) fn go(&self) -> Vec<Rank> {
        self.go_with(&Table::new(self.names.len()))
    }

    fn go_with(&self, table: &Table) -> Vec<Rank> {
        let ranks = self.names.iter().enumerate();
        ranks
            .map(|(rank, name)| {
                let wrapper = (self.wrapper)(name);
                let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
                let mut command = ends::rank(self.env, &wrapper, self.body);
                command.env("ONECOPY_NODE", name);
                let theirs = table.seat(&mut command, rank);
                let mut child = start(&mut command);
                drop(theirs);
                let lines: Arc<Mutex<Vec<String>>> = Arc::default();
                let (out, kept) = (child.stderr.take().expect("piped"), Arc::clone(&lines));
                std::thread::spawn(move || {
                    for line in BufReader::new(out).lines().map_while(Result::ok) {
                        kept.lock().expect("lock").push(line);
                    }
                });
                Rank { child, lines }
            })
            .collect()
    }
}

/// A job in which a node may be silent for so many seconds.
fn within(seconds: u32, body: &str, names: &[&str]) -> Vec<Rank> {
    let body = &format!("nodes-{body}");
    let seconds = seconds.to_string();
    let (env, wrapper) = (
        &[("ONECOPY_NODE_TIMEOUT", seconds.as_str())][..],
        &|_: &str| Vec::new(),
    );
    Start {
        body,
        names,
        env,
        wrapper,
    }
    .go()
}

/// A job in which a node that is slow is not taken for dead: this machine has other work.
fn patient(body: &str, names: &[&str]) -> Vec<Rank> {
    within(60, body, names)
}

#[track_caller]
pub(crate) fn expect_all(ranks: &[Rank], what: impl Fn(usize) -> String) {
    for (number, rank) in ranks.iter().enumerate() {
        rank.expect(&what(number));
    }
}

#[track_caller]
pub(crate) fn expect_success(ranks: Vec<Rank>) {
    for rank in ranks {
        let story = Arc::clone(&rank.lines);
        let status = rank.end();
        assert!(
            status.success(),
            "{status}: {:?}",
            story.lock().expect("lock")
        );
    }
}

pub(crate) const TWO: [&str; 4] = ["a", "a", "b", "b"];

#[test]
fn ranks_of_several_nodes_meet_and_leave() {
    for names in [
        &TWO[..],
        &["a", "b", "a", "b"],
        &["a", "b", "c", "c", "b"],
        &["a", "b"],
    ] {
        let ranks = patient("meet", names);
        let size = names.len();
        for (number, rank) in ranks.iter().enumerate() {
            let node = names[number].as_bytes()[0] - b'a';
            rank.expect(&format!(
                "joined: {number} of {size} on node {node} at 127.0.0.1"
            ));
        }
        expect_success(ranks);
    }
}

#[test]
fn a_node_may_be_in_namespaces_of_its_own() {
    let apart = ["unshare", "--uts", "--pid", "--fork", "--mount-proc"];
    if !possible(&apart) {
        return;
    }
    let wrapper = |name: &str| match name {
        "b" => apart.map(str::to_owned).to_vec(),
        _ => Vec::new(),
    };
    let (body, names, env) = (
        "nodes-meet",
        &TWO[..],
        &[("ONECOPY_NODE_TIMEOUT", "60")][..],
    );
    expect_success(
        Start {
            body,
            names,
            env,
            wrapper: &wrapper,
        }
        .go(),
    );
}

#[test]
fn two_jobs_at_once_keep_apart() {
    let jobs = [patient("meet", &TWO), patient("meet", &TWO)];
    jobs.into_iter().for_each(expect_success);
}

#[test]
fn the_host_of_a_node_stays_until_its_ranks_have_left() {
    let ranks = patient("linger", &TWO);
    // Rank 2 leaves first, and forwards the events of rank 3 all the same.
    ranks[0].expect("0 hears: 2 left");
    ranks[0].expect("0 hears: 3 left");
    assert!(!ranks[0].has_printed("died"), "{}", ranks[0].story());
    expect_success(ranks);
}

#[test]
fn a_rank_that_is_killed_is_heard_of_on_all_nodes() {
    let mut ranks = patient("wait", &["a", "a", "b", "b", "c"]);
    expect_all(&ranks, |rank| format!("waits: {rank}"));
    ranks[3].signal(Signal::SIGKILL);
    for rank in [0, 1, 2, 4] {
        ranks[rank].expect(&format!("{rank} hears: 3 died: ended or closed"));
    }
    // Then another one, which is alone on its node and so its host.
    ranks[4].signal(Signal::SIGKILL);
    for rank in [0, 1, 2] {
        ranks[rank].expect(&format!("{rank} hears: 4 died: its node does not answer"));
    }
    for rank in ranks.drain(..) {
        rank.signal(Signal::SIGKILL);
    }
}

#[test]
fn the_end_of_a_host_is_the_end_of_its_node_for_others() {
    let ranks = patient("wait", &TWO);
    expect_all(&ranks, |rank| format!("waits: {rank}"));
    ranks[2].signal(Signal::SIGKILL);
    for rank in [0, 1] {
        for lost in [2, 3] {
            ranks[rank].expect(&format!(
                "{rank} hears: {lost} died: its node does not answer"
            ));
        }
    }
    ranks[3].expect("3 hears: 2 died: ended or closed");
    for lost in [0, 1] {
        ranks[3].expect(&format!(
            "3 hears: {lost} died: nothing is known of its node"
        ));
    }
    // Nobody is left for it.
    ranks[3].expect("alone: 3");
    ranks[0].signal(Signal::SIGKILL);
    ranks[1].expect("alone: 1");
}

#[test]
fn a_node_whose_ranks_are_all_killed_is_lost_at_once() {
    for (killed, kept) in [([2, 3], [0, 1]), ([0, 1], [2, 3])] {
        let ranks = patient("wait", &TWO);
        expect_all(&ranks, |rank| format!("waits: {rank}"));
        for rank in killed {
            ranks[rank].signal(Signal::SIGKILL);
        }
        // Which of the two went first decides how the second is named.
        for rank in kept {
            for lost in killed {
                ranks[rank].expect(&format!("{rank} hears: {lost} died: "));
            }
        }
        ranks[kept[0]].signal(Signal::SIGKILL);
        ranks[kept[1]].expect(&format!("alone: {}", kept[1]));
    }
}

#[test]
fn with_the_node_of_rank_0_go_the_events_of_the_others() {
    let ranks = patient("wait", &["a", "b", "c"]);
    expect_all(&ranks, |rank| format!("waits: {rank}"));
    ranks[0].signal(Signal::SIGKILL);
    for (rank, other) in [(1, 2), (2, 1)] {
        ranks[rank].expect(&format!("{rank} hears: 0 died: its node does not answer"));
        ranks[rank].expect(&format!(
            "{rank} hears: {other} died: nothing is known of its node"
        ));
        ranks[rank].expect(&format!("alone: {rank}"));
    }
}

#[test]
fn a_host_that_is_stopped_is_dead_after_the_time_of_the_knob() {
    // Longer than this machine, which has other work, keeps a thread waiting.
    let ranks = within(3, "wait", &TWO);
    expect_all(&ranks, |rank| format!("waits: {rank}"));
    ranks[2].signal(Signal::SIGSTOP);
    for rank in [0, 1] {
        for lost in [2, 3] {
            ranks[rank].expect(&format!(
                "{rank} hears: {lost} died: its node does not answer"
            ));
        }
    }
    // When it goes on it learns that the others went on without it.
    ranks[2].signal(Signal::SIGCONT);
    for rank in [2, 3] {
        for lost in [0, 1] {
            ranks[rank].expect(&format!(
                "{rank} hears: {lost} died: its node does not answer"
            ));
        }
    }
    ranks[0].signal(Signal::SIGKILL);
    ranks[1].expect("alone: 1");
}

#[test]
fn an_abort_ends_ranks_on_all_nodes() {
    for rank in patient("abort", &["a", "a", "b", "b", "c"]) {
        let story = Arc::clone(&rank.lines);
        let status = rank.end();
        assert_eq!(status.code(), Some(7), "{:?}", story.lock().expect("lock"));
    }
}

#[test]
fn a_rank_that_does_not_join_is_named_on_all_nodes() {
    let (names, wrapper) = (&TWO[..], &|_: &str| Vec::new());
    let env = &[
        ("ONECOPY_JOIN_TIMEOUT", "40"),
        ("ONECOPY_NODE_TIMEOUT", "60"),
    ];
    let mut ranks = Start {
        body: "nodes-late",
        names,
        env,
        wrapper,
    }
    .go();
    let late = ranks.pop().expect("rank 3");
    for (number, rank) in ranks.iter().enumerate() {
        rank.expect(&format!(
            "join failed: {number}: join: ranks that did not join within"
        ));
        rank.expect(": 3 (still running)");
    }
    late.signal(Signal::SIGKILL);
    for rank in ranks {
        assert_eq!(rank.end().code(), Some(4));
    }
}

#[test]
fn what_comes_to_the_port_uninvited_is_nobody() {
    // While rank 2's node does not come, rank 0 listens.
    let table = Table::new(3);
    let (names, env) = (&["a", "b", "c"][..], &[("ONECOPY_NODE_TIMEOUT", "60")][..]);
    let slow = |name: &str| match name {
        "c" => ["sh", "-c", "sleep 2; exec \"$@\"", "sh"]
            .map(str::to_owned)
            .to_vec(),
        _ => Vec::new(),
    };
    let ranks = Start {
        body: "nodes-meet",
        names,
        env,
        wrapper: &slow,
    }
    .go_with(&table);
    // All places are read before there is a port, so strangers race with the links; both orders are right.
    let mut strangers = Vec::new();
    assert!(wait_until(
        || table.value("onecopy-job-0").is_some() || ranks[0].has_printed("joined")
    ));
    if let Some(place) = port_of(&table) {
        for noise in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 300], b""] {
            if let Ok(mut stream) = std::net::TcpStream::connect(place) {
                // It may be closed by now.
                let _ = std::io::Write::write_all(&mut stream, noise);
                strangers.push(stream);
            }
        }
    }
    expect_success(ranks);
}

/// Where rank 0 listens, by the digest that it left.
fn port_of(table: &Table) -> Option<std::net::SocketAddr> {
    let pieces = (0..).map_while(|number| table.value(&format!("onecopy-job-{number}")));
    let word: String = pieces.map(|piece| piece[1..].to_owned()).collect();
    word.rsplit('|').next()?.split(',').next()?.parse().ok()
}

#[test]
fn nodes_of_other_networks_meet_where_they_have_one_in_common() {
    let Some(bed) = Bed::new("meet") else { return };
    let (body, names) = ("nodes-meet", &TWO[..]);
    let wrapper = |name: &str| bed.wrapper(name);
    for address in ["auto", "veth0", bed.subnet()] {
        let env = &[
            ("ONECOPY_NODE_TIMEOUT", "60"),
            ("ONECOPY_NET_ADDRESS", address),
        ][..];
        let ranks = Start {
            body,
            names,
            env,
            wrapper: &wrapper,
        }
        .go();
        for (number, rank) in ranks.iter().enumerate() {
            let address = bed.address(names[number]);
            rank.expect(&format!("on node {} at {address}", number / 2));
        }
        expect_success(ranks);
    }
    let env = &[
        ("ONECOPY_JOIN_TIMEOUT", "20"),
        ("ONECOPY_NET_ADDRESS", "lo"),
    ][..];
    for rank in (Start {
        body,
        names,
        env,
        wrapper: &wrapper,
    })
    .go()
    {
        rank.expect("init failed: ");
        rank.expect("ONECOPY_NET_ADDRESS");
        assert_eq!(rank.end().code(), Some(3));
    }
}

#[test]
fn a_node_that_falls_silent_is_dead() {
    for (lost_node, lost, kept) in [("b", [2, 3], [0, 1]), ("a", [0, 1], [2, 3])] {
        let Some(bed) = Bed::new(&format!("silent{lost_node}")) else {
            return;
        };
        let (body, names) = ("nodes-wait", &TWO[..]);
        let env = &[("ONECOPY_NODE_TIMEOUT", "2")][..];
        let wrapper = |name: &str| bed.wrapper(name);
        let ranks = Start {
            body,
            names,
            env,
            wrapper: &wrapper,
        }
        .go();
        expect_all(&ranks, |rank| format!("waits: {rank}"));
        // The kernel of a dead machine says nothing: what it would say for the killed does not get out.
        bed.cut(lost_node);
        for rank in lost {
            ranks[rank].signal(Signal::SIGKILL);
        }
        for rank in kept {
            for gone in lost {
                ranks[rank].expect(&format!(
                    "{rank} hears: {gone} died: its node does not answer"
                ));
            }
        }
        ranks[kept[0]].signal(Signal::SIGKILL);
        ranks[kept[1]].expect(&format!("alone: {}", kept[1]));
    }
}
