// SPDX-License-Identifier: MIT OR Apache-2.0
//! The XPMEM interface as programs use it.

use libc::{EACCES, EEXIST, EFAULT, EINVAL, ENOENT, ENOTTY, SIGBUS, SIGSEGV};
use std::os::fd::{AsFd, AsRawFd};

use xpmem_sys::{
    XPMEM_CURRENT_VERSION, XPMEM_ERRNO_NOPROC, XPMEM_MAXADDR_SIZE, XPMEM_RDONLY, XPMEM_RDWR,
};

use crate::device::{self, attach, attach_all, get, make};
use crate::mem::{Area, READ, WRITE, mix, page_size};
use crate::outcome::{At, Outcome, check, check_eq, refused};
use crate::peer::{Link, Peer, peer};

fn size() -> usize {
    16 * page_size()
}

/// A process that exports filled memory, tells the segment's id and its address, and lives until it is told to end.
fn owner(seed: u64, size: usize) -> Outcome<Peer> {
    peer(move |link| {
        let area = Area::new(size)?;
        area.fill(seed);
        let device = device::xpmem()?;
        let segid = make(&device, &area, 0o600)?;
        link.send(segid as u64)?;
        link.send(area.base() as u64)?;
        link.receive().map(|_| ())
    })
}

/// A process that exports memory, lets another read and write, and looks for what was written at its start.
fn written_owner(expected: u64) -> Outcome<Peer> {
    peer(move |link| {
        let area = Area::new(size())?;
        area.fill(1);
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        link.receive()?;
        check_eq!(area.load(0), expected, "what the importer wrote");
        Ok(())
    })
}

pub(super) fn version() -> Outcome {
    let version = device::xpmem()?.version().at("VERSION")?;
    check_eq!(version, XPMEM_CURRENT_VERSION, "version");
    Ok(())
}

pub(super) fn bytes_travel() -> Outcome {
    let owner = written_owner(77)?;
    let device = device::xpmem()?;
    let segid = owner.link.receive()?;
    let view = attach_all(&device, segid, size())?;
    view.verify(1)?;
    view.store(0, 77);
    owner.dismiss()
}

pub(super) fn offsets() -> Outcome {
    let owner = owner(2, size())?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    for page in 0..size() / page_size() {
        let length = size() - page * page_size();
        let view = attach(&device, apid, page * page_size(), length)?;
        check_eq!(
            view.load(0),
            mix(2, page * page_size()),
            "first word from page {page}"
        );
        check_eq!(view.load(length - 8), mix(2, size() - 8), "last word");
        device::detach(&device, &view).at("DETACH")?;
    }
    // A length that is no multiple of the page size is rounded up.
    let view = attach(&device, apid, 0, 100)?;
    check_eq!(view.load(0), mix(2, 0), "a short attachment");
    owner.dismiss()
}

pub(super) fn whole_space() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(3);
        let device = device::xpmem()?;
        let segid = device::try_make(&device, 0, XPMEM_MAXADDR_SIZE, 0o600).at("MAKE of all")?;
        link.send(segid as u64)?;
        link.send(area.base() as u64)?;
        // Mapped after the grant.
        link.receive()?;
        let later = Area::new(size())?;
        later.fill(4);
        link.send(later.base() as u64)?;
        link.receive().map(|_| ())
    })?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    let base = owner.link.receive()?;
    attach(&device, apid, base as usize, size())?.verify(3)?;
    owner.link.send(0)?;
    let later = owner.link.receive()?;
    attach(&device, apid, later as usize, size())?.verify(4)?;
    owner.dismiss()
}

