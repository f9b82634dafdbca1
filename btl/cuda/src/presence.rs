// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the driver is in this process: asked before every look at a buffer, and nearly always in vain.
//!
//! Nothing of CUDA works before something has loaded the driver, so until then no buffer is a device's. A program may
//! load it at any time. The loader keeps what is loaded in a list, and appends to it. So a null behind the last entry
//! that was seen says that nothing was loaded since: two loads. That entry must never go. Once the list has not changed
//! for a while, the last entry is asked for again with `RTLD_NODELETE`. Then `dlclose` does not unload it. Until then
//! the loader is asked how often it has added something.
//!
//! # Safety
//! The list is read under the loader's lock, inside of `dl_iterate_phdr`. Of a pinned entry the pointer to the next one
//! is read without it. The loader writes it once, and it is a whole word.
#![allow(unsafe_code, reason = "the loader's list")]

use cuda_sys::Library;
use libc::{c_char, c_int, c_void, dl_phdr_info, size_t};
use onecopy_shm::sync::{AtomicPtr, AtomicUsize, Ordering};
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// An entry of the loader's list, as `link.h` has it.
#[repr(C)]
struct Entry {
    address: usize,
    name: *const c_char,
    dynamic: *const c_void,
    next: *const Entry,
}

/// As long as this is what [`WORD`] names, each look is a slow one.
static SLOW: AtomicUsize = AtomicUsize::new(1);

/// The word to look at. Zero in it: nothing was loaded since the last look.
static WORD: AtomicPtr<AtomicUsize> = AtomicPtr::new((&raw const SLOW).cast_mut());

static DRIVER: OnceLock<&'static Library> = OnceLock::new();

/// After so many looks at which nothing was new, the last entry is pinned. Chosen by magnitude: programs load libraries
/// in bursts, and each entry that is pinned stays loaded for ever. So many slow looks cost little in all.
const QUIET: u32 = 64;

/// What the last slow look saw.
struct Seen {
    added: u64,
    quiet: u32,
}

static SEEN: Mutex<Seen> = Mutex::new(Seen { added: 0, quiet: 0 });

/// Whether a buffer may be a device's at all.
#[inline(always)]
#[must_use]
pub fn is_possible() -> bool {
    !is_ruled_out() && look()
}

/// Whether no buffer is a device's, as far as two loads tell. Nothing is called, so a caller keeps its arguments where
/// they are. `false` says nothing: [`is_possible`] looks.
#[inline(always)]
#[must_use]
pub fn is_ruled_out() -> bool {
    let word = WORD.load(Ordering::Relaxed);
    // SAFETY: a static word, or that of a pinned entry of the loader's list, which is aligned and lives for ever.
    let next = unsafe { (*word).load(Ordering::Relaxed) };
    next == 0
}

/// The driver, if this process has it.
pub(crate) fn driver() -> Option<&'static Library> {
    DRIVER.get().copied().or_else(|| {
        look();
        DRIVER.get().copied()
    })
}

#[cold]
#[inline(never)]
fn look() -> bool {
    if DRIVER.get().is_some() {
        return true;
    }
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let list = List::now();
    if list.added != seen.added {
        let loaded = Library::loaded();
        // From now on each look asks the loader.
        WORD.store((&raw const SLOW).cast_mut(), Ordering::Relaxed);
        if let Some(Ok(driver)) = loaded {
            let _ = DRIVER.set(driver);
            return true;
        }
        *seen = Seen {
            added: list.added,
            quiet: 0,
        };
        return false;
    }
    seen.quiet = seen.quiet.saturating_add(1);
    if seen.quiet.is_multiple_of(QUIET)
        && let Some(word) = list.pinned()
    {
        WORD.store(word.cast_mut(), Ordering::Relaxed);
    }
    false
}

/// The loader's list.
struct List {
    /// How often something was added.
    added: u64,
    last: *const Entry,
    name: CString,
}

impl List {
    fn now() -> Self {
        // Asked for before the list's lock is taken: the loader has another one, which goes first.
        let mut list = Self {
            added: 0,
            last: first().unwrap_or(ptr::null()),
            name: CString::default(),
        };
        // SAFETY: the call takes a list by its address, and this one lives until it returns.
        unsafe { libc::dl_iterate_phdr(Some(take), (&raw mut list).cast()) };
        list
    }

    /// Keeps the last entry for ever, and gives the word that says what follows it. `None`: that cannot be, or another
    /// one is the last now.
    fn pinned(&self) -> Option<*const AtomicUsize> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: the name ends with a zero. Nothing is loaded.
        let handle = unsafe { libc::dlopen(self.name.as_ptr(), flags) };
        if handle.is_null() {
            return None;
        }
        // The handle is not closed: it is a second reason for the entry to stay.
        let entry = entry_of(handle)?;
        ptr::eq(entry, self.last).then(|| {
            // SAFETY: an address only, of a field of an entry that stays.
            unsafe { &raw const (*entry).next }.cast()
        })
    }
}

/// The entry of an open library.
fn entry_of(handle: *mut c_void) -> Option<*const Entry> {
    let mut entry: *const Entry = ptr::null();
    // SAFETY: the handle is open; the place for the answer is ours.
    let result = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut entry).cast()) };
    (result == 0 && !entry.is_null()).then_some(entry)
}

/// The entry of the program, the first one.
fn first() -> Option<*const Entry> {
    // SAFETY: null names the program itself.
    let handle = unsafe { libc::dlopen(ptr::null(), libc::RTLD_LAZY) };
    if handle.is_null() {
        return None;
    }
    entry_of(handle)
}

/// Called by `dl_iterate_phdr`, under the lock of the list.
unsafe extern "C" fn take(info: *mut dl_phdr_info, size: size_t, list: *mut c_void) -> c_int {
    // SAFETY: the list of `List::now`, which waits for this call.
    let list = unsafe { &mut *list.cast::<List>() };
    if size >= size_of::<dl_phdr_info>() {
        // SAFETY: the loader's own structure, as long as it says.
        list.added = unsafe { (*info).dlpi_adds };
    }
    if !list.last.is_null() {
        (list.last, list.name) = tail(list.last);
    }
    // Nothing is wanted of the others.
    1
}

/// The last entry from this one on, with its name.
fn tail(mut entry: *const Entry) -> (*const Entry, CString) {
    loop {
        // SAFETY: an entry of the list, whose lock is held.
        let next = unsafe { (*entry).next };
        if next.is_null() {
            break;
        }
        entry = next;
    }
    // SAFETY: as above.
    let name = unsafe { (*entry).name };
    // SAFETY: a name of the loader's ends with a zero; it is copied under the lock.
    (entry, unsafe { CStr::from_ptr(name) }.to_owned())
}
