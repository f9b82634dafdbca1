// SPDX-License-Identifier: MIT OR Apache-2.0
//! The endpoint of a peer that shares no memory with this rank: all that goes to it is written to a socket, in frames.
//!
//! It exists for tests: it shows that what stands above an endpoint needs no shared memory. So it is simple, not fast:
//! nobody rings, so that ranks which have one never sleep, and each look for records is a system call.
//!
//! A frame is a head of [`HEAD`] bytes, a record's payload, and the chunk that the record names. Credit and the word
//! that a rank gives up are frames of their own.

use super::home::Home;
use super::{BadRecord, ChunkIndex, Claim, CoopBlock, Record};
use crate::error::Result;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use onecopy_shm::coll::Channel;
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::{OutOfBounds, check_range};
use onecopy_shm::ring::{MAX_RECORD_SLOTS, payload_of};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of a frame's head: what it is, the record's kind, its payload's bytes, its chunk's bytes, and a word.
const HEAD: usize = 16;
const RECORD: u8 = 1;
const CREDIT: u8 = 2;
const GIVEN_UP: u8 = 3;
/// So many bytes may wait to be written before nothing more is claimed.
const OUT_MAX: usize = 256 << 10;
/// Bytes that one look reads at most.
const READ: usize = 64 << 10;

/// The next record, in the bytes that were read.
#[derive(Debug, Clone)]
struct Next {
    record: Record,
    payload: Range<usize>,
    chunk: Range<usize>,
}

/// A connected stream of frames.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: OwnedFd,
    /// Bytes to write; the first `written` are done.
    out: Vec<u8>,
    written: usize,
    /// The chunk that the next record names.
    staged: Vec<u8>,
    /// Bytes read, of which the first `taken` are over.
    input: Vec<u8>,
    taken: usize,
    next: Option<Next>,
    bad: Option<&'static str>,
    credit_back: u64,
    has_given_up: bool,
    /// The peer reads no more, or writes no more.
    is_closed: bool,
    chunk_bytes: usize,
    /// No transfer is ever open in it.
    block: Box<CoopBlock>,
}

/// Room for one record.
pub(crate) struct Frame<'e> {
    socket: &'e mut Socket,
    payload: Vec<u8>,
}

impl Frame<'_> {
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.payload.len() < end {
            self.payload.resize(end, 0);
        }
        self.payload[offset..end].copy_from_slice(bytes);
    }

    pub(super) fn publish(self, kind: u8, len: usize, meta: u64) {
        let Self {
            socket,
            mut payload,
        } = self;
        payload.resize(len, 0);
        let chunk = std::mem::take(&mut socket.staged);
        socket.push(RECORD, kind, meta, &payload, &chunk);
    }
}

impl Socket {
    /// The endpoint of a stream that leads to a peer whose chunks have `chunk_bytes`.
    pub(crate) fn new(stream: OwnedFd, chunk_bytes: usize) -> Self {
        Self {
            stream,
            out: Vec::new(),
            written: 0,
            staged: Vec::new(),
            input: Vec::new(),
            taken: 0,
            next: None,
            bad: None,
            credit_back: 0,
            has_given_up: false,
            is_closed: false,
            chunk_bytes,
            block: Box::default(),
        }
    }

    fn push(&mut self, what: u8, kind: u8, word: u64, payload: &[u8], chunk: &[u8]) {
        if self.is_closed {
            return;
        }
        self.out.extend([what, kind]);
        self.out.extend((payload.len() as u16).to_le_bytes());
        self.out.extend((chunk.len() as u32).to_le_bytes());
        self.out.extend(word.to_le_bytes());
        self.out.extend_from_slice(payload);
        self.out.extend_from_slice(chunk);
    }

