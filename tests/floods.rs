// SPDX-License-Identifier: MIT OR Apache-2.0
//! Floods of each kind of record by a rogue peer. What its victim keeps is bounded, and the victim's messages with a
//! third rank go on. One test after the other, as the memory of the process is measured.

#[path = "harness/resident.rs"]
mod resident;
#[path = "rogue/seal.rs"]
mod seal;
#[path = "rogue/stage.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod stage;

use onecopy::{Comm, Result, Runtime, Status};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::ChunkIndex;
use resident::resident;
use seal::sealed;
use stage::{ROGUE, Rogue, expect_protocol_error, play};
use std::sync::Mutex;

const EAGER: u8 = 1;
const EAGER_SYNC: u8 = 2;
const CHUNK_FIRST: u8 = 3;
const RTS: u8 = 5;
const CTS: u8 = 6;
const FIN: u8 = 8;
/// A record that carries nothing.
const NOP: u8 = 0xff;
const NONE: u64 = u64::MAX;
/// The tag of the flood, which no receive names.
const META: u64 = 5;
/// Beyond so many records something is not bounded.
const MANY: usize = 3_000_000;
/// What a victim may grow by, with what the rogue itself uses in this process.
const BOUND: u64 = 160 << 20;

/// One at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Publishes the record `number` for as long as the victim does not mind.
fn pour(rogue: &mut Rogue, is_over: &dyn Fn() -> bool, mut record: impl FnMut(u64) -> Record) {
    let mut next = 0;
    while next < MANY as u64 && !is_over() {
        let (kind, meta, body) = record(next);
        if rogue.publish(kind, meta, &body) {
            next += 1;
        } else {
            std::thread::yield_now();
        }
    }
}

type Record = (u8, u64, Vec<u8>);

fn flood<R: Send>(
    name: &str,
    rogue: impl FnOnce(&mut Rogue, &dyn Fn() -> bool) + Send,
    victim: impl FnOnce(&Runtime, &Comm) -> R + Send,
) -> R {
    let _alone = ALONE.lock().unwrap_or_else(|poison| poison.into_inner());
    play(name, rogue, |rt, world| {
        let before = resident();
        let result = victim(rt, world);
        let grown = resident().saturating_sub(before);
        assert!(grown < BOUND, "{name}: grew by {} MiB", grown >> 20);
        result
    })
}

/// The victim waits for something else of the rogue.
fn waits(_: &Runtime, world: &Comm) -> Result<Status> {
    world.recv(&mut [0u8; 10], ROGUE, 6)
}

#[test]
fn messages_that_no_receive_takes() {
    let chunk = [4000, 0, pair(0, 4000), NONE, 0];
    let records: [(&str, Record); 4] = [
        ("empty messages", (EAGER, META, vec![])),
        ("short messages", (EAGER, META, vec![1; 48])),
        ("synchronous messages", (EAGER_SYNC, META, vec![1; 8])),
        (
            "chunks",
            (CHUNK_FIRST, META, sealed(CHUNK_FIRST, chunk).to_vec()),
        ),
    ];
    for (name, record) in records {
        let pours = |rogue: &mut Rogue, is_over: &dyn Fn() -> bool| {
            rogue.own.reserve_chunks(0, 1).expect("memory");
            pour(rogue, is_over, |_| record.clone());
        };
        expect_protocol_error(name, &flood(name, pours, waits));
    }
}

#[test]
fn announcements_that_no_receive_takes() {
    // In one piece, in too many to list, and in a region.
    for (name, shape) in [("announcements", 0), ("scattered", 2), ("regions", 3)] {
        let pours = |rogue: &mut Rogue, is_over: &dyn Fn() -> bool| {
            pour(rogue, is_over, |n| {
                let words = [1 << 20, n, 4096, NONE, pair(0, shape)];
                (RTS, META, sealed(RTS, words).to_vec())
            });
        };
        expect_protocol_error(name, &flood(name, pours, waits));
    }
}

