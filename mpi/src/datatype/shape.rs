// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a datatype is: its typemap, its layout, its bounds. The constructors of the standard are operations on shapes.

use super::layout::Layout;
use super::predefined::Element;
use std::sync::Arc;

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
        self.ub.wrapping_sub(self.lb)
    }

    /// `count` times at distances of `stride` bytes.
    pub(crate) fn repeated(&self, count: u64, stride: i64) -> Self {
        // Nothing, however often, has no bounds either, unless they were set.
        if count == 0 || (self.elements == 0 && !self.lb_set && !self.ub_set) {
            return Self::empty();
        }
        let last = (count as i64 - 1).wrapping_mul(stride);
        let (low, high) = (last.min(0), last.max(0));
        let map = if count == 1 {
            Arc::clone(&self.map)
        } else {
            Arc::new(Map::Loop {
                count,
                stride,
                body: Arc::clone(&self.map),
            })
        };
        Self {
            map,
            layout: self.layout.repeated(count, stride),
            lb: self.lb.wrapping_add(low),
            ub: self.ub.wrapping_add(high),
            true_lb: self.true_lb.wrapping_add(low),
            true_ub: self.true_ub.wrapping_add(high),
            elements: self.elements.saturating_mul(count),
            ..self.clone()
        }
    }

    /// `count` times, one after the other.
    pub(crate) fn contiguous(&self, count: u64) -> Self {
        self.repeated(count, self.extent())
    }

    /// The same at a displacement.
    pub(crate) fn shifted(&self, by: i64) -> Self {
        Self::list(&[(by, self.clone())])
    }

    /// Parts at displacements. A part that is no type's instance counts for nothing, not even for the bounds.
    pub(crate) fn list(parts: &[(i64, Self)]) -> Self {
        let mut all = Self::empty();
        let mut map = Vec::with_capacity(parts.len());
        let (mut first, mut true_first) = (true, true);
        for (at, part) in parts {
            let (lb, ub) = (part.lb.wrapping_add(*at), part.ub.wrapping_add(*at));
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
                let (lb, ub) = (
                    part.true_lb.wrapping_add(*at),
                    part.true_ub.wrapping_add(*at),
                );
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
            map.push((*at, Arc::clone(&part.map)));
        }
        all.layout = Layout::list(parts.iter().map(|(at, part)| part.layout.shifted(*at)));
        all.map = Arc::new(Map::List(map));
        all
    }

    /// With the padding that C gives a struct.
    pub(crate) fn padded(mut self) -> Self {
        if !self.ub_set {
            let over = self.extent().rem_euclid(self.align);
            if over != 0 {
                self.ub = self.ub.wrapping_add(self.align - over);
            }
        }
        self
    }

    /// With other bounds.
    pub(crate) fn resized(&self, lb: i64, extent: i64) -> Self {
        Self {
            lb,
            ub: lb.wrapping_add(extent),
            lb_set: true,
            ub_set: true,
            ..self.clone()
        }
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

    /// The layout of `count` instances.
    pub(crate) fn layout_of(&self, count: u64) -> Layout {
        self.layout.repeated(count, self.extent())
    }
}

impl Map {
    /// Shows the elements to `f` in order, moved by `at`, until it says no: the element, the displacement.
    pub(crate) fn walk(&self, at: i64, f: &mut impl FnMut(Element, i64) -> bool) -> bool {
        match self {
            Self::Empty => true,
            Self::Element(element) => f(*element, at),
            Self::Loop {
                count,
                stride,
                body,
            } => (0..*count as i64).all(|turn| body.walk(at + turn * stride, f)),
            Self::List(parts) => parts.iter().all(|(offset, part)| part.walk(at + offset, f)),
        }
    }
}
