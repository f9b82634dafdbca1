// SPDX-License-Identifier: MIT OR Apache-2.0
//! The KNEM interface, asynchronous: the worker, the status array, notifications.

use std::io::Read;
use std::os::fd::AsFd;
use std::time::Duration;

use knem_sys::{
    Device, KNEM_BIND_FLAG_CURRENT, KNEM_BIND_FLAG_CURRENT_REVERSED, KNEM_BIND_FLAG_CUSTOM,
    KNEM_FLAG_MEMCPYTHREAD, KNEM_FLAG_NOTIFY_FD, KNEM_STATUS_FAILED, KNEM_STATUS_PENDING,
    KNEM_STATUS_SUCCESS, StatusArray,
};
use libc::{EAGAIN, EBUSY, EINVAL};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;

use crate::device::{self, Inline, knem, region, vector};
use crate::mem::{Area, EXEC, HUGE, READ, WRITE, mix, page_size, try_map};
use crate::outcome::{At, Fault, Outcome, check, check_eq, refused};
use crate::peer::{Link, PATIENCE, Peer, fork_plain, peer, wait_for};
use crate::{system, uffd};

fn size() -> usize {
    40 * page_size()
}
const PENDING: u32 = KNEM_STATUS_PENDING as u32;
const SUCCESS: u32 = KNEM_STATUS_SUCCESS as u32;

/// A process with a region of filled memory.
fn owner(size: usize) -> Outcome<(Peer, u64)> {
    let owner = peer(move |link: &Link| {
        let area = Area::new(size)?;
        area.fill(1);
        let device = knem()?;
        link.send(region(&device, &area, READ | WRITE, 0)?)?;
        link.receive().map(|_| ())
    })?;
    let cookie = owner.link.receive()?;
    Ok((owner, cookie))
}

/// A copy by the worker, which reports in one byte of the array.
fn start(device: &Device, status: &StatusArray, inline: Inline, local: &Area) -> Outcome<u32> {
    status.set(inline.index as usize, KNEM_STATUS_PENDING);
    inline
        .run(device, &[vector(local)])
        .at("an asynchronous INLINE_COPY")
}

fn finish(status: &StatusArray, index: usize) -> Outcome {
    let done = system::until(PATIENCE, || status.get(index) != KNEM_STATUS_PENDING);
    check!(done, "a copy stays pending");
    check_eq!(status.get(index), KNEM_STATUS_SUCCESS, "status {index}");
    Ok(())
}

/// The index of one completion, read from the descriptor once it is readable.
fn notified(device: &Device) -> Outcome<u32> {
    let mut fds = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    let ready = poll(
        &mut fds,
        PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX),
    )
    .at("poll")?;
    check_eq!(ready, 1, "descriptors that became readable");
    let fd = device.as_fd().try_clone_to_owned().at("dup")?;
    let mut index = [0; 4];
    let count = std::fs::File::from(fd)
        .read(&mut index)
        .at("reading a notification")?;
    check_eq!(count, 4, "bytes of a notification");
    Ok(u32::from_ne_bytes(index))
}

pub(super) fn status_array() -> Outcome {
    let (owner, cookie) = owner(size())?;
    let device = knem()?;
    let status = device.map_status(16).at("mmap of the status array")?;
    let areas: Vec<Area> = (0..16).map(|_| Area::new(size())).collect::<Outcome<_>>()?;
    for (index, area) in areas.iter().enumerate() {
        let inline = Inline {
            flags: KNEM_FLAG_MEMCPYTHREAD,
            index: index as u32,
            ..Inline::read(cookie, size())
        };
        let now = start(&device, &status, inline, area)?;
        if now == SUCCESS {
            area.verify(1)?;
            status.set(index, KNEM_STATUS_SUCCESS);
        } else {
            check_eq!(now, PENDING, "status of an asynchronous copy");
        }
    }
    for (index, area) in areas.iter().enumerate() {
        finish(&status, index)?;
        area.verify(1)?;
    }
    let inline = Inline {
        flags: KNEM_FLAG_MEMCPYTHREAD,
        // The array is whole pages.
        index: page_size() as u32,
        ..Inline::read(cookie, size())
    };
    let beyond = inline.run(&device, &[vector(&areas[0])]);
    refused(beyond, &[EINVAL], "a status beyond the array")?;
    check!(device.map_status(16).is_err(), "a second status array");
    owner.dismiss()
}

