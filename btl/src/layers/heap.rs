// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared from the start. One side's buffer lies in its own segment, so the other loads from it, or stores into
//! it, with its own instructions. The data path of XPMEM without a module, for memory that was allocated for it.

use crate::contract::{CopyLayer, Failure, Probe, Refusal, RemoteRange};
use crate::pieces::{pieces, pieces_mut, walk};
use crate::populated::Populated;
use onecopy_shm::coll::View;
use onecopy_shm::copy::{CopyPlan, Kernel};
use onecopy_shm::layout::{HeapOffset, OutOfBounds};
use onecopy_shm::segment::{PeerHeap, PeerSegment};
use std::convert::Infallible;
use std::io::{self, IoSlice, IoSliceMut};

/// The layer, for one peer.
#[derive(Debug)]
pub struct HeapLayer {
    heap: PeerHeap,
    plan: CopyPlan,
    /// Which parts of the peer's heap have had their page tables filled, by their offsets.
    populated: Populated,
}

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
    ///
    /// # Errors
    /// A [`Refusal`]: the pair does without this layer.
    pub fn prove(peer: &PeerSegment, plan: CopyPlan) -> Result<Self, Refusal> {
        let heap = peer.map_heap().map_err(|e| {
            Refusal::new(
                e.to_string(),
                "set ONECOPY_HEAP_SIZE lower or raise ulimit -v",
            )
        })?;
        Ok(Self {
            heap,
            plan,
            populated: Populated::default(),
        })
    }

    fn populate(&self, offset: HeapOffset, len: u64) {
        let filled = self.populated.fill(offset.0, len, |begin, len| {
            self.heap.populate(HeapOffset(begin), len);
            Ok::<_, Infallible>(())
        });
        filled.unwrap_or_else(|never| match never {});
    }

    /// Bytes of the peer to be read in place, if they lie in its heap.
    #[inline]
    #[must_use]
    pub fn view(&self, range: &RemoteRange) -> Option<View<'_>> {
        let offset = range.heap?;
        let len = usize::try_from(range.len).ok()?;
        let view = self.heap.view(offset, len).ok()?;
        self.populate(offset, range.len);
        Some(view)
    }

    fn kernel(&self, total: u64) -> Kernel {
        self.plan
            .kernel(usize::try_from(total).unwrap_or(usize::MAX))
    }
}

fn failed(call: &'static str, error: OutOfBounds) -> Failure {
    Failure {
        call,
        source: io::Error::other(error),
    }
}

const NOT_IN_HEAP: OutOfBounds = OutOfBounds {
    what: "bytes outside of the peer's heap",
    offset: 0,
    len: 0,
    limit: 0,
};

impl CopyLayer for HeapLayer {
    #[inline]
    fn reaches(&self, range: &RemoteRange) -> bool {
        range.heap.is_some()
    }

    fn can_write(&self) -> bool {
        true
    }

    #[inline]
    fn get(&self, from: &[RemoteRange], out: &mut [IoSliceMut<'_>]) -> Result<(), Failure> {
        let total: u64 = from.iter().map(|r| r.len).sum();
        let kernel = self.kernel(total);
        let fail = |e| failed("copy from the peer's heap", e);
        if let ([range], [out]) = (from, &mut *out) {
            let offset = range.heap.ok_or(NOT_IN_HEAP).map_err(fail)?;
            self.populate(offset, range.len);
            return self.heap.read(offset, out, kernel).map_err(fail);
        }
        walk(from, pieces_mut(out), |range, out, part| {
            let offset = range.heap.ok_or(NOT_IN_HEAP)?;
            self.populate(offset, range.len);
            self.heap.read(offset, &mut out[part], kernel)
        })
        .map_err(fail)
    }

    #[inline]
    fn put(&self, to: &[RemoteRange], bytes: &[IoSlice<'_>]) -> Result<(), Failure> {
        let total: u64 = to.iter().map(|r| r.len).sum();
        let kernel = self.kernel(total);
        let fail = |e| failed("copy to the peer's heap", e);
        walk(to, pieces(bytes), |range, bytes, part| {
            let offset = range.heap.ok_or(NOT_IN_HEAP)?;
            self.populate(offset, range.len);
            self.heap.write(offset, &bytes[part], kernel)
        })
        .map_err(fail)
    }
}
