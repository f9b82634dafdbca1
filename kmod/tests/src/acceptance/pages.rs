// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel does with an owner's pages: huge ones, merged ones, moved and swapped ones.

use std::fs;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use libc::EAGAIN;
use onecopy_sys::{CopyEnd, ONECOPY_FEATURE_SNAPSHOT};

use crate::device::{self, attach, attach_all, export, make, map, region};
use crate::mem::{Area, HUGE, READ, WRITE, huge_page, mix, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq, refused};
use crate::peer::{Link, Peer, peer};
use crate::system;

/// Bytes of this process's memory at a place that are in huge pages.
fn huge_bytes(area: &Area) -> Outcome<u64> {
    let maps = fs::read_to_string("/proc/self/smaps").at("/proc/self/smaps")?;
    let (mut inside, mut bytes) = (false, 0);
    for line in maps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) = (
                usize::from_str_radix(start, 16),
                usize::from_str_radix(end, 16),
            )
        {
            inside = start < area.end() && end > area.base();
        } else if inside && first == "AnonHugePages:" {
            let kilobytes: u64 = line
                .split_whitespace()
                .nth(1)
                .and_then(|number| number.parse().ok())
                .unwrap_or(0);
            bytes += kilobytes * 1024;
        }
    }
    Ok(bytes)
}

/// Memory in huge pages; skips where the kernel gives none.
pub(super) fn huge_area(size: usize) -> Outcome<Area> {
    let area = Area::huge(size)?;
    area.mark(1);
    if huge_bytes(&area)? < size as u64 {
        return Err(Fault::Skip("the kernel gave no huge pages".to_owned()));
    }
    Ok(area)
}

/// A huge mapping comes while another thread takes away what is there. Kernels before 6.5 took the new one for a broken
/// table, which their log shows.
pub(super) fn huge_pages_come_while_others_go() -> Outcome {
    let huge = huge_page();
    let area = huge_area(huge)?;
    let device = device::xpmem()?;
    let segid = make(&device, &area, 0o600)?;
    peer(move |_| {
        let (device, maps_ahead) = (device::xpmem()?, device::onecopy()?);
        let apid = device::get(&device, segid as u64)?;
        let place = attach(&device, apid, 0, huge)?;
        let (base, (going, over)) = (place.base(), channel::<()>());
        std::thread::scope(|threads| {
            threads.spawn(move || {
                while over.try_recv() == Err(TryRecvError::Empty) {
                    // There may be no attachment just now.
                    let _ = maps_ahead.prefault(base, huge as u64, false);
                }
            });
            let begin = Instant::now();
            let outcome = (|| {
                while begin.elapsed() < Duration::from_secs(3) {
                    device::detach(&device, &place).at("DETACH")?;
                    device::attach_over(&device, apid, 0, &place).at("ATTACH")?;
                }
                place.verify_marks(1)
            })();
            drop(going);
            outcome
        })
    })?
    .join()
}