    /// Writes what can be written.
    fn flush(&mut self) {
        while self.written < self.out.len() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.stream.as_raw_fd(), &self.out[self.written..], flags) {
                Ok(n) => self.written += n,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    if self.written >= OUT_MAX {
                        self.out.drain(..self.written);
                        self.written = 0;
                    }
                    return;
                }
                // The peer has ended; the wire-up says how.
                Err(_) => {
                    self.is_closed = true;
                    break;
                }
            }
        }
        self.out.clear();
        self.written = 0;
    }

    /// Finds the next record: in what was read, else by reading more, but once: whoever writes nothing else does not
    /// keep this rank.
    fn look(&mut self) {
        self.flush();
        let mut filled = false;
        while self.next.is_none() && self.bad.is_none() && !self.parse_all() {
            if filled || !self.fill() {
                return;
            }
            filled = true;
        }
    }

    /// Takes frames from what was read up to the next record. `false`: it is not there as a whole.
    fn parse_all(&mut self) -> bool {
        while self.parse() {
            if self.next.is_some() || self.bad.is_some() {
                return true;
            }
        }
        false
    }

    /// Reads more. `false`: nothing is there.
    fn fill(&mut self) -> bool {
        self.input.drain(..self.taken);
        self.taken = 0;
        let begin = self.input.len();
        self.input.resize(begin + READ, 0);
        let flags = MsgFlags::MSG_DONTWAIT;
        let got = recv(self.stream.as_raw_fd(), &mut self.input[begin..], flags);
        self.input.truncate(begin + got.unwrap_or(0));
        // How the peer has ended is for the wire-up to say.
        matches!(got, Ok(1..) | Err(Errno::EINTR))
    }

    /// Takes a frame from what was read. `false`: it is not there as a whole.
    fn parse(&mut self) -> bool {
        let Some(head) = self.input[self.taken..].first_chunk::<HEAD>() else {
            return false;
        };
        let [what, kind, a, b, c, d, e, f, word @ ..] = *head;
        let len = usize::from(u16::from_le_bytes([a, b]));
        let chunk = u32::from_le_bytes([c, d, e, f]) as usize;
        let word = u64::from_le_bytes(word);
        let fault = match what {
            RECORD if kind == 0 => Some("a record of no kind"),
            RECORD if len > payload_of(MAX_RECORD_SLOTS) => Some("a record of impossible extent"),
            RECORD if chunk > self.chunk_bytes => Some("a chunk of impossible extent"),
            RECORD => None,
            CREDIT | GIVEN_UP if len == 0 && chunk == 0 => None,
            _ => Some("a frame of no kind"),
        };
        if fault.is_some() {
            self.bad = fault;
            return true;
        }
        let payload = self.taken + HEAD..self.taken + HEAD + len;
        let chunk = payload.end..payload.end + chunk;
        if chunk.end > self.input.len() {
            return false;
        }
        self.taken = chunk.end;
        match what {
            CREDIT => self.credit_back = word,
            GIVEN_UP => self.has_given_up = true,
            _ => {
                self.next = Some(Next {
                    record: Record::apart(kind, len, word),
                    payload,
                    chunk,
                });
            }
        }
        true
    }
}

/// To the peer.
impl Socket {
    pub(super) fn is_open(&self) -> bool {
        true
    }

    pub(super) fn make_ready(&mut self) -> Result<()> {
        Ok(())
    }

