// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a broker keeps of one rank: its connection, what is still to be sent by it, and what is known of its process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use onecopy_shm::fdpass::{self, Credentials, FdPassError, Wait};

use crate::wireup::message::ToRank;
use crate::wireup::{Card, Death};

/// Between attempts to send what the kernel has no room for: it does not report when it has. Chosen by magnitude: a
/// rank that is scheduled reads within that time.
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// A rank to which nothing can be sent for so long loses its connection. Chosen by magnitude: less than a join may take
/// (30 s), so that the reason is named before that is over.
const STUCK_LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientState {
    /// Has not joined yet; perhaps it never will.
    Outside,
    Joined,
    Left,
    Gone,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) state: ClientState,
    pub(super) socket: Option<OwnedFd>,
    pub(super) queue: VecDeque<(Vec<u8>, Vec<Arc<OwnedFd>>)>,
    /// Since when the kernel refuses to take the first message of the queue, and when it is asked again.
    pub(super) stuck: Option<(Instant, Instant)>,
    pub(super) card: Option<Card>,
    pub(super) segment: Option<Arc<OwnedFd>>,
    /// By which it grants its memory to peers: given to ranks of the job only.
    pub(super) grant: Option<Arc<OwnedFd>>,
    /// The process that joined: the launcher's child, or something below it.
    pub(super) joined_as: Option<Credentials>,
    pub(super) process: Option<Arc<OwnedFd>>,
    /// The launcher's child and, if known, its end; for a rank that was seated, the process that connected.
    pub(super) child: Pid,
    pub(super) child_fd: Option<Arc<OwnedFd>>,
    pub(super) child_death: Option<Death>,
    /// Since when the connection or the process is known to have ended.
    pub(super) ending: Option<Instant>,
    /// Whether there is, or was, a connection.
    pub(super) seated: bool,
    /// Whether the connection was taken from it: it could not say that it leaves.
    pub(super) disconnected: bool,
}

impl Client {
    /// Room for a rank that has not come yet.
    pub(super) fn vacant() -> Self {
        Self {
            state: ClientState::Outside,
            socket: None,
            queue: VecDeque::new(),
            stuck: None,
            card: None,
            segment: None,
            grant: None,
            joined_as: None,
            process: None,
            child: Pid::from_raw(0),
            child_fd: None,
            child_death: None,
            ending: None,
            seated: false,
            disconnected: false,
        }
    }

    /// The rank has come: our end of its connection, and its process.
    pub(super) fn seat(&mut self, socket: OwnedFd, child: Pid, child_fd: Option<Arc<OwnedFd>>) {
        self.seated = true;
        self.socket = Some(socket);
        self.child = child;
        self.child_fd = child_fd;
    }

    /// Sends what the kernel takes. An error, in words, if nothing can be sent any more.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        loop {
            let (Some(socket), Some((message, fds))) = (&self.socket, self.queue.front()) else {
                self.stuck = None;
                return Ok(());
            };
            let lent: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            match fdpass::send(socket.as_fd(), message, &lent, Wait::Never) {
                Ok(()) => {
                    self.queue.pop_front();
                    self.stuck = None;
                }
                Err(FdPassError::WouldBlock) => {
                    self.stuck = None;
                    return Ok(());
                }
                // The end of the connection is noticed where it is read.
                Err(FdPassError::Closed) => self.queue.clear(),
                Err(error) => {
                    let now = Instant::now();
                    let since = self.stuck.map_or(now, |(since, _)| since);
                    if !error.is_transient() || now.duration_since(since) > STUCK_LIMIT {
                        return Err(format!(
                            "a message to it of {} bytes cannot be sent: {error}; see net.core.wmem_default for the longest one, and `ulimit -n` for descriptors under way",
                            message.len()
                        ));
                    }
                    self.stuck = Some((since, now + RETRY_DELAY));
                    return Ok(());
                }
            }
        }
    }

    /// Its connection is over.
    pub(super) fn hang_up(&mut self, now: Instant) {
        self.socket = None;
        self.queue.clear();
        self.stuck = None;
        match self.state {
            ClientState::Outside | ClientState::Joined => _ = self.ending.get_or_insert(now),
            ClientState::Left | ClientState::Gone => {}
        }
    }

    /// Closes its connection, and sends the reason first.
    pub(super) fn disconnect(&mut self, reason: String, now: Instant) {
        let refusal = ToRank::Refused { reason }.encode();
        if let Some(socket) = &self.socket {
            // If this cannot be sent either, the rank sees the end of its connection.
            let _ = fdpass::send(socket.as_fd(), &refusal, &[], Wait::Never);
        }
        self.disconnected = true;
        self.hang_up(now);
    }
}
