// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of every size, on both sides of each threshold.

use crate::bytes::check;
use crate::cases::{Body, Rank};
use onecopy::{Error, LayerId};

pub(crate) static BODIES: &[Body] = &[
    Body {
        name: "every size arrives",
        ranks: &[2],
        run: every_size,
    },
    Body {
        name: "buffers at odd addresses",
        ranks: &[2],
        run: odd_addresses,
    },
    Body {
        name: "both at the same time",
        ranks: &[2],
        run: both_at_once,
    },
    Body {
        name: "a message that does not fit",
        ranks: &[2],
        run: truncation,
    },
    Body {
        name: "a message to oneself",
        ranks: &[1, 2],
        run: to_oneself,
    },
];

/// Sizes on both sides of each threshold, and some between. Rank 0's are used by all.
pub(crate) fn sizes(rank: &Rank<'_>) -> Vec<usize> {
    const MOST: u64 = 9 << 20;
    let mut sizes = Vec::new();
    if rank.me == 0 {
        let limits = rank.rt.thresholds(1).expect("thresholds");
        let around = [
            0,
            48,
            112,
            limits.slots_max as u64,
            2048,
            4096,
            8192,
            3 * 8192,
            64 << 10,
            256 << 10,
            1 << 20,
            limits.announce_min,
            limits.min[LayerId::Heap],
            limits.min[LayerId::Cma],
            limits.coop_min[LayerId::Heap],
            limits.coop_min[LayerId::Cma],
            16 * limits.coop_min[LayerId::Cma].min(MOST),
        ];
        for size in around.into_iter().filter(|&size| size < MOST) {
            sizes.extend([size.saturating_sub(1), size, size + 1]);
        }
        sizes.extend([8, 100, 1000, 5000, 70_001, 333_333, 4_000_003]);
        sizes.sort_unstable();
        sizes.dedup();
        rank.world.send(&[sizes.len() as u64], 1, 0).expect("send");
        rank.world.send(&sizes, 1, 0).expect("send");
    } else {
        let mut count = [0u64];
        rank.world.recv(&mut count, 0, 0).expect("recv");
        sizes = vec![0u64; count[0] as usize];
        rank.world.recv(&mut sizes, 0, 0).expect("recv");
    }
    sizes.into_iter().map(|size| size as usize).collect()
}

fn every_size(rank: &Rank<'_>) {
    for (round, size) in sizes(rank).into_iter().enumerate() {
        let seed = |from: usize, repeat: usize| round * 8 + repeat * 2 + from;
        let tag = round as i32;
        for repeat in 0..if size > 1 << 20 { 1 } else { 3 } {
            let mine = rank.message(size, seed(rank.me, repeat));
            let mut got = rank.space(size);
            let peer = rank.peer();
            if rank.me == 0 {
                rank.world.send(&mine, peer, tag).expect("send");
            }
            let status = rank.world.recv(&mut got, peer, tag).expect("recv");
            if rank.me == 1 {
                rank.world.send(&mine, peer, tag).expect("send");
            }
            assert_eq!((status.source, status.tag, status.bytes), (peer, tag, size));
            check(&got, seed(peer, repeat), "received");
            check(&mine, seed(rank.me, repeat), "sent");
        }
    }
}

fn odd_addresses(rank: &Rank<'_>) {
    let peer = rank.peer();
    for size in [1, 7, 63, 1000, 4097, 65_537, 1_000_003] {
        for (from, to) in [(0, 1), (1, 0), (3, 5), (63, 62), (8, 1)] {
            let mut mine = rank.message(from + size + 9, 0);
            crate::bytes::fill(&mut mine[from..from + size], size + rank.me);
            let mut got = rank.space(to + size + 9);
            let status = rank
                .world
                .sendrecv(
                    &mine[from..from + size],
                    peer,
                    1,
                    &mut got[to..to + size],
                    peer,
                    1,
                )
                .expect("sendrecv");
            assert_eq!(status.bytes, size);
            check(&got[to..to + size], size + peer, "received");
            let outside = got[..to].iter().chain(&got[to + size..]);
            assert!(outside.clone().all(|&byte| byte == 0xee), "written outside");
        }
    }
}

fn both_at_once(rank: &Rank<'_>) {
    let peer = rank.peer();
    for (round, size) in sizes(rank).into_iter().enumerate() {
        let mine = rank.message(size, round * 2 + rank.me);
        let mut got = rank.space(size);
        rank.world
            .sendrecv(&mine, peer, 3, &mut got, peer, 3)
            .expect("sendrecv");
        check(&got, round * 2 + peer, "received");
    }
}

fn truncation(rank: &Rank<'_>) {
    for size in sizes(rank)
        .into_iter()
        .filter(|&size| size > 0 && size < 1_100_000)
    {
        for room in [0, 1, size / 2, size - 1] {
            if room >= size {
                continue;
            }
            for expected in [false, true] {
                if rank.me == 0 {
                    if expected {
                        rank.world.recv::<u8>(&mut [], 1, 9).expect("posted");
                    }
                    let mine = rank.message(size, room);
                    rank.world.send(&mine, 1, 4).expect("send");
                    rank.world.send(&mine[..1], 1, 5).expect("send");
                } else {
                    let mut got = rank.space(size);
                    let error = rank.world.scope(|scope| {
                        let request = scope.irecv(&mut got[..room], 0, 4).expect("irecv");
                        if expected {
                            rank.world.send::<u8>(&[], 0, 9).expect("posted");
                        }
                        scope.wait(request).expect_err("too long")
                    });
                    let is_expected = matches!(error, Error::Truncated { rank: 0, tag: 4, message, buffer }
                        if message == size as u64 && buffer == room as u64);
                    assert!(is_expected, "{error}");
                    check(&got[..room], room, "the part that fits");
                    assert!(
                        got[room..].iter().all(|&byte| byte == 0xee),
                        "{size} bytes into {room}: written outside"
                    );
                    let mut next = [0u8];
                    rank.world.recv(&mut next, 0, 5).expect("the next message");
                    check(&next, room, "the next message");
                }
            }
        }
    }
}

fn to_oneself(rank: &Rank<'_>) {
    let me = rank.me;
    for size in [0, 1, 64, 5000, 300_000, 3_000_000] {
        let mine = rank.message(size, size);
        let mut got = rank.space(size);
        let status = rank
            .world
            .sendrecv(&mine, me, 2, &mut got, me, 2)
            .expect("sendrecv");
        assert_eq!((status.source, status.bytes), (me, size));
        check(&got, size, "received");
        let mut second = rank.space(size);
        rank.world.scope(|scope| {
            // The send first: it has no receive yet.
            scope.isend(&mine[..], me, 3).expect("isend");
            let seen = rank.world.probe(me, 3).expect("probe");
            assert_eq!((seen.source, seen.tag, seen.bytes), (me, 3, size));
            scope.irecv(&mut second[..], me, 3).expect("irecv");
            scope.wait_all().expect("wait");
        });
        check(&second, size, "received");
    }
}
