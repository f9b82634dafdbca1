// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inbound connections. Nothing that comes by one is believed before it has proven to be a rank of the job.

use super::message::{MESSAGE_MAX, ReadOutcome, receive, send_handshake};
use super::{Connector, EventSource, GO, INBOUND_MAX, PAUSE, Standing, options};
use crate::endpoint::hub::Interest;
use crate::proof::{self, Handshake, Purpose};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use onecopy_obs::tracepoints;
use onecopy_shm::{failing, fault};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
#[cfg(test)]
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Inbound connections that are let in with one look. Chosen by magnitude: each takes some calls of the kernel, so that
/// a look stays within a tenth of a millisecond.
const AT_ONCE: usize = 16;

/// How far an inbound connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InboundState {
    /// It has not proven who it is.
    Proving,
    /// The connecting process has proven to be the rank given here. An outbound connection to the same rank has
    /// precedence and is not over yet.
    Waiting(u32),
    /// The connecting process has proven to be the rank given here, and was told that it is accepted. Its confirmation
    /// is awaited.
    Confirmed(u32),
}

/// A connection that another process made.
pub(super) struct InboundConnection {
    fd: OwnedFd,
    from: SocketAddr,
    handshake: Handshake,
    pub(super) state: InboundState,
    /// By the time of this rank's looks.
    pub(super) since: Duration,
}

impl std::fmt::Debug for InboundConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboundConnection")
            .field("from", &self.from)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl InboundConnection {
    /// Which rank it has proven to be.
    pub(super) fn rank(&self) -> Option<u32> {
        match self.state {
            InboundState::Proving => None,
            InboundState::Waiting(rank) | InboundState::Confirmed(rank) => Some(rank),
        }
    }

    #[cfg(test)]
    pub(super) fn has_unread(&self) -> bool {
        let mut found = false;
        onecopy_shm::liveness::readable(&[self.fd.as_fd()], |_| found = true).expect("poll");
        found
    }
}

