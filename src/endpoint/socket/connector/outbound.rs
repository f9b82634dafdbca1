// SPDX-License-Identifier: MIT OR Apache-2.0
//! Outbound connections. They are tried again for a while: a refusal may come from a rank that hung up on a slow
//! caller, or from a shortage.

use super::message::{MESSAGE_MAX, ReadOutcome, receive, send_handshake};
use super::options::BegunCall;
use super::{Connector, EventSource, GO, Outcome, Standing, options};
use crate::endpoint::hub::Interest;
use crate::proof::{self, Handshake, Purpose};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use onecopy_shm::{failing, fault};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Attempts at least, whatever time has passed: a rank may have looked elsewhere. Chosen by magnitude: four refusals
/// are no accident.
const TRIES_MIN: u32 = 4;
/// The pause before the second attempt; it doubles, so many times. Chosen by magnitude: 5 ms outlast a short absence,
/// and the longest, 320 ms, leaves some thirty attempts within `ONECOPY_TCP_CONNECT_TIMEOUT`.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_DOUBLINGS: u32 = 6;
/// A connection that was accepted and is not answered for so long is worth a word. As long as the other side waits for
/// a proof.
const SILENT: Duration = Duration::from_secs(10);

enum OutboundState {
    /// Until then nothing is tried.
    Pausing(Instant),
    /// The kernel connects, until then.
    Connecting(OwnedFd, Instant),
    Proving(OwnedFd, Handshake),
}

/// A connection that this rank makes.
pub(super) struct OutboundConnection {
    pub(super) rank: u32,
    state: OutboundState,
    /// By the time of this rank's looks.
    begun: Duration,
    tries: u32,
    was_reported: bool,
}

impl fmt::Debug for OutboundConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundConnection")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

