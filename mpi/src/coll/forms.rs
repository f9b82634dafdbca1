// SPDX-License-Identifier: MIT OR Apache-2.0
//! The three forms of every collective, from one list.
//!
//! An array argument is copied when the call is made. The expression behind it gives its length: zero where the
//! standard says that the argument is not significant, so that it is not read there. Behind the arrow stand the
//! arguments as the plan takes them.
#![expect(clippy::too_many_arguments, reason = "signatures of the standard")]

use super::plan::{self, DataBuffer, PartsBuffer, TypedParts, VectorBuffers};
use crate::comm::{self, CommObject};
use crate::failure::Outcome;
use crate::ffi::{Addr, Comm, Datatype, In, Info, Ints, Op, Out, Request};
use crate::request::{self, Object};
use crate::{datatype, op};
use std::sync::Arc;

/// Datatypes and operations that a persistent request uses, also after the program has freed them.
#[derive(Default)]
struct HeldArguments {
    types: Vec<datatype::HeldDatatype>,
    ops: Vec<op::HeldOp>,
}

/// An argument as it is kept.
trait Capture {
    type Captured: Clone + Send + Sync + 'static;
    fn capture(self, len: usize) -> Outcome<Self::Captured>;

    /// Keeps what it names.
    fn hold(_kept: &Self::Captured, _held: &mut HeldArguments) {}
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Capture for $t {
            type Captured = Self;
            fn capture(self, _len: usize) -> Outcome<Self> {
                Ok(self)
            }
        }
    )*};
}

plain!(Addr, i64, i32);

impl Capture for Datatype {
    type Captured = Self;
    fn capture(self, _len: usize) -> Outcome<Self> {
        Ok(self)
    }

    fn hold(kept: &Self, held: &mut HeldArguments) {
        held.types.extend(datatype::hold(*kept));
    }
}

impl Capture for Op {
    type Captured = Self;
    fn capture(self, _len: usize) -> Outcome<Self> {
        Ok(self)
    }

    fn hold(kept: &Self, held: &mut HeldArguments) {
        held.ops.extend(op::hold(*kept));
    }
}

impl Capture for Ints {
    type Captured = Arc<[i64]>;
    fn capture(self, len: usize) -> Outcome<Arc<[i64]>> {
        self.list(len).map(Into::into)
    }
}

impl Capture for In<Datatype> {
    type Captured = Arc<[Datatype]>;
    fn capture(self, len: usize) -> Outcome<Arc<[Datatype]>> {
        self.list(len).map(Into::into)
    }

    fn hold(kept: &Arc<[Datatype]>, held: &mut HeldArguments) {
        let types = kept.iter().filter_map(|&handle| datatype::hold(handle));
        held.types.extend(types);
    }
}

/// The length of an array that only the root looks at.
fn at_root(comm: &CommObject, root: i32) -> usize {
    if comm.rank as i32 == root {
        comm.size()
    } else {
        0
    }
}

/// The length of an array that is not looked at in place.
fn unless_in_place(comm: &CommObject, buf: Addr) -> usize {
    if buf.is_in_place() { 0 } else { comm.size() }
}

macro_rules! length {
    ($comm:ident) => {
        0
    };
    ($comm:ident, |$name:ident| $len:expr) => {{
        let $name: &CommObject = $comm;
        $len
    }};
}

