// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two sides of a lane, and a network between them that loses, doubles, delays and alters what it likes.

use super::super::head::HEAD;
use super::*;
use proptest::prelude::*;

const KEYS: [u64; 2] = [0x5eed_0001, 0x0bad_cafe];
const ROOM: usize = 100;

/// What happens to a packet, each in percent.
#[derive(Clone, Copy, Debug)]
struct Fate {
    loss: u64,
    twice: u64,
    late: u64,
    altered: u64,
}

/// splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn happens(&mut self, percent: u64) -> bool {
        self.roll() % 100 < percent
    }
}

struct Packet {
    /// When it arrives, and where.
    due: Duration,
    to: usize,
    bytes: Vec<u8>,
}

struct Side {
    arq: Arq,
    /// The stream that it sends, how much was added, and what it has read of the other one.
    stream: Vec<u8>,
    added: usize,
    got: Vec<u8>,
    broken: Option<&'static str>,
}

struct Net {
    dice: Dice,
    fate: Fate,
    now: Duration,
    flying: Vec<Packet>,
    refused: u64,
    window: u32,
    sides: [Side; 2],
}

impl Net {
    fn new(seed: u64, fate: Fate, window: u32, limit: Duration, lengths: [usize; 2]) -> Self {
        let side = |length: usize, salt: u64| {
            let mut dice = Dice(seed ^ salt);
            let mut arq = Arq::new(window, limit);
            arq.begin(arq.permits());
            Side {
                arq,
                stream: (0..length).map(|_| dice.roll() as u8).collect(),
                added: 0,
                got: Vec::new(),
                broken: None,
            }
        };
        Self {
            dice: Dice(seed),
            fate,
            now: Duration::from_secs(1),
            flying: Vec::new(),
            refused: 0,
            window,
            sides: [side(lengths[0], 1), side(lengths[1], 2)],
        }
    }

