// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's range of the vector, combined fragment by fragment.

use super::super::context::{MemoryParts, StepContext};
use super::super::contribution::{Contribution, GIVEN, Scratch};
use super::super::member_buffer::{CopyTarget, MemberBuffer};
use super::super::push::place_of;
use super::super::reader;
use super::super::select::Algorithm;
use super::super::state::CommState;
use super::super::tally::Tally;
use super::super::{ByteRange, Op};
use super::attach::{AttachedPart, count};
use super::fragment::{Operands, combine_all};
use super::{Fold, Location, mismatch};
use crate::error::Result;
use crate::peer::Peer;
use onecopy_btl::LayerId;
use onecopy_shm::coll::{View, kind};
use onecopy_shm::loan::LoanTable;

/// Bytes of a fragment when two vectors are combined, and when more are. Then the result is read and written once for
/// each. It is to stay in the first cache, which has 32 KiB or more. Of two each byte is touched once, so that only a
/// look at the other members between fragments limits them. Chosen by magnitude: at 10 GB/s 128 KiB take 13 us between
/// two looks.
const FRAGMENT_TWO: usize = 128 << 10;
const FRAGMENT_MANY: usize = 16 << 10;
/// Bytes of a fragment that is written to several places: it stays in the second cache between. After each one, the
/// stores into the others' lines are waited for. An allreduce of 256 KiB took 14.9 µs in fragments of 16 KiB, 13.3 in
/// those of 32, 12.3 in those of 128 (A, apart, 11-30; docs/performance.md, "Collectives").
const FRAGMENT_WRITTEN: usize = 64 << 10;
/// Bytes for what cannot be read in place, of all members together: temporary memory does not grow with the payload. By
/// magnitude: two pieces of a size that hides the call of the kernel, and no more than a second cache has.
const FETCH_MAX: usize = 256 << 10;

/// How an attempt to combine a fragment went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Combined,
    /// Something has to come first.
    Awaited,
    /// Bytes were not there in place, so that copies are combined.
    Again,
}

/// A fragment of the range.
struct Fragment {
    /// What of the vectors it is.
    range: ByteRange,
    /// Whether the result goes where this rank's contribution stands.
    alias: bool,
    /// Members whose bytes are copied before they are combined.
    absent: Vec<usize>,
    /// Vectors of room for partial results.
    work: usize,
    /// Whether the result stands apart: a helper has no place of its own for it.
    apart: bool,
}

/// Room for the result of a helper, and for partial results.
struct ResultRoom<'r> {
    helped: &'r mut [u8],
    work: &'r mut [u8],
}

impl Fragment {
    /// Bytes that it takes besides the buffers of the program.
    fn needed(&self) -> usize {
        (self.absent.len() + self.work + usize::from(self.apart)) * self.range.len
    }

    /// That room: for the bytes that are copied first, and for results.
    fn split<'r>(&self, room: &'r mut [u8]) -> (&'r mut [u8], ResultRoom<'r>) {
        let len = self.range.len;
        let copies = (self.absent.len() * len).min(room.len());
        let (copies, work) = room.split_at_mut(copies);
        let (helped, work) = work.split_at_mut(usize::from(self.apart) * len);
        (copies, ResultRoom { helped, work })
    }
}

/// Where the contributions to a fragment are read.
struct Contributions<'c> {
    peers: &'c [Option<Box<Peer>>],
    state: &'c CommState,
    seq: u32,
    /// Where the fragment is in what the others give.
    range: ByteRange,
    /// Members whose bytes were copied, in the order of the copies.
    absent: &'c [usize],
    copies: &'c [u8],
    in_place: &'c [AttachedPart<'c>],
}

impl<'c> Contributions<'c> {
    /// The bytes of `place`; none: they are this rank's own, given apart.
    fn view(&self, place: usize, location: &Location) -> Result<Option<View<'c>>> {
        let ByteRange { offset: begin, len } = self.range;
        let end = &self.state.channel_ends[place];
        let view = match location {
            Location::Own => return Ok(None),
            Location::Inline => end.in_line(self.seq, begin, len),
            Location::Slot => end.in_slot(self.seq, begin, len),
            Location::Spare(end) => self.state.channel_ends[*end].in_spare(begin, len),
            Location::Buffer(range) | Location::Attached(range) => {
                let copied = self.absent.iter().position(|&other| other == place);
                let attached = self.in_place.iter().find(|part| part.place == place);
                if let Some(index) = copied {
                    Some(View::of(&self.copies[index * len..(index + 1) * len]))
                } else if let Some(part) = attached {
                    part.bytes.view()
                } else {
                    let range = range.part(begin as u64, len as u64);
                    reader::view(self.peers, self.state, place, &range)
                }
            }
        };
        let view = view.ok_or_else(|| mismatch(self.state, place, 0, len))?;
        Ok(Some(view))
    }
}

