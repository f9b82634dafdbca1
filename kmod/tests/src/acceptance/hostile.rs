// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user may try against others, against the kernel, or against himself.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use knem_sys::{KNEM_BIND_FLAG_CURRENT, KNEM_FLAG_MEMCPYTHREAD};
use libc::{EAGAIN, EBUSY, EFAULT, ENOSYS, EOPNOTSUPP};
use nix::sys::signal::Signal;
use onecopy_sys::CopyEnd;

use super::permission::up_to_quota;
use crate::device::{self, Inline, attach_all, export, knem, make, map, region, vector};
use crate::mem::{self, Area, HUGE, READ, WRITE, mix, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq, refused};
use crate::peer::{Link, peer};
use crate::system::{self, OpenToAll, Parameter};
use crate::{probe, uffd};

fn size() -> usize {
    16 * page_size()
}
/// The device of the module for tests.
const NOTIFY: &str = "/dev/onecopy-notify";

/// What a fault found out, and a signal's handler kept it from answering, is not answered to an access of another time.
pub(super) fn signal_leaves_no_error() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(2 * size())?;
        area.mark(1);
        let second = area.part(size(), size());
        second.replace()?;
        let blocked = uffd::block(&second)?;
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        link.receive()?;
        // A process that waits finds nothing there ...
        second.unmap()?;
        drop(blocked);
        link.turn()?;
        // ... and later something.
        second.replace()?;
        second.store(0, 77);
        link.turn()
    })?;
    let (owner, segid) = owner.receive()?;
    let importer = peer(move |link: &Link| {
        probe::catch(Signal::SIGUSR1 as i32);
        let view = attach_all(&device::xpmem()?, segid, 2 * size())?;
        link.send(0)?;
        check_eq!(
            view.try_load(size()),
            Err(Signal::SIGUSR1 as i32),
            "an access that a signal ends"
        );
        link.turn()?;
        check_eq!(view.try_load(size()), Ok(77), "memory that is there by now");
        Ok(())
    })?;
    importer.link.receive()?;
    system::until_asleep(importer.pid())?;
    importer.signal(Signal::SIGUSR1)?;
    owner.link.send(0)?;
    owner.link.receive()?;
    let (importer, _) = importer.receive()?;
    owner.link.send(0)?;
    owner.link.receive()?;
    importer.dismiss()?;
    owner.dismiss()
}

/// The OOM reaper gets the memory of a killed process that others have attached.
pub(super) fn reaped_while_attached() -> Outcome {
    const BYTES: usize = 8 << 20;
    let owner = peer(|link: &Link| {
        let area = Area::new(BYTES)?;
        area.mark(1);
        link.give(export(&area, true)?.as_fd())?;
        link.turn()
    })?;
    let segment = device::segment(owner.link.take()?);
    let view = map(&segment, BYTES, true)?;
    let page = device::generation(&segment)?;
    view.verify_marks(1)?;
    owner.link.receive()?;
    let status = format!("/proc/{}/status", owner.pid());
    let own = || system::number(&status, "RssAnon").unwrap_or(0);
    let before = own();
    check!(before >= BYTES as u64 / 1024, "{before} KiB before");
    system::kill_and_hold(owner.pid())?;
    let mut last = None;
    let reaped = system::until(Duration::from_secs(20), || {
        let result = system::reap(owner.pid());
        let done = !matches!(&result, Err(error) if error.raw_os_error() == Some(EAGAIN));
        last = Some(result);
        done
    });
    let after = own();
    system::let_go(owner.pid());
    owner.kill()?;
    match last {
        Some(Err(error)) if error.raw_os_error() == Some(ENOSYS) => {
            return Err(Fault::Skip(format!("no process_mrelease: {error}")));
        }
        Some(result) if reaped => result.at("process_mrelease")?,
        _ => {}
    }
    check!(reaped, "the reaper does not get memory that is attached");
    check!(
        after + BYTES as u64 / 2048 < before,
        "{after} of {before} KiB are left to a process that was reaped"
    );
    check_eq!(view.try_load(0), Ok(0), "memory that was reaped");
    check!(device::read(&page).holes > 0, "no hole was counted");
    Ok(())
}

