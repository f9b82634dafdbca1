// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mixed traffic between all pairs that goes on when a rank dies.
//!
//! Each pair has its own sequence of messages, so that a death changes nothing for the others. Every byte is checked.

use super::job::{self, CrashRun, Random};
use onecopy::wireup::Death;
use onecopy::{Comm, Error, Runtime};
use std::io::IoSlice;

/// Variable with the number of rounds.
pub(crate) const ROUNDS: &str = "TEST_ROUNDS";
/// Variable `rank:microseconds`: this rank kills itself so long after its start.
pub(crate) const KILL: &str = "TEST_KILL";

/// The byte of message `number` from `from` to `to` at `offset`.
fn byte(number: usize, from: usize, to: usize, offset: usize) -> u8 {
    let seed = number.wrapping_mul(2_654_435_761) ^ (from * 64 + to).wrapping_mul(40_503);
    (offset.wrapping_mul(31) ^ (offset >> 8) ^ seed ^ (seed >> 13)) as u8
}

fn fill(buffer: &mut [u8], number: usize, from: usize, to: usize) {
    for (offset, place) in buffer.iter_mut().enumerate() {
        *place = byte(number, from, to, offset);
    }
}

fn check(buffer: &[u8], number: usize, from: usize, to: usize) {
    if let Some(offset) =
        (0..buffer.len()).find(|&offset| buffer[offset] != byte(number, from, to, offset))
    {
        panic!(
            "message {number} of {} bytes from {from} to {to} is wrong from byte {offset} on",
            buffer.len()
        );
    }
}

/// The kinds of message of a round: size, whether from memory of `alloc`, whether to such memory, how it is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Synchronous,
    Pieces,
    Exchange,
}

const SHAPES: [(usize, bool, bool, Way); 14] = [
    (8, false, false, Way::Plain),
    (300, false, false, Way::Plain),
    (0, false, false, Way::Synchronous),
    // The larger rank answers in the chunks that the last ones came in.
    (4000, false, false, Way::Plain),
    (4000, false, false, Way::Plain),
    (4000, false, false, Way::Plain),
    (40_000, false, false, Way::Plain),
    (700, false, false, Way::Synchronous),
    (200_000, false, false, Way::Plain),
    (150_000, false, false, Way::Pieces),
    (60_000, true, false, Way::Plain),
    (1 << 20, true, true, Way::Plain),
    (700_000, false, true, Way::Exchange),
    (5000, false, false, Way::Synchronous),
];

/// Whether the error says, in order, that `peer` is dead.
pub(crate) fn names(error: &Error, peer: usize) -> bool {
    match error {
        Error::PeerDied { rank, death } => {
            *rank == peer && matches!(death, Death::Signal(9) | Death::Unknown)
        }
        // It died between its last farewell and its end.
        Error::PeerLeft { rank } => *rank == peer,
        _ => false,
    }
}

struct Partner {
    rank: usize,
    dead: bool,
}

/// A blocking call that may find the partner dead.
fn unless_dead<T>(partner: &mut Partner, result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(
                names(&error, partner.rank),
                "instead of the death of {}: {error}",
                partner.rank
            );
            if !partner.dead {
                job::say(&format!("error {} {}", partner.rank, job::now()));
            }
            partner.dead = true;
            None
        }
    }
}

/// One message each way with a partner. The smaller rank sends first, so that nobody waits in a circle.
fn exchange(rt: &Runtime, world: &Comm, partner: &mut Partner, number: usize) {
    let (size, from_heap, to_heap, way) = SHAPES[number % SHAPES.len()];
    let (me, peer, tag) = (world.rank(), partner.rank, number as i32);
    // Without the heap layer there is no such memory.
    let alloc = |wanted: bool| wanted.then(|| rt.alloc(size).ok()).flatten();
    let mut own = (alloc(from_heap), vec![0; size]);
    let mut got = (alloc(to_heap), vec![0; size]);
    let own: &mut [u8] = own.0.as_deref_mut().unwrap_or(&mut own.1);
    let got: &mut [u8] = got.0.as_deref_mut().unwrap_or(&mut got.1);
    fill(own, number, me, peer);
    if way == Way::Exchange {
        let result = world.sendrecv(own, peer, tag, got, peer, tag);
        if unless_dead(partner, result).is_some() {
            check(got, number, peer, me);
        }
        return;
    }
    for step in 0..2 {
        if partner.dead {
            return;
        }
        if (me < peer) == (step == 0) {
            let sent = match way {
                Way::Synchronous => world.ssend(own, peer, tag),
                Way::Pieces => {
                    let (front, back) = own.split_at(own.len() / 3);
                    world.send_iov(&[IoSlice::new(front), IoSlice::new(back)], peer, tag)
                }
                _ => world.send(own, peer, tag),
            };
            unless_dead(partner, sent);
        } else {
            let received = world.recv(got, peer, tag);
            if let Some(status) = unless_dead(partner, received) {
                assert_eq!((status.source, status.tag, status.bytes), (peer, tag, size));
                check(got, number, peer, me);
            }
        }
    }
}

