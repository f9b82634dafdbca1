// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs: the whole one known to every member, and neighbours known to each.
#![expect(clippy::too_many_arguments, reason = "signatures of the standard")]

use super::cart::first_members;
use crate::comm::{self, CommObject, Heritage};
use crate::failure::{Outcome, fail};
use crate::ffi::{Comm, In, Info, Out};
use crate::topology::{Graph, Neighbours, Topology};
use crate::{agree, c, info};
use std::sync::Arc;

fn graph_of(comm: &CommObject) -> Outcome<&Graph> {
    match &comm.topology {
        Some(Topology::Graph(graph)) => Ok(graph),
        _ => Err(fail(c::ERR_TOPOLOGY, "the communicator has no graph")),
    }
}

fn read_graph(comm: &CommObject, nodes: i32, ends: In<i32>, edges: In<i32>) -> Outcome<Graph> {
    let n = usize::try_from(nodes)
        .ok()
        .filter(|&n| n <= comm.size())
        .ok_or_else(|| {
            fail(
                c::ERR_ARG,
                format!(
                    "a graph of {nodes} nodes in a communicator of {}",
                    comm.size()
                ),
            )
        })?;
    let ends = ends.list(n)?;
    let rising = ends.first().is_none_or(|&first| first >= 0)
        && ends.windows(2).all(|pair| pair[0] <= pair[1]);
    if !rising {
        return Err(fail(c::ERR_ARG, "the index of a graph never falls"));
    }
    let edges = edges.list(ends.last().map_or(0, |&last| last as usize))?;
    if edges.iter().any(|&edge| edge < 0 || edge >= nodes) {
        return Err(fail(c::ERR_ARG, "an edge to a node that is not there"));
    }
    Ok(Graph { ends, edges })
}

pub(crate) fn graph_create(
    comm: Comm,
    nodes: i32,
    ends: In<i32>,
    edges: In<i32>,
    _reorder: i32,
    new: Out<Comm>,
) -> Outcome<()> {
    let parent = &comm::get(comm)?;
    let graph = read_graph(parent, nodes, ends, edges)?;
    let size = graph.ends.len();
    new.set(first_members(
        parent,
        size,
        Topology::Graph(Arc::new(graph)),
    )?)
}

pub(crate) fn graph_map(
    comm: Comm,
    nodes: i32,
    ends: In<i32>,
    edges: In<i32>,
    rank: Out<i32>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let graph = read_graph(comm, nodes, ends, edges)?;
    let inside = comm.rank < graph.ends.len();
    rank.set(if inside {
        comm.rank as i32
    } else {
        c::UNDEFINED
    })
}

pub(crate) fn graphdims_get(comm: Comm, nodes: Out<i32>, edges: Out<i32>) -> Outcome<()> {
    let comm = comm::get(comm)?;
    let graph = graph_of(&comm)?;
    nodes.set(graph.ends.len() as i32)?;
    edges.set(graph.edges.len() as i32)
}

fn put(values: &[i32], max: i32, out: Out<i32>) -> Outcome<()> {
    let n = values.len().min(length(max)?);
    out.set_all(&values[..n])
}

pub(crate) fn graph_get(
    comm: Comm,
    max_index: i32,
    max_edges: i32,
    ends: Out<i32>,
    edges: Out<i32>,
) -> Outcome<()> {
    let comm = comm::get(comm)?;
    let graph = graph_of(&comm)?;
    put(&graph.ends, max_index, ends)?;
    put(&graph.edges, max_edges, edges)
}

fn neighbours_of(comm: &CommObject, rank: i32) -> Outcome<&[i32]> {
    let graph = graph_of(comm)?;
    usize::try_from(rank)
        .ok()
        .filter(|&rank| rank < graph.ends.len())
        .map(|rank| graph.neighbours(rank))
        .ok_or_else(|| fail(c::ERR_RANK, format!("rank {rank} is not in the graph")))
}

