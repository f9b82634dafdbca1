// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each collective asks of the runtime.
#![expect(clippy::too_many_arguments, reason = "signatures of the standard")]

use super::Plan;
use super::reduction::{Reduction, reduction};
use super::user_buffer::{Block, UserBuffer};
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

/// One buffer.
fn single(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    give: bool,
    take: bool,
) -> Outcome<UserBuffer> {
    let object = datatype::committed(datatype)?;
    UserBuffer::one(buf, check_count(count)?, object, give, take)
}

/// The same number of instances for each of `n` ranks, one after the other.
fn equal(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    n: usize,
    give: bool,
    take: bool,
) -> Outcome<(UserBuffer, Parts)> {
    let object = datatype::committed(datatype)?;
    let count = check_count(count)?;
    let len = object.bytes(count)?;
    let all = datatype::addressable(count.checked_mul(n as u64))?;
    let user_buffer = UserBuffer::one(buf, all, object, give, take)?;
    Ok((user_buffer, Parts::Equal(len as usize)))
}

/// A number of instances for each rank, at displacements that count extents.
fn listed(
    buf: Addr,
    counts: &[i64],
    displacements: &[i64],
    datatype: Datatype,
    give: bool,
    take: bool,
) -> Outcome<(UserBuffer, Parts)> {
    let object = datatype::committed(datatype)?;
    let blocks = counts
        .iter()
        .zip(displacements)
        .map(|(&count, &at)| Ok((object.displacement(at)?, check_count(count)?, &**object)))
        .collect::<Outcome<Vec<Block<'_>>>>()?;
    UserBuffer::of(buf, &blocks, give, take)
}

/// A number of instances of an own datatype for each rank, at displacements in bytes.
fn typed(
    buf: Addr,
    counts: &[i64],
    displacements: &[i64],
    types: &[Datatype],
    give: bool,
    take: bool,
) -> Outcome<(UserBuffer, Parts)> {
    let objects = types
        .iter()
        .zip(counts)
        .map(|(&handle, &count)| match count {
            // What is not used need not be valid.
            0 => datatype::get(c::BYTE),
            _ => datatype::committed(handle),
        })
        .collect::<Outcome<Vec<&Arc<TypeObject>>>>()?;
    let blocks = counts
        .iter()
        .zip(displacements)
        .zip(objects)
        .map(|((&count, &at), object)| Ok((at, check_count(count)?, &**object)))
        .collect::<Outcome<Vec<Block<'_>>>>()?;
    UserBuffer::of(buf, &blocks, give, take)
}

pub(super) fn barrier(_comm: &CommObject) -> Outcome<Plan> {
    plan(Collective::Barrier, None, None)
}

pub(super) fn bcast(
    comm: &CommObject,
    buf: &Addr,
    count: &i64,
    datatype: &Datatype,
    root: &i32,
) -> Outcome<Plan> {
    let root = check_root(comm, *root)?;
    let mine = comm.rank == root;
    let user_buffer = single(*buf, *count, *datatype, mine, !mine)?;
    plan(Collective::Bcast { root }, None, Some(user_buffer))
}

pub(super) fn gather(
    comm: &CommObject,
    sendbuf: &Addr,
    sendcount: &i64,
    sendtype: &Datatype,
    recvbuf: &Addr,
    recvcount: &i64,
    recvtype: &Datatype,
    root: &i32,
) -> Outcome<Plan> {
    let root = check_root(comm, *root)?;
    let in_place = sendbuf.is_in_place();
    if comm.rank != root {
        let send = single(*sendbuf, *sendcount, *sendtype, true, false)?;
        let parts = Parts::Equal(0);
        return plan(Collective::Gather { root, parts }, Some(send), None);
    }
    let send = match in_place {
        true => None,
        false => Some(single(*sendbuf, *sendcount, *sendtype, true, false)?),
    };
    let n = comm.size();
    let (recv, parts) = equal(*recvbuf, *recvcount, *recvtype, n, in_place, true)?;
    plan(Collective::Gather { root, parts }, send, Some(recv))
}

