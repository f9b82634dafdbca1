// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the sockets of connections are made and set.

use crate::proof::Secret;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrStorage, connect,
    getpeername, getsockname, listen, setsockopt, socket, sockopt,
};
use onecopy_obs::StreamSettings;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Connections that the kernel keeps until this rank looks, at most; it may be set to fewer. Chosen by magnitude: ranks
/// of a job may all call at once; Linux permits 4096 by default (listen(2)).
const BACKLOG: i32 = 1024;

/// How connections are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketSettings {
    pub(crate) me: u32,
    pub(crate) secret: Secret,
    pub(crate) stream: StreamSettings,
}

/// Listens at an address, at a port that the kernel picks.
pub(super) fn listen_at(address: IpAddr, settings: &SocketSettings) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(SocketAddr::new(address, 0))?;
    listener.set_nonblocking(true)?;
    size(&listener, settings)?;
    listen(&listener, Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN))?;
    Ok(listener)
}

/// A connection that is being made.
pub(super) struct BegunCall {
    /// Writable when it is decided whether it is made.
    pub(super) fd: OwnedFd,
    /// Whether it is made already.
    pub(super) is_there: bool,
}

/// Begins to connect.
pub(super) fn call(to: SocketAddr, settings: &SocketSettings) -> nix::Result<BegunCall> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Stream, flags, None)?;
    // Before it is connected: the window's scale is agreed upon then.
    size(&fd, settings)
        .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    let begun = match to {
        SocketAddr::V4(to) => connect(fd.as_raw_fd(), &SockaddrIn::from(to)),
        SocketAddr::V6(to) => connect(fd.as_raw_fd(), &SockaddrIn6::from(to)),
    };
    match begun {
        Ok(()) => Ok(BegunCall { fd, is_there: true }),
        Err(Errno::EINPROGRESS) => Ok(BegunCall {
            fd,
            is_there: false,
        }),
        Err(errno) => Err(errno),
    }
}

/// Sets the sizes of the kernel's buffers, if they are to be set.
fn size(fd: &impl AsFd, settings: &SocketSettings) -> io::Result<()> {
    if let Some(bytes) = settings.stream.buffer {
        setsockopt(fd, sockopt::SndBuf, &bytes)?;
        setsockopt(fd, sockopt::RcvBuf, &bytes)?;
    }
    Ok(())
}

/// How a connection began: none, or why not.
pub(super) fn error_of(fd: &impl AsFd) -> Option<Errno> {
    match nix::sys::socket::getsockopt(fd, sockopt::SocketError) {
        Ok(0) => None,
        Ok(errno) => Some(Errno::from_raw(errno)),
        Err(errno) => Some(errno),
    }
}

/// Whether a socket is connected with itself. The kernel may give a caller the very port that it calls: one of those
/// that it hands out, where no process listens.
pub(super) fn is_own_end(fd: &impl AsFd) -> bool {
    let fd = fd.as_fd().as_raw_fd();
    let own = getsockname::<SockaddrStorage>(fd);
    own.is_ok() && own == getpeername(fd)
}

/// Sets up a connection: nothing waits for more to be sent with it, and one that is dead is found.
pub(super) fn set_up(fd: &impl AsFd, settings: &SocketSettings) -> nix::Result<()> {
    let limit = settings.stream.timeout;
    let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX).max(1);
    let milliseconds = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    setsockopt(fd, sockopt::TcpNoDelay, &true)?;
    setsockopt(fd, sockopt::TcpUserTimeout, &milliseconds)?;
    setsockopt(fd, sockopt::KeepAlive, &true)?;
    // Asked first after half of the time, then in quarters of the rest. The kernel takes no more seconds than these.
    let idle = (seconds / 2).clamp(1, 32_767);
    setsockopt(fd, sockopt::TcpKeepIdle, &idle)?;
    setsockopt(
        fd,
        sockopt::TcpKeepInterval,
        &(seconds / 8).clamp(1, 32_767),
    )?;
    setsockopt(fd, sockopt::TcpKeepCount, &4)
}
