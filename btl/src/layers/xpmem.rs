// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attached memory. A kernel module maps windows of the peer's address space here. Then bytes move by this processor's
//! own loads and stores, as in [`heap`](super::heap), but for memory of any kind.
//!
//! By the *extension* a window is a mapping of the descriptor that the peer granted. A hole in it reads as zeroes and
//! is counted in a page that is mapped here, too. The count is compared before and after each copy, or whatever else
//! read the window in place ([`AttachedBytes`]). The *plain* interface is that of any module that speaks the XPMEM ABI.
//! By it a window is an attachment of the peer's segment. A hole is SIGBUS, which [`onecopy_shm::guard`] takes for the
//! length of a copy. Either way the copy of bytes that are not there is an error, and the program sees no signal.
//!
//! # Safety
//! The page of the count is mapped as long as the layer lives, and read by a volatile load.
#![allow(unsafe_code, reason = "a load from the page that counts holes")]

use crate::attachment::{Window, WindowError};
use crate::contract::{
    AttachLayer, AttachStats, Attached, AttachedBytes, CopyLayer, Failure, LayerSettings,
    PeerAccess, Refusal, RemoteRange,
};
use crate::module::{AgreedInterface, Guarantees, interface};
use crate::pieces::{pieces, pieces_mut, walk};
use crate::populated::Populated;
use crate::proving;
use crate::rcache::{AttachCache, Limits};
use onecopy_shm::copy::{CopyPlan, Kernel};
use onecopy_shm::layout::PAGE;
use onecopy_shm::segment::PeerSegment;
use onecopy_shm::sync::{Ordering, fence};
use onecopy_sys::{ONECOPY_SEGMENT_WRITE, ONECOPY_STATE_ALIVE, ONECOPY_STATE_OWNER_GONE};
use std::cell::{Cell, Ref, RefCell};
use std::io::{self, IoSlice, IoSliceMut};

use std::sync::Arc;

/// The end of a process's address space where the module does not say it.
#[cfg(target_arch = "x86_64")]
const ADDRESS_END: u64 = 0x7fff_ffff_f000;
/// The most that a kernel gives unless it is asked for more. Windows end at multiples of a power of two, so none
/// reaches over the end of less.
#[cfg(target_arch = "aarch64")]
const ADDRESS_END: u64 = 1 << 48;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ADDRESS_END: u64 = 1 << 47;

/// How windows are made.
#[derive(Debug)]
enum Access {
    Extension {
        device: Arc<onecopy_sys::Device>,
        segment: onecopy_sys::Segment,
        generation: onecopy_sys::Generation,
        /// The peer's address of the segment's first byte.
        base: u64,
    },
    Plain {
        device: Arc<xpmem_sys::Device>,
        apid: i64,
        pid: u32,
    },
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Self::Plain { device, apid, pid } = self
            // A child of a fork shares the open device: the permit is its parent's.
            && *pid == std::process::id()
        {
            let _ = device.release(*apid);
        }
    }
}

/// The layer, for one peer.
#[derive(Debug)]
pub struct XpmemLayer {
    // Windows go before the permit by which they were made.
    cache: RefCell<AttachCache<Window>>,
    access: Access,
    plan: CopyPlan,
    can_write: bool,
    end: u64,
    /// What was attached at the last count.
    reported: Cell<Attached>,
    /// Parts of the peer's memory whose pages were mapped by a call, since their window was made.
    populated: Populated,
}

/// What a copy came to, before it is known whose error it is.
#[derive(Debug)]
enum Failed {
    Hole,
    Other(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        if error.raw_os_error() == Some(libc::EFAULT) {
            Self::Hole
        } else {
            Self::Other(error)
        }
    }
}

impl From<WindowError> for Failed {
    fn from(error: WindowError) -> Self {
        match error {
            WindowError::Hole(_) => Self::Hole,
            WindowError::Bounds(bounds) => Self::Other(io::Error::other(bounds)),
        }
    }
}

