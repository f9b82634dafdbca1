// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a send goes: decided once, by its size, where its bytes lie, the receiver's credit, and whether its buffer has
//! changed.

use crate::peer::{Peer, charge};
use crate::request::{RequestId, RequestState, SendPlan, UserBuf};
use crate::select::{SendProtocol, SenderState, unasked};
use crate::state::Core;
use onecopy_shm::loan::{Loan, LoanRange};

/// Whether credit for `bytes` more is there. The sender looks at the receiver's line only when what it knows does not
/// suffice.
#[inline(always)]
pub(crate) fn has_credit(core: &Core, peer: &mut Peer, bytes: u64) -> bool {
    peer.outbound.credit.covers(bytes) || refresh_credit(core, peer, bytes)
}

#[cold]
fn refresh_credit(core: &Core, peer: &mut Peer, bytes: u64) -> bool {
    let credit = &mut peer.outbound.credit;
    credit.learn(peer.endpoint.credit_back(), core.knobs.eager_credit as u64);
    credit.covers(bytes)
}

/// What a send is, as far as its protocol depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing {
    /// Bytes.
    pub(crate) len: u64,
    /// Whether its buffer lies in this rank's heap.
    pub(crate) in_heap: bool,
    /// Whether it is complete only when it is matched.
    pub(crate) sync: bool,
}

/// Decides how a message goes. `changed` looks whether its buffer has changed since it was last sent, and is asked at
/// most once.
#[inline]
pub(crate) fn plan(
    core: &mut Core,
    peer: &mut Peer,
    out: Outgoing,
    changed: impl FnOnce(&mut Core) -> bool,
) -> SendPlan {
    let Outgoing { len, in_heap, sync } = out;
    let credit = has_credit(core, peer, charge(len));
    if !credit {
        core.counters.credit_stalls += 1;
    }
    // A user who has set the size is obeyed, and no peer asks for short ones.
    let wanted = match len < unasked::MIN || core.knobs.eager_max.is_some() {
        true => u64::MAX,
        false => peer.endpoint.wants_announced().max(unasked::MIN),
    };
    let message = SenderState {
        len,
        extra: if sync { SYNC_BYTES as u64 } else { 0 },
        in_heap,
        has_credit: credit,
        answered: peer.endpoint.is_answered(),
        wanted,
    };
    let thresholds = &peer.policy.thresholds;
    match thresholds.send_protocol(&message, || changed(core)) {
        SendProtocol::Slots => {
            if len > thresholds.slots_max as u64 {
                peer.endpoint.begins_in_slots();
            }
            SendPlan::Slots
        }
        SendProtocol::Chunks => SendPlan::Chunks { sent: 0 },
        SendProtocol::Announced if len < thresholds.announce_from(in_heap).min(wanted) => {
            SendPlan::Stalled
        }
        SendProtocol::Announced if thresholds.receiver_copies_alone(len, in_heap) => {
            SendPlan::Announced { coop_id: 0 }
        }
        SendProtocol::Announced => {
            let coop_id = peer.outbound.new_coop_id();
            SendPlan::Announced { coop_id }
        }
    }
}

/// Whether what was decided of a message of `len` bytes still holds: others that were planned with the same credit may
/// have used it.
#[inline]
pub(crate) fn still_right(core: &Core, peer: &mut Peer, len: u64, decided: SendPlan) -> bool {
    match decided {
        SendPlan::Slots | SendPlan::Chunks { sent: 0 } => has_credit(core, peer, charge(len)),
        SendPlan::Chunks { .. }
        | SendPlan::Announced { .. }
        | SendPlan::Stalled
        | SendPlan::Piped { .. } => true,
    }
}

/// How the send `id` of `len` bytes goes, whose turn has come: as it was `decided`, or it is decided now.
#[inline]
pub(crate) fn plan_request(
    core: &mut Core,
    peer: &mut Peer,
    id: RequestId,
    len: u64,
    decided: Option<SendPlan>,
) -> SendPlan {
    match decided {
        Some(decided) if still_right(core, peer, len, decided) => decided,
        _ => decide_request(core, peer, id),
    }
}

/// Decides how the send `id` goes, and notes it there.
fn decide_request(core: &mut Core, peer: &mut Peer, id: RequestId) -> SendPlan {
    let Some(request) = core.requests.get(id) else {
        return SendPlan::Slots;
    };
    let loan = match &request.buf {
        UserBuf::One(loan) => Some(*loan),
        UserBuf::Many(_) => None,
        // Its bytes come in pieces, when the receiver has room for them.
        UserBuf::Staged(_) => return SendPlan::Announced { coop_id: 0 },
    };
    let in_heap = |loan: Loan| {
        let home = &core.home;
        home.heap_offset_of(loan.address(), loan.len()).is_some()
    };
    let out = Outgoing {
        len: request.len,
        in_heap: loan.is_some_and(in_heap),
        sync: request.sync,
    };
    let plan = plan(core, peer, out, |core| {
        loan.is_some_and(|loan| has_changed(core, loan))
    });
    if let Some(request) = core.requests.get_mut(id) {
        request.state = RequestState::Queued(Some(plan));
    }
    plan
}

