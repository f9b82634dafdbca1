// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an owner does with memory that others have attached: they see what it sees, and can do no more than it can.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;

use libc::{SIGBUS, SIGSEGV};

use crate::device::{self, attach_all, make};
use crate::mem::{Area, NONE, READ, WRITE, mix, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq};
use crate::peer::{self, Link, Peer, peer};
use crate::system;

fn size() -> usize {
    16 * page_size()
}

/// A process that attaches a segment of this one, for reading and writing, in legacy mode. It loads and stores as it is
/// told.
fn importer(area: &Area) -> Outcome<(Peer, xpmem_sys::Device)> {
    let device = device::xpmem()?;
    let segid = make(&device, area, 0o600)?;
    let size = area.length();
    let other = peer(move |link: &Link| {
        let view = attach_all(&device::xpmem()?, segid as u64, size)?;
        loop {
            let (what, offset, value) =
                (link.receive()?, link.receive()? as usize, link.receive()?);
            let answer = match what {
                0 => return Ok(()),
                1 => view.try_load(offset),
                _ => view.try_store(offset, value).map(|()| 0),
            };
            link.send(answer.unwrap_or_default())?;
            link.send(answer.err().unwrap_or_default() as u64)?;
        }
    })?;
    Ok((other, device))
}

fn ask(other: &Peer, what: u64, offset: usize, value: u64) -> Outcome<Result<u64, i32>> {
    for word in [what, offset as u64, value] {
        other.link.send(word)?;
    }
    let (value, signal) = (other.link.receive()?, other.link.receive()?);
    Ok(if signal == 0 {
        Ok(value)
    } else {
        Err(signal as i32)
    })
}

fn load(other: &Peer, offset: usize) -> Outcome<Result<u64, i32>> {
    ask(other, 1, offset, 0)
}

fn store(other: &Peer, offset: usize, value: u64) -> Outcome<Result<(), i32>> {
    Ok(ask(other, 2, offset, value)?.map(|_| ()))
}

fn end(other: Peer) -> Outcome {
    for word in [0, 0, 0] {
        other.link.send(word)?;
    }
    other.join()
}

/// Whether a store was refused by a signal.
fn refused_store(result: Result<(), i32>) -> bool {
    matches!(result, Err(SIGBUS | SIGSEGV))
}

/// A file of so many pages with known words.
fn file(name: &str) -> Outcome<(File, String)> {
    let path = format!("/tmp/{name}-{}", std::process::id());
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .at(&path)?;
    file.write_all(&content()).at(&path)?;
    Ok((file, path))
}

fn content() -> Vec<u8> {
    (0..size() / 8)
        .flat_map(|word| mix(1, word * 8).to_ne_bytes())
        .collect()
}

/// Fails unless the file still is what it was.
fn untouched(path: &str) -> Outcome {
    let now = std::fs::read(path).at(path)?;
    check!(now == content(), "the file changed");
    std::fs::remove_file(path).at(path)
}

pub(super) fn zero_page() -> Outcome {
    let area = Area::new(size())?;
    let bystander = Area::new(size())?;
    // All read only so far: both map the zero page, which the whole system shares.
    for page in 0..area.pages() {
        check_eq!(
            area.load(page * page_size()) + bystander.load(page * page_size()),
            0,
            "fresh memory"
        );
    }
    let (other, _device) = importer(&area)?;
    check_eq!(load(&other, 0)?, Ok(0), "a load");
    check_eq!(store(&other, 0, 5)?, Ok(()), "a store");
    check_eq!(
        store(&other, 3 * page_size(), 6)?,
        Ok(()),
        "a store to a page that was not loaded"
    );
    check_eq!(
        (area.load(0), area.load(3 * page_size())),
        (5, 6),
        "what the owner sees"
    );
    for page in 0..bystander.pages() {
        check_eq!(
            bystander.load(page * page_size()),
            0,
            "memory that nobody stored to"
        );
    }
    check_eq!(
        load(&other, 4 * page_size())?,
        Ok(0),
        "a page that nobody stored to"
    );
    end(other)
}

