// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message that its sender gives up. If some of its chunks have gone out already, the receiver is notified, so that
//! the next one can begin. If it was announced and the receiver has asked for something, it gets a refusal of that.
//!
//! The record goes with the replies, before the next message. Messages are given up by collectives that fail, and when
//! the memory of a send is taken away. For an announced message the record names the receiver's transfer. The receiver
//! still has the last word, its FIN, as on any other.

use super::control::{give_credit, reply};
use super::deliver::{Ended, Message, Receiver, deliver};
use crate::error::Error;
use crate::matching::{Envelope, OWN_CONTEXTS, Unexpected};
use crate::peer::{Peer, Target, charge};
use crate::records::{BreakOff, Kind};
use crate::request::RequestId;
use crate::state::UnexpectedMessage;
use crate::state::transfer::{Mode, Transfers};
use crate::state::{Core, Receives};

/// Ends a message of which some chunks have gone out, and no more will.
#[cold]
pub(crate) fn break_off(core: &mut Core, peer: &mut Peer) {
    reply(core, peer, Kind::BreakOff, BreakOff::Eager.encode());
}

/// Tells the receiver of an announced message that its transfer gets nothing more of what it has asked for.
#[cold]
pub(crate) fn break_off_announced(core: &mut Core, peer: &mut Peer, transfer: u64) {
    let break_off = BreakOff::Announced { transfer };
    reply(core, peer, Kind::BreakOff, break_off.encode());
}

/// The announced send `id` is no more: this rank takes no part in it, and refuses what a receiver has asked for.
#[cold]
pub(crate) fn withdraw(core: &mut Core, peer: &mut Peer, id: RequestId) {
    if let Some(transfer) = peer.outbound.withdraw(id) {
        break_off_announced(core, peer, transfer);
    }
}

/// What a receive ends with whose message was broken off.
fn error(envelope: &Envelope) -> Error {
    let rank = envelope.source as usize;
    match envelope.context & OWN_CONTEXTS {
        0 => Error::withdrawn(envelope.source),
        _ => Error::given_up(rank),
    }
}

/// The peer has given up a message of which a part has come or was asked for.
pub(crate) fn broken_off(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    break_off: BreakOff,
) -> Result<(), String> {
    match break_off {
        BreakOff::Eager => eager_broken_off(core, &mut receives.unexpected, peer),
        BreakOff::Announced { transfer } => {
            announced_broken_off(core, &mut receives.transfers, peer, transfer)
        }
    }
}

fn announced_broken_off(
    core: &mut Core,
    transfers: &mut Transfers,
    peer: &mut Peer,
    number: u64,
) -> Result<(), String> {
    let Some(index) = transfers.index_of(number, peer.rank) else {
        // It ended before the peer knew: the peer was notified.
        return Ok(());
    };
    match transfers.get_mut(index).map(|transfer| &mut transfer.mode) {
        Some(Mode::Cooperative(receiving)) => {
            receiving.stop(&peer.endpoint);
            receiving.close(peer);
        }
        // The peer was asked for nothing.
        Some(Mode::RdmaRead(_) | Mode::Direct(_)) => {
            return Err(format!(
                "it breaks off transfer {number:#x}, for which nothing was asked of it"
            ));
        }
        Some(Mode::Pipe(_)) => peer.inbound.end_pipe(),
        Some(Mode::Choose | Mode::Get(_) | Mode::Own(_)) | None => {}
    }
    let Some(transfer) = transfers.remove(index) else {
        return Ok(());
    };
    let ended = Ended {
        fin: Some(transfer.announcement.request),
        ..Ended::default()
    };
    let message = Message::of_transfer(&transfer);
    let written = Err(error(&transfer.envelope));
    let receiver = Receiver::Request(transfer.request);
    deliver(core, peer, receiver, message, written, ended);
    Ok(())
}

