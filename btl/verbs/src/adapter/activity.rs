// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a lane is used, and whether its device still works for it.

use std::sync::Arc;
use std::time::Instant;

/// What a lane has carried: messages to the peer, messages from it, and reads, ever.
pub(super) type Carried = (u32, u32, u32);

/// When a lane was last seen to have carried something.
#[derive(Debug)]
pub(super) struct LastUse {
    time: Instant,
    /// What it had carried then.
    carried: Carried,
}

impl LastUse {
    pub(super) fn new() -> Self {
        Self {
            time: Instant::now(),
            carried: (0, 0, 0),
        }
    }

    pub(super) fn time(&self) -> Instant {
        self.time
    }

    /// What it stands for was used at that time.
    pub(super) fn note(&mut self, time: Instant) {
        self.time = self.time.max(time);
    }

    /// Learns what the lane has carried by now.
    pub(super) fn look(&mut self, now: Instant, carried: Carried) {
        if std::mem::replace(&mut self.carried, carried) != carried {
            self.time = now;
        }
    }
}

/// What a lane has shown of the program's memory, and its peer may still be reading. This side sees nothing of that.
#[derive(Debug, Default)]
pub(crate) struct Shows(Arc<()>);

impl Shows {
    /// Keeps what was shown as long as the peer may read it.
    pub(crate) fn hold(&self, memory: impl Send + 'static) -> Box<dyn Send> {
        Box::new((memory, Arc::clone(&self.0)))
    }

    /// Whether the peer may be reading.
    pub(crate) fn is_any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// A watchdog over a lane's device.
///
/// It knows how many operations the device has reported the end of. Invariant: a time is kept only while operations are
/// under way and the device has reported none since.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// Ends that the device has reported, ever.
    ended: u32,
    /// Since when it is still, and what it had reported then.
    still: Option<(Instant, u32)>,
}

impl Watchdog {
    /// The device has reported the end of an operation.
    #[inline]
    pub(super) fn note_end(&mut self) {
        self.ended = self.ended.wrapping_add(1);
    }

    /// Since when the device has reported nothing of what is under way.
    pub(super) fn still_since(&mut self, now: Instant, under_way: bool) -> Option<Instant> {
        self.still = match self.still {
            Some((since, ended)) if under_way && ended == self.ended => Some((since, ended)),
            _ if under_way => Some((now, self.ended)),
            _ => None,
        };
        self.still.map(|(since, _)| since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_what_was_carried_counts_as_use() {
        let mut last = LastUse::new();
        let [first, later] = [1, 2].map(|seconds| last.time() + Duration::from_secs(seconds));
        last.look(first, (1, 0, 0));
        last.look(later, (1, 0, 0));
        assert_eq!(last.time(), first);
        last.look(later, (1, 0, 1));
        assert_eq!(last.time(), later);
    }

    #[test]
    fn a_device_is_still_only_while_something_is_under_way() {
        let mut watchdog = Watchdog::default();
        let begin = Instant::now();
        let [first, later] = [1, 2].map(|seconds| begin + Duration::from_secs(seconds));
        assert_eq!(watchdog.still_since(begin, false), None);
        assert_eq!(watchdog.still_since(begin, true), Some(begin));
        assert_eq!(watchdog.still_since(first, true), Some(begin));
        watchdog.note_end();
        assert_eq!(watchdog.still_since(first, true), Some(first));
        assert_eq!(watchdog.still_since(later, false), None);
        assert_eq!(watchdog.still_since(later, true), Some(later));
    }
}
