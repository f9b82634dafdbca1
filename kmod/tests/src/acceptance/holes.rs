// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses that find no memory of the owner, and how a reader learns of them.

use libc::{EACCES, EFAULT, EINVAL, EPERM, SIGBUS, SIGSEGV};
use onecopy_sys::{
    ONECOPY_SEGMENT_DEAD, ONECOPY_STATE_ALIVE, ONECOPY_STATE_OWNER_GONE, ONECOPY_STATE_REVOKED,
    Segment,
};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::device::{self, attach_all, export, generation, make, map};
use crate::mappings;
use crate::mem::{Area, HUGE, READ, WRITE, mix, page_size};
use crate::outcome::{At, Outcome, check, check_eq, refused};
use crate::peer::{Link, Peer, peer};
use crate::system;

fn size() -> usize {
    16 * page_size()
}

/// A process that grants filled memory, then unmaps and maps parts of it as it is told.
fn puppet() -> Outcome<(Peer, Segment)> {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        link.give(export(&area, true)?.as_fd())?;
        loop {
            let word = link.receive()?;
            let part = area.part(
                (word >> 32) as usize * page_size(),
                (word >> 8 & 0xff_ffff) as usize * page_size(),
            );
            match word & 0xff {
                0 => return Ok(()),
                1 => part.unmap()?,
                2 => {
                    part.replace()?;
                    part.fill(2);
                }
                _ => part.advise(0, part.length(), libc::MADV_DONTNEED)?,
            }
            link.send(0)?;
        }
    })?;
    owner.link.receive()?;
    let segment = device::segment(owner.link.take()?);
    Ok((owner, segment))
}

const UNMAP: u64 = 1;
const REPLACE: u64 = 2;
const EMPTY: u64 = 3;

/// Lets the owner do something to some of its pages.
fn order(owner: &Peer, what: u64, first: u64, pages: u64) -> Outcome {
    owner.link.send(first << 32 | pages << 8 | what)?;
    owner.link.receive().map(|_| ())
}

pub(super) fn signal_in_legacy_mode() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        link.receive()?;
        let part = area.part(4 * page_size(), 4 * page_size());
        part.unmap()?;
        link.turn()?;
        part.replace()?;
        part.fill(2);
        link.turn()
    })?;
    let device = device::xpmem()?;
    let view = attach_all(&device, owner.link.receive()?, size())?;
    view.verify(1)?;
    owner.link.turn()?;
    for page in 0..16 {
        let expected = if (4..8).contains(&page) {
            Err(SIGBUS)
        } else {
            Ok(mix(1, page * page_size()))
        };
        check_eq!(
            view.try_load(page * page_size()),
            expected,
            "page {page} beside a hole"
        );
    }
    check_eq!(
        view.try_store(5 * page_size(), 1),
        Err(SIGBUS),
        "a store to a hole"
    );
    owner.link.turn()?;
    // The attachment names addresses: what is mapped there now is seen.
    view.part(4 * page_size(), 4 * page_size()).verify(2)?;
    owner.dismiss()
}

pub(super) fn no_signal_in_a_grant() -> Outcome {
    let (owner, segment) = puppet()?;
    let view = map(&segment, size(), true)?;
    view.verify(1)?;
    let page = generation(&segment)?;
    check_eq!(device::read(&page).holes, 0, "holes before");
    order(&owner, UNMAP, 4, 4)?;
    check_eq!(view.try_load(4 * page_size()), Ok(0), "a load from a hole");
    let holes = device::read(&page).holes;
    check!(holes > 0, "a hole was not counted");
    check_eq!(
        view.try_store(6 * page_size(), 9),
        Ok(()),
        "a store to a hole"
    );
    check!(
        device::read(&page).holes > holes,
        "a store to a hole was not counted"
    );
    view.part(0, 4 * page_size()).verify(1)?;
    check_eq!(
        view.load(8 * page_size()),
        mix(1, 8 * page_size()),
        "behind the hole"
    );
    order(&owner, REPLACE, 4, 4)?;
    // A mapping that is made now sees the new memory, and what was stored to the hole is nowhere.
    map(&segment, size(), false)?
        .part(4 * page_size(), 4 * page_size())
        .verify(2)?;
    owner.dismiss()
}

