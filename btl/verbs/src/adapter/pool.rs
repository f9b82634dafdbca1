// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receives that all lanes of a rank share: posted, granted to peers, grown and given back by parts.

use super::{Adapter, GRANT_MIN};
use crate::domain::Domain;
use crate::error::Result;
use crate::memory::{Region, Slot};
use crate::provider::{Access, Provider};

impl<P: Provider> Adapter<P> {
    pub(super) fn add_part(&mut self, part: Region<P>) {
        while let Some(slot) = part.take() {
            if !self.post(slot) {
                break;
            }
        }
        self.parts.push(part);
    }

    /// Posts a receive. `false`: there is no room for it.
    pub(super) fn post(&mut self, slot: Slot<P>) -> bool {
        let Some(receives) = &self.receives else {
            return false;
        };
        let posted = self.queue.receive_shared(receives, slot, 0).is_ok();
        self.posted += usize::from(posted);
        posted
    }

    /// A slot that was received into is of no more use: it receives again, unless the pool shrinks.
    pub(super) fn recycle(&mut self, slot: Slot<P>) {
        let step = self.settings.receives;
        let spare = self.posted.saturating_sub(self.promised);
        let of_newest =
            self.parts.len() > 1 && self.parts.last().is_some_and(|part| part.owns(&slot));
        // Once it has begun it goes on, for only a whole part can be given back.
        if of_newest && (spare > step || self.shrinks && spare > step / 2) {
            self.shrinks = true;
            drop(slot);
            if self.parts.last().is_some_and(|part| part.taken() == 0) {
                self.parts.pop();
                self.shrinks = false;
            }
        } else {
            self.post(slot);
        }
    }

    /// Makes the pool larger. `false`: it is as large as it may be.
    #[cold]
    pub(super) fn grow(&mut self) -> bool {
        if std::mem::take(&mut self.shrinks) {
            // What was taken out of use comes back.
            let last = self.parts.pop();
            if let Some(part) = last {
                let before = self.posted;
                self.add_part(part);
                if self.posted > before {
                    return true;
                }
            }
        }
        let total: usize = self.parts.iter().map(Region::count).sum();
        let step = self.settings.receives;
        if self.is_full || total + step > self.settings.receives_max {
            return false;
        }
        match self
            .domain
            .region(step, self.settings.slot, Access::default())
        {
            Ok(part) => {
                self.add_part(part);
                true
            }
            Err(_) => {
                // It stays as it is: windows are smaller.
                self.is_full = true;
                false
            }
        }
    }
}

/// As many slots as fit into the pages of so many.
pub(super) fn fitting(count: usize, slot: usize) -> usize {
    let slot = slot.next_multiple_of(64);
    let bytes = count.max(GRANT_MIN as usize) * slot;
    bytes.next_multiple_of(4096) / slot
}

/// As many slots as can be pinned: all that are wanted, or half, and so on.
pub(crate) fn pinned<P: Provider>(
    domain: &Domain<P>,
    count: usize,
    slot: usize,
) -> Result<Region<P>> {
    let mut count = count.max(GRANT_MIN as usize);
    loop {
        match domain.region(count, slot, Access::default()) {
            Err(error) if error.is_exhaustion() && count / 2 >= GRANT_MIN as usize => count /= 2,
            result => return result,
        }
    }
}
