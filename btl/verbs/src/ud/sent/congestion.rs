// SPDX-License-Identifier: MIT OR Apache-2.0
//! Congestion control: how many packets may be under way at once, by what came back and what was lost. It grows and
//! shrinks as that of TCP (RFC 5681).

/// Packets under way at first: about what TCP begins with (RFC 6928 has ten).
pub(super) const FIRST: u32 = 8;
/// Packets under way at least: with a single one, each would wait for its acknowledgement.
pub(super) const LEAST: u32 = 2;

/// The congestion window.
#[derive(Debug)]
pub(super) struct Congestion {
    /// How many packets may be under way.
    window: u32,
    /// From this size on the window grows by one for each window that is acknowledged.
    threshold: u32,
    /// How many packets were acknowledged since it last grew by one.
    acknowledged: u32,
    /// The latest transmission before the window was last narrowed. What is lost up to it was lost by the same cause.
    recover: u64,
}

impl Congestion {
    pub(super) fn new() -> Self {
        Self {
            window: FIRST,
            threshold: u32::MAX,
            acknowledged: 0,
            recover: 0,
        }
    }

    /// How many packets may be under way.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// So many packets were acknowledged. The window never grows beyond `most`, the packets that a lane keeps.
    pub(super) fn on_acknowledged(&mut self, packets: u32, most: u32) {
        if self.window < self.threshold {
            self.window += packets;
        } else {
            self.acknowledged += packets;
            if self.acknowledged >= self.window {
                self.acknowledged = 0;
                self.window += 1;
            }
        }
        self.window = self.window.min(most.max(LEAST));
    }

    /// Packets were lost. `newest` is the latest transmission of them, `last` the latest of all.
    pub(super) fn on_loss(&mut self, newest: u64, last: u64) {
        if newest > self.recover {
            self.recover = last;
            self.narrow(self.window / 2);
        }
    }

    /// Nothing was acknowledged in time. `last` is the latest transmission of all.
    pub(super) fn on_timeout(&mut self, last: u64) {
        self.recover = last;
        self.narrow(LEAST);
    }

    fn narrow(&mut self, window: u32) {
        self.threshold = (self.window / 2).max(LEAST);
        self.window = window.max(LEAST);
        self.acknowledged = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 32;

    #[test]
    fn the_window_grows_by_each_packet_until_something_is_lost() {
        let mut congestion = Congestion::new();
        congestion.on_acknowledged(FIRST, MOST);
        assert_eq!(congestion.window(), 2 * FIRST);
        congestion.on_loss(1, 16);
        assert_eq!(congestion.window(), FIRST);
        congestion.on_acknowledged(FIRST - 1, MOST);
        assert_eq!(congestion.window(), FIRST);
        congestion.on_acknowledged(1, MOST);
        assert_eq!(congestion.window(), FIRST + 1);
    }

    #[test]
    fn losses_of_one_window_narrow_it_once() {
        let mut congestion = Congestion::new();
        congestion.on_loss(3, 8);
        congestion.on_loss(8, 9);
        assert_eq!(congestion.window(), FIRST / 2);
        congestion.on_loss(9, 12);
        assert_eq!(congestion.window(), FIRST / 4);
    }

    #[test]
    fn a_timeout_narrows_it_to_the_least_and_it_grows_fast_to_its_half() {
        let mut congestion = Congestion::new();
        congestion.on_timeout(8);
        assert_eq!(congestion.window(), LEAST);
        congestion.on_loss(8, 9);
        assert_eq!(congestion.window(), LEAST, "of the same cause");
        congestion.on_acknowledged(LEAST, MOST);
        assert_eq!(congestion.window(), FIRST / 2);
        congestion.on_acknowledged(FIRST / 2, MOST);
        assert_eq!(congestion.window(), FIRST / 2 + 1);
    }

    #[test]
    fn the_window_has_bounds() {
        let mut congestion = Congestion::new();
        congestion.on_acknowledged(1000, MOST);
        assert_eq!(congestion.window(), MOST);
        congestion.on_acknowledged(1, 1);
        assert_eq!(congestion.window(), LEAST);
        congestion.on_timeout(1);
        congestion.on_loss(2, 2);
        assert_eq!(congestion.window(), LEAST);
    }
}
