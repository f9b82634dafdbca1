// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records from a peer: each goes to the protocol that it belongs to. So does a message that came before its receive.

use super::control::{complete_send, give_credit, notify_room, pass};
use super::destination::shown;
use super::{broken, eager, pipeline, rendezvous};
use crate::endpoint::{Endpoint, Medium, MediumOp, Record};
use crate::matching::{Envelope, MatchBits};
use crate::peer::Peer;
use crate::records::{self, BODY, ChunkBody, Cts, CtsAction, Fin, Kind, Rts};
use crate::request::{RequestId, RequestState, Requests, SendPlan};
use crate::state::transfer::Transfers;
use crate::state::{Core, Receives, UnexpectedMessage};
use onecopy_obs::tracepoints;

/// Which records are taken from a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drain {
    /// All, but for what the next receive may be for: see [`drain`]. Messages that no receive waits for are kept.
    All,
    /// All that is there: the peer has ended, or its last record decides what follows.
    Final,
    /// Those before the first message that no receive waits for.
    Expected,
}

/// Takes records from the peer's ring, at most a quota of them. An error says what no correct peer would have written.
///
/// Once this call has completed something and no receive is posted, the next message that brings its bytes stays in the
/// ring. The caller may be about to post the receive for it. A caller that goes on waiting calls again.
pub(crate) fn drain(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    which: Drain,
) -> Result<(), String> {
    let mut room = false;
    let completed = core.requests.completed;
    for _ in 0..core.knobs.progress_quota {
        let Some(record) = peer.endpoint.peek().map_err(|bad| bad.to_string())? else {
            break;
        };
        let kind = Kind::try_from(record.kind).map_err(|bad| bad.to_string())?;
        // To keep its bytes for a receive that is about to come would be one copy more.
        let brings_bytes = matches!(kind, Kind::Eager | Kind::EagerSync | Kind::ChunkFirst);
        if which == Drain::All
            && brings_bytes
            && receives.posted.is_empty()
            && core.requests.completed != completed
            && peer.inbound.incoming.is_none()
        {
            break;
        }
        let MatchBits { context, tag } = MatchBits::of_word(record.meta);
        let envelope = Envelope {
            context,
            source: peer.rank,
            tag,
        };
        if which == Drain::Expected && kind.begins() && !receives.posted.accepts(&envelope) {
            break;
        }
        let chunk = match kind {
            Kind::Eager | Kind::EagerSync => {
                eager::whole(core, receives, peer, &record, envelope, kind)?;
                None
            }
            _ => {
                let body = body(&peer.endpoint, &record, kind)?;
                control(core, receives, peer, envelope, kind, &body)?;
                records::chunk_of(kind, &body)
            }
        };
        room |= peer.endpoint.pass(record, chunk);
    }
    if room {
        notify_room(core, peer);
    }
    Ok(())
}

fn body(from: &Endpoint, record: &Record, kind: Kind) -> Result<[u8; BODY], String> {
    if record.len != BODY {
        return Err(records::BadBody::Length {
            kind,
            len: record.len,
        }
        .to_string());
    }
    let mut body = [0; BODY];
    from.read(record, 0, &mut body);
    Ok(body)
}

fn control(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    envelope: Envelope,
    kind: Kind,
    body: &[u8; BODY],
) -> Result<(), String> {
    let text = |bad: records::BadBody| bad.to_string();
    match kind {
        Kind::ChunkFirst | Kind::ChunkNext | Kind::Data => {
            let whole = ChunkBody::decode(kind, body).map_err(text)?;
            let body = shown(peer.endpoint.part(), whole)?;
            match kind {
                Kind::Data => pipeline::arrive(core, &mut receives.transfers, peer, &body),
                Kind::ChunkFirst if body.offset == whole.offset => {
                    eager::first_chunk(core, receives, peer, envelope, &body)
                }
                _ => eager::next_chunk(core, receives, peer, &body),
            }
        }
        Kind::Rts => {
            let rts = Rts::decode(body).map_err(text)?;
            rendezvous::announced(core, receives, peer, envelope, rts)
        }
        Kind::Cts => clear_to_send(core, peer, Cts::decode(body).map_err(text)?),
        Kind::Fin => finished(core, peer, Fin::decode(body).map_err(text)?),
        Kind::BreakOff => {
            let break_off = records::BreakOff::decode(body).map_err(text)?;
            broken::broken_off(core, receives, peer, break_off)
        }
        Kind::Eager | Kind::EagerSync => Ok(()),
    }
}

