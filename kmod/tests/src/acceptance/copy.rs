// SPDX-License-Identifier: MIT OR Apache-2.0
//! COPY: bytes between two address spaces, with the number that were done.

use std::os::fd::AsFd;

use libc::{EACCES, EBADF, EFAULT, EINVAL, EKEYREVOKED, EOVERFLOW, EPERM, ESRCH};
use onecopy_sys::{CopyEnd, Segment};

use crate::device::{self, copy, export};
use crate::mem::{Area, HUGE, NONE, READ, mix, page_size};
use crate::outcome::{At, Outcome, check, check_eq, refused};
use crate::peer::{Link, PATIENCE, Peer, peer};
use crate::{system, uffd};

fn size() -> usize {
    600 * page_size()
}

fn own(area: &Area, offset: usize) -> CopyEnd<'static> {
    CopyEnd::Own((area.base() + offset) as u64)
}

/// A process that grants filled memory and looks at its end whether it holds the expected words.
fn owner(expected: u64) -> Outcome<(Peer, Segment)> {
    let owner = peer(move |link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        link.give(export(&area, true)?.as_fd())?;
        link.receive()?;
        area.verify(expected)
    })?;
    let segment = device::segment(owner.link.take()?);
    Ok((owner, segment))
}

pub(super) fn between_processes() -> Outcome {
    let (first, from) = owner(1)?;
    let (second, to) = owner(3)?;
    let device = device::onecopy()?;
    let local = Area::new(size())?;
    let progress = copy(&device, CopyEnd::Segment(&from, 0), own(&local, 0), size());
    progress.result.at("COPY from a segment")?;
    check_eq!(progress.done, size() as u64, "bytes done");
    local.verify(1)?;
    local.fill(2);
    copy(&device, own(&local, 0), CopyEnd::Segment(&to, 0), size())
        .result
        .at("COPY to a segment")?;
    let back = Area::new(size())?;
    copy(&device, CopyEnd::Segment(&to, 0), own(&back, 0), size())
        .result
        .at("COPY back")?;
    back.verify(2)?;
    // From one owner to another, by a third process.
    local.fill(3);
    copy(&device, own(&local, 0), CopyEnd::Segment(&from, 0), size())
        .result
        .at("COPY to the first")?;
    copy(
        &device,
        CopyEnd::Segment(&from, 0),
        CopyEnd::Segment(&to, 0),
        size(),
    )
    .result
    .at("COPY between two")?;
    local.fill(1);
    copy(&device, own(&local, 0), CopyEnd::Segment(&from, 0), size())
        .result
        .at("COPY to the first")?;
    first.dismiss()?;
    second.dismiss()
}

pub(super) fn own_to_own() -> Outcome {
    let device = device::onecopy()?;
    let (from, to) = (Area::huge(HUGE)?, Area::new(HUGE)?);
    from.fill(4);
    let progress = copy(&device, own(&from, 0), own(&to, 0), HUGE);
    progress.result.at("COPY within the process")?;
    to.verify(4)
}

