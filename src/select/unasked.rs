// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that come in chunks before their receiver asks for them: whether it wants to be asked.
//!
//! How long chunks take depends on where the two processors are, and changes while a job runs. A sender learns nothing
//! of that: it is through before its receiver is. So the receiver times some of these messages. Where a layer that
//! calls the kernel would be faster, it tells the sender from which size on messages are to be announced. Then it
//! decides by [`Observed`], which tries chunks now and then, and takes that back once they are faster again.

use super::observed::{Observed, Rate, Rival};
use onecopy_btl::cost::Costs;
use onecopy_btl::registry::{LayerSet, Power};
use onecopy_obs::Knobs;
use std::time::{Duration, Instant};

/// Shorter messages are not timed, nor asked for. An announcement and its answer cost about a microsecond, a call of
/// the kernel another. Apart, 64 KiB gain nothing by that, 128 KiB a fifth; near, 64 KiB would lose half while the pair
/// has not noticed that it is (D, 11-30).
pub(crate) const MIN: u64 = 128 << 10;
/// One of so many messages is timed. Two looks at the clock take some 50 ns, the shortest messages 4.5 us, so this
/// costs a quarter of a percent.
const EACH: u32 = 4;
/// So many messages are timed before anything follows. Chosen by magnitude: the first ones find nothing in the caches.
const LEAST: u32 = 4;
/// The other way has to be faster by so much. Else two that are alike would take turns. Chosen by magnitude.
const CLEARLY: f64 = 1.1;
/// The size at which the two ways are compared to take back what is wanted.
const TYPICAL: u64 = MIN;

/// What is known of such messages from a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unasked {
    rate: Rate,
    /// Messages that might have been timed; it wraps.
    messages: u32,
    /// How many were, up to [`LEAST`].
    timed: u32,
    /// From which size on messages are to be announced.
    wanted: Option<u64>,
    /// Nothing is wanted: the user has decided, or no layer calls the kernel.
    fixed: bool,
}

impl Unasked {
    /// What a pair with these layers begins with.
    pub(crate) fn of(knobs: &Knobs, costs: &Costs, proven: LayerSet, observed: &Observed) -> Self {
        let calls = proven.by(Power::Copy).next().is_some();
        Self {
            rate: Rate::new(&costs.eager).without_setup(),
            messages: 0,
            timed: 0,
            wanted: None,
            fixed: observed.is_fixed() || knobs.eager_max.is_some() || !calls,
        }
    }

    /// The link has lost a layer.
    pub(crate) fn adapt(&mut self, fresh: &Self) {
        self.fixed = fresh.fixed;
        if fresh.fixed {
            self.wanted = None;
        }
    }

    /// A message of `total` bytes begins, of which more is to come than its first `piece`. Gives the time if it is one
    /// of those that are timed.
    #[inline]
    pub(crate) fn begin(&mut self, total: u64, piece: u64) -> Option<Instant> {
        if total < MIN || piece >= total || self.fixed {
            return None;
        }
        self.messages = self.messages.wrapping_add(1);
        self.messages.is_multiple_of(EACH).then(Instant::now)
    }

    /// All but the first piece of a message, so many bytes, came within this time.
    pub(crate) fn came(&mut self, bytes: u64, took: Duration) {
        self.rate.learn(bytes, took);
        self.timed = (self.timed + 1).min(LEAST);
    }

