// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that peers can read from the start: allocations in the rank's own segment.
//!
//! Page-granular ranges, their bookkeeping outside of the shared memory, so that no peer can damage it. A range is
//! reserved when it is allocated and given back to the system when it is freed.
//!
//! # Safety
//! A [`HeapBuf`] is the only owner of its range, or of its private bytes when there is no heap. Its pages are reserved
//! and mapped while it exists, so its slices are valid. They lie in memory that peers of the same job can map. Peers
//! write there only where this rank posted a receive, for which the buffer is lent and thus not accessible to the
//! program. A peer that breaks this rule could also use `ptrace`. The ranks of a job trust one another this far
//! (docs/trust-model.md).
#![allow(
    unsafe_code,
    reason = "slices of the program's own allocations in the segment"
)]

use crate::fork;
use crate::layout::{HeapOffset, PAGE};
use crate::loan::{Buffer, BufferMut};
use crate::segment::{OwnSegment, SegmentError};
use crate::sync::{AtomicU64, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use range_alloc::RangeAllocator;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

/// The heap of a rank: its segment and which ranges of it are in use.
#[derive(Debug)]
pub struct Heap {
    segment: Arc<OwnSegment>,
    /// The process, as [`fork::generation`] numbers it: the ranges are given out there only.
    process: u32,
    /// Not used when a malloc front gives out the ranges.
    ranges: Mutex<RangeAllocator<u64>>,
    /// Bytes given out.
    used: AtomicU64,
}

/// Why an allocation failed.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// The heap's address range has no gap that large.
    #[error(
        "alloc of {bytes} bytes: the heap's address range of {limit} bytes has no gap that large; raise ONECOPY_HEAP_SIZE"
    )]
    Full {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of the address range.
        limit: u64,
    },
    /// The system has no memory.
    #[error(transparent)]
    Reserve(#[from] SegmentError),
    /// The system has no private memory.
    #[error("mmap of {bytes} bytes of private memory: {source}; raise ulimit -v, or free memory")]
    Private {
        /// Bytes asked for.
        bytes: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
}

impl Heap {
    /// The heap of `segment`.
    #[must_use]
    pub fn new(segment: Arc<OwnSegment>) -> Arc<Self> {
        let ranges = Mutex::new(RangeAllocator::new(0..segment.geometry().heap_bytes.max(1)));
        fork::watch();
        Arc::new(Self {
            segment,
            process: fork::generation(),
            ranges,
            used: AtomicU64::new(0),
        })
    }

    /// Allocates `bytes` bytes, zeroed, aligned to a page (to 2 MiB from 2 MiB on). Without a heap (its size is 0) the
    /// memory is private.
    ///
    /// # Errors
    /// [`AllocError::Full`] where the address range has no such gap, [`AllocError::Reserve`] where the node has no
    /// memory. Without a heap, [`AllocError::Private`].
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<HeapBuf, AllocError> {
        let limit = self.segment.geometry().heap_bytes;
        if limit == 0 || !self.is_ours() {
            // The layer is switched off, or this is a child, which must not take what its parent may give out. Ordinary
            // memory lets programs run all the same.
            return self.alloc_private(bytes);
        }
        let full = || AllocError::Full {
            bytes: bytes as u64,
            limit,
        };
        let align = if bytes >= 2 << 20 {
            2 << 20
        } else {
            PAGE as u64
        };
        let size = (bytes.max(1) as u64)
            .checked_next_multiple_of(PAGE as u64)
            .ok_or_else(full)?;
        let range = self.take(size, align).ok_or_else(full)?;
        if let Err(error) = self.segment.reserve_heap(range.start, size) {
            self.give_back(range);
            return Err(error.into());
        }
        self.used.fetch_add(size, Ordering::Relaxed);
        Ok(HeapBuf {
            heap: Arc::clone(self),
            range,
            private: None,
            len: bytes,
        })
    }

    /// Allocates `bytes` bytes that no peer can map, zeroed, aligned to a page, and given back to the system on drop.
    ///
    /// # Errors
    /// [`AllocError::Private`].
    pub fn alloc_private(self: &Arc<Self>, bytes: usize) -> Result<HeapBuf, AllocError> {
        let mapped = MmapOptions::new().len(bytes.max(1)).map_anon();
        let private = mapped.map_err(|source| AllocError::Private { bytes, source })?;
        Ok(HeapBuf {
            heap: Arc::clone(self),
            range: 0..0,
            private: Some(private.into()),
            len: bytes,
        })
    }

    /// Bytes of the heap's address range; 0 if there is no heap.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.segment.geometry().heap_bytes
    }

    fn take(&self, size: u64, align: u64) -> Option<Range<u64>> {
        if let Some(front) = self.segment.front() {
            let begin = front.alloc(size, align)?.0;
            return Some(begin..begin + size);
        }
        // The allocator of ranges adds to what it is asked for before it compares.
        if size > self.limit() {
            return None;
        }
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.allocate_range_aligned(size, align).ok()
    }

    fn is_ours(&self) -> bool {
        self.process == fork::generation()
    }

    fn give_back(&self, range: Range<u64>) {
        if !self.is_ours() {
            // The memory is the parent's, which may use it still.
            return;
        }
        if let Some(front) = self.segment.front() {
            return front.free(HeapOffset(range.start));
        }
        self.segment
            .release_heap(range.start, range.end - range.start);
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.free_range(range);
    }

    /// Bytes allocated now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A buffer that peers can read and write in place: single copy without any privilege.
pub struct HeapBuf {
    heap: Arc<Heap>,
    range: Range<u64>,
    /// The pages of a buffer that lies in no heap.
    private: Option<MmapRaw>,
    len: usize,
}

impl HeapBuf {
    /// Where in the heap the buffer is; none if it is private.
    #[must_use]
    pub fn offset(&self) -> Option<HeapOffset> {
        self.private
            .is_none()
            .then_some(HeapOffset(self.range.start))
    }

    fn address(&self) -> *mut u8 {
        if let Some(private) = &self.private {
            return private.as_mut_ptr();
        }
        self.heap
            .segment
            .heap_address(
                HeapOffset(self.range.start),
                self.range.end - self.range.start,
            )
            .expect("allocated ranges lie in the heap")
    }
}

impl Deref for HeapBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: see the module's safety case.
        unsafe { std::slice::from_raw_parts(self.address(), self.len) }
    }
}

