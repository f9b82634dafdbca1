// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random collectives: what each rank gives, and what each must have afterwards.

use super::oracle;
use onecopy::coll::{ByteRange, Collective, ElemType, Op, Parts, PredefinedOp};

/// A small generator: the same numbers on all ranks.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
    pub(crate) fn flip(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// A collective as one rank sees it.
pub(crate) struct Case {
    pub(crate) what: Collective,
    pub(crate) send: Option<Vec<u8>>,
    pub(crate) recv: Option<Vec<u8>>,
    /// What the receive buffer must hold afterwards.
    pub(crate) expected: Option<Vec<u8>>,
}

const UNTOUCHED: u8 = 0xE7;

/// Bytes of a payload, in the classes that matter: nothing, a line, a slot of either length, a
/// temporary copy, more, anything.
fn length(random: &mut Random, largest: usize) -> usize {
    let len = match random.below(11) {
        10 => 4097 + random.below(12 << 10),
        0 => 0,
        1 | 2 => random.below(49),
        3 => random.below(200),
        4 => 4096 - 8 + random.below(16),
        5 => random.below(4097),
        6 => random.below(20_000),
        7 => 65_536 - 8 + random.below(16),
        8 => random.below(300_000),
        _ => random.below(largest),
    };
    len.min(largest)
}

fn contents(seed: u64, place: usize, len: usize) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(31).wrapping_add(place as u64 * 7919) | 1);
    (0..len.div_ceil(4))
        .flat_map(|_| (random.next() as u32).to_ne_bytes())
        .take(len)
        .collect()
}

