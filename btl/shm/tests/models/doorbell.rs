// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping and waking: whatever the interleaving, no wake-up is lost. A lost one leaves the sleeper waiting for ever,
//! which loom reports as a deadlock.

use super::cells::HeapCells;
use super::model;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use onecopy_shm::doorbell::Doorbell;
use onecopy_shm::ring::{Consumer, Producer};
use onecopy_shm::sync::{AtomicU32, AtomicU64, HeavyFence, Ordering, light_fence};

/// A rank that can sleep: its doorbell, its bitmap of active senders, and the kernel's queue of sleepers.
struct Rank {
    doorbell: Doorbell,
    active: AtomicU64,
    kernel: Mutex<()>,
    queue: Condvar,
}

impl Rank {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            doorbell: Doorbell::default(),
            active: AtomicU64::new(0),
            kernel: Mutex::new(()),
            queue: Condvar::new(),
        })
    }

    /// `FUTEX_WAIT`: compares and queues in one step.
    fn sleep(&self) {
        let mut held = self.kernel.lock().expect("lock");
        while self.doorbell.is_armed() {
            held = self.queue.wait(held).expect("wait");
        }
        drop(held);
        self.doorbell.disarm();
    }

    fn ring(&self) {
        if self.doorbell.take() {
            let _held = self.kernel.lock().expect("lock");
            self.queue.notify_one();
        }
    }
}

/// Ringers send one record each; the sleeper, which polls nothing or everything at first, takes them all.
fn all_arrive(preemptions: usize, ringers: usize, polling: bool) {
    model(preemptions, move || {
        let rank = Rank::new();
        let rings: Vec<HeapCells> = (0..ringers).map(|_| HeapCells::new(polling)).collect();
        let threads: Vec<_> = rings
            .iter()
            .cloned()
            .enumerate()
            .map(|(number, cells)| {
                let rank = Arc::clone(&rank);
                thread::spawn(move || {
                    let mut producer = Producer::new(cells);
                    producer
                        .claim(1)
                        .expect("room")
                        .publish(1, 0, number as u64);
                    if producer.must_notify(false) {
                        rank.active.fetch_or(1 << number, Ordering::AcqRel);
                        light_fence(false);
                        rank.ring();
                    }
                })
            })
            .collect();
        let mut consumers: Vec<_> = rings.into_iter().map(Consumer::new).collect();
        let mut polled = vec![polling; ringers];
        let mut got = 0;
        let fence = HeavyFence::without_membarrier();
        while got < ringers {
            let active = rank.active.swap(0, Ordering::AcqRel);
            let mut moved = active != 0;
            for (number, consumer) in consumers.iter_mut().enumerate() {
                if active & 1 << number != 0 {
                    consumer.set_polling(true);
                    polled[number] = true;
                }
                if polled[number]
                    && let Some(record) = consumer.peek().expect("no bad record")
                {
                    assert_eq!(record.meta, number as u64);
                    consumer.advance(record);
                    got += 1;
                    moved = true;
                }
            }
            if moved {
                continue;
            }
            let poll = |polling: bool| {
                for (consumer, _) in consumers.iter().zip(&polled).filter(|(_, polled)| **polled) {
                    consumer.set_polling(polling);
                }
            };
            poll(false);
            rank.doorbell.arm();
            fence.issue();
            let incoming = consumers
                .iter()
                .zip(&polled)
                .any(|(c, polled)| *polled && !c.is_empty());
            if !incoming && rank.active.load(Ordering::Acquire) == 0 {
                rank.sleep();
            }
            rank.doorbell.disarm();
            poll(true);
        }
        for thread in threads {
            thread.join().expect("ringer");
        }
    });
}

#[test]
fn a_polled_ring_wakes_its_sleeper() {
    all_arrive(3, 1, true);
}

#[test]
fn a_ring_that_is_not_polled_wakes_its_sleeper() {
    all_arrive(3, 1, false);
}

#[test]
fn two_ringers_wake_one_sleeper() {
    all_arrive(1, 2, true);
}

/// A sender waits for room: it says so, and the consumer rings when its tail moves.
#[test]
fn room_wakes_a_sender() {
    model(3, || {
        let rank = Rank::new();
        let sender_waiting = Arc::new(AtomicU32::new(0));
        let cells = HeapCells::new(true);
        let mut producer = Producer::new(cells.clone());
        let mut consumer = Consumer::new(cells);
        for number in 0..3 {
            producer.claim(1).expect("room").publish(1, 0, number);
        }
        let receiver = thread::spawn({
            let (rank, sender_waiting) = (Arc::clone(&rank), Arc::clone(&sender_waiting));
            move || {
                let record = consumer
                    .peek()
                    .expect("no bad record")
                    .expect("published before");
                if consumer.advance(record) {
                    light_fence(false);
                    if sender_waiting.load(Ordering::Relaxed) != 0 {
                        rank.ring();
                    }
                }
            }
        });
        let fence = HeavyFence::without_membarrier();
        while !producer.claim_would_fit(1) {
            sender_waiting.store(1, Ordering::Relaxed);
            rank.doorbell.arm();
            fence.issue();
            if !producer.claim_would_fit(1) {
                rank.sleep();
            }
            rank.doorbell.disarm();
            sender_waiting.store(0, Ordering::Relaxed);
        }
        receiver.join().expect("receiver");
    });
}
