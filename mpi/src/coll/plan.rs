// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each collective asks of the runtime.

use super::Plan;
use super::reduction::{Reduction, reduction};
use super::user_buffer::{Access, Block, UserBuffer};
use crate::c;
use crate::comm::CommObject;
use crate::datatype::{self, TypeObject};
use crate::failure::{Outcome, fail};
use crate::ffi::{Addr, Datatype, Op};
use crate::p2p::check_count;
use onecopy::coll::{Collective, ElemType, Op as Operator, Parts};
use std::sync::Arc;

/// A root's rank.
pub(super) fn check_root(comm: &CommObject, root: i32) -> Outcome<usize> {
    usize::try_from(root)
        .ok()
        .filter(|&root| root < comm.size())
        .ok_or_else(|| {
            fail(
                c::ERR_ROOT,
                format!("root {root} is not in a communicator of {}", comm.size()),
            )
        })
}

fn plan(
    collective: Collective,
    send: Option<UserBuffer>,
    recv: Option<UserBuffer>,
) -> Outcome<Plan> {
    Ok(Plan {
        collective,
        send,
        recv,
    })
}

/// So many instances of a datatype in the program's memory, as one argument of the standard's three.
#[derive(Clone, Copy)]
pub(super) struct DataBuffer {
    pub(super) buf: Addr,
    pub(super) count: i64,
    pub(super) datatype: Datatype,
}

/// A number of instances of a datatype for each rank, at displacements that count extents.
#[derive(Clone, Copy)]
pub(super) struct PartsBuffer<'a> {
    pub(super) buf: Addr,
    pub(super) counts: &'a [i64],
    pub(super) displacements: &'a [i64],
    pub(super) datatype: Datatype,
}

/// A number of instances of an own datatype for each rank, at displacements in bytes.
#[derive(Clone, Copy)]
pub(super) struct TypedParts<'a> {
    pub(super) buf: Addr,
    pub(super) counts: &'a [i64],
    pub(super) displacements: &'a [i64],
    pub(super) types: &'a [Datatype],
}

/// The vectors of a reduction.
#[derive(Clone, Copy)]
pub(super) struct VectorBuffers {
    pub(super) send: Addr,
    pub(super) recv: Addr,
    pub(super) datatype: Datatype,
    pub(super) op: Op,
}

impl DataBuffer {
    fn single(self, access: Access) -> Outcome<UserBuffer> {
        let object = datatype::committed(self.datatype)?;
        UserBuffer::one(self.buf, check_count(self.count)?, object, access)
    }

    /// As a send buffer; none: what is given stands in the receive buffer.
    fn given(self) -> Outcome<Option<UserBuffer>> {
        match self.buf.is_in_place() {
            true => Ok(None),
            false => self.single(Access::Read).map(Some),
        }
    }

    /// The same number of instances for each of `n` ranks, one after the other.
    fn equal(self, n: usize, access: Access) -> Outcome<(UserBuffer, Parts)> {
        let object = datatype::committed(self.datatype)?;
        let count = check_count(self.count)?;
        let len = object.bytes(count)?;
        let all = datatype::addressable(count.checked_mul(n as u64))?;
        let user_buffer = UserBuffer::one(self.buf, all, object, access)?;
        Ok((user_buffer, Parts::Equal(len as usize)))
    }
}

impl PartsBuffer<'_> {
    fn listed(self, access: Access) -> Outcome<(UserBuffer, Parts)> {
        let object = datatype::committed(self.datatype)?;
        let blocks = self
            .counts
            .iter()
            .zip(self.displacements)
            .map(|(&count, &displacement)| {
                let offset = object.displacement(displacement)?;
                Ok((offset, check_count(count)?, &**object))
            })
            .collect::<Outcome<Vec<Block<'_>>>>()?;
        UserBuffer::of(self.buf, &blocks, access)
    }
}