pub(super) fn done_and_errno() -> Outcome {
    let device = device::onecopy()?;
    // A hole in the source, at several places within the pages; then one in the destination; then one that is no page
    // at all.
    for (hole, start) in [(1, 0), (1, 100), (37, 8), (300, 4088), (511, 0), (599, 1)] {
        let (from, to) = (Area::new(size())?, Area::new(size())?);
        from.fill(5);
        to.fill(6);
        from.part(hole * page_size(), page_size()).unmap()?;
        let length = size() - start;
        let progress = copy(&device, own(&from, start), own(&to, 0), length);
        refused(progress.result, &[EFAULT], "COPY from a hole")?;
        check_eq!(
            progress.done,
            (hole * page_size() - start) as u64,
            "bytes before a hole in page {hole}"
        );
        let mut bytes = (0..progress.done as usize / 8).map(|word| word * 8);
        if start % 8 == 0 {
            let wrong = bytes.find(|at| to.load(*at) != from.load(start + at));
            check!(wrong.is_none(), "wrong bytes at {wrong:?} before the hole");
        }
        let behind = (hole * page_size() - start).next_multiple_of(8);
        let wrong = (behind..size())
            .step_by(8)
            .find(|at| to.load(*at) != mix(6, *at));
        check!(
            wrong.is_none(),
            "bytes at {wrong:?}, which were not copied, changed"
        );
        let progress = copy(&device, own(&to, 0), own(&from, start), length);
        refused(progress.result, &[EFAULT], "COPY to a hole")?;
        check_eq!(
            progress.done,
            (hole * page_size() - start) as u64,
            "bytes before a hole in the destination"
        );
    }
    let (from, to) = (Area::new(size())?, Area::new(size())?);
    from.fill(6);
    to.part(10 * page_size(), page_size())
        .protect(READ)
        .at("mprotect")?;
    let progress = copy(&device, own(&from, 0), own(&to, 0), size());
    refused(
        progress.result,
        &[EFAULT, EACCES],
        "COPY to a read-only page",
    )?;
    check_eq!(
        progress.done,
        10 * page_size() as u64,
        "bytes before a read-only page"
    );
    check_eq!(to.load(10 * page_size()), 0, "the read-only page");
    from.part(5 * page_size(), page_size())
        .protect(NONE)
        .at("mprotect")?;
    let progress = copy(&device, own(&from, 0), own(&to, 0), size());
    refused(
        progress.result,
        &[EFAULT, EACCES],
        "COPY from a closed page",
    )?;
    check_eq!(
        progress.done,
        5 * page_size() as u64,
        "bytes before a closed page"
    );
    Ok(())
}

pub(super) fn direction() -> Outcome {
    let device = device::onecopy()?;
    let area = Area::new(size())?;
    area.fill(7);
    let reader = export(&area, false)?;
    let local = Area::new(size())?;
    copy(
        &device,
        CopyEnd::Segment(&reader, 0),
        own(&local, 0),
        size(),
    )
    .result
    .at("COPY from a read-only grant")?;
    local.verify(7)?;
    local.fill(8);
    let progress = copy(
        &device,
        own(&local, 0),
        CopyEnd::Segment(&reader, 0),
        size(),
    );
    refused(
        progress.result,
        &[EACCES, EPERM, EBADF],
        "COPY to a read-only grant",
    )?;
    area.verify(7)?;
    // Neither a segment nor -1.
    let file = std::fs::File::open("/proc/self/maps").at("/proc/self/maps")?;
    let no_segment = device::segment(file.into());
    let progress = copy(
        &device,
        CopyEnd::Segment(&no_segment, 0),
        own(&local, 0),
        page_size(),
    );
    refused(
        progress.result,
        &[EBADF, EINVAL, libc::ENOTTY],
        "COPY from some file",
    )?;
    for (offset, length) in [
        (size() as u64, 8),
        (size() as u64 - 4, 8),
        (u64::MAX - 3, 8),
        (0, size() + 1),
        (8, usize::MAX - 4),
    ] {
        let progress = copy(
            &device,
            CopyEnd::Segment(&reader, offset),
            own(&local, 0),
            length,
        );
        check!(
            progress.result.is_err(),
            "COPY of {length:#x} bytes at {offset:#x} of a segment worked"
        );
        check!(
            progress.done <= (size() as u64).saturating_sub(offset),
            "{} bytes done",
            progress.done
        );
    }
    let progress = copy(
        &device,
        own(&local, 0),
        CopyEnd::Own(u64::MAX - page_size() as u64),
        64,
    );
    refused(
        progress.result,
        &[EFAULT, EINVAL, EOVERFLOW],
        "COPY to kernel addresses",
    )?;
    let progress = copy(
        &device,
        CopyEnd::Own(0xffff_8880_0000_0000),
        own(&local, 0),
        64,
    );
    refused(
        progress.result,
        &[EFAULT, EINVAL, EOVERFLOW],
        "COPY from kernel addresses",
    )?;
    let nothing = copy(&device, own(&local, 0), own(&local, 8), 0);
    check_eq!(nothing.done, 0, "bytes of nothing");
    Ok(())
}

