// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of the program: typed ones that wait, the same in a scope that go on, and one for requests that own their
//! buffers.

use super::Comm;
use super::{POLLS, SPIN_MAX};
use crate::coll::Worker;
use crate::coll::fast::{Short, ShortState, Stop, Unready};
use crate::coll::plan::MemberCall;
use crate::coll::select::{FLAT, slot_for};
use crate::coll::{Call, CallBuffers, Collective, Element, Op, Parts};
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::request::RequestId;
use bytemuck::{AnyBitPattern, NoUninit, cast_slice, cast_slice_mut};
use onecopy_shm::gate::Pass;
use onecopy_shm::loan::{self, Buffer, BufferMut, Owned};

/// Steps in vain of a collective between two rounds of progress, of a call that waits for it alone. A round takes as
/// long as two or three of them, so it adds little, and all else waits for microseconds. Chosen by magnitude.
const STEPS_ALONE: usize = 16;

/// Equal parts of a buffer of `len` elements of type `T`, for `size` ranks.
fn equal<T>(len: usize, size: usize) -> Result<Parts> {
    if !len.is_multiple_of(size) {
        return Err(Error::Collective {
            reason: format!("{len} elements cannot be dealt to {size} ranks evenly"),
        });
    }
    Ok(Parts::Equal(len / size * size_of::<T>()))
}

/// What typed calls ask for.
pub(crate) mod describe {
    use super::{Collective, Element, Op, Parts, Result, equal};

    pub(crate) fn gather<T>(send: &[T], root: usize) -> Collective {
        let parts = Parts::Equal(size_of_val(send));
        Collective::Gather { root, parts }
    }
    pub(crate) fn scatter<T>(recv: &[T], root: usize) -> Collective {
        let parts = Parts::Equal(size_of_val(recv));
        Collective::Scatter { root, parts }
    }
    pub(crate) fn allgather<T>(recv: &[T], size: usize) -> Result<Collective> {
        let parts = equal::<T>(recv.len(), size)?;
        Ok(Collective::Allgather { parts })
    }
    pub(crate) fn alltoall<T>(recv: &[T], size: usize) -> Result<Collective> {
        let parts = equal::<T>(recv.len(), size)?;
        Ok(Collective::Alltoall {
            send: parts.clone(),
            recv: parts,
        })
    }
    pub(crate) fn alltoallv<T>(
        send: (&[usize], &[usize]),
        recv: (&[usize], &[usize]),
    ) -> Collective {
        Collective::Alltoall {
            send: Parts::listed(send.0, send.1, size_of::<T>()),
            recv: Parts::listed(recv.0, recv.1, size_of::<T>()),
        }
    }
    pub(crate) fn reduce<T: Element>(op: Op, root: usize) -> Collective {
        let elem = T::TYPE;
        Collective::Reduce { root, elem, op }
    }
    pub(crate) fn allreduce<T: Element>(op: Op) -> Collective {
        Collective::Allreduce { elem: T::TYPE, op }
    }
    pub(crate) fn reduce_scatter<T: Element>(counts: &[usize], op: Op) -> Collective {
        Collective::ReduceScatter {
            parts: Parts::packed(counts, size_of::<T>()),
            elem: T::TYPE,
            op,
        }
    }
    pub(crate) fn reduce_scatter_block<T: Element>(part: usize, op: Op) -> Collective {
        Collective::ReduceScatter {
            parts: Parts::Equal(part * size_of::<T>()),
            elem: T::TYPE,
            op,
        }
    }
    pub(crate) fn scan<T: Element>(op: Op) -> Collective {
        Collective::Scan { elem: T::TYPE, op }
    }
    pub(crate) fn exscan<T: Element>(op: Op) -> Collective {
        Collective::Exscan { elem: T::TYPE, op }
    }
}

/// A thread that may start a collective.
pub(crate) struct Entered<'g> {
    pub(crate) worker: Pass<'g, Worker>,
    /// The slot of its communicator.
    pub(crate) index: usize,
}

