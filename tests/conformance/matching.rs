// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which message goes to which receive: order, wildcards, contexts, probes, all ranks with all.

use crate::bytes::check;
use crate::cases::{Body, Rank};
use onecopy::{ANY_SOURCE, ANY_TAG};

pub(crate) static BODIES: &[Body] = &[
    Body {
        name: "no message overtakes another",
        ranks: &[2],
        run: order,
    },
    Body {
        name: "wildcards",
        ranks: &[3, 5],
        run: wildcards,
    },
    Body {
        name: "tags and contexts keep messages apart",
        ranks: &[2],
        run: apart,
    },
    Body {
        name: "probe",
        ranks: &[2],
        run: probe,
    },
    Body {
        name: "matched probe",
        ranks: &[2],
        run: matched_probe,
    },
    Body {
        name: "all with all",
        ranks: &[1, 2, 3, 4, 5, 8],
        run: all_with_all,
    },
    Body {
        name: "around a ring",
        ranks: &[1, 2, 3, 4, 8],
        run: ring,
    },
    Body {
        name: "bad ranks and tags are named",
        ranks: &[1, 2],
        run: bad_arguments,
    },
];

/// Sizes that go by different protocols, next to one another.
pub(crate) const MIXED: [usize; 12] = [
    8, 70_000, 0, 1024, 300_000, 3000, 40, 9000, 1_000_001, 16, 2000, 30_000,
];

fn order(rank: &Rank<'_>) {
    const MESSAGES: usize = 120;
    for late in [false, true] {
        if rank.me == 0 {
            let messages: Vec<_> = (0..MESSAGES)
                .map(|i| rank.message(MIXED[i % MIXED.len()], i))
                .collect();
            rank.world.scope(|scope| {
                for message in &messages {
                    scope.isend(&message[..], 1, 3).expect("isend");
                }
                // Behind all of the others, but another tag.
                scope.isend(&[7u8], 1, 4).expect("isend");
                scope.wait_all().expect("wait");
            });
        } else {
            if late {
                // All announced and eager ones are unexpected then.
                rank.world.recv(&mut [0u8], 0, 4).expect("recv");
            }
            let mut got = rank.space(1_000_001);
            for i in 0..MESSAGES {
                let status = if i % 3 == 0 {
                    rank.world.recv(&mut got[..], 0, 3)
                } else {
                    rank.world.recv(&mut got[..], ANY_SOURCE, 3)
                };
                let status = status.expect("recv");
                assert_eq!(status.bytes, MIXED[i % MIXED.len()], "message {i}");
                check(&got[..status.bytes], i, "in order");
            }
            if !late {
                rank.world.recv(&mut [0u8], 0, 4).expect("recv");
            }
        }
    }
}

fn wildcards(rank: &Rank<'_>) {
    const EACH: usize = 24;
    let senders = rank.size - 1;
    if rank.me > 0 {
        for i in 0..EACH {
            let message = rank.message(MIXED[i % MIXED.len()], rank.me * 1000 + i);
            rank.world.send(&message, 0, i as i32).expect("send");
        }
        return;
    }
    let mut next = vec![0usize; rank.size];
    let mut got = rank.space(1_000_001);
    for _ in 0..EACH * senders {
        let status = rank
            .world
            .recv(&mut got[..], ANY_SOURCE, ANY_TAG)
            .expect("recv");
        let i = next[status.source];
        assert_eq!(status.tag, i as i32, "from rank {}", status.source);
        assert_eq!(status.bytes, MIXED[i % MIXED.len()]);
        check(
            &got[..status.bytes],
            status.source * 1000 + i,
            "by wildcard",
        );
        next[status.source] += 1;
    }
    assert!(next[1..].iter().all(|&n| n == EACH), "{next:?}");
}

fn apart(rank: &Rank<'_>) {
    let other = rank.world.with_context(77);
    for size in [0, 8, 3000, 400_000] {
        if rank.me == 0 {
            let messages: Vec<_> = (0..4).map(|i| rank.message(size, i)).collect();
            rank.world.scope(|scope| {
                scope.isend(&messages[0][..], 1, 1).expect("isend");
                scope.isend(&messages[1][..], 1, 2).expect("isend");
                other.scope(|scope| {
                    scope.isend(&messages[2][..], 1, 1).expect("isend");
                    scope.isend(&messages[3][..], 1, 2).expect("isend");
                    scope.wait_all().expect("wait");
                });
                scope.wait_all().expect("wait");
            });
        } else {
            let mut got = rank.space(size);
            other.recv(&mut got, 0, 2).expect("recv");
            check(&got, 3, "context 77, tag 2");
            other.recv(&mut got, ANY_SOURCE, ANY_TAG).expect("recv");
            check(&got, 2, "context 77, tag 1");
            rank.world.recv(&mut got, 0, 2).expect("recv");
            check(&got, 1, "tag 2");
            rank.world
                .recv(&mut got, ANY_SOURCE, ANY_TAG)
                .expect("recv");
            check(&got, 0, "tag 1");
        }
    }
}

