// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process of the fuzzer: two threads over the same memory, each with objects of its own, and now and then a child.
//!
//! Whatever it maps, unmaps and lets others write to lies in an arena at the same address in all workers, with a guard behind it, so that
//! no call can hit what the process itself lives in.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use nix::unistd::Pid;

use crate::mem::{Area, HUGE, page_size};
use crate::outcome::Outcome;
use crate::system;

use super::calls::CALLS;
use super::inject;
use super::table::{Kind, Table, Writer};
use crate::dice::Dice;

/// Where every worker's arena lies.
pub(super) const ARENA: usize = 0x2000_0000_0000;
pub(super) const ARENA_SIZE: usize = 8 * HUGE;
/// Behind it nothing is ever mapped.
const GUARD: usize = 16 * HUGE;
/// Steps after which a worker leaves its place to a fresh one.
const LIFE: u64 = 800_000;

/// Which worker this is.
pub(super) struct Plan {
    pub(super) slot: usize,
    pub(super) incarnation: u64,
    pub(super) seed: u64,
    pub(super) inject: bool,
}

/// An open /dev/xpmem with what belongs to it.
pub(super) struct Xpmem {
    pub(super) device: xpmem_sys::Device,
    pub(super) segids: Vec<i64>,
    /// Permits, and whether they are for a whole address space.
    pub(super) apids: Vec<(i64, bool)>,
}

/// An open /dev/knem with what belongs to it.
pub(super) struct Knem {
    pub(super) device: knem_sys::Device,
    pub(super) status: Option<knem_sys::StatusArray>,
    pub(super) cookies: Vec<u64>,
}

/// An attachment, and what ends it: a permit, or nothing.
#[derive(Clone, Copy)]
pub(super) struct View {
    pub(super) area: Area,
    pub(super) permit: i64,
}

/// A segment's descriptor, and whether it is of a whole address space.
pub(super) struct Grant {
    pub(super) segment: onecopy_sys::Segment,
    pub(super) whole: bool,
}

/// A thread of a worker.
pub(super) struct Worker<'a> {
    pub(super) dice: Dice,
    pub(super) table: Table,
    pub(super) slot: usize,
    pub(super) writer: Writer,
    pub(super) boxes: &'a [(UnixDatagram, UnixDatagram)],
    pub(super) arena: Area,
    /// A page for structures, and one behind it where nothing ever is.
    pub(super) scratch: Area,
    pub(super) xpmem: Vec<Xpmem>,
    pub(super) knem: Vec<Knem>,
    pub(super) onecopy: Option<onecopy_sys::Device>,
    pub(super) grants: Vec<Grant>,
    pub(super) views: Vec<View>,
    pub(super) blocked: Vec<OwnedFd>,
    /// A file that is none of a device.
    pub(super) file: Option<File>,
    pub(super) child: Option<Pid>,
}

/// The life of a worker.
pub(super) fn work(plan: &Plan, table: &Table, boxes: &[(UnixDatagram, UnixDatagram)]) -> Outcome {
    // What the allocator needs comes from one place that no call here touches.
    system::quiet_allocator();
    let arena = Area::fixed(ARENA, ARENA_SIZE, GUARD)?;
    for at in (0..64 * page_size()).step_by(page_size()) {
        arena.store(at, at as u64);
    }
    let scratch = [Area::new(2 * page_size())?, Area::new(2 * page_size())?];
    for pages in &scratch {
        pages
            .part(page_size(), page_size())
            .protect(crate::mem::NONE)?;
    }
    let mut workers = [Writer::Main, Writer::Thread].map(|writer| Worker {
        dice: Dice::new(
            plan.seed ^ (plan.slot as u64) << 48 ^ plan.incarnation << 8 ^ writer as u64,
        ),
        table: *table,
        slot: plan.slot,
        writer,
        boxes,
        arena,
        scratch: scratch[writer as usize],
        xpmem: Vec::with_capacity(16),
        knem: Vec::with_capacity(16),
        onecopy: None,
        grants: Vec::with_capacity(64),
        views: Vec::with_capacity(256),
        blocked: Vec::with_capacity(16),
        file: File::open("/proc/self/maps").ok(),
        child: None,
    });
    if plan.inject {
        inject::include_self();
    }
    // Not everybody is root.
    match plan.slot % 4 {
        1 => system::become_user(1001)?,
        2 => {
            system::become_user(1002)?;
            let _ = system::become_namespace_root();
        }
        _ => {}
    }
    let [main, second] = &mut workers;
    std::thread::scope(|scope| {
        // Without a second thread, which injection may refuse, one is enough.
        let _ = std::thread::Builder::new().spawn_scoped(scope, || {
            if plan.inject {
                inject::include_self();
            }
            second.live(LIFE);
        });
        main.live(LIFE);
        // The second thread may wait for what never comes.
        system::leave(0)
    })
}

