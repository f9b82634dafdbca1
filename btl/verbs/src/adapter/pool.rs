// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receives that all lanes of a rank share: posted, granted to peers, grown and given back by parts.

use super::{GRANT_MIN, Settings};
use crate::domain::{Domain, Receives};
use crate::error::Result;
use crate::memory::{Region, Slot};
use crate::provider::{Access, Provider};
use crate::queue::Queue;

/// The pool of receives.
///
/// It knows how many receives are posted. It also knows how many messages are *promised*: peers are permitted them, and
/// they have not come. Invariant: no more are promised than are posted.
///
/// What is posted is counted by completions. Where the device lost some, too many count as posted, and the pool is *in
/// doubt*: before a lane is made, [`Self::renew`] counts anew.
#[derive(Debug)]
pub(super) struct Pool<P: Provider> {
    /// None once the pool was retired.
    receives: Option<Receives<P>>,
    /// The parts, each a region of receives.
    parts: Vec<Region<P>>,
    /// Receives of a part, and of all parts at most; bytes of a receive.
    step: usize,
    most: usize,
    slot: usize,
    posted: usize,
    promised: usize,
    /// Receives of the newest part are taken out of use.
    shrinks: bool,
    /// Nothing more can be pinned, as far as is known.
    is_full: bool,
    /// More may count as posted than are.
    is_in_doubt: bool,
}

impl<P: Provider> Pool<P> {
    /// A pool without a part.
    pub(super) fn new(settings: &Settings, receives: Receives<P>) -> Self {
        Self {
            receives: Some(receives),
            parts: Vec::new(),
            step: settings.receives,
            most: settings.receives_max,
            slot: settings.slot,
            posted: 0,
            promised: 0,
            shrinks: false,
            is_full: false,
            is_in_doubt: false,
        }
    }

    /// Gives it the first part, whose receives are posted.
    pub(super) fn begin(&mut self, queue: &mut Queue<P>, first: Region<P>) {
        self.is_full = first.count() < self.step;
        self.add_part(queue, first);
    }

    /// What pairs are made with.
    pub(super) fn receives(&self) -> Option<&Receives<P>> {
        self.receives.as_ref()
    }

    fn add_part(&mut self, queue: &mut Queue<P>, part: Region<P>) {
        while let Some(slot) = part.take() {
            if !self.post(queue, slot) {
                break;
            }
        }
        self.parts.push(part);
    }

    /// Posts a receive. `false`: there is no room for it.
    pub(super) fn post(&mut self, queue: &mut Queue<P>, slot: Slot<P>) -> bool {
        let Some(receives) = &self.receives else {
            return false;
        };
        let posted = queue.receive_shared(receives, slot, 0).is_ok();
        self.posted += usize::from(posted);
        posted
    }

    /// A posted receive has completed.
    pub(super) fn has_completed(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// A slot that was received into is of no more use: it receives again, unless the pool shrinks.
    pub(super) fn recycle(&mut self, queue: &mut Queue<P>, slot: Slot<P>) {
        let free = self.free();
        let of_newest =
            self.parts.len() > 1 && self.parts.last().is_some_and(|part| part.owns(&slot));
        // Once it has begun it goes on, for only a whole part can be given back.
        if of_newest && (free > self.step || self.shrinks && free > self.step / 2) {
            self.shrinks = true;
            drop(slot);
            if self.parts.last().is_some_and(|part| part.taken() == 0) {
                self.parts.pop();
                self.shrinks = false;
            }
        } else {
            self.post(queue, slot);
        }
    }

    /// Receives that are posted and not promised.
    fn free(&self) -> usize {
        self.posted.saturating_sub(self.promised)
    }

    /// Whether so many messages can be promised. Grows for that as far as it may.
    pub(super) fn has_free(
        &mut self,
        domain: &Domain<P>,
        queue: &mut Queue<P>,
        count: usize,
    ) -> bool {
        while count > self.free() {
            if !self.grow(domain, queue) {
                return false;
            }
        }
        true
    }

    /// Promises messages: so many must be free.
    pub(super) fn promise(&mut self, count: usize) {
        self.promised += count;
    }

    /// Promises as many messages as are free, and as are wanted; how many.
    pub(super) fn promise_up_to(
        &mut self,
        domain: &Domain<P>,
        queue: &mut Queue<P>,
        wanted: usize,
    ) -> usize {
        self.has_free(domain, queue, wanted);
        let count = wanted.min(self.free());
        self.promise(count);
        count
    }

    /// Promised messages have come, or will not come any more.
    pub(super) fn end_promises(&mut self, count: usize) {
        self.promised = self.promised.saturating_sub(count);
    }

    /// Makes the pool larger. `false`: it is as large as it may be.
    #[cold]
    fn grow(&mut self, domain: &Domain<P>, queue: &mut Queue<P>) -> bool {
        if std::mem::take(&mut self.shrinks) {
            // What was taken out of use comes back.
            let last = self.parts.pop();
            if let Some(part) = last {
                let before = self.posted;
                self.add_part(queue, part);
                if self.posted > before {
                    return true;
                }
            }
        }
        if self.is_full || self.count() + self.step > self.most {
            return false;
        }
        match domain.region(self.step, self.slot, Access::default()) {
            Ok(part) => {
                self.add_part(queue, part);
                true
            }
            Err(_) => {
                // It stays as it is: windows are smaller.
                self.is_full = true;
                false
            }
        }
    }

    /// More can perhaps be pinned by now.
    pub(super) fn may_grow_again(&mut self) {
        self.is_full = false;
    }

    pub(super) fn posted(&self) -> usize {
        self.posted
    }

    /// Receives of all parts.
    pub(super) fn count(&self) -> usize {
        self.parts.iter().map(Region::count).sum()
    }

    /// Bytes that are pinned for them.
    pub(super) fn pinned(&self) -> usize {
        self.parts.iter().map(Region::bytes).sum()
    }

    /// The device has lost completions, perhaps of receives.
    pub(super) fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    /// Makes the receives anew, and posts all slots that nobody holds. Their pairs must have been retired before. After
    /// an error there are no receives, and the pool stays in doubt. The old receives are of no use: a driver keeps the
    /// place of a receive until it has told of its completion.
    pub(super) fn renew(
        &mut self,
        domain: &Domain<P>,
        queue: &mut Queue<P>,
        shared: Option<&P::Shared>,
    ) -> Result<()> {
        self.retire(queue);
        let length = u32::try_from(self.most).unwrap_or(u32::MAX);
        self.receives = Some(queue.receives(domain, length, shared)?);
        // What was taken out of use is posted, too.
        self.shrinks = false;
        for part in std::mem::take(&mut self.parts) {
            self.add_part(queue, part);
        }
        self.is_in_doubt = false;
        Ok(())
    }

    /// Ends the receives. Their pairs must have been retired before.
    pub(super) fn retire(&mut self, queue: &mut Queue<P>) {
        if let Some(receives) = self.receives.take() {
            drop(queue.retire_receives(receives));
        }
        self.posted = 0;
    }
}

/// Receives of a part of the pool, as many as fit into the pages of so many, and the number of parts at most.
pub(crate) fn parts(receives: usize, most: usize, slot: usize) -> (usize, usize) {
    let part = fitting(receives, slot);
    (part, most.div_ceil(part).max(1))
}

/// As many slots as fit into the pages of so many.
fn fitting(count: usize, slot: usize) -> usize {
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
