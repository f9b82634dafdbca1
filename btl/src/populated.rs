// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which parts of a peer's memory have had their page tables filled here. One call before the first copy of a large
//! range costs less than a fault for each page.

use std::cell::RefCell;
use std::collections::HashSet;

/// Ranges at least this large are filled ahead. Below, the faults of a copy cost about what the call does. Chosen by
/// magnitude: a fault for each 4 KiB of 256 KiB is 64 of them, against one call of the kernel that does as much.
const MIN: u64 = 256 << 10;
/// What is remembered as filled: what one table of pages spans on x86-64.
const UNIT: u64 = 2 << 20;

/// The parts that were filled.
#[derive(Debug, Default)]
pub(crate) struct Populated(RefCell<HashSet<u64>>);

impl Populated {
    /// Calls `fill(begin, len)` for the parts of a range that were not filled before. What fails is not tried again.
    pub(crate) fn fill<E>(
        &self,
        begin: u64,
        len: u64,
        mut fill: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if len < MIN {
            return Ok(());
        }
        let mut done = self.0.borrow_mut();
        for unit in begin / UNIT..=(begin + len - 1) / UNIT {
            if done.insert(unit) {
                let from = begin.max(unit * UNIT);
                let to = (begin + len).min((unit + 1) * UNIT);
                fill(from, to - from)?;
            }
        }
        Ok(())
    }

    /// Forgets a range: it was mapped anew.
    pub(crate) fn forget(&self, begin: u64, len: u64) {
        let units = begin / UNIT..=(begin + len - 1) / UNIT;
        self.0.borrow_mut().retain(|unit| !units.contains(unit));
    }
}
