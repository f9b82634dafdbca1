// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a peer that does not answer counts as gone.
//!
//! A device waits 4.096 µs · 2^`timeout` for an answer, and asks again `retries` times. Seven retries are never used:
//! the software device takes seven for "for ever", so that the death of a peer would never be reported.

use std::time::Duration;

/// Most retries that every device counts: InfiniBand's field has three bits, and seven is left out.
pub const RETRIES_MAX: u8 = 6;
/// An answer may take this long on any machine that works: a host under load, and guests that are translated, need it.
/// Shorter ones were seen to fail connections that were in order. It is 0.27 s.
pub const EXPONENT_MIN: u8 = 16;
/// Two minutes and more (137 s) for one answer: a longer wait would be one for ever. InfiniBand's field would permit
/// 31.
const EXPONENT_MAX: u8 = 25;

/// Times of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    exponent: u8,
    retries: u8,
    /// How often a message is sent again to a peer that has no room for it.
    full_retries: u8,
    /// How long such a peer asks a sender to wait: a number of the standard's table.
    full_timer: u8,
}

impl Timing {
    /// A peer that is silent for about so long is gone. It is between half of it and all of it, but never less than
    /// what the shortest answer may take.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        let mut best = Self {
            exponent: EXPONENT_MIN,
            retries: 1,
            ..Self::default()
        };
        for exponent in EXPONENT_MIN..=EXPONENT_MAX {
            for retries in 1..=RETRIES_MAX {
                let timing = Self {
                    exponent,
                    retries,
                    ..best
                };
                // Of those that are as long, the one that asks more often.
                if timing.silence() <= limit && timing.silence() >= best.silence() {
                    let more_often = timing.silence() > best.silence() || retries > best.retries;
                    best = if more_often { timing } else { best };
                }
            }
        }
        best
    }

    /// How long a peer is silent before an operation fails.
    #[must_use]
    pub fn silence(self) -> Duration {
        Duration::from_nanos(4096 << self.exponent) * (u32::from(self.retries) + 1)
    }

    /// The exponent of the time for one answer.
    #[must_use]
    pub fn exponent(self) -> u8 {
        self.exponent
    }

    /// How often is asked again; never seven.
    #[must_use]
    pub fn retries(self) -> u8 {
        self.retries.min(RETRIES_MAX)
    }

    /// How often a full peer is asked again.
    #[must_use]
    pub fn full_retries(self) -> u8 {
        self.full_retries.min(RETRIES_MAX)
    }

    /// How long such a peer asks to wait.
    #[must_use]
    pub fn full_timer(self) -> u8 {
        self.full_timer
    }
}

impl Default for Timing {
    /// About one second of silence. A peer may be full for a quarter of a second: with credit it never is.
    fn default() -> Self {
        Self {
            exponent: 16,
            retries: 3,
            full_retries: RETRIES_MAX,
            full_timer: 24,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_bounded_and_retries_are_counted() {
        for millis in [0, 1, 300, 1000, 2000, 10_000, 100_000, u64::from(u32::MAX)] {
            let limit = Duration::from_millis(millis);
            let timing = Timing::within(limit);
            assert!(timing.retries() < 7 && timing.exponent() >= EXPONENT_MIN);
            let shortest = Duration::from_millis(537);
            assert!(
                timing.silence() <= limit.max(shortest),
                "{millis}: {timing:?}"
            );
            if (1000..100_000).contains(&millis) {
                assert!(
                    timing.silence() * 2 >= limit,
                    "{millis}: {:?}",
                    timing.silence()
                );
            }
        }
        let default = Timing::default().silence();
        assert!((Duration::from_millis(1000)..Duration::from_millis(1100)).contains(&default));
    }
}
