// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process does to its memory and to itself between calls on the devices.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};

use crate::mem::{self, Area, NONE, READ, WRITE, page_size};
use crate::outcome::Outcome;
use crate::{peer, system, uffd};

use super::table::Writer;
use super::worker::{View, Worker};

/// What a call gave: nothing if there was nothing to call it on.
pub(super) type Called = Option<io::Result<()>>;

/// A failure whose errno does not matter.
fn plain(outcome: Outcome) -> Called {
    Some(outcome.map_err(|_| io::Error::last_os_error()))
}

pub(super) fn map(worker: &mut Worker<'_>) -> Called {
    let range = worker.range();
    let kind = if worker.dice.once_in(8) {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let populate = if worker.dice.once_in(24) {
        libc::MAP_POPULATE
    } else {
        0
    };
    let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_FIXED | populate;
    Some(mem::try_map(range.base(), range.length(), READ | WRITE, flags, None, 0).map(|_| ()))
}

pub(super) fn map_file(worker: &mut Worker<'_>) -> Called {
    let range = worker.small_range();
    let file = match File::open("/proc/self/exe") {
        Ok(file) => file,
        Err(error) => return Some(Err(error)),
    };
    let (protection, kind) = worker
        .dice
        .pick(&[(READ, libc::MAP_SHARED), (READ | WRITE, libc::MAP_PRIVATE)]);
    let flags = kind | libc::MAP_FIXED;
    let mapped = mem::try_map(
        range.base(),
        range.length(),
        protection,
        flags,
        Some(file.as_fd()),
        0,
    );
    Some(mapped.map(|_| ()))
}

pub(super) fn unmap(worker: &mut Worker<'_>) -> Called {
    let range = if worker.dice.once_in(4) {
        worker.range()
    } else {
        worker.small_range()
    };
    plain(range.unmap())
}

pub(super) fn protect(worker: &mut Worker<'_>) -> Called {
    let range = if worker.dice.once_in(4) {
        worker.range()
    } else {
        worker.small_range()
    };
    let protection =
        worker
            .dice
            .pick(&[NONE, READ, READ, READ | WRITE, READ | WRITE, READ | WRITE]);
    Some(range.protect(protection))
}

pub(super) fn remap(worker: &mut Worker<'_>) -> Called {
    let (from, to) = (worker.small_range(), worker.small_range());
    let keep = if worker.dice.once_in(4) {
        libc::MREMAP_DONTUNMAP
    } else {
        0
    };
    let length = if keep == 0 {
        to.length()
    } else {
        from.length()
    };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | keep;
    Some(from.remap(length, flags, Some(&to)).map(|_| ()))
}

pub(super) fn advise(worker: &mut Worker<'_>) -> Called {
    const MADV_COLD: i32 = 20;
    const MADV_PAGEOUT: i32 = 21;
    const MADV_COLLAPSE: i32 = 25;
    let range = worker.range();
    // Not MADV_WIPEONFORK: moved memory that has it makes a child's munmap warn (mm/vma.h, assert_sane_pgoff, Linux
    // 7.3 with CONFIG_DEBUG_VM), whether or not there is a module.
    let advice = worker.dice.pick(&[
        libc::MADV_DONTNEED,
        libc::MADV_DONTNEED,
        libc::MADV_FREE,
        libc::MADV_HUGEPAGE,
        libc::MADV_NOHUGEPAGE,
        libc::MADV_MERGEABLE,
        libc::MADV_DONTFORK,
        libc::MADV_DOFORK,
        MADV_COLD,
        MADV_PAGEOUT,
        MADV_COLLAPSE,
    ]);
    plain(range.advise(0, range.length(), advice))
}

pub(super) fn touch(worker: &mut Worker<'_>) -> Called {
    let range = worker.range();
    touch_area(worker, &range);
    Some(Ok(()))
}

/// Loads and stores at some places.
fn touch_area(worker: &mut Worker<'_>, area: &Area) {
    for _ in 0..2 {
        let offset = worker.dice.below(area.length() as u64 / 8) as usize * 8;
        if worker.dice.once_in(2) {
            let _ = area.try_store(offset, offset as u64);
        } else {
            let _ = area.try_load(offset);
        }
    }
}

/// The heart of it: accesses to attachments.
pub(super) fn touch_view(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.views.len())?;
    let area = worker.views[index].area;
    let offset = worker.dice.below(area.length() as u64 / 8) as usize * 8;
    let outcome = if worker.dice.once_in(2) {
        area.try_store(offset, offset as u64)
    } else {
        area.try_load(offset).map(|_| ())
    };
    touch_area(worker, &area);
    Some(outcome.map_err(|_| io::Error::from_raw_os_error(libc::EFAULT)))
}

