// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that fork, run out of memory, let others wait for faults, register notifiers, debug, or move memory about.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::device;
use crate::mem::{Area, HUGE, READ, WRITE, page_size};
use crate::outcome::{At, Outcome};
use crate::{peer, system, uffd};

use super::board::{Deed, Kind};
use super::importer::Importer;
use super::{GROUP, Life, NOTIFY, file_size};

fn become_another() {
    let _ = std::process::Command::new("/proc/self/exe")
        .args(["idle", "0"])
        .exec();
}

/// Forks while it has exports, attachments and regions; its children export anew, or exec, or are
/// killed in the middle.
pub(super) fn forker(life: Life<'_>) -> Outcome {
    let file = life.file;
    let mut importer = Importer::new(life)?;
    let shared = Area::file(file, file_size(), READ | WRITE, true)?;
    let segment = device::export(&shared, true)?;
    let page = device::generation(&segment)?;
    let view = device::map(&segment, file_size(), true)?;
    let knem = device::knem()?;
    let mut child = None;
    while importer.life.goes_on() {
        for _ in 0..4 {
            importer.step();
        }
        let _ = view.try_store(8, 8);
        if let Some(pid) = child.take() {
            let _ = kill(pid, Signal::SIGKILL);
            peer::wait_for(pid, peer::PATIENCE)?;
        }
        let exec = importer.life.dice.once_in(2);
        let forked = peer::fork_plain(|| {
            system::die_with_parent();
            // The child's own: its first notifier takes the locks of all its mappings.
            let own = Area::new(4 * page_size())?;
            own.mark(1);
            let _ = device::make(&device::xpmem()?, &own, 0o600);
            let _ = shared.try_store(page_size(), 1);
            // An inherited file; the region is the child's, and ends with it.
            let _ = device::region(&knem, &own, READ, 0);
            if exec {
                become_another();
            }
            Ok(())
        });
        if let Ok(pid) = forked {
            child = Some(pid);
            let deed = if exec { Deed::Exec } else { Deed::Fork };
            importer.life.did(deed);
        }
        // Some are let live to their end.
        std::thread::sleep(Duration::from_millis(importer.life.dice.below(12)));
    }
    if let Some(pid) = child {
        peer::wait_for(pid, peer::PATIENCE)?;
    }
    drop(page);
    Ok(())
}

/// Becomes another program, with all that it has.
pub(super) fn changeling(life: Life<'_>) -> Outcome {
    let mut importer = Importer::new(life)?;
    let area = Area::new(16 * page_size())?;
    area.mark(1);
    let device = device::xpmem()?;
    let segid = device::make(&device, &area, 0o600)?;
    let at = importer.life.dice.next();
    importer
        .life
        .board
        .notes
        .offer(Kind::Segment, at, segid as u64);
    for _ in 0..importer.life.dice.below(200) {
        if !importer.life.goes_on() {
            return Ok(());
        }
        importer.step();
    }
    importer.life.did(Deed::Exec);
    become_another();
    Ok(())
}

/// Exports and attaches in a group with little memory, and takes all of that until it is killed.
pub(super) fn hog(life: Life<'_>) -> Outcome {
    std::fs::write(format!("{GROUP}/cgroup.procs"), "0").at("entering a cgroup")?;
    let area = Area::new(64 * page_size())?;
    area.mark(1);
    let device = device::xpmem()?;
    let segid = device::make(&device, &area, 0o600)?;
    let mut importer = Importer::new(life)?;
    for _ in 0..150 {
        if !importer.life.goes_on() {
            return Ok(());
        }
        let at = importer.life.dice.next();
        importer
            .life
            .board
            .notes
            .offer(Kind::Segment, at, segid as u64);
        importer.step();
    }
    importer.life.did(Deed::Starve);
    // In huge pages as far as there are any: a slow process is killed before by another one.
    while importer.life.goes_on() {
        Area::huge(HUGE)?.mark(1);
    }
    Ok(())
}

/// Exports memory whose faults are answered late, or never.
pub(super) fn waiter(mut life: Life<'_>) -> Outcome {
    let area = Area::new(32 * page_size())?;
    while life.goes_on() {
        let blocked = area.part(8 * page_size(), 16 * page_size());
        blocked.replace()?;
        area.part(0, 8 * page_size()).mark(1);
        let fd = uffd::block(&blocked)?;
        life.did(Deed::Block);
        let device = device::xpmem()?;
        let segid = device::make(&device, &area, 0o600)?;
        let segment = device::export(&area, true)?;
        let to = life.dice.below(life.boxes.len() as u64) as usize;
        let _ = peer::send(&life.boxes[to].0, segment.as_fd(), 0);
        let at = life.dice.next();
        life.board.notes.offer(Kind::Segment, at, segid as u64);
        std::thread::sleep(Duration::from_millis(life.dice.below(60)));
        match life.dice.below(3) {
            0 => drop(fd),
            1 => blocked.unmap()?,
            _ => segment.revoke().at("REVOKE")?,
        }
    }
    Ok(())
}

/// Has attachments and maps the common file, and gets notifiers as a process that runs a virtual machine does.
pub(super) fn hypervisor(life: Life<'_>) -> Outcome {
    let shared = Area::file(life.file, file_size(), READ | WRITE, true)?;
    let mut importer = Importer::new(life)?;
    while importer.life.goes_on() {
        for _ in 0..4 {
            importer.step();
        }
        let _ = shared.try_load(0);
        drop(File::open(NOTIFY).at(NOTIFY)?);
        importer.life.did(Deed::Register);
    }
    Ok(())
}

/// Reads and writes what others attached, in every way that a debugger has.
pub(super) fn debugger(mut life: Life<'_>) -> Outcome {
    while life.goes_on() {
        let kind = life.dice.pick(&[Kind::View, Kind::View, Kind::Own]);
        let name = life.board.notes.name_at(kind, life.dice.next());
        let (pid, at) = ((name >> 48) as i32, (name & ((1 << 48) - 1)) as usize);
        if pid == 0 {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let pid = Pid::from_raw(pid);
        // An owner's pages, unlike an attachment's, can be read by anybody who may.
        if system::read_of(pid, at).is_ok() && matches!(kind, Kind::Own) {
            life.did(Deed::VmRead);
        }
        let path = format!("/proc/{pid}/mem");
        if let Ok(mem) = OpenOptions::new().read(true).write(true).open(path) {
            let mut bytes = [0; 64];
            if mem.read_at(&mut bytes, at as u64).is_ok() {
                life.did(Deed::MemRead);
            }
            // Only to attachments: an owner's memory has words that it looks at.
            if matches!(kind, Kind::View) && mem.write_at(&bytes, at as u64).is_ok() {
                life.did(Deed::MemWrite);
            }
        }
        if life.dice.once_in(4) && system::peek(pid, at).is_ok() {
            life.did(Deed::Peek);
        }
    }
    Ok(())
}

/// Has memory moved about, which takes slow kernels long.
pub(super) fn mover(mut life: Life<'_>) -> Outcome {
    while life.goes_on() {
        std::fs::write("/proc/sys/vm/compact_memory", "1").at("compact_memory")?;
        life.did(Deed::Compact);
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}
