// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks of memory management, which the owner's notifier meets: of files' mappings, and of whole
//! address spaces. A deadlock here is one of the machine.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use onecopy_sys::{ONECOPY_MMAP_GENERATION, Segment};

use crate::device::{self, attach_all, export, make, map};
use crate::mem::{self, Area, READ, WRITE, page_size};
use crate::outcome::{At, Outcome};
use crate::peer::{Link, Peer, peer};

fn size() -> usize {
    16 * page_size()
}
/// How long both sides go on at least, unless STORM_SECONDS says, and how often they get round.
const STORM: u64 = 4;
const ROUNDS: u64 = 20;

/// Whether it goes on.
fn blows(begin: Instant, rounds: u64) -> bool {
    let asked = std::env::var("STORM_SECONDS").ok();
    let seconds = asked.and_then(|text| text.parse().ok()).unwrap_or(STORM);
    begin.elapsed() < Duration::from_secs(seconds) || rounds < ROUNDS
}

fn file() -> Outcome<OwnedFd> {
    let file = memfd_create(c"locks", MFdFlags::MFD_CLOEXEC).at("memfd_create")?;
    nix::unistd::ftruncate(&file, size() as i64).at("ftruncate")?;
    Ok(file)
}

/// Punches holes into the file until the word is set. This takes the lock of the file's mappings,
/// and then tells everybody's notifiers.
fn puncher(file: &OwnedFd, over: &Area) -> Outcome<Peer> {
    let (file, over) = (file.try_clone().at("dup")?, *over);
    peer(move |_| {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        while over.load(0) == 0 {
            for page in 0..size() / page_size() {
                fallocate(
                    &file,
                    flags,
                    (page * page_size()) as i64,
                    page_size() as i64,
                )
                .at("fallocate")?;
            }
        }
        Ok(())
    })
}

/// The generation page of a segment, as memory.
fn generation_page(segment: &Segment) -> Outcome<Area> {
    let (fd, at) = (segment.as_fd(), ONECOPY_MMAP_GENERATION as i64);
    mem::try_map(0, page_size(), READ, libc::MAP_SHARED, Some(fd), at)
        .at("mmap of the generation page")
}

/// A child inherits the owner's mappings; its first export takes the locks of all of them.
pub(super) fn fork_and_export_while_holes_are_punched() -> Outcome {
    let file = file()?;
    let area = Area::file(file.as_fd(), size(), READ | WRITE, true)?;
    let segment = export(&area, true)?;
    // Lies before the file's mapping, so its lock is taken before that one's. Older kernels let it be inherited if they
    // are asked.
    let page = generation_page(&segment)?;
    let _ = page.advise(0, page_size(), libc::MADV_DOFORK);
    let over = Area::shared(page_size())?;
    let puncher = puncher(&file, &over)?;
    let begin = Instant::now();
    let mut rounds = 0;
    while blows(begin, rounds) {
        area.mark(rounds);
        peer(|_| {
            let own = Area::new(page_size())?;
            make(&device::xpmem()?, &own, 0o600).map(|_| ())
        })?
        .join()?;
        rounds += 1;
    }
    over.store(0, 1);
    page.unmap()?;
    puncher.join()
}

/// A process that has attachments gets a notifier, as one does that starts a virtual machine.
pub(super) fn register_a_notifier_while_holes_are_punched() -> Outcome {
    let file = file()?;
    let over = Area::shared(page_size())?;
    let theirs = file.try_clone().at("dup")?;
    let owner = peer(move |link: &Link| {
        let area = Area::file(theirs.as_fd(), size(), READ | WRITE, true)?;
        link.give(export(&area, true)?.as_fd())?;
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        link.receive().map(|_| ())
    })?;
    let own = Area::file(file.as_fd(), size(), READ | WRITE, true)?;
    let segment = device::segment(owner.link.take()?);
    let view = map(&segment, size(), true)?;
    let legacy = attach_all(&device::xpmem()?, owner.link.receive()?, size())?;
    let puncher = puncher(&file, &over)?;
    let begin = Instant::now();
    let mut rounds = 0;
    while blows(begin, rounds) {
        for page in 0..size() / page_size() {
            own.store(page * page_size(), rounds);
            let _ = view.load(page * page_size());
            let _ = legacy.try_store(page * page_size() + 8, rounds);
        }
        drop(File::open("/dev/onecopy-notify").at("open /dev/onecopy-notify")?);
        rounds += 1;
    }
    over.store(0, 1);
    puncher.join()?;
    owner.dismiss()
}

/// What an importer unmaps, whole or in part, while the owner's memory changes: its tables go while
/// somebody looks for entries in them.
pub(super) fn unmap_while_holes_are_punched() -> Outcome {
    let file = file()?;
    let over = Area::shared(page_size())?;
    let area = Area::file(file.as_fd(), size(), READ | WRITE, true)?;
    let segment = export(&area, true)?;
    let others: Vec<Peer> = (0..2)
        .map(|_| {
            peer(|_| {
                let begin = Instant::now();
                let mut rounds = 0;
                while blows(begin, rounds) {
                    let view = map(&segment, size(), true)?;
                    for page in 0..size() / page_size() {
                        view.store(page * page_size(), rounds);
                    }
                    let part = view.part(4 * page_size(), 4 * page_size());
                    match rounds % 4 {
                        0 => part.unmap()?,
                        1 => part.replace()?,
                        2 => part.protect(READ).at("mprotect")?,
                        // Refused, and entries that it moved come back.
                        _ => drop(view.remap(size(), libc::MREMAP_MAYMOVE, None)),
                    }
                    for page in 8..size() / page_size() {
                        view.store(page * page_size(), rounds);
                    }
                    view.unmap()?;
                    rounds += 1;
                }
                Ok(())
            })
        })
        .collect::<Outcome<_>>()?;
    let puncher = puncher(&file, &over)?;
    for other in others {
        other.join()?;
    }
    over.store(0, 1);
    puncher.join()
}
