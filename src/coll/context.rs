// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a step of a collective can touch. A body over the channel has a [`StepContext`]: lent buffers, temporary
//! memory, and the members' memory. It reaches no message, no request and no other collective. A body that goes by
//! messages, or may, has a [`MessageContext`], which has the calls of a [`Messenger`] besides.

use super::contribution::Contribution;
use super::state::CommState;
use super::tally::Tally;
use crate::endpoint::Home;
use crate::engine::{Engine, SendMode};
use crate::error::{Error, Result};
use crate::matching::{MatchBits, Unexpected};
use crate::memory::pool::{Pool, PoolBuf};
use crate::peer::Peer;
use crate::proto::layers;
use crate::request::{RequestId, Status, UserBuf};
use crate::state::{Statistics, UnexpectedMessage};
use onecopy_btl::{CopyError, RemoteRange};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::loan::{Loan, LoanRange, LoanTable};
use std::ops::Range;

/// What a step of collective `seq` over the channel works with.
pub(crate) struct StepContext<'c> {
    pub(crate) memory: StepMemory<'c>,
    pub(crate) state: &'c mut CommState,
    pub(crate) seq: u32,
    pub(crate) shared: &'c mut Contribution,
    /// What has arrived from members.
    pub(crate) tally: &'c mut Tally,
}

impl<'c> StepContext<'c> {
    #[inline]
    pub(crate) fn parts(&mut self) -> StepParts<'_, 'c> {
        StepParts {
            memory: &mut self.memory,
            state: self.state,
            seq: self.seq,
            shared: self.shared,
            tally: self.tally,
        }
    }
}

/// All of a [`StepContext`], borrowed apart for a part of the step.
pub(crate) struct StepParts<'p, 'c> {
    pub(crate) memory: &'p mut StepMemory<'c>,
    pub(crate) state: &'p mut CommState,
    pub(crate) seq: u32,
    pub(crate) shared: &'p mut Contribution,
    pub(crate) tally: &'p mut Tally,
}

/// Of the engine: the memory that a step reads and writes, this rank's and its peers'.
pub(crate) struct StepMemory<'e> {
    engine: &'e mut Engine,
}

/// Parts of it that are borrowed apart.
pub(crate) struct MemoryParts<'m> {
    pub(crate) loans: &'m mut LoanTable,
    pub(crate) counters: &'m mut Statistics,
    pub(crate) peers: &'m [Option<Box<Peer>>],
}

impl<'m> MemoryParts<'m> {
    #[inline]
    pub(crate) fn peer(&self, rank: usize) -> Result<&'m Peer> {
        self.peers[rank].as_deref().ok_or(Error::PeerLeft { rank })
    }
}

impl<'e> StepMemory<'e> {
    pub(crate) fn of(engine: &'e mut Engine) -> Self {
        Self { engine }
    }

    #[inline]
    pub(crate) fn parts(&mut self) -> MemoryParts<'_> {
        let Engine { core, peers, .. } = &mut *self.engine;
        MemoryParts {
            loans: &mut core.loans,
            counters: &mut core.counters,
            peers,
        }
    }

    /// The buffers that the program has lent.
    #[inline]
    pub(crate) fn loans(&mut self) -> &mut LoanTable {
        &mut self.engine.core.loans
    }

    /// Temporary buffers.
    #[inline]
    pub(crate) fn pool(&mut self) -> &mut Pool {
        &mut self.engine.core.buffers.pool
    }

    /// This rank's own segment, in which the channels are.
    #[inline]
    pub(crate) fn home(&self) -> &Home {
        &self.engine.core.home
    }

    #[inline]
    pub(crate) fn counters(&mut self) -> &mut Statistics {
        &mut self.engine.core.counters
    }

    #[inline]
    pub(crate) fn peers(&self) -> &[Option<Box<Peer>>] {
        &self.engine.peers
    }

    /// How a copy of `len` bytes is made.
    #[inline]
    pub(crate) fn kernel(&self, len: usize) -> Kernel {
        self.engine.permitted.terms.plan.kernel(len)
    }

    /// How often a rank that waits looks before it leaves its processor.
    pub(crate) fn spin(&self) -> usize {
        self.engine.waits.policy.spin
    }

    /// A layer has failed: the pair gives it up.
    #[cold]
    pub(crate) fn demote(&mut self, rank: usize, error: &CopyError) {
        let Engine { core, peers, .. } = &mut *self.engine;
        if let Some(peer) = &mut peers[rank] {
            layers::demote(core, peer, error);
        }
    }

    /// Where a lent buffer is, for a peer.
    pub(crate) fn range_of(&self, piece: &LoanRange) -> RemoteRange {
        let address = piece.loan.address() + piece.offset;
        RemoteRange {
            address: address as u64,
            heap: self.home().heap_offset_of(address, piece.len),
            region: None,
            len: piece.len as u64,
        }
    }

    /// A temporary buffer that peers can map, with a copy of `piece` but for what is `unread`. None: there is no room
    /// for one.
    pub(crate) fn temp(
        &mut self,
        piece: &LoanRange,
        unread: Range<usize>,
    ) -> Result<Option<PoolBuf>> {
        let Some(mut temp) = self.pool().try_take_collective(piece.len) else {
            return Ok(None);
        };
        self.loans().read(*piece, |bytes| {
            for part in [0..unread.start, unread.end..bytes.len()] {
                copy_slices(Kernel::Memcpy, &mut temp[part.clone()], &bytes[part]);
            }
        })?;
        Ok(Some(temp))
    }
}

