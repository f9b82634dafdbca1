// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank keeps for each peer that it has talked with.

use crate::endpoint::Endpoint;
use crate::matching::{EntryId, Envelope};
use crate::request::RequestId;
use crate::select::Thresholds;
use crate::select::chunks::Chunks;
use crate::select::observed::Observed;
use crate::wireup::Death;
use onecopy_btl::link::Link;
use onecopy_obs::Knobs;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::records::{BODY, ChunkBody, Kind};

/// Messages to one peer that it has to answer, announced or synchronous, and has not: a sender holds back further
/// ones. So a receiver never has to remember more of them, and fails a peer that announces more. A knob says how many;
/// a receiver remembers at least so many, whatever its own knob is.
const UNANSWERED_LEAST: u32 = 1 << 18;

/// What such messages in further contexts may take beyond that, while one context is held back. The library's own are
/// an example: without them nobody comes to the receives that would answer.
const UNANSWERED_MORE: u32 = 1 << 12;

/// How many unmatched announcements of one peer a receiver remembers.
fn remembered(knobs: &Knobs) -> u32 {
    UNANSWERED_LEAST.max(knobs.unanswered_max as u32)
}

/// Control records that wait for room in the ring to a peer. There are no more than a few for each message that it has
/// to be answered. A peer that asks for more than so many answers without reading one is failed.
pub(crate) fn replies_max(knobs: &Knobs) -> usize {
    4 * remembered(knobs) as usize
}

/// Announcements of one peer that no receive has matched; one that makes more is failed.
pub(crate) fn unmatched_max(knobs: &Knobs) -> u32 {
    remembered(knobs) + UNANSWERED_MORE
}

/// Why a peer is not talked with any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gone {
    Died(Death),
    Left,
    Protocol(String),
    /// It could not be connected with when it sent something.
    Unreachable(String),
}

impl Gone {
    /// The peer says that it does not talk with this rank any more.
    pub(crate) fn given_up() -> Self {
        Self::Unreachable(
            "it has given up talking with this rank, which it could not reach or caught at a fault; its output says why"
                .into(),
        )
    }

    pub(crate) fn error(&self, rank: u32) -> crate::error::Error {
        let rank = rank as usize;
        match self {
            Self::Died(how) => crate::error::Error::PeerDied { rank, how: *how },
            Self::Left => crate::error::Error::PeerLeft { rank },
            Self::Protocol(detail) => crate::error::Error::Protocol {
                rank,
                detail: detail.clone(),
            },
            Self::Unreachable(reason) => crate::error::Error::Unreachable {
                rank,
                reason: reason.clone(),
            },
        }
    }
}

/// Where the bytes of the chunked message that is under way go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Request(RequestId),
    Entry(EntryId),
}

/// A chunked message that is under way from a peer.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) target: Target,
    pub(crate) total: u64,
    pub(crate) received: u64,
    pub(crate) envelope: Envelope,
    /// The sender's request that wants to know of the match.
    pub(crate) sync: Option<u64>,
}

impl Incoming {
    /// Whether a chunk is the next one of the message; an error says what no correct peer would have sent.
    #[inline]
    pub(crate) fn check(&self, body: &ChunkBody) -> Result<(), String> {
        if body.total == self.total && body.offset == self.received && body.piece > 0 {
            return Ok(());
        }
        Err(format!(
            "a chunk of {} bytes at {} of {}, expected at {} of {}",
            body.piece, body.offset, body.total, self.received, self.total
        ))
    }
}

/// Chunks that a peer wants of an announced message.
#[derive(Debug)]
pub(crate) struct PipeOut {
    pub(crate) request: RequestId,
    pub(crate) transfer: u64,
    pub(crate) offset: u64,
    pub(crate) end: u64,
    pub(crate) total: u64,
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
pub(crate) struct HeldBack {
    queues: VecDeque<(u32, VecDeque<RequestId>)>,
    /// The first in the outbox has come back from here.
    resumed: bool,
    /// The context of the message that took the last place among those that wait for answers: it is held back first.
    pub(crate) last: u32,
    /// Since when the same number has waited for answers.
    still: Option<(Instant, u32)>,
    /// Whether the program was told of that.
    warned: bool,
}

/// How long nothing may be answered while messages are held back, before the program is told.
const STILL: Duration = Duration::from_secs(5);

impl HeldBack {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether nothing waits here, and nothing did when that was last looked at.
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.still.is_none()
    }