impl Fold {
    /// Combines the next fragment of the range. Gives its bytes; 0: something has to come first.
    pub(super) fn fragment(
        &mut self,
        cx: &mut StepContext<'_>,
        scratch: &mut Scratch,
    ) -> Result<usize> {
        loop {
            let fragment = self.next_fragment(cx);
            if scratch.renew(cx.memory.pool(), fragment.needed())? {
                self.fetched = 0;
            }
            match self.try_fragment(cx, &fragment, scratch.bytes())? {
                Outcome::Combined => {
                    self.fetched = 0;
                    self.folded += fragment.range.len;
                    return Ok(fragment.range.len);
                }
                Outcome::Awaited => return Ok(0),
                Outcome::Again => {}
            }
        }
    }

    /// What the next fragment is, and what it takes to combine it.
    fn next_fragment(&self, cx: &StepContext<'_>) -> Fragment {
        let ByteRange {
            offset: first,
            len: all,
        } = self.range();
        // The result goes where this rank's contribution stands.
        let alias = self.locations.contains(&Location::Own)
            && match cx.shared.temp {
                Some(_) if self.plan.gives_all() => self.plan.algorithm == Algorithm::Split,
                _ => self.plan.in_place,
            };
        // The members whose bytes are copied before they are combined. Bytes in a buffer are copied if they cannot be
        // read in place. Attached bytes may turn out to have been missing, and then the fragment is combined again.
        // That is impossible where the result has replaced this rank's contribution, so there they are copied, too.
        let absent: Vec<usize> = (0..self.plan.upto)
            .filter(|&place| match &self.locations[place] {
                Location::Buffer(range) => {
                    let first = range.part(0, range.len.min(1));
                    reader::view(cx.memory.peers(), cx.state, place, &first).is_none()
                }
                Location::Attached(_) => alias,
                _ => false,
            })
            .collect();
        let len = self.fragment_len(absent.len()).min(all - self.folded);
        let user = matches!(self.plan.op, Op::User(_));
        let partial = user || self.plan.upto > 2 || !absent.is_empty();
        Fragment {
            range: ByteRange {
                offset: first + place_of(cx.seq, all, self.folded, len),
                len,
            },
            alias,
            absent,
            work: if partial { 2 } else { 0 },
            apart: self.share.is_some() && self.plan.recv.is_none(),
        }
    }

    /// Bytes of a fragment, in whole elements, for which so many contributions are copied first.
    fn fragment_len(&self, absent: usize) -> usize {
        let wanted = match (absent, self.plan.upto) {
            (0, _) if !self.targets.is_empty() => FRAGMENT_WRITTEN,
            (0, 0..=2) => FRAGMENT_TWO,
            (0, _) => FRAGMENT_MANY,
            (count, _) => (FETCH_MAX / count).clamp(4 << 10, FRAGMENT_TWO),
        };
        self.plan.whole_elements(wanted)
    }

    fn try_fragment(
        &mut self,
        cx: &mut StepContext<'_>,
        fragment: &Fragment,
        room: &mut [u8],
    ) -> Result<Outcome> {
        let (copies, mut results) = fragment.split(room);
        if !self.fetch_absent(cx, fragment, copies)? {
            return Ok(Outcome::Awaited);
        }
        let part = self.range_in_given(fragment);
        let MemoryParts { loans, peers, .. } = cx.memory.parts();
        let in_place = if fragment.alias {
            Vec::new()
        } else if let Some(all) = self.attach(peers, cx.state, part) {
            all
        } else {
            return Ok(Outcome::Again);
        };
        let contributions = Contributions {
            peers,
            state: cx.state,
            seq: cx.seq,
            range: part,
            absent: &fragment.absent,
            copies,
            in_place: &in_place,
        };
        let mut views = Vec::with_capacity(self.plan.upto);
        for place in 0..self.plan.upto {
            views.push(contributions.view(place, &self.locations[place])?);
        }
        self.write_fragment(loans, cx.shared, fragment, &views, &mut results)?;
        drop(views);
        let members: Vec<usize> = in_place.iter().map(|part| part.place).collect();
        if !self.were_there(in_place) {
            return Ok(Outcome::Again);
        }
        count(&mut cx.memory, cx.state, &members, part.len);
        self.tally(cx.tally, cx.state, fragment);
        self.put_out(&mut cx.memory, cx.state, fragment.range, results.helped)?;
        self.check_owners(cx.state)?;
        Ok(Outcome::Combined)
    }

