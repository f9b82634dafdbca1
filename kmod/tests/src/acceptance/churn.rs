// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners and importers that change their mappings all the time: nobody waits for ever, and bytes stay right.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libc::{SIGBUS, SIGSEGV};

use crate::device::{self, attach, export, get, make, map};
use crate::mem::{Area, HUGE, PAGE, READ, WRITE, mix};
use crate::outcome::{At, Fault, Outcome, check, check_eq};
use crate::peer::{Link, Peer, peer};

const SIZE: usize = 64 * PAGE;
/// How long each storm blows.
const STORM: Duration = Duration::from_secs(4);

pub(super) fn faults_on_each_other() -> Outcome {
    // Each exports memory that it replaces all the time, and reads and writes the other's, which it attaches anew all the time.
    let (left, right) = (contestant(1)?, contestant(2)?);
    let ids = [left.link.hear()?, right.link.hear()?];
    left.link.tell(ids[1])?;
    right.link.tell(ids[0])?;
    let rounds = [left.link.hear()?, right.link.hear()?];
    left.join()?;
    right.join()?;
    check!(
        rounds.iter().all(|rounds| *rounds > 20),
        "rounds within {STORM:?}: {rounds:?}"
    );
    Ok(())
}

fn contestant(seed: u64) -> Outcome<Peer> {
    peer(move |link: &Link| {
        let area = Area::new(SIZE)?;
        area.mark(seed);
        let device = device::xpmem()?;
        link.tell(make(&device, &area, 0o600)? as u64)?;
        let other = link.hear()?;
        let begin = Instant::now();
        let churn = std::thread::spawn(move || -> Outcome {
            while begin.elapsed() < STORM {
                let part = area.part(16 * PAGE, 32 * PAGE);
                part.replace()?;
                part.mark(seed);
                part.part(0, PAGE).unmap()?;
                part.part(0, PAGE).replace()?;
            }
            Ok(())
        });
        let apid = get(&device, other)?;
        let mut rounds = 0;
        while begin.elapsed() < STORM {
            let view = attach(&device, apid, 0, SIZE)?;
            for page in 0..view.pages() {
                let found = view.try_load(page * PAGE);
                // Words of the other's, fresh memory, what this side stored there, or a hole.
                let stored = page as u64;
                let words = [
                    mix(3 - seed, page * PAGE),
                    mix(3 - seed, page.saturating_sub(16) * PAGE),
                    0,
                    stored,
                ];
                match found {
                    Ok(word) => check!(words.contains(&word), "page {page}: {word:#x}"),
                    Err(signal) => check_eq!(signal, SIGBUS, "signal"),
                }
                if page >= 16 {
                    let _ = view.try_store(page * PAGE, stored);
                }
            }
            device::detach(&device, &view).at("DETACH")?;
            rounds += 1;
        }
        churn
            .join()
            .map_err(|_| Fault::Fail("the thread ended badly".to_owned()))??;
        link.tell(rounds)
    })
}

/// What the owner does while others read its memory.
#[derive(Clone, Copy)]
enum Churn {
    /// Keeps a processor as busy, and changes nothing.
    None,
    /// Maps and unmaps memory that it did not export.
    Beside,
    /// Maps and unmaps memory in the middle of what it exported.
    Within,
}

