// SPDX-License-Identifier: MIT OR Apache-2.0
//! Some kinds of change, one test each (`churn` of the folder above does everything at once).
//!
//! Owners and importers that change their mappings all the time: nobody waits for ever, and bytes stay right.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libc::{SIGBUS, SIGSEGV};
use onecopy_sys::ONECOPY_FEATURE_SNAPSHOT;

use crate::device::{self, attach, export, get, make, map};
use crate::mem::{Area, HUGE, READ, WRITE, mix, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq};
use crate::peer::{Link, PATIENCE, Peer, peer};
use crate::runner::say;

fn size() -> usize {
    64 * page_size()
}
/// How long each storm blows at least, and how often at least both sides get round. A slow kernel takes the time it
/// needs. A side that makes no progress at all runs into the test's limit.
const STORM: Duration = Duration::from_secs(4);
const ROUNDS: u64 = 5;

/// Whether it goes on.
fn blows(begin: Instant, rounds: u64) -> bool {
    begin.elapsed() < STORM || rounds < ROUNDS
}

pub(super) fn faults_on_each_other() -> Outcome {
    // Each exports memory that it replaces all the time, and reads and writes the other's, which it attaches anew all
    // the time.
    let (left, right) = (contestant(1)?, contestant(2)?);
    let ids = [left.link.receive()?, right.link.receive()?];
    left.link.send(ids[1])?;
    right.link.send(ids[0])?;
    // Both are there until both are done.
    for side in [&left, &right] {
        side.link.receive()?;
    }
    for side in [left, right] {
        side.dismiss()?;
    }
    Ok(())
}

fn contestant(seed: u64) -> Outcome<Peer> {
    peer(move |link: &Link| {
        let area = Area::new(size())?;
        area.mark(seed);
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        let other = link.receive()?;
        let begin = Instant::now();
        let over = Area::new(page_size())?;
        let churn = std::thread::spawn(move || -> Outcome {
            while over.load(0) == 0 {
                let part = area.part(16 * page_size(), 32 * page_size());
                part.replace()?;
                part.mark(seed);
                part.part(0, page_size()).unmap()?;
                part.part(0, page_size()).replace()?;
            }
            Ok(())
        });
        let apid = get(&device, other)?;
        let mut rounds = 0;
        while blows(begin, rounds) {
            let view = attach(&device, apid, 0, size())?;
            for page in 0..view.pages() {
                let found = view.try_load(page * page_size());
                // Words of the other's, fresh memory, what this side stored there, or a hole.
                let stored = page as u64;
                let words = [
                    mix(3 - seed, page * page_size()),
                    mix(3 - seed, page.saturating_sub(16) * page_size()),
                    0,
                    stored,
                ];
                match found {
                    Ok(word) => check!(words.contains(&word), "page {page}: {word:#x}"),
                    Err(signal) => check_eq!(signal, SIGBUS, "signal"),
                }
                if page >= 16 {
                    let _ = view.try_store(page * page_size(), stored);
                }
            }
            device::detach(&device, &view).at("DETACH")?;
            rounds += 1;
        }
        link.turn()?;
        over.store(0, 1);
        churn
            .join()
            .map_err(|_| Fault::Fail("the thread ended badly".to_owned()))?
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

/// Rounds of attach, read everything, detach per second, while the owner churns.
fn rate(churn: Churn) -> Outcome<f64> {
    const PAGES: usize = 256;
    const WINDOW: Duration = Duration::from_millis(600);
    let over = Area::shared(page_size())?;
    let owner = peer(move |link: &Link| {
        let area = Area::huge(2 * HUGE)?;
        area.advise(0, area.length(), libc::MADV_NOHUGEPAGE)?;
        let exported = area.part(0, PAGES * page_size());
        exported.mark(1);
        let device = device::xpmem()?;
        link.send(make(&device, &exported, 0o600)? as u64)?;
        while over.load(0) == 0 {
            let target = match churn {
                Churn::None => {
                    std::hint::black_box(nix::unistd::getppid());
                    continue;
                }
                Churn::Beside => area.part(HUGE, 16 * page_size()),
                Churn::Within => exported.part(128 * page_size(), 16 * page_size()),
            };
            target.replace()?;
            target.mark(1);
        }
        link.turn()
    })?;
    let device = device::xpmem()?;
    let apid = get(&device, owner.link.receive()?)?;
    let begin = Instant::now();
    let mut rounds = 0;
    while begin.elapsed() < WINDOW || rounds < 20 {
        let view = attach(&device, apid, 0, PAGES * page_size())?;
        for page in 0..PAGES {
            let found = view.try_load(page * page_size());
            let changing = (128..144).contains(&page);
            check!(
                changing || found == Ok(mix(1, page * page_size())),
                "page {page}, which does not change: {found:x?}"
            );
        }
        device::detach(&device, &view).at("DETACH")?;
        rounds += 1;
    }
    let rate = f64::from(rounds) / begin.elapsed().as_secs_f64();
    over.store(0, 1);
    owner.link.turn()?;
    owner.join()?;
    Ok(rate)
}

pub(super) fn owner_churns() -> Outcome {
    // Shares of the rate without churn, each of two neighbouring moments, so that a busy host disturbs both alike. The
    // middle of many counts, and more than once where the host was too busy for any.
    const ENOUGH: f64 = 1.0 / 3.0;
    // Without snapshots every page that was taken away costs a fault.
    let snapshots = device::onecopy()?.info().at("INFO")?.features & ONECOPY_FEATURE_SNAPSHOT != 0;
    let enough_within = if snapshots { ENOUGH } else { 1.0 / 5.0 };
    let mut seen = String::new();
    for _ in 0..6 {
        let (mut beside, mut within) = (Vec::new(), Vec::new());
        for _ in 0..7 {
            let quiet = rate(Churn::None)?;
            beside.push(rate(Churn::Beside)? / quiet);
            within.push(rate(Churn::Within)? / quiet);
        }
        for shares in [&mut beside, &mut within] {
            shares.sort_by(f64::total_cmp);
        }
        say(&format!(
            "  shares of the rate without churn: {:.2} beside, {:.2} within",
            beside[3], within[3]
        ));
        if beside[3] >= ENOUGH && within[3] >= enough_within {
            return Ok(());
        }
        seen = format!("beside {beside:.2?}, within {within:.2?}");
    }
    Err(Fault::Fail(format!(
        "too small a share of the rate without churn: {seen}"
    )))
}

/// Runs the body in so many threads, each with its number, and gives the first thing that went wrong.
fn in_threads(count: usize, body: impl Fn(usize) -> Outcome + Sync) -> Outcome {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|thread| scope.spawn(move || body(thread)))
            .collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        ended.fold(Ok(()), Outcome::and)
    })
}