/// The announced send that the peer talks of; none: it was given up here. `last`: the peer does not name it again.
fn awaiting(
    requests: &mut Requests,
    rank: u32,
    request: u64,
    last: bool,
) -> Result<Option<RequestId>, String> {
    let id = RequestId(request);
    let is_waiting = requests.get(id).is_some_and(|found| {
        found.peer == rank && matches!(found.state, RequestState::Awaiting(_))
    });
    if is_waiting {
        Ok(Some(id))
    } else if requests.is_abandoned(id, rank, last) {
        Ok(None)
    } else {
        Err(format!(
            "it names request {request:#x}, which does not wait for it"
        ))
    }
}

fn clear_to_send(core: &mut Core, peer: &mut Peer, cts: Cts) -> Result<(), String> {
    let Some(id) = awaiting(&mut core.requests, peer.rank, cts.request, false)? else {
        broken::break_off_announced(core, peer, cts.transfer);
        return Ok(());
    };
    match cts.wanted {
        CtsAction::Chunks(range) => pipeline::wanted(core, peer, id, cts.transfer, range),
        CtsAction::Join => {
            if let Some(announced) = peer.outbound.announced.iter_mut().find(|a| a.request == id) {
                announced.asked_by = Some(cts.transfer);
            }
            Ok(())
        }
    }
}

fn finished(core: &mut Core, peer: &mut Peer, fin: Fin) -> Result<(), String> {
    let waiting = awaiting(&mut core.requests, peer.rank, fin.request, true)?;
    let id = RequestId(fin.request);
    if waiting.is_some() && is_announced(core, id) {
        let (by, me) = (peer.rank as usize, core.me as usize);
        tracepoints::rendezvous_finished(by, me, fin.request);
    }
    peer.outbound.answered(id);
    if waiting.is_some() {
        complete_send(core, id);
    }
    Ok(())
}

/// Takes the next record from the peer's ring if it says that the announced send `id` is received: what a blocking send
/// waits for. `false`: it is something else, and is left to [`drain`].
#[inline]
pub(crate) fn take_fin(core: &mut Core, peer: &mut Peer, id: RequestId) -> bool {
    let medium = peer.endpoint.medium();
    medium.run(|| NextAnswer { core, peer, id })
}

/// The answer to a send, if it comes next.
struct NextAnswer<'a> {
    core: &'a mut Core,
    peer: &'a mut Peer,
    id: RequestId,
}

impl MediumOp for NextAnswer<'_> {
    type Outcome = bool;

    #[inline(always)]
    fn run_on<M: Medium>(self) -> bool {
        let Self { core, peer, id } = self;
        let Some(from) = M::of(&mut peer.endpoint) else {
            return false;
        };
        let Ok(Some(record)) = from.peek() else {
            return false;
        };
        if record.kind != Kind::Fin as u8 || record.len != BODY {
            return false;
        }
        let mut body = [0; BODY];
        from.read(&record, 0, &mut body);
        let Some(fin) = Fin::decode(&body).ok().filter(|fin| fin.request == id.0) else {
            return false;
        };
        pass(core, from, record, None);
        peer.idle_polls = 0;
        // It is awaited: an error would say that it is not.
        finished(core, peer, fin).is_ok()
    }
}

/// Whether a send is an announced one, not a synchronous one that went out whole.
fn is_announced(core: &Core, id: RequestId) -> bool {
    let request = core.requests.get(id);
    request.is_some_and(|request| {
        matches!(
            request.state,
            RequestState::Awaiting(SendPlan::Announced { .. } | SendPlan::Piped { .. })
        )
    })
}

