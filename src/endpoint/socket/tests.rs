// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::endpoint::RecordRoom;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use onecopy_btl::lanes::{Lanes, Offer};
use onecopy_btl::layers::verbs::settings;
use onecopy_obs::Knobs;
use onecopy_shm::copy::Kernel;
use onecopy_shm::loan::LoanError;
use onecopy_verbs::adapter::{Adapter, Settings};
use onecopy_verbs::model::Fabric;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The two ends of a connection.
pub(super) fn pair() -> [Socket; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
    let place = listener.local_addr().expect("address");
    let one = TcpStream::connect(place).expect("connect");
    let (other, _) = listener.accept().expect("accept");
    [one, other].map(|stream| {
        stream.set_nonblocking(true).expect("nonblocking");
        let mut socket = Socket::new(place, Knobs::default().stream());
        let set = Arc::new(Set::new().expect("epoll"));
        socket.attach(stream.into(), &set, 0).expect("attach");
        socket
    })
}

fn device(fabric: &Fabric, side: usize) -> SharedLanes {
    let settings = Settings {
        device: Some(format!("m{side}")),
        ..settings(&Knobs::default())
    };
    let adapter = Adapter::open(fabric, settings).expect("a device");
    let lanes: Box<dyn Lanes> = Box::new(adapter);
    SharedLanes::new(lanes)
}

/// The same where a lane has taken over both ways.
fn pair_with_lane() -> [Socket; 2] {
    let fabric = Fabric::new(&["m0", "m1"]);
    let mut ends = pair();
    for (side, end) in ends.iter_mut().enumerate() {
        end.attach_lanes(&device(&fabric, side), 1 - side as u32);
    }
    let begun = Instant::now();
    let by_lane = |end: &Socket| {
        let lane_state = end.lane_state.as_ref().expect("a device");
        lane_state.outgoing.carrier == Carrier::Lane && lane_state.incoming.by_lane
    };
    while !ends.iter().all(by_lane) {
        for end in &mut ends {
            assert_eq!(end.peek().expect("no fault"), None);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no lane");
        std::thread::yield_now();
    }
    ends
}

/// Shows so many bytes of its own, then says that they were taken away.
struct Ends(usize);

impl Pack for Ends {
    fn show(&self, mut to: impl FnMut(usize, &[u8])) -> Result<(), LoanError> {
        if self.0 > 0 {
            to(0, &vec![7; self.0]);
        }
        Err(LoanError::Ended)
    }
}

fn put(socket: &mut Socket, source: &impl Pack) -> Put {
    let naming = Naming {
        kind: 3,
        meta: 5,
        begin: 0,
        len: 200,
        total: 200,
        kernel: Kernel::Memcpy,
        share: 1,
    };
    socket.put_chunk(naming, |_| [1u8; 8], source)
}

/// What comes next at an end.
fn next(socket: &mut Socket) -> Option<(Record, Option<Part>)> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        if let Some(record) = socket.peek().expect("no fault") {
            return Some((record, socket.part()));
        }
        if socket.closing.has_ended() {
            return None;
        }
        std::thread::yield_now();
    }
    panic!("nothing comes");
}

/// A stream that was silent for long is read by one poll in 33. The hub knows better.
#[test]
fn what_the_hub_finds_ready_is_read_by_the_next_poll() {
    let [mut one, mut other] = pair();
    for round in 0..4 {
        // After so many each 33rd poll reads.
        assert!((0..100_000 + round).all(|_| other.is_empty()));
        assert_eq!(put(&mut one, &vec![3u8; 200]), Put::Sent);
        let stream = other.stream.as_ref().expect("a connection");
        let mut set = [PollFd::new(stream.fd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut set, PollTimeout::from(20_000u16)), Ok(1));
        other.is_found_ready();
        assert!(!other.is_empty(), "round {round}");
        let (record, _) = next(&mut other).expect("a record");
        let mut got = [0; 200];
        other
            .read_chunk(ChunkName::Sent(ChunkIndex(0)), 0, &mut got, Kernel::Memcpy)
            .expect("a chunk");
        other.pass(record, None);
    }
}

#[test]
fn what_is_taken_away_before_it_is_shown_leaves_no_trace() {
    for [mut one, mut other] in [pair(), pair_with_lane()] {
        assert_eq!(put(&mut one, &Ends(0)), Put::Withdrawn);
        assert_eq!(put(&mut one, &vec![3u8; 200]), Put::Sent);
        let (record, part) = next(&mut other).expect("a record");
        assert_eq!((record.kind, record.meta), (3, 5));
        let part = part.expect("a chunk");
        assert_eq!((part.offset, part.whole), (0, 200));
        let mut got = [0; 1];
        other
            .read_chunk(ChunkName::Sent(ChunkIndex(0)), 0, &mut got, Kernel::Memcpy)
            .expect("a byte");
        assert_eq!(got, [3]);
    }
}

