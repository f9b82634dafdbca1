// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments: the one piece of shared memory that each rank owns, and a peer's view of it.
//!
//! A segment is a memfd of its full size from the start, sealed so that nobody can resize it: no access to a mapping of it can run past the
//! end of the file and raise SIGBUS. It is a file of holes; whoever is about to use a part reserves it with `fallocate` first, and
//! gets an error, not a signal, when memory is short. It has no name; peers get its descriptor over a socket.
//!
//! # Safety
//! * A [`Mapping`] is created here only, from a descriptor whose size was checked and sealed, and unmapped when its last user is gone: every
//!   structure that keeps a pointer into it also keeps the `Arc`.
//! * The only references made into a mapping are to atomics and to structures made of atomics; their alignment is a compile-time fact.
//! * Everything else is copied as raw bytes after a range check.
#![allow(unsafe_code, reason = "pointers into mappings")]

use crate::cells::MappedCells;
use crate::coop::CoopBlock;
use crate::copy::{self, Kernel};
use crate::doorbell::Doorbell;
use crate::layout::{
    BITMAP_OFFSET, BadGeometry, CTRL_STRIDE, ChunkIndex, Geometry, HeapOffset, MAGIC, OutOfBounds,
    PAGE, SegOffset, check_range,
};
use crate::ring::{Consumer, Producer};
use crate::sync::{AtomicU32, AtomicU64, HeavyFence, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
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
        /// What the kernel said.
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
        /// What the kernel said.
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

/// Bytes of memory that the kernel calls available, 0 if it does not say.
#[must_use]
pub fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| {
        rest.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    })
    .map_or(0, |kib| kib * 1024)
}

/// A part of a memfd in this process's address space.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: MmapRaw,
}

// SAFETY: a mapping is an address range; what is done with it is the business of the structures above, which use atomics and raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: u64, len: u64, writable: bool) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        // By number, which spares a second descriptor; `fd` is open for the whole call.
        let fd = fd.as_raw_fd();
        let mut options = MmapOptions::new();
        options.offset(offset).len(len).no_reserve_swap();
        let map = if writable {
            options.map_raw(fd)?
        } else {
            options.map_raw_read_only(fd)?
        };
        Ok(Self { map })
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).unwrap_or(NonNull::dangling())
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    #[inline]
    pub(crate) fn at(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
    ) -> Result<NonNull<u8>, OutOfBounds> {
        check_range(what, offset, len, self.len())?;
        // SAFETY: the range lies in the mapping.
        Ok(unsafe { self.base().add(offset as usize) })
    }

    /// A structure of atomics at `offset`.
    fn shared<T: SharedStruct>(&self, offset: u64) -> &T {
        let at = self
            .at("structure in the segment", offset, size_of::<T>() as u64)
            .expect("offsets of control structures come from a checked geometry");
        assert_eq!(at.as_ptr() as usize % align_of::<T>(), 0);
        // SAFETY: in the mapping, aligned, alive as long as self; T is made of atomics (trait's promise).
        unsafe { at.cast::<T>().as_ref() }
    }

    fn advise(&self, offset: u64, len: u64, advice: libc::c_int) -> bool {
        let begin = offset & !(PAGE as u64 - 1);
        let Ok(at) = self.at("advice", begin, len + (offset - begin)) else {
            return false;
        };
        // SAFETY: the range lies in our mapping; the advice values used here change no content.
        let result = unsafe {
            libc::madvise(
                at.as_ptr().cast(),
                (len + (offset - begin)) as usize,
                advice,
            )
        };
        result == 0
    }
}

/// Structures that may be referenced in shared memory.
///
/// # Safety
/// Every field is an atomic (or made of atomics), and every bit pattern is valid.
unsafe trait SharedStruct {}