pub(super) fn huge_pages() -> Outcome {
    let huge = huge_page();
    let size = 4 * huge;
    let area = huge_area(size)?;
    let device = device::onecopy()?;
    let segment = export(&area, true)?;
    let features = device.info().at("INFO")?.features;
    let importer = peer(|link: &Link| {
        let before = device.stats().at("STATS")?;
        let view = map(&segment, size, true)?;
        view.verify_marks(1)?;
        let after = device.stats().at("STATS")?;
        if features & onecopy_sys::ONECOPY_FEATURE_HUGE != 0 {
            let mapped = after.mapped_huge - before.mapped_huge;
            check!(mapped >= 4, "{mapped} huge mappings of 4 huge pages");
            check!(
                after.faults - before.faults <= 16,
                "{} faults",
                after.faults - before.faults
            );
        }
        view.store(8, 5);
        // A part of a huge mapping goes: the rest stays.
        view.part(huge + 5 * page_size(), 3 * page_size()).unmap()?;
        check_eq!(view.load(huge), mix(1, huge), "before the unmapped part");
        check_eq!(
            view.load(huge + 8 * page_size()),
            mix(1, huge + 8 * page_size()),
            "behind it"
        );
        check_eq!(
            view.try_load(huge + 6 * page_size()).err(),
            Some(libc::SIGSEGV),
            "in it"
        );
        view.part(2 * huge + 4 * page_size(), page_size())
            .protect(READ)
            .at("mprotect of a part")?;
        check_eq!(
            view.load(2 * huge + 4 * page_size()),
            mix(1, 2 * huge + 4 * page_size()),
            "a protected part"
        );
        check_eq!(
            view.try_store(2 * huge + 4 * page_size(), 1).err(),
            Some(libc::SIGSEGV),
            "a store to a protected part"
        );
        view.store(2 * huge + 5 * page_size() + 8, 6);
        link.turn()?;
        // The owner unmapped a page in the middle.
        check_eq!(
            view.try_load(3 * huge + 7 * page_size()),
            Ok(0),
            "the owner's hole"
        );
        check_eq!(
            view.load(3 * huge + 8 * page_size()),
            mix(1, 3 * huge + 8 * page_size()),
            "behind the owner's hole"
        );
        view.store(3 * huge + 8, 7);
        Ok(())
    })?;
    importer.link.receive()?;
    area.part(3 * huge + 7 * page_size(), page_size()).unmap()?;
    importer.dismiss()?;
    check_eq!(area.load(8), 5, "what was stored through a huge mapping");
    check_eq!(
        area.load(2 * huge + 5 * page_size() + 8),
        6,
        "what was stored beside a protected part"
    );
    check_eq!(area.load(3 * huge + 8), 7, "what was stored beside a hole");
    // An attachment at an odd offset cannot be huge, and is right all the same.
    let legacy = device::xpmem()?;
    let segid = make(&legacy, &area.part(page_size(), 2 * huge), 0o600)?;
    peer(move |_| {
        let view = attach_all(&device::xpmem()?, segid as u64, 2 * huge)?;
        for at in (0..2 * huge).step_by(page_size()) {
            check_eq!(
                view.load(at),
                mix(1, at + page_size()),
                "offset {at:#x} of a shifted attachment"
            );
        }
        Ok(())
    })?
    .join()
}

/// The kernel's huge zero page, which stands for memory that was only looked at, in an attachment beside huge
/// pages of the importer's own.
pub(super) fn huge_zeroes() -> Outcome {
    let huge = huge_page();
    let size = 4 * huge;
    let area = Area::huge(size)?;
    let zeroes = |area: &Area, whose: &str| {
        for at in (0..size).step_by(page_size()) {
            check_eq!(area.load(at), 0, "offset {at:#x} of {whose}");
        }
        Ok(())
    };
    zeroes(&area, "the owner's memory")?;
    let segment = export(&area, true)?;
    let importer = peer(|_: &Link| {
        let own = Area::huge(size)?;
        own.mark(2);
        let view = map(&segment, size, true)?;
        zeroes(&view, "the attachment")?;
        // Whole, then in parts.
        view.part(0, 2 * huge).unmap()?;
        view.part(2 * huge + 3 * page_size(), page_size()).unmap()?;
        view.store(3 * huge, 5);
        check_eq!(view.load(3 * huge), 5, "what was stored");
        own.verify_marks(2)?;
        own.unmap()
    })?;
    importer.join()?;
    check_eq!(area.load(3 * huge), 5, "what the importer stored");
    check_eq!(area.load(2 * huge), 0, "beside it");
    Ok(())
}