/// What the kernel does with an attachment when a system call is given it.
pub(super) fn syscall_on_view(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.views.len())?;
    let area = worker.views[index].area;
    let what = worker.dice.below(6);
    Some(system::touch_by_syscall(&area, what))
}

pub(super) fn unmap_view(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.views.len())?;
    let View { area, permit } = worker.views.swap_remove(index);
    if area.pages() < 3 || worker.dice.once_in(2) {
        return plain(area.unmap());
    }
    // A part of it; what remains are two attachments.
    let first = worker.dice.below(area.pages() as u64 - 1) as usize;
    let count = 1 + worker.dice.below((area.pages() - first - 1) as u64) as usize;
    let gone = area.part(first * page_size(), count * page_size()).unmap();
    let after = (first + count) * page_size();
    for (offset, length) in [
        (0, first * page_size()),
        (after, (area.length() - after) / page_size() * page_size()),
    ] {
        if length > 0 {
            worker.keep(area.part(offset, length), permit);
        }
    }
    plain(gone)
}

pub(super) fn protect_view(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.views.len())?;
    let area = worker.views[index].area;
    let pages = 1 + worker
        .dice
        .below(area.length().div_ceil(page_size()) as u64) as usize;
    let length = (pages * page_size()).min(area.length());
    Some(
        area.part(0, length)
            .protect(worker.dice.pick(&[NONE, READ, READ | WRITE])),
    )
}

pub(super) fn remap_view(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.views.len())?;
    let area = worker.views[index].area;
    let length = worker.dice.pick(&[
        area.length(),
        area.length() / 2 + page_size(),
        area.length() * 2,
    ]) / page_size()
        * page_size();
    let outcome = area.remap(length, libc::MREMAP_MAYMOVE, None);
    if let Ok(moved) = &outcome {
        worker.views[index].area = *moved;
    }
    Some(outcome.map(|_| ()))
}

/// Memory whose faults wait until the descriptor is closed.
pub(super) fn block(worker: &mut Worker<'_>) -> Called {
    let range = worker.small_range();
    let _ = range.replace();
    match uffd::block(&range) {
        Ok(fd) => {
            worker.blocked.push(fd);
            Some(Ok(()))
        }
        Err(_) => Some(Err(io::Error::last_os_error())),
    }
}

pub(super) fn unblock(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.blocked.len())?;
    drop(worker.blocked.swap_remove(index));
    Some(Ok(()))
}

/// A child that goes on like its parent for a while, or becomes another program.
pub(super) fn fork(worker: &mut Worker<'_>) -> Called {
    if let Some(pid) = worker.child {
        if worker.dice.once_in(2) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        if !matches!(
            waitpid(pid, Some(WaitPidFlag::WNOHANG)),
            Ok(nix::sys::wait::WaitStatus::StillAlive)
        ) {
            worker.child = None;
        }
        return None;
    }
    // One writer for the children's counts: only the first thread has any.
    if !matches!(worker.writer, Writer::Main) {
        return None;
    }
    let exec = worker.dice.once_in(8);
    let steps = worker.dice.below(8000);
    let forked = peer::fork_plain(|| {
        system::die_with_parent();
        worker.writer = Writer::Child;
        worker.child = None;
        worker.live(steps);
        if exec {
            become_another();
        }
        Ok(())
    });
    match forked {
        Ok(pid) => {
            worker.child = Some(pid);
            Some(Ok(()))
        }
        Err(_) => Some(Err(io::Error::last_os_error())),
    }
}

fn become_another() {
    let _ = std::process::Command::new("/proc/self/exe")
        .args(["idle", "0"])
        .exec();
}

/// The end of the process, in one of several ways. Rare.
pub(super) fn end(worker: &mut Worker<'_>) -> Called {
    if !matches!(worker.writer, Writer::Main) || !worker.dice.once_in(60) {
        return None;
    }
    match worker.dice.below(3) {
        0 => become_another(),
        1 => {
            let _ = kill(nix::unistd::Pid::this(), Signal::SIGKILL);
        }
        _ => {}
    }
    system::leave(0)
}
