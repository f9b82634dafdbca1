// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes over the model: streams that arrive whole, windows, pools, and what is left of a stream when a lane fails.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use onecopy_verbs::adapter::{Adapter, Lanes, ReadState, RemoteAddress, Settings};
use onecopy_verbs::matching::OfferedRail;
use onecopy_verbs::model::{Fabric, usual_settings};
use onecopy_verbs::{Offer, Status};

const SLOT: usize = 256;
/// Bytes of the stream in a message.
const PAYLOAD: usize = SLOT - 16;

fn settings() -> Settings {
    Settings {
        slot: SLOT,
        ..usual_settings()
    }
}

fn open(fabric: &Fabric, name: &str, settings: &Settings) -> Adapter<Fabric> {
    let settings = Settings {
        device: Some(name.to_owned()),
        ..settings.clone()
    };
    Adapter::open(fabric, settings).expect("a device")
}

/// One end of a lane.
struct Side {
    adapter: Adapter<Fabric>,
    lane: u64,
    number: u32,
}

/// Two ranks with a lane between them.
fn pair(fabric: &Fabric, settings: &Settings) -> [Side; 2] {
    let mut a = open(fabric, "m0", settings);
    let mut b = open(fabric, "m1", settings);
    let (to_b, to_a) = join(&mut a, &mut b);
    [
        Side {
            adapter: a,
            lane: to_b.0,
            number: to_b.1,
        },
        Side {
            adapter: b,
            lane: to_a.0,
            number: to_a.1,
        },
    ]
}

fn join(a: &mut Adapter<Fabric>, b: &mut Adapter<Fabric>) -> ((u64, u32), (u64, u32)) {
    let (to_b, offer) = a.make(1).expect("a lane");
    let (to_a, other) = b.make(0).expect("a lane");
    let received = |offer: &Offer| Offer::from_bytes(&offer.to_bytes()).expect("as it was sent");
    a.connect(to_b, &received(&other));
    b.connect(to_a, &received(&offer));
    let end = Instant::now() + Duration::from_secs(20);
    while !(a.is_connected(to_b) && b.is_connected(to_a)) {
        a.poll();
        b.poll();
        assert!(Instant::now() < end, "connected");
        std::thread::yield_now();
    }
    (
        (to_b, offer.rail.pair.number),
        (to_a, other.rail.pair.number),
    )
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 7 + index / 251 + seed * 13) as u8)
        .collect()
}

impl Side {
    fn send(&mut self, bytes: &[u8]) -> usize {
        let written = self.adapter.write(self.lane, bytes);
        self.adapter.push(self.lane);
        written
    }

    fn receive(&mut self, most: usize) -> Vec<u8> {
        self.adapter.poll();
        let mut out = vec![0; most.min(self.adapter.unread(self.lane))];
        let count = self.adapter.read(self.lane, &mut out);
        assert_eq!(count, out.len());
        out
    }

    fn works(&self) {
        assert_eq!(self.adapter.failure(self.lane), None);
    }
}

#[test]
fn streams_arrive_whole_both_ways_at_once() {
    // With requests that carry nothing themselves, too.
    for (window, inline) in [(4, 64), (5, 0), (16, 64), (16, 0)] {
        let fabric = Fabric::default();
        let settings = Settings {
            window,
            inline,
            ..settings()
        };
        let mut sides = pair(&fabric, &settings);
        const LEN: usize = 60_000;
        let streams = [bytes(LEN, 1), bytes(LEN, 2)];
        let (mut sent, mut got) = ([0; 2], [Vec::new(), Vec::new()]);
        let mut round = 0;
        while got.iter().any(|got| got.len() < LEN) {
            round += 1;
            for index in 0..2 {
                let left = &streams[index][sent[index]..];
                // Short ones that the request carries, long ones that are cut.
                let piece = [1, 40, 300, 5000][(round + index) % 4].min(left.len());
                sent[index] += sides[index].send(&left[..piece]);
                let most = [7, 10_000, 0, 500][(round / 3 + index) % 4];
                let came = sides[index].receive(most);
                got[index].extend_from_slice(&came);
                sides[index].adapter.acknowledge(sides[index].lane);
            }
            assert!(round < 100_000, "{sent:?} of {LEN} sent with {window}");
        }
        for index in 0..2 {
            assert!(got[index] == streams[1 - index]);
            sides[index].works();
        }
        // What was read is known to be, once nothing is under way.
        for _ in 0..4 {
            for side in &mut sides {
                side.adapter.poll();
                side.adapter.acknowledge(side.lane);
            }
        }
        assert!(sides.iter().all(|side| side.adapter.is_taken(side.lane)));
    }
}

