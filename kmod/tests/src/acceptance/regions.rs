// SPDX-License-Identifier: MIT OR Apache-2.0
//! The KNEM interface, synchronous.

use knem_sys::{
    KNEM_ABI_VERSION, KNEM_FLAG_ANY_USER_ACCESS, KNEM_FLAG_SINGLEUSE, KNEM_STATUS_FAILED,
    KNEM_STATUS_SUCCESS, knem_cmd_copy, knem_cmd_copy_bounded, knem_cmd_inline_copy,
    knem_cmd_param_iovec,
};
use libc::{EACCES, EFAULT, EINVAL, ENOENT, ENOMEM, EPERM};

use crate::device::{self, Inline, knem, region, try_region, vector};
use crate::mem::{Area, HUGE, READ, WRITE, mix, page_size};
use crate::outcome::{At, Outcome, check, check_eq, refused};
use crate::peer::{Link, Peer, peer};
use crate::system::{self, OpenToAll};
use crate::{trace, uffd};

fn size() -> usize {
    40 * page_size()
}
const SUCCESS: u32 = KNEM_STATUS_SUCCESS as u32;
const FAILED: u32 = KNEM_STATUS_FAILED as u32;
/// What a cookie that names nothing, or nothing any more, is answered with.
const UNKNOWN: &[i32] = &[EINVAL, ENOENT];
const DENIED: &[i32] = &[EACCES, EPERM];

/// A process that makes a region of filled memory, and looks at its end what is in it.
fn owner(protection: i32, flags: u32, expected: u64) -> Outcome<(Peer, u64)> {
    let owner = peer(move |link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        let device = knem()?;
        link.send(region(&device, &area, protection, flags)?)?;
        link.receive()?;
        area.verify(expected)
    })?;
    let cookie = owner.link.receive()?;
    Ok((owner, cookie))
}

/// Synchronous, and successful.
fn run(inline: Inline, device: &knem_sys::Device, local: &Area) -> Outcome {
    let status = inline
        .run(device, &[vector(local)])
        .at("INLINE_COPY_BOUNDED")?;
    check_eq!(status, SUCCESS, "status of INLINE_COPY_BOUNDED");
    Ok(())
}

pub(super) fn info() -> Outcome {
    let info = knem()?.info().at("GET_INFO")?;
    check_eq!(info.abi, KNEM_ABI_VERSION, "ABI");
    check_eq!(
        info.features & !knem_sys::KNEM_FEATURE_DMA,
        0,
        "unknown features"
    );
    Ok(())
}

pub(super) fn read_and_write() -> Outcome {
    let (owner, cookie) = owner(READ | WRITE, 0, 2)?;
    let device = knem()?;
    let local = Area::new(size())?;
    run(Inline::read(cookie, size()), &device, &local)?;
    local.verify(1)?;
    local.fill(2);
    run(Inline::write(cookie, size()), &device, &local)?;
    // The form without a bound.
    let back = Area::new(size())?;
    let list = [vector(&back)];
    let mut command = knem_cmd_inline_copy {
        local_iovec_array: list.as_ptr().expose_provenance() as u64,
        local_iovec_nr: 1,
        remote_cookie: cookie,
        current_status: u32::MAX,
        ..Default::default()
    };
    device::inline_copy(&device, &mut command).at("INLINE_COPY")?;
    check_eq!(command.current_status, SUCCESS, "status of INLINE_COPY");
    back.verify(2)?;
    owner.dismiss()
}

