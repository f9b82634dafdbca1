// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes by several rails over the model: shares of stripes, rails that are lost at every point of a message, and
//! rails that come back.

#[path = "rails/places.rs"]
mod places;
#[path = "rails/ports.rs"]
mod ports;

use std::time::{Duration, Instant};

use onecopy_verbs::adapter::{Adapter, ExposedMemory, Lanes, ReadState, RemoteAddress, Settings};
use onecopy_verbs::cache::Bounds;
use onecopy_verbs::model::{Fabric, usual_limits, usual_settings};
use onecopy_verbs::modes::{JobShape, Mode, Need, Sizes};
use onecopy_verbs::{Limits, Offer, Rails};

const STRIPE: usize = 4096;

fn settings() -> Settings {
    Settings {
        stripe: STRIPE,
        rails: 4,
        cache: Bounds {
            bytes: 8 << 20,
            entries: 16,
        },
        ..usual_settings()
    }
}

/// Two hosts, each with a device in each of so many networks, whose ports have these speeds.
fn fabric(speeds: &[u32]) -> Fabric {
    let fabric = Fabric::new(&[]);
    for host in ["a", "b"] {
        for (network, &speed) in speeds.iter().enumerate() {
            let name = format!("{host}{network}");
            fabric.add_in(&name, usual_limits(), network as u8, speed);
        }
    }
    fabric
}

/// The rails of a host with so many devices.
fn open(fabric: &Fabric, host: &str, count: usize, settings: &Settings) -> Rails<Fabric> {
    let names: Vec<_> = (0..count)
        .map(|network| format!("{host}{network}"))
        .collect();
    let settings = Settings {
        device: Some(names.join(",")),
        ..settings.clone()
    };
    Rails::open(fabric, settings).expect("devices")
}

/// One end of a lane.
struct Side<L> {
    lanes: L,
    lane: u64,
}

fn received(offer: &Offer) -> Offer {
    Offer::from_bytes(&offer.to_bytes()).expect("as it was sent")
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// Connects rank 0 with another one.
fn connect<A: Lanes, B: Lanes>(a: &mut A, b: &mut B, rank: u32) -> (u64, u64) {
    let (to_b, offer) = a.make(rank).expect("a lane");
    let (to_a, other) = b.make(0).expect("a lane");
    a.connect(to_b, &received(&other));
    b.connect(to_a, &received(&offer));
    until("connected", || {
        a.poll();
        b.poll();
        a.is_connected(to_b) && b.is_connected(to_a)
    });
    (to_b, to_a)
}

/// Connects two ranks, and has each say a word to the other.
fn join<A: Lanes, B: Lanes>(mut a: A, mut b: B) -> (Side<A>, Side<B>) {
    let (to_b, to_a) = connect(&mut a, &mut b, 1);
    let (mut a, mut b) = (
        Side {
            lanes: a,
            lane: to_b,
        },
        Side {
            lanes: b,
            lane: to_a,
        },
    );
    a.word(&mut b);
    b.word(&mut a);
    (a, b)
}

/// The same of two hosts with so many rails, once all carry stripes.
fn pair(fabric: &Fabric, count: usize) -> (Side<Rails<Fabric>>, Side<Rails<Fabric>>) {
    pair_of(fabric, count, &settings())
}

fn pair_of(
    fabric: &Fabric,
    count: usize,
    settings: &Settings,
) -> (Side<Rails<Fabric>>, Side<Rails<Fabric>>) {
    let [a, b] = ["a", "b"].map(|host| open(fabric, host, count, settings));
    let (mut a, mut b) = join(a, b);
    until_rails(&mut a, &mut b, count);
    (a, b)
}

/// Waits until a pair uses so many rails.
fn until_rails<A: Lanes, B: Lanes>(a: &mut Side<A>, b: &mut Side<B>, count: usize) {
    until("rails", || {
        a.lanes.poll();
        b.lanes.poll();
        a.rails().len() == count && b.rails().len() == count
    });
    // Each tells the other.
    for _ in 0..3 {
        a.lanes.poll();
        b.lanes.poll();
    }
}

impl<L: Lanes> Side<L> {
    fn rails(&self) -> Vec<String> {
        self.lanes.rails(self.lane)
    }

    fn works(&self) {
        assert_eq!(self.lanes.failure(self.lane), None);
    }

    /// Sends a word that the other side reads.
    fn word<M: Lanes>(&mut self, to: &mut Side<M>) {
        let mut left = &b"word"[..];
        until("room", || {
            self.lanes.poll();
            to.lanes.poll();
            left = &left[self.lanes.write(self.lane, left)..];
            left.is_empty()
        });
        until("sent", || self.lanes.push(self.lane));
        let mut word = [0; 4];
        until("a word", || {
            to.lanes.poll();
            to.lanes.read(to.lane, &mut word) == 4
        });
        assert_eq!(&word, b"word");
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 7 + index / 251 + seed * 13) as u8)
        .collect()
}