pub(super) fn bad_arguments() -> Outcome {
    let device = device::xpmem()?;
    let area = Area::new(size())?;
    let try_make =
        |address: usize, size: u64, mode: u32| device::try_make(&device, address, size, mode);
    let size = size() as u64;
    refused(
        try_make(area.base() + 8, size, 0o600),
        &[EINVAL],
        "MAKE of an odd address",
    )?;
    refused(
        try_make(area.base(), size + 8, 0o600),
        &[EINVAL],
        "MAKE of an odd size",
    )?;
    refused(
        try_make(area.base(), 0, 0o600),
        &[EINVAL],
        "MAKE of nothing",
    )?;
    refused(
        try_make(area.base(), size, 0o1000),
        &[EINVAL],
        "MAKE with mode 01000",
    )?;
    refused(
        try_make(usize::MAX & !(page_size() - 1), size, 0o600),
        &[EINVAL, EFAULT],
        "MAKE beyond the address space",
    )?;
    let segid = make(&device, &area, 0o600)?;
    for flags in [0, 4, -1] {
        refused(
            device.get(segid, flags),
            &[EINVAL, EACCES],
            format_args!("GET with flags {flags}"),
        )?;
    }
    refused(
        device.get(segid ^ 1, XPMEM_RDWR),
        &[ENOENT],
        "GET of an unknown id",
    )?;
    refused(device.get(0, XPMEM_RDWR), &[EINVAL], "GET of id 0")?;
    refused(device.get(-1, XPMEM_RDWR), &[EINVAL], "GET of id -1")?;
    let apid = get(&device, segid as u64)?;
    let page = page_size() as i64;
    let bad: &[(i64, u64)] = &[
        (8, size),
        (-page, size),
        (0, size + page_size() as u64),
        (page, size),
        (size as i64, page_size() as u64),
        (i64::MAX & -page, size),
        (page, u64::MAX),
        (page, u64::MAX - page_size() as u64 + 1),
        (0, 0),
        (0, u64::MAX),
        (i64::MIN, size),
    ];
    for (offset, length) in bad {
        refused(
            device.attach(apid, *offset, *length),
            &[EINVAL, libc::EOVERFLOW],
            format_args!("ATTACH of {length:#x} bytes at {offset:#x}"),
        )?;
    }
    refused(
        device.attach(apid ^ 1, 0, size),
        &[ENOENT],
        "ATTACH of an unknown permit",
    )?;
    refused(
        device.release(apid ^ 1),
        &[ENOENT],
        "RELEASE of an unknown permit",
    )?;
    refused(
        device.remove(segid ^ 1),
        &[ENOENT],
        "REMOVE of an unknown segment",
    )?;
    refused(device.remove(0), &[EINVAL], "REMOVE of id 0")?;
    refused(device.release(-1), &[EINVAL], "RELEASE of id -1")?;
    refused(device.attach(0, 0, size), &[EINVAL], "ATTACH of id 0")?;
    let fd = device.as_fd().as_raw_fd();
    for (command, argument) in [(6, 0), (1, 8), (3, 8), (5, 8)] {
        let number = u64::from(xpmem_sys::XPMEM_IOC_MAGIC) << 8 | command;
        refused(
            device::raw_ioctl(fd, number, argument),
            &[EFAULT],
            format_args!("command {command} with a bad pointer"),
        )?;
    }
    refused(
        device::raw_ioctl(fd, 0x7863, 0),
        &[ENOTTY, EINVAL],
        "an unknown command",
    )?;
    Ok(())
}

pub(super) fn read_only_permit() -> Outcome {
    let owner = written_owner(mix(1, 0))?;
    let device = device::xpmem()?;
    let segid = owner.link.receive()? as i64;
    let apid = device.get(segid, XPMEM_RDONLY).at("GET for reading")?;
    let view = attach(&device, apid, 0, size())?;
    view.verify(1)?;
    check_eq!(
        view.try_store(0, 5),
        Err(SIGSEGV),
        "a store to a read-only attachment"
    );
    refused(
        view.protect(READ | WRITE),
        &[EACCES],
        "mprotect for writing",
    )?;
    check_eq!(view.try_store(0, 5), Err(SIGSEGV), "a store after mprotect");
    owner.dismiss()
}

