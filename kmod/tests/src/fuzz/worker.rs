// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process of the fuzzer: two threads over the same memory, each with objects of its own, and now and then a child.
//!
//! Whatever it maps, unmaps and lets others write to lies in an arena at the same address in all workers, with a guard
//! behind it. So no call can hit what the process itself lives in.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use nix::unistd::Pid;

use crate::mem::{Area, HUGE, page_size};

use super::table::{Kind, Table, Writer};
use crate::dice::Dice;

/// Where every worker's arena lies.
pub(super) const ARENA: usize = 0x2000_0000_0000;
pub(super) const ARENA_SIZE: usize = 8 * HUGE;
/// Behind it nothing is ever mapped.
pub(super) const GUARD: usize = 16 * HUGE;
/// Steps after which a worker leaves its place to a fresh one.
pub(super) const LIFE: u64 = 800_000;

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

impl Worker<'_> {
    /// Pages of the arena.
    pub(super) fn range(&mut self) -> Area {
        // Large ones take an emulated processor long.
        let pages = if self.dice.once_in(64) {
            self.dice.pick(&[511usize, 512, 513, 1024])
        } else {
            self.dice.pick(&[1usize, 1, 2, 3, 7, 16, 64])
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
