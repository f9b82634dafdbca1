// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single-producer, single-consumer ring of cache lines through which everything between two ranks travels.
//!
//! A *record* spans one or more consecutive slots and never wraps; a no-op fills the end of the ring when it would. The
//! header word of a record's first slot publishes it. Header and payload of a small record share one line, so the
//! consumer touches one line.
//!
//! Three facts make the ring work without a shared head index and without writes by the consumer:
//!
//! 1. A slot's header word is what the producer wrote there last: a header, or payload if the slot was inside of a
//!    record. If a record ends in a slot of the latter kind, the producer clears that slot's header word before it
//!    publishes the record. The slot is free, because a claim always leaves one slot free. So at the consumer's head
//!    stands zero or a header, never a byte of some earlier payload.
//! 2. The consumer remembers the header that it read in each slot. As long as the same stands there, nothing new is
//!    published: the sequence number makes a header differ from the one of the lap before.
//! 3. So a stream of one-slot records writes each line once per lap, and reading it moves each line once.
//!
//! The header: `kind u8 | slots u8 | len u16 | sequence u16 | check u16`. `check` folds header and meta word so that a
//! flipped bit in any field is found. Whatever the consumer finds wrong is reported as [`BadRecord`], and the peer is
//! failed.

use crate::cells::{Cells, FIRST_PAYLOAD, RECORD_HEAD};
use crate::failing;
use crate::fault;
use crate::layout::LINE;
use crate::sync::{Ordering, light_fence};

/// Kind of a record that carries nothing: the end of the ring, or a claim that was dropped.
pub const NOP: u8 = 0xFF;
/// Slots that the largest record may span. The head and 4 KiB of payload, the most that `ONECOPY_EAGER_SLOTS_MAX`
/// permits.
pub const MAX_RECORD_SLOTS: usize = 65;

/// How many slots ahead of its head a consumer asks for behind a short record. Without it windows of 64 messages of 8
/// bytes run at 20 instead of 41 million a second (A, 11-21; docs/performance.md, "Small messages"). It has to be a
/// few: the line is to arrive while those before it are read, and the producer is to have written it. Where it has not,
/// the request is lost.
const READ_AHEAD: usize = 6;
/// Slots of the longest record behind which that is done. Behind a longer one, the lines of the next record are asked
/// for, if it is published. Windows of 64 messages of 512 bytes take 0.103 instead of 0.137 us each, ping-pongs of 1
/// KiB 0.37 instead of 0.47 (A, near, 11-29; docs/performance.md, "Small messages").
const SHORT: usize = 2;

/// Slots of a record with `payload` bytes.
#[inline(always)]
#[must_use]
pub const fn slots_for(payload: usize) -> usize {
    (payload + RECORD_HEAD).div_ceil(LINE)
}

/// Payload bytes that fit into a record of `slots` slots.
#[must_use]
pub const fn payload_of(slots: usize) -> usize {
    slots * LINE - RECORD_HEAD
}

const _: () = assert!(slots_for(FIRST_PAYLOAD) == 1 && slots_for(FIRST_PAYLOAD + 1) == 2);

#[inline(always)]
fn fold(mut x: u64) -> u16 {
    x ^= x >> 32;
    x ^= x >> 16;
    x as u16
}

#[inline(always)]
fn encode(kind: u8, slots: usize, len: usize, sequence: u16, meta: u64) -> u64 {
    let word =
        u64::from(kind) | (slots as u64) << 8 | (len as u64) << 16 | u64::from(sequence) << 32;
    // The constant keeps a word of zeros from checking itself.
    let check = fold(word ^ meta) ^ 0x0C0B;
    word | u64::from(check) << 48
}

/// Slots of the record with this header.
#[inline(always)]
fn slots_of(header: u64) -> usize {
    usize::from((header >> 8) as u8)
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Producer<C> {
    cells: C,
    head: u64,
    tail_seen: u64,
    sequence: u16,
    /// Per slot, whether its header word may hold something else than zero or a header.
    inside: Box<[bool]>,
}

/// Slots that were claimed and are not yet published. Dropping it publishes a no-op, so that the consumer can pass.
#[derive(Debug)]
#[must_use = "a claim that is dropped publishes a no-op"]
pub struct Claim<'ring, C: Cells> {
    ring: &'ring mut Producer<C>,
    slots: usize,
}

