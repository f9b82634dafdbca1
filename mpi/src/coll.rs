// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collective communication.
//!
//! Each collective is planned once ([`plan`]): what the runtime is to do, and on which bytes. The blocking, nonblocking
//! and persistent functions ([`forms`]) differ only in what they do with the plan. A buffer whose bytes do not lie
//! together goes through a packed copy. What is usual and blocking needs no plan ([`direct`]).

mod direct;
mod forms;
mod plan;
mod reduction;
mod running;
mod user_buffer;
mod x87;

pub(crate) use direct::{
    allgather, allreduce, alltoall, bcast, exscan, gather, reduce, reduce_scatter_block, scan,
    scatter,
};
pub(crate) use forms::blocking::*;
pub(crate) use forms::{nonblocking, persistent};
pub(crate) use reduction::reduce_here;
pub(crate) use running::Running;

use crate::comm::CommObject;
use crate::device;
use crate::failure::Outcome;
use crate::request::{Activity, Object};
use onecopy::coll::Collective;
use std::sync::Arc;
use user_buffer::UserBuffer;

/// What is to be done, and on which bytes.
pub(crate) struct Plan {
    collective: Collective,
    send: Option<UserBuffer>,
    recv: Option<UserBuffer>,
}

impl Plan {
    /// Does it and waits.
    pub(crate) fn run(self, comm: &Arc<CommObject>) -> Outcome<()> {
        let Self {
            collective,
            mut send,
            mut recv,
        } = self;
        let collectives = comm.collectives()?;
        for buffer in [&mut send, &mut recv].into_iter().flatten() {
            buffer.fill()?;
        }
        user_buffer::with(send.as_ref(), recv.as_mut(), |send, recv| {
            collectives.run(&collective, send, recv)
        })?;
        if let Some(recv) = &mut recv {
            device::wait(|| recv.deliver())?;
        }
        Ok(())
    }

    /// Starts it. Whatever comes from here is a home for the operation.
    pub(crate) fn start(self, comm: &Arc<CommObject>) -> Outcome<Object> {
        let collectives = comm.collectives_at_once()?;
        self.start_on(collectives, comm)
    }

    /// The same, where a persistent request has a place of its own.
    fn start_on(mut self, collectives: &onecopy::Comm, comm: &Arc<CommObject>) -> Outcome<Object> {
        for buffer in [&mut self.send, &mut self.recv].into_iter().flatten() {
            buffer.fill()?;
        }
        let send = self.send.as_ref().map(UserBuffer::sent);
        let recv = self.recv.as_mut().map(UserBuffer::received);
        let operation = collectives.begin_collective(&self.collective, send, recv)?;
        let running = Running {
            operation: Some(operation),
            delivering: false,
            _send: self.send,
            recv: self.recv,
        };
        Ok(Object::active(
            comm,
            Activity::Collective(Box::new(running)),
        ))
    }
}
