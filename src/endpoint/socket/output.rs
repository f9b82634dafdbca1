// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes out on a stream. Small frames go by a buffer, chunks straight from where they lie; of these the buffer has
//! only what the kernel did not take.

use super::frame::{FRAME_MAX, FrameKind, HEAD, Head, NAMING_MAX};
use crate::endpoint::RecordRoom;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send, sendmsg};
use onecopy_obs::StreamSettings;
use onecopy_shm::copy::{Kernel, copy_slices};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd};

/// So many bytes may wait to be written before nothing more is claimed. One call of the kernel for so many costs little
/// beside their copy; chosen by magnitude, as are those below.
const OUT_MAX: usize = 64 << 10;
/// A buffer that is larger and empty is given back to the system. Chosen by magnitude: usual chunks fit beside
/// [`OUT_MAX`], so that they cause no new allocation.
const KEEP: usize = 8 * OUT_MAX;
/// More follows at once: the kernel sends no short packet. `MSG_MORE` of the kernel's linux/socket.h.
const MORE: MsgFlags = MsgFlags::from_bits_retain(0x8000);
const FLAGS: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

/// Bytes that wait to be written, at most: frames, or what is left of one with a piece of a message.
pub(crate) fn most(settings: &StreamSettings) -> usize {
    (OUT_MAX + FRAME_MAX).max(2 * HEAD + NAMING_MAX + settings.piece)
}

#[derive(Debug, Default)]
pub(super) struct Output {
    /// Bytes to write; the first `written` are done.
    bytes: Vec<u8>,
    written: usize,
    /// The kernel has taken less than there was.
    pub(super) blocked: bool,
}

impl Output {
    /// Whether nothing waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() - self.written >= OUT_MAX
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
        if self.bytes.capacity() > KEEP {
            self.bytes = Vec::new();
        }
    }

    /// Adds a control frame.
    pub(super) fn push(&mut self, what: FrameKind, value: u64) {
        self.bytes
            .extend_from_slice(&Head::control(what, value).encode());
    }

    /// Adds a frame about a lane, with a payload.
    pub(super) fn push_with(&mut self, what: FrameKind, payload: &[u8]) {
        let head = Head {
            len: payload.len(),
            ..Head::control(what, 0)
        };
        self.bytes.extend_from_slice(&head.encode());
        self.bytes.extend_from_slice(payload);
    }

    /// Puts bytes before all that waits. Nothing of that was written in part.
    pub(super) fn prepend(&mut self, before: Vec<u8>) {
        let waiting = std::mem::replace(&mut self.bytes, before);
        self.bytes.extend_from_slice(&waiting[self.written..]);
        self.written = 0;
        self.blocked = false;
    }

    /// Hands to `take` what waits; it says how many bytes it has taken.
    pub(super) fn hand(&mut self, take: impl FnOnce(&[u8]) -> usize) {
        self.written += take(&self.bytes[self.written..]);
        self.blocked = self.written < self.bytes.len();
        if !self.blocked {
            self.clear();
        } else if self.written >= OUT_MAX {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Begins a frame.
    #[inline]
    pub(super) fn frame(&mut self) -> Frame<'_> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEAD]);
        Frame {
            output: self,
            start,
            published: false,
        }
    }

    /// Adds bytes that belong to the frame at the end.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes what can be written.
    #[inline]
    pub(super) fn flush(&mut self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.written < self.bytes.len() {
            match send(to.as_raw_fd(), &self.bytes[self.written..], FLAGS) {
                Ok(count) => self.written += count,
                Err(Errno::EINTR) => {}
                Err(errno) if is_full(errno) => {
                    self.blocked = true;
                    if self.written >= OUT_MAX {
                        self.bytes.drain(..self.written);
                        self.written = 0;
                    }
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
        self.blocked = false;
        self.clear();
        Ok(())
    }
}

/// Whether the kernel has no room at the moment.
fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM)
}

/// Room for one record, at the end of the buffer.
pub(crate) struct Frame<'e> {
    output: &'e mut Output,
    start: usize,
    published: bool,
}

