// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::wireup::oob::HostPair;
use nix::poll::{PollFd, PollTimeout, poll};
use onecopy_shm::sync::{AtomicBool, Ordering};
use std::net::Shutdown;

const SECRET: Secret = [7; 32];
const HOSTS: HostPair = HostPair { own: 4, peer: 0 };
const LONG: Duration = Duration::from_secs(60);

fn acceptor(most: usize) -> Acceptor {
    let loopback = [IpAddr::from([127, 0, 0, 1])];
    Acceptor::open(&loopback, 0, SECRET, most).expect("an acceptor")
}

/// Serves what is ready, and returns who has proven itself.
fn serve(acceptor: &mut Acceptor, now: Instant) -> Vec<u32> {
    let mut fds = Vec::new();
    let mut tokens = Vec::new();
    for polled in acceptor.polled() {
        fds.push(PollFd::new(polled.fd, polled.flags()));
        tokens.push(polled.token);
    }
    poll(&mut fds, PollTimeout::from(10_u8)).expect("poll");
    let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
    let mut accepted = Vec::new();
    for (token, _) in tokens.into_iter().zip(ready).filter(|(_, ready)| *ready) {
        accepted.extend(acceptor.ready(token, now));
    }
    accepted.extend(acceptor.tick(now));
    accepted.into_iter().map(|host| host.rank).collect()
}

/// Whether the acceptor's side closes this connection, in so many rounds of serving it.
fn closes_within(acceptor: &mut Acceptor, mut stream: &TcpStream, rounds: usize) -> bool {
    stream
        .set_read_timeout(Some(Duration::from_millis(1)))
        .expect("timeout");
    let mut bytes = [0; 256];
    for _ in 0..rounds {
        assert!(serve(acceptor, Instant::now()).is_empty());
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    false
}

fn closes(acceptor: &mut Acceptor, stream: &TcpStream) -> bool {
    closes_within(acceptor, stream, 5000)
}

fn wait_for_inbound(acceptor: &mut Acceptor, count: usize) {
    let start = Instant::now();
    while acceptor.inbound.iter().flatten().count() < count {
        assert!(serve(acceptor, Instant::now()).is_empty());
        assert!(start.elapsed() < LONG, "no caller came");
    }
}

#[test]
fn garbage_is_sent_away_and_the_silent_go_in_time() {
    let mut acceptor = acceptor(8);
    let place = acceptor.places()[0];
    let garbage = TcpStream::connect(place).expect("connect");
    (&garbage).write_all(&[b'?'; 500]).expect("write");
    assert!(closes(&mut acceptor, &garbage));
    let web = TcpStream::connect(place).expect("connect");
    (&web).write_all(b"GET / HTTP/1.0\r\n\r\n").expect("write");
    // Too short to be judged: it is kept for a while, as one that says nothing is.
    let silent = TcpStream::connect(place).expect("connect");
    wait_for_inbound(&mut acceptor, 2);
    assert!(!closes_within(&mut acceptor, &web, 20));
    let now = Instant::now();
    assert!(acceptor.due().is_some_and(|due| due <= now + LOOK));
    assert!(goes_by(&mut acceptor, now).is_empty());
    assert!(acceptor.inbound.is_empty());
    assert!(closes(&mut acceptor, &silent));
    // Half of a connection is none.
    let half = TcpStream::connect(place).expect("connect");
    half.shutdown(Shutdown::Write).expect("shutdown");
    assert!(closes(&mut acceptor, &half));
}

/// The time of those who are there passes, and nothing that is ready is served.
fn goes_by(acceptor: &mut Acceptor, now: Instant) -> Vec<u32> {
    let looks = (PROOF_TIMEOUT.as_secs() / LOOK.as_secs()) as u32;
    let proven = (0..=looks).flat_map(|look| acceptor.tick(now + LOOK * look));
    proven.map(|host| host.rank).collect()
}

/// An honest host has proven itself, and nobody has looked.
#[test]
fn what_a_host_has_sent_is_read_before_it_is_late() {
    let mut acceptor = acceptor(8);
    let place = acceptor.places()[0];
    let honest = TcpStream::connect(place).expect("connect");
    let proof = response(&mut acceptor, &honest, SECRET);
    let begun = Instant::now();
    acceptor.tick(begun);
    // Long away: neither that, nor what is still to come, is a silence of the host.
    assert!(acceptor.tick(begun + 10 * PROOF_TIMEOUT).is_empty());
    assert_eq!(acceptor.inbound.len(), 1);
    (&honest).write_all(&proof).expect("write");
    let is_here = |acceptor: &Acceptor| {
        let mut byte = [0];
        let inbound = acceptor.inbound[0].as_ref().expect("the host");
        inbound.stream.peek(&mut byte).is_ok()
    };
    while !is_here(&acceptor) {
        assert!(begun.elapsed() < LONG, "no proof came");
    }
    let now = begun + 10 * PROOF_TIMEOUT;
    assert_eq!(goes_by(&mut acceptor, now), [4]);
}

/// Plays the host of a node up to what it is to send, and returns that.
fn response(acceptor: &mut Acceptor, mut stream: &TcpStream, secret: Secret) -> Vec<u8> {
    let mut proof = Handshake::call(secret, Purpose::Oob, 4, 0, fresh().expect("fresh"));
    stream
        .set_read_timeout(Some(Duration::from_millis(1)))
        .expect("timeout");
    let start = Instant::now();
    while proof.to_send().is_empty() {
        assert!(serve(acceptor, Instant::now()).is_empty());
        let mut bytes = vec![0; proof.wanted()];
        if let Ok(count) = stream.read(&mut bytes) {
            proof.take(&bytes[..count]).expect("a challenge");
        }
        assert!(start.elapsed() < LONG, "no challenge");
    }
    proof.to_send().to_vec()
}

#[test]
fn a_wrong_secret_and_a_recorded_proof_are_of_no_use() {
    let mut acceptor = acceptor(8);
    let place = acceptor.places()[0];
    let liar = TcpStream::connect(place).expect("connect");
    let lie = response(&mut acceptor, &liar, [8; 32]);
    (&liar).write_all(&lie).expect("write");
    assert!(closes(&mut acceptor, &liar));
    let honest = TcpStream::connect(place).expect("connect");
    let recorded = response(&mut acceptor, &honest, SECRET);
    let thief = TcpStream::connect(place).expect("connect");
    response(&mut acceptor, &thief, SECRET);
    (&thief).write_all(&recorded).expect("write");
    assert!(closes(&mut acceptor, &thief));
    // Byte by byte it is a proof all the same, where it belongs.
    let start = Instant::now();
    let mut accepted = Vec::new();
    for byte in recorded {
        (&honest).write_all(&[byte]).expect("write");
        accepted.extend(serve(&mut acceptor, Instant::now()));
    }
    while accepted.is_empty() {
        accepted.extend(serve(&mut acceptor, Instant::now()));
        assert!(start.elapsed() < LONG, "not believed");
    }
    assert_eq!(accepted, [4]);
}

#[test]
fn a_crowd_keeps_nobody_out() {
    let mut acceptor = acceptor(4);
    let place = acceptor.places()[0];
    let crowd: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(place).expect("connect"))
        .collect();
    let over = AtomicBool::new(false);
    let accepted = std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            let called = crate::wireup::oob::connect(&[place], &[], HOSTS, SECRET, LONG);
            over.store(true, Ordering::Release);
            called
        });
        let mut accepted = Vec::new();
        while !over.load(Ordering::Acquire) {
            accepted.extend(serve(&mut acceptor, Instant::now()));
            assert!(
                acceptor.inbound.iter().flatten().count() <= 4,
                "a crowd is let in"
            );
        }
        host.join().expect("thread").expect("a connection");
        accepted
    });
    // It may have come more than once, if the crowd pushed it out at the last step.
    assert!(
        accepted.iter().all(|&rank| rank == 4) && !accepted.is_empty(),
        "{accepted:?}"
    );
    drop(crowd);
}

