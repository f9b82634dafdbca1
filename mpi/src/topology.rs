// SPDX-License-Identifier: MIT OR Apache-2.0
//! The topology of a communicator, and what it says of neighbours.

use crate::c;
use std::sync::Arc;

/// The topology of a communicator.
#[derive(Debug, Clone)]
pub(crate) enum Topology {
    Cart(Arc<Cart>),
    Graph(Arc<Graph>),
    Neighbours(Arc<Neighbours>),
}

/// A grid: its dimensions, and which of them wrap around. Ranks are in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cart {
    pub(crate) dims: Vec<i32>,
    pub(crate) periodic: Vec<bool>,
}

/// Where a rank is in a grid in row-major order.
pub(crate) fn coordinates(rank: i64, dims: &[i32]) -> Vec<i32> {
    let mut rest = rank;
    let mut coordinates = vec![0; dims.len()];
    for (coordinate, &dim) in coordinates.iter_mut().zip(dims).rev() {
        *coordinate = (rest % i64::from(dim)) as i32;
        rest /= i64::from(dim);
    }
    coordinates
}

impl Cart {
    /// The number of members; that of a grid without dimensions is one.
    pub(crate) fn size(&self) -> i64 {
        let sizes = self.dims.iter().map(|&dim| i64::from(dim));
        sizes.fold(1, i64::saturating_mul)
    }

    pub(crate) fn coordinates(&self, rank: usize) -> Vec<i32> {
        coordinates(rank as i64, &self.dims)
    }

    /// The rank at coordinates, if they are in the grid.
    pub(crate) fn rank(&self, coordinates: &[i64]) -> Option<i32> {
        let mut rank = 0i64;
        for ((&coordinate, &dim), &periodic) in
            coordinates.iter().zip(&self.dims).zip(&self.periodic)
        {
            let dim = i64::from(dim);
            let coordinate = if periodic {
                coordinate.rem_euclid(dim)
            } else {
                coordinate
            };
            if coordinate < 0 || coordinate >= dim {
                return None;
            }
            rank = rank * dim + coordinate;
        }
        Some(rank as i32)
    }

    /// The ranks `step` before and after along a dimension.
    pub(crate) fn shift(&self, rank: usize, direction: usize, step: i32) -> (i32, i32) {
        let here = wide(&self.coordinates(rank));
        let moved = |by: i64| {
            let mut there = here.clone();
            there[direction] += by;
            self.rank(&there).unwrap_or(c::PROC_NULL)
        };
        (moved(-i64::from(step)), moved(step.into()))
    }

    /// The neighbours in the order of the neighbourhood collectives: for each dimension the one before and the one
    /// after.
    pub(crate) fn neighbours(&self, rank: usize) -> Vec<i32> {
        (0..self.dims.len())
            .flat_map(|direction| {
                let (before, after) = self.shift(rank, direction, 1);
                [before, after]
            })
            .collect()
    }
}

/// A graph that every member knows: where each rank's neighbours end in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Graph {
    pub(crate) ends: Vec<i32>,
    pub(crate) edges: Vec<i32>,
}

impl Graph {
    pub(crate) fn neighbours(&self, rank: usize) -> &[i32] {
        let begin = if rank == 0 { 0 } else { self.ends[rank - 1] };
        &self.edges[begin as usize..self.ends[rank] as usize]
    }
}

/// What one member knows of a distributed graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbours {
    pub(crate) sources: Vec<i32>,
    pub(crate) destinations: Vec<i32>,
    /// The weights, if the graph has any.
    pub(crate) weights: Option<(Vec<i32>, Vec<i32>)>,
}

pub(crate) fn wide(coordinates: &[i32]) -> Vec<i64> {
    coordinates
        .iter()
        .map(|&coordinate| i64::from(coordinate))
        .collect()
}
