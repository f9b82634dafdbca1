// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time by which lanes go. It counts while their rank looks at what comes, and stands still while the rank is away:
//! its program computes, or waits for a processor. What peers have sent then lies in the device, or is lost because
//! nobody posted receives. So a rank's own absence is no silence of its peers.

use super::clock;
use std::time::{Duration, Instant};

/// Time counts for so long after a look. A rank that sleeps looks more often, and no lane waits for an answer longer
/// than that before it sends again. So whatever a lane waits for is due after an absence, but for its end.
const COUNTED: Duration = clock::MOST;

#[derive(Debug)]
pub(super) struct AttendedTime {
    begun: Instant,
    /// When the rank last looked, since the beginning.
    looked: Duration,
    /// What did not count until then.
    away: Duration,
}

impl AttendedTime {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            looked: Duration::ZERO,
            away: Duration::ZERO,
        }
    }

    /// The rank looks at what has come.
    pub(super) fn looks(&mut self) {
        self.looks_at(self.begun.elapsed());
    }

    pub(super) fn now(&self) -> Duration {
        self.counted(self.begun.elapsed())
    }

    fn looks_at(&mut self, elapsed: Duration) {
        self.away += elapsed.saturating_sub(self.looked + COUNTED);
        self.looked = elapsed;
    }

    fn counted(&self, elapsed: Duration) -> Duration {
        elapsed.min(self.looked + COUNTED) - self.away
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_looks_counts_and_an_absence_does_not() {
        let mut time = AttendedTime::new();
        let step = COUNTED / 2;
        for looks in 1..=10 {
            time.looks_at(step * looks);
            assert_eq!(time.counted(step * looks), step * looks);
        }
        let before = step * 10;
        let after = before + Duration::from_secs(60);
        assert_eq!(time.counted(after), before + COUNTED, "until it looks");
        time.looks_at(after);
        assert_eq!(time.counted(after), before + COUNTED);
        assert_eq!(time.counted(after + step), before + COUNTED + step);
        time.looks_at(after + step);
        assert_eq!(time.counted(after + step), before + COUNTED + step);
    }
}
