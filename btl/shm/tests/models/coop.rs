// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cooperative transfers: every chunk is copied once, none of another transfer is taken, and a failure loses nothing.

use super::model;
use super::watched::Watched;
use loom::sync::Arc;
use loom::thread;
use onecopy_shm::coop::{CooperativeBlock, CooperativeTransfer};

/// Destinations of two transfers, by `address` and chunk.
type Memory = [Vec<Watched<u32>>; 2];

fn memory(chunks: u32) -> Arc<Memory> {
    let cells = || (0..chunks).map(|_| Watched::new(0)).collect();
    Arc::new([cells(), cells()])
}

fn transfer(id: u32, address: u64, chunks: u32) -> CooperativeTransfer {
    CooperativeTransfer {
        id,
        address,
        heap: None,
        len: u64::from(chunks) * 8,
        chunk: 8,
    }
}

/// Copies a chunk: counts in its cell.
fn copy(memory: &Memory, address: u64, chunk: u32) {
    memory[address as usize][chunk as usize].change(|to| *to += 1);
}

fn copies(memory: &Memory, address: u64, chunk: u32) -> u32 {
    memory[address as usize][chunk as usize].look(|from| *from)
}

/// Waits until every chunk is settled; gives the chunk that the sender gave back.
fn settle(block: &CooperativeBlock, id: u32, chunks: u32, mine: u32) -> Option<u32> {
    loop {
        let failed = block.failed_by_sender(id);
        let done = block.finished_by_sender(id);
        if mine + done + u32::from(failed.is_some()) >= chunks {
            return failed;
        }
        thread::yield_now();
    }
}

/// Opens a transfer and copies what the sender leaves.
fn receive(block: &CooperativeBlock, memory: &Memory, open: &CooperativeTransfer) -> u32 {
    block.open(open, 1);
    copy(memory, open.address, 0);
    let mut mine = 1;
    while let Some(chunk) = block.claim(open.id, open.chunks()) {
        copy(memory, open.address, chunk);
        mine += 1;
    }
    mine
}

#[test]
fn every_chunk_is_copied_once() {
    model(3, || {
        let chunks = 3;
        let (block, memory) = (Arc::new(CooperativeBlock::default()), memory(chunks));
        let sender = thread::spawn({
            let (block, memory) = (Arc::clone(&block), Arc::clone(&memory));
            move || {
                let Some(joined) = block.joined(1) else {
                    return;
                };
                assert_eq!(joined, transfer(1, 0, chunks));
                let mut finished = 0;
                while let Some(chunk) = block.claim_back(1, joined.chunks()) {
                    copy(&memory, joined.address, chunk);
                    finished += 1;
                    block.sender_finished(1, finished);
                }
            }
        });
        let open = transfer(1, 0, chunks);
        let mine = receive(&block, &memory, &open);
        assert_eq!(settle(&block, 1, chunks, mine), None);
        for chunk in 0..chunks {
            assert_eq!(copies(&memory, 0, chunk), 1);
        }
        block.close();
        sender.join().expect("sender");
    });
}

/// The receiver closes transfer 1 and opens transfer 2 in the same block, while the sender reads what transfer 1 is
/// about. What the sender reads is all of transfer 1, or nothing.
#[test]
fn a_description_is_of_one_transfer() {
    model(3, || {
        let block = Arc::new(CooperativeBlock::default());
        let sender = thread::spawn({
            let block = Arc::clone(&block);
            move || {
                if let Some(joined) = block.joined(1) {
                    assert_eq!(joined, transfer(1, 0, 1));
                }
            }
        });
        block.open(&transfer(1, 0, 1), 1);
        block.close();
        block.open(&transfer(2, 1, 3), 0);
        sender.join().expect("sender");
    });
}

/// The sender still means transfer 1 while the receiver is at transfer 2, in the same block: it takes nothing of it.
#[test]
fn no_chunk_of_another_transfer_is_taken() {
    model(3, || {
        let (block, memory) = (Arc::new(CooperativeBlock::default()), memory(2));
        let sender = thread::spawn({
            let (block, memory) = (Arc::clone(&block), Arc::clone(&memory));
            move || {
                let Some(joined) = block.joined(1) else {
                    return;
                };
                let mut finished = 0;
                while let Some(chunk) = block.claim_back(1, 2) {
                    assert_eq!(joined, transfer(1, 0, 2));
                    copy(&memory, joined.address, chunk);
                    finished += 1;
                    block.sender_finished(1, finished);
                }
            }
        });
        for (id, address) in [(1, 0), (2, 1)] {
            let open = transfer(id, address, 2);
            let mine = receive(&block, &memory, &open);
            assert_eq!(settle(&block, id, 2, mine), None);
            assert!(id == 1 || mine == 2);
            for chunk in 0..2 {
                assert_eq!(copies(&memory, address, chunk), 1);
            }
            block.close();
        }
        sender.join().expect("sender");
    });
}

/// The sender fails at its first chunk: that one alone comes back to the receiver, which copies it.
#[test]
fn a_chunk_that_is_given_back_is_copied_by_the_receiver() {
    model(3, || {
        let (block, memory) = (Arc::new(CooperativeBlock::default()), memory(3));
        let sender = thread::spawn({
            let block = Arc::clone(&block);
            move || {
                if block.joined(1).is_some()
                    && let Some(chunk) = block.claim_back(1, 3)
                {
                    block.sender_failed(1, chunk);
                }
            }
        });
        let open = transfer(1, 0, 3);
        let mine = receive(&block, &memory, &open);
        let failed = settle(&block, 1, 3, mine);
        assert_eq!(mine + u32::from(failed.is_some()), 3);
        if let Some(chunk) = failed {
            copy(&memory, 0, chunk);
        }
        for chunk in 0..3 {
            assert_eq!(copies(&memory, 0, chunk), 1);
        }
        sender.join().expect("sender");
    });
}

/// The receiver fails at its first chunk and takes all that is left at once: both sides' chunks together are each one
/// exactly once.
#[test]
fn the_rest_is_taken_at_once() {
    model(3, || {
        let chunks = 4;
        let (block, memory) = (Arc::new(CooperativeBlock::default()), memory(chunks));
        let sender = thread::spawn({
            let (block, memory) = (Arc::clone(&block), Arc::clone(&memory));
            move || {
                let Some(joined) = block.joined(1) else {
                    return;
                };
                let mut finished = 0;
                while let Some(chunk) = block.claim_back(1, chunks) {
                    copy(&memory, joined.address, chunk);
                    finished += 1;
                    block.sender_finished(1, finished);
                }
            }
        });
        let open = transfer(1, 0, chunks);
        block.open(&open, 1);
        let mut mine = vec![0];
        if let Some((first, count)) = block.claim_rest(1, chunks) {
            mine.extend(first..first + count);
        }
        assert_eq!(block.claim(1, chunks), None);
        assert_eq!(settle(&block, 1, chunks, mine.len() as u32), None);
        for chunk in mine {
            copy(&memory, 0, chunk);
        }
        for chunk in 0..chunks {
            assert_eq!(copies(&memory, 0, chunk), 1);
        }
        sender.join().expect("sender");
    });
}
