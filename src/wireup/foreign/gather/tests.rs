// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::wireup::{Card, Death, Event, Wireup};
use nix::sys::memfd::{MFdFlags, memfd_create};
use onecopy_obs::NetAddress;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

/// Beyond this something hangs.
const LONG: Duration = Duration::from_secs(120);

/// The table of a job whose ranks are threads.
#[derive(Debug)]
struct Shared {
    values: Mutex<HashMap<String, String>>,
    barrier: Barrier,
    reads: Mutex<usize>,
}

#[derive(Debug)]
struct Seat {
    shared: Arc<Shared>,
    rank: usize,
    size: usize,
}

impl Table for Seat {
    fn launcher(&self) -> &'static str {
        "a test"
    }
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }
    fn longest_value(&self) -> usize {
        255
    }
    fn put(&mut self, _: &'static str, key: &str, value: &str) -> Result<(), WireupError> {
        assert!(value.len() <= 255 && value.bytes().all(|byte| byte.is_ascii_graphic()));
        let mut values = self.shared.values.lock().expect("lock");
        assert_eq!(
            values.insert(key.to_owned(), value.to_owned()),
            None,
            "{key}"
        );
        Ok(())
    }
    fn get(&mut self, _: &'static str, _: usize, key: &str) -> Result<String, WireupError> {
        *self.shared.reads.lock().expect("lock") += 1;
        Ok(self.shared.values.lock().expect("lock")[key].clone())
    }
    fn barrier(&mut self, _: &'static str) -> Result<(), WireupError> {
        self.shared.barrier.wait();
        Ok(())
    }
    fn finalize(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
    fn abort(&mut self, _: i32) -> Result<(), WireupError> {
        Ok(())
    }
}

/// Those of a rank on the node of this name; without one, the knob is unset.
fn knobs(node: &str) -> Knobs {
    Knobs {
        node: (!node.is_empty()).then(|| node.to_owned()),
        join_timeout: LONG,
        // Threads of an oversubscribed machine are silent for long.
        node_timeout: Duration::from_secs(30),
        ..Knobs::default()
    }
}

/// Runs `body` on ranks that are threads, on the nodes of these names.
pub(in crate::wireup) fn job(
    names: &[&str],
    change: impl Fn(usize, &mut Knobs) + Sync,
    body: impl Fn(usize, Result<Foreign, WireupError>) + Sync,
) -> usize {
    let size = names.len();
    let shared = Arc::new(Shared {
        values: Mutex::default(),
        barrier: Barrier::new(size),
        reads: Mutex::default(),
    });
    std::thread::scope(|scope| {
        for (rank, name) in names.iter().enumerate() {
            let shared = Arc::clone(&shared);
            let (change, body) = (&change, &body);
            scope.spawn(move || {
                let mut knobs = knobs(name);
                change(rank, &mut knobs);
                let seat = Seat { shared, rank, size };
                body(rank, by_table(Box::new(seat), &knobs));
            });
        }
    });
    *shared.reads.lock().expect("lock")
}

fn segment() -> OwnedFd {
    memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd")
}

fn join(rank: &mut Foreign) -> Result<Vec<Card>, WireupError> {
    let mut card = Card::of_this_process();
    card.uid = 1000 + u32::try_from(rank.rank()).expect("small");
    rank.join(card, segment().as_fd())
}

/// The next `count` events, in the order of their ranks.
fn events(rank: &mut Foreign, count: usize) -> BTreeSet<String> {
    let start = Instant::now();
    let mut found = BTreeSet::new();
    while found.len() < count {
        match rank.poll().expect("poll") {
            Some(event) => _ = found.insert(format!("{event:?}")),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < LONG, "{found:?} of {count}");
    }
    found
}

/// Events as [`events`] returns them.
fn texts(events: &[Event]) -> BTreeSet<String> {
    events.iter().map(|event| format!("{event:?}")).collect()
}

#[test]
fn ranks_of_two_nodes_are_one_job() {
    let met = Barrier::new(4);
    let reads = job(
        &["a", "b", "a", "b"],
        |_, _| {},
        |rank, met_by| {
            let mut rank_of = met_by.expect("meet");
            assert_eq!((rank_of.rank(), rank_of.size()), (rank, 4));
            let nodes: Vec<u32> = (0..4).map(|rank| rank_of.node(rank)).collect();
            assert_eq!(nodes, [0, 1, 0, 1]);
            let net = rank_of.net().expect("several nodes");
            assert!(net.address.is_loopback(), "all share the network: {net:?}");
            let cards = join(&mut rank_of).expect("join");
            let uids: Vec<u32> = cards.iter().map(|card| card.uid).collect();
            assert_eq!(uids, [1000, 1001, 1002, 1003]);
            let near = rank_of.introduce((rank + 2) % 4).expect("same node");
            assert_eq!(near.pid, Some(std::process::id().cast_signed()));
            let far = rank_of.introduce((rank + 1) % 4).expect_err("another node");
            assert!(far.to_string().contains("is on another node"), "{far}");
            met.wait();
            // All others, on both nodes, hear of the one that leaves first.
            if rank == 3 {
                rank_of.leave().expect("leave");
            } else {
                let left = texts(&[Event::Left { rank: 3 }]);
                assert_eq!(events(&mut rank_of, 1), left);
            }
            met.wait();
            if rank != 3 {
                rank_of.leave().expect("leave");
            }
        },
    );
    // Only rank 0 reads all places.
    assert!(reads < 4 + 4 * 6, "{reads} reads of the table");
}

