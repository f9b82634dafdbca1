// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes by datagrams over the model: streams that arrive whole whatever the network does, strangers, silence, pools.

use std::time::{Duration, Instant};

use onecopy_verbs::adapter::{Adapter, Lanes};
use onecopy_verbs::model::{Fabric, Impairment, usual_settings};
use onecopy_verbs::modes::{JobShape, Mode, Need, Sizes};
use onecopy_verbs::pair::{InitAttributes, Operation};
use onecopy_verbs::port::choose_at;
use onecopy_verbs::provider::{Depths, Kind};
use onecopy_verbs::ud::{Datagrams, Settings};
use onecopy_verbs::{Offer, Queue, QueuePair};

fn settings() -> Settings {
    let sizes = Sizes::default();
    Settings {
        address: None,
        packet: sizes.packet as usize,
        receives: sizes.datagrams as usize,
        sends: sizes.sends as usize,
        window: 32,
        inline: 220,
        silence: Duration::from_secs(20),
        drop: 0,
        seed: 0,
    }
}

fn open(fabric: &Fabric, name: &str, settings: &Settings) -> Datagrams<Fabric> {
    let chosen = choose_at(fabric, Some(name), None, None).expect("a device");
    Datagrams::on(chosen, settings.clone()).expect("a pair")
}

fn received(offer: &Offer) -> Offer {
    Offer::from_bytes(&offer.to_bytes()).expect("as it was sent")
}

fn join(a: &mut dyn Lanes, b: &mut dyn Lanes) -> (u64, u64, Offer) {
    let (to_b, offer) = a.make(1).expect("a lane");
    let (to_a, other) = b.make(0).expect("a lane");
    a.connect(to_b, &received(&other));
    b.connect(to_a, &received(&offer));
    until(|| {
        a.poll();
        b.poll();
        a.is_connected(to_b) && b.is_connected(to_a)
    });
    (to_b, to_a, offer)
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "in time");
        std::thread::yield_now();
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    let byte = |index: usize| (index * 7 + index / 251 + seed * 13) as u8;
    (0..len).map(byte).collect()
}

/// Two ranks with a lane between them.
struct Two {
    sides: [Datagrams<Fabric>; 2],
    lanes: [u64; 2],
}

impl Two {
    fn new(fabric: &Fabric, settings: &Settings) -> Self {
        let mut sides = ["m0", "m1"].map(|name| open(fabric, name, settings));
        let [a, b] = &mut sides;
        let (to_b, to_a, _) = join(a, b);
        Self {
            sides,
            lanes: [to_b, to_a],
        }
    }

    fn read(&mut self, index: usize, got: &mut Vec<u8>) {
        let (side, lane) = (&mut self.sides[index], self.lanes[index]);
        side.poll();
        let mut out = vec![0; side.unread(lane).min(3000)];
        assert_eq!(side.read(lane, &mut out), out.len());
        got.extend_from_slice(&out);
        side.acknowledge(lane);
    }

    fn write(&mut self, index: usize, bytes: &[u8]) -> usize {
        let (side, lane) = (&mut self.sides[index], self.lanes[index]);
        let written = side.write(lane, bytes);
        side.push(lane);
        written
    }

    fn works(&self) {
        for (side, &lane) in self.sides.iter().zip(&self.lanes) {
            assert_eq!(side.failure(lane), None);
        }
    }
}

fn streams_arrive(what: &str, fabric: &Fabric, settings: &Settings, len: usize) -> Two {
    let mut two = Two::new(fabric, settings);
    let streams = [bytes(len, 1), bytes(len, 2)];
    let (mut sent, mut got) = ([0; 2], [Vec::new(), Vec::new()]);
    until(|| {
        for index in 0..2 {
            let end = streams[index].len().min(sent[index] + 5000);
            sent[index] += two.write(index, &streams[index][sent[index]..end]);
            let mut read = std::mem::take(&mut got[index]);
            two.read(index, &mut read);
            got[index] = read;
        }
        two.works();
        let all = |index: usize| {
            got[1 - index].len() == len && two.sides[index].is_taken(two.lanes[index])
        };
        all(0) && all(1)
    });
    for index in 0..2 {
        assert!(got[1 - index] == streams[index], "{what}");
    }
    two
}