/// Shows a message of the second side's to the first, which then knows its keys.
fn show<A: Lanes, B: Lanes>(a: &mut Side<A>, b: &mut Side<B>, message: &[u8]) -> ExposedMemory {
    let shown = b.lanes.show(b.lane, message).expect("shown");
    b.lanes.poll();
    a.lanes.poll();
    shown
}

/// A message that is read.
struct Reading {
    token: u64,
    got: Vec<u8>,
    asked: usize,
    len: usize,
    from: RemoteAddress,
}

impl Reading {
    fn of(token: u64, shown: &ExposedMemory, len: usize) -> Self {
        Self {
            token,
            got: Vec::new(),
            asked: 0,
            len,
            from: shown.remote(),
        }
    }

    /// Asks for at most so many bytes, and takes at most so many stripes that are here. `false`: it cannot be read.
    fn step(&mut self, side: &mut Side<impl Lanes>, most: usize, stripes: usize) -> bool {
        let (lanes, lane) = (&mut side.lanes, side.lane);
        let left = (self.len - self.asked).min(most) as u64;
        if left > 0 {
            let from = self.from.offset_by(self.asked as u64);
            self.asked += lanes.post_read(lane, self.token, from, left) as usize;
        }
        for _ in 0..stripes {
            match lanes.read_state(lane, self.token) {
                ReadState::Nothing => break,
                ReadState::Failed => return false,
                ReadState::Bytes(count) => {
                    let mut piece = vec![0; count];
                    lanes.copy_read(lane, self.token, 0, &mut piece);
                    self.got.extend(piece);
                    lanes.release_read(lane, self.token);
                }
            }
        }
        true
    }

    /// Reads all that is left, at most so many stripes at a time.
    fn finish(&mut self, side: &mut Side<impl Lanes>, stripes: usize) {
        until("read", || {
            side.lanes.poll();
            assert!(self.step(side, usize::MAX, stripes));
            self.is_done()
        });
    }

    fn is_done(&self) -> bool {
        self.got.len() == self.len
    }
}

/// Two hosts with two devices each, of which these are in software.
fn fabric_with_software(is_software: impl Fn(&str) -> bool) -> Fabric {
    let fabric = Fabric::new(&[]);
    for (network, name) in [(0, "a0"), (0, "b0"), (1, "a1"), (1, "b1")] {
        let limits = Limits {
            sound_reads: !is_software(name),
            ..usual_limits()
        };
        fabric.add_in(name, limits, network, 25_000);
    }
    fabric
}

#[test]
fn what_may_not_have_been_read_is_not_read_unless_that_is_trusted() {
    for trusts_reads in [false, true] {
        let fabric = fabric_with_software(|name| name.starts_with('b'));
        let settings = Settings {
            trusts_reads,
            ..settings()
        };
        let (mut a, mut b) = pair_of(&fabric, 2, &settings);
        let message = bytes(500_001, 7);
        assert!(a.lanes.show(a.lane, &message).is_some());
        assert!(a.lanes.can_post_reads(a.lane));
        assert_eq!(b.lanes.show(b.lane, &message).is_some(), trusts_reads);
        assert_eq!(b.lanes.can_post_reads(b.lane), trusts_reads);
        a.works();
    }
}

