// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::coll::Collective;
use crate::runtime::{Runtime, local};
use onecopy_shm::layout::COLL_SLOT_LONG;

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

/// What a member gives counts, not what it has for itself.
#[test]
fn what_fits_into_a_slot_is_short() {
    for (size, most) in [(2, COLL_SLOT_LONG), (4, COLL_SLOT_LONG / 4)] {
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
        for part in [0, 1, 48, 49, 4095, 4096, 4097, 9001, 16_383, 16_384] {
            exchanges(&rt, false, part);
            exchanges(&rt, true, part);
        }
        rt.finalize().expect("finalize");
    });
}
