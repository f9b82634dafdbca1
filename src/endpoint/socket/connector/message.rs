// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a handshake, by a socket that never waits.

use crate::proof::Handshake;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use std::os::fd::{AsRawFd, OwnedFd};

/// More than any message of the handshake has. The longest has 68 bytes (`src/proof.rs`).
pub(super) const MESSAGE_MAX: usize = 256;

/// Sends all that a handshake has to send. A socket that has sent next to nothing has room for it.
pub(super) fn send_handshake(fd: &OwnedFd, handshake: &mut Handshake) -> nix::Result<()> {
    while !handshake.to_send().is_empty() {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(fd.as_raw_fd(), handshake.to_send(), flags) {
            Ok(count) => handshake.sent(count),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// What a look for bytes of the other side's has found.
pub(super) enum ReadOutcome {
    Nothing,
    Bytes(usize),
    /// Nothing more comes, for this reason.
    Closed(Option<Errno>),
}

/// Reads up to so many bytes.
pub(super) fn receive(fd: &OwnedFd, room: &mut [u8]) -> ReadOutcome {
    match recv(fd.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT) {
        Ok(0) => ReadOutcome::Closed(None),
        Ok(count) => ReadOutcome::Bytes(count),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => ReadOutcome::Nothing,
        Err(errno) => ReadOutcome::Closed(Some(errno)),
    }
}
