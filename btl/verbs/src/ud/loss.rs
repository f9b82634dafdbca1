// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loss of packets, as tests want it.

/// Drops a percentage of the packets that come, in an order that the seed gives, and counts them.
#[derive(Debug)]
pub(super) struct Loss {
    percent: u8,
    dice: u64,
    dropped: u64,
}

impl Loss {
    pub(super) fn new(percent: u8, seed: u64) -> Self {
        Self {
            percent,
            dice: seed,
            dropped: 0,
        }
    }

    /// Whether to drop a packet that came.
    #[inline]
    pub(super) fn hits(&mut self) -> bool {
        if self.percent == 0 {
            return false;
        }
        // splitmix64.
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.dice;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let drops = (word ^ word >> 31) % 100 < u64::from(self.percent);
        self.dropped += u64::from(drops);
        drops
    }

    /// Packets that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}
