// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a rank waits in each way, by the knobs and by how many ranks share its processors.

use crate::wireup::Card;
use onecopy_obs::Knobs;
use onecopy_obs::seeds::{WAITS_OVERSUBSCRIBED, Waits};
use onecopy_shm::watch::RestPolicy;
use std::time::Duration;

/// How long a rank polls before it yields, and yields before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WaitPolicy {
    /// Polls before the first yield.
    pub(crate) spin: usize,
    /// Yields before the first sleep.
    pub(crate) yields: usize,
    /// Whether a wait may sleep at all.
    pub(crate) sleep: bool,
    /// How often peers' lives are looked at, and the longest sleep.
    pub(crate) period: Duration,
    /// Whether more ranks than processors were found.
    pub(crate) oversubscribed: bool,
    /// How many processors this rank has for itself.
    pub(crate) share: f64,
}

/// Yields of a thread before it sleeps, where threads that wait are more than processors. A turn of all of them costs
/// less than to be woken. Chosen by magnitude: a yield takes a microsecond or less, a sleep and its wake-up tens.
const THREAD_YIELDS: usize = 200;

impl WaitPolicy {
    pub(crate) fn new(knobs: &Knobs, cards: &[Card], me: usize) -> Self {
        let Processors { supply, demand } = processors(cards, me);
        let oversubscribed = demand > supply + 0.01;
        // A yield costs little when no other thread wants the processor, and is all there is to do when a peer does.
        let Waits { spin, yields } = knobs.waits(oversubscribed);
        Self {
            spin,
            yields,
            sleep: knobs.sleeps(),
            period: knobs.liveness_period,
            oversubscribed,
            share: supply / demand,
        }
    }

    /// The policy of one of so many threads of this rank that wait.
    pub(crate) fn among(mut self, threads: u32) -> Self {
        if f64::from(threads) > self.share + 0.01 {
            self.spin = self.spin.min(WAITS_OVERSUBSCRIBED.spin);
            self.yields = self.yields.min(THREAD_YIELDS);
        }
        self
    }
}

/// The processors that a rank may use.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Processors {
    /// How many they are, as far as is known, and no more than the quota of the rank's control group.
    supply: f64,
    /// How many ranks want them. One that may run on several processors counts with its share on each.
    demand: f64,
}

/// The processors that this rank may use.
fn processors(cards: &[Card], me: usize) -> Processors {
    let Some(mine) = cards.get(me).filter(|card| !card.affinity.is_empty()) else {
        return Processors {
            supply: f64::INFINITY,
            demand: 1.0,
        };
    };
    let mut demand = 0.0;
    for card in cards {
        if card.affinity.is_empty() {
            continue;
        }
        let common = card
            .affinity
            .iter()
            .filter(|cpu| mine.affinity.contains(cpu))
            .count();
        demand += common as f64 / card.affinity.len() as f64;
    }
    let mut supply = mine.affinity.len() as f64;
    if mine.quota_cpus > 0.0 {
        supply = supply.min(f64::from(mine.quota_cpus));
    }
    Processors { supply, demand }
}

impl WaitPolicy {
    /// How a thread rests that has this policy.
    pub(crate) fn rest(&self) -> RestPolicy {
        RestPolicy {
            spin: self.spin,
            yields: self.yields,
            sleep: self.sleep.then_some(self.period),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(affinity: &[u16]) -> Card {
        Card {
            affinity: affinity.to_vec(),
            quota_cpus: 0.0,
            ..Card::of_this_process()
        }
    }

    fn is_oversubscribed(cards: &[Card], me: usize) -> bool {
        WaitPolicy::new(&Knobs::default(), cards, me).oversubscribed
    }

    #[test]
    fn ranks_are_counted_against_their_processors() {
        assert!(!is_oversubscribed(&[card(&[0]), card(&[1])], 0));
        assert!(!is_oversubscribed(&[card(&[0, 1]), card(&[0, 1])], 0));
        assert!(is_oversubscribed(
            &[card(&[0, 1]), card(&[0, 1]), card(&[0, 1])],
            0
        ));
        let four = [card(&[0]), card(&[1]), card(&[0]), card(&[1])];
        assert!((0..4).all(|me| is_oversubscribed(&four, me)));
        assert!(!is_oversubscribed(&[card(&[0]), card(&[1]), card(&[1])], 0));
        assert!(is_oversubscribed(&[card(&[0]), card(&[1]), card(&[1])], 2));
    }

    #[test]
    fn a_quota_counts_too() {
        let half = Card {
            quota_cpus: 0.5,
            ..card(&[0, 1])
        };
        assert!(is_oversubscribed(std::slice::from_ref(&half), 0));
        let plenty = Card {
            quota_cpus: 2.0,
            ..card(&[0, 1])
        };
        assert!(!is_oversubscribed(&[plenty.clone(), plenty], 0));
    }

    #[test]
    fn threads_are_impatient_where_they_are_more_than_the_processors() {
        let policy = |cards: &[Card]| WaitPolicy::new(&Knobs::default(), cards, 0);
        let own = policy(&[card(&[0]), card(&[1])]);
        assert_eq!(own.among(1), own);
        assert!(own.among(2).spin < own.spin);
        let four = policy(&[card(&[0, 1, 2, 3])]);
        assert_eq!(four.among(4), four);
        assert!(four.among(5).yields < four.yields);
        let unknown = policy(&[]);
        assert_eq!(unknown.among(64), unknown);
    }
}