/// Rounds of attach, read everything, detach within a time, while the owner churns.
fn rounds(churn: Churn) -> Outcome<u64> {
    const PAGES: usize = 256;
    let owner = peer(move |link: &Link| {
        let area = Area::huge(2 * HUGE)?;
        area.advise(0, area.length(), libc::MADV_NOHUGEPAGE)?;
        let exported = area.part(0, PAGES * PAGE);
        exported.mark(1);
        let device = device::xpmem()?;
        link.tell(make(&device, &exported, 0o600)? as u64)?;
        link.hear()?;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            let target = match churn {
                Churn::None => {
                    std::hint::black_box(nix::unistd::getppid());
                    continue;
                }
                Churn::Beside => area.part(HUGE, 16 * PAGE),
                Churn::Within => exported.part(128 * PAGE, 16 * PAGE),
            };
            target.replace()?;
            target.mark(1);
        }
        link.turn()
    })?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.hear()?)?;
    owner.link.tell(0)?;
    let begin = Instant::now();
    let mut rounds = 0;
    while begin.elapsed() < Duration::from_millis(1900) {
        let view = attach(&device, apid, 0, PAGES * PAGE)?;
        for page in 0..PAGES {
            let found = view.try_load(page * PAGE);
            let changing = (128..144).contains(&page);
            check!(
                changing || found == Ok(mix(1, page * PAGE)),
                "page {page}, which does not change: {found:x?}"
            );
        }
        device::detach(&device, &view).at("DETACH")?;
        rounds += 1;
    }
    owner.link.turn()?;
    owner.join()?;
    Ok(rounds)
}

pub(super) fn owner_churns() -> Outcome {
    // Counts of work in equal times under equal load; the middle of several, in turns, so that a busy host disturbs all alike.
    let mut worst = String::new();
    for _ in 0..3 {
        let (mut quiet, mut beside, mut within) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..5 {
            quiet.push(rounds(Churn::None)?);
            beside.push(rounds(Churn::Beside)?);
            within.push(rounds(Churn::Within)?);
        }
        for counts in [&mut quiet, &mut beside, &mut within] {
            counts.sort_unstable();
        }
        if beside[2] * 3 >= quiet[2] && within[2] * 3 >= quiet[2] {
            return Ok(());
        }
        worst = format!("rounds without churn {quiet:?}, beside {beside:?}, within {within:?}");
    }
    Err(Fault::Fail(format!(
        "less than a third of the rate: {worst}"
    )))
}

pub(super) fn protection_storm() -> Outcome {
    for huge in [false, true] {
        let size = if huge { HUGE } else { SIZE };
        let owner = peer(move |link: &Link| {
            let area = if huge {
                Area::huge(size)?
            } else {
                Area::new(size)?
            };
            area.mark(1);
            let device = device::xpmem()?;
            link.tell(make(&device, &area, 0o600)? as u64)?;
            link.give(export(&area, true)?.as_fd())?;
            let begin = Instant::now();
            let mut changes = 0u64;
            while begin.elapsed() < STORM {
                area.protect(READ).at("mprotect")?;
                area.protect(READ | WRITE).at("mprotect")?;
                changes += 1;
            }
            link.tell(changes)?;
            link.hear()?;
            area.verify_marks(1)?;
            // The last store came after the storm, so it counts.
            check_eq!(area.load(8), 77, "what the importer stored");
            Ok(())
        })?;
        let segid = owner.link.hear()?;
        let segment = device::segment(owner.link.take()?);
        let page = device::generation(&segment)?;
        let view = map(&segment, size, false)?;
        let legacy = device::attach_all(&device::xpmem()?, segid, size)?;
        let begin = Instant::now();
        let mut rounds = 0;
        while begin.elapsed() < STORM {
            let before = device::read(&page).holes;
            view.verify_marks(1)?;
            check_eq!(
                device::read(&page).holes,
                before,
                "holes while only protections change"
            );
            // Where the owner may not write just now, nobody may.
            let stored = legacy.try_store(16, rounds);
            check!(
                matches!(stored, Ok(()) | Err(SIGBUS | SIGSEGV)),
                "a store: {stored:?}"
            );
            rounds += 1;
        }
        let changes = owner.link.hear()?;
        check!(
            rounds > 3 && changes > 3,
            "{rounds} rounds during {changes} changes"
        );
        legacy.store(8, 77);
        owner.link.tell(0)?;
        owner.join()?;
    }
    Ok(())
}

