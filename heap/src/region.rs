// SPDX-License-Identifier: MIT OR Apache-2.0
//! The region: a memfd, its mapping, and which ranges of it are in use. The bookkeeping lies outside of it, so that no
//! peer can damage it.
//!
//! # Safety
//!
//! There is one region per process. It is made under the lock, and what is in the static below is touched under the
//! lock only. The mapping stays for ever at its place; a fork replaces in the child what is behind it
//! ([`crate::fork`]). A range is given out once until it is freed, and only then its pages may be taken away.
#![allow(
    unsafe_code,
    reason = "mapping a memfd, and a lock that a fork can hold"
)]

use libc::{c_int, c_void, off_t};
use nix::errno::Errno;
use onecopy_obs::knobs::{MALLOC_KEEP, MALLOC_MIN};
use onecopy_obs::values::parse_size;
use onecopy_shm::layout::{HEAP_AT, PAGE};
use onecopy_shm::segment::{default_heap_bytes, size_allowed};
use onecopy_shm::sync::{AtomicUsize, Ordering};
use range_alloc::RangeAllocator;
use std::cell::UnsafeCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;
use std::ops::Range;
use std::ptr::null_mut;

/// Allocations of at least this size begin on a huge page, where the administrator allows them for shared memory.
pub(crate) const HUGE: usize = 2 << 20;
/// Ranges kept at most, so that the search among them stays short. Chosen by magnitude.
const MAX_KEPT: usize = 256;

/// Smallest allocation that is served from the region; nothing before the library is set up.
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Freed bytes that are kept for reuse.
static KEEP: AtomicUsize = AtomicUsize::new(0);
/// Where the region is, and its size; the size is 0 as long as there is none.
static BASE: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// What `malloc` has to compare with.
#[inline]
pub(crate) fn threshold() -> usize {
    THRESHOLD.load(Ordering::Relaxed)
}

/// Whether a pointer is the region's.
#[inline]
pub(crate) fn contains(pointer: *mut c_void) -> bool {
    // A thread that sees the size sees the place, too: with a base of zero, pointers that are not the region's would
    // pass.
    // SYNC(region.made): acquire the base
    let bytes = BYTES.load(Ordering::Acquire);
    (pointer as usize).wrapping_sub(BASE.load(Ordering::Relaxed)) < bytes
}

/// Memory just given out.
pub(crate) struct NewMemory {
    pub(crate) pointer: *mut c_void,
    /// Whether it may hold what was there before; otherwise it is zero.
    pub(crate) dirty: bool,
}

/// The region and its bookkeeping; offsets are in bytes from its beginning.
pub(crate) struct Region {
    pub(crate) fd: c_int,
    pub(crate) base: usize,
    pub(crate) bytes: usize,
    /// In a child of a fork: the memory is not the memfd's any more, and nothing more is given out from it.
    pub(crate) private: bool,
    /// Whether a runtime has it.
    pub(crate) adopted: bool,
    ranges: RangeAllocator<u64>,
    /// Begin and length of what is given out.
    used: BTreeMap<u64, u64>,
    /// Freed, but with its pages still there; the oldest first.
    kept: VecDeque<Range<u64>>,
    kept_bytes: u64,
}

/// The one region.
struct RegionCell {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// Whether the holder of the lock could be cancelled before.
    cancel: UnsafeCell<c_int>,
    region: UnsafeCell<State>,
}

enum State {
    None,
    /// It could not be made: not tried again.
    Refused,
    Made(Region),
}

// SAFETY: the region is touched under the lock only.
unsafe impl Sync for RegionCell {}

static REGION: RegionCell = RegionCell {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    cancel: UnsafeCell::new(0),
    region: UnsafeCell::new(State::None),
};