impl XpmemLayer {
    /// Proves the layer: reads the peer's number through an attachment, and writes one that is then seen through the
    /// peer's segment.
    ///
    /// # Errors
    /// A [`Refusal`]: the pair does without this layer.
    pub fn prove(
        peer: &PeerSegment,
        means: &PeerAccess,
        terms: &LayerSettings,
    ) -> Result<Self, Refusal> {
        let module = &terms.module;
        let agreed = interface(
            peer.rank(),
            (&module.onecopy, means.grant()),
            (&module.xpmem, means.export.segid),
            "memory to attach",
        )?;
        let failed = |call: &str, error: &io::Error| explain(call, peer.rank(), error);
        let mut limits = Limits {
            end: ADDRESS_END,
            ..terms.limits
        };
        let (access, can_write) = match agreed {
            AgreedInterface::Plain { device, offer } => {
                let apid = device
                    .get(offer, xpmem_sys::XPMEM_RDWR)
                    .map_err(|e| failed("XPMEM get", &e))?;
                let access = Access::Plain {
                    device: Arc::clone(device),
                    apid,
                    pid: std::process::id(),
                };
                (access, true)
            }
            AgreedInterface::Extension { device, grant } => {
                let open = || -> io::Result<_> {
                    let segment = onecopy_sys::Segment::from(grant.try_clone_to_owned()?);
                    let info = segment.info()?;
                    let generation = segment.map_generation()?;
                    Ok((segment, info, generation))
                };
                let (segment, info, generation) = open().map_err(|e| failed("segment", &e))?;
                limits.end = info.address.saturating_add(info.length);
                let access = Access::Extension {
                    device: Arc::clone(device),
                    segment,
                    generation,
                    base: info.address,
                };
                (access, info.flags & ONECOPY_SEGMENT_WRITE != 0)
            }
        };
        let layer = Self {
            cache: RefCell::new(AttachCache::new(limits)),
            access,
            plan: terms.plan,
            can_write,
            end: limits.end,
            reported: Cell::default(),
            populated: Populated::default(),
        };
        layer.prove_by_transfer(peer).map(|()| layer)
    }

    fn prove_by_transfer(&self, peer: &PeerSegment) -> Result<(), Refusal> {
        let is_peers = proving::reads_nonce(self, peer, None)
            .map_err(|e| explain(e.call, peer.rank(), &e.source))?;
        if !is_peers {
            return Err(Refusal::new(
                format!(
                    "what was attached of rank {} is another process's memory",
                    peer.rank()
                ),
                "report this; ONECOPY_LAYERS=^xpmem avoids it",
            ));
        }
        if !self.can_write {
            return Ok(());
        }
        if proving::writes_seen(self, peer, 29) {
            Ok(())
        } else {
            Err(Refusal::new(
                format!("what was written to rank {} is not there", peer.rank()),
                "report this; ONECOPY_LAYERS=^xpmem avoids it",
            ))
        }
    }

    fn attach(&self, begin: u64, len: u64) -> io::Result<Window> {
        let bytes = usize::try_from(len).map_err(io::Error::other)?;
        self.populated.forget(begin, len);
        let window = match &self.access {
            Access::Extension { segment, base, .. } => segment
                .map(begin.wrapping_sub(*base), bytes, self.can_write)
                .map(Window::of_segment),
            Access::Plain { device, apid, .. } => i64::try_from(begin)
                .map_err(io::Error::other)
                .and_then(|begin| device.attach(*apid, begin, len))
                .map(|address| Window::of_plain(device, address, len)),
        }?;
        onecopy_shm::fault::point("xpmem.attached");
        Ok(window)
    }

    /// Has the module map the pages of a large part at once: one call instead of many faults, and an error instead of a
    /// hole.
    fn populate(&self, window: &Window, offset: u64, address: u64, len: u64) -> Result<(), Failed> {
        let Access::Extension { device, .. } = &self.access else {
            return Ok(());
        };
        self.populated.fill(address, len, |begin, len| {
            let here = window.address(offset + (begin - address));
            let (first, last) = (here & !(PAGE - 1), here + len as usize);
            let bytes = (last.next_multiple_of(PAGE) - first) as u64;
            let mapped = device.prefault(first, bytes, self.can_write);
            if let Err(error) = mapped.result
                && error.raw_os_error() == Some(libc::EFAULT)
            {
                // Writing is refused where the owner may only read; the copy itself will report it.
                let readable = device.prefault(first, bytes, false);
                if readable
                    .result
                    .is_err_and(|e| e.raw_os_error() == Some(libc::EFAULT))
                {
                    return Err(Failed::Hole);
                }
            }
            Ok(())
        })
    }

