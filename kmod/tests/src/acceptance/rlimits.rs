// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits that the system sets, kept: `RLIMIT_MEMLOCK`, descriptors, memory cgroups. The module's own limits (`max_*`)
//! are tested in `permission.rs` and `hostile.rs`.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use libc::{EAGAIN, EMFILE, ENOMEM, EPERM};
use nix::sys::resource::{Resource, setrlimit};

use crate::device::{self, knem, region, try_region, vector};
use crate::mem::{Area, READ, WRITE, huge_page, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq, refused};
use crate::peer::{Link, peer};
use crate::ring::Ring;
use crate::system::{self, OpenToAll};
use crate::uffd;

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
            let page = page_size();
            let limit = 16 * page as u64;
            setrlimit(Resource::RLIMIT_MEMLOCK, limit, limit).at("setrlimit")?;
            system::become_user(1001)?;
            let area = Area::new(12 * page)?;
            for round in 0..300 {
                let device = knem()?;
                let cookie = region(&device, &area, READ, 0)?;
                if round % 2 == 0 {
                    device.destroy_region(cookie).at("DESTROY_REGION")?;
                }
            }
            // A region whose creation fails half way is not counted.
            let device = knem()?;
            area.part(6 * page, page).unmap()?;
            for _ in 0..50 {
                check!(
                    try_region(&device, &[vector(&area)], READ, 0).is_err(),
                    "a region with a hole"
                );
            }
            region(&device, &area.part(0, 6 * page), READ, 0)?;
            let locked = system::number("/proc/self/status", "VmPin").unwrap_or(0)
                + system::number("/proc/self/status", "VmLck").unwrap_or(0);
            let most = (12 * page as u64) >> 10;
            check!(
                locked <= most,
                "{locked} KiB locked with a region of {} KiB",
                most / 2
            );
            Ok(())
        })?
        .join()?;
    }
    Ok(())
}