/// It may be the one that is found first.
#[test]
fn a_device_in_software_is_no_rail_beside_another_one() {
    for software in ["b0", "b1"] {
        let fabric = fabric_with_software(|name| name == software);
        let [a, b] = ["a", "b"].map(|host| open(&fabric, host, 2, &settings()));
        let (mut a, mut b) = join(a, b);
        until_rails(&mut a, &mut b, 1);
        let shown = b.lanes.show(b.lane, &bytes(500_001, 7));
        assert!(shown.is_some() && b.lanes.can_post_reads(b.lane));
        a.works();
    }
}

#[test]
fn a_long_message_is_read_by_all_rails() {
    for count in [2, 3, 4] {
        let fabric = fabric(&[25_000; 4]);
        let (mut a, mut b) = pair(&fabric, count);
        for round in 0..3 {
            // Both ways at once.
            let message = bytes(500_001, round);
            let [at_a, at_b] = [&mut a, &mut b].map(|side| {
                let shown = side.lanes.show(side.lane, &message);
                shown.expect("shown")
            });
            let mut readings = [&at_b, &at_a].map(|shown| Reading::of(5, shown, message.len()));
            until("read", || {
                for (reading, side) in readings.iter_mut().zip([&mut a, &mut b]) {
                    side.lanes.poll();
                    assert!(reading.step(side, 100_000, 7));
                }
                readings.iter().all(Reading::is_done)
            });
            assert!(readings.iter().all(|reading| reading.got == message));
        }
        for side in [&a, &b] {
            side.works();
            let figures = side.lanes.figures();
            // Each rail has its part.
            let fair = 3 * 500_001 * (count as u64 - 1) / count as u64;
            assert!(figures.striped > fair / 2, "{figures:?} of {count}");
            assert!(
                figures.striped < 3 * 500_001 * 9 / 10,
                "{figures:?} of {count}"
            );
            assert_eq!((figures.rails_lost, figures.stripes_again), (0, 0));
        }
        drop((a, b));
        assert_eq!((fabric.pairs(), fabric.registered()), (0, 0));
    }
}

/// A short message needs one rail, and no key for others.
#[test]
fn what_fits_a_stripe_is_read_by_one_rail() {
    let fabric = fabric(&[25_000; 2]);
    let (mut a, mut b) = pair(&fabric, 2);
    let message = bytes(STRIPE, 1);
    let shown = b.lanes.show(b.lane, &message).expect("shown");
    // One registration, of the pages of the message.
    assert!(b.lanes.figures().registered <= 2 * 4096);
    let mut reading = Reading::of(1, &shown, message.len());
    reading.finish(&mut a, 1);
    assert!(reading.got == message);
    assert_eq!(a.lanes.figures().striped, 0);
}

#[test]
fn shares_follow_the_speeds() {
    // Those of the slower port of both count.
    for peers in [[10_000, 40_000], [40_000, 40_000], [10_000, 100_000]] {
        let fabric = Fabric::new(&[]);
        let own = match peers {
            [10_000, 100_000] => [100_000, 40_000],
            _ => [10_000, 40_000],
        };
        for (host, speeds) in [("a", own), ("b", peers)] {
            for (network, speed) in speeds.into_iter().enumerate() {
                let name = format!("{host}{network}");
                fabric.add_in(&name, usual_limits(), network as u8, speed);
            }
        }
        let (mut a, mut b) = pair(&fabric, 2);
        assert_eq!(
            a.rails(),
            ["a1 port 1", "a0 port 1"],
            "the stream goes by the faster one"
        );
        let message = bytes(50 * STRIPE, 1);
        let shown = show(&mut a, &mut b, &message);
        // The first stripe by a new connection shows that it works.
        let mut first = Reading::of(7, &shown, message.len());
        first.finish(&mut a, 9);
        let before = a.lanes.figures().striped;
        let mut reading = Reading::of(1, &shown, message.len());
        // Nothing has come yet when all is asked for.
        assert!(reading.step(&mut a, usize::MAX, 0));
        assert_eq!(reading.asked, message.len());
        let striped = a.lanes.figures().striped - before;
        assert_eq!(striped, 10 * STRIPE as u64);
    }
}

/// How a rail is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// The port of the reader, which gets the event at once.
    Own,
    /// That of the other side, which gets the event and sends a note.
    Peers,
    /// That of the other side, which does not know: the reader's device finds out.
    Silent,
}

