// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes to a peer: what waits for room or for answers, what it has not answered, and the credit that is used.

use super::credit::Credit;
use super::{Gone, UNANSWERED_MORE, replies_max};
use crate::records::{BODY, Kind};
use crate::request::{RequestId, RequestState, Requests, SendPlan};
use onecopy_obs::Knobs;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Chunks that a peer wants of an announced message.
#[derive(Debug)]
pub(crate) struct PipeOut {
    pub(crate) request: RequestId,
    pub(crate) transfer: u64,
    pub(crate) offset: u64,
    pub(crate) end: u64,
    pub(crate) total: u64,
    /// Whether its first chunk is out.
    pub(crate) begun: bool,
}

/// A cooperative transfer that this rank, the sender, may take part in.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) coop_id: u32,
    pub(crate) request: RequestId,
    /// The transfer of a receiver that cannot copy and has asked for help: take part whether waiting or not.
    pub(crate) asked_by: Option<u64>,
    /// Chunks finished so far.
    pub(crate) finished: u32,
    /// No more chunks are taken.
    pub(crate) out: bool,
}

/// Sends that go out once the peer has answered others. Messages keep their order within a context, so what follows in
/// the same one waits with them; other contexts go on.
#[derive(Debug, Default)]
struct HeldBack {
    queues: VecDeque<(u32, VecDeque<RequestId>)>,
    /// The first in the outbox has come back from here.
    resumed: bool,
    /// The context of the message that took the last place among those that wait for answers: it is held back first.
    last: u32,
    /// Since when the same number has waited for answers.
    still: Option<(Instant, u32)>,
    /// Whether the program was warned of that.
    warned: bool,
}

/// How long nothing may be answered while messages are held back, before the program is warned. Chosen by magnitude: a
/// program that computes answers sooner as a rule, and a person who looks on waits so long.
const STILL: Duration = Duration::from_secs(5);

impl HeldBack {
    fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether nothing waits here, and nothing did when that was last looked at.
    fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.still.is_none()
    }

    fn clear(&mut self) {
        self.queues.clear();
        self.resumed = false;
    }

    fn len(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.len()).sum()
    }

    /// The context of the first.
    fn first_context(&self) -> Option<u32> {
        self.queues.front().map(|&(context, _)| context)
    }

    /// Whether messages of a context wait here that come before the first in the outbox.
    fn precedes(&self, context: u32) -> bool {
        !self.resumed && self.queues.iter().any(|queue| queue.0 == context)
    }

    fn push(&mut self, context: u32, id: RequestId) {
        match self.queues.iter_mut().find(|queue| queue.0 == context) {
            Some((_, queue)) if self.resumed => queue.push_front(id),
            Some((_, queue)) => queue.push_back(id),
            None => self.queues.push_back((context, VecDeque::from([id]))),
        }
    }

    fn pop(&mut self) -> Option<RequestId> {
        let (_, queue) = self.queues.front_mut()?;
        let id = queue.pop_front();
        if queue.is_empty() {
            self.queues.pop_front();
        }
        id
    }
}

/// The sending side of a peer.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Control records that wait for room: they go before everything in `outbox`.
    pub(crate) replies: VecDeque<(Kind, [u8; BODY])>,
    /// Sends that wait for room, in their order.
    pub(crate) outbox: VecDeque<RequestId>,
    /// Sends that wait for answers, before those of their context in `outbox`.
    held_back: HeldBack,
    pub(crate) pipes: VecDeque<PipeOut>,
    pub(crate) announced: VecDeque<Announced>,
    next_coop_id: u32,
    /// Messages to the peer that it has to answer, and has not, and how many there may be.
    unanswered: u32,
    unanswered_max: u32,
    pub(crate) credit: Credit,
}

impl Outbound {
    pub(super) fn new(knobs: &Knobs) -> Self {
        Self {
            replies: VecDeque::new(),
            outbox: VecDeque::new(),
            held_back: HeldBack::default(),
            pipes: VecDeque::new(),
            announced: VecDeque::new(),
            next_coop_id: 1,
            unanswered: 0,
            unanswered_max: knobs.unanswered_max as u32,
            credit: Credit::new(knobs.eager_credit as u64),
        }
    }

