// SPDX-License-Identifier: MIT OR Apache-2.0
//! Neighbourhood collectives, by messages in the library's context of the communicator.
//!
//! The k-th block that is sent to a neighbour is the k-th that this neighbour receives from here. In a grid, however,
//! the neighbour before receives from the one after. There each block says which side it goes to, since both may be the
//! same process.
#![expect(clippy::too_many_arguments, reason = "signatures of the standard")]

use crate::comm::{self, CommObject};
use crate::datatype::{self, TypeObject};
use crate::failure::{Outcome, fail};
use crate::ffi::{Addr, Comm, Datatype, In, Info, Ints, Out, Request};
use crate::p2p::{self, check_count};
use crate::request::{self, Activity, Object};
use crate::topology::Topology;
use crate::{c, info};
use onecopy::raw::Mode;
use onecopy::{Source, Tag};
use std::sync::Arc;

/// The neighbours that a member receives from and sends to; in a grid they are the same.
struct Neighbours {
    sources: Vec<i32>,
    destinations: Vec<i32>,
    grid: bool,
}

fn neighbours(comm: &CommObject) -> Outcome<Neighbours> {
    Ok(match &comm.topology {
        Some(Topology::Cart(cart)) => {
            let all = cart.neighbours(comm.rank);
            Neighbours {
                sources: all.clone(),
                destinations: all,
                grid: true,
            }
        }
        Some(Topology::Graph(graph)) => {
            let all = graph.neighbours(comm.rank).to_vec();
            Neighbours {
                sources: all.clone(),
                destinations: all,
                grid: false,
            }
        }
        Some(Topology::Neighbours(known)) => Neighbours {
            sources: known.sources.clone(),
            destinations: known.destinations.clone(),
            grid: false,
        },
        None => return Err(fail(c::ERR_TOPOLOGY, "the communicator has no topology")),
    })
}

/// One block: a displacement in bytes from the buffer's address, a count, a datatype.
#[derive(Clone)]
struct Block {
    offset: i64,
    count: u64,
    datatype: Arc<TypeObject>,
}

impl Block {
    fn in_buffer(&self, base: Addr) -> p2p::Buffer<'_> {
        (base.offset(self.offset), self.count, &*self.datatype)
    }
}

/// A neighbourhood collective, ready to be started again and again.
struct Plan {
    comm: Arc<CommObject>,
    neighbours: Neighbours,
    sendbuf: Addr,
    send: Vec<Block>,
    recvbuf: Addr,
    recv: Vec<Block>,
}

/// Tags of these messages, apart from others in the library's context: a number for the call, and one for the side.
const TAGS: i32 = 1 << 29;
/// Of a call that is started again and again. Its messages have one tag: it ends before it is started again, and
/// messages of a pair keep their order.
const PERSISTENT: i32 = 1 << 28;

/// The tag of one more call. A call that fails here counts with the others', too.
fn next_tag(comm: &CommObject) -> i32 {
    TAGS | (comm.next_tag() & 0xf_ffff) << 8
}

impl Plan {
    /// Starts it. A neighbour that cannot be reached keeps the messages from no other: what was started goes on, and
    /// the request ends with the error.
    fn start(&self, call: i32) -> Outcome<Object> {
        let comm = &self.comm;
        let own = &comm.links()?.own;
        let Neighbours {
            sources,
            destinations,
            grid,
        } = &self.neighbours;
        let side = |index: usize| if *grid { index as i32 & 0xff } else { 0 };
        // What can be wrong with the buffers is found out before anything is started.
        let mut receives = Vec::with_capacity(sources.len());
        for (index, (&source, block)) in sources.iter().zip(&self.recv).enumerate() {
            if source != c::PROC_NULL {
                let target = p2p::target_of(block.in_buffer(self.recvbuf))?;
                receives.push((comm.job_rank(source as usize)?, side(index), target));
            }
        }
        let mut sends = Vec::with_capacity(destinations.len());
        for (index, (&dest, block)) in destinations.iter().zip(&self.send).enumerate() {
            if dest != c::PROC_NULL {
                let bytes = p2p::Outgoing::of(block.in_buffer(self.sendbuf))?;
                sends.push((comm.job_rank(dest as usize)?, side(index ^ 1), bytes));
            }
        }
        let mut messages = Vec::with_capacity(receives.len() + sends.len());
        let mut failure = None;
        let mut started = |message: Outcome<request::Pending>| match message {
            Ok(message) => messages.push(message),
            Err(error) => {
                failure.get_or_insert(error);
            }
        };
        for (from, side, target) in receives {
            started(target.receive_from(own, Source::Rank(from), Tag::Is(call | side)));
        }
        for (to, side, bytes) in sends {
            started(bytes.start(own, to, call | side, Mode::Standard));
        }
        let mut object = Object::active(comm, Activity::Many(messages));
        object.failure = failure;
        Ok(object)
    }

    fn run(&self) -> Outcome<()> {
        let mut object = self.start(next_tag(&self.comm))?;
        request::wait_object(&mut object);
        object.failure.take().map_or(Ok(()), Err)
    }

    fn later(&self, request: Out<Request>) -> Outcome<()> {
        let home = request::reserve(request)?;
        home.keep(self.start(next_tag(&self.comm))?);
        Ok(())
    }

    fn prepare(self, info: Info, request: Out<Request>) -> Outcome<()> {
        info::pairs_or_none(info)?;
        let comm = Arc::clone(&self.comm);
        // Requests that were initialised in the same order may be started in any.
        let call = TAGS | PERSISTENT | comm.next_persistent() << 8;
        let recipe = move || self.start(call);
        let home = request::reserve(request)?;
        home.keep(Object::persistent(&comm, Arc::new(recipe)));
        Ok(())
    }
}