pub(super) fn vectors() -> Outcome {
    // Pieces of odd lengths at odd places, on both sides.
    let whole = Area::new(size())?;
    whole.fill(3);
    let pieces = |area: &Area, lengths: &[usize]| {
        let mut at = 24;
        let list: Vec<knem_cmd_param_iovec> = lengths
            .iter()
            .map(|length| {
                let piece = knem_cmd_param_iovec {
                    base: (area.base() + at) as u64,
                    len: *length as u64,
                };
                at += length + 16;
                piece
            })
            .collect();
        list
    };
    let remote = pieces(
        &whole,
        &[8, 4096, 0, 16, 12_280, 8, 20_000, 3 * page_size()],
    );
    let total: u64 = remote.iter().map(|piece| piece.len).sum();
    let owner = knem()?;
    let cookie = try_region(&owner, &remote, READ | WRITE, 0).at("CREATE_REGION of pieces")?;
    let importer = peer(|_| {
        let device = knem()?;
        let local = Area::new(size())?;
        let first = total as usize / 2 / 8 * 8;
        let list = pieces(&local, &[first, 8, total as usize - first - 8]);
        let inline = Inline::read(cookie, total as usize);
        check_eq!(
            inline.run(&device, &list).at("INLINE_COPY of pieces")?,
            SUCCESS,
            "status"
        );
        // Byte by byte, in both lists' order.
        let mut from = remote.iter().flat_map(|piece| {
            (0..piece.len / 8).map(move |word| (piece.base + word * 8) as usize - whole.base())
        });
        for piece in &list {
            for word in 0..piece.len as usize / 8 {
                let at = piece.base as usize - local.base() + word * 8;
                let source = from.next().unwrap_or_default();
                check_eq!(
                    local.load(at),
                    mix(3, source),
                    "word at {at:#x} from {source:#x}"
                );
            }
        }
        Ok(())
    })?;
    importer.join()?;
    whole.verify(3)
}

pub(super) fn region_to_region() -> Outcome {
    let (first, from) = owner(READ, 0, 1)?;
    let (from_dev, own) = (knem()?, Area::new(size())?);
    let to = region(&from_dev, &own, WRITE, 0)?;
    let mut command = knem_cmd_copy {
        src_cookie: from,
        dst_cookie: to,
        current_status: u32::MAX,
        ..Default::default()
    };
    from_dev.copy(&mut command).at("COPY")?;
    check_eq!(command.current_status, SUCCESS, "status of COPY");
    own.verify(1)?;
    first.dismiss()
}

pub(super) fn third_process() -> Outcome {
    let (first, from) = owner(READ, 0, 1)?;
    let second = peer(|link: &Link| {
        let area = Area::huge(HUGE)?;
        let device = knem()?;
        link.send(region(&device, &area, WRITE, 0)?)?;
        link.receive()?;
        area.part(0, size()).verify(1)
    })?;
    let to = second.link.receive()?;
    let device = knem()?;
    let mut command = knem_cmd_copy_bounded {
        src_cookie: from,
        dst_cookie: to,
        length: size() as u64,
        current_status: u32::MAX,
        ..Default::default()
    };
    device
        .copy_bounded(&mut command)
        .at("COPY_BOUNDED between others")?;
    check_eq!(command.current_status, SUCCESS, "status of COPY_BOUNDED");
    second.dismiss()?;
    first.dismiss()
}

pub(super) fn bounded() -> Outcome {
    let (owner, cookie) = owner(READ | WRITE, 0, 1)?;
    let device = knem()?;
    for (offset, length) in [
        (0, 8),
        (8, 8),
        (4088, 4104),
        (page_size(), 5 * page_size()),
        (size() - 8, 8),
        (16, size() - 16),
    ] {
        let local = Area::new(size())?;
        let inline = Inline {
            offset: offset as u64,
            ..Inline::read(cookie, length)
        };
        run(inline, &device, &local)?;
        for at in (0..length).step_by(8) {
            check_eq!(
                local.load(at),
                mix(1, offset + at),
                "word {at} of {length} from {offset}"
            );
        }
        if length < size() {
            check_eq!(local.load(length), 0, "what follows {length} bytes");
        }
    }
    // Beyond the end there is nothing to read, which is no failure.
    let local = Area::new(size())?;
    local.fill(7);
    for offset in [size() as u64, size() as u64 + 1, u64::MAX, u64::MAX - 7] {
        let inline = Inline {
            offset,
            ..Inline::read(cookie, 8)
        };
        run(inline, &device, &local)?;
        local.verify(7)?;
    }
    // More than there is: what there is.
    let inline = Inline {
        offset: 8,
        length: u64::MAX - 4,
        ..Inline::read(cookie, 8)
    };
    run(inline, &device, &local)?;
    for at in (0..size() - 8).step_by(8) {
        check_eq!(local.load(at), mix(1, at + 8), "word {at} of all");
    }
    check_eq!(local.load(size() - 8), mix(7, size() - 8), "what follows");
    owner.dismiss()
}