/// What a step works with that may send and receive messages.
pub(crate) struct MessageContext<'c>(StepContext<'c>);

impl<'c> MessageContext<'c> {
    #[inline]
    pub(crate) fn new(
        engine: &'c mut Engine,
        state: &'c mut CommState,
        seq: u32,
        shared: &'c mut Contribution,
        tally: &'c mut Tally,
    ) -> Self {
        Self(StepContext {
            memory: StepMemory { engine },
            state,
            seq,
            shared,
            tally,
        })
    }

    /// What it works with over the channel.
    #[inline]
    pub(crate) fn over_channel(&mut self) -> &mut StepContext<'c> {
        &mut self.0
    }

    /// What it works with by messages.
    #[inline]
    pub(crate) fn by_messages(&mut self) -> MessageParts<'_> {
        let StepContext {
            memory, state, seq, ..
        } = &mut self.0;
        let engine = &mut *memory.engine;
        MessageParts {
            messenger: Messenger { engine },
            state,
            seq: *seq,
        }
    }
}

/// What a step of collective `seq` works with by messages.
pub(crate) struct MessageParts<'c> {
    pub(crate) messenger: Messenger<'c>,
    pub(crate) state: &'c mut CommState,
    pub(crate) seq: u32,
}

/// Of the engine: what it takes to exchange messages with members.
pub(crate) struct Messenger<'e> {
    engine: &'e mut Engine,
}

impl<'e> Messenger<'e> {
    pub(crate) fn of(engine: &'e mut Engine) -> Self {
        Self { engine }
    }

    /// Buffers that the program has lent, and those of messages.
    pub(crate) fn loans(&mut self) -> &mut LoanTable {
        &mut self.engine.core.loans
    }

    pub(crate) fn send(&mut self, rank: u32, bits: MatchBits, loan: Loan) -> Result<RequestId> {
        let MatchBits { context, tag } = bits;
        let (buf, mode) = (UserBuf::One(loan), SendMode::Standard);
        self.engine.send(rank as usize, context, tag, buf, mode)
    }

    pub(crate) fn receive(&mut self, rank: u32, bits: MatchBits, loan: Loan) -> Result<RequestId> {
        let MatchBits { context, tag } = bits;
        let (source, buf) = (Some(rank as usize), UserBuf::One(loan));
        self.engine.receive(source, context, Some(tag), buf)
    }

    /// The result of a message that is over, which is forgotten then.
    pub(crate) fn take_result(&mut self, id: RequestId) -> Option<Result<Status>> {
        self.engine.take_result(id)
    }

    /// Gives a message up that nobody waits for any more.
    pub(crate) fn give_up(&mut self, id: RequestId) {
        self.engine.cancel(id);
        self.engine.abandon(id);
    }

    /// What has come and waits for its receive, once all is taken that `rank` has sent so far.
    pub(crate) fn unexpected_after(&mut self, rank: u32) -> &Unexpected<UnexpectedMessage> {
        self.engine.drain_peer(rank);
        &self.engine.receives.unexpected
    }
}