/// Everybody's messages of several kinds are under way at once.
fn all_at_once(world: &Comm, partners: &mut [Partner], number: usize) {
    let me = world.rank();
    let size = [64, 2000, 30_000, 400_000][number % 4];
    let tag = number as i32;
    let alive: Vec<usize> = (0..partners.len()).filter(|&i| !partners[i].dead).collect();
    let mut sent: Vec<Vec<u8>> = vec![vec![0; size]; alive.len()];
    let mut got: Vec<Vec<u8>> = vec![vec![0; size]; alive.len()];
    for (buffer, &i) in sent.iter_mut().zip(&alive) {
        fill(buffer, number, me, partners[i].rank);
    }
    let results = world.scope(|scope| {
        let mut requests = Vec::new();
        for ((own, got), &i) in sent.iter().zip(&mut got).zip(&alive) {
            let peer = partners[i].rank;
            requests.push((i, scope.irecv(got, peer, tag), scope.isend(own, peer, tag)));
        }
        let wait = |request: Result<_, Error>| request.and_then(|request| scope.wait(request));
        let waited = requests
            .into_iter()
            .map(|(i, received, sent)| (i, wait(received), wait(sent)));
        waited.collect::<Vec<_>>()
    });
    for ((i, received, sent), got) in results.into_iter().zip(&got) {
        unless_dead(&mut partners[i], sent);
        if unless_dead(&mut partners[i], received).is_some() {
            check(got, number, partners[i].rank, me);
        }
    }
}

/// Makes this rank die at the moment that the environment names, if it names this rank.
pub(crate) fn die_in_time() {
    let me = std::env::var("ONECOPY_JOB_RANK").ok();
    let me = me
        .and_then(|text| text.parse::<usize>().ok())
        .expect("a rank");
    if let Ok(kill) = std::env::var(KILL)
        && let Some((rank, micros)) = kill.split_once(':')
        && rank.parse() == Ok(me)
    {
        let micros = micros.parse().expect("microseconds");
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_micros(micros));
            job::say(&format!("dying {}", job::now()));
            job::die();
        });
    }
}

/// What a rank does.
pub(crate) fn rank() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<usize>().ok())
    };
    let me = number("ONECOPY_JOB_RANK").expect("a rank");
    die_in_time();
    let rounds = number(ROUNDS).unwrap_or(4);
    let rt = match Runtime::init() {
        Ok(rt) => rt,
        Err(Error::Wireup(error)) => {
            // A rank that died before it joined: nobody can join, and everybody is told who is missing.
            assert!(
                matches!(*error, onecopy::wireup::WireupError::Absent { .. }),
                "{error}"
            );
            job::say("absent");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let world = rt.world();
    let mut partners: Vec<Partner> = (1..world.size())
        .map(|distance| Partner {
            rank: me ^ distance,
            dead: false,
        })
        .collect();
    let mut order = Random(me as u64);
    for round in 0..rounds {
        // The same partner at the same time: an exchange of pairs.
        for partner in &mut partners {
            for shape in 0..SHAPES.len() {
                if !partner.dead {
                    exchange(&rt, &world, partner, round * SHAPES.len() + shape);
                }
            }
        }
        for wave in 0..4 {
            let first = order.below(partners.len() as u64) as usize;
            partners.rotate_left(first);
            all_at_once(&world, &mut partners, 100_000 + round * 4 + wave);
            partners.sort_by_key(|partner| me ^ partner.rank);
        }
    }
    let dead: Vec<_> = partners
        .iter()
        .filter(|partner| partner.dead)
        .map(|p| p.rank.to_string())
        .collect();
    let counters = rt.counters();
    // All that was sent to this rank by the living is received. What the dead had sent is no message any more that is
    // held as one.
    if dead.is_empty() {
        // Others may be in the last barrier already.
        assert!(counters.unexpected_bytes_now <= 64, "{counters:?}");
    }
    assert_eq!(counters.protocol_errors, 0);
    #[cfg(feature = "fault-points")]
    super::labels::say_passings();
    drop(world);
    rt.finalize().expect("finalize");
    #[cfg(feature = "fault-points")]
    super::labels::say_passings();
    job::say(&format!("dead {}", dead.join(",")));
}

/// Checks a run of which `victim` may have died.
pub(crate) fn verify(ran: &CrashRun, victim: usize, what: &str) -> bool {
    let died = ran.ranks[victim] == Death::Signal(9);
    for (rank, death) in ran.ranks.iter().enumerate() {
        if rank == victim && died {
            continue;
        }
        assert_eq!(
            *death,
            Death::Code(0),
            "{what}: rank {rank}: {}",
            ran.story()
        );
        let end = ran.reports(rank, "dead");
        assert!(
            end.len() == 1 || !ran.reports(rank, "absent").is_empty(),
            "{what}: rank {rank}: {}",
            ran.story()
        );
        if let Some(dead) = end.first() {
            let found = dead.first().map(String::as_str);
            assert!(
                found.is_none() || found == Some(&victim.to_string()),
                "{what}: {}",
                ran.story()
            );
        }
    }
    died
}
