// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nonblocking collectives: see [`crate::coll`].

pub(crate) use crate::coll::nonblocking::*;