    /// Where a fragment is in what the others give.
    fn range_in_given(&self, fragment: &Fragment) -> ByteRange {
        let ByteRange { offset, len } = fragment.range;
        ByteRange {
            offset: offset - self.plan.taken().offset,
            len,
        }
    }

    /// Adds what the contributions to a fragment were, that were combined where they stand. Copies are counted as they
    /// come.
    fn tally(&self, tally: &mut Tally, state: &CommState, fragment: &Fragment) {
        for (place, location) in self.locations.iter().enumerate().take(self.plan.upto) {
            let layer = match location {
                Location::Own => continue,
                _ if place == state.me || fragment.absent.contains(&place) => continue,
                Location::Inline | Location::Slot | Location::Spare(_) => LayerId::CHUNKS,
                Location::Buffer(_) => LayerId::MAP,
                Location::Attached(_) => LayerId::ATTACH,
            };
            let rank = state.members[place];
            tally.add(rank, layer, fragment.range.len);
        }
    }

    /// Copies what cannot be combined in place. `false`: not all of it is there.
    fn fetch_absent(
        &mut self,
        cx: &mut StepContext<'_>,
        fragment: &Fragment,
        copies: &mut [u8],
    ) -> Result<bool> {
        let (seq, wanted) = (cx.seq, self.range_in_given(fragment));
        let len = wanted.len;
        while self.fetched < fragment.absent.len() {
            let place = fragment.absent[self.fetched];
            let (Location::Buffer(range) | Location::Attached(range)) = self.locations[place]
            else {
                break;
            };
            let line = self.lines.get_or_read(cx.state, place, seq)?;
            let source = MemberBuffer {
                seq,
                place,
                buffer: GIVEN,
                range,
                answers: line.is_some_and(|line| line.has(kind::ANSWERS)),
            };
            let to = CopyTarget::Bytes(&mut copies[self.fetched * len..(self.fetched + 1) * len]);
            if reader::fetch(cx, &source, wanted, to)? < len {
                return Ok(false);
            }
            self.fetched += 1;
        }
        Ok(true)
    }

    /// Combines `views` where the result goes.
    fn write_fragment(
        &self,
        loans: &mut LoanTable,
        shared: &mut Contribution,
        fragment: &Fragment,
        views: &[Option<View<'_>>],
        room: &mut ResultRoom<'_>,
    ) -> Result<()> {
        let ByteRange { offset: begin, len } = fragment.range;
        let work = &mut *room.work;
        let operands = Operands {
            op: &self.plan.op,
            elem: self.plan.elem,
            own: views.iter().position(Option::is_none),
            alias: fragment.alias,
        };
        match (&mut shared.temp, self.plan.recv) {
            (Some(temp), _) if self.plan.algorithm == Algorithm::Split => {
                let out = &mut temp[begin..begin + len];
                combine_all(&operands, out, views, None, work);
            }
            (Some(temp), Some(recv)) if operands.own.is_some() && self.plan.gives_all() => {
                let own = View::of(&temp[begin..begin + len]);
                loans.write(recv.range(self.result_at(begin), len), |out| {
                    combine_all(&operands, out, views, Some(own), work);
                })?;
            }
            (_, Some(recv)) => {
                let to = recv.range(self.result_at(begin), len);
                let from = self.plan.send.part(begin, len);
                loans.write_viewing(to, from, |out, own| {
                    combine_all(&operands, out, views, Some(own), work);
                })?;
            }
            (_, None) if fragment.apart => {
                let own = loans.view(self.plan.send.part(begin, len))?;
                combine_all(&operands, room.helped, views, Some(own), work);
            }
            (_, None) => {}
        }
        Ok(())
    }

    /// Where in the receive buffer byte `begin` of the vector goes.
    pub(in super::super) fn result_at(&self, begin: usize) -> usize {
        if self.plan.algorithm == Algorithm::Split
            || self.share.is_some()
            || self.plan.in_place && self.plan.to_front
        {
            begin
        } else {
            begin - self.range().offset
        }
    }

    /// Whether those whose buffers were read still had them: a member that gave up has given its buffer to someone else
    /// meanwhile.
    fn check_owners(&self, state: &CommState) -> Result<()> {
        for place in 0..self.plan.upto {
            if matches!(
                self.locations[place],
                Location::Buffer(_) | Location::Attached(_)
            ) && let Some(error) = state.failure_of(place)
            {
                return Err(error);
            }
        }
        Ok(())
    }
}