    /// From which size on messages are to be announced, by what was seen. `observed` is told of that, too: it has seen
    /// no chunks, or long ago.
    pub(crate) fn wanted(&mut self, observed: &mut Observed) -> Option<u64> {
        if self.fixed {
            return None;
        }
        if self.wanted.is_some() {
            let [call, pipeline] =
                [Rival::Kernel, Rival::Pipeline].map(|way| observed.estimate(way, TYPICAL));
            if pipeline * CLEARLY < call {
                // It is as long ago that chunks which nobody had asked for were slow.
                self.rate = observed.rate(Rival::Pipeline).without_setup();
                (self.wanted, self.timed) = (None, 0);
            }
        } else if self.timed == LEAST {
            let is_slow = |bytes: &u64| {
                self.rate.estimate(*bytes) > CLEARLY * observed.estimate(Rival::Kernel, *bytes)
            };
            self.wanted = [MIN, 2 * MIN].into_iter().find(is_slow);
            if self.wanted.is_some() {
                observed.assume_pipeline(self.rate);
            }
        }
        self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_btl::LayerId;

    fn pair(knobs: &Knobs, layers: &[LayerId]) -> (Unasked, Observed) {
        let (costs, proven) = (Costs::default(), layers.iter().copied().collect());
        let observed = Observed::of(knobs, &costs, proven);
        (Unasked::of(knobs, &costs, proven, &observed), observed)
    }

    /// Announced messages of 128 KiB take so long by each way.
    fn announced(observed: &mut Observed, way: Rival, us: u64) {
        let mut begun = Instant::now() + Duration::from_secs(3600);
        for _ in 0..100 {
            let ended = begun + Duration::from_micros(us);
            observed.transferred(way, TYPICAL, begun, ended);
            begun = ended + Duration::from_micros(1);
        }
    }

    fn unasked(unasked: &mut Unasked, us_of_128_kib: u64, times: usize) {
        for _ in 0..times {
            unasked.came(TYPICAL, Duration::from_micros(us_of_128_kib));
        }
    }

    #[test]
    fn slow_chunks_are_asked_for_and_fast_ones_come_again_unasked() {
        let knobs = Knobs::default();
        let (mut chunks, mut observed) = pair(&knobs, &[LayerId::CALL]);
        announced(&mut observed, Rival::Kernel, 8);
        unasked(&mut chunks, 5, 40);
        assert_eq!(chunks.wanted(&mut observed), None);
        unasked(&mut chunks, 20, 40);
        assert_eq!(chunks.wanted(&mut observed), Some(MIN));
        assert_eq!(chunks.wanted(&mut observed), Some(MIN), "at once");
        assert_eq!(observed.faster(TYPICAL), Rival::Kernel);
        announced(&mut observed, Rival::Pipeline, 20);
        assert_eq!(chunks.wanted(&mut observed), Some(MIN));
        announced(&mut observed, Rival::Pipeline, 4);
        assert_eq!(chunks.wanted(&mut observed), None);
        unasked(&mut chunks, 4, 40);
        assert_eq!(chunks.wanted(&mut observed), None);
    }

    #[test]
    fn only_long_messages_are_worth_a_call() {
        let (mut chunks, mut observed) = pair(&Knobs::default(), &[LayerId::CALL]);
        // With the setup that the curve has, half of it takes longer than half of the time.
        announced(&mut observed, Rival::Kernel, 11);
        unasked(&mut chunks, 12, 100);
        let wanted = chunks.wanted(&mut observed);
        assert!(wanted.is_some_and(|from| from > MIN), "{wanted:?}");
    }

    #[test]
    fn nothing_is_wanted_where_there_is_no_choice() {
        let set = Knobs {
            eager_max: Some(256 << 10),
            ..Knobs::default()
        };
        let pairs = [
            pair(&set, &[LayerId::CALL]),
            pair(&Knobs::default(), &[LayerId::MAP]),
        ];
        for (mut chunks, mut observed) in pairs {
            announced(&mut observed, Rival::Kernel, 1);
            unasked(&mut chunks, 100, 100);
            assert_eq!(chunks.wanted(&mut observed), None);
            assert_eq!(chunks.begin(1 << 20, 1), None);
        }
    }

    #[test]
    fn few_messages_are_timed_and_no_short_one() {
        let (mut chunks, _) = pair(&Knobs::default(), &[LayerId::CALL]);
        let mut timed = |total, piece| {
            let begun = (0..800).filter_map(|_| chunks.begin(total, piece));
            begun.count()
        };
        assert_eq!(timed(MIN, 16_384), 200);
        assert_eq!(timed(MIN - 1, 16_384) + timed(MIN, MIN), 0);
    }
}
