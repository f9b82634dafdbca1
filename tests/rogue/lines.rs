// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines of collectives: every kind, length and phase, and what they describe, in every collective. A rank that reads
//! nonsense fails the collective and the member, by its name; whatever it reads, it ends, and it does not crash.

use super::stage::collective;
use onecopy::coll::{Collective, ElemType, Op, Parts, PredefinedOp};
use onecopy::{Comm, Error, Result};
use onecopy_shm::coll::{Channel, INLINE, Info, kind};
use onecopy_shm::layout::{COLL_SLOT, COLL_SLOT_LONG};

/// What the rogue writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    kind: u8,
    len: u8,
    words: [u64; 6],
}

const NO_HEAP: u64 = u64::MAX;
/// As `stage::knobs` has it.
const HEAP: u64 = 4 << 20;

impl Line {
    const fn of(kind: u8, len: usize, words: [u64; 6]) -> Self {
        let len = len as u8;
        Self { kind, len, words }
    }

    pub(super) fn publish(&self, end: &Channel, phase: u32, done: u32) {
        let info = Info {
            done,
            kind: self.kind,
            len: self.len,
        };
        let payload: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        end.publish(1, phase, info, &payload);
    }
}

/// Lines that no correct member writes.
pub(super) fn nonsense() -> Vec<Line> {
    let mut lines = Vec::new();
    for len in [49, 64, 100, 255] {
        lines.push(Line::of(kind::INLINE, len, [1; 6]));
    }
    for there in [
        COLL_SLOT_LONG as u64 + 1,
        100_000,
        1 << 32,
        1 << 63,
        u64::MAX,
    ] {
        for kind in [kind::SLOT, kind::SPARE, kind::READERS_SPARE] {
            lines.push(Line::of(kind, 8, [there, 0, 0, 0, 0, 0]));
        }
    }
    for len in [1, 7, 9, INLINE, 49, 255] {
        lines.push(Line::of(kind::SLOT, len, [8; 6]));
        lines.push(Line::of(kind::SPARE, len, [8; 6]));
        lines.push(Line::of(kind::READERS_SPARE, len, [8; 6]));
    }
    lines.push(Line::of(kind::SPARE, 0, [8; 6]));
    for len in [0, 24, 47, 49, 255] {
        lines.push(Line::of(kind::BUFFER, len, [0; 6]));
        lines.push(Line::of(kind::MESSAGE, len, [0, NO_HEAP, 8, 0, 0, 0]));
        lines.push(Line::of(kind::PIECES, len, [0, 0, 8, 0, NO_HEAP, 8]));
    }
    lines.push(Line::of(kind::MESSAGE, INLINE, [0, 8, 8, 0, 0, 0]));
    lines.push(Line::of(kind::MESSAGE, INLINE, [8, NO_HEAP, 8, 0, 0, 0]));
    lines.push(Line::of(
        kind::PIECES,
        INLINE,
        [8, NO_HEAP, 8, 0, NO_HEAP, 8],
    ));
    lines.push(Line::of(kind::PIECES, INLINE, [0, HEAP, 1, 0, NO_HEAP, 8]));
    lines.push(Line::of(kind::PIECES, INLINE, [0, 0, 8, 8, NO_HEAP, 8]));
    lines.push(Line::of(kind::PIECES, INLINE, [0, 0, 8, 0, 0, 8]));
    for unknown in kind::READERS_SPARE + 1..=kind::MASK {
        lines.push(Line::of(unknown, INLINE, [8; 6]));
    }
    for [address, heap, len] in [
        [0, 0, HEAP + 1],
        [0, HEAP, 1],
        [0, NO_HEAP - 1, 8],
        [0, 1 << 63, 1 << 63],
        [u64::MAX, NO_HEAP, 1],
        [1 << 63, NO_HEAP, u64::MAX],
    ] {
        lines.push(Line::of(
            kind::BUFFER,
            INLINE,
            [address, heap, len, 0, 0, 0],
        ));
        let open = kind::BUFFER | kind::OPEN;
        lines.push(Line::of(open, INLINE, [0, 0, 8, address, heap, len]));
    }
    lines
}

