// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests: modes of sending, waiting for several, cancelling, starting again.

use crate::bytes::{check, pattern};
use crate::cases::{Body, Rank};
use crate::tags::MIXED;
use onecopy::{ANY_SOURCE, Error, test_all, test_any, test_some, wait_all, wait_any, wait_some};

pub(crate) static BODIES: &[Body] = &[
    Body {
        name: "a synchronous send waits",
        ranks: &[2],
        run: synchronous,
    },
    Body {
        name: "a ready send",
        ranks: &[2],
        run: ready,
    },
    Body {
        name: "a receive is cancelled",
        ranks: &[2],
        run: cancelled,
    },
    Body {
        name: "persistent requests",
        ranks: &[2],
        run: persistent,
    },
    Body {
        name: "waiting for any, some and all",
        ranks: &[2, 4],
        run: several,
    },
    Body {
        name: "requests that own heap buffers",
        ranks: &[2],
        run: heap_owned,
    },
    Body {
        name: "elements that are no bytes",
        ranks: &[2],
        run: elements,
    },
    Body {
        name: "a window of messages",
        ranks: &[2],
        run: window,
    },
];

fn synchronous(rank: &Rank<'_>) {
    for (round, &size) in MIXED.iter().enumerate() {
        if rank.me == 0 {
            let mut request = rank
                .world
                .issend(pattern(size, round), 1, 1)
                .expect("issend");
            // The receiver has seen everything that we sent, but matched only this.
            rank.world.ssend(&[1u8], 1, 2).expect("ssend");
            rank.world.recv(&mut [0u8], 1, 3).expect("recv");
            for _ in 0..100 {
                assert!(!request.test(), "{size} bytes: complete without a match");
            }
            rank.world.send(&[1u8], 1, 4).expect("send");
            request.wait().expect("wait");
            let message = rank.message(size, round);
            rank.world.ssend(&message, 1, 1).expect("ssend");
        } else {
            rank.world.recv(&mut [0u8], 0, 2).expect("recv");
            rank.world.send(&[1u8], 0, 3).expect("send");
            rank.world.recv(&mut [0u8], 0, 4).expect("recv");
            let mut got = rank.space(size);
            for _ in 0..2 {
                rank.world.recv(&mut got, 0, 1).expect("recv");
                check(&got, round, "synchronous");
            }
        }
    }
}

fn ready(rank: &Rank<'_>) {
    for (round, &size) in MIXED.iter().enumerate() {
        if rank.me == 0 {
            rank.world.recv(&mut [0u8], 1, 3).expect("posted");
            let message = rank.message(size, round);
            rank.world.rsend(&message, 1, 1).expect("rsend");
        } else {
            let mut got = rank.space(size);
            rank.world.scope(|scope| {
                scope.irecv(&mut got[..], 0, 1).expect("irecv");
                rank.world.send(&[1u8], 0, 3).expect("posted");
                scope.wait_all().expect("wait");
            });
            check(&got, round, "ready");
        }
    }
}

fn cancelled(rank: &Rank<'_>) {
    for (round, &size) in MIXED.iter().enumerate() {
        if rank.me == 0 {
            rank.world.recv(&mut [0u8], 1, 3).expect("go");
            let message = rank.message(size, round);
            rank.world.send(&message, 1, 1).expect("send");
        } else {
            let mut first = rank.world.irecv(vec![0xeeu8; size], 0, 1).expect("irecv");
            let second = rank.world.irecv(vec![0u8; size], 0, 1).expect("irecv");
            // Dropped: as good as cancelled.
            drop(
                rank.world
                    .irecv(vec![0u8; size], ANY_SOURCE, 1)
                    .expect("irecv"),
            );
            assert!(first.cancel());
            let (result, buffer) = first.wait_both();
            assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
            assert!(buffer.iter().all(|&byte| byte == 0xee));
            rank.world.send(&[1u8], 0, 3).expect("go");
            let (got, status) = second.wait().expect("wait");
            assert_eq!(status.bytes, size);
            check(&got, round, "the receive behind the cancelled one");
            let mut late = rank.world.irecv(vec![0u8; 4], 0, 2).expect("irecv");
            assert!(late.cancel());
            assert!(!late.cancel(), "cancelled twice");
        }
    }
}

fn persistent(rank: &Rank<'_>) {
    // What cannot be started keeps its buffer.
    let mut nobody = rank.world.send_init(vec![7u8; 3], rank.size, 1);
    for _ in 0..2 {
        nobody.start().expect_err("there is no such rank");
        assert_eq!(nobody.buffer(), Some(&mut vec![7u8; 3]));
    }
    for &size in &MIXED {
        if rank.me == 0 {
            let mut send = rank.world.send_init(vec![0u8; size], 1, 1);
            for round in 0..5 {
                let buffer = send.buffer().expect("not active");
                crate::bytes::fill(buffer, round);
                send.start().expect("start");
                let status = send.wait().expect("wait");
                assert_eq!(status.map(|s| s.bytes), Some(size));
                assert!(send.test());
                assert_eq!(send.wait().expect("not active"), None);
            }
        } else {
            let mut recv = rank.world.recv_init(vec![0u8; size], 0, 1);
            for round in 0..5 {
                recv.start().expect("start");
                let status = recv.wait().expect("wait").expect("active");
                assert_eq!((status.source, status.bytes), (0, size));
                check(recv.buffer().expect("not active"), round, "persistent");
            }
        }
    }
}

