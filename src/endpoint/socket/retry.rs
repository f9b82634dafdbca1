// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a pair that has no lane tries one again.
//!
//! Only ranks that send try: others need no lane. A device that came back is used soon. One that fails again and again
//! is tried ever more seldom.

use std::time::{Duration, Instant};

/// How long after its failure a lane is tried again, if the ranks talk. After each further failure it is twice as long,
/// up to [`BACKOFF_MAX`]. Both are chosen by magnitude: a link that comes back needs some seconds. One that does not
/// costs an attempt a minute.
pub(super) const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(64);

/// When a lane is tried again.
#[derive(Debug)]
pub(super) struct Retry {
    /// None: it is not, until one fails.
    due: Option<Instant>,
    /// How long after the next failure.
    backoff: Duration,
    /// Since when a lane carries something; none: none did since one last failed.
    carries_since: Option<Instant>,
    /// Whether this rank has sent something since a lane was last tried.
    talked: bool,
}

impl Retry {
    pub(super) fn new() -> Self {
        Self {
            due: None,
            backoff: BACKOFF,
            carries_since: None,
            talked: false,
        }
    }

    /// A lane is tried now.
    pub(super) fn tries(&mut self) {
        self.due = None;
    }

    /// A lane carries something from now on.
    pub(super) fn carries(&mut self, now: Instant) {
        self.carries_since = Some(now);
    }

    /// This rank sends something.
    #[inline]
    pub(super) fn talks(&mut self) {
        self.talked = true;
    }

    /// There was none, for a reason that may pass.
    pub(super) fn refused(&mut self, now: Instant) {
        self.after(BACKOFF, now);
    }

    /// A lane is over. One that has carried something for long was a good one.
    pub(super) fn failed(&mut self, now: Instant) {
        // The next failure is another lane's: what this one carried says nothing of that.
        let carried = self.carries_since.take();
        if carried.is_some_and(|since| now > since + BACKOFF_MAX) {
            self.backoff = BACKOFF;
        }
        self.after(self.backoff, now);
        self.backoff = (2 * self.backoff).min(BACKOFF_MAX);
    }

    fn after(&mut self, pause: Duration, now: Instant) {
        self.due = Some(now + pause);
        self.talked = false;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.talked && self.due.is_some_and(|due| now >= due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_pause_and_a_good_lane_ends_that() {
        let mut retry = Retry::new();
        let mut now = Instant::now();
        assert!(!retry.is_due(now), "nothing has failed");
        // The pause before the next try of ranks that talk.
        let pause = |retry: &Retry, now: Instant| {
            let due = |pause| retry.is_due(now + pause);
            (0..100).map(Duration::from_secs).find(|&pause| due(pause))
        };
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            retry.failed(now);
            assert_eq!(pause(&retry, now), None, "nobody talks");
            retry.talks();
            assert_eq!(pause(&retry, now), Some(Duration::from_secs(seconds)));
            retry.tries();
            assert_eq!(pause(&retry, now), None, "it is being tried");
        }
        retry.refused(now);
        retry.talks();
        assert_eq!(pause(&retry, now), Some(BACKOFF));
        retry.carries(now);
        now += BACKOFF_MAX + Duration::from_secs(1);
        retry.failed(now);
        retry.talks();
        assert_eq!(pause(&retry, now), Some(BACKOFF), "it was a good one");
        for seconds in [2, 4] {
            now += BACKOFF_MAX;
            retry.tries();
            retry.failed(now);
            retry.talks();
            let expected = Some(Duration::from_secs(seconds));
            assert_eq!(pause(&retry, now), expected, "none has carried since");
        }
    }
}
