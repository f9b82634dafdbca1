// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a lane waits for an answer before it sends again.

use std::time::Duration;

/// Before the first answer has come. A peer that is just starting computes; sent again too soon costs packets only.
/// Chosen by magnitude, as are those below.
const FIRST: Duration = Duration::from_millis(20);
/// A peer's program answers when it looks; one that waits for a processor does not for some milliseconds. Kernels of
/// 250 ticks a second give it one after 4.
const LEAST: Duration = Duration::from_millis(4);
/// A peer that comes back after a while finds out soon. Fifty of these are within the default of
/// `ONECOPY_VERBS_UD_TIMEOUT`. The time of lanes counts for so long after a look, and a rank that sleeps looks more
/// often. So whatever a lane waits for is due after an absence, but for its end.
pub(super) const MOST: Duration = Duration::from_millis(200);

/// Times of answers: their mean, how they vary, and how often none came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    mean: Option<Duration>,
    varies: Duration,
    silences: u32,
}

impl Clock {
    /// An answer took so long.
    pub(super) fn took(&mut self, time: Duration) {
        match self.mean {
            None => (self.mean, self.varies) = (Some(time), time / 2),
            Some(mean) => {
                self.varies = (3 * self.varies + mean.abs_diff(time)) / 4;
                self.mean = Some((7 * mean + time) / 8);
            }
        }
    }

    /// The retransmission timeout: how long to wait.
    pub(super) fn rto(&self) -> Duration {
        let wait = self.mean.map_or(FIRST, |mean| mean + 4 * self.varies);
        (wait.max(LEAST) * (1 << self.silences)).min(MOST)
    }

    /// Nothing came in that time.
    pub(super) fn was_silent(&mut self) {
        self.silences = (self.silences + 1).min(8);
    }

    /// Something came.
    pub(super) fn has_received(&mut self) {
        self.silences = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rto_follows_answers_and_doubles_with_silence() {
        let mut clock = Clock::default();
        assert_eq!(clock.rto(), FIRST);
        for _ in 0..50 {
            clock.took(Duration::from_millis(10));
        }
        let calm = clock.rto();
        assert!(calm >= Duration::from_millis(10) && calm < Duration::from_millis(12));
        clock.was_silent();
        assert_eq!(clock.rto(), 2 * calm);
        (0..100).for_each(|_| clock.was_silent());
        assert_eq!(clock.rto(), MOST);
        clock.has_received();
        assert_eq!(clock.rto(), calm);
        for _ in 0..100 {
            clock.took(Duration::from_micros(5));
        }
        assert_eq!(clock.rto(), LEAST);
    }
}