#[test]
fn a_sender_stops_at_the_window_and_goes_on_when_something_was_read() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair(&fabric, &settings());
    let stream = bytes(100_000, 3);
    let mut sent = 0;
    loop {
        let more = a.send(&stream[sent..]);
        sent += more;
        b.adapter.poll();
        if more == 0 {
            break;
        }
    }
    // A new lane permits four, the last of them for a control message.
    assert_eq!(sent, 3 * PAYLOAD);
    assert!(!a.adapter.has_room(a.lane, 1));
    // Time passes, and nobody was without room.
    fabric.advance(Duration::from_secs(10));
    a.adapter.poll();
    a.works();
    let mut got = b.receive(sent);
    while got.len() < stream.len() {
        a.adapter.poll();
        sent += a.send(&stream[sent..]);
        got.extend(b.receive(usize::MAX));
    }
    assert!(got == stream);
}

/// Two ranks with full windows read, after these have shrunk. The last message that each may send is kept for a control
/// message that permits more.
#[test]
fn no_control_message_that_permits_nothing_uses_up_the_last_permission() {
    let fabric = Fabric::default();
    let mut sides = pair(&fabric, &settings());
    for round in 0..24 {
        for side in sides.iter_mut().filter(|_| round < 20) {
            side.send(&bytes(4 * PAYLOAD, 0));
        }
        for side in &mut sides {
            side.receive(usize::MAX);
            side.adapter.acknowledge(side.lane);
        }
    }
    for _ in 0..3 {
        for side in &mut sides {
            side.send(&bytes(100 * PAYLOAD, 0));
        }
        for side in &mut sides {
            side.adapter.poll();
        }
    }
    for side in &mut sides {
        assert!(side.adapter.unread(side.lane) >= 8 * PAYLOAD);
    }
    for side in &mut sides {
        side.adapter.poll();
        (0..8).for_each(|_| side.adapter.age(Instant::now()));
    }
    // Both speak before either hears.
    for most in [PAYLOAD, usize::MAX] {
        for side in &mut sides {
            let mut out = vec![0; most.min(side.adapter.unread(side.lane))];
            side.adapter.read(side.lane, &mut out);
            side.adapter.acknowledge(side.lane);
        }
        for side in &mut sides {
            side.adapter.poll();
        }
    }
    for _ in 0..10 {
        for side in &mut sides {
            side.receive(usize::MAX);
            side.adapter.acknowledge(side.lane);
        }
    }
    for side in &mut sides {
        assert!(side.adapter.has_room(side.lane, 1), "{:?}", side.lane);
        side.works();
    }
}

/// The window has grown to many messages, some of which the peer has, when the lane fails.
#[test]
fn what_a_failed_lane_had_under_way_is_left_and_nothing_else() {
    for status in [Status::OWN_MEMORY, Status::PEER_FAILED, Status::GENERAL] {
        for (before, lost) in [(0, false), (100, false), (3000, false), (3000, true)] {
            let fabric = Fabric::default();
            let [mut a, mut b] = pair(&fabric, &settings());
            let stream = bytes(20_000, 4);
            let (mut sent, mut got) = (0, Vec::new());
            while got.len() < before {
                a.adapter.poll();
                sent += a.send(&stream[sent..(sent + 700).min(stream.len())]);
                got.extend(b.receive(usize::MAX));
            }
            if lost {
                // The bytes arrive, and the sender gets an error all the same.
                fabric.lose_answers(a.number);
            } else {
                fabric.fail_next(a.number, status);
            }
            a.adapter.poll();
            sent += a.send(&stream[sent..sent + 50]);
            sent += a.send(&stream[sent..sent + 500]);
            fabric.advance(Duration::from_secs(2));
            a.adapter.poll();
            let failed = a.adapter.failure(a.lane).expect("it has failed");
            assert!(failed.contains("status"), "{failed}");
            // More is written before its sender looks.
            assert_eq!(a.send(&stream[sent..sent + 10]), 0);
            // As the endpoints do it.
            assert_eq!(a.adapter.stop(a.lane), 0);
            let received = b.adapter.stop(b.lane);
            got.extend(b.receive(usize::MAX));
            assert_eq!(received as usize, got.len());
            let left = a.adapter.left(a.lane, received).expect("it is kept");
            assert_eq!(received as usize + left.len(), sent, "{before}, {lost}");
            got.extend(left);
            assert!(got == stream[..sent]);
            assert_eq!(b.adapter.left(b.lane, 0).expect("nothing"), []);
            for (mut side, beyond) in [(a, sent as u64 + 1), (b, 1)] {
                assert_eq!(side.adapter.left(side.lane, beyond), None, "a lie");
                side.adapter.close(side.lane);
                assert!(side.adapter.has_failed(side.lane));
            }
            assert_eq!(fabric.pairs(), 0);
        }
    }
}

