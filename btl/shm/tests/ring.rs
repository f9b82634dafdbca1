// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring in a real segment against a plain queue.
#![cfg(not(loom))]

use onecopy_shm::cells::Cells;
use onecopy_shm::layout::Geometry;
use onecopy_shm::ring::{Consumer, MAX_RECORD_SLOTS, payload_of, slots_for};
use onecopy_shm::segment::{OwnSegment, PeerSegment};
use onecopy_shm::sync::{AtomicU32, AtomicU64, HeavyFence};
use proptest::prelude::*;
use std::cell::RefCell;
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
                        // Nothing is under way, and the producer was notified: any record fits that leaves one slot
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

/// Cells that note which slots their consumer asks for.
struct Noted<'c, C> {
    cells: &'c C,
    asked: RefCell<Vec<(usize, usize)>>,
}

impl<C: Cells> Cells for Noted<'_, C> {
    fn slots(&self) -> usize {
        self.cells.slots()
    }
    fn header(&self, slot: usize) -> &AtomicU64 {
        self.cells.header(slot)
    }
    fn meta(&self, slot: usize) -> &AtomicU64 {
        self.cells.meta(slot)
    }
    fn tail(&self) -> &AtomicU64 {
        self.cells.tail()
    }
    fn wake(&self) -> &AtomicU32 {
        self.cells.wake()
    }
    fn will_read(&self, slot: usize, slots: usize) {
        self.asked.borrow_mut().push((slot, slots));
    }
    fn write(&self, slot: usize, offset: usize, bytes: &[u8]) {
        self.cells.write(slot, offset, bytes);
    }
    fn read(&self, slot: usize, offset: usize, out: &mut [u8]) {
        self.cells.read(slot, offset, out);
    }
}

/// Long records that are not published are not asked for: that would take their lines from who writes them.
#[test]
fn long_records_are_asked_for_once_they_are_published() {
    const SLOTS: usize = 9;
    let geometry = Geometry {
        ranks: 2,
        ring_slots: 64,
        chunk_bytes: 4096,
        chunks: 8,
        heap_bytes: 0,
        coll_channels: 0,
    };
    let fence = HeavyFence::without_membarrier();
    let own = OwnSegment::create(0, geometry, fence, 5).expect("a segment");
    let fd = own.fd().try_clone_to_owned().expect("a descriptor");
    let peer = PeerSegment::open(fd, 0, 1, &geometry).expect("the peer's view");
    let mut producer = peer.producer().expect("a producer");
    let mut send = |slots: usize| {
        let claim = producer.claim(slots).expect("room");
        claim.publish(1, payload_of(slots), 0);
    };
    let inner = own.consumer(1);
    let mut consumer = Consumer::new(Noted {
        cells: inner.cells(),
        asked: RefCell::default(),
    });
    let mut receive = || {
        let record = consumer.peek().expect("valid").expect("published");
        consumer.advance(record);
        consumer.cells().asked.take()
    };
    send(SLOTS);
    assert_eq!(receive(), [], "nothing follows yet");
    send(SLOTS);
    send(SLOTS);
    let rest = (2 * SLOTS + 1, SLOTS - 1);
    assert_eq!(receive(), [rest], "the record that follows");
    assert_eq!(receive(), []);
    send(1);
    let ahead = (3 * SLOTS + 1 + 6, 1);
    assert_eq!(
        receive(),
        [ahead],
        "a short record is followed by short ones"
    );
}
