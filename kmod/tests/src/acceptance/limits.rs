// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits that the system sets, kept.

use libc::{EAGAIN, EMFILE, ENOMEM, EPERM};
use nix::sys::resource::{Resource, setrlimit};

use crate::device::{self, knem, region, try_region, vector};
use crate::mem::{Area, PAGE, READ, WRITE};
use crate::outcome::{At, Outcome, check, check_eq, refused};
use crate::peer::{Link, peer};
use crate::system::{self, OpenToAll};

pub(super) fn locked_memory() -> Outcome {
    let _open = OpenToAll::device("/dev/knem")?;
    peer(|_| {
        setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).at("setrlimit")?;
        system::become_user(1001)?;
        let device = knem()?;
        let large = Area::new(128 << 10)?;
        let small = Area::new(40 << 10)?;
        let errors = &[ENOMEM, EPERM, EAGAIN];
        refused(
            try_region(&device, &[vector(&large)], READ, 0),
            errors,
            "a region beyond the limit",
        )?;
        let first = region(&device, &small, READ, 0)?;
        refused(
            try_region(&device, &[vector(&small)], READ, 0),
            errors,
            "a second region beyond the limit",
        )?;
        // Another file of the same process has the same limit.
        let second = knem()?;
        refused(
            try_region(&second, &[vector(&small)], READ, 0),
            errors,
            "a region of another file",
        )?;
        device.destroy_region(first).at("DESTROY_REGION")?;
        region(&second, &small, READ | WRITE, 0)?;
        Ok(())
    })?
    .join()
}

pub(super) fn locked_memory_is_given_back() -> Outcome {
    let _open = OpenToAll::device("/dev/knem")?;
    for _ in 0..3 {
        peer(|_| {
            setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).at("setrlimit")?;
            system::become_user(1001)?;
            let area = Area::new(48 << 10)?;
            for round in 0..300 {
                let device = knem()?;
                let cookie = region(&device, &area, READ, 0)?;
                if round % 2 == 0 {
                    device.destroy_region(cookie).at("DESTROY_REGION")?;
                }
            }
            // A region whose creation fails half way is not counted.
            let device = knem()?;
            area.part(24 << 10, PAGE).unmap()?;
            for _ in 0..50 {
                check!(
                    try_region(&device, &[vector(&area)], READ, 0).is_err(),
                    "a region with a hole"
                );
            }
            region(&device, &area.part(0, 24 << 10), READ, 0)?;
            let locked = system::number("/proc/self/status", "VmPin").unwrap_or(0)
                + system::number("/proc/self/status", "VmLck").unwrap_or(0);
            check!(locked <= 48, "{locked} KiB locked with a region of 24 KiB");
            Ok(())
        })?
        .join()?;
    }
    Ok(())
}

/// The limit is the user's, not that of each process, and pins end with the process whose memory
/// it is, though its parent holds the file.
pub(super) fn locked_memory_of_children() -> Outcome {
    let _open = OpenToAll::device("/dev/knem")?;
    peer(|_| {
        setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).at("setrlimit")?;
        system::become_user(1001)?;
        let device = knem()?;
        for round in 0..20 {
            let child = peer(|link: &Link| {
                let area = Area::new(48 << 10)?;
                region(&device, &area, READ, 0)?;
                link.turn()
            })?;
            child.link.hear()?;
            let area = Area::new(48 << 10)?;
            refused(
                try_region(&device, &[vector(&area)], READ, 0),
                &[ENOMEM, EPERM, EAGAIN],
                "a region beyond the user's limit",
            )?;
            if round % 2 == 0 {
                child.link.tell(0)?;
                child.join()?;
            } else {
                child.kill()?;
            }
            let cookie = region(&device, &area, READ, 0)?;
            device.destroy_region(cookie).at("DESTROY_REGION")?;
        }
        Ok(())
    })?
    .join()
}

pub(super) fn descriptors() -> Outcome {
    peer(|_| {
        let device = device::onecopy()?;
        let area = Area::new(PAGE)?;
        setrlimit(Resource::RLIMIT_NOFILE, 40, 40).at("setrlimit")?;
        for _ in 0..3 {
            let mut segments = Vec::new();
            let error = loop {
                match device::export_with(&device, &area) {
                    Ok(segment) => segments.push(segment),
                    Err(error) => break error,
                }
                check!(segments.len() < 64, "more descriptors than the limit");
            };
            refused(
                Err::<(), _>(error),
                &[EMFILE],
                "EXPORT without a descriptor left",
            )?;
            if let Some(segment) = segments.first() {
                refused(
                    segment.restrict(false),
                    &[EMFILE],
                    "RESTRICT without a descriptor left",
                )?;
            }
            check_eq!(
                device.stats().at("STATS")?.segments,
                segments.len() as u64,
                "segments"
            );
        }
        Ok(())
    })?
    .join()
}

/// In a memory cgroup, to which the kernel charges what the module allocates, everything works as outside of one.
pub(super) fn memory_cgroup() -> Outcome {
    const ROOT: &str = "/sys/fs/cgroup";
    let group = format!("{ROOT}/onecopy-test");
    std::fs::write(format!("{ROOT}/cgroup.subtree_control"), "+memory")
        .at("enabling the memory controller")?;
    std::fs::create_dir(&group).at("mkdir of a cgroup")?;
    let inside = peer(|_| {
        std::fs::write(format!("{group}/cgroup.procs"), "0").at("entering a cgroup")?;
        let area = Area::new(4 * PAGE)?;
        area.fill(1);
        let segment = device::export(&area, true)?;
        check_eq!(
            device::read(&device::generation(&segment)?).holes,
            0,
            "holes"
        );
        device::map(&segment, 4 * PAGE, true)?.verify(1)?;
        let device = knem()?;
        let status = device.map_status(4096).at("mmap of the status array")?;
        status.set(4095, 7);
        check_eq!(status.get(4095), 7, "a byte of the status array");
        let cookie = region(&device, &area, READ | WRITE, 0)?;
        device.destroy_region(cookie).at("DESTROY_REGION")
    })?
    .join();
    std::fs::remove_dir(&group).at("rmdir of a cgroup")?;
    inside
}
