// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a host reaches rank 0's: by one after the other of its addresses, each for a bounded time.
//!
//! This waits, and is for the rank that begins, before its thread does.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, getsockopt, socket, sockopt,
};

use crate::proof::{Handshake, Purpose, Secret, fresh};

/// For one address, to connect and to prove. Chosen by magnitude: a packet that is lost is sent again after one second
/// (RFC 6298).
const ATTEMPT: Duration = Duration::from_secs(2);
/// For a confirmation: twice as long as rank 0's host keeps a connection without a proof.
const CONFIRMED: Duration = Duration::from_secs(10);
/// If all addresses refuse, this is not to change. As long as one attempt, chosen by magnitude: rank 0's host may just
/// be starting.
const REFUSED: Duration = Duration::from_secs(2);
/// Between two rounds. Chosen by magnitude: twenty a second cost nothing.
const PAUSE: Duration = Duration::from_millis(50);

/// Why an address is of no use.
enum Failure {
    /// For now: no listener answered in time.
    Late(String),
    /// As long as nothing changes.
    Lasting(String),
}

/// The ranks of two hosts: the one that connects, and the one that it connects with.
#[derive(Clone, Copy, Debug)]
pub(in crate::wireup) struct HostPair {
    pub(in crate::wireup) own: u32,
    pub(in crate::wireup) peer: u32,
}

/// A proven connection with another host.
#[derive(Debug)]
pub(in crate::wireup) struct HostStream {
    pub(in crate::wireup) stream: TcpStream,
    /// The address of this node that it uses.
    pub(in crate::wireup) address: IpAddr,
}

/// Connects with another host. `from`: addresses of this node that may be used; empty for any.
pub(in crate::wireup) fn connect(
    places: &[SocketAddr],
    from: &[IpAddr],
    hosts: HostPair,
    secret: Secret,
    limit: Duration,
) -> Result<HostStream, String> {
    let start = Instant::now();
    // By address, the last one: in the last round the time may be over before all have their turn.
    let mut reasons = vec!["no time was left for it".to_owned(); places.len()];
    loop {
        let mut lasting = true;
        for (&to, reason) in places.iter().zip(&mut reasons) {
            let left = limit.saturating_sub(start.elapsed()).min(ATTEMPT);
            if left.is_zero() {
                break;
            }
            match attempt(to, from, hosts, secret, left, start + limit) {
                Ok(found) => return Ok(found),
                Err(Failure::Late(why)) => {
                    lasting = false;
                    *reason = why;
                }
                Err(Failure::Lasting(why)) => *reason = why,
            }
        }
        let elapsed = start.elapsed();
        if elapsed + PAUSE > limit || lasting && elapsed > REFUSED {
            let each = places.iter().zip(&reasons);
            let each: Vec<String> = each.map(|(to, why)| format!("{to}: {why}")).collect();
            return Err(each.join("; "));
        }
        std::thread::sleep(PAUSE);
    }
}

fn attempt(
    to: SocketAddr,
    from: &[IpAddr],
    hosts: HostPair,
    secret: Secret,
    limit: Duration,
    last: Instant,
) -> Result<HostStream, Failure> {
    let lasting = |error: &dyn std::fmt::Display| Failure::Lasting(error.to_string());
    let deadline = Instant::now() + limit;
    let source = from
        .iter()
        .find(|address| address.is_ipv4() == to.is_ipv4());
    if source.is_none() && !from.is_empty() {
        return Err(Failure::Lasting(
            "not of the family of our own address".to_owned(),
        ));
    }
    let socket = begin(to, source.copied()).map_err(|errno| lasting(&errno))?;
    wait(&socket, PollFlags::POLLOUT, deadline)?;
    match getsockopt(&socket, sockopt::SocketError) {
        Ok(0) => {}
        Ok(error) => {
            let errno = Errno::from_raw(error);
            return Err(match errno {
                Errno::ETIMEDOUT => Failure::Late(errno.to_string()),
                _ => lasting(&errno),
            });
        }
        Err(errno) => return Err(lasting(&errno)),
    }
    let stream = TcpStream::from(socket);
    // A connection of a socket to itself: no process listens there.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err(Failure::Lasting("no process listens there".to_owned()));
    }
    let fresh = fresh().map_err(|error| lasting(&error))?;
    let mut proof = Handshake::call(secret, Purpose::Oob, hosts.own, hosts.peer, fresh);
    prove(&stream, &mut proof, deadline, last)?;
    let address = stream.local_addr().map_err(|error| lasting(&error))?;
    Ok(HostStream {
        stream,
        address: address.ip().to_canonical(),
    })
}

/// A connection that is being made.
fn begin(to: SocketAddr, from: Option<IpAddr>) -> nix::Result<OwnedFd> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let made = socket(family, SockType::Stream, flags, None)?;
    if let Some(from) = from {
        let from = SockaddrStorage::from(SocketAddr::new(from, 0));
        bind(made.as_raw_fd(), &from)?;
    }
    match nix::sys::socket::connect(made.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(made),
        Err(errno) => Err(errno),
    }
}

fn wait(fd: &impl AsFd, flags: PollFlags, deadline: Instant) -> Result<(), Failure> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Late("no answer in time".to_owned()));
        }
        let left = u16::try_from(left.as_millis().max(1)).unwrap_or(u16::MAX);
        match poll(
            &mut [PollFd::new(fd.as_fd(), flags)],
            PollTimeout::from(left),
        ) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(Failure::Lasting(format!("poll: {errno}"))),
        }
    }
}

/// Both sides prove themselves before the deadline. Once this side has, the other one may take the connection for a
/// connection at any time. It may also take its end for the end of the node. From then on it waits longer, up to `last`
/// at most.
fn prove(
    mut stream: &TcpStream,
    proof: &mut Handshake,
    mut deadline: Instant,
    last: Instant,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Late(error.to_string());
    while proof.proven().is_none() {
        let flags = match proof.to_send().is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLOUT,
        };
        wait(&stream, flags, deadline)?;
        if flags == PollFlags::POLLOUT {
            match stream.write(proof.to_send()) {
                Ok(count) => {
                    proof.sent(count);
                    if proof.to_send().is_empty() {
                        deadline = last.min(Instant::now() + CONFIRMED);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            continue;
        }
        let mut bytes = vec![0; proof.wanted()];
        match stream.read(&mut bytes) {
            // A crowded host drops those who wait: another time it may not.
            Ok(0) => return Err(Failure::Late("the connection was closed".to_owned())),
            Ok(count) => proof
                .take(&bytes[..count])
                .map_err(|why| Failure::Lasting(why.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}