/// Control words of one ordered pair of ranks, in the receiver's segment.
#[derive(Debug)]
#[repr(C, align(256))]
pub struct PairControl {
    /// Nonzero while the receiver polls the ring.
    wake: AtomicU32,
    _pad0: AtomicU32,
    /// Ring slots that the receiver has consumed.
    tail: AtomicU64,
    /// Bytes of eager credit that the receiver has given back, ever.
    pub credit: AtomicU64,
    _pad1: [AtomicU64; 5],
    /// Nonzero while the sender waits for slots, chunks or credit; written by the sender.
    pub sender_waits: AtomicU32,
    _pad2: [AtomicU32; 15],
    /// Cooperative transfer from this sender.
    pub coop: CoopBlock,
}

const _: () = assert!(size_of::<PairControl>() == CTRL_STRIDE);
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
    /// A number that only this segment has, read by peers to prove a mechanism.
    nonce: AtomicU64,
    _pad: AtomicU64,
    bell: Doorbell,
    _pad_bell: [AtomicU32; 15],
    /// Where peers write to prove that they can: one word per peer would grow with ranks, so a hash of the peer picks one.
    proof: [AtomicU64; 64],
}

const _: () = assert!(size_of::<Header>() <= BITMAP_OFFSET);
// SAFETY: all atomics.
unsafe impl SharedStruct for Header {}
// SAFETY: an atomic.
unsafe impl SharedStruct for AtomicU64 {}

impl Header {
    fn geometry(&self) -> Geometry {
        Geometry {
            ranks: self.ranks.load(Ordering::Relaxed),
            ring_slots: self.ring_slots.load(Ordering::Relaxed),
            chunk_bytes: self.chunk_bytes.load(Ordering::Relaxed),
            chunks: self.chunks.load(Ordering::Relaxed),
            heap_bytes: self.heap_bytes.load(Ordering::Relaxed),
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
        match fallocate(
            fd,
            FallocateFlags::empty(),
            offset as libc::off_t,
            bytes as libc::off_t,
        ) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => {
                return Err(SegmentError::Reserve {
                    bytes,
                    what,
                    source: errno.into(),
                    available: available_memory(),
                });
            }
        }
    }
}

/// The segment that this rank owns.
#[derive(Debug)]
pub struct OwnSegment {
    fd: OwnedFd,
    map: Arc<Mapping>,
    geometry: Geometry,
    rank: u32,
}

