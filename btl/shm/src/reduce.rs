// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reductions: vectors of elements combined element by element.

pub mod kinds;

pub use kinds::{ElemType, PredefinedOp};
