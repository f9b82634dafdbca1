// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chunks that return: a rank answers in chunks that it has read. And messages that go at once, as a whole or not at
//! all.

#[path = "harness/bytes.rs"]
mod bytes;

use bytes::{check, pattern};
use onecopy::{ChunkCopy, Comm, Knobs, local_of_nodes, local_with};
use onecopy_shm::sync::{AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};

/// Chunks of 16 KiB, of which a peer may have 16.
fn knobs() -> Knobs {
    let mut knobs = Knobs {
        chunk_copy: ChunkCopy::String,
        pool_writable: Some(true),
        ..Knobs::default()
    };
    knobs.set("ONECOPY_LAYERS", "cico").expect("a layer");
    knobs
}

/// A message to the other of two ranks, and one from it: `first` says which goes first. `sent` is called by both after
/// each of the two is sent, and before it is received.
fn trade(world: &Comm, round: usize, len: usize, first: bool, sent: impl Fn()) {
    let mine = Placed::new(&pattern(len, seed(round, world.rank())), 0);
    trade_of(world, round, mine.bytes(), first, sent);
}

/// Bytes that begin so far behind a cache line: in how many pieces a message is cut depends on that.
struct Placed {
    room: Vec<u8>,
    range: std::ops::Range<usize>,
}

impl Placed {
    fn new(bytes: &[u8], behind: usize) -> Self {
        let mut room = vec![0; bytes.len() + 128];
        let address = room.as_ptr().addr();
        let begin = address.next_multiple_of(64) + behind - address;
        let range = begin..begin + bytes.len();
        room[range.clone()].copy_from_slice(bytes);
        Self { room, range }
    }

    fn bytes(&self) -> &[u8] {
        &self.room[self.range.clone()]
    }
}

fn seed(round: usize, rank: usize) -> usize {
    1000 * round + rank
}

/// The same of bytes that lie where the caller has put them.
fn trade_of(world: &Comm, round: usize, mine: &[u8], first: bool, sent: impl Fn()) {
    let peer = 1 - world.rank();
    let mut got = vec![0; mine.len()];
    for sends in [first, !first] {
        if sends {
            world.send(mine, peer, 0).expect("send");
        }
        sent();
        if !sends {
            world.recv(&mut got, peer, 0).expect("receive");
        }
    }
    check(&got, seed(round, peer), "an answer");
}

fn exchange(world: &Comm, round: usize, len: usize, first: bool) {
    trade(world, round, len, first, || {});
}

/// As [`exchange`], of messages that the chunks have room for. Each rank receives what is there, so that none waits so
/// long that it gives back what it kept.
fn take_turns(world: &Comm, barrier: &Barrier, round: usize, len: usize, first: bool) {
    trade(world, round, len, first, || {
        barrier.wait();
    });
}

#[test]
fn answers_go_in_the_chunks_of_what_they_answer() {
    const ROUNDS: usize = 50;
    for (writable, step, len, return_min) in [
        (true, "16K", 2000, 3 << 10),
        (true, "16K", 6000, 3 << 10),
        (true, "16K", 64 << 10, 3 << 10),
        (true, "16K", 256 << 10, 3 << 10),
        // It has chunks of fewer bytes than the shortest message that returns.
        (true, "2K", 16 << 10, 3 << 10),
        (false, "16K", 64 << 10, 3 << 10),
        // Short messages return, too, and those that slots would hold.
        (true, "16K", 511, 512),
        (true, "16K", 512, 512),
        (true, "16K", 2000, 512),
        (false, "16K", 2000, 512),
    ] {
        let mut knobs = Knobs {
            pool_writable: Some(writable),
            return_min,
            ..knobs()
        };
        knobs.set("ONECOPY_PIPELINE_CHUNK", step).expect("a size");
        let barrier = Barrier::new(2);
        let returned = AtomicU64::new(0);
        local_with(2, &knobs, |rt| {
            for round in 0..ROUNDS {
                take_turns(&rt.world(), &barrier, round, len, rt.rank() == 0);
            }
            // Those of the one that first sends in chunks return, or the other one's.
            returned.fetch_add(rt.counters().chunks_returned, Ordering::Relaxed);
        });
        let returned = returned.into_inner();
        let chunks = if step == "2K" {
            8
        } else {
            len.div_ceil(16 << 10)
        };
        let sent = (ROUNDS * chunks) as u64;
        if !writable || len < return_min {
            assert_eq!(returned, 0, "{len}");
        } else {
            assert!(returned > sent / 2, "{len}: {returned} of {sent}");
        }
    }
}