#[test]
fn what_is_under_way_when_a_host_dies_is_left() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair(&fabric, &settings());
    let stream = bytes(700, 5);
    assert_eq!(a.send(&stream[..400]), 400);
    assert_eq!(b.receive(1000).len(), 400);
    a.adapter.poll();
    fabric.kill("m1");
    assert_eq!(a.send(&stream[400..]), 300);
    // The device still waits for an answer.
    assert_eq!(a.adapter.stop(a.lane), 0);
    assert!(a.adapter.left(a.lane, 400).expect("kept") == stream[400..]);
    drop((a, b));
    assert_eq!((fabric.pairs(), fabric.registered()), (0, 0));
}

/// A device that tells nothing: neither that a message has come, nor that it has not.
#[test]
fn a_silent_device_fails_its_lane_in_time() {
    let fabric = Fabric::default();
    let [mut a, _b] = pair(&fabric, &settings());
    let now = Instant::now();
    a.adapter.age(now);
    fabric.kill("m1");
    assert_eq!(a.send(&bytes(200, 1)), 200);
    // Of the model's time nothing passes.
    a.adapter.age(now);
    a.adapter.age(now + Duration::from_secs(2));
    a.works();
    a.adapter.age(now + Duration::from_secs(4));
    let why = a.adapter.failure(a.lane).expect("it has failed");
    assert!(why.contains("tells nothing"), "{why}");
}

/// The device reports at once, and the rank computes for a minute before it looks.
#[test]
fn what_a_device_reported_to_an_absent_rank_counts() {
    let fabric = Fabric::default();
    let [mut a, _b] = pair(&fabric, &settings());
    let now = Instant::now();
    assert_eq!(a.send(&bytes(200, 1)), 200);
    a.adapter.age(now);
    a.adapter.age(now + Duration::from_secs(60));
    a.works();
}

#[test]
fn a_peer_that_reads_nothing_keeps_no_other_one_waiting() {
    let fabric = Fabric::new(&["m0", "m1", "m2"]);
    let settings = Settings {
        sends: 8,
        window: 64,
        receives: 128,
        ..settings()
    };
    let mut a = open(&fabric, "m0", &settings);
    let mut lazy = open(&fabric, "m1", &settings);
    let mut busy = open(&fabric, "m2", &settings);
    let ((to_lazy, _), (from, _)) = join(&mut a, &mut lazy);
    let stream = bytes(30_000, 6);
    let mut sent = 0;
    // Its window grows, then it reads no more.
    for _ in 0..40 {
        a.poll();
        sent += a.write(to_lazy, &stream[sent..]);
        a.push(to_lazy);
        lazy.poll();
        let mut out = vec![0; lazy.unread(from).min(2000)];
        lazy.read(from, &mut out);
    }
    while a.write(to_lazy, &stream[sent..]) > 0 {
        a.push(to_lazy);
        a.poll();
        lazy.poll();
        sent += 1;
    }
    let ((to_busy, _), (from, _)) = join(&mut a, &mut busy);
    let stream = bytes(30_000, 7);
    let (mut sent, mut got) = (0, Vec::new());
    for _ in 0..2000 {
        a.poll();
        sent += a.write(to_busy, &stream[sent..]);
        a.push(to_busy);
        busy.poll();
        let mut out = vec![0; busy.unread(from)];
        busy.read(from, &mut out);
        got.extend(out);
    }
    assert!(got == stream, "{} of {}", got.len(), stream.len());
}

