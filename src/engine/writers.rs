// SPDX-License-Identifier: MIT OR Apache-2.0
//! Revokes a sender's write access when a receive ends early.
//!
//! In a cooperative transfer ([`crate::proto::coop`]) the sender writes into the receive buffer, one claimed chunk at a
//! time. [`Engine::revoke_sender_writes`] first forbids new claims. Then it waits for the one chunk that may be in
//! progress, or for the sender's death. The engine stays locked, so no other thread sees the receive end before the
//! buffer is safe.

use super::Engine;
use crate::state::transfer::{Mode, Transfer};
use onecopy_shm::sync::spin_hint;

impl Engine {
    /// Ends all writes of peers into the buffers of those transfers for which `which` holds: their receives end now.
    /// The sender is notified that its message was taken, as it is when the receive is no more.
    #[cold]
    pub(crate) fn revoke_sender_writes(&mut self, which: impl Fn(&Transfer) -> bool) {
        let Self {
            receives, peers, ..
        } = self;
        let mut stopped = Vec::new();
        for (number, transfer) in receives.transfers.iter_mut() {
            if which(transfer)
                && let Some(peer) = &peers[transfer.peer as usize]
                && let Mode::Cooperative(receiving) = &mut transfer.mode
            {
                receiving.stop(&peer.endpoint);
                stopped.push((transfer.peer, number));
            }
        }
        for (rank, number) in stopped {
            self.spin_until_idle_or_dead(rank, |engine| engine.is_written_to(rank, number));
            self.end_cooperation(rank, number);
        }
    }

    /// Whether the sender still copies a chunk of transfer `number`.
    fn is_written_to(&self, rank: u32, number: u64) -> bool {
        let transfer = self.receives.transfers.find(number, rank);
        match (
            transfer.map(|transfer| &transfer.mode),
            &self.peers[rank as usize],
        ) {
            (Some(Mode::Cooperative(receiving)), Some(peer)) => receiving.is_copied(&peer.endpoint),
            _ => false,
        }
    }

    /// Closes the cooperation of transfer `number`, in which neither side copies any more.
    fn end_cooperation(&mut self, rank: u32, number: u64) {
        if let Some(transfer) = self.receives.transfers.find_mut(number, rank)
            && let Mode::Cooperative(receiving) = &transfer.mode
            && let Some(peer) = &mut self.peers[rank as usize]
        {
            receiving.close(peer);
            transfer.remaining.clear();
            transfer.timed = None;
            transfer.mode = Mode::Choose;
        }
    }

    /// Spins while a peer is `busy` with something that it ends soon, or until the peer is dead.
    #[cold]
    pub(crate) fn spin_until_idle_or_dead(&mut self, rank: u32, busy: impl Fn(&Self) -> bool) {
        let mut polls = 0u32;
        while busy(self) {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(64) {
                if self.has_ended(rank) {
                    return;
                }
                std::thread::yield_now();
            }
            spin_hint();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::SendMode;
    use crate::peer::Gone;
    use crate::request::{RequestId, UserBuf};
    use crate::runtime::{Runtime, local_with};
    use crate::state::transfer::Mode;
    use onecopy_obs::Knobs;
    use onecopy_shm::sync::{AtomicBool, Ordering};
    use std::sync::{Mutex, mpsc};

    const LEN: usize = 1 << 20;

    fn word() -> (mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>) {
        let (sender, receiver) = mpsc::channel();
        (sender, Mutex::new(receiver))
    }

    /// Rank 1 has taken a chunk of a message to rank 0 and copies it when rank 0 gives its receive up by `end`. Rank 1
    /// does `first` before.
    fn gives_up(first: impl Fn(&Runtime) + Sync, end: impl Fn(&Runtime, RequestId) + Sync) {
        let settings = [
            ("ONECOPY_LAYERS", "cma"),
            ("ONECOPY_COOP_MIN", "64K"),
            ("ONECOPY_COOP_CHUNK", "4K"),
        ];
        let knobs = Knobs::from_iter(settings).expect("knobs").0;
        let ((open, opened), (take, taken)) = (word(), word());
        let (copied, is_back) = (AtomicBool::new(false), AtomicBool::new(false));
        local_with(2, &knobs, |rt| {
            let gate = &rt.handle().gate;
            if rt.rank() == 0 {
                let id = {
                    let mut worker = gate.enter();
                    let buf = UserBuf::One(worker.engine.core.loans.keep(vec![0; LEN]));
                    worker
                        .engine
                        .receive(Some(1), 0, Some(0), buf)
                        .expect("receive")
                };
                let together = || {
                    let mut worker = gate.enter();
                    worker.progress(false);
                    let mut transfers = worker.engine.receives.transfers.iter();
                    transfers.any(|transfer| matches!(transfer.mode, Mode::Cooperative(_)))
                };
                while !together() {
                    std::thread::yield_now();
                }
                open.send(()).expect("rank 1 listens");
                taken
                    .lock()
                    .expect("lock")
                    .recv()
                    .expect("a chunk is taken");
                end(&rt, id);
                let over = copied.load(Ordering::SeqCst);
                is_back.store(true, Ordering::SeqCst);
                assert!(over, "the buffer is back while rank 1 copies into it");
            } else {
                {
                    let mut worker = gate.enter();
                    let buf = UserBuf::One(worker.engine.core.loans.keep(vec![1; LEN]));
                    let mode = SendMode::Standard;
                    worker.engine.send(0, 0, 0, buf, mode).expect("send");
                }
                while opened.lock().expect("lock").try_recv().is_err() {
                    gate.enter().progress(false);
                }
                first(&rt);
                let worker = gate.enter();
                let peer = worker.engine.peers[0].as_ref().expect("connected");
                let block = peer.endpoint.block_out();
                let id = block.open_id();
                let chunks = block.joined(id).expect("an open transfer").chunks();
                block.claim_back(id, chunks).expect("a chunk");
                take.send(()).expect("rank 0 listens");
                // Either rank 0 lets this rank take no more, or it does not care.
                while block.taken(id) < chunks && !is_back.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                copied.store(true, Ordering::SeqCst);
                block.sender_finished(id, 1);
            }
        });
    }

    #[test]
    fn a_receive_that_is_abandoned_waits_for_its_sender() {
        gives_up(|_| {}, |rt, id| rt.handle().gate.enter().engine.abandon(id));
    }

    #[test]
    fn a_receive_that_an_abort_ends_waits_for_its_sender() {
        gives_up(
            |rt| rt.abort(3).expect("abort"),
            |rt, id| {
                let mut worker = rt.handle().gate.enter();
                worker.check_liveness();
                assert!(worker.engine.is_done(id), "the abort was received");
            },
        );
    }

    #[test]
    fn a_receive_from_a_peer_that_is_given_up_waits_for_it() {
        gives_up(
            |_| {},
            |rt, id| {
                let mut worker = rt.handle().gate.enter();
                worker
                    .engine
                    .mark_gone(1, Gone::Unreachable("no memory".into()));
                assert!(worker.engine.is_done(id), "the peer is gone");
            },
        );
    }
}