pub(super) fn release_and_remove() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        let device = device::xpmem()?;
        let segid = make(&device, &area, 0o600)?;
        link.send(segid as u64)?;
        link.receive()?;
        device.remove(segid).at("REMOVE")?;
        refused(device.remove(segid), &[ENOENT], "REMOVE twice")?;
        link.turn()
    })?;
    let device = device::xpmem()?;
    let segid = owner.link.receive()?;
    let first = get(&device, segid)?;
    let second = get(&device, segid)?;
    device.release(first).at("RELEASE")?;
    refused(
        device.attach(first, 0, page_size() as u64),
        &[ENOENT],
        "ATTACH after RELEASE",
    )?;
    refused(device.release(first), &[ENOENT], "RELEASE twice")?;
    let view = attach(&device, second, 0, size())?;
    view.verify(1)?;
    refused(
        device.remove(segid as i64),
        &[EACCES, EINVAL, libc::EPERM],
        "REMOVE by another process",
    )?;
    owner.link.turn()?;
    check_eq!(view.try_load(0), Err(SIGBUS), "a load after REMOVE");
    refused(
        device.get(segid as i64, XPMEM_RDWR),
        &[EINVAL, ENOENT],
        "GET after REMOVE",
    )?;
    check!(
        device.attach(second, 0, page_size() as u64).is_err(),
        "ATTACH after REMOVE worked"
    );
    device::detach(&device, &view).at("DETACH after REMOVE")?;
    owner.dismiss()
}

pub(super) fn munmap_whole() -> Outcome {
    let owner = owner(5, size())?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    let view = attach(&device, apid, 0, size())?;
    view.verify(5)?;
    view.unmap()?;
    check_eq!(view.try_load(0), Err(SIGSEGV), "a load after munmap");
    device::detach(&device, &view).at("DETACH after munmap, where nothing is")?;
    attach(&device, apid, 0, size())?.verify(5)?;
    owner.dismiss()
}

pub(super) fn munmap_part() -> Outcome {
    let owner = owner(6, size())?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    // The start, the middle and the end.
    for (from, pages) in [(0, 3), (5, 4), (13, 3)] {
        for touched in [false, true] {
            let view = attach(&device, apid, 0, size())?;
            if touched {
                view.verify(6)?;
            }
            view.part(from * page_size(), pages * page_size()).unmap()?;
            for page in 0..view.pages() {
                let gone = (from..from + pages).contains(&page);
                let expected = if gone {
                    Err(SIGSEGV)
                } else {
                    Ok(mix(6, page * page_size()))
                };
                check_eq!(
                    view.try_load(page * page_size()),
                    expected,
                    "page {page} without {from}+{pages}"
                );
            }
            // What is left is ordinary mappings too.
            view.unmap()?;
        }
    }
    owner.dismiss()
}

pub(super) fn map_over() -> Outcome {
    let owner = owner(7, size())?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    let view = attach(&device, apid, 0, size())?;
    view.verify(7)?;
    let middle = view.part(4 * page_size(), 4 * page_size());
    middle.replace()?;
    check_eq!(middle.load(0), 0, "fresh memory over an attachment");
    middle.fill(9);
    middle.verify(9)?;
    check_eq!(view.load(0), mix(7, 0), "before it");
    check_eq!(
        view.load(8 * page_size()),
        mix(7, 8 * page_size()),
        "behind it"
    );
    // The owner's own memory was not touched by what was stored over the attachment.
    attach(&device, apid, 0, size())?.verify(7)?;
    owner.dismiss()
}

