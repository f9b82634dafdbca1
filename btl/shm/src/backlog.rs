// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many bytes wait in a stream socket. It counts those that have come and were not read, and those that were
//! written and that the other side has not acknowledged.
//!
//! # Safety
//! The only unsafe operation is an ioctl that writes an `int`, which is alive for the call, and nothing else.
#![allow(unsafe_code, reason = "ioctl has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn ask(fd: BorrowedFd<'_>, what: libc::Ioctl) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open; both requests write one `int` to the address, which is that of a live `c_int`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), what, &raw mut count) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Bytes that can be read without waiting.
///
/// # Errors
/// That of `ioctl(FIONREAD)`: `ENOTTY` where the descriptor has no such count.
pub fn unread(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ask(fd, libc::FIONREAD)
}

/// Bytes that were written and that the other side's kernel has not got, as far as is known.
///
/// # Errors
/// That of `ioctl(TIOCOUTQ)`: `ENOTTY` where the descriptor has no such count.
pub fn unsent(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ask(fd, libc::TIOCOUTQ)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn what_waits_is_counted() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let address = listener.local_addr().expect("address");
        let mut out = TcpStream::connect(address).expect("connect");
        let (mut into, _) = listener.accept().expect("accept");
        assert_eq!(unread(into.as_fd()).expect("unread"), 0);
        out.write_all(&[7; 100]).expect("write");
        while unread(into.as_fd()).expect("unread") < 100 {
            std::thread::yield_now();
        }
        into.read_exact(&mut [0; 60]).expect("read");
        assert_eq!(unread(into.as_fd()).expect("unread"), 40);
        while unsent(out.as_fd()).expect("unsent") > 0 {
            std::thread::yield_now();
        }
    }
}
