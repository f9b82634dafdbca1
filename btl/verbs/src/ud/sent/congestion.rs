// SPDX-License-Identifier: MIT OR Apache-2.0
//! Congestion control: how many packets may be in flight at once, by what came back and what was lost. It grows and
//! shrinks as that of TCP (RFC 5681).

/// Packets in flight at first: about what TCP begins with (RFC 6928 has ten).
pub(super) const INITIAL_WINDOW: u32 = 8;
/// Packets in flight at least: with a single one, each would wait for its acknowledgement.
pub(super) const MIN_WINDOW: u32 = 2;

/// The congestion window.
#[derive(Debug)]
pub(super) struct Congestion {
    /// How many packets may be in flight.
    window: u32,
    /// From this size on, TCP's `ssthresh`, the window grows by one for each window that is acknowledged.
    slow_start_threshold: u32,
    /// How many packets were acknowledged since it last grew by one.
    acknowledged: u32,
    /// The latest transmission before the window was last shrunk. What is lost up to it was lost by the same cause.
    recover: u64,
}

impl Congestion {
    pub(super) fn new() -> Self {
        Self {
            window: INITIAL_WINDOW,
            slow_start_threshold: u32::MAX,
            acknowledged: 0,
            recover: 0,
        }
    }

    /// How many packets may be in flight.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// So many packets were acknowledged. The window never grows beyond `capacity`, the packets that a lane keeps.
    pub(super) fn on_acknowledged(&mut self, packets: u32, capacity: u32) {
        if self.window < self.slow_start_threshold {
            self.window += packets;
        } else {
            self.acknowledged += packets;
            if self.acknowledged >= self.window {
                self.acknowledged = 0;
                self.window += 1;
            }
        }
        self.window = self.window.min(capacity.max(MIN_WINDOW));
    }

    /// Packets were lost. `newest` is the latest transmission of them, `last` the latest of all.
    pub(super) fn on_loss(&mut self, newest: u64, last: u64) {
        if newest > self.recover {
            self.recover = last;
            self.shrink(self.window / 2);
        }
    }

    /// Nothing was acknowledged in time. `last` is the latest transmission of all.
    pub(super) fn on_timeout(&mut self, last: u64) {
        self.recover = last;
        self.shrink(MIN_WINDOW);
    }

    fn shrink(&mut self, window: u32) {
        self.slow_start_threshold = (self.window / 2).max(MIN_WINDOW);
        self.window = window.max(MIN_WINDOW);
        self.acknowledged = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u32 = 32;

    #[test]
    fn the_window_grows_by_each_packet_until_something_is_lost() {
        let mut congestion = Congestion::new();
        congestion.on_acknowledged(INITIAL_WINDOW, CAPACITY);
        assert_eq!(congestion.window(), 2 * INITIAL_WINDOW);
        congestion.on_loss(1, 16);
        assert_eq!(congestion.window(), INITIAL_WINDOW);
        congestion.on_acknowledged(INITIAL_WINDOW - 1, CAPACITY);
        assert_eq!(congestion.window(), INITIAL_WINDOW);
        congestion.on_acknowledged(1, CAPACITY);
        assert_eq!(congestion.window(), INITIAL_WINDOW + 1);
    }

    #[test]
    fn losses_of_one_window_shrink_it_once() {
        let mut congestion = Congestion::new();
        congestion.on_loss(3, 8);
        congestion.on_loss(8, 9);
        assert_eq!(congestion.window(), INITIAL_WINDOW / 2);
        congestion.on_loss(9, 12);
        assert_eq!(congestion.window(), INITIAL_WINDOW / 4);
    }

    #[test]
    fn a_timeout_shrinks_it_to_the_least_and_it_grows_fast_to_its_half() {
        let mut congestion = Congestion::new();
        congestion.on_timeout(8);
        assert_eq!(congestion.window(), MIN_WINDOW);
        congestion.on_loss(8, 9);
        assert_eq!(congestion.window(), MIN_WINDOW, "of the same cause");
        congestion.on_acknowledged(MIN_WINDOW, CAPACITY);
        assert_eq!(congestion.window(), INITIAL_WINDOW / 2);
        congestion.on_acknowledged(INITIAL_WINDOW / 2, CAPACITY);
        assert_eq!(congestion.window(), INITIAL_WINDOW / 2 + 1);
    }

    #[test]
    fn the_window_has_bounds() {
        let mut congestion = Congestion::new();
        congestion.on_acknowledged(1000, CAPACITY);
        assert_eq!(congestion.window(), CAPACITY);
        congestion.on_acknowledged(1, 1);
        assert_eq!(congestion.window(), MIN_WINDOW);
        congestion.on_timeout(1);
        congestion.on_loss(2, 2);
        assert_eq!(congestion.window(), MIN_WINDOW);
    }
}
