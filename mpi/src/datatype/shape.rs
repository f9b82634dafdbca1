// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a datatype is: its typemap, its layout, its bounds. The constructors of the standard are operations on shapes.
//!
//! Every number of a shape fits 64 bits: size, bounds, extents, and with them the displacement of each byte. A
//! constructor whose result would not fit gives [`OutOfRange`], so that nothing that walks a shape has to look again.

use super::layout::Layout;
use super::predefined::Element;
use crate::c;
use crate::failure::{Failure, fail};
use std::sync::Arc;

/// A size, a bound or a displacement that 64 bits cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfRange;

impl From<OutOfRange> for Box<Failure> {
    #[cold]
    fn from(_: OutOfRange) -> Self {
        fail(
            c::ERR_COUNT,
            "the datatype reaches further than 64-bit displacements can",
        )
    }
}

/// A bound, moved.
fn moved(bound: i64, by: i128) -> Result<i64, OutOfRange> {
    let sum = by.checked_add(i128::from(bound)).ok_or(OutOfRange)?;
    i64::try_from(sum).map_err(|_| OutOfRange)
}

/// The typemap: elements at displacements, in order.
#[derive(Debug)]
pub(crate) enum Map {
    Empty,
    Element(Element),
    Loop {
        count: u64,
        stride: i64,
        body: Arc<Self>,
    },
    List(Vec<(i64, Arc<Self>)>),
}

/// Everything about a datatype but its history.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) map: Arc<Map>,
    pub(crate) layout: Layout,
    pub(crate) lb: i64,
    pub(crate) ub: i64,
    /// A bound was set by `MPI_Type_create_resized`, here or in a part.
    pub(crate) lb_set: bool,
    pub(crate) ub_set: bool,
    pub(crate) true_lb: i64,
    pub(crate) true_ub: i64,
    pub(crate) align: i64,
    /// Basic elements: a pair is two.
    pub(crate) elements: u64,
    /// The one element that the typemap consists of, if it is one only.
    pub(crate) uniform: Option<Element>,
}

impl Shape {
    /// The shape of one element.
    pub(crate) fn of(element: Element) -> Self {
        let layout = element.layout();
        let (lb, ub) = (0, element.extent() as i64);
        let end = element.true_extent() as i64;
        Self {
            map: Arc::new(Map::Element(element)),
            layout,
            lb,
            ub,
            lb_set: false,
            ub_set: false,
            true_lb: 0,
            true_ub: end,
            align: element.align() as i64,
            elements: element.basics().len() as u64,
            uniform: Some(element),
        }
    }

