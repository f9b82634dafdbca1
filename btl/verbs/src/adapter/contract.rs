// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lanes are to those who use them, whatever the device is.

use super::head::Offer;
use crate::cache::Bounds;
use crate::provider::Limits;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a rank wants of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The device, or several with commas between them; the first that will do if none.
    pub device: Option<String>,
    /// Its port; the first that will do if none.
    pub port: Option<u8>,
    /// The index of the own address; the best if none.
    pub address: Option<u8>,
    /// Lanes at most.
    pub lanes_max: usize,
    /// Bytes of a message.
    pub slot: usize,
    /// Receives at first, and by how many their number grows.
    pub receives: usize,
    /// Receives at most.
    pub receives_max: usize,
    /// Messages that may be under way from this rank.
    pub sends: usize,
    /// Messages under way to one peer.
    pub window: u32,
    /// Bytes that a request itself carries, at most.
    pub inline: usize,
    /// How long a peer does not answer before it counts as gone.
    pub silence: Duration,
    /// Bytes from which on a message of the program is read where it lies.
    pub read_min: u64,
    /// Whether that is so even by a device whose reads are not sound ([`Limits::sound_reads`]).
    pub trusts_reads: bool,
    /// Bytes of a read at most: the longest stripe.
    pub stripe: usize,
    /// Rails at most.
    pub rails: usize,
    /// Bytes and entries of the program's memory that stay registered.
    pub cache: Bounds,
}

impl Settings {
    /// Whether a device may read memory of peers.
    #[must_use]
    pub fn reads_by(&self, device: &Limits) -> bool {
        device.sound_reads || self.trusts_reads
    }

    /// Whether memory of the program is shown to a peer, that its device may read it, by a device of this rank.
    pub(crate) fn shows_by(&self, device: &Limits, bytes: &[u8]) -> bool {
        bytes.len() as u64 >= self.read_min && !bytes.is_empty() && self.reads_by(device)
    }
}

/// What a rank must know for extended connections.
#[derive(Debug)]
pub struct NodeShare {
    /// The node of each rank.
    pub nodes: Arc<[u32]>,
    /// A file that all ranks of this node have, and nobody else: it stands for their common domain.
    pub file: OwnedFd,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes that are pinned.
    pub pinned: u64,
    /// Bytes that came by lanes.
    pub bytes: u64,
    /// Receives in all.
    pub receives: u64,
    /// Bytes of the program's memory that are registered.
    pub registered: u64,
    /// Lanes that gave their place to others.
    pub displaced: u64,
    /// Bytes that were read by another rail than that of the stream.
    pub striped: u64,
    /// Connections by further rails that failed after they had carried something.
    pub rails_lost: u64,
    /// Stripes that were read again, by another rail.
    pub stripes_again: u64,
    /// Datagrams that were retransmitted.
    pub retransmitted: u64,
    /// Datagrams of no lane that came.
    pub foreign: u64,
    /// Datagrams that were thrown away, as a test wants it.
    pub dropped: u64,
}

/// Memory of the program that peers may read.
pub struct ExposedMemory {
    /// Where it is.
    pub address: u64,
    /// The key by which peers read it. Where there are several rails, its upper half says of which it is.
    pub key: u64,
    /// It may be read as long as this exists, at least.
    pub hold: Box<dyn Send>,
}

impl ExposedMemory {
    /// Where a peer's device reads its first byte.
    #[must_use]
    pub fn remote(&self) -> RemoteAddress {
        RemoteAddress {
            address: self.address,
            key: self.key,
        }
    }
}

/// Memory of a peer that a device of this rank may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Its address in the peer's memory.
    pub address: u64,
    /// The key by which it is read, as [`ExposedMemory`] has it. It is opaque here: an rkey, or the packed key of
    /// several rails. That of [`provider::Remote`](crate::provider::Remote) is always an rkey.
    pub key: u64,
}

impl RemoteAddress {
    /// The same memory, from so many bytes on.
    #[must_use]
    pub fn offset_by(self, bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(bytes),
            ..self
        }
    }
}

impl Debug for ExposedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shown({:#x})", self.address)
    }
}

/// How far a read of a peer's memory has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadState {
    /// So many bytes are here, which are the next ones.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// They will not come by this lane.
    Failed,
}

