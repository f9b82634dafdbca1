// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring that was idle for long is polled no more (`Engine::retire_idle`). What comes at that moment is found, either
//! by the last look or by the sender's bit. A record that is found by neither makes the model spin until loom gives up.

use super::cells::HeapCells;
use super::model;
use loom::sync::Arc;
use loom::thread;
use onecopy_shm::ring::{Consumer, Producer};
use onecopy_shm::sync::{AtomicU64, HeavyFence, Ordering, light_fence, spin_hint};

/// The receiver retires its ring whenever it finds it empty, while `records` come.
fn retired(preemptions: usize, records: u64) {
    model(preemptions, move || {
        let cells = HeapCells::new(true);
        let active = Arc::new(AtomicU64::new(0));
        let sender = thread::spawn({
            let (cells, active) = (cells.clone(), Arc::clone(&active));
            move || {
                let mut producer = Producer::new(cells);
                for number in 0..records {
                    producer.claim(1).expect("room").publish(1, 0, number);
                    if producer.must_notify(false) {
                        active.fetch_or(1, Ordering::AcqRel);
                        light_fence(false);
                    }
                }
            }
        });
        let mut consumer = Consumer::new(cells);
        let (mut polled, mut got) = (true, 0);
        let fence = HeavyFence::without_membarrier();
        while got < records {
            if active.swap(0, Ordering::AcqRel) != 0 {
                consumer.set_polling(true);
                polled = true;
            }
            if !polled {
                spin_hint();
                continue;
            }
            if let Some(record) = consumer.peek().expect("no bad record") {
                assert_eq!(record.meta, got);
                consumer.advance(record);
                got += 1;
                continue;
            }
            consumer.set_polling(false);
            polled = false;
            fence.issue();
            if !consumer.is_empty() {
                consumer.set_polling(true);
                polled = true;
            }
        }
        sender.join().expect("no panic");
    });
}

#[test]
fn what_comes_while_a_ring_is_retired_is_found() {
    retired(3, 1);
}

#[test]
fn a_ring_that_was_retired_is_taken_up_again() {
    retired(2, 2);
}