pub(super) fn direction() -> Outcome {
    let device = knem()?;
    let local = Area::new(size())?;
    local.fill(5);
    let (reader, readable) = owner(READ, 0, 1)?;
    refused(
        Inline::write(readable, size()).run(&device, &[vector(&local)]),
        DENIED,
        "writing to a region for reading",
    )?;
    let (writer, writable) = owner(WRITE, 0, 1)?;
    refused(
        Inline::read(writable, size()).run(&device, &[vector(&local)]),
        DENIED,
        "reading from a region for writing",
    )?;
    let mut command = knem_cmd_copy {
        src_cookie: writable,
        dst_cookie: readable,
        ..Default::default()
    };
    refused(
        device.copy(&mut command),
        DENIED,
        "COPY against both directions",
    )?;
    local.verify(5)?;
    reader.dismiss()?;
    writer.dismiss()
}

pub(super) fn any_user() -> Outcome {
    let _open = OpenToAll::device("/dev/knem")?;
    let (private, closed) = owner(READ | WRITE, 0, 1)?;
    let (public, open) = owner(READ, KNEM_FLAG_ANY_USER_ACCESS, 1)?;
    for namespace in [false, true] {
        peer(move |_| {
            system::become_user(1001)?;
            if namespace {
                system::become_namespace_root()?;
            }
            let device = knem()?;
            let local = Area::new(size())?;
            refused(
                Inline::read(closed, size()).run(&device, &[vector(&local)]),
                &[EACCES, EPERM, EINVAL],
                "another user reads a region",
            )?;
            refused(
                Inline::write(closed, size()).run(&device, &[vector(&local)]),
                &[EACCES, EPERM, EINVAL],
                "another user writes a region",
            )?;
            run(Inline::read(open, size()), &device, &local)?;
            local.verify(1)?;
            refused(
                Inline::write(open, size()).run(&device, &[vector(&local)]),
                DENIED,
                "another user writes a region for reading",
            )?;
            check!(
                device.destroy_region(open).is_err(),
                "another user destroyed a region"
            );
            Ok(())
        })?
        .join()?;
    }
    private.dismiss()?;
    public.dismiss()
}

pub(super) fn single_use() -> Outcome {
    let (owner, cookie) = owner(READ, KNEM_FLAG_SINGLEUSE, 1)?;
    let device = knem()?;
    let local = Area::new(size())?;
    run(Inline::read(cookie, size()), &device, &local)?;
    local.verify(1)?;
    refused(
        Inline::read(cookie, size()).run(&device, &[vector(&local)]),
        UNKNOWN,
        "a second use",
    )?;
    owner.dismiss()
}

/// A region for one use is both sides of one copy, which is its one use.
pub(super) fn single_use_within_itself() -> Outcome {
    let device = knem()?;
    let area = Area::new(size())?;
    area.fill(1);
    let half = size() / 2;
    let cookie = region(&device, &area, READ | WRITE, KNEM_FLAG_SINGLEUSE)?;
    let copy = || knem_cmd_copy_bounded {
        src_cookie: cookie,
        dst_cookie: cookie,
        dst_offset: half as u64,
        length: half as u64,
        current_status: u32::MAX,
        ..Default::default()
    };
    let mut command = copy();
    device
        .copy_bounded(&mut command)
        .at("COPY_BOUNDED within a region for one use")?;
    check_eq!(command.current_status, SUCCESS, "status of COPY_BOUNDED");
    for offset in (0..half).step_by(8) {
        check_eq!(area.load(half + offset), mix(1, offset), "a word");
    }
    refused(device.copy_bounded(&mut copy()), UNKNOWN, "a second use")
}