impl Comm {
    /// Does a collective on the caller's slices if it is short, as far as it comes without a request.
    #[inline]
    fn try_short(
        &self,
        collective: &Collective,
        send: Option<&[u8]>,
        recv: Option<&mut [u8]>,
    ) -> ShortState {
        let Some(index) = self.index else {
            return ShortState::Not;
        };
        let (size, me) = (self.size(), self.rank());
        if size > FLAT {
            return ShortState::Not;
        }
        let call = MemberCall {
            collective,
            slot: slot_for(self.handle.size),
            size,
            me,
            send: send.map(<[u8]>::len),
            recv: recv.as_deref().map(<[u8]>::len),
        };
        let Some(short) = call.plan::<Option<Short>>() else {
            return ShortState::Not;
        };
        let recv = recv.unwrap_or_default();
        let mut worker = self.handle.gate.enter();
        let mut patience = Patience::new(&worker);
        let mut running = loop {
            match worker.begin_short(index, &short, send, &mut *recv) {
                Ok(running) => break running,
                Err(Unready::NeedsRequest) => return ShortState::Not,
                Err(Unready::Full) => worker.poll_room(index, patience.polls),
            }
            match patience.progress(self, worker) {
                Some(entered) => worker = entered,
                None => return ShortState::Not,
            }
        };
        if worker.is_to_look_around() {
            let unwinds = Unwinds { comm: self, index };
            worker = looked_around(worker);
            std::mem::forget(unwinds);
        }
        loop {
            match worker.step_short(&mut running, send, patience.polls) {
                Ok(()) => return ShortState::Done,
                Err(Stop::Awaited) => {}
                Err(Stop::NeedsRequest) => break,
            }
            let unwinds = Unwinds { comm: self, index };
            let patient = patience.progress(self, worker);
            std::mem::forget(unwinds);
            match patient {
                Some(entered) => worker = entered,
                None => {
                    worker = self.handle.gate.enter();
                    break;
                }
            }
        }
        worker.leave_to_request(&running, send);
        ShortState::Begun
    }
}

/// A thread in a short collective looks at everything else. If it does not come back from there, as an operator of the
/// program panics, it leaves the collective: later ones would wait for it.
struct Unwinds<'c> {
    comm: &'c Comm,
    index: usize,
}

impl Drop for Unwinds<'_> {
    fn drop(&mut self) {
        self.comm.handle.gate.enter().leave_short(self.index);
    }
}

/// Gives the worker back when it has looked at everything else. If it unwinds, the worker is free.
#[cold]
fn looked_around(mut worker: Pass<'_, Worker>) -> Pass<'_, Worker> {
    worker.look_around();
    worker
}

/// How long a call polls before a request waits in its place.
struct Patience {
    /// Polls of a line between two rounds of progress.
    polls: usize,
    rounds: usize,
}

impl Patience {
    #[inline(always)]
    fn new(worker: &Worker) -> Self {
        Self {
            // Where ranks take turns, the awaited member may itself wait for this processor.
            polls: worker.engine.waits.policy.spin.clamp(1, POLLS),
            rounds: 0,
        }
    }

    /// A round of progress; none: the call has polled long enough.
    #[inline]
    fn progress<'e>(
        &mut self,
        comm: &'e Comm,
        mut worker: Pass<'e, Worker>,
    ) -> Option<Pass<'e, Worker>> {
        let policy = worker.engine.waits.policy;
        // Rounds, and those after them that give the processor away first.
        let (mut spins, mut yields) = (1, 0);
        if worker.engine.core.single_threaded {
            spins = policy.spin.min(SPIN_MAX).div_ceil(self.polls);
            yields = if policy.oversubscribed {
                policy.yields
            } else {
                0
            };
        }
        self.rounds += 1;
        if self.rounds >= spins + yields {
            return None;
        }
        if self.rounds >= spins {
            worker.engine.core.counters.yields += 1;
            drop(worker);
            std::thread::yield_now();
            worker = comm.handle.gate.enter();
        }
        worker.progress(true);
        Some(worker)
    }
}

impl Comm {
    /// Does a collective and waits for its end. What the buffers are, and what it means to give none, depends on the
    /// collective.
    pub fn run(
        &self,
        collective: &Collective,
        send: Option<&[u8]>,
        mut recv: Option<&mut [u8]>,
    ) -> Result<()> {
        match self.try_short(collective, send, recv.as_deref_mut()) {
            ShortState::Done => Ok(()),
            state => self.run_on(collective, send, recv, state == ShortState::Begun),
        }
    }

