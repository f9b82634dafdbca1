// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the module shows of itself: /proc/onecopy, and fdinfo of descriptors.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getpid, getuid};

use crate::device::{self, export, get, knem, make, map, region};
use crate::mem::{Area, READ, WRITE, page_size};
use crate::outcome::{At, Outcome, check, check_eq};
use crate::peer::{Link, Peer, peer};
use crate::system::{self, OpenToAll};

fn size() -> usize {
    40 * page_size()
}
/// What every user may pin, also where the limit is that of old kernels.
fn pinned() -> usize {
    8 * page_size()
}
const ALICE: u32 = 1001;
const BOB: u32 = 1002;

const LISTS: [&str; 3] = ["exports", "pins", "users"];

fn open_list(name: &str) -> Outcome<File> {
    let path = format!("/proc/onecopy/{name}");
    File::open(&path).at(&path)
}

/// The lines of a list, without those that explain it.
fn list(name: &str) -> Outcome<Vec<String>> {
    read_list(name, open_list(name)?)
}

fn read_list(name: &str, mut file: File) -> Outcome<Vec<String>> {
    let mut text = String::new();
    file.read_to_string(&mut text).at(name)?;
    let (heads, lines): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with('#'));
    check_eq!(heads.len(), 1, "lines that explain {name}");
    Ok(lines.into_iter().map(str::to_owned).collect())
}

/// A fact of a descriptor.
fn fact(fd: BorrowedFd<'_>, name: &str) -> Outcome<String> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(&path).at(&path)?;
    let found = text.lines().find_map(|line| {
        let (key, value) = line.split_once(":\t")?;
        (key == name).then(|| value.to_owned())
    });
    check!(found.is_some(), "{path} has no {name}:\n{text}");
    Ok(found.unwrap_or_default())
}

fn fact_is(fd: BorrowedFd<'_>, name: &str, value: impl ToString) -> Outcome {
    check_eq!(fact(fd, name)?, value.to_string(), "{name}");
    Ok(())
}

/// A user's process that has exported memory by both interfaces and lives until it is told to end; its segment's id,
/// and the memory's address.
fn owner(user: u32) -> Outcome<(Peer, i64, u64)> {
    let owner = peer(move |link: &Link| {
        if user != getuid().as_raw() {
            system::become_user(user)?;
        }
        let area = Area::new(size())?;
        let xpmem = device::xpmem()?;
        let knem = knem()?;
        let segid = make(&xpmem, &area, 0o600)?;
        region(&knem, &area.part(0, pinned()), READ, 0)?;
        // Now there is all that the lists show.
        link.send(segid as u64)?;
        link.send(area.base() as u64)?;
        link.receive().map(|_| ())
    })?;
    let segid = owner.link.receive()? as i64;
    let base = owner.link.receive()?;
    Ok((owner, segid, base))
}

/// Runs a command that shows the lists while there is something in each: an export, what this process attached of it,
/// and a region. What it prints is passed on. It has to name the processes together, the region's owner with its
/// pages, a limit and a counter.
pub(crate) fn by_command(command: &[String]) -> Outcome<bool> {
    let (owner, segid, _) = owner(0)?;
    let device = device::xpmem()?;
    let apid = get(&device, segid as u64)?;
    let view = device::attach(&device, apid, 0, 3 * page_size())?;
    let Some((program, words)) = command.split_first() else {
        return Err(crate::outcome::Fault::Fail("no command".into()));
    };
    let output = std::process::Command::new(program)
        .args(words)
        .stderr(std::process::Stdio::inherit())
        .output()
        .at(program)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let _ = write!(std::io::stdout().lock(), "{text}");
    check!(output.status.success(), "{program}: {}", output.status);
    // JSON has no lines.
    let lines: Vec<&str> = match text.starts_with('{') {
        true => vec![&text],
        false => text.lines().collect(),
    };
    let (pages, owner_pid, importer) = (pinned() / page_size(), owner.pid(), getpid());
    for together in [
        vec![owner_pid.to_string(), importer.to_string()],
        vec![owner_pid.to_string(), pages.to_string()],
        vec!["max_segments".to_owned()],
        vec!["copied_bytes".to_owned()],
    ] {
        let has = |line: &&str| {
            let words: Vec<&str> = line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .collect();
            together.iter().all(|word| words.contains(&word.as_str()))
        };
        check!(
            lines.iter().any(has),
            "{program} does not say in one line: {together:?}"
        );
    }
    device::detach(&device, &view).at("DETACH")?;
    device.release(apid).at("RELEASE")?;
    owner.dismiss()?;
    Ok(true)
}