    /// Accesses so far, of anybody, that found no memory of the peer.
    fn holes(&self) -> u64 {
        let Access::Extension { generation, .. } = &self.access else {
            return 0;
        };
        let page = generation.pointer();
        // SAFETY: the page is mapped as long as the layer lives, and the field lies in it.
        let holes = unsafe { &raw const (*page.as_ptr()).holes };
        // SAFETY: as above; the field is aligned; the kernel may change it, hence volatile.
        unsafe { holes.read_volatile() }
    }

    /// Calls `step(window, offset in the window, offset in the range, bytes)` for each part of a range, attached and
    /// its pages mapped.
    fn each(
        &self,
        range: &RemoteRange,
        mut step: impl FnMut(&Window, u64, u64, u64) -> Result<(), WindowError>,
    ) -> Result<(), Failed> {
        self.cache.borrow_mut().with(
            range.address,
            range.len,
            |begin, len| self.attach(begin, len),
            |window, offset, into, n| -> Result<(), Failed> {
                self.populate(window, offset, range.address + into, n)?;
                Ok(step(window, offset, into, n)?)
            },
        )
    }

    /// Moves the bytes of a range by `step(window, offset in the window, offset in the range, bytes)`, and makes sure
    /// that they were the peer's.
    fn moved(
        &self,
        range: &RemoteRange,
        mut step: impl FnMut(&Window, u64, u64, u64) -> Result<(), WindowError>,
    ) -> Result<(), io::Error> {
        // Another holder's hole looks like ours: look again.
        for _ in 0..3 {
            let before = self.holes();
            fence(Ordering::Acquire);
            let result = self.each(range, &mut step);
            // The loads of the copy go before the load of the count.
            fence(Ordering::Acquire);
            match result {
                Ok(()) if self.holes() == before => return Ok(()),
                Ok(()) | Err(Failed::Hole) => {
                    // What stands in for the hole stays there: these windows are of no use any more.
                    let mut cache = self.cache.borrow_mut();
                    cache.drop_range(range.address, range.len);
                }
                Err(Failed::Other(error)) => return Err(error),
            }
            let Access::Extension { generation, .. } = &self.access else {
                break;
            };
            match generation.read().state {
                ONECOPY_STATE_ALIVE => {}
                ONECOPY_STATE_OWNER_GONE => {
                    return Err(io::Error::from_raw_os_error(libc::EOWNERDEAD));
                }
                _ => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EFAULT))
    }
}

/// The guarantees by each interface.
pub const GUARANTEES: Guarantees = Guarantees {
    extension: [
        "ranks of the job that got the descriptor",
        "do not matter",
        "an error; holes are counted, no signal",
        "none",
        "is seen by the next access",
        "nobody may",
    ],
    plain: [
        "processes of the same user that know the segment's number",
        "the same user, as the kernel sees it; Yama is not asked",
        "an error; SIGBUS is taken for the length of each copy",
        "as the module does it",
        "as the module does it",
        "as the module does it",
    ],
};

/// What an error means, and what to do about it.
#[must_use]
pub fn explain(call: &str, peer: u32, error: &io::Error) -> Refusal {
    let remedy = match error.raw_os_error() {
        Some(libc::EFAULT) => {
            "the peer's memory is not there: it ended, or freed a buffer that was being sent"
        }
        Some(libc::EOWNERDEAD | libc::ENOENT | libc::ESRCH) => "the peer's process has ended",
        Some(libc::EACCES | libc::EPERM) => {
            "the module lets this user not reach the peer: run the ranks as one user"
        }
        Some(libc::ENOMEM) => {
            "raise vm.max_map_count or the address space limit (ulimit -v), or set ONECOPY_ATTACH_BYTES below 512 windows (ONECOPY_ATTACH_WINDOW)"
        }
        _ => "see kmod/README.md",
    };
    Refusal::new(format!("{call} with rank {peer}: {error}"), remedy)
}

