// SPDX-License-Identifier: MIT OR Apache-2.0
//! Communicators that have failed leave nothing to those that come later.

use crate::Comm;
use crate::coll::{Group, PredefinedOp};
use crate::runtime::{Runtime, local_with};
use onecopy_obs::Knobs;

/// No communicator has a channel.
fn by_messages() -> Knobs {
    let settings = [("ONECOPY_COLL_POOL", "0")];
    Knobs::from_iter(settings).expect("knobs").0
}

/// What two ranks sum up is right.
fn sums(comm: &Comm) {
    let mut sum = [0u64];
    let one = [comm.rank() as u64 + 1];
    comm.allreduce(&one, &mut sum, PredefinedOp::Sum)
        .expect("a sum");
    assert_eq!(sum, [3]);
}

/// The next communicator has this one's id, if that is free then.
fn reuse_id(rt: &Runtime, comm: &Comm) {
    let id = comm.place.as_ref().expect("members").id;
    rt.handle().gate.enter().collectives.ids.next = id;
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
