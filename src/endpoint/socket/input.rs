// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes in on a stream: many small frames with one call, and chunks straight to where they belong.
//!
//! A record that names a chunk is shown with as much of it as has come: its *part*. When that is passed, the same
//! record is shown again with the next one. So a chunk of any length is read where it belongs, whatever the kernel's
//! buffer holds at a time.

use super::feed::{End, Feed};
use super::frame::{FRAME_MAX, FrameKind, HEAD, Head, NAMING_MAX};
use crate::endpoint::{Part, Record};
use nix::errno::Errno;
use onecopy_btl::lanes::Offer;
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::layout::{OutOfBounds, check_range};

/// Bytes that one call reads of small frames. As much as a sender collects (`OUT_MAX`).
pub(crate) const READ: usize = 64 << 10;
/// The same where the last chunk was longer than [`LONG`], so that the next one is not read by way of the buffer. A
/// call for its head alone would cost more than to copy so much. 16 KiB take 1.32 so, with the head alone 1.56 of the
/// bare loop's time (F, 11-25; docs/performance.md, "Between nodes").
const READ_LONG: usize = 16 << 10;
const LONG: usize = 24 << 10;
/// Bytes that are read behind a chunk: the next one's head and record, and no more.
const AHEAD: usize = HEAD + NAMING_MAX;

const _: () = assert!(FRAME_MAX <= READ_LONG, "a frame fits");

/// The record that comes next.
#[derive(Debug, Clone, Copy)]
struct NextRecord {
    record: Record,
    /// Where its payload begins in the buffer, if it names no chunk.
    payload: usize,
    /// Bytes of its chunk, of those passed, of the part that is shown, and of those that were read of it.
    chunk: usize,
    passed: usize,
    part: usize,
    read: usize,
}

/// What a look into the buffer finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A record, which is the next one now.
    Record,
    /// A control frame: its kind, its value.
    Control(FrameKind, u64),
    /// The offer of a lane.
    Offer([u8; Offer::BYTES]),
    /// No whole frame, or no whole record.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Input {
    /// Bytes that came, from `from` to `to`.
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
    next: Option<NextRecord>,
    /// The payload of a record that names a chunk.
    naming: [u8; NAMING_MAX],
    /// Bytes of the last record's chunk: the next one is as long, as a rule.
    last_chunk: usize,
    pub(super) bad: Option<&'static str>,
    /// What came of a chunk could not be read, though it was there: the socket's error.
    failed: Option<Errno>,
}

