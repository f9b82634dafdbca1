// SPDX-License-Identifier: MIT OR Apache-2.0
//! What attachments keep from one another and from their owner, and what a debugger sees of them.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use libc::{EINVAL, SIGSEGV};

use crate::device::{self, attach_over, export, get, make, map};
use crate::mappings;
use crate::mem::{Area, READ, mix, page_size};
use crate::outcome::{At, Outcome, check, check_eq, refused};
use crate::peer::{Link, peer};

fn size() -> usize {
    16 * page_size()
}

/// Two attachments of one permit that lie side by side, as if they were one.
pub(super) fn detach_of_a_neighbour() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let device = device::xpmem()?;
    let apid = get(&device, make(&device, &area, 0o600)? as u64)?;
    for by_first in [true, false] {
        let place = Area::new(size())?;
        let (low, high) = (
            place.part(0, size() / 2),
            place.part(size() / 2, size() / 2),
        );
        attach_over(&device, apid, 0, &low).at("ATTACH")?;
        attach_over(&device, apid, size() / 2, &high).at("ATTACH beside it")?;
        let (gone, left) = if by_first { (low, high) } else { (high, low) };
        // mprotect() splits one into pieces, which belong together.
        gone.part(page_size(), page_size())
            .protect(READ)
            .at("mprotect")?;
        device::detach(&device, &gone).at("DETACH")?;
        for page in 0..gone.pages() {
            check_eq!(
                gone.try_load(page * page_size()),
                Err(SIGSEGV),
                "a detached page"
            );
        }
        let offset = left.base() - place.base();
        for page in 0..left.pages() {
            let at = offset + page * page_size();
            check_eq!(
                left.try_load(page * page_size()),
                Ok(mix(1, at)),
                "a page of the neighbour"
            );
        }
        device::detach(&device, &left).at("DETACH of the neighbour")?;
    }
    Ok(())
}

/// An attachment cannot take the place of what it shows.
pub(super) fn attach_over_the_source() -> Outcome {
    let area = Area::new(size())?;
    area.fill(2);
    let device = device::xpmem()?;
    let apid = get(&device, make(&device, &area, 0o600)? as u64)?;
    // All of it, its begin, its end; the source of each is what is shown.
    let (first, last) = (
        area.part(0, page_size()),
        area.part(size() - page_size(), page_size()),
    );
    for (offset, over) in [(0, area), (0, first), (size() - page_size(), last)] {
        refused(
            attach_over(&device, apid, offset, &over),
            &[EINVAL],
            "ATTACH over its own source",
        )?;
    }
    area.verify(2)?;
    // Beside it there is nothing against it.
    let place = Area::new(size())?;
    attach_over(&device, apid, 0, &place).at("ATTACH at a place")?;
    place.verify(2)
}

/// What one importer writes to a hole, no other can read there.
pub(super) fn holes_are_not_shared() -> Outcome {
    let area = Area::new(size())?;
    area.fill(3);
    let segment = export(&area, true)?;
    area.part(page_size(), 2 * page_size()).unmap()?;
    let other = peer(|link: &Link| {
        let view = map(&segment, size(), true)?;
        link.turn()?;
        // Makes the page writable, and leaves the word after it.
        view.store(page_size(), 1);
        for offset in (page_size() + 8..2 * page_size()).step_by(8) {
            check_eq!(
                view.load(offset),
                0,
                "a word that another wrote to the hole"
            );
        }
        link.turn()?;
        for offset in (page_size() + 8..2 * page_size()).step_by(8) {
            check_eq!(
                view.load(offset),
                0,
                "a word that another wrote to the hole"
            );
        }
        Ok(())
    })?;
    let view = map(&segment, size(), true)?;
    other.link.receive()?;
    view.store(page_size(), 7);
    other.link.turn()?;
    for offset in (page_size() + 8..2 * page_size()).step_by(8) {
        view.store(offset, 0x5ec2e7);
    }
    other.dismiss()
}

