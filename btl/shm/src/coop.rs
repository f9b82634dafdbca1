// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cooperative copies: both sides of a large message drain one chunk counter.
//!
//! A [`CooperativeBlock`] lies in the receiver's segment, one per sending peer, so one cooperative transfer at a time
//! per ordered pair. The receiver opens a transfer; the sender, when it waits anyway, finds its transfer open and takes
//! chunks too.
//!
//! The counter word is `transfer id u32 | taken from the back u16 | taken from the front u16`. The receiver takes
//! chunks from the front, the sender from the back. So in transfers between the same buffers each side copies the same
//! part again and finds it in its cache. A chunk is claimed by compare-and-swap on the whole word, so nobody can take a
//! chunk of a transfer that it does not mean. `done` counts the sender's finished chunks of this transfer; `failed`
//! names the one chunk that the sender claimed and could not copy (it stops then). The transfer is over for the
//! receiver when every chunk is its own, done, or the failed one; only then does it reuse the block.
//!
//! The receiver never trusts the block for its own state: chunks that it claimed are known to it privately.

use crate::sync::{AtomicU64, Ordering, fence};

/// The words of a cooperative transfer. All zero: none is open.
///
/// They are in one cache line. So the sender sees with the counter what the transfer is about, and who claims a chunk
/// sees what the other side has done. With the sender's words in a line of their own, 256 KiB in 16 chunks took 5.11
/// instead of 4.75 us (A, near, 11-29). The line behind is left empty: processors fetch pairs of lines.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CooperativeBlock {
    /// `id << 32 | taken from the back << 16 | taken from the front`.
    counter: AtomicU64,
    /// `id << 32 | chunks that the sender finished`.
    done: AtomicU64,
    /// `id << 32 | chunk + 1` of the chunk that the sender gave back, or any other id for none.
    failed: AtomicU64,
    /// `destination address`, for a sender that writes by `process_vm_writev`.
    address: AtomicU64,
    /// Destination in the receiver's heap, or `u64::MAX`.
    heap: AtomicU64,
    /// Bytes of the transfer.
    len: AtomicU64,
    /// Bytes of one chunk.
    chunk: AtomicU64,
    _rest: [AtomicU64; 9],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<CooperativeBlock>() == 128);

/// What a transfer is about, as the receiver states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CooperativeTransfer {
    /// Names the transfer; never zero, differs from the previous one's.
    pub id: u32,
    /// Address of the destination in the receiver.
    pub address: u64,
    /// Place of the destination in the receiver's heap.
    pub heap: Option<u64>,
    /// Bytes.
    pub len: u64,
    /// Bytes of one chunk.
    pub chunk: u64,
}

impl CooperativeTransfer {
    /// Number of chunks.
    #[inline]
    #[must_use]
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.len.div_ceil(self.chunk.max(1))).unwrap_or(u32::MAX - 1)
    }
    /// The bytes of chunk `index`.
    #[inline]
    #[must_use]
    pub fn range(&self, index: u32) -> MessageRange {
        let offset = u64::from(index) * self.chunk;
        let len = self.chunk.min(self.len.saturating_sub(offset));
        MessageRange { offset, len }
    }
}

/// A contiguous range of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageRange {
    /// Where in the message the first one is.
    pub offset: u64,
    /// How many they are.
    pub len: u64,
}

impl MessageRange {
    /// All bytes of a message of `len` bytes.
    #[inline]
    #[must_use]
    pub fn whole(len: u64) -> Self {
        Self { offset: 0, len }
    }

    /// Where in the message they end.
    #[inline]
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset + self.len
    }

    /// The first `len` of them, which are no more than there are.
    #[inline]
    #[must_use]
    pub fn first(self, len: u64) -> Self {
        Self { len, ..self }
    }

    /// Those behind the first `len`.
    #[inline]
    #[must_use]
    pub fn skip(self, len: u64) -> Self {
        Self {
            offset: self.offset + len,
            len: self.len - len,
        }
    }
}

/// Chunks that a transfer may have. Each side's count has 16 bits, and either side may take all of them.
pub const MAX_CHUNKS: u32 = 1 << 15;