pub(super) fn fork_while_attached() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(SIZE)?;
        area.mark(1);
        link.give(export(&area, true)?.as_fd())?;
        let begin = Instant::now();
        let (mut forks, mut last) = (0u64, 0);
        while begin.elapsed() < STORM {
            let child = peer(|_| Ok(()))?;
            forks += 1;
            for page in 0..area.pages() {
                area.store(page * PAGE + 8, forks);
                let theirs = area.load(page * PAGE + 16);
                if page == 0 {
                    check!(
                        theirs >= last,
                        "the importer's word went back from {last} to {theirs}"
                    );
                    last = theirs;
                }
            }
            child.join()?;
        }
        link.tell(forks)?;
        let rounds = link.hear()?;
        for page in 0..area.pages() {
            check_eq!(
                area.load(page * PAGE + 16),
                rounds,
                "the importer's last word in page {page}"
            );
        }
        Ok(())
    })?;
    let segment = device::segment(owner.link.take()?);
    let view = map(&segment, SIZE, true)?;
    let begin = Instant::now();
    let (mut rounds, mut last) = (0u64, 0);
    while begin.elapsed() < STORM {
        rounds += 1;
        for page in 0..view.pages() {
            view.store(page * PAGE + 16, rounds);
            let theirs = view.load(page * PAGE + 8);
            if page == 0 {
                check!(
                    theirs >= last,
                    "the owner's word went back from {last} to {theirs}"
                );
                last = theirs;
            }
        }
    }
    let forks = owner.link.hear()?;
    for page in 0..view.pages() {
        check_eq!(
            view.load(page * PAGE + 8),
            forks,
            "the owner's last word in page {page}"
        );
        check_eq!(
            view.load(page * PAGE),
            mix(1, page * PAGE),
            "a word that nobody changed"
        );
    }
    check!(forks > 3 && rounds > 3, "{forks} forks, {rounds} rounds");
    owner.link.tell(rounds)?;
    owner.join()
}

pub(super) fn attach_and_detach_at_once() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(SIZE)?;
        area.mark(1);
        let device = device::xpmem()?;
        let begin = Instant::now();
        link.tell(make(&device, &area, 0o600)? as u64)?;
        while begin.elapsed() < STORM {
            let part = area.part(8 * PAGE, 8 * PAGE);
            part.unmap()?;
            part.replace()?;
        }
        link.turn()
    })?;
    let segid = owner.link.hear()?;
    let others: Vec<Peer> = (0..3)
        .map(|_| {
            peer(move |_| {
                let begin = Instant::now();
                let threads: Vec<_> = (0..3)
                    .map(|_| std::thread::spawn(move || attach_until(segid, begin)))
                    .collect();
                for thread in threads {
                    thread
                        .join()
                        .map_err(|_| Fault::Fail("a thread ended badly".to_owned()))??;
                }
                Ok(())
            })
        })
        .collect::<Outcome<_>>()?;
    for other in others {
        other.join()?;
    }
    owner.link.turn()?;
    owner.join()
}

fn attach_until(segid: u64, begin: Instant) -> Outcome {
    let device = device::xpmem()?;
    while begin.elapsed() < STORM {
        let apid = get(&device, segid)?;
        let view = attach(&device, apid, 0, SIZE)?;
        for page in 0..view.pages() {
            let found = view.try_load(page * PAGE);
            let right = match found {
                Ok(word) => word == mix(1, page * PAGE) || (word == 0 && (8..16).contains(&page)),
                Err(signal) => signal == SIGBUS && (8..16).contains(&page),
            };
            check!(right, "page {page}: {found:x?}");
        }
        view.part(3 * PAGE, 2 * PAGE).unmap()?;
        view.part(0, 3 * PAGE).unmap()?;
        view.part(5 * PAGE, SIZE - 5 * PAGE).unmap()?;
        device.release(apid).at("RELEASE")?;
    }
    Ok(())
}