pub(crate) fn graph_neighbors_count(comm: Comm, rank: i32, count: Out<i32>) -> Outcome<()> {
    let comm = comm::get(comm)?;
    count.set(neighbours_of(&comm, rank)?.len() as i32)
}

pub(crate) fn graph_neighbors(comm: Comm, rank: i32, max: i32, out: Out<i32>) -> Outcome<()> {
    let comm = comm::get(comm)?;
    put(neighbours_of(&comm, rank)?, max, out)
}

fn length(count: i32) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| fail(c::ERR_ARG, format!("{count} neighbours")))
}

/// A list of weights: absent if the graph has none.
fn weights(array: In<i32>, n: usize) -> Outcome<Option<Vec<i32>>> {
    match array.address() {
        c::UNWEIGHTED => return Ok(None),
        _ if n == 0 => return Ok(Some(Vec::new())),
        c::WEIGHTS_EMPTY => {
            return Err(fail(c::ERR_ARG, format!("MPI_WEIGHTS_EMPTY for {n} edges")));
        }
        _ => {}
    }
    let list = array.list(n)?;
    if list.iter().any(|&weight| weight < 0) {
        return Err(fail(c::ERR_ARG, "a weight below zero"));
    }
    Ok(Some(list))
}

fn check_ranks(comm: &CommObject, ranks: &[i32]) -> Outcome<()> {
    match ranks
        .iter()
        .find(|&&rank| rank < 0 || rank as usize >= comm.size())
    {
        None => Ok(()),
        Some(rank) => Err(fail(
            c::ERR_RANK,
            format!("rank {rank} is not in a communicator of {}", comm.size()),
        )),
    }
}

fn with_neighbours(parent: &CommObject, known: Neighbours, pairs: info::Pairs) -> Outcome<Comm> {
    let identity = comm::agreed(parent)?;
    let heritage = Heritage {
        topology: Some(Topology::Neighbours(Arc::new(known))),
        info: pairs,
        ..Heritage::default()
    };
    comm::make(parent, Arc::clone(&parent.group), identity, heritage)
}

pub(crate) fn dist_graph_create_adjacent(
    comm: Comm,
    indegree: i32,
    sources: In<i32>,
    source_weights: In<i32>,
    outdegree: i32,
    destinations: In<i32>,
    destination_weights: In<i32>,
    info: Info,
    _reorder: i32,
    new: Out<Comm>,
) -> Outcome<()> {
    let parent = &comm::get(comm)?;
    let (inward, outward) = (length(indegree)?, length(outdegree)?);
    let sources = sources.list(inward)?;
    let destinations = destinations.list(outward)?;
    check_ranks(parent, &sources)?;
    check_ranks(parent, &destinations)?;
    let weights = match (
        weights(source_weights, inward)?,
        weights(destination_weights, outward)?,
    ) {
        (Some(a), Some(b)) => Some((a, b)),
        _ => None,
    };
    let known = Neighbours {
        sources,
        destinations,
        weights,
    };
    new.set(with_neighbours(parent, known, info::pairs_or_none(info)?)?)
}

pub(crate) fn dist_graph_create(
    comm: Comm,
    n: i32,
    sources: In<i32>,
    degrees: In<i32>,
    destinations: In<i32>,
    edge_weights: In<i32>,
    info: Info,
    _reorder: i32,
    new: Out<Comm>,
) -> Outcome<()> {
    let parent = &comm::get(comm)?;
    let n = length(n)?;
    let (sources, degrees) = (sources.list(n)?, degrees.list(n)?);
    check_ranks(parent, &sources)?;
    let total = degrees
        .iter()
        .map(|&degree| length(degree))
        .sum::<Outcome<usize>>()?;
    let destinations = destinations.list(total)?;
    check_ranks(parent, &destinations)?;
    let weights = weights(edge_weights, total)?;
    // Every member tells all what it knows; each keeps what concerns it.
    let mut edges = Vec::with_capacity(total * 3);
    let mut next = 0;
    for (&source, &degree) in sources.iter().zip(&degrees) {
        for _ in 0..degree {
            let weight = weights.as_ref().and_then(|list| list.get(next)).copied();
            edges.extend([source, destinations[next], weight.unwrap_or(0)]);
            next += 1;
        }
    }
    let weighted = match weights {
        None => Weighted::No,
        Some(_) if total == 0 && edge_weights.address() != c::WEIGHTS_EMPTY => Weighted::AsOthers,
        Some(_) => Weighted::Yes,
    };
    let all = exchange(parent, &edges, weighted)?;
    let me = parent.rank as i32;
    let pick = |own: usize, other: usize| -> (Vec<i32>, Vec<i32>) {
        all.0
            .chunks_exact(3)
            .filter(|edge| edge[own] == me)
            .map(|edge| (edge[other], edge[2]))
            .unzip()
    };
    let (from, from_weights) = pick(1, 0);
    let (to, to_weights) = pick(0, 1);
    let known = Neighbours {
        sources: from,
        destinations: to,
        weights: all.1.then_some((from_weights, to_weights)),
    };
    new.set(with_neighbours(parent, known, info::pairs_or_none(info)?)?)
}

