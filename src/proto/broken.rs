// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message that is given up when some of its chunks have gone out already. The receiver is told, so that the next one
//! can begin.
//!
//! The record goes with the replies, before the next message. Collectives that fail give up messages; others, whose
//! memory was taken away. An announced message that goes in chunks is ended by the number of its transfer.

use super::deliver::{Ended, deliver};
use super::{Message, charge, give_credit, reply};
use crate::error::Error;
use crate::matching::{Envelope, OWN_CONTEXTS};
use crate::peer::{Peer, Target};
use crate::request::RequestId;
use crate::state::Core;
use crate::state::numbered::Waiting;
use crate::wire::{BreakOff, Kind};

/// Ends a message of which some chunks have gone out, and no more will.
#[cold]
pub(crate) fn break_off(core: &mut Core, peer: &mut Peer) {
    reply(core, peer, Kind::BreakOff, BreakOff::Eager.encode());
}

/// Ends the announced send `id`, whose chunks the receiver's `transfer` collects: its memory was taken away.
#[cold]
pub(crate) fn break_off_piped(core: &mut Core, peer: &mut Peer, id: RequestId, transfer: u64) {
    core.requests.complete(id, Err(Error::withdrawn(peer.rank)));
    // The receiver says that it is done with it all the same.
    core.requests.expect_answer(id, peer.rank);
    let end = BreakOff::Piped { transfer };
    reply(core, peer, Kind::BreakOff, end.encode());
}

/// What a receive ends with whose message was broken off.
fn error(envelope: &Envelope) -> Error {
    let rank = envelope.source as usize;
    match envelope.context & OWN_CONTEXTS {
        0 => Error::withdrawn(envelope.source),
        _ => Error::given_up(rank),
    }
}

/// The peer has given up a message of which a part has come.
pub(crate) fn broken_off(core: &mut Core, peer: &mut Peer, end: BreakOff) -> Result<(), String> {
    match end {
        BreakOff::Eager => eager_broken_off(core, peer),
        BreakOff::Piped { transfer } => piped_broken_off(core, peer, transfer),
    }
}

fn piped_broken_off(core: &mut Core, peer: &mut Peer, number: u64) -> Result<(), String> {
    let expected = core.transfers.piped(number, peer.rank).is_some();
    let index = core.transfers.index_of(number, peer.rank);
    let Some(transfer) = index
        .filter(|_| expected)
        .and_then(|at| core.transfers.take(at))
    else {
        return Err(format!(
            "it breaks off transfer {number:#x}, which expects nothing"
        ));
    };
    let ended = Ended {
        fin: Some(transfer.announcement.request),
        ..Ended::default()
    };
    let message = (transfer.envelope, transfer.announcement.len);
    let written = Err(error(&transfer.envelope));
    let receive = Waiting::Request(transfer.request);
    deliver(core, peer, receive, message, written, ended);
    Ok(())
}

fn eager_broken_off(core: &mut Core, peer: &mut Peer) -> Result<(), String> {
    let Some(incoming) = peer.incoming.take() else {
        return Err("no message is under way that it could break off".into());
    };
    match incoming.target {
        Target::Request(id) => core.requests.complete(id, Err(error(&incoming.envelope))),
        Target::Entry(entry) => {
            if let Message::Partial { bytes, total } = core.unexpected.take(entry) {
                peer.unexpected_bytes = peer.unexpected_bytes.saturating_sub(charge(total));
                core.counters.release_unexpected(total);
                core.give_back(bytes);
            }
        }
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
                    let mut engine = gate.enter();
                    let loan = engine.core.loans.keep(vec![1; LEN]);
                    let mode = crate::engine::SendMode::Standard;
                    let id = engine
                        .send(1, 0, 2, UserBuf::One(loan), mode)
                        .expect("send");
                    assert!(!engine.is_done(id), "it went out as a whole");
                    engine.abandon(id);
                    drop(engine);
                    world.send(&[9u8; LEN], 1, 3).expect("the next message");
                } else {
                    let mut got = [0u8; LEN];
                    world.recv(&mut got[..1], 0, 1).expect("the first message");
                    let waits = posted.then(|| {
                        let mut engine = gate.enter();
                        let loan = engine.core.loans.keep(vec![0; LEN]);
                        let buf = UserBuf::One(loan);
                        engine.receive(Some(0), 0, Some(2), buf).expect("receive")
                    });
                    meet();
                    world.recv(&mut got, 0, 3).expect("the next message");
                    assert!(got.iter().all(|&byte| byte == 9));
                    if let Some(id) = waits {
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
            let mut engine = gate.enter();
            let loan = engine.core.loans.keep(vec![1; LONG]);
            let mode = crate::engine::SendMode::Standard;
            let id = engine
                .send(1, 0, 2, UserBuf::One(loan), mode)
                .expect("send");
            while engine.core.counters.pipeline_bytes == 0 {
                engine.progress_messages(false);
            }
            assert!(!engine.is_done(id), "it went out as a whole");
            engine.core.loans.release(loan);
            drop(engine);
            let result = world.finish(id);
            assert!(
                matches!(result, Err(Error::Withdrawn { rank: 1 })),
                "{result:?}"
            );
            world.send(&[9u8], 1, 3).expect("the next message");
        } else {
            let mut engine = gate.enter();
            let loan = engine.core.loans.keep(vec![0; LONG]);
            let buf = UserBuf::One(loan);
            let id = engine.receive(Some(0), 0, Some(2), buf).expect("receive");
            let begun = Instant::now();
            while !engine.is_done(id) {
                engine.progress_messages(true);
                assert!(begun.elapsed() < Duration::from_secs(30), "it never ends");
            }
            drop(engine);
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
}
