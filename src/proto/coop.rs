// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cooperative transfers. Receiver and sender drain one chunk counter, the one reading, the other writing. So a
//! processor that would wait is a second copy engine. See [`onecopy_shm::coop`] for the shared words.
//!
//! The same block serves *put*. When only the sender can copy, it is asked to join whether it waits or not, and the
//! receiver takes no chunks.

use super::layers::{Reading, demote, note_attachments};
use crate::endpoint::{CooperativeBlock, Endpoint};
use crate::peer::Peer;
use crate::request::{RequestId, UserBuf};
use crate::state::Core;
use crate::state::message::Announcement;
use crate::state::transfer::Receiving;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_obs::Knobs;
use onecopy_obs::knobs::COOP_CHUNKS_MAX;
use onecopy_shm::coop::{CooperativeTransfer, MAX_CHUNKS, MessageRange};
use onecopy_shm::layout::HeapOffset;
use onecopy_shm::loan::Loan;
use std::io::IoSlice;

// A counter of chunks holds as many as the knob's rule makes at most.
const _: () = assert!(COOP_CHUNKS_MAX == MAX_CHUNKS as usize);

/// Bytes per chunk of a transfer that is read by this layer; by none, if the sender alone copies.
fn chunk_size(knobs: &Knobs, layer: Option<LayerId>, len: u64) -> u64 {
    let mapped = layer.is_some_and(|layer| layer.power().loads());
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    knobs.coop_step(mapped, len) as u64
}

/// What a step of the receiver came to.
pub(crate) enum ReceiveStep {
    /// Something was copied; there is more.
    Moved,
    /// The sender is copying the last chunks.
    Waits,
    /// The sender has written a value to the block that the protocol does not permit.
    Broken(String),
    /// The transfer is over. The ranges in `left` were not copied, and the sender has copied `written` bytes.
    Over {
        left: Vec<MessageRange>,
        written: u64,
    },
}

/// A buffer in one piece.
#[derive(Clone, Copy)]
pub(super) struct OnePiece {
    pub(super) loan: Loan,
    /// Where in this rank's heap it is, if it lies there.
    pub(super) heap: Option<HeapOffset>,
}

/// The block of a transfer of `len` bytes into a buffer.
pub(super) fn block(
    knobs: &Knobs,
    id: u32,
    into: OnePiece,
    len: u64,
    layer: Option<LayerId>,
) -> CooperativeTransfer {
    CooperativeTransfer {
        id,
        address: into.loan.address() as u64,
        heap: into.heap.map(|h| h.0),
        len,
        chunk: chunk_size(knobs, layer, len),
    }
}

impl Receiving {
    /// Opens the block for a transfer.
    pub(crate) fn open(
        peer: &mut Peer,
        transfer: CooperativeTransfer,
        layer: Option<LayerId>,
    ) -> Self {
        peer.inbound.coop_in_use = Some(transfer.id);
        let held = layer.map(|_| 0);
        let own = u32::from(held.is_some());
        peer.endpoint.block_in().open(&transfer, own);
        // A sender that sleeps may take part.
        peer.endpoint.wake();
        Self {
            transfer,
            layer,
            held,
            mine: 0,
            read: 0,
            dropped: Vec::new(),
            dropped_chunks: 0,
        }
    }

    /// Copies some chunks.
    pub(crate) fn step(
        &mut self,
        core: &mut Core,
        peer: &mut Peer,
        request: RequestId,
        announcement: &Announcement,
    ) -> ReceiveStep {
        if let Some(layer) = self.layer {
            let reading = Reading {
                request,
                remote: &announcement.remote,
                layer,
            };
            self.copy(core, peer, &reading);
        }
        let failed = peer.endpoint.block_in().failed_by_sender(self.transfer.id);
        if failed.is_some() && self.layer.is_none() {
            // No other side copies here: what the sender did not take is left for the next layer.
            self.stop(&peer.endpoint);
        }
        self.settle(peer, failed)
    }

