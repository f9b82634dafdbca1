// SPDX-License-Identifier: MIT OR Apache-2.0
//! The life of a worker: call after call, until its time is over.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use super::calls::CALLS;
use super::table::{Table, Writer};
use super::worker::{ARENA, ARENA_SIZE, GUARD, LIFE, Plan, Worker};
use crate::dice::Dice;
use crate::inject;
use crate::mem::{Area, page_size};
use crate::outcome::Outcome;
use crate::system;

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
                index = self.dice.pick(&new);
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
                let call = (index, CALLS[index].device);
                self.table.count(self.slot, self.writer, call, number);
            }
        }
    }
}
