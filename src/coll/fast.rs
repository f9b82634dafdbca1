// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short blocking collectives: the [plan](super::plan) on the caller's slices, without a request. A collective that
//! does not complete soon goes on as a request. That begins its reads again, unless all were taken.

mod lines;
mod short;

use super::communicator::Communicator;
use super::contribution::{Readers, describe};
use super::state::CommState;
use super::worker::Worker;
use crate::engine::Engine;
use crate::error::Error;
use lines::ShortLines;
use onecopy_btl::RemoteRange;
use onecopy_obs::seeds::SPARE_SLOTS_MIN;
use onecopy_shm::coll::{INLINE, View, kind};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::HeapOffset;
pub(crate) use short::Short;
use short::{Action, GivenPlace, Places};

/// How far a short collective has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShortState {
    /// It is over.
    Done,
    /// Nothing has happened.
    Not,
    /// This rank's contribution is published.
    Begun,
}

/// Why a step of a short collective ends before the last contribution is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A contribution has not come yet.
    Awaited,
    /// A contribution is no short one, so that a request has to take it.
    NeedsRequest,
}
/// Why a short collective does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unready {
    /// Its line has not been read by all: this rank is a whole channel ahead of someone.
    Full,
    /// A request has to do it.
    NeedsRequest,
}

/// A short collective under way: this rank's contribution is published.
pub(crate) struct Running<'r> {
    slot: usize,
    seq: u32,
    short: &'r Short,
    recv: &'r mut [u8],
    /// How many contributions are taken.
    taken: usize,
    /// Those of them that were read in place.
    mapped: Places,
}

impl Worker {
    /// Polls for room in the channel, up to so many times.
    #[cold]
    pub(crate) fn poll_room(&mut self, slot: usize, polls: usize) {
        let comm = self.collectives.slots.get_mut(slot);
        let Some(Communicator { state, .. }) = comm.and_then(Option::as_deref_mut) else {
            return;
        };
        let seq = state.seq.wrapping_add(1);
        for _ in 0..polls {
            if state.has_room(seq) {
                return;
            }
            onecopy_shm::sync::spin_hint();
        }
    }

    /// Publishes this rank's contribution, if that is possible now, and moves what it has for itself.
    #[inline(always)]
    pub(crate) fn begin_short<'r>(
        &mut self,
        slot: usize,
        short: &'r Short,
        send: Option<&[u8]>,
        recv: &'r mut [u8],
    ) -> Result<Running<'r>, Unready> {
        let Self {
            engine,
            collectives,
        } = self;
        let Engine { core, lives, .. } = engine;
        let comm = collectives.slots.get_mut(slot);
        let Some(Communicator {
            state,
            ops,
            in_place_readers,
            ..
        }) = comm.and_then(Option::as_deref_mut)
        else {
            return Err(Unready::NeedsRequest);
        };
        let seq = state.seq.wrapping_add(1);
        let ready = state.has_channel()
            && ops.is_empty()
            && !state.in_short
            && state.failed.is_none()
            && lives.fatal().is_none();
        if !ready {
            return Err(Unready::NeedsRequest);
        }
        let place = match short.gives {
            true => short.place(state, &core.home, send, recv),
            false => short
                .can_take(state, &core.home, recv)
                .then_some(GivenPlace::Channel),
        };
        let place = place.ok_or(Unready::NeedsRequest)?;
        if !state.has_room(seq) {
            return Err(Unready::Full);
        }
        (state.seq, state.in_short) = (seq, true);
        *in_place_readers = None;
        core.counters.collectives += 1;
        if short.gives {
            let bytes = short.given(send, recv);
            match place {
                GivenPlace::Channel => {
                    let me = state.me;
                    let published = bytes.len() >= SPARE_SLOTS_MIN
                        && short.reads_none_of_own(state.size())
                        && match short.readers.include(1 - me) {
                            true => state.publish_in_spare(seq, bytes, short.filled(me)),
                            false => {
                                state.publish(seq, kind::NOTHING, &[]);
                                true
                            }
                        };
                    if !published {
                        state.publish_short(seq, bytes, || short.filled(me));
                    }
                }
                GivenPlace::Mapped(heap) => {
                    *in_place_readers = Some(short.readers);
                    state.publish_mapped(seq, bytes, heap);
                }
            }
        } else if matches!(short.action, Action::Meet) {
            state.publish(seq, kind::NOTHING, &[]);
        }
        // From the program's memory: the lines that were just published are on their way to others.
        let own = short.own(state.size(), state.me);
        if let (Some(own), Some(send)) = (own, send)
            && !short.combines_own_in_place()
        {
            // The plan has seen that both buffers are long enough.
            if let Some(view) = View::of(send).part(own.from, own.len) {
                view.copy_to(&mut recv[own.to..][..own.len], Kernel::Memcpy);
            }
        }
        Ok(Running {
            slot,
            seq,
            short,
            recv,
            taken: 0,
            mapped: Places::default(),
        })
    }

    /// Takes what has come, and waits for who reads in place. Polls each line up to `polls` times. `send` is what the
    /// collective began with.
    #[inline(always)]
    pub(crate) fn step_short(
        &mut self,
        running: &mut Running<'_>,
        send: Option<&[u8]>,
        polls: usize,
    ) -> Result<(), Stop> {
        let Self {
            engine,
            collectives,
        } = self;
        let comm = collectives.slots[running.slot].as_deref_mut();
        let Communicator {
            state,
            in_place_readers,
            ..
        } = comm.ok_or(Stop::NeedsRequest)?;
        if state.done != running.seq {
            running.take(engine, state, send, polls)?;
            running.short.count(engine, state, running.mapped);
            state.set_done(running.seq);
            state.wake();
        }
        if let Some(readers) = *in_place_readers {
            state.await_readers(readers, running.seq, polls)?;
            *in_place_readers = None;
        }
        state.in_short = false;
        // The next contribution's line comes back meanwhile.
        state.own().will_publish(running.seq.wrapping_add(1));
        Ok(())
    }
}