/// An importer that goes through memory in order has more of it made present, but only of the mapping that it reads.
/// What lies behind may be a file whose server has to be waited for, or that counts as written then.
pub(super) fn pages_ahead_are_of_one_mapping() -> Outcome {
    let page = page_size();
    let area = Area::new(8 * page)?;
    // Another mapping, though of memory like the first.
    area.advise(2 * page, 6 * page, libc::MADV_DONTFORK)?;
    let device = device::xpmem()?;
    let segid = make(&device, &area, 0o600)?;
    let own = attach_all(&device::xpmem()?, segid as u64, area.length())?;
    for at in 0..2 {
        own.try_load(at * page)
            .map_err(|signal| Fault::Fail(format!("signal {signal} at page {at}")))?;
    }
    for at in 0..8 {
        check_eq!(
            system::page_is_present(&area, at * page)?,
            at < 2,
            "page {at} is there"
        );
    }
    own.try_load(2 * page)
        .map_err(|signal| Fault::Fail(format!("signal {signal} behind the first mapping")))?;
    check!(
        system::page_is_present(&area, 2 * page)?,
        "the page was asked for"
    );
    Ok(())
}

pub(super) fn private_file() -> Outcome {
    let (file, path) = file("private")?;
    let area = Area::file(file.as_fd(), size(), READ | WRITE, false)?;
    let (other, _device) = importer(&area)?;
    check_eq!(store(&other, 0, 5)?, Ok(()), "a store");
    check_eq!(area.load(0), 5, "what the owner sees");
    area.store(page_size(), 6);
    check_eq!(load(&other, page_size())?, Ok(6), "what the importer sees");
    end(other)?;
    untouched(&path)
}

pub(super) fn private_file_read_first() -> Outcome {
    let (file, path) = file("read-first")?;
    let area = Area::file(file.as_fd(), size(), READ | WRITE, false)?;
    for page in 0..area.pages() {
        check_eq!(
            area.load(page * page_size()),
            mix(1, page * page_size()),
            "the owner's load"
        );
    }
    let (other, _device) = importer(&area)?;
    for page in 0..area.pages() {
        check_eq!(
            load(&other, page * page_size())?,
            Ok(mix(1, page * page_size())),
            "a load"
        );
    }
    for page in 0..area.pages() {
        check_eq!(
            store(&other, page * page_size(), 7)?,
            Ok(()),
            "a store after a load"
        );
        check_eq!(area.load(page * page_size()), 7, "what the owner sees");
    }
    end(other)?;
    untouched(&path)
}

pub(super) fn read_only_file() -> Outcome {
    let (_, path) = file("read-only")?;
    let reader = File::open(&path).at(&path)?;
    for shared in [false, true] {
        let area = Area::file(reader.as_fd(), size(), READ, shared)?;
        let (other, _device) = importer(&area)?;
        for (page, read_first) in [(0, true), (1, false)] {
            if read_first {
                check_eq!(
                    load(&other, page * page_size())?,
                    Ok(mix(1, page * page_size())),
                    "a load"
                );
            }
            let stored = store(&other, page * page_size(), 5)?;
            check!(
                refused_store(stored),
                "a store where the owner may not: {stored:?}"
            );
            check_eq!(
                area.load(page * page_size()),
                mix(1, page * page_size()),
                "what the owner sees"
            );
        }
        end(other)?;
    }
    untouched(&path)
}

pub(super) fn read_only_pages() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let (other, _device) = importer(&area)?;
    check_eq!(store(&other, 0, 5)?, Ok(()), "a store");
    // Taken away from under a writable attachment, given back, taken away again.
    for round in 0..3u64 {
        area.protect(READ).at("mprotect")?;
        check_eq!(load(&other, 8)?, Ok(mix(1, 8)), "a load");
        for offset in [0, page_size()] {
            let stored = store(&other, offset, 50 + round)?;
            check!(
                refused_store(stored),
                "a store where the owner may not: {stored:?}"
            );
        }
        area.protect(NONE).at("mprotect")?;
        let loaded = load(&other, 8)?;
        check!(
            matches!(loaded, Err(SIGBUS | SIGSEGV)),
            "a load where the owner may not: {loaded:?}"
        );
        area.protect(READ | WRITE).at("mprotect")?;
        check_eq!(
            store(&other, 0, 60 + round)?,
            Ok(()),
            "a store where the owner may again"
        );
        check_eq!(area.load(0), 60 + round, "what the owner sees");
    }
    end(other)
}

