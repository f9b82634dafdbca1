// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank on another node that has the job's secret and talks nonsense.

use crate::endpoint::{Connector, EventSource, Outcome, Set, SocketSettings};
use crate::error::Error;
use crate::records::{BODY, ChunkBody, Fin, Kind, Rts, SourceLayout};
use crate::runtime::{Options, Runtime};
use crate::wireup::local::{Local, world_of_nodes};
use crate::wireup::{Card, Wireup};
use crate::{Source, Tag};
use nix::sys::memfd::{MFdFlags, memfd_create};
use onecopy_obs::Knobs;
use onecopy_shm::layout::ChunkName;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Joins as a rank, and connects with rank 0.
fn connect(mut wireup: Local, knobs: &Knobs) -> (Local, TcpStream) {
    let net = wireup.net().expect("several nodes");
    let set = Arc::new(Set::new().expect("epoll"));
    let settings = SocketSettings {
        me: wireup.rank() as u32,
        secret: net.secret,
        stream: knobs.stream(),
    };
    let mut connector = Connector::listen(net.address, settings, &set).expect("listen");
    let card = Card {
        listens: connector.address().ok(),
        ..Card::of_this_process()
    };
    let segment = memfd_create("rogue", MFdFlags::MFD_CLOEXEC).expect("memfd");
    let cards = wireup.join(card, segment.as_fd()).expect("join");
    connector.set_addresses([cards[0].listens, None].into_iter());
    connector.connect(0, Instant::now());
    loop {
        connector.ready(EventSource::Outbound(0), Instant::now());
        match connector.outcome() {
            Some(Outcome::Connected(0, fd)) => return (wireup, TcpStream::from(fd)),
            Some(other) => panic!("{other:?}"),
            None => std::thread::yield_now(),
        }
    }
}

/// What rank 0 makes of these bytes while it waits for a message of that rank. `cut`: they are all that comes.
fn made_of(bytes: &[u8], cut: bool) -> Error {
    let mut world = world_of_nodes(2, 2).expect("a world");
    let rogue = world.pop().expect("rank 1");
    let wireup = world.pop().expect("rank 0");
    std::thread::scope(|scope| {
        let victim = scope.spawn(move || {
            let options = Options {
                wireup: Some(Box::new(wireup)),
                ..Options::default()
            };
            let runtime = Runtime::init_with(options).expect("join");
            let mut got = vec![0u8; 1 << 20];
            runtime.world().recv(&mut got, 1, 0).expect_err("nonsense")
        });
        let (wireup, mut stream) = connect(rogue, &Knobs::default());
        stream.set_nonblocking(false).expect("blocking");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("timeout");
        // It may have hung up in the middle of it.
        let _ = stream.write_all(bytes);
        if cut {
            drop(stream);
        } else {
            let _ = stream.read_to_end(&mut Vec::new());
        }
        let error = victim.join().expect("no panic");
        drop(wireup);
        error
    })
}

fn frame(what: u8, kind: u8, len: usize, chunk: usize, word: u64) -> Vec<u8> {
    let mut head = vec![what, kind];
    head.extend((len as u16).to_le_bytes());
    head.extend((chunk as u32).to_le_bytes());
    head.extend(word.to_le_bytes());
    head
}

fn record(kind: Kind, body: &[u8], chunk: &[u8]) -> Vec<u8> {
    let mut bytes = frame(1, kind as u8, body.len(), chunk.len(), 0);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(chunk);
    bytes
}

fn chunk(total: u64, offset: u64, piece: u32) -> ChunkBody {
    ChunkBody {
        total,
        offset,
        chunk: ChunkName::from_word(7),
        begin: 0,
        piece,
        number: crate::records::NONE,
    }
}