/// A frame that cannot be finished is never taken for a whole one.
#[test]
fn what_is_taken_away_within_its_frame_cuts_the_stream() {
    for [mut one, mut other] in [pair(), pair_with_lane()] {
        put(&mut one, &Ends(120));
        let mut passed = 0;
        while let Some((record, part)) = next(&mut other) {
            let part = part.expect("a chunk");
            assert_eq!(part.whole, 200);
            passed += part.len;
            other.pass(record, None);
        }
        assert!(passed <= 120, "{passed} bytes of 120");
        assert!(other.ended_without_farewell());
    }
}

/// A peer that offers lanes without end, and never reads what it is answered.
#[test]
fn offers_of_lanes_without_a_pause_are_a_fault() {
    let fabric = Fabric::new(&["m0", "m1"]);
    let (_, offer) = device(&fabric, 0).lock().make(1).expect("a lane");
    for has_device in [false, true] {
        let [mut rogue, mut other] = pair();
        if has_device {
            other.attach_lanes(&device(&fabric, 1), 0);
        }
        let mut fault = None;
        for _ in 0..100 {
            let out = &mut rogue.output;
            out.push_with(FrameKind::Offer, &offer.to_bytes());
            out.push(FrameKind::End, 0);
            rogue.push_out();
            fault = fault.or(other.peek().err());
        }
        let fault = fault.expect("a hundred offers were accepted");
        assert!(
            format!("{fault:?}").contains("without a pause"),
            "{fault:?}"
        );
    }
}

/// The peer has answered an offer that this side has ended meanwhile. Its next offer is read at the same time.
#[test]
fn an_offer_that_crosses_an_end_is_no_fault() {
    let fabric = Fabric::new(&["m0", "m1"]);
    let [mut peer, mut other] = pair();
    other.attach_lanes(&device(&fabric, 1), 0);
    let mut lanes = device(&fabric, 0).lock().make(1);
    let (_, offer) = lanes.as_mut().expect("a lane");
    let lane_state = other.lane_state.as_mut().expect("a device");
    lane_state.end(&mut other.output);
    let out = &mut peer.output;
    out.push_with(FrameKind::Offer, &offer.to_bytes());
    out.push(FrameKind::End, 0);
    out.push_with(FrameKind::Offer, &offer.to_bytes());
    peer.push_out();
    let begun = Instant::now();
    while other
        .lane_state
        .as_ref()
        .is_none_or(|state| state.handshake.sent_end || state.lane.is_none())
    {
        assert_eq!(other.peek().expect("no fault"), None);
        assert!(begun.elapsed() < Duration::from_secs(20), "no second lane");
    }
}

/// A rank that has given the peer up, or can no longer write, has nothing to say about a lane.
#[test]
fn an_offer_that_nothing_can_answer_is_ignored() {
    let fabric = Fabric::new(&["m0", "m1"]);
    let (_, offer) = device(&fabric, 0).lock().make(1).expect("a lane");
    for has_device in [false, true] {
        for gives_up in [false, true] {
            let [mut peer, mut other] = pair();
            let mut expected = Vec::new();
            if gives_up {
                other.give_up();
                expected.extend_from_slice(&frame::Head::control(FrameKind::GivenUp, 0).encode());
            } else {
                other.closing.stop_sending();
            }
            if has_device {
                other.attach_lanes(&device(&fabric, 1), 0);
            }
            let out = &mut peer.output;
            out.push_with(FrameKind::Offer, &offer.to_bytes());
            out.push(FrameKind::End, 0);
            out.push(FrameKind::Farewell, 0);
            peer.push_out();
            hear_farewell(&mut other);
            let heard = heard_by(&mut peer, &mut other);
            assert_eq!(heard, expected, "{has_device} {gives_up}");
        }
    }
}

/// Reads until the peer's farewell has come, before which there is nothing to take.
fn hear_farewell(socket: &mut Socket) {
    let begun = Instant::now();
    while !socket.closing.has_heard_farewell() {
        assert_eq!(socket.peek().expect("no fault"), None);
        assert!(begun.elapsed() < Duration::from_secs(20), "no farewell");
    }
}

/// All that a peer hears until this rank ends its direction.
fn heard_by(peer: &mut Socket, speaker: &mut Socket) -> Vec<u8> {
    speaker.push_out();
    speaker.end_writing();
    let mut heard = Vec::new();
    let stream = peer.stream.take().expect("a connection");
    let mut stream = TcpStream::from(stream.fd.try_clone().expect("a copy"));
    stream.set_nonblocking(false).expect("blocking");
    stream.read_to_end(&mut heard).expect("all that was said");
    heard
}

