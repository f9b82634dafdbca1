// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives of an engine whose members write what the input says into the lines and slots of
//! their channels, at any step of the way.

use crate::engine::Victim;
use crate::input::Input;
use crate::stage::{Next, Shared, play};
use onecopy::CollRequest;
use onecopy::Runtime;
use onecopy::coll::{Collective, ElemType, Parts, PredefinedOp};

const MOST: usize = 6;

pub(crate) fn run(data: &[u8]) {
    play(data, 18, act);
}

fn act(runtime: &Runtime, script: &Shared) {
    let mut victim = Victim::new(runtime);
    let mut under_way = Vec::new();
    loop {
        let next = script.lock().step();
        match next {
            Next::Over => break,
            Next::Peers => {}
            // Now and then something else than a collective.
            Next::Victim(choice @ 240..) => victim.turn(script, choice),
            Next::Victim(choice) => collective(&victim, script, choice, &mut under_way),
        }
    }
    for request in under_way {
        drop(request.wait_both());
    }
    victim.finish();
}

type Started = CollRequest<Vec<u8>, Vec<u8>>;

fn collective(victim: &Victim<'_>, script: &Shared, choice: u8, under_way: &mut Vec<Started>) {
    let size = victim.world.size();
    let (root, len, op, flags) = {
        let mut script = script.lock();
        script.collectives = script.collectives.wrapping_add(1);
        let input = &mut script.input;
        let root = input.below(size as u64) as usize;
        let len = match input.byte() {
            small @ 0..=63 => usize::from(small) * 8,
            middle @ 64..=191 => usize::from(middle) * 64,
            large => (usize::from(large) - 190) * 4096,
        };
        (root, len, input.byte(), input.byte())
    };
    let elem = [ElemType::U64, ElemType::F64, ElemType::I32, ElemType::U8][usize::from(op % 4)];
    let op =
        [PredefinedOp::Sum, PredefinedOp::Max, PredefinedOp::Prod][usize::from(op / 4 % 3)].into();
    let equal = Parts::Equal(len);
    let all = len * size;
    let is_root = root == 0;
    // What to do, bytes given, bytes taken.
    let (what, give, take) = match choice % 12 {
        0 => (Collective::Barrier, None, None),
        1 | 2 => (Collective::Bcast { root }, None, Some(len)),
        3 => (Collective::Allgather { parts: equal }, Some(len), Some(all)),
        4 | 5 => (Collective::Allreduce { elem, op }, Some(len), Some(len)),
        6 => {
            let send = equal.clone();
            (
                Collective::Alltoall { send, recv: equal },
                Some(all),
                Some(all),
            )
        }
        7 => (
            Collective::Reduce { elem, op, root },
            Some(len),
            is_root.then_some(len),
        ),
        8 => {
            let parts = equal;
            (
                Collective::ReduceScatter { parts, elem, op },
                Some(all),
                Some(len),
            )
        }
        9 => (Collective::Scan { elem, op }, Some(len), Some(len)),
        10 => (
            Collective::Gather { root, parts: equal },
            Some(len),
            is_root.then_some(all),
        ),
        _ => (
            Collective::Scatter { root, parts: equal },
            is_root.then_some(all),
            Some(len),
        ),
    };
    let give = give.map(|len| (0..len).map(|index| index as u8).collect::<Vec<u8>>());
    let take = take.map(|len| vec![0u8; len]);
    if flags % 2 == 0 && under_way.len() < MOST {
        under_way.extend(victim.world.start(&what, give, take));
    } else {
        let mut take = take;
        let _ = victim
            .world
            .run(&what, give.as_deref(), take.as_deref_mut());
    }
    if flags & 4 != 0 {
        for request in under_way.iter_mut() {
            request.test();
        }
    }
}

/// A line of the first peer for the collective after those that were started.
fn line(behind: u8, kind: u8, len: u8, phase: u8, words: [u64; 6]) -> Vec<u8> {
    let mut step = vec![0, 0, 4 + behind, kind, 0, len, phase];
    step.extend(words.iter().flat_map(|&word| Input::spell(word)));
    step
}

fn call(choice: u8, root: u8, len: u8, op: u8, flags: u8) -> Vec<u8> {
    vec![31, choice, root, len, op, flags]
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let joined = |steps: &[Vec<u8>]| [&[0][..], &steps.concat()].concat();
    let seven = [7; 6];
    let done = |seq: u8| vec![0, 6, 4 + seq];
    let mut seeds = Vec::new();
    // Each collective with the peer's part there before it, and behind it; short, in a slot, in a buffer.
    for choice in 0..12 {
        seeds.push(joined(&[
            line(1, 1, 8, 0, seven),
            call(choice, 1, 1, 0, 1),
            done(0),
        ]));
        seeds.push(joined(&[
            call(choice, 1, 20, 0, 0),
            line(0, 2, 0, 0, [160; 6]),
            done(0),
        ]));
        let buffer = [0, 64, 64 * 100, 0, 4096, 64 * 100];
        seeds.push(joined(&[
            call(choice, 1, 100, 4, 0),
            line(0, 3, 24, 0, buffer),
            line(0, 6, 48, 1, buffer),
            done(0),
        ]));
    }
    // A peer that asks the victim to copy.
    seeds.push(joined(&[
        call(1, 0, 200, 0, 0),
        vec![0, 9, 4, 1, 0, 0, 0, 250, 0, 16, 0, 0, 0, 0, 0, 0, 0],
        done(0),
    ]));
    seeds
}
