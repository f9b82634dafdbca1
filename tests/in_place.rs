// SPDX-License-Identifier: MIT OR Apache-2.0
//! A vector that its own result replaces stays readable until all others have read it, however late they come. So a
//! rank goes on with other work here while the other one does all that it can.

use onecopy::coll::{Collective, ElemType, Op, PredefinedOp};
use onecopy::{Comm, HeapBuf, Knobs, Runtime, local_with};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// How long the quick rank tries to end the collective alone. It ends before, or waits for the other one.
const ALONE: Duration = Duration::from_millis(2);

fn element(rank: usize, index: usize) -> u64 {
    (rank as u64 + 1) << 32 | index as u64
}

/// Starts an in-place sum on `bytes` and ends it: the quick rank at once, the other one when that has done what it can.
fn sum<B: onecopy::BufferMut>(pair: &Comm, bytes: B, is_quick: bool, tried: &Barrier) -> B {
    let sum = Collective::Allreduce {
        elem: ElemType::U64,
        op: Op::from(PredefinedOp::Sum),
    };
    let request = pair.start(&sum, None::<Vec<u8>>, Some(bytes));
    let mut request = request.expect("it starts");
    if is_quick {
        let begin = Instant::now();
        while !request.test() && begin.elapsed() < ALONE {
            std::thread::yield_now();
        }
    }
    tried.wait();
    request.wait().expect("it ends").1.expect("the buffer")
}

fn check(
    rt: &Runtime,
    pair: &Comm,
    (len, in_heap, is_quick): (usize, bool, bool),
    tried: &Barrier,
    wrong: &Mutex<Vec<String>>,
) {
    let count = len / 8;
    let own: Vec<u8> = (0..count)
        .flat_map(|index| element(pair.rank(), index).to_ne_bytes())
        .collect();
    let expected: Vec<u8> = (0..count)
        .flat_map(|index| (element(0, index) + element(1, index)).to_ne_bytes())
        .collect();
    let same = if in_heap {
        let mut bytes: HeapBuf = rt.alloc(own.len()).expect("memory");
        bytes.copy_from_slice(&own);
        sum(pair, bytes, is_quick, tried)[..] == expected
    } else {
        sum(pair, own, is_quick, tried) == expected
    };
    // A rank that ended here would leave the other one waiting.
    if !same {
        let case = format!("{len} bytes, heap: {in_heap}, quick: {is_quick}");
        wrong.lock().expect("lock").push(case);
    }
}

/// Two ranks, in a job that has long slots and in one that has not, with temporary memory and without.
#[test]
fn a_vector_that_the_result_replaces_is_read_before() {
    for (ranks, pool) in [(2, "20M"), (5, "20M"), (5, "3M")] {
        let knobs = Knobs::from_iter([("ONECOPY_COLL_POOL", pool)]);
        let (tried, wrong) = (Barrier::new(2), Mutex::new(Vec::new()));
        local_with(ranks, &knobs.expect("a knob").0, |rt| {
            let world = rt.world();
            let color = u32::from(rt.rank() > 1);
            let pair = world.split(Some(color), 0).expect("split").expect("a part");
            if color == 0 {
                for len in [48, 4096, 4104, 8192, 16_384, 16_392, 100_000, 300_000] {
                    for case in 0..8 {
                        let (quick, heaps) = (case % 2, [case / 2 % 2 == 1, case / 4 == 1]);
                        let me = pair.rank();
                        let call = (len, heaps[me], me == quick);
                        check(&rt, &pair, call, &tried, &wrong);
                    }
                }
            }
            rt.finalize().expect("finalize");
        });
        let wrong = wrong.into_inner().expect("lock");
        assert!(wrong.is_empty(), "{ranks} ranks, {pool}: {wrong:#?}");
    }
}
