// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chunks: one is written again only when the consumer's tail has passed the record that named it, or when it has
//! returned with an answer.

use super::cells::HeapCells;
use super::model;
use super::watched::Watched;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
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

/// The receiver answers in the chunk, then publishes a tail behind the record that brought it. The sender writes the
/// chunk again only when it has read the answer.
#[test]
fn a_chunk_returns_with_an_answer() {
    model(3, || {
        let (there, back) = (HeapCells::new(true), HeapCells::new(true));
        let memory = Arc::new(Watched::new(0));
        let returned = Arc::new(AtomicU64::new(0));
        let mut out_ring = Producer::new(there.clone());
        let mut answers = Consumer::new(back.clone());
        let receiver = thread::spawn({
            let (memory, returned) = (Arc::clone(&memory), Arc::clone(&returned));
            move || {
                let (mut incoming, mut answer) = (Consumer::new(there), Producer::new(back));
                let first = wait_for(&mut incoming);
                assert_eq!(memory.look(|from| *from), 1);
                memory.change(|to| *to = 10);
                returned.store(1, Ordering::Relaxed);
                answer.claim(1).expect("an empty ring").publish(KIND, 0, 0);
                incoming.advance(first);
                incoming.publish_tail();
                let second = wait_for(&mut incoming);
                assert_eq!(memory.look(|from| *from), 2);
                incoming.advance(second);
            }
        });
        let (mut pool, mut out) = (ChunkPool::new(1), Outstanding::default());
        let mut came_back = 0;
        for number in 1..=2 {
            let chunk = loop {
                let tail = out_ring.released();
                if returned.load(Ordering::Relaxed) == came_back {
                    out.reclaim(tail, &mut pool);
                }
                if let Ok(Some(chunk)) = pool.take(|_, _| Ok::<(), ()>(())) {
                    break chunk;
                }
                if let Some(record) = answers.peek().expect("no bad record") {
                    assert_eq!(memory.look(|from| *from), 10);
                    answers.advance(record);
                    came_back += 1;
                    assert!(out.take_back(ChunkIndex(0)));
                    pool.give_warm(ChunkIndex(0));
                } else {
                    thread::yield_now();
                }
            };
            memory.change(|to| *to = number);
            out_ring.claim(1).expect("room").publish(KIND, 0, 0);
            out.push(out_ring.position(), chunk);
        }
        receiver.join().expect("receiver");
        assert_eq!(came_back, 1);
    });
}

fn wait_for(ring: &mut Consumer<HeapCells>) -> onecopy_shm::ring::Record {
    loop {
        if let Some(record) = ring.peek().expect("no bad record") {
            return record;
        }
        thread::yield_now();
    }
}