impl TypedParts<'_> {
    fn listed(self, access: Access) -> Outcome<(UserBuffer, Parts)> {
        let objects = self
            .types
            .iter()
            .zip(self.counts)
            .map(|(&handle, &count)| match count {
                // What is not used need not be valid.
                0 => datatype::get(c::BYTE),
                _ => datatype::committed(handle),
            })
            .collect::<Outcome<Vec<&Arc<TypeObject>>>>()?;
        let blocks = self
            .counts
            .iter()
            .zip(self.displacements)
            .zip(objects)
            .map(|((&count, &offset), object)| Ok((offset, check_count(count)?, &**object)))
            .collect::<Outcome<Vec<Block<'_>>>>()?;
        UserBuffer::of(self.buf, &blocks, access)
    }
}

pub(super) fn barrier(_comm: &CommObject) -> Outcome<Plan> {
    plan(Collective::Barrier, None, None)
}

pub(super) fn bcast(comm: &CommObject, data: DataBuffer, root: i32) -> Outcome<Plan> {
    let root = check_root(comm, root)?;
    let access = match comm.rank == root {
        true => Access::Read,
        false => Access::Write,
    };
    plan(Collective::Bcast { root }, None, Some(data.single(access)?))
}

/// What a rank that is not the root gives to a gather.
fn gathered(root: usize, send: DataBuffer) -> Outcome<Plan> {
    let send = send.single(Access::Read)?;
    let parts = Parts::Equal(0);
    plan(Collective::Gather { root, parts }, Some(send), None)
}

pub(super) fn gather(
    comm: &CommObject,
    send: DataBuffer,
    recv: DataBuffer,
    root: i32,
) -> Outcome<Plan> {
    let root = check_root(comm, root)?;
    if comm.rank != root {
        return gathered(root, send);
    }
    let access = Access::of_result(send.buf.is_in_place());
    let send = send.given()?;
    let (recv, parts) = recv.equal(comm.size(), access)?;
    plan(Collective::Gather { root, parts }, send, Some(recv))
}

pub(super) fn gatherv(
    comm: &CommObject,
    send: DataBuffer,
    recv: PartsBuffer<'_>,
    root: i32,
) -> Outcome<Plan> {
    let root = check_root(comm, root)?;
    if comm.rank != root {
        return gathered(root, send);
    }
    let access = Access::of_result(send.buf.is_in_place());
    let send = send.given()?;
    let (recv, parts) = recv.listed(access)?;
    plan(Collective::Gather { root, parts }, send, Some(recv))
}

/// What a rank gets of a scatter.
fn scattered(comm: &CommObject, root: usize, recv: DataBuffer) -> Outcome<Option<UserBuffer>> {
    match comm.rank == root && recv.buf.is_in_place() {
        true => Ok(None),
        false => recv.single(Access::Write).map(Some),
    }
}

/// A scatter at a rank that is not its root.
fn scatter_from(root: usize, recv: Option<UserBuffer>) -> Outcome<Plan> {
    let parts = Parts::Equal(0);
    plan(Collective::Scatter { root, parts }, None, recv)
}

pub(super) fn scatter(
    comm: &CommObject,
    send: DataBuffer,
    recv: DataBuffer,
    root: i32,
) -> Outcome<Plan> {
    let root = check_root(comm, root)?;
    let recv = scattered(comm, root, recv)?;
    if comm.rank != root {
        return scatter_from(root, recv);
    }
    let (send, parts) = send.equal(comm.size(), Access::Read)?;
    plan(Collective::Scatter { root, parts }, Some(send), recv)
}

pub(super) fn scatterv(
    comm: &CommObject,
    send: PartsBuffer<'_>,
    recv: DataBuffer,
    root: i32,
) -> Outcome<Plan> {
    let root = check_root(comm, root)?;
    let recv = scattered(comm, root, recv)?;
    if comm.rank != root {
        return scatter_from(root, recv);
    }
    let (send, parts) = send.listed(Access::Read)?;
    plan(Collective::Scatter { root, parts }, Some(send), recv)
}