impl RecordRoom for Frame<'_> {
    #[inline]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let begin = self.start + HEAD + offset;
        let out = &mut self.output.bytes;
        if begin == out.len() {
            out.extend_from_slice(bytes);
            return;
        }
        let end = begin + bytes.len();
        if out.len() < end {
            out.resize(end, 0);
        }
        copy_slices(Kernel::Memcpy, &mut out[begin..end], bytes);
    }

    #[inline]
    fn publish(mut self, kind: u8, len: usize, meta: u64) {
        let head = Head {
            what: FrameKind::Record,
            kind,
            len,
            chunk: 0,
            value: meta,
        };
        let out = &mut self.output.bytes;
        out.resize(self.start + HEAD + len, 0);
        out[self.start..self.start + HEAD].copy_from_slice(&head.encode());
        self.published = true;
    }
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        if !self.published {
            self.output.bytes.truncate(self.start);
        }
    }
}

/// A chunk on its way, piece by piece, behind the head and the record that names it.
pub(super) struct Sending<'o, 'f> {
    output: &'o mut Output,
    to: BorrowedFd<'o>,
    /// Head and record, until they are out.
    front: &'f [u8],
    /// Bytes of the chunk that were not shown yet.
    left: usize,
    /// The kernel took nothing: nothing was sent.
    refused: bool,
    failed: Option<Errno>,
}

/// What became of a chunk.
pub(super) enum ChunkOutcome {
    /// It is out, or what is left of it waits in the buffer.
    All,
    /// Nothing of it.
    Nothing,
    /// A part of it, and more was not shown.
    Torn,
    Failed(Errno),
}

/// How often the kernel is asked again, at once, to take the rest of a chunk before it is copied: its reader makes room
/// meanwhile. More would keep this rank with a peer that does not read. Chosen by magnitude: these calls take tens
/// of microseconds.
const TRIES: u32 = 16;
/// A rest that is copied at once: that costs less than a call of the kernel. Chosen by magnitude: such a copy takes a
/// fifth of a microsecond.
const SHORT: usize = 2 << 10;

impl<'o, 'f> Sending<'o, 'f> {
    /// Nothing waits in `output`.
    pub(super) fn new(
        output: &'o mut Output,
        to: BorrowedFd<'o>,
        front: &'f [u8],
        len: usize,
    ) -> Self {
        Self {
            output,
            to,
            front,
            left: len,
            refused: false,
            failed: None,
        }
    }

    /// Sends the next piece.
    pub(super) fn piece(&mut self, bytes: &[u8]) {
        if self.refused {
            return;
        }
        let bytes = &bytes[..bytes.len().min(self.left)];
        self.left -= bytes.len();
        let mut sent = 0;
        if self.output.is_empty() && self.failed.is_none() {
            sent = self.try_to_send(bytes);
            if sent == 0 && !self.front.is_empty() && self.failed.is_none() {
                self.refused = true;
                return;
            }
        }
        if sent < self.front.len() {
            self.output.add(&self.front[sent..]);
            sent = 0;
        } else {
            sent -= self.front.len();
        }
        self.front = &[];
        self.output.add(&bytes[sent..]);
    }

    /// How many bytes of head, record and piece the kernel takes.
    fn try_to_send(&mut self, bytes: &[u8]) -> usize {
        let flags = match self.left {
            0 => FLAGS,
            _ => FLAGS | MORE,
        };
        let total = self.front.len() + bytes.len();
        let mut sent = 0;
        let mut tries = 0;
        // The kernel may stop between the buffers that it fills though it has room for the rest.
        while sent < total {
            let skip = sent.min(self.front.len());
            let parts = [
                IoSlice::new(&self.front[skip..]),
                IoSlice::new(&bytes[sent - skip..]),
            ];
            match sendmsg::<()>(self.to.as_raw_fd(), &parts, &[], flags, None) {
                Ok(count) => sent += count,
                Err(Errno::EINTR) => {}
                Err(errno) if !is_full(errno) => {
                    self.failed = Some(errno);
                    break;
                }
                Err(_) if sent > 0 && total - sent > SHORT && tries < TRIES => {
                    tries += 1;
                    std::hint::spin_loop();
                }
                Err(_) => {
                    self.output.blocked = true;
                    break;
                }
            }
        }
        sent
    }

    /// Whether any of it is out, or waits in the buffer.
    pub(super) fn has_begun(&self) -> bool {
        self.front.is_empty()
    }

    /// The whole chunk was shown.
    pub(super) fn end(mut self) -> ChunkOutcome {
        if !self.has_begun() && !self.refused {
            self.piece(&[]);
        }
        match self.failed {
            _ if self.refused => ChunkOutcome::Nothing,
            Some(errno) => ChunkOutcome::Failed(errno),
            None if self.left > 0 => ChunkOutcome::Torn,
            None => ChunkOutcome::All,
        }
    }
}
