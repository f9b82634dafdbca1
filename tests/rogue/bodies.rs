// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records that check but make no sense: lengths, offsets, chunk indices, requests.

pub(crate) use super::seal::sealed;
use super::stage::{ROGUE, Rogue, expect_protocol_error, play};
use onecopy::raw::ReceiveOutcome;
use onecopy::{Source, Span, Tag};

pub(crate) const EAGER: u8 = 1;
pub(crate) const EAGER_SYNC: u8 = 2;
pub(crate) const CHUNK_FIRST: u8 = 3;
pub(crate) const CHUNK_NEXT: u8 = 4;
pub(crate) const RTS: u8 = 5;
pub(crate) const CTS: u8 = 6;
pub(crate) const DATA: u8 = 7;
pub(crate) const FIN: u8 = 8;
const NONE: u64 = u64::MAX;
const META: u64 = 5;

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

type Records = Vec<(u8, [u64; 5])>;

/// Records, of which the last is the bad one.
fn cases() -> Vec<(&'static str, Records)> {
    let one = |kind, words| vec![(kind, words)];
    let good = (CHUNK_FIRST, [10_000, 0, pair(0, 4000), NONE, 0]);
    vec![
        ("an unknown kind", one(9, [0; 5])),
        ("another unknown kind", one(200, [0; 5])),
        (
            "a whole of 2^64 bytes",
            one(CHUNK_FIRST, [u64::MAX, 0, pair(0, 1), NONE, 0]),
        ),
        (
            "a whole of almost 2^64 bytes",
            one(CHUNK_FIRST, [u64::MAX - 70, 0, pair(0, 1), NONE, 0]),
        ),
        (
            "more than the credit",
            one(CHUNK_FIRST, [1 << 30, 0, pair(0, 1), NONE, 0]),
        ),
        (
            "a chunk that does not exist",
            one(CHUNK_FIRST, [4000, 0, pair(u32::MAX, 4000), NONE, 0]),
        ),
        (
            "a returned chunk that was never sent",
            one(CHUNK_FIRST, [4000, 0, pair(1 << 31, 4000), NONE, 0]),
        ),
        (
            "a list in a returned chunk that was never sent",
            one(RTS, [100, 1, 1 << 31 | 2 << 32, 0, pair(0, 1)]),
        ),
        (
            "the chunk behind the last",
            one(CHUNK_FIRST, [4000, 0, pair(512, 4000), NONE, 0]),
        ),
        (
            "more than a chunk holds",
            one(CHUNK_FIRST, [9000, 0, pair(0, 9000), NONE, 0]),
        ),
        (
            "a first chunk that is not the first",
            one(CHUNK_FIRST, [4000, 100, pair(0, 10), NONE, 0]),
        ),
        (
            "an empty first chunk",
            one(CHUNK_FIRST, [4000, 0, pair(0, 0), NONE, 0]),
        ),
        (
            "a chunk beyond its message",
            one(CHUNK_FIRST, [10, 0, pair(0, 11), NONE, 0]),
        ),
        (
            "a chunk of no message",
            one(CHUNK_NEXT, [10, 0, pair(0, 10), NONE, 0]),
        ),
        (
            "a chunk out of order",
            vec![good, (CHUNK_NEXT, [10_000, 8000, pair(1, 2000), NONE, 0])],
        ),
        (
            "a chunk of another message",
            vec![good, (CHUNK_NEXT, [20_000, 4000, pair(1, 2000), NONE, 0])],
        ),
        (
            "a further chunk that does not exist",
            vec![
                good,
                (CHUNK_NEXT, [10_000, 4000, pair(9999, 2000), NONE, 0]),
            ],
        ),
        ("a message within a message", vec![good, good]),
        (
            "an announcement within a message",
            vec![good, (RTS, [100, 1, 0, NONE, 0])],
        ),
        (
            "data that nobody asked for",
            one(DATA, [100, 0, pair(0, 100), 1 << 32, 0]),
        ),
        (
            "data for a transfer far away",
            one(DATA, [100, 0, pair(0, 100), u64::MAX, 0]),
        ),
        (
            "a source outside of the heap",
            one(RTS, [1 << 20, 1, 0, 4 << 20, 0]),
        ),
        (
            "a source that wraps",
            one(RTS, [1 << 20, 1, 0, u64::MAX - 1, 0]),
        ),
        ("a source of 2^64 bytes", one(RTS, [u64::MAX, 1, 0, 64, 0])),
        (
            "a list in a chunk that does not exist",
            one(RTS, [100, 1, 100_000, 2, pair(0, 1)]),
        ),
        (
            "a list too long",
            one(RTS, [100, 1, 0, 100_000, pair(0, 1)]),
        ),
        (
            "a list of 2^64 pieces",
            one(RTS, [100, 1, 0, u64::MAX, pair(0, 1)]),
        ),
        (
            "a list of pieces that are not the whole",
            one(RTS, [100, 1, 0, 3, pair(0, 1)]),
        ),
        (
            "a source of unknown shape",
            one(RTS, [100, 1, 0, 0, pair(0, 9)]),
        ),
        (
            "a request that does not exist",
            one(FIN, [1 << 32, 0, 0, 0, 0]),
        ),
        ("a request far away", one(FIN, [u64::MAX, 0, 0, 0, 0])),
        (
            "chunks wanted of no request",
            one(CTS, [1 << 32, 1, 0, 10, 0]),
        ),
        ("an unknown wish", one(CTS, [1 << 32, 1, 0, 10, 7])),
    ]
}

