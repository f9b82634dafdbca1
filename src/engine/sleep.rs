// SPDX-License-Identifier: MIT OR Apache-2.0
//! Getting ready to sleep, and waking up.

use super::Engine;
use onecopy_shm::sync::Ordering;

impl Engine {
    /// Tells everyone that this rank polls nothing from now on, and looks once more. `true`: nothing is there, the caller may sleep on
    /// the bell, and calls [`Self::wake_up`] afterwards in any case.
    #[cold]
    pub(crate) fn stop_polling(&mut self) -> bool {
        for &rank in &self.polled {
            if let Some(peer) = &mut self.peers[rank as usize] {
                peer.rx.set_polling(false);
                if peer.chunks_passed > 0 {
                    // The sender may wait for what we hold.
                    peer.give_back();
                    peer.notify_room();
                }
            }
        }
        for &rank in &self.core.busy {
            if let Some(peer) = &self.peers[rank as usize] {
                peer.tx_control.sender_waits.store(1, Ordering::Relaxed);
            }
        }
        self.core.segment.bell().arm();
        self.core.fence.issue();
        let incoming = self.polled.iter().any(|&rank| {
            self.peers[rank as usize]
                .as_ref()
                .is_some_and(|peer| !peer.rx.is_empty())
        });
        let active =
            (0..self.core.segment.bitmap_words()).any(|word| self.core.segment.has_active(word));
        let room = self.core.busy.iter().any(|&rank| {
            self.peers[rank as usize]
                .as_mut()
                .is_some_and(|peer| peer.could_move(self.core.chunks.share))
        });
        !(incoming || active || room || self.core.transfers.any_could_move(&self.peers))
    }

    /// Polls again.
    #[cold]
    pub(crate) fn wake_up(&mut self) {
        self.core.segment.bell().disarm();
        for &rank in &self.polled {
            if let Some(peer) = &self.peers[rank as usize] {
                peer.rx.set_polling(true);
            }
        }
        for &rank in &self.core.busy {
            if let Some(peer) = &self.peers[rank as usize] {
                peer.tx_control.sender_waits.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl crate::peer::Peer {
    /// Whether output that waits could go out now.
    fn could_move(&mut self, share: usize) -> bool {
        let joined = self.tx_control.coop.open_id();
        if joined != 0 && self.announced.iter().any(|a| !a.out && a.join == joined) {
            return true;
        }
        let waits_for_answers = self.unanswered >= self.unanswered_max
            && self.outbox.is_empty()
            && self.replies.is_empty()
            && self.pipes.is_empty();
        if !self.has_output() || waits_for_answers {
            return false;
        }
        let Some(tx) = &mut self.tx else { return true };
        let before = self.outstanding.len();
        let released = tx.released();
        let room = tx.claim_would_fit(2);
        room && (before == 0
            || self.outstanding.would_reclaim(released)
            || before < share && self.pipes.is_empty())
    }
}
