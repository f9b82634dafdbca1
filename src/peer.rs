// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank keeps for each peer that it has talked with, in parts that are borrowed apart. They are what goes to it,
//! what comes from it, how messages go, and what is known of its end.

mod credit;
mod inbound;
mod outbound;

pub(crate) use credit::charge;
pub(crate) use inbound::{Inbound, Incoming, Target};
pub(crate) use outbound::{Announced, Outbound, PipeOut};

use crate::endpoint::Endpoint;
use crate::select::Thresholds;
use crate::select::chunks::Chunks;
use crate::select::observed::{Observed, Source};
use crate::select::unasked::Unasked;
use crate::wireup::Death;
use onecopy_btl::cost::Costs;
use onecopy_btl::link::Link;
use onecopy_obs::Knobs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Messages to one peer that it has to answer, announced or synchronous, and has not: a sender holds back further ones.
/// So a receiver never has to remember more of them, and fails a peer that announces more. A knob says how many; a
/// receiver remembers at least so many, whatever its own knob is. Chosen by magnitude: at up to 400 bytes each, a peer
/// makes a receiver keep some 100 MiB at most.
const UNANSWERED_LEAST: u32 = 1 << 18;

/// What such messages in further contexts may take beyond that, while one context is held back. The library's own are
/// an example: without them the program never comes to the receives that would answer. Chosen by magnitude: a
/// sixty-fourth of that, far more than collectives have under way.
const UNANSWERED_MORE: u32 = 1 << 12;

/// How many unmatched announcements of one peer a receiver remembers.
fn remembered(knobs: &Knobs) -> u32 {
    UNANSWERED_LEAST.max(knobs.unanswered_max as u32)
}

/// Control records that wait for room in the ring to a peer. There are no more than a few for each message that it has
/// to be answered. A peer that asks for more than so many answers without reading one is failed.
fn replies_max(knobs: &Knobs) -> usize {
    4 * remembered(knobs) as usize
}

/// Announcements of one peer that no receive has matched; one that makes more is failed.
fn unmatched_max(knobs: &Knobs) -> u32 {
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
            "it has given this rank up: it could not reach it, or found a fault in what it sent; its output says which"
                .into(),
        )
    }

    pub(crate) fn error(&self, rank: u32) -> crate::error::Error {
        let rank = rank as usize;
        match self {
            Self::Died(death) => crate::error::Error::PeerDied {
                rank,
                death: *death,
            },
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

/// How messages of a pair go.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) thresholds: Thresholds,
    pub(crate) observed: Observed,
    /// What was seen of the peer's messages that were not asked for.
    pub(crate) unasked: Unasked,
    /// How messages to the peer are cut.
    pub(crate) chunks: Chunks,
    /// Whether chunks go back and forth between the two.
    returns: bool,
}

impl Policy {
    fn new(settings: PairSettings<'_>, link: &Link, returns: bool) -> Self {
        let PairSettings {
            knobs,
            costs,
            chunks,
        } = settings;
        let observed = Observed::of(knobs, costs, link.proven());
        Self {
            thresholds: Thresholds::compute(knobs, costs, link.proven(), returns),
            unasked: Unasked::of(knobs, costs, link.proven(), &observed),
            observed,
            chunks,
            returns,
        }
    }

    /// A message of `total` bytes begins in chunks, of which more is to come than its first `piece`. Gives the time if
    /// it is one of those that are timed.
    #[inline]
    pub(crate) fn begin_unasked(&mut self, total: u64, piece: u64) -> Option<Instant> {
        if !self.unasked.could_be_asked_for(total, piece) {
            return None;
        }
        // Both ranks of a pair count the same messages, whichever of them wants to be asked.
        self.observed.count(Source::plain(total));
        self.unasked.begin()
    }

    /// The link has lost a layer.
    pub(crate) fn adapt(&mut self, knobs: &Knobs, costs: &Costs, link: &Link) {
        self.thresholds = Thresholds::compute(knobs, costs, link.proven(), self.returns);
        self.observed.adapt(knobs, costs, link.proven());
        self.unasked.adapt(knobs, link.proven(), &self.observed);
    }
}

/// What is known of a peer's end.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) gone: Option<Gone>,
    /// When a layer found that its memory has ended, or a stream that it was cut. Its process still takes a while to
    /// end, or long if it is large.
    ended: Option<Instant>,
    /// What the wire-up says has become of it, since when, while what it had sent before may still be on its way.
    pub(crate) going: Option<(Gone, Instant)>,
}