impl Running<'_> {
    /// Takes what has come.
    #[inline(always)]
    fn take(
        &mut self,
        engine: &Engine,
        state: &mut CommState,
        send: Option<&[u8]>,
        polls: usize,
    ) -> Result<(), Stop> {
        let short = self.short;
        let recv = &mut self.recv[..short.result];
        let size = state.size();
        let mut lines = ShortLines {
            engine,
            state,
            seq: self.seq,
            len: short.len,
            polls,
            taken: &mut self.taken,
            mapped: &mut self.mapped,
        };
        match short.action {
            Action::Give { .. } => Ok(()),
            Action::Meet => lines.meet(),
            Action::Copy { root, from } => lines.copy(root, from, recv),
            Action::Collect(collect) => lines.collect(collect, recv),
            Action::Combine(combine) if combine.is_of_two(size) => {
                let own = send.filter(|_| short.combines_own_in_place());
                let own = own.map(|send| &send[combine.begin..][..recv.len()]);
                lines.combine_two(combine, own, recv)
            }
            Action::Combine(combine) => lines.combine_all(combine, recv),
        }
    }
}

impl Worker {
    /// A request takes the collective over. It finds this rank's contribution to a reduction in the slot of its line,
    /// also if that was not read there so far.
    #[cold]
    pub(crate) fn leave_to_request(&mut self, running: &Running<'_>, send: Option<&[u8]>) {
        let comm = self.collectives.slots.get(running.slot);
        let Some(comm) = comm.and_then(Option::as_deref) else {
            return;
        };
        let (state, short) = (&comm.state, running.short);
        let reads_own = short.gives && matches!(short.action, Action::Combine(_));
        if reads_own && state.done != running.seq && short.reads_none_of_own(state.size()) {
            let bytes = short.given(send, running.recv);
            if (SPARE_SLOTS_MIN..=state.slot_bytes()).contains(&bytes.len()) {
                state.own().write_slot(running.seq, 0, bytes);
            }
        }
    }

    /// The thread of the short collective in `slot` unwinds: it takes nothing more, and nobody waits for it. Its buffer
    /// goes back to the program. Members that read it in place, and may not be through, learn that.
    #[cold]
    pub(crate) fn leave_short(&mut self, slot: usize) {
        let Self {
            engine,
            collectives,
        } = self;
        let comm = collectives.slots.get_mut(slot);
        let Some(comm) = comm.and_then(Option::as_deref_mut) else {
            return;
        };
        let state = &mut comm.state;
        if !state.in_short {
            return;
        }
        state.in_short = false;
        state.set_done(state.seq);
        state.wake();
        let reason = "a call panicked while others read its buffer".into();
        comm.fail_if_still_read(engine, &Error::Collective { reason });
    }
}

impl CommState {
    /// Publishes where `bytes` are, of this rank's heap, for members to read.
    #[inline(never)]
    fn publish_mapped(&self, seq: u32, bytes: &[u8], heap: HeapOffset) {
        let range = RemoteRange {
            address: bytes.as_ptr().addr() as u64,
            heap: Some(heap),
            region: None,
            len: bytes.len() as u64,
        };
        let mut line = [0; INLINE];
        describe(&range, &mut line[..24]);
        self.publish(seq, kind::BUFFER, &line);
    }

    /// Polls until `readers` have read this rank's contribution.
    #[inline(never)]
    fn await_readers(&mut self, readers: Readers, seq: u32, mut polls: usize) -> Result<(), Stop> {
        for place in readers.others(self.size(), self.me) {
            while !self.has_read(place, seq) {
                polls -= 1;
                if polls == 0 {
                    return Err(Stop::Awaited);
                }
                onecopy_shm::sync::spin_hint();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
