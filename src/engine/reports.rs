// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of the end of a rank without asking it: its process, and what the wire-up reports. Nothing is done
//! about it here; [`Engine::carry_out_endings`] does that.

use super::Engine;
use crate::error::Error;
use crate::peer::Gone;
use crate::wireup::Event;
use onecopy_shm::liveness;
use std::os::fd::AsFd;

impl Engine {
    /// Whether a peer touches nothing any more, as far as can be known; one that broke the protocol is not waited for.
    /// One that this rank does not talk with for another reason may still be there, and in the middle of something.
    #[cold]
    pub(super) fn has_ended(&mut self, rank: u32) -> bool {
        if self.lives.has_ended(rank) {
            return true;
        }
        let peer = self.peers[rank as usize].as_ref();
        if let Some(pidfd) = peer.and_then(|peer| peer.life.pidfd.as_ref()) {
            // Its memory ends before its process.
            let mut ended = peer.is_some_and(|peer| peer.life.has_ended());
            let looked = liveness::readable(&[pidfd.as_fd()], |_| ended = true);
            return ended || looked.is_err();
        }
        if !self.lives.is_over(rank) {
            self.take_reports();
        }
        self.lives.is_over(rank)
    }

    /// Puts what the wire-up reports on the agenda.
    pub(super) fn take_reports(&mut self) {
        loop {
            match self.wireup.poll() {
                Ok(None) => return,
                Ok(Some(Event::Died { rank, death })) if self.lives.knows(rank) => {
                    self.note_end(rank as u32, Gone::Died(death));
                }
                Ok(Some(Event::Left { rank })) if self.lives.knows(rank) => {
                    self.note_end(rank as u32, Gone::Left);
                }
                Ok(Some(Event::Abort { code })) => {
                    self.core.agenda.end_everything(Error::Aborted { code });
                }
                Ok(Some(_)) => {}
                Err(error) => {
                    self.lives.close();
                    self.core.agenda.end_everything(error.into());
                    return;
                }
            }
        }
    }

    fn note_end(&mut self, rank: u32, gone: Gone) {
        self.lives.mark_over(rank);
        self.core.agenda.report(rank, gone);
    }
}
