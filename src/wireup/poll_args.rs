// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of `poll` in event loops around a [`Broker`](super::broker::Broker): a host's, and the launcher's.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::poll::{PollFlags, PollTimeout};

/// A descriptor to poll.
#[derive(Debug, Clone, Copy)]
pub struct Polled<'f, T> {
    /// By what its owner knows it.
    pub token: T,
    /// The descriptor.
    pub fd: BorrowedFd<'f>,
    /// Whether it is polled for what can be read.
    pub read: bool,
    /// Whether it is polled for room to write.
    pub write: bool,
}

impl<'f, T> Polled<'f, T> {
    /// One that is polled for that alone.
    #[must_use]
    pub fn for_read(token: T, fd: BorrowedFd<'f>) -> Self {
        Self {
            token,
            fd,
            read: true,
            write: false,
        }
    }

    /// The same, as another owner knows it.
    #[must_use]
    pub fn map<U>(self, token: impl FnOnce(T) -> U) -> Polled<'f, U> {
        Polled {
            token: token(self.token),
            fd: self.fd,
            read: self.read,
            write: self.write,
        }
    }

    /// What it is polled for.
    #[must_use]
    pub fn flags(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, self.read);
        flags.set(PollFlags::POLLOUT, self.write);
        flags
    }
}

/// How long to poll. Rounded up, so that what is due then is due when we wake.
#[must_use]
pub fn timeout(now: Instant, due: Option<Instant>) -> PollTimeout {
    due.map_or(PollTimeout::NONE, |due| {
        let left = due
            .saturating_duration_since(now)
            .as_micros()
            .div_ceil(1000);
        let left = i32::try_from(left).unwrap_or(i32::MAX);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    })
}