impl OwnSegment {
    /// Makes the segment of `rank`. `nonce` should be unpredictable.
    pub fn create(
        rank: u32,
        geometry: Geometry,
        fence: HeavyFence,
        nonce: u64,
    ) -> Result<Self, SegmentError> {
        geometry.check()?;
        let object = || format!("the segment of rank {rank}");
        let fd = memfd_create(
            "onecopy",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )
        .map_err(|e| {
            call_failed(
                "memfd_create",
                object(),
                e,
                "a kernel of 3.17 or later that permits memfd_create is needed",
            )
        })?;
        let file = File::from(fd);
        file.set_len(geometry.total_bytes()).map_err(|e| {
            call_failed(
                "ftruncate",
                object(),
                e,
                "lower ONECOPY_HEAP_SIZE, or raise the file size limit (ulimit -f)",
            )
        })?;
        let fd = OwnedFd::from(file);
        fcntl(
            &fd,
            FcntlArg::F_ADD_SEALS(
                SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL,
            ),
        )
        .map_err(|e| {
            call_failed(
                "fcntl(F_ADD_SEALS)",
                object(),
                e,
                "a kernel with memfd seals is needed",
            )
        })?;
        reserve(
            fd.as_fd(),
            "a rank's control lines",
            0,
            geometry.base_bytes(),
        )?;
        let map = Mapping::new(fd.as_fd(), 0, geometry.total_bytes(), true).map_err(|e| {
            call_failed(
                "mmap",
                object(),
                e,
                "lower ONECOPY_HEAP_SIZE, or raise the address space limit (ulimit -v)",
            )
        })?;
        // The heap profits from huge pages where the administrator allows them for shared memory; refusal changes nothing.
        map.advise(
            geometry.heap_offset().0,
            geometry.heap_bytes,
            libc::MADV_HUGEPAGE,
        );
        let header: &Header = map.shared(0);
        header.rank.store(rank, Ordering::Relaxed);
        header.ranks.store(geometry.ranks, Ordering::Relaxed);
        header
            .ring_slots
            .store(geometry.ring_slots, Ordering::Relaxed);
        header
            .chunk_bytes
            .store(geometry.chunk_bytes, Ordering::Relaxed);
        header.chunks.store(geometry.chunks, Ordering::Relaxed);
        header
            .heap_bytes
            .store(geometry.heap_bytes, Ordering::Relaxed);
        header
            .strong_fences
            .store(u32::from(!fence.is_expedited()), Ordering::Relaxed);
        header
            .address
            .store(map.base().as_ptr() as u64, Ordering::Relaxed);
        header.nonce.store(nonce, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(Self {
            fd,
            map: Arc::new(map),
            geometry,
            rank,
        })
    }

    /// The descriptor to hand to peers.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// The geometry.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// The owner's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }
    /// This rank's bell.
    #[must_use]
    pub fn bell(&self) -> &Doorbell {
        &self.map.shared::<Header>(0).bell
    }
    /// Control words of the pair `sender` → this rank.
    #[must_use]
    pub fn control(&self, sender: u32) -> &PairControl {
        self.map.shared(self.geometry.ctrl_offset(sender).0)
    }
    /// A handle on the control words of the pair `sender` → this rank.
    #[must_use]
    pub fn control_handle(&self, sender: u32) -> ControlHandle {
        ControlHandle::new(&self.map, self.geometry.ctrl_offset(sender))
    }
    /// Takes the senders that became active since the last call out of word `index` of the bitmap.
    #[inline]
    #[must_use]
    pub fn take_active(&self, index: usize) -> u64 {
        let word = self.bitmap_word(index);
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // SYNC(active.set): acquire what made the sender active
        word.swap(0, Ordering::AcqRel)
    }
    /// Whether senders became active since the last [`Self::take_active`].
    #[must_use]
    pub fn has_active(&self, index: usize) -> bool {
        self.bitmap_word(index).load(Ordering::Acquire) != 0
    }
    /// Words of the bitmap of active senders.
    #[must_use]
    pub fn bitmap_words(&self) -> usize {
        (self.geometry.ranks as usize).div_ceil(64)
    }
    #[inline]
    fn bitmap_word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bitmap_words());
        self.map.shared((BITMAP_OFFSET + index * 8) as u64)
    }
    /// The reading end of the ring that `sender` writes. To be made once per sender.
    #[must_use]
    pub fn consumer(&self, sender: u32) -> Consumer<MappedCells> {
        Consumer::new(cells(&self.map, &self.geometry, sender))
    }
    /// What peers left in the proof word `index`.
    #[must_use]
    pub fn proof(&self, index: u32) -> u64 {
        self.map.shared::<Header>(0).proof[index as usize % 64].load(Ordering::Acquire)
    }
    /// Reserves `count` chunks of the pool from `first` on.
    pub fn reserve_chunks(&self, first: u32, count: u32) -> Result<(), SegmentError> {
        let size = u64::from(self.geometry.chunk_bytes);
        reserve(
            self.fd.as_fd(),
            "payload chunks",
            self.geometry.pool_offset().0 + u64::from(first) * size,
            u64::from(count) * size,
        )
    }
    /// Copies `bytes` into a chunk of the pool.
    #[inline]
    pub fn write_chunk(
        &self,
        chunk: ChunkIndex,
        offset: usize,
        bytes: &[u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds> {
        let size = u64::from(self.geometry.chunk_bytes);
        check_range("a chunk", offset as u64, bytes.len() as u64, size)?;
        let at = self.geometry.pool_offset().0 + u64::from(chunk.0) * size + offset as u64;
        check_range(
            "the pool",
            at,
            bytes.len() as u64,
            self.geometry.heap_offset().0,
        )?;
        let to = self.map.at("the segment", at, bytes.len() as u64)?;
        // SAFETY: `to` is valid for the length; the pool does not overlap memory of the program.
        unsafe { copy::copy(kernel, to.as_ptr(), bytes.as_ptr(), bytes.len()) };
        crate::fault::point("chunk.written");
        Ok(())
    }
    /// A hint that the first `len` bytes of `chunk` are written soon.
    #[inline]
    pub fn will_write_chunk(&self, chunk: ChunkIndex, len: usize) {
        let size = u64::from(self.geometry.chunk_bytes);
        let begin = self.geometry.pool_offset().0 + u64::from(chunk.0) * size;
        let len = (len as u64).min(size);
        if let Ok(at) = self.map.at("the segment", begin, len) {
            copy::prefetch_range_for_write(at, len as usize);
        }
    }
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.map
    }
    pub(crate) fn reserve_heap(&self, offset: u64, bytes: u64) -> Result<(), SegmentError> {
        reserve(
            self.fd.as_fd(),
            "memory from alloc",
            self.geometry.heap_offset().0 + offset,
            bytes,
        )
    }
    pub(crate) fn release_heap(&self, offset: u64, bytes: u64) {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // A refusal only keeps the pages.
        let _ = fallocate(
            self.fd.as_fd(),
            flags,
            (self.geometry.heap_offset().0 + offset) as libc::off_t,
            bytes as libc::off_t,
        );
    }
    /// Where in this rank's heap an address of this process lies, if it does with all of `len` bytes.
    #[inline]
    #[must_use]
    pub fn heap_offset_of(&self, address: usize, len: usize) -> Option<HeapOffset> {
        let begin = self.map.base().as_ptr() as usize + self.geometry.heap_offset().0 as usize;
        let offset = address.checked_sub(begin)? as u64;
        (offset.checked_add(len as u64)? <= self.geometry.heap_bytes
            && offset < self.geometry.heap_bytes)
            .then_some(HeapOffset(offset))
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
    // SAFETY: ring and control words lie in the mapping, which the cells keep alive; alignment is by construction of the layout;
    // the slot count is a power of two (checked geometry).
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
    at: NonNull<PairControl>,
}

// SAFETY: see Mapping; the structure is made of atomics.
unsafe impl Send for ControlHandle {}
// SAFETY: as above.
unsafe impl Sync for ControlHandle {}

impl ControlHandle {
    fn new(map: &Arc<Mapping>, offset: SegOffset) -> Self {
        let at = NonNull::from(map.shared::<PairControl>(offset.0));
        Self {
            map: Arc::clone(map),
            at,
        }
    }
}

impl std::ops::Deref for ControlHandle {
    type Target = PairControl;
    #[inline(always)]
    fn deref(&self) -> &PairControl {
        debug_assert!(self.map.len() > 0);
        // SAFETY: made from a reference into the mapping that this handle keeps alive.
        unsafe { self.at.as_ref() }
    }
}

/// A peer's segment as this rank sees it.
#[derive(Debug)]
pub struct PeerSegment {
    fd: OwnedFd,
    /// Header, control lines, rings: written by this rank too.
    control: Arc<Mapping>,
    /// The payload pool: read only.
    pool: Option<Mapping>,
    heap: Option<Mapping>,
    geometry: Geometry,
    rank: u32,
    me: u32,
}

impl PeerSegment {
    /// Opens the segment of `rank` for rank `me`. Everything that the peer claims in its header is checked.
    pub fn open(
        fd: OwnedFd,
        rank: u32,
        me: u32,
        expected: &Geometry,
    ) -> Result<Self, SegmentError> {
        let foreign = |reason: String| SegmentError::Foreign { rank, reason };
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS)
            .map_err(|e| foreign(format!("it is not a sealed memfd ({e})")))?;
        if SealFlag::from_bits_truncate(seals) & SealFlag::F_SEAL_SHRINK != SealFlag::F_SEAL_SHRINK
        {
            return Err(foreign("it is not sealed against shrinking".into()));
        }
        let size = nix::sys::stat::fstat(&fd)
            .map_err(|e| foreign(format!("fstat: {e}")))?
            .st_size;
        if u64::try_from(size).is_ok_and(|size| size < expected.total_bytes()) || size < 0 {
            return Err(foreign(format!(
                "it has {size} bytes instead of {}; do all ranks have the same ONECOPY_ settings?",
                expected.total_bytes()
            )));
        }
        let control = Mapping::new(fd.as_fd(), 0, expected.pool_offset().0, true).map_err(|e| {
            call_failed(
                "mmap",
                format!("the segment of rank {rank}"),
                e,
                "raise the limits on mappings and address space",
            )
        })?;
        let header: &Header = control.shared(0);
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(foreign(
                "it does not begin as a segment of this version does".into(),
            ));
        }
        if header.rank.load(Ordering::Relaxed) != rank || header.geometry() != *expected {
            return Err(foreign(format!(
                "it was made for rank {} with {:?} instead of {expected:?}; do all ranks have the same ONECOPY_ settings?",
                header.rank.load(Ordering::Relaxed),
                header.geometry()
            )));
        }
        Ok(Self {
            fd,
            control: Arc::new(control),
            pool: None,
            heap: None,
            geometry: *expected,
            rank,
            me,
        })
    }

    /// The peer's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }
    /// Whether this peer can only be woken behind full fences.
    #[must_use]
    pub fn needs_strong_fences(&self) -> bool {
        self.control
            .shared::<Header>(0)
            .strong_fences
            .load(Ordering::Relaxed)
            != 0
    }
    /// The peer's bell.
    #[must_use]
    pub fn bell(&self) -> &Doorbell {
        &self.control.shared::<Header>(0).bell
    }
    /// Reserves this rank's ring in the peer's segment and gives its writing end. To be made once.
    pub fn producer(&self) -> Result<Producer<MappedCells>, SegmentError> {
        reserve(
            self.fd.as_fd(),
            "a ring",
            self.geometry.ring_offset(self.me).0,
            self.geometry.ring_bytes(),
        )?;
        Ok(Producer::new(cells(&self.control, &self.geometry, self.me)))
    }
    /// Control words of the pair this rank → peer.
    #[must_use]
    pub fn control_handle(&self) -> ControlHandle {
        ControlHandle::new(&self.control, self.geometry.ctrl_offset(self.me))
    }
    /// Tells the peer that this rank's ring has records; it will look at it until it says otherwise.
    pub fn set_active(&self) {
        let word: &AtomicU64 = self
            .control
            .shared((BITMAP_OFFSET + self.me as usize / 64 * 8) as u64);
        // SYNC(active.set): release what made this rank active
        word.fetch_or(1 << (self.me % 64), Ordering::AcqRel);
        crate::fault::point("active.set");
    }
    /// Address of the peer's header in the peer, and the number to be found at [`Self::nonce_address`].
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.control
            .shared::<Header>(0)
            .nonce
            .load(Ordering::Relaxed)
    }
    /// Address, in the peer, of its nonce.
    #[must_use]
    pub fn nonce_address(&self) -> u64 {
        self.control
            .shared::<Header>(0)
            .address
            .load(Ordering::Relaxed)
            + std::mem::offset_of!(Header, nonce) as u64
    }
    /// Address, in the peer, of the word where this rank may write to prove that it can.
    #[must_use]
    pub fn proof_address(&self) -> u64 {
        let index = self.me as usize % 64;
        self.control
            .shared::<Header>(0)
            .address
            .load(Ordering::Relaxed)
            + (std::mem::offset_of!(Header, proof) + index * 8) as u64
    }
    /// What stands in that word, seen through the mapping.
    #[must_use]
    pub fn proof(&self) -> u64 {
        self.control.shared::<Header>(0).proof[self.me as usize % 64].load(Ordering::Acquire)
    }

    /// Writes a number to this rank's word in the peer's segment and looks whether it stands there.
    #[must_use]
    pub fn prove(&self) -> bool {
        let word = &self.control.shared::<Header>(0).proof[self.me as usize % 64];
        let token = self.nonce().rotate_left(self.me % 64) | 1;
        word.store(token, Ordering::Release);
        word.load(Ordering::Acquire) == token
    }

    fn pool(&mut self) -> Result<&Mapping, SegmentError> {
        if self.pool.is_none() {
            let map = Mapping::new(
                self.fd.as_fd(),
                self.geometry.pool_offset().0,
                self.geometry.pool_bytes(),
                false,
            )
            .map_err(|e| {
                call_failed(
                    "mmap",
                    format!("the payload pool of rank {}", self.rank),
                    e,
                    "raise the limits on mappings and address space",
                )
            })?;
            self.pool = Some(map);
        }
        Ok(self.pool.as_ref().expect("set above"))
    }

    /// Maps the peer's payload pool if it is not mapped yet.
    pub fn map_pool(&mut self) -> Result<(), SegmentError> {
        self.pool().map(|_| ())
    }

    /// Copies bytes of one of the peer's chunks to `out`. The pool must be mapped.
    #[inline]
    pub fn read_chunk(
        &self,
        chunk: ChunkIndex,
        offset: usize,
        out: &mut [u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds> {
        let size = u64::from(self.geometry.chunk_bytes);
        check_range("a chunk", offset as u64, out.len() as u64, size)?;
        let pool = self.pool.as_ref().ok_or(OutOfBounds {
            what: "a pool that is not mapped",
            offset: 0,
            len: 0,
            limit: 0,
        })?;
        check_range(
            "the pool's chunks",
            u64::from(chunk.0),
            1,
            u64::from(self.geometry.chunks),
        )?;
        let from = pool.at(
            "the pool",
            u64::from(chunk.0) * size + offset as u64,
            out.len() as u64,
        )?;
        // SAFETY: valid for the length; does not overlap memory of the program.
        unsafe { copy::copy(kernel, out.as_mut_ptr(), from.as_ptr(), out.len()) };
        crate::fault::point("chunk.read");
        Ok(())
    }

    /// Maps the peer's heap if it is not mapped yet.
    pub fn map_heap(&mut self) -> Result<(), SegmentError> {
        if self.heap.is_none() {
            if self.geometry.heap_bytes == 0 {
                return Err(SegmentError::Foreign {
                    rank: self.rank,
                    reason: "it has no heap (ONECOPY_HEAP_SIZE is 0)".into(),
                });
            }
            let map = Mapping::new(
                self.fd.as_fd(),
                self.geometry.heap_offset().0,
                self.geometry.heap_bytes,
                true,
            )
            .map_err(|e| {
                call_failed(
                    "mmap",
                    format!("the heap of rank {}", self.rank),
                    e,
                    "lower ONECOPY_HEAP_SIZE or raise the address space limit (ulimit -v)",
                )
            })?;
            map.advise(0, self.geometry.heap_bytes, libc::MADV_HUGEPAGE);
            self.heap = Some(map);
        }
        Ok(())
    }

    #[inline]
    fn heap_at(&self, offset: HeapOffset, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        let heap = self.heap.as_ref().ok_or(OutOfBounds {
            what: "a heap that is not mapped",
            offset: 0,
            len: 0,
            limit: 0,
        })?;
        heap.at("the peer's heap", offset.0, len as u64)
    }

    /// Copies from the peer's heap. The heap must be mapped.
    #[inline]
    pub fn read_heap(
        &self,
        offset: HeapOffset,
        out: &mut [u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds> {
        let from = self.heap_at(offset, out.len())?;
        // SAFETY: valid for the length. `out` is memory of this process's program, which is not in the peer's segment.
        unsafe { copy::copy(kernel, out.as_mut_ptr(), from.as_ptr(), out.len()) };
        Ok(())
    }

    /// Copies into the peer's heap. The heap must be mapped.
    #[inline]
    pub fn write_heap(
        &self,
        offset: HeapOffset,
        bytes: &[u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds> {
        let to = self.heap_at(offset, bytes.len())?;
        // SAFETY: as above.
        unsafe { copy::copy(kernel, to.as_ptr(), bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Fills the page tables for a range of the peer's heap in one call instead of a fault per page. A refusal changes nothing.
    pub fn populate_heap(&self, offset: HeapOffset, len: u64, write: bool) {
        if let Some(heap) = &self.heap {
            heap.advise(
                offset.0,
                len,
                if write {
                    libc::MADV_POPULATE_WRITE
                } else {
                    libc::MADV_POPULATE_READ
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::slots_for;

    fn geometry(ranks: u32) -> Geometry {
        Geometry {
            ranks,
            ring_slots: 128,
            chunk_bytes: 8192,
            chunks: 16,
            heap_bytes: 1 << 20,
        }
    }

    fn segment(rank: u32) -> OwnSegment {
        OwnSegment::create(rank, geometry(2), HeavyFence::without_membarrier(), 77).unwrap()
    }

    #[test]
    fn a_record_crosses() {
        let own = segment(1);
        let peer =
            PeerSegment::open(own.fd().try_clone_to_owned().unwrap(), 1, 0, &geometry(2)).unwrap();
        let mut producer = peer.producer().unwrap();
        let mut claim = producer.claim(slots_for(100)).unwrap();
        claim.write(0, &[7; 100]);
        claim.publish(3, 100, 42);
        assert!(producer.must_notify(true));
        peer.set_active();
        assert_eq!(own.take_active(0), 1);
        let mut consumer = own.consumer(0);
        let record = consumer.peek().unwrap().unwrap();
        let mut out = [0; 100];
        consumer.read(&record, 0, &mut out);
        assert_eq!(
            (record.kind, record.len, record.meta, out),
            (3, 100, 42, [7; 100])
        );
        consumer.advance(record);
        assert_eq!(consumer.peek().unwrap(), None);
    }

    #[test]
    fn a_segment_cannot_be_resized_by_anyone() {
        let own = segment(1);
        let file = File::from(own.fd().try_clone_to_owned().unwrap());
        assert!(file.set_len(10).is_err());
        assert!(file.set_len(1 << 40).is_err());
    }

    #[test]
    fn foreign_descriptors_are_refused_with_the_reason() {
        let own = segment(1);
        let fd = || own.fd().try_clone_to_owned().unwrap();
        let wrong_rank = PeerSegment::open(fd(), 0, 1, &geometry(2))
            .unwrap_err()
            .to_string();
        assert!(wrong_rank.contains("made for rank 1"), "{wrong_rank}");
        let other = Geometry {
            chunk_bytes: 4096,
            ..geometry(2)
        };
        assert!(PeerSegment::open(fd(), 1, 0, &other).is_err());
        let plain = File::open("/dev/zero").unwrap();
        assert!(
            PeerSegment::open(plain.into(), 1, 0, &geometry(2))
                .unwrap_err()
                .to_string()
                .contains("memfd")
        );
        let unsealed = memfd_create("x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(
            PeerSegment::open(unsealed, 1, 0, &geometry(2))
                .unwrap_err()
                .to_string()
                .contains("sealed")
        );
    }

    #[test]
    fn ranges_outside_are_refused() {
        let own = segment(0);
        own.reserve_chunks(0, 2).unwrap();
        assert!(
            own.write_chunk(ChunkIndex(0), 8000, &[0; 500], Kernel::Memcpy)
                .is_err()
        );
        assert!(
            own.write_chunk(ChunkIndex(u32::MAX), 0, &[0; 500], Kernel::Memcpy)
                .is_err()
        );
        let mut peer =
            PeerSegment::open(own.fd().try_clone_to_owned().unwrap(), 0, 1, &geometry(2)).unwrap();
        let mut out = [0; 64];
        assert!(
            peer.read_chunk(ChunkIndex(0), 0, &mut out, Kernel::Memcpy)
                .is_err(),
            "not mapped yet"
        );
        peer.map_pool().unwrap();
        peer.read_chunk(ChunkIndex(1), 0, &mut out, Kernel::Memcpy)
            .unwrap();
        assert!(
            peer.read_chunk(ChunkIndex(16), 0, &mut out, Kernel::Memcpy)
                .is_err()
        );
        peer.map_heap().unwrap();
        assert!(
            peer.read_heap(HeapOffset((1 << 20) - 10), &mut out, Kernel::Memcpy)
                .is_err()
        );
        assert!(
            peer.write_heap(HeapOffset(u64::MAX - 3), &out, Kernel::Memcpy)
                .is_err()
        );
    }
}
