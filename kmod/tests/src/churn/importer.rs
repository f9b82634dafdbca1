// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that attaches what others export, and uses it, and lets go of it, in every order.

use std::collections::VecDeque;

use onecopy_sys::{CopyEnd, Segment};
use xpmem_sys::XPMEM_RDWR;

use crate::device::{self, Inline};
use crate::mem::{Area, READ, WRITE, page_size};
use crate::outcome::{At, Outcome};
use crate::peer::receive;

use super::Life;
use super::board::{Deed, Kind};

/// How many of a kind it has at most.
const KEPT: usize = 6;
/// At most so many pages of a segment, which may be smaller.
const PAGES: &[usize] = &[1, 4, 16, 64];

pub(super) struct Importer<'a> {
    pub(super) life: Life<'a>,
    own: Area,
    device: onecopy_sys::Device,
    xpmem: xpmem_sys::Device,
    apids: VecDeque<i64>,
    knem: knem_sys::Device,
    grants: VecDeque<Segment>,
    views: VecDeque<Area>,
}

/// The life of an importer.
pub(super) fn live(life: Life<'_>) -> Outcome {
    let mut importer = Importer::new(life)?;
    while importer.life.goes_on() {
        importer.step();
    }
    Ok(())
}

impl<'a> Importer<'a> {
    pub(super) fn new(life: Life<'a>) -> Outcome<Self> {
        Ok(Self {
            life,
            own: Area::new(64 * page_size())?,
            device: device::onecopy()?,
            xpmem: device::xpmem()?,
            apids: VecDeque::new(),
            knem: device::knem()?,
            grants: VecDeque::new(),
            views: VecDeque::new(),
        })
    }

    /// One thing, which may fail: what it is done to may be gone.
    pub(super) fn step(&mut self) {
        let _ = match self.life.dice.below(24) {
            0..=2 => self.take(),
            3..=4 => self.map(),
            5..=6 => self.attach(),
            7..=15 => self.touch(),
            16 => self.prefault(),
            17..=18 => self.copy(),
            19 => self.copy_region(),
            20 => self.shrink(),
            21 => self.change(),
            22 => self.release(),
            _ => {
                self.grants.pop_front();
                Ok(())
            }
        };
    }

    fn view(&mut self) -> Option<Area> {
        let at = self.life.dice.index(self.views.len())?;
        Some(self.views[at])
    }

    fn keep(&mut self, view: Area) {
        let pid = u64::from(std::process::id());
        let at = self.life.dice.next();
        self.life
            .board
            .notes
            .offer(Kind::View, at, pid << 48 | view.base() as u64);
        self.life.did(Deed::Attach);
        self.views.push_back(view);
        if self.views.len() > KEPT
            && let Some(old) = self.views.pop_front()
        {
            let _ = old.unmap();
        }
    }

    fn take(&mut self) -> Outcome {
        let (fd, _) = receive(&self.life.boxes[self.life.place].1)?;
        self.grants.push_back(device::segment(fd));
        if self.grants.len() > KEPT {
            self.grants.pop_front();
        }
        Ok(())
    }

    fn map(&mut self) -> Outcome {
        let Some(at) = self.life.dice.index(self.grants.len()) else {
            return Ok(());
        };
        let write = self.life.dice.once_in(2);
        let length = self.life.dice.pick(PAGES) * page_size();
        let view = device::try_map(&self.grants[at], 0, length, write)?;
        self.keep(view);
        Ok(())
    }

    fn attach(&mut self) -> Outcome {
        let name = self
            .life
            .board
            .notes
            .name_at(Kind::Segment, self.life.dice.next());
        if name != 0 {
            let apid = self.xpmem.get(name as i64, XPMEM_RDWR)?;
            self.apids.push_back(apid);
        }
        if self.apids.len() > KEPT {
            self.release()?;
        }
        let Some(at) = self.life.dice.index(self.apids.len()) else {
            return Ok(());
        };
        let length = self.life.dice.pick(PAGES) * page_size();
        let view = device::attach(&self.xpmem, self.apids[at], 0, length)?;
        self.keep(view);
        Ok(())
    }

    fn touch(&mut self) -> Outcome {
        let Some(view) = self.view() else {
            return Ok(());
        };
        for _ in 0..8 {
            let word = self.life.dice.below(view.length() as u64 / 8) as usize * 8;
            if self.life.dice.once_in(3) {
                if view.try_store(word, word as u64).is_ok() {
                    self.life.did(Deed::Store);
                }
            } else if view.try_load(word).is_ok() {
                self.life.did(Deed::Load);
            }
        }
        Ok(())
    }

    fn prefault(&mut self) -> Outcome {
        let Some(view) = self.view() else {
            return Ok(());
        };
        let write = self.life.dice.once_in(2);
        let progress = self
            .device
            .prefault(view.base(), view.length() as u64, write);
        progress.result?;
        self.life.did(Deed::Prefault);
        Ok(())
    }

    fn copy(&mut self) -> Outcome {
        let Some(at) = self.life.dice.index(self.grants.len()) else {
            return Ok(());
        };
        let length = self.life.dice.pick(PAGES) * page_size();
        let theirs = CopyEnd::Segment(&self.grants[at], 8);
        let own = CopyEnd::Own(self.own.base() as u64);
        let (from, to) = if self.life.dice.once_in(3) {
            (own, theirs)
        } else {
            (theirs, own)
        };
        let progress = device::copy(&self.device, from, to, length - 8);
        if progress.done > 0 {
            self.life.did(Deed::Copy);
        }
        Ok(())
    }

    fn copy_region(&mut self) -> Outcome {
        let cookie = self
            .life
            .board
            .notes
            .name_at(Kind::Cookie, self.life.dice.next());
        let length = self.life.dice.pick(PAGES).min(16) * page_size();
        let inline = Inline {
            write: self.life.dice.once_in(2),
            ..Inline::read(cookie, length)
        };
        inline.run(&self.knem, &[device::vector(&self.own)])?;
        self.life.did(Deed::RegionCopy);
        Ok(())
    }

    /// Unmaps a part of one, or all.
    fn shrink(&mut self) -> Outcome {
        let Some(at) = self.life.dice.index(self.views.len()) else {
            return Ok(());
        };
        let Some(view) = self.views.remove(at) else {
            return Ok(());
        };
        if view.pages() >= 4 && self.life.dice.once_in(2) {
            let half = view.pages() / 2 * page_size();
            view.part(half, view.length() - half).unmap()?;
            self.views.push_back(view.part(0, half));
            return Ok(());
        }
        if device::detach(&self.xpmem, &view).is_err() {
            view.unmap()?;
        }
        Ok(())
    }

    fn change(&mut self) -> Outcome {
        let Some(view) = self.view() else {
            return Ok(());
        };
        if self.life.dice.once_in(2) {
            // Refused, and entries that it moved come back.
            drop(view.remap(view.length(), libc::MREMAP_MAYMOVE, None));
            return Ok(());
        }
        let protection = self.life.dice.pick(&[READ, READ | WRITE]);
        view.part(0, page_size()).protect(protection).at("mprotect")
    }

    fn release(&mut self) -> Outcome {
        if let Some(apid) = self.apids.pop_front() {
            self.xpmem.release(apid)?;
        }
        Ok(())
    }
}