#[test]
fn streams_arrive_whole_whatever_the_network_does() {
    for (loss, duplicate, reorder) in [(0, 0, 0), (5, 0, 0), (0, 30, 0), (0, 0, 40), (10, 10, 20)] {
        for (window, inline, drop) in [(32, 220, 0), (4, 0, 0), (64, 220, 5)] {
            let fabric = Fabric::default();
            let impairment = Impairment {
                loss,
                duplicate,
                reorder,
            };
            fabric.impair(impairment, 7);
            let settings = Settings {
                window,
                inline,
                drop,
                ..settings()
            };
            let what = format!("{impairment:?}, window {window}, {drop} % dropped");
            let two = streams_arrive(&what, &fabric, &settings, 100_000);
            let figures = two.sides.each_ref().map(|side| side.figures());
            let lost = loss > 0 || drop > 0;
            for figures in figures {
                assert_eq!(figures.bytes, 100_000, "{what}");
                assert!(figures.retransmitted > 0 || !lost, "{what}");
                assert_eq!(figures.dropped > 0, drop > 0, "{what}");
                assert_eq!(figures.foreign, 0, "{what}");
            }
            drop_all(two, &fabric);
        }
    }
}

fn drop_all(two: Two, fabric: &Fabric) {
    drop(two);
    assert_eq!((fabric.pairs(), fabric.registered()), (0, 0));
}

/// The device's queue and the pool are short, and the window is not.
#[test]
fn a_short_pool_and_few_slots_are_enough() {
    let fabric = Fabric::default();
    let settings = Settings {
        receives: 4,
        sends: 4,
        window: 64,
        inline: 0,
        ..settings()
    };
    let two = streams_arrive("a short pool", &fabric, &settings, 200_000);
    drop_all(two, &fabric);
}

/// A sender to a rank's pair without the lane's key, from another pair or with altered words is not listened to.
#[test]
fn strangers_are_counted_and_not_believed() {
    let fabric = Fabric::default();
    let mut a = open(&fabric, "m0", &settings());
    let mut b = open(&fabric, "m1", &settings());
    let (to_b, to_a, offer) = join(&mut a, &mut b);
    let mark = offer.mark.expect("of datagrams");
    let chosen = choose_at(&fabric, Some("m1"), None, None).expect("a device");
    let domain = chosen.device.domain().expect("a domain");
    let mut queue = Queue::new(&chosen.device, 16, false).expect("a queue");
    let attributes = InitAttributes {
        kind: Kind::Datagrams,
        receives: None,
        shared: None,
        depths: Depths {
            sends: 64,
            receives: 1,
            inline: 220,
        },
    };
    let pair = QueuePair::new(&domain, &mut queue, &attributes).expect("a pair");
    let pair = pair.prepare(&chosen, 1).expect("a port");
    let pair = pair.open().expect("ready");
    let ah = domain
        .address_handle(&offer.rail.pair.path(&chosen))
        .expect("an address handle");
    let mut throw = |bytes: &[u8], qkey: u32| {
        let to = Operation::SendTo {
            ah: &ah,
            pair: offer.rail.pair.number,
            qkey,
            immediate: None,
        };
        pair.post_inline(&mut queue, to, bytes).expect("room");
        queue.poll(drop).expect("a queue");
    };
    let mut named = [0; 60];
    named[8..12].copy_from_slice(&mark.mark.to_le_bytes());
    // Too short, of no lane, of the lane and without its seal.
    throw(&[], mark.qkey);
    throw(&[0; 35], mark.qkey);
    throw(&[9; 60], mark.qkey);
    throw(&named, mark.qkey);
    // One that has not even the pair's Q_Key is stopped by the device.
    throw(&named, mark.qkey ^ 1);
    until(|| !a.poll());
    assert_eq!(a.figures().foreign, 4);
    assert_eq!((a.failure(to_b), a.unread(to_b)), (None, 0));
    assert_eq!(b.write(to_a, b"friend"), 6);
    assert!(b.push(to_a));
    until(|| {
        a.poll();
        a.unread(to_b) == 6
    });
    // The lane's own packet, from another pair than that of the peer.
    assert_eq!(a.figures().foreign, 4);
    a.close(to_b);
    assert_eq!(b.write(to_a, b"late"), 4);
    assert!(b.push(to_a));
    until(|| !a.poll());
    assert!(a.figures().foreign > 4, "the lane is over");
}

