// SPDX-License-Identifier: MIT OR Apache-2.0
//! The next allocator: the functions of the same names that the program would have without us.
//!
//! They are looked up once, when the library is loaded, or at the first call if that comes before. Looking them up may
//! itself allocate; what is asked for meanwhile comes from a small arena and is never given back.
//!
//! # Safety
//!
//! A name of the C allocator leads to a function with that name's C signature. That is what the C standard and POSIX
//! say, and all that is relied on. The arena gives out each byte once: places in it are claimed by one atomic addition.
#![allow(unsafe_code, reason = "calling functions that were looked up by name")]

use libc::{c_int, c_void, size_t};
use onecopy_shm::sync::{AtomicU32, AtomicUsize, Ordering};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::mem::transmute;
use std::ptr::null_mut;

/// A function of the next allocator.
struct Function {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// Its address; 0 while it is being looked up, and if there is none.
    #[inline]
    fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => self.resolved(),
            address => address,
        }
    }

    #[cold]
    fn resolved(&self) -> usize {
        resolve();
        self.address.load(Ordering::Relaxed)
    }

    fn resolve(&self) {
        // SAFETY: the name is a C string; the call changes nothing in the program.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found as usize, Ordering::Relaxed);
    }
}

static MALLOC: Function = Function::new(c"malloc");
static CALLOC: Function = Function::new(c"calloc");
static FREE: Function = Function::new(c"free");
static REALLOC: Function = Function::new(c"realloc");
static MEMALIGN: Function = Function::new(c"memalign");
static ALIGNED_ALLOC: Function = Function::new(c"aligned_alloc");
static POSIX_MEMALIGN: Function = Function::new(c"posix_memalign");
static VALLOC: Function = Function::new(c"valloc");
static PVALLOC: Function = Function::new(c"pvalloc");
static USABLE_SIZE: Function = Function::new(c"malloc_usable_size");

/// 0: not yet looked up, 1: being looked up, 2: done.
static STATE: AtomicU32 = AtomicU32::new(0);

/// Looks all functions up, unless that was done or is being done.
pub(crate) fn resolve() {
    if STATE
        .compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    // `free` comes first: nothing of what the others allocate meanwhile may go past it.
    for function in [
        &FREE,
        &MALLOC,
        &CALLOC,
        &REALLOC,
        &MEMALIGN,
        &ALIGNED_ALLOC,
        &POSIX_MEMALIGN,
        &VALLOC,
        &PVALLOC,
        &USABLE_SIZE,
    ] {
        function.resolve();
    }
    STATE.store(2, Ordering::Relaxed);
}

/// Serves what is asked for while the functions are looked up.
struct Arena {
    bytes: UnsafeCell<[u128; ARENA / 16]>,
    next: AtomicUsize,
}

/// Chosen by magnitude: to look them up takes some hundred bytes of `dlsym`.
const ARENA: usize = 64 << 10;

// SAFETY: each part is given to one caller, by the counter.
unsafe impl Sync for Arena {}

static EARLY: Arena = Arena {
    bytes: UnsafeCell::new([0; ARENA / 16]),
    next: AtomicUsize::new(0),
};

impl Arena {
    fn base(&self) -> usize {
        self.bytes.get() as usize
    }

    fn contains(&self, pointer: *mut c_void) -> bool {
        (pointer as usize).wrapping_sub(self.base()) < ARENA
    }

    /// Zeroed memory, with its size in the 16 bytes before it.
    fn alloc(&self, size: usize, align: usize) -> *mut c_void {
        let align = align.max(16);
        let Some(need) = size
            .checked_add(align + 31)
            .map(|need| need & !15)
            .filter(|&need| need <= ARENA)
        else {
            return null_mut();
        };
        let begin = self.next.fetch_add(need, Ordering::Relaxed);
        if begin.saturating_add(need) > ARENA {
            return null_mut();
        }
        let address = (self.base() + begin + 16).next_multiple_of(align);
        let header = std::ptr::with_exposed_provenance_mut::<usize>(address - 16);
        // SAFETY: the 16 bytes before `address` lie in the part that was just claimed, and are aligned for it.
        unsafe { header.write(size) };
        std::ptr::with_exposed_provenance_mut(address)
    }

