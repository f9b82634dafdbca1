// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the bytes of a peer's stream come from: what a lane had left, a lane, or the socket.

use super::shared_lanes::NamedLane;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::uio::readv;
use onecopy_shm::backlog;
use onecopy_shm::copy::{Kernel, copy_slices};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How a stream has ended for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The peer writes no more.
    Closed,
    Failed(Errno),
}

/// Bytes that came before those of the socket.
#[derive(Debug, Default)]
pub(super) struct CarryOver {
    bytes: Vec<u8>,
    read: usize,
}

impl CarryOver {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.read
    }

    fn take(&mut self, out: &mut [u8]) -> usize {
        let count = self.len().min(out.len());
        copy_slices(
            Kernel::Memcpy,
            &mut out[..count],
            &self.bytes[self.read..self.read + count],
        );
        self.read += count;
        if self.read == self.bytes.len() {
            *self = Self::default();
        }
        count
    }
}

/// What is read from, each before the next one.
pub(super) struct Feed<'f> {
    pub(super) carry_over: Option<&'f mut CarryOver>,
    pub(super) lane: Option<NamedLane<'f>>,
    pub(super) socket: Option<BorrowedFd<'f>>,
}

impl Feed<'_> {
    /// Bytes that are there. What cannot be counted is found by the next read, which fails.
    pub(super) fn unread(&self) -> usize {
        let carry_over = self
            .carry_over
            .as_ref()
            .map_or(0, |carry_over| carry_over.len());
        let lane = self
            .lane
            .map_or(0, |lane| lane.lanes.lock().unread(lane.name));
        let socket = self
            .socket
            .map_or(0, |socket| backlog::unread(socket).unwrap_or(0));
        carry_over + lane + socket
    }

    /// What comes before the bytes of the socket.
    fn before(&mut self, out: &mut [u8]) -> usize {
        let mut count = 0;
        if let Some(carry_over) = &mut self.carry_over {
            count += carry_over.take(out);
        }
        if count == 0
            && let Some(lane) = self.lane
        {
            count += lane.lanes.lock().read(lane.name, out);
        }
        count
    }

    /// Reads what is there; 0: nothing.
    #[inline]
    pub(super) fn receive(&mut self, out: &mut [u8]) -> Result<usize, End> {
        let count = self.before(out);
        let Some(socket) = self.socket.filter(|_| count == 0) else {
            return Ok(count);
        };
        match recv(socket.as_raw_fd(), out, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => Err(End::Closed),
            Ok(count) => Ok(count),
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => Ok(0),
            Err(errno) => Err(End::Failed(errno)),
        }
    }

    /// Reads bytes that are there, and what follows them if it comes along.
    pub(super) fn read(&mut self, out: &mut [u8], ahead: &mut [u8]) -> nix::Result<usize> {
        let count = self.before(out);
        match self.socket {
            Some(socket) if count == 0 => {
                readv(socket, &mut [IoSliceMut::new(out), IoSliceMut::new(ahead)])
            }
            _ => Ok(count),
        }
    }
}
