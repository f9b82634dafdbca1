// SPDX-License-Identifier: MIT OR Apache-2.0
//! Combining a fragment of several vectors, in the order of the ranks.

use super::super::{ElemType, Op};
use onecopy_shm::coll::{View, accumulate, combine, precede};
use onecopy_shm::copy::{Kernel, copy_slices};

/// What is combined, and how.
pub(in crate::coll) struct Operands<'o> {
    pub(in crate::coll) op: &'o Op,
    pub(in crate::coll) elem: ElemType,
    /// The place of this rank's own contribution among the vectors, if it is given apart from them.
    pub(in crate::coll) own: Option<usize>,
    /// Whether it stands where the result goes.
    pub(in crate::coll) alias: bool,
}

/// Combines all `views` into `out`; `own` fills the gap among them, unless it is what stands in `out`. `work` has room
/// for two vectors if the operator is the program's, or `out` must not be touched at first.
pub(in crate::coll) fn combine_all(
    operands: &Operands<'_>,
    out: &mut [u8],
    views: &[Option<View<'_>>],
    own: Option<View<'_>>,
    work: &mut [u8],
) {
    let len = out.len();
    let mut filled: Vec<Option<View<'_>>>;
    let views = match operands.own {
        Some(index) if !operands.alias => {
            filled = views.to_vec();
            filled[index] = own;
            &filled
        }
        _ => views,
    };
    match operands.op {
        Op::User(function) => {
            let (a, b) = work.split_at_mut(work.len() / 2);
            let (mut left, mut right) = (&mut a[..len], &mut b[..len]);
            for (index, view) in views.iter().enumerate() {
                let fill = if index == 0 { &mut *left } else { &mut *right };
                match view {
                    Some(view) => view.copy_to(fill, Kernel::Memcpy),
                    None => copy_slices(Kernel::Memcpy, fill, out),
                }
                if index > 0 {
                    // What was combined so far is the left operand, and the result stands in the right one.
                    function(left, right);
                    std::mem::swap(&mut left, &mut right);
                }
            }
            copy_slices(Kernel::Memcpy, out, left);
        }
        Op::Predefined(op) => predefined(*op, operands.elem, out, views, work),
    }
}

fn predefined(
    op: super::super::PredefinedOp,
    elem: ElemType,
    out: &mut [u8],
    views: &[Option<View<'_>>],
    work: &mut [u8],
) {
    let len = out.len();
    match views {
        [] | [None] => {}
        [Some(only)] => only.copy_to(out, Kernel::Memcpy),
        [None, rest @ ..] => rest
            .iter()
            .flatten()
            .for_each(|view| accumulate(op, elem, out, *view)),
        [Some(first), None, rest @ ..] => {
            precede(op, elem, out, *first);
            rest.iter()
                .flatten()
                .for_each(|view| accumulate(op, elem, out, *view));
        }
        [Some(first), Some(second), rest @ ..] => match rest.iter().position(Option::is_none) {
            None => {
                combine(op, elem, out, *first, *second);
                rest.iter()
                    .flatten()
                    .for_each(|view| accumulate(op, elem, out, *view));
            }
            Some(gap) => {
                // This rank's own bytes in `out` are needed after those before them.
                let before = &mut work[..len];
                combine(op, elem, before, *first, *second);
                rest[..gap]
                    .iter()
                    .flatten()
                    .for_each(|view| accumulate(op, elem, before, *view));
                precede(op, elem, out, View::of(before));
                rest[gap + 1..]
                    .iter()
                    .flatten()
                    .for_each(|view| accumulate(op, elem, out, *view));
            }
        },
    }
}