/// Parts with gaps and in another order than that of the ranks; and how many bytes all that takes.
fn scattered(random: &mut Random, lens: &[usize]) -> (Parts, usize) {
    let mut order: Vec<usize> = (0..lens.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    let mut parts = vec![ByteRange::default(); lens.len()];
    let mut end = 0;
    for place in order {
        parts[place] = ByteRange {
            offset: end + random.below(3) * 5,
            len: lens[place],
        };
        end = parts[place].end();
    }
    (Parts::Listed(parts.into()), end)
}

fn lens(random: &mut Random, size: usize, largest: usize) -> (Vec<usize>, bool) {
    if random.flip() {
        (vec![length(random, largest); size], true)
    } else {
        ((0..size).map(|_| length(random, largest)).collect(), false)
    }
}

fn parts_of(random: &mut Random, lens: &[usize], equal: bool) -> (Parts, usize) {
    if equal && random.flip() {
        (Parts::Equal(lens[0]), lens.iter().sum())
    } else {
        scattered(random, lens)
    }
}

fn put(buffer: &mut [u8], part: ByteRange, bytes: &[u8]) {
    buffer[part.offset..part.end()].copy_from_slice(bytes);
}

impl Case {
    /// The next random collective, as `me` of `size` ranks sees it. `largest` bounds the payload of a rank.
    pub(crate) fn next(random: &mut Random, size: usize, me: usize, largest: usize) -> Self {
        let seed = random.next();
        let root = random.below(size);
        let in_place = random.below(3) == 0;
        match random.below(12) {
            0 => Self {
                what: Collective::Barrier,
                send: None,
                recv: None,
                expected: None,
            },
            1 => {
                let len = length(random, largest);
                let expected = contents(seed, root, len);
                let recv = if me == root {
                    expected.clone()
                } else {
                    vec![UNTOUCHED; len]
                };
                Self {
                    what: Collective::Bcast { root },
                    send: None,
                    recv: Some(recv),
                    expected: Some(expected),
                }
            }
            2 => {
                let (lens, equal) = lens(random, size, largest);
                let (parts, total) = parts_of(random, &lens, equal);
                let mut expected = vec![UNTOUCHED; total];
                let mut recv = expected.clone();
                for (place, &len) in lens.iter().enumerate() {
                    let bytes = contents(seed, place, len);
                    put(&mut expected, parts.of(place), &bytes);
                }
                let own = contents(seed, me, lens[me]);
                if me == root && in_place {
                    put(&mut recv, parts.of(me), &own);
                }
                Self {
                    what: Collective::Gather { root, parts },
                    send: (me != root || !in_place).then_some(own),
                    recv: (me == root).then_some(recv),
                    expected: (me == root).then_some(expected),
                }
            }
            3 => {
                let (lens, equal) = lens(random, size, largest);
                let (parts, total) = parts_of(random, &lens, equal);
                let mut send = vec![UNTOUCHED; total];
                for (place, &len) in lens.iter().enumerate() {
                    let bytes = contents(seed, place, len);
                    put(&mut send, parts.of(place), &bytes);
                }
                let keeps = me == root && in_place;
                Self {
                    what: Collective::Scatter { root, parts },
                    send: (me == root).then_some(send),
                    recv: (!keeps).then(|| vec![UNTOUCHED; lens[me]]),
                    expected: (!keeps).then(|| contents(seed, me, lens[me])),
                }
            }
            4 => {
                let (lens, equal) = lens(random, size, largest);
                let (parts, total) = parts_of(random, &lens, equal);
                let mut expected = vec![UNTOUCHED; total];
                let mut recv = expected.clone();
                for (place, &len) in lens.iter().enumerate() {
                    let bytes = contents(seed, place, len);
                    put(&mut expected, parts.of(place), &bytes);
                }
                let own = contents(seed, me, lens[me]);
                if in_place {
                    put(&mut recv, parts.of(me), &own);
                }
                Self {
                    what: Collective::Allgather { parts },
                    send: (!in_place).then_some(own),
                    recv: Some(recv),
                    expected: Some(expected),
                }
            }
            5 | 6 => Self::alltoall(random, size, me, largest, seed, in_place),
            _ => Self::reduction(random, size, me, largest, seed, root, in_place),
        }
    }

    fn alltoall(
        random: &mut Random,
        size: usize,
        me: usize,
        largest: usize,
        seed: u64,
        in_place: bool,
    ) -> Self {
        let each = largest / size;
        let equal = random.flip();
        let one = length(random, each);
        // Lengths of the parts from one rank to another; the same both ways, so that they can replace each other.
        let mut table = vec![one; size * size];
        if !equal {
            for from in 0..size {
                for to in from..size {
                    let len = length(random, each);
                    table[from * size + to] = len;
                    table[to * size + from] = len;
                }
            }
        }
        let between =
            |from: usize, to: usize| contents(seed ^ from as u64, to, table[from * size + to]);
        let mine: Vec<usize> = (0..size).map(|place| table[me * size + place]).collect();
        // Each rank lays out its buffers in its own way, except where all must agree on equal parts.
        let mut own = Random(seed ^ 0xABCD ^ me as u64 | 1);
        let layout = |own: &mut Random| {
            if equal && !in_place {
                (Parts::Equal(one), one * size)
            } else {
                scattered(own, &mine)
            }
        };
        let (send_parts, send_total) = layout(&mut own);
        let (recv_parts, recv_total) = layout(&mut own);
        let mut send = vec![UNTOUCHED; send_total];
        let mut recv = vec![UNTOUCHED; recv_total];
        let mut expected = recv.clone();
        for place in 0..size {
            put(&mut send, send_parts.of(place), &between(me, place));
            put(&mut expected, recv_parts.of(place), &between(place, me));
            if in_place {
                put(&mut recv, recv_parts.of(place), &between(me, place));
            }
        }
        Self {
            what: Collective::Alltoall {
                send: send_parts,
                recv: recv_parts,
            },
            send: (!in_place).then_some(send),
            recv: Some(recv),
            expected: Some(expected),
        }
    }

    fn reduction(
        random: &mut Random,
        size: usize,
        me: usize,
        largest: usize,
        seed: u64,
        root: usize,
        in_place: bool,
    ) -> Self {
        let (elem, op) = if random.below(5) == 0 {
            (ElemType::Opaque(16), None)
        } else {
            loop {
                let elem = ElemType::KNOWN[random.below(ElemType::KNOWN.len())];
                let op = PredefinedOp::ALL[random.below(PredefinedOp::ALL.len())];
                if op.accepts(elem) {
                    break (elem, Some(op));
                }
            }
        };
        let bytes = elem.size();
        let count = length(random, largest) / bytes;
        let vector = |place: usize| -> Vec<u8> {
            let mut random = Random(seed.wrapping_add(place as u64 * 104_729) | 1);
            (0..count)
                .flat_map(|_| oracle::element(elem, random.next()))
                .collect()
        };
        let fold = |upto: usize| -> Vec<u8> {
            let mut result = vector(0);
            for place in 1..upto {
                let mut right = vector(place);
                match op {
                    None => oracle::matrices(&result, &mut right),
                    Some(op) => {
                        for (l, r) in result
                            .chunks_exact(bytes)
                            .zip(right.chunks_exact_mut(bytes))
                        {
                            let combined = oracle::apply(op, elem, l, r);
                            r.copy_from_slice(&combined);
                        }
                    }
                }
                result = right;
            }
            result
        };
        let operator = op.map_or_else(|| Op::user(oracle::matrices), Op::from);
        let len = count * bytes;
        let own = vector(me);
        let simple = |what: Collective, expected: Vec<u8>| Self {
            what,
            send: (!in_place).then(|| own.clone()),
            recv: Some(if in_place {
                own.clone()
            } else {
                vec![UNTOUCHED; len]
            }),
            expected: Some(expected),
        };
        match random.below(5) {
            0 => simple(Collective::Allreduce { elem, op: operator }, fold(size)),
            1 => simple(Collective::Scan { elem, op: operator }, fold(me + 1)),
            2 => {
                let unset = if in_place {
                    own.clone()
                } else {
                    vec![UNTOUCHED; len]
                };
                let expected = if me == 0 { unset } else { fold(me) };
                simple(Collective::Exscan { elem, op: operator }, expected)
            }
            3 => {
                let what = Collective::Reduce {
                    root,
                    elem,
                    op: operator,
                };
                if me == root {
                    simple(what, fold(size))
                } else {
                    Self {
                        what,
                        send: Some(own),
                        recv: None,
                        expected: None,
                    }
                }
            }
            _ => {
                let mut counts = vec![count / size; size];
                if random.flip() {
                    // Parts of all lengths, that take up the whole.
                    let mut left = count;
                    for part in &mut counts {
                        *part = random.below(left + 1);
                        left -= *part;
                    }
                    counts[size - 1] += left;
                }
                let parts = Parts::packed(&counts, bytes);
                let ByteRange { offset, len: n } = parts.of(me);
                let expected = fold(size)[offset..offset + n].to_vec();
                let what = Collective::ReduceScatter {
                    parts,
                    elem,
                    op: operator,
                };
                Self {
                    what,
                    recv: Some(if in_place {
                        own.clone()
                    } else {
                        vec![UNTOUCHED; n]
                    }),
                    send: (!in_place).then_some(own),
                    expected: Some(expected),
                }
            }
        }
    }
}
