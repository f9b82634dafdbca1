// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring in a real segment against a plain queue.
#![cfg(not(loom))]

use onecopy_shm::layout::Geometry;
use onecopy_shm::ring::{MAX_RECORD_SLOTS, payload_of, slots_for};
use onecopy_shm::segment::{OwnSegment, PeerSegment};
use onecopy_shm::sync::HeavyFence;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Debug, Clone)]
enum Step {
    /// Sends a record of so many bytes, or drops its claim.
    Send { len: usize, dropped: bool },
    /// Receives up to so many records.
    Receive { count: usize },
    /// Tells the producer what was consumed.
    Tell,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![
        4 => 0usize..130,
        1 => 0..=payload_of(MAX_RECORD_SLOTS),
    ];
    let step = prop_oneof![
        6 => (len, prop::bool::weighted(0.1)).prop_map(|(len, dropped)| Step::Send { len, dropped }),
        3 => (1usize..8).prop_map(|count| Step::Receive { count }),
        1 => Just(Step::Tell),
    ];
    prop::collection::vec(step, 1..400)
}

fn bytes(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i ^ number.wrapping_mul(31)) as u8)
        .collect()
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(slots in 4u32..9, steps in steps()) {
        let geometry = Geometry {
            ranks: 2,
            ring_slots: 1 << slots,
            chunk_bytes: 4096,
            chunks: 8,
            heap_bytes: 0,
            coll_channels: 0,
        };
        let fence = HeavyFence::without_membarrier();
        let own = OwnSegment::create(0, geometry, fence, 5).unwrap();
        let peer = PeerSegment::open(own.fd().try_clone_to_owned().unwrap(), 0, 1, &geometry).unwrap();
        let (mut producer, mut consumer) = (peer.producer().unwrap(), own.consumer(1));
        let mut queue = VecDeque::new();
        let mut number = 0u64;
        // What is left at the end is received, too.
        for step in steps.into_iter().chain([Step::Receive { count: usize::MAX }]) {
            match step {
                Step::Send { len, dropped } => {
                    let needed = slots_for(len);
                    if needed >= 1 << slots {
                        continue;
                    }
                    let has_room = producer.claim_would_fit(needed);
                    let Some(mut claim) = producer.claim(needed) else {
                        prop_assert!(!has_room);
                        prop_assert!(!queue.is_empty() || producer.position() > 0);
                        continue;
                    };
                    prop_assert!(has_room);
                    prop_assert!(claim.capacity() >= len);
                    number += 1;
                    let payload = bytes(number, len);
                    // In two pieces, the second first.
                    let middle = len / 2;
                    claim.write(middle, &payload[middle..]);
                    claim.write(0, &payload[..middle]);
                    if dropped {
                        drop(claim);
                    } else {
                        let kind = 1 + (number % 200) as u8;
                        claim.publish(kind, len, number);
                        queue.push_back((kind, number, payload));
                    }
                }
                Step::Receive { count } => {
                    for _ in 0..count {
                        let Some(record) = consumer.peek().unwrap() else {
                            prop_assert!(queue.is_empty());
                            break;
                        };
                        let (kind, meta, payload) = queue.pop_front().expect("the ring holds no more than was sent");
                        prop_assert_eq!((record.kind, record.meta, record.len), (kind, meta, payload.len()));
                        let mut got = vec![0; record.len];
                        consumer.read(&record, 0, &mut got);
                        prop_assert_eq!(got, payload);
                        consumer.advance(record);
                    }
                }
                Step::Tell => {
                    consumer.publish_tail();
                    if queue.is_empty() && consumer.peek().unwrap().is_none() {
                        // Nothing is under way, and the producer has been told: any record fits that leaves one slot
                        // free, unless it would wrap.
                        consumer.publish_tail();
                        prop_assert!(producer.claim_would_fit(1));
                    }
                }
            }
        }
        prop_assert!(queue.is_empty());
    }
}
