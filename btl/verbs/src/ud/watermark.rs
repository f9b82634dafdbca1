// SPDX-License-Identifier: MIT OR Apache-2.0
//! Up to which time all that has come was read. A deadline before that time can be judged: an answer in time would have
//! been seen. A poll takes a batch only, so a rank that comes back to a full queue needs several to catch up.

use std::time::Duration;

/// The time up to which all that has come was read.
#[derive(Debug, Default)]
pub(super) struct Watermark {
    at: Duration,
    /// Polls that have not emptied the queue so far.
    catching_up: Option<CatchingUp>,
}

#[derive(Debug)]
struct CatchingUp {
    since: Duration,
    /// Completions that may have been in the queue then, and are still there.
    left: usize,
}

impl Watermark {
    pub(super) fn at(&self) -> Duration {
        self.at
    }

    /// A poll at that time has taken so many of the completions of a queue that holds `capacity`. Where more come all
    /// the time, the queue is never empty. But those that were there first are taken first.
    pub(super) fn polled(&mut self, time: Duration, taken: usize, emptied: bool, capacity: usize) {
        if emptied {
            (self.at, self.catching_up) = (time, None);
            return;
        }
        let catching_up = self.catching_up.get_or_insert(CatchingUp {
            since: time,
            left: capacity,
        });
        catching_up.left = catching_up.left.saturating_sub(taken);
        if catching_up.left == 0 {
            self.at = catching_up.since;
            self.catching_up = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 16;
    const CAPACITY: usize = 40;

    fn after(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn it_waits_for_the_end_of_the_queue() {
        let mut watermark = Watermark::default();
        watermark.polled(after(1), 3, true, CAPACITY);
        assert_eq!(watermark.at(), after(1));
        for time in 2..4 {
            watermark.polled(after(time), BATCH, false, CAPACITY);
            assert_eq!(watermark.at(), after(1));
        }
        watermark.polled(after(4), 0, true, CAPACITY);
        assert_eq!(watermark.at(), after(4));
    }

    #[test]
    fn a_queue_that_is_never_empty_does_not_hold_it() {
        let mut watermark = Watermark::default();
        for time in 1..=7 {
            watermark.polled(after(time), BATCH, false, CAPACITY);
            let at = [0, 0, 1, 1, 1, 4, 4][time as usize - 1];
            assert_eq!(watermark.at(), after(at), "{time}");
        }
        watermark.polled(after(8), BATCH, true, CAPACITY);
        assert_eq!(watermark.at(), after(8));
    }
}
