// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that a parent process left open for this one.

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// A descriptor that the next program started by this process will find open, until this value is dropped.
#[derive(Debug)]
pub struct Inherited<'fd>(BorrowedFd<'fd>);

impl<'fd> Inherited<'fd> {
    /// Lets `fd` pass through `exec`.
    ///
    /// # Errors
    ///
    /// If the descriptor's flags cannot be changed.
    pub fn new(fd: BorrowedFd<'fd>) -> io::Result<Self> {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(Self(fd))
    }
}

impl Drop for Inherited<'_> {
    fn drop(&mut self) {
        // The descriptor is open, so the only harm of a failure would be one more descriptor in a later child.
        let _ = fcntl(self.0, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    }
}

/// Takes over a descriptor that the parent left open under this number. Each number can be taken once.
///
/// # Errors
///
/// If the number is not an open descriptor, is one of the standard three, or was taken before. Also if it is marked
/// close-on-exec, which no inherited descriptor can be.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    let refuse = |why: &str| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("inherited descriptor {number}: {why}"),
        )
    };
    if number <= 2 {
        return Err(refuse("one of the standard three"));
    }
    let mut taken = TAKEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if taken.contains(&number) {
        return Err(refuse("taken before"));
    }
    // SAFETY: the borrow lasts for this call; if the number is not open the kernel answers EBADF and nothing else
    // happens.
    let probe = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl(probe, FcntlArg::F_GETFD).map_err(|errno| refuse(errno.desc()))?;
    if flags & FdFlag::FD_CLOEXEC.bits() != 0 {
        return Err(refuse("opened by this process itself"));
    }
    fcntl(probe, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    taken.insert(number);
    // SAFETY: the number is open and was not close-on-exec, as everything is that Rust opens. So it came through `exec`
    // and has no owner in this process. The set above gives it only one.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
