// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one member alone takes and cannot map, if it is longer than a slot, goes as a message. Otherwise it is copied
//! once by a call of the kernel, or twice through a buffer that is mapped. Messages know both ways, the times of the
//! pair, and chunks that return.
//!
//! Its giver decides so, by its own buffer, and its line says it, with the length. The taker has posted a receive by
//! then as a rule, so that the message need not be kept. If the line says where the bytes are, the receive is
//! withdrawn: no message comes.
//!
//! A giver does not wait for its sends before it says that it has read all: two may give each other what neither takes.
//! It takes back what its reader, which has read all, did not take.

use super::super::ByteRange;
use super::super::context::{MessageContext, MessageParts, Messenger, StepMemory, StepParts};
use super::super::contribution::Readers;
use super::super::messages::{MessagesInFlight, Route};
use super::super::push::reaches_all;
use super::super::select::{NodeScheme, Placement};
use super::super::state::CommState;
use super::{Exchange, ExchangePlan};
use crate::error::Result;
use crate::peer::Peer;
use crate::request::RequestId;
use crate::select::observed::Rival;
use onecopy_btl::registry::Power;
use onecopy_shm::loan::LoanRange;

/// The messages of an exchange.
#[derive(Default)]
pub(super) struct Messages {
    sends: MessagesInFlight,
    receives: MessagesInFlight,
    /// Whether the reader was seen to have read all while sends were under way.
    read: bool,
    /// Receives that were posted before the giver's line was read, by its place.
    early: Vec<(usize, RequestId)>,
    /// Places whose messages are taken.
    taken: Vec<usize>,
}

/// A part of the offer that goes to its one reader, which cannot map it.
#[derive(Clone, Copy)]
pub(super) struct UnmappedPart {
    reader: usize,
    pub(super) range: LoanRange,
}

/// Whether a message between this rank and `place` is better than a call of the kernel there, or the only way.
fn is_over_calls(memory: &StepMemory<'_>, state: &CommState, place: usize) -> bool {
    let peer = memory.peers()[state.members[place] as usize].as_ref();
    let calls = |peer: &Peer| peer.link.proven().by(Power::Copy).next().is_some();
    state.tuning.limits.over_calls || !peer.is_some_and(|peer| calls(peer))
}

/// Where `given` bytes stand that go between this rank and `place`, if their giver's buffer cannot be mapped. None: the
/// taker reads them by the kernel, as was seen to be faster. `way`: see
/// [`Contribution::way`](super::super::contribution::Contribution::way).
pub(in super::super) fn unmapped_placement(
    scheme: NodeScheme,
    memory: &StepMemory<'_>,
    state: &CommState,
    place: usize,
    given: usize,
    way: Option<Rival>,
) -> Option<Placement> {
    let over_calls = match way {
        Some(Rival::Kernel) => return None,
        Some(Rival::Pipeline) => true,
        None => is_over_calls(memory, state, place),
    };
    let limits = state.placement_limits(over_calls);
    Some(scheme.placement(given, false, &limits))
}

impl ExchangePlan {
    /// What this rank gives as a message or in pieces; none: it goes otherwise.
    pub(super) fn unmapped_part(
        &self,
        memory: &StepMemory<'_>,
        state: &CommState,
        way: Option<Rival>,
    ) -> Option<(Placement, UnmappedPart)> {
        let offer = self.offer?;
        let reader = self.readers.others(state.size(), state.me).next()?;
        let ByteRange { offset, len } = self.given_part(reader, state.size());
        let given = match self.table {
            Some(_) => len,
            None => offer.len,
        };
        let mapped =
            || memory.range_of(&offer).heap.is_some() && reaches_all(memory.peers(), state);
        let placement = unmapped_placement(self.scheme, memory, state, reader, given, way)?;
        let goes = matches!(placement, Placement::Message | Placement::Pieces) && !mapped();
        let range = offer.part(offset, len);
        goes.then_some((placement, UnmappedPart { reader, range }))
    }
}

impl Messages {
    /// Sends a part of the offer to its reader.
    pub(super) fn send_part(
        &mut self,
        cx: &mut MessageContext<'_>,
        message: UnmappedPart,
    ) -> Result<()> {
        let UnmappedPart { reader, range } = message;
        let MessageParts {
            mut messenger,
            state,
            seq,
        } = cx.by_messages();
        let messenger = &mut messenger;
        if range.len == 0 {
            return Ok(());
        }
        let part = self.sends.part(messenger, range)?;
        self.sends
            .send(messenger, &Route::new(state, seq), reader, 0, part)
    }

