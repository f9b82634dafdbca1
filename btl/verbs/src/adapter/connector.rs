// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that connect pairs: that may take a second, which no call waits for.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use crate::error::Error;
use crate::pair::{Prepared, QueuePair, Ready};
use crate::port::{Chosen, NUMBER_MAX, QueuePairAddress};
use crate::provider::Provider;
use crate::queue::Queue;
use crate::thread;
use crate::timing::Timing;

/// A pair that a thread connects.
#[derive(Debug)]
pub(super) struct Connecting<P: Provider> {
    pub(super) coming: Receiver<Result<QueuePair<P, Ready>, Error>>,
    /// Its account, which ends with the pair where connecting fails.
    pub(super) account: u64,
}

/// The threads that connect lanes.
///
/// It counts the lanes that wait for one. It also keeps what lanes had begun that were given up. Invariant: a pair's
/// account ends when the pair has come or is gone, not before.
#[derive(Debug)]
pub(super) struct Connector<P: Provider> {
    /// Lanes that are being connected.
    waiting: usize,
    /// Connections of lanes that were given up meanwhile.
    orphans: Vec<Connecting<P>>,
    /// The first packet's number of the last lane.
    first: u32,
}

impl<P: Provider> Connector<P> {
    pub(super) fn new() -> Self {
        Self {
            waiting: 0,
            orphans: Vec::new(),
            first: std::process::id(),
        }
    }

    /// The first packet's number of a new lane. Packets of an earlier connection must not have its numbers.
    pub(super) fn next_first(&mut self) -> u32 {
        self.first = self.first.wrapping_mul(0x9e37_79b1).wrapping_add(1) & NUMBER_MAX;
        self.first
    }

    /// Has a thread connect a pair. After an error the pair is gone.
    pub(super) fn start(
        &mut self,
        pair: QueuePair<P, Prepared>,
        chosen: Arc<Chosen<P>>,
        (own, peer): (QueuePairAddress, QueuePairAddress),
        timing: Timing,
    ) -> std::io::Result<Connecting<P>> {
        let account = pair.account();
        let connect = move || pair.connect(&chosen, &own, &peer, timing);
        let coming = thread::call("onecopy-connect", connect)?;
        self.waiting += 1;
        Ok(Connecting { coming, account })
    }

    /// A lane waits no more: its thread is done.
    pub(super) fn end_wait(&mut self) {
        self.waiting -= 1;
    }

    /// A lane is given up while a thread connects it.
    pub(super) fn give_up(&mut self, connecting: Connecting<P>) {
        self.waiting -= 1;
        self.orphans.push(connecting);
    }

    /// Whether no thread is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.orphans.is_empty()
    }

    /// Pairs of lanes that were given up: they exist still.
    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Ends what threads have connected for nobody.
    pub(super) fn retire_orphans(&mut self, queue: &mut Queue<P>) {
        self.orphans
            .retain(|orphan| match orphan.coming.try_recv() {
                Ok(Ok(pair)) => {
                    drop(queue.retire(pair));
                    false
                }
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => {
                    queue.forget(orphan.account);
                    false
                }
                Err(TryRecvError::Empty) => true,
            });
    }
}
