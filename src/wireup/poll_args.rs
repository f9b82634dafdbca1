// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of `poll` in event loops around a [`Broker`](super::broker::Broker): a host's, and the launcher's.

use std::time::Instant;

use nix::poll::{PollFlags, PollTimeout};

/// What a descriptor is polled for.
#[must_use]
pub fn flags(read: bool, write: bool) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::POLLIN, read);
    flags.set(PollFlags::POLLOUT, write);
    flags
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