/// Of the two counts of a counter, how many chunks are taken from the front.
const fn front(counts: u32) -> u32 {
    counts & 0xFFFF
}
/// How many are taken from the back.
const fn back(counts: u32) -> u32 {
    counts >> 16
}
const fn word(id: u32, value: u32) -> u64 {
    (id as u64) << 32 | value as u64
}
const fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl CooperativeBlock {
    /// Opens a transfer of which the receiver takes the first `own` chunks with that. The previous one must be over.
    ///
    /// A receiver that copies takes one. A claim behind the opening competes for the line with a sender that polls: it
    /// took 0.1 to 0.25 us (A, near, 11-29).
    #[inline]
    pub fn open(&self, transfer: &CooperativeTransfer, own: u32) {
        // The description of the last transfer is overwritten only when it is known to be closed: see `joined`.
        // SYNC(coop.close): release that it is closed, before the words that follow
        fence(Ordering::Release);
        self.address.store(transfer.address, Ordering::Relaxed);
        self.heap
            .store(transfer.heap.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.len.store(transfer.len, Ordering::Relaxed);
        self.chunk.store(transfer.chunk, Ordering::Relaxed);
        // A message that was not copied so is tried once more by another layer, with the same id.
        self.done.store(word(transfer.id, 0), Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        // SYNC(coop.open): release the description
        self.counter
            .store(word(transfer.id, own), Ordering::Release);
        crate::fault::point("coop.opened");
    }

    /// The open transfer, if it is `id` and chunks are left. For the sender.
    #[inline]
    #[must_use]
    pub fn joined(&self, id: u32) -> Option<CooperativeTransfer> {
        // SYNC(coop.open): acquire the description
        if split(self.counter.load(Ordering::Acquire)).0 != id {
            return None;
        }
        let heap = self.heap.load(Ordering::Relaxed);
        let joined = CooperativeTransfer {
            id,
            address: self.address.load(Ordering::Relaxed),
            heap: (heap != u64::MAX).then_some(heap),
            len: self.len.load(Ordering::Relaxed),
            chunk: self.chunk.load(Ordering::Relaxed),
        };
        // A sender that has read a word of the next transfer sees from here on that this one is closed. So it takes no
        // chunk by a wrong description.
        // SYNC(coop.close): acquire that it was closed, if a word of a later transfer was read
        fence(Ordering::Acquire);
        (split(self.counter.load(Ordering::Relaxed)).0 == id).then_some(joined)
    }

    /// The id of the open transfer, 0 if none is open.
    #[inline]
    #[must_use]
    pub fn open_id(&self) -> u32 {
        split(self.counter.load(Ordering::Relaxed)).0
    }

    /// Chunks of `id` that are taken, by whomever; as many as can be if another transfer is open.
    #[inline]
    #[must_use]
    pub fn taken(&self, id: u32) -> u32 {
        let (open, counts) = split(self.counter.load(Ordering::Acquire));
        if open == id {
            front(counts) + back(counts)
        } else {
            u32::MAX
        }
    }

    /// Takes the first chunk that is left of transfer `id`, which has `chunks` of them. For the receiver. `None`: all
    /// are taken, or it is another transfer.
    #[inline]
    pub fn claim(&self, id: u32, chunks: u32) -> Option<u32> {
        self.take(id, chunks, |counts| (counts + 1, front(counts)))
    }

    /// Takes the last chunk that is left of transfer `id`, which has `chunks` of them. For the sender.
    #[inline]
    pub fn claim_back(&self, id: u32, chunks: u32) -> Option<u32> {
        self.take(id, chunks, |counts| {
            (counts + (1 << 16), chunks - 1 - back(counts))
        })
    }

    /// Takes all chunks that are left of transfer `id`: nobody gets one from now on. Gives the first of them and their
    /// number.
    #[inline]
    pub fn claim_rest(&self, id: u32, chunks: u32) -> Option<(u32, u32)> {
        self.take(id, chunks, |counts| {
            let left = chunks - front(counts) - back(counts);
            (counts + left, (front(counts), left))
        })
    }

    fn take<T>(&self, id: u32, chunks: u32, step: impl Fn(u32) -> (u32, T)) -> Option<T> {
        let mut seen = self.counter.load(Ordering::Acquire);
        loop {
            let (open, counts) = split(seen);
            // A peer can write anything here: the sum must not leave the transfer.
            if open != id || chunks > MAX_CHUNKS || front(counts) + back(counts) >= chunks {
                return None;
            }
            let (next, taken) = step(counts);
            match self.counter.compare_exchange_weak(
                seen,
                word(id, next),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    crate::fault::point("coop.claimed");
                    return Some(taken);
                }
                Err(now) => seen = now,
            }
        }
    }

    /// The sender has finished one more chunk of `id`; `total` so far.
    #[inline]
    pub fn sender_finished(&self, id: u32, total: u32) {
        // SYNC(coop.done): release the bytes that the sender wrote
        self.done.store(word(id, total), Ordering::Release);
        crate::fault::point("coop.done");
    }

    /// The sender could not copy `chunk` of `id` and takes no more.
    #[inline]
    pub fn sender_failed(&self, id: u32, chunk: u32) {
        // SYNC(coop.failed): release that the sender is out
        self.failed
            .store(word(id, chunk.wrapping_add(1)), Ordering::Release);
    }

    /// Chunks of `id` that the sender has finished. For the receiver.
    #[inline]
    #[must_use]
    pub fn finished_by_sender(&self, id: u32) -> u32 {
        // SYNC(coop.done): acquire the bytes that the sender wrote
        let (transfer, count) = split(self.done.load(Ordering::Acquire));
        if transfer == id { count } else { 0 }
    }

    /// The chunk of `id` that the sender gave back, if any. For the receiver.
    #[inline]
    #[must_use]
    pub fn failed_by_sender(&self, id: u32) -> Option<u32> {
        // SYNC(coop.failed): acquire that the sender is out
        let (transfer, chunk) = split(self.failed.load(Ordering::Acquire));
        (transfer == id && chunk > 0).then(|| chunk - 1)
    }

    /// Closes the block: nobody finds a transfer here.
    #[inline]
    pub fn close(&self) {
        // Ordered before the next description by the fence in `open`; before nothing else that anyone reads.
        self.counter.store(0, Ordering::Release);
        crate::fault::point("coop.closed");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A message of one chunk that its sender could not write, and that both sides copy then.
    #[test]
    fn a_second_try_knows_nothing_of_the_first() {
        let block = CooperativeBlock::default();
        let transfer = CooperativeTransfer {
            id: 7,
            address: 0,
            heap: None,
            len: 100,
            chunk: 4096,
        };
        block.open(&transfer, 0);
        assert_eq!(block.claim_back(7, 1), Some(0));
        block.sender_finished(7, 1);
        block.sender_failed(7, 0);
        assert_eq!(
            (block.finished_by_sender(7), block.failed_by_sender(7)),
            (1, Some(0))
        );
        block.close();
        block.open(&transfer, 1);
        assert_eq!(
            (block.finished_by_sender(7), block.failed_by_sender(7)),
            (0, None)
        );
        assert_eq!((block.taken(7), block.claim(7, 1)), (1, None));
    }
}