pub(super) fn mremap_of_attachment() -> Outcome {
    let owner = owner(8, size())?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    let view = attach(&device, apid, 0, size())?;
    view.verify(8)?;
    let elsewhere = Area::new(size())?;
    // Allowed or refused: what is reachable afterwards shows the owner's bytes, and growing shows nothing beyond the
    // segment.
    let moved = view.remap(
        size(),
        libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        Some(&elsewhere),
    );
    match &moved {
        Ok(moved) => moved.verify(8)?,
        Err(_) => view.verify(8)?,
    }
    let now = moved.unwrap_or(view);
    check!(
        now.remap(2 * size(), libc::MREMAP_MAYMOVE, None).is_err(),
        "an attachment grew by mremap"
    );
    now.verify(8)?;
    if let Ok(shrunk) = now.remap(size() / 2, 0, None) {
        check_eq!(shrunk.load(0), mix(8, 0), "a shrunk attachment");
    }
    owner.dismiss()
}

pub(super) fn detach() -> Outcome {
    let owner = owner(9, size())?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    let view = attach(&device, apid, 0, size())?;
    view.verify(9)?;
    // By an address in the middle, as by the first.
    device::detach(&device, &view.part(4 * page_size(), page_size())).at("DETACH in the middle")?;
    check_eq!(view.try_load(0), Err(SIGSEGV), "a load after DETACH");
    device::detach(&device, &view).at("DETACH twice, where nothing is")?;
    let own = Area::new(size())?;
    own.fill(1);
    refused(
        device::detach(&device, &own),
        &[EINVAL, EACCES],
        "DETACH of ordinary memory",
    )?;
    own.verify(1)?;
    // An attachment keeps its permit's memory after RELEASE or loses it, but DETACH or munmap of it is harmless.
    let view = attach(&device, apid, 0, size())?;
    device.release(apid).at("RELEASE")?;
    let loaded = view.try_load(0);
    check!(
        matches!(loaded, Ok(word) if word == mix(9, 0)) || matches!(loaded, Err(SIGBUS | SIGSEGV)),
        "a load after RELEASE: {loaded:?}"
    );
    let _ = device::detach(&device, &view);
    owner.dismiss()
}

pub(super) fn attach_at_an_address() -> Outcome {
    let owner = owner(10, size())?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    let place = Area::new(size())?;
    place.unmap()?;
    let view = device::attach_over(&device, apid, 0, &place).at("ATTACH at an address")?;
    check_eq!(view.base(), place.base(), "address");
    view.verify(10)?;
    refused(
        device::attach_over(&device, apid, 0, &view),
        &[EINVAL, EEXIST, libc::EBUSY, libc::ENOMEM],
        "ATTACH over an attachment",
    )?;
    view.verify(10)?;
    owner.dismiss()
}

pub(super) fn many_attachments() -> Outcome {
    let owner = owner(11, size())?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    let mut views = Vec::new();
    for _ in 0..200 {
        let view = attach(&device, apid, 0, size())?;
        view.verify_marks(11)?;
        views.push(view);
    }
    // A store through one is seen through all.
    views[17].store(8, 99);
    for view in &views {
        check_eq!(view.load(8), 99, "the same memory");
    }
    for view in views.iter().step_by(2) {
        device::detach(&device, view).at("DETACH")?;
    }
    for view in views.iter().skip(1).step_by(2) {
        check_eq!(
            view.load(8),
            99,
            "an attachment whose neighbour was detached"
        );
    }
    owner.dismiss()
}

