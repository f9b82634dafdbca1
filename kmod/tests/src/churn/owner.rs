// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that exports memory, and changes it in every way meanwhile.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use nix::fcntl::{FallocateFlags, fallocate};
use onecopy_sys::Segment;

use crate::device;
use crate::mem::{Area, HUGE, READ, WRITE, page_size};
use crate::outcome::{At, Outcome, check_eq};
use crate::peer::send;

use super::board::{Deed, Kind};
use super::{Life, file_size};

/// What is exported of anonymous memory. Beside it, on both sides, lies a page that is not.
fn size() -> usize {
    64 * page_size()
}
const CANARY: u64 = 0xca_7a_41;
/// How many of a kind it has at most.
const KEPT: usize = 4;

struct Owner<'a> {
    life: Life<'a>,
    /// The canaries and what lies between them.
    around: Area,
    anonymous: Area,
    /// Exported for reading only, and never changed.
    constant: Area,
    spare: Area,
    shared: Area,
    huge: Area,
    xpmem: xpmem_sys::Device,
    segids: VecDeque<i64>,
    knem: knem_sys::Device,
    cookies: VecDeque<u64>,
    grants: VecDeque<Segment>,
}

/// The life of an owner.
pub(super) fn live(life: Life<'_>) -> Outcome {
    let around = Area::new(size() + 2 * page_size())?;
    around.mark(CANARY);
    let constant = Area::new(4 * page_size())?;
    constant.fill(CANARY);
    let mut owner = Owner {
        around,
        anonymous: around.part(page_size(), size()),
        constant,
        spare: Area::new(size())?,
        shared: Area::file(life.file, file_size(), READ | WRITE, true)?,
        huge: Area::huge(HUGE)?,
        xpmem: device::xpmem()?,
        segids: VecDeque::new(),
        knem: device::knem()?,
        cookies: VecDeque::new(),
        grants: VecDeque::new(),
        life,
    };
    owner.constant_export()?;
    while owner.life.goes_on() {
        // An error is as good as a success here: others do the same with the same memory.
        let _ = owner.step();
        owner.look()?;
    }
    Ok(())
}

