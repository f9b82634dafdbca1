// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may reach memory through the XPMEM interface, and how much of it a user may have (`max_*`).

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;

use libc::{EACCES, EINVAL, ENOENT, EPERM};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Pid;
use xpmem_sys::{XPMEM_RDONLY, XPMEM_RDWR};

use crate::device::{self, attach, attach_all, make};
use crate::mem::{Area, READ, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq, refused};
use crate::peer::{Link, Peer, peer};
use crate::system::{self, OpenToAll, Parameter};

fn size() -> usize {
    4 * page_size()
}
const ALICE: u32 = 1001;
const BOB: u32 = 1002;
/// The parameter that lets other users use what a segment's mode grants them.
const OTHERS: &str = "other_users";
/// The parameter that bounds the segments of a user.
const SEGMENTS: &str = "max_segments";
const PROCESS_SEGMENTS: &str = "max_process_segments";

pub(super) fn device_modes() -> Outcome {
    for path in ["/dev/xpmem", "/dev/knem", "/dev/onecopy"] {
        let mode = std::fs::metadata(path).at(path)?.permissions().mode() & 0o7777;
        check_eq!(mode, 0o600, "mode of {path}");
    }
    let refusal = peer(|_| {
        system::become_user(ALICE)?;
        refused(
            xpmem_sys::Device::open(),
            &[EACCES],
            "another user opens the device",
        )
    })?;
    refusal.join()
}

/// A user's process that exports filled memory with a mode and lives until it is told to end.
fn owner(user: u32, mode: u32) -> Outcome<(Peer, i64)> {
    let owner = peer(move |link: &Link| {
        system::become_user(user)?;
        let area = Area::new(size())?;
        area.fill(1);
        let device = device::xpmem()?;
        link.send(make(&device, &area, mode)? as u64)?;
        link.receive()?;
        area.verify(1)
    })?;
    let segid = owner.link.receive()? as i64;
    Ok((owner, segid))
}

pub(super) fn other_user() -> Outcome {
    let _open = OpenToAll::device("/dev/xpmem")?;
    for mode in [0o600, 0o666, 0o777] {
        let (owner, segid) = owner(ALICE, mode)?;
        peer(move |_| {
            system::become_user(BOB)?;
            let device = device::xpmem()?;
            for flags in [XPMEM_RDONLY, XPMEM_RDWR] {
                refused(
                    device.get(segid, flags),
                    &[EACCES, EPERM],
                    format_args!("another user's GET of mode {mode:o}"),
                )?;
            }
            Ok(())
        })?
        .join()?;
        peer(move |_| {
            system::become_user(ALICE)?;
            attach_all(&device::xpmem()?, segid as u64, size())?.verify(1)
        })?
        .join()?;
        owner.dismiss()?;
    }
    Ok(())
}

/// What a user gets of Alice's segment of this mode.
fn may(user: u32, segid: i64, mode: u32, reads: bool, writes: bool) -> Outcome {
    peer(move |_| {
        system::become_user(user)?;
        let device = device::xpmem()?;
        for (flags, allowed) in [(XPMEM_RDONLY, reads), (XPMEM_RDWR, writes)] {
            let got = device.get(segid, flags);
            let what = format!("user {user}'s GET {flags} of mode {mode:o}");
            if allowed {
                attach(&device, got.at(what)?, 0, size())?.verify(1)?;
            } else {
                refused(got, &[EACCES, EPERM], what)?;
            }
        }
        Ok(())
    })?
    .join()
}

pub(super) fn other_user_by_parameter() -> Outcome {
    let _open = OpenToAll::device("/dev/xpmem")?;
    let _others = Parameter::set(OTHERS, "1")?;
    for (mode, reads, writes) in [
        (0o600, false, false),
        (0o604, true, false),
        (0o666, true, true),
    ] {
        let (owner, segid) = owner(ALICE, mode)?;
        may(BOB, segid, mode, reads, writes)?;
        owner.dismiss()?;
    }
    Ok(())
}

