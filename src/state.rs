// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank keeps, apart from its peers, in parts that are borrowed apart: [`Core`], [`Receives`] and [`Waits`].
//!
//! What sends a message works on the core and one peer, what takes one from a peer on the receives, too. Nothing here
//! knows a protocol or the engine that drives them.

pub(crate) mod held;
pub(crate) mod lightweight;
pub(crate) mod message;
mod receives;
mod tally;
pub(crate) mod transfer;
pub(crate) mod wait_policy;
mod waits;

pub(crate) use message::Message;
pub(crate) use receives::Receives;
pub(crate) use tally::Tally;
pub(crate) use wait_policy::WaitPolicy;
pub(crate) use waits::Waits;

use crate::endpoint::Home;
use crate::error::{Error, Result};
use crate::memory::pool::Pool;
use crate::peer::Gone;
use crate::request::Requests;
use crate::select::chunks::Chunks;
use crate::select::rewritten::Rewritten;
use onecopy_btl::LayerId;
use onecopy_btl::cost::Costs;
use onecopy_obs::Knobs;
use onecopy_shm::heap::Heap;
use onecopy_shm::loan::LoanTable;
use onecopy_shm::stats::StatsPage;
use std::sync::Arc;

/// What it takes to move the bytes of any message.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) me: u32,
    pub(crate) size: u32,
    pub(crate) knobs: Knobs,
    /// Whether one thread alone uses the engine, so that nothing can come between two of its calls.
    pub(crate) single_threaded: bool,
    pub(crate) costs: Costs,
    /// This rank's side of its endpoints.
    pub(crate) home: Home,
    pub(crate) loans: LoanTable,
    pub(crate) requests: Requests,
    /// How chunks are filled.
    pub(crate) chunks: Chunks,
    /// The rank's heap, which `alloc` and the temporary buffers share.
    pub(crate) heap: Arc<Heap>,
    /// Temporary buffers.
    pub(crate) buffers: Pool,
    /// A send found no chunk: those that any peer has given back are to be collected.
    pub(crate) starved: bool,
    /// Which buffers have changed since they were last sent.
    pub(crate) rewritten: Rewritten,
    /// What this rank counts, where tools can read it.
    pub(crate) counters: StatsPage,
    /// What has come in the collective that makes a step now.
    pub(crate) tally: Tally,
    /// Short buffers of unexpected messages, for use again.
    pub(crate) spare: Vec<Vec<u8>>,
    /// Ranks that have output or announced messages to look after.
    pub(crate) busy: Vec<u32>,
    /// Ranks that are gone and that the program has not acknowledged: they fail receives from any source.
    pub(crate) unacknowledged: Vec<u32>,
    /// Peers that cannot be talked with any more, found in the middle of something; they are failed at the end of a
    /// round of progress.
    pub(crate) broken: Vec<(u32, Gone)>,
    /// Something that ends every wait.
    pub(crate) fatal: Option<Error>,
}

impl Core {
    /// Puts a rank on the list of those to look after.
    #[inline]
    pub(crate) fn make_busy(&mut self, rank: u32) {
        if !self.busy.contains(&rank) {
            self.busy.push(rank);
        }
    }

    /// Counts a message from `rank` whose bytes came by `layer`.
    #[inline(always)]
    pub(crate) fn count_from(&mut self, rank: u32, layer: LayerId, bytes: u64) {
        self.counters.bytes_received += bytes;
        if let Some(row) = self.counters.row(rank) {
            row.add(layer as usize, bytes);
        }
    }

    /// Counts bytes of a message from `rank` that come by another way than its last ones.
    pub(crate) fn count_part(&mut self, rank: u32, layer: LayerId, bytes: u64) {
        self.counters.bytes_received += bytes;
        if let Some(row) = self.counters.row(rank) {
            row.add_bytes(layer as usize, bytes);
        }
    }

    /// Counts what came from `rank` in the channel of a short collective.
    #[inline(always)]
    pub(crate) fn count_short(&mut self, rank: u32, bytes: usize) {
        if let Some(row) = self.counters.row(rank) {
            row.add(LayerId::CHUNKS as usize, bytes as u64);
        }
    }

    pub(crate) fn check_rank(&self, rank: usize) -> Result<u32> {
        if rank < self.size as usize {
            Ok(rank as u32)
        } else {
            Err(Error::NoSuchRank {
                rank,
                size: self.size as usize,
            })
        }
    }
}
