// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a collective is done, by what all ranks know: how many they are and how long the vectors are.

use super::op::FLAT;
use super::{Collective, ElemType};
use onecopy_shm::coll::INLINE;
use onecopy_shm::layout::{COLL_SLOT, LINE};

/// How a reduction is shared between the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Everyone combines all it needs itself.
    Flat,
    /// Partial results go up a tree of ranks; all read the result of its root.
    Tree,
    /// Everyone combines its share of the vector for all.
    Split,
    /// Each hands on a prefix to the next, piece by piece.
    Stream,
}

/// The share of a vector of `len` bytes that `place` of `size` ranks combines: a range of bytes, on cache lines where elements allow it.
#[must_use]
pub fn share(len: usize, elem: ElemType, size: usize, place: usize) -> (usize, usize) {
    let elem = elem.size().max(1);
    let unit = if LINE.is_multiple_of(elem) {
        LINE
    } else {
        elem
    };
    let units = len.div_ceil(unit);
    let each = units.div_ceil(size.max(1)) * unit;
    let begin = (each * place).min(len);
    (begin, (begin + each).min(len))
}

/// How `collective` combines vectors of `len` bytes on `size` ranks; none: it combines nothing.
#[must_use]
pub fn how(collective: &Collective, len: usize, size: usize) -> Option<How> {
    let short = len <= COLL_SLOT;
    let tree = short && size > FLAT;
    match collective {
        Collective::Allreduce { .. } if tree => Some(How::Tree),
        Collective::Allreduce { .. } if short => Some(How::Flat),
        Collective::Allreduce { .. } => Some(How::Split),
        Collective::Reduce { .. } if tree => Some(How::Tree),
        Collective::Reduce { .. } | Collective::ReduceScatter { .. } => Some(How::Flat),
        Collective::Scan { .. } | Collective::Exscan { .. } if short => Some(How::Flat),
        Collective::Scan { .. } | Collective::Exscan { .. } => Some(How::Stream),
        _ => None,
    }
}

/// Where a rank's contribution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    /// In the line itself.
    Line,
    /// In the slot next to it.
    Slot,
    /// In the rank's own buffer.
    Buffer,
    /// In a temporary copy that peers can map.
    Copy,
}

/// Where a contribution of `len` bytes stands; `mapped` says that peers can map the buffer.
#[must_use]
pub fn stands(len: usize, mapped: bool, stage_max: usize) -> Stands {
    if len <= INLINE {
        Stands::Line
    } else if len <= COLL_SLOT {
        Stands::Slot
    } else if mapped || len > stage_max {
        Stands::Buffer
    } else {
        Stands::Copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_vector() {
        for elem in [ElemType::U8, ElemType::F64, ElemType::Opaque(12)] {
            for count in [0, 1, 7, 64, 1000] {
                for size in 1..18 {
                    let len = count * elem.size();
                    let mut next = 0;
                    for place in 0..size {
                        let (begin, end) = share(len, elem, size, place);
                        assert!(begin == next && end <= len && end.is_multiple_of(elem.size()));
                        next = end;
                    }
                    assert_eq!(next, len);
                }
            }
        }
    }
}
