// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that tests export, attach and pull from under one another.
//!
//! # Safety
//!
//! An [`Area`] is a range of addresses that a mapping call gave to this process, and it stays reserved: dropping one
//! unmaps nothing. What a test unmaps on purpose is used by nothing but its own tests. All accesses are volatile ones
//! of words within the range. An access to a page that is not there is a signal, which ends a test. So no access here
//! is undefined, and no reference is made.
#![allow(unsafe_code, reason = "mappings, and volatile access to them")]

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::outcome::{At, Fault, Outcome};
use crate::probe;

/// What one fault of an importer maps at most, whatever a page has: many pages, and with pages of 4 KiB a huge one.
pub(crate) const HUGE: usize = 2 << 20;

/// The size of a page.
pub(crate) fn page_size() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    *PAGE.get_or_init(|| {
        // SAFETY: takes a number.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}

/// The size of a huge page.
pub(crate) fn huge_page() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
        let size = text.ok().and_then(|text| text.trim().parse().ok());
        // Without huge pages nothing depends on it.
        size.unwrap_or(HUGE)
    })
}

pub(crate) const EXEC: i32 = libc::PROT_EXEC;
pub(crate) const NONE: i32 = libc::PROT_NONE;
pub(crate) const READ: i32 = libc::PROT_READ;
pub(crate) const WRITE: i32 = libc::PROT_WRITE;

/// A range of this process's addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    base: usize,
    length: usize,
}

impl Area {
    /// Fresh anonymous memory, for reading and writing, in ordinary pages.
    pub(crate) fn new(length: usize) -> Outcome<Self> {
        let area = Self::map(
            length,
            READ | WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            None,
            0,
        )?;
        // Without huge pages advice is refused, which is as good.
        let _ = area.advise(0, length, libc::MADV_NOHUGEPAGE);
        Ok(area)
    }