    /// The shape of nothing.
    pub(crate) fn empty() -> Self {
        Self {
            map: Arc::new(Map::Empty),
            layout: Layout::Empty,
            lb: 0,
            ub: 0,
            lb_set: false,
            ub_set: false,
            true_lb: 0,
            true_ub: 0,
            align: 1,
            elements: 0,
            uniform: None,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.layout.size()
    }

    pub(crate) fn extent(&self) -> i64 {
        self.ub - self.lb
    }

    pub(crate) fn true_extent(&self) -> i64 {
        self.true_ub - self.true_lb
    }

    /// The shape, if its size and its extents fit; its bounds do already.
    fn if_it_fits(self) -> Result<Self, OutOfRange> {
        let extents = [(self.lb, self.ub), (self.true_lb, self.true_ub)];
        let is_representable = i64::try_from(self.size()).is_ok()
            && extents.iter().all(|(lb, ub)| ub.checked_sub(*lb).is_some());
        if is_representable {
            Ok(self)
        } else {
            Err(OutOfRange)
        }
    }

    /// `count` times at distances of `stride` bytes.
    pub(crate) fn repeated(&self, count: u64, stride: i128) -> Result<Self, OutOfRange> {
        // Nothing, however often, has no bounds either, unless they were set.
        if count == 0 || (self.elements == 0 && !self.lb_set && !self.ub_set) {
            return Ok(Self::empty());
        }
        if count == 1 {
            return Ok(self.clone());
        }
        let last = i128::from(count - 1)
            .checked_mul(stride)
            .ok_or(OutOfRange)?;
        let stride = i64::try_from(stride).map_err(|_| OutOfRange)?;
        let (low, high) = (last.min(0), last.max(0));
        let mut all = Self {
            lb: moved(self.lb, low)?,
            ub: moved(self.ub, high)?,
            ..self.clone()
        };
        if self.size() > 0 {
            all.map = Arc::new(Map::Loop {
                count,
                stride,
                body: Arc::clone(&self.map),
            });
            all.layout = self.layout.repeated(count, stride);
            all.true_lb = moved(self.true_lb, low)?;
            all.true_ub = moved(self.true_ub, high)?;
            all.elements = self.elements.saturating_mul(count);
        }
        all.if_it_fits()
    }

    /// `count` times, one after the other.
    pub(crate) fn contiguous(&self, count: u64) -> Result<Self, OutOfRange> {
        self.repeated(count, i128::from(self.extent()))
    }

    /// The same at a displacement.
    pub(crate) fn shifted(&self, by: i128) -> Result<Self, OutOfRange> {
        Self::list(&[(by, self.clone())])
    }

    /// Parts at displacements. A part that is no type's instance counts for nothing, not even for the bounds.
    pub(crate) fn list(parts: &[(i128, Self)]) -> Result<Self, OutOfRange> {
        let mut all = Self::empty();
        let mut map = Vec::with_capacity(parts.len());
        let mut layouts = Vec::with_capacity(parts.len());
        let (mut first, mut true_first) = (true, true);
        for (offset, part) in parts {
            let (lb, ub) = (moved(part.lb, *offset)?, moved(part.ub, *offset)?);
            let place = i64::try_from(*offset).map_err(|_| OutOfRange)?;
            if first {
                (all.lb, all.ub) = (lb, ub);
                (all.lb_set, all.ub_set) = (part.lb_set, part.ub_set);
            } else {
                // A bound that was set wins over one that was not.
                (all.lb, all.lb_set) = match (all.lb_set, part.lb_set) {
                    (true, false) => (all.lb, true),
                    (false, true) => (lb, true),
                    (set, _) => (all.lb.min(lb), set),
                };
                (all.ub, all.ub_set) = match (all.ub_set, part.ub_set) {
                    (true, false) => (all.ub, true),
                    (false, true) => (ub, true),
                    (set, _) => (all.ub.max(ub), set),
                };
            }
            first = false;
            if part.size() > 0 {
                let (lb, ub) = (moved(part.true_lb, *offset)?, moved(part.true_ub, *offset)?);
                (all.true_lb, all.true_ub) = if true_first {
                    (lb, ub)
                } else {
                    (all.true_lb.min(lb), all.true_ub.max(ub))
                };
                all.uniform = match (true_first, all.uniform, part.uniform) {
                    (true, _, part) => part,
                    (false, Some(a), Some(b)) if a == b => Some(a),
                    _ => None,
                };
                true_first = false;
            }
            all.align = all.align.max(part.align);
            all.elements = all.elements.saturating_add(part.elements);
            map.push((place, Arc::clone(&part.map)));
            layouts.push(part.layout.shifted(place));
        }
        all.layout = Layout::list(layouts);
        all.map = Arc::new(Map::List(map));
        all.if_it_fits()
    }

    /// With the padding that C gives a struct.
    pub(crate) fn padded(mut self) -> Result<Self, OutOfRange> {
        if !self.ub_set {
            let over = self.extent().rem_euclid(self.align);
            if over != 0 {
                self.ub = moved(self.ub, i128::from(self.align - over))?;
            }
        }
        self.if_it_fits()
    }

    /// With other bounds.
    pub(crate) fn resized(&self, lb: i64, extent: i128) -> Result<Self, OutOfRange> {
        let other = Self {
            lb,
            ub: moved(lb, extent)?,
            lb_set: true,
            ub_set: true,
            ..self.clone()
        };
        other.if_it_fits()
    }

    /// Whether `count` instances are one run of bytes: where it begins.
    pub(crate) fn dense(&self, count: u64) -> Option<i64> {
        match self.layout {
            Layout::Empty => Some(0),
            Layout::Run { offset, len } if count == 1 || self.extent() == len as i64 => {
                Some(offset)
            }
            _ => None,
        }
    }

    /// Whether all bytes of `count` instances have displacements.
    pub(crate) fn reach_of(&self, count: u64) -> Result<(), OutOfRange> {
        let turns = i128::from(count.saturating_sub(1));
        let last = turns.checked_mul(i128::from(self.extent()));
        let last = last.ok_or(OutOfRange)?;
        if self.size() > 0 {
            moved(self.true_lb, last)?;
            moved(self.true_ub, last)?;
        }
        Ok(())
    }

    /// The layout of `count` instances.
    pub(crate) fn layout_of(&self, count: u64) -> Result<Layout, OutOfRange> {
        self.reach_of(count)?;
        Ok(self.layout.repeated(count, self.extent()))
    }
}

impl Map {
    /// Shows the elements to `f` in order, moved by `base`, until it says no: the element, the displacement.
    pub(crate) fn walk(&self, base: i64, f: &mut impl FnMut(Element, i64) -> bool) -> bool {
        match self {
            Self::Empty => true,
            Self::Element(element) => f(*element, base),
            Self::Loop {
                count,
                stride,
                body,
            } => (0..*count as i64).all(|turn| body.walk(base + turn * stride, f)),
            Self::List(parts) => parts
                .iter()
                .all(|(offset, part)| part.walk(base + offset, f)),
        }
    }
}
