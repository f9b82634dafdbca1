// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that come in chunks before their receiver asks for them: whether it wants to be asked.
//!
//! How long chunks take depends on where the two processors are, and changes while a job runs. A sender learns nothing
//! of that: it is through before its receiver is. So the receiver times some of these messages. Where a layer that
//! calls the kernel would be faster, it tells the sender from which size on messages are to be announced. Then it
//! decides by [`Observed`], which tries chunks now and then, and takes that back once they are faster again.

use super::observed::{Observed, Rival, Source};
use super::rate::Rate;
use onecopy_btl::cost::Costs;
use onecopy_btl::registry::{LayerSet, Power};
use onecopy_obs::Knobs;
use std::time::{Duration, Instant};

/// Shorter messages are not timed, nor asked for. An announcement and its answer cost about a microsecond, a call of
/// the kernel another. Apart, 64 KiB gain nothing by that, 128 KiB 6 %, 256 KiB a third. Near, 64 KiB would take twice
/// as long while the pair has not noticed that it is (D, 11-30).
pub(crate) const MIN: u64 = 128 << 10;
/// One of so many messages is timed. Two looks at the clock take some 50 ns, the shortest messages 4.5 us, so this
/// costs a quarter of a percent.
const EACH: u32 = 4;
/// So many messages are timed before anything follows, the first ones one after the other. Chosen by magnitude: they
/// find nothing in the caches.
const LEAST: u32 = 4;
/// The other way has to be faster by so much. Else two that are alike would take turns. Chosen by magnitude.
const CLEARLY: f64 = 1.1;
/// After so many announced messages the next ones come in chunks again, so that a state which was seen once does not
/// last. It takes [`LEAST`] messages to want them again: one or two in a hundred go the slower way.
const AT_MOST: u32 = 256;

/// What is known of such messages from a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unasked {
    rate: Rate,
    /// Messages that might have been timed; it wraps.
    messages: u32,
    /// How many were, up to [`LEAST`].
    timed: u32,
    /// From which size on messages are to be announced, and how many announced ones were timed since.
    wanted: Option<u64>,
    announced: u32,
    /// Nothing is wanted: the user has decided, or no layer calls the kernel.
    fixed: bool,
}

impl Unasked {
    /// What a pair with these layers begins with.
    pub(crate) fn of(knobs: &Knobs, costs: &Costs, proven: LayerSet, observed: &Observed) -> Self {
        Self {
            rate: Rate::new(&costs.eager).without_setup(),
            messages: 0,
            timed: 0,
            wanted: None,
            announced: 0,
            fixed: is_fixed(knobs, proven, observed),
        }
    }

    /// The link has lost a layer.
    pub(crate) fn adapt(&mut self, knobs: &Knobs, proven: LayerSet, observed: &Observed) {
        self.fixed = is_fixed(knobs, proven, observed);
    }

    /// Whether a message of `total` bytes, whose first `piece` is there, is one of those that may be timed.
    #[inline]
    pub(crate) fn could_be_asked_for(&self, total: u64, piece: u64) -> bool {
        total >= MIN && piece < total && !self.fixed
    }

    /// Such a message begins. Gives the time if this one is timed.
    pub(crate) fn begin(&mut self) -> Option<Instant> {
        self.messages = self.messages.wrapping_add(1);
        let is_timed = self.timed < LEAST || self.messages.is_multiple_of(EACH);
        is_timed.then(Instant::now)
    }

    /// All but the first piece of a message, so many bytes, came within this time.
    pub(crate) fn came(&mut self, bytes: u64, took: Duration) {
        self.rate.learn(bytes, took);
        self.timed = (self.timed + 1).min(LEAST);
    }

    /// What the peer is to be told of [`Self::wanted`], if that has changed.
    pub(crate) fn changed(&mut self, observed: &mut Observed) -> Option<Option<u64>> {
        let before = self.wanted;
        let wanted = self.wanted(observed);
        (wanted != before).then_some(wanted)
    }

