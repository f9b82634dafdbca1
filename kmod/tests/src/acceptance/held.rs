// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel, another driver or a file system holds at the wrong moment: the module for tests stands for them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::time::Duration;

use libc::EIO;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use onecopy_sys::CopyEnd;

use crate::device::{self, copy, export, knem, map, region};
use crate::mem::{Area, HUGE, READ, WRITE, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq, refused};
use crate::peer::{Link, peer};
use crate::system;

/// The device of the module for tests, and its commands.
const NOTIFY: &str = "/dev/onecopy-notify";
const HOLD: u64 = 0;
const LET_GO: u64 = 1;
const INTERVAL: u64 = 2;
const READ_BEGIN: u64 = 3;
const LOCK: u64 = 4;
const WALK: u64 = 5;

/// How long the end of a process that nobody holds may take.
const SOON: Duration = Duration::from_secs(20);

fn size() -> usize {
    16 * page_size()
}

fn notify() -> Outcome<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).open(NOTIFY).at(NOTIFY)
}

fn command(mut notify: &File, command: u64, area: &Area) -> Outcome {
    let words = [command, area.base() as u64, area.length() as u64].map(u64::to_ne_bytes);
    let written = notify.write(words.as_flattened());
    written
        .at(format_args!("command {command} of {NOTIFY}"))
        .map(|_| ())
}

/// A driver comes to the importer's address space between the start and the end of what the module takes away there.
/// The kernel counts changes for such drivers, and a driver that finds an odd count waits for ever.
pub(super) fn interval_notifier_while_entries_go() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.mark(1);
        link.give(export(&area, true)?.as_fd())?;
        link.receive()?;
        area.advise(0, page_size(), libc::MADV_DONTNEED)?;
        link.turn()
    })?;
    let segment = device::segment(owner.link.take()?);
    let importer = peer(move |link: &Link| {
        let notify = notify()?;
        let view = map(&segment, size(), true)?;
        let _ = view.load(0);
        let watched = Area::new(page_size())?;
        watched.store(0, 1);
        command(&notify, HOLD, &view)?;
        link.turn()?;
        command(&notify, INTERVAL, &watched)?;
        command(&notify, LET_GO, &view)?;
        link.turn()?;
        watched.advise(0, page_size(), libc::MADV_DONTNEED)?;
        command(&notify, READ_BEGIN, &watched)
    })?;
    importer.link.receive()?;
    owner.link.send(0)?;
    // It waits until the importer's entry is gone.
    system::until_asleep(owner.pid())?;
    importer.link.turn()?;
    owner.link.receive()?;
    importer.link.send(0)?;
    importer.join_within(SOON)?;
    owner.dismiss()
}

/// The lock of a page that a region pins is held, as a file system does whose server does not answer. The owner ends,
/// and so does everybody else: the kernel waits for all notifiers together.
pub(super) fn ends_while_a_pinned_page_is_locked() -> Outcome {
    let before = device::stats()?.regions;
    let mut owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        let notify = notify()?;
        let device = knem()?;
        region(&device, &area, READ | WRITE, 0)?;
        command(&notify, LOCK, &area.part(page_size(), page_size()))?;
        link.give(notify.as_fd())?;
        link.receive().map(|_| ())
    })?;
    let held: OwnedFd = owner.link.take()?;
    owner.signal(Signal::SIGKILL)?;
    owner.wait(SOON)?;
    peer(|_| export(&Area::new(size())?, true).map(|_| ()))?.join_within(SOON)?;
    drop(held);
    let gone = system::until(SOON, || {
        device::stats().is_ok_and(|stats| stats.regions <= before)
    });
    check!(gone, "a dead process's region is still there");
    Ok(())
}

/// The lock of a page that a region pins is held. Its owner destroys it nevertheless, and the page is let go later.
pub(super) fn destroy_while_a_pinned_page_is_locked() -> Outcome {
    let before = device::stats()?;
    let mut owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        let notify = notify()?;
        let device = knem()?;
        let cookie = region(&device, &area, READ | WRITE, 0)?;
        command(&notify, LOCK, &area.part(page_size(), page_size()))?;
        link.give(notify.as_fd())?;
        drop(notify);
        device.destroy_region(cookie).at("DESTROY_REGION")?;
        link.turn()
    })?;
    let held: OwnedFd = owner.link.take()?;
    let destroyed = owner.link.receive();
    let during = device::stats()?;
    drop(held);
    destroyed.at("DESTROY_REGION while the page's lock is held")?;
    check!(
        during.pinned_pages > before.pinned_pages,
        "a page whose lock is held was let go"
    );
    let gone = system::until(SOON, || {
        device::stats().is_ok_and(|now| {
            now.regions <= before.regions && now.pinned_pages <= before.pinned_pages
        })
    });
    check!(gone, "a destroyed region is still there");
    owner.link.send(0)?;
    owner.wait(SOON).map(|_| ())
}