/// More threads change one segment at once than the module keeps apart. Whatever one of them has taken away is gone
/// everywhere as soon as its call returns.
pub(super) fn many_change_one_segment() -> Outcome {
    const THREADS: usize = 12;
    const TURNS: u64 = 200;
    /// Pages from one thread's to the next one's.
    const APART: usize = 5;
    // Of each thread: what the owner has stored last, and what the importer has seen.
    let board = Area::shared(page_size())?;
    let word = |thread: usize, seen: bool| 128 * thread + 64 * usize::from(seen);
    let wait = move |at: usize, turn: u64| -> Outcome {
        let begin = Instant::now();
        while board.load(at) < turn {
            if begin.elapsed() > PATIENCE {
                return Err(Fault::Fail(format!("turn {turn} of word {at} never comes")));
            }
            std::thread::yield_now();
        }
        Ok(())
    };
    let owner = peer(move |link: &Link| {
        let area = Area::new(THREADS * APART * page_size())?;
        area.mark(1);
        link.give(export(&area, true)?.as_fd())?;
        link.receive()?;
        in_threads(THREADS, |thread| {
            let page = thread * APART * page_size();
            for turn in 1..=TURNS {
                area.advise(page, page_size(), libc::MADV_DONTNEED)?;
                area.store(page, mix(turn, page));
                board.store(word(thread, false), turn);
                wait(word(thread, true), turn)?;
            }
            Ok(())
        })
    })?;
    let segment = device::segment(owner.link.take()?);
    let importer = peer(move |link: &Link| {
        let view = map(&segment, THREADS * APART * page_size(), true)?;
        view.verify_marks(1)?;
        link.send(0)?;
        in_threads(THREADS, |thread| {
            let page = thread * APART * page_size();
            for turn in 1..=TURNS {
                wait(word(thread, false), turn)?;
                check_eq!(view.load(page), mix(turn, page), "thread {thread}, {turn}");
                board.store(word(thread, true), turn);
            }
            Ok(())
        })
    })?;
    importer.link.receive()?;
    owner.link.send(0)?;
    importer.join()?;
    owner.join()
}

