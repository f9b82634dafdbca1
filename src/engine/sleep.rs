// SPDX-License-Identifier: MIT OR Apache-2.0
//! Getting ready to sleep, and waking up.

use super::Engine;
use std::time::Instant;

impl Engine {
    /// Shows all peers that this rank polls nothing from now on, and looks once more. `true`: nothing is there, the
    /// caller may sleep on the doorbell, and calls [`Self::wake_up`] afterwards in any case.
    #[cold]
    pub(crate) fn stop_polling(&mut self) -> bool {
        let Self {
            core,
            peers,
            polling,
            ..
        } = self;
        for &rank in &polling.ranks {
            if let Some(peer) = &mut peers[rank as usize] {
                peer.endpoint.set_polling(false);
                // The sender may wait for the chunks that this rank keeps.
                peer.endpoint.give_back();
                // This rank is woken when there is room for output that waits.
                if peer.endpoint.has_output() {
                    core.agenda.make_busy(rank);
                }
            }
        }
        for &rank in &self.core.agenda.busy {
            if let Some(peer) = &self.peers[rank as usize] {
                peer.endpoint.wait_for_room(true);
            }
        }
        self.core.home.arm();
        self.core.home.fence();
        if !self.arm_wires() {
            return false;
        }
        let peers = &mut self.peers;
        let incoming = self.polling.ranks.iter().any(|&rank| {
            let peer = peers[rank as usize].as_mut();
            peer.is_some_and(|peer| !peer.endpoint.is_empty())
        });
        let room = self.core.agenda.busy.iter().any(|&rank| {
            let peer = peers[rank as usize].as_mut();
            peer.is_some_and(|peer| peer.could_move(self.core.chunks.share))
        });
        let active = self.core.home.any_active();
        let moves = active || room || self.receives.transfers.any_could_move(peers);
        let ends = self.core.agenda.has_endings();
        !(incoming || moves || ends || self.has_changed_lanes())
    }

    /// Polls again.
    #[cold]
    pub(crate) fn wake_up(&mut self) {
        self.core.home.disarm();
        for &rank in &self.polling.ranks {
            if let Some(peer) = &mut self.peers[rank as usize] {
                peer.endpoint.set_polling(true);
            }
        }
        for &rank in &self.core.agenda.busy {
            if let Some(peer) = &self.peers[rank as usize] {
                peer.endpoint.wait_for_room(false);
            }
        }
        if self.other_nodes.wires().is_some() {
            self.ask_hub(Instant::now());
        }
    }
}
