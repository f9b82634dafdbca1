// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cartesian grids.

use super::Topology;
use crate::comm::{self, CommObject, Heritage};
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Comm, In, Out};
use crate::group::GroupObject;
use crate::{agree, c, job};
use std::sync::Arc;

/// A grid: its dimensions, and which of them wrap around. Ranks are in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cart {
    dims: Vec<i32>,
    periodic: Vec<bool>,
}

impl Cart {
    fn size(&self) -> i64 {
        self.dims.iter().map(|&dim| i64::from(dim)).product()
    }

    fn coordinates(&self, rank: usize) -> Vec<i32> {
        let mut rest = rank as i64;
        let mut coordinates = vec![0; self.dims.len()];
        for (place, &dim) in coordinates.iter_mut().zip(&self.dims).rev() {
            *place = (rest % i64::from(dim)) as i32;
            rest /= i64::from(dim);
        }
        coordinates
    }

    /// The rank at coordinates, if they are in the grid.
    fn rank(&self, coordinates: &[i32]) -> Option<i32> {
        let mut rank = 0i64;
        for ((&at, &dim), &periodic) in coordinates.iter().zip(&self.dims).zip(&self.periodic) {
            let at = if periodic { at.rem_euclid(dim) } else { at };
            if at < 0 || at >= dim {
                return None;
            }
            rank = rank * i64::from(dim) + i64::from(at);
        }
        Some(rank as i32)
    }

    /// The ranks `step` before and after along a dimension.
    fn shift(&self, rank: usize, direction: usize, step: i32) -> (i32, i32) {
        let here = self.coordinates(rank);
        let at = |by: i32| {
            let mut there = here.clone();
            there[direction] = there[direction].wrapping_add(by);
            self.rank(&there).unwrap_or(c::PROC_NULL)
        };
        (at(step.wrapping_neg()), at(step))
    }

    /// The neighbours in the order of the neighbourhood collectives: for each dimension the one before and the one after.
    pub(crate) fn neighbours(&self, rank: usize) -> Vec<i32> {
        (0..self.dims.len())
            .flat_map(|direction| {
                let (before, after) = self.shift(rank, direction, 1);
                [before, after]
            })
            .collect()
    }
}

fn of(comm: &CommObject) -> Outcome<&Cart> {
    match &comm.topology {
        Some(Topology::Cart(cart)) => Ok(cart),
        _ => Err(fail(
            c::ERR_TOPOLOGY,
            "the communicator has no Cartesian topology",
        )),
    }
}

fn grid(ndims: i32, dims: In<i32>, periods: In<i32>) -> Outcome<Cart> {
    let n = usize::try_from(ndims).map_err(|_| fail(c::ERR_DIMS, format!("{ndims} dimensions")))?;
    let dims = dims.list(n)?;
    if let Some(bad) = dims.iter().find(|&&dim| dim <= 0) {
        return Err(fail(c::ERR_DIMS, format!("a dimension of {bad}")));
    }
    let periodic = periods.list(n)?.into_iter().map(|flag| flag != 0).collect();
    Ok(Cart { dims, periodic })
}

fn too_large(cart: &Cart, comm: &CommObject) -> Option<Box<Failure>> {
    (cart.size() > comm.size() as i64).then(|| {
        fail(
            c::ERR_DIMS,
            format!(
                "a grid of {} in a communicator of {}",
                cart.size(),
                comm.size()
            ),
        )
    })
}

/// A communicator of the first `size` members with a topology. All members call this.
pub(super) fn first_members(parent: &CommObject, size: usize, topology: Topology) -> Outcome<Comm> {
    let identity = comm::agreed(parent)?;
    if parent.rank >= size {
        return Ok(c::COMM_NULL);
    }
    let own = job::world().ok_or_else(job::not_active)?.rank as u32;
    let ranks = parent.group.ranks()[..size].to_vec();
    let heritage = Heritage {
        topology: Some(topology),
        ..Heritage::default()
    };
    let group = Arc::new(GroupObject::new(ranks, own));
    comm::make(parent, group, identity, heritage)
}

pub(crate) fn cart_create(
    comm: Comm,
    ndims: i32,
    dims: In<i32>,
    periods: In<i32>,
    _reorder: i32,
    new: Out<Comm>,
) -> Outcome<()> {
    let parent = comm::get(comm)?;
    let cart = grid(ndims, dims, periods)?;
    if let Some(failure) = too_large(&cart, parent) {
        return Err(failure);
    }
    let size = cart.size() as usize;
    new.set(first_members(parent, size, Topology::Cart(Arc::new(cart)))?)
}