/// The rail beside the stream's is lost after each number of stripes, in each way: all bytes come, and the lane stays.
#[test]
fn a_rail_that_is_lost_at_any_point_loses_no_byte() {
    for loss in [Loss::Own, Loss::Peers, Loss::Silent] {
        let (mut again, points) = (0, 40);
        for point in 0..points {
            let fabric = fabric(&[25_000; 2]);
            let (mut a, mut b) = pair(&fabric, 2);
            let second = a.rails()[1].replace(" port 1", "");
            let message = bytes(points * STRIPE + 77, point);
            let shown = show(&mut a, &mut b, &message);
            let mut reading = Reading::of(9, &shown, message.len());
            let mut is_lost = false;
            until("read", || {
                // Stripes are outstanding whenever it happens.
                assert!(reading.step(&mut a, 10 * STRIPE, 0));
                if reading.got.len() >= point * STRIPE && !std::mem::replace(&mut is_lost, true) {
                    match loss {
                        Loss::Own => {
                            fabric.set_link(&second, false);
                            a.lanes.hear_device();
                        }
                        Loss::Peers => {
                            fabric.set_link(&second.replace('a', "b"), false);
                            b.lanes.hear_device();
                        }
                        Loss::Silent => fabric.set_link(&second.replace('a', "b"), false),
                    }
                    assert!(reading.step(&mut a, 10 * STRIPE, 0));
                }
                if is_lost {
                    fabric.advance(Duration::from_secs(2));
                }
                a.lanes.poll();
                b.lanes.poll();
                assert!(reading.step(&mut a, 0, 1), "{loss:?} at {point}");
                reading.is_done()
            });
            assert!(reading.got == message, "{loss:?} at {point}");
            a.works();
            b.works();
            let figures = a.lanes.figures();
            // A device finds out only while it waits for an answer.
            if loss != Loss::Silent || figures.stripes_again > 0 {
                assert_eq!((figures.rails_lost, a.rails().len()), (1, 1));
            }
            again += figures.stripes_again;
            a.word(&mut b);
            drop((a, b, shown));
            assert_eq!((fabric.pairs(), fabric.registered()), (0, 0));
        }
        assert!(again > 0, "stripes were under way, {loss:?}");
    }
}

/// All slots of the first rail hold stripes that nobody may read before one that was lost.
#[test]
fn what_is_behind_a_lost_stripe_does_not_hold_it_up() {
    let fabric = fabric(&[25_000; 2]);
    let (mut a, mut b) = pair(&fabric, 2);
    let second = a.rails()[1].replace(" port 1", "");
    let message = bytes(300 * STRIPE, 3);
    let shown = show(&mut a, &mut b, &message);
    // What is read by the second rail is not answered.
    fabric.set_link(&second.replace('a', "b"), false);
    let mut reading = Reading::of(9, &shown, message.len());
    for _ in 0..200 {
        assert!(reading.step(&mut a, usize::MAX, 100));
        a.lanes.poll();
    }
    assert!(!reading.is_done() && reading.asked < message.len());
    fabric.advance(Duration::from_secs(2));
    reading.finish(&mut a, 1);
    assert!(reading.got == message);
}

#[test]
fn a_rail_that_comes_back_is_used_again() {
    for loses in ["a", "b"] {
        let fabric = fabric(&[25_000; 2]);
        let (mut a, mut b) = pair(&fabric, 2);
        let second = a.rails()[1].replace(" port 1", "").replace('a', loses);
        let mut now = Instant::now();
        for round in 0..3 {
            fabric.set_link(&second, false);
            for side in [&mut a, &mut b] {
                side.lanes.hear_device();
                side.lanes.poll();
            }
            until_rails(&mut a, &mut b, 1);
            // It is tried in vain while the port is down.
            for _ in 0..5 {
                now += Duration::from_secs(20);
                for side in [&mut a, &mut b] {
                    side.lanes.poll();
                    side.lanes.age(now);
                }
            }
            assert_eq!(a.rails().len(), 1);
            fabric.set_link(&second, true);
            until("two rails", || {
                now += Duration::from_secs(2);
                for side in [&mut a, &mut b] {
                    side.lanes.hear_device();
                    side.lanes.poll();
                    side.lanes.age(now);
                }
                a.rails().len() == 2 && b.rails().len() == 2
            });
            let before = a.lanes.figures().striped;
            let message = bytes(40 * STRIPE, round);
            let shown = b.lanes.show(b.lane, &message).expect("shown");
            let mut reading = Reading::of(2, &shown, message.len());
            reading.finish(&mut a, 9);
            assert!(reading.got == message);
            assert!(a.lanes.figures().striped > before);
            a.works();
            b.works();
        }
        assert_eq!(fabric.pairs(), 4);
    }
}

