// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocking collectives of predefined datatypes and operations on buffers whose bytes lie together. They are handed to
//! the runtime as they are, without a plan. All other calls, wrong ones among them, are planned.

use super::forms::{blocking, data};
use super::plan::DataBuffer;
use super::reduction::known;
use crate::comm::{self, CommObject};
use crate::datatype::in_a_buffer;
use crate::datatype::predefined::dense_size;
use crate::failure::Outcome;
use crate::ffi::{Addr, Comm, Datatype, Op};
use crate::{device, memory};
use onecopy::coll::{Collective, ElemType, Op as Operator, Parts};

/// Hands a collective to the runtime, on so many bytes that are sent, and received.
#[inline]
fn run(
    object: &CommObject,
    collective: &Collective,
    (sendbuf, sent): (Addr, usize),
    recv: Option<(Addr, usize)>,
) -> Outcome<()> {
    let link = object.collectives()?;
    memory::with_bytes(sendbuf, sent, |send| match recv {
        None => link.run(collective, Some(send), None),
        Some((recvbuf, received)) => {
            let into = |recv: &mut [u8]| link.run(collective, Some(send), Some(recv));
            memory::with_bytes_mut(recvbuf, received, into)
        }
    })?;
    Ok(())
}

pub(crate) fn bcast(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    root: i32,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    if let Some(root) = root_of(object, root)
        && let Some(bytes) = dense_bytes(count, datatype)
        && is_plain(buf)
    {
        let collective = Collective::Bcast { root };
        let link = object.collectives()?;
        memory::with_bytes_mut(buf, bytes, |recv| link.run(&collective, None, Some(recv)))?;
        return Ok(());
    }
    blocking::bcast(buf, count, datatype, root, comm)
}

/// The bytes of so many elements that have no gaps.
#[inline]
fn dense_bytes(count: i64, datatype: Datatype) -> Option<usize> {
    let size = dense_size(datatype.0)?;
    in_a_buffer(usize::try_from(count).ok()?.checked_mul(size))
}

/// Whether memory at this place is the program's, and no device's.
#[inline]
fn is_plain(buf: Addr) -> bool {
    !buf.is_nowhere() && !device::holds(buf)
}

/// The root, if there is such a rank.
#[inline]
fn root_of(object: &CommObject, root: i32) -> Option<usize> {
    let root = usize::try_from(root).ok()?;
    (root < object.size()).then_some(root)
}

/// The element, the operation and the bytes of such a vector.
#[inline]
fn reduction(
    sendbuf: Addr,
    count: i64,
    datatype: Datatype,
    op: Op,
) -> Option<(ElemType, Operator, usize)> {
    let (elem, op) = known(op, datatype)?;
    let count = usize::try_from(count).ok()?;
    let usual = is_plain(sendbuf);
    let bytes = in_a_buffer(count.checked_mul(elem.size()))?;
    usual.then_some((elem, Operator::Predefined(op), bytes))
}

pub(crate) fn reduce(
    sendbuf: Addr,
    recvbuf: Addr,
    count: i64,
    datatype: Datatype,
    op: Op,
    root: i32,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    let here = object.rank as i32 == root;
    if root >= 0
        && (root as usize) < object.size()
        && !(here && (recvbuf.is_nowhere() || device::holds(recvbuf)))
        && let Some((elem, op, bytes)) = reduction(sendbuf, count, datatype, op)
    {
        let root = root as usize;
        let collective = Collective::Reduce { root, elem, op };
        let target = here.then_some((recvbuf, bytes));
        return run(object, &collective, (sendbuf, bytes), target);
    }
    blocking::reduce(sendbuf, recvbuf, count, datatype, op, root, comm)
}

pub(crate) fn allreduce(
    sendbuf: Addr,
    recvbuf: Addr,
    count: i64,
    datatype: Datatype,
    op: Op,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    if is_plain(recvbuf)
        && let Some((elem, op, bytes)) = reduction(sendbuf, count, datatype, op)
    {
        let collective = Collective::Allreduce { elem, op };
        return run(
            object,
            &collective,
            (sendbuf, bytes),
            Some((recvbuf, bytes)),
        );
    }
    blocking::allreduce(sendbuf, recvbuf, count, datatype, op, comm)
}

pub(crate) fn scan(
    sendbuf: Addr,
    recvbuf: Addr,
    count: i64,
    datatype: Datatype,
    op: Op,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    if is_plain(recvbuf)
        && let Some((elem, op, bytes)) = reduction(sendbuf, count, datatype, op)
    {
        let (collective, target) = (Collective::Scan { elem, op }, Some((recvbuf, bytes)));
        return run(object, &collective, (sendbuf, bytes), target);
    }
    blocking::scan(sendbuf, recvbuf, count, datatype, op, comm)
}

pub(crate) fn exscan(
    sendbuf: Addr,
    recvbuf: Addr,
    count: i64,
    datatype: Datatype,
    op: Op,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    if is_plain(recvbuf)
        && let Some((elem, op, bytes)) = reduction(sendbuf, count, datatype, op)
    {
        let (collective, target) = (Collective::Exscan { elem, op }, Some((recvbuf, bytes)));
        return run(object, &collective, (sendbuf, bytes), target);
    }
    blocking::exscan(sendbuf, recvbuf, count, datatype, op, comm)
}