    #[cold]
    fn run_on(
        &self,
        collective: &Collective,
        send: Option<&[u8]>,
        recv: Option<&mut [u8]>,
        begun: bool,
    ) -> Result<()> {
        let call = if begun { Call::Begun } else { Call::Waits };
        let go = |send, recv| {
            let id = self.start_collective(collective, CallBuffers { send, recv }, call)?;
            self.await_collective(id);
            self.finish(id).map(drop)
        };
        match (send, recv) {
            (None, None) => go(None, None),
            (Some(send), None) => loan::lend(&self.handle, send, |send| go(Some(send), None)),
            (None, Some(recv)) => loan::lend_mut(&self.handle, recv, |recv| go(None, Some(recv))),
            (Some(send), Some(recv)) => loan::lend(&self.handle, send, |send| {
                loan::lend_mut(&self.handle, recv, |recv| go(Some(send), Some(recv)))
            }),
        }
    }

    /// Steps the collective alone for a while: the shortest way for what is about to come.
    fn await_collective(&self, id: RequestId) {
        if self.handle.stages.any() {
            return;
        }
        self.handle.with_worker_or_abort(|worker| {
            if !worker.engine.core.single_threaded {
                return;
            }
            let slot = self.index(worker);
            // One that finds at once what it wants makes no round below.
            if worker.engine.polling.counts_call() {
                worker.look_around();
            }
            let mut steps = 0;
            while steps < worker.engine.waits.policy.spin.min(SPIN_MAX) {
                for _ in 0..STEPS_ALONE {
                    if worker.engine.is_done(id) || !worker.may_step_alone(slot) {
                        return;
                    }
                    if worker.step_alone(slot) && !worker.engine.is_done(id) {
                        // A step may move much.
                        break;
                    }
                    onecopy_shm::sync::spin_hint();
                }
                steps += STEPS_ALONE;
                worker.progress(true);
            }
        });
    }

    pub(crate) fn start_collective(
        &self,
        collective: &Collective,
        buffers: CallBuffers,
        call: Call,
    ) -> Result<RequestId> {
        let Entered { mut worker, index } = match call {
            Call::Begun => {
                let mut worker = self.handle.gate.enter();
                let index = self.index(&mut worker);
                Entered { worker, index }
            }
            Call::Waits | Call::GoesOn => self.enter_behind_others(),
        };
        worker.start_collective(index, collective, buffers, call)
    }