pub(super) fn notification() -> Outcome {
    let (owner, cookie) = owner(size())?;
    let device = knem()?;
    let status = device.map_status(64).at("mmap of the status array")?;
    let area = Area::new(size())?;
    for index in [0, 7, 63] {
        let inline = Inline {
            flags: KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_NOTIFY_FD,
            index,
            ..Inline::read(cookie, size())
        };
        area.part(0, page_size()).fill(9);
        let now = start(&device, &status, inline, &area)?;
        check_eq!(now, PENDING, "status of a copy that notifies");
        check_eq!(notified(&device)?, index, "notified index");
        check_eq!(
            status.get(index as usize),
            KNEM_STATUS_SUCCESS,
            "its status"
        );
        area.verify(1)?;
    }
    let mut fds = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut fds, PollTimeout::ZERO).at("poll")?;
    check_eq!(ready, 0, "readable descriptors when all was read");
    owner.dismiss()
}

/// An event loop may add the descriptor as soon as it is open, before there is a status array.
pub(super) fn notification_by_epoll() -> Outcome {
    let (owner, cookie) = owner(page_size())?;
    let device = knem()?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).at("epoll_create")?;
    let asked = EpollEvent::new(EpollFlags::EPOLLIN, 0);
    epoll.add(&device, asked).at("epoll_ctl")?;
    let status = device.map_status(64).at("mmap of the status array")?;
    let mut events = [EpollEvent::empty()];
    let ready = epoll
        .wait(&mut events, EpollTimeout::ZERO)
        .at("epoll_wait")?;
    check_eq!(ready, 0, "descriptors that are readable too early");
    let area = Area::new(page_size())?;
    let inline = Inline {
        flags: KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_NOTIFY_FD,
        index: 3,
        ..Inline::read(cookie, 64)
    };
    start(&device, &status, inline, &area)?;
    let patience = EpollTimeout::try_from(PATIENCE).unwrap_or(EpollTimeout::MAX);
    let ready = epoll.wait(&mut events, patience).at("epoll_wait")?;
    check_eq!(ready, 1, "descriptors that became readable");
    check_eq!(notified(&device)?, 3, "the completed copy");
    owner.dismiss()
}

/// A process that may execute what it writes there has a way around what forbids that elsewhere.
pub(super) fn status_array_is_not_executed() -> Outcome {
    /// Returns.
    const CODE: u32 = if cfg!(target_arch = "aarch64") {
        0xd65f_03c0
    } else {
        0xc3
    };
    let device = knem()?;
    let array = try_map(
        0,
        page_size(),
        READ | WRITE | EXEC,
        libc::MAP_SHARED,
        Some(device.as_fd()),
        0,
    );
    // To refuse it would be right, too.
    let Ok(array) = array else { return Ok(()) };
    array.store(0, CODE.into());
    let child = fork_plain(|| {
        array.execute();
        Ok(())
    })?;
    let status = wait_for(child, PATIENCE)?;
    let died = matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _));
    check!(died, "what was written was executed: {status:?}");
    Ok(())
}

/// A caller that must not wait does not wait for a reader that waits for its own memory, either.
pub(super) fn notification_without_waiting() -> Outcome {
    let (owner, cookie) = owner(page_size())?;
    let device = knem()?;
    let status = device.map_status(64).at("mmap of the status array")?;
    let area = Area::new(page_size())?;
    let inline = Inline {
        flags: KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_NOTIFY_FD,
        ..Inline::read(cookie, 64)
    };
    start(&device, &status, inline, &area)?;
    let mut ready = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    poll(&mut ready, 10_000u16).at("poll")?;
    let reader = peer(|link: &Link| {
        let to = Area::new(page_size())?;
        let _blocked = uffd::block(&to)?;
        link.send(0)?;
        system::read_into(device.as_fd(), &to)
            .at("read")
            .map(|_| ())
    })?;
    let (reader, _) = reader.receive()?;
    system::until_asleep(reader.pid())?;
    fcntl(&device, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).at("F_SETFL")?;
    let other = peer(|_| {
        let got = system::read_into(device.as_fd(), &area);
        refused(got, &[EAGAIN], "a read that does not wait")
    })?;
    let ended = other.join_within(Duration::from_secs(20));
    reader.kill()?;
    ended?;
    owner.dismiss()
}