impl Owner<'_> {
    fn constant_export(&mut self) -> Outcome {
        let segment = device::export(&self.constant, false)?;
        self.pass(&segment);
        Ok(())
    }

    /// What nobody may change is as it was.
    fn look(&self) -> Outcome {
        let (first, last) = (
            self.around.part(0, page_size()),
            self.around.length() - page_size(),
        );
        first.verify_marks(CANARY)?;
        let expected = crate::mem::mix(CANARY, last);
        check_eq!(self.around.load(last), expected, "the page beside");
        self.constant.verify(CANARY)
    }

    fn pass(&mut self, segment: &Segment) {
        let to = self.life.dice.below(self.life.boxes.len() as u64) as usize;
        // A full box takes no more: its owner was killed, or is slow.
        let _ = send(&self.life.boxes[to].0, segment.as_fd(), 0);
    }

    /// Some memory to export.
    fn some(&mut self) -> Area {
        let area = self
            .life
            .dice
            .pick(&[self.anonymous, self.shared, self.huge, self.anonymous]);
        let pages = self.life.dice.below(area.pages() as u64) as usize;
        if self.life.dice.once_in(2) {
            area
        } else {
            area.part(pages * page_size(), area.length() - pages * page_size())
        }
    }

    fn part(&mut self) -> Area {
        let area = self
            .life
            .dice
            .pick(&[self.anonymous, self.huge, self.shared, self.anonymous]);
        let first = self.life.dice.below(area.pages() as u64 - 1) as usize;
        let most = (area.pages() - first).min(16) as u64;
        let count = 1 + self.life.dice.below(most) as usize;
        area.part(first * page_size(), count * page_size())
    }

    fn step(&mut self) -> Outcome {
        match self.life.dice.below(16) {
            0 => self.punch()?,
            1 => self.truncate()?,
            2 => self.shift()?,
            3 => {
                let part = self.part();
                part.advise(0, part.length(), libc::MADV_DONTNEED)?;
            }
            4 => {
                let first = self.life.dice.below(size() as u64 / page_size() as u64 - 8) as usize;
                let part = self.anonymous.part(first * page_size(), 8 * page_size());
                part.unmap()?;
                part.replace()?;
                // As its neighbours: mremap() takes one mapping.
                let _ = part.advise(0, part.length(), libc::MADV_NOHUGEPAGE);
            }
            5 => {
                let part = self.part();
                part.protect(READ).at("mprotect")?;
                part.protect(READ | WRITE).at("mprotect")?;
            }
            6 => self.revoke()?,
            7..=8 => self.grant()?,
            9 => self.make()?,
            10 => self.region()?,
            11 => {
                const MADV_PAGEOUT: i32 = 21;
                let part = self.part();
                part.advise(0, part.length(), MADV_PAGEOUT)?;
            }
            12 => {
                let area = self.huge;
                let advice = [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE];
                area.advise(0, HUGE, self.life.dice.pick(&advice))?;
            }
            _ => {
                let part = self.part();
                for page in 0..part.pages() {
                    // Where the file is too short this is a signal, which the probe takes.
                    let _ = part.try_store(page * page_size(), page as u64);
                }
            }
        }
        Ok(())
    }

    fn punch(&mut self) -> Outcome {
        let page = self.life.dice.below((file_size() / page_size()) as u64) as i64;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(
            self.life.file,
            flags,
            page * page_size() as i64,
            page_size() as i64,
        )
        .at("fallocate")?;
        self.life.did(Deed::Punch);
        Ok(())
    }

    fn truncate(&mut self) -> Outcome {
        let pages = self.life.dice.below((file_size() / page_size()) as u64) as i64;
        nix::unistd::ftruncate(self.life.file, pages * page_size() as i64).at("ftruncate")?;
        nix::unistd::ftruncate(self.life.file, file_size() as i64).at("ftruncate")?;
        self.life.did(Deed::Truncate);
        Ok(())
    }

    /// Away and back: what is exported is the place.
    fn shift(&mut self) -> Outcome {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let there = self.anonymous.remap(size(), flags, Some(&self.spare));
        let there = there.at("mremap")?;
        there
            .remap(size(), flags, Some(&self.anonymous))
            .at("mremap")?;
        self.spare.replace()?;
        self.life.did(Deed::Move);
        Ok(())
    }

    fn revoke(&mut self) -> Outcome {
        if self.life.dice.once_in(2) {
            if let Some(segment) = self.grants.pop_front() {
                segment.revoke().at("REVOKE")?;
                self.life.did(Deed::Revoke);
            }
        } else if let Some(segid) = self.segids.pop_front() {
            self.xpmem.remove(segid).at("REMOVE")?;
            self.life.did(Deed::Revoke);
        }
        Ok(())
    }

    fn grant(&mut self) -> Outcome {
        let area = self.some();
        let write = !self.life.dice.once_in(4);
        let segment = device::export(&area, write)?;
        self.life.did(Deed::Export);
        self.pass(&segment);
        let pid = u64::from(std::process::id());
        let at = self.life.dice.next();
        self.life
            .board
            .notes
            .offer(Kind::Own, at, pid << 48 | area.base() as u64);
        self.grants.push_back(segment);
        if self.grants.len() > KEPT {
            self.grants.pop_front();
        }
        Ok(())
    }

    fn make(&mut self) -> Outcome {
        let area = self.some();
        let segid = device::make(&self.xpmem, &area, 0o600)?;
        self.life.did(Deed::Export);
        let at = self.life.dice.next();
        self.life.board.notes.offer(Kind::Segment, at, segid as u64);
        self.segids.push_back(segid);
        if self.segids.len() > KEPT
            && let Some(old) = self.segids.pop_front()
        {
            self.xpmem.remove(old).at("REMOVE")?;
        }
        Ok(())
    }

    fn region(&mut self) -> Outcome {
        let part = self.part();
        let cookie = device::region(&self.knem, &part, READ | WRITE, 0)?;
        self.life.did(Deed::Region);
        let at = self.life.dice.next();
        self.life.board.notes.offer(Kind::Cookie, at, cookie);
        self.cookies.push_back(cookie);
        if self.cookies.len() > KEPT
            && let Some(old) = self.cookies.pop_front()
        {
            self.knem.destroy_region(old).at("DESTROY_REGION")?;
        }
        Ok(())
    }
}
