// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of a collective goes through the levels at a time.

use super::super::nodes::MembersByNode;
use super::super::{ByteRange, Parts};

/// Bytes that go through the levels as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fragment {
    /// Whose they are, or who gets them; none: all alike.
    pub(super) root: Option<usize>,
    /// Where they are taken from, and where they go, in a rank's buffers.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) len: usize,
}

/// What is cut.
#[derive(Debug)]
enum Whole {
    One(Fragment),
    /// A part for each place, the places in this order. `in_place`: what is combined of it stands where it was taken
    /// from.
    Parts {
        parts: Parts,
        order: Vec<usize>,
        in_place: bool,
    },
}

/// The fragments of a collective, one after the other. All members cut alike.
///
/// Of parts that belong to several places the first fragments come first, then all second ones. The places take turns
/// by nodes, so that the wire is busy in all directions.
#[derive(Debug)]
pub(super) struct Fragments {
    whole: Whole,
    unit: usize,
    /// Bytes of the largest piece.
    largest: usize,
    /// Bytes of each piece that are over, and the index of the next piece.
    done: usize,
    piece: usize,
}

impl Fragments {
    /// All at once; nothing if there are no bytes.
    pub(super) fn uncut(len: usize) -> Self {
        Self::of(None, len, len)
    }

    /// Of one piece.
    pub(super) fn of(root: Option<usize>, len: usize, unit: usize) -> Self {
        let (from, to) = (0, 0);
        Self::new(
            Whole::One(Fragment {
                root,
                from,
                to,
                len,
            }),
            unit,
        )
    }

    /// Of a part for each place.
    pub(super) fn of_parts(
        parts: Parts,
        nodes: &MembersByNode,
        in_place: bool,
        unit: usize,
    ) -> Self {
        let whole = Whole::Parts {
            parts,
            order: nodes.in_turn(),
            in_place,
        };
        Self::new(whole, unit)
    }

    fn new(whole: Whole, unit: usize) -> Self {
        let mut this = Self {
            whole,
            unit: unit.max(1),
            largest: 0,
            done: 0,
            piece: 0,
        };
        this.largest = this.pieces().map(|piece| piece.len).max().unwrap_or(0);
        this
    }

    fn piece(&self, index: usize) -> Option<Fragment> {
        match &self.whole {
            Whole::One(one) => (index == 0).then_some(*one),
            Whole::Parts {
                parts,
                order,
                in_place,
            } => order.get(index).map(|&place| {
                let ByteRange { offset, len } = parts.of(place);
                Fragment {
                    root: Some(place),
                    from: offset,
                    to: if *in_place { offset } else { 0 },
                    len,
                }
            }),
        }
    }

    fn pieces(&self) -> impl Iterator<Item = Fragment> {
        (0..).map_while(|index| self.piece(index))
    }

    /// The part of a place; nothing if there are no parts.
    pub(super) fn part_of(&self, place: usize) -> ByteRange {
        match &self.whole {
            Whole::Parts { parts, .. } => parts.of(place),
            Whole::One(_) => ByteRange::default(),
        }
    }

    /// How many there are.
    pub(super) fn how_many(&self) -> usize {
        self.pieces()
            .map(|piece| piece.len.div_ceil(self.unit))
            .sum()
    }
}

impl Iterator for Fragments {
    type Item = Fragment;

    fn next(&mut self) -> Option<Fragment> {
        while self.done < self.largest {
            let Some(piece) = self.piece(self.piece) else {
                (self.piece, self.done) = (0, self.done + self.unit);
                continue;
            };
            self.piece += 1;
            if self.done < piece.len {
                return Some(Fragment {
                    from: piece.from + self.done,
                    to: piece.to + self.done,
                    len: (piece.len - self.done).min(self.unit),
                    ..piece
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_cover_what_is_cut() {
        for len in [0, 1, 99, 100, 101, 350] {
            let count = Fragments::of(Some(1), len, 100).how_many();
            let all: Vec<_> = Fragments::of(Some(1), len, 100).collect();
            assert_eq!(all.len(), count);
            assert_eq!(all.iter().map(|fragment| fragment.len).sum::<usize>(), len);
        }
        let parts = Parts::packed(&[150, 0, 30], 1);
        let nodes = MembersByNode::of([0, 0, 1]);
        let cut = |in_place| Fragments::of_parts(parts.clone(), &nodes, in_place, 100);
        let all: Vec<_> = cut(false).collect();
        let bounds = |s: &Fragment| (s.root, s.from, s.to, s.len);
        let expected = [
            (Some(0), 0, 0, 100),
            (Some(2), 150, 0, 30),
            (Some(0), 100, 100, 50),
        ];
        assert_eq!(all.iter().map(bounds).collect::<Vec<_>>(), expected);
        assert_eq!(cut(true).nth(1).map(|s| s.to), Some(150));
        assert_eq!(cut(true).how_many(), 3);
    }
}
