// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doors for `tests/fuzz` to internals that no public call reaches one by one. Not part of the API.
//!
//! Each function takes what an untrusted side says, runs the production code on it, and checks what
//! must hold whatever was sent. A failed check panics, which is what a fuzzer looks for.

use crate::matching::MatchBits;
use crate::proof::{Handshake, Purpose};
use crate::records::{BreakOff, ChunkBody, Cts, Fin, Kind, Rts};
use crate::wireup::broker::{Broker, Token};
use crate::wireup::nodes::Nodes;
use crate::wireup::oob::{Frames, ToHost};
use crate::wireup::{self, Death, Event};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::Pid;
use onecopy_shm::fdpass::{self, Wait};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Decodes a record's body. What decodes must encode to a body that means the same.
pub fn record(kind: u8, envelope: u64, body: &[u8; 48]) -> bool {
    assert_eq!(MatchBits::of_word(envelope).word(), envelope);
    let Ok(kind) = Kind::try_from(kind) else {
        return false;
    };
    match kind {
        Kind::Eager | Kind::EagerSync => true,
        Kind::ChunkFirst | Kind::ChunkNext | Kind::Data => {
            let Ok(chunk) = ChunkBody::decode(kind, body) else {
                return false;
            };
            assert!(chunk.offset + u64::from(chunk.piece) <= chunk.total);
            assert_eq!(ChunkBody::decode(kind, &chunk.encode(kind)), Ok(chunk));
            true
        }
        Kind::Rts => same(Rts::decode(body), |rts| Rts::decode(&rts.encode())),
        Kind::Cts => same(Cts::decode(body), |cts| Cts::decode(&cts.encode())),
        Kind::Fin => same(Fin::decode(body), |fin| Fin::decode(&fin.encode())),
        Kind::BreakOff => BreakOff::decode(body).is_ok(),
    }
}

fn same<T: PartialEq + std::fmt::Debug, E: PartialEq + std::fmt::Debug>(
    first: Result<T, E>,
    again: impl Fn(&T) -> Result<T, E>,
) -> bool {
    let Ok(value) = first else { return false };
    assert_eq!(again(&value), Ok(value));
    true
}

/// What happens at a broker.
#[derive(Debug, Clone)]
pub enum AtBroker<'a> {
    /// A rank sends a packet with so many descriptors.
    Sends(usize, &'a [u8], usize),
    /// The broker looks at a rank's connection.
    Serve(usize),
    /// A rank reads what it was answered.
    Listen(usize),
    /// A rank closes its connection.
    HangUp(usize),
    /// The launcher's child of this rank ends.
    Ends(usize, i32),
    /// So many milliseconds pass.
    Tick(u16),
}

/// Serves a job of `ranks` by a broker, whose connections are real sockets. Every answer must be a
/// message; nothing may be kept without bound.
pub fn broker<'a>(ranks: usize, script: impl Iterator<Item = AtBroker<'a>>) {
    let mut broker = Broker::new(Duration::from_millis(500));
    let mut ends: Vec<Option<OwnedFd>> = Vec::new();
    for _ in 0..ranks {
        let Ok((ours, theirs)) = fdpass::pair() else {
            return;
        };
        if fdpass::ask_for_credentials(ours.as_fd()).is_err() {
            return;
        }
        broker.add(ours, Pid::this(), None);
        ends.push(Some(theirs));
    }
    let Ok(file) = memfd_create("segment", MFdFlags::MFD_CLOEXEC) else {
        return;
    };
    let mut now = Instant::now();
    let mut buffer = vec![0; wireup::message::MAX_MESSAGE];
    for event in script {
        match event {
            AtBroker::Sends(rank, packet, fds) => {
                if let Some(end) = &ends[rank % ranks] {
                    let fds = vec![file.as_fd(); fds.min(fdpass::MAX_FDS)];
                    // A full socket refuses; that is the rank's own loss.
                    let _ = fdpass::send(end.as_fd(), packet, &fds, Wait::Never);
                }
            }
            AtBroker::Serve(rank) => {
                let rank = rank % ranks;
                let socket = Token::Socket(rank);
                let mut polled = broker.polled();
                if polled.any(|polled| polled.read && polled.token == socket) {
                    drop(polled);
                    broker.ready(socket, now);
                }
            }
            AtBroker::Listen(rank) => listen(ends[rank % ranks].as_ref(), &mut buffer),
            AtBroker::HangUp(rank) => ends[rank % ranks] = None,
            AtBroker::Ends(rank, code) => {
                broker.child_ended(rank % ranks, Death::Code(code), now);
            }
            AtBroker::Tick(by) => {
                now += Duration::from_millis(by.into());
                drop(broker.tick(now));
            }
        }
        let _ = (broker.deadline(), broker.is_settled(), broker.is_deserted());
    }
    for end in &ends {
        listen(end.as_ref(), &mut buffer);
    }
}