pub(super) fn exports() -> Outcome {
    let (owner, segid, base) = owner(0)?;
    let pid = owner.pid();
    let line = format!(
        "export {pid} uid 0 {base:#x} {size} mode 0600 alive",
        size = size()
    );
    check_eq!(list("exports")?, vec![line.clone()], "exports");
    let device = device::xpmem()?;
    let apid = get(&device, segid as u64)?;
    let view = device::attach(&device, apid, 2 * page_size(), 3 * page_size())?;
    // A second one, that is split in two.
    let other = device::attach(&device, apid, 0, 4 * page_size())?;
    other
        .part(page_size(), page_size())
        .protect(READ)
        .at("mprotect")?;
    let attached = |offset: usize, bytes: usize| {
        let at = base + offset as u64;
        format!("attached {} {bytes} at {at:#x}", getpid())
    };
    let all = [
        line.clone(),
        attached(2 * page_size(), 3 * page_size()),
        attached(0, 4 * page_size()),
    ];
    check_eq!(list("exports")?, all, "exports with attachments");
    device::detach(&device, &view).at("DETACH")?;
    check_eq!(
        list("exports")?,
        [line, attached(0, 4 * page_size())],
        "exports"
    );
    owner.dismiss()?;
    let gone = format!(
        "export {pid} uid 0 {base:#x} {size} mode 0600 owner-gone",
        size = size()
    );
    let lines = list("exports")?;
    // Closing the device revoked it, before its memory went.
    check!(
        lines[0] == gone || lines[0] == gone.replace("owner-gone", "revoked"),
        "what is left of an owner that has ended: {lines:?}"
    );
    device::detach(&device, &other).at("DETACH")?;
    device.release(apid).at("RELEASE")?;
    check_eq!(list("exports")?, [""; 0], "exports after everything");
    Ok(())
}

/// More than a page of text, which is read in pieces while segments come and go.
pub(super) fn many_exports() -> Outcome {
    let device = device::xpmem()?;
    let area = Area::new(size())?;
    let ids: Vec<i64> = (0..300)
        .map(|_| make(&device, &area, 0o600))
        .collect::<Outcome<_>>()?;
    check_eq!(list("exports")?.len(), 300, "exports");
    std::thread::scope(|scope| -> Outcome {
        let changes = scope.spawn(|| -> Outcome {
            for _ in 0..300 {
                let id = make(&device, &area, 0o600)?;
                device.remove(id).at("REMOVE")?;
            }
            Ok(())
        });
        while !changes.is_finished() {
            let lines = list("exports")?;
            check!(lines.len() >= 300, "{} of 300 exports", lines.len());
        }
        changes.join().unwrap_or(Ok(()))
    })?;
    for id in ids {
        device.remove(id).at("REMOVE")?;
    }
    check_eq!(list("exports")?.len(), 0, "exports");
    Ok(())
}

/// The list is made line by line, as far as it is read: a segment of many attachments is held up for none but one.
pub(super) fn attachments_one_by_one() -> Outcome {
    const MANY: usize = 3000;
    let area = Area::new(page_size())?;
    let segment = export(&area, false)?;
    let views: Vec<Area> = (0..MANY)
        .map(|_| map(&segment, page_size(), false))
        .collect::<Outcome<_>>()?;
    fact_is(segment.as_fd(), "onecopy-attachments", MANY)?;
    fact_is(segment.as_fd(), "onecopy-attached", MANY * page_size())?;
    let is_attached = |line: &&String| line.starts_with("attached ");
    let count = |lines: &[String]| lines.iter().filter(is_attached).count();
    check_eq!(
        count(&list("exports")?),
        MANY,
        "attachments that are listed"
    );
    let mut half = open_list("exports")?;
    let mut text = String::new();
    while !text.contains("attached ") || text.lines().count() < 3 {
        let mut part = [0; 512];
        let got = half.read(&mut part).at("reading a part of exports")?;
        check!(got > 0, "no attachment in {text}");
        text += &String::from_utf8_lossy(&part[..got]);
    }
    // What has not been read yet goes, but for the last.
    for view in &views[MANY / 2..MANY - 1] {
        view.unmap()?;
    }
    half.read_to_string(&mut text)
        .at("reading the rest of exports")?;
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    check_eq!(count(&lines), MANY / 2 + 1, "attachments that were left");
    for view in views[..MANY / 2].iter().chain(views.last()) {
        view.unmap()?;
    }
    fact_is(segment.as_fd(), "onecopy-attachments", 0)?;
    fact_is(segment.as_fd(), "onecopy-attached", 0)?;
    check_eq!(count(&list("exports")?), 0, "attachments after everything");
    Ok(())
}

