// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes by extended connections over the model: one connection to a node, for all ranks that are there or leave.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onecopy_verbs::adapter::{Adapter, Lanes, ReadState, Settings};
use onecopy_verbs::model::{Fabric, usual_limits, usual_settings};
use onecopy_verbs::modes::{JobShape, Mode, Need, Sizes};
use onecopy_verbs::{Limits, NodeShare, Offer, Status, port};

const SLOT: usize = 256;
/// Bytes of the stream in a message.
const PAYLOAD: usize = SLOT - 16;

fn settings() -> Settings {
    Settings {
        slot: SLOT,
        ..usual_settings()
    }
}

/// A file of one's own, which has no name any more.
fn file() -> File {
    (0..)
        .find_map(|number| {
            let name = format!("verbs-extended-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match File::create_new(&path) {
                Ok(file) => {
                    std::fs::remove_file(&path).expect("its name");
                    Some(file)
                }
                // That of another test, for a moment.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
                Err(error) => panic!("{error}"),
            }
        })
        .expect("a file")
}

/// Two nodes: rank 0 is on the first, with device m0, all others on the second, with m1.
struct Job {
    fabric: Fabric,
    files: [File; 2],
    nodes: Arc<[u32]>,
    settings: Settings,
}

impl Job {
    fn new(ranks: usize, settings: Settings) -> Self {
        let nodes = (0..ranks).map(|rank| u32::from(rank > 0)).collect();
        Self {
            fabric: Fabric::default(),
            files: [file(), file()],
            nodes,
            settings,
        }
    }

    fn rank(&self, rank: usize) -> Adapter<Fabric> {
        let node = self.nodes[rank] as usize;
        let chosen = port::choose(&self.fabric, Some(["m0", "m1"][node])).expect("a device");
        let share = NodeShare {
            nodes: Arc::clone(&self.nodes),
            file: OwnedFd::from(self.files[node].try_clone().expect("a descriptor")),
        };
        Adapter::on_extended(chosen, self.settings.clone(), share).expect("lanes")
    }
}

/// What two ranks tell each other of a lane, as their sockets carry it.
struct Pair {
    lanes: [u64; 2],
    announced: [bool; 2],
}

impl Pair {
    fn new(a: &mut Adapter<Fabric>, b: &mut Adapter<Fabric>, ranks: [u32; 2]) -> Self {
        let (to_b, offer) = a.make(ranks[1]).expect("a lane");
        let (to_a, other) = b.make(ranks[0]).expect("a lane");
        let received =
            |offer: &Offer| Offer::from_bytes(&offer.to_bytes()).expect("as it was sent");
        a.connect(to_b, &received(&other));
        b.connect(to_a, &received(&offer));
        Self {
            lanes: [to_b, to_a],
            announced: [false; 2],
        }
    }

    /// Each side gets the target of the other one. Returns whether both can send.
    fn exchange_targets(&mut self, sides: [&mut Adapter<Fabric>; 2]) -> bool {
        let [a, b] = sides;
        a.poll();
        b.poll();
        let [to_b, to_a] = self.lanes;
        if let Some(target) = a.target(to_b).filter(|_| !self.announced[0]) {
            self.announced[0] = true;
            b.hear_target(to_a, target);
        }
        if let Some(target) = b.target(to_a).filter(|_| !self.announced[1]) {
            self.announced[1] = true;
            a.hear_target(to_b, target);
        }
        a.is_connected(to_b) && b.is_connected(to_a)
    }
}

fn join(a: &mut Adapter<Fabric>, b: &mut Adapter<Fabric>, ranks: [u32; 2]) -> [u64; 2] {
    let mut pair = Pair::new(a, b, ranks);
    let end = Instant::now() + Duration::from_secs(20);
    while !pair.exchange_targets([a, b]) {
        let [to_b, to_a] = pair.lanes;
        assert!(
            Instant::now() < end,
            "{:?}, {:?}",
            a.failure(to_b),
            b.failure(to_a)
        );
        std::thread::yield_now();
    }
    pair.lanes
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 7 + index / 251 + seed * 13) as u8)
        .collect()
}