impl DerefMut for HeapBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: see the module's safety case; `&mut self` excludes other slices.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.len) }
    }
}

impl Drop for HeapBuf {
    fn drop(&mut self) {
        if self.private.is_some() {
            return;
        }
        let size = self.range.end - self.range.start;
        self.heap.used.fetch_sub(size, Ordering::Relaxed);
        self.heap.give_back(self.range.clone());
    }
}

impl std::fmt::Debug for HeapBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeapBuf")
            .field("offset", &self.range.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

// SAFETY: the bytes are at a fixed place of the mapping, which the buffer's heap keeps alive; fresh pages are zero,
// hence initialised.
unsafe impl Buffer for HeapBuf {
    fn bytes(&self) -> (*const u8, usize) {
        (self.address(), self.len)
    }
}
// SAFETY: as above; the buffer is the only owner of its range.
unsafe impl BufferMut for HeapBuf {
    fn bytes_mut(&mut self) -> (*mut u8, usize) {
        (self.address(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::sync::HeavyFence;

    fn heap(bytes: u64) -> Arc<Heap> {
        let geometry = Geometry {
            ranks: 1,
            ring_slots: 32,
            chunk_bytes: 4096,
            chunks: 4,
            heap_bytes: bytes,
            coll_channels: 0,
        };
        Heap::new(Arc::new(
            OwnSegment::create(0, geometry, HeavyFence::without_membarrier(), 1).unwrap(),
        ))
    }

    #[test]
    fn memory_is_zero_found_again_and_given_back() {
        let heap = heap(16 << 20);
        let mut a = heap.alloc(10_000).unwrap();
        assert!(a.iter().all(|&b| b == 0));
        a.fill(3);
        let b = heap.alloc(3 << 20).unwrap();
        assert_eq!(b.offset().unwrap().0 % (2 << 20), 0);
        assert_eq!(
            heap.segment.heap_offset_of(a.as_ptr() as usize, a.len()),
            a.offset()
        );
        assert_eq!(
            heap.segment.heap_offset_of(&raw const heap as usize, 8),
            None
        );
        drop((a, b));
        assert_eq!(heap.used(), 0);
        assert!(
            heap.alloc(10_000).unwrap().iter().all(|&b| b == 0),
            "freed memory comes back zeroed"
        );
    }

    #[test]
    fn without_a_heap_memory_is_private() {
        let heap = heap(0);
        let mut a = heap.alloc(100_000).unwrap();
        assert!(a.iter().all(|&b| b == 0) && a.offset().is_none());
        a[99_999] = 1;
        assert_eq!(
            heap.segment.heap_offset_of(a.as_ptr() as usize, a.len()),
            None
        );
    }

    #[test]
    fn a_full_heap_says_so() {
        let heap = heap(1 << 20);
        let text = heap.alloc(2 << 20).unwrap_err().to_string();
        assert!(text.contains("ONECOPY_HEAP_SIZE"), "{text}");
        assert!(heap.alloc(usize::MAX).is_err());
        heap.alloc(0).unwrap();
    }
}