impl<C: Cells> Producer<C> {
    /// The writing end of an empty, zeroed ring.
    pub fn new(cells: C) -> Self {
        let inside = vec![false; cells.slots()].into_boxed_slice();
        Self {
            cells,
            head: 0,
            tail_seen: 0,
            sequence: 0,
            inside,
        }
    }

    /// The ring's cells.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// Slots written so far, the no-ops included.
    #[inline]
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Slots that the consumer has given back so far, read anew.
    #[inline]
    pub fn released(&mut self) -> u64 {
        // SYNC(ring.release): acquire the consumer's reads of everything before its tail
        let tail = self.cells.tail().load(Ordering::Acquire);
        // A tail that runs ahead of the head is a peer's lie; believing it would only let us overwrite what that peer
        // has not read.
        if tail <= self.head && tail > self.tail_seen {
            self.tail_seen = tail;
        }
        self.tail_seen
    }

    #[inline(always)]
    fn index(&self) -> usize {
        self.head as usize & (self.cells.slots() - 1)
    }

    /// Claims room for a record of `slots` slots. `None` means that the consumer must catch up first.
    #[inline(always)]
    pub fn claim(&mut self, slots: usize) -> Option<Claim<'_, C>> {
        debug_assert!((1..=MAX_RECORD_SLOTS).contains(&slots) && slots < self.cells.slots());
        failing::attempt("ring.claim").ok()?;
        let total = self.cells.slots();
        let to_end = total - self.index();
        let fill = if slots > to_end { to_end } else { 0 };
        let needed = (fill + slots + 1) as u64;
        if self.head + needed > self.tail_seen + total as u64
            && self.head + needed > self.released() + total as u64
        {
            return None;
        }
        if fill > 0 {
            self.fill(fill);
        }
        fault::point("ring.claim");
        Some(Claim { ring: self, slots })
    }

    /// Publishes no-ops of so many slots: a record does not go round the end.
    #[inline(never)]
    fn fill(&mut self, mut slots: usize) {
        while slots > 0 {
            let step = slots.min(MAX_RECORD_SLOTS);
            self.publish(NOP, step, 0, 0);
            slots -= step;
        }
    }

    /// Whether a claim of `slots` slots would succeed now.
    #[inline]
    pub fn claim_would_fit(&mut self, slots: usize) -> bool {
        let total = self.cells.slots();
        let to_end = total - self.index();
        let fill = if slots > to_end { to_end } else { 0 };
        let needed = self.head + (fill + slots + 1) as u64;
        // The consumer's line travels only if it may say something that counts.
        needed <= self.tail_seen + total as u64 || needed <= self.released() + total as u64
    }

    #[inline(always)]
    fn publish(&mut self, kind: u8, slots: usize, len: usize, meta: u64) {
        let slot = self.index();
        let next = (self.head as usize + slots) & (self.cells.slots() - 1);
        if self.inside[next] {
            self.inside[next] = false;
            self.cells.header(next).store(0, Ordering::Relaxed);
        }
        if slots > 1 {
            self.inside[slot + 1..slot + slots].fill(true);
        }
        self.cells.meta(slot).store(meta, Ordering::Relaxed);
        let word = encode(kind, slots, len, self.sequence, meta);
        fault::point("ring.publish");
        // SYNC(ring.publish): release the payload, the meta word and the next header if it was cleared
        self.cells.header(slot).store(word, Ordering::Release);
        fault::point("ring.published");
        self.sequence = self.sequence.wrapping_add(1);
        self.head += slots as u64;
        if slots > 1 {
            self.cells.will_write(self.index() + 1, slots);
        }
    }

    /// Whether the consumer must be notified of what was published: it does not poll this ring at the moment.
    #[inline(always)]
    pub fn must_notify(&self, strong: bool) -> bool {
        light_fence(strong);
        self.cells.wake().load(Ordering::Relaxed) == 0
    }
}

