// SPDX-License-Identifier: MIT OR Apache-2.0
use super::short::{GATHERED_MAX, MAPPED_MAX};
use super::*;
use crate::coll::plan::MemberCall;
use crate::coll::{Collective, ElemType, Parts, PredefinedOp};
use crate::runtime::{Runtime, Threads, local, local_of};
use onecopy_obs::Knobs;
use onecopy_shm::coll::{Content, SpareOf};
use onecopy_shm::heap::HeapBuf;
use onecopy_shm::layout::{COLL_DEPTH, COLL_SLOT, COLL_SLOT_LONG};
use onecopy_shm::sync::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

fn is_short(collective: &Collective, size: usize, bytes: usize) -> bool {
    let call = MemberCall {
        collective,
        slot: COLL_SLOT_LONG,
        size,
        me: 1,
        send: Some(bytes),
        recv: Some(bytes),
    };
    call.plan::<Option<Short>>().is_some()
}

/// What a member gives counts, not what it has for itself. A root that copies a part of its own leaves longer ones to
/// both ends.
#[test]
fn what_a_step_reads_is_short() {
    for (size, most) in [(2, MAPPED_MAX), (4, MAPPED_MAX / 4)] {
        for (part, short) in [(most, true), (most + 8, false)] {
            let parts = || Parts::Equal(part);
            let (send, recv) = (parts(), parts());
            let alltoall = Collective::Alltoall { send, recv };
            assert_eq!(is_short(&alltoall, size, size * part), short, "{size}");
            let root = 1;
            let scatter = Collective::Scatter {
                root,
                parts: parts(),
            };
            assert_eq!(is_short(&scatter, size, size * part), short, "{size}");
        }
    }
    for root in 0..2 {
        for (part, short) in [(GATHERED_MAX, true), (GATHERED_MAX + 8, false)] {
            let parts = Parts::Equal(part);
            let gather = Collective::Gather { root, parts };
            let bytes = if root == 1 { 2 * part } else { part };
            assert_eq!(is_short(&gather, 2, bytes), short, "{root}");
        }
    }
}

/// Of so many ranks each combines long vectors itself.
#[test]
fn two_ranks_combine_longer_vectors_each_by_itself() {
    let all = Collective::Allreduce {
        elem: ElemType::U8,
        op: PredefinedOp::Sum.into(),
    };
    for (size, most) in [(2, COLL_SLOT_LONG), (3, COLL_SLOT)] {
        assert!(is_short(&all, size, most), "{size}");
        assert!(!is_short(&all, size, most + 1), "{size}");
    }
}

/// All lengths about a short and a long slot, from plain and from mapped memory. What has no room in a short slot is
/// read where it is mapped.
fn exchanges(rt: &Runtime, mapped: bool, part: usize) {
    let (me, other) = (rt.rank(), 1 - rt.rank());
    let byte = |from: usize, to: usize, at: usize| (from * 5 + to * 11 + at) as u8;
    let give = |to: usize| (0..part).map(move |at| byte(me, to, at));
    let bytes: Vec<u8> = give(0).chain(give(1)).collect();
    let mut heap = rt.alloc(bytes.len().max(1)).expect("memory");
    heap[..bytes.len()].copy_from_slice(&bytes);
    let send = if mapped { &heap[..bytes.len()] } else { &bytes };
    let (world, before) = (rt.world(), rt.counters().map_bytes);
    let mut recv = vec![0; bytes.len()];
    world.alltoall(send, &mut recv).expect("alltoall");
    let came = |from| (0..part).map(move |at| byte(from, me, at));
    assert!(recv.iter().copied().eq(came(0).chain(came(1))), "{part}");
    for root in 0..2 {
        let mut mine = vec![0; part];
        world.scatter(send, &mut mine, root).expect("scatter");
        assert!(mine.iter().copied().eq(came(root)), "{part} of {root}");
    }
    // Plain memory that has no room in a slot goes as a request sees fit.
    if !mapped && part > COLL_SLOT_LONG {
        return;
    }
    let read = rt.counters().map_bytes - before;
    let expected = if mapped && part > COLL_SLOT {
        2 * part
    } else {
        0
    };
    assert_eq!(read, expected as u64, "{part}, of rank {other}");
}

#[test]
fn two_ranks_exchange_what_fits_into_slots() {
    local(2, |rt| {
        // The first contribution that fits no line reserves the slots.
        exchanges(&rt, false, 64);
        for part in [
            0, 1, 48, 49, 4095, 4096, 4097, 9001, 16_383, 16_384, 16_385, 40_000,
        ] {
            exchanges(&rt, false, part);
            exchanges(&rt, true, part);
        }
        rt.finalize().expect("finalize");
    });
}

