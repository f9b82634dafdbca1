// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where bytes wait until peers have taken them: in slots that the device reads, or in copies that are not pinned.

use super::head::HEAD;
use crate::memory::{Region, Slot};
use crate::provider::Provider;

/// Buffers for copies that are kept for use again. Chosen by magnitude: without one, memory is allocated. With slots of
/// 8 KiB they are 512 KiB.
const SPARE_MAX: usize = 64;

/// Where the bytes of a message wait until the peer has taken them.
#[derive(Debug)]
pub(super) enum Bytes<P: Provider> {
    /// The device reads them.
    Posted,
    Slot(Slot<P>),
    /// In memory that is not pinned.
    Copy(Vec<u8>),
}

/// The slots that all lanes of a rank send from.
///
/// It knows which slots are free, and keeps buffers for copies. It does not know who holds a slot: lanes do.
#[derive(Debug)]
pub(super) struct SendSlots<P: Provider> {
    region: Region<P>,
    /// Empty buffers.
    spare: Vec<Vec<u8>>,
}

impl<P: Provider> SendSlots<P> {
    pub(super) fn new(region: Region<P>) -> Self {
        Self {
            region,
            spare: Vec::new(),
        }
    }

    /// A slot that is free.
    pub(super) fn take(&self) -> Option<Slot<P>> {
        self.region.take()
    }

    pub(super) fn free(&self) -> usize {
        self.region.count() - self.region.taken()
    }

    /// Whether slots are held that might be copied before they are needed.
    pub(super) fn is_half_taken(&self) -> bool {
        self.region.taken() > self.region.count() / 2
    }

    /// Whether so few are free that none may be held for a peer alone.
    pub(super) fn is_scarce(&self) -> bool {
        self.free() < self.region.count().div_ceil(4)
    }

    pub(super) fn owns(&self, slot: &Slot<P>) -> bool {
        self.region.owns(slot)
    }

    pub(super) fn count(&self) -> usize {
        self.region.count()
    }

    /// Bytes of a slot.
    pub(super) fn slot_bytes(&self) -> usize {
        self.region.slot_bytes()
    }

    /// Bytes that are pinned for them.
    pub(super) fn pinned(&self) -> usize {
        self.region.bytes()
    }

    /// A copy of a message's bytes, so that its slot can be free.
    pub(super) fn copy(&mut self, slot: &Slot<P>, len: usize) -> Bytes<P> {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(len, 0);
        slot.read(HEAD, &mut bytes);
        Bytes::Copy(bytes)
    }

    /// The peer has taken a message: what its bytes were in is free again.
    pub(super) fn give_back(&mut self, bytes: Bytes<P>) {
        if let Bytes::Copy(mut bytes) = bytes
            && bytes.capacity() > 0
            && self.spare.len() < SPARE_MAX
        {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Gives back buffers that have not been needed for a while.
    pub(super) fn trim(&mut self) {
        self.spare.truncate(SPARE_MAX / 4);
    }
}
