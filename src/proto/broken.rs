// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message that is given up when some of its chunks have gone out already. The receiver is told, so that the next one
//! can begin.
//!
//! The record goes with the replies, before the next message. Collectives that fail give up messages; others, whose
//! memory was taken away.

use super::{Message, charge, give_credit, reply};
use crate::error::Error;
use crate::matching::OWN_CONTEXTS;
use crate::peer::{Peer, Target};
use crate::state::Core;
use crate::wire::{BreakOff, Kind};

/// Ends a message of which some chunks have gone out, and no more will.
#[cold]
pub(crate) fn break_off(core: &mut Core, peer: &mut Peer) {
    reply(core, peer, Kind::BreakOff, BreakOff::encode());
}

/// The peer has given up the message that is under way.
pub(crate) fn broken_off(core: &mut Core, peer: &mut Peer) -> Result<(), String> {
    let Some(incoming) = peer.incoming.take() else {
        return Err("no message is under way that it could break off".into());
    };
    match incoming.target {
        Target::Request(id) => {
            let error = if incoming.envelope.context & OWN_CONTEXTS == 0 {
                Error::withdrawn(peer.rank)
            } else {
                Error::given_up(peer.rank as usize)
            };
            core.requests.complete(id, Err(error));
        }
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
    use crate::runtime::local_with;
    use crate::{Source, Tag};
    use onecopy_obs::Knobs;

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
}