#[test]
fn receives_are_promised_once_and_their_number_grows_to_its_bound() {
    let fabric = Fabric::default();
    let settings = Settings {
        receives: 8,
        receives_max: 20,
        ..settings()
    };
    let mut a = open(&fabric, "m0", &settings);
    let pinned = a.figures().pinned;
    let lanes: Vec<u64> = (0..5).map(|_| a.make(1).expect("room").0).collect();
    // Parts are whole pages.
    assert_eq!(a.figures().receives, 32);
    assert!(a.figures().pinned > pinned);
    let mut more = Vec::new();
    let why = loop {
        match a.make(1) {
            Ok((lane, _)) => more.push(lane),
            Err(why) => break why,
        }
        assert!(more.len() < 20);
    };
    assert!(why.contains("ONECOPY_VERBS_RECEIVES_MAX"), "{why}");
    for lane in lanes.into_iter().chain(more) {
        a.close(lane);
    }
    a.make(1).expect("room again");
}

#[test]
fn little_lockable_memory_makes_small_pools_and_none_is_an_error() {
    let fabric = Fabric::default();
    let wanted = Settings {
        slot: 4096,
        ..settings()
    };
    fabric.limit_memory(100 << 10);
    let mut a = open(&fabric, "m0", &wanted);
    let figures = a.figures();
    assert!(figures.pinned <= 100 << 10, "{figures:?}");
    while a.make(1).is_ok() {}
    assert!(a.figures().pinned <= 100 << 10);
    drop(a);
    assert_eq!(fabric.registered(), 0);
    fabric.limit_memory(10 << 10);
    let error = Adapter::open(&fabric, wanted).expect_err("no memory");
    assert!(error.is_exhaustion(), "{error}");
    assert!(error.to_string().contains("ulimit -l"), "{error}");
}

#[test]
fn a_port_without_a_link_ends_all_lanes_and_one_with_a_link_makes_new_ones() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair(&fabric, &settings());
    assert_eq!(a.send(b"up"), 2);
    assert_eq!(b.receive(9), b"up");
    fabric.set_link("m0", false);
    a.adapter.hear_device();
    let why = a.adapter.failure(a.lane).expect("it has failed");
    assert!(why.contains("rdma link"), "{why}");
    assert_eq!(a.adapter.next_changed(), Some(1));
    a.adapter.close(a.lane);
    b.adapter.close(b.lane);
    let why = a.adapter.make(1).expect_err("no link");
    assert!(why.contains("no link"), "{why}");
    fabric.set_link("m0", true);
    a.adapter.hear_device();
    let ((to_b, _), (to_a, _)) = join(&mut a.adapter, &mut b.adapter);
    (a.lane, b.lane) = (to_b, to_a);
    assert_eq!(a.send(b"again"), 5);
    assert_eq!(b.receive(9), b"again");
}

#[test]
fn a_queue_that_failed_once_ends_all_lanes_and_no_later_ones() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair(&fabric, &settings());
    assert_eq!(a.send(b"under way"), 9);
    fabric.fail_poll("m0");
    a.adapter.poll();
    let why = a.adapter.failure(a.lane).expect("it has failed");
    assert!(why.contains("ibv_poll_cq"), "{why}");
    a.adapter.close(a.lane);
    b.adapter.close(b.lane);
    let ((to_b, _), (to_a, _)) = join(&mut a.adapter, &mut b.adapter);
    (a.lane, b.lane) = (to_b, to_a);
    assert_eq!(a.send(b"again"), 5);
    assert_eq!(b.receive(9), b"again");
}