pub(super) fn pins_and_users() -> Outcome {
    let (owner, ..) = owner(0)?;
    let line = format!(
        "pinned {} uid 0 8 {pinned} 1 r-",
        owner.pid(),
        pinned = pinned()
    );
    check_eq!(list("pins")?, vec![line.clone()], "pins");
    let device = knem()?;
    let area = Area::new(size())?;
    let flags = knem_sys::KNEM_FLAG_SINGLEUSE | knem_sys::KNEM_FLAG_ANY_USER_ACCESS;
    let cookie = region(&device, &area, READ | WRITE, flags)?;
    let mine = format!(
        "pinned {} uid 0 40 {size} 1 rw once any-user",
        getpid(),
        size = size()
    );
    check_eq!(list("pins")?, [line, mine], "pins");
    let user = "uid 0 segments 1 permits 0 regions 2 workers 0 attachments 0";
    check_eq!(list("users")?, [user], "users");
    device.destroy_region(cookie).at("DESTROY_REGION")?;
    owner.dismiss()?;
    check_eq!(list("pins")?, [""; 0], "pins after everything");
    check_eq!(list("users")?, [""; 0], "users after everything");
    Ok(())
}

/// A user sees what is its own, and nothing of others; nor from another user namespace, where it is root.
pub(super) fn to_whom() -> Outcome {
    let _xpmem = OpenToAll::device("/dev/xpmem")?;
    let _knem = OpenToAll::device("/dev/knem")?;
    let (root, ..) = owner(0)?;
    let (alice, ..) = owner(ALICE)?;
    let lists = |user: u32, namespace: bool| -> Outcome<[usize; 3]> {
        let reader = peer(move |link: &Link| {
            system::become_user(user)?;
            if namespace {
                system::become_namespace_root()?;
            }
            for name in LISTS {
                link.send(list(name)?.len() as u64)?;
            }
            Ok(())
        })?;
        let mut lengths = [0; 3];
        for length in &mut lengths {
            *length = reader.link.receive()? as usize;
        }
        reader.join()?;
        Ok(lengths)
    };
    check_eq!(lists(ALICE, false)?, [1, 1, 1], "what Alice sees");
    check_eq!(lists(BOB, false)?, [0, 0, 0], "what Bob sees");
    check_eq!(
        lists(ALICE, true)?,
        [0, 0, 1],
        "what Alice sees as root of a namespace"
    );
    check_eq!(list("exports")?.len(), 2, "what root sees");
    check_eq!(list("users")?.len(), 2, "users that root sees");
    alice.dismiss()?;
    root.dismiss()
}

/// It is the opener that is asked. It may hand the list to a reader with other rights, such as a program with
/// privileges that copies its input.
pub(super) fn to_whom_opened_it() -> Outcome {
    let _xpmem = OpenToAll::device("/dev/xpmem")?;
    let _knem = OpenToAll::device("/dev/knem")?;
    let (root, ..) = owner(0)?;
    let (alice, ..) = owner(ALICE)?;
    let opener = peer(|link: &Link| {
        system::become_user(ALICE)?;
        for name in LISTS {
            link.give(open_list(name)?.as_fd())?;
        }
        Ok(())
    })?;
    for name in LISTS {
        let file = File::from(opener.link.take()?);
        let lines = read_list(name, file)?;
        check_eq!(lines.len(), 1, "{name} that Alice opened, for root");
    }
    opener.join()?;
    let files: Vec<File> = LISTS.into_iter().map(open_list).collect::<Outcome<_>>()?;
    let reader = peer(move |_| {
        system::become_user(BOB)?;
        for (name, file) in LISTS.into_iter().zip(files) {
            let lines = read_list(name, file)?;
            check_eq!(lines.len(), 2, "{name} that root opened, for Bob");
        }
        Ok(())
    })?;
    reader.join()?;
    alice.dismiss()?;
    root.dismiss()
}