/// Why an attempt has failed.
enum Failure {
    System(&'static str, Errno),
    Other(String),
}

/// What helps where it is not the network that fails.
fn shortage(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::EMFILE => Some("Raise the limit on descriptors (ulimit -n)."),
        Errno::ENFILE => Some("The system has no descriptors left (fs.file-max)."),
        _ => None,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(call, errno) => write!(f, "{call}: {errno}"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl Connector {
    /// Begins to connect with a rank, unless that is under way.
    pub(crate) fn connect(&mut self, rank: u32, now: Instant) {
        let Some(Some(entry)) = self.entries.get_mut(rank as usize) else {
            return;
        };
        entry.wanted = true;
        self.connect_if_wanted(rank, now);
    }

    pub(super) fn connect_if_wanted(&mut self, rank: u32, now: Instant) {
        let wanted = self
            .entry(rank)
            .is_some_and(|entry| entry.wanted && entry.standing == Standing::Apart);
        // It has called itself, and is about to go on.
        let inbound = self.inbound.iter().flatten();
        let has_connected = inbound
            .map(|one| one.rank())
            .any(|known| known == Some(rank));
        if !wanted || has_connected || self.connects_to(rank) {
            return;
        }
        self.outbound.push(OutboundConnection {
            rank,
            state: OutboundState::Pausing(now),
            begun: self.time.at(now),
            tries: 0,
            was_reported: false,
        });
        self.move_outbound(rank, now);
    }

    pub(super) fn drop_outbound(&mut self, rank: u32) {
        if let Some(index) = self
            .outbound
            .iter()
            .position(|outbound| outbound.rank == rank)
        {
            let outbound = self.outbound.swap_remove(index);
            if let OutboundState::Connecting(fd, _) | OutboundState::Proving(fd, _) =
                &outbound.state
            {
                self.set.remove(fd);
            }
        }
    }

    pub(super) fn tick_calls(&mut self, now: Instant) {
        let time = self.time.at(now);
        for index in (0..self.outbound.len()).rev() {
            let Some(outbound) = self.outbound.get_mut(index) else {
                continue;
            };
            let rank = outbound.rank;
            match &outbound.state {
                OutboundState::Pausing(until) | OutboundState::Connecting(_, until)
                    if *until <= now =>
                {
                    self.move_outbound(rank, now);
                }
                OutboundState::Proving(..)
                    if !outbound.was_reported && time > outbound.begun + SILENT =>
                {
                    outbound.was_reported = true;
                    tracing::warn!(
                        "rank {rank} has not answered a connection for {} s: it computes for long, or is stopped",
                        SILENT.as_secs()
                    );
                }
                _ => {}
            }
        }
    }

    /// Moves one on.
    pub(super) fn move_outbound(&mut self, rank: u32, now: Instant) {
        let Some(index) = self
            .outbound
            .iter()
            .position(|outbound| outbound.rank == rank)
        else {
            return;
        };
        let mut outbound = self.outbound.swap_remove(index);
        let failure = match self.step(rank, outbound.state, now) {
            Ok(Some(state)) => {
                outbound.state = state;
                return self.outbound.push(outbound);
            }
            // It is there.
            Ok(None) => return,
            Err(failure) => failure,
        };
        // It calls, too, and reaches this rank.
        if self.confirm_waiting(rank) {
            return;
        }
        outbound.tries += 1;
        let limit = self.settings.stream.connect;
        if outbound.tries >= TRIES_MIN && self.time.at(now) > outbound.begun + limit {
            return self.fail(rank, outbound.tries, &failure);
        }
        tracing::debug!("connecting with rank {rank}: {failure}; tried again");
        let pause = PAUSE * (1 << (outbound.tries - 1).min(PAUSE_DOUBLINGS));
        outbound.state = OutboundState::Pausing(now + pause);
        self.outbound.push(outbound);
    }

    fn fail(&mut self, rank: u32, tries: u32, failure: &Failure) {
        let Some(address) = self.address_of(rank) else {
            return;
        };
        let stream = &self.settings.stream;
        let short = match failure {
            Failure::System(_, errno) => shortage(*errno),
            Failure::Other(_) => None,
        };
        let remedy = short.unwrap_or("Do the nodes reach each other at these addresses and ports?");
        let reason = format!(
            "connecting with {address}, {tries} attempts in {} s: {failure}. {remedy} {} waits longer",
            stream.connect.as_secs(),
            stream.connect_knob,
        );
        self.settle(rank, Standing::Gone);
        self.outcomes.push_back(Outcome::Failed(rank, reason));
    }

    /// One step of one. `None`: the connection is there.
    fn step(
        &mut self,
        rank: u32,
        state: OutboundState,
        now: Instant,
    ) -> Result<Option<OutboundState>, Failure> {
        match state {
            OutboundState::Pausing(until) if until > now => Ok(Some(state)),
            OutboundState::Pausing(_) => self.dial(rank, now).map(Some),
            OutboundState::Connecting(fd, until) => {
                let failed = match is_decided(&fd) {
                    true => options::error_of(&fd),
                    false if until > now => {
                        return Ok(Some(OutboundState::Connecting(fd, until)));
                    }
                    false => Some(Errno::ETIMEDOUT),
                };
                self.set.remove(&fd);
                match failed {
                    Some(errno) => Err(Failure::System("connect", errno)),
                    None => self.prove(rank, fd).map(Some),
                }
            }
            OutboundState::Proving(fd, mut handshake) => {
                let mut word = [0; MESSAGE_MAX];
                let wanted = handshake.wanted().min(MESSAGE_MAX);
                let failure = match receive(&fd, &mut word[..wanted]) {
                    ReadOutcome::Nothing => return Ok(Some(OutboundState::Proving(fd, handshake))),
                    ReadOutcome::Closed(None) => Failure::Other("it has hung up".into()),
                    ReadOutcome::Closed(Some(errno)) => Failure::System("recv", errno),
                    ReadOutcome::Bytes(count) => match handshake.take(&word[..count]) {
                        Ok(()) => return self.answer(rank, fd, handshake),
                        Err(why) => Failure::Other(why.to_string()),
                    },
                };
                self.set.remove(&fd);
                Err(failure)
            }
        }
    }

    /// Has the kernel connect.
    fn dial(&mut self, rank: u32, now: Instant) -> Result<OutboundState, Failure> {
        let Some(to) = self.address_of(rank) else {
            return Err(Failure::Other("it published no listening address".into()));
        };
        let called = failing::attempt("socket.connect")
            .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
            .and_then(|()| options::call(to, &self.settings));
        let called = called.map_err(|errno| Failure::System("connect", errno))?;
        let BegunCall { fd, is_there } = called;
        fault::point("connect.begun");
        if is_there {
            return self.prove(rank, fd);
        }
        let watched = self
            .set
            .add(&fd, EventSource::Outbound(rank), Interest::WRITE);
        watched.map_err(|errno| Failure::System("epoll_ctl", errno))?;
        Ok(OutboundState::Connecting(
            fd,
            now + self.settings.stream.connect,
        ))
    }

    /// The kernel has connected: the other side speaks first.
    fn prove(&mut self, rank: u32, fd: OwnedFd) -> Result<OutboundState, Failure> {
        if options::is_own_end(&fd) {
            // It would receive nothing but its own bytes.
            return Err(Failure::Other("no process listens there".into()));
        }
        options::set_up(&fd, &self.settings)
            .map_err(|errno| Failure::System("setsockopt", errno))?;
        let fresh = proof::fresh().map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Failure::System("reading /dev/urandom", errno)
        })?;
        self.set
            .add(&fd, EventSource::Outbound(rank), Interest::READ)
            .map_err(|errno| Failure::System("epoll_ctl", errno))?;
        let (secret, me) = (self.settings.secret, self.settings.me);
        let handshake = Handshake::call(secret, Purpose::Pair, me, rank, fresh);
        Ok(OutboundState::Proving(fd, handshake))
    }

    /// Answers what the other side has sent. `None`: it was the last word.
    fn answer(
        &mut self,
        rank: u32,
        fd: OwnedFd,
        mut handshake: Handshake,
    ) -> Result<Option<OutboundState>, Failure> {
        let mut sent = send_handshake(&fd, &mut handshake);
        fault::point("proof.sent");
        if sent.is_ok() && handshake.proven().is_none() {
            return Ok(Some(OutboundState::Proving(fd, handshake)));
        }
        if sent.is_ok() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            sent = send(fd.as_raw_fd(), &[GO], flags).map(drop);
        }
        self.set.remove(&fd);
        sent.map_err(|errno| Failure::System("send", errno))?;
        self.connected(rank, fd);
        Ok(None)
    }
}

