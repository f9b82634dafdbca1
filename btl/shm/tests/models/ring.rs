// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring: order, wrap-around, dropped claims, back-pressure.

use super::cells::HeapCells;
use super::model;
use loom::thread;
use onecopy_shm::ring::{Consumer, NOP, Producer, payload_of};

const KIND: u8 = 7;

/// The payload of record `number` that spans `slots`.
fn payload(number: u64, slots: usize) -> Vec<u8> {
    // Words that look like anything but a header: a payload taken for one does not check.
    let word = 0xA5A5_0000_0000_0101 ^ number;
    word.to_le_bytes().repeat(payload_of(slots) / 8)
}

/// Sends records of the given slots (0: a claim of one slot that is dropped) and receives them all in another thread.
fn through(preemptions: usize, records: &'static [usize]) {
    model(preemptions, move || {
        let cells = HeapCells::new(true);
        let mut producer = Producer::new(cells.clone());
        let mut consumer = Consumer::new(cells);
        let receiver = thread::spawn(move || {
            for (number, &slots) in (0u64..).zip(records) {
                if slots == 0 {
                    continue;
                }
                let record = loop {
                    if let Some(record) = consumer.peek().expect("no bad record") {
                        break record;
                    }
                    thread::yield_now();
                };
                assert_ne!(record.kind, NOP);
                assert_eq!((record.kind, record.meta), (KIND, number));
                assert_eq!(record.len, payload_of(slots));
                let mut got = vec![0; record.len];
                consumer.read(&record, 0, &mut got);
                assert_eq!(got, payload(number, slots));
                consumer.advance(record);
            }
        });
        for (number, &slots) in (0u64..).zip(records) {
            loop {
                let Some(mut claim) = producer.claim(slots.max(1)) else {
                    thread::yield_now();
                    continue;
                };
                if slots == 0 {
                    drop(claim);
                } else {
                    claim.write(0, &payload(number, slots));
                    claim.publish(KIND, payload_of(slots), number);
                }
                break;
            }
        }
        receiver.join().expect("receiver");
    });
}

#[test]
fn records_arrive_in_order_and_whole() {
    through(3, &[1, 1, 1]);
}

/// More records than slots: the producer waits for the tail, every slot is used again.
#[test]
fn a_full_ring_holds_the_producer_back() {
    through(2, &[1, 1, 1, 1, 1, 1]);
}

/// The second record of two slots begins behind a no-op that fills the ring's last slot.
#[test]
fn records_that_would_wrap_begin_anew() {
    through(2, &[1, 2, 2, 1]);
}

/// Payload of two slots lies over former headers, and headers over former payload.
#[test]
fn payload_is_never_taken_for_a_header() {
    through(2, &[2, 1, 2, 1, 1]);
}

#[test]
fn a_dropped_claim_is_passed() {
    through(2, &[1, 0, 1, 0, 1]);
}

/// What [`Producer::claim_would_fit`] says holds for the claim that follows.
#[test]
fn room_that_was_seen_stays() {
    model(3, || {
        let cells = HeapCells::new(true);
        let mut producer = Producer::new(cells.clone());
        let mut consumer = Consumer::new(cells);
        for number in 0..3 {
            producer
                .claim(1)
                .expect("an empty ring")
                .publish(KIND, 0, number);
        }
        assert!(producer.claim(1).is_none());
        let receiver = thread::spawn(move || {
            for _ in 0..2 {
                let record = consumer
                    .peek()
                    .expect("no bad record")
                    .expect("published before");
                consumer.advance(record);
            }
        });
        if producer.claim_would_fit(2) {
            drop(producer.claim(2).expect("room was seen"));
        }
        receiver.join().expect("receiver");
    });
}