/// Gives a whole or announced message to a receive.
pub(crate) fn accept(
    core: &mut Core,
    transfers: &mut Transfers,
    peer: &mut Peer,
    envelope: Envelope,
    message: UnexpectedMessage,
    id: RequestId,
) {
    if let Some(request) = core.requests.get_mut(id) {
        request.begin_receiving(&envelope);
    }
    match message {
        UnexpectedMessage::Whole(whole) => eager::accept_whole(core, peer, envelope, whole, id),
        UnexpectedMessage::Announced(announcement) => {
            let list = announcement.list_charge();
            peer.inbound.matched(list);
            give_credit(core, peer, list);
            rendezvous::start(core, transfers, peer, envelope, announcement, id)
        }
        UnexpectedMessage::Partial(_) | UnexpectedMessage::Own(_) => {
            debug_assert!(false, "handled by the callers")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Drain, drain};
    use crate::engine::Engine;
    use crate::runtime::local_with;
    use onecopy_obs::Knobs;
    use std::sync::Barrier;

    /// What completes something does not end them, as it ends a look.
    #[test]
    fn last_words_are_taken_whatever_they_complete() {
        for (which, all) in [(Drain::All, false), (Drain::Final, true)] {
            let outside = Barrier::new(2);
            local_with(2, &Knobs::default(), |rt| {
                let world = rt.world();
                if rt.rank() == 0 {
                    let first = world.issend(vec![1u8; 8], 1, 0).expect("issend");
                    world.recv(&mut [0u8; 8], 1, 1).expect("received");
                    outside.wait();
                    outside.wait();
                    {
                        let mut worker = rt.handle().gate.enter();
                        let Engine {
                            core,
                            receives,
                            peers,
                            ..
                        } = &mut worker.engine;
                        let peer = peers[1].as_mut().expect("connected");
                        drain(core, receives, peer, which).expect("no rogue");
                        assert_eq!(peer.endpoint.is_empty(), all, "{which:?}");
                    }
                    first.wait().expect("sent");
                    world.recv(&mut [0u8; 5000], 1, 2).expect("received");
                } else {
                    world.send(&[2u8; 8], 0, 1).expect("send");
                    outside.wait();
                    // Its sender hears of the match, and more comes behind.
                    world.recv(&mut [0u8; 8], 0, 0).expect("received");
                    world.send(&[3u8; 5000], 0, 2).expect("send");
                    outside.wait();
                }
            });
        }
    }

    /// Whatever brings its bytes: in slots, in one chunk and in several, and with a request of its sender's.
    #[test]
    fn what_comes_behind_the_last_receive_waits_for_its_own() {
        // On every machine: some announce such a message, others do not.
        let knobs = Knobs::from_iter([("ONECOPY_EAGER_MAX", "64K")])
            .expect("a knob")
            .0;
        for (len, sync) in [(8, false), (8, true), (5000, false), (40_000, false)] {
            let outside = Barrier::new(2);
            local_with(2, &knobs, |rt| {
                let world = rt.world();
                if rt.rank() == 0 {
                    let send = |byte: u8| world.isend(vec![byte; len], 1, 0).expect("isend");
                    let first = send(1);
                    let second = match sync {
                        true => world.issend(vec![2u8; len], 1, 0).expect("issend"),
                        false => send(2),
                    };
                    outside.wait();
                    first.wait().expect("sent");
                    second.wait().expect("sent");
                } else {
                    outside.wait();
                    for byte in [1, 2] {
                        let receive = world.irecv(vec![0u8; len], 0, 0).expect("irecv");
                        let (got, _) = receive.wait().expect("received");
                        assert!(got.iter().all(|&found| found == byte), "{len} bytes");
                    }
                    let counters = rt.counters();
                    assert_eq!(counters.recv_unexpected, 0, "{len} bytes, {sync}");
                }
            });
        }
    }
}