/// Whether the kernel has connected, or has failed to.
fn is_decided(fd: &OwnedFd) -> bool {
    let mut set = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    poll(&mut set, PollTimeout::ZERO) != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::hub::Set;
    use crate::endpoint::socket::SocketSettings;
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, socket,
    };
    use onecopy_obs::Knobs;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    /// A socket that is connected with itself. A call to a local port without a listener can end so.
    fn own_end() -> (OwnedFd, SockaddrIn) {
        let family = AddressFamily::Inet;
        let fd = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).expect("socket");
        bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("bind");
        let own: SockaddrIn = getsockname(fd.as_raw_fd()).expect("name");
        let begun = connect(fd.as_raw_fd(), &own);
        assert!(
            matches!(begun, Ok(()) | Err(Errno::EINPROGRESS)),
            "{begun:?}"
        );
        (fd, own)
    }

    #[test]
    fn a_call_that_reaches_only_itself_is_tried_again() {
        let settings = SocketSettings {
            me: 0,
            secret: [3; 32],
            stream: Knobs::default().stream(),
        };
        let set = Arc::new(Set::new().expect("epoll"));
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut one = Connector::listen(loopback, settings, &set).expect("listen");
        let (fd, place) = own_end();
        one.set_addresses([None, Some(place.into())].into_iter());
        set.add(&fd, EventSource::Outbound(1), Interest::WRITE)
            .expect("watched");
        let now = Instant::now();
        one.outbound.push(OutboundConnection {
            rank: 1,
            state: OutboundState::Connecting(fd, now + Duration::from_secs(60)),
            begun: one.time.at(now),
            tries: 0,
            was_reported: false,
        });
        one.move_outbound(1, now);
        let [outbound] = &one.outbound[..] else {
            panic!("{:?}", one.outbound)
        };
        assert!(matches!(outbound.state, OutboundState::Pausing(_)) && outbound.tries == 1);
    }
}
