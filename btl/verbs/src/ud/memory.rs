// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory for datagrams.

use super::Settings;
use crate::adapter::pinned;
use crate::domain::Domain;
use crate::error::Result;
use crate::memory::{Region, Slot};
use crate::provider::Provider;
use crate::queue::DATAGRAM_HEAD;

/// Slots for packets that come, and for packets that go out.
///
/// Invariant: slots are only lent to the device. A packet is copied into one to go out, and out of one when it comes.
#[derive(Debug)]
pub(super) struct Memory<P: Provider> {
    receives: Region<P>,
    sends: Region<P>,
    /// Bytes of a datagram.
    room: usize,
}

impl<P: Provider> Memory<P> {
    /// Slots for packets of so many bytes, as many as can be pinned.
    pub(super) fn pin(domain: &Domain<P>, settings: &Settings, packet: usize) -> Result<Self> {
        Ok(Self {
            receives: pinned(domain, settings.receives, packet)?,
            sends: pinned(domain, settings.sends, packet)?,
            room: packet.saturating_sub(DATAGRAM_HEAD),
        })
    }

    /// A free slot to receive into.
    pub(super) fn take_receive(&self) -> Option<Slot<P>> {
        self.receives.take()
    }

    /// A free slot to send from.
    pub(super) fn take_send(&self) -> Option<Slot<P>> {
        self.sends.take()
    }

    /// How many slots there are to receive into.
    pub(super) fn receives(&self) -> usize {
        self.receives.count()
    }

    /// How many slots there are to send from.
    pub(super) fn sends(&self) -> usize {
        self.sends.count()
    }

    /// Bytes of a datagram.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Bytes that are pinned.
    pub(super) fn pinned(&self) -> usize {
        self.receives.bytes() + self.sends.bytes()
    }
}
