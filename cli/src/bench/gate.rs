// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which state the machine was in while a batch ran.
//!
//! The host of a virtual machine moves its processors about. So the time in which a cache line gets from one to the
//! other changes several-fold within seconds. Each batch is therefore bracketed by two probes of that time, and judged
//! by both.
//!
//! The bounds are relative to the machine. Its *floor* is the least probe of the run (each is a mean over 150 rounds,
//! so a single lucky round does not matter):
//!
//! - **near**: both probes at most `max(110 ns, 1.4 × floor)`, provided that the floor is at most 180 ns;
//! - **far**: both probes at least `max(150 ns, 1.6 × floor)` and at most `max(330 ns, 5 × floor)`;
//! - a floor above 180 ns means that the run never saw the near state: then everything from 150 ns to `max(330 ns, 1.5
//!   × floor)` is far;
//! - anything else is dropped: the state changed during the batch, or something else ran.

use serde::{Deserialize, Serialize};

/// A batch's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The processors were close.
    Near,
    /// They were not.
    Far,
    /// Neither can be said.
    Dropped,
}

impl State {
    /// As tables have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Dropped => "neither",
        }
    }
}

/// The bounds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Least probe, nanoseconds one way.
    pub floor_ns: f64,
    /// Upper bound of near; none if the floor is too high for it.
    pub near_max_ns: Option<f64>,
    /// Lower bound of far.
    pub far_min_ns: f64,
    /// Upper bound of far.
    pub far_max_ns: f64,
}

impl Gate {
    /// The bounds that follow from a floor.
    #[must_use]
    pub fn new(floor_ns: f64) -> Self {
        if floor_ns <= 180.0 {
            Self {
                floor_ns,
                near_max_ns: Some((1.4 * floor_ns).max(110.0)),
                far_min_ns: (1.6 * floor_ns).max(150.0),
                far_max_ns: (5.0 * floor_ns).max(330.0),
            }
        } else {
            Self {
                floor_ns,
                near_max_ns: None,
                far_min_ns: 150.0,
                far_max_ns: (1.5 * floor_ns).max(330.0),
            }
        }
    }

    /// The bounds that follow from all probes of a run.
    #[must_use]
    pub fn of_probes(probes: impl IntoIterator<Item = f64>) -> Self {
        let floor = probes
            .into_iter()
            .filter(|probe| probe.is_finite() && *probe > 0.0)
            .fold(f64::INFINITY, f64::min);
        Self::new(if floor.is_finite() { floor } else { 0.0 })
    }

    /// The state of a batch between two probes.
    #[must_use]
    pub fn state(&self, before_ns: f64, after_ns: f64) -> State {
        let (low, high) = (before_ns.min(after_ns), before_ns.max(after_ns));
        if self.near_max_ns.is_some_and(|bound| high <= bound) {
            State::Near
        } else if low >= self.far_min_ns && high <= self.far_max_ns {
            State::Far
        } else {
            State::Dropped
        }
    }
}

impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "raw hand-off floor {:.0} ns; near: ", self.floor_ns)?;
        match self.near_max_ns {
            Some(bound) => write!(f, "both probes up to {bound:.0} ns")?,
            None => write!(f, "not seen")?,
        }
        write!(
            f,
            "; far: both {:.0}-{:.0} ns",
            self.far_min_ns, self.far_max_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_machine_has_the_fixed_bounds() {
        let gate = Gate::new(55.0);
        assert_eq!(gate.state(60.0, 109.0), State::Near);
        assert_eq!(gate.state(60.0, 230.0), State::Dropped);
        assert_eq!(gate.state(120.0, 130.0), State::Dropped);
        assert_eq!(gate.state(200.0, 260.0), State::Far);
        assert_eq!(gate.state(200.0, 900.0), State::Dropped);
    }

    #[test]
    fn a_slower_machine_has_its_own() {
        let gate = Gate::of_probes([190.0, 136.0, 140.0, f64::NAN, 0.0]);
        assert!((gate.floor_ns - 136.0).abs() < 1e-9);
        assert_eq!(gate.state(136.0, 180.0), State::Near);
        assert_eq!(gate.state(136.0, 200.0), State::Dropped);
        assert_eq!(gate.state(230.0, 310.0), State::Far);
        assert_eq!(gate.state(230.0, 700.0), State::Dropped);
    }

    #[test]
    fn a_run_that_never_was_near_says_so() {
        let gate = Gate::new(210.0);
        assert_eq!(gate.near_max_ns, None);
        assert_eq!(gate.state(210.0, 215.0), State::Far);
        assert_eq!(gate.state(210.0, 2000.0), State::Dropped);
        assert!(gate.to_string().contains("not seen"));
    }

    #[test]
    fn without_probes_nothing_is_near_or_far_by_accident() {
        let gate = Gate::of_probes([]);
        assert_eq!(gate.state(f64::NAN, f64::NAN), State::Dropped);
    }
}
