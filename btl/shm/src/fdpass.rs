// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages with descriptors and credentials over a Unix sequenced-packet socket.
//!
//! One message is one packet: bounded bytes, up to [`MAX_FDS`] descriptors, and the credentials of the process that
//! sent it, filled in by the kernel. What arrives is checked before anyone sees it. A packet longer than the buffer,
//! more descriptors than asked for, or a control part that did not fit is an error. Then every descriptor that came
//! with it is closed.
//!
//! # Safety
//!
//! The module hides `recvmsg` and the ownership of received descriptors. It guarantees that the kernel only gets
//! pointers to buffers that live through the call, with their true lengths. It also guarantees that each received
//! descriptor is owned exactly once. Control data is parsed as bytes, with bounds checks, from a buffer that this
//! module owns and that nobody but the kernel wrote.
#![allow(
    unsafe_code,
    reason = "recvmsg and the ownership of descriptors that it installs have no safe interface"
)]

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, getsockopt, sendmsg, setsockopt,
    socketpair, sockopt,
};

/// Most descriptors that one message may carry. An introduction has three at most: segment, process, export.
pub const MAX_FDS: usize = 4;

/// Room for control data. The kernel never passes more than 253 descriptors in one message: even a peer that sends that
/// many (which is refused) cannot make it overflow.
const CONTROL_BYTES: usize = 2048;

/// Who sent a message, or who made a socket pair, as the kernel of the asking process tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id in the asking process' namespace; 0 if it is not visible there.
    pub pid: i32,
    /// User id, mapped to the asking process' user namespace.
    pub uid: u32,
    /// Group id, mapped likewise.
    pub gid: u32,
}

/// A received message.
#[derive(Debug)]
pub struct Received {
    /// Bytes written at the start of the caller's buffer.
    pub len: usize,
    /// Descriptors that came along, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// The sender, if [`ask_for_credentials`] was called on this socket.
    pub from: Option<Credentials>,
}

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait until the message can be sent or one has arrived.
    Block,
    /// Answer [`FdPassError::WouldBlock`] instead.
    Never,
}

/// Why a message was not sent or not received.
#[derive(Debug, thiserror::Error)]
pub enum FdPassError {
    /// Nothing can be done without waiting.
    #[error("the socket is not ready")]
    WouldBlock,
    /// The other side closed its end.
    #[error("the other side closed the connection")]
    Closed,
    /// A message was longer than the receiver's buffer.
    #[error("a message is longer than the {limit} bytes expected")]
    TooLong {
        /// Size of the buffer.
        limit: usize,
    },
    /// A message carried, or should carry, too many descriptors.
    #[error("a message carries {count} descriptors; at most {limit} are allowed")]
    TooManyFds {
        /// Descriptors in the message.
        count: usize,
        /// Descriptors allowed.
        limit: usize,
    },
    /// The kernel could not deliver the descriptors of a message, as a rule because the descriptor limit is reached.
    #[error("descriptors of a message were lost (descriptor limit reached? see `ulimit -n`)")]
    FdsLost,
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// Name of the call.
        call: &'static str,
        /// The error of the call.
        source: io::Error,
    },
}

impl FdPassError {
    /// Whether the same may go well later: memory, or descriptors under way that nobody has taken yet.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        let Self::System { source, .. } = self else {
            return matches!(self, Self::WouldBlock);
        };
        let errno = source.raw_os_error().map(Errno::from_raw);
        matches!(
            errno,
            Some(
                Errno::ETOOMANYREFS
                    | Errno::ENOBUFS
                    | Errno::ENOMEM
                    | Errno::EMFILE
                    | Errno::ENFILE
            )
        )
    }
}

fn system(call: &'static str, errno: Errno) -> FdPassError {
    match errno {
        Errno::EAGAIN => FdPassError::WouldBlock,
        Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN => FdPassError::Closed,
        other => FdPassError::System {
            call,
            source: other.into(),
        },
    }
}

/// A step that a test may let fail.
fn attempt(step: &'static str, call: &'static str) -> Result<(), FdPassError> {
    crate::failing::attempt(step).map_err(|source| FdPassError::System { call, source })
}

/// A connected pair of sequenced-packet sockets without a name, both close-on-exec.
///
/// # Errors
/// [`FdPassError::System`] where no descriptor or no memory is left.
pub fn pair() -> Result<(OwnedFd, OwnedFd), FdPassError> {
    socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .map_err(|errno| system("socketpair", errno))
}

/// Has the kernel attach the sender's credentials to each message received from now on.
///
/// # Errors
/// [`FdPassError::System`] if this is no Unix socket.
pub fn ask_for_credentials(socket: BorrowedFd<'_>) -> Result<(), FdPassError> {
    setsockopt(&socket, sockopt::PassCred, &true)
        .map_err(|errno| system("setsockopt(SO_PASSCRED)", errno))
}