    /// Copies as many chunks as one step may: four, by magnitude. They have 2 MiB at most, which take some 0.2 ms.
    fn copy(&mut self, core: &mut Core, peer: &mut Peer, reading: &Reading<'_>) {
        let (id, chunks) = (self.transfer.id, self.transfer.chunks());
        for _ in 0..4 {
            let claim = || peer.endpoint.block_in().claim(id, chunks);
            let Some(chunk) = self.held.take().or_else(claim) else {
                return;
            };
            let range = self.transfer.range(chunk);
            match reading.get(core, peer, range) {
                Ok(()) => {
                    self.mine += 1;
                    self.read += range.len;
                    core.counters.coop_chunks_receiver += 1;
                }
                Err(error) => {
                    self.drop_range(range, 1);
                    demote(core, peer, &error);
                    self.stop(&peer.endpoint);
                    return;
                }
            }
        }
    }

    /// Ends the transfer if all its chunks are settled: each is copied by one side, dropped, or returned by a sender
    /// that `failed`.
    fn settle(&mut self, peer: &mut Peer, failed: Option<u32>) -> ReceiveStep {
        let (id, chunks) = (self.transfer.id, self.transfer.chunks());
        let block = peer.endpoint.block_in();
        let returned = failed.filter(|&chunk| chunk < chunks);
        let settled = self.settled(block, returned.is_some());
        // The block is open for this transfer until we close it, and each chunk is settled once.
        let taken = block.taken(id);
        if taken > chunks || settled > u64::from(chunks) {
            return ReceiveStep::Broken(format!(
                "cooperative transfer {id:#x} has {taken} of {chunks} chunks taken and {settled} settled"
            ));
        }
        if settled < u64::from(chunks) {
            return if taken < chunks && self.layer.is_some() {
                ReceiveStep::Moved
            } else {
                ReceiveStep::Waits
            };
        }
        let mut left = std::mem::take(&mut self.dropped);
        left.extend(returned.map(|chunk| self.transfer.range(chunk)));
        block.close();
        peer.inbound.coop_in_use = None;
        let not_theirs = self.read + left.iter().map(|range| range.len).sum::<u64>();
        let written = self.transfer.len.saturating_sub(not_theirs);
        ReceiveStep::Over { left, written }
    }

    /// Chunks that are copied by one side, dropped, or returned by a sender that could not copy one. The peer writes
    /// its own part, so the sum can be more than there are.
    fn settled(&self, block: &CooperativeBlock, returned: bool) -> u64 {
        u64::from(self.mine)
            + u64::from(self.dropped_chunks)
            + u64::from(block.finished_by_sender(self.transfer.id))
            + u64::from(returned)
    }

    fn drop_range(&mut self, range: MessageRange, chunks: u32) {
        self.dropped.push(range);
        self.dropped_chunks += chunks;
    }

    /// Takes all chunks that neither side has taken out of the transfer: the sender takes no more.
    pub(crate) fn stop(&mut self, endpoint: &Endpoint) {
        let (id, chunks) = (self.transfer.id, self.transfer.chunks());
        if let Some(chunk) = self.held.take() {
            self.drop_range(self.transfer.range(chunk), 1);
        }
        let rest = endpoint.block_in().claim_rest(id, chunks);
        if let Some((first, count)) = rest {
            let offset = self.transfer.range(first).offset;
            let end = (offset + u64::from(count) * self.transfer.chunk).min(self.transfer.len);
            let len = end - offset;
            self.drop_range(MessageRange { offset, len }, count);
        }
        self.layer = None;
    }

    /// Whether the sender copies a chunk of a transfer that was stopped. One that writes what no correct one writes is
    /// not waited for.
    pub(crate) fn is_copied(&self, endpoint: &Endpoint) -> bool {
        let (id, chunks) = (self.transfer.id, self.transfer.chunks());
        let block = endpoint.block_in();
        let failed = block.failed_by_sender(id).is_some();
        block.taken(id) <= chunks && self.settled(block, failed) < u64::from(chunks)
    }

    /// Closes the block of a transfer that was stopped.
    pub(crate) fn close(&self, peer: &mut Peer) {
        peer.endpoint.block_in().close();
        peer.inbound.coop_in_use = None;
    }

    /// Whether a step would do something.
    pub(crate) fn could_move(&self, endpoint: &Endpoint) -> bool {
        let chunks = self.transfer.chunks();
        let coop = endpoint.block_in();
        let taken = coop.taken(self.transfer.id);
        let failed = coop.failed_by_sender(self.transfer.id).is_some();
        let settled = self.settled(coop, failed) >= u64::from(chunks);
        self.held.is_some() || (taken < chunks && (self.layer.is_some() || failed)) || settled
    }
}

