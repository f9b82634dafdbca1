// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two processors do with one word of the module. Only a kernel with KCSAN sees most of what
//! may be wrong there. On others these tests look at what a program would see of it.

use std::os::fd::AsFd;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use knem_sys::{KNEM_FLAG_ANY_USER_ACCESS, KNEM_FLAG_MEMCPYTHREAD, KNEM_FLAG_NOTIFY_FD};
use knem_sys::{KNEM_FLAG_SINGLEUSE, KNEM_STATUS_PENDING, KNEM_STATUS_SUCCESS};
use onecopy_sys::ONECOPY_SEGMENT_DEAD;

use crate::device::{self, Inline, export, knem, map, region, vector};
use crate::mem::{Area, READ, WRITE, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq};
use crate::peer::{Link, PATIENCE, peer, poll_read};
use crate::system;

fn size() -> usize {
    4 * page_size()
}
/// How long both sides go on.
const LONG: Duration = Duration::from_millis(1500);

/// Both at once.
fn both(one: impl FnOnce() -> Outcome + Send, other: impl FnOnce() -> Outcome) -> Outcome {
    std::thread::scope(|scope| {
        let thread = scope.spawn(one);
        let other = other();
        ended(thread)?;
        other
    })
}

fn ended(thread: std::thread::ScopedJoinHandle<'_, Outcome>) -> Outcome {
    let bad = |_| Err(Fault::Fail("a thread ended badly".to_owned()));
    thread.join().unwrap_or_else(bad)
}

/// Again and again.
fn repeat(mut body: impl FnMut() -> Outcome) -> Outcome {
    let begin = Instant::now();
    while begin.elapsed() < LONG {
        body()?;
    }
    Ok(())
}

/// A region that is listed has the rights that it was made with.
pub(super) fn pins_while_regions_come() -> Outcome {
    let device = knem()?;
    let area = Area::new(page_size())?;
    area.fill(1);
    let flags = KNEM_FLAG_SINGLEUSE | KNEM_FLAG_ANY_USER_ACCESS;
    let regions = || {
        repeat(|| {
            let cookie = region(&device, &area, READ, flags)?;
            device.destroy_region(cookie).at("DESTROY_REGION")
        })
    };
    both(regions, || {
        repeat(|| {
            let path = "/proc/onecopy/pins";
            let text = std::fs::read_to_string(path).at(path)?;
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                check!(line.ends_with(" once any-user"), "a region: {line}");
            }
            Ok(())
        })
    })
}

/// The end of a segment is asked for without its lock.
pub(super) fn info_while_revoked() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    repeat(|| {
        let segment = export(&area, true)?;
        let view = map(&segment, size(), true)?;
        both(
            || segment.revoke().at("REVOKE"),
            || {
                while segment.info().at("SEGMENT_INFO")?.flags & ONECOPY_SEGMENT_DEAD == 0 {
                    let _ = view.try_load(0);
                }
                Ok(())
            },
        )?;
        check_eq!(view.try_load(0), Ok(0), "a load after the end");
        view.unmap()
    })
}

/// Whether there is a notification is asked for without the queue's lock.
pub(super) fn poll_while_copies_end() -> Outcome {
    let owner = knem()?;
    let area = Area::new(size())?;
    area.fill(1);
    let cookie = region(&owner, &area, READ | WRITE, 0)?;
    let device = knem()?;
    let status = device.map_status(64).at("mmap of the status array")?;
    let target = Area::new(size())?;
    let inline = Inline {
        flags: KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_NOTIFY_FD,
        ..Inline::read(cookie, size())
    };
    // A full queue refuses more.
    let copies = || {
        repeat(|| {
            let _ = inline.run(&device, &[vector(&target)]);
            Ok(())
        })
    };
    let mut read = 0;
    both(copies, || {
        repeat(|| {
            read += u64::from(poll_read(device.as_fd()).is_ok());
            Ok(())
        })
    })?;
    // A busy machine may not come to it in that time.
    let notified = read > 0 || system::until(PATIENCE, || poll_read(device.as_fd()).is_ok());
    check!(notified, "no copy told of its end");
    let done = system::until(PATIENCE, || status.get(0) != KNEM_STATUS_PENDING);
    check!(done, "a copy stays pending");
    check_eq!(status.get(0), KNEM_STATUS_SUCCESS, "the last status");
    target.verify(1)
}

/// The first stores to holes of an attachment make the page that takes them.
pub(super) fn first_stores_to_holes() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let segment = export(&area, true)?;
    area.unmap()?;
    repeat(|| {
        let view = map(&segment, size(), true)?;
        let store = |from: usize| {
            for page in from..from + 2 {
                let stored = view.try_store(page * page_size(), 2);
                check_eq!(stored, Ok(()), "a store to a hole");
            }
            Ok(())
        };
        both(|| store(0), || store(2))?;
        view.unmap()
    })
}

/// Descriptors of one segment are made and mapped at once.
pub(super) fn descriptors_at_once() -> Outcome {
    let area = Area::new(size())?;
    area.fill(1);
    let segment = export(&area, true)?;
    let look = || {
        repeat(|| {
            let own = segment.restrict(false).at("RESTRICT")?;
            let view = map(&own, size(), false)?;
            view.verify(1)?;
            view.unmap()
        })
    };
    both(look, look)
}

/// Hundreds of threads of an owner take away and fill anew a page each, hundreds of an importer read them. More changes
/// are under way than there are places for. Nobody reads what is older than what was said to be there.
pub(super) fn hundreds_of_threads() -> Outcome {
    const OWNERS: usize = 200;
    const IMPORTERS: usize = 100;
    let announced = Area::shared(8 * OWNERS)?;
    let over = Area::shared(page_size())?;
    let page = |thread: usize| thread * page_size();
    let owner = peer(move |link: &Link| {
        let area = Area::new(OWNERS * page_size())?;
        link.give(export(&area, true)?.as_fd())?;
        let start = Barrier::new(OWNERS);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..OWNERS)
                .map(|thread| {
                    let start = &start;
                    scope.spawn(move || -> Outcome {
                        start.wait();
                        for value in 1.. {
                            area.advise(page(thread), page_size(), libc::MADV_DONTNEED)?;
                            // Nobody sees what was stored before the call.
                            announced.store(8 * thread, value);
                            area.store(page(thread), value);
                            if over.load(0) != 0 {
                                break;
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(ended)
        })?;
        link.turn()
    })?;
    let segment = device::segment(owner.link.take()?);
    let view = map(&segment, OWNERS * page_size(), false)?;
    let read = |first: usize| {
        // What was said the last time that this thread was here.
        let mut least = [0; 16];
        let mut at = 0;
        while over.load(0) == 0 {
            at = (at + 1) % least.len();
            let thread = (first + at) % OWNERS;
            let value = view.load(page(thread));
            check!(
                value == 0 || value >= least[at],
                "page {thread} holds {value}, and {} was there before",
                least[at]
            );
            least[at] = announced.load(8 * thread);
        }
        Ok(())
    };
    let outcome = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..IMPORTERS)
            .map(|thread| scope.spawn(move || read(2 * thread)))
            .collect();
        std::thread::sleep(LONG);
        over.store(0, 1);
        threads.into_iter().try_for_each(ended)
    });
    outcome?;
    if let Err(fault) = owner.link.turn() {
        return Err(owner.join().err().unwrap_or(fault));
    }
    owner.join()?;
    let done: u64 = (0..OWNERS).map(|thread| announced.load(8 * thread)).sum();
    check!(
        done >= OWNERS as u64,
        "the owner's threads changed {done} pages"
    );
    Ok(())
}
