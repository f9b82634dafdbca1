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
use std::mem::ManuallyDrop;

/// Bytes of the program: where, and how many.
type Bytes = (Addr, usize);

/// Hands a collective to the runtime, on bytes that are sent, and received. Apart from [`run_receiving`]: one function
/// for both takes 30 to 40 instructions more. Collectives of this module own nothing that has to be dropped.
#[inline]
fn run(
    object: &CommObject,
    collective: Collective,
    (sendbuf, sent): Bytes,
    recv: Option<Bytes>,
) -> Outcome<()> {
    let collective = ManuallyDrop::new(collective);
    let link = object.collectives()?;
    memory::with_bytes(sendbuf, sent, |send| match recv {
        None => link.run(&collective, Some(send), None),
        Some((recvbuf, received)) => {
            let into = |recv: &mut [u8]| link.run(&collective, Some(send), Some(recv));
            memory::with_bytes_mut(recvbuf, received, into)
        }
    })?;
    Ok(())
}

/// Hands a collective to the runtime, on bytes that are received, or whose one buffer is both.
#[inline]
fn run_receiving(object: &CommObject, collective: Collective, (buf, len): Bytes) -> Outcome<()> {
    let collective = ManuallyDrop::new(collective);
    let link = object.collectives()?;
    memory::with_bytes_mut(buf, len, |recv| link.run(&collective, None, Some(recv)))?;
    Ok(())
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

/// The bytes of so many elements that have no gaps.
#[inline]
fn dense_bytes(count: i64, datatype: Datatype) -> Option<usize> {
    let size = dense_size(datatype.0)?;
    in_a_buffer(usize::try_from(count).ok()?.checked_mul(size))
}

/// Bytes of each rank's part, and of those of so many ranks, where all parts are alike.
#[inline]
fn part(send: DataBuffer, recv: DataBuffer, ranks: usize) -> Option<(usize, usize)> {
    let bytes = dense_bytes(send.count, send.datatype)?;
    let all = in_a_buffer(bytes.checked_mul(ranks))?;
    let usual = send.datatype == recv.datatype
        && send.count == recv.count
        && is_plain(send.buf)
        && is_plain(recv.buf);
    usual.then_some((bytes, all))
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
        return run_receiving(object, collective, (buf, bytes));
    }
    blocking::bcast(buf, count, datatype, root, comm)
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
    if let Some(root) = root_of(object, root)
        && (object.rank != root || is_plain(recvbuf))
        && let Some((elem, op, bytes)) = reduction(sendbuf, count, datatype, op)
    {
        let collective = Collective::Reduce { root, elem, op };
        let target = (object.rank == root).then_some((recvbuf, bytes));
        return run(object, collective, (sendbuf, bytes), target);
    }
    blocking::reduce(sendbuf, recvbuf, count, datatype, op, root, comm)
}

/// Reductions of which every rank gets a vector, alike but for their collective.
macro_rules! for_everyone {
    ($($name:ident, $collective:ident;)*) => {
        $(pub(crate) fn $name(
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
                let collective = Collective::$collective { elem, op };
                let target = Some((recvbuf, bytes));
                return run(object, collective, (sendbuf, bytes), target);
            }
            blocking::$name(sendbuf, recvbuf, count, datatype, op, comm)
        })*
    };
}

for_everyone! {
    allreduce, Allreduce;
    scan, Scan;
    exscan, Exscan;
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
        let target = Some((recvbuf, bytes));
        return run(object, collective, (sendbuf, all), target);
    }
    blocking::reduce_scatter_block(sendbuf, recvbuf, count, datatype, op, comm)
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
    if let Some(root) = root_of(object, root) {
        let (send, recv) = (
            data(sendbuf, sendcount, sendtype),
            data(recvbuf, recvcount, recvtype),
        );
        // What the others would receive has no meaning.
        let found = match object.rank == root {
            true => {
                part(send, recv, object.size()).map(|(bytes, all)| (bytes, Some((recvbuf, all))))
            }
            false => dense_bytes(sendcount, sendtype)
                .filter(|_| is_plain(sendbuf))
                .map(|bytes| (bytes, None)),
        };
        if let Some((bytes, target)) = found {
            let parts = Parts::Equal(bytes);
            let collective = Collective::Gather { root, parts };
            return run(object, collective, (sendbuf, bytes), target);
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
    if let Some(root) = root_of(object, root) {
        let (send, recv) = (
            data(sendbuf, sendcount, sendtype),
            data(recvbuf, recvcount, recvtype),
        );
        // What the others would send has no meaning.
        let found = match object.rank == root {
            true => {
                part(send, recv, object.size()).map(|(bytes, all)| (Some((sendbuf, all)), bytes))
            }
            false => dense_bytes(recvcount, recvtype)
                .filter(|_| is_plain(recvbuf))
                .map(|bytes| (None, bytes)),
        };
        if let Some((given, bytes)) = found {
            let parts = Parts::Equal(bytes);
            let collective = Collective::Scatter { root, parts };
            return match given {
                Some(given) => run(object, collective, given, Some((recvbuf, bytes))),
                None => run_receiving(object, collective, (recvbuf, bytes)),
            };
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
        let target = Some((recvbuf, all));
        return run(object, collective, (sendbuf, bytes), target);
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
        let target = Some((recvbuf, all));
        return run(object, collective, (sendbuf, all), target);
    }
    blocking::alltoall(
        sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm,
    )
}