pub(super) fn importer_of_importer() -> Outcome {
    let first = owner(12, size())?;
    let segid = first.link.receive()?;
    let second = peer(move |link: &Link| {
        let device = device::xpmem()?;
        let view = attach_all(&device, segid, size())?;
        view.verify(12)?;
        // Another's memory cannot be granted by itself; within all that a process has it is a hole or the first
        // owner's.
        let alone = device::try_make(&device, view.base(), size() as u64, 0o600);
        if let Err(error) = &alone {
            check_eq!(
                error.raw_os_error(),
                Some(libc::EOPNOTSUPP),
                "MAKE of an attachment"
            );
        }
        let whole = device::try_make(&device, 0, XPMEM_MAXADDR_SIZE, 0o600).at("MAKE of all")?;
        link.send(whole as u64)?;
        link.send(alone.unwrap_or_default() as u64)?;
        link.send(view.base() as u64)?;
        link.receive().map(|_| ())
    })?;
    let device = device::xpmem()?;
    let (whole, alone) = (second.link.receive()?, second.link.receive()?);
    let base = second.link.receive()? as usize;
    for (segid, offset) in [(whole, base), (alone, 0)] {
        let Ok(apid) = device.get(segid as i64, XPMEM_RDWR) else {
            check_eq!(segid, 0, "a segment without access");
            continue;
        };
        let view = attach(&device, apid, offset, size())?;
        for page in 0..view.pages() {
            let found = view.try_load(page * page_size());
            let right = [Ok(mix(12, page * page_size())), Err(SIGBUS)];
            check!(right.contains(&found), "page {page}: {found:?}");
        }
        let _ = view.try_store(0, 1);
    }
    second.dismiss()?;
    first.dismiss()
}

pub(super) fn both_ways() -> Outcome {
    let own = Area::new(size())?;
    own.fill(13);
    let device = device::xpmem()?;
    let segid = make(&device, &own, 0o600)?;
    let other = peer(move |link: &Link| {
        let area = Area::new(size())?;
        area.fill(14);
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        let view = attach_all(&device, segid as u64, size())?;
        view.verify(13)?;
        view.store(0, 1400);
        link.turn()?;
        check_eq!(area.load(0), 1300, "what the other wrote");
        link.turn()
    })?;
    let view = attach_all(&device, other.link.receive()?, size())?;
    view.verify(14)?;
    view.store(0, 1300);
    other.link.receive()?;
    check_eq!(own.load(0), 1400, "what the other wrote");
    other.link.turn()?;
    other.link.send(0)?;
    // To oneself, too.
    let mine = attach_all(&device, segid as u64, size())?;
    check_eq!(mine.load(0), 1400, "an attachment of one's own memory");
    mine.store(0, 1);
    check_eq!(own.load(0), 1, "a store through it");
    other.join()
}

pub(super) fn state_belongs_to_the_file() -> Outcome {
    let area = Area::new(size())?;
    area.fill(15);
    let device = device::xpmem()?;
    let segid = make(&device, &area, 0o600)?;
    // A child has the descriptor. It cannot use it; its end, and its closing, end nothing of the parent's.
    peer(|_| {
        refused(
            device.remove(segid),
            &[XPMEM_ERRNO_NOPROC],
            "REMOVE by a forked child",
        )?;
        let area = Area::new(page_size())?;
        let made = device::try_make(&device, area.base(), page_size() as u64, 0o600);
        refused(made, &[XPMEM_ERRNO_NOPROC], "MAKE by a forked child")?;
        let again = device.as_fd().try_clone_to_owned().at("dup")?;
        drop(again);
        Ok(())
    })?
    .join()?;
    let child = peer(move |_| {
        let device = device::xpmem()?;
        attach_all(&device, segid as u64, size())?.verify(15)
    })?;
    child.join()?;
    // A second file of the same process is a second state.
    let second = device::xpmem()?;
    let apid = get(&second, segid as u64)?;
    refused(
        device.release(apid),
        &[ENOENT],
        "RELEASE through another file",
    )?;
    drop(second);
    attach_all(&device, segid as u64, size())?.verify(15)
}

pub(super) fn closing_ends_all() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(16);
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        link.receive()?;
        drop(device);
        link.turn()
    })?;
    let device = device::xpmem()?;
    let segid = owner.link.receive()?;
    let view = attach_all(&device, segid, size())?;
    view.verify(16)?;
    owner.link.turn()?;
    refused(
        device.get(segid as i64, XPMEM_RDWR),
        &[EINVAL, ENOENT],
        "GET after the owner closed",
    )?;
    check_eq!(
        view.try_load(0),
        Err(SIGBUS),
        "a load after the owner closed"
    );
    owner.dismiss()
}
