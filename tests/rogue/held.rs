// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chunks that a peer had when it was given up: it lives, so it may still write there, and nobody else's message may
//! be.

use super::bodies::{CHUNK_FIRST, RTS, sealed};
use super::stage::{FRIEND, ROGUE, Rogue, expect_protocol_error, geometry, play};
use std::os::unix::fs::FileExt;

/// Messages of one chunk, and their bytes. Fewer than a peer may have out.
const COUNT: usize = 30;
const LEN: usize = 6000;
/// More than the pool has by then, and less than the friend's credit.
const MORE: usize = 80;

/// Takes a message that goes in one chunk, and gives nothing back. Gives the chunk's number.
fn take(rogue: &mut Rogue) -> u64 {
    loop {
        let Some(record) = rogue.inbox.peek().expect("a correct peer") else {
            std::thread::yield_now();
            continue;
        };
        assert_eq!(record.kind, CHUNK_FIRST);
        let mut body = [0; 48];
        rogue.inbox.read(&record, 0, &mut body);
        rogue.inbox.advance(record);
        let [a, b, c, d] = [body[16], body[17], body[18], body[19]];
        return u64::from(u32::from_le_bytes([a, b, c, d]));
    }
}

#[test]
fn a_living_peer_keeps_what_it_had() {
    let (before, after) = ([3u8; LEN], [4u8; LEN]);
    let result = play(
        "chunks of a peer that was given up",
        |rogue, is_over| {
            let held: Vec<u64> = (0..COUNT).map(|_| take(rogue)).collect();
            let nonsense = sealed(RTS, [u64::MAX, 1, 0, 64, 0]);
            assert!(rogue.publish(RTS, 5, &nonsense));
            while !is_over() {
                std::thread::yield_now();
            }
            let (pool, size) = (
                geometry().pool_offset().0,
                u64::from(geometry().chunk_bytes),
            );
            for chunk in held {
                let mut bytes = [0; LEN];
                let offset = pool + chunk * size;
                rogue
                    .file
                    .read_exact_at(&mut bytes, offset)
                    .expect("the chunk");
                assert!(bytes == before, "chunk {chunk} has somebody else's message");
            }
        },
        |_, world| {
            for _ in 0..COUNT {
                world.send(&before, ROGUE, 6).expect("a chunk");
            }
            let result = world.recv(&mut [0u8; 64], ROGUE, 5);
            for _ in 0..MORE {
                world.send(&after, FRIEND, 7).expect("a friend");
            }
            result
        },
    );
    expect_protocol_error("an announcement of 2^64 bytes", &result);
}