/// A peer that answers nothing: the lane is over within the limit, and nothing of its stream is lost.
#[test]
fn silence_ends_a_lane_and_loses_nothing() {
    let fabric = Fabric::default();
    let limit = Duration::from_millis(300);
    let settings = Settings {
        silence: limit,
        ..settings()
    };
    let mut two = Two::new(&fabric, &settings);
    let stream = bytes(60_000, 3);
    let mut got = Vec::new();
    let mut sent = 0;
    until(|| {
        sent += two.write(0, &stream[sent..]);
        two.read(1, &mut got);
        two.sides[0].poll();
        got.len() > 10_000
    });
    fabric.impair(
        Impairment {
            loss: 100,
            ..Impairment::default()
        },
        1,
    );
    let begun = Instant::now();
    until(|| {
        sent += two.write(0, &stream[sent..]);
        two.read(1, &mut got);
        two.sides[0].poll();
        two.sides[0].has_failed(two.lanes[0])
    });
    let took = begun.elapsed();
    assert!(took < limit + Duration::from_secs(1), "{took:?}");
    let reason = two.sides[0].failure(two.lanes[0]).expect("a reason");
    assert!(
        reason.contains("acknowledges nothing for 300ms"),
        "{reason}"
    );
    let received = two.sides[1].stop(two.lanes[1]);
    let mut rest = vec![0; two.sides[1].unread(two.lanes[1])];
    two.sides[1].read(two.lanes[1], &mut rest);
    got.append(&mut rest);
    assert_eq!(got.len() as u64, received);
    let (side, lane) = (&mut two.sides[0], two.lanes[0]);
    side.stop(lane);
    assert_eq!(side.left(lane, u64::MAX), None);
    got.append(&mut side.left(lane, received).expect("the rest"));
    assert!(got == stream[..sent]);
    // The next lane works again.
    fabric.impair(Impairment::default(), 1);
    let [a, b] = &mut two.sides;
    a.close(two.lanes[0]);
    b.close(two.lanes[1]);
    let (to_b, to_a, _) = join(a, b);
    assert_eq!(a.write(to_b, b"again"), 5);
    assert!(a.push(to_b));
    until(|| {
        b.poll();
        b.unread(to_a) == 5
    });
}

/// A rank computes for longer than a peer may be silent. Meanwhile answers come that nobody takes, or are lost. Before
/// it polls again, the engine tells its lanes the time.
#[test]
fn an_absence_is_no_silence_of_the_peer() {
    for lost in [false, true] {
        let fabric = Fabric::default();
        let limit = Duration::from_secs(1);
        let settings = Settings {
            silence: limit,
            ..settings()
        };
        let mut two = Two::new(&fabric, &settings);
        let network = |loss| {
            let impairment = Impairment {
                loss,
                ..Impairment::default()
            };
            fabric.impair(impairment, 1);
        };
        network(if lost { 100 } else { 0 });
        assert_eq!(two.write(0, b"asks"), 4);
        let mut got = Vec::new();
        until(|| {
            two.read(1, &mut got);
            lost || got.len() == 4
        });
        std::thread::sleep(limit + limit / 4);
        network(0);
        two.sides[0].age(Instant::now());
        two.works();
        until(|| {
            two.read(1, &mut got);
            two.sides[0].poll();
            two.works();
            got.len() == 4 && two.sides[0].is_taken(two.lanes[0])
        });
    }
}

