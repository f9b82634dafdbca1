// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes from a peer: the message that is under way, and what this rank remembers of others.

use super::credit::{Returned, charge};
use super::{Policy, unmatched_max};
use crate::endpoint::Endpoint;
use crate::matching::{EntryId, Envelope};
use crate::records::{ChunkBody, NONE};
use crate::request::RequestId;
use onecopy_obs::Knobs;
use onecopy_shm::fault;
use std::time::Instant;

/// Where the bytes of the chunked message that is under way go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Request(RequestId),
    /// A message that no receive has matched.
    Entry(EntryId),
    /// The call that receives it, or a receive that is over.
    Nowhere,
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
    /// When its first piece was there, and how many bytes were to follow, if it is timed.
    pub(crate) timed: Option<(Instant, u64)>,
}

impl Incoming {
    /// The message that begins with a chunk, for no request yet; an error says what no correct peer would have sent.
    #[inline]
    pub(crate) fn begin(
        knobs: &Knobs,
        envelope: Envelope,
        first: &ChunkBody,
    ) -> Result<Self, String> {
        if first.offset != 0 {
            return Err("a message begins within another".into());
        }
        // Only what the credit covers is sent before it is asked for.
        if first.total > knobs.eager_credit as u64 {
            return Err(format!(
                "an eager message of {} bytes, more than its credit",
                first.total
            ));
        }
        Ok(Self {
            target: Target::Nowhere,
            total: first.total,
            received: 0,
            envelope,
            sync: (first.number != NONE).then_some(first.number),
            timed: None,
        })
    }

    /// Its first piece is there, and a receive for it. Notes the time if it is one of those that are timed.
    #[inline]
    pub(crate) fn time(&mut self, policy: &mut Policy, first: &ChunkBody) {
        let piece = u64::from(first.piece);
        let begun = policy.begin_unasked(self.total, piece);
        self.timed = begun.map(|begun| (begun, self.total - piece));
    }

    /// The bytes of a chunk have come. `true`: those were the last ones.
    #[inline]
    pub(crate) fn came(&mut self, body: &ChunkBody) -> bool {
        self.received += u64::from(body.piece);
        self.received >= self.total
    }

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

/// The receiving side of a peer.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    pub(crate) incoming: Option<Incoming>,
    returned: Returned,
    /// What is charged for its messages and lists that no receive has matched.
    unmatched_bytes: u64,
    /// Its announcements that no receive has matched.
    unmatched: u32,
    /// Its pipes that are under way.
    pipes: u32,
    /// The transfer that uses the cooperative block of this peer.
    pub(crate) coop_in_use: Option<u32>,
}

impl Inbound {
    /// A pipe of the peer's begins. Says whether it is the only one.
    pub(crate) fn begin_pipe(&mut self) -> bool {
        self.pipes += 1;
        self.pipes == 1
    }

    /// A pipe of the peer's has ended.
    pub(crate) fn end_pipe(&mut self) {
        self.pipes = self.pipes.saturating_sub(1);
    }

    /// Charges the peer for `len` bytes that are kept until a receive takes them.
    pub(crate) fn hold(&mut self, knobs: &Knobs, len: u64) -> Result<(), String> {
        let unmatched = self.unmatched_bytes.saturating_add(len).saturating_add(64);
        if unmatched > 2 * knobs.eager_credit as u64 {
            return Err(format!(
                "it has {unmatched} bytes of eager messages and lists unmatched, more than its credit"
            ));
        }
        self.unmatched_bytes += charge(len);
        Ok(())
    }

    /// What was charged is kept no more.
    pub(crate) fn release(&mut self, charged: u64) {
        self.unmatched_bytes = self.unmatched_bytes.saturating_sub(charged);
    }

    /// Whether one more announcement is remembered that no receive has matched.
    pub(crate) fn check_unmatched(&self, knobs: &Knobs) -> Result<(), String> {
        let most = unmatched_max(knobs);
        if self.unmatched < most {
            return Ok(());
        }
        Err(format!(
            "it has announced more than {most} messages that no receive has matched; \
             ONECOPY_UNANSWERED_MAX must be the same on all ranks"
        ))
    }

    /// An announcement is remembered.
    pub(crate) fn remember(&mut self) {
        self.unmatched += 1;
    }

    /// A receive has matched an announcement that was remembered, and for whose list so much was charged.
    pub(crate) fn matched(&mut self, charged: u64) {
        self.unmatched = self.unmatched.saturating_sub(1);
        self.release(charged);
    }

    /// Gives credit back to the sender at the other end: a message was matched.
    #[inline]
    pub(crate) fn give_credit(&mut self, endpoint: &mut Endpoint, knobs: &Knobs, charged: u64) {
        if let Some(back) = self.returned.give(charged, knobs.eager_credit as u64 / 4) {
            endpoint.give_credit(back);
            fault::point("credit.given");
        }
    }
}
