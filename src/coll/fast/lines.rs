// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines of a short collective, and what they describe: how a rank takes what others contribute.

use super::super::state::CommState;
use super::super::{lines, reader};
use super::Stop;
use super::short::{Collect, Combine, Places};
use crate::engine::Engine;
use onecopy_shm::coll::{Content, ShortContribution, View, accumulate, combine, kind, precede};
use onecopy_shm::copy::Kernel;

/// The lines of a short collective, from which a step takes what has come.
pub(super) struct ShortLines<'l> {
    pub(super) engine: &'l Engine,
    pub(super) state: &'l mut CommState,
    pub(super) seq: u32,
    /// Bytes of each contribution.
    pub(super) len: usize,
    pub(super) polls: usize,
    /// How many of them are done with: what the next step need not look at again.
    pub(super) taken: &'l mut usize,
    pub(super) mapped: &'l mut Places,
}

impl ShortLines<'_> {
    #[inline(always)]
    fn poll(&mut self, place: usize) -> Result<ShortContribution, Stop> {
        poll_line(self.state, place, self.seq, self.polls)
    }

    /// The bytes of a contribution that has come.
    #[inline(always)]
    fn bytes(&self, place: usize, short: ShortContribution) -> Result<View<'_>, Stop> {
        let bytes = self.state.channel_ends[place].short_bytes(self.seq, short, self.len);
        bytes.ok_or(Stop::NeedsRequest)
    }

    /// Gives `read` as many bytes of a contribution that has come as `recv` has, from `from` on. They stand in the
    /// channel, or in mapped memory.
    #[inline(always)]
    fn read_part(
        &mut self,
        place: usize,
        short: ShortContribution,
        from: usize,
        recv: &mut [u8],
        read: impl Fn(&mut [u8], View<'_>, Kernel),
    ) -> Result<(), Stop> {
        let Ok(all) = self.bytes(place, short) else {
            return self.read_elsewhere(place, short, from, recv, read);
        };
        let part = all.part(from, recv.len()).ok_or(Stop::NeedsRequest)?;
        read(recv, part, Kernel::Memcpy);
        Ok(())
    }

    /// As [`Self::read_part`], of bytes that stand in no line, nor in its slot.
    #[inline(never)]
    fn read_elsewhere(
        &mut self,
        place: usize,
        short: ShortContribution,
        from: usize,
        recv: &mut [u8],
        read: impl Fn(&mut [u8], View<'_>, Kernel),
    ) -> Result<(), Stop> {
        let of = self.state.channel_ends[place].short_spare(self.seq, short, self.len);
        let Some(spare) = of.and_then(|of| self.state.place_of_spare(place, of)) else {
            return self.read_mapped(place, from, recv, read);
        };
        let all = self.state.channel_ends[spare].in_spare(0, self.len);
        let part = all.and_then(|all| all.part(from, recv.len()));
        read(recv, part.ok_or(Stop::NeedsRequest)?, Kernel::Memcpy);
        self.state.spares.came(spare);
        Ok(())
    }

    /// As [`Self::read_part`], of bytes in memory of `place` that this rank maps. Whatever is wrong with its line, a
    /// request reports. Apart, so that it costs what is in the channel nothing.
    #[cold]
    #[inline(never)]
    fn read_mapped(
        &mut self,
        place: usize,
        from: usize,
        recv: &mut [u8],
        read: impl Fn(&mut [u8], View<'_>, Kernel),
    ) -> Result<(), Stop> {
        let line = lines::read(self.state, place, self.seq).map_err(|_| Stop::NeedsRequest)?;
        // A giver that promises to write waits for this rank's line, which the root of a gather publishes by a request.
        let is_all = line.content == Content::Buffer
            && !line.has(kind::TABLE)
            && !line.has(kind::WRITES)
            && line.given.len == self.len as u64;
        if !is_all {
            return Err(Stop::NeedsRequest);
        }
        let range = lines::range(line.given).part(from as u64, recv.len() as u64);
        let Engine {
            peers, permitted, ..
        } = self.engine;
        let view = reader::view(peers, self.state, place, &range).ok_or(Stop::NeedsRequest)?;
        let kernel = permitted.terms.plan.kernel(recv.len());
        read(recv, view, kernel);
        reader::still_good(self.state, place).map_err(|_| Stop::NeedsRequest)?;
        self.mapped.add(place);
        Ok(())
    }

    /// Copies bytes of a contribution that has come, from `from` on.
    #[inline(always)]
    fn copy_part(
        &mut self,
        place: usize,
        short: ShortContribution,
        from: usize,
        recv: &mut [u8],
    ) -> Result<(), Stop> {
        self.read_part(place, short, from, recv, |recv, part, kernel| {
            part.copy_to(recv, kernel);
        })
    }

    #[inline(always)]
    pub(super) fn meet(&mut self) -> Result<(), Stop> {
        while *self.taken < self.state.size() {
            if *self.taken != self.state.me {
                self.poll(*self.taken)?;
            }
            *self.taken += 1;
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn copy(&mut self, root: usize, from: usize, recv: &mut [u8]) -> Result<(), Stop> {
        let short = self.poll(root)?;
        self.copy_part(root, short, from, recv)
    }

    #[inline(always)]
    pub(super) fn collect(&mut self, collect: Collect, recv: &mut [u8]) -> Result<(), Stop> {
        let (size, me) = (self.state.size(), self.state.me);
        let Collect { part, .. } = collect;
        while *self.taken < size - 1 {
            let next = me + 1 + *self.taken;
            let place = if next < size { next } else { next - size };
            let short = self.poll(place)?;
            let recv = &mut recv[place * part..][..part];
            self.copy_part(place, short, collect.from(me), recv)?;
            *self.taken += 1;
        }
        Ok(())
    }

    /// Of two ranks. `own`: where this rank's vector stands; none: where the result goes.
    #[inline(always)]
    pub(super) fn combine_two(
        &mut self,
        combined: Combine,
        own: Option<&[u8]>,
        recv: &mut [u8],
    ) -> Result<(), Stop> {
        let Combine { op, elem, .. } = combined;
        let me = self.state.me;
        let short = self.poll(1 - me)?;
        let read = |recv: &mut [u8], other: View<'_>, _| match (own, me) {
            (None, 0) => accumulate(op, elem, recv, other),
            (None, _) => precede(op, elem, recv, other),
            (Some(own), 0) => combine(op, elem, recv, View::of(own), other),
            (Some(own), _) => combine(op, elem, recv, other, View::of(own)),
        };
        self.read_part(1 - me, short, 0, recv, read)
    }

    #[inline(always)]
    pub(super) fn combine_all(&mut self, combined: Combine, recv: &mut [u8]) -> Result<(), Stop> {
        let Combine {
            op,
            elem,
            begin,
            upto,
        } = combined;
        while *self.taken < upto {
            let place = *self.taken;
            // The first two at once.
            let pair = place == 0 && upto > 1;
            let first = self.poll_or_own(place)?;
            let second = if pair {
                Some(self.poll_or_own(place + 1)?)
            } else {
                None
            };
            let part = |place, short| {
                let all = self.bytes(place, short)?;
                all.part(begin, recv.len()).ok_or(Stop::NeedsRequest)
            };
            let view = part(place, first)?;
            if let Some(second) = second {
                let next = part(place + 1, second)?;
                combine(op, elem, recv, view, next);
            } else if place == 0 {
                view.copy_to(recv, Kernel::Memcpy);
            } else {
                accumulate(op, elem, recv, view);
            }
            *self.taken += 1 + usize::from(pair);
        }
        Ok(())
    }

    /// As [`Self::poll`], where `place` may be this rank's own.
    #[inline(always)]
    fn poll_or_own(&mut self, place: usize) -> Result<ShortContribution, Stop> {
        if place == self.state.me {
            Ok(self.state.channel_ends[place].read_short(self.seq))
        } else {
            self.poll(place)
        }
    }
}

/// Polls a line for a while, and reads it. It may hold no short contribution.
#[inline]
fn poll_line(
    state: &mut CommState,
    place: usize,
    seq: u32,
    mut polls: usize,
) -> Result<ShortContribution, Stop> {
    while state.channel_ends[place].phase(seq) == 0 {
        polls -= 1;
        if polls == 0 {
            return Err(Stop::Awaited);
        }
        onecopy_shm::sync::spin_hint();
    }
    let short = state.channel_ends[place].read_short(seq);
    state.note_done(place, short.done());
    Ok(short)
}