impl Connector {
    /// Lets in those who wait at the listener.
    pub(super) fn let_in(&mut self, now: Instant) {
        for _ in 0..AT_ONCE {
            let accepted = failing::attempt("socket.accept").and_then(|()| self.listener.accept());
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_over(&error) => return,
                Err(error) => {
                    // Without descriptors or memory: nothing is accepted for a while, lest it is found ready again
                    // and again.
                    if !std::mem::replace(&mut self.warned_of_shortage, true) {
                        tracing::warn!(
                            "ranks that connect have to wait: accept: {error}; is the limit on descriptors (ulimit \
                             -n) high enough?"
                        );
                    }
                    self.paused = Some(now + PAUSE);
                    let _ = self
                        .set
                        .watch(&self.listener, EventSource::Listener, Interest::NONE);
                    return;
                }
            };
            if let Err(error) = self.accept_inbound(stream.into(), from, now) {
                tracing::debug!("a connection from {from} is not taken: {error}");
            }
        }
    }

    fn accept_inbound(&mut self, fd: OwnedFd, from: SocketAddr, now: Instant) -> io::Result<()> {
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        options::set_up(&fd, &self.settings)?;
        let own = (self.settings.secret, self.settings.me);
        let mut handshake = Handshake::answer(own.0, Purpose::Pair, own.1, proof::fresh()?);
        send_handshake(&fd, &mut handshake)?;
        let inbound = self.inbound.iter().flatten();
        let strangers = inbound.filter(|one| one.rank().is_none());
        if strangers.count() >= INBOUND_MAX
            && let Some(first) = self.first_stranger()
        {
            self.refuse_unproven(first, "displaced: too many unproven connections", now);
        }
        let index = match self.inbound.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.inbound.push(None);
                self.inbound.len() - 1
            }
        };
        let source = EventSource::Inbound(index as u32);
        self.set.add(&fd, source, Interest::READ)?;
        self.inbound[index] = Some(InboundConnection {
            fd,
            from,
            handshake,
            state: InboundState::Proving,
            since: self.time.at(now),
        });
        Ok(())
    }

    /// The one that has been here for longest without a proof.
    fn first_stranger(&self) -> Option<usize> {
        let inbound = self.inbound.iter().enumerate();
        let strangers = inbound.filter_map(|(index, one)| {
            let one = one.as_ref().filter(|one| one.rank().is_none())?;
            Some((one.since, index))
        });
        strangers.min().map(|(_, index)| index)
    }

    pub(super) fn drop_inbound(&mut self, index: usize) -> Option<InboundConnection> {
        let one = self.inbound.get_mut(index)?.take()?;
        self.set.remove(&one.fd);
        Some(one)
    }

    /// Closes an inbound connection, and sends nothing before.
    pub(super) fn refuse(&mut self, index: usize, why: &str) {
        if let Some(one) = self.drop_inbound(index) {
            self.refused += 1;
            tracepoints::inbound_refused(&one.from.to_string(), why);
        }
    }

    /// An inbound connection has sent something, or has gone. Gives the rank that has closed it, if it was one.
    pub(super) fn on_inbound(&mut self, index: usize) -> Option<u32> {
        let one = self.inbound.get_mut(index)?.as_mut()?;
        let mut word = [0; MESSAGE_MAX];
        let wanted = match one.state {
            InboundState::Proving => one.handshake.wanted().min(MESSAGE_MAX),
            InboundState::Waiting(_) | InboundState::Confirmed(_) => 1,
        };
        let got = match receive(&one.fd, &mut word[..wanted]) {
            ReadOutcome::Nothing => return None,
            ReadOutcome::Closed(_) => {
                let rank = one.rank();
                match rank {
                    Some(_) => drop(self.drop_inbound(index)),
                    None => self.refuse(index, "it has hung up"),
                }
                return rank;
            }
            ReadOutcome::Bytes(count) => &word[..count],
        };
        match one.state {
            InboundState::Proving => match one.handshake.take(got) {
                Ok(()) => {
                    if let Some(rank) = one.handshake.claimed() {
                        self.judge(index, rank);
                    }
                }
                Err(why) => self.refuse(index, &why.to_string()),
            },
            InboundState::Confirmed(rank) if got == [GO] => {
                if let Some(one) = self.drop_inbound(index) {
                    self.connected(rank, one.fd);
                }
            }
            InboundState::Waiting(_) => self.refuse(index, "it sent data before it was accepted"),
            InboundState::Confirmed(_) => {
                self.refuse(index, "it sent other data than the final GO")
            }
        }
        None
    }

    /// An inbound connection has proven to know the secret, and to be `rank`.
    fn judge(&mut self, index: usize, rank: u32) {
        match self.standing(rank) {
            Some(Standing::Apart) => {}
            Some(Standing::Connected) => {
                return self.refuse(index, "a second connection of a rank that has one");
            }
            Some(Standing::Gone) => {
                return self.refuse(index, "a rank that is not talked with any more");
            }
            None => return self.refuse(index, "no rank of another node"),
        }
        // One that comes again has given up its call before.
        for other in 0..self.inbound.len() {
            let same = self.inbound[other]
                .as_ref()
                .and_then(InboundConnection::rank)
                == Some(rank);
            if other != index && same {
                self.drop_inbound(other);
            }
        }
        let Some(Some(one)) = self.inbound.get_mut(index) else {
            return;
        };
        one.state = InboundState::Waiting(rank);
        fault::point("inbound.proven");
        if self.settings.me > rank || !self.connects_to(rank) {
            self.confirm(index);
        }
    }

    /// Tells an inbound connection that the pair talks by its connection.
    fn confirm(&mut self, index: usize) {
        let Some(Some(one)) = self.inbound.get_mut(index) else {
            return;
        };
        let Some(rank) = one.rank() else { return };
        one.state = InboundState::Confirmed(rank);
        if send_handshake(&one.fd, &mut one.handshake).is_err() {
            self.drop_inbound(index);
        }
    }

    /// Confirms the inbound connection that is `rank` and waits. `false`: there is none.
    pub(super) fn confirm_waiting(&mut self, rank: u32) -> bool {
        let is_waiting = |one: &Option<InboundConnection>| {
            one.as_ref().map(|one| one.state) == Some(InboundState::Waiting(rank))
        };
        let Some(index) = self.inbound.iter().position(is_waiting) else {
            return false;
        };
        self.confirm(index);
        self.inbound[index].is_some()
    }
}

/// Whether no connection waits at the listener any more, or the one that waited was closed.
fn is_over(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
    )
}
