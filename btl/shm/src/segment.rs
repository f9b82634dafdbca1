// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments: the one piece of shared memory that each rank owns, and a peer's view of it.
//!
//! A segment is a memfd of its full size from the start, sealed so that nobody can resize it. No access to a mapping of
//! it can run past the end of the file and raise SIGBUS. It is a file of holes. A user of a part reserves
//! it with `fallocate` first, and gets an error, not a signal, when memory is short. It has no name; peers get its
//! descriptor over a socket.
//!
//! # Safety
//! * A `Mapping` is created here only, from a descriptor whose size was checked and sealed. It is unmapped when its
//!   last user is gone: every structure that keeps a pointer into it also keeps the `Arc`.
//! * The only references made into a mapping are to atomics and to structures made of atomics; their alignment is a
//!   compile-time fact.
//! * Everything else is copied as raw bytes after a range check.
#![allow(unsafe_code, reason = "pointers into mappings")]

mod own;
mod peer;
mod peer_heap;
mod pool_memory;
#[cfg(test)]
mod tests;

pub use own::OwnSegment;
pub use peer::PeerSegment;
pub use peer_heap::PeerHeap;
pub use pool_memory::PoolMemory;

use crate::cells::MappedCells;
use crate::coop::CooperativeBlock;
use crate::doorbell::Doorbell;
use crate::failing;
use crate::layout::{BITMAP_OFFSET, BadGeometry, CTRL_STRIDE, Geometry, HEAP_AT, LINE, SegOffset};
use crate::mapping::{Mapping, SharedStruct};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use libc::off_t;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Why a segment could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// A system call failed.
    #[error("{call} for {object}: {source}; {remedy}")]
    Call {
        /// The system call.
        call: &'static str,
        /// What it was for.
        object: String,
        /// The kernel's error.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Memory could not be reserved.
    #[error(
        "{bytes} bytes of shared memory for {what} cannot be reserved ({source}); {available} bytes are available on this node"
    )]
    Reserve {
        /// Bytes asked for.
        bytes: u64,
        /// What they were for.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
        /// Bytes that the kernel calls available, 0 if it does not say.
        available: u64,
    },
    /// The geometry is unusable.
    #[error(transparent)]
    Geometry(#[from] BadGeometry),
    /// A peer's descriptor is not a segment of this job.
    #[error("the segment of rank {rank} was refused: {reason}")]
    Foreign {
        /// The peer.
        rank: u32,
        /// What is wrong with it.
        reason: String,
    },
}

fn call_failed(
    call: &'static str,
    object: impl Into<String>,
    source: impl Into<io::Error>,
    remedy: &'static str,
) -> SegmentError {
    SegmentError::Call {
        call,
        object: object.into(),
        source: source.into(),
        remedy,
    }
}

/// As much address range as the machine has memory, since no single rank can use more.
#[must_use]
pub fn machine_heap_bytes() -> usize {
    match memory("MemTotal:") {
        0 => 16 << 30,
        bytes => (bytes as usize).next_power_of_two(),
    }
}

/// Address range of a heap for which no size was set. It is [`machine_heap_bytes`], or what the limit on the size of
/// files (`ulimit -f`) leaves of it, as that limit holds for segments too.
#[must_use]
pub fn default_heap_bytes() -> usize {
    let room = usize::try_from(file_size_limit().saturating_sub(HEAP_AT)).unwrap_or(usize::MAX);
    match room {
        // A region of a few pages is of no use to anyone.
        ..LEAST_HEAP => 0,
        _ => machine_heap_bytes().min(1 << room.ilog2()),
    }
}

const LEAST_HEAP: usize = 64 << 20;

/// Whether a file may be made this long. Beyond the limit the kernel would end the process by a signal before it could
/// say why.
#[must_use]
pub fn size_allowed(bytes: u64) -> bool {
    bytes <= file_size_limit()
}

fn file_size_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit};
    getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Makes a memfd of ours this long.
pub(crate) fn set_size(fd: BorrowedFd<'_>, bytes: u64) -> nix::Result<()> {
    if !size_allowed(bytes) {
        return Err(Errno::EFBIG);
    }
    nix::unistd::ftruncate(fd, off_t::try_from(bytes).map_err(|_| Errno::EFBIG)?)
}

/// Bytes of memory that the kernel calls available, 0 if it does not say.
#[must_use]
pub fn available_memory() -> u64 {
    memory("MemAvailable:")
}

fn memory(what: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    line.and_then(|rest| {
        rest.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    })
    .map_or(0, |kib| kib * 1024)
}