/// COPY into a page whose lock is held, by a server of the owner's say: the caller can be killed.
pub(super) fn kill_in_copy_to_a_locked_page() -> Outcome {
    let area = Area::shared(size())?;
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        link.give(export(&area, true)?.as_fd())?;
        let notify = notify()?;
        command(&notify, LOCK, &area.part(page_size(), page_size()))?;
        link.give(notify.as_fd())?;
        link.receive().map(|_| ())
    })?;
    let segment = device::segment(owner.link.take()?);
    let held: OwnedFd = owner.link.take()?;
    area.fill(2);
    let mut caller = peer(|link: &Link| {
        link.send(0)?;
        let own = CopyEnd::Own(area.base() as u64);
        let progress = copy(
            &device::onecopy()?,
            own,
            CopyEnd::Segment(&segment, 0),
            size(),
        );
        progress.result.at("COPY")
    })?;
    caller.link.receive()?;
    let asleep = system::until_asleep(caller.pid());
    caller.signal(Signal::SIGKILL)?;
    let ended = caller.wait(SOON);
    drop(held);
    asleep?;
    ended.at("a COPY that was killed")?;
    owner.dismiss()
}

/// A debugger stores through an attachment to a page whose lock is held. It is told so, and holds up nobody.
pub(super) fn debugger_meets_a_locked_page() -> Outcome {
    // Not one's own: the debugger's fork would have a store go to a copy.
    let area = Area::shared(size())?;
    area.mark(1);
    let segment = export(&area, true)?;
    let importer = peer(|link: &Link| {
        let view = map(&segment, size(), true)?;
        link.send(view.base() as u64)?;
        link.receive().map(|_| ())
    })?;
    let base = importer.link.receive()?;
    let notify = notify()?;
    command(&notify, LOCK, &area)?;
    let path = format!("/proc/{}/mem", importer.pid());
    let debugger = peer(move |_| {
        let mem = OpenOptions::new().write(true).open(&path).at(&path)?;
        refused(
            mem.write_at(&7u64.to_ne_bytes(), base),
            &[EIO],
            "a store to a page that is locked",
        )
    })?;
    let ended = debugger.join_within(SOON);
    drop(notify);
    ended?;
    check!(area.load(0) != 7, "a store that was refused was done");
    importer.dismiss()
}

/// A device that walks an importer's page tables, until its driver is told of the importer's end, finds no entry of an
/// attachment then. The module has been told before, and takes nothing away afterwards.
pub(super) fn no_entry_outlasts_an_importer() -> Outcome {
    let area = Area::shared(size())?;
    area.mark(1);
    let segment = export(&area, true)?;
    for by_force in [false, true] {
        let mut importer = peer(|link: &Link| {
            // The last to come is told first.
            let notify = notify()?;
            let view = map(&segment, size(), true)?;
            view.verify_marks(1)?;
            command(&notify, WALK, &view)?;
            link.give(notify.as_fd())?;
            link.turn()
        })?;
        let notify = match importer.link.take() {
            Ok(notify) => File::from(notify),
            Err(fault) => return Err(importer.join().err().unwrap_or(fault)),
        };
        if by_force {
            importer.signal(Signal::SIGKILL)?;
        } else {
            importer.link.send(0)?;
        }
        importer.wait(SOON)?;
        let mut entries = [0; 8];
        (&notify)
            .read_exact(&mut entries)
            .at("what was left at the end")?;
        check_eq!(i64::from_ne_bytes(entries), 0, "entries that were left");
        area.verify_marks(1)?;
    }
    Ok(())
}