/// Of three chunks two may be kept, of four three: those that come back count, too. And a short message, which comes
/// back whole, does not make the next longer one look unanswered.
#[test]
fn what_came_back_counts() {
    const ROUNDS: usize = 200;
    let returned = |share: usize, lens: [usize; 2]| {
        let knobs = Knobs {
            pool_per_peer: Some(share),
            ..knobs()
        };
        let barrier = Barrier::new(2);
        returned_by_second(&knobs, ROUNDS, |world, round| {
            let len = lens[round % 2];
            take_turns(world, &barrier, round, len, world.rank() == 0);
        })
    };
    // All that may be kept returns with each message; with every second one, and few others, if they do not count.
    for (chunks, kept) in [(3, 2), (4, 3)] {
        let bytes = chunks * (16 << 10);
        assert_eq!(returned(bytes, [bytes; 2]), kept * (ROUNDS - 1), "{chunks}");
    }
    // Two chunks return with every second message and one with the others; or with the others alone.
    let (returned, all) = (returned(48 << 10, [32 << 10, 8 << 10]), ROUNDS + ROUNDS / 2);
    assert!(returned > all * 2 / 3, "{returned} of {all}");
}

/// Bytes lie in their chunks as they do in their buffer, and pieces end where its lines do. So what begins behind a
/// line takes a chunk more, where it fills chunks otherwise, and the answer returns that one, too.
#[test]
fn what_begins_behind_a_line_takes_a_chunk_more() {
    const ROUNDS: usize = 50;
    const LEN: usize = 64 << 10;
    let returned = |behind: usize| {
        let barrier = Barrier::new(2);
        returned_by_second(&knobs(), ROUNDS, |world, round| {
            let mine = Placed::new(&pattern(LEN, seed(round, world.rank())), behind);
            trade_of(world, round, mine.bytes(), world.rank() == 0, || {
                barrier.wait();
            });
        })
    };
    let (at_a_line, behind) = (returned(0), returned(16));
    assert!(at_a_line > 2 * ROUNDS, "{at_a_line} of 4 each");
    assert!(behind > at_a_line, "{behind} and {at_a_line}");
    assert_eq!(returned(64), at_a_line);
}

/// A receiver that has asked for a message in chunks answers in them, if no other one comes that way.
#[test]
fn a_pipe_is_answered_in_its_chunks() {
    const ROUNDS: usize = 50;
    const CHUNKS: usize = 8;
    let mut knobs = knobs();
    knobs.set("ONECOPY_EAGER_MAX", "4K").expect("a size");
    let returned = returned_by_second(&knobs, ROUNDS, |world, round| {
        exchange(world, round, CHUNKS << 14, world.rank() == 0);
    });
    // A rank that waits long gives back what it kept, so they are not all.
    assert!(returned > 0, "none of {}", ROUNDS * CHUNKS);
}

/// How many chunks the second of two ranks returns in so many rounds.
fn returned_by_second(knobs: &Knobs, rounds: usize, round: impl Fn(&Comm, usize) + Sync) -> usize {
    let returned = OnceLock::new();
    local_with(2, knobs, |rt| {
        let world = rt.world();
        (0..rounds).for_each(|number| round(&world, number));
        if rt.rank() == 1 {
            let _ = returned.set(rt.counters().chunks_returned as usize);
        }
    });
    returned.into_inner().expect("the second rank has run")
}

