// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank keeps, apart from its peers, in parts that are borrowed apart: [`Core`], [`Receives`],
//! [`Waits`] and [`Lives`].
//!
//! What sends a message works on the core and one peer, what takes one from a peer on the receives, too. Nothing here
//! knows a protocol or the engine that drives them.

mod agenda;
pub(crate) mod lightweight;
mod lives;
pub(crate) mod message;
mod receives;
pub(crate) mod statistics;
pub(crate) mod stored;
pub(crate) mod transfer;
pub(crate) mod wait_policy;
mod waits;

pub(crate) use agenda::{Agenda, Ending};
pub(crate) use lives::Lives;
pub(crate) use message::UnexpectedMessage;
pub(crate) use receives::Receives;
pub(crate) use statistics::Statistics;
pub(crate) use stored::Buffers;
use stored::StoredBytes;
pub(crate) use wait_policy::WaitPolicy;
pub(crate) use waits::Waits;

use crate::endpoint::Home;
use crate::error::{Error, Result};
use crate::request::{Requests, Stages};
use crate::select::chunks::Chunks;
use crate::select::rewritten::Rewritten;
use onecopy_btl::cost::Costs;
use onecopy_obs::Knobs;
use onecopy_shm::loan::LoanTable;
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
    /// Buffers whose bytes are staged.
    pub(crate) stages: Arc<Stages>,
    /// How chunks are filled.
    pub(crate) chunks: Chunks,
    pub(crate) buffers: Buffers,
    /// Which buffers have changed since they were last sent.
    pub(crate) rewritten: Rewritten,
    pub(crate) counters: Statistics,
    pub(crate) agenda: Agenda,
}

impl Core {
    /// A message of `total` bytes waits for its receive no more: the place of those that had come is free.
    pub(crate) fn release_stored(&mut self, bytes: StoredBytes, total: u64) {
        self.counters.release_unexpected(total);
        self.buffers.give_back(bytes);
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
