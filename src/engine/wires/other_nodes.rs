// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a rank has wires, or why it has none.

use super::Wires;

/// How this rank reaches ranks on other nodes.
#[derive(Debug)]
pub(in crate::engine) enum OtherNodes {
    /// By these wires.
    Wires(Box<Wires>),
    /// It does not, for this reason; so it is in a job of one node. A `String` would make the look of each round of
    /// progress more than a comparison with zero.
    Unreachable(Box<str>),
}

impl OtherNodes {
    /// What leads there.
    #[inline]
    pub(in crate::engine) fn wires(&self) -> Option<&Wires> {
        match self {
            Self::Wires(wires) => Some(wires),
            Self::Unreachable(_) => None,
        }
    }

    #[inline]
    pub(in crate::engine) fn wires_mut(&mut self) -> Option<&mut Wires> {
        match self {
            Self::Wires(wires) => Some(wires),
            Self::Unreachable(_) => None,
        }
    }
}