pub(crate) fn cart_map(
    comm: Comm,
    ndims: i32,
    dims: In<i32>,
    periods: In<i32>,
    rank: Out<i32>,
) -> Outcome<()> {
    let comm = comm::get(comm)?;
    let cart = grid(ndims, dims, periods)?;
    if let Some(failure) = too_large(&cart, comm) {
        return Err(failure);
    }
    let inside = (comm.rank as i64) < cart.size();
    rank.set(if inside {
        comm.rank as i32
    } else {
        c::UNDEFINED
    })
}

pub(crate) fn cartdim_get(comm: Comm, ndims: Out<i32>) -> Outcome<()> {
    ndims.set(of(comm::get(comm)?)?.dims.len() as i32)
}

pub(crate) fn cart_get(
    comm: Comm,
    max: i32,
    dims: Out<i32>,
    periods: Out<i32>,
    coordinates: Out<i32>,
) -> Outcome<()> {
    let comm = comm::get(comm)?;
    let cart = of(comm)?;
    let n = cart.dims.len().min(usize::try_from(max).unwrap_or(0));
    let here = cart.coordinates(comm.rank);
    let all = cart.dims.iter().zip(&cart.periodic).zip(here);
    for (index, ((dim, periodic), coordinate)) in all.take(n).enumerate() {
        dims.set_at(index, *dim)?;
        periods.set_at(index, i32::from(*periodic))?;
        coordinates.set_at(index, coordinate)?;
    }
    Ok(())
}

pub(crate) fn cart_rank(comm: Comm, coordinates: In<i32>, rank: Out<i32>) -> Outcome<()> {
    let cart = of(comm::get(comm)?)?;
    let coordinates = coordinates.list(cart.dims.len())?;
    let found = cart.rank(&coordinates).ok_or_else(|| {
        fail(
            c::ERR_ARG,
            format!("coordinates {coordinates:?} lie outside of a dimension that does not wrap"),
        )
    })?;
    rank.set(found)
}

pub(crate) fn cart_coords(comm: Comm, rank: i32, max: i32, coordinates: Out<i32>) -> Outcome<()> {
    let comm = comm::get(comm)?;
    let cart = of(comm)?;
    let rank = usize::try_from(rank)
        .ok()
        .filter(|&rank| rank < comm.size())
        .ok_or_else(|| fail(c::ERR_RANK, format!("rank {rank} is not in the grid")))?;
    let n = usize::try_from(max).unwrap_or(0);
    for (index, at) in cart.coordinates(rank).into_iter().enumerate().take(n) {
        coordinates.set_at(index, at)?;
    }
    Ok(())
}

pub(crate) fn cart_shift(
    comm: Comm,
    direction: i32,
    step: i32,
    source: Out<i32>,
    dest: Out<i32>,
) -> Outcome<()> {
    let comm = comm::get(comm)?;
    let cart = of(comm)?;
    let direction = usize::try_from(direction)
        .ok()
        .filter(|&direction| direction < cart.dims.len())
        .ok_or_else(|| fail(c::ERR_ARG, format!("there is no dimension {direction}")))?;
    let (before, after) = cart.shift(comm.rank, direction, step);
    source.set(before)?;
    dest.set(after)
}

pub(crate) fn cart_sub(comm: Comm, remain: In<i32>, new: Out<Comm>) -> Outcome<()> {
    let parent = comm::get(comm)?;
    let cart = of(parent)?;
    let keep: Vec<bool> = remain
        .list(cart.dims.len())?
        .into_iter()
        .map(|flag| flag != 0)
        .collect();
    let kept = |rank: usize, wanted: bool| -> Vec<i32> {
        let all = cart.coordinates(rank).into_iter().zip(&keep);
        all.filter(|(_, keep)| **keep == wanted)
            .map(|(at, _)| at)
            .collect()
    };
    // Those with the same coordinates in the dimensions that go are together, in row-major order of the rest.
    let mine = kept(parent.rank, false);
    let mut members: Vec<(Vec<i32>, usize)> = (0..parent.size())
        .filter(|&rank| kept(rank, false) == mine)
        .map(|rank| (kept(rank, true), rank))
        .collect();
    members.sort();
    let ids = agree::allgather(parent, &agree::choose()?.to_ne_bytes())?;
    let first = members.first().map_or(0, |(_, rank)| *rank);
    let mut four = [0; 4];
    four.copy_from_slice(&ids[first * 4..first * 4 + 4]);
    let ranks = members
        .iter()
        .map(|(_, rank)| parent.job_rank(*rank).map(|rank| rank as u32))
        .collect::<Outcome<Vec<u32>>>()?;
    let pick = |wanted: &[bool]| -> Vec<bool> {
        wanted
            .iter()
            .zip(&keep)
            .filter(|(_, keep)| **keep)
            .map(|(&flag, _)| flag)
            .collect()
    };
    let dims = cart
        .dims
        .iter()
        .zip(&keep)
        .filter(|(_, keep)| **keep)
        .map(|(&dim, _)| dim);
    let sub = Cart {
        dims: dims.collect(),
        periodic: pick(&cart.periodic),
    };
    let own = job::world().ok_or_else(job::not_active)?.rank as u32;
    let heritage = Heritage {
        topology: Some(Topology::Cart(Arc::new(sub))),
        ..Heritage::default()
    };
    let group = Arc::new(GroupObject::new(ranks, own));
    new.set(comm::make(
        parent,
        group,
        u32::from_ne_bytes(four),
        heritage,
    )?)
}