    /// From which size on messages are to be announced, by what was seen; to be asked once for each of them. `observed`
    /// is told of that, too: it has seen no chunks, or long ago.
    fn wanted(&mut self, observed: &mut Observed) -> Option<u64> {
        if self.fixed {
            self.forget();
        } else if let Some(from) = self.wanted {
            let source = Source::plain(from);
            let [call, pipeline] = observed.costs(source);
            self.announced += 1;
            if pipeline * CLEARLY < call {
                // It is as long ago that chunks which nobody had asked for were slow.
                self.rate = observed.rate(Rival::Pipeline, source).without_setup();
                self.forget();
            } else if self.announced == AT_MOST {
                self.forget();
            }
        } else if self.timed == LEAST {
            let is_slow = |bytes: &u64| {
                let call = observed.estimate(Rival::Kernel, Source::plain(*bytes));
                self.rate.estimate(*bytes) > CLEARLY * call
            };
            self.wanted = [MIN, 2 * MIN].into_iter().find(is_slow);
            if self.wanted.is_some() {
                observed.assume_pipeline(self.rate, [MIN, 2 * MIN]);
            }
        }
        self.wanted
    }

    /// Nothing is wanted before some more messages are timed.
    fn forget(&mut self) {
        (self.wanted, self.timed, self.announced) = (None, 0, 0);
    }
}

/// Whether the user has decided, or no layer calls the kernel.
fn is_fixed(knobs: &Knobs, proven: LayerSet, observed: &Observed) -> bool {
    let calls = proven.by(Power::Copy).next().is_some();
    observed.is_fixed() || knobs.eager_max.is_some() || !calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_btl::LayerId;

    const SHORTEST: Source = Source::plain(MIN);

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
            observed.transferred(way, SHORTEST, begun, ended);
            begun = ended + Duration::from_micros(1);
        }
    }

    fn unasked(unasked: &mut Unasked, us_of_128_kib: u64, times: usize) {
        for _ in 0..times {
            unasked.came(MIN, Duration::from_micros(us_of_128_kib));
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
        assert_eq!(observed.faster(SHORTEST), Rival::Kernel);
        announced(&mut observed, Rival::Pipeline, 20);
        assert_eq!(chunks.wanted(&mut observed), Some(MIN));
        announced(&mut observed, Rival::Pipeline, 4);
        assert_eq!(chunks.wanted(&mut observed), None);
        unasked(&mut chunks, 4, 40);
        assert_eq!(chunks.wanted(&mut observed), None);
    }

    /// Both ways were slow when they were seen, and chunks are not tried then. A program that goes on in another way is
    /// looked at again.
    #[test]
    fn no_wish_lasts_for_ever() {
        let (mut chunks, mut observed) = pair(&Knobs::default(), &[LayerId::CALL]);
        announced(&mut observed, Rival::Kernel, 8);
        unasked(&mut chunks, 900, 100);
        assert_eq!(chunks.changed(&mut observed), Some(Some(MIN)));
        let told: Vec<_> = (0..AT_MOST)
            .filter_map(|_| chunks.changed(&mut observed))
            .collect();
        assert_eq!(told, [None]);
        unasked(&mut chunks, 5, 40);
        assert_eq!(chunks.changed(&mut observed), None);
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
            assert!(!chunks.could_be_asked_for(1 << 20, 1));
        }
    }

    #[test]
    fn few_messages_are_timed_and_no_short_one() {
        let (mut chunks, _) = pair(&Knobs::default(), &[LayerId::CALL]);
        unasked(&mut chunks, 5, LEAST as usize);
        let mut timed = |total, piece| {
            let may = |chunks: &Unasked| chunks.could_be_asked_for(total, piece);
            let begun = (0..800).filter_map(|_| may(&chunks).then(|| chunks.begin())?);
            begun.count()
        };
        assert_eq!(timed(MIN, 16_384), 200);
        assert_eq!(timed(MIN - 1, 16_384) + timed(MIN, MIN), 0);
    }
}
