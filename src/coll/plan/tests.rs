// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans of all members together: what one takes, another one offers.

use super::*;
use crate::coll::PredefinedOp;
use onecopy_shm::layout::COLL_SLOT_LONG;

/// Bytes of a part.
const PART: usize = 16;

/// The call of member `me` of `size`, and the bytes of its buffers.
type Called = (Collective, Option<usize>, Option<usize>);

/// Parts of different lengths: so many times `PART` for each place.
fn growing(size: usize) -> Parts {
    let counts: Vec<usize> = (0..size).map(|place| place % 3).collect();
    Parts::packed(&counts, PART)
}

fn moves(root: usize, size: usize, me: usize) -> Vec<Called> {
    let (equal, listed) = (Parts::Equal(PART), growing(size));
    let (all, own) = (listed.end(size), listed.of(me).len);
    let at_root = |bytes: usize| (me == root).then_some(bytes);
    let gather = |parts: &Parts| Collective::Gather {
        root,
        parts: parts.clone(),
    };
    let scatter = |parts: &Parts| Collective::Scatter {
        root,
        parts: parts.clone(),
    };
    let allgather = |parts: &Parts| Collective::Allgather {
        parts: parts.clone(),
    };
    // Each gives to `place` what `place` takes of it.
    let lists = [0, 1].map(|way| {
        let count = |other: usize| match way {
            0 => me + 2 * other,
            _ => other + 2 * me,
        };
        let counts: Vec<usize> = (0..size).map(count).collect();
        Parts::packed(&counts, PART)
    });
    let [send, recv] = lists;
    let (sent, received) = (send.end(size), recv.end(size));
    let alltoall = |part: &Parts| Collective::Alltoall {
        send: part.clone(),
        recv: part.clone(),
    };
    vec![
        (Collective::Bcast { root }, None, Some(PART)),
        (gather(&equal), Some(PART), at_root(PART * size)),
        (gather(&listed), Some(own), at_root(all)),
        (scatter(&equal), at_root(PART * size), Some(PART)),
        (scatter(&listed), at_root(all), Some(own)),
        (allgather(&equal), Some(PART), Some(PART * size)),
        (allgather(&equal), None, Some(PART * size)),
        (allgather(&listed), Some(own), Some(all)),
        (allgather(&listed), None, Some(all)),
        (alltoall(&equal), Some(PART * size), Some(PART * size)),
        (
            Collective::Alltoall { send, recv },
            Some(sent),
            Some(received),
        ),
    ]
}

fn reductions(root: usize, size: usize) -> Vec<Called> {
    let (elem, op) = (ElemType::U64, || Op::from(PredefinedOp::Sum));
    let reduce = Collective::Reduce {
        root,
        elem,
        op: op(),
    };
    let scatters = Collective::ReduceScatter {
        parts: Parts::Equal(PART),
        elem,
        op: op(),
    };
    let mut whole = vec![
        reduce,
        Collective::Allreduce { elem, op: op() },
        Collective::Scan { elem, op: op() },
    ];
    if size != 2 {
        // The second of two gets a copy.
        whole.push(exscan());
    }
    let vectors = whole.into_iter();
    let mut all: Vec<Called> = vectors.map(|it| (it, Some(PART), Some(PART))).collect();
    all.push((scatters, Some(PART * size), Some(PART)));
    all
}

fn exscan() -> Collective {
    Collective::Exscan {
        elem: ElemType::U64,
        op: PredefinedOp::Sum.into(),
    }
}

/// Of two ranks the second gets the first one's vector, wherever it stands, and nothing is combined.
#[test]
fn an_exclusive_prefix_of_two_is_a_copy() {
    for in_place in [false, true] {
        let send = (!in_place).then_some(PART);
        let called = || vec![(exscan(), send, Some(PART))];
        let called = [called(), called()];
        let [first, second] = [0, 1].map(|me| of(&called, 0, me));
        let offer = first.offer.expect("an offer");
        let side = if in_place { Side::Recv } else { Side::Send };
        assert_eq!((offer.side, offer.offset, offer.len), (side, 0, PART));
        assert!(second.offer.is_none() && second.own.is_none());
        let Task::Take { takes, .. } = second.task else {
            panic!("it takes");
        };
        assert_eq!(takes.of(0), ByteRange::first(PART));
    }
    let shorter = MemberCall {
        collective: &exscan(),
        slot: COLL_SLOT_LONG,
        size: 2,
        me: 1,
        send: Some(PART),
        recv: Some(PART - 8),
    };
    let plan: Result<Plan<'_>, _> = shorter.plan();
    assert!(matches!(plan, Err(Fault::NoRoom(PART))));
}

/// Of two ranks each gives no more of its vector than the other one combines.
#[test]
fn one_that_combines_is_given_its_part_alone() {
    let (elem, op) = (ElemType::U64, || PredefinedOp::Sum.into());
    let listed = Parts::listed(&[5, 7], &[20, 3], 8);
    for parts in [Parts::Equal(PART), listed] {
        let len = parts.end(2);
        let scattered = || Collective::ReduceScatter {
            parts: parts.clone(),
            elem,
            op: op(),
        };
        let called = [(); 2].map(|()| vec![(scattered(), Some(len), Some(len))]);
        for me in 0..2 {
            let Task::Combine(part) = of(&called, 0, me).task else {
                panic!("it combines");
            };
            assert_eq!(part.part_given, Some(parts.of(1 - me)));
            assert_eq!(part.range, parts.of(me));
        }
    }
}