pub(crate) fn reduce_scatter_block(
    sendbuf: Addr,
    recvbuf: Addr,
    count: i64,
    datatype: Datatype,
    op: Op,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    if is_plain(recvbuf)
        && let Some((elem, op, bytes)) = reduction(sendbuf, count, datatype, op)
        && let Some(all) = in_a_buffer(bytes.checked_mul(object.size()))
    {
        let parts = Parts::Equal(bytes);
        let collective = Collective::ReduceScatter { parts, elem, op };
        return run(object, &collective, (sendbuf, all), Some((recvbuf, bytes)));
    }
    blocking::reduce_scatter_block(sendbuf, recvbuf, count, datatype, op, comm)
}

/// Bytes of each rank's part, and of those of so many ranks, where all parts are alike.
#[inline]
fn part(send: DataBuffer, recv: DataBuffer, ranks: usize) -> Option<(usize, usize)> {
    let size = dense_size(send.datatype.0)?;
    let bytes = usize::try_from(send.count).ok()?.checked_mul(size)?;
    let all = in_a_buffer(bytes.checked_mul(ranks))?;
    let usual = send.datatype == recv.datatype
        && send.count == recv.count
        && is_plain(send.buf)
        && is_plain(recv.buf);
    usual.then_some((bytes, all))
}

#[expect(clippy::too_many_arguments, reason = "those of MPI_Gather")]
pub(crate) fn gather(
    sendbuf: Addr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Addr,
    recvcount: i64,
    recvtype: Datatype,
    root: i32,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    let (send, recv) = (
        data(sendbuf, sendcount, sendtype),
        data(recvbuf, recvcount, recvtype),
    );
    if let Some(root) = root_of(object, root) {
        if object.rank == root {
            if let Some((bytes, all)) = part(send, recv, object.size()) {
                let parts = Parts::Equal(bytes);
                let collective = Collective::Gather { root, parts };
                return run(object, &collective, (sendbuf, bytes), Some((recvbuf, all)));
            }
        // What it would receive has no meaning.
        } else if let Some(bytes) = dense_bytes(sendcount, sendtype)
            && is_plain(sendbuf)
        {
            let parts = Parts::Equal(bytes);
            return run(
                object,
                &Collective::Gather { root, parts },
                (sendbuf, bytes),
                None,
            );
        }
    }
    blocking::gather(
        sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm,
    )
}

#[expect(clippy::too_many_arguments, reason = "those of MPI_Scatter")]
pub(crate) fn scatter(
    sendbuf: Addr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Addr,
    recvcount: i64,
    recvtype: Datatype,
    root: i32,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    let (send, recv) = (
        data(sendbuf, sendcount, sendtype),
        data(recvbuf, recvcount, recvtype),
    );
    if let Some(root) = root_of(object, root) {
        if object.rank == root {
            if let Some((bytes, all)) = part(send, recv, object.size()) {
                let parts = Parts::Equal(bytes);
                let collective = Collective::Scatter { root, parts };
                return run(object, &collective, (sendbuf, all), Some((recvbuf, bytes)));
            }
        // What it would send has no meaning.
        } else if let Some(bytes) = dense_bytes(recvcount, recvtype)
            && is_plain(recvbuf)
        {
            let parts = Parts::Equal(bytes);
            let collective = Collective::Scatter { root, parts };
            let link = object.collectives()?;
            memory::with_bytes_mut(recvbuf, bytes, |recv| {
                link.run(&collective, None, Some(recv))
            })?;
            return Ok(());
        }
    }
    blocking::scatter(
        sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm,
    )
}

pub(crate) fn allgather(
    sendbuf: Addr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Addr,
    recvcount: i64,
    recvtype: Datatype,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    let (send, recv) = (
        data(sendbuf, sendcount, sendtype),
        data(recvbuf, recvcount, recvtype),
    );
    if let Some((bytes, all)) = part(send, recv, object.size()) {
        let parts = Parts::Equal(bytes);
        let collective = Collective::Allgather { parts };
        return run(object, &collective, (sendbuf, bytes), Some((recvbuf, all)));
    }
    blocking::allgather(
        sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm,
    )
}

pub(crate) fn alltoall(
    sendbuf: Addr,
    sendcount: i64,
    sendtype: Datatype,
    recvbuf: Addr,
    recvcount: i64,
    recvtype: Datatype,
    comm: Comm,
) -> Outcome<()> {
    let object = &comm::get(comm)?;
    let (send, recv) = (
        data(sendbuf, sendcount, sendtype),
        data(recvbuf, recvcount, recvtype),
    );
    if let Some((bytes, all)) = part(send, recv, object.size()) {
        let (send, recv) = (Parts::Equal(bytes), Parts::Equal(bytes));
        let collective = Collective::Alltoall { send, recv };
        return run(object, &collective, (sendbuf, all), Some((recvbuf, all)));
    }
    blocking::alltoall(
        sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm,
    )
}