/// An input, and what it reads.
pub(super) struct FedInput<'f> {
    pub(super) feed: Feed<'f>,
    pub(super) input: &'f mut Input,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; READ].into_boxed_slice(),
            from: 0,
            to: 0,
            next: None,
            naming: [0; NAMING_MAX],
            last_chunk: 0,
            bad: None,
            failed: None,
        }
    }

    /// Why bytes that had come could not be read, if that was the socket's fault.
    pub(super) fn take_failure(&mut self) -> Option<Errno> {
        self.failed.take()
    }

    /// Whether a record is shown, or a fault.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        match &self.next {
            Some(next) => next.chunk == 0 || next.part > 0,
            None => self.bad.is_some(),
        }
    }

    #[inline]
    pub(super) fn record(&self) -> Option<Record> {
        let shown = |next: &&NextRecord| next.chunk == 0 || next.part > 0;
        self.next.as_ref().filter(shown).map(|next| next.record)
    }

    /// The part of a chunk that is shown.
    #[inline]
    pub(super) fn part(&self) -> Option<Part> {
        let next = self.next.as_ref().filter(|next| next.chunk > 0)?;
        Some(Part {
            offset: next.passed as u64,
            len: next.part as u32,
            whole: next.chunk as u32,
        })
    }

    /// Whether a chunk is under way of which no part is shown.
    #[inline]
    pub(super) fn awaits_part(&self) -> bool {
        matches!(&self.next, Some(next) if next.chunk > 0 && next.part == 0)
    }

    /// Takes the next frame from the buffer.
    #[inline]
    pub(super) fn parse(&mut self) -> Parsed {
        let Some(head) = self.bytes[self.from..self.to].first_chunk::<HEAD>() else {
            return Parsed::Nothing;
        };
        let head = match Head::decode(head) {
            Ok(head) => head,
            Err(what) => {
                self.bad = Some(what);
                return Parsed::Record;
            }
        };
        let payload = self.from + HEAD;
        if payload + head.len > self.to {
            return Parsed::Nothing;
        }
        self.from = payload + head.len;
        if head.what == FrameKind::Offer {
            let mut offer = [0; Offer::BYTES];
            offer.copy_from_slice(&self.bytes[payload..payload + head.len]); // short
            return Parsed::Offer(offer);
        }
        if head.what != FrameKind::Record {
            return Parsed::Control(head.what, head.value);
        }
        self.last_chunk = head.chunk;
        if head.chunk > 0 {
            self.naming[..head.len].copy_from_slice(&self.bytes[payload..payload + head.len]); // short
        }
        self.next = Some(NextRecord {
            record: Record::apart(head.kind, head.len, head.value),
            payload,
            chunk: head.chunk,
            passed: 0,
            part: 0,
            read: 0,
        });
        Parsed::Record
    }

    /// Takes what was read and not looked at: it is of another stream.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.bytes[self.from..self.to].to_vec();
        (self.from, self.to) = (0, 0);
        rest
    }

    /// Finds what has come of the chunk that is under way. Says whether there is anything.
    pub(super) fn find_part(&mut self, feed: &mut Feed<'_>) -> bool {
        let here = self.to - self.from;
        let Some(next) = &mut self.next else {
            return false;
        };
        let left = next.chunk - next.passed;
        next.part = left.min(here);
        if here < left {
            // What cannot be counted is found by the next read, which fails.
            let there = feed.unread();
            next.part += there.min(left - here);
        }
        next.part > 0
    }

    /// Reads more frames. `Ok(false)`: nothing is there.
    #[inline]
    pub(super) fn fill(&mut self, feed: &mut Feed<'_>) -> Result<bool, End> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.bytes.len() - self.from < FRAME_MAX {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        let most = match self.last_chunk {
            ..=LONG => READ,
            _ => READ_LONG,
        };
        let end = (self.to + most).min(self.bytes.len());
        let room = &mut self.bytes[self.to..end];
        let count = feed.receive(room)?;
        self.to += count;
        Ok(count > 0)
    }

    /// Copies payload of the record, from `offset` on.
    #[inline]
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) {
        let Some(next) = &self.next else { return };
        let payload = match next.chunk {
            0 => &self.bytes[next.payload..next.payload + next.record.len],
            _ => &self.naming[..next.record.len],
        };
        copy_slices(Kernel::Memcpy, out, &payload[offset..offset + out.len()]);
    }

    /// Reads bytes of the part that is shown, each at most once and in their order.
    pub(super) fn read_part(
        &mut self,
        feed: &mut Feed<'_>,
        offset: usize,
        out: &mut [u8],
    ) -> Result<(), OutOfBounds> {
        let (part, read) = self.next.map_or((0, 0), |next| (next.part, next.read));
        let (begin, len) = (offset as u64, out.len() as u64);
        check_range("the chunk of a frame", begin, len, part as u64)?;
        let again = OutOfBounds {
            what: "the unread bytes of a frame",
            offset: begin,
            len,
            limit: part as u64,
        };
        let skip = offset.checked_sub(read).ok_or(again)?;
        if !self.skip(feed, skip) || !self.read_on(feed, out) {
            return Err(again);
        }
        Ok(())
    }

    /// Reads the next bytes of the part.
    fn read_on(&mut self, feed: &mut Feed<'_>, out: &mut [u8]) -> bool {
        let here = out.len().min(self.to - self.from);
        copy_slices(
            Kernel::Memcpy,
            &mut out[..here],
            &self.bytes[self.from..self.from + here],
        );
        self.from += here;
        if let Some(next) = &mut self.next {
            next.read += out.len();
        }
        let mut done = here;
        // All of it has come: this does not wait.
        while done < out.len() {
            // The buffer is empty. Behind the last byte of a chunk the next frame is read, too.
            let last = self
                .next
                .is_some_and(|next| next.passed + next.read == next.chunk);
            let ahead = if last { AHEAD } else { 0 };
            let left = out.len() - done;
            match feed.read(&mut out[done..], &mut self.bytes[..ahead]) {
                Ok(0) => break,
                Ok(count) => {
                    (self.from, self.to) = (0, count.saturating_sub(left));
                    done += count.min(left);
                }
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    self.failed = Some(errno);
                    return false;
                }
            }
        }
        if done < out.len() {
            self.bad = Some("the bytes of a chunk are not there");
        }
        done == out.len()
    }

    /// Passes bytes of the part that no receive reads.
    #[inline]
    fn skip(&mut self, feed: &mut Feed<'_>, count: usize) -> bool {
        count == 0 || self.skip_some(feed, count)
    }

    #[cold]
    fn skip_some(&mut self, feed: &mut Feed<'_>, mut count: usize) -> bool {
        let mut nobodys = [0; 4096];
        while count > 0 {
            let piece = count.min(nobodys.len());
            if !self.read_on(feed, &mut nobodys[..piece]) {
                return false;
            }
            count -= piece;
        }
        true
    }

    /// Passes the record, or the part of its chunk that is shown.
    #[inline]
    pub(super) fn advance(&mut self, feed: &mut Feed<'_>) {
        let Some(next) = self.next else { return };
        if next.chunk > 0 {
            self.skip(feed, next.part - next.read);
            let passed = next.passed + next.part;
            if passed < next.chunk {
                self.next = Some(NextRecord {
                    passed,
                    part: 0,
                    read: 0,
                    ..next
                });
                return;
            }
        }
        self.next = None;
    }
}
