// SPDX-License-Identifier: MIT OR Apache-2.0
//! Credit: what unmatched eager messages of a pair may occupy at their receiver. Each side keeps its own part.

/// What is charged against a sender's credit for an eager message of `len` bytes: empty ones take memory, too.
#[inline(always)]
pub(crate) fn charge(len: u64) -> u64 {
    len + 64
}

/// The credit that this rank has as a sender.
#[derive(Debug)]
pub(crate) struct Credit {
    used: u64,
    limit: u64,
}

impl Credit {
    pub(super) fn new(limit: u64) -> Self {
        Self { used: 0, limit }
    }

    /// Whether so much more may be used, as far as this rank knows.
    #[inline(always)]
    pub(crate) fn covers(&self, charge: u64) -> bool {
        self.used + charge <= self.limit
    }

    #[inline(always)]
    pub(crate) fn spend(&mut self, charge: u64) {
        self.used += charge;
    }

    /// The receiver has given back so much, ever, and grants `most` at a time.
    pub(crate) fn learn(&mut self, back: u64, most: u64) {
        self.limit = back.min(self.used) + most;
    }
}

/// The credit that this rank gives back as a receiver.
#[derive(Debug, Default)]
pub(super) struct Returned {
    /// Bytes to give back, ever, and how many of them the sender knows of.
    due: u64,
    announced: u64,
}

impl Returned {
    /// Gives `charge` back. If the sender does not know of more than `least` bytes then, returns the total, to be
    /// sent.
    #[inline]
    pub(super) fn give(&mut self, charge: u64, least: u64) -> Option<u64> {
        self.due += charge;
        if self.due - self.announced <= least {
            return None;
        }
        self.announced = self.due;
        Some(self.due)
    }
}