    /// Enters when a further collective can start: no thread is in a short one.
    pub(crate) fn enter_behind_others(&self) -> Entered<'_> {
        loop {
            let mut worker = self.handle.gate.enter();
            let index = self.index(&mut worker);
            if !worker.is_in_short(index) {
                return Entered { worker, index };
            }
            // That thread is done soon, or gives it to the queue.
            drop(worker);
            std::thread::yield_now();
        }
    }

    /// Starts a collective on buffers that the request owns until its end.
    pub fn start<S: Buffer, R: BufferMut>(
        &self,
        collective: &Collective,
        send: Option<S>,
        recv: Option<R>,
    ) -> Result<CollRequest<S, R>> {
        let send = send.map(|buffer| Owned::new(self.handle.clone(), buffer));
        let recv = recv.map(|buffer| Owned::new_mut(self.handle.clone(), buffer));
        let buffers = CallBuffers {
            send: send.as_ref().map(Owned::loan),
            recv: recv.as_ref().map(Owned::loan),
        };
        let id = self.start_collective(collective, buffers, Call::GoesOn)?;
        Ok(CollRequest {
            handle: self.handle.clone(),
            id,
            result: None,
            send,
            recv,
        })
    }

    /// Returns when all members have called it. If one cannot any more, all others get the error that names it.
    pub fn barrier(&self) -> Result<()> {
        self.run(&Collective::Barrier, None, None)
    }

    /// Sends the root's `buf` to everyone's.
    ///
    /// ```
    /// onecopy::local(3, |rt| {
    ///     let world = rt.world();
    ///     let mut numbers = if world.rank() == 1 { [1, 2, 3] } else { [0; 3] };
    ///     world.bcast(&mut numbers, 1).unwrap();
    ///     assert_eq!(numbers, [1, 2, 3]);
    /// });
    /// ```
    pub fn bcast<T: AnyBitPattern + NoUninit>(&self, buf: &mut [T], root: usize) -> Result<()> {
        self.run(&Collective::Bcast { root }, None, Some(cast_slice_mut(buf)))
    }

    /// Collects everyone's `send` in the root's `recv`, in the order of the ranks. `recv` has no meaning elsewhere.
    pub fn gather<T: AnyBitPattern + NoUninit>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: usize,
    ) -> Result<()> {
        self.run(
            &describe::gather(send, root),
            Some(cast_slice(send)),
            Some(cast_slice_mut(recv)),
        )
    }

    /// As [`Self::gather`], where rank `i` gives `counts[i]` elements, which come to `displacements[i]`.
    pub fn gatherv<T: AnyBitPattern + NoUninit>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        displacements: &[usize],
        root: usize,
    ) -> Result<()> {
        let parts = Parts::listed(counts, displacements, size_of::<T>());
        self.run(
            &Collective::Gather { root, parts },
            Some(cast_slice(send)),
            Some(cast_slice_mut(recv)),
        )
    }

    /// Deals the root's `send` to everyone's `recv`, in the order of the ranks. `send` has no meaning elsewhere.
    pub fn scatter<T: AnyBitPattern + NoUninit>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: usize,
    ) -> Result<()> {
        self.run(
            &describe::scatter(recv, root),
            Some(cast_slice(send)),
            Some(cast_slice_mut(recv)),
        )
    }

    /// As [`Self::scatter`], where rank `i` gets `counts[i]` elements, from `displacements[i]` on.
    pub fn scatterv<T: AnyBitPattern + NoUninit>(
        &self,
        send: &[T],
        counts: &[usize],
        displacements: &[usize],
        recv: &mut [T],
        root: usize,
    ) -> Result<()> {
        let parts = Parts::listed(counts, displacements, size_of::<T>());
        self.run(
            &Collective::Scatter { root, parts },
            Some(cast_slice(send)),
            Some(cast_slice_mut(recv)),
        )
    }

    /// Collects everyone's `send` in everyone's `recv`, in the order of the ranks.
    pub fn allgather<T: AnyBitPattern + NoUninit>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let what = describe::allgather(recv, self.size())?;
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// As [`Self::allgather`], with each rank's part in its place of `buf`.
    pub fn allgather_in_place<T: AnyBitPattern + NoUninit>(&self, buf: &mut [T]) -> Result<()> {
        let what = describe::allgather(buf, self.size())?;
        self.run(&what, None, Some(cast_slice_mut(buf)))
    }

    /// As [`Self::allgather`], where rank `i` gives `counts[i]` elements, which come to `displacements[i]`.
    pub fn allgatherv<T: AnyBitPattern + NoUninit>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        displacements: &[usize],
    ) -> Result<()> {
        let parts = Parts::listed(counts, displacements, size_of::<T>());
        self.run(
            &Collective::Allgather { parts },
            Some(cast_slice(send)),
            Some(cast_slice_mut(recv)),
        )
    }

    /// Deals everyone's `send` to everyone's `recv`: part `i` of `send` goes to rank `i`, whose part for this rank
    /// comes to part `i` of `recv`.
    pub fn alltoall<T: AnyBitPattern + NoUninit>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let what = describe::alltoall(recv, self.size())?;
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// As [`Self::alltoall`]; what is received replaces what was sent.
    pub fn alltoall_in_place<T: AnyBitPattern + NoUninit>(&self, buf: &mut [T]) -> Result<()> {
        let what = describe::alltoall(buf, self.size())?;
        self.run(&what, None, Some(cast_slice_mut(buf)))
    }

    /// As [`Self::alltoall`], with counts and displacements of the parts of each buffer. For parts of several types see
    /// [`Self::run`].
    pub fn alltoallv<T: AnyBitPattern + NoUninit>(
        &self,
        send: &[T],
        send_parts: (&[usize], &[usize]),
        recv: &mut [T],
        recv_parts: (&[usize], &[usize]),
    ) -> Result<()> {
        let what = describe::alltoallv::<T>(send_parts, recv_parts);
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// Combines everyone's `send` in the root's `recv`, in the order of the ranks. `recv` has no meaning elsewhere.
    pub fn reduce<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Op>,
        root: usize,
    ) -> Result<()> {
        let what = describe::reduce::<T>(op.into(), root);
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// Combines everyone's `send` in everyone's `recv`, in the order of the ranks.
    ///
    /// ```
    /// use onecopy::coll::PredefinedOp;
    /// onecopy::local(3, |rt| {
    ///     let world = rt.world();
    ///     let mut sum = [0.0];
    ///     world.allreduce(&[world.rank() as f64], &mut sum, PredefinedOp::Sum).unwrap();
    ///     assert_eq!(sum, [3.0]);
    /// });
    /// ```
    pub fn allreduce<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Op>,
    ) -> Result<()> {
        let what = describe::allreduce::<T>(op.into());
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// As [`Self::allreduce`]; the result replaces what was sent.
    pub fn allreduce_in_place<T: Element>(&self, buf: &mut [T], op: impl Into<Op>) -> Result<()> {
        let what = describe::allreduce::<T>(op.into());
        self.run(&what, None, Some(cast_slice_mut(buf)))
    }

    /// Combines everyone's `send`, and gives `counts[i]` elements of the result to rank `i`.
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: impl Into<Op>,
    ) -> Result<()> {
        let what = describe::reduce_scatter::<T>(counts, op.into());
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// As [`Self::reduce_scatter`], with as many elements for each rank as `recv` has.
    pub fn reduce_scatter_block<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Op>,
    ) -> Result<()> {
        let what = describe::reduce_scatter_block::<T>(recv.len(), op.into());
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// Combines the `send` of all ranks up to this one in `recv`.
    pub fn scan<T: Element>(&self, send: &[T], recv: &mut [T], op: impl Into<Op>) -> Result<()> {
        let what = describe::scan::<T>(op.into());
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }

    /// Combines the `send` of all ranks before this one in `recv`; that of the first rank stays as it is.
    pub fn exscan<T: Element>(&self, send: &[T], recv: &mut [T], op: impl Into<Op>) -> Result<()> {
        let what = describe::exscan::<T>(op.into());
        self.run(&what, Some(cast_slice(send)), Some(cast_slice_mut(recv)))
    }
}