/// Whether a buffer has changed since it was sent last. It is remembered as it is.
pub(super) fn has_changed(core: &mut Core, loan: Loan) -> bool {
    let rewritten = &mut core.rewritten;
    let look = |bytes: &[u8]| rewritten.changed(bytes);
    let looked = core.loans.read(LoanRange::whole(loan), look);
    looked.unwrap_or(false)
}

/// Before the payload of a synchronous message stands the sender's request.
pub(super) const SYNC_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use crate::engine::SendMode;
    use crate::request::{SendPlan, UserBuf};
    use crate::runtime::local_with;
    use onecopy_obs::Knobs;

    /// A receiver wants messages announced from some size on: the sender announces those, and others after it has taken
    /// that back. What it wants of shorter ones does not count.
    #[test]
    fn what_a_receiver_wants_announced_is_announced() {
        const LONG: usize = 250_000;
        const SHORT: usize = 100_000;
        // Where calls of the kernel may copy, and chunks are first.
        let settings = [("ONECOPY_CHUNK_COPY", "string")];
        let knobs = Knobs::from_iter(settings).expect("knobs").0;
        local_with(2, &knobs, |rt| {
            let world = rt.world();
            let from = vec![1u8; LONG];
            let mut got = vec![0u8; LONG];
            let other = 1 - rt.rank();
            world.send(&[0u8], other, 2).expect("the first message");
            world
                .recv(&mut got[..1], other, 2)
                .expect("the first message");
            let announced = || {
                rt.handle()
                    .gate
                    .enter()
                    .engine
                    .core
                    .counters
                    .sends_rendezvous
            };
            for (wanted, long) in [(None, 0), (Some(1), 1), (Some(200_000), 1), (None, 0)] {
                {
                    let mut worker = rt.handle().gate.enter();
                    let peer = worker.engine.peers[other].as_mut();
                    peer.expect("the peer").endpoint.want_announced(wanted);
                }
                world.barrier().expect("both want that");
                let before = announced();
                for len in [SHORT, LONG] {
                    if rt.rank() == 0 {
                        world.send(&from[..len], 1, 0).expect("sent");
                    } else {
                        world.recv(&mut got[..len], 0, 0).expect("received");
                        assert_eq!(got[..len], from[..len]);
                    }
                }
                if rt.rank() == 0 {
                    assert_eq!(announced() - before, long, "{wanted:?}");
                }
                world.barrier().expect("both are through");
            }
            rt.finalize().expect("finalize");
        });
    }

    const LEN: usize = 200_000;
    const MESSAGES: usize = 8;

    /// Sends that were planned at one time, each with all of the credit, as by several threads: they use it up once.
    #[test]
    fn credit_that_is_planned_twice_is_used_once() {
        let settings = [("ONECOPY_LAYERS", "cico"), ("ONECOPY_EAGER_MAX", "1M")];
        let knobs = Knobs::from_iter(settings).expect("knobs").0;
        local_with(2, &knobs, |rt| {
            let world = rt.world();
            let mut got = vec![0u8; LEN];
            if rt.rank() == 0 {
                world.send(&[0u8], 1, 0).expect("the first message");
                let ids: Vec<_> = (0..MESSAGES)
                    .map(|_| {
                        let mut worker = rt.handle().gate.enter();
                        let buf = UserBuf::One(worker.engine.core.loans.keep(vec![1; LEN]));
                        let plan = SendPlan::Chunks { sent: 0 };
                        let bits = world.match_bits(1);
                        worker
                            .engine
                            .send_planned(1, bits, buf, SendMode::Standard, Some(plan))
                            .expect("send")
                    })
                    .collect();
                world.recv(&mut got[..1], 1, 2).expect("the word");
                for id in ids {
                    world.finish(id).expect("sent");
                }
            } else {
                world.recv(&mut got[..1], 0, 0).expect("the first message");
                // They come while no receive waits for them.
                let begun = std::time::Instant::now();
                while begun.elapsed() < std::time::Duration::from_millis(200) {
                    let _ = world.iprobe(0, 9).expect("the peer is no rogue");
                }
                world.send(&[2u8], 0, 2).expect("the word");
                for _ in 0..MESSAGES {
                    world.recv(&mut got, 0, 1).expect("a message");
                    assert!(got.iter().all(|&byte| byte == 1));
                }
            }
            rt.finalize().expect("finalize");
        });
    }
}
