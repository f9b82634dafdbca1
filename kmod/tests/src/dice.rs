// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random numbers that a seed gives again (splitmix64), and values that are nearly right.

/// A sequence of numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than the limit, which is not zero.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// The index of one of so many, if there are any.
    pub(crate) fn index(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.below(count as u64) as usize)
    }

    /// The value, or now and then a boundary near it or far from it.
    pub(crate) fn bend(&mut self, value: u64) -> u64 {
        if !self.once_in(16) {
            return value;
        }
        self.pick(&[
            0,
            1,
            value.wrapping_add(1),
            value.wrapping_sub(1),
            value.wrapping_add(8),
            value.wrapping_add(4096),
            value.wrapping_sub(4096),
            value ^ (1 << 40),
            4095,
            4097,
            u64::MAX,
            u64::MAX - 4095,
            1 << 63,
            (1 << 63) - 1,
        ])
    }

    /// Flags, or now and then others.
    pub(crate) fn bend_flags(&mut self, flags: u32) -> u32 {
        match self.below(32) {
            0 => flags ^ (1 << self.below(32)),
            1 => u32::MAX,
            _ => flags,
        }
    }
}