#[test]
fn a_port_that_is_down_when_ranks_meet_is_used_once_it_is_up() {
    for down in ["a0", "b0", "a1", "b1"] {
        let fabric = fabric(&[25_000; 2]);
        let [a, b] = ["a", "b"].map(|host| open(&fabric, host, 2, &settings()));
        fabric.set_link(down, false);
        let (mut a, mut b) = (a, b);
        for lanes in [&mut a, &mut b] {
            lanes.hear_device();
        }
        let (mut a, mut b) = join(a, b);
        let up = 1 - usize::from(down.ends_with('1'));
        assert_eq!(a.rails(), [format!("a{up} port 1")], "{down}");
        fabric.set_link(down, true);
        let mut now = Instant::now();
        until("two rails", || {
            now += Duration::from_secs(2);
            for side in [&mut a, &mut b] {
                side.lanes.hear_device();
                side.lanes.poll();
                side.lanes.age(now);
            }
            a.rails().len() == 2 && b.rails().len() == 2
        });
        a.word(&mut b);
        b.word(&mut a);
        a.works();
        b.works();
    }
}

/// The rail of the stream is lost: the lane is over as any other, and the next one's stream goes by the other rail.
#[test]
fn the_next_stream_goes_by_a_rail_that_did_not_fail() {
    for reports in [true, false] {
        let fabric = fabric(&[40_000, 25_000]);
        let (mut a, mut b) = pair(&fabric, 2);
        assert_eq!(a.rails()[0], "a0 port 1");
        // The port of one side stays up: only its peers do not answer.
        fabric.set_link("b0", false);
        if reports {
            b.lanes.hear_device();
        }
        assert_eq!(a.lanes.write(a.lane, b"left"), 4);
        a.lanes.push(a.lane);
        fabric.advance(Duration::from_secs(2));
        a.lanes.poll();
        assert!(a.lanes.has_failed(a.lane));
        let shown = RemoteAddress {
            address: 1 << 40,
            key: 0,
        };
        assert_eq!(a.lanes.post_read(a.lane, 1, shown, 10), 0);
        assert_eq!(a.lanes.read_state(a.lane, 1), ReadState::Failed);
        let received = b.lanes.stop(b.lane);
        assert_eq!(received, 4, "the word before");
        a.lanes.stop(a.lane);
        assert_eq!(a.lanes.left(a.lane, received).expect("kept"), b"left");
        b.lanes.close(b.lane);
        a.lanes.close(a.lane);
        assert_eq!(fabric.pairs(), 0);
        let (a, b) = join(a.lanes, b.lanes);
        assert_eq!(a.rails()[0], "a1 port 1");
        assert_eq!(b.rails()[0], "b1 port 1");
    }
}

/// What is pinned: with the first stream, once all rails read, and once streams went by all of them. A device in
/// software reads nothing, and so pins nothing to read into.
#[test]
fn what_rails_pin_is_what_the_formula_says() {
    pins_what_the_formula_says(&fabric(&[40_000, 25_000]), true);
    pins_what_the_formula_says(&fabric_with_software(|name| name.starts_with('a')), false);
}