#[test]
fn a_queue_that_is_full_is_waited_for() {
    use nix::sys::socket::{Backlog, listen};
    let mut acceptor = acceptor(64);
    listen(&acceptor.listeners[0], Backlog::new(0).expect("backlog")).expect("listen");
    let place = acceptor.places()[0];
    let mut waiting = Vec::new();
    let soon = Duration::from_millis(200);
    while let Ok(stream) = TcpStream::connect_timeout(&place, soon) {
        waiting.push(stream);
        assert!(waiting.len() < 1000, "the queue is never full");
    }
    let error = crate::wireup::oob::connect(&[place], &[], HOSTS, SECRET, 2 * soon);
    let error = error.expect_err("no rank is let in");
    assert!(error.contains("no answer in time"), "{error}");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            let called = crate::wireup::oob::connect(&[place], &[], HOSTS, SECRET, LONG);
            over.store(true, Ordering::Release);
            called
        });
        let start = Instant::now();
        while !over.load(Ordering::Acquire) && start.elapsed() < LONG {
            serve(&mut acceptor, Instant::now());
        }
        host.join().expect("thread").expect("a connection");
    });
}

#[test]
fn nobody_there_is_an_error_with_each_address() {
    // Nothing listens there any more.
    let place = acceptor(1).places()[0];
    let places = [place, "[::1]:1".parse().expect("an address")];
    let from = [IpAddr::from([127, 0, 0, 1])];
    // All refuse: it is not tried for so long.
    let error = crate::wireup::oob::connect(&places, &from, HOSTS, SECRET, LONG);
    let error = error.expect_err("nobody");
    assert!(error.contains(&place.to_string()), "{error}");
    assert!(error.contains("[::1]:1: not of the family"), "{error}");
}