/// The sender's side: takes chunks of the transfer that the peer has opened, if it is one of ours and we wait, or were
/// asked.
pub(crate) fn join(core: &mut Core, peer: &mut Peer, waiting: bool) -> bool {
    let open = peer.endpoint.block_out().open_id();
    if open == 0 {
        return false;
    }
    let Some(index) = peer
        .outbound
        .announced
        .iter()
        .position(|a| a.coop_id == open && !a.out && (waiting || a.asked_by.is_some()))
    else {
        return false;
    };
    let (id, forced, finished) = (
        peer.outbound.announced[index].request,
        peer.outbound.announced[index].asked_by.is_some(),
        peer.outbound.announced[index].finished,
    );
    let Some(transfer) = peer.endpoint.block_out().joined(open) else {
        return false;
    };
    let Some((len, buf)) = core
        .requests
        .get(id)
        .map(|request| (request.len, request.buf.clone()))
    else {
        return false;
    };
    if transfer.len > len || transfer.chunk == 0 {
        peer.outbound.announced[index].out = true;
        return false;
    }
    let mut sending = Sending {
        open,
        transfer,
        buf,
        forced,
        finished,
    };
    let (mut moved, mut out) = (false, false);
    for _ in 0..4 {
        let step = sending.step(core, peer);
        moved |= step != SendStep::Out { took: false };
        if let SendStep::Out { .. } = step {
            out = true;
            break;
        }
    }
    if let Some(announced) = peer.outbound.announced.get_mut(index) {
        announced.finished = sending.finished;
        announced.out |= out;
    }
    if moved {
        // The receiver may sleep until our chunks are done.
        peer.endpoint.wake();
    }
    moved
}

/// A transfer of the peer that this rank takes part in.
struct Sending {
    open: u32,
    transfer: CooperativeTransfer,
    buf: UserBuf,
    /// Whether the receiver has asked, and waits.
    forced: bool,
    /// Chunks that this rank has copied.
    finished: u32,
}

/// What a step of the sender came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendStep {
    /// A chunk is copied.
    Copied,
    /// It has no more part in the transfer; whether it took a chunk.
    Out { took: bool },
}

impl Sending {
    /// Takes a chunk and copies it.
    fn step(&mut self, core: &mut Core, peer: &mut Peer) -> SendStep {
        let (open, chunks) = (self.open, self.transfer.chunks());
        let target = RemoteRange {
            address: self.transfer.address,
            heap: self.transfer.heap.map(HeapOffset),
            region: None,
            len: self.transfer.len,
        };
        let Some(layer) = peer.link.putter(&target) else {
            // Only when asked does the receiver wait for us: it must learn that we cannot.
            if self.forced
                && let Some(chunk) = peer.endpoint.block_out().claim_back(open, chunks)
            {
                peer.endpoint.block_out().sender_failed(open, chunk);
                return SendStep::Out { took: true };
            }
            return SendStep::Out { took: false };
        };
        let Some(chunk) = peer.endpoint.block_out().claim_back(open, chunks) else {
            return SendStep::Out { took: false };
        };
        let MessageRange { offset, len } = self.transfer.range(chunk);
        let pieces = self.buf.pieces(offset, len);
        let part = [target.part(offset, len)];
        let put = match pieces.as_slice() {
            [piece] => core.loans.read(*piece, |bytes| {
                peer.link.put(layer, &part, &[IoSlice::new(bytes)])
            }),
            pieces => core
                .loans
                .read_many(pieces, |bytes| peer.link.put(layer, &part, bytes)),
        };
        note_attachments(&mut core.counters, &peer.link, layer);
        if let Ok(Ok(())) = put {
            self.finished += 1;
            core.counters.coop_chunks_sender += 1;
            core.counters.put_bytes += len;
            peer.endpoint
                .block_out()
                .sender_finished(open, self.finished);
            return SendStep::Copied;
        }
        peer.endpoint.block_out().sender_failed(open, chunk);
        if let Ok(Err(error)) = put {
            demote(core, peer, &error);
        }
        SendStep::Out { took: true }
    }
}