pub(super) fn fork() -> Outcome {
    for importer_first in [false, true] {
        let area = Area::new(size())?;
        area.fill(1);
        let (other, _device) = importer(&area)?;
        check_eq!(store(&other, 0, 10)?, Ok(()), "a store before the fork");
        check_eq!(
            load(&other, page_size())?,
            Ok(mix(1, page_size())),
            "a load before the fork"
        );
        let child = peer(|link: &Link| {
            link.turn()?;
            check_eq!(area.load(0), 10, "the child's copy");
            check_eq!(
                area.load(page_size()),
                mix(1, page_size()),
                "the child's copy"
            );
            area.store(2 * page_size(), 99);
            link.turn()
        })?;
        child.link.receive()?;
        if importer_first {
            check_eq!(store(&other, 0, 11)?, Ok(()), "a store after the fork");
            check_eq!(area.load(0), 11, "what the owner sees");
            area.store(page_size(), 12);
            check_eq!(load(&other, page_size())?, Ok(12), "what the importer sees");
        } else {
            area.store(0, 11);
            check_eq!(load(&other, 0)?, Ok(11), "what the importer sees");
            check_eq!(
                store(&other, page_size(), 12)?,
                Ok(()),
                "a store after the fork"
            );
            check_eq!(area.load(page_size()), 12, "what the owner sees");
        }
        child.link.turn()?;
        check_eq!(
            load(&other, 2 * page_size())?,
            Ok(mix(1, 2 * page_size())),
            "the child's store"
        );
        child.dismiss()?;
        check_eq!(
            store(&other, 0, 13)?,
            Ok(()),
            "a store after the child's end"
        );
        check_eq!(area.load(0), 13, "what the owner sees");
        end(other)?;
    }
    Ok(())
}

/// Pages become writable without a word to anybody: a child that shared them has gone. Processors of importers remember
/// that they were not, and a store may not fault for ever by that.
pub(super) fn store_after_reading() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let (other, _device) = importer(&area)?;
    let child = peer(|link: &Link| link.turn())?;
    child.link.receive()?;
    for at in (0..size()).step_by(page_size()) {
        check_eq!(load(&other, at)?, Ok(mix(1, at)), "a load at {at:#x}");
    }
    child.dismiss()?;
    let before = device::stats()?;
    for at in (0..size()).step_by(page_size()) {
        area.store(at, 5);
        check_eq!(store(&other, at + 8, 6)?, Ok(()), "a store at {at:#x}");
        check_eq!(area.load(at + 8), 6, "what the owner sees at {at:#x}");
        check_eq!(load(&other, at)?, Ok(5), "the owner's store at {at:#x}");
    }
    let faults = device::stats()?.faults - before.faults;
    // Each store may find its page taken away once.
    let most = 4 * area.pages() as u64;
    check!(faults <= most, "{faults} faults, and at most {most}");
    end(other)
}

pub(super) fn fork_storm() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let (other, _device) = importer(&area)?;
    for round in 0..100u64 {
        let child = peer(|_| Ok(()))?;
        let offset = (round as usize % 16) * page_size();
        if round % 2 == 0 {
            area.store(offset, round);
            check_eq!(load(&other, offset)?, Ok(round), "what the importer sees");
        } else {
            check_eq!(store(&other, offset, round)?, Ok(()), "a store");
            check_eq!(area.load(offset), round, "what the owner sees");
        }
        child.join()?;
    }
    end(other)
}