fn pins_what_the_formula_says(fabric: &Fabric, reads: bool) {
    let settings = Settings {
        // No pool grows: how far one does depends on its windows.
        receives_max: settings().receives,
        ..settings()
    };
    let [a, b] = ["a", "b"].map(|host| open(fabric, host, 2, &settings));
    let (mut a, mut b) = join(a, b);
    until_rails(&mut a, &mut b, 2);
    let number = |value: usize| u32::try_from(value).expect("small");
    let sizes = Sizes {
        slot: number(settings.slot),
        receives: number(settings.receives),
        receives_max: number(settings.receives_max),
        stripe: number(settings.stripe),
        sends: number(settings.sends),
        depth: settings.window,
        rails: 2,
        reads,
        ..Sizes::default()
    };
    let job = JobShape {
        per_node: 1,
        nodes: 2,
        peers: 1,
    };
    let need = Need::of(Mode::Connections, &job, &sizes);
    assert_eq!(fabric.pairs() as u32, 2 * need.pairs);
    assert_eq!(a.lanes.figures().pinned, need.pinned);
    assert_eq!(a.lanes.can_post_reads(a.lane), reads);
    if reads {
        let message = bytes(400 * STRIPE, 1);
        let shown = show(&mut a, &mut b, &message);
        let mut reading = Reading::of(1, &shown, message.len());
        reading.finish(&mut a, 9);
        assert!(a.lanes.figures().striped > 0, "both have read");
    }
    fabric.set_link("b0", false);
    assert_eq!(a.lanes.write(a.lane, b"left"), 4);
    a.lanes.push(a.lane);
    fabric.advance(Duration::from_secs(2));
    a.lanes.poll();
    a.lanes.close(a.lane);
    b.lanes.close(b.lane);
    let (a, _) = join(a.lanes, b.lanes);
    assert_eq!(a.rails()[0], "a1 port 1");
    assert_eq!(a.lanes.figures().pinned, need.pinned_max);
}

/// A peer with one rail of the two, or with datagrams' luck: a rank of several rails talks with it by that.
#[test]
fn ranks_with_different_numbers_of_rails_meet() {
    for network in [0, 1] {
        let fabric = fabric(&[25_000; 2]);
        let a = open(&fabric, "a", 2, &settings());
        let wanted = Settings {
            device: Some(format!("b{network}")),
            ..settings()
        };
        let b = Adapter::open(&fabric, wanted).expect("a device");
        let (mut a, mut b) = join(a, b);
        assert_eq!(a.rails(), [format!("a{network} port 1")]);
        assert_eq!(fabric.pairs(), 2, "what leads nowhere is given back");
        for turn in 0..2 {
            let message = bytes(40 * STRIPE, turn);
            let shown = match turn {
                0 => a.lanes.show(a.lane, &message),
                _ => b.lanes.show(b.lane, &message),
            };
            let shown = shown.expect("shown");
            let mut reading = Reading::of(2, &shown, message.len());
            until("read", || {
                a.lanes.poll();
                b.lanes.poll();
                let goes_on = match turn {
                    0 => reading.step(&mut b, usize::MAX, 9),
                    _ => reading.step(&mut a, usize::MAX, 9),
                };
                assert!(
                    goes_on,
                    "{:?}, {:?}",
                    a.lanes.failure(a.lane),
                    b.lanes.failure(b.lane)
                );
                reading.is_done()
            });
            assert!(reading.got == message);
        }
        a.works();
    }
}

/// Memory that was shown by an earlier lane, on another rail: it is read by the rail that has its key, or not at all.
#[test]
fn a_key_of_another_rail_is_not_used() {
    let fabric = fabric(&[40_000, 25_000]);
    let (a, mut b) = pair(&fabric, 2);
    let message = bytes(40 * STRIPE, 2);
    let shown = b.lanes.show(b.lane, &message).expect("shown");
    let (mut a, mut b) = (a.lanes, b.lanes);
    for lanes in [&mut a, &mut b] {
        lanes.close(0);
    }
    fabric.set_link("b0", false);
    b.hear_device();
    let (mut a, b) = join(a, b);
    assert_eq!(b.rails(), ["b1 port 1"]);
    let mut reading = Reading::of(2, &shown, message.len());
    assert!(!reading.step(&mut a, usize::MAX, 9), "no rail has its key");
    a.works();
    a.lanes.release_read(a.lane, 2);
    // Nobody waits for it any more, and what is shown now is read.
    let mut b = b;
    let shown = b.lanes.show(b.lane, &message).expect("shown");
    let mut reading = Reading::of(2, &shown, message.len());
    reading.finish(&mut a, 9);
    assert!(reading.got == message);
}