/// Faults of a process wait, in as many places as it likes, for what it keeps from ending itself. Nobody else's do.
pub(super) fn faults_hold_up_no_others() -> Outcome {
    const MANY: usize = 512;
    const OTHERS: usize = 128;
    let attacker = peer(|link: &Link| {
        let area = Area::new(MANY * HUGE)?;
        for at in 0..MANY {
            area.part(at * HUGE, page_size()).unmap()?;
        }
        let view = map(&export(&area, true)?, MANY * HUGE, true)?;
        // Holes, of which each is a page by now. For a store to that, what stood for the hole has to be taken away.
        for at in 0..MANY {
            check_eq!(view.load(at * HUGE), 0, "a hole");
            let page = area.part(at * HUGE, page_size());
            page.replace()?;
            page.store(0, 1);
        }
        let notify = notify()?;
        command(&notify, HOLD, &view)?;
        link.give(notify.as_fd())?;
        drop(notify);
        // A fault holds the mmap lock, which the kernel needs to make a thread's stack: all threads before all faults.
        let begin = Barrier::new(MANY);
        std::thread::scope(|scope| -> Outcome {
            for at in 0..MANY {
                let begin = &begin;
                let body = move || {
                    begin.wait();
                    view.store(at * HUGE, 2);
                };
                std::thread::Builder::new()
                    .stack_size(64 << 10)
                    .spawn_scoped(scope, body)
                    .at("a thread")?;
            }
            Ok(())
        })
    })?;
    let held = match attacker.link.take() {
        Ok(held) => File::from(held),
        Err(fault) => return Err(attacker.join().err().unwrap_or(fault)),
    };
    let all = system::until(SOON, || waiting(attacker.pid()) >= MANY);
    let other = peer(|link: &Link| {
        let area = Area::new(OTHERS * HUGE)?;
        let view = map(&export(&area, true)?, OTHERS * HUGE, true)?;
        for at in 0..OTHERS {
            view.store(at * HUGE, 1);
        }
        // Its end waits for all notifiers.
        link.turn()
    })?;
    let done = other.link.receive();
    let waiting = waiting(attacker.pid());
    // Both processes have it, so a close does not do.
    command(&held, LET_GO, &Area::new(page_size())?)?;
    check!(all, "{waiting} of {MANY} threads of the other process wait");
    done.at("a process whose faults wait for nobody")?;
    other.dismiss()?;
    attacker.join()
}

/// Objects of 64 bytes that the kernel has allocated, those that it keeps for itself among them.
fn small_objects() -> Outcome<u64> {
    let text = fs::read_to_string("/proc/slabinfo").at("/proc/slabinfo")?;
    let caches = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let small = name.starts_with("kmalloc-") && name.ends_with("-64");
        small.then(|| words.next()?.parse::<u64>().ok())?
    });
    Ok(caches.sum())
}

/// Whether a process waits for the end of what the kernel tells its notifiers. Not by `stat`. To read that borrows the
/// address space, so that its end may fall to the reader, and we would wait for what we hold ourselves.
fn waits_for_notifiers(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stack")).is_ok_and(|at| at.contains("synchronize_srcu"))
}

/// Threads of a process that wait in a way that no signal ends.
fn waiting(pid: Pid) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let stats = threads.flatten().flatten();
    stats
        .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok())
        .filter(|stat| {
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('D'))
        })
        .count()
}

/// An address space ends while others change it: the kernel tells nobody of the ends of these changes. What was noted
/// of them goes, also of those for which there was no place.
pub(super) fn changes_outlast_an_address_space() -> Outcome {
    const FILES: usize = 400;
    const ROUNDS: u64 = 2;
    const TRIES: usize = 3;
    let round = || -> Outcome {
        let files: Vec<OwnedFd> = (0..FILES)
            .map(|_| {
                let file = memfd_create(c"held", MFdFlags::MFD_CLOEXEC).at("memfd_create")?;
                nix::unistd::ftruncate(&file, page_size() as i64).at("ftruncate")?;
                Ok(file)
            })
            .collect::<Outcome<_>>()?;
        let mut owner = peer(|link: &Link| {
            let area = Area::new(FILES * page_size())?;
            for (page, file) in files.iter().enumerate() {
                let page = area.part(page * page_size(), page_size());
                page.map_over(file.as_fd())?;
                page.store(0, 1);
            }
            // Before the module's notifiers come, so that it is told after them.
            let notify = notify()?;
            let _segment = export(&area, true)?;
            command(&notify, HOLD, &area)?;
            link.give(notify.as_fd())?;
            link.receive().map(|_| ())
        })?;
        let held = File::from(owner.link.take()?);
        let puncher = peer(|_| {
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            std::thread::scope(|scope| {
                for file in &files {
                    scope.spawn(move || fallocate(file, flags, 0, page_size() as i64));
                }
            });
            Ok(())
        })?;
        let all = system::until(SOON, || waiting(puncher.pid()) >= FILES);
        owner.signal(Signal::SIGKILL)?;
        // It waits for those that change it.
        let ends = system::until(SOON, || waits_for_notifiers(owner.pid()));
        command(&held, LET_GO, &Area::new(page_size())?)?;
        owner.wait(SOON)?;
        puncher.join_within(SOON)?;
        check!(all, "not all changes were under way");
        check!(ends, "the owner did not end meanwhile");
        Ok(())
    };
    round()?;
    let lost = ROUNDS * (FILES as u64 - 64);
    // What is lost is lost each time. What processors keep for themselves, or somebody else takes, is not.
    let mut grown = Vec::new();
    for _ in 0..TRIES {
        let before = small_objects()?;
        for _ in 0..ROUNDS {
            round()?;
        }
        grown.push(small_objects()?.saturating_sub(before));
        if grown.iter().any(|&objects| objects < lost / 2) {
            return Ok(());
        }
    }
    Err(Fault::Fail(format!(
        "{grown:?} objects more, each time after {lost} changes that outlasted their address space"
    )))
}