pub(super) fn notification_ring_is_bounded() -> Outcome {
    let (owner, cookie) = owner(page_size())?;
    let device = knem()?;
    let status = device.map_status(1).at("mmap of the status array")?;
    let area = Area::new(page_size())?;
    let inline = Inline {
        flags: KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_NOTIFY_FD,
        ..Inline::read(cookie, 64)
    };
    let mut accepted = 0u32;
    let refusal = loop {
        match inline.run(&device, &[vector(&area)]) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        check!(
            accepted < 1_000_000,
            "a million notifications wait, and none is refused"
        );
    };
    refused(
        Err::<(), _>(refusal),
        &[EBUSY],
        "a copy that cannot be notified",
    )?;
    for _ in 0..accepted {
        check_eq!(notified(&device)?, 0, "notified index");
    }
    // Room again.
    start(&device, &status, inline, &area)?;
    check_eq!(notified(&device)?, 0, "notified index");
    owner.dismiss()
}

/// The worker is in its caller's cgroup, and where that may run, whatever it is asked for.
pub(super) fn worker_stays_in_its_cpuset() -> Outcome {
    const ROOT: &str = "/sys/fs/cgroup";
    let group = format!("{ROOT}/onecopy-worker");
    std::fs::write(format!("{ROOT}/cgroup.subtree_control"), "+cpuset")
        .at("enabling the cpuset controller")?;
    std::fs::create_dir(&group).at("mkdir of a cgroup")?;
    let (owner, cookie) = owner(size())?;
    let inside = peer(|_| {
        std::fs::write(format!("{group}/cpuset.cpus"), "0").at("cpuset.cpus")?;
        std::fs::write(format!("{group}/cgroup.procs"), "0").at("entering a cgroup")?;
        for (flags, mask) in [
            (KNEM_BIND_FLAG_CUSTOM, 2),
            (KNEM_BIND_FLAG_CUSTOM, 3),
            (KNEM_BIND_FLAG_CURRENT_REVERSED, 0),
        ] {
            let device = knem()?;
            device
                .bind_offload(flags, &[mask])
                .at(format_args!("BIND_OFFLOAD {flags}"))?;
            let status = device.map_status(1).at("mmap of the status array")?;
            let area = Area::new(size())?;
            let inline = Inline {
                flags: KNEM_FLAG_MEMCPYTHREAD,
                ..Inline::read(cookie, size())
            };
            // Once it has copied, it is where it stays.
            if start(&device, &status, inline, &area)? == PENDING {
                finish(&status, 0)?;
            }
            let workers = system::kernel_threads("onecopy-knem");
            check_eq!(workers.len(), 1, "workers");
            for pid in workers {
                let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
                let text = read("status").at("reading a worker's status")?;
                let allowed = text
                    .lines()
                    .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
                check_eq!(allowed.map(str::trim), Some("0"), "its processors");
                let theirs = read("cgroup").at("reading a worker's cgroup")?;
                let own = std::fs::read_to_string("/proc/self/cgroup").at("reading a cgroup")?;
                // Kernels before 6.1 move nobody in version 2 of cgroups.
                let old = std::fs::read_to_string("/proc/sys/kernel/osrelease")
                    .at("reading the kernel's release")?
                    .starts_with("5.");
                check!(theirs == own || old, "its cgroup: {theirs}, not {own}");
            }
        }
        Ok(())
    })?
    .join();
    std::fs::remove_dir(&group).at("rmdir of a cgroup")?;
    inside?;
    owner.dismiss()
}