/// The limit is the user's, not that of each process. Pins end with the process whose memory it is, though its parent
/// holds the file.
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
            child.link.receive()?;
            let area = Area::new(48 << 10)?;
            refused(
                try_region(&device, &[vector(&area)], READ, 0),
                &[ENOMEM, EPERM, EAGAIN],
                "a region beyond the user's limit",
            )?;
            if round % 2 == 0 {
                child.dismiss()?;
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

/// The user's account is the one that io_uring charges: neither has the limit for itself.
pub(super) fn locked_memory_is_one_account() -> Outcome {
    let _open = OpenToAll::device("/dev/knem")?;
    peer(|_| {
        setrlimit(Resource::RLIMIT_MEMLOCK, 512 << 10, 512 << 10).at("setrlimit")?;
        system::become_user(1001)?;
        let device = knem()?;
        let (theirs, ours) = (Area::new(256 << 10)?, Area::new(300 << 10)?);
        let ring = Ring::new()?;
        ring.register(&theirs).at("a buffer of io_uring")?;
        refused(
            try_region(&device, &[vector(&ours)], READ, 0),
            &[ENOMEM],
            "a region beyond what io_uring left",
        )?;
        ring.unregister().at("the end of a buffer of io_uring")?;
        region(&device, &ours, READ, 0)?;
        refused(
            ring.register(&theirs),
            &[ENOMEM],
            "a buffer of io_uring beyond what a region left",
        )
    })?
    .join()
}

/// A pinned byte keeps all of the huge page that it is of: so much counts, as for io_uring.
pub(super) fn locked_memory_counts_huge_pages_whole() -> Outcome {
    const PAGES: usize = 4;
    let _open = OpenToAll::device("/dev/knem")?;
    peer(|_| {
        let area = super::pages::huge_area(PAGES * huge_page())?;
        let limit = (PAGES / 2 * huge_page()) as u64;
        setrlimit(Resource::RLIMIT_MEMLOCK, limit, limit).at("setrlimit")?;
        system::become_user(1001)?;
        let device = knem()?;
        let bytes = |pages: usize| -> Vec<_> {
            let parts = (0..pages).map(|at| vector(&area.part(at * huge_page(), 1)));
            parts.collect()
        };
        refused(
            try_region(&device, &bytes(PAGES), READ, 0),
            &[ENOMEM],
            "a byte of each of more huge pages than the limit has",
        )?;
        let half = try_region(&device, &bytes(PAGES / 2), READ, 0).at("as many as it has")?;
        let one = vector(&Area::new(page_size())?);
        refused(
            try_region(&device, &[one], READ, 0),
            &[ENOMEM],
            "a page beyond these",
        )?;
        device.destroy_region(half).at("DESTROY_REGION")?;
        // Parts of one huge page count once.
        let parts: Vec<_> = (0..64)
            .map(|at| vector(&area.part(at * page_size(), 8)))
            .collect();
        try_region(&device, &parts, READ, 0).at("many parts of one huge page")?;
        Ok(())
    })?
    .join()
}

/// Huge pages count before the rest of a region is waited for, so that nobody keeps more of them meanwhile.
pub(super) fn locked_memory_counts_before_a_wait() -> Outcome {
    const PAGES: usize = 4;
    let _open = OpenToAll::device("/dev/knem")?;
    peer(|_| {
        let area = super::pages::huge_area(PAGES * huge_page())?;
        let late = Area::new(page_size())?;
        let _blocked = uffd::block(&late)?;
        let limit = (PAGES / 2 * huge_page()) as u64;
        setrlimit(Resource::RLIMIT_MEMLOCK, limit, limit).at("setrlimit")?;
        system::become_user(1001)?;
        let parts = (0..PAGES).map(|at| vector(&area.part(at * huge_page(), 1)));
        let parts: Vec<_> = parts.chain([vector(&late)]).collect();
        refused(
            try_region(&knem()?, &parts, READ, 0),
            &[ENOMEM],
            "more huge pages than the limit has, and a page that does not come",
        )
    })?
    .join()
}

/// A vector may have empty pieces, of which nothing is kept.
pub(super) fn empty_pieces_are_dropped() -> Outcome {
    let device = knem()?;
    let area = Area::new(2 * page_size())?;
    area.fill(3);
    let empty = vector(&area.part(8, 0));
    let pieces = [
        empty,
        vector(&area.part(0, page_size())),
        empty,
        vector(&area.part(page_size(), page_size())),
        empty,
    ];
    let cookie = try_region(&device, &pieces, READ, 0).at("a region with empty pieces")?;
    let into = Area::new(2 * page_size())?;
    let copy = device::Inline::read(cookie, into.length());
    copy.run(&device, &[empty, vector(&into), empty])?;
    into.verify(3)?;
    let nothing = try_region(&device, &[empty, empty], READ, 0).at("a region of nothing")?;
    device.destroy_region(nothing).at("DESTROY_REGION")
}

/// What was charged goes back to whose it was, though its process is another user by then.
pub(super) fn locked_memory_goes_back_to_its_account() -> Outcome {
    const LIMIT: usize = 64 << 10;
    let _open = OpenToAll::device("/dev/knem")?;
    peer(|_| {
        setrlimit(Resource::RLIMIT_MEMLOCK, LIMIT as u64, LIMIT as u64).at("setrlimit")?;
        let device = knem()?;
        let area = Area::new(LIMIT)?;
        let whole = |id: u32, what: &str| -> Outcome {
            peer(|_| {
                system::become_user(id)?;
                let (own, device) = (Area::new(LIMIT)?, knem()?);
                region(&device, &own, READ, 0).map_err(|fault| {
                    Fault::Fail(format!("{what}: all of the limit of {id}: {fault}"))
                })?;
                let more = try_region(&device, &[vector(&own.part(0, page_size()))], READ, 0);
                refused(more, &[ENOMEM], format_args!("{what}: beyond that of {id}"))
            })?
            .join()
        };
        system::switch_user(1001)?;
        let cookie = region(&device, &area, READ, 0)?;
        system::switch_user(1002)?;
        device.destroy_region(cookie).at("DESTROY_REGION")?;
        system::switch_user(0)?;
        whole(1001, "after DESTROY_REGION")?;
        whole(1002, "after DESTROY_REGION")?;
        // The same at the end of the file.
        system::switch_user(1001)?;
        region(&device, &area, READ, 0)?;
        system::switch_user(1002)?;
        drop(device);
        system::switch_user(0)?;
        whole(1001, "after the end of the file")?;
        whole(1002, "after the end of the file")
    })?
    .join()
}

pub(super) fn descriptors() -> Outcome {
    peer(|_| {
        let device = device::onecopy()?;
        let area = Area::new(page_size())?;
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

/// Runs in a process of its own, in a memory cgroup, what is given; what it made before it entered is charged
/// elsewhere.
fn in_memory_cgroup(limit: &str, work: impl FnOnce() -> Outcome) -> Outcome {
    const ROOT: &str = "/sys/fs/cgroup";
    let group = format!("{ROOT}/onecopy-test");
    std::fs::write(format!("{ROOT}/cgroup.subtree_control"), "+memory")
        .at("enabling the memory controller")?;
    std::fs::create_dir(&group).at("mkdir of a cgroup")?;
    let inside = peer(|_| {
        std::fs::write(format!("{group}/cgroup.procs"), "0").at("entering a cgroup")?;
        std::fs::write(format!("{group}/memory.max"), limit).at("memory.max")?;
        work()
    })?
    .join();
    std::fs::remove_dir(&group).at("rmdir of a cgroup")?;
    inside
}

/// In a memory cgroup, to which the kernel charges what the module allocates, everything works as outside of one.
pub(super) fn memory_cgroup() -> Outcome {
    in_memory_cgroup("max", || {
        let area = Area::new(4 * page_size())?;
        area.fill(1);
        let segment = device::export(&area, true)?;
        check_eq!(
            device::read(&device::generation(&segment)?).holes,
            0,
            "holes"
        );
        device::map(&segment, 4 * page_size(), true)?.verify(1)?;
        let device = knem()?;
        let bytes = page_size();
        let status = device.map_status(bytes).at("mmap of the status array")?;
        status.set(bytes - 1, 7);
        check_eq!(status.get(bytes - 1), 7, "a byte of the status array");
        let cookie = region(&device, &area, READ | WRITE, 0)?;
        device.destroy_region(cookie).at("DESTROY_REGION")
    })
}

/// What the caller makes as large as it likes, and may not have, is refused to it. The log gets no trace of a failed
/// allocation.
pub(super) fn refusals_leave_the_log_alone() -> Outcome {
    let area = Area::new(page_size())?;
    let pieces = vec![vector(&area); 65536];
    let mut log = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")
        .at("/dev/kmsg")?;
    log.seek(SeekFrom::End(0)).at("the end of the log")?;
    in_memory_cgroup("768K", || {
        // Else a kill would answer in place of the module.
        std::fs::write("/proc/self/oom_score_adj", "-1000").at("oom_score_adj")?;
        let device = knem()?;
        refused(
            try_region(&device, &pieces, READ, 0),
            &[ENOMEM],
            "a vector of 1 MiB",
        )?;
        refused(
            device.map_status(64 * page_size()),
            &[ENOMEM],
            "a status array whose ring has 1 MiB",
        )
    })?;
    let mut record = [0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(length) => {
                let line = String::from_utf8_lossy(&record[..length]);
                let traced = ["vmalloc error", "allocation failure"]
                    .iter()
                    .any(|words| line.contains(words));
                check!(!traced, "in the log: {line}");
            }
            Err(error) if error.raw_os_error() == Some(EAGAIN) => return Ok(()),
            // What was to be read next has been overwritten.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) => return Err(error).at("reading the log"),
        }
    }
}
