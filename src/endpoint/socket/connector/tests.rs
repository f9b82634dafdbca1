// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::proof::{Handshake, Purpose, Secret};
use onecopy_obs::{Knobs, StreamSettings};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

const SECRET: Secret = [3; 32];
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn connector(me: u32, secret: Secret) -> Connector {
    let stream = StreamSettings {
        connect: Duration::from_millis(30),
        ..Knobs::default().stream()
    };
    let settings = SocketSettings { me, secret, stream };
    let set = Arc::new(Set::new().expect("epoll"));
    Connector::listen(LOOPBACK, settings, &set).expect("listen")
}

/// Two ranks on two nodes.
fn pair() -> [Connector; 2] {
    let mut pair = [connector(0, SECRET), connector(1, SECRET)];
    let places = pair.each_ref().map(|one| one.address().expect("address"));
    pair[0].set_addresses([None, Some(places[1])].into_iter());
    pair[1].set_addresses([Some(places[0]), None].into_iter());
    pair
}

/// Looks at everything, whether it is ready or not.
fn pump(one: &mut Connector, now: Instant) {
    one.ready(EventSource::Listener, now);
    for index in 0..one.inbound.len() {
        one.ready(EventSource::Inbound(index as u32), now);
    }
    for rank in 0..2 {
        one.ready(EventSource::Outbound(rank), now);
    }
    one.tick(now);
}

/// What becomes of the connection, in the end.
fn outcomes(pair: &mut [Connector; 2]) -> [Option<OwnedFd>; 2] {
    let mut found = [None, None];
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) && found.iter().any(Option::is_none) {
        for side in 0..2 {
            pump(&mut pair[side], Instant::now());
            match pair[side].outcome() {
                Some(Outcome::Connected(rank, fd)) => {
                    assert_eq!(rank as usize, 1 - side);
                    assert!(found[side].replace(fd).is_none(), "connected twice");
                }
                Some(Outcome::Failed(_, reason)) => panic!("{reason}"),
                None => {}
            }
        }
    }
    // Nothing more comes of it.
    for one in pair {
        pump(one, Instant::now());
        assert!(one.outcome().is_none() && !one.is_busy());
    }
    found
}

/// Whether these are the two ends of one connection.
fn belong_together(found: [Option<OwnedFd>; 2]) {
    let [a, b] = found.map(|fd| TcpStream::from(fd.expect("connected")));
    assert_eq!(
        a.local_addr().expect("address"),
        b.peer_addr().expect("address")
    );
    for (mut from, mut to) in [(&a, &b), (&b, &a)] {
        to.set_nonblocking(false).expect("blocking");
        from.write_all(b"word").expect("write");
        let mut word = [0; 4];
        to.read_exact(&mut word).expect("read");
        assert_eq!(&word, b"word");
    }
}

#[test]
fn one_calls_the_other() {
    for caller in 0..2 {
        let mut pair = pair();
        pair[caller].connect(1 - caller as u32, Instant::now());
        belong_together(outcomes(&mut pair));
    }
}

/// Both begin at once, each as far as it comes before the other looks.
#[test]
fn of_two_calls_one_stays() {
    for ahead in 0..40 {
        let mut pair = pair();
        let now = Instant::now();
        pair[0].connect(1, now);
        pair[1].connect(0, now);
        for step in 0..ahead % 8 {
            pump(&mut pair[(ahead / 8 + step) % 2], now);
            if ahead >= 20 {
                pump(&mut pair[1], now);
            }
        }
        belong_together(outcomes(&mut pair));
    }
}

/// The lower rank's call cannot succeed: the other one's does.
#[test]
fn a_call_that_one_side_cannot_make_is_the_others() {
    let mut pair = pair();
    let nobody = SocketAddr::new(LOOPBACK, 1);
    if let Some(Some(entry)) = pair[0].entries.get_mut(1) {
        entry.address = nobody;
    }
    let now = Instant::now();
    pair[0].connect(1, now);
    pair[1].connect(0, now);
    belong_together(outcomes(&mut pair));
}