pub(super) fn allgather(comm: &CommObject, send: DataBuffer, recv: DataBuffer) -> Outcome<Plan> {
    let access = Access::of_result(send.buf.is_in_place());
    let send = send.given()?;
    let (recv, parts) = recv.equal(comm.size(), access)?;
    plan(Collective::Allgather { parts }, send, Some(recv))
}

pub(super) fn allgatherv(
    _comm: &CommObject,
    send: DataBuffer,
    recv: PartsBuffer<'_>,
) -> Outcome<Plan> {
    let access = Access::of_result(send.buf.is_in_place());
    let send = send.given()?;
    let (recv, parts) = recv.listed(access)?;
    plan(Collective::Allgather { parts }, send, Some(recv))
}

/// All to all, with both sides described. A side that is in place is not looked at.
fn exchange(
    sendbuf: Addr,
    send: impl FnOnce() -> Outcome<(UserBuffer, Parts)>,
    recv: impl FnOnce(Access) -> Outcome<(UserBuffer, Parts)>,
) -> Outcome<Plan> {
    let in_place = sendbuf.is_in_place();
    let send = match in_place {
        true => None,
        false => Some(send()?),
    };
    let (recv, parts) = recv(Access::of_result(in_place))?;
    let (send, sent) = match send {
        Some((user_buffer, parts)) => (Some(user_buffer), parts),
        None => (None, parts.clone()),
    };
    let collective = Collective::Alltoall {
        send: sent,
        recv: parts,
    };
    plan(collective, send, Some(recv))
}

pub(super) fn alltoall(comm: &CommObject, send: DataBuffer, recv: DataBuffer) -> Outcome<Plan> {
    let n = comm.size();
    let given = || send.equal(n, Access::Read);
    exchange(send.buf, given, |access| recv.equal(n, access))
}

pub(super) fn alltoallv(
    _comm: &CommObject,
    send: PartsBuffer<'_>,
    recv: PartsBuffer<'_>,
) -> Outcome<Plan> {
    let given = || send.listed(Access::Read);
    exchange(send.buf, given, |access| recv.listed(access))
}

pub(super) fn alltoallw(
    _comm: &CommObject,
    send: TypedParts<'_>,
    recv: TypedParts<'_>,
) -> Outcome<Plan> {
    let given = || send.listed(Access::Read);
    exchange(send.buf, given, |access| recv.listed(access))
}

/// A vector to be combined, and where the result goes.
fn combined(
    sendbuf: Addr,
    recvbuf: Option<(Addr, i64)>,
    count: i64,
    reduction: &Reduction,
) -> Outcome<(Option<UserBuffer>, Option<UserBuffer>)> {
    let in_place = sendbuf.is_in_place();
    let send = match in_place {
        true => None,
        false => Some(reduction.user_buffer(sendbuf, count, Access::Read)?),
    };
    let recv = match recvbuf {
        None => None,
        Some((buf, _)) if in_place => Some(reduction.user_buffer(buf, count, Access::Both)?),
        Some((buf, part)) => Some(reduction.user_buffer(buf, part, Access::Write)?),
    };
    Ok((send, recv))
}

pub(super) fn reduce(
    comm: &CommObject,
    vectors: VectorBuffers,
    count: i64,
    root: i32,
) -> Outcome<Plan> {
    let root = check_root(comm, root)?;
    let reduction = reduction(vectors.op, vectors.datatype)?;
    if comm.rank != root && vectors.send.is_in_place() {
        // Only the root has a receive buffer that could be in place.
        return Err(datatype::nowhere(vectors.send));
    }
    let target = (comm.rank == root).then_some((vectors.recv, count));
    let (send, recv) = combined(vectors.send, target, count, &reduction)?;
    let (elem, op) = (reduction.elem, reduction.op);
    plan(Collective::Reduce { root, elem, op }, send, recv)
}

