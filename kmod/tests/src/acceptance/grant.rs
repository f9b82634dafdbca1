// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory granted as a descriptor.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use libc::{E2BIG, EACCES, EBADF, EFAULT, EINVAL, ENOTTY, ENXIO, EPERM, SIGSEGV};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use onecopy_sys::{
    CopyEnd, ONECOPY_SEGMENT_DEAD, ONECOPY_SEGMENT_MINE, ONECOPY_SEGMENT_WRITE, ONECOPY_WHOLE,
    Segment,
};

use crate::device::{self, export, map};
use crate::mem::{Area, READ, WRITE, page_size, try_map};
use crate::outcome::{At, Outcome, check, check_eq, refused};
use crate::peer::{Link, Peer, peer};
use crate::system;

fn size() -> usize {
    16 * page_size()
}
const ALICE: u32 = 1001;

/// A process that takes a segment as another user and uses it; this process's area is what it was granted.
fn receiver(area: &Area, write: bool, namespace: bool, body: fn(&Segment) -> Outcome) -> Outcome {
    let segment = export(area, write)?;
    let other = peer(move |link: &Link| {
        system::become_user(ALICE)?;
        if namespace {
            system::become_namespace_root()?;
        }
        body(&device::segment(link.take()?))
    })?;
    other.link.give(segment.as_fd())?;
    other.join()
}

fn use_it(segment: &Segment) -> Outcome {
    // The device itself is closed to this user.
    refused(
        onecopy_sys::Device::open(),
        &[EACCES],
        "another user opens the device",
    )?;
    let view = map(segment, size(), true)?;
    view.verify(1)?;
    view.fill(2);
    Ok(())
}

pub(super) fn to_another_user() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    receiver(&area, true, false, use_it)?;
    area.verify(2)
}

pub(super) fn to_another_namespace() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    receiver(&area, true, true, use_it)?;
    area.verify(2)
}

/// Every way to a writable mapping of a read-only grant.
fn try_to_write(segment: &Segment) -> Outcome {
    refused(
        segment.map(0, size(), true),
        &[EACCES, EPERM],
        "mmap for writing",
    )?;
    let view = map(segment, size(), false)?;
    view.verify(1)?;
    check_eq!(
        view.try_store(0, 5),
        Err(SIGSEGV),
        "a store to a read-only mapping"
    );
    refused(
        view.protect(READ | WRITE),
        &[EACCES, EPERM],
        "mprotect for writing",
    )?;
    check_eq!(view.try_store(0, 5), Err(SIGSEGV), "a store after mprotect");
    let place = Area::new(size())?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if let Ok(moved) = view.remap(size(), flags, Some(&place)) {
        refused(
            moved.protect(READ | WRITE),
            &[EACCES, EPERM],
            "mprotect after mremap",
        )?;
        check_eq!(moved.try_store(0, 5), Err(SIGSEGV), "a store after mremap");
    }
    let view = map(segment, size(), false)?;
    // Through the back door that a debugger uses.
    let memory = OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .at("/proc/self/mem")?;
    check!(
        memory.write_at(&[5; 8], view.base() as u64).is_err(),
        "/proc/self/mem wrote"
    );
    view.verify(1)?;
    // A private mapping, if there may be one, writes to nothing that is the owner's.
    for protection in [READ, READ | WRITE] {
        if let Ok(private) = try_map(
            0,
            size(),
            protection,
            libc::MAP_PRIVATE,
            Some(segment.as_fd()),
            0,
        ) {
            let _ = private.protect(READ | WRITE);
            let _ = private.try_store(0, 6);
        }
    }
    // Another descriptor of the same grant.
    let copy = Segment::from(segment.as_fd().try_clone_to_owned().at("dup")?);
    refused(
        copy.map(0, size(), true),
        &[EACCES, EPERM],
        "mmap of a duplicate for writing",
    )?;
    refused(
        segment.restrict(true),
        &[EACCES, EPERM],
        "RESTRICT to more rights",
    )?;
    check!(
        fcntl(segment.as_fd(), FcntlArg::F_SETFL(OFlag::O_RDWR)).is_err()
            || segment.map(0, size(), true).is_err(),
        "F_SETFL gave the right to write"
    );
    let path = format!("/proc/self/fd/{}", segment.as_fd().as_raw_fd());
    if let Ok(again) = OpenOptions::new().read(true).write(true).open(&path) {
        let again = Segment::from(std::os::fd::OwnedFd::from(again));
        check!(
            again.map(0, size(), true).is_err(),
            "opening {path} gave the right to write"
        );
    }
    let weaker = segment.restrict(false).at("RESTRICT to the same rights")?;
    refused(
        weaker.map(0, size(), true),
        &[EACCES, EPERM],
        "mmap of a restricted one for writing",
    )?;
    view.verify(1)
}