#[test]
fn nonsense_fails_its_sender_and_nobody_else() {
    let first = |body: ChunkBody| body.encode(Kind::ChunkFirst);
    let mut flipped = first(chunk(100, 0, 100));
    flipped[3] ^= 4;
    let list = SourceLayout::List {
        chunk: ChunkName::from_word(0),
        count: 9,
        cookie: None,
    };
    let rts = Rts {
        len: 100,
        request: 1,
        layout: list,
        coop_id: 0,
        rewritten: false,
    };
    let cases: &[(&str, Vec<u8>)] = &[
        ("zeros", vec![0; 64]),
        ("no kind of frame", frame(9, 0, 0, 0, 0)),
        ("no kind of record", frame(1, 0, 0, 0, 0)),
        ("an unknown kind", frame(1, 99, 0, 0, 0)),
        ("a record that is too long", frame(1, 1, 60_000, 0, 0)),
        ("a chunk that is too long", frame(1, 3, BODY, 1 << 30, 0)),
        ("a chunk behind a message", frame(1, 1, 1000, 100, 0)),
        ("credit with a payload", frame(2, 0, 8, 0, 1)),
        (
            "a flipped bit",
            record(Kind::ChunkFirst, &flipped, &[0; 100]),
        ),
        (
            "another length",
            record(Kind::ChunkFirst, &first(chunk(100, 0, 100)), &[0; 99]),
        ),
        (
            "no chunk",
            record(Kind::ChunkFirst, &first(chunk(100, 0, 100)), &[]),
        ),
        (
            "more than the credit",
            record(Kind::ChunkFirst, &first(chunk(1 << 40, 0, 10)), &[0; 10]),
        ),
        (
            "the middle first",
            record(Kind::ChunkFirst, &first(chunk(100, 50, 50)), &[0; 50]),
        ),
        (
            "no message",
            record(
                Kind::ChunkNext,
                &chunk(100, 0, 100).encode(Kind::ChunkNext),
                &[0; 100],
            ),
        ),
        (
            "no transfer",
            record(
                Kind::Data,
                &chunk(100, 0, 100).encode(Kind::Data),
                &[0; 100],
            ),
        ),
        (
            "a list that is not there",
            record(Kind::Rts, &rts.encode(), &[]),
        ),
        ("a short list", record(Kind::Rts, &rts.encode(), &[0; 24])),
        (
            "no request",
            record(Kind::Fin, &Fin { request: 3 }.encode(), &[]),
        ),
        (
            "something behind the farewell",
            [frame(4, 0, 0, 0, 0), frame(1, 1, 0, 0, 0)].concat(),
        ),
    ];
    for (what, bytes) in cases {
        let error = made_of(bytes, false);
        assert!(
            matches!(error, Error::Protocol { rank: 1, .. }),
            "{what}: {error}"
        );
    }
}

#[test]
fn a_stream_that_is_cut_is_a_death_and_a_word_is_a_word() {
    let half = &record(
        Kind::ChunkFirst,
        &chunk(100, 0, 100).encode(Kind::ChunkFirst),
        &[0; 100],
    )[..80];
    for bytes in [&[][..], &frame(1, 1, 100, 0, 0), half] {
        let error = made_of(bytes, true);
        assert!(matches!(error, Error::PeerDied { rank: 1, .. }), "{error}");
    }
    let error = made_of(&frame(3, 0, 0, 0, 0), false);
    assert!(
        matches!(error, Error::Unreachable { rank: 1, .. }),
        "{error}"
    );
}

