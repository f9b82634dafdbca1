// SPDX-License-Identifier: MIT OR Apache-2.0
//! A member reports that it is done, has not done its part, and leaves, while all the others live. That part can come
//! no more, so a member that waits for it ends with an error.

use super::lines::{calls, lies};
use super::stage::collective;
use onecopy::coll::Collective;
use onecopy::{Error, Result};
use onecopy_shm::coll::Channel;
use std::sync::Barrier;

const RANKS: usize = 3;

/// Runs `call` on all ranks but the rogue. Nobody of them ends before all are back from the call.
fn play(
    call: &super::lines::Call,
    blocking: bool,
    name: &str,
    line: impl FnOnce(&Channel) + Send,
) -> Vec<Result<()>> {
    let back = Barrier::new(RANKS - 1);
    collective(name, RANKS as u32, 1 - call.victim, line, |world| {
        let result = call.run(world, blocking);
        back.wait();
        result
    })
}

/// Whether a call ended with what is true of this member: that it left. As long as that is not known, that it did less
/// than its part.
fn names(result: &Result<()>, member: usize) -> bool {
    match result {
        Err(Error::PeerLeft { rank }) => *rank == member,
        Err(Error::Collective { reason }) => {
            reason.starts_with(&format!("rank {member} has ended it with less than"))
        }
        _ => false,
    }
}

/// Whether the call ended so on the rank of this place, or with the word of another rank than the rogue, where some
/// rank knows.
fn ends_for(results: &[Result<()>], place: usize, member: usize) -> bool {
    let mut others = (0..=results.len()).filter(|&rank| rank != member);
    let named = others.any(|rank| {
        let word = format!("rank {rank} gave the communicator up");
        matches!(&results[place], Err(Error::Collective { reason }) if *reason == word)
    });
    names(&results[place], member) || named && results.iter().any(|other| names(other, member))
}

#[test]
fn done_without_a_part_fails_who_waits_for_it() {
    for (index, call) in calls(RANKS).iter().enumerate() {
        for blocking in [true, false] {
            let name = format!("{} without the rogue's part", call.name);
            let done = if index % 2 == 0 { 1 } else { 5 };
            let results = play(call, blocking, &name, |end| end.set_done(done));
            // The victim, which is the first of those that are left, needs the part in all of them.
            assert!(
                ends_for(&results, 0, 1 - call.victim),
                "{name}: {results:?}"
            );
        }
    }
}

/// The line is there, and what should follow it is not: a second phase, an answer, an acknowledgement.
#[test]
fn done_with_half_a_part_ends_for_all() {
    let lines = lies();
    for (turn, call) in calls(RANKS).iter().enumerate() {
        for (index, line) in lines.iter().enumerate().skip(turn % 6).step_by(6) {
            let phase = 1 + (turn + index) as u32 % 3;
            let name = format!("{}, phase {phase}, then gone: {line:?}", call.name);
            // Whether it is an error depends on whether the line was all that was missing.
            let _ = play(call, index % 2 == 0, &name, |end| {
                line.publish(end, phase, 1);
                end.set_done(1);
            });
        }
    }
}

/// Groups that need a tree: inner nodes, leaves and the root.
#[test]
fn done_without_a_part_in_a_tree() {
    for rogue in [0, 1, 3, 9] {
        for what in [Some(8), Some(2000), None] {
            let name = format!("a tree of 10 without the part of rank {rogue}, {what:?}");
            let back = Barrier::new(9);
            let leave = |end: &Channel| end.set_done(1);
            let results = collective(&name, 10, rogue, leave, |world| {
                let result = match what {
                    Some(n) => {
                        let op = onecopy::coll::PredefinedOp::Sum.into();
                        let elem = onecopy::coll::ElemType::U64;
                        let (send, mut recv) = (vec![1u8; n], vec![0u8; n]);
                        let allreduce = Collective::Allreduce { elem, op };
                        world.run(&allreduce, Some(&send), Some(&mut recv))
                    }
                    None => world.barrier(),
                };
                back.wait();
                result
            });
            assert!(
                (0..results.len()).all(|place| ends_for(&results, place, rogue)),
                "{name}: {results:?}"
            );
        }
    }
}