macro_rules! collectives {
    ($($plan:ident $non:ident $init:ident ($($arg:ident: $t:ty $([|$comm:ident| $len:expr])?),* $(,)?)
        => ($($given:expr),*);)*) => {
        /// The functions that wait.
        pub(crate) mod blocking {
            use super::*;
            $(
                pub(crate) fn $plan($($arg: $t,)* comm: Comm) -> Outcome<()> {
                    let object = &comm::get(comm)?;
                    $(let $arg = $arg.capture(length!(object $(, |$comm| $len)?))?;)*
                    plan::$plan(object, $($given),*)?.run(object)
                }
            )*
        }

        /// The functions that start and give a request.
        pub(crate) mod nonblocking {
            use super::*;
            $(
                pub(crate) fn $non($($arg: $t,)* comm: Comm, request: Out<Request>) -> Outcome<()> {
                    let object = &comm::get(comm)?;
                    $(let $arg = $arg.capture(length!(object $(, |$comm| $len)?))?;)*
                    let plan = plan::$plan(object, $($given),*)?;
                    let home = request::reserve(request)?;
                    home.keep(plan.start(object)?);
                    Ok(())
                }
            )*
        }

        /// The functions that prepare a request.
        pub(crate) mod persistent {
            use super::*;
            $(
                pub(crate) fn $init(
                    $($arg: $t,)* comm: Comm, info: Info, request: Out<Request>,
                ) -> Outcome<()> {
                    crate::info::pairs_or_none(info)?;
                    let object = &comm::get(comm)?;
                    $(let $arg = $arg.capture(length!(object $(, |$comm| $len)?))?;)*
                    // What is wrong is reported now.
                    plan::$plan(object, $($given),*)?;
                    #[allow(unused_mut, reason = "a barrier has no arguments")]
                    let mut held = HeldArguments::default();
                    $(<$t as Capture>::hold(&$arg, &mut held);)*
                    let home = request::reserve(request)?;
                    let own = object.persistent_collective()?;
                    let kept = Arc::clone(object);
                    let recipe = move || {
                        let _ = &held;
                        let plan = plan::$plan(&kept, $($given),*)?;
                        match &own {
                            Some(own) => plan.start_on(own, &kept),
                            None => plan.start(&kept),
                        }
                    };
                    home.keep(Object::persistent(object, Arc::new(recipe)));
                    Ok(())
                }
            )*
        }
    };
}

/// The standard's three arguments for data, as one.
#[inline]
pub(super) fn data(buf: Addr, count: i64, datatype: Datatype) -> DataBuffer {
    DataBuffer {
        buf,
        count,
        datatype,
    }
}

/// The standard's four arguments for data of each rank, as one.
fn parts<'a>(
    buf: Addr,
    counts: &'a [i64],
    displacements: &'a [i64],
    datatype: Datatype,
) -> PartsBuffer<'a> {
    PartsBuffer {
        buf,
        counts,
        displacements,
        datatype,
    }
}

/// The same with a datatype for each rank.
fn typed<'a>(
    buf: Addr,
    counts: &'a [i64],
    displacements: &'a [i64],
    types: &'a [Datatype],
) -> TypedParts<'a> {
    TypedParts {
        buf,
        counts,
        displacements,
        types,
    }
}

fn vectors(send: Addr, recv: Addr, datatype: Datatype, op: Op) -> VectorBuffers {
    VectorBuffers {
        send,
        recv,
        datatype,
        op,
    }
}