fn publish(rogue: &mut Rogue, records: &Records) {
    for &(kind, words) in records {
        assert!(rogue.publish(kind, META, &sealed(kind, words)));
    }
}

#[test]
fn every_field_out_of_range_is_found() {
    for (name, records) in cases() {
        for posted in [true, false] {
            let result = play(
                name,
                |rogue, _| publish(rogue, &records),
                |_, world| {
                    if posted {
                        world.recv(&mut [0u8; 10_000], ROGUE, 5)
                    } else {
                        // Unexpected: another tag is waited for.
                        world.recv(&mut [0u8; 10_000], ROGUE, 6)
                    }
                },
            );
            expect_protocol_error(name, &result);
        }
    }
}

/// What matches a lightweight receive and cannot be read ends it.
#[test]
fn a_lightweight_receive_of_nonsense_ends() {
    for (name, words) in [
        ("no bytes", [0, 0, pair(0, 0), NONE, 0]),
        (
            "a chunk that does not exist",
            [4000, 0, pair(u32::MAX, 4000), NONE, 0],
        ),
        (
            "a returned chunk that was never sent",
            [4000, 0, pair(1 << 31, 4000), NONE, 0],
        ),
    ] {
        for source in [Source::Any, Source::Rank(ROGUE)] {
            let posted = std::sync::Barrier::new(2);
            let result = play(
                name,
                |rogue, _| {
                    posted.wait();
                    publish(rogue, &vec![(CHUNK_FIRST, words)]);
                },
                |_, world| {
                    let mut starting = world.start_lightweight();
                    let number = starting.receive(Span::empty(), source, Tag::Is(5));
                    drop(starting);
                    posted.wait();
                    let number = number.expect("receive").expect("few receives");
                    world.wait_until(|poll| match poll.take_lightweight(number) {
                        ReceiveOutcome::Active => None,
                        ReceiveOutcome::Over(result) => Some(result.map_err(|error| *error)),
                        ReceiveOutcome::Unknown => panic!("{name}: the receive is not known"),
                    })
                },
            );
            expect_protocol_error(name, &result);
        }
    }
}

/// Records whose lengths do not fit their kinds.
#[test]
fn bodies_of_wrong_length() {
    for (kind, len) in [
        (EAGER_SYNC, 7),
        (EAGER_SYNC, 0),
        (RTS, 0),
        (RTS, 47),
        (FIN, 40),
        (CTS, 1),
        (DATA, 100),
        (CHUNK_FIRST, 8),
    ] {
        let name = format!("a record of kind {kind} with {len} bytes");
        let result = play(
            &name,
            |rogue, _| assert!(rogue.publish(kind, META, &vec![0; len])),
            |_, world| world.recv(&mut [0u8; 100], ROGUE, 5),
        );
        expect_protocol_error(&name, &result);
    }
}

/// What the rogue asks about a message that the victim has announced to it.
#[test]
fn wishes_beyond_the_message() {
    for (offset, len) in [
        (0, (1 << 20) + 1),
        (1 << 20, 1),
        (u64::MAX, 2),
        (5, u64::MAX),
        (7, 0),
    ] {
        let name = format!("{len} bytes at {offset} are wanted");
        let result = play(
            &name,
            |rogue, is_over| {
                let record = loop {
                    if let Some(record) = rogue.inbox.peek().expect("a correct peer") {
                        break record;
                    }
                    if is_over() {
                        return;
                    }
                    std::thread::yield_now();
                };
                assert_eq!(record.kind, RTS);
                let mut body = [0; 48];
                rogue.inbox.read(&record, 0, &mut body);
                let request = body[8..16].try_into().map_or(0, u64::from_le_bytes);
                rogue.inbox.advance(record);
                assert!(rogue.publish(CTS, 0, &sealed(CTS, [request, 1, offset, len, 0])));
            },
            |_, world| world.send(&vec![1u8; 1 << 20], ROGUE, 5),
        );
        assert!(
            matches!(result, Err(onecopy::Error::Protocol { rank: ROGUE, .. })),
            "{name}: {result:?}"
        );
    }
}

/// More eager messages than the credit covers: the victim's memory is bounded.
#[test]
fn a_flood_beyond_the_credit() {
    let result = play(
        "a flood",
        |rogue, is_over| {
            while !is_over() {
                if !rogue.publish(EAGER, META, &[1; 1000]) {
                    std::thread::yield_now();
                }
            }
        },
        |rt, world| {
            let result = world.recv(&mut [0u8; 10], ROGUE, 6);
            assert!(rt.counters().unexpected_bytes_peak < 1 << 20);
            result
        },
    );
    expect_protocol_error("a flood", &result);
}
