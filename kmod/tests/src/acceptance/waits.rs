// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever a process waits for, it can be killed, and holds nobody else up.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libc::SIGBUS;
use nix::sys::signal::Signal;
use onecopy_sys::{CopyEnd, Segment};

use crate::device::{self, attach_all, copy, export, make, map, region};
use crate::mem::{Area, READ, WRITE, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq, refused};
use crate::peer::{Link, Peer, peer};
use crate::{system, uffd};

fn size() -> usize {
    16 * page_size()
}

/// A process whose exported memory lets everybody wait who touches its second half.
fn blocked_owner() -> Outcome<(Peer, u64, Segment)> {
    let owner = peer(|link: &Link| {
        let area = Area::new(2 * size())?;
        area.part(0, size()).fill(1);
        let _blocked = uffd::block(&area.part(size(), size()))?;
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        link.give(export(&area, true)?.as_fd())?;
        link.receive().map(|_| ())
    })?;
    let (owner, segid) = owner.receive()?;
    let segment = device::segment(owner.link.take()?);
    Ok((owner, segid, segment))
}

/// Runs a body that waits for ever, and kills it there.
fn killed(what: &str, body: impl FnOnce(&Link) -> Outcome) -> Outcome {
    let waiter = peer(|link: &Link| {
        link.send(0)?;
        body(link)?;
        Err(Fault::Fail("it did not wait".to_owned()))
    })?;
    waiter.link.receive()?;
    if let Err(fault) = system::until_asleep(waiter.pid()) {
        let why = waiter.join().err().unwrap_or(fault);
        return match why {
            Fault::Skip(reason) => Err(Fault::Skip(reason)),
            fault => Err(fault).at(what),
        };
    }
    waiter.kill().at(what)
}

pub(super) fn kill_in_fault() -> Outcome {
    let (owner, segid, segment) = blocked_owner()?;
    for write in [false, true] {
        killed("a fault on a grant", |_| {
            let view = map(&segment, 2 * size(), true)?;
            if write {
                view.store(size(), 1);
            } else {
                view.load(size());
            }
            Ok(())
        })?;
        killed("a fault on a legacy attachment", |_| {
            let view = attach_all(&device::xpmem()?, segid, 2 * size())?;
            if write {
                view.store(size(), 1);
            } else {
                view.load(size());
            }
            Ok(())
        })?;
    }
    owner.dismiss()
}

/// A fault sleeps while all that it came by is given up: the module stays until it has woken.
pub(super) fn fault_keeps_the_module() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        let blocked = uffd::block(&area)?;
        link.give(export(&area, true)?.as_fd())?;
        link.receive()?;
        drop(blocked);
        link.receive().map(|_| ())
    })?;
    let segment = match owner.link.take() {
        Ok(segment) => device::segment(segment),
        // It ended: it knows why.
        Err(fault) => return Err(owner.join().err().unwrap_or(fault)),
    };
    let importer = peer(|link: &Link| {
        let view = map(&segment, size(), true)?;
        drop(segment);
        std::thread::scope(|scope| {
            let unmapped = scope.spawn(|| {
                link.turn()?;
                view.unmap()?;
                link.turn()
            });
            let loaded = view.try_load(0);
            check!(loaded.is_err(), "it loaded from what was unmapped");
            unmapped.join().expect("no panic")
        })
    })?;
    importer.link.receive()?;
    system::until_asleep(importer.pid())?;
    importer.link.send(0)?;
    importer.link.receive()?;
    refused(
        system::unload("onecopy"),
        &[libc::EAGAIN, libc::EBUSY],
        "unloading while a fault sleeps",
    )?;
    owner.link.send(0)?;
    importer.link.send(0)?;
    importer.join()?;
    owner.dismiss()
}

pub(super) fn kill_in_prefault() -> Outcome {
    let (owner, _, segment) = blocked_owner()?;
    for write in [false, true] {
        killed("PREFAULT", |_| {
            let view = map(&segment, 2 * size(), true)?;
            let progress = device::onecopy()?.prefault(view.base(), 2 * size() as u64, write);
            progress.result.at("PREFAULT")
        })?;
    }
    owner.dismiss()
}

pub(super) fn only_for_what_is_asked() -> Outcome {
    let (owner, segid, segment) = blocked_owner()?;
    let importer = peer(move |_| {
        let view = map(&segment, 2 * size(), true)?;
        for write in [false, true] {
            let progress = device::onecopy()?.prefault(view.base(), size() as u64, write);
            progress.result.at("PREFAULT in front of what blocks")?;
            check_eq!(progress.done, size() as u64, "bytes done");
        }
        // Page by page up to it, through memory that is fresh to both.
        let legacy = attach_all(&device::xpmem()?, segid, 2 * size())?;
        for page in 0..size() / page_size() {
            legacy.store(page * page_size(), 1);
        }
        Ok(())
    })?;
    importer.join()?;
    owner.dismiss()
}