pub(super) fn gatherv(
    comm: &CommObject,
    sendbuf: &Addr,
    sendcount: &i64,
    sendtype: &Datatype,
    recvbuf: &Addr,
    counts: &[i64],
    displacements: &[i64],
    recvtype: &Datatype,
    root: &i32,
) -> Outcome<Plan> {
    let root = check_root(comm, *root)?;
    let in_place = sendbuf.is_in_place();
    if comm.rank != root {
        let send = single(*sendbuf, *sendcount, *sendtype, true, false)?;
        let parts = Parts::Equal(0);
        return plan(Collective::Gather { root, parts }, Some(send), None);
    }
    let send = match in_place {
        true => None,
        false => Some(single(*sendbuf, *sendcount, *sendtype, true, false)?),
    };
    let (recv, parts) = listed(*recvbuf, counts, displacements, *recvtype, in_place, true)?;
    plan(Collective::Gather { root, parts }, send, Some(recv))
}

/// What a rank gets of a scatter.
fn scattered(
    comm: &CommObject,
    root: usize,
    recvbuf: Addr,
    count: i64,
    datatype: Datatype,
) -> Outcome<Option<UserBuffer>> {
    match comm.rank == root && recvbuf.is_in_place() {
        true => Ok(None),
        false => single(recvbuf, count, datatype, false, true).map(Some),
    }
}

pub(super) fn scatter(
    comm: &CommObject,
    sendbuf: &Addr,
    sendcount: &i64,
    sendtype: &Datatype,
    recvbuf: &Addr,
    recvcount: &i64,
    recvtype: &Datatype,
    root: &i32,
) -> Outcome<Plan> {
    let root = check_root(comm, *root)?;
    let recv = scattered(comm, root, *recvbuf, *recvcount, *recvtype)?;
    if comm.rank != root {
        let parts = Parts::Equal(0);
        return plan(Collective::Scatter { root, parts }, None, recv);
    }
    let n = comm.size();
    let (send, parts) = equal(*sendbuf, *sendcount, *sendtype, n, true, false)?;
    plan(Collective::Scatter { root, parts }, Some(send), recv)
}

pub(super) fn scatterv(
    comm: &CommObject,
    sendbuf: &Addr,
    counts: &[i64],
    displacements: &[i64],
    sendtype: &Datatype,
    recvbuf: &Addr,
    recvcount: &i64,
    recvtype: &Datatype,
    root: &i32,
) -> Outcome<Plan> {
    let root = check_root(comm, *root)?;
    let recv = scattered(comm, root, *recvbuf, *recvcount, *recvtype)?;
    if comm.rank != root {
        let parts = Parts::Equal(0);
        return plan(Collective::Scatter { root, parts }, None, recv);
    }
    let (send, parts) = listed(*sendbuf, counts, displacements, *sendtype, true, false)?;
    plan(Collective::Scatter { root, parts }, Some(send), recv)
}

pub(super) fn allgather(
    comm: &CommObject,
    sendbuf: &Addr,
    sendcount: &i64,
    sendtype: &Datatype,
    recvbuf: &Addr,
    recvcount: &i64,
    recvtype: &Datatype,
) -> Outcome<Plan> {
    let in_place = sendbuf.is_in_place();
    let send = match in_place {
        true => None,
        false => Some(single(*sendbuf, *sendcount, *sendtype, true, false)?),
    };
    let (recv, parts) = equal(*recvbuf, *recvcount, *recvtype, comm.size(), in_place, true)?;
    plan(Collective::Allgather { parts }, send, Some(recv))
}

pub(super) fn allgatherv(
    _comm: &CommObject,
    sendbuf: &Addr,
    sendcount: &i64,
    sendtype: &Datatype,
    recvbuf: &Addr,
    counts: &[i64],
    displacements: &[i64],
    recvtype: &Datatype,
) -> Outcome<Plan> {
    let in_place = sendbuf.is_in_place();
    let send = match in_place {
        true => None,
        false => Some(single(*sendbuf, *sendcount, *sendtype, true, false)?),
    };
    let (recv, parts) = listed(*recvbuf, counts, displacements, *recvtype, in_place, true)?;
    plan(Collective::Allgather { parts }, send, Some(recv))
}

