// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening TCP sockets of rank 0's host, and the inbound connections of other nodes' hosts that have not proven
//! yet who they are.
//!
//! Anyone who reaches the address may connect. So inbound connections are bounded in number and in time, none is waited
//! for, and of none more is read than its proof. When too many are there the one that has been there longest goes. A
//! host proves itself in an instant, and tries again if it was sent away. Time counts against it only while this side
//! looks, and what it has sent is read before it is sent away.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use onecopy_shm::attended::AttendedTime;

use super::poll_args::Polled;
use crate::proof::{Handshake, Purpose, Secret, fresh};

/// For an inbound connection to prove itself. Chosen by magnitude: more than twice what a caller gives one address
/// (`ATTEMPT` in `oob/connect.rs`), and no stranger stays for long.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// How often this side looks at the clock while a connection has not proven itself. What is more than twice as long
/// is an absence.
const LOOK: Duration = Duration::from_secs(1);
/// After a connection that could not be accepted: most likely there are no descriptors left. Chosen by magnitude: ten
/// tries a second cost nothing, and a caller waits for far longer.
const REST: Duration = Duration::from_millis(100);

/// Names what to poll for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptorToken {
    /// A listening socket.
    Listener(usize),
    /// An inbound connection.
    Inbound(usize),
}

struct Inbound {
    stream: TcpStream,
    proof: Handshake,
    /// By the time of this side's looks.
    since: Duration,
}

/// The sockets and those who have come.
pub(super) struct Acceptor {
    listeners: Vec<TcpListener>,
    /// In the order in which they came; empty places go with the next [`tick`](Self::tick).
    inbound: Vec<Option<Inbound>>,
    most: usize,
    own: u32,
    secret: Secret,
    rests_until: Option<Instant>,
    time: AttendedTime,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the secret.
        f.debug_struct("Acceptor")
            .field("listeners", &self.listeners)
            .finish_non_exhaustive()
    }
}

/// A host that has proven itself.
pub(super) struct ProvenHost {
    pub(super) rank: u32,
    pub(super) stream: TcpStream,
}

impl Acceptor {
    /// Listens at each of `addresses` that can be bound, as rank `own`. At most `most` inbound connections are open at
    /// a time. If no address can be bound, the error is a text with the reasons.
    pub(super) fn open(
        addresses: &[IpAddr],
        own: u32,
        secret: Secret,
        most: usize,
    ) -> Result<Self, String> {
        let mut listeners = Vec::new();
        let mut reasons = Vec::new();
        for &address in addresses {
            let opened = TcpListener::bind(SocketAddr::new(address, 0))
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
            match opened {
                Ok(listener) => listeners.push(listener),
                Err(error) => reasons.push(format!("{address}: {error}")),
            }
        }
        if listeners.is_empty() {
            return Err(format!(
                "rank 0 cannot listen for other nodes at {}",
                reasons.join("; ")
            ));
        }
        let now = Instant::now();
        Ok(Self {
            listeners,
            inbound: Vec::new(),
            most,
            own,
            secret,
            rests_until: None,
            time: AttendedTime::new(2 * LOOK, now),
        })
    }

    /// Where it is reached.
    pub(super) fn places(&self) -> Vec<SocketAddr> {
        let places = self.listeners.iter();
        places
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// Descriptors to poll.
    pub(super) fn polled(&self) -> impl Iterator<Item = Polled<'_, AcceptorToken>> {
        let listeners = self.listeners.iter().enumerate();
        let listeners = listeners.filter(|_| self.rests_until.is_none());
        let listeners = listeners
            .map(|(number, one)| Polled::for_read(AcceptorToken::Listener(number), one.as_fd()));
        let inbound = self.inbound.iter().enumerate();
        let inbound = inbound.filter_map(|(number, one)| {
            let one = one.as_ref()?;
            let writes = !one.proof.to_send().is_empty();
            Some(Polled {
                token: AcceptorToken::Inbound(number),
                fd: one.stream.as_fd(),
                read: !writes,
                write: writes,
            })
        });
        listeners.chain(inbound)
    }