    /// Fresh anonymous memory on a boundary of huge pages, in these if the kernel has them.
    pub(crate) fn huge(length: usize) -> Outcome<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let whole = Self::map(length + huge_page(), READ | WRITE, flags, None, 0)?;
        let area = Self {
            base: whole.base.next_multiple_of(huge_page()),
            length,
        };
        let _ = area.advise(0, length, libc::MADV_HUGEPAGE);
        Ok(area)
    }

    /// Memory that forked children share.
    pub(crate) fn shared(length: usize) -> Outcome<Self> {
        Self::map(
            length,
            READ | WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            None,
            0,
        )
    }

    /// A mapping of a file.
    pub(crate) fn file(
        fd: BorrowedFd<'_>,
        length: usize,
        protection: i32,
        shared: bool,
    ) -> Outcome<Self> {
        let flags = if shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        Self::map(length, protection, flags, Some(fd), 0)
    }

    pub(crate) fn map(
        length: usize,
        protection: i32,
        flags: i32,
        fd: Option<BorrowedFd<'_>>,
        offset: i64,
    ) -> Outcome<Self> {
        try_map(0, length, protection, flags, fd, offset).at("mmap")
    }

    /// Fresh anonymous memory at a place where nothing is, with addresses behind it where nothing ever will be.
    pub(crate) fn fixed(address: usize, length: usize, guard: usize) -> Outcome<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let reserve = flags | libc::MAP_NORESERVE;
        let whole = try_map(address, length + guard, NONE, reserve, None, 0).at("mmap")?;
        let area = whole.part(0, length);
        area.replace()?;
        Ok(area)
    }

    /// With the rest of its last page, which is mapped too.
    pub(crate) fn whole_pages(&self) -> Self {
        Self {
            base: self.base,
            length: self.length.next_multiple_of(page_size()),
        }
    }

    /// What another part of the program mapped.
    pub(crate) fn of(base: NonNull<u8>, length: usize) -> Self {
        Self {
            base: base.as_ptr().expose_provenance(),
            length,
        }
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn end(&self) -> usize {
        self.base + self.length
    }

    pub(crate) fn pages(&self) -> usize {
        self.length / page_size()
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.base))
            .unwrap_or(NonNull::dangling())
    }

    /// A part of it.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Self {
        assert!(offset + length <= self.length, "a part beyond the area");
        Self {
            base: self.base + offset,
            length,
        }
    }

    fn word(&self, offset: usize) -> *mut u64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.length,
            "offset {offset}"
        );
        std::ptr::with_exposed_provenance_mut(self.base + offset)
    }

    /// The word at an offset. If there is no memory, a signal ends the test.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        let word = self.word(offset);
        // SAFETY: see the module.
        unsafe { word.read_volatile() }
    }

    pub(crate) fn store(&self, offset: usize, value: u64) {
        let word = self.word(offset);
        // SAFETY: see the module.
        unsafe { word.write_volatile(value) };
    }

    /// As [`Self::load`], with a signal as the error.
    pub(crate) fn try_load(&self, offset: usize) -> Result<u64, i32> {
        probe::load(self.word(offset).expose_provenance())
    }

    /// As [`Self::store`], with a signal as the error.
    pub(crate) fn try_store(&self, offset: usize, value: u64) -> Result<(), i32> {
        probe::store(self.word(offset).expose_provenance(), value)
    }

    /// Writes words that depend on the seed and their offset.
    /// Executes what stands at its begin, which a signal ends where that is not permitted.
    pub(crate) fn execute(&self) {
        // The handler that watches loads and stores would try again.
        // SAFETY: the default action touches no memory.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        let begin: *const () = std::ptr::with_exposed_provenance(self.base);
        // SAFETY: a pointer to a function has the size of this one. The caller wrote an instruction there that returns.
        let function: extern "C" fn() = unsafe { std::mem::transmute(begin) };
        function();
    }

    pub(crate) fn fill(&self, seed: u64) {
        for offset in (0..self.length).step_by(8) {
            self.store(offset, mix(seed, offset));
        }
    }

    /// Writes one word per page.
    pub(crate) fn mark(&self, seed: u64) {
        for offset in (0..self.length).step_by(page_size()) {
            self.store(offset, mix(seed, offset));
        }
    }

    /// Fails unless it holds what [`Self::fill`] wrote.
    pub(crate) fn verify(&self, seed: u64) -> Outcome {
        self.verify_steps(seed, 8)
    }

    /// Fails unless it holds what [`Self::mark`] wrote.
    pub(crate) fn verify_marks(&self, seed: u64) -> Outcome {
        self.verify_steps(seed, page_size())
    }

    fn verify_steps(&self, seed: u64, step: usize) -> Outcome {
        for offset in (0..self.length).step_by(step) {
            let (found, expected) = (self.load(offset), mix(seed, offset));
            if found != expected {
                return Err(Fault::Wrong(format!(
                    "offset {offset:#x}: {found:#x}, expected {expected:#x}"
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn advise(&self, offset: usize, length: usize, advice: i32) -> Outcome {
        let part = self.part(offset, length);
        // SAFETY: within the area, which only tests use.
        let result = unsafe { libc::madvise(part.pointer().as_ptr().cast(), length, advice) };
        done(result).at(format_args!("madvise({advice})"))
    }

    pub(crate) fn protect(&self, protection: i32) -> std::io::Result<()> {
        // SAFETY: the area is used by tests only.
        let result =
            unsafe { libc::mprotect(self.pointer().as_ptr().cast(), self.length, protection) };
        done(result)
    }

    pub(crate) fn unmap(&self) -> Outcome {
        // SAFETY: the area is used by tests only.
        let result = unsafe { libc::munmap(self.pointer().as_ptr().cast(), self.length) };
        done(result).at("munmap")
    }

    /// Maps fresh anonymous memory over it.
    pub(crate) fn replace(&self) -> Outcome {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        try_map(self.base, self.length, READ | WRITE, flags, None, 0).at("mmap over an area")?;
        Ok(())
    }

    /// Maps a file over it, shared, for reading and writing.
    pub(crate) fn map_over(&self, file: BorrowedFd<'_>) -> Outcome {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        try_map(self.base, self.length, READ | WRITE, flags, Some(file), 0)
            .at("mmap over an area")?;
        Ok(())
    }

    /// `mremap`, to a place that the kernel chooses or to a given one.
    pub(crate) fn remap(
        &self,
        length: usize,
        flags: i32,
        to: Option<&Self>,
    ) -> std::io::Result<Self> {
        let to = to.map_or(0, |area| area.base);
        // SAFETY: both places are used by tests only.
        let moved = unsafe {
            libc::mremap(
                self.pointer().as_ptr().cast(),
                self.length,
                length,
                flags,
                std::ptr::with_exposed_provenance_mut::<libc::c_void>(to),
            )
        };
        if moved == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            base: moved.expose_provenance(),
            length,
        })
    }
}

/// `mmap`, with the kernel's error.
pub(crate) fn try_map(
    address: usize,
    length: usize,
    protection: i32,
    flags: i32,
    fd: Option<BorrowedFd<'_>>,
    offset: i64,
) -> std::io::Result<Area> {
    // SAFETY: without MAP_FIXED nothing that exists is touched; with it the address is that of an area.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(address),
            length,
            protection,
            flags,
            fd.map_or(-1, |fd| fd.as_raw_fd()),
            offset,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(Area {
        base: mapped.expose_provenance(),
        length,
    })
}

/// The word that belongs to a seed and an offset.
pub(crate) fn mix(seed: u64, offset: usize) -> u64 {
    let mut word = seed ^ (offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^= word >> 31;
    // Never zero: zero is what a hole reads as.
    word.wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1
}

fn done(result: i32) -> std::io::Result<()> {
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(())
    }
}