/// Sends a stream by a lane to its end.
fn stream(
    from: &mut Adapter<Fabric>,
    by: u64,
    to: &mut Adapter<Fabric>,
    at: u64,
    stream: &[u8],
) -> Vec<u8> {
    let (mut sent, mut got) = (0, Vec::new());
    let end = Instant::now() + Duration::from_secs(20);
    while got.len() < stream.len() {
        sent += from.write(by, &stream[sent..]);
        from.push(by);
        to.poll();
        let mut out = vec![0; to.unread(at)];
        to.read(at, &mut out);
        got.extend_from_slice(&out);
        to.acknowledge(at);
        from.poll();
        assert!(Instant::now() < end, "{} of {}", got.len(), stream.len());
        assert_eq!((from.failure(by), to.failure(at)), (None, None));
    }
    got
}

/// A message there and one back, which are all that a lane needs to tell of its target.
fn word(a: &mut Adapter<Fabric>, to_b: u64, b: &mut Adapter<Fabric>, to_a: u64) {
    assert_eq!(stream(a, to_b, b, to_a, b"there"), b"there");
    assert_eq!(stream(b, to_a, a, to_b, b"back"), b"back");
}

#[test]
fn one_connection_leads_to_all_ranks_of_a_node() {
    for inline in [64, 0] {
        let job = Job::new(
            5,
            Settings {
                inline,
                ..settings()
            },
        );
        let mut ranks: Vec<_> = (0..5).map(|rank| job.rank(rank)).collect();
        let mut ranks = ranks.iter_mut();
        let a = ranks.next().expect("rank 0");
        let mut others: Vec<_> = (1..)
            .zip(ranks)
            .map(|(rank, b)| (join(a, b, [0, rank]), b))
            .collect();
        // An initiator and its target there, and those of each of the others here.
        assert_eq!(job.fabric.pairs(), 2 + 2 * 4);
        for round in 0..3 {
            for (index, ([to_b, to_a], b)) in others.iter_mut().enumerate() {
                let there = bytes(20_000, index + round);
                assert!(stream(a, *to_b, b, *to_a, &there) == there);
                let back = bytes(20_000, 50 + index + round);
                assert!(stream(b, *to_a, a, *to_b, &back) == back);
            }
        }
        for ([to_b, to_a], b) in &mut others {
            a.close(*to_b);
            b.close(*to_a);
        }
        assert_eq!(job.fabric.pairs(), 0);
    }
}

/// Long messages are read of the domain of the rank that shows them, not of the one that made the target.
#[test]
fn memory_of_each_rank_is_read() {
    let job = Job::new(3, settings());
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| job.rank(rank));
    let by_b = join(&mut a, &mut b, [0, 1]);
    let by_c = join(&mut a, &mut c, [0, 2]);
    for (side, [own, theirs], seed) in [(&mut b, by_b, 1), (&mut c, by_c, 2)] {
        let message = bytes(100_000, seed);
        let shown = side.show(theirs, &message).expect("shown");
        assert!(a.can_post_reads(own));
        let mut posted = 0;
        let mut got = Vec::new();
        while got.len() < message.len() {
            let from = shown.remote().offset_by(posted);
            posted += a.post_read(own, 1, from, message.len() as u64 - posted);
            a.poll();
            match a.read_state(own, 1) {
                ReadState::Bytes(len) => {
                    let begin = got.len();
                    got.resize(begin + len, 0);
                    a.copy_read(own, 1, 0, &mut got[begin..]);
                    a.release_read(own, 1);
                }
                ReadState::Nothing => {}
                ReadState::Failed => panic!("{:?}", a.failure(own)),
            }
        }
        assert!(got == message);
    }
}

/// The lanes to a node may be made in any order of words: those that do not lead wait for the one that does.
#[test]
fn a_lane_waits_for_the_one_that_asks_for_the_target() {
    let job = Job::new(3, settings());
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| job.rank(rank));
    let mut by_b = Pair::new(&mut a, &mut b, [0, 1]);
    let mut by_c = Pair::new(&mut a, &mut c, [0, 2]);
    let limit = Instant::now() + Duration::from_millis(100);
    while Instant::now() < limit {
        assert!(
            !by_c.exchange_targets([&mut a, &mut c]),
            "there is no target yet"
        );
    }
    // The peer's initiator has what it needs.
    assert!(!a.is_connected(by_c.lanes[0]) && c.is_connected(by_c.lanes[1]));
    while !by_b.exchange_targets([&mut a, &mut b]) {}
    assert!(by_c.exchange_targets([&mut a, &mut c]));
    let there = bytes(5000, 4);
    assert!(stream(&mut a, by_c.lanes[0], &mut c, by_c.lanes[1], &there) == there);
}