pub(super) fn ids_are_not_guessed() -> Outcome {
    let _open = OpenToAll::device("/dev/xpmem")?;
    // No two ids are a step apart, and none is small.
    let device = device::xpmem()?;
    let area = Area::new(size())?;
    let mut ids = Vec::new();
    for _ in 0..64 {
        ids.push(make(&device, &area, 0o600)?);
    }
    let differences: HashSet<i64> = ids
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    check!(
        differences.len() > 60,
        "ids that follow a step: {:x?}",
        &ids[..4]
    );
    let unlike: HashSet<i64> = ids.iter().map(|id| id >> 32).collect();
    check!(
        unlike.len() > 60,
        "ids whose upper halves are alike: {:x?}",
        &ids[..4]
    );
    // Programs print two of them into 32 bytes.
    for segid in &ids {
        let apid = device.get(*segid, XPMEM_RDONLY).at("GET")?;
        check!(
            *segid > 0 && segid >> 56 == 0 && apid > 0 && apid >> 56 == 0,
            "ids of more than 56 bits: {segid:x}, {apid:x}"
        );
        device.release(apid).at("RELEASE")?;
    }
    // What can be made up from a process's number reaches nothing, even for the same user.
    let own = i64::from(Pid::this().as_raw());
    let mut reached = 0;
    for number in 0..20_000i64 {
        for id in [(number << 32) | own, (own << 32) | number, number] {
            if !ids.contains(&id) && device.get(id, XPMEM_RDONLY).is_ok() {
                reached += 1;
            }
        }
    }
    check_eq!(reached, 0, "segments reached by guessing");
    Ok(())
}

pub(super) fn user_namespace() -> Outcome {
    let _open = OpenToAll::device("/dev/xpmem")?;
    // Root in a namespace of its own is nobody outside.
    let (owner, segid) = owner(ALICE, 0o600)?;
    peer(move |_| {
        system::become_user(BOB)?;
        system::become_namespace_root()?;
        let device = device::xpmem()?;
        for flags in [XPMEM_RDONLY, XPMEM_RDWR] {
            refused(
                device.get(segid, flags),
                &[EACCES, EPERM, EINVAL, ENOENT],
                "GET by root of another user namespace",
            )?;
        }
        Ok(())
    })?
    .join()?;
    owner.dismiss()
}

pub(super) fn namespace_root() -> Outcome {
    let _open = OpenToAll::device("/dev/xpmem")?;
    // The true root's memory, and a mode that lets nobody in.
    let (root, of_root) = owner(0, 0o666)?;
    let (alice, of_alice) = owner(ALICE, 0o000)?;
    peer(move |_| {
        system::become_user(BOB)?;
        system::become_namespace_root()?;
        let device = device::xpmem()?;
        for segid in [of_root, of_alice] {
            refused(
                device.get(segid, XPMEM_RDONLY),
                &[EACCES, EPERM, EINVAL, ENOENT],
                "GET by root of another user namespace",
            )?;
        }
        Ok(())
    })?
    .join()?;
    root.dismiss()?;
    alice.dismiss()
}

pub(super) fn mode_bits() -> Outcome {
    let _open = OpenToAll::device("/dev/xpmem")?;
    for (mode, reads, writes) in [
        (0o000, false, false),
        (0o400, true, false),
        (0o600, true, true),
    ] {
        let (owner, segid) = owner(ALICE, mode)?;
        may(ALICE, segid, mode, reads, writes)?;
        // Root may pass any mode.
        attach_all(&device::xpmem()?, segid as u64, size())?.verify(1)?;
        owner.dismiss()?;
    }
    Ok(())
}

