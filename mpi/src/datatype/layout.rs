// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which bytes a datatype names, in normal form: runs, loops of the same thing, and lists of different things.
//!
//! A layout knows nothing of elements. Adjacent runs are one run, a list of equal runs at equal distances is a loop, a
//! loop whose turns touch is a run. Each node knows its size, so that any byte of the packed form is found by
//! descending, without looking at those before it.

use std::ops::Range;
use std::sync::Arc;

/// Bytes, in the order of the packed form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// None.
    Empty,
    /// Bytes that follow one another.
    Run { offset: i64, len: u64 },
    /// The same again and again.
    Loop {
        offset: i64,
        count: u64,
        stride: i64,
        body: Arc<Self>,
    },
    /// One thing after the other.
    List(Arc<List>),
}

/// Parts of a list. They are moved as a whole by the offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List {
    offset: i64,
    parts: Arc<[Layout]>,
    /// Where each part ends in the packed form.
    ends: Arc<[u64]>,
}

impl Layout {
    pub(crate) fn run(offset: i64, len: u64) -> Self {
        if len == 0 {
            Self::Empty
        } else {
            Self::Run { offset, len }
        }
    }

    /// Bytes of the packed form. More than can be counted are as many as can.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Run { len, .. } => *len,
            Self::Loop { count, body, .. } => count.saturating_mul(body.size()),
            Self::List(list) => list.ends.last().copied().unwrap_or(0),
        }
    }

    /// Number of runs.
    pub(crate) fn runs(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Run { .. } => 1,
            Self::Loop { count, body, .. } => count.saturating_mul(body.runs()),
            Self::List(list) => list.parts.iter().map(Self::runs).sum(),
        }
    }

    /// The same, `by` bytes further.
    pub(crate) fn shifted(&self, by: i64) -> Self {
        let mut moved = self.clone();
        match &mut moved {
            Self::Empty => {}
            Self::Run { offset, .. } | Self::Loop { offset, .. } => {
                *offset = offset.wrapping_add(by);
            }
            // Two of these may go beyond 64 bits; together with what is below they come back.
            Self::List(list) => {
                let list = Arc::make_mut(list);
                list.offset = list.offset.wrapping_add(by);
            }
        }
        moved
    }

    /// `self`, `count` times at distances of `stride`.
    pub(crate) fn repeated(&self, count: u64, stride: i64) -> Self {
        match self {
            Self::Empty => Self::Empty,
            _ if count == 0 => Self::Empty,
            _ if count == 1 => self.clone(),
            Self::Run { offset, len } if i128::from(stride) == i128::from(*len) => Self::Run {
                offset: *offset,
                len: len.saturating_mul(count),
            },
            Self::Loop {
                offset,
                count: inner,
                stride: step,
                body,
            } if i128::from(stride) == i128::from(*inner) * i128::from(*step) => Self::Loop {
                offset: *offset,
                count: inner.saturating_mul(count),
                stride: *step,
                body: Arc::clone(body),
            },
            Self::Run { offset, .. } => Self::Loop {
                offset: *offset,
                count,
                stride,
                body: Arc::new(self.shifted(offset.wrapping_neg())),
            },
            _ => Self::Loop {
                offset: 0,
                count,
                stride,
                body: Arc::new(self.clone()),
            },
        }
    }

    /// One part after the other.
    pub(crate) fn list(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut flat: Vec<Self> = Vec::new();
        for part in parts {
            match (flat.last_mut(), part) {
                (_, Self::Empty) => {}
                (
                    Some(Self::Run { offset, len }),
                    Self::Run {
                        offset: next,
                        len: more,
                    },
                ) if i128::from(*offset) + i128::from(*len) == i128::from(next) => {
                    *len = len.saturating_add(more);
                }
                (_, part) => flat.push(part),
            }
        }
        match flat.as_slice() {
            [] => return Self::Empty,
            [_] => return flat.remove(0),
            _ => {}
        }
        if let Some(found) = Self::as_loop(&flat) {
            return found;
        }
        let mut end = 0;
        let ends = flat
            .iter()
            .map(|part| {
                end = part.size().saturating_add(end);
                end
            })
            .collect();
        Self::List(Arc::new(List {
            offset: 0,
            parts: flat.into(),
            ends,
        }))
    }

    /// Equal runs at equal distances.
    fn as_loop(parts: &[Self]) -> Option<Self> {
        let (Self::Run { offset, len }, Self::Run { offset: second, .. }) = (&parts[0], &parts[1])
        else {
            return None;
        };
        let stride = second.checked_sub(*offset)?;
        let mut expected = *offset;
        for part in parts {
            match part {
                Self::Run { offset, len: other } if *offset == expected && other == len => {
                    expected = expected.checked_add(stride)?;
                }
                _ => return None,
            }
        }
        Some(Self::Loop {
            offset: *offset,
            count: parts.len() as u64,
            stride,
            body: Arc::new(Self::run(0, *len)),
        })
    }

    /// Shows the runs of bytes `range` of the packed form to `f`, moved by `base`, in order, until it refuses.
    /// Gives whether all were shown.
    pub(crate) fn walk(
        &self,
        base: i64,
        range: Range<u64>,
        f: &mut impl FnMut(i64, u64) -> bool,
    ) -> bool {
        if range.start >= range.end {
            return true;
        }
        match self {
            Self::Empty => true,
            Self::Run { offset, len } => {
                let end = range.end.min(*len);
                range.start >= end || f(base + offset + range.start as i64, end - range.start)
            }
            Self::Loop {
                offset,
                count,
                stride,
                body,
            } => {
                let size = body.size();
                let first = range.start / size;
                let last = range.end.div_ceil(size).min(*count);
                for turn in first..last {
                    let begin = turn * size;
                    let part = range.start.saturating_sub(begin)..(range.end - begin).min(size);
                    let place = base + offset + turn as i64 * stride;
                    let more = match &**body {
                        // The innermost loop of most datatypes.
                        Self::Run { offset, .. } => {
                            f(place + offset + part.start as i64, part.end - part.start)
                        }
                        body => body.walk(place, part, f),
                    };
                    if !more {
                        return false;
                    }
                }
                true
            }
            Self::List(list) => {
                let first = list.ends.partition_point(|&end| end <= range.start);
                for index in first..list.parts.len() {
                    let begin = if index == 0 { 0 } else { list.ends[index - 1] };
                    if begin >= range.end {
                        break;
                    }
                    let size = list.ends[index] - begin;
                    let part = range.start.saturating_sub(begin)..(range.end - begin).min(size);
                    if !list.parts[index].walk(base + list.offset, part, f) {
                        return false;
                    }
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a layout should be, byte by byte.
    #[derive(Debug, Clone)]
    enum Plan {
        Run(i64, u64),
        Repeat(u64, i64, Box<Plan>),
        Shift(i64, Box<Plan>),
        List(Vec<Plan>),
    }

    impl Plan {
        fn bytes(&self) -> Vec<i64> {
            match self {
                Self::Run(offset, len) => (0..*len as i64).map(|byte| offset + byte).collect(),
                Self::Repeat(count, stride, body) => {
                    let body = body.bytes();
                    (0..*count as i64)
                        .flat_map(|turn| body.iter().map(move |byte| byte + turn * stride))
                        .collect()
                }
                Self::Shift(by, body) => body.bytes().iter().map(|byte| byte + by).collect(),
                Self::List(parts) => parts.iter().flat_map(Self::bytes).collect(),
            }
        }

        fn layout(&self) -> Layout {
            match self {
                Self::Run(offset, len) => Layout::run(*offset, *len),
                Self::Repeat(count, stride, body) => body.layout().repeated(*count, *stride),
                Self::Shift(by, body) => body.layout().shifted(*by),
                Self::List(parts) => Layout::list(parts.iter().map(Self::layout)),
            }
        }
    }

    fn plan() -> impl Strategy<Value = Plan> {
        let leaf = (-20i64..20, 0u64..9).prop_map(|(offset, len)| Plan::Run(offset, len));
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                (0u64..5, -16i64..24, inner.clone()).prop_map(|(n, stride, body)| Plan::Repeat(
                    n,
                    stride,
                    Box::new(body)
                )),
                (-9i64..9, inner.clone()).prop_map(|(by, body)| Plan::Shift(by, Box::new(body))),
                prop::collection::vec(inner, 0..5).prop_map(Plan::List),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_walk_over_any_range_gives_the_bytes_in_order(
            plan in plan(), from in 0u64..40, len in 0u64..200,
        ) {
            let (expected, layout) = (plan.bytes(), plan.layout());
            prop_assert_eq!(layout.size(), expected.len() as u64);
            let end = (from + len).min(layout.size());
            let range = from.min(end)..end;
            let mut found = Vec::new();
            let mut runs = 0;
            let all = layout.walk(0, range.clone(), &mut |offset, len| {
                runs += 1;
                found.extend((0..len as i64).map(|byte| offset + byte));
                true
            });
            prop_assert!(all);
            prop_assert_eq!(&found[..], &expected[range.start as usize..range.end as usize]);
            prop_assert!(runs <= layout.runs());
        }
    }

    #[test]
    fn normal_forms() {
        let run = Layout::run(0, 8);
        assert_eq!(run.repeated(5, 8), Layout::run(0, 40));
        let holes = run.repeated(5, 16);
        assert!(matches!(holes, Layout::Loop { count: 5, .. }));
        assert!(matches!(
            holes.repeated(3, 80),
            Layout::Loop { count: 15, .. }
        ));
        let list = Layout::list((0..4).map(|n| Layout::run(n * 10, 3)));
        assert!(matches!(
            list,
            Layout::Loop {
                count: 4,
                stride: 10,
                ..
            }
        ));
        assert_eq!(
            Layout::list([Layout::run(4, 4), Layout::Empty, Layout::run(8, 2)]),
            Layout::run(4, 6)
        );
    }
}