pub(crate) fn dims_create(nodes: i32, ndims: i32, dims: Out<i32>) -> Outcome<()> {
    let n = usize::try_from(ndims).map_err(|_| fail(c::ERR_DIMS, format!("{ndims} dimensions")))?;
    let given = dims.list(n)?;
    let bad = |what: String| fail(c::ERR_DIMS, what);
    if nodes < 1 || given.iter().any(|&dim| dim < 0) {
        return Err(bad(format!("{nodes} nodes in dimensions {given:?}")));
    }
    let fixed: i64 = given
        .iter()
        .filter(|&&dim| dim > 0)
        .map(|&dim| i64::from(dim))
        .product();
    let free = given.iter().filter(|&&dim| dim == 0).count();
    if i64::from(nodes) % fixed != 0 || (free == 0 && fixed != i64::from(nodes)) {
        return Err(bad(format!("{nodes} nodes are no multiple of {fixed}")));
    }
    let mut balanced = balance((i64::from(nodes) / fixed) as i32, free).into_iter();
    for (index, &dim) in given.iter().enumerate() {
        if dim == 0 {
            dims.set_at(index, balanced.next().unwrap_or(1))?;
        }
    }
    Ok(())
}

/// `nodes` as a product of `n` factors as near to one another as possible, the largest first.
fn balance(nodes: i32, n: usize) -> Vec<i32> {
    if n == 0 {
        return Vec::new();
    }
    let mut best: Option<Vec<i32>> = None;
    search(nodes, n, nodes, &mut Vec::new(), &mut best);
    best.unwrap_or_else(|| vec![nodes])
}

/// Tries all non-increasing factorisations; the best has the least largest factor, then the greatest smallest one.
fn search(rest: i32, n: usize, limit: i32, chosen: &mut Vec<i32>, best: &mut Option<Vec<i32>>) {
    if n == 1 {
        if rest <= limit {
            let mut candidate = chosen.clone();
            candidate.push(rest);
            let key = |dims: &[i32]| (dims[0], std::cmp::Reverse(dims[dims.len() - 1]));
            if best.as_ref().is_none_or(|best| key(&candidate) < key(best)) {
                *best = Some(candidate);
            }
        }
        return;
    }
    for factor in 1..=rest.min(limit) {
        // The largest factor comes first: it is at least the root of what is left.
        if rest % factor != 0 || i64::from(factor).pow(n as u32) < i64::from(rest) {
            continue;
        }
        if let Some(best) = best
            && chosen.is_empty()
            && factor > best[0]
        {
            return;
        }
        chosen.push(factor);
        search(rest / factor, n - 1, factor, chosen, best);
        chosen.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_balanced() {
        assert_eq!(balance(6, 2), [3, 2]);
        assert_eq!(balance(7, 2), [7, 1]);
        assert_eq!(balance(8, 3), [2, 2, 2]);
        assert_eq!(balance(12, 3), [3, 2, 2]);
        assert_eq!(balance(1, 3), [1, 1, 1]);
        assert_eq!(balance(64, 2), [8, 8]);
        assert_eq!(balance(36, 3), [4, 3, 3]);
    }

    #[test]
    fn coordinates_and_ranks_are_inverse() {
        let cart = Cart {
            dims: vec![3, 2, 4],
            periodic: vec![true, false, true],
        };
        for rank in 0..24 {
            assert_eq!(cart.rank(&cart.coordinates(rank)), Some(rank as i32));
        }
        assert_eq!(cart.rank(&[-1, 0, 5]), cart.rank(&[2, 0, 1]));
        assert_eq!(cart.rank(&[0, 2, 0]), None);
        assert_eq!(cart.shift(0, 1, 1), (c::PROC_NULL, 4));
    }
}