/// Both send, then both receive; windows one way; answers that are shorter, longer, missing. Bytes are right, and no
/// one waits for chunks that the other keeps.
#[test]
fn whatever_two_ranks_do_chunks_suffice() {
    for share in [16 << 10, 64 << 10, 256 << 10] {
        let knobs = Knobs {
            pool_per_peer: Some(share),
            ..knobs()
        };
        local_with(2, &knobs, |rt| {
            let world = rt.world();
            let (me, peer) = (rt.rank(), 1 - rt.rank());
            for round in 0..20 {
                for len in [5000, 16_384, 100_000, 256 << 10] {
                    exchange(&world, round, len, me == 0);
                    let mut got = vec![0; len];
                    let mine = pattern(len, round + me);
                    world
                        .sendrecv(&mine, peer, 1, &mut got, peer, 1)
                        .expect("both");
                    check(&got, round + peer, "both at once");
                    // Short ones take several slots each, and no-ops fill the ends of rings.
                    exchange(&world, round, 1000 + 100 * round, me == 0);
                    // Several one way, which nobody answers.
                    for number in 0..round % 5 {
                        if me == round % 2 {
                            world.send(&pattern(len, number), peer, 2).expect("send");
                        } else {
                            world.recv(&mut got, peer, 2).expect("receive");
                            check(&got, number, "a window");
                        }
                    }
                }
            }
        });
    }
}

/// A ring of which a quarter may be unread has room for the longest record, whatever came in chunks that returned.
#[test]
fn a_small_ring_is_emptied() {
    let knobs = Knobs {
        ring_slots: Some(32),
        ..knobs()
    };
    local_with(2, &knobs, |rt| {
        let world = rt.world();
        for rounds in 0..40 {
            let short = pattern(700, rounds);
            for round in 0..=rounds {
                if rt.rank() == 1 && round % 10 == 0 {
                    world.send(&short, 0, 1).expect("send");
                } else if rt.rank() == 0 && round % 10 == 0 {
                    let mut got = vec![0; short.len()];
                    world.recv(&mut got, 1, 1).expect("receive");
                    check(&got, rounds, "a record of several slots");
                }
                exchange(&world, round, 5000, rt.rank() == 0);
            }
        }
    });
}

/// Fifteen of sixteen chunks are out, and a message in two pieces is to go at once.
#[test]
fn what_goes_at_once_goes_as_a_whole() {
    let outside = Barrier::new(2);
    local_with(2, &knobs(), |rt| {
        let world = rt.world();
        let (short, long) = (4096, 9216);
        exchange(&world, 0, short, rt.rank() == 0);
        if rt.rank() == 0 {
            for number in 0..15 {
                assert!(world.send_at_once(&pattern(short, number), 1, 0).is_sent());
            }
            // It is this rank's turn: what it sends next is cut in halves.
            world.recv(&mut [0], 1, 3).expect("receive");
            let message = pattern(long, 15);
            assert!(
                !world.send_at_once(&message, 1, 0).is_sent(),
                "a part of it"
            );
            outside.wait();
            world.send(&message, 1, 0).expect("send");
            // There is room for both halves.
            world.recv(&mut [0], 1, 3).expect("receive");
            assert!(world.send_at_once(&pattern(long, 16), 1, 0).is_sent());
        } else {
            world.send(&[0], 0, 3).expect("send");
            outside.wait();
            let mut got = vec![0; long];
            for number in 0..17 {
                let len = world.recv(&mut got, 0, 0).expect("receive").bytes;
                assert_eq!(len, if number < 15 { short } else { long });
                check(&got[..len], number, "in order");
                if number == 15 {
                    world.send(&[0], 0, 3).expect("send");
                }
            }
        }
    });
}