pub(super) fn kill_in_copy() -> Outcome {
    let (owner, _, segment) = blocked_owner()?;
    let local = Area::new(2 * size())?;
    let own = CopyEnd::Own(local.base() as u64);
    for (from, to) in [
        (CopyEnd::Segment(&segment, 0), own),
        (own, CopyEnd::Segment(&segment, 0)),
    ] {
        killed("COPY", |_| {
            copy(&device::onecopy()?, from, to, 2 * size())
                .result
                .at("COPY")
        })?;
    }
    // The caller's own memory waits.
    killed("COPY of one's own memory", |_| {
        let area = Area::new(size())?;
        let _blocked = uffd::block(&area)?;
        let from = CopyEnd::Own(area.base() as u64);
        copy(&device::onecopy()?, from, own, size())
            .result
            .at("COPY")
    })?;
    owner.dismiss()
}

pub(super) fn kill_in_region() -> Outcome {
    // A region of memory whose faults are not answered is refused at once, or waits for the answer.
    killed("CREATE_REGION", |link| {
        let area = Area::new(size())?;
        let _blocked = uffd::block(&area)?;
        let made = device::try_region(&device::knem()?, &[device::vector(&area)], READ, 0);
        refused(
            made,
            &[libc::EFAULT],
            "CREATE_REGION of memory that is not there",
        )?;
        link.receive().map(|_| ())
    })?;
    let area = Area::new(size())?;
    area.fill(1);
    let device = device::knem()?;
    let cookie = region(&device, &area, READ | WRITE, 0)?;
    for write in [false, true] {
        killed("INLINE_COPY", |_| {
            let local = Area::new(size())?;
            let _blocked = uffd::block(&local)?;
            let device = device::knem()?;
            let inline = device::Inline {
                write,
                ..device::Inline::read(cookie, size())
            };
            inline
                .run(&device, &[device::vector(&local)])
                .at("INLINE_COPY")
                .map(|_| ())
        })?;
    }
    area.verify(1)
}

pub(super) fn blocked_owner_lets_others_go_on() -> Outcome {
    let (owner, segid, segment) = blocked_owner()?;
    let waiter = peer(move |link: &Link| {
        let device = device::xpmem()?;
        let legacy = attach_all(&device, segid, 2 * size())?;
        let granted = map(&segment, 2 * size(), true)?;
        let waiting: Vec<_> = [legacy, granted]
            .into_iter()
            .map(|view| std::thread::spawn(move || view.try_load(size() + page_size())))
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        // Its other threads map, unmap, fault, attach and detach meanwhile, on the same attachments too.
        let begin = Instant::now();
        for _ in 0..50 {
            let area = Area::new(4 * page_size())?;
            area.fill(1);
            area.unmap()?;
            legacy.part(0, size()).verify(1)?;
            granted.part(0, size()).verify(1)?;
            let again = attach_all(&device, segid, 2 * size())?;
            check_eq!(again.load(8), legacy.load(8), "a new attachment");
            device::detach(&device, &again).at("DETACH")?;
        }
        check!(
            begin.elapsed() < Duration::from_secs(30),
            "others took {:?}",
            begin.elapsed()
        );
        link.turn()?;
        // The owner is gone: so is what the threads waited for.
        let found: Vec<_> = waiting
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .map_err(|_| Fault::Fail("a thread ended badly".to_owned()))
            })
            .collect::<Outcome<_>>()?;
        check_eq!(
            found,
            [Err(SIGBUS), Ok(0)],
            "what the waiting threads found"
        );
        Ok(())
    })?;
    let received = waiter.link.receive();
    if received.is_err() {
        return waiter.join();
    }
    owner.kill()?;
    waiter.dismiss()
}

pub(super) fn stopped_owner() -> Outcome {
    let owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        link.give(export(&area, true)?.as_fd())?;
        link.receive()?;
        check_eq!(area.load(0), 5, "what the importer stored");
        Ok(())
    })?;
    let segment = device::segment(owner.link.take()?);
    owner.signal(Signal::SIGSTOP)?;
    check!(
        system::until(Duration::from_secs(10), || system::state(owner.pid())
            == Some('T')),
        "the owner does not stop"
    );
    let view = map(&segment, size(), true)?;
    view.verify(1)?;
    view.store(0, 5);
    let local = Area::new(size())?;
    let own = CopyEnd::Own(local.base() as u64);
    copy(
        &device::onecopy()?,
        CopyEnd::Segment(&segment, 0),
        own,
        size(),
    )
    .result
    .at("COPY")?;
    check_eq!(local.load(0), 5, "a copy from a stopped owner");
    owner.signal(Signal::SIGCONT)?;
    owner.dismiss()
}