/// Each segment makes changes of its process's memory dearer, so there is a limit of their own.
pub(super) fn quota_of_a_process() -> Outcome {
    let _quota = Parameter::set(PROCESS_SEGMENTS, "20")?;
    let area = Area::new(size())?;
    let device = device::xpmem()?;
    let mut made = Vec::new();
    for _ in 0..20 {
        made.push(make(&device, &area, 0o600)?);
    }
    refused(
        device::try_export(area.base(), size() as u64, false),
        &[libc::EDQUOT],
        "EXPORT beyond the process's quota",
    )?;
    // A child has a memory of its own.
    peer(|_| make(&device::xpmem()?, &area, 0o600).map(|_| ()))?.join()?;
    for segid in made {
        device.remove(segid as _).at("REMOVE")?;
    }
    make(&device, &area, 0o600).map(|_| ())
}

pub(super) fn quota_of_segments() -> Outcome {
    let _open = OpenToAll::device("/dev/xpmem")?;
    let _open_too = OpenToAll::device("/dev/onecopy")?;
    let _quota = Parameter::set(SEGMENTS, "50")?;
    let device = device::xpmem()?;
    let area = Area::new(size())?;
    peer(|_| {
        system::become_user(ALICE)?;
        let device = device::xpmem()?;
        let area = Area::new(size())?;
        let made = up_to_quota(50, "segments", || {
            device::try_make(&device, area.base(), size() as u64, 0o600)
        })?;
        check!(
            device::try_export(area.base(), size() as u64, false).is_err(),
            "EXPORT beyond the quota"
        );
        // What is given back counts no more.
        for segid in made {
            device.remove(segid).at("REMOVE")?;
        }
        make(&device, &area, 0o600)?;
        Ok(())
    })?
    .join()?;
    // One user's quota is not another's.
    make(&device, &area, 0o600)?;
    Ok(())
}

pub(super) fn quota_of_permits() -> Outcome {
    let _open = OpenToAll::device("/dev/xpmem")?;
    let _quota = Parameter::set("max_permits", "5")?;
    let device = device::xpmem()?;
    let area = Area::new(size())?;
    let segid = make(&device, &area, 0o600)?;
    let alice = peer(|link: &Link| {
        system::become_user(ALICE)?;
        let device = device::xpmem()?;
        let own = make(&device, &Area::new(size())?, 0o600)?;
        let permits = up_to_quota(5, "permits", || device.get(own, XPMEM_RDWR))?;
        // What is given back counts no more.
        device.release(permits[0]).at("RELEASE")?;
        device
            .get(own, XPMEM_RDWR)
            .at("GET of what was given back")?;
        link.turn()
    })?;
    // She has all that the quota allows.
    let (alice, _) = alice.receive()?;
    // One user's quota is not another's.
    device.get(segid, XPMEM_RDWR).at("GET by another user")?;
    alice.dismiss()
}

pub(super) fn quota_of_regions() -> Outcome {
    let _open = OpenToAll::device("/dev/knem")?;
    let _quota = Parameter::set("max_regions", "5")?;
    let area = Area::new(page_size())?;
    let alice = peer(|link: &Link| {
        system::become_user(ALICE)?;
        let device = device::knem()?;
        // It pins one page, which no limit of locked memory forbids so often.
        let area = Area::new(page_size())?;
        let one = [device::vector(&area)];
        let regions = up_to_quota(5, "regions", || device::try_region(&device, &one, READ, 0))?;
        device.destroy_region(regions[0]).at("DESTROY_REGION")?;
        device::region(&device, &area, READ, 0)?;
        link.turn()
    })?;
    // She has all that the quota allows.
    let (alice, _) = alice.receive()?;
    device::region(&device::knem()?, &area, READ, 0)?;
    alice.dismiss()
}