#[test]
fn the_target_outlives_the_rank_that_made_it() {
    let job = Job::new(3, settings());
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| job.rank(rank));
    let [to_b, to_a] = join(&mut a, &mut b, [0, 1]);
    let [to_c, from_c] = join(&mut a, &mut c, [0, 2]);
    word(&mut a, to_b, &mut b, to_a);
    word(&mut a, to_c, &mut c, from_c);
    // Who only holds it has made none.
    assert!(b.target(to_a).is_some() && c.target(from_c).is_none());
    a.close(to_b);
    b.close(to_a);
    drop(b);
    let there = bytes(20_000, 5);
    assert!(stream(&mut a, to_c, &mut c, from_c, &there) == there);
    // A rank that comes now is reached by the same connection.
    let pairs = job.fabric.pairs();
    let mut b = job.rank(1);
    let [to_b, to_a] = join(&mut a, &mut b, [0, 1]);
    assert_eq!(job.fabric.pairs(), pairs + 2, "only its own");
    word(&mut a, to_b, &mut b, to_a);
}

/// A rank dies while messages are under way to it: its receives are gone, so the connection fails.
#[test]
fn a_rank_that_dies_takes_no_byte_of_the_others_along() {
    let job = Job::new(3, settings());
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| job.rank(rank));
    let [to_b, to_a] = join(&mut a, &mut b, [0, 1]);
    let [to_c, from_c] = join(&mut a, &mut c, [0, 2]);
    word(&mut a, to_b, &mut b, to_a);
    word(&mut a, to_c, &mut c, from_c);
    drop(b);
    assert_eq!(a.write(to_b, b"lost"), 4);
    assert!(a.push(to_b));
    let there = bytes(2 * PAYLOAD, 6);
    assert_eq!(a.write(to_c, &there), there.len());
    a.push(to_c);
    a.poll();
    assert!(a.has_failed(to_b) && a.has_failed(to_c));
    let reason = a.failure(to_c).expect("a reason");
    assert!(reason.contains("status"), "{reason}");
    c.poll();
    let mut out = vec![0; c.unread(from_c)];
    c.read(from_c, &mut out);
    a.stop(to_c);
    let received = c.stop(from_c);
    out.resize(out.len() + c.unread(from_c), 0);
    let left = a.left(to_c, received).expect("what is left");
    assert_eq!(received, 5 + out.len() as u64);
    assert_eq!([out, left].concat(), there);
    a.close(to_b);
    a.close(to_c);
    c.close(from_c);
    // A new one leads to the others.
    let [to_c, from_c] = join(&mut a, &mut c, [0, 2]);
    word(&mut a, to_c, &mut c, from_c);
}

#[test]
fn an_initiator_that_fails_takes_all_its_lanes_along_and_new_ones_come() {
    let job = Job::new(3, settings());
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| job.rank(rank));
    let by_b = join(&mut a, &mut b, [0, 1]);
    let by_c = join(&mut a, &mut c, [0, 2]);
    for status in [Status::GENERAL, Status::PEER_FULL] {
        (0..1000).for_each(|pair| job.fabric.fail_next(pair, status));
        let there = bytes(2 * PAYLOAD, 7);
        let _ = (a.write(by_b[0], &there), a.push(by_b[0]), a.poll());
        if a.has_failed(by_b[0]) {
            break;
        }
    }
    for lane in [by_b[0], by_c[0]] {
        let reason = a.failure(lane).expect("it has failed");
        assert!(reason.contains("status"), "{reason}");
        assert!(!a.has_room(lane, 1) && a.write(lane, b"x") == 0);
    }
    // Lanes that are made meanwhile go by another one.
    a.close(by_b[0]);
    b.close(by_b[1]);
    let by_b = join(&mut a, &mut b, [0, 1]);
    word(&mut a, by_b[0], &mut b, by_b[1]);
    assert!(a.has_failed(by_c[0]));
    a.close(by_c[0]);
    c.close(by_c[1]);
    let by_c = join(&mut a, &mut c, [0, 2]);
    word(&mut a, by_c[0], &mut c, by_c[1]);
    assert_eq!(job.fabric.pairs(), 2 + 4);
}