/// What a member says of weights: one without edges that names no special list says nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weighted {
    No,
    Yes,
    AsOthers,
}

/// All members' numbers, in the order of the ranks, and whether the graph has weights.
fn exchange(parent: &CommObject, mine: &[i32], weighted: Weighted) -> Outcome<(Vec<i32>, bool)> {
    let head = [mine.len() as i32, weighted as i32];
    let heads = numbers(&agree::allgather(parent, &bytes_of(&head))?);
    let most = heads.chunks_exact(2).map(|head| head[0]).max().unwrap_or(0);
    let anybody = |weighted: Weighted| heads.chunks_exact(2).any(|head| head[1] == weighted as i32);
    let weighted = anybody(Weighted::Yes) || !anybody(Weighted::No);
    let mut padded = mine.to_vec();
    padded.resize(most as usize, 0);
    let all = numbers(&agree::allgather(parent, &bytes_of(&padded))?);
    let mut together = Vec::new();
    for (rank, head) in heads.chunks_exact(2).enumerate() {
        let begin = rank * most as usize;
        together.extend_from_slice(&all[begin..begin + head[0] as usize]);
    }
    Ok((together, weighted))
}

fn bytes_of(numbers: &[i32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_ne_bytes())
        .collect()
}

fn numbers(bytes: &[u8]) -> Vec<i32> {
    let four = |chunk: &[u8]| i32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
    bytes.chunks_exact(4).map(four).collect()
}

fn neighbours(comm: &CommObject) -> Outcome<&Neighbours> {
    match &comm.topology {
        Some(Topology::Neighbours(known)) => Ok(known),
        _ => Err(fail(
            c::ERR_TOPOLOGY,
            "the communicator has no distributed graph",
        )),
    }
}

pub(crate) fn dist_graph_neighbors_count(
    comm: Comm,
    indegree: Out<i32>,
    outdegree: Out<i32>,
    weighted: Out<i32>,
) -> Outcome<()> {
    let comm = comm::get(comm)?;
    let known = neighbours(&comm)?;
    indegree.set(known.sources.len() as i32)?;
    outdegree.set(known.destinations.len() as i32)?;
    weighted.set(i32::from(known.weights.is_some()))
}

pub(crate) fn dist_graph_neighbors(
    comm: Comm,
    max_in: i32,
    sources: Out<i32>,
    source_weights: Out<i32>,
    max_out: i32,
    destinations: Out<i32>,
    destination_weights: Out<i32>,
) -> Outcome<()> {
    let comm = comm::get(comm)?;
    let known = neighbours(&comm)?;
    put(&known.sources, max_in, sources)?;
    put(&known.destinations, max_out, destinations)?;
    if let Some((inward, outward)) = &known.weights {
        for (list, max, out) in [
            (inward, max_in, source_weights),
            (outward, max_out, destination_weights),
        ] {
            if out.address() != c::UNWEIGHTED && !list.is_empty() {
                put(list, max, out)?;
            }
        }
    }
    Ok(())
}
