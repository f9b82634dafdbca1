// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process topologies.

mod cart;
mod graph;

pub(crate) use cart::*;
pub(crate) use graph::*;

use crate::failure::Outcome;
use crate::ffi::{Comm, Out};
use crate::topology::Topology;
use crate::{c, comm};

pub(crate) fn topo_test(comm: Comm, status: Out<i32>) -> Outcome<()> {
    status.set(match comm::get(comm)?.topology {
        Some(Topology::Cart(_)) => c::CART,
        Some(Topology::Graph(_)) => c::GRAPH,
        Some(Topology::Neighbours(_)) => c::DIST_GRAPH,
        None => c::UNDEFINED,
    })
}