pub(super) fn split_and_collapse() -> Outcome {
    const MADV_COLLAPSE: i32 = 25;
    let huge = huge_page();
    let size = 2 * huge;
    let area = huge_area(size)?;
    let segment = export(&area, true)?;
    let importer = peer(move |link: &Link| {
        let view = map(&segment, size, true)?;
        let page = device::generation(&segment)?;
        let begin = Instant::now();
        let mut rounds = 0u64;
        while begin.elapsed() < Duration::from_secs(5) || rounds < 2 {
            rounds += 1;
            view.verify_marks(1)?;
            for at in (0..size).step_by(page_size()) {
                view.store(at + 8, rounds);
            }
        }
        check_eq!(
            device::read(&page).holes,
            0,
            "holes while pages are split and collapsed"
        );
        link.send(rounds)
    })?;
    let (mut rounds, mut collapsed) = (0, 0);
    while importer.runs()? {
        // A protection for one page splits its huge page; collapsing makes it whole.
        let part = area.part(
            huge + (rounds % (huge / page_size())) * page_size(),
            page_size(),
        );
        part.protect(READ | WRITE | libc::PROT_EXEC)
            .at("mprotect")?;
        part.protect(READ | WRITE).at("mprotect")?;
        let _ = area.advise(0, size, libc::MADV_NOHUGEPAGE);
        let _ = area.advise(0, size, libc::MADV_HUGEPAGE);
        if area.advise(0, size, MADV_COLLAPSE).is_ok() {
            collapsed += 1;
        }
        rounds += 1;
    }
    let theirs = importer.link.receive();
    importer.join()?;
    let theirs = theirs?;
    area.verify_marks(1)?;
    for at in (0..size).step_by(page_size()) {
        check_eq!(
            area.load(at + 8),
            theirs,
            "the importer's last word at {at:#x}"
        );
    }
    // Kernels before 6.1 collapse only by themselves, and in their own time.
    check!(
        rounds > 3,
        "{rounds} rounds with {collapsed} collapses against {theirs}"
    );
    Ok(())
}

/// Lets the kernel merge equal pages until it is dropped.
struct Merging;

impl Merging {
    fn start() -> Outcome<Self> {
        for (name, value) in [
            ("sleep_millisecs", "0"),
            ("pages_to_scan", "2000"),
            ("run", "1"),
        ] {
            fs::write(format!("/sys/kernel/mm/ksm/{name}"), value)
                .map_err(|error| Fault::Skip(format!("no same-page merging: {error}")))?;
        }
        Ok(Self)
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        let _ = fs::write("/sys/kernel/mm/ksm/run", "2");
    }
}

pub(super) fn same_page_merging() -> Outcome {
    const PAGES: usize = 64;
    let size = PAGES * page_size();
    let _merging = Merging::start()?;
    let areas = [Area::new(size)?, Area::new(size)?];
    for area in &areas {
        for page in 0..PAGES {
            for word in 0..page_size() / 8 {
                area.store(page * page_size() + word * 8, mix(9, word));
            }
        }
    }
    let segments = [export(&areas[0], true)?, export(&areas[1], true)?];
    let importer = peer(|link: &Link| {
        let views = [
            map(&segments[0], size, true)?,
            map(&segments[1], size, true)?,
        ];
        for round in 0..20u64 {
            for view in &views {
                for at in (0..size).step_by(page_size()) {
                    check_eq!(view.load(at), mix(9, 0), "a word at {at:#x}");
                }
            }
            // A store to a merged page reaches its owner's page, and no other.
            let at = round as usize * page_size();
            views[0].store(at + 8, round);
            check_eq!(views[0].load(at + 8), round, "a word that was stored");
            check_eq!(views[1].load(at + 8), mix(9, 1), "its twin");
            link.turn()?;
        }
        Ok(())
    })?;
    for area in &areas {
        area.advise(0, size, libc::MADV_MERGEABLE)
            .map_err(|fault| Fault::Skip(fault.to_string()))?;
    }
    let merged = system::until(Duration::from_secs(60), || {
        fs::read_to_string("/sys/kernel/mm/ksm/pages_sharing")
            .is_ok_and(|text| text.trim().parse::<u64>().is_ok_and(|pages| pages >= 40))
    });
    if !merged {
        return Err(Fault::Skip(
            "the kernel merged nothing within a minute".to_owned(),
        ));
    }
    for round in 0..20u64 {
        let received = importer.link.receive();
        if received.is_err() {
            return importer.join();
        }
        let at = round as usize * page_size();
        check_eq!(areas[0].load(at + 8), round, "what the owner sees");
        check_eq!(
            areas[1].load(at + 8),
            mix(9, 1),
            "what the owner's twin sees"
        );
        std::thread::sleep(Duration::from_millis(50));
        importer.link.send(0)?;
    }
    importer.join()
}

/// A swap device in compressed memory, until it is dropped.
struct Swap;

