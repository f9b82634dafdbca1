// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::proof::Secret;
use crate::wireup::{Death, Event};
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};

const SECRET: Secret = [7; 32];
const TIMEOUT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// Three nodes of two ranks: 0 and 1, 2 and 3, 4 and 5.
fn nodes() -> Arc<Nodes> {
    Arc::new(Nodes::by_keys([0, 0, 1, 1, 2, 2]))
}

fn first() -> (Oob, std::net::SocketAddr, Receiver<Vec<IpAddr>>) {
    let acceptor =
        Acceptor::open(&[IpAddr::from([127, 0, 0, 1])], 0, SECRET, 8).expect("an acceptor");
    let place = acceptor.places()[0];
    let (complete, up) = channel();
    let config = Config {
        nodes: nodes(),
        own: 0,
        timeout: TIMEOUT,
        first: Start::Accepts(Box::new(acceptor), complete),
    };
    (
        Oob::new(config, Instant::now()).expect("connections"),
        place,
        up,
    )
}

fn other(own: u32, stream: TcpStream) -> Oob {
    let config = Config {
        nodes: nodes(),
        own,
        timeout: TIMEOUT,
        first: Start::Called(stream),
    };
    Oob::new(config, Instant::now()).expect("connections")
}

/// Serves all that is there.
fn serve(connections: &mut Oob, now: Instant) -> Vec<OobEvent> {
    let tokens: Vec<OobToken> = connections.polled().map(|polled| polled.token).collect();
    let mut events = Vec::new();
    for token in tokens {
        events.extend(connections.ready(token, now));
    }
    events
}

/// Oob of rank 0's host and of both others.
fn linked() -> (Oob, Oob, Oob) {
    let (mut zero, place, up) = first();
    let called = std::thread::scope(|scope| {
        let hosts = [2, 4].map(|rank| {
            scope.spawn(move || {
                connect(&[place], &[], HostPair { own: rank, peer: 0 }, SECRET, LONG)
                    .expect("a connection")
                    .stream
            })
        });
        let start = Instant::now();
        let came_to = loop {
            serve(&mut zero, Instant::now());
            if let Ok(came_to) = up.try_recv() {
                break came_to;
            }
            assert!(start.elapsed() < LONG, "no connections");
        };
        assert_eq!(came_to, [IpAddr::from([127, 0, 0, 1]); 2]);
        hosts.map(|host| host.join().expect("thread"))
    });
    let [one, two] = called;
    assert!(zero.acceptor.is_none(), "no other node is let in");
    (zero, other(1, one), other(2, two))
}

fn heard(connections: &mut Oob) -> (u32, ToHost) {
    let start = Instant::now();
    loop {
        for event in serve(connections, Instant::now()) {
            match event {
                OobEvent::Message(_, ToHost::Beat) => {}
                OobEvent::Message(node, message) => return (node, message),
                OobEvent::Lost(node, end) => panic!("{node}: {end}"),
            }
        }
        assert!(start.elapsed() < LONG, "nothing is heard");
    }
}

fn lost(connections: &mut Oob, now: Instant) -> Option<(u32, String)> {
    let events = serve(connections, now)
        .into_iter()
        .chain(connections.tick(now));
    events.into_iter().find_map(|event| match event {
        OobEvent::Lost(node, end) => Some((node, end.to_string())),
        OobEvent::Message(..) => None,
    })
}

#[test]
fn each_hears_what_is_about_others() {
    let (mut zero, mut one, mut two) = linked();
    let now = Instant::now();
    let left = |rank| ToHost::Event(Event::Left { rank });
    one.broadcast(Some(3), &left(3), now);
    assert_eq!(heard(&mut zero), (1, left(3)));
    // What it has heard itself it does not say back.
    one.broadcast(Some(4), &left(4), now);
    zero.broadcast(Some(3), &left(3), now);
    assert_eq!(heard(&mut two), (0, left(3)));
    zero.broadcast(Some(0), &left(0), now);
    assert_eq!(heard(&mut one), (0, left(0)));
    assert_eq!(heard(&mut two), (0, left(0)));
    zero.broadcast(None, &ToHost::Beat, now);
    one.broadcast(Some(2), &left(2), now);
    assert_eq!(heard(&mut zero), (1, left(2)));
}

#[test]
fn who_is_silent_is_lost_and_who_beats_is_not() {
    let (mut zero, mut one, mut two) = linked();
    let start = Instant::now();
    let mut now = start;
    // Node 1 sends heartbeats, node 2 does nothing.
    let gone = loop {
        now += TIMEOUT / 8;
        one.tick(now);
        // The bytes of a beat take a moment that the clock of this test does not know.
        std::thread::sleep(Duration::from_millis(2));
        if let Some(gone) = lost(&mut zero, now) {
            break gone;
        }
        assert!(now < start + 4 * TIMEOUT, "no node is lost");
    };
    assert_eq!(gone.0, 2);
    assert!(gone.1.contains("nothing has been heard"), "{gone:?}");
    // It finds out when it goes on.
    let start = Instant::now();
    let gone = loop {
        if let Some(gone) = lost(&mut two, Instant::now()) {
            break gone;
        }
        assert!(start.elapsed() < LONG, "nothing is lost");
    };
    assert_eq!(gone.0, 0);
}