/// The worker runs for the process that asks for the first copy. A cgroup in which a status array was mapped may be
/// gone by then.
pub(super) fn worker_comes_with_its_first_copy() -> Outcome {
    const ROOT: &str = "/sys/fs/cgroup";
    let group = format!("{ROOT}/onecopy-mapped");
    let (owner, cookie) = owner(size())?;
    std::fs::create_dir(&group).at("mkdir of a cgroup")?;
    // That of an earlier test may be about to go.
    let workers = |count: usize| {
        let there = || system::kernel_threads("onecopy-knem").len() == count;
        let reached = system::until(PATIENCE, there);
        check!(reached, "not {count} workers");
        Ok(())
    };
    workers(0)?;
    let copied = peer(|_| {
        let device = knem()?;
        let enter = |group: &str| std::fs::write(format!("{group}/cgroup.procs"), "0");
        enter(&group).at("entering a cgroup")?;
        let status = device.map_status(1).at("mmap of the status array")?;
        workers(0)?;
        enter(ROOT).at("leaving a cgroup")?;
        std::fs::remove_dir(&group).at("rmdir of a cgroup")?;
        let area = Area::new(size())?;
        let inline = Inline {
            flags: KNEM_FLAG_MEMCPYTHREAD,
            ..Inline::read(cookie, size())
        };
        for _ in 0..2 {
            if start(&device, &status, inline, &area)? == PENDING {
                finish(&status, 0)?;
            }
            workers(1)?;
        }
        area.verify(1)
    })?
    .join();
    // There still if the test failed before.
    let _ = std::fs::remove_dir(&group);
    copied?;
    owner.dismiss()
}

pub(super) fn bind() -> Outcome {
    let (owner, cookie) = owner(size())?;
    // So that "where the caller may not run" is somewhere.
    system::on_processor(0)?;
    for flags in [
        KNEM_BIND_FLAG_CURRENT,
        KNEM_BIND_FLAG_CURRENT_REVERSED,
        KNEM_BIND_FLAG_CUSTOM,
    ] {
        let device = knem()?;
        device
            .bind_offload(flags, &[1])
            .at(format_args!("BIND_OFFLOAD {flags}"))?;
        let status = device.map_status(1).at("mmap of the status array")?;
        refused(
            device.bind_offload(flags, &[1]),
            &[EBUSY],
            "BIND_OFFLOAD after mmap",
        )?;
        let area = Area::new(size())?;
        let inline = Inline {
            flags: KNEM_FLAG_MEMCPYTHREAD,
            ..Inline::read(cookie, size())
        };
        if start(&device, &status, inline, &area)? == PENDING {
            finish(&status, 0)?;
        }
        area.verify(1)?;
    }
    let device = knem()?;
    refused(
        device.bind_offload(64, &[1]),
        &[EINVAL],
        "BIND_OFFLOAD with unknown flags",
    )?;
    refused(
        device.bind_offload(KNEM_BIND_FLAG_CUSTOM, &[0]),
        &[EINVAL],
        "BIND_OFFLOAD to no processor",
    )?;
    owner.dismiss()
}

/// What a process leaves behind when it ends with copies under way: nothing.
fn many(device: &Device, cookie: u64, area: &Area) -> Outcome<StatusArray> {
    let status = device.map_status(64).at("mmap of the status array")?;
    for index in 0..64 {
        let inline = Inline {
            flags: KNEM_FLAG_MEMCPYTHREAD
                | if index % 2 == 0 {
                    KNEM_FLAG_NOTIFY_FD
                } else {
                    0
                },
            index,
            ..Inline::read(cookie, area.length())
        };
        start(device, &status, inline, area)?;
    }
    Ok(status)
}

pub(super) fn exit_while_pending() -> Outcome {
    let (owner, cookie) = owner(HUGE)?;
    for by_force in [false, true] {
        let other = peer(move |link: &Link| {
            let device = knem()?;
            let area = Area::new(HUGE)?;
            let _status = many(&device, cookie, &area)?;
            link.send(0)?;
            if by_force {
                std::thread::sleep(Duration::from_secs(60));
            }
            system::leave(0)
        })?;
        if other.link.receive().is_err() {
            return other.join();
        }
        other.kill()?;
    }
    // The other end goes.
    let device = knem()?;
    let area = Area::new(HUGE)?;
    let status = many(&device, cookie, &area)?;
    owner.kill()?;
    let done = system::until(PATIENCE, || {
        (0..64).all(|index| status.get(index) != KNEM_STATUS_PENDING)
    });
    check!(done, "copies stay pending after the owner's end");
    for at in (0..HUGE).step_by(page_size()) {
        check!(
            [0, mix(1, at)].contains(&area.load(at)),
            "a word at {at:#x} that is not the owner's"
        );
    }
    Ok(())
}