// Of pthread.h; the names that the libc crate lacks.
const PTHREAD_CANCEL_DISABLE: c_int = 1;
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Lets this thread be cancelled or not; returns what was so before.
fn set_cancel(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: a place for the old state; the call concerns this thread only.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Takes the lock. To be followed by [`unlock`] in the same thread, or in its copy in a child. Until then the thread
/// cannot be cancelled: some of the system calls below are cancellation points, and `malloc` and `free` are none.
pub(crate) fn lock() {
    let before = set_cancel(PTHREAD_CANCEL_DISABLE);
    // SAFETY: a mutex that was statically initialised and never moves; it is not held by this thread (the crate's
    // invariant).
    unsafe { libc::pthread_mutex_lock(REGION.lock.get()) };
    // SAFETY: the lock is held.
    unsafe { REGION.cancel.get().write(before) };
}

/// Releases the lock.
pub(crate) fn unlock() {
    // SAFETY: the lock is held.
    let before = unsafe { REGION.cancel.get().read() };
    // SAFETY: held by this thread.
    unsafe { libc::pthread_mutex_unlock(REGION.lock.get()) };
    set_cancel(before);
}

/// Calls `f` with the region, if there is one, while the caller holds the lock.
pub(crate) fn with_held<R>(f: impl FnOnce(&mut Region) -> R) -> Option<R> {
    // SAFETY: the lock is held, and `f` does not come back here.
    match unsafe { &mut *REGION.region.get() } {
        State::Made(region) => Some(f(region)),
        _ => None,
    }
}

fn with<R>(f: impl FnOnce(&mut Region) -> R) -> Option<R> {
    lock();
    let result = with_held(f);
    unlock();
    result
}

/// As [`with`], making the region if there is none.
pub(crate) fn with_made<R>(f: impl FnOnce(&mut Region) -> R) -> Option<R> {
    lock();
    // SAFETY: the lock is held, and the reference ends before `with_held`.
    let state = unsafe { &mut *REGION.region.get() };
    if matches!(state, State::None) {
        *state = match Region::create() {
            Some(region) => {
                BASE.store(region.base, Ordering::Relaxed);
                // SYNC(region.made): release the base
                BYTES.store(region.bytes, Ordering::Release);
                State::Made(region)
            }
            None => State::Refused,
        };
    }
    let result = with_held(f);
    unlock();
    result
}

/// Reads the settings. Before this, everything goes to the next allocator.
pub(crate) fn configure() {
    let size = |name: &CStr, default: usize| variable(name).unwrap_or(default);
    KEEP.store(size(c"ONECOPY_MALLOC_KEEP", MALLOC_KEEP), Ordering::Relaxed);
    let least = size(c"ONECOPY_MALLOC_MIN", MALLOC_MIN).max(PAGE);
    THRESHOLD.store(least, Ordering::Relaxed);
}

/// A size from the environment; none if it is not set, or is no size: the start of a runtime tells of that.
fn variable(name: &CStr) -> Option<usize> {
    // SAFETY: the name is a C string. The environment is read as any C library does that reads it.
    let found = unsafe { libc::getenv(name.as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: a C string of the environment, copied before anyone could change it.
    let text = unsafe { CStr::from_ptr(found) };
    parse_size(text.to_str().ok()?).ok()
}

impl Region {
    /// Makes the region, in the size that the runtime will ask for; none if a limit is in the way.
    fn create() -> Option<Self> {
        let bytes = variable(c"ONECOPY_HEAP_SIZE").unwrap_or_else(default_heap_bytes);
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"onecopy".as_ptr(), flags) };
        if fd < 0 {
            return None;
        }
        let base = Self::size_and_map(fd, bytes);
        if base.is_none() {
            // SAFETY: our own descriptor, which nobody else knows.
            unsafe { libc::close(fd) };
        }
        Some(Self {
            fd,
            base: base?,
            bytes,
            private: false,
            adopted: false,
            ranges: RangeAllocator::new(0..bytes as u64),
            used: BTreeMap::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
        })
    }

    fn size_and_map(fd: c_int, bytes: usize) -> Option<usize> {
        let total = off_t::try_from(HEAP_AT.checked_add(bytes as u64)?).ok()?;
        // SAFETY: a descriptor of ours; no memory is touched.
        if !size_allowed(total as u64) || unsafe { libc::ftruncate(fd, total) } != 0 {
            return None;
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
            return None;
        }
        // Address space for the region at a multiple of a huge page, so that addresses and offsets agree in their low
        // bits.
        let room = bytes.checked_add(HUGE)?;
        // SAFETY: new memory at an address that the kernel chooses.
        let found = unsafe {
            libc::mmap(
                null_mut(),
                room,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if found == libc::MAP_FAILED {
            return None;
        }
        let base = (found as usize).next_multiple_of(HUGE);
        // SAFETY: the fixed place lies in the address space that was just reserved, and nobody uses it.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::with_exposed_provenance_mut(base),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
                fd,
                HEAP_AT as off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            // SAFETY: what was reserved above and is not used.
            unsafe { libc::munmap(found, room) };
            return None;
        }
        // SAFETY: our mapping; the advice changes no content. A refusal changes nothing.
        unsafe { libc::madvise(mapped, bytes, libc::MADV_HUGEPAGE) };
        Some(base)
    }

    /// Gives out memory; none if there is no room or no region.
    pub(crate) fn alloc(size: usize, align: usize) -> Option<NewMemory> {
        let len = size.checked_next_multiple_of(PAGE)? as u64;
        let least = if size >= HUGE { HUGE } else { PAGE };
        let align = least.max(align.checked_next_power_of_two()?) as u64;
        if align > HUGE as u64 {
            // The region itself begins at no such address.
            return None;
        }
        with_made(|region| region.take(len, align))?
    }

    fn take(&mut self, len: u64, align: u64) -> Option<NewMemory> {
        if self.private {
            // A child of a fork has memory of its own elsewhere; here it only keeps what its parent had in use.
            return None;
        }
        // The best of what was kept; not one much larger, of which the rest would lie idle.
        let best = self
            .kept
            .iter()
            .enumerate()
            .filter(|(_, range)| {
                let has = range.end - range.start;
                has >= len && has <= len + len / 4 && range.start.is_multiple_of(align)
            })
            .min_by_key(|(_, range)| range.end - range.start)
            .map(|(index, _)| index);
        let (range, dirty) = match best.and_then(|index| self.kept.remove(index)) {
            Some(range) => {
                self.kept_bytes -= range.end - range.start;
                (range, true)
            }
            None => {
                let range = match self.ranges.allocate_range_aligned(len, align) {
                    Ok(range) => range,
                    Err(_) => {
                        // What is kept may be in the way.
                        while let Some(range) = self.kept.pop_front() {
                            self.discard(range);
                        }
                        self.kept_bytes = 0;
                        self.ranges.allocate_range_aligned(len, align).ok()?
                    }
                };
                (range, false)
            }
        };
        self.used.insert(range.start, range.end - range.start);
        let address = self.base + range.start as usize;
        Some(NewMemory {
            pointer: std::ptr::with_exposed_provenance_mut(address),
            dirty,
        })
    }

    /// Takes memory back. `errno` stays as it is.
    pub(crate) fn free(pointer: *mut c_void) {
        let errno = Errno::last_raw();
        let known = with(|region| region.put_back(pointer)).unwrap_or(false);
        Errno::set_raw(errno);
        if !known {
            invalid("free");
        }
    }

    fn put_back(&mut self, pointer: *mut c_void) -> bool {
        let begin = self.offset(pointer);
        let Some(len) = self.used.remove(&begin) else {
            return false;
        };
        let range = begin..begin + len;
        let keep = KEEP.load(Ordering::Relaxed) as u64;
        if self.private || len > keep / 2 {
            self.discard(range);
            return true;
        }
        self.kept.push_back(range);
        self.kept_bytes += len;
        while self.kept_bytes > keep || self.kept.len() > MAX_KEPT {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.kept_bytes -= oldest.end - oldest.start;
            self.discard(oldest);
        }
        true
    }

    /// Makes memory shorter, or leaves it as it is, where it is; false if it must move.
    pub(crate) fn resize(pointer: *mut c_void, size: usize) -> bool {
        with(|region| {
            let begin = region.offset(pointer);
            let &has = region.used.get(&begin)?;
            let Some(len) = size.checked_next_multiple_of(PAGE) else {
                return Some(false);
            };
            let len = len as u64;
            if len > has {
                return Some(false);
            }
            if has - len >= HUGE as u64 || len <= has / 2 {
                region.used.insert(begin, len);
                region.discard(begin + len..begin + has);
            }
            Some(true)
        })
        .flatten()
        .unwrap_or_else(|| invalid("realloc"))
    }

    /// Bytes that may be used at a pointer that was given out.
    pub(crate) fn usable_size(pointer: *mut c_void) -> usize {
        let found = with(|region| {
            let begin = region.offset(pointer);
            region.used.get(&begin).map(|&len| len as usize)
        });
        found
            .flatten()
            .unwrap_or_else(|| invalid("malloc_usable_size"))
    }

    fn offset(&self, pointer: *mut c_void) -> u64 {
        (pointer as usize).wrapping_sub(self.base) as u64
    }

    /// Gives a range that nobody uses back to the system.
    fn discard(&mut self, range: Range<u64>) {
        let len = range.end - range.start;
        if self.private {
            let pointer = std::ptr::with_exposed_provenance_mut(self.base + range.start as usize);
            // SAFETY: pages of the region that nobody uses, nor will: a refusal only keeps them.
            unsafe { libc::madvise(pointer, len as usize, libc::MADV_DONTNEED) };
        } else {
            let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let offset = (HEAP_AT + range.start) as off_t;
            // SAFETY: no memory of the caller's; the pages are nobody's.
            let done = unsafe { libc::fallocate(self.fd, flags, offset, len as off_t) };
            if done != 0 {
                // Refused (by a sandbox, perhaps): fresh memory must be zero all the same.
                let pointer =
                    std::ptr::with_exposed_provenance_mut::<u8>(self.base + range.start as usize);
                // SAFETY: as above, the range is in the mapping and nobody's.
                unsafe { pointer.write_bytes(0, len as usize) };
            }
        }
        self.ranges.free_range(range);
    }

    /// What is given out.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = Range<u64>> {
        self.used.iter().map(|(&begin, &len)| begin..begin + len)
    }
}

/// A pointer into the region that was not given out, or was freed before: as other allocators do, this ends the
/// program.
fn invalid(call: &str) -> ! {
    set_cancel(PTHREAD_CANCEL_DISABLE);
    let text = format!("onecopy: {call}(): invalid pointer\n");
    // SAFETY: a buffer with its length.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    std::process::abort();
}