/// Lines that could be right, of which some are lies.
pub(super) fn lies() -> Vec<Line> {
    let mut lines = Vec::new();
    for flags in [
        0,
        kind::TABLE,
        kind::OPEN,
        kind::WRITES,
        kind::ANSWERS,
        0xf0,
    ] {
        lines.push(Line::of(kind::NOTHING | flags, 0, [0; 6]));
        lines.push(Line::of(kind::NOTHING | flags, INLINE, [0; 6]));
        for len in [0, 8, INLINE] {
            lines.push(Line::of(kind::INLINE | flags, len, [3; 6]));
        }
        for there in [0, 8, 2000, COLL_SLOT as u64] {
            for kind in [kind::SLOT, kind::SPARE, kind::READERS_SPARE] {
                lines.push(Line::of(kind | flags, 8, [there; 6]));
            }
        }
        lines.push(Line::of(kind::SLOT | flags, 0, [9; 6]));
        for len in [0, 8, 2000, 100_000, 200_000] {
            // In the heap, where the victim maps it, and at an address of nothing.
            let mapped = [4096, 0, len, 4096, 0, len];
            lines.push(Line::of(kind::BUFFER | flags, INLINE, mapped));
            let plain = [4096, NO_HEAP, len, 4096, NO_HEAP, len];
            lines.push(Line::of(kind::BUFFER | flags, INLINE, plain));
            // None follows.
            let message = [0, NO_HEAP, len, 0, NO_HEAP, 0];
            lines.push(Line::of(kind::MESSAGE | flags, INLINE, message));
            // Through a buffer that is there, is too short, or has no room for all.
            let pieces = [4096, 0, len, 0, NO_HEAP, 100_000];
            lines.push(Line::of(kind::PIECES | flags, INLINE, pieces));
            let pieces = [4096, 0, 32 << 10, 0, NO_HEAP, len];
            lines.push(Line::of(kind::PIECES | flags, INLINE, pieces));
        }
    }
    lines
}

/// A collective of two ranks or more, and how the victim calls it. The rogue is the other one of ranks 0 and 1.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) victim: usize,
    what: Collective,
    send: Option<usize>,
    recv: Option<usize>,
}

pub(super) fn calls(ranks: usize) -> Vec<Call> {
    let sum = || Op::from(PredefinedOp::Sum);
    let first = || Op::user(|left, right| right.copy_from_slice(left));
    let elem = ElemType::U64;
    let mut calls = Vec::new();
    let mut add = |name, victim, what, send: usize, recv: usize| {
        calls.push(Call {
            name,
            victim,
            what,
            send: (send > 0).then_some(send),
            recv: (recv > 0).then_some(recv),
        });
    };
    // In the line, in the slot, in a buffer.
    for n in [8, 64, 2000, 100_000] {
        let offsets: Vec<usize> = (0..ranks).map(|place| place * n).collect();
        let listed = Parts::listed(&vec![n; ranks], &offsets, 1);
        let (equal, all) = (Parts::Equal(n), ranks * n);
        add("bcast", 0, Collective::Bcast { root: 1 }, 0, n);
        let gather = |parts: &Parts| Collective::Gather {
            root: 0,
            parts: parts.clone(),
        };
        add("gather", 0, gather(&equal), n, all);
        let scatter = Collective::Scatter {
            root: 1,
            parts: equal.clone(),
        };
        add("scatter", 0, scatter, 0, n);
        for parts in [&equal, &listed] {
            let allgather = Collective::Allgather {
                parts: parts.clone(),
            };
            add("allgather", 0, allgather, n, all);
            let alltoall = Collective::Alltoall {
                send: parts.clone(),
                recv: parts.clone(),
            };
            add("alltoall", 0, alltoall.clone(), all, all);
            add("alltoall in place", 0, alltoall, 0, all);
        }
        for op in [sum(), first()] {
            let reduce = Collective::Reduce {
                root: 0,
                elem,
                op: op.clone(),
            };
            add("reduce", 0, reduce, n, n);
            let allreduce = Collective::Allreduce {
                elem,
                op: op.clone(),
            };
            add("allreduce", 0, allreduce.clone(), n, n);
            add("allreduce in place", 1, allreduce, 0, n);
            let scatter = Collective::ReduceScatter {
                parts: equal.clone(),
                elem,
                op: op.clone(),
            };
            add("reduce scatter", 0, scatter, all, n);
            let scan = Collective::Scan {
                elem,
                op: op.clone(),
            };
            add("scan", 1, scan, n, n);
            let exscan = Collective::Exscan { elem, op };
            add("exscan", 1, exscan.clone(), n, n);
            add("exscan in place", 1, exscan, 0, n);
        }
    }
    calls
}

impl Call {
    /// Blocking, on slices, or by a request.
    pub(super) fn run(&self, world: &Comm, blocking: bool) -> Result<()> {
        let buffer = |len: Option<usize>| len.map(|len| vec![1u8; len]);
        let (send, mut recv) = (buffer(self.send), buffer(self.recv));
        if blocking {
            return world.run(&self.what, send.as_deref(), recv.as_deref_mut());
        }
        world
            .start(&self.what, send, recv)?
            .wait()?
            .1
            .map_or(Ok(()), |_| Ok(()))
    }

    fn play(&self, blocking: bool, name: &str, line: impl FnOnce(&Channel) + Send) -> Result<()> {
        let rogue = 1 - self.victim;
        let mut results = collective(name, 2, rogue, line, |world| self.run(world, blocking));
        results.pop().expect("the victim's")
    }
}