fn listen(end: Option<&OwnedFd>, buffer: &mut [u8]) {
    while let Some(end) = end
        && let Ok(got) = fdpass::recv(end.as_fd(), buffer, fdpass::MAX_FDS, Wait::Never)
    {
        let message = wireup::message::ToRank::decode(&buffer[..got.len]);
        assert!(
            message.is_ok(),
            "the broker says what no rank understands: {message:?}"
        );
    }
}

/// What comes over an out-of-band connection, cut into pieces of `step` bytes, at the host of node `own` of two.
/// A peer that is not believed says no more. Nobody has proven anything by these bytes.
pub fn oob(own: u32, step: usize, stream: &[u8]) {
    let nodes = Arc::new(Nodes::by_keys([0, 0, 1, 1]));
    let (own, other) = (own % 2, 1 - own % 2);
    let mut broker = Broker::new(Duration::from_millis(500));
    broker.make_room(nodes.size());
    broker.serve_node(nodes, own);
    let now = Instant::now();
    let mut frames = Frames::default();
    'stream: for piece in stream.chunks(step.max(1)) {
        frames.take(piece);
        loop {
            match frames.next() {
                Ok(Some(message)) => {
                    assert_eq!(ToHost::decode(&message.encode()).as_ref(), Ok(&message));
                    if broker.hear(other, message, now).is_err() {
                        break 'stream;
                    }
                }
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    broker.lose_node(other);
    for one in broker.messages() {
        assert!(ToHost::decode(&one.message.encode()).is_ok());
    }
    let (secret, fresh) = ([7; 32], [1; 32]);
    for mut side in [
        Handshake::call(secret, Purpose::Oob, 2, 0, fresh),
        Handshake::answer(secret, Purpose::Oob, 0, fresh),
    ] {
        let mut rest = stream;
        while side.wanted() > 0 && !rest.is_empty() {
            let (piece, behind) = rest.split_at(side.wanted().min(rest.len()).min(step.max(1)));
            if side.take(piece).is_err() {
                break;
            }
            rest = behind;
        }
        assert_eq!(side.proven(), None);
    }
}

/// What a correct host says over an out-of-band connection.
pub struct OobStream {
    /// The node that hears it.
    pub own: u32,
    /// Its messages.
    pub bytes: Vec<u8>,
}

/// What correct hosts say, to each of both nodes.
pub fn oob_streams() -> Vec<OobStream> {
    let card = || wireup::Card {
        affinity: vec![0, 1, 5],
        pid_ns: 1,
        user_ns: 2,
        uid: 3,
        ..wireup::Card::of_this_process()
    };
    let joined = |rank| ToHost::Joined { rank, card: card() };
    let left = |rank| ToHost::Event(Event::Left { rank });
    let death = Death::Signal(9);
    let died = |rank| ToHost::Event(Event::Died { rank, death });
    let missing = |rank| wireup::Missing {
        rank,
        running: true,
    };
    let cards = |first, count| ToHost::Cards {
        first,
        total: 4,
        cards: vec![card(); count],
    };
    let stream = |own, messages: &[ToHost]| OobStream {
        own,
        bytes: messages.iter().flat_map(ToHost::frame).collect(),
    };
    let abort = ToHost::Event(Event::Abort { code: 7 });
    vec![
        stream(
            0,
            &[
                joined(2),
                joined(3),
                ToHost::Beat,
                left(3),
                died(2),
                ToHost::Farewell,
            ],
        ),
        stream(0, &[joined(3), died(2), abort.clone(), ToHost::Beat]),
        stream(1, &[cards(0, 3), cards(3, 1), left(0), died(1), abort]),
        stream(
            1,
            &[ToHost::Absent {
                waited_ms: 5,
                missing: vec![missing(1), missing(2)],
            }],
        ),
    ]
}

/// Talks to a PMI-1 server that answers these bytes, whatever it is asked.
pub fn pmi_client(answers: &[u8]) {
    let Ok((ours, theirs)) = UnixStream::pair() else {
        return;
    };
    if theirs.set_nonblocking(true).is_err() {
        return;
    }
    // All that it will ever say, at once; then it says no more, though it still listens.
    let _ = (&theirs).write(answers);
    let _ = theirs.shutdown(std::net::Shutdown::Write);
    let client = wireup::pmi::Client::new(ours.into(), 0, 2, Duration::from_secs(5));
    if let Ok(mut client) = client {
        let _ = client.put("fuzz", "key", "value");
        let _ = client.barrier("fuzz");
        let _ = client.get("fuzz", "key");
        let _ = client.finalize();
        let _ = client.abort(3);
    }
}

/// Looks for a job in an environment. A rank that is found is one of the job's.
pub fn environment(get: &dyn Fn(&str) -> Option<String>) {
    if let Ok(Some(job)) = wireup::environment::find_in(get) {
        assert!(job.rank < job.size);
        assert!(job.name().len() < 100);
    }
}
