// SPDX-License-Identifier: MIT OR Apache-2.0
//! Combines contributions through windows that the kernel module has attached. Whether all their bytes were there is
//! known only afterwards. If not, the fragment is combined again from copies, whose error says why the bytes cannot be
//! had.

use super::super::ByteRange;
use super::super::context::{MemoryParts, StepMemory};
use super::super::reader;
use super::super::state::CommState;
use super::{Fold, Location};
use crate::peer::Peer;
use crate::proto::layers;
use onecopy_btl::LayerId;
use onecopy_btl::contract::AttachedBytes;

/// What of a member's contribution is read in place.
pub(super) struct AttachedPart<'p> {
    pub(super) place: usize,
    pub(super) bytes: AttachedBytes<'p>,
}

impl Fold {
    /// What is read in place of a `part` of what the others give. None: a member has it elsewhere from now on.
    pub(super) fn attach<'p>(
        &mut self,
        peers: &'p [Option<Box<Peer>>],
        state: &CommState,
        part: ByteRange,
    ) -> Option<Vec<AttachedPart<'p>>> {
        let mut all = Vec::new();
        for place in 0..self.locations.len() {
            let Location::Attached(range) = self.locations[place] else {
                continue;
            };
            let wanted = range.part(part.offset as u64, part.len as u64);
            match reader::attached(peers, state, place, &wanted) {
                Some(bytes) => all.push(AttachedPart { place, bytes }),
                None => {
                    self.copy_from_now_on(place);
                    return None;
                }
            }
        }
        Some(all)
    }

    /// Whether all that was read in place was there. Of a member whose bytes were not, copies are combined from now on.
    pub(super) fn were_there(&mut self, in_place: Vec<AttachedPart<'_>>) -> bool {
        let mut all = true;
        for AttachedPart { place, bytes } in in_place {
            if !bytes.were_there() {
                self.copy_from_now_on(place);
                all = false;
            }
        }
        all
    }

    /// Copies of the fragment under way are stored in member order. One more copied member shifts them, so they are
    /// made again.
    fn copy_from_now_on(&mut self, place: usize) {
        if let Location::Attached(range) = self.locations[place] {
            self.locations[place] = Location::Buffer(range);
            self.fetched = 0;
        }
    }
}

/// Counts a fragment of which these members' contributions were combined in place.
pub(super) fn count(memory: &mut StepMemory<'_>, state: &CommState, members: &[usize], len: usize) {
    let MemoryParts {
        counters, peers, ..
    } = memory.parts();
    for &place in members {
        if let Some(peer) = &peers[state.members[place] as usize] {
            LayerId::ATTACH.count(counters, len as u64);
            layers::note_all_attachments(counters, &peer.link);
        }
    }
}
