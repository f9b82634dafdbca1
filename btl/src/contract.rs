// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a layer must offer. A layer owns what it needs to reach its peer: a copy names no segment, and a peer
//! need not have one.

use crate::attachment::Window;
use crate::module::{Export, Module, Region};
use crate::rcache::{Limits, Stats};
pub use crate::refusal::{Probe, Refusal};
use onecopy_shm::coll::View;
use onecopy_shm::copy::CopyPlan;
use onecopy_shm::layout::HeapOffset;
use onecopy_shm::sync::{Ordering, fence};
use std::cell::Ref;
use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A place in a region that the peer exposed by KNEM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionPart {
    /// The region's name.
    pub cookie: u64,
    /// Bytes before the place.
    pub offset: u64,
}

/// Bytes in the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRange {
    /// Their address in the peer.
    pub address: u64,
    /// Their place in the peer's heap, if they lie there.
    pub heap: Option<HeapOffset>,
    /// Their place in a region, if the peer exposed them as one.
    pub region: Option<RegionPart>,
    /// How many.
    pub len: u64,
}

impl RemoteRange {
    /// The part of `len` bytes that begins `offset` bytes into the range.
    #[must_use]
    pub fn part(&self, offset: u64, len: u64) -> Self {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        Self {
            address: self.address.wrapping_add(offset),
            heap: self.heap.map(|h| HeapOffset(h.0.wrapping_add(offset))),
            region: self.region.map(|part| RegionPart {
                offset: part.offset.wrapping_add(offset),
                ..part
            }),
            len,
        }
    }
}

/// What is known of the machine before any peer is.
#[derive(Debug)]
pub struct NodeFacts {
    /// The devices of the kernel module.
    pub module: Module,
    /// Bytes of a rank's heap.
    pub heap_bytes: u64,
    /// Whether a segment can be made and mapped.
    pub segment: Result<(), Refusal>,
}

/// How a peer can be reached, besides its segment.
#[derive(Debug, Default)]
pub struct PeerAccess {
    /// Its process id here.
    pub pid: Option<i32>,
    /// The descriptor by which it granted its memory.
    pub grant: Option<OwnedFd>,
    /// The numbers that it announced.
    pub export: Export,
}

impl PeerAccess {
    /// The descriptor by which the peer granted its memory.
    #[must_use]
    pub fn grant(&self) -> Option<BorrowedFd<'_>> {
        self.grant.as_ref().map(AsFd::as_fd)
    }
}

/// How layers are used here.
#[derive(Debug, Clone)]
pub struct LayerSettings {
    /// Whether peers' chunks are mapped writable.
    pub pool_writable: bool,
    /// How large copies are made.
    pub plan: CopyPlan,
    /// The devices of the kernel module.
    pub module: Module,
    /// What bounds the windows attached of one peer.
    pub limits: Limits,
}

/// What failed. Nothing is known of the bytes that were to be moved.
#[derive(Debug)]
pub struct Failure {
    /// The call that failed.
    pub call: &'static str,
    /// The reason.
    pub source: io::Error,
}

/// A layer that copies straight between the buffers of two processes, for one peer.
pub trait CopyLayer: Debug + Send {
    /// Whether it can reach these bytes at all.
    fn reaches(&self, range: &RemoteRange) -> bool;
    /// Copies all of `from` to `out`, which hold the same number of bytes.
    fn get(&self, from: &[RemoteRange], out: &mut [IoSliceMut<'_>]) -> Result<(), Failure>;
    /// Copies all of `bytes` to `to`, which hold the same number of bytes.
    fn put(&self, to: &[RemoteRange], bytes: &[IoSlice<'_>]) -> Result<(), Failure>;
    /// Whether this pair's layer can write to the peer, too.
    fn can_write(&self) -> bool;

    /// Whether it can write to the range now, without first doing what the range has not earned.
    fn is_ready(&self, range: &RemoteRange) -> bool {
        let _ = range;
        true
    }

    /// Whether the owner of the bytes has to expose each message before it can be read.
    fn wants_exposure(&self) -> bool {
        false
    }

    /// Exposes pieces (address, bytes) of this process's memory for the peer to copy from; none if the peer needs no
    /// such thing.
    fn expose(
        &self,
        pieces: &mut dyn Iterator<Item = (usize, usize)>,
    ) -> Option<Result<Region, Failure>> {
        let _ = pieces;
        None
    }
}

/// A layer that maps memory of the peer once it has been earned, and then loads and stores.
pub trait AttachLayer: CopyLayer {
    /// Whether bytes can be read in place, by [`Self::attached`].
    fn shows_in_place(&self) -> bool;
    /// Whether a transfer of `total` bytes, of which the range is a part, has earned an attachment. To be asked once
    /// per transfer.
    fn earned(&self, range: &RemoteRange, total: u64) -> bool;
    /// Attaches a range before it is copied in parts, in as few windows as possible. If that is refused, the copy will
    /// tell.
    fn reserve(&self, range: &RemoteRange);
    /// The bytes of `range`, attached and to be read in place. None: the layer does not show them, or not in one
    /// window.
    fn attached(&self, range: &RemoteRange) -> Option<AttachedBytes<'_>>;
    /// Accesses so far, of anybody, that found no memory of the peer.
    fn holes(&self) -> u64;
    /// Gives up the windows of a range in which a hole was found.
    fn forget(&self, range: &RemoteRange);
    /// Gives up all windows.
    fn detach(&self);
    /// What the attach cache did since the last call.
    fn take_stats(&self) -> AttachStats;
}

/// What an attach cache did since it was last asked.
#[derive(Debug, Clone, Copy)]
pub struct AttachStats {
    /// What it has counted.
    pub counts: Stats,
    /// By how much what is attached grew.
    pub growth: Attached,
}

/// What is attached of a peer, or by how much that grew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attached {
    /// How many windows.
    pub windows: i64,
    /// Their bytes.
    pub bytes: i64,
}

/// Attached bytes of a peer, to be read in place. While it lives, nothing else is copied by the peer's layer.
#[derive(Debug)]
pub struct AttachedBytes<'l> {
    layer: &'l dyn AttachLayer,
    window: Ref<'l, Window>,
    offset: u64,
    range: RemoteRange,
    holes: u64,
}

impl<'l> AttachedBytes<'l> {
    /// The bytes of `range`, which begin at `at` in the window. `holes`: those that were counted before the window was
    /// looked up.
    pub(crate) fn new(
        layer: &'l dyn AttachLayer,
        window: Ref<'l, Window>,
        offset: u64,
        range: RemoteRange,
        holes: u64,
    ) -> Self {
        Self {
            layer,
            window,
            offset,
            range,
            holes,
        }
    }

    /// The bytes. They were the peer's if [`Self::were_there`] says so when they have been read; else they may be
    /// zeroes.
    #[must_use]
    pub fn view(&self) -> Option<View<'_>> {
        let len = usize::try_from(self.range.len).ok()?;
        self.window.view(self.offset, len)
    }

    /// Whether no hole was found in any window since this was made.
    #[must_use]
    pub fn were_there(self) -> bool {
        // The loads of the bytes go before the load of the count.
        fence(Ordering::Acquire);
        let Self {
            layer,
            window,
            range,
            holes,
            ..
        } = self;
        if layer.holes() == holes {
            return true;
        }
        drop(window);
        layer.forget(&range);
        false
    }
}