/// memfd_secret() hides memory from all other processes; a grant of all memory does not show it.
pub(super) fn secret_memory() -> Outcome {
    let fd = system::secret_memory(size() as u64)?;
    let owner = peer(move |link: &Link| {
        let around = Area::new(3 * size())?;
        around.mark(1);
        let secret = around.part(size(), size());
        secret.map_over(fd.as_fd())?;
        secret.mark(2);
        link.give(export(&around, true)?.as_fd())?;
        link.receive()?;
        secret.verify_marks(2)
    })?;
    let segment = device::segment(owner.link.take()?);
    let page = device::generation(&segment)?;
    let view = map(&segment, 3 * size(), true)?;
    for at in (0..3 * size()).step_by(page_size()) {
        let secret = (size()..2 * size()).contains(&at);
        let expected = if secret { 0 } else { mix(1, at) };
        check_eq!(view.try_load(at), Ok(expected), "the word at {at:#x}");
        if secret {
            view.store(at, 9);
        }
    }
    check!(
        device::read(&page).holes >= (size() / page_size()) as u64,
        "secret memory that is no hole"
    );
    let device = device::onecopy()?;
    let progress = device.prefault(view.base(), 3 * size() as u64, false);
    refused(progress.result, &[EFAULT], "PREFAULT of secret memory")?;
    check_eq!(progress.done, size() as u64, "bytes before the secret");
    let local = Area::new(3 * size())?;
    let to = CopyEnd::Own(local.base() as u64);
    let progress = device::copy(&device, CopyEnd::Segment(&segment, 0), to, 3 * size());
    refused(progress.result, &[EFAULT], "COPY of secret memory")?;
    check_eq!(progress.done, size() as u64, "bytes before the secret");
    owner.dismiss()
}

/// A mapping of another kind in the middle of what is copied or shown at once: each is looked at, not
/// only the first. The kernel itself would give the pages of a shadow stack to any reader.
pub(super) fn shadow_stack() -> Outcome {
    let around = Area::new(3 * size())?;
    around.mark(1);
    let hidden = around.part(size(), page_size());
    let file = File::open(NOTIFY).at(NOTIFY)?;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    match mem::try_map(
        hidden.base(),
        page_size(),
        READ,
        flags,
        Some(file.as_fd()),
        0,
    ) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => {
            return Err(Fault::Skip("this kernel knows no shadow stacks".to_owned()));
        }
        Err(error) => return Err(error).at("mmap of a page of a shadow stack"),
    }
    let secret = hidden.load(0);
    check!(secret != 0, "the page holds nothing to be found");
    let segment = export(&around, true)?;
    let device = device::onecopy()?;
    let local = Area::new(3 * size())?;
    let to = CopyEnd::Own(local.base() as u64);
    let progress = device::copy(&device, CopyEnd::Segment(&segment, 0), to, 3 * size());
    check_eq!(
        local.load(size()),
        0,
        "a word of a shadow stack that was copied"
    );
    refused(progress.result, &[EFAULT], "COPY of a shadow stack")?;
    check_eq!(
        progress.done,
        size() as u64,
        "bytes before the shadow stack"
    );
    let behind = CopyEnd::Segment(&segment, (size() + page_size()) as u64);
    let progress = device::copy(&device, behind, to, size());
    progress.result.at("COPY of what lies behind it")?;
    let view = map(&segment, 3 * size(), false)?;
    for at in (0..3 * size()).step_by(page_size()) {
        let expected = if at == size() { 0 } else { mix(1, at) };
        check_eq!(view.load(at), expected, "the word at {at:#x}");
    }
    check_eq!(hidden.load(0), secret, "the shadow stack");
    Ok(())
}

/// Copies that nobody has done yet are no more than the status array has entries.
pub(super) fn queue_is_bounded() -> Outcome {
    // The worker shares a processor with this process, which has it for as long as it wants. So nothing is copied
    // meanwhile, however fast the machine is.
    system::on_processor(0)?;
    system::urgent()?;
    let device = knem()?;
    device
        .bind_offload(KNEM_BIND_FLAG_CURRENT, &[])
        .at("BIND_OFFLOAD")?;
    let status = device.map_status(1).at("mmap of the status array")?;
    let area = Area::new(page_size())?;
    area.fill(2);
    let cookie = region(&device, &area, READ | WRITE, 0)?;
    let mut accepted = 0u32;
    let refusal = loop {
        let inline = Inline {
            flags: KNEM_FLAG_MEMCPYTHREAD,
            ..Inline::read(cookie, page_size())
        };
        match inline.run(&device, &[vector(&area)]) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        check!(accepted < 20_000, "{accepted} copies wait");
    };
    refused(
        Err::<(), _>(refusal),
        &[EBUSY],
        "a copy more than can be told of",
    )?;
    check!(
        accepted >= 4096,
        "{accepted} copies, fewer than the array has"
    );
    drop(status);
    Ok(())
}

/// A status array costs a kernel thread: a user has so many, not more.
pub(super) fn quota_of_workers() -> Outcome {
    let _open = OpenToAll::device("/dev/knem")?;
    let _quota = Parameter::set("max_workers", "5")?;
    peer(|_| {
        system::become_user(1001)?;
        for _ in 0..3 {
            up_to_quota(5, "arrays", || {
                let device = knem_sys::Device::open()?;
                let status = device.map_status(1)?;
                Ok((device, status))
            })?;
        }
        Ok(())
    })?
    .join()?;
    let device = knem()?;
    device.map_status(1).at("another user's array").map(|_| ())
}