/// Receives whose completions were lost are posted no more. No later lane may count on them.
#[test]
fn receives_that_a_failed_queue_lost_are_posted_again() {
    let fabric = Fabric::default();
    // As many as one part has, or more with growth.
    for (receives_max, window) in [(32, 4), (128, 16)] {
        let settings = Settings {
            receives_max,
            window,
            ..settings()
        };
        let [mut a, mut b] = pair(&fabric, &settings);
        let pairs = fabric.pairs();
        for round in 0..64 {
            let stream = bytes(8000, round);
            let (mut sent, mut got) = (0, Vec::new());
            let end = Instant::now() + Duration::from_secs(20);
            while got.len() < stream.len() {
                a.adapter.poll();
                sent += a.send(&stream[sent..]);
                got.extend(b.receive(usize::MAX));
                a.works();
                assert!(
                    Instant::now() < end,
                    "round {round}: {} bytes came",
                    got.len()
                );
            }
            assert!(got == stream);
            while a.send(&[7; PAYLOAD]) > 0 {}
            fabric.fail_poll("m1");
            b.adapter.poll();
            assert!(b.adapter.has_failed(b.lane));
            a.adapter.close(a.lane);
            b.adapter.close(b.lane);
            let ((to_b, _), (to_a, _)) = join(&mut a.adapter, &mut b.adapter);
            (a.lane, b.lane) = (to_b, to_a);
        }
        assert_eq!(fabric.pairs(), pairs);
        assert!(b.adapter.figures().receives <= receives_max as u64);
        drop((a, b));
        assert_eq!((fabric.pairs(), fabric.registered()), (0, 0));
    }
}

/// Receives are ended after all their pairs, and what has come in them can be read to its end.
#[test]
fn a_lane_that_is_not_over_keeps_its_receives() {
    let fabric = Fabric::new(&["m0", "m1", "m2"]);
    let mut b = open(&fabric, "m1", &settings());
    let [mut a, mut c] = ["m0", "m2"].map(|name| open(&fabric, name, &settings()));
    let ((a_to_b, _), (b_to_a, _)) = join(&mut a, &mut b);
    let ((c_to_b, _), (b_to_c, _)) = join(&mut c, &mut b);
    assert_eq!(c.write(c_to_b, b"came before"), 11);
    assert!(c.push(c_to_b));
    b.poll();
    assert_eq!(b.unread(b_to_c), 11);
    fabric.fail_poll("m1");
    b.poll();
    b.close(b_to_a);
    a.close(a_to_b);
    let why = b.make(0).expect_err("a pair is left");
    assert!(why.contains("lanes that failed"), "{why}");
    assert_eq!(b.stop(b_to_c), 11);
    let ((a_to_b, _), (b_to_a, _)) = join(&mut a, &mut b);
    let mut out = [0; 11];
    assert_eq!(b.read(b_to_c, &mut out), 11);
    assert_eq!(&out, b"came before");
    b.close(b_to_c);
    assert_eq!(a.write(a_to_b, b"new"), 3);
    assert!(a.push(a_to_b));
    b.poll();
    assert_eq!(b.unread(b_to_a), 3);
}

#[test]
fn a_queue_that_fails_brings_no_port_back() {
    for fails_first in [false, true] {
        let fabric = Fabric::default();
        let mut a = open(&fabric, "m0", &settings());
        if fails_first {
            fabric.fail_poll("m0");
            a.poll();
        }
        fabric.set_link("m0", false);
        a.hear_device();
        fabric.set_link("m0", true);
        if !fails_first {
            fabric.fail_poll("m0");
            a.poll();
        }
        let why = a.make(1).expect_err("not told yet");
        assert!(why.contains("no link"), "{why}");
        a.hear_device();
        a.make(1).expect("a lane");
    }
}

#[test]
fn a_pool_that_has_grown_shrinks_again() {
    let fabric = Fabric::default();
    let settings = Settings {
        receives: 16,
        receives_max: 256,
        sends: 64,
        window: 64,
        ..settings()
    };
    let [mut a, mut b] = pair(&fabric, &settings);
    let first = b.adapter.figures().receives;
    let stream = bytes(400_000, 8);
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < stream.len() {
        a.adapter.poll();
        sent += a.send(&stream[sent..]);
        got.extend(b.receive(usize::MAX));
    }
    assert!(got == stream);
    assert!(b.adapter.figures().receives > first);
    // Little is sent from here on.
    for _ in 0..1000 {
        a.adapter.poll();
        a.send(b"x");
        assert_eq!(b.receive(9), b"x");
        b.adapter.acknowledge(b.lane);
        b.adapter.age(Instant::now());
        b.adapter.age(Instant::now());
    }
    assert_eq!(b.adapter.figures().receives, first);
    b.works();
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut set = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut set, nix::poll::PollTimeout::ZERO) == Ok(1)
}

