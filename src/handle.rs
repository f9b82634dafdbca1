// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way to a rank's worker, which communicators, requests and the runtime share.

use crate::coll::Worker;
use crate::endpoint::Doorbell;
use crate::error::{Error, Result};
use crate::memory::pool::Pool;
use crate::request::{RequestId, Stages, Status};
use crate::wait::{self, Signals};
use crate::wireup::Emergency;
use onecopy_shm::gate::Gate;
use onecopy_shm::heap::Heap;
use onecopy_shm::loan::{LoanTable, WithLoans};
use std::sync::Arc;

/// What communicators, requests and the runtime share.
pub(crate) struct RankInner {
    pub(crate) gate: Gate<Worker>,
    /// Beside the gate, as the thread that ends the job may be in it.
    pub(crate) emergency: Arc<dyn Emergency>,
    pub(crate) doorbell: Doorbell,
    pub(crate) heap: Arc<Heap>,
    pub(crate) buffers: Pool,
    /// Beside the gate, as what moves their bytes is not in it.
    pub(crate) stages: Arc<Stages>,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

/// A handle on the worker.
#[derive(Clone)]
pub(crate) struct Handle(pub(crate) Arc<RankInner>);

/// Ends the process if it is dropped: a blocked call that unwinds would leave a peer writing to memory that is not ours
/// any more.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl WithLoans for Handle {
    fn with_loans<R>(&self, f: impl FnOnce(&mut LoanTable) -> R) -> R {
        f(&mut self.0.gate.enter().engine.core.loans)
    }

    fn is_ours(&self) -> bool {
        self.0.gate.is_ours()
    }
}

impl std::ops::Deref for Handle {
    type Target = RankInner;
    #[inline(always)]
    fn deref(&self) -> &RankInner {
        &self.0
    }
}

impl RankInner {
    pub(crate) fn wait<R>(&self, done: impl FnMut(&mut Worker) -> Option<R>) -> R {
        wait::until(&self.gate, self.signals(), done)
    }

    /// What this rank looks at while it waits.
    #[inline]
    pub(crate) fn signals(&self) -> Signals<'_> {
        Signals {
            doorbell: &self.doorbell,
            stages: &self.stages,
        }
    }

    /// As [`Self::wait`], for the end of what uses the program's buffers. If it unwinds, the process ends.
    #[inline]
    pub(crate) fn wait_or_abort<R>(&self, done: impl FnMut(&mut Worker) -> Option<R>) -> R {
        let guard = AbortOnUnwind;
        let result = self.wait(done);
        std::mem::forget(guard);
        result
    }

    /// Lets `f` move what uses the program's buffers. If it unwinds, the process ends.
    #[inline]
    pub(crate) fn with_worker_or_abort<R>(&self, f: impl FnOnce(&mut Worker) -> R) -> R {
        let guard = AbortOnUnwind;
        let result = f(&mut self.gate.enter());
        std::mem::forget(guard);
        result
    }

    /// Waits for the end of a request that owns its buffers; a forked child does not wait for its parent's.
    pub(crate) fn wait_for(&self, id: RequestId) -> Result<Status> {
        if !self.gate.is_ours() {
            return Err(Error::Forked);
        }
        self.wait_or_abort(|worker| worker.engine.take_result(id))
    }

    /// Moves what can move, and looks.
    #[inline]
    pub(crate) fn look<R>(&self, look: impl FnOnce(&mut Worker) -> R) -> R {
        wait::look_once(&self.gate, &self.stages, look)
    }
}
