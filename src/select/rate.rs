// SPDX-License-Identifier: MIT OR Apache-2.0
//! What transfers take by one way: guessed from a cost curve, then learned.

use onecopy_btl::cost::Curve;
use std::time::Duration;

/// With so many samples a rate is settled. Chosen by magnitude: as many as the first tries of a way give.
pub(super) const SETTLED: u8 = 3;

/// What transfers take by one way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    pub(super) setup_ns: f64,
    pub(super) per_kib_ns: f64,
    /// Samples that it was learned from, up to [`SETTLED`].
    pub(super) samples: u8,
}

impl Rate {
    pub(super) fn new(curve: &Curve) -> Self {
        Self {
            setup_ns: curve.setup_ns,
            per_kib_ns: curve.per_kib_ns,
            samples: 0,
        }
    }
    /// The same for what is under way already.
    pub(super) fn without_setup(self) -> Self {
        Self {
            setup_ns: 0.0,
            ..self
        }
    }
    pub(super) fn estimate(&self, bytes: u64) -> f64 {
        self.setup_ns + bytes as f64 / 1024.0 * self.per_kib_ns
    }
    /// Faster samples get weight 0.5, slower ones 0.1: a preempted peer must not look like a slow layer. Chosen by
    /// magnitude: two fast samples settle a rate, and ten slow ones change it. The first sample takes the place of what
    /// was a guess, and the fastest of the first few that of the others.
    pub(super) fn learn(&mut self, bytes: u64, took: Duration) {
        let took = took.as_nanos() as f64;
        // The setup is a guess. A transfer that took less than that would else take no time for any size.
        let beyond = (took - self.setup_ns).max(took / 16.0).max(1.0);
        let seen = beyond / (bytes as f64 / 1024.0);
        let weight = match (seen < self.per_kib_ns, self.samples) {
            (_, 0) | (true, 1..SETTLED) => 1.0,
            (true, _) => 0.5,
            (false, _) => 0.1,
        };
        // A single outlier must not look like a verdict: one moves a rate that was seen by three tenths at most.
        let seen = match self.samples {
            0 => seen,
            _ => seen.min(self.per_kib_ns * 4.0),
        };
        self.samples = (self.samples + 1).min(SETTLED);
        self.per_kib_ns += (seen - self.per_kib_ns) * weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Setups are guesses, and so is what a way takes for each KiB.
    #[test]
    fn no_first_sample_settles_a_rate_for_ever() {
        for (first, later) in [(1_900, 500_000), (500_000, 4_000), (0, 4_000)] {
            let mut rate = Rate {
                setup_ns: 2_000.0,
                per_kib_ns: 5.0,
                samples: 0,
            };
            rate.learn(33 << 10, Duration::from_nanos(first));
            let far = rate.estimate(33 << 10);
            assert!(far >= first as f64 / 2.0, "{far} after {first}");
            for _ in 0..300 {
                rate.learn(33 << 10, Duration::from_nanos(later));
            }
            let near = rate.estimate(33 << 10);
            assert!((near / later as f64 - 1.0).abs() < 0.01, "{near}, {later}");
        }
    }
}