/// A collective that owns its buffers until it is complete. Dropping it waits for its end.
///
/// ```
/// use onecopy::coll::{Collective, ElemType, PredefinedOp};
/// onecopy::local(2, |rt| {
///     let op = PredefinedOp::Sum.into();
///     let sum = Collective::Allreduce { elem: ElemType::U32, op };
///     let request = rt.world().start(&sum, Some(vec![1u32, 2]), Some(vec![0u32; 2])).unwrap();
///     let (_, result) = request.wait().unwrap();
///     assert_eq!(result.unwrap(), [2, 4]);
/// });
/// ```
#[must_use = "a collective that is dropped is waited for"]
pub struct CollRequest<S, R> {
    handle: Handle,
    id: RequestId,
    result: Option<Result<()>>,
    send: Option<Owned<Handle, S>>,
    recv: Option<Owned<Handle, R>>,
}

impl<S, R> CollRequest<S, R> {
    /// Whether it is complete. Never waits.
    pub fn test(&mut self) -> bool {
        if self.result.is_none() {
            let result = self
                .handle
                .look(|worker| worker.engine.take_result(self.id));
            self.result = result.map(|result| result.map(drop));
        }
        self.result.is_some()
    }

    /// Waits for completion and gives the buffers back.
    pub fn wait(self) -> Result<(Option<S>, Option<R>)> {
        let (result, send, recv) = self.wait_both();
        result.map(|()| (send, recv))
    }

    /// Waits for completion and gives the buffers back in any case.
    pub fn wait_both(mut self) -> (Result<()>, Option<S>, Option<R>) {
        self.complete();
        let result = self.result.take().unwrap_or(Err(Error::Cancelled));
        let send = self.send.take().map(Owned::take);
        let recv = self.recv.take().map(Owned::take);
        (result, send, recv)
    }

    fn complete(&mut self) {
        if self.result.is_none() {
            self.result = Some(self.handle.wait_for(self.id).map(drop));
        }
    }
}