pub(super) fn bad_arguments() -> Outcome {
    let device = knem()?;
    let area = Area::new(size())?;
    area.fill(1);
    let one = |base: u64, len: u64| [knem_cmd_param_iovec { base, len }];
    let base = area.base() as u64;
    let gone = Area::new(size())?;
    gone.unmap()?;
    for (memory, what) in [
        (one(gone.base() as u64, page_size() as u64), "no memory"),
        (one(base, u64::MAX), "a length of everything"),
        (one(base, u64::MAX - base + 1), "a length that overflows"),
        (one(!4095, 4096), "addresses of the kernel"),
        (one(0xffff_8880_0000_0000, 4096), "addresses of the kernel"),
    ] {
        refused(
            try_region(&device, &memory, READ, 0),
            &[EFAULT, EINVAL, ENOMEM, libc::EOVERFLOW],
            format_args!("CREATE_REGION of {what}"),
        )?;
    }
    area.part(page_size(), page_size())
        .protect(READ)
        .at("mprotect")?;
    refused(
        try_region(&device, &[vector(&area)], WRITE, 0),
        &[EFAULT, EACCES],
        "CREATE_REGION for writing of read-only memory",
    )?;
    area.part(page_size(), page_size())
        .protect(READ | WRITE)
        .at("mprotect")?;
    let command = |array: u64, count: u32| {
        let mut command = knem_sys::knem_cmd_create_region {
            iovec_array: array,
            iovec_nr: count,
            protection: READ as u32,
            ..Default::default()
        };
        device::create_region(&device, &mut command)
    };
    let list = vec![vector(&area.part(0, page_size())); 16];
    let array = list.as_ptr().expose_provenance() as u64;
    command(array, 16).at("CREATE_REGION of 16 pieces")?;
    for (array, count) in [
        (8, 1),
        (array, u32::MAX),
        (u64::MAX - 8, 1),
        (0, 1),
        (0xffff_8880_0000_0000, 4),
    ] {
        refused(
            command(array, count),
            &[EFAULT, EINVAL, ENOMEM, libc::E2BIG],
            format_args!("CREATE_REGION with {count} pieces at {array:#x}"),
        )?;
    }
    let cookie = region(&device, &area, READ, 0)?;
    refused(
        Inline::read(cookie ^ 1, 8).run(&device, &[vector(&area)]),
        UNKNOWN,
        "an unknown cookie",
    )?;
    refused(
        Inline::read(0, 8).run(&device, &[vector(&area)]),
        UNKNOWN,
        "cookie 0",
    )?;
    refused(
        device.destroy_region(cookie ^ 2),
        UNKNOWN,
        "DESTROY_REGION of an unknown cookie",
    )?;
    let missing = Inline::read(cookie, page_size()).run(&device, &[vector(&gone)]);
    check!(
        matches!(&missing, Ok(FAILED))
            || missing
                .as_ref()
                .is_err_and(|error| error.raw_os_error() == Some(EFAULT)),
        "a copy to no memory: {missing:?}"
    );
    for number in [
        0x10u64, 0x11, 0x20, 0x21, 0x22, 0x30, 0x31, 0x32, 0x33, 0x34, 0x35,
    ] {
        use std::os::fd::{AsFd, AsRawFd};
        let fd = device.as_fd().as_raw_fd();
        // Another size or direction is another command.
        refused(
            device::raw_ioctl(fd, u64::from(b'K') << 8 | number, 8),
            &[libc::ENOTTY, EINVAL],
            format_args!("command {number:#x} without its size"),
        )?;
    }
    area.verify(1)
}

pub(super) fn cookies_are_not_guessed() -> Outcome {
    let device = knem()?;
    let area = Area::new(page_size())?;
    let mut cookies = Vec::new();
    for _ in 0..32 {
        cookies.push(region(&device, &area, READ, 0)?);
    }
    // Of another process: it knows one of its own, and tries what lies near.
    peer(|_| {
        let device = knem()?;
        let local = Area::new(page_size())?;
        let own = region(&device, &local, READ, 0)?;
        let mut reached = 0;
        for distance in 1..2000u64 {
            for base in [own, 0, 1 << 32, 1 << 31, 1 << 33] {
                for guess in [
                    base.wrapping_add(distance),
                    base ^ distance,
                    base ^ (distance << 32),
                ] {
                    let known = guess == own || cookies.contains(&guess);
                    if !known
                        && Inline::read(guess, 8)
                            .run(&device, &[vector(&local)])
                            .is_ok()
                    {
                        reached += 1;
                    }
                }
            }
        }
        check_eq!(reached, 0, "regions reached by guessing");
        Ok(())
    })?
    .join()
}