pub(super) fn lengths_and_alignments() -> Outcome {
    let device = device::onecopy()?;
    let (first, from) = owner(1)?;
    let local = Area::new(size())?;
    for (offset, length) in [
        (0, 8),
        (8, 8),
        (4088, 16),
        (4096, 4096),
        (8, 4096),
        (4088, 8200),
        (16, 3 * page_size()),
        (511 * page_size(), 2 * page_size()),
        (8, size() - 16),
    ] {
        for target in [0, 8, 4088, 2048] {
            if target + length + 8 > size() {
                continue;
            }
            local.store(target + length, 0x5a5a);
            let progress = copy(
                &device,
                CopyEnd::Segment(&from, offset as u64),
                own(&local, target),
                length,
            );
            progress.result.at(format_args!(
                "COPY of {length} bytes from {offset} to {target}"
            ))?;
            for at in (0..length).step_by(8) {
                check_eq!(
                    local.load(target + at),
                    mix(1, offset + at),
                    "word {at} of {length} from {offset}"
                );
            }
            check_eq!(
                local.load(target + length),
                0x5a5a,
                "what follows {length} bytes"
            );
        }
    }
    first.dismiss()
}

/// A COPY waits in the middle for memory of its caller; once REVOKE has returned no byte moves.
pub(super) fn revoke_stops_a_copy() -> Outcome {
    let area = Area::new(size())?;
    for to_segment in [false, true] {
        area.fill(9);
        let segment = export(&area, true)?;
        let caller = peer(|link: &Link| {
            let local = Area::new(size())?;
            let blocked = local.part(2 * page_size(), size() - 2 * page_size());
            local.part(0, 2 * page_size()).fill(1);
            let fd = uffd::block(&blocked)?;
            link.send(0)?;
            std::thread::scope(|scope| {
                // Told by the owner, after its revocation, to let the memory be there.
                scope.spawn(move || {
                    let _ = link.receive();
                    drop(fd);
                });
                let (theirs, mine) = (CopyEnd::Segment(&segment, 0), own(&local, 0));
                let (from, to) = if to_segment {
                    (mine, theirs)
                } else {
                    (theirs, mine)
                };
                let progress = copy(&device::onecopy()?, from, to, size());
                check!(
                    progress.done <= 2 * page_size() as u64,
                    "bytes moved after REVOKE: {progress:?}"
                );
                refused(progress.result, &[EKEYREVOKED], "COPY while REVOKE")?;
                for offset in (0..blocked.length()).step_by(8) {
                    check_eq!(blocked.load(offset), 0, "a byte that came after REVOKE");
                }
                Ok(())
            })
        })?;
        caller.link.receive()?;
        if let Err(fault) = system::until_asleep(caller.pid()) {
            return Err(caller.join().err().unwrap_or(fault));
        }
        segment.revoke().at("REVOKE")?;
        let rest = area.part(2 * page_size(), size() - 2 * page_size());
        let before: Vec<u64> = (0..rest.length())
            .step_by(8)
            .map(|at| rest.load(at))
            .collect();
        caller.dismiss()?;
        for (word, at) in before.iter().zip((0..).step_by(8)) {
            check_eq!(rest.load(at), *word, "a byte that moved after REVOKE");
        }
    }
    Ok(())
}