#[test]
fn nonsense_fails_the_member_by_its_name() {
    let lines = nonsense();
    for (turn, call) in calls(2).iter().enumerate() {
        let rogue = 1 - call.victim;
        // Each collective meets a part of the lines, and all lines are met by several of each length.
        for (index, line) in lines.iter().enumerate().skip(turn % 3).step_by(3) {
            let name = format!("{}: {line:?}", call.name);
            let publish = |end: &Channel| line.publish(end, 1, 0);
            let result = call.play(index % 2 == 0, &name, publish);
            assert!(
                matches!(&result, Err(Error::Protocol { rank, .. }) if *rank == rogue),
                "{name}: {result:?}"
            );
        }
    }
}

#[test]
fn whatever_a_line_says_the_collective_ends() {
    let lines: Vec<Line> = nonsense().into_iter().chain(lies()).collect();
    let phases = [1, 2, 3, 1 << 20, u32::MAX];
    for (turn, call) in calls(2).iter().enumerate() {
        for (index, line) in lines.iter().enumerate().skip(turn % 4).step_by(4) {
            let phase = phases[(turn + index) % phases.len()];
            let done = [0, 1, 9, 1 << 31, u32::MAX][(turn * 3 + index) % 5];
            let name = format!("{}, phase {phase}, done {done}: {line:?}", call.name);
            let publish = |end: &Channel| {
                end.write_slot(1, 0, &[0xff; COLL_SLOT][..(index * 509) % COLL_SLOT]);
                end.set_done(done);
                end.set_ack(1, phase);
                line.publish(end, phase, done);
            };
            // It may well be a result: a rogue can contribute what it likes.
            let _ = call.play(index % 2 == 1, &name, publish);
        }
    }
}

/// A line that changes all the time: what was checked is what is used.
#[test]
fn a_line_that_changes_while_it_is_read() {
    let lines: Vec<Line> = nonsense().into_iter().chain(lies()).collect();
    for (turn, call) in calls(2).iter().enumerate() {
        let name = format!("{} with a line that changes", call.name);
        let publish = |end: &Channel| {
            for round in 0..3000 {
                let line = &lines[(turn + round * 7) % lines.len()];
                line.publish(end, 1 + round as u32 % 3, 0);
            }
        };
        let _ = call.play(turn % 2 == 0, &name, publish);
    }
}

/// More ranks than share a line at once: reductions of short vectors go up a tree.
#[test]
fn nonsense_in_a_tree() {
    let sum = Op::from(PredefinedOp::Sum);
    let elem = ElemType::U64;
    for line in nonsense().iter().step_by(4) {
        for (rogue, n) in [(0, 8), (9, 8), (9, 2000)] {
            let name = format!("a tree of 10, rank {rogue}: {line:?}");
            let allreduce = Collective::Allreduce {
                elem,
                op: sum.clone(),
            };
            let publish = |end: &Channel| line.publish(end, 1, 0);
            let results = collective(&name, 10, rogue, publish, |world| {
                let (send, mut recv) = (vec![1u8; n], vec![0u8; n]);
                world.run(&allreduce, Some(&send), Some(&mut recv))
            });
            assert!(results.iter().all(Result::is_err), "{name}: {results:?}");
            let named = |result: &Result<()>| matches!(result, Err(Error::Protocol { rank, .. }) if *rank == rogue);
            assert!(results.iter().any(named), "{name}: {results:?}");
        }
    }
}

/// A rogue that asks and asks, while its victim waits for another rank that has died: the victim learns of the death.
#[test]
fn copy_requests_without_end_do_not_keep_the_victim() {
    use onecopy_shm::coll::CopyRequest;
    use onecopy_shm::layout::COLL_STAGE;
    use onecopy_shm::sync::{AtomicBool, Ordering};
    let (over, name) = (AtomicBool::new(false), "copy requests without end");
    super::stage::asked_without_end(
        name,
        |own, victim| {
            let mut ticket = 0u32;
            // It gives what it has to give as all do, so that the victim is served by it, and waits for the third
            // rank only.
            let info = Info {
                done: 0,
                kind: kind::BUFFER,
                len: INLINE as u8,
            };
            let payload: Vec<u8> = [4096u64, 0, 100_000, 0, 0, 0]
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect();
            own.publish(1, 1, info, &payload);
            while !over.load(Ordering::Relaxed) {
                ticket = ticket.wrapping_add(1).max(1);
                let request = CopyRequest {
                    seq: 1,
                    ticket,
                    owner: 0,
                    buffer: 0,
                    offset: 0,
                    len: COLL_STAGE as u32,
                };
                own.ask(victim, 2, ticket as usize, request);
            }
        },
        |world| {
            let (send, mut recv) = (vec![1u8; 100_000], vec![0u8; 300_000]);
            let parts = Parts::Equal(100_000);
            let result = world.run(
                &Collective::Allgather { parts },
                Some(&send),
                Some(&mut recv),
            );
            over.store(true, Ordering::Relaxed);
            assert!(result.is_err(), "a rank is missing");
        },
    );
}