    pub(crate) fn clear(&mut self) {
        self.queues.clear();
        self.resumed = false;
    }

    /// How many there are, and the context of the first.
    fn first(&self) -> Option<(usize, u32)> {
        let all = self.queues.iter().map(|(_, queue)| queue.len()).sum();
        self.queues.front().map(|&(context, _)| (all, context))
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

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) link: Link,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) pid: Option<i32>,
    pub(crate) thresholds: Thresholds,
    pub(crate) observed: Observed,
    /// How messages to it are cut.
    pub(crate) chunks: Chunks,

    /// Control records that wait for room: they go before everything in `outbox`.
    pub(crate) replies: VecDeque<(Kind, [u8; BODY])>,
    /// Sends that wait for room, in their order.
    pub(crate) outbox: VecDeque<RequestId>,
    /// Sends that wait for answers, before those of their context in `outbox`.
    pub(crate) held_back: HeldBack,
    pub(crate) pipes: VecDeque<PipeOut>,
    pub(crate) announced: VecDeque<Announced>,
    pub(crate) next_coop_id: u32,
    /// Messages to the peer that it has to answer, and has not, and how many there may be.
    pub(crate) unanswered: u32,
    pub(crate) unanswered_max: u32,
    pub(crate) credit_used: u64,
    pub(crate) credit_limit: u64,

    /// Whether it is in the list of those that are polled.
    pub(crate) polled: bool,
    /// Polls since it last had a record.
    pub(crate) idle_polls: u32,
    pub(crate) incoming: Option<Incoming>,
    /// Credit to be given back, ever, and how much of it the sender has been told.
    pub(crate) credit_back: u64,
    pub(crate) credit_returned: u64,
    pub(crate) unexpected_bytes: u64,
    /// Announcements of the peer's that no receive has matched.
    pub(crate) unmatched: u32,
    /// The transfer that uses the cooperative block of this peer.
    pub(crate) coop_in_use: Option<u32>,

    pub(crate) gone: Option<Gone>,
    /// When a layer found that its memory has ended, or a stream that it was cut. Its process still takes a while to
    /// end, or long if it is large.
    pub(crate) ended: Option<Instant>,
    /// What the wire-up says has become of it, since when, while what it had sent before may still be on its way.
    pub(crate) going: Option<(Gone, Instant)>,
}

impl Peer {
    /// Whether something waits to be written to the peer.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        !self.replies.is_empty()
            || !self.outbox.is_empty()
            || !self.pipes.is_empty()
            || !self.held_back.is_empty()
            || self.endpoint.has_output()
    }

    /// The first in the outbox went out, or is over.
    #[inline]
    pub(crate) fn pop_outbox(&mut self) {
        self.outbox.pop_front();
        self.held_back.resumed = false;
    }

    /// Whether the first in the outbox has to wait for answers. `asks`: whether it is one that the peer answers.
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

    /// Makes one that waited for answers the first in the outbox, if there is room for it.
    #[cold]
    pub(crate) fn resume(&mut self) {
        if self.unanswered < self.unanswered_max
            && !self.held_back.resumed
            && let Some(id) = self.held_back.pop()
        {
            self.outbox.push_front(id);
            self.held_back.resumed = true;
        }
    }

    /// What the program has to know of messages that are held back and may wait for ever. It is told once, when nothing
    /// was answered for a while.
    pub(crate) fn stuck(&mut self, me: u32, now: Instant) -> Option<String> {
        let held = &mut self.held_back;
        let Some((count, context)) = held.first() else {
            held.still = None;
            return None;
        };
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
            peer = self.rank,
            unanswered = self.unanswered,
            still = STILL.as_secs(),
            all = self.unanswered as usize + count,
        ))
    }

    /// Tells the peer whether this rank can read its messages by the kernel module only from regions.
    pub(crate) fn tell_how_it_reads(&self) {
        self.endpoint.want_exposed(self.link.wants_exposure());
    }
}