pub(super) fn read_only_stays_read_only() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    receiver(&area, false, false, try_to_write)?;
    area.verify(1)?;
    // Root has no more rights than its descriptor.
    let segment = export(&area, false)?;
    peer(|_| try_to_write(&segment))?.join()?;
    area.verify(1)?;
    // Nor has COPY.
    let own = Area::new(size())?;
    let device = device::onecopy()?;
    let from = CopyEnd::Own(own.base() as u64);
    let copied = device::copy(&device, from, CopyEnd::Segment(&segment, 0), size());
    refused(
        copied.result,
        &[EACCES, EPERM, EBADF],
        "COPY to a read-only grant",
    )?;
    check_eq!(copied.done, 0, "bytes copied");
    area.verify(1)
}

pub(super) fn restricted() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let segment = export(&area, true)?;
    let reader = segment.restrict(false).at("RESTRICT to reading")?;
    let writer = segment.restrict(true).at("RESTRICT to the same rights")?;
    peer(|_| try_to_write(&reader))?.join()?;
    area.verify(1)?;
    map(&writer, size(), true)?.fill(2);
    area.verify(2)?;
    // The same grant: a hole or an end is seen through all of its descriptors.
    segment.revoke().at("REVOKE")?;
    for other in [&reader, &writer] {
        let info = other.info().at("SEGMENT_INFO")?;
        check!(
            info.flags & ONECOPY_SEGMENT_DEAD != 0,
            "alive after REVOKE through another descriptor"
        );
    }
    Ok(())
}

pub(super) fn close_on_exec() -> Outcome {
    let area = Area::new(size())?;
    let segment = export(&area, true)?;
    let second = segment.restrict(false).at("RESTRICT")?;
    for fd in [segment.as_fd(), second.as_fd()] {
        let flags = fcntl(fd, FcntlArg::F_GETFD).at("F_GETFD")?;
        check_eq!(
            flags & FdFlag::FD_CLOEXEC.bits(),
            FdFlag::FD_CLOEXEC.bits(),
            "close-on-exec"
        );
    }
    Ok(())
}

pub(super) fn bad_structures() -> Outcome {
    let device = device::onecopy()?;
    let area = Area::new(size())?;
    let segment = export(&area, true)?;
    let scratch = Area::new(page_size())?;
    let on_device = device.as_fd().as_raw_fd();
    let on_segment = segment.as_fd().as_raw_fd();
    let commands = [
        (
            on_device,
            onecopy_sys::ONECOPY_IOC_INFO,
            size_of::<onecopy_sys::onecopy_info>(),
        ),
        (
            on_device,
            onecopy_sys::ONECOPY_IOC_EXPORT,
            size_of::<onecopy_sys::onecopy_export>(),
        ),
        (
            on_device,
            onecopy_sys::ONECOPY_IOC_PREFAULT,
            size_of::<onecopy_sys::onecopy_prefault>(),
        ),
        (
            on_device,
            onecopy_sys::ONECOPY_IOC_COPY,
            size_of::<onecopy_sys::onecopy_copy>(),
        ),
        (
            on_device,
            onecopy_sys::ONECOPY_IOC_STATS,
            size_of::<onecopy_sys::onecopy_stats>(),
        ),
        (
            on_segment,
            onecopy_sys::ONECOPY_IOC_SEGMENT_INFO,
            size_of::<onecopy_sys::onecopy_segment_info>(),
        ),
        (
            on_segment,
            onecopy_sys::ONECOPY_IOC_RESTRICT,
            size_of::<onecopy_sys::onecopy_restrict>(),
        ),
    ];
    for (fd, command, size) in commands {
        let call = |claimed: u64, tail: u64| {
            for word in 0..page_size() / 8 {
                scratch.store(word * 8, 0);
            }
            scratch.store(0, claimed);
            if tail != 0 {
                scratch.store(size.next_multiple_of(8), tail);
            }
            device::scratch_ioctl(fd, command, &scratch)
        };
        let what = |size: u64| format!("command {command:#x} of size {size}");
        refused(call(0, 0), &[EINVAL], what(0))?;
        refused(call(4, 0), &[EINVAL], what(4))?;
        refused(call(1 << 20, 0), &[E2BIG], what(1 << 20))?;
        // Unknown flags; INFO, STATS and SEGMENT_INFO have none to pass.
        if ![
            onecopy_sys::ONECOPY_IOC_INFO,
            onecopy_sys::ONECOPY_IOC_STATS,
            onecopy_sys::ONECOPY_IOC_SEGMENT_INFO,
        ]
        .contains(&command)
        {
            refused(
                call(size as u64 | 1 << 63, 0),
                &[EINVAL],
                format_args!("{command:#x} with unknown flags"),
            )?;
        }
        // A later version's structure: fine while what is new is zero.
        let longer = (size.next_multiple_of(8) + 8) as u64;
        refused(
            call(longer, 7),
            &[E2BIG],
            format_args!("{command:#x} with an unknown member"),
        )?;
        refused(
            device::raw_ioctl(fd, u64::from(command), 8),
            &[EFAULT],
            format_args!("{command:#x} with a bad pointer"),
        )?;
    }
    let longer = (size_of::<onecopy_sys::onecopy_info>() + 8) as u64;
    scratch.store(0, longer);
    for word in 1..32 {
        scratch.store(word * 8, 0);
    }
    device::scratch_ioctl(on_device, onecopy_sys::ONECOPY_IOC_INFO, &scratch)
        .at("INFO of a later version")?;
    for (fd, command) in [
        (on_device, 0xC1FFu64),
        (on_segment, 0xC1FF),
        (on_segment, 0xC101),
        (on_device, 0xC110),
    ] {
        refused(
            device::raw_ioctl(fd, command, 8),
            &[ENOTTY, EINVAL],
            format_args!("an unknown command {command:#x}"),
        )?;
    }
    let size = size() as u64;
    let bad = [
        (area.base() + 8, size),
        (area.base(), size + 8),
        (area.base(), 0),
        (area.base(), ONECOPY_WHOLE),
        (area.base(), !(page_size() as u64 - 1)),
        (usize::MAX & !(page_size() - 1), page_size() as u64),
    ];
    for (address, length) in bad {
        refused(
            device::try_export(address, length, true),
            &[EINVAL, EFAULT, libc::EOVERFLOW],
            format_args!("EXPORT of {length:#x} bytes at {address:#x}"),
        )?;
    }
    // Beyond the segment.
    for (offset, length) in [
        (0, 2 * area.length()),
        (size, page_size()),
        (u64::MAX >> 3 & !(page_size() as u64 - 1), page_size()),
        (1 << 62, 2 * page_size()),
    ] {
        refused(
            segment.map(offset, length, false),
            &[EINVAL, ENXIO, libc::EOVERFLOW, libc::ENOMEM],
            format_args!("mmap of {length:#x} bytes at {offset:#x}"),
        )?;
    }
    Ok(())
}