impl Life {
    /// Its process, where the wire-up knows it.
    pub(crate) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Whether it is not talked with any more.
    #[inline(always)]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    /// Its memory has ended, or its stream was cut.
    pub(crate) fn end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether it has ended for longer than `grace`.
    pub(crate) fn ended_for(&self, grace: Duration, now: Instant) -> bool {
        self.ended.is_some_and(|ended| now > ended + grace)
    }

    /// The wire-up says what becomes of it. A death counts more than an orderly end.
    pub(crate) fn goes(&mut self, gone: Gone, now: Instant) {
        if self.going.is_none() || gone != Gone::Left {
            self.going = Some((gone, now));
        }
    }
}

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) link: Link,
    pub(crate) policy: Policy,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) life: Life,
    /// Whether it is in the list of those that are polled.
    pub(crate) polled: bool,
    /// Polls since it last had a record.
    pub(crate) idle_polls: u32,
}

/// What the policy of a pair follows from, beside its link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairSettings<'s> {
    pub(crate) knobs: &'s Knobs,
    pub(crate) costs: &'s Costs,
    pub(crate) chunks: Chunks,
}

impl Peer {
    /// A peer with which nothing was talked yet.
    pub(crate) fn new(
        rank: u32,
        endpoint: Endpoint,
        link: Link,
        settings: PairSettings<'_>,
    ) -> Self {
        Self {
            rank,
            outbound: Outbound::new(settings.knobs),
            policy: Policy::new(settings, &link, endpoint.returns_chunks()),
            inbound: Inbound::default(),
            life: Life::default(),
            polled: false,
            idle_polls: 0,
            endpoint,
            link,
        }
    }

    /// Whether something waits to be written to the peer.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        self.outbound.waits() || self.endpoint.has_output()
    }

    /// Whether output that waits could go out now, if `share` chunks may be out.
    pub(crate) fn could_move(&mut self, share: usize) -> bool {
        if self.outbound.can_join(self.endpoint.block_out().open_id()) {
            return true;
        }
        if !self.has_output() || self.outbound.waits_for_answers() {
            return false;
        }
        let no_pipes = self.outbound.pipes.is_empty();
        self.endpoint.could_write(share, no_pipes)
    }

    /// A message came in chunks that this rank had not asked for. If it was timed, the pair learns from it.
    #[inline]
    pub(crate) fn came_unasked(&mut self, incoming: &Incoming) {
        if let Some((begun, bytes)) = incoming.timed {
            self.learn_unasked(bytes, begun);
        }
    }

    #[cold]
    fn learn_unasked(&mut self, bytes: u64, begun: Instant) {
        self.policy.unasked.came(bytes, begun.elapsed());
        self.want_announced();
    }

    /// Lets the peer know from which size on it should announce messages, by what was seen.
    pub(crate) fn want_announced(&mut self) {
        let Policy {
            unasked, observed, ..
        } = &mut self.policy;
        if let Some(wanted) = unasked.changed(observed) {
            self.endpoint.want_announced(wanted);
        }
    }

    /// Lets the peer know whether this rank can read its messages by the kernel module only from regions.
    pub(crate) fn announce_reading(&self) {
        self.endpoint.want_exposed(self.link.wants_exposure());
    }
}