/// A rank comes back to a queue with more than one poll takes, and the answer that it waits for is the last. It neither
/// judges its peer nor sends again before it has read that.
#[test]
fn what_came_during_an_absence_is_read_before_a_deadline_is_judged() {
    const BEFORE: usize = 6;
    const ROUNDS: usize = 8;
    for limit in [Duration::from_millis(100), Duration::from_secs(20)] {
        let names: Vec<String> = (0..BEFORE + 2).map(|index| format!("m{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let fabric = Fabric::new(&names);
        let patient = settings();
        let settings = Settings {
            silence: limit,
            ..settings()
        };
        let mut a = open(&fabric, "m0", &settings);
        let mut b = open(&fabric, "m1", &patient);
        let mut others: Vec<_> = names[2..]
            .iter()
            .map(|name| open(&fabric, name, &patient))
            .collect();
        let (to_b, to_a, _) = join(&mut a, &mut b);
        let lanes: Vec<_> = others
            .iter_mut()
            .map(|other| join(&mut a, other).1)
            .collect();
        assert_eq!(a.write(to_b, b"asks"), 4);
        assert!(a.push(to_b));
        for (other, &lane) in others.iter_mut().zip(&lanes) {
            for _ in 0..ROUNDS {
                assert_eq!(other.write(lane, b"before"), 6);
                assert!(other.push(lane));
            }
        }
        b.poll();
        b.acknowledge(to_a);
        // Longer than a lane waits before it sends again.
        std::thread::sleep(Duration::from_millis(400));
        a.age(Instant::now());
        until(|| {
            assert_eq!((a.failure(to_b), a.figures().retransmitted), (None, 0));
            a.poll();
            a.is_taken(to_b)
        });
    }
}

/// The failed lanes are closed, and new ones carry something.
fn lanes_again(two: &mut Two) {
    let [a, b] = &mut two.sides;
    a.close(two.lanes[0]);
    b.close(two.lanes[1]);
    let (to_b, to_a, _) = join(a, b);
    assert_eq!(b.write(to_a, b"here"), 4);
    assert!(b.push(to_a));
    until(|| {
        a.poll();
        a.unread(to_b) == 4
    });
}

/// A port without a link fails all lanes; there are new ones when it is back.
#[test]
fn a_port_that_comes_back_has_lanes_again() {
    let fabric = Fabric::default();
    let mut two = Two::new(&fabric, &settings());
    fabric.set_link("m0", false);
    two.sides[0].hear_device();
    let reason = two.sides[0].failure(two.lanes[0]).expect("a reason");
    assert!(reason.contains("no link"), "{reason}");
    assert!(two.sides[0].make(1).is_err());
    fabric.set_link("m0", true);
    two.sides[0].hear_device();
    lanes_again(&mut two);
}

/// A queue that fails once fails all lanes; there are new ones, with a new pair.
#[test]
fn a_queue_that_failed_once_has_lanes_again() {
    let fabric = Fabric::default();
    let mut two = Two::new(&fabric, &settings());
    let a = &mut two.sides[0];
    fabric.fail_poll("m0");
    a.poll();
    let reason = a.failure(two.lanes[0]).expect("a reason");
    assert!(reason.contains("ibv_poll_cq"), "{reason}");
    lanes_again(&mut two);
}

/// A peer that reads nothing is sent a window, and takes nothing from others.
#[test]
fn a_peer_that_reads_nothing_stops_nobody_else() {
    let fabric = Fabric::new(&["m0", "m1", "m2"]);
    let mut a = open(&fabric, "m0", &settings());
    let mut b = open(&fabric, "m1", &settings());
    let mut c = open(&fabric, "m2", &settings());
    let (to_a, from_b, _) = join(&mut b, &mut a);
    let (also_to_a, from_c, _) = join(&mut c, &mut a);
    let packet = 1024 - 40 - 36;
    let window = 32 * packet;
    let mut sent = 0;
    for _ in 0..2000 {
        sent += b.write(to_a, &vec![7; packet]);
        b.push(to_a);
        a.poll();
        b.poll();
    }
    assert_eq!(a.unread(from_b), window);
    assert!(sent == window || sent == window + packet, "{sent}");
    for round in 0..100 {
        assert_eq!(c.write(also_to_a, &[round; 500]), 500);
        c.push(also_to_a);
        let mut got = [0; 500];
        until(|| {
            a.poll();
            c.poll();
            a.unread(from_c) == 500
        });
        assert_eq!(a.read(from_c, &mut got), 500);
        assert_eq!(got, [round; 500]);
    }
    // It goes on where it stopped.
    let mut got = Vec::new();
    until(|| {
        a.poll();
        b.poll();
        b.push(to_a);
        let mut out = vec![0; a.unread(from_b)];
        a.read(from_b, &mut out);
        got.append(&mut out);
        got.len() == sent
    });
}

/// Ten integers for each of 63 peers, and what is pinned for it.
#[test]
fn what_is_pinned_for_63_peers_is_less_than_a_megabyte() {
    let names: Vec<String> = (0..64).map(|index| format!("m{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fabric = Fabric::new(&names);
    fabric.set_packet(4096);
    let mut all: Vec<_> = names
        .iter()
        .map(|name| open(&fabric, name, &settings()))
        .collect();
    let one = fabric.registered() / all.len();
    let (mut first, others) = (all.remove(0), &mut all);
    let lanes: Vec<_> = others
        .iter_mut()
        .map(|other| join(&mut first, other))
        .collect();
    for integer in 0..10u64 {
        for (to, ..) in &lanes {
            let bytes = integer.to_le_bytes();
            until(|| {
                first.poll();
                first.has_room(*to, 8)
            });
            assert_eq!(first.write(*to, &bytes), 8);
            assert!(first.push(*to));
        }
        for other in others.iter_mut() {
            other.poll();
        }
    }
    for (other, (_, lane, _)) in others.iter_mut().zip(&lanes) {
        until(|| {
            first.poll();
            other.poll();
            other.unread(*lane) == 80
        });
    }
    let pinned = first.figures().pinned;
    assert_eq!(pinned, one as u64);
    assert!(pinned <= 1_000_000, "{pinned}");
    assert_eq!(fabric.registered(), 64 * one);
    let job = JobShape {
        per_node: 1,
        nodes: 64,
        peers: 63,
    };
    let need = Need::of(Mode::Datagrams, &job, &Sizes::default());
    assert_eq!((need.pinned, need.pairs), (pinned, 1));
    assert_eq!(fabric.pairs(), 64);
}

/// Ranks that disagree on the way say so, and have no lane.
#[test]
fn connections_and_datagrams_do_not_mix() {
    let fabric = Fabric::default();
    let mut a = open(&fabric, "m0", &settings());
    let wanted = onecopy_verbs::adapter::Settings {
        device: Some("m1".to_owned()),
        ..usual_settings()
    };
    let mut b = Adapter::open(&fabric, wanted).expect("a device");
    let (to_b, offer) = a.make(1).expect("a lane");
    let (to_a, other) = b.make(0).expect("a lane");
    a.connect(to_b, &received(&other));
    b.connect(to_a, &received(&offer));
    for reason in [a.failure(to_b), b.failure(to_a)] {
        let reason = reason.expect("a reason");
        assert!(reason.contains("ONECOPY_VERBS_MODE"), "{reason}");
    }
}

/// A rank that sleeps is woken by what comes, and tells what it owes before it sleeps.
#[test]
fn who_sleeps_is_woken_and_owes_nothing() {
    let fabric = Fabric::default();
    let mut two = Two::new(&fabric, &settings());
    let lanes = two.lanes;
    let [a, b] = &mut two.sides;
    until(|| b.arm());
    assert_eq!(a.write(lanes[0], b"hello"), 5);
    assert!(a.push(lanes[0]));
    assert!(!b.arm(), "something has come");
    assert_eq!(b.unread(lanes[1]), 5);
    assert!(!a.is_taken(lanes[0]));
    until(|| b.arm());
    a.poll();
    assert!(a.is_taken(lanes[0]));
}

/// Nothing goes back to the peer that would carry the acknowledgement, and nobody asks for it.
#[test]
fn what_has_come_is_acknowledged_after_a_while() {
    let fabric = Fabric::new(&["m0", "m1"]);
    let [mut a, mut b] = ["m0", "m1"].map(|name| open(&fabric, name, &settings()));
    let (to_b, _, _) = join(&mut a, &mut b);
    assert_eq!(a.write(to_b, b"alone"), 5);
    assert!(a.push(to_b));
    b.poll();
    a.poll();
    assert!(!a.is_taken(to_b), "one may follow soon");
    // Longer than it waits for that.
    std::thread::sleep(Duration::from_millis(1));
    b.poll();
    until(|| {
        a.poll();
        a.is_taken(to_b)
    });
}