pub(super) fn generation_counts() -> Outcome {
    let (owner, segment) = puppet()?;
    let view = map(&segment, size(), true)?;
    let page = generation(&segment)?;
    view.verify(1)?;
    let before = device::read(&page);
    check_eq!(before.state, ONECOPY_STATE_ALIVE, "state");
    view.verify(1)?;
    let unchanged = device::read(&page);
    check_eq!(
        (unchanged.holes, unchanged.state),
        (before.holes, before.state),
        "after reads that found memory"
    );
    order(&owner, REPLACE, 2, 2)?;
    let after = device::read(&page);
    check!(
        after.invalidations > before.invalidations,
        "a change of the owner's was not counted"
    );
    check_eq!(after.holes, before.holes, "holes without an access to one");
    view.part(2 * page_size(), 2 * page_size()).verify(2)?;
    order(&owner, EMPTY, 2, 2)?;
    check_eq!(view.load(2 * page_size()), 0, "a page that was given back");
    // Every access to a hole by a new mapping counts, so that no reader misses its own.
    order(&owner, UNMAP, 10, 1)?;
    for _ in 0..3 {
        let before = device::read(&page).holes;
        let mine = map(&segment, size(), false)?;
        check_eq!(mine.load(10 * page_size()), 0, "a hole");
        check!(
            device::read(&page).holes > before,
            "an access to a hole was not counted"
        );
    }
    owner.dismiss()
}

/// A child has no mapping of its parent's page, by which it could hold what it was never given.
pub(super) fn generation_is_not_inherited() -> Outcome {
    let area = Area::new(size())?;
    let segment = export(&area, false)?;
    let page = generation(&segment)?;
    let shown = Area::of(page.pointer().cast(), page_size());
    check_eq!(shown.try_load(0).is_ok(), true, "whether the page is there");
    check_eq!(mappings::of_segments()?, 1, "mappings before the fork");
    let child = peer(|_| {
        check_eq!(
            shown.try_load(0),
            Err(SIGSEGV),
            "a load from where a child's parent has the page"
        );
        check_eq!(mappings::of_segments()?, 0, "mappings that a child has");
        Ok(())
    })?;
    child.join()?;
    check_eq!(mappings::of_segments()?, 1, "mappings after the fork");
    drop(page);
    Ok(())
}

pub(super) fn generation_is_read_only() -> Outcome {
    let (owner, segment) = puppet()?;
    let page = generation(&segment)?;
    let area = Area::of(page.pointer().cast(), page_size());
    check_eq!(
        area.try_store(0, 1),
        Err(SIGSEGV),
        "a store to the generation page"
    );
    refused(
        area.protect(READ | WRITE),
        &[EACCES],
        "mprotect of the generation page",
    )?;
    let offset = onecopy_sys::ONECOPY_MMAP_GENERATION as i64;
    let writable = crate::mem::try_map(
        0,
        page_size(),
        READ | WRITE,
        libc::MAP_SHARED,
        Some(segment.as_fd()),
        offset,
    );
    refused(
        writable,
        &[EACCES, EINVAL, EPERM],
        "mmap of the generation page for writing",
    )?;
    owner.dismiss()
}

pub(super) fn revoke() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let segment = export(&area, true)?;
    let other = peer(|link: &Link| {
        let view = map(&segment, size(), true)?;
        let page = generation(&segment)?;
        view.verify(1)?;
        refused(segment.revoke(), &[EPERM], "REVOKE by another process")?;
        link.turn()?;
        check_eq!(device::read(&page).state, ONECOPY_STATE_REVOKED, "state");
        for at in (0..size()).step_by(page_size()) {
            check_eq!(view.try_load(at), Ok(0), "a load after REVOKE");
        }
        check_eq!(view.try_store(0, 5), Ok(()), "a store after REVOKE");
        check!(
            device::read(&page).holes > 0,
            "loads after REVOKE were not counted"
        );
        check!(
            segment.info().at("SEGMENT_INFO")?.flags & ONECOPY_SEGMENT_DEAD != 0,
            "alive after REVOKE"
        );
        if let Ok(again) = device::try_map(&segment, 0, size(), false) {
            check_eq!(
                again.try_load(0),
                Ok(0),
                "a load from a mapping made after REVOKE"
            );
        }
        if let Ok(second) = segment.restrict(false) {
            check!(
                second.info().at("SEGMENT_INFO")?.flags & ONECOPY_SEGMENT_DEAD != 0,
                "RESTRICT revived it"
            );
        }
        Ok(())
    })?;
    other.link.receive()?;
    segment.revoke().at("REVOKE")?;
    // Twice is no harm.
    let _ = segment.revoke();
    other.dismiss()?;
    area.verify(1)
}

