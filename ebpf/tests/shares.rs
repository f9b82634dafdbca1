// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one user fills a table with takes no place from others. A test program of its own: tables are small here, and
//! whatever else copies on this machine takes room.

#![allow(
    clippy::print_stdout,
    reason = "what is skipped is told, and tests talk to what they start"
)]

#[path = "../../tests/harness/limit.rs"]
mod limit;
#[path = "support/roles.rs"]
mod roles;

use onecopy_trace::bpf::Options;
use onecopy_trace::observed::{Mechanism, Peer};
use std::sync::{Mutex, MutexGuard, PoisonError};

use roles::{Actor, act, counts, observe};

#[test]
fn acts_if_it_is_told_to() {
    act();
}

/// One test at a time: each has rows in the table of the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn nobody_fills_a_table_alone() {
    let _alone = alone();
    const PAIRS: u32 = 64;
    const OTHER: u32 = 65534;
    let options = Options {
        pairs: PAIRS,
        ..Options::default()
    };
    let Some((mut collector, _)) = observe(&options) else {
        return;
    };
    let user = OTHER.to_string();
    let mut greedy = Actor::start(&["setpriv", "--reuid", &user, "--clear-groups"]);
    // No thread has an id like these: each makes a row.
    let nobody = 2_147_480_000;
    for id in nobody..nobody + 2 * PAIRS {
        assert_eq!(greedy.tell(&format!("read {id} 4096 100 1")), "ESRCH");
    }
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    let bytes = a.tell(&format!("read {} {} 4096 3", b.pid, b.memory));
    assert_eq!(bytes, "12288");
    let observed = collector.observe();
    let found = counts(&observed, a.pid, Peer::Process(b.pid), Mechanism::CmaRead);
    assert_eq!((found.calls, found.bytes), (3, 12_288));
    let of_greedy = observed.pairs.keys().filter(|key| key.caller == greedy.pid);
    let rows = u64::try_from(of_greedy.count()).expect("few");
    assert!(rows > 0 && rows < u64::from(PAIRS), "{rows}");
    let lost = &observed.overhead.not_counted_by_user;
    assert_eq!(lost.get(&OTHER), Some(&(2 * u64::from(PAIRS) - rows)));
    assert_eq!(lost.get(&nix::unistd::getuid().as_raw()), None);
    assert_eq!(lost.values().sum::<u64>(), observed.overhead.not_counted);
    for actor in [greedy, a, b] {
        actor.end();
    }
}

/// A job that is followed is alone, and has all of the room.
#[test]
fn a_job_that_is_followed_may_fill_the_table() {
    let _alone = alone();
    const PAIRS: u32 = 64;
    let mut actor = Actor::start(&[]);
    let options = Options {
        pairs: PAIRS,
        follow: Some(actor.pid),
        ..Options::default()
    };
    let Some((mut collector, _)) = observe(&options) else {
        return;
    };
    let before = collector.observe().overhead.not_counted;
    let nobody = 2_147_480_000;
    for id in nobody..nobody + PAIRS - 1 {
        assert_eq!(actor.tell(&format!("read {id} 4096 100 1")), "ESRCH");
    }
    let observed = collector.observe();
    assert_eq!(observed.overhead.not_counted, before);
    let rows = observed.pairs.keys().filter(|key| key.caller == actor.pid);
    // The tracer's calls on itself have a row of their own.
    assert_eq!(rows.count(), usize::try_from(PAIRS).expect("few") - 1);
    actor.end();
}