impl Worker<'_> {
    /// Makes calls until its time is over.
    pub(super) fn live(&mut self, steps: u64) {
        let weights: u64 = CALLS.iter().map(|call| call.weight).sum();
        // Seldom ones come early, too: a short run leaves none out.
        let mut new: Vec<usize> = (0..CALLS.len()).filter(|&at| CALLS[at].device).collect();
        for _ in 0..steps {
            if self.table.notes.stopped() {
                return;
            }
            let mut at = self.dice.below(weights);
            let mut index = CALLS
                .iter()
                .position(|call| {
                    let here = at < call.weight;
                    at = at.saturating_sub(call.weight);
                    here
                })
                .unwrap_or(0);
            if !new.is_empty() && self.dice.once_in(4) {
                index = self.dice.of(&new);
            }
            let begin = Instant::now();
            let outcome = (CALLS[index].run)(self);
            let took = begin.elapsed();
            self.table.step(self.slot, self.writer, index, took);
            if let Some(result) = outcome {
                new.retain(|&made| made != index);
                let number = result.err().map_or(0, |error| {
                    error
                        .raw_os_error()
                        .map_or(usize::MAX, |raw| raw.unsigned_abs() as usize)
                });
                self.table.count(self.slot, self.writer, index, number);
            }
        }
    }

    /// Pages of the arena.
    pub(super) fn range(&mut self) -> Area {
        // Large ones take an emulated processor long.
        let pages = if self.dice.once_in(64) {
            self.dice.of(&[511usize, 512, 513, 1024])
        } else {
            self.dice.of(&[1usize, 1, 2, 3, 7, 16, 64])
        };
        let length = pages * page_size();
        let unit = if self.dice.once_in(4) {
            HUGE
        } else {
            page_size()
        };
        let places = (ARENA_SIZE - length) / unit + 1;
        let offset = self.dice.below(places as u64) as usize * unit;
        self.arena.part(offset, length)
    }

    /// A few pages of the arena.
    pub(super) fn small_range(&mut self) -> Area {
        let pages = 1 + self.dice.below(8) as usize;
        let offset =
            self.dice.below((ARENA_SIZE / page_size() - pages) as u64) as usize * page_size();
        self.arena.part(offset, pages * page_size())
    }

    /// A name that somebody offered and that was not found dead since, if a few tries give one.
    pub(super) fn name(&mut self, kind: Kind) -> (u64, u64) {
        let mut at = 0;
        for _ in 0..8 {
            at = self.dice.next();
            let name = self.table.notes.name_at(kind, at);
            if name != 0 {
                return (at, name);
            }
        }
        (at, 0)
    }

    /// Remembers an attachment.
    pub(super) fn keep(&mut self, area: Area, permit: i64) {
        self.views.push(View { area, permit });
        if self.views.len() > 24 {
            let old = self.views.swap_remove(0);
            let _ = old.area.unmap();
        }
    }
}