/// However seldom the scheduler lets a copy run, it holds up nobody who takes its memory back. Here a task with
/// real-time priority keeps the copy from its processor.
pub(super) fn revoke_waits_for_no_slow_copy() -> Outcome {
    const ROUNDS: usize = 12;
    /// Words of the board: this has begun; it is over.
    const BEGUN: usize = 0;
    const OVER: usize = 8;
    let _limit = system::no_realtime_limit()?;
    system::on_processor(0)?;
    for round in 0..ROUNDS {
        let board = Area::shared(page_size())?;
        let owner = peer(move |link: &Link| {
            system::on_processor(0)?;
            let (from, to) = (Area::new(size())?, Area::new(size())?);
            from.fill(1);
            to.fill(2);
            let segments = [export(&from, true)?, export(&to, true)?];
            for segment in &segments {
                link.give(segment.as_fd())?;
            }
            link.receive()?;
            for segment in &segments {
                segment.revoke().at("REVOKE")?;
            }
            link.send(0)?;
            link.receive().map(|_| ())
        })?;
        let from = device::segment(owner.link.take()?);
        let to = device::segment(owner.link.take()?);
        let copier = peer(move |link: &Link| {
            system::on_processor(1)?;
            let device = device::onecopy()?;
            let mut signalled = false;
            loop {
                let (from, to) = (CopyEnd::Segment(&from, 0), CopyEnd::Segment(&to, 0));
                let result = copy(&device, from, to, size()).result;
                if result.is_err() {
                    return refused(result, &[EKEYREVOKED], "COPY after REVOKE");
                }
                if !signalled {
                    link.send(0)?;
                    signalled = true;
                }
            }
        })?;
        copier.link.receive()?;
        let hog = peer(move |_| {
            system::on_processor(1)?;
            // At another point of the copy each time.
            std::thread::sleep(std::time::Duration::from_micros(137 * round as u64));
            system::urgent()?;
            board.store(BEGUN, 1);
            // It ends by itself if nobody can say that it is over.
            let ends = std::time::Instant::now() + 2 * PATIENCE;
            while board.load(OVER) == 0 && std::time::Instant::now() < ends {
                std::hint::spin_loop();
            }
            Ok(())
        })?;
        let begun = system::until(PATIENCE, || board.load(BEGUN) == 1);
        owner.link.send(0)?;
        let ended = owner.link.receive();
        board.store(OVER, 1);
        hog.join()?;
        copier.join()?;
        check!(begun, "the other task never ran");
        ended.at("REVOKE beside a copy that has no processor")?;
        owner.dismiss()?;
    }
    Ok(())
}

pub(super) fn after_revoke() -> Outcome {
    let device = device::onecopy()?;
    let area = Area::new(size())?;
    area.fill(9);
    let segment = export(&area, true)?;
    segment.revoke().at("REVOKE")?;
    let local = Area::new(size())?;
    local.fill(1);
    for (from, to) in [
        (CopyEnd::Segment(&segment, 0), own(&local, 0)),
        (own(&local, 0), CopyEnd::Segment(&segment, 0)),
    ] {
        let progress = copy(&device, from, to, size());
        check!(
            progress.result.is_err() && progress.done == 0,
            "COPY after REVOKE: {progress:?}"
        );
    }
    local.verify(1)?;
    area.verify(9)?;
    let (owner, segment) = owner(1)?;
    owner.dismiss()?;
    let progress = copy(
        &device,
        CopyEnd::Segment(&segment, 0),
        own(&local, 0),
        size(),
    );
    refused(
        progress.result,
        &[
            ESRCH,
            EFAULT,
            libc::EOWNERDEAD,
            libc::ENXIO,
            libc::EIO,
            libc::ESTALE,
        ],
        "COPY after the owner's end",
    )?;
    local.verify(1)
}

pub(super) fn counters() -> Outcome {
    let device = device::onecopy()?;
    let before = device.stats().at("STATS")?;
    let area = Area::new(size())?;
    area.fill(1);
    let segment = export(&area, true)?;
    check_eq!(device.stats().at("STATS")?.segments, 1, "segments");
    let view = device::map(&segment, size(), true)?;
    view.verify(1)?;
    let local = Area::new(size())?;
    copy(
        &device,
        CopyEnd::Segment(&segment, 0),
        own(&local, 0),
        size(),
    )
    .result
    .at("COPY")?;
    area.part(0, page_size()).unmap()?;
    check_eq!(view.load(0), 0, "a hole");
    let after = device.stats().at("STATS")?;
    for (name, old, new, least) in [
        ("attaches", before.attaches, after.attaches, 1),
        ("faults", before.faults, after.faults, 1),
        (
            "mapped_small",
            before.mapped_small,
            after.mapped_small,
            size() as u64 / page_size() as u64,
        ),
        (
            "invalidations",
            before.invalidations,
            after.invalidations,
            1,
        ),
        ("holes", before.holes, after.holes, 1),
        ("copies", before.copies, after.copies, 1),
        (
            "copied_bytes",
            before.copied_bytes,
            after.copied_bytes,
            size() as u64,
        ),
    ] {
        check!(
            new - old >= least,
            "{name} grew by {}, expected {least} or more",
            new - old
        );
    }
    Ok(())
}