/// All to all, with both sides described.
fn exchange(
    send: Option<(UserBuffer, Parts)>,
    (recv, parts): (UserBuffer, Parts),
) -> Outcome<Plan> {
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

pub(super) fn alltoall(
    comm: &CommObject,
    sendbuf: &Addr,
    sendcount: &i64,
    sendtype: &Datatype,
    recvbuf: &Addr,
    recvcount: &i64,
    recvtype: &Datatype,
) -> Outcome<Plan> {
    let (n, in_place) = (comm.size(), sendbuf.is_in_place());
    let send = match in_place {
        true => None,
        false => Some(equal(*sendbuf, *sendcount, *sendtype, n, true, false)?),
    };
    exchange(
        send,
        equal(*recvbuf, *recvcount, *recvtype, n, in_place, true)?,
    )
}

pub(super) fn alltoallv(
    _comm: &CommObject,
    sendbuf: &Addr,
    sendcounts: &[i64],
    sdispls: &[i64],
    sendtype: &Datatype,
    recvbuf: &Addr,
    recvcounts: &[i64],
    rdispls: &[i64],
    recvtype: &Datatype,
) -> Outcome<Plan> {
    let in_place = sendbuf.is_in_place();
    let send = match in_place {
        true => None,
        false => Some(listed(
            *sendbuf, sendcounts, sdispls, *sendtype, true, false,
        )?),
    };
    exchange(
        send,
        listed(*recvbuf, recvcounts, rdispls, *recvtype, in_place, true)?,
    )
}

pub(super) fn alltoallw(
    _comm: &CommObject,
    sendbuf: &Addr,
    sendcounts: &[i64],
    sdispls: &[i64],
    sendtypes: &[Datatype],
    recvbuf: &Addr,
    recvcounts: &[i64],
    rdispls: &[i64],
    recvtypes: &[Datatype],
) -> Outcome<Plan> {
    let in_place = sendbuf.is_in_place();
    let send = match in_place {
        true => None,
        false => Some(typed(
            *sendbuf, sendcounts, sdispls, sendtypes, true, false,
        )?),
    };
    exchange(
        send,
        typed(*recvbuf, recvcounts, rdispls, recvtypes, in_place, true)?,
    )
}

/// A vector to be combined, and where the result goes.
fn combined(
    sendbuf: Addr,
    recvbuf: Option<(Addr, i64)>,
    count: i64,
    of: &Reduction,
) -> Outcome<(Option<UserBuffer>, Option<UserBuffer>)> {
    let in_place = sendbuf.is_in_place();
    let send = match in_place {
        true => None,
        false => Some(of.user_buffer(sendbuf, count, true, false)?),
    };
    let recv = match recvbuf {
        None => None,
        Some((buf, _)) if in_place => Some(of.user_buffer(buf, count, true, true)?),
        Some((buf, part)) => Some(of.user_buffer(buf, part, false, true)?),
    };
    Ok((send, recv))
}

pub(super) fn reduce(
    comm: &CommObject,
    sendbuf: &Addr,
    recvbuf: &Addr,
    count: &i64,
    datatype: &Datatype,
    op: &Op,
    root: &i32,
) -> Outcome<Plan> {
    let root = check_root(comm, *root)?;
    let of = reduction(*op, *datatype)?;
    if comm.rank != root && sendbuf.is_in_place() {
        // Only the root has a receive buffer that could be in place.
        return Err(datatype::nowhere(*sendbuf));
    }
    let target = (comm.rank == root).then_some((*recvbuf, *count));
    let (send, recv) = combined(*sendbuf, target, *count, &of)?;
    let (elem, op) = (of.elem, of.op);
    plan(Collective::Reduce { root, elem, op }, send, recv)
}

/// A vector of each rank, and a result as long for each.
fn for_everyone(
    sendbuf: Addr,
    recvbuf: Addr,
    count: i64,
    of: Reduction,
    made: impl FnOnce(ElemType, Operator) -> Collective,
) -> Outcome<Plan> {
    let (send, recv) = combined(sendbuf, Some((recvbuf, count)), count, &of)?;
    plan(made(of.elem, of.op), send, recv)
}

pub(super) fn allreduce(
    _comm: &CommObject,
    sendbuf: &Addr,
    recvbuf: &Addr,
    count: &i64,
    datatype: &Datatype,
    op: &Op,
) -> Outcome<Plan> {
    let of = reduction(*op, *datatype)?;
    let made = |elem, op| Collective::Allreduce { elem, op };
    for_everyone(*sendbuf, *recvbuf, *count, of, made)
}

pub(super) fn scan(
    _comm: &CommObject,
    sendbuf: &Addr,
    recvbuf: &Addr,
    count: &i64,
    datatype: &Datatype,
    op: &Op,
) -> Outcome<Plan> {
    let of = reduction(*op, *datatype)?;
    let made = |elem, op| Collective::Scan { elem, op };
    for_everyone(*sendbuf, *recvbuf, *count, of, made)
}

pub(super) fn exscan(
    _comm: &CommObject,
    sendbuf: &Addr,
    recvbuf: &Addr,
    count: &i64,
    datatype: &Datatype,
    op: &Op,
) -> Outcome<Plan> {
    let of = reduction(*op, *datatype)?;
    // The first rank's buffer stays as it is, so what stands there is in the copy, too.
    let send = match sendbuf.is_in_place() {
        true => None,
        false => Some(of.user_buffer(*sendbuf, *count, true, false)?),
    };
    let recv = of.user_buffer(*recvbuf, *count, true, true)?;
    let (elem, op) = (of.elem, of.op);
    plan(Collective::Exscan { elem, op }, send, Some(recv))
}

/// The vectors of all parts together. In place, the part comes to the front of the buffer, and what is behind it stays
/// as it was. The runtime combines a part where it lies, because peers read the front meanwhile; so what does not
/// become the front is kept.
fn reduce_parts(
    sendbuf: Addr,
    recvbuf: Addr,
    [before, mine, total]: [i64; 3],
    parts: Parts,
    of: Reduction,
) -> Outcome<Plan> {
    let (send, mut recv) = combined(sendbuf, Some((recvbuf, mine)), total, &of)?;
    if let (true, Some(recv)) = (sendbuf.is_in_place(), &mut recv) {
        let size = of.elem.size();
        let (before, mine) = (before as usize, mine as usize);
        recv.keep(before.max(mine) * size..(before + mine) * size);
    }
    let (elem, op) = (of.elem, of.op);
    plan(Collective::ReduceScatter { parts, elem, op }, send, recv)
}

pub(super) fn reduce_scatter(
    comm: &CommObject,
    sendbuf: &Addr,
    recvbuf: &Addr,
    counts: &[i64],
    datatype: &Datatype,
    op: &Op,
) -> Outcome<Plan> {
    let of = reduction(*op, *datatype)?;
    let lens = counts
        .iter()
        .map(|&count| check_count(count).map(|count| count as usize))
        .collect::<Outcome<Vec<usize>>>()?;
    let size = of.elem.size();
    // All parts together are a buffer, too.
    let total = lens
        .iter()
        .try_fold(0usize, |sum, &len| sum.checked_add(len));
    datatype::addressable(total.and_then(|n| n.checked_mul(size)).map(|n| n as u64))?;
    let sum = |lens: &[usize]| lens.iter().sum::<usize>() as i64;
    let before = sum(lens.get(..comm.rank).unwrap_or(&[]));
    let mine = counts.get(comm.rank).copied().unwrap_or(0);
    let parts = Parts::packed(&lens, size);
    reduce_parts(*sendbuf, *recvbuf, [before, mine, sum(&lens)], parts, of)
}

pub(super) fn reduce_scatter_block(
    comm: &CommObject,
    sendbuf: &Addr,
    recvbuf: &Addr,
    count: &i64,
    datatype: &Datatype,
    op: &Op,
) -> Outcome<Plan> {
    let of = reduction(*op, *datatype)?;
    let mine = check_count(*count)?;
    let bytes = |n: u64| mine.checked_mul(n)?.checked_mul(of.elem.size() as u64);
    datatype::addressable(bytes(comm.size() as u64))?;
    let len = mine as usize * of.elem.size();
    let [before, mine, total] = [comm.rank, 1, comm.size()].map(|n| mine as i64 * n as i64);
    reduce_parts(
        *sendbuf,
        *recvbuf,
        [before, mine, total],
        Parts::Equal(len),
        of,
    )
}