#[test]
fn who_sleeps_is_woken_by_what_comes_and_not_by_what_came() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair(&fabric, &settings());
    while !b.adapter.arm() {}
    assert_eq!(a.send(b"wake"), 4);
    let [completions, _] = b.adapter.descriptors()[..] else {
        panic!("two descriptors");
    };
    assert!(is_readable(completions));
    assert!(!b.adapter.arm(), "something has come");
    assert_eq!(b.receive(9), b"wake");
    let [completions, _] = b.adapter.descriptors()[..] else {
        panic!("two descriptors");
    };
    assert!(!is_readable(completions));
}

/// A peer that writes what no correct one would fails its own lane, and no other.
#[test]
fn nonsense_fails_its_lane() {
    use onecopy_verbs::pair::InitAttributes;
    use onecopy_verbs::provider::{Depths, Kind};
    use onecopy_verbs::{Operation, Queue, QueuePair, Timing, port};
    let heads: [(&str, Vec<u8>); 5] = [
        ("head", vec![1; 8]),
        ("offset", [vec![9; 8], vec![0; 8], vec![1]].concat()),
        (
            "acknowledgement",
            [vec![0; 8], vec![1, 0, 0, 0, 8, 0, 0, 0]].concat(),
        ),
        ("credit", [vec![0; 8], vec![0; 4], vec![0xff; 4]].concat()),
        ("credit", [vec![0; 12], vec![0, 0, 1, 0, 7]].concat()),
    ];
    for (what, message) in heads {
        let fabric = Fabric::default();
        let mut b = open(&fabric, "m1", &settings());
        let chosen = port::choose(&fabric, Some("m0")).expect("a device");
        let domain = chosen.device.domain().expect("a domain");
        let mut queue = Queue::new(&chosen.device, 64, false).expect("a queue");
        let attributes = InitAttributes {
            kind: Kind::Connection,
            receives: None,
            shared: None,
            depths: Depths {
                sends: 4,
                receives: 4,
                inline: 64,
            },
        };
        let rogue = QueuePair::new(&domain, &mut queue, &attributes).expect("a pair");
        let rogue = rogue.prepare(&chosen, 0).expect("prepared");
        let own = rogue.address(&chosen, 7);
        let (lane, offer) = b.make(0).expect("a lane");
        let rogues = Offer {
            mark: None,
            extended: None,
            rail: OfferedRail {
                pair: own,
                ..OfferedRail::default()
            },
            more: Default::default(),
            room: 256,
            granted: 4,
        };
        b.connect(lane, &rogues);
        while !b.is_connected(lane) {
            b.poll();
        }
        let rogue = rogue
            .connect(&chosen, &own, &offer.rail.pair, Timing::default())
            .expect("connected");
        rogue
            .post_inline(&mut queue, Operation::Send { immediate: None }, &message)
            .expect("posted");
        b.poll();
        let why = b.failure(lane).expect("it has failed");
        assert!(why.contains(what), "{what}: {why}");
        assert_eq!(b.unread(lane), 0);
    }
}

/// A peer whose address does not answer: a network that is not joined. Lanes to it are tried again and again.
#[test]
fn a_lane_that_cannot_be_connected_leaves_nothing() {
    let fabric = Fabric::default();
    let mut a = open(&fabric, "m0", &settings());
    let mut gone = open(&fabric, "m1", &settings());
    let (_, offer) = gone.make(0).expect("a lane");
    fabric.kill("m1");
    let before = fabric.pairs();
    // More than its queue has room for, were it never given back.
    for given_up in (0..200).map(|round| round % 2 == 0) {
        let (lane, _) = a.make(1).expect("a lane");
        a.connect(lane, &offer);
        if given_up {
            a.close(lane);
        }
        let end = Instant::now() + Duration::from_secs(20);
        while fabric.pairs() > before {
            a.poll();
            assert!(Instant::now() < end, "its pair is left");
            std::thread::yield_now();
        }
        if !given_up {
            let why = a.failure(lane).expect("it has failed");
            assert!(why.contains("timed out"), "{why}");
            a.close(lane);
        }
    }
}