/// Importers are killed wherever they are while the owner forks and protects all its memory. What they wait for in ways
/// that no signal ends is done by the kernel alone, so they go.
pub(super) fn kill_while_the_owner_changes() -> Outcome {
    const LARGE: usize = 32 * HUGE;
    let over = Area::shared(page_size())?;
    let owner = peer(move |link: &Link| {
        let area = Area::new(LARGE)?;
        area.mark(1);
        link.give(export(&area, true)?.as_fd())?;
        while over.load(0) == 0 {
            let child = peer(|_| Ok(()))?;
            area.protect(READ).at("mprotect")?;
            area.protect(READ | WRITE).at("mprotect")?;
            area.part(0, HUGE).mark(1);
            child.join()?;
        }
        link.turn()
    })?;
    let segment = device::segment(owner.link.take()?);
    for round in 0..24u64 {
        let segment = &segment;
        let importer = peer(move |link: &Link| {
            let view = map(segment, LARGE, true)?;
            link.send(0)?;
            loop {
                for page in 0..LARGE / page_size() {
                    let _ = view.try_load(page * page_size());
                }
                if round % 3 == 0 {
                    map(segment, LARGE, true)?.unmap()?;
                }
                if round % 3 == 1 {
                    // Its descriptors, attachments and segments end with it.
                    let own = Area::new(page_size())?;
                    export(&own, true)?;
                }
            }
        })?;
        importer.link.receive()?;
        std::thread::sleep(Duration::from_millis(20 + 13 * round));
        importer.kill().at("an importer")?;
    }
    over.store(0, 1);
    if let Err(fault) = owner.link.turn() {
        return Err(owner.join().err().unwrap_or(fault));
    }
    owner.join()
}

/// An owner's threads change memory of whatever place all the time, so that there is never a moment without a change.
/// Importers that fault, export and close go on nevertheless, go when they are killed, and the owner's segments end.
pub(super) fn owner_changes_without_a_pause() -> Outcome {
    const ELSEWHERE: usize = 256 << 20;
    /// Words of the board: it is over; what the owner has ended; what importers have done.
    const OVER: usize = 0;
    const ENDED: usize = 8;
    const DONE: usize = 16;
    let board = Area::shared(page_size())?;
    let owner = peer(move |link: &Link| {
        let area = Area::new(HUGE)?;
        area.mark(1);
        // On one processor no call pauses at its end, after the change, to flush another one's TLB. So a thread that is
        // interrupted is in the middle of a change.
        system::on_processor(1)?;
        let own = Area::new(page_size())?;
        let mut segments = Vec::new();
        for _ in 0..64 {
            segments.push(export(&own, true)?);
        }
        let elsewhere = Area::new(ELSEWHERE)?;
        // The zero page everywhere: nothing is used up, and to walk all of it takes long.
        for page in 0..elsewhere.pages() {
            elsewhere.load(page * page_size());
        }
        link.give(export(&area, true)?.as_fd())?;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                // The entries stay, so each call takes as long as the first, and the calls overlap.
                scope.spawn(move || {
                    while board.load(OVER) == 0 {
                        let _ = elsewhere.advise(0, ELSEWHERE, libc::MADV_FREE);
                    }
                });
            }
            let mut steps = || -> Outcome {
                while board.load(OVER) == 0 {
                    area.advise(0, page_size(), libc::MADV_DONTNEED)?;
                    area.store(0, mix(1, 0));
                    // Nothing here waits for the mmap lock to write, since the calls would pause for that.
                    if segments.pop().is_some() {
                        board.store(ENDED, board.load(ENDED) + 1);
                    }
                }
                Ok(())
            };
            let result = steps();
            board.store(OVER, 1);
            result
        })?;
        link.turn()
    })?;
    let segment = device::segment(owner.link.take()?);
    let importer = |rounds: u64| {
        let segment = &segment;
        peer(move |link: &Link| {
            let view = map(segment, HUGE, true)?;
            let own = Area::new(page_size())?;
            link.send(0)?;
            for _ in 0..rounds {
                for page in 0..HUGE / page_size() {
                    let value = view.load(page * page_size());
                    check!(
                        value == mix(1, page * page_size()) || (page == 0 && value == 0),
                        "page {page} holds {value:#x}"
                    );
                }
                map(segment, HUGE, true)?.unmap()?;
                drop(export(&own, true)?);
                board.store(DONE, board.load(DONE) + 1);
            }
            Ok(())
        })
    };
    let patient = importer(20)?;
    patient.link.receive()?;
    patient.join().at("an importer that nobody kills")?;
    for round in 0..16u64 {
        let importer = importer(u64::MAX)?;
        importer.link.receive()?;
        std::thread::sleep(Duration::from_millis(20 + 13 * round));
        importer.kill().at("an importer")?;
    }
    check!(
        board.load(ENDED) == 64,
        "the owner ended {} segments of 64",
        board.load(ENDED)
    );
    check!(
        board.load(DONE) >= 20,
        "importers did {} rounds",
        board.load(DONE)
    );
    board.store(OVER, 1);
    if let Err(fault) = owner.link.turn() {
        return Err(owner.join().err().unwrap_or(fault));
    }
    owner.join()
}