/// What a rank gives, as it stands in its heap.
fn in_heap(rt: &Runtime, rank: usize, bytes: usize) -> HeapBuf {
    let mut heap = rt.alloc(bytes).expect("memory");
    heap.fill(rank as u8 + 1);
    heap
}

/// Members that read in place come so late that the giver leaves its short collective to a request. That waits for
/// them, whatever it is that the giver has done by then: only given, or also taken.
#[test]
fn a_giver_waits_for_late_readers() {
    const BYTES: usize = 9000;
    local(3, |rt| {
        let (world, me) = (rt.world(), rt.rank());
        for late in 0..3 {
            for call in 0..3 {
                world.barrier().expect("barrier");
                if me == late {
                    std::thread::sleep(Duration::from_millis(20));
                }
                let mut heap = in_heap(&rt, me, BYTES);
                let mut all = vec![0; 3 * BYTES];
                let root = (late + 1) % 3;
                match call {
                    0 => world.bcast(&mut heap[..], root).expect("bcast"),
                    1 => world.gather(&heap[..], &mut all, root).expect("gather"),
                    _ => world.allgather(&heap[..], &mut all).expect("allgather"),
                }
                let from = if call == 0 { root } else { me };
                assert!(heap.iter().all(|&byte| byte == from as u8 + 1), "{late}");
                // Nobody reads it any more.
                heap.fill(99);
                let has_all = call == 2 || call == 1 && me == root;
                for (place, part) in all.chunks(BYTES).enumerate().filter(|_| has_all) {
                    let good = part.iter().all(|&byte| byte == place as u8 + 1);
                    assert!(good, "call {call}, {place} to {me}, {late} is late");
                }
            }
        }
        rt.finalize().expect("finalize");
    });
}

/// Two ranks combine vectors where they stand, but for one that the result replaces. One of them may be late, and one
/// may have no mapped memory. Some vectors fit into slots, others do not.
#[test]
fn two_ranks_combine_vectors_in_place() {
    local(2, |rt| {
        for bytes in [9008, 40_000] {
            for (late, plain) in (0..9).map(|case| (case % 3, case / 3)) {
                combine_late(&rt, bytes / size_of::<u64>(), late, plain);
            }
        }
        rt.finalize().expect("finalize");
    });
}