    /// Whether something waits to be written.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        !self.replies.is_empty()
            || !self.outbox.is_empty()
            || !self.pipes.is_empty()
            || !self.held_back.is_empty()
    }

    /// Whether sends wait for answers.
    pub(crate) fn holds_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    /// Whether all that waits is for the peer to answer others first.
    pub(crate) fn waits_for_answers(&self) -> bool {
        self.unanswered >= self.unanswered_max
            && self.outbox.is_empty()
            && self.replies.is_empty()
            && self.pipes.is_empty()
    }

    /// Whether this rank can take part in the cooperative transfer `open`.
    pub(crate) fn can_join(&self, open: u32) -> bool {
        open != 0 && self.announced.iter().any(|a| !a.out && a.coop_id == open)
    }

    /// Queues a control record, if the peer reads what it has asked for.
    pub(crate) fn reply(
        &mut self,
        knobs: &Knobs,
        kind: Kind,
        body: [u8; BODY],
    ) -> Result<(), Gone> {
        let most = replies_max(knobs);
        if self.replies.len() >= most {
            let detail = format!("it has left {most} answers unread");
            return Err(Gone::Protocol(detail));
        }
        self.replies.push_back((kind, body));
        Ok(())
    }

    /// The first in the outbox went out, or is over.
    #[inline]
    pub(crate) fn pop_outbox(&mut self) {
        self.outbox.pop_front();
        self.held_back.resumed = false;
    }

    /// The first in the outbox went out. `asks`: whether it is one that the peer answers.
    #[inline]
    pub(crate) fn went_out(&mut self, context: u32, asks: bool) {
        if asks {
            self.take_place(context);
        }
        self.pop_outbox();
    }

    /// A message of this context takes a place among those that wait for answers.
    #[inline]
    pub(crate) fn take_place(&mut self, context: u32) {
        if self.unanswered <= self.unanswered_max {
            self.held_back.last = context;
        }
    }

    /// The peer has one more message to answer.
    #[inline]
    pub(crate) fn asked(&mut self) {
        self.unanswered += 1;
    }

    /// How many messages the peer has to answer.
    #[cfg(test)]
    pub(crate) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// The peer has answered the send `id`, of which it says nothing more.
    pub(crate) fn answered(&mut self, id: RequestId) {
        self.unanswered = self.unanswered.saturating_sub(1);
        // Nearly always the first: a receiver finishes in the order of announcements.
        if let Some(index) = self.announced.iter().position(|a| a.request == id) {
            self.announced.remove(index);
        }
    }

    /// A name for a send that both sides may copy.
    pub(crate) fn new_coop_id(&mut self) -> u32 {
        let id = self.next_coop_id;
        self.next_coop_id = id.checked_add(1).unwrap_or(1);
        id
    }

    /// The announced send `id` is no more. Gives the transfer of a receiver that has asked for a part in it.
    #[cold]
    pub(crate) fn withdraw(&mut self, id: RequestId) -> Option<u64> {
        let mut asked_by = None;
        self.announced.retain(|announced| {
            let stays = announced.request != id;
            if !stays {
                asked_by = announced.asked_by;
            }
            stays
        });
        self.pipes.retain(|pipe| {
            let stays = pipe.request != id;
            if !stays {
                asked_by = Some(pipe.transfer);
            }
            stays
        });
        asked_by
    }

    /// Whether a send that is next to go out has to wait for answers. `asks`: whether it is one that the peer answers.
    #[inline]
    pub(crate) fn must_hold(&self, context: u32, asks: bool) -> bool {
        let too_many = asks
            && self.unanswered >= self.unanswered_max
            && (context == self.held_back.last
                || self.unanswered >= self.unanswered_max + UNANSWERED_MORE);
        too_many || !self.held_back.is_empty() && self.held_back.precedes(context)
    }

    /// Has the first in the outbox wait for answers.
    #[cold]
    pub(crate) fn hold_back(&mut self, context: u32) {
        if let Some(id) = self.outbox.pop_front() {
            self.held_back.push(context, id);
        }
        self.held_back.resumed = false;
    }

    /// Makes one that waited for answers the first in the outbox, if there is room for it and no part of another one is
    /// out.
    #[inline]
    pub(crate) fn resume(&mut self, requests: &Requests) {
        if !self.held_back.is_empty() && !self.has_begun(requests) {
            self.resume_first();
        }
    }

    #[cold]
    fn resume_first(&mut self) {
        if self.unanswered < self.unanswered_max
            && !self.held_back.resumed
            && let Some(id) = self.held_back.pop()
        {
            self.outbox.push_front(id);
            self.held_back.resumed = true;
        }
    }

    /// Whether a part of the first message in the outbox is out already.
    fn has_begun(&self, requests: &Requests) -> bool {
        let first = self.outbox.front().and_then(|&id| requests.get(id));
        first.is_some_and(|request| {
            matches!(
                request.state,
                RequestState::Queued(Some(SendPlan::Chunks { sent: 1.. }))
            )
        })
    }

    /// Nothing goes to the peer any more.
    pub(crate) fn clear(&mut self) {
        self.outbox.clear();
        self.held_back.clear();
        self.replies.clear();
        self.pipes.clear();
        self.announced.clear();
    }

    /// What the program has to know of messages that are held back and may wait for ever. It is warned once, when
    /// nothing was answered for a while.
    pub(crate) fn stuck(&mut self, me: u32, peer: u32, now: Instant) -> Option<String> {
        let held = &mut self.held_back;
        if held.is_idle() {
            return None;
        }
        let Some(context) = held.first_context() else {
            held.still = None;
            return None;
        };
        let count = held.len();
        let since = match held.still {
            Some((since, unanswered)) if unanswered == self.unanswered => since,
            _ => held.still.insert((now, self.unanswered)).0,
        };
        if held.warned || now.duration_since(since) < STILL {
            return None;
        }
        held.warned = true;
        let communicator = match context {
            0 => "the communicator of all ranks".to_owned(),
            _ => format!("the communicator with context {context:#x}"),
        };
        Some(format!(
            "rank {me} holds back {count} messages to rank {peer}, the first of them on {communicator}. {unanswered} \
             others wait there for receives, and none came for {still} s. If rank {peer} waits for a message that is \
             held back, both wait for ever. Let it receive others first. Or set ONECOPY_UNANSWERED_MAX on all ranks to \
             more than {all}; the receiver keeps up to 400 bytes for each",
            unanswered = self.unanswered,
            still = STILL.as_secs(),
            all = self.unanswered as usize + count,
        ))
    }
}