#[test]
fn a_death_is_heard_of_on_all_nodes() {
    let met = Barrier::new(5);
    job(
        &["a", "a", "b", "b", "c"],
        |_, _| {},
        |rank, met_by| {
            let mut rank_of = met_by.expect("meet");
            join(&mut rank_of).expect("join");
            met.wait();
            if rank == 3 {
                // Without a word.
                return drop(rank_of);
            }
            let death = Death::Unknown;
            let died = texts(&[Event::Died { rank: 3, death }]);
            assert_eq!(events(&mut rank_of, 1), died);
            rank_of.leave().expect("leave");
        },
    );
}

#[test]
fn an_abort_is_heard_of_on_all_nodes() {
    let met = Barrier::new(4);
    job(
        &["a", "b", "b", "c"],
        |_, _| {},
        |rank, met_by| {
            let mut rank_of = met_by.expect("meet");
            join(&mut rank_of).expect("join");
            met.wait();
            if rank == 2 {
                let Inner::Launched(inner) = &rank_of.inner else {
                    panic!("{rank_of:?}")
                };
                inner.emergency().abort(7).expect("abort");
            } else {
                let abort = texts(&[Event::Abort { code: 7 }]);
                assert_eq!(events(&mut rank_of, 1), abort);
            }
            met.wait();
            rank_of.leave().expect("leave");
        },
    );
}

#[test]
fn a_rank_that_never_joins_is_named_on_all_nodes() {
    let met = Barrier::new(4);
    let short = |_: usize, knobs: &mut Knobs| knobs.join_timeout = Duration::from_secs(20);
    job(&["a", "b", "b", "c"], short, |rank, met_by| {
        let mut rank_of = met_by.expect("meet");
        if rank != 2 {
            let error = join(&mut rank_of).expect_err("not all join").to_string();
            assert!(error.contains("did not join within"), "{error}");
            assert!(error.contains(": 2 (still running)"), "{error}");
        }
        met.wait();
    });
    // One that has ended is not waited for.
    job(
        &["a", "b", "b", "c"],
        |_, _| {},
        |rank, met_by| {
            let mut rank_of = met_by.expect("meet");
            if rank == 2 {
                return drop(rank_of);
            }
            let error = join(&mut rank_of).expect_err("not all join").to_string();
            assert!(error.contains("before they joined: 2 ("), "{error}");
        },
    );
}

#[test]
fn a_node_without_such_an_address_fails_all_with_words() {
    let wrong = |rank: usize, knobs: &mut Knobs| {
        knobs.join_timeout = Duration::from_secs(10);
        if rank == 2 {
            knobs.net_address = Some(NetAddress::Interface("none9".to_owned()));
        }
    };
    job(&["a", "b", "c"], wrong, |rank, met_by| {
        let error = met_by.expect_err("no link").to_string();
        assert!(error.contains("ONECOPY_NET_ADDRESS"), "{error}");
        assert_eq!(error.contains("none9"), rank == 2, "{error}");
    });
    let wrong = |rank: usize, knobs: &mut Knobs| {
        knobs.net_address = (rank == 0).then(|| NetAddress::Interface("none9".to_owned()));
    };
    job(&["a", "b"], wrong, |_, met_by| {
        let error = met_by.expect_err("no port").to_string();
        assert!(
            error.contains("none9") && error.contains("several nodes"),
            "{error}"
        );
    });
}

#[test]
fn two_jobs_do_not_meet() {
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                job(
                    &["a", "b", "b"],
                    |_, _| {},
                    |_, met_by| {
                        let mut rank_of = met_by.expect("meet");
                        assert_eq!(join(&mut rank_of).expect("join").len(), 3);
                        rank_of.leave().expect("leave");
                    },
                );
            });
        }
    });
}

#[test]
fn many_nodes_are_one_job() {
    let names: Vec<String> = (0..48).map(|rank| format!("n{}", rank % 16)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    job(
        &names,
        |_, _| {},
        |_, met_by| {
            let mut rank_of = met_by.expect("meet");
            assert_eq!(join(&mut rank_of).expect("join").len(), 48);
            rank_of.leave().expect("leave");
        },
    );
}