/// A rank's lanes, whatever its device is. Lanes have names; one that is over finds nothing.
pub trait Lanes: Debug + Send {
    /// A lane to a rank, and what the rank must be told of it.
    ///
    /// # Errors
    ///
    /// Why there can be none, and what would help.
    fn make(&mut self, rank: u32) -> Result<(u64, Offer), String>;
    /// Begins to connect a lane with the peer's.
    fn connect(&mut self, lane: u64, peer: &Offer);
    /// Whether it is connected, so that the peer may send.
    fn is_connected(&self, lane: u64) -> bool;
    /// The number of the target that was made for the peer's initiator, once it is of use: the peer must hear of it
    /// (XRC). It is connected only then.
    fn target(&self, lane: u64) -> Option<u32> {
        let _ = lane;
        None
    }
    /// The peer has made a target for this side's initiator.
    fn hear_target(&mut self, lane: u64, target: u32) {
        let _ = (lane, target);
    }
    /// Whether it carries nothing any more.
    fn has_failed(&self, lane: u64) -> bool;
    /// Why, if so.
    fn failure(&self, lane: u64) -> Option<String>;

    /// Takes what has completed. Says whether there was anything.
    fn poll(&mut self) -> bool;
    /// Takes the rank of a lane that has changed: something came by it, it has room again, or it failed.
    fn next_changed(&mut self) -> Option<u32>;
    /// Whether there is such a lane.
    fn has_changed(&self) -> bool;

    /// Whether there is room for so many bytes, or for a good part of what the lane carries at once.
    fn has_room(&mut self, lane: u64, bytes: usize) -> bool;
    /// Adds bytes to the stream, as many as there is room for; how many.
    fn write(&mut self, lane: u64, bytes: &[u8]) -> usize;
    /// Sends what was added. `false`: it waits for room.
    fn push(&mut self, lane: u64) -> bool;
    /// Whether the peer has taken all that was sent, and nothing waits.
    fn is_taken(&self, lane: u64) -> bool;

    /// Bytes that have come.
    fn unread(&self, lane: u64) -> usize;
    /// Reads bytes; how many.
    fn read(&mut self, lane: u64, out: &mut [u8]) -> usize;
    /// Tells the peer what was taken, if it may wait for that.
    fn acknowledge(&mut self, lane: u64);

    /// Lets a lane's peer read memory of the program, if it is worth that, and can be pinned.
    fn show(&mut self, lane: u64, bytes: &[u8]) -> Option<ExposedMemory>;
    /// Whether memory of the lane's peer can be read.
    fn can_post_reads(&mut self, lane: u64) -> bool;
    /// Posts reads of a peer's memory, as many as there is room for; of how many bytes. `token` names who reads: what
    /// it has posted comes in that order.
    fn post_read(&mut self, lane: u64, token: u64, from: RemoteAddress, len: u64) -> u64;
    /// Whether the next bytes of the reads of `token` are here.
    fn read_state(&self, lane: u64, token: u64) -> ReadState;
    /// Copies a part of them.
    fn copy_read(&self, lane: u64, token: u64, offset: usize, out: &mut [u8]);
    /// They are of no more use. After [`ReadState::Failed`]: nobody waits for them, and `token` may be used again.
    fn release_read(&mut self, lane: u64, token: u64);

    /// A lane that carries nothing any more: from here on nothing comes. Gives how many bytes of the peer's stream have
    /// come.
    fn stop(&mut self, lane: u64) -> u64;
    /// What the peer has not received of a stopped lane's stream, if it has received so many bytes; none: it cannot
    /// have received so many.
    fn left(&mut self, lane: u64, received: u64) -> Option<Vec<u8>>;
    /// Forgets a lane.
    fn close(&mut self, lane: u64);

    /// Has the descriptors tell of the next completion. `false`: something has completed already.
    fn arm(&mut self) -> bool;
    /// What tells of completions, and of the devices.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
    /// By which ports a lane goes: first that of the stream, then those that carry stripes besides.
    fn rails(&self, lane: u64) -> Vec<String>;
    /// Takes what the device tells.
    fn hear_device(&mut self);
    /// Gives back what has not been needed for a while, and fails lanes of whose operations the device tells nothing.
    fn age(&mut self, now: Instant);
    /// What is counted.
    fn figures(&self) -> Figures;
}