fn several(rank: &Rank<'_>) {
    const EACH: usize = 8;
    let peers: Vec<_> = (0..rank.size).filter(|&peer| peer != rank.me).collect();
    let size = |i: usize| MIXED[i % MIXED.len()];
    for way in 0..5 {
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        let mut seeds = Vec::new();
        for &peer in &peers {
            for i in 0..EACH {
                let space = vec![0u8; size(i + way)];
                receives.push(rank.world.irecv(space, peer, i as i32).expect("irecv"));
                seeds.push(peer * 100 + i);
            }
        }
        for &peer in &peers {
            for i in (0..EACH).rev() {
                let message = pattern(size(i + way), rank.me * 100 + i);
                sends.push(rank.world.isend(message, peer, i as i32).expect("isend"));
            }
        }
        let mut finished = 0;
        while !receives.is_empty() {
            let mut done = match way {
                0 => wait_any(&mut receives).into_iter().collect(),
                1 => wait_some(&mut receives),
                2 => test_some(&mut receives),
                3 => test_any(&mut receives).into_iter().collect(),
                _ => {
                    while !test_all(&mut receives) {}
                    (0..receives.len()).collect::<Vec<_>>()
                }
            };
            done.sort_unstable_by(|a, b| b.cmp(a));
            for place in done {
                let (got, _) = receives.remove(place).wait().expect("complete");
                check(&got, seeds.remove(place), "one of several");
                finished += 1;
            }
        }
        assert_eq!(finished, EACH * peers.len());
        wait_all(sends).expect("wait");
        assert_eq!(wait_any::<Vec<u8>>(&mut []), None);
    }
}

fn heap_owned(rank: &Rank<'_>) {
    let peer = rank.peer();
    if rank
        .rt
        .layers(peer)
        .expect("layers")
        .iter()
        .any(|state| state.layer == onecopy::LayerId::Heap && state.refusal.is_some())
    {
        return;
    }
    for size in [1, 700, 9000, 1 << 20] {
        for round in 0..3 {
            let mut mine = rank.rt.alloc(size).expect("alloc");
            crate::bytes::fill(&mut mine, round + rank.me);
            let space = rank.rt.alloc(size).expect("alloc");
            let receive = rank.world.irecv(space, peer, 1).expect("irecv");
            let send = rank.world.isend(mine, peer, 1).expect("isend");
            // Given back at the end of each round, so that the next one gets the same pages: fresh ones hold zeros.
            let (got, _) = receive.wait().expect("wait");
            check(&got, round + peer, "heap buffer");
            send.wait().expect("wait");
            drop(got);
            let fresh = rank.rt.alloc(size).expect("alloc");
            assert!(fresh.iter().all(|&byte| byte == 0), "not zeroed");
        }
    }
}

fn elements(rank: &Rank<'_>) {
    let peer = rank.peer();
    let mine: Vec<f64> = (0..30_000).map(|i| f64::from(i) / 3.0).collect();
    let mut got = vec![0f64; 30_000];
    let status = rank
        .world
        .sendrecv(&mine, peer, 0, &mut got, peer, 0)
        .expect("sendrecv");
    assert_eq!(status.count::<f64>(), 30_000);
    assert_eq!(got, mine);
    if rank.me == 0 {
        rank.world.send(&[1u8; 13], 1, 1).expect("send");
    } else {
        let error = rank.world.recv(&mut [0u32; 10], 0, 1);
        let uneven = matches!(
            error,
            Err(Error::Uneven {
                bytes: 13,
                element: 4
            })
        );
        assert!(uneven, "{error:?}");
    }
}

fn window(rank: &Rank<'_>) {
    const WINDOW: usize = 64;
    for size in [8, 600, 5000, 40_000] {
        for round in 0..3 {
            if rank.me == 0 {
                let messages: Vec<_> = (0..WINDOW).map(|i| rank.message(size, round + i)).collect();
                rank.world.scope(|scope| {
                    for message in &messages {
                        scope.isend(&message[..], 1, 1).expect("isend");
                    }
                    scope.wait_all().expect("wait");
                });
                rank.world.recv(&mut [0u8], 1, 2).expect("recv");
            } else {
                let mut spaces: Vec<_> = (0..WINDOW).map(|_| rank.space(size)).collect();
                rank.world.scope(|scope| {
                    for space in &mut spaces {
                        scope.irecv(&mut space[..], 0, 1).expect("irecv");
                    }
                    let mut done = 0;
                    while let Some((_, result)) = scope.wait_any() {
                        result.expect("received");
                        done += 1;
                    }
                    assert_eq!(done, WINDOW);
                });
                for (i, space) in spaces.iter().enumerate() {
                    check(space, round + i, "of the window");
                }
                rank.world.send(&[1u8], 0, 2).expect("send");
            }
        }
    }
}