collectives! {
    barrier ibarrier barrier_init () => ();
    bcast ibcast bcast_init (buf: Addr, count: i64, datatype: Datatype, root: i32)
        => (data(buf, count, datatype), root);
    gather igather gather_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype, recvbuf: Addr, recvcount: i64, recvtype: Datatype, root: i32
    ) => (data(sendbuf, sendcount, sendtype), data(recvbuf, recvcount, recvtype), root);
    gatherv igatherv gatherv_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype, recvbuf: Addr,
        counts: Ints [|comm| at_root(comm, root)], displs: Ints [|comm| at_root(comm, root)],
        recvtype: Datatype, root: i32
    ) => (data(sendbuf, sendcount, sendtype), parts(recvbuf, &counts, &displs, recvtype), root);
    scatter iscatter scatter_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype, recvbuf: Addr, recvcount: i64, recvtype: Datatype, root: i32
    ) => (data(sendbuf, sendcount, sendtype), data(recvbuf, recvcount, recvtype), root);
    scatterv iscatterv scatterv_init (
        sendbuf: Addr, counts: Ints [|comm| at_root(comm, root)], displs: Ints [|comm| at_root(comm, root)],
        sendtype: Datatype, recvbuf: Addr, recvcount: i64, recvtype: Datatype, root: i32
    ) => (parts(sendbuf, &counts, &displs, sendtype), data(recvbuf, recvcount, recvtype), root);
    allgather iallgather allgather_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype, recvbuf: Addr, recvcount: i64, recvtype: Datatype
    ) => (data(sendbuf, sendcount, sendtype), data(recvbuf, recvcount, recvtype));
    allgatherv iallgatherv allgatherv_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype, recvbuf: Addr,
        counts: Ints [|comm| comm.size()], displs: Ints [|comm| comm.size()], recvtype: Datatype
    ) => (data(sendbuf, sendcount, sendtype), parts(recvbuf, &counts, &displs, recvtype));
    alltoall ialltoall alltoall_init (
        sendbuf: Addr, sendcount: i64, sendtype: Datatype, recvbuf: Addr, recvcount: i64, recvtype: Datatype
    ) => (data(sendbuf, sendcount, sendtype), data(recvbuf, recvcount, recvtype));
    alltoallv ialltoallv alltoallv_init (
        sendbuf: Addr, sendcounts: Ints [|comm| unless_in_place(comm, sendbuf)],
        sdispls: Ints [|comm| unless_in_place(comm, sendbuf)], sendtype: Datatype,
        recvbuf: Addr, recvcounts: Ints [|comm| comm.size()], rdispls: Ints [|comm| comm.size()], recvtype: Datatype
    ) => (parts(sendbuf, &sendcounts, &sdispls, sendtype), parts(recvbuf, &recvcounts, &rdispls, recvtype));
    alltoallw ialltoallw alltoallw_init (
        sendbuf: Addr, sendcounts: Ints [|comm| unless_in_place(comm, sendbuf)],
        sdispls: Ints [|comm| unless_in_place(comm, sendbuf)],
        sendtypes: In<Datatype> [|comm| unless_in_place(comm, sendbuf)],
        recvbuf: Addr, recvcounts: Ints [|comm| comm.size()], rdispls: Ints [|comm| comm.size()],
        recvtypes: In<Datatype> [|comm| comm.size()]
    ) => (typed(sendbuf, &sendcounts, &sdispls, &sendtypes), typed(recvbuf, &recvcounts, &rdispls, &recvtypes));
    reduce ireduce reduce_init (
        sendbuf: Addr, recvbuf: Addr, count: i64, datatype: Datatype, op: Op, root: i32
    ) => (vectors(sendbuf, recvbuf, datatype, op), count, root);
    allreduce iallreduce allreduce_init (sendbuf: Addr, recvbuf: Addr, count: i64, datatype: Datatype, op: Op)
        => (vectors(sendbuf, recvbuf, datatype, op), count);
    reduce_scatter ireduce_scatter reduce_scatter_init (
        sendbuf: Addr, recvbuf: Addr, counts: Ints [|comm| comm.size()], datatype: Datatype, op: Op
    ) => (vectors(sendbuf, recvbuf, datatype, op), &counts);
    reduce_scatter_block ireduce_scatter_block reduce_scatter_block_init (
        sendbuf: Addr, recvbuf: Addr, count: i64, datatype: Datatype, op: Op
    ) => (vectors(sendbuf, recvbuf, datatype, op), count);
    scan iscan scan_init (sendbuf: Addr, recvbuf: Addr, count: i64, datatype: Datatype, op: Op)
        => (vectors(sendbuf, recvbuf, datatype, op), count);
    exscan iexscan exscan_init (sendbuf: Addr, recvbuf: Addr, count: i64, datatype: Datatype, op: Op)
        => (vectors(sendbuf, recvbuf, datatype, op), count);
}