#[test]
fn lists_that_no_receive_takes() {
    let name = "announcements of lists";
    let count = 8192 / 24;
    let pours = |rogue: &mut Rogue, is_over: &dyn Fn() -> bool| {
        rogue.own.reserve_chunks(0, 1).expect("memory");
        let entry = [4096u64, NONE, 100].map(u64::to_le_bytes).concat();
        let list = entry.repeat(count as usize);
        let (own, chunk) = (&rogue.own, ChunkIndex(0));
        own.pool()
            .write(chunk, 0, &list, Kernel::Memcpy)
            .expect("the list");
        pour(rogue, is_over, |n| {
            let words = [u64::from(count) * 100, n, pair(0, count), 0, pair(0, 1)];
            (RTS, META, sealed(RTS, words).to_vec())
        });
    };
    let result = flood(name, pours, |rt, world| {
        let before = resident();
        let result = waits(rt, world);
        let grown = resident().saturating_sub(before);
        // As much as the credit covers, twofold, and what a list takes more here than there.
        assert!(grown < 16 << 20, "{name}: grew by {} MiB", grown >> 20);
        result
    });
    expect_protocol_error(name, &result);
}

/// The request of a message that the victim has announced.
fn announced(rogue: &mut Rogue, is_over: &dyn Fn() -> bool) -> Option<u64> {
    loop {
        if let Some(record) = rogue.inbox.peek().expect("a correct peer") {
            assert_eq!(record.kind, RTS);
            let mut body = [0; 48];
            rogue.inbox.read(&record, 0, &mut body);
            rogue.inbox.advance(record);
            return Some(body[8..16].try_into().map_or(0, u64::from_le_bytes));
        }
        if is_over() {
            return None;
        }
        std::thread::yield_now();
    }
}

#[test]
fn the_same_chunks_wanted_again_and_again() {
    let name = "wishes";
    let pours = |rogue: &mut Rogue, is_over: &dyn Fn() -> bool| {
        let Some(request) = announced(rogue, is_over) else {
            return;
        };
        let body = sealed(CTS, [request, 1, 0, 1 << 20, 0]).to_vec();
        pour(rogue, is_over, |_| (CTS, 0, body.clone()));
    };
    let result = flood(name, pours, |_, world| {
        world.send(&vec![1u8; 1 << 20], ROGUE, 5)
    });
    let broke = matches!(result, Err(onecopy::Error::Protocol { rank: ROGUE, .. }));
    assert!(broke, "{name}: {result:?}");
}

/// Asked to join again and again, and told of nothing: it keeps none of that, and the message ends when the rogue
/// says so.
#[test]
fn wishes_to_join_and_records_of_nothing() {
    for (name, kind) in [("joins", CTS), ("no-ops", NOP)] {
        let pours = |rogue: &mut Rogue, is_over: &dyn Fn() -> bool| {
            let Some(request) = announced(rogue, is_over) else {
                return;
            };
            let body = sealed(CTS, [request, 1, 0, 0, 1]).to_vec();
            let body = if kind == CTS { body } else { vec![] };
            let mut left = 300_000;
            while left > 0 && !is_over() {
                if rogue.publish(kind, 0, &body) {
                    left -= 1;
                } else {
                    std::thread::yield_now();
                }
            }
            let fin = sealed(FIN, [request, 0, 0, 0, 0]);
            while !is_over() && !rogue.publish(FIN, 0, &fin) {
                std::thread::yield_now();
            }
        };
        let result = flood(name, pours, |_, world| {
            world.send(&vec![1u8; 1 << 20], ROGUE, 5)
        });
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The victim receives all that comes; the rogue reads none of the answers.
#[test]
fn answers_that_are_never_read() {
    let name = "answers";
    let pours = |rogue: &mut Rogue, is_over: &dyn Fn() -> bool| {
        pour(rogue, is_over, |n| {
            (EAGER_SYNC, META, n.to_le_bytes().to_vec())
        });
    };
    let result = flood(name, pours, |_, world| {
        loop {
            let received = world.recv(&mut [0u8; 10], ROGUE, 5);
            if received.is_err() {
                break received;
            }
        }
    });
    expect_protocol_error(name, &result);
}

#[test]
fn answers_to_nothing() {
    for (name, kind) in [("ends of nothing", FIN), ("wishes for nothing", CTS)] {
        let pours = |rogue: &mut Rogue, is_over: &dyn Fn() -> bool| {
            pour(rogue, is_over, |n| {
                (kind, 0, sealed(kind, [1 << 32 | n, 1, 0, 1, 0]).to_vec())
            });
        };
        expect_protocol_error(name, &flood(name, pours, waits));
    }
}