/// Processes have the numbers of the reader's pid namespace.
pub(super) fn numbers_of_processes() -> Outcome {
    let (outside, _, base) = owner(0)?;
    peer(move |_| {
        unshare(CloneFlags::CLONE_NEWPID).at("unshare")?;
        peer(move |_| {
            check_eq!(getpid().as_raw(), 1, "number in the namespace");
            let area = Area::new(size())?;
            let _segment = export(&area, true)?;
            let own = format!(
                "export 1 uid 0 {:#x} {size} mode 0000 alive",
                area.base(),
                size = size()
            );
            let theirs = format!(
                "export 0 uid 0 {base:#x} {size} mode 0600 alive",
                size = size()
            );
            check_eq!(list("exports")?, [theirs, own], "exports in the namespace");
            Ok(())
        })?
        .join()
    })?
    .join()?;
    outside.dismiss()
}

pub(super) fn descriptors() -> Outcome {
    let area = Area::new(size())?;
    let xpmem = device::xpmem()?;
    let segid = make(&xpmem, &area, 0o600)?;
    let apid = get(&xpmem, segid as u64)?;
    fact_is(xpmem.as_fd(), "xpmem-opener", getpid())?;
    fact_is(xpmem.as_fd(), "xpmem-segments", 1)?;
    fact_is(xpmem.as_fd(), "xpmem-bytes", size())?;
    fact_is(xpmem.as_fd(), "xpmem-permits", 1)?;
    xpmem.release(apid).at("RELEASE")?;
    fact_is(xpmem.as_fd(), "xpmem-permits", 0)?;

    let knem = knem()?;
    region(&knem, &area, READ, 0)?;
    fact_is(knem.as_fd(), "knem-regions", 1)?;
    fact_is(knem.as_fd(), "knem-pinned-pages", 40)?;
    fact_is(knem.as_fd(), "knem-statuses", 0)?;
    let _status = knem.map_status(1).at("mmap of the status array")?;
    fact_is(knem.as_fd(), "knem-statuses", page_size())?;
    fact_is(knem.as_fd(), "knem-queued", 0)?;

    let onecopy = device::onecopy()?;
    fact_is(onecopy.as_fd(), "onecopy-abi", 1)?;
    let segment = export(&area, true)?;
    let reader = segment.restrict(false).at("RESTRICT")?;
    fact_is(segment.as_fd(), "onecopy-owner", getpid())?;
    fact_is(
        segment.as_fd(),
        "onecopy-address",
        format!("{:#x}", area.base()),
    )?;
    fact_is(segment.as_fd(), "onecopy-length", size())?;
    fact_is(segment.as_fd(), "onecopy-rights", "rw")?;
    fact_is(reader.as_fd(), "onecopy-rights", "r")?;
    fact_is(segment.as_fd(), "onecopy-attachments", 0)?;
    map(&segment, 3 * page_size(), true)?;
    fact_is(reader.as_fd(), "onecopy-attachments", 1)?;
    fact_is(reader.as_fd(), "onecopy-attached", 3 * page_size())?;
    segment.revoke().at("REVOKE")?;
    fact_is(reader.as_fd(), "onecopy-state", "revoked")
}

/// What scripts for other implementations ask: as much was unpinned as was pinned.
pub(super) fn pages_of_xpmem() -> Outcome {
    let text =
        std::fs::read_to_string("/proc/xpmem/global_pages").at("/proc/xpmem/global_pages")?;
    let number = |what: &str| {
        text.lines()
            .find(|line| line.contains(what))
            .and_then(|line| line.rsplit_once(": ")?.1.parse::<u64>().ok())
    };
    check!(number("pages pinned").is_some(), "no pages pinned: {text}");
    check_eq!(number("pages pinned"), number("pages unpinned"), "pages");
    Ok(())
}