impl<S, R> Drop for CollRequest<S, R> {
    fn drop(&mut self) {
        let lent = self.send.is_some() || self.recv.is_some();
        if lent && self.handle.gate.is_ours() {
            self.complete();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{local, local_with};
    use onecopy_obs::Knobs;
    use onecopy_shm::sync::{AtomicU32, Ordering};

    /// A short collective that its thread could not give to the queue any more keeps nobody waiting.
    #[test]
    fn a_short_collective_that_the_queue_refuses_is_over() {
        local(2, |rt| {
            let world = rt.world();
            world.barrier().expect("barrier");
            if world.rank() == 1 {
                return;
            }
            let begun = world.try_short(&Collective::Barrier, None, None);
            assert!(begun == ShortState::Begun, "the other rank is not in it");
            let aborted = Error::Aborted { code: 3 };
            world.handle.gate.enter().engine.end_everything(aborted);
            let is_aborted = |result: Result<()>| {
                let error = result.expect_err("aborted");
                assert!(matches!(error, Error::Aborted { code: 3 }), "{error}");
            };
            is_aborted(world.run_on(&Collective::Barrier, None, None, true));
            is_aborted(world.barrier());
        });
    }

    /// A short collective waits, and polls what other communicators wait for. There an operator of the program panics,
    /// through the call that waits: it is over, and its communicator goes on.
    #[test]
    fn a_panic_through_a_short_collective_ends_it() {
        use crate::coll::{ElemType, Op};
        use onecopy_shm::sync::{AtomicU32, Ordering};
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let step = AtomicU32::new(0);
        let reach = |to| step.store(to, Ordering::Release);
        let wait = |to| {
            while step.load(Ordering::Acquire) < to {
                std::thread::yield_now();
            }
        };
        local(2, |rt| {
            let world = rt.world();
            let other = world.dup().expect("dup");
            let panics = rt.rank() == 0;
            let op = Op::user(move |_, _| assert!(!panics, "on purpose"));
            let elem = ElemType::U32;
            let sum = Collective::Allreduce { elem, op };
            let start = || {
                let started = other.start(&sum, Some(vec![1u32]), Some(vec![0u32]));
                started.expect("start")
            };
            let request;
            if !panics {
                request = start();
                // It is published.
                world.handle.gate.enter().progress(false);
                reach(1);
                wait(2);
                world.barrier().expect("the other rank was in it");
            } else {
                wait(1);
                request = start();
                let barrier = || world.try_short(&Collective::Barrier, None, None);
                let passed = catch_unwind(AssertUnwindSafe(barrier));
                assert!(passed.is_err(), "the operator panics");
                reach(2);
            }
            // More than the channel has lines.
            for round in 0..20 {
                let mut sum = [0];
                let mine = [round + rt.rank() as u64];
                world
                    .allreduce(&mine, &mut sum, crate::coll::PredefinedOp::Sum)
                    .expect("its communicator goes on");
                assert_eq!(sum, [2 * round + 1]);
            }
            let ended = request.wait();
            assert!(ended.is_err() || !panics, "its own collective has failed");
        });
    }

    /// A rank that is always late finds at once what it takes, and looks at everything else now and then all the same.
    /// `READY_CALLS` is 127.
    #[test]
    fn a_rank_that_only_does_collectives_looks_around() {
        const CALLS: u32 = 200;
        let begun = AtomicU32::new(0);
        local_with(2, &Knobs::default(), |rt| {
            let world = rt.world();
            // More than is read in place without a request, in memory that both map.
            let mut heap = rt.alloc(80 << 10).expect("alloc");
            world.bcast(&mut heap[..], 0).expect("the channel is open");
            let rounds = || rt.handle().gate.enter().engine.polling.rounds();
            let mut made = 0;
            for call in 0..CALLS {
                if rt.rank() == 0 {
                    begun.store(call + 1, Ordering::Relaxed);
                } else {
                    while begun.load(Ordering::Relaxed) <= call {
                        std::thread::yield_now();
                    }
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                let before = rounds();
                world.bcast(&mut heap[..], 0).expect("bcast");
                made += rounds().wrapping_sub(before);
            }
            assert!(made > 0, "rank {}", rt.rank());
            rt.finalize().expect("finalize");
        });
    }
}