impl Swap {
    fn start() -> Option<Self> {
        fs::write("/sys/block/zram0/disksize", "268435456").ok()?;
        let mut header = vec![0u8; page_size()];
        // Version 1, the last page's number, no bad pages.
        header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
        header[1028..1032].copy_from_slice(&65535u32.to_ne_bytes());
        header[page_size() - 10..].copy_from_slice(b"SWAPSPACE2");
        fs::write("/dev/zram0", header).ok()?;
        system::swap_on("/dev/zram0").ok()?;
        Some(Self)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = system::swap_off("/dev/zram0");
        let _ = fs::write("/sys/block/zram0/reset", "1");
    }
}

pub(super) fn memory_pressure() -> Outcome {
    const MADV_PAGEOUT: i32 = 21;
    const SIZE: usize = 2 * HUGE;
    let area = Area::huge(SIZE)?;
    area.mark(1);
    let segment = export(&area, true)?;
    // Says that memory was taken: on a slow kernel it takes long to push pages out before.
    let taken = Area::shared(page_size())?;
    let importer = peer(move |link: &Link| {
        let view = map(&segment, SIZE, true)?;
        let page = device::generation(&segment)?;
        let begin = Instant::now();
        let mut rounds = 0u64;
        while begin.elapsed() < Duration::from_secs(6) || rounds < 3 || taken.load(0) == 0 {
            rounds += 1;
            view.verify_marks(1)?;
            for at in (0..SIZE).step_by(page_size()) {
                view.store(at + 8, rounds);
            }
        }
        check_eq!(device::read(&page).holes, 0, "holes under memory pressure");
        link.send(rounds)
    })?;
    let swap = Swap::start();
    let mut pieces = 0;
    while importer.runs()? {
        // Moves pages, drops caches, and pushes pages out where there is somewhere to.
        let _ = fs::write("/proc/sys/vm/compact_memory", "1");
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        if swap.is_some() {
            let _ = area.advise(0, SIZE, MADV_PAGEOUT);
        }
        // Takes most of what is free for a moment.
        let mut ballast = Vec::new();
        while importer.runs()?
            && system::number("/proc/meminfo", "MemAvailable").unwrap_or(0) > 96 << 10
        {
            let piece = Area::new(32 << 20)?;
            piece.mark(2);
            taken.store(0, 1);
            ballast.push(piece);
        }
        for piece in ballast {
            piece.unmap()?;
            pieces += 1;
        }
    }
    let rounds = importer.link.receive();
    importer.join()?;
    let rounds = rounds?;
    area.verify_marks(1)?;
    for at in (0..SIZE).step_by(page_size()) {
        check_eq!(
            area.load(at + 8),
            rounds,
            "the importer's last word at {at:#x}"
        );
    }
    check!(
        pieces > 0 && rounds > 0,
        "{pieces} pieces taken, {rounds} rounds"
    );
    Ok(())
}

pub(super) fn many_importers() -> Outcome {
    let size = 64 * page_size();
    let area = Area::new(size)?;
    area.mark(1);
    let segment = export(&area, true)?;
    let others: Vec<Peer> = (1..=16u64)
        .map(|number| {
            let segment = &segment;
            peer(move |link: &Link| {
                let views: Vec<Area> = (0..8)
                    .map(|_| map(segment, size, true))
                    .collect::<Outcome<_>>()?;
                link.turn()?;
                for (index, view) in views.iter().enumerate() {
                    view.verify_marks(1)?;
                    view.store((number as usize) * page_size() + 8 + index * 8, number);
                }
                Ok(())
            })
        })
        .collect::<Outcome<_>>()?;
    for other in &others {
        other.link.receive()?;
    }
    // A change while all of them have it mapped.
    area.part(60 * page_size(), 4 * page_size())
        .protect(READ)
        .at("mprotect")?;
    for other in &others {
        other.link.send(0)?;
    }
    for other in others {
        other.join()?;
    }
    for number in 1..=16usize {
        for index in 0..8 {
            check_eq!(
                area.load(number * page_size() + 8 + index * 8),
                number as u64,
                "a word of importer {number}"
            );
        }
    }
    Ok(())
}