    /// Posts the receive for what `place` gives, before its line was read.
    fn post_early(
        &mut self,
        plan: &ExchangePlan,
        messenger: &mut Messenger<'_>,
        state: &CommState,
        seq: u32,
        place: usize,
    ) -> Result<()> {
        let id = self.post(plan, messenger, state, seq, place)?;
        self.early.extend(id.map(|id| (place, id)));
        Ok(())
    }

    fn post(
        &mut self,
        plan: &ExchangePlan,
        messenger: &mut Messenger<'_>,
        state: &CommState,
        seq: u32,
        place: usize,
    ) -> Result<Option<RequestId>> {
        let Some(recv) = plan.recv else {
            return Ok(None);
        };
        let ByteRange { offset, len } = plan.takes.of(place);
        let part = self.receives.part(messenger, recv.range(offset, len))?;
        let route = Route::new(state, seq);
        self.receives
            .receive(messenger, &route, place, 0, part)
            .map(Some)
    }

    /// What `place` gives comes as a message.
    pub(super) fn take(
        &mut self,
        plan: &ExchangePlan,
        cx: &mut MessageContext<'_>,
        place: usize,
    ) -> Result<()> {
        let MessageParts {
            mut messenger,
            state,
            seq,
        } = cx.by_messages();
        match self.early.iter().position(|&(other, _)| other == place) {
            Some(index) => drop(self.early.swap_remove(index)),
            None => drop(self.post(plan, &mut messenger, state, seq, place)?),
        }
        self.taken.push(place);
        Ok(())
    }

    /// What `place` gives comes otherwise.
    pub(super) fn withdraw(&mut self, messenger: &mut Messenger<'_>, place: usize) {
        if let Some(index) = self.early.iter().position(|&(other, _)| other == place) {
            let (_, id) = self.early.swap_remove(index);
            self.receives.withdraw(messenger, id);
        }
    }

    /// Whether all messages have come, and are good.
    pub(super) fn came(&mut self, cx: &mut MessageContext<'_>) -> Result<bool> {
        let MessageParts {
            mut messenger,
            state,
            ..
        } = cx.by_messages();
        if !self.receives.is_over(&mut messenger)? {
            return Ok(false);
        }
        for place in self.taken.drain(..) {
            state.failure_of(place).map_or(Ok(()), Err)?;
        }
        Ok(true)
    }

    /// Whether nobody needs what this rank has sent.
    fn is_sent(
        &mut self,
        plan: &ExchangePlan,
        messenger: &mut Messenger<'_>,
        state: &mut CommState,
        seq: u32,
    ) -> Result<bool> {
        if self.sends.is_over(messenger)? {
            return Ok(true);
        }
        let mut readers = plan.readers.others(state.size(), state.me);
        if !readers.all(|place| state.has_read(place, seq)) {
            return Ok(false);
        }
        // A receiver acknowledges a message before it says that it has read all. The acknowledgement may be seen later.
        if std::mem::replace(&mut self.read, true) {
            self.sends.abandon(messenger);
        }
        self.sends.is_over(messenger)
    }

    fn abandon(&mut self, messenger: &mut Messenger<'_>) {
        self.sends.abandon(messenger);
        self.receives.abandon(messenger);
    }
}

impl Exchange {
    /// Posts receives for what may come as messages.
    pub(super) fn post_early(
        &mut self,
        cx: &mut MessageContext<'_>,
        way: Option<Rival>,
    ) -> Result<()> {
        let Self {
            plan,
            messages,
            pending,
            ..
        } = self;
        let StepParts { state, shared, .. } = cx.over_channel().parts();
        // Where both ranks wait in the call, the giver goes by what this one knows, too. If both give, a buffer is
        // always there.
        let gives = plan.readers != Readers::Nobody;
        let at_hand = gives || shared.alone && state.bounce.is_at_others_hand();
        let in_pieces = shared.blocking && at_hand;
        for &place in &*pending {
            let len = plan.takes.of(place).len;
            let StepParts { memory, state, .. } = cx.over_channel().parts();
            let given = plan.find.all(len, state.size());
            // It may come as a message even if this rank expects none: its giver decides.
            let way = way.map(|_| Rival::Pipeline);
            let placement = unmapped_placement(plan.scheme, memory, state, place, given, way);
            if match placement {
                Some(Placement::Message) => true,
                Some(Placement::Pieces) => !in_pieces,
                _ => false,
            } {
                let MessageParts {
                    mut messenger,
                    state,
                    seq,
                } = cx.by_messages();
                let messages = messages.get_or_insert_default();
                messages.post_early(plan, &mut messenger, state, seq, place)?;
            }
        }
        Ok(())
    }

