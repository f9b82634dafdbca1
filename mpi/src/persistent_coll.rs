// SPDX-License-Identifier: MIT OR Apache-2.0
//! Persistent collectives: see [`crate::coll`].

pub(crate) use crate::coll::persistent::*;