/// Credentials of the process that made the socket pair (or that listened or connected, for other sockets).
///
/// # Errors
/// [`FdPassError::System`] if this is no socket.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<Credentials, FdPassError> {
    let found = getsockopt(&socket, sockopt::PeerCredentials)
        .map_err(|errno| system("getsockopt(SO_PEERCRED)", errno))?;
    Ok(Credentials {
        pid: found.pid(),
        uid: found.uid(),
        gid: found.gid(),
    })
}

/// Sends `message` and `fds` as one packet. The descriptors stay the caller's.
///
/// # Errors
/// [`FdPassError::TooManyFds`] beyond [`MAX_FDS`]; otherwise what `sendmsg` says. Nothing was sent then.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: Wait,
) -> Result<(), FdPassError> {
    if fds.len() > MAX_FDS {
        return Err(FdPassError::TooManyFds {
            count: fds.len(),
            limit: MAX_FDS,
        });
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[] } else { &rights[..] };
    let flags = flags(wait) | MsgFlags::MSG_NOSIGNAL;
    attempt("socket.send", "sendmsg")?;
    loop {
        match sendmsg::<()>(
            socket.as_raw_fd(),
            &[IoSlice::new(message)],
            control,
            flags,
            None,
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("sendmsg", errno)),
        }
    }
}

/// Receives one packet into `buffer`, with at most `max_fds` descriptors.
///
/// # Errors
/// [`FdPassError::Closed`] after the last packet. [`FdPassError::TooLong`], [`FdPassError::TooManyFds`] and
/// [`FdPassError::FdsLost`] lose the packet and close its descriptors.
pub fn recv(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    max_fds: usize,
    wait: Wait,
) -> Result<Received, FdPassError> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: msghdr consists of integers and pointers; all zeroes is a valid value of it (no name, no buffers, no
    // control data).
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES as _;
    let flags = flags(wait) | MsgFlags::MSG_CMSG_CLOEXEC;
    attempt("socket.receive", "recvmsg")?;
    let len = loop {
        // SAFETY: `header` names one iovec over `buffer`, which is borrowed mutably for the whole call, and `control`
        // with its true size; both outlive the call. The socket is a borrowed, hence open descriptor.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags.bits()) };
        match Errno::result(got) {
            Ok(len) => break usize::try_from(len).unwrap_or(0),
            // The other side closed before it had read everything. The kernel says so once, before it hands out what
            // the other side had sent: that is not lost.
            Err(Errno::EINTR | Errno::ECONNRESET) => {}
            Err(errno) => return Err(system("recvmsg", errno)),
        }
    };
    // The type of this field differs between C libraries.
    #[allow(clippy::unnecessary_cast, reason = "not a usize in every C library")]
    let filled = (header.msg_controllen as usize).min(CONTROL_BYTES);
    // Own the descriptors first, so that each refusal below closes them.
    let (fds, from) = parse_control(&control.0[..filled]);
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(FdPassError::FdsLost);
    }
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(FdPassError::TooLong {
            limit: buffer.len(),
        });
    }
    if fds.len() > max_fds {
        return Err(FdPassError::TooManyFds {
            count: fds.len(),
            limit: max_fds,
        });
    }
    if len == 0 {
        return Err(FdPassError::Closed);
    }
    Ok(Received { len, fds, from })
}

fn flags(wait: Wait) -> MsgFlags {
    match wait {
        Wait::Block => MsgFlags::empty(),
        Wait::Never => MsgFlags::MSG_DONTWAIT,
    }
}

/// Aligned as the kernel's control headers are.
#[repr(C, align(16))]
struct Control([u8; CONTROL_BYTES]);

/// Takes ownership of all descriptors in control data that the kernel has just written.
fn parse_control(mut rest: &[u8]) -> (Vec<OwnedFd>, Option<Credentials>) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const ALIGN: usize = size_of::<usize>();
    let mut fds = Vec::new();
    let mut from = None;
    while rest.len() >= HEADER {
        // Layout of cmsghdr: length (including this header; its low 32 bits come first on a little-endian machine in
        // every libc), level, type.
        let len = int(rest, 0).map_or(0, |value| usize::try_from(value).unwrap_or(0));
        let (Some(level), Some(kind)) = (int(rest, HEADER - 8), int(rest, HEADER - 4)) else {
            break;
        };
        if len < HEADER || len > rest.len() {
            break;
        }
        let data = &rest[HEADER..len];
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            for offset in (0..data.len()).step_by(size_of::<RawFd>()) {
                if let Some(raw) = int(data, offset) {
                    // SAFETY: the kernel has just installed this descriptor in our table for this very message and told
                    // nobody else. Each number in the control data is visited once, so it gets one owner.
                    fds.push(unsafe { OwnedFd::from_raw_fd(raw) });
                }
            }
        } else if level == libc::SOL_SOCKET
            && kind == libc::SCM_CREDENTIALS
            && let (Some(pid), Some(uid), Some(gid)) = (int(data, 0), int(data, 4), int(data, 8))
        {
            from = Some(Credentials {
                pid,
                uid: uid.cast_unsigned(),
                gid: gid.cast_unsigned(),
            });
        }
        rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
    }
    (fds, from)
}