/// What others access counts as accessed: nobody looks at the bit in their entries, and reclaim would
/// take what only they use.
pub(super) fn accesses_count_for_the_owner() -> Outcome {
    const PAGES: usize = 16;
    let area = Area::new(PAGES * page_size())?;
    area.mark(1);
    let segment = export(&area, false)?;
    let others = peer(|link: &Link| {
        let view = map(&segment, PAGES * page_size(), false)?;
        link.receive()?;
        check_eq!(
            view.load(3 * page_size()),
            mix(1, 3 * page_size()),
            "a word"
        );
        link.turn()?;
        let local = Area::new(page_size())?;
        let to = CopyEnd::Own(local.base() as u64);
        let from = CopyEnd::Segment(&segment, 9 * page_size() as u64);
        let progress = device::copy(&device::onecopy()?, from, to, 64);
        progress.result.at("COPY")?;
        link.turn()
    })?;
    // The fork made the pages common: they are the owner's own again.
    area.mark(1);
    // Pages that are new, or become active, wait in lists of the processors. New ones count as
    // active there on some kernels, the others as not used at all. Compaction empties the lists.
    let settle = || {
        let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    };
    settle();
    fs::write("/proc/self/clear_refs", "1").at("/proc/self/clear_refs")?;
    let accessed = || -> Outcome<Vec<usize>> {
        settle();
        let mut pages = Vec::new();
        for page in 0..PAGES {
            if system::page_is_accessed(&area, page * page_size())? {
                pages.push(page);
            }
        }
        Ok(pages)
    };
    check_eq!(
        accessed()?,
        Vec::<usize>::new(),
        "pages that nobody accessed"
    );
    others.link.turn()?;
    check!(
        accessed()?.contains(&3),
        "a load from an attachment is no access: {:?}",
        accessed()?
    );
    // What was mapped around it was not accessed; without snapshots it is looked at like any.
    let snapshots = device::onecopy()?.info().at("INFO")?.features & ONECOPY_FEATURE_SNAPSHOT != 0;
    check!(
        !snapshots || accessed()? == [3],
        "pages around an access: {:?}",
        accessed()?
    );
    others.link.turn()?;
    check!(
        accessed()?.contains(&9),
        "a COPY is no access: {:?}",
        accessed()?
    );
    others.dismiss()
}

pub(super) fn unload_refused() -> Outcome {
    let name = "onecopy";
    let busy = &[EAGAIN, libc::EBUSY];
    let area = Area::new(4 * page_size())?;
    let xpmem = device::xpmem()?;
    refused(system::unload(name), busy, "unloading with /dev/xpmem open")?;
    drop(xpmem);
    let segment = export(&area, false)?;
    refused(system::unload(name), busy, "unloading with a segment")?;
    let view = map(&segment, 4 * page_size(), false)?;
    drop(segment);
    refused(system::unload(name), busy, "unloading with a mapping")?;
    let page = device::generation(&export(&area, false)?)?;
    view.unmap()?;
    refused(
        system::unload(name),
        busy,
        "unloading with a generation page",
    )?;
    let knem = device::knem()?;
    drop(page);
    refused(system::unload(name), busy, "unloading with /dev/knem open")?;
    let cookie = region(&knem, &area, READ, 0)?;
    refused(system::unload(name), busy, "unloading with a region")?;
    knem.destroy_region(cookie).at("DESTROY_REGION")?;
    drop(knem);
    let unused = |when: &str| -> Outcome {
        let mut uses = 0;
        let none = system::until(Duration::from_secs(10), || {
            uses = system::uses(name).unwrap_or(u64::MAX);
            uses == 0
        });
        check!(none, "{when} the module is in use {uses} times");
        Ok(())
    };
    // Another process has an attachment of what this one made, and no descriptor: it was forked before any was open.
    unused("before anything is open")?;
    let other = peer(|link: &Link| {
        let segid = link.receive()?;
        let device = device::xpmem()?;
        let view = attach_all(&device, segid, 4 * page_size())?;
        drop(device);
        link.turn()?;
        let _ = view.try_load(0);
        view.unmap()?;
        link.turn()
    })?;
    let xpmem = device::xpmem()?;
    other.link.send(make(&xpmem, &area, 0o600)? as u64)?;
    other.link.receive()?;
    drop(xpmem);
    refused(
        system::unload(name),
        busy,
        "unloading while another process has an attachment",
    )?;
    other.link.turn()?;
    // So it was the attachment that was in the way.
    unused("without the attachment")?;
    other.link.send(0)?;
    drop(device::xpmem()?);
    other.join()
}