/// An importer that only reads costs the owner no memory, whatever was there before.
pub(super) fn reads_allocate_nothing() -> Outcome {
    const PAGES: usize = 1024;
    let area = Area::new(PAGES * page_size())?;
    area.mark(4);
    let segment = export(&area, false)?;
    let other = peer(|link: &Link| {
        let view = map(&segment, PAGES * page_size(), false)?;
        link.turn()?;
        view.verify_marks(4)?;
        link.turn()?;
        for page in (0..PAGES).step_by(PAGES / 8) {
            check_eq!(
                view.load(page * page_size()),
                0,
                "a page that its owner gave back"
            );
        }
        link.turn()
    })?;
    other.link.receive()?;
    // The fork made the pages common: they are the owner's own, and writable, from here on.
    area.mark(4);
    other.link.turn()?;
    area.advise(0, area.length(), libc::MADV_DONTNEED)?;
    check_eq!(mappings::anonymous(&area)?, 0, "KiB that were given back");
    other.link.turn()?;
    check_eq!(
        mappings::anonymous(&area)?,
        0,
        "KiB that 8 words that were read cost their owner"
    );
    other.dismiss()
}

/// An owner that filled anew what it gave back, and does so no more, pays a few times for what is read.
pub(super) fn reads_after_refills_cost_little() -> Outcome {
    const PAGES: usize = 64;
    const ROUNDS: usize = 16;
    // As often as the module expects that the owner goes on.
    const EXPECTED: usize = 8;
    let area = Area::new(PAGES * page_size())?;
    let segment = export(&area, false)?;
    let other = peer(|link: &Link| {
        let view = map(&segment, PAGES * page_size(), false)?;
        link.turn()?;
        view.verify_marks(4)?;
        for _ in 0..=ROUNDS {
            link.turn()?;
            check_eq!(view.load(0), 0, "a page that its owner gave back");
        }
        link.turn()
    })?;
    other.link.receive()?;
    area.mark(4);
    other.link.turn()?;
    let give_back = || area.advise(0, area.length(), libc::MADV_DONTNEED);
    // Some of it is filled anew before the other looks.
    give_back()?;
    area.store((PAGES - 1) * page_size(), 1);
    other.link.turn()?;
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        give_back()?;
        other.link.turn()?;
        costs.push(mappings::anonymous(&area)?);
    }
    check!(
        costs[EXPECTED..].iter().all(|cost| *cost == 0),
        "KiB that a word cost each time: {costs:?}"
    );
    other.dismiss()
}

/// `/proc/PID/mem` shows an attachment as any memory, and stores where its process may.
pub(super) fn debugger() -> Outcome {
    let area = Area::new(size())?;
    area.fill(5);
    let segment = export(&area, true)?;
    let other = peer(|link: &Link| {
        for write in [true, false] {
            let view = map(&segment, size(), write)?;
            link.send(view.base() as u64)?;
        }
        link.receive().map(|_| ())
    })?;
    let path = format!("/proc/{}/mem", other.pid());
    let mem = OpenOptions::new().read(true).write(true).open(path);
    let mem = mem.at("open /proc/PID/mem")?;
    for writable in [true, false] {
        let base = other.link.receive()?;
        let mut word = [0; 8];
        for offset in [0, 8, page_size(), size() - 8] {
            mem.read_exact_at(&mut word, base + offset as u64)
                .at("read of /proc/PID/mem")?;
            check_eq!(u64::from_ne_bytes(word), area.load(offset), "a word");
        }
        let mut bytes = vec![0; 3 * page_size()];
        mem.read_exact_at(&mut bytes, base + 8)
            .at("read of /proc/PID/mem")?;
        let words = bytes.as_chunks::<8>().0.iter();
        for (bytes, offset) in words.zip((8..).step_by(8)) {
            check_eq!(u64::from_ne_bytes(*bytes), area.load(offset), "a word");
        }
        let stored = mem.write_at(&99u64.to_ne_bytes(), base + 16);
        if writable {
            check_eq!(stored.at("write to /proc/PID/mem")?, 8, "bytes stored");
            check_eq!(area.load(16), 99, "what a debugger stored");
            area.store(16, mix(5, 16));
        } else {
            check!(stored.is_err(), "a debugger stored where nobody may");
            check_eq!(area.load(16), mix(5, 16), "a word that nobody may store");
        }
    }
    other.dismiss()
}