    /// Whether nobody needs what this rank has sent.
    pub(crate) fn is_sent(
        &mut self,
        messenger: &mut Messenger<'_>,
        state: &mut CommState,
        seq: u32,
    ) -> Result<bool> {
        let Self { plan, messages, .. } = self;
        match messages {
            Some(messages) => messages.is_sent(plan, messenger, state, seq),
            None => Ok(true),
        }
    }

    /// Gives back what messages hold; the exchange will not go on.
    pub(crate) fn abandon(&mut self, messenger: &mut Messenger<'_>) {
        if let Some(messages) = &mut self.messages {
            messages.abandon(messenger);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::coll::{Collective, Parts};
    use crate::runtime::{Runtime, local_with};
    use onecopy_obs::Knobs;

    const LEN: usize = 48 << 10;

    /// Knobs by which messages are chosen on every machine: nobody reads by the kernel.
    fn without_calls() -> Knobs {
        Knobs::from_iter([("ONECOPY_LAYERS", "self,heap,cico")])
            .expect("layers")
            .0
    }

    /// Bytes that this rank sends as messages in `what`.
    fn sent(rt: &Runtime, what: &Collective, send: Option<&[u8]>, recv: Option<&mut [u8]>) -> u64 {
        let before = rt.counters().bytes_sent;
        rt.world().run(what, send, recv).expect("a collective");
        rt.counters().bytes_sent - before
    }

    fn filled(len: usize, rank: usize) -> Vec<u8> {
        vec![rank as u8 + 1; len]
    }

    fn is_from(bytes: &[u8], rank: usize) -> bool {
        bytes.iter().all(|&byte| byte == rank as u8 + 1)
    }

    /// Plain memory goes as a message, mapped memory does not.
    #[test]
    fn what_one_rank_reads_goes_as_a_message() {
        local_with(2, &without_calls(), |rt| {
            let (me, other) = (rt.rank(), 1 - rt.rank());
            let message = LEN as u64;
            let parts = || Parts::Equal(LEN);
            let gather = Collective::Gather {
                root: 0,
                parts: parts(),
            };
            let mut both = vec![0; 2 * LEN];
            let mine = filled(LEN, me);
            // The first ones go in pieces, in a buffer that is read then.
            for in_pieces in [true, false] {
                let recv = (me == 0).then_some(&mut both[..]);
                let expected = if me == 1 && !in_pieces { message } else { 0 };
                assert_eq!(sent(&rt, &gather, Some(&mine), recv), expected);
            }
            assert!(me == 1 || is_from(&both[..LEN], 0) && is_from(&both[LEN..], 1));

            let bcast = Collective::Bcast { root: 1 };
            let mut buffer = filled(LEN, me);
            let expected = if me == 1 { message } else { 0 };
            assert_eq!(sent(&rt, &bcast, None, Some(&mut buffer)), expected);
            assert!(is_from(&buffer, 1));

            // What is mapped is read in place; each root decides for itself.
            let mut heap = rt.alloc(LEN).expect("memory");
            for root in 0..2 {
                heap.fill(me as u8 + 1);
                let mut plain = filled(LEN, me);
                let buffer: &mut [u8] = if me == 0 { &mut heap } else { &mut plain };
                let expected = if (me, root) == (1, 1) { message } else { 0 };
                let bcast = Collective::Bcast { root };
                assert_eq!(sent(&rt, &bcast, None, Some(&mut *buffer)), expected);
                assert!(is_from(buffer, root));
            }
            let worker = rt.handle().gate.enter();
            assert!(
                worker.engine.receives.posted.is_empty(),
                "a receive was left to rank {other}"
            );
            drop(worker);
            rt.finalize().expect("finalize");
        });
    }

    /// Of three ranks two would read it, but for a gather.
    #[test]
    fn what_several_read_is_no_message() {
        local_with(3, &without_calls(), |rt| {
            let (me, parts) = (rt.rank(), || Parts::Equal(LEN));
            let mut all = vec![0; 3 * LEN];
            let (one, three) = (filled(LEN, me), filled(3 * LEN, me));
            let allgather = Collective::Allgather { parts: parts() };
            assert_eq!(sent(&rt, &allgather, Some(&one), Some(&mut all)), 0);
            let exchange = Collective::Alltoall {
                send: parts(),
                recv: parts(),
            };
            assert_eq!(sent(&rt, &exchange, Some(&three), Some(&mut all)), 0);
            let gather = Collective::Gather {
                root: 0,
                parts: parts(),
            };
            let messages = if me == 0 { 0 } else { LEN as u64 };
            assert_eq!(sent(&rt, &gather, Some(&one), Some(&mut all)), messages);
            rt.finalize().expect("finalize");
        });
    }
}