/// One bound holds for the registrations of all rails together.
#[test]
fn registrations_of_all_rails_share_one_bound() {
    let fabric = fabric(&[25_000; 2]);
    let [a, b] = ["a", "b"].map(|host| {
        let settings = Settings {
            cache: Bounds {
                bytes: 16 * STRIPE,
                entries: 16,
            },
            ..settings()
        };
        open(&fabric, host, 2, &settings)
    });
    let (mut a, mut b) = join(a, b);
    until_rails(&mut a, &mut b, 2);
    let messages: Vec<_> = (0..9).map(|seed| bytes(3 * STRIPE, seed)).collect();
    let before = fabric.registered();
    for message in &messages {
        let shown = b.lanes.show(b.lane, message).expect("shown");
        drop(shown);
        let registered = fabric.registered() - before;
        assert!(registered <= 16 * STRIPE, "{registered}");
        assert_eq!(registered as u64, b.lanes.figures().registered);
    }
    b.lanes.poll();
    a.works();
    b.works();
}

/// There is memory for one registration of a message: the rail of the stream reads all of it.
#[test]
fn what_one_rail_cannot_register_another_reads() {
    let fabric = fabric(&[25_000; 2]);
    let (mut a, mut b) = pair(&fabric, 2);
    let message = bytes(40 * STRIPE, 2);
    fabric.limit_memory(fabric.registered() + 60 * STRIPE);
    let shown = b.lanes.show(b.lane, &message).expect("shown");
    fabric.limit_memory(usize::MAX);
    let mut reading = Reading::of(2, &shown, message.len());
    reading.finish(&mut a, 9);
    assert!(reading.got == message);
    assert_eq!((a.rails().len(), a.lanes.figures().striped), (2, 0));
}

/// The stream goes by the slower rail, and the faster one has no memory to read into: the slower one reads all of it.
#[test]
fn a_rail_without_memory_to_read_into_holds_nothing_up() {
    let fabric = fabric(&[10_000, 25_000]);
    let (mut a, mut b) = pair(&fabric, 2);
    fabric.set_link("b1", false);
    assert_eq!(a.lanes.write(a.lane, b"left"), 4);
    a.lanes.push(a.lane);
    fabric.advance(Duration::from_secs(2));
    a.lanes.poll();
    assert!(a.lanes.has_failed(a.lane));
    b.lanes.close(b.lane);
    a.lanes.close(a.lane);
    fabric.set_link("b1", true);
    b.lanes.hear_device();
    let (mut a, mut b) = join(a.lanes, b.lanes);
    until_rails(&mut a, &mut b, 2);
    assert_eq!(a.rails(), ["a0 port 1", "a1 port 1"]);
    let message = bytes(300 * STRIPE, 2);
    let shown = b.lanes.show(b.lane, &message).expect("shown");
    assert!(a.lanes.can_post_reads(a.lane));
    fabric.limit_memory(fabric.registered());
    let mut reading = Reading::of(2, &shown, message.len());
    reading.finish(&mut a, 9);
    assert!(reading.got == message);
    assert_eq!((a.rails().len(), a.lanes.figures().striped), (2, 0));
    a.works();
}

/// The rail of the stream has no memory to read into, and the other one has: that one reads.
#[test]
fn where_the_first_rail_has_no_memory_to_read_into_another_one_reads() {
    let fabric = fabric(&[40_000, 25_000]);
    let (mut a, mut b) = pair(&fabric, 2);
    // While the first is down, the second gets what it needs.
    fabric.set_link("b0", false);
    for side in [&mut a, &mut b] {
        side.lanes.hear_device();
        side.lanes.close(side.lane);
    }
    let (mut a, mut b) = join(a.lanes, b.lanes);
    assert_eq!(a.rails(), ["a1 port 1"]);
    assert!(a.lanes.can_post_reads(a.lane));
    fabric.set_link("b0", true);
    for side in [&mut a, &mut b] {
        side.lanes.hear_device();
        side.lanes.close(side.lane);
    }
    let (mut a, mut b) = join(a.lanes, b.lanes);
    until_rails(&mut a, &mut b, 2);
    assert_eq!(a.rails(), ["a0 port 1", "a1 port 1"]);
    let message = bytes(40 * STRIPE, 2);
    let shown = show(&mut a, &mut b, &message);
    fabric.limit_memory(fabric.registered());
    assert!(a.lanes.can_post_reads(a.lane));
    let mut reading = Reading::of(2, &shown, message.len());
    reading.finish(&mut a, 9);
    assert!(reading.got == message);
    assert_eq!(a.lanes.figures().striped, message.len() as u64);
}