fn eager_broken_off(
    core: &mut Core,
    unexpected: &mut Unexpected<UnexpectedMessage>,
    peer: &mut Peer,
) -> Result<(), String> {
    let Some(incoming) = peer.inbound.incoming.take() else {
        return Err("no message is under way that it could break off".into());
    };
    match incoming.target {
        Target::Request(id) => core.requests.complete(id, Err(error(&incoming.envelope))),
        Target::Entry(entry) => {
            if let UnexpectedMessage::Partial(partial) = unexpected.take(entry) {
                peer.inbound.release(charge(partial.total));
                core.release_stored(partial.bytes, partial.total);
            }
        }
        Target::Nowhere => {}
    }
    give_credit(core, peer, charge(incoming.total));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::request::UserBuf;
    use crate::runtime::{Runtime, local_of_nodes, local_with};
    use crate::{Source, Tag};
    use onecopy_obs::Knobs;
    use std::time::{Duration, Instant};

    const LEN: usize = 40_000;

    /// Half of a message goes out, then it is given up; with a receive that waits for it, and without. What is sent
    /// next arrives.
    #[test]
    fn the_next_message_arrives() {
        let settings = [
            ("ONECOPY_LAYERS", "cico"),
            ("ONECOPY_CHUNK_SIZE", "4K"),
            ("ONECOPY_PIPELINE_CHUNK", "4K"),
            ("ONECOPY_POOL_PER_PEER", "8K"),
            ("ONECOPY_EAGER_MAX", "64K"),
            ("ONECOPY_EAGER_CREDIT", "1M"),
        ];
        let knobs = Knobs::from_iter(settings).expect("knobs").0;
        for posted in [true, false] {
            local_with(2, &knobs, |rt| {
                let world = rt.world();
                let gate = &rt.handle().gate;
                let meet = || world.barrier().expect("barrier");
                if rt.rank() == 0 {
                    world.send(&[7u8], 1, 1).expect("the first message");
                    meet();
                    let mut worker = gate.enter();
                    let loan = worker.engine.core.loans.keep(vec![1; LEN]);
                    let mode = crate::engine::SendMode::Standard;
                    let id = worker
                        .engine
                        .send(1, 0, 2, UserBuf::One(loan), mode)
                        .expect("send");
                    assert!(!worker.engine.is_done(id), "it went out as a whole");
                    worker.engine.abandon(id);
                    drop(worker);
                    world.send(&[9u8; LEN], 1, 3).expect("the next message");
                } else {
                    let mut got = [0u8; LEN];
                    world.recv(&mut got[..1], 0, 1).expect("the first message");
                    let receive = posted.then(|| {
                        let mut worker = gate.enter();
                        let loan = worker.engine.core.loans.keep(vec![0; LEN]);
                        let buf = UserBuf::One(loan);
                        worker
                            .engine
                            .receive(Some(0), 0, Some(2), buf)
                            .expect("receive")
                    });
                    meet();
                    world.recv(&mut got, 0, 3).expect("the next message");
                    assert!(got.iter().all(|&byte| byte == 9));
                    if let Some(id) = receive {
                        let result = world.finish(id);
                        assert!(
                            matches!(result, Err(Error::Withdrawn { rank: 0 })),
                            "{result:?}"
                        );
                    } else {
                        let left = world.iprobe(Source::Any, Tag::Any).expect("probe");
                        assert_eq!(left, None);
                    }
                }
                meet();
                rt.finalize().expect("finalize");
            });
        }
    }

    /// Chunks of an announced message have gone out when its memory is taken away.
    fn taken_away(rt: Runtime) {
        const LONG: usize = 8 << 20;
        let world = rt.world();
        let gate = &rt.handle().gate;
        if rt.rank() == 0 {
            let mut worker = gate.enter();
            let loan = worker.engine.core.loans.keep(vec![1; LONG]);
            let mode = crate::engine::SendMode::Standard;
            let id = worker
                .engine
                .send(1, 0, 2, UserBuf::One(loan), mode)
                .expect("send");
            while worker.engine.core.counters.pipeline_bytes == 0 {
                worker.engine.progress_messages(false);
            }
            assert!(!worker.engine.is_done(id), "it went out as a whole");
            worker.engine.core.loans.release(loan);
            drop(worker);
            let result = world.finish(id);
            assert!(
                matches!(result, Err(Error::Withdrawn { rank: 1 })),
                "{result:?}"
            );
            world.send(&[9u8], 1, 3).expect("the next message");
        } else {
            let mut worker = gate.enter();
            let loan = worker.engine.core.loans.keep(vec![0; LONG]);
            let buf = UserBuf::One(loan);
            let id = worker
                .engine
                .receive(Some(0), 0, Some(2), buf)
                .expect("receive");
            let begun = Instant::now();
            while !worker.engine.is_done(id) {
                worker.engine.progress_messages(true);
                assert!(begun.elapsed() < Duration::from_secs(30), "it never ends");
            }
            drop(worker);
            let result = world.finish(id);
            assert!(
                matches!(result, Err(Error::Withdrawn { rank: 0 })),
                "{result:?}"
            );
            let mut got = [0u8];
            world.recv(&mut got, 0, 3).expect("the next message");
            assert_eq!(got, [9]);
        }
        world.barrier().expect("barrier");
        rt.finalize().expect("finalize");
    }

    #[test]
    fn a_receive_whose_announced_message_is_taken_away_ends() {
        let settings = [
            ("ONECOPY_LAYERS", "cico,tcp"),
            ("ONECOPY_PROGRESS_QUOTA", "4"),
            ("ONECOPY_TCP_PIECE", "4K"),
        ];
        let knobs = Knobs::from_iter(settings).expect("knobs").0;
        local_with(2, &knobs, taken_away);
        local_of_nodes(2, 2, &knobs, taken_away);
    }

    /// How a send is given up, and who still waits for it.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum GivenUp {
        /// Before its receiver has asked.
        Early,
        /// The same, and the receiver gives up, too.
        Both,
        /// When a part of what the receiver asked for is out.
        Half,
        /// Before its receiver has asked for a copy into its heap, which it cannot make.
        Put,
        /// After that.
        LatePut,
    }

    /// A message that was announced is given up: neither side keeps anything of it, and the next one arrives.
    #[test]
    fn an_announced_message_leaves_nothing() {
        const LONG: usize = 1 << 20;
        for case in [
            GivenUp::Early,
            GivenUp::Both,
            GivenUp::Half,
            GivenUp::Put,
            GivenUp::LatePut,
        ] {
            let puts = matches!(case, GivenUp::Put | GivenUp::LatePut);
            let settings = [
                ("ONECOPY_LAYERS", if puts { "cico,heap" } else { "cico" }),
                ("ONECOPY_PIPELINE_CHUNK", "4K"),
                ("ONECOPY_POOL_PER_PEER", "8K"),
            ];
            let knobs = Knobs::from_iter(settings).expect("knobs").0;
            local_with(2, &knobs, |rt| {
                let world = rt.world();
                let gate = &rt.handle().gate;
                let mut got = [0u8];
                if rt.rank() == 0 {
                    world.send(&[1u8], 1, 1).expect("the first message");
                    let mut worker = gate.enter();
                    let loan = worker.engine.core.loans.keep(vec![1; LONG]);
                    let mode = crate::engine::SendMode::Standard;
                    let id = worker.engine.send(1, 0, 2, UserBuf::One(loan), mode);
                    let id = id.expect("send");
                    let asked = |worker: &crate::coll::Worker| {
                        let peer = worker.engine.peers[1].as_ref().expect("connected");
                        let joins = peer.outbound.announced.iter().any(|a| a.asked_by.is_some());
                        joins || !peer.outbound.pipes.is_empty()
                    };
                    while matches!(case, GivenUp::Half | GivenUp::LatePut) && !asked(&worker) {
                        worker.progress(false);
                    }
                    worker.engine.abandon(id);
                    drop(worker);
                    world.send(&[2u8], 1, 3).expect("the word");
                    world.recv(&mut got, 1, 4).expect("it is over");
                    let worker = gate.enter();
                    assert!(worker.engine.core.requests.none_abandoned(), "{case:?}");
                    let peer = worker.engine.peers[1].as_ref().expect("connected");
                    assert_eq!(peer.outbound.unanswered(), 0, "{case:?}");
                    assert!(peer.outbound.announced.is_empty() && peer.outbound.pipes.is_empty());
                } else {
                    world.recv(&mut got, 0, 1).expect("the first message");
                    if case == GivenUp::Both {
                        world
                            .recv(&mut got, 0, 3)
                            .expect("the announcement is here");
                        let mut worker = gate.enter();
                        let loan = worker.engine.core.loans.keep(vec![0; LONG]);
                        let buf = UserBuf::One(loan);
                        let id = worker.engine.receive(Some(0), 0, Some(2), buf);
                        worker.engine.abandon(id.expect("receive"));
                        while !worker.engine.receives.transfers.is_empty() {
                            worker.progress(false);
                        }
                    } else {
                        let mut heap = rt.alloc(LONG).expect("memory");
                        let error = world.recv(&mut heap, 0, 2).expect_err("given up");
                        assert!(matches!(error, Error::Withdrawn { rank: 0 }), "{error}");
                        world.recv(&mut got, 0, 3).expect("the word");
                    }
                    world.send(&[3u8], 0, 4).expect("it is over");
                    let worker = gate.enter();
                    assert!(worker.engine.receives.transfers.is_empty(), "{case:?}");
                    let peer = worker.engine.peers[0].as_ref().expect("connected");
                    assert_eq!(peer.inbound.coop_in_use, None, "{case:?}");
                }
                rt.finalize().expect("finalize");
            });
        }
    }
}
