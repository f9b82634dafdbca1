// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether peers are alive: a pidfd becomes readable when its process ends, whatever ended it, and is never reused as a
//! pid is.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::BorrowedFd;

/// Looks at all `descriptors` at once, without waiting, and calls `ready` with the index of each that is readable or
/// broken.
///
/// For a pidfd that means that the process is gone. For a socket it means that there is something to read or that the
/// other end is gone.
///
/// # Errors
/// That of `poll`. A signal is none: nothing is reported then, and the next look finds it.
pub fn readable(descriptors: &[BorrowedFd<'_>], mut ready: impl FnMut(usize)) -> io::Result<()> {
    let mut set: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    match poll(&mut set, PollTimeout::ZERO) {
        Ok(0) | Err(Errno::EINTR) => Ok(()),
        Ok(_) => {
            for (index, entry) in set.iter().enumerate() {
                if entry.revents().is_none_or(|events| !events.is_empty()) {
                    ready(index);
                }
            }
            Ok(())
        }
        Err(errno) => Err(errno.into()),
    }
}