pub(super) fn owner_gone_state() -> Outcome {
    let (mut owner, segment) = puppet()?;
    let view = map(&segment, size(), true)?;
    view.verify(1)?;
    let page = generation(&segment)?;
    owner.signal(nix::sys::signal::Signal::SIGKILL)?;
    owner.wait(Duration::from_secs(20))?;
    let gone = system::until(Duration::from_secs(10), || {
        device::read(&page).state == ONECOPY_STATE_OWNER_GONE
    });
    check!(
        gone,
        "state {} after the owner's death",
        device::read(&page).state
    );
    for at in (0..size()).step_by(page_size()) {
        check_eq!(view.try_load(at), Ok(0), "a load after the owner's death");
    }
    check!(
        device::read(&page).holes > 0,
        "loads after the owner's death were not counted"
    );
    check!(
        segment.info().at("SEGMENT_INFO")?.flags & ONECOPY_SEGMENT_DEAD != 0,
        "alive after its owner"
    );
    view.unmap()
}

pub(super) fn prefault() -> Outcome {
    for huge in [false, true] {
        let size = if huge { 2 * HUGE } else { 700 * page_size() };
        let area = if huge {
            Area::huge(size)?
        } else {
            Area::new(size)?
        };
        area.mark(1);
        let segment = export(&area, true)?;
        peer(|_| {
            let device = device::onecopy()?;
            for write in [false, true] {
                let view = map(&segment, size, write)?;
                let before = device.stats().at("STATS")?;
                let progress = device.prefault(view.base(), size as u64, write);
                progress.result.at("PREFAULT")?;
                check_eq!(progress.done, size as u64, "bytes done");
                let between = device.stats().at("STATS")?;
                check!(
                    between.mapped_small + between.mapped_huge
                        > before.mapped_small + before.mapped_huge,
                    "PREFAULT mapped nothing"
                );
                view.verify_marks(1)?;
                let after = device.stats().at("STATS")?;
                check_eq!(after.faults, between.faults, "faults after PREFAULT");
                // A part of an attachment, and none of it.
                let part = view.part(3 * page_size(), 5 * page_size());
                let progress = device.prefault(part.base(), part.length() as u64, false);
                check_eq!(progress.done, part.length() as u64, "bytes of a part");
                check_eq!(
                    device.prefault(view.base(), 0, false).done,
                    0,
                    "bytes of nothing"
                );
                view.unmap()?;
            }
            Ok(())
        })?
        .join()?;
    }
    Ok(())
}

pub(super) fn prefault_errors() -> Outcome {
    let (owner, segment) = puppet()?;
    let device = device::onecopy()?;
    order(&owner, UNMAP, 6, 2)?;
    let view = map(&segment, size(), true)?;
    let page = generation(&segment)?;
    let progress = device.prefault(view.base(), size() as u64, false);
    refused(progress.result, &[EFAULT], "PREFAULT over a hole")?;
    check_eq!(
        progress.done,
        6 * page_size() as u64,
        "bytes before the hole"
    );
    check_eq!(
        view.load(5 * page_size()),
        mix(1, 5 * page_size()),
        "before the hole"
    );
    check_eq!(device::read(&page).holes, 0, "holes: PREFAULT is no access");
    let behind = view.part(8 * page_size(), 8 * page_size());
    device
        .prefault(behind.base(), behind.length() as u64, true)
        .result
        .at("PREFAULT behind the hole")?;
    // Not an attachment, unmapped, odd, and for writing without the right.
    let own = Area::new(size())?;
    let errors = &[EFAULT, EINVAL, libc::ENOMEM];
    refused(
        device.prefault(own.base(), size() as u64, false).result,
        errors,
        "PREFAULT of ordinary memory",
    )?;
    let gone = Area::new(size())?;
    gone.unmap()?;
    refused(
        device.prefault(gone.base(), size() as u64, false).result,
        errors,
        "PREFAULT of nothing",
    )?;
    // Whole pages are mapped, also for a part of one.
    let progress = device.prefault(view.base() + 1, 100, false);
    progress.result.at("PREFAULT of a part of a page")?;
    check_eq!(progress.done, 100, "bytes of a part of a page");
    refused(
        device.prefault(view.base(), u64::MAX, false).result,
        errors,
        "PREFAULT of everything",
    )?;
    let reader = map(&segment.restrict(false).at("RESTRICT")?, size(), false)?;
    refused(
        device
            .prefault(reader.base(), page_size() as u64, true)
            .result,
        &[EACCES, EFAULT, EPERM],
        "PREFAULT for writing of a read-only mapping",
    )?;
    reader.part(0, page_size()).verify(1)?;
    // The owner's end.
    owner.dismiss()?;
    let gone = system::until(Duration::from_secs(10), || {
        device::read(&page).state == ONECOPY_STATE_OWNER_GONE
    });
    check!(gone, "the owner's end was not seen");
    let progress = device.prefault(view.base(), size() as u64, false);
    check!(
        progress.result.is_err() && progress.done == 0,
        "PREFAULT after the owner's end: {progress:?}"
    );
    Ok(())
}
