// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contributions that are combined where the kernel module has attached them. Whether their bytes were there is known afterwards: then the
//! segment counts, or it is combined again from copies, which tell why they cannot be had.

use super::super::reader;
use super::super::state::State;
use super::{Fold, From};
use crate::engine::Engine;
use crate::peer::Peer;
use crate::proto::rendezvous;
use onecopy_btl::xpmem::Attached;

/// Members, each with its part of the segment.
pub(super) type InPlace<'p> = Vec<(usize, Attached<'p>)>;

impl Fold {
    /// What is read in place of a segment. None: a member has it elsewhere from now on.
    pub(super) fn attach<'p>(
        &mut self,
        peers: &'p [Option<Box<Peer>>],
        state: &State,
        (begin, len): (usize, usize),
    ) -> Option<InPlace<'p>> {
        let mut all = Vec::new();
        for (place, from) in self.from.iter_mut().enumerate() {
            let From::Attached(range) = *from else {
                continue;
            };
            let wanted = range.part(begin as u64, len as u64);
            match reader::attached(peers, state, place, &wanted) {
                Some(bytes) => all.push((place, bytes)),
                None => {
                    *from = From::Buffer(range);
                    return None;
                }
            }
        }
        Some(all)
    }

    /// Whether all that was read in place was there. Of a member whose bytes were not, copies are combined from now on.
    pub(super) fn were_there(&mut self, in_place: InPlace<'_>) -> bool {
        let mut all = true;
        for (place, bytes) in in_place {
            if let (false, From::Attached(range)) = (bytes.were_there(), self.from[place]) {
                self.from[place] = From::Buffer(range);
                all = false;
            }
        }
        all
    }

    /// Counts a segment whose contributions were combined.
    pub(super) fn count(&self, engine: &mut Engine, state: &State, len: usize) {
        let Engine { core, peers, .. } = engine;
        for (place, from) in self.from.iter().enumerate() {
            let peer = peers[state.members[place] as usize].as_ref();
            if let (From::Attached(_), Some(peer)) = (from, peer) {
                core.counters.attach_bytes += len as u64;
                rendezvous::note_attachments(core, peer);
            }
        }
    }
}