#[test]
fn who_cannot_be_reached_is_named_with_the_place_and_a_remedy() {
    let mut one = connector(0, SECRET);
    let nobody = SocketAddr::new(LOOPBACK, 1);
    one.set_addresses([None, Some(nobody)].into_iter());
    one.connect(1, Instant::now());
    let begun = Instant::now();
    loop {
        pump(&mut one, Instant::now());
        match one.outcome() {
            Some(Outcome::Failed(1, reason)) => {
                for part in ["127.0.0.1:1", "ECONNREFUSED", "ONECOPY_"] {
                    assert!(reason.contains(part), "{reason}");
                }
                return;
            }
            Some(other) => panic!("{other:?}"),
            None => assert!(begun.elapsed() < Duration::from_secs(20), "it gives up"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Says `words` to a rank, and hears nothing but the challenge and the end.
fn is_turned_away(one: &mut Connector, words: impl FnOnce(&mut TcpStream) -> Vec<u8>) {
    let before = one.refused;
    let mut stranger = TcpStream::connect(one.address().expect("address")).expect("connect");
    while one.inbound.iter().flatten().count() == 0 {
        pump(one, Instant::now());
    }
    let sent = words(&mut stranger);
    stranger.write_all(&sent).expect("write");
    stranger
        .shutdown(std::net::Shutdown::Write)
        .expect("shutdown");
    let begun = Instant::now();
    while one.refused == before {
        pump(one, Instant::now());
        assert!(begun.elapsed() < Duration::from_secs(5), "turned away");
    }
    assert!(one.outcome().is_none() && !one.is_busy());
    let mut received = Vec::new();
    // A reset is an end, too.
    let _ = stranger.read_to_end(&mut received);
    assert!(received.len() <= 44, "it gets nothing but the challenge");
}

/// What a caller answers to the challenge.
fn response(stranger: &mut TcpStream, secret: Secret, purpose: Purpose, own: u32) -> Vec<u8> {
    let mut handshake = Handshake::call(secret, purpose, own, 0, [9; 32]);
    let mut challenge = vec![0; handshake.wanted()];
    stranger.read_exact(&mut challenge).expect("the challenge");
    // One for another purpose is not answered by a correct caller.
    let _ = handshake.take(&challenge);
    handshake.to_send().to_vec()
}

#[test]
fn strangers_are_turned_away() {
    let mut one = connector(0, SECRET);
    let place = SocketAddr::new(LOOPBACK, 1);
    one.set_addresses([None, Some(place), None].into_iter());
    is_turned_away(&mut one, |_| b"GET / HTTP/1.1\r\n\r\n".repeat(10));
    is_turned_away(&mut one, |_| vec![0; 68]);
    is_turned_away(&mut one, |_| vec![]);
    is_turned_away(&mut one, |stranger| {
        response(stranger, [4; 32], Purpose::Pair, 1)
    });
    // The right secret, and a rank of this node, none, the rank itself, one that does not exist.
    for rank in [2, 0, 3, u32::MAX] {
        is_turned_away(&mut one, |stranger| {
            response(stranger, SECRET, Purpose::Pair, rank)
        });
    }
    // A proof that served before.
    let mut recorded = Vec::new();
    is_turned_away(&mut one, |one| {
        recorded = response(one, SECRET, Purpose::Pair, 2);
        recorded.clone()
    });
    is_turned_away(&mut one, |_| recorded);
}

#[test]
fn a_crowd_of_strangers_is_bounded_and_a_rank_gets_through() {
    let mut pair = pair();
    let address = pair[0].address().expect("address");
    let connect = |_| TcpStream::connect(address).expect("connect");
    let mut crowd: Vec<_> = (0..INBOUND_MAX + 40).map(connect).collect();
    let begun = Instant::now();
    while pair[0].refused < 40 && begun.elapsed() < Duration::from_secs(10) {
        pump(&mut pair[0], Instant::now());
    }
    assert!(pair[0].inbound.len() <= INBOUND_MAX);
    pair[1].connect(0, Instant::now());
    let mut found = [None, None];
    while found.iter().any(Option::is_none) {
        for side in 0..2 {
            pump(&mut pair[side], Instant::now());
            if let Some(Outcome::Connected(_, fd)) = pair[side].outcome() {
                found[side] = Some(fd);
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    belong_together(found);
    // Those who never say who they are go by the clock.
    let now = Instant::now();
    for step in 0..=PROVE.as_secs() as u32 + 1 {
        pump(&mut pair[0], now + step * COUNTED);
    }
    assert!(!pair[0].is_busy());
    crowd.clear();
}

/// Goes on until the proof of rank 1 is here and was not read.
fn proves_itself(pair: &mut [Connector; 2], now: Instant) {
    let has_come = |one: &Connector| {
        let mut inbound = one.inbound.iter().flatten();
        inbound.any(InboundConnection::has_unread)
    };
    while !has_come(&pair[0]) {
        pair[0].ready(EventSource::Listener, now);
        pair[1].ready(EventSource::Outbound(0), now);
        assert!(now.elapsed() < Duration::from_secs(20), "it proves itself");
    }
}

/// A rank lets a call in, then computes for longer than the caller may take. Before it reads, it asks the clock.
#[test]
fn an_absence_is_no_silence_of_a_caller() {
    for has_answered in [true, false] {
        let mut pair = pair();
        let begun = Instant::now();
        pair[1].connect(0, begun);
        while pair[0].inbound.iter().flatten().count() == 0 {
            pair[0].ready(EventSource::Listener, begun);
            pair[1].ready(EventSource::Outbound(0), begun);
            assert!(begun.elapsed() < Duration::from_secs(20), "it calls");
        }
        if has_answered {
            proves_itself(&mut pair, begun);
        }
        pair[0].tick(begun);
        pair[0].tick(begun + 2 * PROVE);
        assert_eq!(pair[0].refused, 0, "answered: {has_answered}");
        belong_together(outcomes(&mut pair));
    }
}

/// The time of a caller is over, and what it has sent was not read: a stream of events may keep a rank from it.
#[test]
fn what_a_caller_has_sent_is_read_before_it_is_late() {
    let mut pair = pair();
    let begun = Instant::now();
    pair[1].connect(0, begun);
    proves_itself(&mut pair, begun);
    for step in 0..=PROVE.as_secs() as u32 + 1 {
        pair[0].tick(begun + step * COUNTED);
    }
    assert_eq!(pair[0].refused, 0);
    belong_together(outcomes(&mut pair));
}