    fn post(&mut self, from: usize) {
        while self.sides[from].broken.is_none()
            && let Some(out) = self.sides[from].arq.next()
        {
            let to = 1 - from;
            let arq = &mut self.sides[from].arq;
            let mut bytes = arq.head(to as u32, out).encode(KEYS[to]).to_vec();
            bytes.extend_from_slice(arq.bytes(out));
            arq.went(out, self.now);
            if self.dice.happens(self.fate.loss) {
                continue;
            }
            if self.dice.happens(self.fate.altered) {
                let bit = self.dice.roll() as usize % (8 * HEAD);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for _ in 0..1 + usize::from(self.dice.happens(self.fate.twice)) {
                let longer = match self.dice.happens(self.fate.late) {
                    true => self.dice.roll() % 30_000,
                    false => self.dice.roll() % 50,
                };
                self.flying.push(Packet {
                    due: self.now + Duration::from_micros(10 + longer),
                    to,
                    bytes: bytes.clone(),
                });
            }
        }
    }

    fn arrive(&mut self, packet: &Packet) {
        let Packet { to, bytes, .. } = packet;
        let raw: &[u8; HEAD] = bytes.first_chunk().expect("a head");
        let Some(head) = Head::open(raw, KEYS[*to]) else {
            self.refused += 1;
            return;
        };
        let side = &mut self.sides[*to];
        let fill = |body: &mut Vec<u8>| bytes[HEAD..].clone_into(body);
        let received = side.arq.receive(&head, fill, self.now, &mut Vec::new());
        received.expect("a correct peer");
    }

    /// The programs of both sides.
    fn run(&mut self, reads: bool) {
        for index in 0..2 {
            let side = &mut self.sides[index];
            if side.broken.is_some() {
                continue;
            }
            while side.added < side.stream.len() {
                if !side.arq.has_room(1, || self.now) {
                    break;
                }
                let most = ROOM.min(side.stream.len() - side.added);
                let len = 1 + self.dice.roll() as usize % most;
                let packet = side.stream[side.added..side.added + len].to_vec();
                side.arq.add(packet, self.now);
                side.added += len;
            }
            if reads {
                let mut out = vec![0; self.dice.roll() as usize % 300];
                let count = side.arq.read(&mut out, &mut Vec::new());
                side.got.extend_from_slice(&out[..count]);
            }
            side.arq.acknowledge_in_time(self.now);
            if let Err(reason) = side.arq.tend(self.now) {
                side.broken = Some(reason);
            }
            let (sent, came) = self.sides[index].arq.kept();
            assert!(sent <= self.window as usize && came <= self.window as usize);
            self.post(index);
        }
    }

    /// Lets time pass until nothing is left to do, or both sides are broken, or `until`.
    fn go(&mut self, until: Duration, reads: impl Fn(Duration) -> bool) {
        while self.now < until && !self.is_over() {
            self.run(reads(self.now));
            self.now += Duration::from_micros(25);
            let now = self.now;
            let (due, later) = std::mem::take(&mut self.flying)
                .into_iter()
                .partition::<Vec<_>, _>(|packet| packet.due <= now);
            self.flying = later;
            for packet in &due {
                self.arrive(packet);
            }
            if due.is_empty() && self.flying.is_empty() {
                // Nothing happens before a side's clock says so.
                let due = self.sides.iter().filter(|side| side.broken.is_none());
                let due = due.filter_map(|side| side.arq.due()).min();
                self.now = due
                    .unwrap_or(self.now)
                    .clamp(now, now + Duration::from_millis(20));
            }
        }
    }

    fn is_over(&self) -> bool {
        let [a, b] = &self.sides;
        let done = |from: &Side, to: &Side| {
            from.broken.is_some() || from.arq.is_taken() && to.got.len() == from.stream.len()
        };
        done(a, b) && done(b, a)
    }

    /// What each side has is the beginning of the other's stream, and what a sender would send by another way is its
    /// end.
    fn check(&mut self) {
        for index in 0..2 {
            let reader = &mut self.sides[1 - index];
            let mut rest = vec![0; reader.arq.unread()];
            let count = reader.arq.read(&mut rest, &mut Vec::new());
            reader.got.extend_from_slice(&rest[..count]);
            let received = reader.arq.received();
            assert_eq!(received, reader.got.len() as u64);
            let got = reader.got.clone();
            let sender = &self.sides[index];
            assert_eq!(got, sender.stream[..got.len()]);
            let left = sender.arq.left(received).expect("what is left");
            assert_eq!([got, left].concat(), sender.stream[..sender.added]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_arrives_once_and_in_order(
        seed: u64,
        (loss, twice, late, altered) in (0u64..40, 0u64..30, 0u64..40, 0u64..20),
        window in 1u32..=64,
        lengths in [0usize..20_000, 0usize..20_000],
        lazy: bool,
    ) {
        let fate = Fate { loss, twice, late, altered };
        let mut net = Net::new(seed, fate, window, Duration::from_secs(60), lengths);
        let lazy = move |now: Duration| !lazy || now.as_millis() / 50 % 2 == 1;
        net.go(Duration::from_secs(10_000), lazy);
        net.check();
        for side in &net.sides {
            prop_assert_eq!(side.broken, None);
            prop_assert_eq!(side.added, side.stream.len());
        }
        prop_assert_eq!(net.sides[1].got.len(), lengths[0]);
        prop_assert_eq!(net.sides[0].got.len(), lengths[1]);
        prop_assert!(altered > 0 || net.refused == 0);
    }

    /// The network dies amid it: both sides that wait for something find out, and agree on what has come.
    #[test]
    fn a_dead_network_is_reported_within_the_limit(seed: u64, window in 1u32..=64, after in 1u64..40) {
        let limit = Duration::from_millis(500);
        let fate = Fate { loss: 5, twice: 5, late: 20, altered: 5 };
        let mut net = Net::new(seed, fate, window, limit, [200_000; 2]);
        net.go(Duration::from_millis(1000 + after), |_| true);
        net.fate.loss = 100;
        let dead = net.now;
        net.go(Duration::from_secs(100), |_| true);
        for side in &net.sides {
            prop_assert!(side.broken.is_some());
        }
        prop_assert!(net.now <= dead + limit + Duration::from_millis(300), "{:?}", net.now - dead);
        net.flying.clear();
        net.check();
    }

    /// Of nonsense with a good seal a lane is given up, or nothing comes of it. It never keeps more than its window.
    #[test]
    fn nonsense_is_bounded(heads in proptest::collection::vec(
        (0u32..80, 0u32..80, 0u32..150, any::<u64>(), 0u16..4, any::<bool>()), 0..200))
    {
        let mut arq = Arq::new(16, Duration::from_secs(1));
        arq.begin(16);
        let mut now = Duration::ZERO;
        for (number, next, permitted, sacks, len, asks) in heads {
            now += Duration::from_millis(1);
            if arq.room() > 0 {
                arq.add(vec![1; 9], now);
            }
            while let Some(out) = arq.next() {
                arq.went(out, now);
            }
            let head = Head { mark: 0, number, next, permitted, sacks, len, asks };
            let received = arq.receive(&head, |body| body.resize(len.into(), 0), now, &mut Vec::new());
            let (sent, came) = arq.kept();
            prop_assert!(sent <= 16 && came <= 16);
            if received.is_err() {
                break;
            }
        }
    }
}

/// A window that is closed, and whose opening is lost, is asked about.
#[test]
fn a_lost_permission_stops_nobody() {
    let mut a = Arq::new(2, Duration::from_secs(1));
    let mut b = Arq::new(2, Duration::from_secs(1));
    let mut now = Duration::from_secs(1);
    let spare = &mut Vec::new();
    a.begin(2);
    b.begin(2);
    for byte in 0..2 {
        a.add(vec![byte], now);
        let out = a.next().expect("room");
        let head = a.head(0, out);
        b.receive(&head, |body| *body = vec![byte], now, spare)
            .expect("a packet");
        a.went(out, now);
    }
    // It hears that they came, and not that they were read.
    let control = b.head(0, Out::Control);
    b.went(Out::Control, now);
    a.receive(&control, |_| (), now, spare)
        .expect("a control message");
    assert_eq!((a.room(), a.is_taken(), a.next()), (0, true, None));
    assert_eq!(b.read(&mut [0; 9], spare), 2);
    assert_eq!(b.next(), Some(Out::Control));
    b.went(Out::Control, now);
    assert!(!a.has_room(1, || now));
    for _ in 0..3 {
        now = a.due().expect("it asks");
        a.tend(now).expect("not so soon");
        assert_eq!(a.next(), Some(Out::Control));
        let asks = a.head(0, Out::Control);
        assert!(asks.asks);
        a.went(Out::Control, now);
        b.receive(&asks, |_| (), now, spare)
            .expect("a control message");
    }
    assert_eq!(b.next(), Some(Out::Control));
    let answer = b.head(0, Out::Control);
    let received = a
        .receive(&answer, |_| (), now, spare)
        .expect("a control message");
    assert_eq!((received.room, a.room()), (true, 2));
    // Where the peer does not answer, the lane is over.
    let mut alone = Arq::new(2, Duration::from_secs(1));
    assert!(!alone.has_room(1, || now));
    assert!(alone.tend(now + Duration::from_secs(1)).is_ok());
    assert!(alone.tend(now + Duration::from_millis(1001)).is_err());
}

/// The same where some permission is left, but less than a message needs.
#[test]
fn a_lost_permission_stops_no_longer_message() {
    let mut a = Arq::new(8, Duration::from_secs(1));
    let mut b = Arq::new(8, Duration::from_secs(1));
    let mut now = Duration::from_secs(1);
    let spare = &mut Vec::new();
    a.begin(8);
    b.begin(8);
    for byte in 0..7 {
        a.add(vec![byte], now);
        let out = a.next().expect("room");
        let head = a.head(0, out);
        b.receive(&head, |body| *body = vec![byte], now, spare)
            .expect("a packet");
        a.went(out, now);
    }
    let control = b.head(0, Out::Control);
    b.went(Out::Control, now);
    a.receive(&control, |_| (), now, spare)
        .expect("a control message");
    assert_eq!(b.read(&mut [0; 9], spare), 7);
    // This one is lost.
    b.went(Out::Control, now);
    assert_eq!((a.room(), a.is_taken()), (1, true));
    assert!(a.has_room(1, || now) && !a.has_room(2, || now));
    now = a.due().expect("it asks");
    a.tend(now).expect("not so soon");
    assert_eq!(a.next(), Some(Out::Control));
    let asks = a.head(0, Out::Control);
    a.went(Out::Control, now);
    b.receive(&asks, |_| (), now, spare)
        .expect("a control message");
    let answer = b.head(0, Out::Control);
    a.receive(&answer, |_| (), now, spare)
        .expect("a control message");
    assert!(a.has_room(2, || now));
    assert_eq!(a.due(), None, "nobody waits any more");
}

/// A lane needs no more room than its peer can ever have.
#[test]
fn a_peer_of_a_smaller_window_stops_nobody() {
    let mut arq = Arq::new(64, Duration::from_secs(1));
    arq.begin(4);
    let now = Duration::from_secs(1);
    let spare = &mut Vec::new();
    for number in 1..=100 {
        assert!(arq.has_room(u32::MAX, || now), "packet {number}");
        arq.add(vec![1], now);
        let out = arq.next().expect("room");
        arq.went(out, now);
        let head = Head {
            mark: 0,
            number: 0,
            next: number,
            permitted: number + 4,
            sacks: 0,
            len: 0,
            asks: false,
        };
        arq.receive(&head, |_| (), now, spare)
            .expect("a control message");
    }
}
