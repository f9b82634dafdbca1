// SPDX-License-Identifier: MIT OR Apache-2.0
use crate::coll::{ByteRange, Collective, ElemType, Op, Parts, PredefinedOp};
use crate::comm::Comm;
use crate::runtime::{Runtime, local, local_with};
use onecopy_btl::registry::Power;
use onecopy_btl::{CopyError, LayerId};
use onecopy_obs::Knobs;
use onecopy_shm::coll::{View, combine};
use onecopy_shm::heap::HeapBuf;
use onecopy_shm::layout::COLL_SLOT_LONG;

/// A buffer that others map, or not.
enum Memory {
    Heap(HeapBuf),
    Plain(Vec<u8>),
}

impl Memory {
    fn of(rt: &Runtime, heap: bool, bytes: &[u8]) -> Self {
        let mut memory = if heap {
            Self::Heap(rt.alloc(bytes.len()).expect("memory"))
        } else {
            Self::Plain(vec![0; bytes.len()])
        };
        memory.bytes().copy_from_slice(bytes);
        memory
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Plain(bytes) => bytes,
        }
    }
}

/// The vector of a rank: numbers that no operator takes out of what a double or an index can hold.
fn vector(elem: ElemType, len: usize, rank: usize) -> Vec<u8> {
    let len = len / elem.size() * elem.size();
    (0..len)
        .map(|at| ((at * 7 + at / 251 + rank * 13) % 61) as u8)
        .collect()
}

/// What two vectors combined are. An operator of the program here does not commute.
fn combined(op: &Op, elem: ElemType, [left, right]: [&[u8]; 2]) -> Vec<u8> {
    let mut out = right.to_vec();
    match op {
        Op::Predefined(op) => combine(*op, elem, &mut out, View::of(left), View::of(right)),
        Op::User(function) => function(left, &mut out),
    }
    out
}

/// The left operand's bytes, but for the last one of each element.
fn mixing(elem: ElemType) -> Op {
    let size = elem.size();
    Op::user(move |left, right| {
        for (left, right) in left.chunks(size).zip(right.chunks_mut(size)) {
            right[..size - 1].copy_from_slice(&left[..size - 1]);
        }
    })
}

/// Whether the other rank reads by calls of the kernel what it cannot map.
fn reads_by_calls(rt: &Runtime) -> bool {
    let worker = &*rt.handle().gate.enter();
    let peer = worker.engine.peers[1 - rt.rank()].as_deref();
    peer.is_some_and(|peer| peer.link.proven().by(Power::Copy).next().is_some())
}

/// How many vectors this rank has given in pieces.
fn in_pieces(rt: &Runtime) -> u64 {
    rt.counters().coll_in_pieces
}