pub(super) fn legacy() -> Outcome {
    let sender = knem()?;
    let area = Area::new(size())?;
    area.fill(1);
    let cookie = device::init_send(&sender, &[vector(&area)]).at("INIT_SEND")?;
    peer(|_| {
        let device = knem()?;
        let local = Area::new(size())?;
        let status = device::sync_recv(&device, &[vector(&local)], cookie).at("SYNC_RECV")?;
        check_eq!(status, KNEM_STATUS_SUCCESS, "status of SYNC_RECV");
        local.verify(1)?;
        // What was sent is sent once.
        refused(
            device::sync_recv(&device, &[vector(&local)], cookie),
            UNKNOWN,
            "SYNC_RECV twice",
        )
    })?
    .join()?;
    let cookie = device::init_send(&sender, &[vector(&area)]).at("INIT_SEND")?;
    peer(|_| {
        let device = knem()?;
        let status = device.map_status(4).at("mmap of the status array")?;
        let local = Area::new(size())?;
        status.set(2, knem_sys::KNEM_STATUS_PENDING);
        device::async_recv(&device, &[vector(&local)], cookie, 2).at("INIT_ASYNC_RECV")?;
        let done = system::until(crate::peer::PATIENCE, || {
            status.get(2) != knem_sys::KNEM_STATUS_PENDING
        });
        check!(done, "INIT_ASYNC_RECV stays pending");
        check_eq!(
            status.get(2),
            KNEM_STATUS_SUCCESS,
            "status of INIT_ASYNC_RECV"
        );
        local.verify(1)
    })?
    .join()
}

pub(super) fn after_fork() -> Outcome {
    let device = knem()?;
    let area = Area::new(size())?;
    area.fill(1);
    let cookie = region(&device, &area, READ | WRITE, 0)?;
    let child = peer(|link: &Link| {
        link.turn()?;
        area.verify(1)
    })?;
    child.link.receive()?;
    // The region stays the parent's memory, whichever process writes first.
    area.store(0, 7);
    peer(|_| {
        let device = knem()?;
        let local = Area::new(size())?;
        run(Inline::read(cookie, size()), &device, &local)?;
        check_eq!(local.load(0), 7, "what the owner stored after the fork");
        local.fill(1);
        local.store(page_size(), 8);
        run(Inline::write(cookie, size()), &device, &local)
    })?
    .join()?;
    check_eq!(
        area.load(page_size()),
        8,
        "what another process wrote to the region after the fork"
    );
    check_eq!(
        area.load(0),
        mix(1, 0),
        "what another process wrote to the region after the fork"
    );
    child.dismiss()
}

pub(super) fn after_exit() -> Outcome {
    let device = knem()?;
    let local = Area::new(size())?;
    local.fill(5);
    for by_force in [false, true] {
        let (owner, cookie) = owner(READ | WRITE, 0, 1)?;
        if by_force {
            owner.kill()?;
        } else {
            owner.dismiss()?;
        }
        refused(
            Inline::read(cookie, size()).run(&device, &[vector(&local)]),
            UNKNOWN,
            "a region after its owner's end",
        )?;
    }
    local.verify(5)
}

/// A process that makes regions keeps none of its faults waiting. The mmap lock is taken for writing for the first one
/// at most, whichever way a file's process makes its next.
pub(super) fn map_lock_is_left_alone() -> Outcome {
    let device = knem()?;
    let area = Area::new(size())?;
    let vectors = [vector(&area)];
    let make_one = || -> Outcome {
        let cookie = try_region(&device, &vectors, READ | WRITE, 0).at("CREATE_REGION")?;
        device.destroy_region(cookie).at("DESTROY_REGION")
    };
    make_one()?;
    let locks = trace::Events::of_this_thread("mmap_lock/mmap_lock_start_locking", "write == 1")?;
    let own = Area::new(page_size())?;
    check!(locks.count()? > 0, "an mmap takes no lock: nothing is seen");
    locks.forget()?;
    for _ in 0..20 {
        make_one()?;
    }
    check_eq!(locks.count()?, 0, "mmap locks for writing, of 20 regions");
    own.unmap()
}

