// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ranks on several nodes do, whatever carries their messages. Each test program sees to that first.
#![allow(dead_code, reason = "each test program uses a part")]

#[path = "bytes.rs"]
mod bytes;

use bytes::check;
pub(crate) use bytes::pattern;
use onecopy::{Error, Knobs, Runtime, Source, Tag};
use std::time::{Duration, Instant};

pub(crate) fn knobs(set: &[(&str, &str)]) -> Knobs {
    let (knobs, _, unknown) = Knobs::from_iter(set.iter().copied()).expect("knobs");
    assert!(unknown.is_empty(), "{unknown:?}");
    knobs
}

/// One message to each other rank and one from each, all at once. All of what comes is checked.
pub(crate) fn exchange_with_all(rt: &Runtime, len: usize, round: usize) {
    let (world, me, size) = (rt.world(), rt.rank(), rt.size());
    let seed = |from: usize, to: usize| (round * size + from) * size + to;
    let out: Vec<Vec<u8>> = (0..size).map(|to| pattern(len, seed(me, to))).collect();
    let mut got = vec![vec![0; len]; size];
    world
        .scope(|scope| {
            for (peer, (got, out)) in got.iter_mut().zip(&out).enumerate() {
                if peer != me {
                    scope.irecv(got, peer, 3)?;
                    scope.isend(out, peer, 3)?;
                }
            }
            scope.wait_all()
        })
        .expect("all with all");
    for (peer, got) in got.iter().enumerate().filter(|(peer, _)| *peer != me) {
        check(got, seed(peer, me), &format!("round {round}, from {peer}"));
    }
}

/// Rank 0 of two sends `many` short messages and a long one, and has nothing more to do. Rank 1 is slow.
pub(crate) fn send_before_leaving(rt: &Runtime, many: usize) {
    const LONG: usize = 3 << 20;
    let world = rt.world();
    if world.rank() == 0 {
        for number in 0..many {
            let message = pattern(number % 300, number);
            world.send(&message, 1, 1).expect("send");
        }
        world.send(&pattern(LONG, 5), 1, 2).expect("send");
    } else {
        let slow = Duration::from_millis(300);
        std::thread::sleep(slow);
        for number in 0..many {
            let mut got = [0; 300];
            let status = world.recv(&mut got, 0, 1).expect("recv");
            assert_eq!(got[..status.bytes], pattern(number % 300, number));
            if number == many / 2 {
                std::thread::sleep(slow);
            }
        }
        let mut got = vec![0; LONG];
        world.recv(&mut got, 0, 2).expect("recv");
        assert!(got == pattern(LONG, 5));
    }
}

/// Rank 0 of three sleeps until the other two wake it, again and again.
pub(crate) fn sleep_until_woken(rt: &Runtime) {
    let world = rt.world();
    for round in 0..40 {
        let mut got = [0usize];
        if world.rank() == 0 {
            for _ in 0..2 {
                world.recv(&mut got, Source::Any, 1).expect("recv");
                assert_eq!(got[0], round);
            }
            for peer in [1, 2] {
                world.send(&[round], peer, 2).expect("send");
            }
        } else {
            std::thread::sleep(Duration::from_millis(3));
            world.send(&[round], 0, 1).expect("send");
            world.recv(&mut got, 0, 2).expect("recv");
        }
    }
    let counters = rt.counters();
    if world.rank() == 0 {
        assert!(counters.sleeps > 20, "{} sleeps", counters.sleeps);
    }
}

/// Rank 1 of two dies while rank 0 waits for a message of `len` bytes from it: it ends without a word.
pub(crate) fn die_while_waited_for(rt: Runtime, len: usize) {
    let world = rt.world();
    if world.rank() == 1 {
        world.send(&[1u8], 0, 0).expect("the word");
        world.recv(&mut [0u8], 0, 0).expect("the answer");
        drop(world);
        // As a panic does it: nobody is told anything.
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _dies = rt;
            panic!("on purpose");
        }));
        assert!(died.is_err());
        return;
    }
    let mut got = vec![0u8; len];
    world.recv(&mut got[..1], 1, 0).expect("the word");
    world.send(&[2u8], 1, 0).expect("the answer");
    let error = world.recv(&mut got, 1, Tag::Any).expect_err("dead");
    assert!(
        matches!(
            error,
            Error::PeerDied { rank: 1, .. } | Error::PeerLeft { rank: 1 }
        ),
        "{error}"
    );
}

/// The credit that [`flood`] is bounded by.
pub(crate) const FLOOD_CREDIT: (&str, &str) = ("ONECOPY_EAGER_CREDIT", "64K");

/// Rank 0 of two sends what rank 1 does not receive for a while. It stops at the credit, and then goes on.
pub(crate) fn flood(rt: &Runtime) {
    let world = rt.world();
    if world.rank() == 0 {
        world
            .scope(|scope| {
                let message: &'static [u8] = vec![3u8; 5000].leak();
                for _ in 0..500 {
                    scope.isend(message, 1, 1)?;
                }
                scope.wait_all()
            })
            .expect("sent at last");
        world.send(&[1u8], 1, 2).expect("send");
    } else {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            let _ = world.iprobe(0, 9).expect("probe");
        }
        let peak = rt.counters().unexpected_bytes_peak;
        assert!(peak <= 2 * (64 << 10) + 10_000, "{peak} bytes are kept");
        let mut got = [0u8; 5000];
        for _ in 0..500 {
            world.recv(&mut got, 0, 1).expect("recv");
            assert!(got.iter().all(|&byte| byte == 3));
        }
        world.recv(&mut got[..1], 0, 2).expect("recv");
    }
}
