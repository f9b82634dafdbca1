// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of a collective goes through the levels at a time.

use super::super::Parts;

/// Bytes that go through the levels as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
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
    One(Segment),
    /// A part for each place. `in_place`: what is combined of it stands where it was taken from.
    Parts {
        parts: Parts,
        ranks: usize,
        in_place: bool,
    },
}

/// The segments of a collective, one after the other. All members cut alike.
#[derive(Debug)]
pub(super) struct Segments {
    whole: Whole,
    unit: usize,
    /// Pieces of the whole that are over, and bytes of the next one.
    piece: usize,
    done: usize,
}

impl Segments {
    /// All at once; nothing if there are no bytes.
    pub(super) fn uncut(len: usize) -> Self {
        Self::of(None, len, len)
    }

    /// Of one piece.
    pub(super) fn of(root: Option<usize>, len: usize, unit: usize) -> Self {
        let (from, to) = (0, 0);
        Self::new(
            Whole::One(Segment {
                root,
                from,
                to,
                len,
            }),
            unit,
        )
    }

    /// Of a part for each of `ranks` places.
    pub(super) fn of_parts(parts: Parts, ranks: usize, in_place: bool, unit: usize) -> Self {
        let whole = Whole::Parts {
            parts,
            ranks,
            in_place,
        };
        Self::new(whole, unit)
    }

    fn new(whole: Whole, unit: usize) -> Self {
        Self {
            whole,
            unit: unit.max(1),
            piece: 0,
            done: 0,
        }
    }

    fn piece(&self, index: usize) -> Option<Segment> {
        match &self.whole {
            Whole::One(one) => (index == 0).then_some(*one),
            Whole::Parts {
                parts,
                ranks,
                in_place,
            } => (index < *ranks).then(|| {
                let (at, len) = parts.of(index);
                Segment {
                    root: Some(index),
                    from: at,
                    to: if *in_place { at } else { 0 },
                    len,
                }
            }),
        }
    }

    /// Where the part of a place is, and its bytes; nothing if there are no parts.
    pub(super) fn part_of(&self, place: usize) -> (usize, usize) {
        match &self.whole {
            Whole::Parts { parts, .. } => parts.of(place),
            Whole::One(_) => (0, 0),
        }
    }

    /// How many there are.
    pub(super) fn how_many(&self) -> usize {
        let pieces = (0..).map_while(|index| self.piece(index));
        pieces.map(|piece| piece.len.div_ceil(self.unit)).sum()
    }
}

impl Iterator for Segments {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        loop {
            let piece = self.piece(self.piece)?;
            if self.done == piece.len {
                (self.piece, self.done) = (self.piece + 1, 0);
                continue;
            }
            let len = (piece.len - self.done).min(self.unit);
            let segment = Segment {
                from: piece.from + self.done,
                to: piece.to + self.done,
                len,
                ..piece
            };
            self.done += len;
            return Some(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_what_is_cut() {
        for len in [0, 1, 99, 100, 101, 350] {
            let count = Segments::of(Some(1), len, 100).how_many();
            let all: Vec<_> = Segments::of(Some(1), len, 100).collect();
            assert_eq!(all.len(), count);
            assert_eq!(all.iter().map(|segment| segment.len).sum::<usize>(), len);
        }
        let parts = Parts::packed(&[150, 0, 30], 1);
        let cut = |in_place| Segments::of_parts(parts.clone(), 3, in_place, 100);
        let all: Vec<_> = cut(false).collect();
        let ends = |s: &Segment| (s.root, s.from, s.to, s.len);
        let expected = [
            (Some(0), 0, 0, 100),
            (Some(0), 100, 100, 50),
            (Some(2), 150, 0, 30),
        ];
        assert_eq!(all.iter().map(ends).collect::<Vec<_>>(), expected);
        assert_eq!(cut(true).last().map(|s| s.to), Some(150));
        assert_eq!(cut(true).how_many(), 3);
    }
}
