// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cartesian grids.

use crate::comm::{self, CommObject, Heritage};
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Comm, In, Out};
use crate::group::GroupObject;
use crate::topology::{Cart, Topology, wide};
use crate::{agree, c, phase};
use std::cmp::Reverse;
use std::sync::Arc;

fn cart_of(comm: &CommObject) -> Outcome<&Cart> {
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
    let own = comm::world().ok_or_else(phase::not_active)?.rank as u32;
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
    let parent = &comm::get(comm)?;
    let cart = grid(ndims, dims, periods)?;
    if let Some(failure) = too_large(&cart, parent) {
        new.set_unless_null(c::COMM_NULL);
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
    let comm = &comm::get(comm)?;
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
    let comm = comm::get(comm)?;
    ndims.set(cart_of(&comm)?.dims.len() as i32)
}

/// How many dimensions the program has room for.
fn room(max: i32) -> Outcome<usize> {
    usize::try_from(max).map_err(|_| fail(c::ERR_ARG, format!("room for {max} dimensions")))
}

pub(crate) fn cart_get(
    comm: Comm,
    max: i32,
    dims: Out<i32>,
    periods: Out<i32>,
    coordinates: Out<i32>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let cart = cart_of(comm)?;
    let n = cart.dims.len().min(room(max)?);
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
    let comm = comm::get(comm)?;
    let cart = cart_of(&comm)?;
    let coordinates = coordinates.list(cart.dims.len())?;
    let found = cart.rank(&wide(&coordinates)).ok_or_else(|| {
        fail(
            c::ERR_ARG,
            format!("coordinates {coordinates:?} lie outside of a dimension that does not wrap"),
        )
    })?;
    rank.set(found)
}

pub(crate) fn cart_coords(comm: Comm, rank: i32, max: i32, coordinates: Out<i32>) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let cart = cart_of(comm)?;
    let rank = usize::try_from(rank)
        .ok()
        .filter(|&rank| rank < comm.size())
        .ok_or_else(|| fail(c::ERR_RANK, format!("rank {rank} is not in the grid")))?;
    let n = room(max)?;
    for (index, coordinate) in cart.coordinates(rank).into_iter().enumerate().take(n) {
        coordinates.set_at(index, coordinate)?;
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
    let comm = &comm::get(comm)?;
    let cart = cart_of(comm)?;
    let direction = usize::try_from(direction)
        .ok()
        .filter(|&direction| direction < cart.dims.len())
        .ok_or_else(|| fail(c::ERR_ARG, format!("there is no dimension {direction}")))?;
    let (before, after) = cart.shift(comm.rank, direction, step);
    source.set(before)?;
    dest.set(after)
}

pub(crate) fn cart_sub(comm: Comm, remain: In<i32>, new: Out<Comm>) -> Outcome<()> {
    let parent = &comm::get(comm)?;
    let cart = cart_of(parent)?;
    let keep: Vec<bool> = remain
        .list(cart.dims.len())?
        .into_iter()
        .map(|flag| flag != 0)
        .collect();
    let kept = |rank: usize, wanted: bool| -> Vec<i32> {
        let all = cart.coordinates(rank).into_iter().zip(&keep);
        all.filter(|(_, keep)| **keep == wanted)
            .map(|(coordinate, _)| coordinate)
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
    let own = comm::world().ok_or_else(phase::not_active)?.rank as u32;
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
    let taken = given.iter().filter(|&&dim| dim > 0);
    let fixed = taken.fold(1, |all: i64, &dim| all.saturating_mul(dim.into()));
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
    let mut search = Search {
        divisors: divisors(nodes),
        chosen: Vec::with_capacity(n),
        best: None,
    };
    search.descend(nodes, n, nodes);
    search.best.unwrap_or_else(|| vec![nodes])
}

/// In rising order.
fn divisors(number: i32) -> Vec<i32> {
    let root = i64::from(number).isqrt() as i32;
    let low: Vec<i32> = (1..=root).filter(|&factor| number % factor == 0).collect();
    let high = low.iter().rev().map(|&factor| number / factor);
    let mut all: Vec<i32> = low.iter().copied().chain(high).collect();
    all.dedup();
    all
}

/// A search through all factorisations whose factors do not rise.
struct Search {
    divisors: Vec<i32>,
    chosen: Vec<i32>,
    best: Option<Vec<i32>>,
}

impl Search {
    /// The best differs least between its largest and its smallest factor; then its smaller factors are the greatest.
    fn key(dims: &[i32]) -> (i32, Reverse<Vec<i32>>) {
        let rising = dims.iter().rev().copied().collect();
        (dims[0] - dims[dims.len() - 1], Reverse(rising))
    }

    fn offer(&mut self, last: i32) {
        self.chosen.push(last);
        let better = |best: &Vec<i32>| Self::key(&self.chosen) < Self::key(best);
        if self.best.as_ref().is_none_or(better) {
            self.best = Some(self.chosen.clone());
        }
        self.chosen.pop();
    }

    /// Tries to make `n` factors of `rest`, none above `limit`.
    fn descend(&mut self, rest: i32, n: usize, limit: i32) {
        if n == 1 {
            if rest <= limit {
                self.offer(rest);
            }
            return;
        }
        for index in 0..self.divisors.len() {
            let factor = self.divisors[index];
            if factor > rest.min(limit) {
                return;
            }
            // The largest of `n` factors is at least the root.
            let most = i64::from(factor).checked_pow(n as u32);
            if rest % factor != 0 || most.is_some_and(|most| most < i64::from(rest)) {
                continue;
            }
            // With a larger first factor the smallest is smaller: the difference only grows.
            let first = self.chosen.first().copied().unwrap_or(factor);
            let least = f64::from(rest / factor).powf(1.0 / (n - 1) as f64) as i32 + 1;
            let room = self
                .best
                .as_ref()
                .map(|best| best[0] - best[best.len() - 1]);
            if room.is_some_and(|room| first - room > least) {
                return;
            }
            self.chosen.push(factor);
            self.descend(rest / factor, n - 1, factor);
            self.chosen.pop();
        }
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
        assert_eq!(balance(7488, 3), [26, 18, 16]);
        assert_eq!(balance(98784, 5), [14, 14, 9, 8, 7]);
        assert_eq!(balance(i32::MAX, 2), [i32::MAX, 1]);
        let many = balance(2_095_133_040, 12);
        let product: i64 = many.iter().map(|&dim| i64::from(dim)).product();
        assert_eq!(product, 2_095_133_040);
    }

    #[test]
    fn coordinates_and_ranks_are_inverse() {
        let cart = Cart {
            dims: vec![3, 2, 4],
            periodic: vec![true, false, true],
        };
        for rank in 0..24 {
            let coordinates = wide(&cart.coordinates(rank));
            assert_eq!(cart.rank(&coordinates), Some(rank as i32));
        }
        assert_eq!(cart.rank(&[-1, 0, 5]), cart.rank(&[2, 0, 1]));
        assert_eq!(cart.rank(&[0, 2, 0]), None);
        assert_eq!(cart.shift(0, 1, 1), (c::PROC_NULL, 4));
    }
}