/// The peer refuses a lane. This rank sends nothing more, and has dropped what waited.
#[test]
fn the_end_of_a_lane_is_not_answered_by_who_sends_nothing_more() {
    let fabric = Fabric::new(&["m0", "m1"]);
    let [mut peer, mut other] = pair();
    other.attach_lanes(&device(&fabric, 1), 0);
    other.closing.stop_sending();
    let out = &mut peer.output;
    out.push(FrameKind::End, 0);
    out.push(FrameKind::Farewell, 0);
    peer.push_out();
    hear_farewell(&mut other);
    let heard = heard_by(&mut peer, &mut other);
    assert_eq!(heard.len(), HEAD + Offer::BYTES, "more than the offer");
}

/// What waits for a peer that is gone goes nowhere: no rank that leaves waits for that until the deadline.
#[test]
fn who_gives_up_a_peer_that_is_gone_waits_for_nothing() {
    for gives_up_first in [false, true] {
        let [mut one, other] = pair_with_lane();
        let lane_state = one.lane_state.as_mut().expect("a device");
        lane_state.end(&mut one.output);
        assert_eq!(lane_state.outgoing.carrier, Carrier::AwaitingEnd);
        if gives_up_first {
            // More than the kernel keeps for a peer that reads nothing.
            lane_state.outgoing.control.add(&vec![0; 32 << 20]);
            one.give_up();
            assert!(!one.poll_give_up(), "it waits behind the rest");
            drop(other);
            let begun = Instant::now();
            while one.has_output() {
                one.push_out();
                assert!(begun.elapsed() < Duration::from_secs(20), "it is kept");
            }
        } else {
            drop(other);
            let begun = Instant::now();
            while !one.closing.has_ended() {
                let _ = one.peek();
                assert!(begun.elapsed() < Duration::from_secs(20), "no end");
            }
            one.give_up();
            assert!(!one.has_output() && one.closing.give_up_deadline().is_none());
        }
        let begun = Instant::now();
        while !one.poll_give_up() {
            std::thread::yield_now();
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{gives_up_first}");
    }
}

/// What is given to the other end by then.
fn credit_seen(other: &mut Socket, expected: u64) -> u64 {
    let limit = Instant::now() + Duration::from_secs(20);
    while other.credit_back() != expected && Instant::now() < limit {
        assert_eq!(other.peek().expect("no fault"), None);
    }
    other.credit_back()
}

/// Else it would wait for a record that the peer, which has no credit, may be waited for.
#[test]
fn credit_of_a_stream_that_is_not_polled_goes_out_at_once() {
    let [mut one, mut other] = pair();
    one.set_polling(true);
    one.give_credit(100);
    assert!(one.credit_due > 0, "it waits for a record");
    one.set_polling(false);
    assert_eq!(credit_seen(&mut other, 100), 100);
    one.give_credit(200);
    assert_eq!(credit_seen(&mut other, 200), 200);
}

/// Two records come with one read, and a call takes the first one only. No descriptor tells of the second one.
#[test]
fn a_stream_that_is_read_and_not_polled_is_noted() {
    for [mut one, mut other] in [pair(), pair_with_lane()] {
        noted(&other);
        for polled in [true, false] {
            other.set_polling(polled);
            for meta in [1, 2] {
                one.claim(0).expect("room").publish(1, 0, meta);
            }
            assert!(one.has_output() && !other.has_unread());
            one.push_out();
            let (first, _) = next(&mut other).expect("a record");
            assert_eq!(first.meta, 1);
            other.pass(first, None);
            assert_eq!(noted(&other), if polled { vec![] } else { vec![0] });
            let (second, _) = next(&mut other).expect("a record");
            assert_eq!(second.meta, 2);
            other.pass(second, None);
        }
    }
}

/// As if the rank had just looked at the hub.
fn noted(socket: &Socket) -> Vec<u32> {
    socket.stream.as_ref().expect("a connection").take_noted()
}

#[test]
fn what_is_read_beside_a_lane_is_noted() {
    let [one, mut other] = pair_with_lane();
    noted(&other);
    let word = frame::Head::control(FrameKind::GivenUp, 0).encode();
    let stream = &one.stream.as_ref().expect("a connection").fd;
    assert_eq!(nix::unistd::write(stream, &word), Ok(word.len()));
    let limit = Instant::now() + Duration::from_secs(20);
    while !other.has_given_up() {
        assert!(Instant::now() < limit, "it is not read");
        other.set_polling(false);
        assert!(other.is_empty());
    }
    assert_eq!(noted(&other), [0]);
}
