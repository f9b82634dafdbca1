// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contributions to collectives: a line is used again and again, and nobody reads what is not published, or writes what
//! is being read.

use super::model;
use super::watched::Watched;
use loom::sync::Arc;
use loom::thread;
use onecopy_shm::coll::line::{Done, Head, reached};
use onecopy_shm::sync::{AtomicU64, Ordering, fence, spin_hint};

/// A channel with a single line at each member, so that each collective uses it again.
struct Member {
    head: Head,
    payload: Watched<u64>,
    done: Done,
    failed: AtomicU64,
}

impl Member {
    fn new() -> Self {
        Self {
            head: Head::default(),
            payload: Watched::new(0),
            done: Done::default(),
            failed: AtomicU64::new(0),
        }
    }
}

fn wait(ready: impl Fn() -> bool) {
    while !ready() {
        spin_hint();
    }
}

/// What `me` does in collective `seq`: it waits until its line is free, contributes, reads the others' and says so.
fn collective(members: &[Member], me: usize, seq: u32) {
    let others = || members.iter().enumerate().filter(|&(place, _)| place != me);
    wait(|| others().all(|(_, member)| reached(member.done.get(), seq - 1)));
    members[me]
        .payload
        .change(|payload| *payload = u64::from(seq) * 10 + me as u64);
    members[me].head.publish(seq, 1);
    for (place, member) in others() {
        wait(|| member.head.phase(seq) > 0);
        let seen = member.payload.look(|&payload| payload);
        assert_eq!(seen, u64::from(seq) * 10 + place as u64);
    }
    members[me].done.set(seq);
}

fn all_read_all(preemptions: usize, size: usize, rounds: u32) {
    model(preemptions, move || {
        let members: Arc<Vec<Member>> = Arc::new((0..size).map(|_| Member::new()).collect());
        let threads: Vec<_> = (1..size)
            .map(|me| {
                let members = Arc::clone(&members);
                thread::spawn(move || (1..=rounds).for_each(|seq| collective(&members, me, seq)))
            })
            .collect();
        (1..=rounds).for_each(|seq| collective(&members, 0, seq));
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
    });
}

/// Two members: with three that wait for each other the model does not end. More are in the tests against the oracle.
#[test]
fn two_members_twice() {
    all_read_all(3, 2, 2);
}

/// A result that is published in a second phase of the same line.
#[test]
fn a_second_phase_shows_what_was_written_before_it() {
    model(3, || {
        let member = Arc::new(Member::new());
        let reader = {
            let member = Arc::clone(&member);
            thread::spawn(move || {
                wait(|| member.head.phase(1) >= 2);
                assert_eq!(member.payload.look(|&payload| payload), 7);
            })
        };
        member.head.publish(1, 1);
        member.payload.change(|payload| *payload = 7);
        member.head.publish(1, 2);
        reader.join().expect("no panic");
    });
}

/// A member gives up and uses its buffer for something else: a reader that saw the other contents knows that they are
/// no contribution.
#[test]
fn who_gave_up_is_found_out() {
    model(3, || {
        // The contents are an atomic here: that a reader sees torn bytes is allowed, that it believes them is not.
        let (member, contents) = (Arc::new(Member::new()), Arc::new(AtomicU64::new(1)));
        let reader = {
            let (member, contents) = (Arc::clone(&member), Arc::clone(&contents));
            thread::spawn(move || {
                wait(|| member.head.phase(1) > 0);
                let seen = contents.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                if member.failed.load(Ordering::Acquire) == 0 {
                    assert_eq!(seen, 1);
                }
            })
        };
        member.head.publish(1, 1);
        member.failed.swap(1, Ordering::SeqCst);
        fence(Ordering::Release);
        contents.store(2, Ordering::Relaxed);
        reader.join().expect("no panic");
    });
}

/// A member gives up while another one may write into its buffer: once it has waited for the writer, nothing is written
/// there any more.
#[test]
fn no_write_comes_after_a_member_gave_up() {
    model(3, || {
        let (member, writing) = (Arc::new(Member::new()), Arc::new(AtomicU64::new(0)));
        let writer = {
            let (member, writing) = (Arc::clone(&member), Arc::clone(&writing));
            thread::spawn(move || {
                writing.store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if member.failed.load(Ordering::Acquire) == 0 {
                    member.payload.change(|payload| *payload = 5);
                }
                writing.store(0, Ordering::Release);
            })
        };
        member.failed.swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        wait(|| writing.load(Ordering::Acquire) == 0);
        member.payload.change(|payload| *payload = 7);
        writer.join().expect("no panic");
        assert_eq!(member.payload.look(|&payload| payload), 7);
    });
}