const _: () = assert!(cfg!(target_endian = "little"));

fn int(bytes: &[u8], offset: usize) -> Option<i32> {
    let word = bytes.get(offset..offset + 4)?;
    Some(i32::from_ne_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    fn memfd() -> OwnedFd {
        nix::sys::memfd::memfd_create("test", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
            .expect("memfd")
    }

    #[test]
    fn bytes_descriptors_and_credentials_arrive() {
        let (a, b) = pair().expect("pair");
        ask_for_credentials(b.as_fd()).expect("credentials");
        let mut file = std::fs::File::from(memfd());
        file.write_all(b"inside").expect("write");
        send(
            a.as_fd(),
            b"hello",
            &[file.as_fd(), file.as_fd()],
            Wait::Never,
        )
        .expect("send");
        let mut buffer = [0; 16];
        let got = recv(b.as_fd(), &mut buffer, 2, Wait::Never).expect("recv");
        assert_eq!(&buffer[..got.len], b"hello");
        assert_eq!(got.fds.len(), 2);
        let from = got.from.expect("credentials");
        assert_eq!(from.pid, std::process::id().cast_signed());
        assert_eq!(from.uid, nix::unistd::getuid().as_raw());
        let mut copy = std::fs::File::from(got.fds.into_iter().next().expect("one"));
        copy.rewind().expect("seek");
        let mut text = String::new();
        copy.read_to_string(&mut text).expect("read");
        assert_eq!(text, "inside");
        let flags = nix::fcntl::fcntl(&copy, nix::fcntl::FcntlArg::F_GETFD).expect("flags");
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn an_empty_socket_would_block_and_a_closed_one_says_so() {
        let (a, b) = pair().expect("pair");
        let mut buffer = [0; 16];
        let received = recv(b.as_fd(), &mut buffer, 0, Wait::Never);
        assert!(
            matches!(received, Err(FdPassError::WouldBlock)),
            "{received:?}"
        );
        drop(a);
        let closed = recv(b.as_fd(), &mut buffer, 0, Wait::Never);
        assert!(matches!(closed, Err(FdPassError::Closed)), "{closed:?}");
        let refused = send(b.as_fd(), b"x", &[], Wait::Never);
        assert!(matches!(refused, Err(FdPassError::Closed)), "{refused:?}");
    }

    #[test]
    fn what_was_sent_before_closing_arrives_even_if_the_sender_did_not_read() {
        let (a, b) = pair().expect("pair");
        send(a.as_fd(), b"unread", &[], Wait::Never).expect("send");
        send(b.as_fd(), b"last words", &[], Wait::Never).expect("send");
        drop(b);
        let mut buffer = [0; 16];
        let got = recv(a.as_fd(), &mut buffer, 0, Wait::Never).expect("recv");
        assert_eq!(&buffer[..got.len], b"last words");
        let closed = recv(a.as_fd(), &mut buffer, 0, Wait::Never);
        assert!(matches!(closed, Err(FdPassError::Closed)), "{closed:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused_and_its_descriptors_are_closed() {
        let (a, b) = pair().expect("pair");
        let fd = memfd();
        let inode = |fd: BorrowedFd<'_>| nix::sys::stat::fstat(fd).expect("stat").st_ino;
        let ours = inode(fd.as_fd());
        let copies = || {
            std::fs::read_dir("/proc/self/fd")
                .expect("proc")
                .filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok())
                .filter(|meta| std::os::unix::fs::MetadataExt::ino(meta) == ours)
                .count()
        };
        send(a.as_fd(), &[0; 32], &[fd.as_fd()], Wait::Never).expect("send");
        let mut buffer = [0; 16];
        let long = recv(b.as_fd(), &mut buffer, 4, Wait::Never);
        assert!(matches!(long, Err(FdPassError::TooLong { limit: 16 })));
        send(a.as_fd(), b"x", &[fd.as_fd(), fd.as_fd()], Wait::Never).expect("send");
        let many = recv(b.as_fd(), &mut buffer, 1, Wait::Never);
        assert!(matches!(
            many,
            Err(FdPassError::TooManyFds { count: 2, .. })
        ));
        let five = [fd.as_fd(); 5];
        assert!(send(a.as_fd(), b"x", &five, Wait::Never).is_err());
        assert_eq!(copies(), 1, "a refused descriptor stayed open");
    }
}