/// Two fabrics whose addresses do not tell them apart: rails are matched by their indices.
#[test]
fn rails_whose_addresses_do_not_distinguish_networks_are_not_crossed() {
    let fabric = fabric(&[25_000; 2]);
    fabric.hide_networks();
    let mut ranks = ["a", "b"].map(|host| open(&fabric, host, 2, &settings()));
    // The numbers of pairs, which say nothing, come in every order.
    for _ in 0..100 {
        let [a, b] = ranks;
        let (mut a, mut b) = join(a, b);
        until_rails(&mut a, &mut b, 2);
        let ports = |side: &Side<_>| side.rails().concat().replace('b', "a");
        assert_eq!(ports(&a), ports(&b));
        a.works();
        b.works();
        let (at_a, at_b) = (a.lane, b.lane);
        ranks = [a.lanes, b.lanes];
        ranks[0].close(at_a);
        ranks[1].close(at_b);
    }
}

/// Stripes were dropped: no rail had a key for them. Until their reader knows, none comes in their place.
#[test]
fn what_was_given_up_is_not_skipped() {
    let fabric = fabric(&[40_000, 25_000]);
    let (mut a, mut b) = pair(&fabric, 2);
    let message = bytes(40 * STRIPE, 2);
    let shown = b.lanes.show(b.lane, &message).expect("shown");
    let other = RemoteAddress {
        key: shown.key ^ 3 << 32 ^ 1 << 50,
        ..shown.remote()
    };
    assert_eq!(a.lanes.post_read(a.lane, 7, other, STRIPE as u64), 0);
    // The key can be read by now, and what is behind is asked for.
    let from = shown.remote().offset_by(STRIPE as u64);
    assert_eq!(a.lanes.post_read(a.lane, 7, from, STRIPE as u64), 0);
    assert_eq!(a.lanes.read_state(a.lane, 7), ReadState::Failed);
    // Its reader gives it up.
    a.lanes.release_read(a.lane, 7);
    assert_eq!(a.lanes.read_state(a.lane, 7), ReadState::Nothing);
    let asked = a.lanes.post_read(a.lane, 7, from, STRIPE as u64);
    assert_eq!(asked, STRIPE as u64);
}

/// Reads fill a pair's queue, so that a note finds no room. It goes once one of them has ended.
#[test]
fn a_note_that_a_full_queue_holds_back_goes_once_there_is_room() {
    let fabric = fabric(&[25_000; 2]);
    let (mut a, mut b) = pair(&fabric, 2);
    let message = bytes(400 * STRIPE, 1);
    let shown = show(&mut a, &mut b, &message);
    let second = a.rails()[1].replace(" port 1", "");
    let mut reading = Reading::of(1, &shown, message.len());
    // A new connection reads one stripe first, so the other one is asked for as many as there is room for.
    assert!(reading.step(&mut a, usize::MAX, 0));
    fabric.set_link(&second, false);
    a.lanes.hear_device();
    assert_eq!(a.rails().len(), 1);
    reading.finish(&mut a, 9);
    assert!(reading.got == message);
    b.lanes.poll();
    assert_eq!(b.rails().len(), 1, "the other side was told");
}

/// A further connection that is made and carries nothing holds up one stripe.
#[test]
fn a_new_connection_is_asked_for_one_stripe_first() {
    let fabric = fabric(&[25_000; 2]);
    let (mut a, mut b) = pair(&fabric, 2);
    let second = a.rails()[1].replace(" port 1", "");
    let message = bytes(40 * STRIPE, 1);
    let shown = show(&mut a, &mut b, &message);
    fabric.set_link(&second.replace('a', "b"), false);
    let mut reading = Reading::of(1, &shown, message.len());
    assert!(reading.step(&mut a, usize::MAX, 0));
    assert_eq!(reading.asked, message.len());
    assert_eq!(a.lanes.figures().striped, STRIPE as u64);
    fabric.advance(Duration::from_secs(2));
    reading.finish(&mut a, 9);
    assert!(reading.got == message);
    assert_eq!(a.lanes.figures().stripes_again, 1);
}
