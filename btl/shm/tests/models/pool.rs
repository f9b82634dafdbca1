// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chunks: one is written again only when the consumer's tail has passed the record that named it.

use super::cells::HeapCells;
use super::model;
use super::watched::Watched;
use loom::sync::Arc;
use loom::thread;
use onecopy_shm::layout::ChunkIndex;
use onecopy_shm::pool::{ChunkPool, Outstanding};
use onecopy_shm::ring::{Consumer, Producer};

const KIND: u8 = 3;

fn recycled(preemptions: usize, chunks: u32, messages: u64) {
    model(preemptions, move || {
        let cells = HeapCells::new(true);
        let memory: Arc<Vec<Watched<u64>>> =
            Arc::new((0..chunks).map(|_| Watched::new(0)).collect());
        let mut producer = Producer::new(cells.clone());
        let mut consumer = Consumer::new(cells);
        let receiver = thread::spawn({
            let memory = Arc::clone(&memory);
            move || {
                for number in 0..messages {
                    let record = loop {
                        if let Some(record) = consumer.peek().expect("no bad record") {
                            break record;
                        }
                        thread::yield_now();
                    };
                    let got = memory[record.meta as usize].look(|from| *from);
                    assert_eq!(got, number + 1);
                    consumer.advance(record);
                    consumer.publish_tail();
                }
            }
        });
        let (mut pool, mut out) = (ChunkPool::new(chunks), Outstanding::default());
        for number in 0..messages {
            let ChunkIndex(chunk) = loop {
                out.reclaim(producer.released(), &mut pool);
                match pool
                    .take(|_, _| Ok::<(), ()>(()))
                    .expect("a reservation never fails here")
                {
                    Some(index) => break index,
                    None => thread::yield_now(),
                }
            };
            memory[chunk as usize].change(|to| *to = number + 1);
            // One slot per message and room for all that can be outstanding.
            producer
                .claim(1)
                .expect("fewer chunks than slots")
                .publish(KIND, 0, u64::from(chunk));
            out.push(producer.position(), ChunkIndex(chunk));
        }
        receiver.join().expect("receiver");
        out.reclaim(producer.released(), &mut pool);
        assert!(out.is_empty());
        assert_eq!(pool.free(), pool.reserved() as usize);
    });
}

#[test]
fn one_chunk_is_recycled() {
    recycled(3, 1, 3);
}

#[test]
fn two_chunks_are_recycled() {
    recycled(2, 2, 4);
}
