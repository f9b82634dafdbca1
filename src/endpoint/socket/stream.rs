// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection, and which polls read it.

use crate::endpoint::hub::{EventSource, Interest, Set};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// Reads in vain after which a stream is read less often, by one poll more for each so many. Each is a call of the
/// kernel, which other peers wait for; chosen by magnitude, as are those below.
const BACKOFF_READS: u32 = 64;
/// Reads in vain after which nothing is kept back that the peer could do without for a moment.
const QUIET: u32 = 16;
/// Polls between two reads, at most.
const TURNS_MAX: u32 = 32;

/// A connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) fd: OwnedFd,
    set: Arc<Set>,
    source: EventSource,
    /// Whether it is among those that are watched.
    watched: bool,
}

impl Stream {
    /// A connection with a rank, watched for what comes.
    pub(super) fn new(fd: OwnedFd, set: &Arc<Set>, rank: u32) -> nix::Result<Self> {
        let source = EventSource::Pair(rank);
        set.add(&fd, source, Interest::READ)?;
        Ok(Self {
            fd,
            set: Arc::clone(set),
            source,
            watched: true,
        })
    }

    /// Writes no more. What was written goes out all the same.
    pub(super) fn end_writing(&self) {
        // A connection that has ended already has no more to end.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Write);
    }

    pub(super) fn unwatch(&mut self) {
        if std::mem::replace(&mut self.watched, false) {
            self.set.remove(&self.fd);
        }
    }

    /// It was read though its rank is not polled: see [`Set`].
    #[cold]
    pub(super) fn note(&self) {
        if let EventSource::Pair(rank) = self.source {
            self.set.note(rank);
        }
    }

    #[cfg(test)]
    pub(super) fn take_noted(&self) -> Vec<u32> {
        std::mem::take(&mut self.set.noted())
    }

    pub(super) fn watch(&self, write: bool) {
        if self.watched {
            let interest = Interest { read: true, write };
            // It was added; what is refused now is found by the next poll.
            let _ = self.set.watch(&self.fd, self.source, interest);
        }
    }

    pub(super) fn can_write(&self) -> bool {
        let mut set = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
        poll(&mut set, PollTimeout::ZERO) != Ok(0)
    }

    /// Whether both directions are closed, by a reset for example: what the kernel still keeps goes to nobody.
    pub(super) fn is_closed(&self) -> bool {
        let mut set = [PollFd::new(self.fd.as_fd(), PollFlags::empty())];
        let found = poll(&mut set, PollTimeout::ZERO);
        found.is_ok()
            && set[0]
                .revents()
                .is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.unwatch();
        // A child of a fork may have a copy of the descriptor, which would keep the peer from seeing the end.
        self.end_writing();
    }
}

/// Which polls read the stream.
#[derive(Debug, Default)]
pub(super) struct PollTurn {
    in_vain: u32,
    wait: u32,
}

impl PollTurn {
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        if self.wait == 0 {
            return true;
        }
        self.wait -= 1;
        false
    }

    /// Whether nothing has come for a little.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.in_vain >= QUIET
    }

    #[inline]
    pub(super) fn found(&mut self, anything: bool) {
        if anything {
            *self = Self::default();
        } else {
            self.in_vain = self.in_vain.saturating_add(1);
            self.wait = (self.in_vain / BACKOFF_READS).min(TURNS_MAX);
        }
    }
}
