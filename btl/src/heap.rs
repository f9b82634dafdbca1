// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared from the start: one side's buffer lies in its own segment, so the other loads from it, or stores into it, with its
//! own instructions. The data path of XPMEM without a module, for memory that was allocated for it.

use crate::contract::{CopyError, CopyLayer, LayerId, Probe, Refusal, RemoteRange};
use onecopy_shm::coll::View;
use onecopy_shm::copy::{CopyPlan, Kernel};
use onecopy_shm::layout::{HeapOffset, OutOfBounds};
use onecopy_shm::segment::PeerSegment;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::{Deref, Range};

/// Ranges at least this large get their page tables filled in one call before the first copy.
const POPULATE_MIN: u64 = 256 << 10;

/// The layer, for one peer.
#[derive(Debug)]
pub struct HeapLayer {
    plan: CopyPlan,
    /// Which parts of the peer's heap have had their page tables filled, in units of [`POPULATE_UNIT`].
    populated: std::cell::RefCell<std::collections::HashSet<u64>>,
}

const POPULATE_UNIT: u64 = 2 << 20;

/// Whether ranks of this machine can have heaps.
#[must_use]
pub fn probe(heap_bytes: u64) -> Probe {
    if heap_bytes == 0 {
        return Probe::Unavailable(Refusal::new(
            "the heap has no address range",
            "set ONECOPY_HEAP_SIZE",
        ));
    }
    Probe::Available {
        detail: format!(
            "for memory from alloc; address range of {} MiB per rank",
            heap_bytes >> 20
        ),
    }
}

impl HeapLayer {
    /// Maps the peer's heap.
    pub fn prove(peer: &mut PeerSegment, plan: CopyPlan) -> Result<Self, Refusal> {
        peer.map_heap().map_err(|e| {
            Refusal::new(
                e.to_string(),
                "set ONECOPY_HEAP_SIZE lower or raise ulimit -v",
            )
        })?;
        Ok(Self {
            plan,
            populated: std::cell::RefCell::default(),
        })
    }

    fn populate(&self, peer: &PeerSegment, offset: HeapOffset, len: u64) {
        if len < POPULATE_MIN {
            return;
        }
        let mut done = self.populated.borrow_mut();
        for unit in offset.0 / POPULATE_UNIT..=(offset.0 + len - 1) / POPULATE_UNIT {
            if done.insert(unit) {
                let begin = offset.0.max(unit * POPULATE_UNIT);
                let end = (offset.0 + len).min((unit + 1) * POPULATE_UNIT);
                peer.populate_heap(HeapOffset(begin), end - begin, true);
            }
        }
    }

    /// Bytes of the peer to be read in place, if they lie in its heap.
    #[inline]
    #[must_use]
    pub fn view<'p>(&self, peer: &'p PeerSegment, range: &RemoteRange) -> Option<View<'p>> {
        let offset = range.heap?;
        let len = usize::try_from(range.len).ok()?;
        let view = peer.heap_view(offset, len).ok()?;
        self.populate(peer, offset, range.len);
        Some(view)
    }

    fn kernel(&self, total: u64) -> Kernel {
        self.plan
            .kernel(usize::try_from(total).unwrap_or(usize::MAX))
    }
}

fn failed(peer: &PeerSegment, call: &'static str, bytes: u64, error: OutOfBounds) -> CopyError {
    CopyError {
        layer: LayerId::Heap,
        call,
        peer: peer.rank(),
        bytes,
        source: io::Error::other(error),
    }
}

/// Local pieces to read from, for [`walk`].
pub(crate) fn pieces<'a>(bytes: &'a [IoSlice<'_>]) -> impl Iterator<Item = &'a [u8]> {
    bytes.iter().map(|piece| &**piece)
}

/// Local pieces to write to, for [`walk`].
pub(crate) fn pieces_mut<'a>(out: &'a mut [IoSliceMut<'_>]) -> impl Iterator<Item = &'a mut [u8]> {
    out.iter_mut().map(|piece| &mut **piece)
}

/// Walks two lists of ranges of the same total length and calls `step(part of a remote range, local piece, part of that piece)`.
pub(crate) fn walk<P: Deref<Target = [u8]>, E>(
    remote: &[RemoteRange],
    local: impl Iterator<Item = P>,
    mut step: impl FnMut(RemoteRange, &mut P, Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    let mut ranges = remote.iter().filter(|r| r.len > 0);
    let (mut range, mut used) = (ranges.next(), 0u64);
    for mut piece in local {
        let (len, mut at) = (piece.len(), 0);
        while at < len {
            let Some(current) = range else { return Ok(()) };
            let n = (len - at).min(usize::try_from(current.len - used).unwrap_or(usize::MAX));
            step(current.part(used, n as u64), &mut piece, at..at + n)?;
            at += n;
            used += n as u64;
            if used == current.len {
                (range, used) = (ranges.next(), 0);
            }
        }
    }
    Ok(())
}

const NOT_IN_HEAP: OutOfBounds = OutOfBounds {
    what: "bytes outside of the peer's heap",
    offset: 0,
    len: 0,
    limit: 0,
};

impl CopyLayer for HeapLayer {
    fn id(&self) -> LayerId {
        LayerId::Heap
    }

    fn reaches(&self, range: &RemoteRange) -> bool {
        range.heap.is_some()
    }

    #[inline]
    fn get(
        &self,
        peer: &PeerSegment,
        from: &[RemoteRange],
        out: &mut [IoSliceMut<'_>],
    ) -> Result<(), CopyError> {
        let total: u64 = from.iter().map(|r| r.len).sum();
        let kernel = self.kernel(total);
        let fail = |e| failed(peer, "copy from the peer's heap", total, e);
        if let ([range], [out]) = (from, &mut *out) {
            let offset = range.heap.ok_or(NOT_IN_HEAP).map_err(fail)?;
            self.populate(peer, offset, range.len);
            return peer.read_heap(offset, out, kernel).map_err(fail);
        }
        walk(from, pieces_mut(out), |range, out, part| {
            let offset = range.heap.ok_or(NOT_IN_HEAP)?;
            self.populate(peer, offset, range.len);
            peer.read_heap(offset, &mut out[part], kernel)
        })
        .map_err(fail)
    }

    #[inline]
    fn put(
        &self,
        peer: &PeerSegment,
        to: &[RemoteRange],
        bytes: &[IoSlice<'_>],
    ) -> Result<(), CopyError> {
        let total: u64 = to.iter().map(|r| r.len).sum();
        let kernel = self.kernel(total);
        let fail = |e| failed(peer, "copy to the peer's heap", total, e);
        walk(to, pieces(bytes), |range, bytes, part| {
            let offset = range.heap.ok_or(NOT_IN_HEAP)?;
            self.populate(peer, offset, range.len);
            peer.write_heap(offset, &bytes[part], kernel)
        })
        .map_err(fail)
    }
}