impl<C: Cells> Claim<'_, C> {
    /// Bytes of payload that this claim has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        payload_of(self.slots)
    }

    /// Writes payload bytes at `offset`.
    #[inline(always)]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.capacity());
        self.ring.cells.write(self.ring.index(), offset, bytes);
    }

    /// Publishes the record. Nothing can fail between the claim and this.
    #[inline(always)]
    pub fn publish(self, kind: u8, len: usize, meta: u64) {
        debug_assert!(kind != 0 && len <= self.capacity() && len <= usize::from(u16::MAX));
        let slots = self.slots;
        // `Drop` would publish a second record.
        let mut this = std::mem::ManuallyDrop::new(self);
        this.ring.publish(kind, slots, len, meta);
    }
}

impl<C: Cells> Drop for Claim<'_, C> {
    fn drop(&mut self) {
        let slots = self.slots;
        self.ring.publish(NOP, slots, 0, 0);
    }
}

/// A published record, decoded by value. Its payload stays in the ring until [`Consumer::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// What it is; the meaning is the user's.
    pub kind: u8,
    /// Payload bytes.
    pub len: usize,
    /// The second word.
    pub meta: u64,
    slots: usize,
    slot: usize,
    header: u64,
}

impl Record {
    /// A record that stands in no ring: nothing of it can be read from one.
    #[must_use]
    pub const fn apart(kind: u8, len: usize, meta: u64) -> Self {
        Self {
            kind,
            len,
            meta,
            slots: 0,
            slot: 0,
            header: 0,
        }
    }
}

/// A header that no correct peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ring slot {slot}: header {header:#018x} with meta {meta:#018x}: {what}")]
pub struct BadRecord {
    /// Slot of the header.
    pub slot: usize,
    /// Header word.
    pub header: u64,
    /// Meta word.
    pub meta: u64,
    /// What is wrong with it.
    pub what: &'static str,
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer<C> {
    cells: C,
    head: u64,
    tail_published: u64,
    sequence: u16,
    /// The header that was read last in each slot; zero where the producer clears.
    read: Box<[u64]>,
}

impl<C: Cells> Consumer<C> {
    /// The reading end of an empty, zeroed ring.
    pub fn new(cells: C) -> Self {
        let read = vec![0; cells.slots()].into_boxed_slice();
        Self {
            cells,
            head: 0,
            tail_published: 0,
            sequence: 0,
            read,
        }
    }

    /// The ring's cells.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// Whether nothing is published at the head. A cheap look without any check.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        let slot = self.head as usize & (self.cells.slots() - 1);
        self.cells.header(slot).load(Ordering::Relaxed) == self.read[slot]
    }