/// Runs all reductions of two ranks on such vectors. `heap`: whether buffers are mapped, by rank.
fn reductions(rt: &Runtime, (op, elem): (&Op, ElemType), len: usize, heap: [bool; 2]) {
    let (me, world) = (rt.rank(), rt.world());
    let vectors = [0, 1].map(|rank| vector(elem, len, rank));
    let expected = combined(op, elem, [&vectors[0], &vectors[1]]);
    let len = expected.len();
    let what = format!("{op:?} of {elem:?}, {len} bytes, mapped: {heap:?}");
    let new = |bytes: &[u8]| Memory::of(rt, heap[me], bytes);
    let gives = u64::from(!heap[me] && len > COLL_SLOT_LONG);
    let run = |collective: &Collective, send: Option<&[u8]>, recv: Option<&mut [u8]>| {
        world.run(collective, send, recv).expect("a reduction");
    };
    let all = Collective::Allreduce {
        elem,
        op: op.clone(),
    };
    let before = in_pieces(rt);
    let (mut send, mut recv) = (new(&vectors[me]), new(&vec![0xa5; len]));
    run(&all, Some(send.bytes()), Some(recv.bytes()));
    assert!(*recv.bytes() == *expected, "allreduce: {what}");
    assert!(*send.bytes() == *vectors[me], "the vector stays: {what}");
    let mut place = new(&vectors[me]);
    run(&all, None, Some(place.bytes()));
    assert!(*place.bytes() == *expected, "allreduce in place: {what}");
    assert_eq!(in_pieces(rt) - before, 2 * gives, "{what}");
    for root in 0..2 {
        let reduce = Collective::Reduce {
            root,
            elem,
            op: op.clone(),
        };
        let before = in_pieces(rt);
        let mut recv = new(&vec![0xa5; len]);
        let result = (me == root).then(|| recv.bytes());
        run(&reduce, Some(send.bytes()), result);
        assert!(me != root || *recv.bytes() == *expected, "reduce: {what}");
        let mut place = new(&vectors[me]);
        match me == root {
            true => run(&reduce, None, Some(place.bytes())),
            false => run(&reduce, Some(place.bytes()), None),
        }
        let there = if me == root { &expected } else { &vectors[me] };
        assert!(*place.bytes() == **there, "reduce in place: {what}");
        let given = if me == root { 0 } else { 2 * gives };
        let in_pieces = in_pieces(rt) - before;
        // What one rank alone combines it reads by the kernel where that is cheaper.
        assert!(
            in_pieces == given || in_pieces == 0 && reads_by_calls(rt),
            "{what}: {in_pieces}"
        );
    }
    // A third for one rank: both give more than a slot takes only of long vectors. An element, or nothing.
    let third = len / elem.size() / 3 * elem.size();
    for front in [third, elem.size().min(len), 0] {
        scatter(
            rt,
            (op, elem),
            [front, len - front],
            (&vectors[me], heap[me], &expected),
        );
        scatter(
            rt,
            (op, elem),
            [len - front, front],
            (&vectors[me], heap[me], &expected),
        );
    }
}

/// Scatters the result in two parts.
fn scatter(
    rt: &Runtime,
    (op, elem): (&Op, ElemType),
    [front, back]: [usize; 2],
    (vector, heap, expected): (&[u8], bool, &[u8]),
) {
    let (me, world) = (rt.rank(), rt.world());
    let parts = [
        ByteRange::first(front),
        ByteRange::between(front, front + back),
    ];
    let what = format!("{op:?} of {elem:?}, {front} and {back} bytes, mapped: {heap}");
    let scatter = Collective::ReduceScatter {
        parts: Parts::Listed(parts.into()),
        elem,
        op: op.clone(),
    };
    let ByteRange {
        offset: begin,
        len: part,
    } = parts[me];
    let mut send = Memory::of(rt, heap, vector);
    let mut recv = Memory::of(rt, heap, &vec![0xa5; part]);
    let run = |send: Option<&[u8]>, recv: &mut [u8]| {
        world.run(&scatter, send, Some(recv)).expect("a reduction");
    };
    run(Some(send.bytes()), recv.bytes());
    let mine = &expected[begin..begin + part];
    assert!(*recv.bytes() == *mine, "reduce_scatter: {what}");
    let mut place = Memory::of(rt, heap, vector);
    run(None, place.bytes());
    assert!(
        place.bytes()[..part] == *mine,
        "reduce_scatter in place: {what}"
    );
}

const MAPPED: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

#[test]
fn every_operator_on_every_type() {
    local(2, |rt| {
        for elem in ElemType::KNOWN {
            for op in PredefinedOp::ALL.into_iter().filter(|op| op.accepts(elem)) {
                for heap in MAPPED {
                    reductions(&rt, (&op.into(), elem), 40_000, heap);
                }
            }
        }
        rt.finalize().expect("finalize");
    });
}

/// Lengths about a slot, a piece and a bounce buffer; elements that fit no piece; operators that do not commute.
#[test]
fn lengths_and_operators_of_the_program() {
    // The user has decided, so that no times decide what is counted here.
    for knob in [
        ("ONECOPY_CMA_MIN", "32K"),
        ("ONECOPY_LAYERS", "self,heap,cico"),
    ] {
        let knobs = Knobs::from_iter([knob]).expect("a knob").0;
        local_with(2, &knobs, |rt| {
            for elem in [1, 3, 12, 2047, 2048].map(ElemType::Opaque) {
                for len in [0, 4097, 16_384, 16_385, 20_000, 32_768, 131_072, 300_001] {
                    for heap in MAPPED {
                        reductions(&rt, (&mixing(elem), elem), len, heap);
                    }
                }
            }
            rt.finalize().expect("finalize");
        });
    }
}

