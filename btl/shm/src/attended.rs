// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time by which a rank judges its peers. It counts while the rank looks at what comes. It stands still while the
//! rank is away: it was stopped, its program computes, or it waits for a processor. What peers have sent then lies
//! where nobody has read it, or was lost because nobody made room. So a rank's own absence is no silence of its peers.

use std::time::{Duration, Instant};

/// The time of one rank's looks.
#[derive(Debug)]
pub struct AttendedTime {
    begun: Instant,
    /// Time counts for so long after a look.
    counted: Duration,
    /// When the rank last looked, since the beginning.
    looked: Duration,
    /// What did not count until then.
    away: Duration,
}

impl AttendedTime {
    /// It begins now, and counts for so long after each look. A rank that is there looks more often.
    #[must_use]
    pub fn new(counted: Duration, now: Instant) -> Self {
        Self {
            begun: now,
            counted,
            looked: Duration::ZERO,
            away: Duration::ZERO,
        }
    }

    /// The rank looks at what has come. Gives the time of this look.
    pub fn looks(&mut self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.begun).max(self.looked);
        self.away += elapsed.saturating_sub(self.looked + self.counted);
        self.looked = elapsed;
        elapsed - self.away
    }

    /// The time of the last look.
    #[must_use]
    pub fn last(&self) -> Duration {
        self.looked - self.away
    }

    /// When the rank last looked, by the system's clock.
    #[must_use]
    pub fn looked(&self) -> Instant {
        self.begun + self.looked
    }

    /// What time it is.
    #[must_use]
    pub fn at(&self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.begun).max(self.looked);
        elapsed.min(self.looked + self.counted) - self.away
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_looks_counts_and_an_absence_does_not() {
        const COUNTED: Duration = Duration::from_millis(200);
        let begun = Instant::now();
        let mut time = AttendedTime::new(COUNTED, begun);
        let step = COUNTED / 2;
        for looks in 1..=10 {
            assert_eq!(time.looks(begun + step * looks), step * looks);
            assert_eq!(time.at(begun + step * looks), step * looks);
        }
        let before = step * 10;
        let after = begun + before + Duration::from_secs(60);
        assert_eq!(time.at(after), before + COUNTED, "until it looks");
        assert_eq!(time.last(), before);
        assert_eq!(time.looks(after), before + COUNTED);
        assert_eq!(time.at(after), before + COUNTED);
        assert_eq!(time.at(after + step), before + COUNTED + step);
        assert_eq!(time.looks(after + step), before + COUNTED + step);
        assert_eq!(time.looks(after), before + COUNTED + step, "never back");
    }
}