impl XpmemLayer {
    fn kernel(&self, total: u64) -> Kernel {
        self.plan
            .kernel(usize::try_from(total).unwrap_or(usize::MAX))
    }
}

fn failed(call: &'static str, source: io::Error) -> Failure {
    Failure { call, source }
}

impl CopyLayer for XpmemLayer {
    fn reaches(&self, range: &RemoteRange) -> bool {
        range
            .address
            .checked_add(range.len)
            .is_some_and(|end| end <= self.end)
    }

    fn can_write(&self) -> bool {
        self.can_write
    }

    fn is_ready(&self, range: &RemoteRange) -> bool {
        let cache = self.cache.borrow();
        range.len >= cache.limits().earn || cache.covers(range.address, range.len)
    }

    #[inline]
    fn get(&self, from: &[RemoteRange], out: &mut [IoSliceMut<'_>]) -> Result<(), Failure> {
        let total: u64 = from.iter().map(|r| r.len).sum();
        let kernel = self.kernel(total);
        walk(from, pieces_mut(out), |range, out, part| {
            let out = &mut out[part];
            self.moved(&range, |window, offset, into, n| {
                let part = into as usize..(into + n) as usize;
                window.read(offset, &mut out[part], kernel)
            })
        })
        .map_err(|e| failed("copy from attached memory", e))
    }

    #[inline]
    fn put(&self, to: &[RemoteRange], bytes: &[IoSlice<'_>]) -> Result<(), Failure> {
        let total: u64 = to.iter().map(|r| r.len).sum();
        let kernel = self.kernel(total);
        walk(to, pieces(bytes), |range, bytes, part| {
            let bytes = &bytes[part];
            self.moved(&range, |window, offset, into, n| {
                let part = into as usize..(into + n) as usize;
                window.write(offset, &bytes[part], kernel)
            })
        })
        .map_err(|e| failed("copy to attached memory", e))
    }
}

impl AttachLayer for XpmemLayer {
    fn shows_in_place(&self) -> bool {
        matches!(self.access, Access::Extension { .. })
    }

    fn earned(&self, range: &RemoteRange, total: u64) -> bool {
        let mut cache = self.cache.borrow_mut();
        cache.earned(range.address, range.len, total)
    }

    fn reserve(&self, range: &RemoteRange) {
        let mut cache = self.cache.borrow_mut();
        if range.len > 0 && range.len <= cache.limits().bytes / 2 {
            let attach = |begin, len| self.attach(begin, len);
            let nothing = |_: &Window, _, _, _| Ok::<_, io::Error>(());
            let _ = cache.with(range.address, range.len, attach, nothing);
        }
    }

    fn attached(&self, range: &RemoteRange) -> Option<AttachedBytes<'_>> {
        if !self.shows_in_place() || range.len == 0 {
            return None;
        }
        let holes = self.holes();
        fence(Ordering::Acquire);
        self.each(range, |_, _, _, _| Ok(())).ok()?;
        let mut offset = 0;
        let window = Ref::filter_map(self.cache.borrow(), |cache| {
            let (window, begin) = cache.whole(range.address, range.len)?;
            offset = begin;
            Some(window)
        });
        Some(AttachedBytes::new(
            self,
            window.ok()?,
            offset,
            *range,
            holes,
        ))
    }

    fn holes(&self) -> u64 {
        self.holes()
    }

    fn forget(&self, range: &RemoteRange) {
        self.cache.borrow_mut().drop_range(range.address, range.len);
    }

    fn detach(&self) {
        self.cache.borrow_mut().clear();
    }

    fn take_stats(&self) -> AttachStats {
        let mut cache = self.cache.borrow_mut();
        let now = Attached {
            windows: cache.count() as i64,
            bytes: cache.bytes() as i64,
        };
        let before = self.reported.replace(now);
        AttachStats {
            counts: cache.take_stats(),
            growth: Attached {
                windows: now.windows - before.windows,
                bytes: now.bytes - before.bytes,
            },
        }
    }
}