/// The same between nodes, where a piece is shorter than a chunk.
#[test]
fn what_goes_at_once_between_nodes_goes_as_a_whole() {
    let knobs = Knobs {
        tcp_piece: 1024,
        ..Knobs::default()
    };
    local_of_nodes(2, 2, &knobs, |rt| {
        let world = rt.world();
        exchange(&world, 0, 100, rt.rank() == 0);
        for number in 0..200 {
            let message = pattern(12_000, number);
            if rt.rank() == 0 {
                if !world.send_at_once(&message, 1, 0).is_sent() {
                    world.send(&message, 1, 0).expect("send");
                }
            } else {
                let mut got = vec![0; message.len()];
                world.recv(&mut got, 0, 0).expect("receive");
                check(&got, number, "in order");
            }
        }
    });
}

/// Knobs with which messages from 512 bytes on go in chunks that return.
fn short_ones_return(share: usize) -> Knobs {
    let mut knobs = Knobs {
        return_min: 512,
        pool_per_peer: Some(share),
        ..knobs()
    };
    knobs.set("ONECOPY_LAYERS", "cico,tcp").expect("layers");
    knobs
}

/// How many of three short messages that wait for their receives go in chunks, between two ranks of `nodes` nodes.
/// `answered`: each is followed by a word from the receiver.
fn three_in_chunks(knobs: &Knobs, nodes: u32, answered: bool) -> u64 {
    let in_chunks = OnceLock::new();
    local_of_nodes(2, nodes, knobs, |rt| {
        let (world, me) = (rt.world(), rt.rank());
        let word = || {
            if me == 0 {
                world.recv(&mut [0], 1, 1).expect("a word");
            } else {
                world.send(&[0], 0, 1).expect("a word");
            }
        };
        word();
        for number in 0..3 {
            if me == 0 {
                world.send(&pattern(700, number), 1, 0).expect("send");
            }
            if answered {
                word();
            }
        }
        if me == 0 {
            in_chunks.set(rt.counters().sends_chunk).expect("once");
        }
        world.barrier().expect("barrier");
        for number in 0..3 {
            let mut got = vec![0; 700];
            if me == 1 {
                world.recv(&mut got, 0, 0).expect("receive");
                check(&got, number, "a short message");
            }
        }
    });
    in_chunks.into_inner().expect("rank 0 has sent")
}

/// Where chunks are short, a message goes in slots that would hold it. It does not wait.
#[test]
fn a_short_message_without_a_chunk_goes_in_slots() {
    assert_eq!(three_in_chunks(&short_ones_return(256 << 10), 1, true), 3);
    assert_eq!(three_in_chunks(&short_ones_return(32 << 10), 1, true), 2);
}

/// Nor do short messages take chunks where none comes back: too few to keep any, or a wire between the two.
#[test]
fn a_short_message_goes_in_slots_where_no_chunk_returns() {
    assert_eq!(three_in_chunks(&short_ones_return(16 << 10), 1, true), 0);
    assert_eq!(three_in_chunks(&short_ones_return(256 << 10), 2, true), 0);
}

/// Nor what follows another message, with nothing from the receiver in between.
#[test]
fn a_short_message_that_is_not_answered_goes_in_slots() {
    let knobs = short_ones_return(256 << 10);
    assert_eq!(three_in_chunks(&knobs, 1, false), 1, "the first one may be");
    let windows = |knobs: &Knobs| {
        let in_chunks = OnceLock::new();
        local_with(2, knobs, |rt| {
            let (world, me) = (rt.world(), rt.rank());
            for number in 0..64 {
                if me == 0 {
                    world.send(&pattern(700, number), 1, 0).expect("send");
                } else {
                    let mut got = vec![0; 700];
                    world.recv(&mut got, 0, 0).expect("receive");
                    check(&got, number, "a short message");
                }
                // A window is answered as a whole.
                if number % 8 == 7 {
                    world.barrier().expect("barrier");
                }
            }
            if me == 0 {
                in_chunks.set(rt.counters().sends_chunk).expect("once");
            }
        });
        in_chunks.into_inner().expect("rank 0 has sent")
    };
    assert!(windows(&knobs) <= 1);
}