#[test]
fn who_did_not_look_blames_nobody() {
    let (mut zero, _one, _two) = linked();
    let late = Instant::now() + 100 * TIMEOUT;
    assert_eq!(lost(&mut zero, late), None);
    assert_eq!(lost(&mut zero, late + TIMEOUT / 4), None);
}

#[test]
fn the_end_of_a_process_is_the_end_of_its_node_at_once() {
    let (mut zero, one, mut two) = linked();
    drop(one);
    let start = Instant::now();
    let gone = loop {
        if let Some(gone) = lost(&mut zero, Instant::now()) {
            break gone;
        }
        assert!(start.elapsed() < LONG, "nothing is lost");
    };
    assert_eq!(gone.0, 1);
    drop(zero);
    while lost(&mut two, Instant::now()).is_none() {
        assert!(start.elapsed() < LONG, "nothing is lost");
    }
}

#[test]
fn a_node_sends_farewell_before_it_goes() {
    let (mut zero, mut one, _two) = linked();
    let now = Instant::now();
    let death = Death::Signal(9);
    let died = ToHost::Event(Event::Died { rank: 3, death });
    one.broadcast(Some(3), &died, now);
    assert!(!one.leave(now), "rank 0's host does not know yet");
    let start = Instant::now();
    let mut messages = Vec::new();
    while !messages.contains(&ToHost::Farewell) {
        for event in serve(&mut zero, Instant::now()) {
            match event {
                OobEvent::Message(1, message) => messages.push(message),
                // The end of the connection may be there already.
                OobEvent::Lost(1, Loss::Closed) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(start.elapsed() < LONG, "no farewell");
    }
    assert_eq!(messages, [died, ToHost::Farewell]);
    zero.remove(1);
    let start = Instant::now();
    while lost(&mut one, now).is_none() {
        assert!(start.elapsed() < LONG, "no side closes");
    }
    assert!(one.leave(now) && !zero.leave(now));
    zero.remove(2);
    assert!(zero.leave(now));
}

/// Bytes lie unread at a host whose process ends: all that it has sent arrives, and its end is no reset.
#[test]
fn what_a_host_has_sent_arrives_though_it_leaves_bytes_unread() {
    let (mut zero, mut one, _two) = linked();
    let now = Instant::now();
    for _ in 0..100 {
        zero.broadcast(None, &ToHost::Beat, now);
    }
    let left = ToHost::Event(Event::Left { rank: 3 });
    one.broadcast(Some(3), &left, now);
    drop(one);
    let (mut messages, start) = (Vec::new(), Instant::now());
    let end = 'end: loop {
        for event in serve(&mut zero, Instant::now()) {
            match event {
                OobEvent::Message(1, message) => messages.push(message),
                OobEvent::Lost(1, end) => break 'end end,
                other => panic!("{other:?}"),
            }
        }
        assert!(start.elapsed() < LONG, "no end");
    };
    assert!(matches!(end, Loss::Closed), "{end}");
    assert_eq!(messages, [left]);
}

/// A host can send nothing to a node that has ended; what that node has sent before counts all the same.
#[test]
fn what_was_sent_before_the_end_arrives_when_nothing_can_be_sent() {
    let (mut zero, mut one, _two) = linked();
    let now = Instant::now();
    let left = ToHost::Event(Event::Left { rank: 3 });
    one.broadcast(Some(3), &left, now);
    assert!(!one.leave(now), "rank 0's host does not know yet");
    drop(one);
    let start = Instant::now();
    while zero.broken.is_empty() {
        zero.broadcast(None, &ToHost::Beat, Instant::now());
        assert!(start.elapsed() < LONG, "everything can be sent");
    }
    let events = zero.tick(Instant::now());
    let messages: Vec<&ToHost> = events
        .iter()
        .filter_map(|event| match event {
            OobEvent::Message(1, message) => Some(message),
            _ => None,
        })
        .collect();
    assert_eq!(messages, [&left, &ToHost::Farewell], "{events:?}");
    assert!(
        matches!(events.last(), Some(OobEvent::Lost(1, _))),
        "{events:?}"
    );
}

#[test]
fn a_host_comes_once_and_nobody_else_does() {
    let (mut zero, place, _up) = first();
    let mut kept = Vec::new();
    for (rank, is_let_in) in [(2, true), (2, false), (3, false), (0, false), (99, false)] {
        let mut called = std::thread::scope(|scope| {
            let call = || {
                connect(&[place], &[], HostPair { own: rank, peer: 0 }, SECRET, LONG)
                    .expect("proven")
                    .stream
            };
            let host = scope.spawn(call);
            while !host.is_finished() {
                serve(&mut zero, Instant::now());
            }
            host.join().expect("thread")
        });
        if is_let_in {
            kept.push(called);
        } else {
            assert!(!matches!(called.read(&mut [0; 1]), Ok(1..)), "rank {rank}");
        }
        assert_eq!(zero.connections.len(), 1, "rank {rank}");
    }
    // Nonsense after the proof ends the connection as well.
    let nonsense = b"nonsense, and more than a length";
    kept[0].write_all(nonsense).expect("write");
    let start = Instant::now();
    let gone = loop {
        if let Some(gone) = lost(&mut zero, Instant::now()) {
            break gone;
        }
        assert!(start.elapsed() < LONG, "nothing is lost");
    };
    assert!(gone.1.contains("what is no message"), "{gone:?}");
}