    fn size(&self, pointer: *mut c_void) -> usize {
        let header = pointer.wrapping_byte_sub(16).cast::<usize>();
        // SAFETY: what the arena gave out has its size before it.
        unsafe { header.read() }
    }
}

/// Calls a function by its address, or does something else while there is none.
macro_rules! call {
    ($function:ident: fn($($type:ty),*) -> $result:ty, ($($arg:expr),*), else $other:expr) => {
        match $function.address() {
            0 => $other,
            address => {
                // SAFETY: the address is what the function's name led to, see the module's safety case.
                let function = unsafe { transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(address) };
                // SAFETY: the caller's promise, where there is one to make.
                unsafe { function($($arg),*) }
            }
        }
    };
}

#[inline]
pub(crate) fn malloc(size: size_t) -> *mut c_void {
    call!(MALLOC: fn(size_t) -> *mut c_void, (size), else EARLY.alloc(size, 16))
}

pub(crate) fn calloc(count: size_t, size: size_t) -> *mut c_void {
    call!(CALLOC: fn(size_t, size_t) -> *mut c_void, (count, size), else {
        count.checked_mul(size).map_or(null_mut(), |total| EARLY.alloc(total, 16))
    })
}

pub(crate) fn memalign(align: size_t, size: size_t) -> *mut c_void {
    call!(MEMALIGN: fn(size_t, size_t) -> *mut c_void, (align, size), else EARLY.alloc(size, align))
}

pub(crate) fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    call!(ALIGNED_ALLOC: fn(size_t, size_t) -> *mut c_void, (align, size), else EARLY.alloc(size, align))
}

pub(crate) fn valloc(size: size_t) -> *mut c_void {
    call!(VALLOC: fn(size_t) -> *mut c_void, (size), else EARLY.alloc(size, 4096))
}

pub(crate) fn pvalloc(size: size_t) -> *mut c_void {
    call!(PVALLOC: fn(size_t) -> *mut c_void, (size), else EARLY.alloc(size, 4096))
}

/// # Safety
/// `to` can be written.
pub(crate) unsafe fn posix_memalign(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    call!(POSIX_MEMALIGN: fn(*mut *mut c_void, size_t, size_t) -> c_int, (to, align, size), else libc::ENOMEM)
}

/// # Safety
/// `pointer` is null, of the next allocator, or of the arena, and was not freed.
#[inline]
pub(crate) unsafe fn free(pointer: *mut c_void) {
    if EARLY.contains(pointer) {
        return;
    }
    call!(FREE: fn(*mut c_void) -> (), (pointer), else ());
}

/// # Safety
/// As for [`free`].
pub(crate) unsafe fn realloc(pointer: *mut c_void, size: size_t) -> *mut c_void {
    if EARLY.contains(pointer) {
        let moved = malloc(size);
        if !moved.is_null() {
            let had = EARLY.size(pointer).min(size);
            // SAFETY: `had` bytes are there at both places, which do not overlap.
            unsafe {
                pointer
                    .cast::<u8>()
                    .copy_to_nonoverlapping(moved.cast(), had)
            };
        }
        return moved;
    }
    call!(REALLOC: fn(*mut c_void, size_t) -> *mut c_void, (pointer, size), else null_mut())
}

/// # Safety
/// As for [`free`].
pub(crate) unsafe fn usable_size(pointer: *mut c_void) -> size_t {
    if EARLY.contains(pointer) {
        return EARLY.size(pointer);
    }
    call!(USABLE_SIZE: fn(*mut c_void) -> size_t, (pointer), else 0)
}

/// The allocator of the Rust code in this library: the next one, past our own functions.
pub(crate) struct Real;

// SAFETY: the functions have the contract that `GlobalAlloc` asks for; the next allocator aligns to 16 bytes, or as it
// is told.
unsafe impl GlobalAlloc for Real {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match layout.align() {
            0..=16 => malloc(layout.size()).cast(),
            align => memalign(align, layout.size()).cast(),
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _layout: Layout) {
        // SAFETY: the caller's promise: it came from `alloc`.
        unsafe { free(pointer.cast()) };
    }
}
