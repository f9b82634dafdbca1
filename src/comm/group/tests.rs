// SPDX-License-Identifier: MIT OR Apache-2.0
//! Communicators that have failed leave nothing to those that come later.

use crate::Comm;
use crate::coll::{Group, PredefinedOp};
use crate::error::Error;
use crate::matching::{Envelope, OWN_CONTEXTS};
use crate::runtime::{Runtime, local_with};
use crate::wireup::Death;
use onecopy_obs::Knobs;
use onecopy_shm::sync::{AtomicBool, Ordering};
use std::time::Duration;

/// Says when it is dropped that a rank is done, also when a check fails.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// No communicator has a channel.
fn by_messages() -> Knobs {
    let settings = [("ONECOPY_COLL_POOL", "0")];
    Knobs::from_iter(settings).expect("knobs").0
}

/// Ranks 0 and 1 have come here, and have all that the other has sent before.
fn meet(comm: &Comm) {
    let other = 1 - comm.rank();
    let mut got = [0u8];
    comm.sendrecv(&[1u8], other, 77, &mut got, other, 77)
        .expect("the other rank");
}

/// What two ranks sum up is right.
fn sums(comm: &Comm) {
    let mut sum = [0u64];
    let one = [comm.rank() as u64 + 1];
    comm.allreduce(&one, &mut sum, PredefinedOp::Sum)
        .expect("a sum");
    assert_eq!(sum, [3]);
}

/// Gives a communicator up, as a lost member does.
fn give_up(rt: &Runtime, comm: &Comm) {
    let mut worker = rt.handle().gate.enter();
    let index = comm.index(&mut worker);
    let worker = &mut *worker;
    let comm = worker.collectives.slots[index].as_mut().expect("alive");
    comm.fail(&mut worker.engine, &Error::given_up(rt.rank()));
}

/// The next communicator has this one's id, if that is free then.
fn reuse_id(rt: &Runtime, comm: &Comm) {
    let id = comm.membership.as_ref().expect("members").id;
    rt.handle().gate.enter().collectives.ids.next = id;
}

/// Messages of collectives that no receive has taken.
fn left_over(rt: &Runtime) -> usize {
    let worker = rt.handle().gate.enter();
    let unexpected = &worker.engine.receives.unexpected;
    let own = |envelope: &Envelope| envelope.context & OWN_CONTEXTS != 0;
    unexpected.ids_where(own).len()
}

#[test]
fn survivors_form_a_communicator_after_one_that_has_failed() {
    let is_over = AtomicBool::new(false);
    local_with(3, &by_messages(), |rt| {
        let world = rt.world();
        if rt.rank() == 2 {
            // It lives, and calls nothing.
            while !is_over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            return;
        }
        let _done = (rt.rank() == 0).then(|| Done(&is_over));
        let (all, both) = (Group::of(&[0, 1, 2]), Group::of(&[0, 1]));
        meet(&world);
        let declare_dead = || {
            rt.handle()
                .gate
                .enter()
                .engine
                .believe_dead(2, Death::Signal(9))
        };
        if rt.rank() == 0 {
            declare_dead();
        }
        // Rank 1 sends its first proposal, and learns of the death from rank 0.
        let failed = world.create_from_group(&all, 5);
        assert!(failed.is_err(), "a member is dead");
        declare_dead();
        meet(&world);
        if rt.rank() == 1 {
            // Long enough that rank 0 handles what it has received; the result does not depend on it.
            std::thread::sleep(Duration::from_millis(100));
        }
        let made = world.create_from_group(&both, 5).expect("survivors");
        sums(&made);
        meet(&made);
        assert_eq!(left_over(&rt), 0, "of a communicator that has failed");
    });
}

#[test]
fn an_id_that_is_used_again_has_not_failed_before() {
    local_with(2, &by_messages(), |rt| {
        let world = rt.world();
        let both = world.group();
        let made = world.create_from_group(&both, 0).expect("create");
        sums(&made);
        if rt.rank() == 0 {
            give_up(&rt, &made);
        }
        meet(&world);
        assert_eq!(left_over(&rt), rt.rank(), "rank 1 was told, nobody else");
        reuse_id(&rt, &made);
        let (id, own) = (made.context, made.with_context(3));
        drop((made, own));
        let again = world.create_from_group(&both, 0).expect("again");
        assert_eq!(again.context, id, "another id");
        if rt.rank() == 0 {
            std::thread::sleep(Duration::from_millis(100));
        }
        sums(&again);
        assert_eq!(left_over(&rt), 0, "of a communicator that has failed");
    });
}

#[test]
fn an_id_that_is_used_again_finds_its_own_members() {
    local_with(3, &by_messages(), |rt| {
        let world = rt.world();
        let all = world.group();
        let made = world.create_from_group(&all, 0).expect("create");
        made.with_context(3).barrier().expect("all are there");
        reuse_id(&rt, &made);
        let id = made.context;
        drop(made);
        if rt.rank() == 2 {
            return;
        }
        let both = Group::of(&[1, 0]);
        let again = world.create_from_group(&both, 0).expect("again");
        assert_eq!(again.context, id, "another id");
        sums(&again.with_context(3));
    });
}

/// One of two members gives the communicator up in a collective to which the other one never comes, or both do.
#[test]
fn a_communicator_that_has_failed_gives_its_channel_back() {
    for alone in [false, true] {
        local_with(2, &Knobs::default(), |rt| {
            let world = rt.world();
            let both = world.group();
            for _ in 0..8 {
                let made = world.create_from_group(&both, 0).expect("create");
                sums(&made);
                if rt.rank() == 0 || !alone {
                    let barrier = crate::coll::Collective::Barrier;
                    let buffers = (None::<Vec<u8>>, None::<Vec<u8>>);
                    let begun = made.start(&barrier, buffers.0, buffers.1).expect("start");
                    give_up(&rt, &made);
                    drop(begun);
                }
                meet(&world);
            }
            // Each agreement looks once.
            for _ in 0..2 {
                drop(world.create_from_group(&both, 0).expect("create"));
            }
            let channels = rt.handle().gate.enter().collectives.channels;
            assert!(channels.count_ones() <= 4, "{channels:#b}, alone: {alone}");
        });
    }
}
