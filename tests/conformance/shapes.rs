// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages in many pieces, on one side or both.

use crate::bytes::{check, fill_from};
use crate::cases::{Body, Rank};
use crate::memory::Memory;
use std::io::{IoSlice, IoSliceMut};

pub(crate) static BODIES: &[Body] = &[
    Body {
        name: "pieces on either side",
        ranks: &[2],
        run: pieces,
    },
    Body {
        name: "pieces that do not fit",
        ranks: &[2],
        run: truncated_pieces,
    },
];

/// Lengths of pieces that are `total` together.
fn cut(total: usize, shape: usize) -> Vec<usize> {
    let mut cuts = Vec::new();
    let mut left = total;
    let next = |left: &mut usize, n: usize| {
        let n = n.min(*left);
        *left -= n;
        n
    };
    match shape {
        0 => return vec![total],
        // Few, with empty ones at the ends and between.
        1 => {
            cuts.push(0);
            for part in [total / 3, 0, 1, total / 7] {
                cuts.push(next(&mut left, part));
            }
            cuts.extend([left, 0]);
        }
        // As many as make a list of several chunks, of uneven lengths.
        2 => {
            let many = 2000;
            for i in 0..many {
                cuts.push(next(&mut left, total / many + i % 5));
            }
            cuts.push(left);
        }
        // Single bytes, then the rest.
        _ => {
            for _ in 0..100 {
                cuts.push(next(&mut left, 1));
            }
            cuts.push(left);
        }
    }
    cuts
}

/// Pieces of a buffer with gaps between them, in reverse order of their addresses.
fn ranges(cuts: &[usize]) -> (Vec<std::ops::Range<usize>>, usize) {
    let mut end = 0;
    let mut ranges = Vec::new();
    for &len in cuts.iter().rev() {
        end += 3;
        ranges.push(end..end + len);
        end += len;
    }
    ranges.reverse();
    (ranges, end + 3)
}

fn send(rank: &Rank<'_>, total: usize, shape: usize, seed: usize) {
    let (ranges, room) = ranges(&cut(total, shape));
    let mut memory = rank.message(room, 99);
    let mut offset = 0;
    for range in &ranges {
        fill_from(&mut memory[range.clone()], seed, offset);
        offset += range.len();
    }
    let pieces: Vec<_> = ranges
        .iter()
        .map(|range| IoSlice::new(&memory[range.clone()]))
        .collect();
    rank.world
        .send_iov(&pieces, rank.peer(), 1)
        .expect("send_iov");
}

/// Cuts a buffer into its `ranges`, which lie in reverse order.
fn split<'b>(memory: &'b mut Memory, ranges: &[std::ops::Range<usize>]) -> Vec<IoSliceMut<'b>> {
    let mut rest: &mut [u8] = memory;
    let mut pieces = Vec::new();
    for range in ranges {
        let (before, piece) = rest.split_at_mut(range.start);
        pieces.push(IoSliceMut::new(&mut piece[..range.len()]));
        rest = before;
    }
    pieces
}

fn pieces(rank: &Rank<'_>) {
    for (round, total) in [0, 1, 40, 900, 3000, 9000, 70_000, 200_000, 1_500_000]
        .into_iter()
        .enumerate()
    {
        for (out, into) in [
            (1, 0),
            (0, 1),
            (1, 1),
            (2, 0),
            (0, 2),
            (2, 2),
            (3, 2),
            (2, 3),
        ] {
            let seed = round * 64 + out * 8 + into;
            if rank.me == 0 {
                send(rank, total, out, seed);
                continue;
            }
            let (ranges, room) = ranges(&cut(total, into));
            let mut memory = rank.space(room);
            let mut pieces = split(&mut memory, &ranges);
            let status = rank.world.recv_iov(&mut pieces, 0, 1).expect("recv_iov");
            assert_eq!(status.bytes, total);
            let mut got = Vec::with_capacity(total);
            for range in &ranges {
                got.extend_from_slice(&memory[range.clone()]);
                memory[range.clone()].fill(0xee);
            }
            check(&got, seed, &format!("shape {out} to shape {into}"));
            assert!(memory.iter().all(|&byte| byte == 0xee), "written outside");
        }
    }
}

fn truncated_pieces(rank: &Rank<'_>) {
    for total in [900, 9000, 200_000, 1_500_000] {
        for (out, into) in [(0, 1), (2, 0), (2, 2)] {
            if rank.me == 0 {
                send(rank, total, out, total);
                continue;
            }
            let (ranges, room) = ranges(&cut(total / 2, into));
            let mut memory = rank.space(room);
            let mut pieces = split(&mut memory, &ranges);
            let error = rank.world.recv_iov(&mut pieces, 0, 1);
            assert!(
                matches!(error, Err(onecopy::Error::Truncated { .. })),
                "{error:?}"
            );
            let mut got = Vec::new();
            for range in &ranges {
                got.extend_from_slice(&memory[range.clone()]);
            }
            check(&got, total, "the part that fits");
        }
    }
}