    /// The record at the head, if one is published there. No-ops are passed, as many at a time as the ring holds.
    ///
    /// # Errors
    /// [`BadRecord`]: no correct peer writes such a header.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Record>, BadRecord> {
        let begin = self.head;
        loop {
            let slot = self.head as usize & (self.cells.slots() - 1);
            // SYNC(ring.publish): acquire the payload and the meta word
            let header = self.cells.header(slot).load(Ordering::Acquire);
            if header == self.read[slot] {
                return Ok(None);
            }
            let record = self.decode(slot, header)?;
            if record.kind != NOP {
                if record.slots > SHORT {
                    self.ask_for_what_follows(record);
                }
                return Ok(Some(record));
            }
            self.advance(record);
            if self.head - begin > self.cells.slots() as u64 {
                // More no-ops than the ring holds: a peer that writes them as fast as they are passed must not keep its
                // reader here.
                return Ok(None);
            }
        }
    }

    /// Asks for the rest of the record behind this one, so that it comes while this one is read.
    ///
    /// Only if it is published: a line that the producer is about to write would be taken away from it. Out of line, as
    /// the shortest messages pass by.
    #[inline(never)]
    fn ask_for_what_follows(&self, record: Record) {
        let next = (record.slot + record.slots) & (self.cells.slots() - 1);
        let header = self.cells.header(next).load(Ordering::Relaxed);
        if header != self.read[next] {
            // Unchecked: a false length asks for lines in vain.
            let rest = slots_of(header).saturating_sub(1);
            self.cells.will_read(next + 1, rest);
        }
    }

    #[inline(always)]
    fn decode(&self, slot: usize, header: u64) -> Result<Record, BadRecord> {
        let meta = self.cells.meta(slot).load(Ordering::Relaxed);
        let kind = header as u8;
        let slots = slots_of(header);
        let len = usize::from((header >> 16) as u16);
        let bad = |what| BadRecord {
            slot,
            header,
            meta,
            what,
        };
        if encode(kind, slots, len, self.sequence, meta) != header {
            return Err(bad(if (header >> 32) as u16 == self.sequence {
                "wrong check"
            } else {
                "wrong sequence number"
            }));
        }
        if kind == 0 || slots == 0 || slots > MAX_RECORD_SLOTS || slots > self.cells.slots() - slot
        {
            return Err(bad("a record of impossible extent"));
        }
        if len > payload_of(slots) {
            return Err(bad("payload longer than its slots"));
        }
        Ok(Record {
            kind,
            len,
            meta,
            slots,
            slot,
            header,
        })
    }

    /// Copies payload of `record`, from `offset` on, to `out`.
    #[inline(always)]
    pub fn read(&self, record: &Record, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= payload_of(record.slots));
        self.cells.read(record.slot, offset, out);
    }

    /// Slots read so far, the no-ops included.
    #[inline]
    pub fn position(&self) -> u64 {
        self.head
    }

    /// The tail that was published last. Looks for records publish it, too, where they pass no-ops.
    #[inline]
    pub fn published(&self) -> u64 {
        self.tail_published
    }

    /// Passes `record`, which must be the one that [`Self::peek`] gave last. Its slots, and all that they name, belong
    /// to the producer again from some later moment on (see [`Self::publish_tail`]).
    ///
    /// Says whether the tail was published, which a producer may wait for.
    #[inline(always)]
    pub fn advance(&mut self, record: Record) -> bool {
        debug_assert_eq!(record.slot, self.head as usize & (self.cells.slots() - 1));
        self.read[record.slot] = record.header;
        if record.slots > 1 {
            self.read[record.slot + 1..record.slot + record.slots].fill(0);
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.head += record.slots as u64;
        if record.slots <= SHORT {
            // A line that the producer has not written again since we read it is still in our cache, so this costs
            // nothing. One that it has written is on its way before it is needed. Behind a longer record the producer
            // has asked for the lines of another such.
            let ahead = (self.head as usize + READ_AHEAD) & (self.cells.slots() - 1);
            self.cells.will_read(ahead, 1);
        }
        let due = self.head - self.tail_published >= (self.cells.slots() / 4) as u64;
        if due {
            self.publish_tail();
        }
        due
    }

    /// Publishes the tail if an eighth of the ring was read since, and says whether it did: for a moment at which
    /// nothing is kept.
    #[inline]
    pub fn publish_tail_early(&mut self) -> bool {
        let due = self.head - self.tail_published >= (self.cells.slots() / 8) as u64;
        if due {
            self.publish_tail();
        }
        due
    }

    /// Tells the producer what was consumed. Done by itself every quarter of the ring. Done by the caller when the
    /// producer waits, or when what a record named is worth giving back at once.
    #[inline]
    pub fn publish_tail(&mut self) {
        if self.tail_published != self.head {
            self.tail_published = self.head;
            fault::point("ring.release");
            // SYNC(ring.release): release our reads of the slots before the tail
            self.cells.tail().store(self.head, Ordering::Release);
            fault::point("ring.released");
        }
    }

    /// Says whether the consumer polls this ring. After `false` the caller issues a [`crate::sync::HeavyFence`] and
    /// looks once more.
    pub fn set_polling(&self, polling: bool) {
        self.cells
            .wake()
            .store(u32::from(polling), Ordering::Relaxed);
    }
}