/// The device has not told the end of messages when their lane is given up. They go another way, and the other lanes of
/// the connection go on.
#[test]
fn what_the_device_still_reads_is_copied_and_left() {
    let job = Job::new(
        3,
        Settings {
            inline: 0,
            ..settings()
        },
    );
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| job.rank(rank));
    let by_b = join(&mut a, &mut b, [0, 1]);
    let by_c = join(&mut a, &mut c, [0, 2]);
    word(&mut a, by_b[0], &mut b, by_b[1]);
    word(&mut a, by_c[0], &mut c, by_c[1]);
    // No other host answers: what is posted waits.
    job.fabric.set_link("m1", false);
    let there = bytes(2 * PAYLOAD, 8);
    assert_eq!(a.write(by_b[0], &there), there.len());
    a.push(by_b[0]);
    a.poll();
    let received = b.stop(by_b[1]);
    assert_eq!(received, 5);
    a.stop(by_b[0]);
    assert_eq!(
        a.left(by_b[0], 5 + PAYLOAD as u64).expect("left"),
        there[PAYLOAD..]
    );
    a.close(by_b[0]);
    b.close(by_b[1]);
    assert_eq!(a.failure(by_c[0]), None, "the connection is there still");
    job.fabric.set_link("m1", true);
    job.fabric.advance(Duration::from_millis(1));
    a.poll();
    // The messages come to a lane that is over, and are in nobody's way.
    b.poll();
    let by_b = join(&mut a, &mut b, [0, 1]);
    word(&mut a, by_b[0], &mut b, by_b[1]);
}

/// What a peer was permitted may come after its lane is over. It finds a receive, and none that was promised to others.
#[test]
fn what_comes_late_has_its_receives_until_nothing_can_come() {
    let job = Job::new(
        3,
        Settings {
            receives: 16,
            receives_max: 16,
            ..settings()
        },
    );
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| job.rank(rank));
    let [to_b, to_a] = join(&mut a, &mut b, [0, 1]);
    let by_c = join(&mut a, &mut c, [0, 2]);
    word(&mut a, to_b, &mut b, to_a);
    word(&mut a, by_c[0], &mut c, by_c[1]);
    // One side has given up, and the other one does not know yet.
    b.stop(to_a);
    b.close(to_a);
    let there = bytes(2 * PAYLOAD, 1);
    assert_eq!(a.write(to_b, &there), there.len());
    a.push(to_b);
    a.poll();
    b.poll();
    assert_eq!(a.failure(to_b), None);
    a.close(to_b);
    word(&mut a, by_c[0], &mut c, by_c[1]);
    // 16 receives: of the four that the lane had permitted, two have come; two may come still.
    let mut made = Vec::new();
    let refusal = loop {
        match b.make(0) {
            Ok((lane, _)) => made.push(lane),
            Err(reason) => break reason,
        }
        assert!(made.len() < 10, "promised twice");
    };
    assert!(refusal.contains("promised"), "{refusal}");
    assert_eq!(made.len(), 3);
    // Lanes whose peer never answered end at once.
    let gives = made.pop().expect("a lane");
    b.close(gives);
    made.push(b.make(0).expect("a lane").0);
    // In time nothing can come any more.
    b.age(Instant::now() + Duration::from_secs(60));
    b.make(0).expect("a lane");
}

/// Lanes to one node share the queue of their pair. Those that find it full go on when there is room.
#[test]
fn lanes_that_find_the_queue_full_go_on() {
    const OTHERS: usize = 16;
    let job = Job::new(
        1 + OTHERS,
        Settings {
            inline: 0,
            window: 4,
            sends: 64,
            ..settings()
        },
    );
    let mut ranks: Vec<_> = (0..=OTHERS).map(|rank| job.rank(rank)).collect();
    let (a, others) = ranks.split_first_mut().expect("ranks");
    let lanes: Vec<_> = (1..)
        .zip(&mut *others)
        .map(|(rank, b)| join(a, b, [0, rank]))
        .collect();
    for ([to_b, to_a], b) in lanes.iter().zip(&mut *others) {
        word(a, *to_b, b, *to_a);
    }
    while a.next_changed().is_some() {}
    // Their queue has 24 places, and each lane may send two messages.
    let there = bytes(2 * PAYLOAD, 2);
    let mut refused = Vec::new();
    for (rank, [to_b, _]) in (1..).zip(&lanes) {
        let written = a.write(*to_b, &there);
        if written < there.len() || !a.push(*to_b) {
            refused.push((rank, written));
        }
    }
    assert!((4..8).contains(&refused.len()), "{refused:?}");
    a.poll();
    let mut changed: Vec<u32> = std::iter::from_fn(|| a.next_changed()).collect();
    changed.sort_unstable();
    assert!(
        refused.iter().all(|(rank, _)| changed.contains(rank)),
        "{changed:?}"
    );
    for (rank, written) in refused {
        let [to_b, _] = lanes[rank as usize - 1];
        assert_eq!(a.write(to_b, &there[written..]), there.len() - written);
        assert!(a.push(to_b));
    }
    for ([_, to_a], b) in lanes.iter().zip(&mut *others) {
        b.poll();
        let mut got = vec![0; b.unread(*to_a)];
        b.read(*to_a, &mut got);
        assert!(got == there);
    }
}

