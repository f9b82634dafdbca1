// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives in a scope.

use super::{Scope, ScopedRequest};
use crate::coll::{Call, CallBuffers, Collective, Element, Op};
use crate::comm::describe;
use crate::error::Result;
use bytemuck::{AnyBitPattern, NoUninit, cast_slice, cast_slice_mut};

/// Collectives that go on while the program does something else. Each is complete when this rank's part is done and its
/// buffers are not needed any more. Those that are not here by name are started by [`Scope::collective`].
impl<'env> Scope<'_, 'env> {
    /// Starts any collective.
    pub fn collective(
        &self,
        collective: &Collective,
        send: Option<&'env [u8]>,
        recv: Option<&'env mut [u8]>,
    ) -> Result<ScopedRequest> {
        let buffers = CallBuffers {
            send: send.map(|bytes| self.lender.lend(bytes)),
            recv: recv.map(|bytes| self.lender.lend_mut(bytes)),
        };
        Ok(self.keep(
            self.comm
                .start_collective(collective, buffers, Call::GoesOn)?,
        ))
    }

    /// Starts a barrier.
    pub fn ibarrier(&self) -> Result<ScopedRequest> {
        self.collective(&Collective::Barrier, None, None)
    }

    /// See [`Comm::bcast`](crate::Comm::bcast).
    pub fn ibcast<T: AnyBitPattern + NoUninit>(
        &self,
        buf: &'env mut [T],
        root: usize,
    ) -> Result<ScopedRequest> {
        self.collective(&Collective::Bcast { root }, None, Some(cast_slice_mut(buf)))
    }

    /// See [`Comm::gather`](crate::Comm::gather).
    pub fn igather<T: AnyBitPattern + NoUninit>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
        root: usize,
    ) -> Result<ScopedRequest> {
        let what = describe::gather(send, root);
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::scatter`](crate::Comm::scatter).
    pub fn iscatter<T: AnyBitPattern + NoUninit>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
        root: usize,
    ) -> Result<ScopedRequest> {
        let what = describe::scatter(recv, root);
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::allgather`](crate::Comm::allgather).
    pub fn iallgather<T: AnyBitPattern + NoUninit>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
    ) -> Result<ScopedRequest> {
        let what = describe::allgather(recv, self.comm.size())?;
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::alltoall`](crate::Comm::alltoall).
    pub fn ialltoall<T: AnyBitPattern + NoUninit>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
    ) -> Result<ScopedRequest> {
        let what = describe::alltoall(recv, self.comm.size())?;
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::alltoallv`](crate::Comm::alltoallv).
    pub fn ialltoallv<T: AnyBitPattern + NoUninit>(
        &self,
        send: &'env [T],
        send_parts: (&[usize], &[usize]),
        recv: &'env mut [T],
        recv_parts: (&[usize], &[usize]),
    ) -> Result<ScopedRequest> {
        let what = describe::alltoallv::<T>(send_parts, recv_parts);
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::reduce`](crate::Comm::reduce).
    pub fn ireduce<T: Element>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
        op: impl Into<Op>,
        root: usize,
    ) -> Result<ScopedRequest> {
        let what = describe::reduce::<T>(op.into(), root);
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::allreduce`](crate::Comm::allreduce).
    pub fn iallreduce<T: Element>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
        op: impl Into<Op>,
    ) -> Result<ScopedRequest> {
        let what = describe::allreduce::<T>(op.into());
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::reduce_scatter`](crate::Comm::reduce_scatter).
    pub fn ireduce_scatter<T: Element>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
        counts: &[usize],
        op: impl Into<Op>,
    ) -> Result<ScopedRequest> {
        let what = describe::reduce_scatter::<T>(counts, op.into());
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::scan`](crate::Comm::scan).
    pub fn iscan<T: Element>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
        op: impl Into<Op>,
    ) -> Result<ScopedRequest> {
        let what = describe::scan::<T>(op.into());
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// See [`Comm::exscan`](crate::Comm::exscan).
    pub fn iexscan<T: Element>(
        &self,
        send: &'env [T],
        recv: &'env mut [T],
        op: impl Into<Op>,
    ) -> Result<ScopedRequest> {
        let what = describe::exscan::<T>(op.into());
        self.collective(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }
}