pub(super) fn protection_storm() -> Outcome {
    for huge in [false, true] {
        let size = if huge { HUGE } else { size() };
        let over = Area::shared(page_size())?;
        let owner = peer(move |link: &Link| {
            let area = if huge {
                Area::huge(size)?
            } else {
                Area::new(size)?
            };
            area.mark(1);
            let device = device::xpmem()?;
            link.send(make(&device, &area, 0o600)? as u64)?;
            link.give(export(&area, true)?.as_fd())?;
            let mut changes = 0u64;
            while over.load(0) == 0 || changes < ROUNDS {
                area.protect(READ).at("mprotect")?;
                area.protect(READ | WRITE).at("mprotect")?;
                changes += 1;
            }
            link.send(changes)?;
            link.receive()?;
            area.verify_marks(1)?;
            // The last store came after the storm, so it counts.
            check_eq!(area.load(8), 77, "what the importer stored");
            Ok(())
        })?;
        let segid = owner.link.receive()?;
        let segment = device::segment(owner.link.take()?);
        let page = device::generation(&segment)?;
        let view = map(&segment, size, false)?;
        let legacy = device::attach_all(&device::xpmem()?, segid, size)?;
        let begin = Instant::now();
        let mut rounds = 0;
        while blows(begin, rounds) {
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
        over.store(0, 1);
        owner.link.receive()?;
        legacy.store(8, 77);
        owner.dismiss()?;
    }
    Ok(())
}

pub(super) fn fork_while_attached() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.mark(1);
        link.give(export(&area, true)?.as_fd())?;
        let begin = Instant::now();
        let (mut forks, mut last) = (0u64, 0);
        while blows(begin, forks) {
            let child = peer(|_| Ok(()))?;
            forks += 1;
            for page in 0..area.pages() {
                area.store(page * page_size() + 8, forks);
                let theirs = area.load(page * page_size() + 16);
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
        link.send(forks)?;
        let rounds = link.receive()?;
        for page in 0..area.pages() {
            check_eq!(
                area.load(page * page_size() + 16),
                rounds,
                "the importer's last word in page {page}"
            );
        }
        Ok(())
    })?;
    let segment = device::segment(owner.link.take()?);
    let view = map(&segment, size(), true)?;
    let begin = Instant::now();
    let (mut rounds, mut last) = (0u64, 0);
    while blows(begin, rounds) {
        rounds += 1;
        for page in 0..view.pages() {
            view.store(page * page_size() + 16, rounds);
            let theirs = view.load(page * page_size() + 8);
            if page == 0 {
                check!(
                    theirs >= last,
                    "the owner's word went back from {last} to {theirs}"
                );
                last = theirs;
            }
        }
    }
    let forks = owner.link.receive()?;
    for page in 0..view.pages() {
        check_eq!(
            view.load(page * page_size() + 8),
            forks,
            "the owner's last word in page {page}"
        );
        check_eq!(
            view.load(page * page_size()),
            mix(1, page * page_size()),
            "a word that nobody changed"
        );
    }
    owner.link.send(rounds)?;
    owner.join()
}

pub(super) fn attach_and_detach_at_once() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.mark(1);
        let device = device::xpmem()?;
        let begin = Instant::now();
        link.send(make(&device, &area, 0o600)? as u64)?;
        while begin.elapsed() < STORM {
            let part = area.part(8 * page_size(), 8 * page_size());
            part.unmap()?;
            part.replace()?;
        }
        link.turn()
    })?;
    let segid = owner.link.receive()?;
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
        let view = attach(&device, apid, 0, size())?;
        for page in 0..view.pages() {
            let found = view.try_load(page * page_size());
            let right = match found {
                Ok(word) => {
                    word == mix(1, page * page_size()) || (word == 0 && (8..16).contains(&page))
                }
                Err(signal) => signal == SIGBUS && (8..16).contains(&page),
            };
            check!(right, "page {page}: {found:x?}");
        }
        view.part(3 * page_size(), 2 * page_size()).unmap()?;
        view.part(0, 3 * page_size()).unmap()?;
        view.part(5 * page_size(), size() - 5 * page_size())
            .unmap()?;
        device.release(apid).at("RELEASE")?;
    }
    Ok(())
}