#[test]
fn ranks_whose_lanes_are_of_other_modes_say_so() {
    let job = Job::new(2, settings());
    let mut a = job.rank(0);
    let mut plain = Adapter::open(
        &job.fabric,
        Settings {
            device: Some("m1".to_owned()),
            ..settings()
        },
    )
    .expect("a device");
    let (to_b, offer) = a.make(1).expect("a lane");
    let (to_a, other) = plain.make(0).expect("a lane");
    a.connect(to_b, &other);
    plain.connect(to_a, &offer);
    for reason in [a.failure(to_b), plain.failure(to_a)] {
        let reason = reason.expect("refused");
        assert!(
            reason.contains("extended connections") && reason.contains("ONECOPY_VERBS_MODE"),
            "{reason}"
        );
    }
}

#[test]
fn nonsense_about_targets_fails_its_lane_alone() {
    let job = Job::new(3, settings());
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| job.rank(rank));
    let by_b = join(&mut a, &mut b, [0, 1]);
    let by_c = join(&mut a, &mut c, [0, 2]);
    // A target for an initiator that has one.
    a.hear_target(by_b[0], 4711);
    let reason = a.failure(by_b[0]).expect("refused");
    assert!(reason.contains("nobody asked for"), "{reason}");
    word(&mut a, by_c[0], &mut c, by_c[1]);
    // A rank of another node is none of the domain.
    let error = a.make(7).expect_err("no such rank");
    assert!(error.contains("rank 7"), "{error}");
}

#[test]
fn a_device_without_extended_connections_makes_no_such_lanes() {
    let fabric = Fabric::new(&[]);
    let plain = Limits {
        shared_connections: false,
        ..usual_limits()
    };
    fabric.add("plain", plain);
    let chosen = port::choose(&fabric, Some("plain")).expect("a device");
    let share = NodeShare {
        nodes: [0, 1].into(),
        file: file().into(),
    };
    let error = Adapter::on_extended(chosen, settings(), share).expect_err("none");
    let text = error.to_string();
    assert!(text.starts_with("ibv_open_xrcd of plain"), "{text}");
}

/// What the model of memory says is what is registered, and as many pairs there are.
#[test]
fn what_a_rank_takes_is_what_the_formula_says() {
    const OTHERS: u32 = 5;
    let job = Job::new(1 + OTHERS as usize, settings());
    let mut ranks: Vec<_> = (0..=OTHERS).map(|rank| job.rank(rank as usize)).collect();
    let (a, others) = ranks.split_first_mut().expect("ranks");
    let lanes: Vec<_> = (1..)
        .zip(&mut *others)
        .map(|(rank, b)| join(a, b, [0, rank]))
        .collect();
    let Settings {
        slot,
        receives,
        receives_max,
        sends,
        window,
        stripe,
        ..
    } = settings();
    let sizes = Sizes {
        slot: slot as u32,
        receives: receives as u32,
        receives_max: receives_max as u32,
        sends: sends as u32,
        depth: window,
        stripe: stripe as u32,
        ..Sizes::default()
    };
    let shape = JobShape::on(job.nodes.iter().copied());
    let need = Need::of(Mode::Extended, &shape, &sizes);
    assert_eq!(a.figures().pinned, need.pinned);
    assert!(a.can_post_reads(lanes[0][0]));
    assert!(a.figures().pinned <= need.pinned_max);
    // The formula is that of the fullest node: its ranks have one initiator each, and a fair part of the targets there.
    assert_eq!(need.pairs, 2);
    assert_eq!(job.fabric.pairs(), 2 + 2 * OTHERS as usize);
    assert!(Need::of(Mode::Connections, &shape, &sizes).pairs > need.pairs);
}
