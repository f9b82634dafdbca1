// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to the owner of a buffer to copy it into a stage of the caller's end.

use super::channel::{end, wait};
use super::model;
use loom::thread;
use onecopy_shm::coll::{Channel, CopyRequest};
use onecopy_shm::layout::COLL_STAGES;
use onecopy_shm::sync::spin_hint;

/// The place of the member that asks.
const CALLER: usize = 0;
const SEQ: u32 = 1;

/// A copy request to `owner`; the offset tells requests apart, and is what the answer holds.
fn request(owner: u32, ticket: u32) -> CopyRequest {
    CopyRequest {
        seq: SEQ,
        ticket,
        owner,
        buffer: 1,
        offset: u64::from(ticket) * 10 + u64::from(owner),
        len: 8,
    }
}

/// Asks for `request`, into `stage`.
fn ask(caller: &Channel, owner: &Channel, stage: usize, request: CopyRequest) {
    caller.ask(owner, CALLER, stage, request);
}

/// Waits for the answer and takes it from the stage.
fn take(caller: &Channel, stage: usize, request: CopyRequest) {
    wait(|| caller.is_answered(SEQ, stage, request.ticket));
    let view = caller.stage(stage, 8).expect("within a stage");
    assert_eq!(view.bytes(), request.offset.to_le_bytes());
}

/// One turn of the owner at place `me`: it answers what it has been called for, as a rank does.
/// Gives the number of answers.
fn serve(me: u32, own: &Channel, caller: &Channel) -> usize {
    if own.take_called() & 1 << CALLER == 0 {
        return 0;
    }
    let mut answers = 0;
    for stage in 0..COLL_STAGES {
        let Some(found) = caller.copy_request(SEQ, stage) else {
            continue;
        };
        if found.owner == me {
            assert_eq!(found, request(me, found.ticket));
            caller.answer(stage, &found, &found.offset.to_le_bytes());
            answers += 1;
        }
    }
    answers
}

/// Serves until it has answered so often.
fn serve_all(me: u32, own: &Channel, caller: &Channel, requests: usize) {
    let mut answers = 0;
    while answers < requests {
        answers += serve(me, own, caller);
        if answers < requests {
            spin_hint();
        }
    }
    assert_eq!(answers, requests);
}

/// A stage that is used again after its answer was read. A lost request leaves both waiting, and
/// the model does not end.
#[test]
fn each_request_is_answered_once() {
    model(2, || {
        let (caller, owner) = (end(), end());
        let other = {
            let (caller, owner) = (caller.clone(), owner.clone());
            thread::spawn(move || serve_all(1, &owner, &caller, 3))
        };
        ask(&caller, &owner, 0, request(1, 1));
        ask(&caller, &owner, 1, request(1, 2));
        take(&caller, 0, request(1, 1));
        ask(&caller, &owner, 0, request(1, 3));
        take(&caller, 1, request(1, 2));
        take(&caller, 0, request(1, 3));
        other.join().expect("no panic");
    });
}

/// A member that has been called finds the copy request, even if another member calls at that moment.
#[test]
fn calls_of_two_members_are_both_found() {
    model(2, || {
        let (callers, owner) = ([end(), end()], end());
        let threads = [0, 1].map(|me| {
            let (caller, owner) = (callers[me].clone(), owner.clone());
            thread::spawn(move || caller.ask(&owner, me, 0, request(2, 1)))
        });
        let mut found = 0;
        let mut look = || {
            let called = owner.take_called();
            for (me, caller) in callers.iter().enumerate() {
                if called & 1 << me != 0 {
                    assert_eq!(caller.copy_request(SEQ, 0), Some(request(2, 1)));
                    found += 1;
                }
            }
        };
        look();
        look();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        look();
        assert_eq!(found, 2, "a call was lost");
    });
}

/// A member that was called twice, and answered both at the first, looks again while the caller has
/// another member fill the same stage.
#[test]
fn an_old_call_does_not_touch_a_stage_that_is_used_again() {
    model(2, || {
        let (caller, owners) = (end(), [end(), end()]);
        let first = {
            let (caller, owner) = (caller.clone(), owners[0].clone());
            thread::spawn(move || {
                serve_all(1, &owner, &caller, 2);
                assert_eq!(serve(1, &owner, &caller), 0);
            })
        };
        ask(&caller, &owners[0], 0, request(1, 1));
        ask(&caller, &owners[0], 1, request(1, 2));
        take(&caller, 0, request(1, 1));
        take(&caller, 1, request(1, 2));
        ask(&caller, &owners[1], 0, request(2, 3));
        // The second owner answers at once: the first one is who may come late.
        assert_eq!(serve(2, &owners[1], &caller), 1);
        take(&caller, 0, request(2, 3));
        first.join().expect("no panic");
    });
}