fn probe(rank: &Rank<'_>) {
    for (round, &size) in MIXED.iter().enumerate() {
        let tag = round as i32;
        if rank.me == 0 {
            rank.world.recv(&mut [0u8], 1, 99).expect("go");
            let message = rank.message(size, round);
            rank.world.send(&message, 1, tag).expect("send");
        } else {
            assert_eq!(rank.world.iprobe(0, tag).expect("iprobe"), None);
            rank.world.send(&[1u8], 0, 99).expect("go");
            let seen = rank.world.probe(ANY_SOURCE, ANY_TAG).expect("probe");
            assert_eq!((seen.source, seen.tag, seen.bytes), (0, tag, size));
            let again = rank.world.iprobe(0, tag).expect("iprobe");
            assert_eq!(again, Some(seen));
            let mut got = rank.space(seen.bytes);
            let status = rank.world.recv(&mut got, 0, tag).expect("recv");
            assert_eq!(status, seen);
            check(&got, round, "probed");
        }
    }
}

fn matched_probe(rank: &Rank<'_>) {
    for (round, &size) in MIXED.iter().enumerate() {
        if rank.me == 0 {
            let messages: Vec<_> = (0..3).map(|i| rank.message(size, round + i)).collect();
            rank.world.scope(|scope| {
                for message in &messages {
                    scope.isend(&message[..], 1, 5).expect("isend");
                }
                scope.wait_all().expect("wait");
            });
        } else {
            let first = rank.world.mprobe(0, 5).expect("mprobe");
            assert_eq!(first.status().bytes, size);
            // The first is taken: a receive gets the second.
            let mut got = rank.space(size);
            rank.world.recv(&mut got, 0, 5).expect("recv");
            check(&got, round + 1, "the second");
            first.recv(&mut got).expect("recv of the first");
            check(&got, round, "the first");
            let third = loop {
                if let Some(third) = rank.world.improbe(ANY_SOURCE, ANY_TAG).expect("improbe") {
                    break third;
                }
            };
            // Thrown away: its sender is not kept waiting.
            drop(third);
        }
    }
}

fn all_with_all(rank: &Rank<'_>) {
    for size in [0, 8, 700, 5000, 100_000] {
        let seed = |from: usize, to: usize| from * 100 + to;
        let mine: Vec<_> = (0..rank.size)
            .map(|to| rank.message(size, seed(rank.me, to)))
            .collect();
        let mut got: Vec<_> = (0..rank.size).map(|_| rank.space(size)).collect();
        rank.world.scope(|scope| {
            for (from, got) in got.iter_mut().enumerate() {
                scope.irecv(&mut got[..], from, 6).expect("irecv");
            }
            for (to, mine) in mine.iter().enumerate() {
                scope.isend(&mine[..], to, 6).expect("isend");
            }
            scope.wait_all().expect("wait");
        });
        for (from, got) in got.iter().enumerate() {
            check(got, seed(from, rank.me), "from each");
        }
    }
}

fn ring(rank: &Rank<'_>) {
    let (to, from) = (
        (rank.me + 1) % rank.size,
        (rank.me + rank.size - 1) % rank.size,
    );
    for &size in &MIXED {
        let mut travelling = rank.message(size, rank.me);
        for step in 1..=rank.size {
            let mut got = rank.space(size);
            rank.world
                .sendrecv(&travelling, to, 8, &mut got, from, 8)
                .expect("sendrecv");
            let origin = (rank.me + rank.size - step) % rank.size;
            check(&got, origin, "around");
            travelling.copy_from_slice(&got);
        }
    }
}

fn bad_arguments(rank: &Rank<'_>) {
    use onecopy::Error::{BadTag, NoSuchRank};
    let size = rank.size;
    for wrong in [size, usize::MAX, 1 << 32, (1 << 32) + size - 1] {
        let sent = rank.world.send(&[1u8], wrong, 0);
        assert!(
            matches!(sent, Err(NoSuchRank { rank, .. }) if rank == wrong),
            "{sent:?}"
        );
        let received = rank.world.recv(&mut [0u8], wrong, 0);
        assert!(matches!(received, Err(NoSuchRank { .. })), "{received:?}");
        let probed = rank.world.iprobe(wrong, 0);
        assert!(matches!(probed, Err(NoSuchRank { .. })), "{probed:?}");
    }
    for tag in [-1, i32::MIN] {
        let sent = rank.world.send(&[1u8], 0, tag);
        assert!(matches!(sent, Err(BadTag { .. })), "{sent:?}");
        let received = rank.world.recv(&mut [0u8], 0, tag);
        assert!(matches!(received, Err(BadTag { .. })), "{received:?}");
    }
}