pub(super) fn mremap() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let (other, _device) = importer(&area)?;
    check_eq!(load(&other, 0)?, Ok(mix(1, 0)), "a load");
    let place = Area::new(size())?;
    let moved = area
        .remap(
            size(),
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            Some(&place),
        )
        .at("mremap")?;
    for page in 0..area.pages() {
        check_eq!(
            load(&other, page * page_size())?,
            Err(SIGBUS),
            "a load from where the memory was"
        );
    }
    // And back: the pages are the same.
    moved.store(0, 70);
    moved
        .remap(
            size(),
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            Some(&area),
        )
        .at("mremap")?;
    check_eq!(
        load(&other, 0)?,
        Ok(70),
        "a load after the memory came back"
    );
    check_eq!(store(&other, 8, 71)?, Ok(()), "a store");
    check_eq!(area.load(8), 71, "what the owner sees");
    end(other)
}

/// The importer sees new memory at once, whichever thread or process maps it.
fn maps_over(by: fn(Area) -> Outcome) -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let (other, _device) = importer(&area)?;
    for round in 0..20u64 {
        check_eq!(store(&other, 0, 1000 + round)?, Ok(()), "a store");
        by(area)?;
        check_eq!(load(&other, 0)?, Ok(0), "fresh memory in round {round}");
        area.store(0, 2000 + round);
        check_eq!(
            load(&other, 0)?,
            Ok(2000 + round),
            "what the owner stored in round {round}"
        );
    }
    end(other)
}

pub(super) fn maps_over_from_a_thread() -> Outcome {
    maps_over(|area| {
        std::thread::spawn(move || area.replace())
            .join()
            .map_err(|_| Fault::Fail("the thread ended badly".to_owned()))?
    })
}

pub(super) fn maps_over_from_a_sharing_task() -> Outcome {
    maps_over(|area| {
        let mut result = Ok(());
        peer::in_sharing_task(&mut || result = area.replace())?;
        result
    })
}

pub(super) fn gives_pages_back() -> Outcome {
    maps_over(|area| area.advise(0, size(), libc::MADV_DONTNEED))
}

pub(super) fn shared_memory() -> Outcome {
    let area = Area::shared(size())?;
    area.fill(1);
    let (other, _device) = importer(&area)?;
    check_eq!(store(&other, 0, 5)?, Ok(()), "a store");
    check_eq!(
        load(&other, page_size())?,
        Ok(mix(1, page_size())),
        "a load"
    );
    let child = peer(|_| {
        check_eq!(area.load(0), 5, "what a child that shares the memory sees");
        area.store(8, 6);
        Ok(())
    })?;
    child.join()?;
    check_eq!(load(&other, 8)?, Ok(6), "what the child stored");
    end(other)
}

pub(super) fn exit_of_the_importer() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    for round in 0..20u64 {
        let (other, device) = importer(&area)?;
        check_eq!(store(&other, 0, round)?, Ok(()), "a store");
        check_eq!(
            load(&other, page_size())?,
            Ok(mix(1, page_size())),
            "a load"
        );
        other.kill()?;
        check_eq!(area.load(0), round, "what the owner sees");
        area.store(0, 0);
        drop(device);
    }
    Ok(())
}

/// A page becomes writable for its owner without an announcement, as after a fork whose child has gone. An attachment
/// has seen it before, and read it. Another one, out of step with that, may store to it.
pub(super) fn store_beside_an_older_look() -> Outcome {
    let part = 128 * page_size();
    let owner = peer(move |link: &Link| {
        let area = Area::new(2 * part)?;
        area.mark(1);
        let child = peer::fork_plain(|| Ok(()))?;
        peer::wait_for(child, peer::PATIENCE)?;
        link.give(device::export(&area, true)?.as_fd())?;
        link.receive()?;
        check_eq!(area.load(part / 2), 7, "what was stored by the second");
        Ok(())
    })?;
    let segment = device::segment(owner.link.take()?);
    let view = |offset: usize| device::try_map(&segment, offset as u64, part, true).at("mmap");
    let (first, second) = (view(0)?, view(part / 4)?);
    first.load(part / 2);
    second.store(part / 4, 7);
    check_eq!(first.load(part / 2), 7, "by the first");
    owner.dismiss()
}