/// Reads of a peer's memory, of two askers at once, and what becomes of them when the lane ends.
#[test]
fn memory_that_a_peer_shows_is_read_where_it_lies() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair(&fabric, &settings());
    let message = bytes(300_000, 9);
    assert!(
        b.adapter.show(b.lane, &message[..999]).is_none(),
        "too short"
    );
    let shown = b.adapter.show(b.lane, &message).expect("shown");
    assert!(a.adapter.can_post_reads(a.lane));
    let mut got = [Vec::new(), Vec::new()];
    let mut asked = [0u64; 2];
    while got.iter().any(|got| got.len() < message.len()) {
        for token in 0..2u64 {
            let index = token as usize;
            let left = message.len() as u64 - asked[index];
            let from = shown.remote().offset_by(asked[index]);
            asked[index] += a.adapter.post_read(a.lane, token, from, left.min(100_000));
            a.adapter.poll();
            while let ReadState::Bytes(count) = a.adapter.read_state(a.lane, token) {
                let mut piece = vec![0; count];
                let (first, rest) = piece.split_at_mut(count / 3);
                a.adapter.copy_read(a.lane, token, 0, first);
                a.adapter.copy_read(a.lane, token, count / 3, rest);
                a.adapter.release_read(a.lane, token);
                got[index].extend(piece);
            }
        }
    }
    assert!(got.iter().all(|got| *got == message));
    // A key that was never given.
    let never_given = RemoteAddress {
        key: shown.key ^ 1,
        ..shown.remote()
    };
    assert!(a.adapter.post_read(a.lane, 5, never_given, 100) > 0);
    a.adapter.poll();
    assert_eq!(a.adapter.read_state(a.lane, 5), ReadState::Failed);
    assert_eq!(a.adapter.post_read(a.lane, 5, shown.remote(), 100), 0);
    drop((shown, a, b));
    assert_eq!(fabric.registered(), 0);
}

#[test]
fn where_nothing_more_can_be_registered_nothing_is_shown() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair(&fabric, &settings());
    fabric.limit_memory(fabric.registered() + 8192);
    let message = bytes(300_000, 9);
    assert!(b.adapter.show(b.lane, &message).is_none());
    assert!(b.adapter.show(b.lane, &message[..2000]).is_some());
    assert!(!a.adapter.can_post_reads(a.lane), "no slots to read into");
    a.works();
}

/// Ten numbers to each of 63 peers: what is pinned has a bound, however many they are.
#[test]
fn what_is_pinned_does_not_grow_with_peers() {
    let fabric = Fabric::default();
    let settings = Settings {
        slot: 8 << 10,
        receives: 256,
        receives_max: 1024,
        sends: 64,
        window: 32,
        inline: 220,
        ..settings()
    };
    let mut a = open(&fabric, "m0", &settings);
    let mut others = Vec::new();
    for _ in 0..63 {
        let mut b = open(&fabric, "m1", &settings);
        let ((to_b, _), (to_a, _)) = join(&mut a, &mut b);
        others.push((b, to_b, to_a));
    }
    for (b, to_b, to_a) in &mut others {
        let mut got = [0; 4];
        for number in 0..10u32 {
            assert_eq!(a.write(*to_b, &number.to_le_bytes()), 4);
            assert!(a.push(*to_b));
            b.poll();
            assert_eq!(b.read(*to_a, &mut got), 4);
            assert_eq!(got, number.to_le_bytes());
            a.poll();
        }
        assert_eq!(b.write(*to_a, b"back"), 4);
        assert!(b.push(*to_a));
        a.poll();
        assert_eq!(a.read(*to_b, &mut got), 4);
        assert_eq!(&got, b"back");
    }
    assert!(a.can_post_reads(others[0].1), "with what reads need");
    let pinned = a.figures().pinned;
    assert!(pinned <= 4 << 20, "{pinned} bytes are pinned");
}