pub(super) fn unmap_while_pending() -> Outcome {
    let (owner, cookie) = owner(HUGE)?;
    peer(move |_| {
        let device = knem()?;
        let area = Area::new(HUGE)?;
        let status = many(&device, cookie, &area)?;
        area.unmap()?;
        let fresh = Area::new(HUGE)?;
        let done = system::until(PATIENCE, || {
            (0..64).all(|index| status.get(index) != KNEM_STATUS_PENDING)
        });
        check!(done, "copies to memory that is gone stay pending");
        // What was mapped since, perhaps at the same place, may have been written by copies that began later, or not at
        // all.
        for at in (0..HUGE).step_by(page_size()) {
            check!(
                [0, mix(1, at)].contains(&fresh.load(at)),
                "a word at {at:#x} from nowhere"
            );
        }
        // The array may go before the copies do.
        let again = Area::new(HUGE)?;
        for index in 0..64 {
            let inline = Inline {
                flags: KNEM_FLAG_MEMCPYTHREAD,
                index,
                ..Inline::read(cookie, HUGE)
            };
            start(&device, &status, inline, &again)?;
        }
        drop(status);
        drop(device);
        Ok(())
    })?
    .join()?;
    owner.dismiss()
}

pub(super) fn close_while_pending() -> Outcome {
    let (owner, cookie) = owner(HUGE)?;
    peer(move |_| {
        for _ in 0..5 {
            let device = knem()?;
            let area = Area::new(HUGE)?;
            let status = many(&device, cookie, &area)?;
            drop(device);
            drop(status);
            area.unmap()?;
        }
        Ok(())
    })?
    .join()?;
    owner
        .link
        .send(0)
        .map_err(|fault| Fault::Fail(fault.to_string()))?;
    owner.join()
}

/// Copies that wait for the worker copy nothing of a region that its owner has destroyed, and keep none of it pinned.
pub(super) fn destroy_while_pending() -> Outcome {
    // The worker shares a processor with this process, which has it for as long as it wants.
    system::on_processor(0)?;
    system::urgent()?;
    let device = knem()?;
    device
        .bind_offload(KNEM_BIND_FLAG_CURRENT, &[])
        .at("BIND_OFFLOAD")?;
    let status = device.map_status(8).at("mmap of the status array")?;
    let areas: Vec<Area> = (0..8).map(|_| Area::new(size())).collect::<Outcome<_>>()?;
    let area = Area::new(size())?;
    area.fill(1);
    let owner = knem()?;
    let cookie = region(&owner, &area, READ | WRITE, 0)?;
    for (index, local) in areas.iter().enumerate() {
        let inline = Inline {
            flags: KNEM_FLAG_MEMCPYTHREAD,
            index: index as u32,
            ..Inline::read(cookie, size())
        };
        check_eq!(start(&device, &status, inline, local)?, PENDING, "status");
    }
    owner.destroy_region(cookie).at("DESTROY_REGION")?;
    let pinned = device::stats()?.pinned_pages;
    area.fill(5);
    for (index, local) in areas.iter().enumerate() {
        let done = system::until(PATIENCE, || status.get(index) != KNEM_STATUS_PENDING);
        check!(done, "a copy of a destroyed region stays pending");
        check_eq!(status.get(index), KNEM_STATUS_FAILED, "status {index}");
        for offset in (0..size()).step_by(8) {
            check_eq!(local.load(offset), 0, "a byte of a destroyed region");
        }
    }
    // The local sides are pinned until the worker has been there.
    check_eq!(pinned, 8 * 40, "pages that are pinned afterwards");
    Ok(())
}
