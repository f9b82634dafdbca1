// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which spare slots a rank holds. Each of the two ends of a channel has one. Who holds a spare slot may write its next
//! contribution there. With that it hands the slot over: the other rank holds it once it has read the contribution.
//!
//! One of the two holds a slot at any moment, or none: who cannot tell does not. A contribution for which no slot is
//! held stands in the slot of its line.

/// The spare slots that this rank holds, by the place of their end.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spares {
    held: [bool; 2],
    /// The one that was read last: its lines are in this processor's cache.
    last: usize,
}

impl Spares {
    /// Those of the rank at place `me` of two whose channel was just made ready: its own.
    pub(crate) fn opened(me: usize) -> Self {
        let mut spares = Self::default();
        spares.came(me);
        spares
    }

    /// The one to give in next.
    #[inline]
    pub(crate) fn next(&self) -> Option<usize> {
        [self.last, 1 - self.last]
            .into_iter()
            .find(|&place| self.held[place])
    }

    /// It was given in: it is the reader's.
    #[inline]
    pub(crate) fn gave(&mut self, place: usize) {
        self.held[place] = false;
    }

    /// What stood in it is read.
    #[inline]
    pub(crate) fn came(&mut self, place: usize) {
        self.held[place] = true;
        self.last = place;
    }

    /// Whether this rank holds that of `place`.
    pub(crate) fn holds(&self, place: usize) -> bool {
        self.held[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_a_slot_gives_in_it_next() {
        let mut ranks = [Spares::opened(0), Spares::opened(1)];
        for round in 0..4 {
            let given = ranks.map(|spares| spares.next().expect("one is held"));
            assert_eq!(given, if round % 2 == 0 { [0, 1] } else { [1, 0] });
            for (me, place) in given.into_iter().enumerate() {
                ranks[me].gave(place);
                assert!(
                    !ranks.iter().any(|spares| spares.holds(place)),
                    "it is on its way"
                );
            }
            for (me, place) in given.into_iter().enumerate() {
                ranks[1 - me].came(place);
            }
        }
    }

    /// A rank that only gives has none after the first time. One that only takes has both, and gives in the last first.
    #[test]
    fn what_is_not_returned_stays_with_its_reader() {
        let (mut giver, mut reader) = (Spares::opened(0), Spares::opened(1));
        giver.gave(0);
        reader.came(0);
        assert_eq!((giver.next(), reader.next()), (None, Some(0)));
        reader.gave(0);
        assert_eq!(reader.next(), Some(1));
        reader.gave(1);
        assert_eq!(reader.next(), None);
    }
}