fn of<'c>(called: &'c [Vec<Called>], index: usize, me: usize) -> Plan<'c> {
    let (collective, send, recv) = &called[me][index];
    let call = MemberCall {
        collective,
        slot: COLL_SLOT_LONG,
        size: called.len(),
        me,
        send: *send,
        recv: *recv,
    };
    let plan: Result<_, _> = call.plan();
    plan.unwrap_or_else(|fault| panic!("{collective:?} of {me}: {}", call.error(fault)))
}

#[test]
fn members_take_what_others_offer_them() {
    for (size, root) in (1..7).flat_map(|size| (0..size).map(move |root| (size, root))) {
        let called: Vec<_> = (0..size).map(|me| moves(root, size, me)).collect();
        for (index, me, place) in triples(called[0].len(), size) {
            let (plan, other) = (of(&called, index, me), of(&called, index, place));
            let Task::Take { takes, find } = plan.task else {
                panic!("{:?} moves bytes", called[me][index]);
            };
            let len = takes.of(place).len;
            let given = other.offer.filter(|offer| offer.readers.include(me));
            let expected = match given {
                None => 0,
                Some(offer) => match offer.table {
                    Some(table) => table.of(me).len,
                    None if offer.by_parts => offer.len / size,
                    None => offer.len,
                },
            };
            assert_eq!(len, expected, "{me} of {place}: {:?}", called[me][index]);
            let by_parts = given.is_some_and(|offer| offer.by_parts);
            assert!(len == 0 || by_parts == (find == Find::Index));
        }
    }
}

/// With two ranks nothing but the other one's part is offered, and no table is needed to find it.
#[test]
fn one_reader_is_offered_its_part_alone() {
    let listed = Parts::listed(&[5, 7], &[20, 3], 1);
    for parts in [&Parts::Equal(PART), &listed] {
        for me in 0..2 {
            let other = 1 - me;
            let alltoall = Collective::Alltoall {
                send: parts.clone(),
                recv: parts.clone(),
            };
            let scatter = Collective::Scatter {
                root: me,
                parts: parts.clone(),
            };
            for collective in [alltoall, scatter] {
                let len = parts.end(2);
                let call = MemberCall {
                    collective: &collective,
                    slot: COLL_SLOT_LONG,
                    size: 2,
                    me,
                    send: Some(len),
                    recv: Some(len),
                };
                let plan: Result<Plan<'_>, _> = call.plan();
                let plan = plan.unwrap_or_else(|fault| panic!("{}", call.error(fault)));
                let offer = plan.offer.expect("an offer");
                let ByteRange { offset, len } = parts.of(other);
                assert_eq!((offer.offset, offer.len), (offset, len));
                assert!(!offer.by_parts && offer.table.is_none());
                let own = plan.own.expect("a part of its own");
                let ByteRange { offset, len } = parts.of(me);
                assert_eq!((own.from, own.len), (offset, len));
            }
        }
    }
}

#[test]
fn members_combine_what_others_offer_them() {
    for (size, root) in (1..9).flat_map(|size| (0..size).map(move |root| (size, root))) {
        let called: Vec<_> = (0..size).map(|_| reductions(root, size)).collect();
        for (index, me, place) in triples(called[0].len(), size) {
            let (plan, other) = (of(&called, index, me), of(&called, index, place));
            let Task::Combine(part) = plan.task else {
                panic!("{:?} combines", called[me][index]);
            };
            if part.range.len > 0 && place < part.upto {
                let given = other.offer.filter(|offer| offer.readers.include(me));
                let len = given.map(|offer| offer.len);
                assert_eq!(len, plan.offer.map(|offer| offer.len));
                assert!(Some(part.range.end()) <= len);
            }
        }
    }
}

/// Plans by index, two different members each.
fn triples(plans: usize, size: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let places = move |index| (0..size * size).map(move |n| (index, n / size, n % size));
    let differ = |&(_, me, place): &(usize, usize, usize)| me != place;
    (0..plans).flat_map(places).filter(differ)
}

#[test]
fn a_call_that_cannot_be_planned_says_why() {
    let call = |collective: Collective, send, recv| {
        let call = MemberCall {
            collective: &collective,
            slot: COLL_SLOT_LONG,
            size: 2,
            me: 1,
            send,
            recv,
        };
        let plan: Result<Plan<'_>, _> = call.plan();
        plan.map_err(|fault| call.error(fault).to_string())
            .expect_err("no plan")
    };
    let reason = call(Collective::Bcast { root: 2 }, None, Some(8));
    assert!(reason.contains('2'), "{reason}");
    let parts = || Parts::Equal(8);
    let short = call(Collective::Allgather { parts: parts() }, Some(8), Some(15));
    assert!(short.contains("16") && short.contains("15"), "{short}");
    let none = call(
        Collective::Gather {
            root: 0,
            parts: parts(),
        },
        None,
        None,
    );
    assert!(none.contains("send buffer"), "{none}");
    let (elem, op) = (ElemType::F32, Op::from(PredefinedOp::BitOr));
    let misfit = call(Collective::Allreduce { elem, op }, Some(8), Some(8));
    assert!(misfit.contains("BitOr"), "{misfit}");
}