/// A vector of each rank, and a result as long for each.
fn for_everyone(
    vectors: VectorBuffers,
    count: i64,
    made: impl FnOnce(ElemType, Operator) -> Collective,
) -> Outcome<Plan> {
    let reduction = reduction(vectors.op, vectors.datatype)?;
    let (send, recv) = combined(vectors.send, Some((vectors.recv, count)), count, &reduction)?;
    plan(made(reduction.elem, reduction.op), send, recv)
}

pub(super) fn allreduce(_comm: &CommObject, vectors: VectorBuffers, count: i64) -> Outcome<Plan> {
    for_everyone(vectors, count, |elem, op| Collective::Allreduce {
        elem,
        op,
    })
}

pub(super) fn scan(_comm: &CommObject, vectors: VectorBuffers, count: i64) -> Outcome<Plan> {
    for_everyone(vectors, count, |elem, op| Collective::Scan { elem, op })
}

pub(super) fn exscan(_comm: &CommObject, vectors: VectorBuffers, count: i64) -> Outcome<Plan> {
    let reduction = reduction(vectors.op, vectors.datatype)?;
    let (send, _) = combined(vectors.send, None, count, &reduction)?;
    // The first rank's buffer stays as it is, so what stands there is in the copy, too.
    let recv = reduction.user_buffer(vectors.recv, count, Access::Both)?;
    let (elem, op) = (reduction.elem, reduction.op);
    plan(Collective::Exscan { elem, op }, send, Some(recv))
}

/// The vectors of all parts together. In place, the part comes to the front of the buffer, and what is behind it stays
/// as it was. The runtime combines a part where it lies, because peers read the front meanwhile; so what does not
/// become the front is kept.
fn reduce_parts(
    vectors: VectorBuffers,
    [before, mine, total]: [i64; 3],
    parts: Parts,
    reduction: Reduction,
) -> Outcome<Plan> {
    let (send, mut recv) = combined(vectors.send, Some((vectors.recv, mine)), total, &reduction)?;
    if let (true, Some(recv)) = (vectors.send.is_in_place(), &mut recv) {
        let size = reduction.elem.size();
        let (before, mine) = (before as usize, mine as usize);
        recv.keep(before.max(mine) * size..(before + mine) * size);
    }
    let (elem, op) = (reduction.elem, reduction.op);
    plan(Collective::ReduceScatter { parts, elem, op }, send, recv)
}

pub(super) fn reduce_scatter(
    comm: &CommObject,
    vectors: VectorBuffers,
    counts: &[i64],
) -> Outcome<Plan> {
    let reduction = reduction(vectors.op, vectors.datatype)?;
    let lens = counts
        .iter()
        .map(|&count| check_count(count).map(|count| count as usize))
        .collect::<Outcome<Vec<usize>>>()?;
    let size = reduction.elem.size();
    // All parts together are a buffer, too.
    let total = lens
        .iter()
        .try_fold(0usize, |sum, &len| sum.checked_add(len));
    datatype::addressable(total.and_then(|n| n.checked_mul(size)).map(|n| n as u64))?;
    let sum = |lens: &[usize]| lens.iter().sum::<usize>() as i64;
    let before = sum(lens.get(..comm.rank).unwrap_or(&[]));
    let mine = counts.get(comm.rank).copied().unwrap_or(0);
    let parts = Parts::packed(&lens, size);
    reduce_parts(vectors, [before, mine, sum(&lens)], parts, reduction)
}

pub(super) fn reduce_scatter_block(
    comm: &CommObject,
    vectors: VectorBuffers,
    count: i64,
) -> Outcome<Plan> {
    let reduction = reduction(vectors.op, vectors.datatype)?;
    let mine = check_count(count)?;
    let bytes = |n: u64| {
        mine.checked_mul(n)?
            .checked_mul(reduction.elem.size() as u64)
    };
    datatype::addressable(bytes(comm.size() as u64))?;
    let len = mine as usize * reduction.elem.size();
    let [before, mine, total] = [comm.rank, 1, comm.size()].map(|n| mine as i64 * n as i64);
    reduce_parts(vectors, [before, mine, total], Parts::Equal(len), reduction)
}