    /// Sends those away who have not proven themselves in time. Gives those who have, as found by a last look.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<ProvenHost> {
        self.rests_until.take_if(|until| *until <= now);
        let time = self.time.looks(now);
        let mut proven = Vec::new();
        for number in 0..self.inbound.len() {
            let late = |one: &Inbound| time >= one.since + PROOF_TIMEOUT;
            if self.inbound[number].as_ref().is_some_and(late) {
                proven.extend(self.dismiss(number));
            }
        }
        self.inbound.retain(Option::is_some);
        proven
    }

    /// Sends an inbound connection away, unless what it has sent proves who it is.
    fn dismiss(&mut self, number: usize) -> Option<ProvenHost> {
        let proven = self.hear(number);
        self.inbound[number] = None;
        proven
    }

    /// When [`tick`](Self::tick) has something to do at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_waited_for = self.inbound.iter().any(Option::is_some);
        let look = is_waited_for.then(|| self.time.looked() + LOOK);
        look.into_iter().chain(self.rests_until).min()
    }

    /// Serves what is ready. An inbound connection that has proven itself leaves as a connection of this rank's.
    pub(super) fn ready(&mut self, token: AcceptorToken, now: Instant) -> Option<ProvenHost> {
        match token {
            AcceptorToken::Listener(number) => self.accept(number, now),
            AcceptorToken::Inbound(number) => self.hear(number),
        }
    }

    /// Lets a caller in. Gives the one that had to go for it, if that has just proven itself.
    fn accept(&mut self, number: usize, now: Instant) -> Option<ProvenHost> {
        let accepted = match self.listeners.get(number)?.accept() {
            Ok((stream, _)) => stream.set_nonblocking(true).map(|()| stream),
            Err(error) => Err(error),
        };
        let mut proven = None;
        match accepted.and_then(|stream| Ok((stream, fresh()?))) {
            Ok((stream, fresh)) => {
                let proof = Handshake::answer(self.secret, Purpose::Oob, self.own, fresh);
                if self.inbound.iter().flatten().count() >= self.most
                    && let Some(first) = self.inbound.iter().position(Option::is_some)
                {
                    proven = self.dismiss(first);
                }
                self.inbound.push(Some(Inbound {
                    stream,
                    proof,
                    since: self.time.at(now),
                }));
            }
            Err(error) if is_passing(&error) => {}
            Err(error) => {
                tracing::warn!("a connection from another node: {error}");
                self.rests_until = Some(now + REST);
            }
        }
        proven
    }

    fn hear(&mut self, number: usize) -> Option<ProvenHost> {
        let place = self.inbound.get_mut(number)?;
        let one = place.as_mut()?;
        match one.go_on() {
            Ok(None) => None,
            Ok(Some(rank)) => place.take().map(|one| ProvenHost {
                rank,
                stream: one.stream,
            }),
            Err(why) => {
                tracing::info!("a connection that is none of this job's: {why}");
                // Without a word.
                *place = None;
                None
            }
        }
    }
}

impl Inbound {
    /// Moves the handshake on by what there is; the rank in the end.
    fn go_on(&mut self) -> Result<Option<u32>, String> {
        loop {
            if let Some(rank) = self.proof.proven() {
                return Ok(Some(rank));
            }
            let moved = if self.proof.to_send().is_empty() {
                let mut bytes = vec![0; self.proof.wanted()];
                self.stream.read(&mut bytes).and_then(|count| match count {
                    0 => Err(io::ErrorKind::UnexpectedEof.into()),
                    count => self.proof.take(&bytes[..count]).map_err(io::Error::other),
                })
            } else {
                let sent = self.stream.write(self.proof.to_send());
                sent.map(|count| self.proof.sent(count))
            };
            match moved {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Whether the error means that no caller is there any more, not that accepting fails.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

#[cfg(test)]
mod tests;