/// Control words of one ordered pair of ranks, in the receiver's segment.
#[derive(Debug)]
#[repr(C, align(256))]
pub struct PairControl {
    /// Ring slots that the receiver has consumed.
    tail: AtomicU64,
    /// Bytes of eager credit that the receiver has given back, ever.
    pub credit: AtomicU64,
    /// Chunks of the sender's that the receiver has returned with messages, ever. A reader of the tail knows of
    /// all that were returned before it was published.
    pub returned: AtomicU64,
    _pad0: [AtomicU64; 5],
    /// Nonzero while the receiver polls the ring. Looked at with each message: in the line of what is seldom written.
    wake: AtomicU32,
    /// Nonzero while the sender waits for slots, chunks or credit; written by the sender.
    pub sender_waits: AtomicU32,
    /// Whether the receiver can read a message by the kernel module only if it is exposed as a region. Written by the
    /// receiver: 0 not known yet, 1 no, 2 yes. A hint: a message comes either way.
    pub wants_region: AtomicU32,
    /// Nonzero when the receiver does not talk with the sender any more; written by the receiver, once.
    pub given_up: AtomicU32,
    /// From which size on the receiver wants messages announced that would come in chunks; 0: it has no such wish.
    /// Written by the receiver. A hint: a message comes either way.
    pub wants_announced: AtomicU32,
    _pad1: [AtomicU32; 11],
    /// Cooperative transfer from this sender.
    pub coop: CooperativeBlock,
}

const _: () = assert!(size_of::<PairControl>() == CTRL_STRIDE);
const _: () = assert!(offset_of!(PairControl, wake) / LINE != offset_of!(PairControl, tail) / LINE);
// SAFETY: all atomics.
unsafe impl SharedStruct for PairControl {}

#[derive(Debug)]
#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    rank: AtomicU32,
    ranks: AtomicU32,
    ring_slots: AtomicU32,
    chunk_bytes: AtomicU32,
    chunks: AtomicU32,
    strong_fences: AtomicU32,
    heap_bytes: AtomicU64,
    /// Address of this header in its owner, for the proof transfers.
    address: AtomicU64,
    /// A number that only this segment has, read by peers to prove a layer.
    nonce: AtomicU64,
    coll_channels: AtomicU32,
    _pad: AtomicU32,
    doorbell: Doorbell,
    _pad_doorbell: [AtomicU32; 15],
    /// Where peers write to prove that they can: one word per peer would grow with ranks, so a hash of the peer picks
    /// one.
    proof: [AtomicU64; 64],
}

const _: () = assert!(size_of::<Header>() <= BITMAP_OFFSET);
// SAFETY: all atomics.
unsafe impl SharedStruct for Header {}

impl Header {
    fn geometry(&self) -> Geometry {
        Geometry {
            ranks: self.ranks.load(Ordering::Relaxed),
            ring_slots: self.ring_slots.load(Ordering::Relaxed),
            chunk_bytes: self.chunk_bytes.load(Ordering::Relaxed),
            chunks: self.chunks.load(Ordering::Relaxed),
            heap_bytes: self.heap_bytes.load(Ordering::Relaxed),
            coll_channels: self.coll_channels.load(Ordering::Relaxed),
        }
    }
}

fn reserve(
    fd: BorrowedFd<'_>,
    what: &'static str,
    offset: u64,
    bytes: u64,
) -> Result<(), SegmentError> {
    loop {
        let reserved = failing::attempt("segment.reserve").and_then(|()| {
            let (offset, bytes) = (offset as off_t, bytes as off_t);
            Ok(fallocate(fd, FallocateFlags::empty(), offset, bytes)?)
        });
        match reserved {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                return Err(SegmentError::Reserve {
                    bytes,
                    what,
                    source,
                    available: available_memory(),
                });
            }
        }
    }
}

fn cells(map: &Arc<Mapping>, geometry: &Geometry, sender: u32) -> MappedCells {
    let ring = map
        .at(
            "a ring",
            geometry.ring_offset(sender).0,
            geometry.ring_bytes(),
        )
        .expect("ring offsets come from a checked geometry and a rank below its size");
    let control: &PairControl = map.shared(geometry.ctrl_offset(sender).0);
    // SAFETY: ring and control words lie in the mapping, which the cells keep alive. Alignment is by construction of
    // the layout. The slot count is a power of two (checked geometry).
    unsafe {
        MappedCells::new(
            Arc::clone(map),
            ring,
            geometry.ring_slots as usize,
            NonNull::from(&control.tail),
            NonNull::from(&control.wake),
        )
    }
}

/// Control words of a pair, with the mapping that they live in.
#[derive(Debug, Clone)]
pub struct ControlHandle {
    map: Arc<Mapping>,
    pointer: NonNull<PairControl>,
}

// SAFETY: see Mapping; the structure is made of atomics.
unsafe impl Send for ControlHandle {}
// SAFETY: as above.
unsafe impl Sync for ControlHandle {}

impl ControlHandle {
    fn new(map: &Arc<Mapping>, offset: SegOffset) -> Self {
        let pointer = NonNull::from(map.shared::<PairControl>(offset.0));
        Self {
            map: Arc::clone(map),
            pointer,
        }
    }
}

impl std::ops::Deref for ControlHandle {
    type Target = PairControl;
    #[inline(always)]
    fn deref(&self) -> &PairControl {
        debug_assert!(self.map.len() > 0);
        // SAFETY: made from a reference into the mapping that this handle keeps alive.
        unsafe { self.pointer.as_ref() }
    }
}