/// Only two ranks give pieces: of one, or of more, nobody does. Results are those of the order of the ranks.
#[test]
fn other_numbers_of_ranks_give_no_pieces() {
    for size in [1, 3, 4, 5] {
        local(size, |rt| {
            let elem = ElemType::Opaque(8);
            let op = mixing(elem);
            let own = vector(elem, 100_000, rt.rank());
            let mut expected = vector(elem, 100_000, 0);
            for rank in 1..rt.size() {
                expected = combined(&op, elem, [&expected, &vector(elem, 100_000, rank)]);
            }
            let mut recv = vec![0; own.len()];
            let all = Collective::Allreduce { elem, op };
            rt.world()
                .run(&all, Some(&own), Some(&mut recv))
                .expect("allreduce");
            assert!(recv == expected, "{size} ranks");
            assert_eq!(in_pieces(&rt), 0);
            rt.finalize().expect("finalize");
        });
    }
}

/// Nobody reads by the kernel, so that pieces are chosen on every machine.
fn without_calls() -> Knobs {
    let layers = [("ONECOPY_LAYERS", "self,heap,cico")];
    Knobs::from_iter(layers).expect("layers").0
}

/// Numbers by which a test chooses, the same on both ranks.
struct Choices(u64);

impl Choices {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// Words that a rank gives in a step.
fn words(step: usize, rank: usize, count: usize) -> Vec<u64> {
    (0..count)
        .map(|at| (at * 3 + step * 1000 + rank) as u64)
        .collect()
}

fn bytes(words: &[u64]) -> &[u8] {
    bytemuck::cast_slice(words)
}

/// One collective of two ranks, in any memory, blocking or not: what each gives, and what it should get.
struct Case {
    collective: Collective,
    send: Option<Vec<u64>>,
    expected: Option<Vec<u64>>,
}

impl Case {
    fn chosen(choices: &mut Choices, step: usize, me: usize) -> Self {
        // Of eight bytes: shorter than a slot, a few pieces, and longer than a kept buffer.
        let count = [1500, 2100, 4096, 6000, 8192, 20_000, 33_000, 100_000][choices.below(8)];
        let (root, elem) = (choices.below(2), ElemType::U64);
        let all = [0, 1].map(|rank| words(step, rank, count));
        let parts = || Parts::Equal(8 * count);
        let both = || all.concat();
        let sum = || {
            all[0]
                .iter()
                .zip(&all[1])
                .map(|(a, b)| a + b)
                .collect::<Vec<_>>()
        };
        let op = || PredefinedOp::Sum.into();
        let at_root = |what: Vec<u64>| (me == root).then_some(what);
        let mine = || Some(all[me].clone());
        let (collective, send, expected) = match choices.below(8) {
            0 => {
                let give = at_root(all[root].clone());
                (Collective::Bcast { root }, give, Some(all[root].clone()))
            }
            1 => (
                Collective::Gather {
                    root,
                    parts: parts(),
                },
                mine(),
                at_root(both()),
            ),
            2 => (
                Collective::Scatter {
                    root,
                    parts: parts(),
                },
                at_root(both()),
                mine(),
            ),
            3 => (
                Collective::Allgather { parts: parts() },
                mine(),
                Some(both()),
            ),
            4 => {
                let send = [0, 1].map(|to| words(step, 10 * me + to, count)).concat();
                let recv = [0, 1]
                    .map(|from| words(step, 10 * from + me, count))
                    .concat();
                let alltoall = Collective::Alltoall {
                    send: parts(),
                    recv: parts(),
                };
                (alltoall, Some(send), Some(recv))
            }
            5 => (
                Collective::Allreduce { elem, op: op() },
                mine(),
                Some(sum()),
            ),
            6 => (
                Collective::Reduce {
                    root,
                    elem,
                    op: op(),
                },
                mine(),
                at_root(sum()),
            ),
            _ => {
                // Parts of different lengths.
                let front = choices.below(count + 1);
                let listed = Parts::Listed(
                    [
                        ByteRange::first(8 * front),
                        ByteRange::between(8 * front, 8 * count),
                    ]
                    .into(),
                );
                let part = if me == 0 { 0..front } else { front..count };
                let scatter = Collective::ReduceScatter {
                    parts: listed,
                    elem,
                    op: op(),
                };
                (scatter, mine(), Some(sum()[part].to_vec()))
            }
        };
        Self {
            collective,
            send,
            expected,
        }
    }
}

/// Collectives of all kinds in any order. Buffers are kept from one to the next, lent, returned and replaced by longer
/// ones, and some ranks run ahead. Some collectives do not wait; some buffers are mapped, so that one rank alone gives
/// pieces.
#[test]
fn kept_buffers_serve_collectives_in_any_order() {
    for seed in 0..8 {
        let knobs = match seed % 2 {
            0 => without_calls(),
            _ => Knobs::default(),
        };
        local_with(2, &knobs, |rt| {
            let (me, world) = (rt.rank(), rt.world());
            let mut choices = Choices(seed);
            for step in 0..250 {
                let Case {
                    collective,
                    send,
                    expected,
                } = Case::chosen(&mut choices, step, me);
                let what = format!("seed {seed}, step {step}: {collective:?}");
                // The choices of both ranks, of which this one takes its own.
                let heap = [choices.below(8) == 0, choices.below(8) == 0][me];
                let waits = choices.below(4) > 0;
                let scatters = matches!(collective, Collective::ReduceScatter { .. });
                // What is sent stands where the result goes.
                let in_place = match collective {
                    Collective::Bcast { .. } => true,
                    _ => choices.below(2) == 0 && scatters,
                };
                let count = expected.as_ref().map_or(0, Vec::len);
                let filled = match (&send, in_place) {
                    (Some(send), true) => bytes(send).to_vec(),
                    _ => vec![0xa5; 8 * count],
                };
                let mut recv = Memory::of(&rt, heap, &filled);
                let mut given = send
                    .filter(|_| !in_place)
                    .map(|send| Memory::of(&rt, heap, bytes(&send)));
                if waits {
                    let recv = expected.is_some().then(|| recv.bytes());
                    let send = given.as_mut().map(|send| &*send.bytes());
                    world.run(&collective, send, recv).expect(&what);
                } else {
                    let send = given.as_mut().map(|send| send.bytes().to_vec());
                    let into = expected.is_some().then_some(filled);
                    let under_way = world.start(&collective, send, into).expect(&what);
                    let (_, got) = under_way.wait().expect(&what);
                    got.into_iter()
                        .for_each(|got| recv.bytes().copy_from_slice(&got));
                }
                if let Some(expected) = expected {
                    assert!(recv.bytes().starts_with(bytes(&expected)), "{what}");
                }
            }
            rt.finalize().expect("finalize");
        });
    }
}

/// Parts whose pieces have different lengths: nobody waits for room that the other one's hold makes impossible.
#[test]
fn uneven_parts_in_place_come_to_an_end() {
    local_with(2, &without_calls(), |rt| {
        let elem = ElemType::F64;
        for parts in [
            [65_600, 65_536],
            [20_480, 40_960],
            [20_480, 61_440],
            [16_400, 137_000],
        ] {
            for [front, back] in [parts, [parts[1], parts[0]]] {
                let op = Op::from(PredefinedOp::Sum);
                let vectors = [0, 1].map(|rank| vector(elem, front + back, rank));
                let expected = combined(&op, elem, [&vectors[0], &vectors[1]]);
                let mine = &vectors[rt.rank()];
                scatter(&rt, (&op, elem), [front, back], (mine, false, &expected));
            }
        }
        rt.finalize().expect("finalize");
    });
}

/// A rank that has given its last pieces frees the communicator, and its memory serves another one. A late reader finds
/// them all the same.
#[test]
fn who_reads_late_finds_pieces_of_a_communicator_that_is_freed() {
    const LEN: usize = 100 << 10;
    local_with(3, &without_calls(), |rt| {
        let (me, world) = (rt.rank(), rt.world());
        let pair = |a: usize, b: usize| world.group().include(&[a, b]);
        let twice = |comm: &Comm, with: u8| {
            let mut both = vec![0; 2 * LEN];
            for _ in 0..2 {
                comm.allgather(&vec![with; LEN], &mut both)
                    .expect("allgather");
            }
        };
        let others = (me > 0).then(|| world.create_from_group(&pair(1, 2), 99).expect("a pair"));
        for round in 0..4 {
            // Those of one pair are made without the third rank.
            let early = (me < 2).then(|| {
                let comm = world.create_from_group(&pair(0, 1), round).expect("a pair");
                twice(&comm, 1);
                comm
            });
            if let (0, Some(comm)) = (me, &early) {
                world.recv(&mut [0u8], 1, 7).expect("the word");
                let mut got = vec![0u8; LEN];
                comm.bcast(&mut got, 1).expect("a late bcast");
                assert!(got.iter().all(|&byte| byte == 9), "round {round}");
            }
            if let (1, Some(comm)) = (me, early) {
                comm.bcast(&mut vec![9u8; LEN], 1).expect("bcast");
            }
            if let Some(others) = &others {
                let comm = others.dup().expect("dup");
                for with in 20..24 {
                    twice(&comm, with);
                    comm.bcast(&mut vec![with; LEN], 0).expect("bcast");
                }
            }
            if me == 1 {
                world.send(&[1u8], 0, 7).expect("the word");
            }
            world.barrier().expect("all have done it");
        }
        rt.finalize().expect("finalize");
    });
}

/// Where roots take turns, each rank answers in the buffer that it has read; one root sends messages after its first
/// pieces.
#[test]
fn who_has_read_pieces_answers_in_their_buffer() {
    const LEN: usize = 48 << 10;
    local_with(2, &without_calls(), |rt| {
        let (me, world) = (rt.rank(), rt.world());
        let mut buffer = vec![me as u8; LEN];
        let mut gave = |root: usize| {
            let before = rt.counters();
            world
                .run(&Collective::Bcast { root }, None, Some(&mut buffer))
                .expect("bcast");
            let now = rt.counters();
            (
                now.coll_in_pieces - before.coll_in_pieces,
                now.bytes_sent - before.bytes_sent,
            )
        };
        for turn in 0..20 {
            let (in_pieces, _) = gave(turn % 2);
            let given = u64::from(turn % 2 == me);
            assert_eq!(in_pieces, given, "turn {turn}");
        }
        let kept = |rt: &Runtime| {
            let worker = &mut *rt.handle().gate.enter();
            let comm = worker.collectives.slots[0].as_mut().expect("the world");
            comm.state.bounce.own_bytes()
        };
        // The first one to give has the only buffer.
        assert_eq!(kept(&rt) > 0, me == 0);
        for turn in 0..4 {
            let (in_pieces, sent) = gave(0);
            let (first, gives) = (turn == 0, me == 0);
            assert_eq!(in_pieces, u64::from(gives && first), "turn {turn}");
            assert!(
                sent == u64::from(gives && !first) * LEN as u64,
                "turn {turn}"
            );
        }
        rt.finalize().expect("finalize");
    });
}

/// A rank that maps no memory of the other one any more asks for what stands in a kept buffer. Its owner copies that,
/// and waits for it.
#[test]
fn who_maps_nothing_is_served_from_a_kept_buffer() {
    const LEN: usize = 100 << 10;
    local_with(2, &without_calls(), |rt| {
        let (me, world) = (rt.rank(), rt.world());
        world.barrier().expect("the pair is connected");
        if me == 0 {
            let worker = &mut *rt.handle().gate.enter();
            let peer = worker.engine.peers[1].as_mut().expect("the other rank");
            peer.link.demote(&CopyError {
                layer: LayerId::MAP,
                call: "mmap",
                peer: 1,
                bytes: 0,
                source: std::io::ErrorKind::OutOfMemory.into(),
            });
        }
        for round in 0..4 {
            let mut buffer = vec![if me == 1 { 7 + round } else { 0 }; LEN];
            let bcast = Collective::Bcast { root: 1 };
            world.run(&bcast, None, Some(&mut buffer)).expect("bcast");
            assert!(buffer.iter().all(|&byte| byte == 7 + round), "{round}");
        }
        // The first one went so; its buffer is lent since then, as nobody answers there.
        assert_eq!(in_pieces(&rt), u64::from(me == 1));
        rt.finalize().expect("finalize");
    });
}