pub(super) fn destroy() -> Outcome {
    let device = knem()?;
    let area = Area::new(size())?;
    area.fill(1);
    let cookie = region(&device, &area, READ, 0)?;
    let pinned = device::stats()?;
    check_eq!(
        (pinned.regions, pinned.pinned_pages),
        (1, 40),
        "regions and pinned pages"
    );
    peer(move |_| {
        let other = knem()?;
        check!(
            other.destroy_region(cookie).is_err(),
            "another process destroyed a region"
        );
        Ok(())
    })?
    .join()?;
    device.destroy_region(cookie).at("DESTROY_REGION")?;
    refused(
        device.destroy_region(cookie),
        UNKNOWN,
        "DESTROY_REGION twice",
    )?;
    let local = Area::new(size())?;
    refused(
        Inline::read(cookie, 8).run(&device, &[vector(&local)]),
        UNKNOWN,
        "a destroyed region",
    )?;
    let stats = device::stats()?;
    check_eq!(
        (stats.regions, stats.pinned_pages),
        (0, 0),
        "regions and pinned pages"
    );
    Ok(())
}

/// How an owner takes a region back while others copy to or from it.
#[derive(Clone, Copy)]
enum TakenBack {
    Destroyed,
    Closed,
    /// The copy is its one use.
    DestroyedInUse,
}

/// Once the owner has taken a region back, no byte of it moves, and it is not pinned. That holds also while the caller
/// of a copy waits for its own memory.
pub(super) fn destroy_stops_a_copy() -> Outcome {
    use TakenBack::{Closed, Destroyed, DestroyedInUse};
    let area = Area::new(size())?;
    for (taken_back, write) in [
        (Destroyed, false),
        (Destroyed, true),
        (Closed, false),
        (DestroyedInUse, false),
    ] {
        area.fill(9);
        // Before the owner's file is there, of which it has nothing then.
        let caller = peer(|link: &Link| {
            let cookie = link.receive()?;
            let local = Area::new(size())?;
            let there = 2 * page_size();
            let blocked = local.part(there, size() - there);
            local.part(0, there).fill(1);
            let fd = uffd::block(&blocked)?;
            let device = knem()?;
            link.send(0)?;
            std::thread::scope(|scope| {
                // Told by the owner, afterwards, to let the memory be there.
                scope.spawn(move || {
                    let _ = link.receive();
                    drop(fd);
                });
                let inline = Inline {
                    write,
                    ..Inline::read(cookie, size())
                };
                let status = inline
                    .run(&device, &[vector(&local)])
                    .at("INLINE_COPY_BOUNDED")?;
                check_eq!(status, FAILED, "status of a copy of what was taken back");
                for offset in (0..blocked.length()).step_by(8) {
                    check_eq!(blocked.load(offset), 0, "a byte that came afterwards");
                }
                Ok(())
            })
        })?;
        let device = knem()?;
        let flags = match taken_back {
            DestroyedInUse => KNEM_FLAG_SINGLEUSE,
            Destroyed | Closed => 0,
        };
        let cookie = region(&device, &area, READ | WRITE, flags)?;
        caller.link.send(cookie)?;
        caller.link.receive()?;
        if let Err(fault) = system::until_asleep(caller.pid()) {
            return Err(caller.join().err().unwrap_or(fault));
        }
        match taken_back {
            Destroyed | DestroyedInUse => {
                device.destroy_region(cookie).at("DESTROY_REGION")?;
            }
            Closed => drop(device),
        }
        let pinned = device::stats()?.pinned_pages;
        area.fill(5);
        caller.dismiss()?;
        area.verify(5)?;
        check_eq!(pinned, 0, "pages that are pinned afterwards");
    }
    Ok(())
}