/// A rank is given up while a frame to it is on its way: it reads whole frames, and then GIVEN_UP.
#[test]
fn a_peer_given_up_amid_a_frame_is_notified_behind_it() {
    const LEN: usize = 60_000;
    let set = [("ONECOPY_TCP_BUFFER", "16K")];
    let knobs = Knobs::from_iter(set).expect("knobs").0;
    let mut world = world_of_nodes(2, 2).expect("a world");
    let rogue = world.pop().expect("rank 1");
    let wireup = world.pop().expect("rank 0");
    std::thread::scope(|scope| {
        let options = Options {
            knobs: knobs.clone(),
            wireup: Some(Box::new(wireup)),
            ..Options::default()
        };
        let victim = scope.spawn(move || {
            let runtime = Runtime::init_with(options).expect("join");
            let world = runtime.world();
            // Until then it does not call itself.
            world.recv(&mut [0u8; 0], 1, 0).expect("the word");
            let message = vec![5u8; LEN];
            let sent = world.scope(|scope| {
                for _ in 0..16 {
                    scope.isend(&message, 1, 0)?;
                }
                scope.wait_all()
            });
            sent.expect_err("nonsense")
        });
        let (wireup, mut stream) = connect(rogue, &knobs);
        stream.set_nonblocking(false).expect("blocking");
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).expect("timeout");
        let word = record(Kind::Eager, &[], &[]);
        stream.write_all(&word).expect("write");
        // So that the room between them is full.
        std::thread::sleep(Duration::from_millis(300));
        stream.write_all(&frame(9, 0, 0, 0, 0)).expect("write");
        // So that it is given up before there is room.
        std::thread::sleep(Duration::from_millis(300));
        let last = last_frame(&mut stream);
        let error = victim.join().expect("no panic");
        assert!(matches!(error, Error::Protocol { rank: 1, .. }), "{error}");
        assert_eq!(last, Ok(3), "the last word");
        drop(wireup);
    });
}

/// Reads frames to the end. Gives what the last one is, or how much of one there is.
fn last_frame(stream: &mut TcpStream) -> Result<u8, usize> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("read");
    let (mut rest, mut last) = (&bytes[..], 0);
    while !rest.is_empty() {
        let Some(head) = rest.first_chunk::<16>() else {
            return Err(rest.len());
        };
        let [what, _, a, b, c, d, e, f, ..] = *head;
        let len = usize::from(u16::from_le_bytes([a, b]));
        let chunk = u32::from_le_bytes([c, d, e, f]) as usize;
        rest = rest.get(16 + len + chunk..).ok_or(rest.len())?;
        last = what;
    }
    Ok(last)
}

/// A call looks at a wire that is not polled, and reads more than the message that it waits for.
#[test]
fn what_a_call_reads_of_a_wire_that_is_not_polled_is_found() {
    // Whether both messages come with one read is chance.
    for _ in 0..8 {
        read_two_and_wait_for_one();
    }
}

fn read_two_and_wait_for_one() {
    let sent = Barrier::new(2);
    let mut world = world_of_nodes(2, 2).expect("a world");
    let join = |wireup: Local| {
        let wireup: Option<Box<dyn Wireup>> = Some(Box::new(wireup));
        let options = Options {
            wireup,
            ..Options::default()
        };
        Runtime::init_with(options).expect("join")
    };
    let (second, first) = (world.pop().expect("rank 1"), world.pop().expect("rank 0"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rt = join(second);
            let world = rt.world();
            world.ssend(&[0u8], 0, 0).expect("both are connected");
            sent.wait();
            world.send(&[1u8], 0, 1).expect("send");
            world.send(&[2u8], 0, 2).expect("send");
            sent.wait();
            rt.finalize().expect("finalize");
        });
        let rt = join(first);
        let (world, mut got) = (rt.world(), [9u8]);
        world.recv(&mut got, 1, 0).expect("both are connected");
        rt.handle().gate.enter().engine.retire(1);
        sent.wait();
        sent.wait();
        world.recv(&mut got, 1, 1).expect("the first");
        assert_eq!(got, [1]);
        let limit = Instant::now() + Duration::from_secs(20);
        let found = loop {
            let found = world.iprobe(Source::Any, Tag::Any).expect("look");
            if found.is_some() || Instant::now() > limit {
                break found;
            }
        };
        assert_eq!(found.map(|status| status.tag), Some(2), "it was read");
        world.recv(&mut got, 1, 2).expect("the second");
        rt.finalize().expect("finalize");
    });
}