/// Makes them until one is refused: the one after `limit`, by the quota.
pub(super) fn up_to_quota<T>(
    limit: usize,
    what: &str,
    mut make: impl FnMut() -> std::io::Result<T>,
) -> Outcome<Vec<T>> {
    let mut made = Vec::new();
    let error = loop {
        match make() {
            Ok(one) => made.push(one),
            Err(error) => break error,
        }
        check!(made.len() <= limit, "more {what} than the quota allows");
    };
    refused(
        Err::<(), _>(error),
        &[libc::EDQUOT],
        format!("{what} beyond the quota"),
    )?;
    check_eq!(made.len(), limit, "{what} within the quota");
    Ok(made)
}

/// A user's subordinate users have no quota of their own, in a user namespace that the user made.
pub(super) fn quota_of_subordinate_users() -> Outcome {
    const FIRST: u32 = 200_000;
    let _quota = Parameter::set(SEGMENTS, "3")?;
    let _open = OpenToAll::device("/dev/onecopy")?;
    let user = peer(|link: &Link| {
        system::become_user(ALICE)?;
        let area = Area::new(page_size())?;
        let _first = device::export(&area, true)?;
        unshare(CloneFlags::CLONE_NEWUSER)
            .map_err(|error| Fault::Skip(format!("no user namespaces: unshare: {error}")))?;
        link.turn()?;
        system::become_user(1)?;
        let export = || device::try_export(area.base(), area.length() as u64, true);
        let _second = export().at("a second segment, by another user")?;
        let _third = export().at("a third segment")?;
        refused(
            export(),
            &[libc::EDQUOT],
            "a segment beyond the user's quota",
        )?;
        link.turn()
    })?;
    let (user, _) = user.receive()?;
    let map_users = |pid: Pid, first: u32| -> Outcome {
        let map = format!("0 {first} 1\n1 {FIRST} 8\n");
        for name in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{pid}/{name}"), &map).at(name)?;
        }
        Ok(())
    };
    map_users(user.pid(), ALICE)?;
    user.link.send(0)?;
    let mut rest = Vec::new();
    if user.link.receive().is_ok() {
        // Root's containers have a quota for each of their users.
        for inside in [1, 2] {
            let contained = peer(move |link: &Link| {
                unshare(CloneFlags::CLONE_NEWUSER).at("unshare")?;
                link.turn()?;
                system::become_user(inside)?;
                let area = Area::new(page_size())?;
                let all: Outcome<Vec<_>> = (0..3).map(|_| device::export(&area, true)).collect();
                let _all = all?;
                link.turn()
            })?;
            contained.link.receive()?;
            map_users(contained.pid(), 0)?;
            contained.link.send(0)?;
            contained.link.receive()?;
            rest.push(contained);
        }
        for contained in rest {
            contained.link.send(0)?;
            contained.join()?;
        }
        user.link.send(0)?;
    }
    user.join()
}

/// Each attachment, and each piece of one, makes changes of its owner's memory dearer, so a user has so many, not more.
pub(super) fn quota_of_attachments() -> Outcome {
    let _quota = Parameter::set("max_attachments", "5")?;
    let area = Area::new(size())?;
    area.fill(1);
    let segment = device::export(&area, true)?;
    let map = || device::try_map(&segment, 0, size(), true);
    peer(|_| {
        system::become_user(ALICE)?;
        let maps = up_to_quota(5, "attachments", map)?;
        let [first, second, third, ..] = maps.as_slice() else {
            return Ok(());
        };
        let middle = first.part(page_size(), page_size());
        refused(
            middle.protect(READ),
            &[libc::ENOMEM],
            "a piece beyond the quota",
        )?;
        first.verify(1)?;
        // What is given back counts no more.
        second.unmap()?;
        third.unmap()?;
        middle.protect(READ).at("mprotect of a piece")?;
        first.verify(1)?;
        refused(map(), &[libc::EDQUOT], "mmap beside three pieces")?;
        first.unmap()?;
        for _ in 0..3 {
            map().at("mmap in place of three pieces")?;
        }
        refused(map(), &[libc::EDQUOT], "mmap beyond the quota again")
    })?
    .join()?;
    // One user's quota is not another's.
    map().at("mmap by another user")?.verify(1)
}