fn plan(
    comm: Comm,
    sendbuf: Addr,
    recvbuf: Addr,
    blocks: impl FnOnce(usize, usize) -> Outcome<(Vec<Block>, Vec<Block>)>,
) -> Outcome<Plan> {
    let used = comm::get(comm)?;
    let comm = Arc::clone(&used);
    let neighbours = neighbours(&comm)?;
    let (send, recv) = blocks(neighbours.destinations.len(), neighbours.sources.len())?;
    Ok(Plan {
        comm,
        neighbours,
        sendbuf,
        send,
        recvbuf,
        recv,
    })
}

/// The same block for all.
fn same(n: usize, count: i64, datatype: Datatype) -> Outcome<Vec<Block>> {
    let block = Block {
        offset: 0,
        count: check_count(count)?,
        datatype: Arc::clone(datatype::committed(datatype)?),
    };
    Ok(vec![block; n])
}

/// Blocks one after the other.
fn equal(n: usize, count: i64, datatype: Datatype) -> Outcome<Vec<Block>> {
    let mut blocks = same(n, count, datatype)?;
    for (index, block) in blocks.iter_mut().enumerate() {
        // The counts of all neighbours together are a count, too.
        let before = datatype::addressable((index as u64).checked_mul(block.count))?;
        block.offset = block.datatype.displacement(before as i64)?;
    }
    Ok(blocks)
}

/// Blocks at displacements that count extents.
fn listed(n: usize, counts: Ints, displacements: Ints, datatype: Datatype) -> Outcome<Vec<Block>> {
    let object = datatype::committed(datatype)?;
    (0..n)
        .map(|index| {
            Ok(Block {
                offset: object.displacement(displacements.at(index)?)?,
                count: check_count(counts.at(index)?)?,
                datatype: Arc::clone(object),
            })
        })
        .collect()
}

/// Blocks of own datatypes at displacements in bytes.
fn typed(
    n: usize,
    counts: Ints,
    displacements: In<i64>,
    types: In<Datatype>,
) -> Outcome<Vec<Block>> {
    (0..n)
        .map(|index| {
            let count = check_count(counts.at(index)?)?;
            // What is not used need not be valid.
            let object = match count {
                0 => datatype::get(c::BYTE)?,
                _ => datatype::committed(types.at(index)?)?,
            };
            Ok(Block {
                offset: displacements.at(index)?,
                count,
                datatype: Arc::clone(object),
            })
        })
        .collect()
}

macro_rules! neighbourhood {
    ($($run:ident $later:ident $prepare:ident ($($arg:ident: $t:ty),* $(,)?)
        from $sendbuf:ident to $recvbuf:ident |$out:ident, $into:ident| $send:expr, $recv:expr;)*) => {$(
        pub(crate) fn $run($($arg: $t,)* comm: Comm) -> Outcome<()> {
            plan(comm, $sendbuf, $recvbuf, |$out, $into| Ok(($send?, $recv?)))?.run()
        }
        pub(crate) fn $later($($arg: $t,)* comm: Comm, request: Out<Request>) -> Outcome<()> {
            plan(comm, $sendbuf, $recvbuf, |$out, $into| Ok(($send?, $recv?)))?.later(request)
        }
        pub(crate) fn $prepare(
            $($arg: $t,)* comm: Comm, info: Info, request: Out<Request>,
        ) -> Outcome<()> {
            plan(comm, $sendbuf, $recvbuf, |$out, $into| Ok(($send?, $recv?)))?.prepare(info, request)
        }
    )*};
}

neighbourhood! {
    neighbor_allgather ineighbor_allgather neighbor_allgather_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype, recvbuf: Addr, recvcount: i64, recvtype: Datatype
    ) from sendbuf to recvbuf |out, into| same(out, sendcount, sendtype), equal(into, recvcount, recvtype);
    neighbor_allgatherv ineighbor_allgatherv neighbor_allgatherv_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype,
        recvbuf: Addr, counts: Ints, displs: Ints, recvtype: Datatype
    ) from sendbuf to recvbuf |out, into| same(out, sendcount, sendtype), listed(into, counts, displs, recvtype);
    neighbor_alltoall ineighbor_alltoall neighbor_alltoall_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype, recvbuf: Addr, recvcount: i64, recvtype: Datatype
    ) from sendbuf to recvbuf |out, into| equal(out, sendcount, sendtype), equal(into, recvcount, recvtype);
    neighbor_alltoallv ineighbor_alltoallv neighbor_alltoallv_init (
        sendbuf: Addr, sendcounts: Ints, sdispls: Ints, sendtype: Datatype,
        recvbuf: Addr, recvcounts: Ints, rdispls: Ints, recvtype: Datatype
    ) from sendbuf to recvbuf
        |out, into| listed(out, sendcounts, sdispls, sendtype), listed(into, recvcounts, rdispls, recvtype);
    neighbor_alltoallw ineighbor_alltoallw neighbor_alltoallw_init (
        sendbuf: Addr, sendcounts: Ints, sdispls: In<i64>, sendtypes: In<Datatype>,
        recvbuf: Addr, recvcounts: Ints, rdispls: In<i64>, recvtypes: In<Datatype>
    ) from sendbuf to recvbuf
        |out, into| typed(out, sendcounts, sdispls, sendtypes), typed(into, recvcounts, rdispls, recvtypes);
}
