// SPDX-License-Identifier: MIT OR Apache-2.0
//! Announced messages that are being received. What is done with them is the protocols' business
//! (`proto/rendezvous.rs`).

use super::message::Announcement;
use crate::matching::Envelope;
use crate::peer::Peer;
use crate::request::{RequestId, StagedBuf};
use crate::select::observed::{Rival, Source};
use crate::state::statistics::CameBy;
use onecopy_btl::LayerId;
use onecopy_btl::lanes::RemoteAddress;
use onecopy_shm::coop::{CooperativeTransfer, MessageRange};
use std::sync::Arc;
use std::time::Instant;

/// The receiver's side of a cooperative transfer.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) transfer: CooperativeTransfer,
    /// How the receiver copies; none: it leaves that to the sender.
    pub(crate) layer: Option<LayerId>,
    /// The chunk that the receiver took as it opened the block, until it copies it.
    pub(crate) held: Option<u32>,
    /// Chunks that the receiver has copied, and their bytes.
    pub(crate) mine: u32,
    pub(crate) read: u64,
    /// Chunks that neither side will copy any more in this transfer.
    pub(crate) dropped: Vec<MessageRange>,
    pub(crate) dropped_chunks: u32,
}

/// What is being done about the first range of a transfer.
#[derive(Debug)]
pub(crate) enum Mode {
    /// Nothing yet.
    Choose,
    /// The receiver reads.
    Get(LayerId),
    /// Both sides copy.
    Cooperative(Receiving),
    /// The sender sends chunks.
    Pipe(Piped),
    /// A device reads.
    RdmaRead(RdmaRead),
    /// A message of this rank to itself, of which one buffer or both are staged.
    Own(OwnSend),
    /// This buffer of the receive takes all bytes itself, as the sender has offered.
    Direct(Arc<StagedBuf>),
}

/// The sending side of a message of this rank to itself.
#[derive(Debug)]
pub(crate) struct OwnSend {
    pub(crate) send: RequestId,
    /// The buffer of the receive, while it takes all bytes itself.
    pub(crate) direct: Option<Arc<StagedBuf>>,
}

/// The chunks that a transfer expects.
#[derive(Debug)]
pub(crate) struct Piped {
    /// Where in the message the next one begins.
    pub(crate) next: u64,
    pub(crate) end: u64,
}

/// What a device reads of the peer's memory.
#[derive(Debug)]
pub(crate) struct RdmaRead {
    /// How far it was received, and how far its reads are posted.
    pub(crate) received: u64,
    pub(crate) posted: u64,
    pub(crate) end: u64,
    /// Where byte 0 of the message is.
    pub(crate) from: RemoteAddress,
}

/// The receiving side of an announced message.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) request: RequestId,
    pub(crate) peer: u32,
    pub(crate) envelope: Envelope,
    pub(crate) announcement: Announcement,
    /// Bytes that are received: no more than fit.
    pub(crate) len: u64,
    pub(crate) remaining: Vec<MessageRange>,
    pub(crate) mode: Mode,
    /// By what its last bytes come.
    pub(crate) by: CameBy,
    /// What the sender has written here.
    pub(crate) written: Option<Written>,
    /// What is being timed.
    pub(crate) timed: Option<Timed>,
    /// The sender was asked to copy once already.
    pub(crate) asked: bool,
    /// A device has failed to read it.
    pub(crate) unread: bool,
    pub(crate) generation: u32,
}

impl Transfer {
    /// Bytes that one step of one transfer copies at most, so that a large message does not keep out the others. They
    /// take about 0.1 ms, beside which a call of the kernel costs little.
    pub(crate) const STEP: u64 = 1 << 20;

    /// Of the first `len` bytes of a message into the buffer of `request`. All is still to do.
    pub(crate) fn new(
        request: RequestId,
        envelope: Envelope,
        announcement: Announcement,
        len: u64,
    ) -> Self {
        let remaining = match len {
            0 => Vec::new(),
            _ => vec![MessageRange::whole(len)],
        };
        Self {
            request,
            peer: envelope.source,
            envelope,
            announcement,
            len,
            remaining,
            mode: Mode::Choose,
            by: CameBy::Carrier,
            written: None,
            timed: None,
            asked: false,
            unread: false,
            generation: 0,
        }
    }
}

/// What a sender has written into the buffer of a receive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) layer: LayerId,
    pub(crate) bytes: u64,
}

/// A range whose time is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timed {
    /// The way that it goes.
    pub(crate) rival: Rival,
    pub(crate) source: Source,
    pub(crate) begun: Instant,
}

/// All transfers of an engine.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    slots: Vec<Option<Transfer>>,
    live: usize,
    next: u32,
}

impl Transfers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(crate) fn insert(&mut self, mut transfer: Transfer) -> usize {
        self.next = self.next.wrapping_add(1);
        transfer.generation = self.next;
        self.live += 1;
        match self.slots.iter().position(Option::is_none) {
            Some(free) => {
                self.slots[free] = Some(transfer);
                free
            }
            None => {
                self.slots.push(Some(transfer));
                self.slots.len() - 1
            }
        }
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Transfer> {
        self.slots.get_mut(index)?.as_mut()
    }

    /// Takes out a transfer that is over.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Transfer> {
        let transfer = self.slots.get_mut(index)?.take()?;
        self.live -= 1;
        Some(transfer)
    }

    /// Transfer `number` of `rank`.
    pub(crate) fn find(&self, number: u64, rank: u32) -> Option<&Transfer> {
        self.slots[self.index_of(number, rank)?].as_ref()
    }

    /// As [`Self::find`], to change it.
    pub(crate) fn find_mut(&mut self, number: u64, rank: u32) -> Option<&mut Transfer> {
        let index = self.index_of(number, rank)?;
        self.get_mut(index)
    }

    /// Indices that a transfer may have.
    pub(crate) fn indices(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    /// All transfers, each with its number.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Transfer)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(index, slot)| {
            let transfer = slot.as_mut()?;
            Some((Self::number(index, transfer), transfer))
        })
    }

    /// All transfers.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Transfer> {
        self.slots.iter().flatten()
    }

    pub(crate) fn number(index: usize, transfer: &Transfer) -> u64 {
        u64::from(transfer.generation) << 32 | index as u64
    }

    pub(crate) fn index_of(&self, number: u64, rank: u32) -> Option<usize> {
        let index = number as u32 as usize;
        let transfer = self.slots.get(index)?.as_ref()?;
        (transfer.generation == (number >> 32) as u32 && transfer.peer == rank).then_some(index)
    }

    /// Forgets all transfers of a peer that is gone. Their requests are failed by the caller.
    pub(crate) fn drop_of(&mut self, rank: u32) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|transfer| transfer.peer == rank) {
                *slot = None;
                self.live -= 1;
            }
        }
    }

    /// Whether a transfer can go on without anything arriving first.
    pub(crate) fn any_could_move(&self, peers: &[Option<Box<Peer>>]) -> bool {
        self.slots
            .iter()
            .flatten()
            .any(|transfer| match &transfer.mode {
                Mode::Choose | Mode::Get(_) | Mode::Own(_) | Mode::Direct(_) => true,
                Mode::Cooperative(receiving) => peers[transfer.peer as usize]
                    .as_ref()
                    .is_some_and(|peer| receiving.could_move(&peer.endpoint)),
                // The endpoint tells when something has come.
                Mode::Pipe(_) | Mode::RdmaRead(_) => false,
            })
    }
}