/// Reductions of vectors of so many words. `late`: who comes late; `plain`: whose vector is not mapped; 2: nobody.
fn combine_late(rt: &Runtime, count: usize, late: usize, plain: usize) {
    let (world, me) = (rt.world(), rt.rank());
    let mut heap = rt.alloc(count * size_of::<u64>()).expect("memory");
    let mut stack = vec![0; count];
    let vector: &mut [u64] = match me == plain {
        true => &mut stack,
        false => bytemuck::cast_slice_mut(&mut heap[..]),
    };
    let value = |rank: usize, at: usize| (rank as u64 + 2) * at as u64;
    for (at, word) in vector.iter_mut().enumerate() {
        *word = value(me, at);
    }
    let begin = || {
        world.barrier().expect("barrier");
        if me == late {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let whole = |at: usize| value(0, at) + value(1, at);
    let is_whole = |from: usize, words: &[u64]| {
        let mut words = words.iter().enumerate();
        words.all(|(at, &word)| word == whole(from + at))
    };
    let case = format!("{count} words, {late} is late, {plain} has plain memory");
    begin();
    let mut sum = vec![0; count];
    world
        .allreduce(vector, &mut sum, PredefinedOp::Sum)
        .expect("allreduce");
    assert!(is_whole(0, &sum), "allreduce: {case}");
    for root in 0..2 {
        begin();
        sum.fill(7);
        world
            .reduce(vector, &mut sum, PredefinedOp::Sum, root)
            .expect("reduce");
        assert!(me != root || is_whole(0, &sum), "reduce to {root}: {case}");
    }
    begin();
    let mut part = vec![0; count / 2];
    world
        .reduce_scatter_block(vector, &mut part, PredefinedOp::Sum)
        .expect("reduce_scatter");
    assert!(is_whole(me * (count / 2), &part), "reduce_scatter: {case}");
    begin();
    sum.fill(7);
    world
        .exscan(vector, &mut sum, PredefinedOp::Sum)
        .expect("exscan");
    let firsts = |(at, &word): (usize, &u64)| word == value(0, at);
    let expected = me == 0 || sum.iter().enumerate().all(firsts);
    assert!(expected, "exscan: {case}");
    begin();
    world
        .allreduce_in_place(vector, PredefinedOp::Sum)
        .expect("allreduce");
    assert!(is_whole(0, vector), "allreduce in place: {case}");
}

/// An operator of the program panics through a call whose buffer the other rank may be reading: that rank gets an error
/// or the bytes.
#[test]
fn a_panic_through_a_call_that_gives_in_place_is_known_to_its_readers() {
    let (waits, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let until = |flag: &AtomicBool| {
        while !flag.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    };
    local_of(2, &Knobs::default(), Threads::Single, |rt| {
        let world = rt.world();
        let other = world.dup().expect("dup");
        let panics = rt.rank() == 0;
        let op = crate::coll::Op::user(move |_, _| assert!(!panics, "on purpose"));
        let sum = Collective::Allreduce {
            elem: ElemType::U32,
            op,
        };
        let mut heap = in_heap(&rt, rt.rank(), 9000);
        world.barrier().expect("barrier");
        let request = other.start(&sum, Some(vec![1u32]), Some(vec![0u32]));
        let request = request.expect("start");
        if panics {
            until(&waits);
            let call = AssertUnwindSafe(|| world.bcast(&mut heap[..], 0));
            assert!(catch_unwind(call).is_err(), "the operator panics");
            heap.fill(99);
            over.store(true, Ordering::Release);
        } else {
            // It is published.
            world.handle.gate.enter().progress(false);
            waits.store(true, Ordering::Release);
            until(&over);
            let error = world.bcast(&mut heap[..], 0).expect_err("given up");
            assert!(error.to_string().contains('0'), "{error}");
        }
        let ended = request.wait();
        assert!(ended.is_err() || !panics, "its own collective has failed");
        assert!(world.barrier().is_err(), "the communicator has failed");
    });
}

/// A member of a gather gives by a request, and promises to write into the root's buffer, which is mapped. So the root
/// leaves its short collective, and says where its buffer is.
#[test]
fn a_root_answers_members_that_write() {
    const BYTES: usize = 9000;
    local(2, |rt| {
        let (world, me) = (rt.world(), rt.rank());
        let mut heap = in_heap(&rt, me, 2 * BYTES);
        world.bcast(&mut [0u8; 64], 0).expect("the slots are there");
        for _ in 0..3 {
            world.barrier().expect("barrier");
            if me == 0 {
                // The other rank fills its channel.
                std::thread::sleep(Duration::from_millis(20));
            }
            for _ in 0..COLL_DEPTH {
                world.bcast(&mut [0u8; 8], 1).expect("bcast");
            }
            if me == 0 {
                // It gathers by a request by now.
                std::thread::sleep(Duration::from_millis(20));
            }
            let send = vec![me as u8 + 1; BYTES];
            let parts = Parts::Equal(BYTES);
            let gather = Collective::Gather { root: 0, parts };
            let given = in_heap(&rt, me, BYTES);
            let from = if me == 0 { &send[..] } else { &given[..] };
            world
                .run(&gather, Some(from), Some(&mut heap[..]))
                .expect("gather");
            let came = |place: usize| heap[place * BYTES..][..BYTES].iter();
            let is_good = |place: usize| came(place).all(|&byte| byte == place as u8 + 1);
            assert!(me != 0 || (0..2).all(is_good));
        }
        rt.finalize().expect("finalize");
    });
}

/// A job is given up while a rank waits for who reads in place: they learn that, before its buffer goes back.
#[test]
fn an_ended_runtime_tells_its_readers() {
    let over = AtomicBool::new(false);
    local(2, |rt| {
        let world = rt.world();
        let mut heap = in_heap(&rt, rt.rank(), 9000);
        world.barrier().expect("barrier");
        if rt.rank() == 0 {
            let call = MemberCall {
                collective: &Collective::Bcast { root: 0 },
                slot: COLL_SLOT_LONG,
                size: 2,
                me: 0,
                send: None,
                recv: Some(heap.len()),
            };
            let short = call.plan::<Option<Short>>().expect("short");
            let slot = world.index.expect("a slot");
            let mut worker = world.handle.gate.enter();
            let begun = worker.begin_short(slot, &short, None, &mut heap[..]);
            let Ok(mut running) = begun else {
                panic!("it has not begun");
            };
            assert_eq!(worker.step_short(&mut running, None, 1), Err(Stop::Awaited));
            worker.engine.end_everything(Error::Aborted { code: 3 });
            let nothing = crate::coll::CallBuffers {
                send: None,
                recv: None,
            };
            let call = crate::coll::Call::Begun;
            let bcast = Collective::Bcast { root: 0 };
            let error = worker.start_collective(slot, &bcast, nothing, call);
            assert!(
                matches!(error, Err(Error::Aborted { code: 3 })),
                "{error:?}"
            );
            heap.fill(99);
            over.store(true, Ordering::Release);
        } else {
            while !over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            world.bcast(&mut heap[..], 0).expect_err("given up");
        }
    });
}

/// What this rank's line of the last collective says.
fn last_given(rt: &Runtime) -> Content {
    let world = rt.world();
    let slot = world.index.expect("a slot");
    let worker = world.handle.gate.enter();
    let comm = worker.collectives.slots[slot].as_deref().expect("open");
    let line = comm.state.own().read_line(comm.state.seq);
    line.expect("a good line").content
}

/// Two ranks that give in turn do so in the spare slot that they have read last. Who alone gives has none, and uses
/// the slots of its lines.
#[test]
fn two_ranks_hand_spare_slots_to_each_other() {
    const BYTES: usize = 4096;
    local(2, |rt| {
        let (world, me) = (rt.world(), rt.rank());
        let mine = |round: usize| vec![(round * 2 + me) as u8; BYTES];
        let theirs = |round: usize| vec![(round * 2 + 1 - me) as u8; BYTES];
        let mut all = vec![0; 2 * BYTES];
        let first = world.allgather(&mine(0), &mut all);
        first.expect("the slots are there");
        let spare_of = |turn: usize| match turn % 2 {
            0 => SpareOf::Giver,
            _ => SpareOf::Reader,
        };
        for round in 0..5 {
            world.allgather(&mine(round), &mut all).expect("allgather");
            assert_eq!(last_given(&rt), Content::Spare(spare_of(2 * round), BYTES));
            assert_eq!(all[(1 - me) * BYTES..][..BYTES], theirs(round));
            let mut sum = vec![0; BYTES];
            world
                .allreduce(&mine(round), &mut sum, PredefinedOp::Sum)
                .expect("allreduce");
            assert_eq!(
                last_given(&rt),
                Content::Spare(spare_of(2 * round + 1), BYTES)
            );
            assert!(sum.iter().all(|&byte| byte == (round * 4 + 1) as u8));
        }
        for round in 0..8 {
            let mut bytes = mine(round);
            world.bcast(&mut bytes, round % 2).expect("bcast");
            if round % 2 == me {
                let of = if round == 0 {
                    SpareOf::Giver
                } else {
                    SpareOf::Reader
                };
                assert!(
                    matches!(last_given(&rt), Content::Spare(_, BYTES)),
                    "{round} {of:?}"
                );
            } else {
                assert_eq!(bytes, theirs(round));
            }
        }
        for round in 0..20 {
            let mut bytes = mine(round);
            world.bcast(&mut bytes, 0).expect("bcast");
            if me == 0 {
                let is_slot = last_given(&rt) == Content::Slot(BYTES);
                assert!(is_slot || round < 2, "{round}");
            } else {
                assert_eq!(bytes, theirs(round));
            }
        }
        rt.finalize().expect("finalize");
    });
}

/// Whatever two ranks do, each spare slot is held by one of them in the end: what is given in one is read.
#[test]
fn no_spare_slot_is_lost() {
    const BYTES: usize = 8192;
    const KINDS: usize = 11;
    let held = [Mutex::new(None), Mutex::new(None)];
    let both = std::sync::Barrier::new(2);
    local(2, |rt| {
        let (world, me) = (rt.world(), rt.rank());
        let mine = vec![me as u8; BYTES];
        let twice = vec![me as u8; 2 * BYTES];
        let mut got = vec![0; 2 * BYTES];
        let sum = PredefinedOp::Sum;
        let mut call = |kind: usize, root: usize| -> Result<(), Error> {
            let one = &mut got[..BYTES];
            match kind {
                0 => world.bcast(one, root),
                1 => world.gather(&mine, if me == root { &mut got[..] } else { &mut [] }, root),
                2 => world.scatter(if me == root { &twice[..] } else { &[] }, one, root),
                3 => world.allgather(&mine, &mut got),
                4 => world.alltoall(&twice, &mut got),
                5 => world.reduce(&mine, if me == root { one } else { &mut [] }, sum, root),
                6 => world.allreduce(&mine, one, sum),
                7 => world.reduce_scatter_block(&twice, one, sum),
                8 => world.scan(&mine, one, sum),
                9 => world.exscan(&mine, one, sum),
                _ => world.allreduce_in_place(one, sum),
            }
        };
        for kind in 0..KINDS {
            for turn in 0..5 {
                // The rank that is late finds the other one's contribution, or is awaited by a request.
                if (kind + turn) % 4 == me {
                    std::thread::sleep(Duration::from_millis(2));
                }
                call(kind, turn % 2).expect("a collective");
                let slot = world.index.expect("a slot");
                let worker = world.handle.gate.enter();
                let comm = worker.collectives.slots[slot].as_deref().expect("open");
                *held[me].lock().expect("a lock") = Some(comm.state.spares);
                drop(worker);
                both.wait();
                let spares = [0, 1].map(|rank: usize| {
                    let held = held[rank].lock().expect("a lock");
                    held.expect("it was called")
                });
                for place in 0..2 {
                    let holders = spares.iter().filter(|spares| spares.holds(place)).count();
                    assert_eq!(holders, 1, "{kind}, {turn}: {spares:?}");
                }
                both.wait();
            }
        }
        rt.finalize().expect("finalize");
    });
}