pub(super) fn segment_info() -> Outcome {
    let area = Area::new(size())?;
    let segment = export(&area, true)?;
    let info = segment.info().at("SEGMENT_INFO")?;
    check_eq!(info.address, area.base() as u64, "address");
    check_eq!(info.length, size() as u64, "length");
    check_eq!(
        info.flags,
        ONECOPY_SEGMENT_WRITE | ONECOPY_SEGMENT_MINE,
        "flags of the owner's"
    );
    let flags = segment
        .restrict(false)
        .at("RESTRICT")?
        .info()
        .at("SEGMENT_INFO")?
        .flags;
    check_eq!(flags, ONECOPY_SEGMENT_MINE, "flags of a restricted one");
    let other: Peer = peer(|_| {
        let flags = segment.info().at("SEGMENT_INFO")?.flags;
        check_eq!(flags, ONECOPY_SEGMENT_WRITE, "flags in another process");
        Ok(())
    })?;
    other.join()?;
    let device = device::onecopy()?;
    let info = device.info().at("INFO")?;
    check_eq!(info.abi, onecopy_sys::ONECOPY_ABI_VERSION, "ABI");
    let known = onecopy_sys::ONECOPY_FEATURE_GENERATION
        | onecopy_sys::ONECOPY_FEATURE_COPY
        | onecopy_sys::ONECOPY_FEATURE_PREFAULT;
    check_eq!(info.features & known, known, "features");
    check!(
        info.release.contains(&0) && info.release[0] != 0,
        "release {:?}",
        info.release
    );
    check!(
        info.window >= page_size() as u64 && info.window.is_multiple_of(page_size() as u64),
        "window {}",
        info.window
    );
    Ok(())
}

pub(super) fn descriptor_outlives_device() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    // `export` closed the device; a mapping outlives the descriptor.
    let segment = export(&area, true)?;
    let page = device::generation(&segment)?;
    let view = map(&segment, size(), true)?;
    drop(segment);
    view.verify(1)?;
    view.store(0, 3);
    check_eq!(area.load(0), 3, "a store");
    check_eq!(
        device::read(&page).state,
        onecopy_sys::ONECOPY_STATE_ALIVE,
        "state"
    );
    Ok(())
}