    pub(super) fn claim(&mut self, slots: usize) -> Option<Claim<'_>> {
        let room = self.has_room(slots);
        room.then(|| {
            Claim::Frame(Frame {
                socket: self,
                payload: Vec::new(),
            })
        })
    }

    pub(super) fn has_room(&mut self, _: usize) -> bool {
        self.flush();
        self.out.len() - self.written < OUT_MAX
    }

    pub(super) fn has_output(&self) -> bool {
        self.written < self.out.len()
    }

    pub(super) fn notify(&mut self) -> bool {
        self.flush();
        false
    }

    pub(super) fn wake(&self) {}

    pub(super) fn ring(&self) {}

    pub(super) fn is_strong(&self) -> bool {
        false
    }

    pub(super) fn credit_back(&self) -> u64 {
        self.credit_back
    }

    pub(super) fn take_chunk(&mut self, _: &mut Home, _: usize) -> Option<ChunkIndex> {
        self.staged.clear();
        Some(ChunkIndex(0))
    }

    pub(super) fn write_chunk(
        &mut self,
        _: &Home,
        _: ChunkIndex,
        at: usize,
        bytes: &[u8],
        _: Kernel,
    ) -> bool {
        let end = at + bytes.len();
        if end > self.chunk_bytes {
            return false;
        }
        if self.staged.len() < end {
            self.staged.resize(end, 0);
        }
        self.staged[at..end].copy_from_slice(bytes);
        true
    }

    pub(super) fn has_named(&mut self, _: ChunkIndex) {}

    pub(super) fn return_chunk(&mut self, _: &mut Home, _: ChunkIndex) {
        self.staged.clear();
    }

    pub(super) fn collect_chunks(&mut self, _: &mut Home) {}

    pub(super) fn reclaim_all(&mut self, _: &mut Home) {
        // Nothing more goes to a peer that is gone. What it is told by [`Self::give_up`] is told if there is room.
        self.is_closed = true;
        self.out.clear();
        self.written = 0;
    }

    pub(super) fn could_write(&mut self, _: usize, _: bool) -> bool {
        self.has_room(1)
    }

    pub(super) fn wait_for_room(&self, _: bool) {}

    pub(super) fn give_up(&mut self) {
        self.push(GIVEN_UP, 0, 0, &[], &[]);
        self.flush();
    }
}

/// From the peer.
impl Socket {
    pub(super) fn is_empty(&mut self) -> bool {
        self.look();
        self.next.is_none() && self.bad.is_none()
    }

    pub(super) fn peek(&mut self) -> std::result::Result<Option<Record>, BadRecord> {
        self.look();
        match self.bad {
            Some(what) => Err(BadRecord {
                slot: 0,
                header: 0,
                meta: 0,
                what,
            }),
            None => Ok(self.next.as_ref().map(|next| next.record)),
        }
    }

    pub(super) fn read(&self, _: &Record, offset: usize, out: &mut [u8]) {
        if let Some(next) = &self.next {
            let payload = &self.input[next.payload.clone()];
            out.copy_from_slice(&payload[offset..offset + out.len()]);
        }
    }

    pub(super) fn read_chunk(
        &self,
        _: ChunkIndex,
        offset: usize,
        out: &mut [u8],
    ) -> std::result::Result<(), OutOfBounds> {
        let range = self.next.as_ref().map_or(0..0, |next| next.chunk.clone());
        let chunk = &self.input[range];
        check_range(
            "the chunk of a frame",
            offset as u64,
            out.len() as u64,
            chunk.len() as u64,
        )?;
        out.copy_from_slice(&chunk[offset..offset + out.len()]);
        Ok(())
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    pub(super) fn advance(&mut self, _: Record) -> bool {
        self.next = None;
        false
    }

    pub(super) fn passed_chunk(&mut self) -> bool {
        false
    }

    pub(super) fn give_back(&mut self) {}

    pub(super) fn notify_room(&self) -> bool {
        false
    }

    pub(super) fn give_credit(&mut self, total: u64) {
        self.push(CREDIT, 0, total, &[], &[]);
        self.flush();
    }

    pub(super) fn set_polling(&self, _: bool) {}

    pub(super) fn rings(&self) -> bool {
        false
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up
    }
}

/// What is shared besides: nothing.
impl Socket {
    pub(super) fn shares_memory(&self) -> bool {
        false
    }

    pub(super) fn block_in(&self) -> &CoopBlock {
        &self.block
    }

    pub(super) fn block_out(&self) -> &CoopBlock {
        &self.block
    }

    pub(super) fn channel(&self, _: u32) -> Option<Channel> {
        None
    }

    pub(super) fn want_exposed(&self, _: bool) {}

    pub(super) fn wants_exposed(&self) -> Option<bool> {
        None
    }
}
