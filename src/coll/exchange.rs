// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives that only move bytes. Each rank publishes where its bytes are, and reads its parts from the others. It
//! reads none that the others write into its receive buffer themselves ([`super::push`]). What one member alone takes
//! and cannot map goes as a message ([`by_message`]), or in pieces if both of two ranks give something ([`by_pieces`]).

mod by_message;
mod by_pieces;
mod push;

pub(super) use by_message::unmapped_placement;

use super::context::{MessageContext, StepContext, StepParts};
use super::contribution::{
    ENTRY, GIVEN, RESULT, Readers, Served, behind, describe, describe_message, range_of_temp,
};
use super::lines::Lines;
use super::member_buffer::{self, CopyTarget, MemberBuffer};
use super::pieces::transfer::PieceTransfer;
use super::plan::{BufferCopy, Find, Takes};
use super::push::{Gives, WRITTEN, place_of};
use super::reader;
use super::select::{NodeScheme, Placement, placement};
use super::state::{CommState, STEP_MAX, Step};
use super::{ByteRange, Parts};
use crate::error::Result;
use by_message::Messages;
use onecopy_btl::LayerId;
use onecopy_shm::coll::{CheckedLine, Content, INLINE, kind};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::{Loan, LoanRange, LoanTable};
use push::Push;
use std::iter;
use std::ops::Range;

/// Bytes read at a time: by the kernel, and from memory that is mapped. A call of the kernel costs a microsecond or so,
/// which so many bytes hide. Loads need no call, so that a step looks at the other members sooner. Both are chosen by
/// magnitude: at 10 GB/s they take some 50 and 6 microseconds.
pub(crate) const READ_MAX: usize = 512 << 10;
pub(crate) const READ_MAPPED: usize = 64 << 10;

/// What an exchange does: the [plan](super::plan) on lent buffers. It stays as it is while the exchange is under way.
pub(crate) struct ExchangePlan {
    pub(crate) offer: Option<LoanRange>,
    /// What of the offer is for whom, if the readers cannot know.
    pub(crate) table: Option<Parts>,
    /// Whether each reader takes a part of its own of it.
    pub(crate) by_parts: bool,
    /// How the members of the node do it.
    pub(crate) scheme: NodeScheme,
    pub(crate) readers: Readers,
    pub(crate) recv: Option<Loan>,
    pub(crate) takes: Takes,
    pub(crate) find: Find,
    /// What this rank takes from itself, out of the buffer of the offer.
    pub(crate) own: Option<BufferCopy>,
    /// What this rank may write into others' buffers.
    pub(crate) gives: Gives,
    /// Bytes of the receive buffer's front into which others may write.
    pub(crate) open: Option<usize>,
    /// Whether this rank's line is published even if it gives nothing: so that the others learn of its buffer.
    pub(crate) published: bool,
}

/// An exchange under way.
pub(crate) struct Exchange {
    pub(super) plan: ExchangePlan,
    push: Push,
    /// Made when the first is sent, posted or taken.
    messages: Option<Box<Messages>>,
    /// Made when the first piece is written or read.
    pieces: Option<Box<PieceTransfer>>,
    lines: Lines,
    /// Members to take something from, those behind this rank first.
    pending: Vec<usize>,
    /// Bytes that have come of the part under way.
    got: usize,
}

/// What a member has for this rank.
struct MemberPart {
    place: usize,
    line: CheckedLine,
    /// Where it goes in the receive buffer.
    to: usize,
    len: usize,
    /// Bytes from its front that this rank reads itself.
    reads: usize,
}

impl ExchangePlan {
    /// One that moves nothing.
    pub(crate) fn new(scheme: NodeScheme, find: Find) -> Self {
        Self {
            offer: None,
            table: None,
            by_parts: false,
            scheme,
            readers: Readers::Nobody,
            recv: None,
            takes: Takes::Nothing,
            find,
            own: None,
            gives: Gives::Nothing,
            open: None,
            published: false,
        }
    }

    /// What of the offer is for `place`.
    pub(crate) fn given_part(&self, place: usize, size: usize) -> ByteRange {
        let offered = self.offer.map_or(0, |offer| offer.len);
        match (&self.table, self.by_parts) {
            (Some(parts), _) => parts.of(place),
            (None, false) => ByteRange::first(offered),
            (None, true) => ByteRange {
                offset: place * (offered / size),
                len: offered / size,
            },
        }
    }

    pub(crate) fn copy_own(&self, loans: &mut LoanTable) -> Result<()> {
        if let (Some(own), Some(offer), Some(recv)) = (self.own, self.offer, self.recv) {
            loans.copy(offer.loan.range(own.from, own.len), recv, own.to)?;
        }
        Ok(())
    }

    /// The part of the receive buffer into which others may write.
    fn open(&self) -> Option<LoanRange> {
        Some(LoanRange::first(self.recv?, self.open?))
    }

    /// The part of the offer that is for nobody else: this rank's own, where each has one.
    fn unread(&self) -> Range<usize> {
        match self.own {
            Some(own) if self.by_parts => own.from..own.from + own.len,
            _ => 0..0,
        }
    }

    /// Publishes an offer with a table that says what is for whom.
    fn give_parts(&self, cx: &mut StepContext<'_>, offer: LoanRange, parts: &Parts) -> Result<()> {
        let StepParts {
            memory, state, seq, ..
        } = cx.parts();
        state.need_slots(memory.home())?;
        let size = state.size();
        let head = size * ENTRY;
        let others = (0..size).filter(|&place| place != state.me);
        let total: usize = others.clone().map(|place| parts.of(place).len).sum();
        let packed = head + total <= COLL_SLOT;
        let mut table = vec![0u8; head];
        let mut next = head;
        for place in others {
            let ByteRange { offset, len } = parts.of(place);
            let begin = if packed { next } else { offset };
            let entry = &mut table[place * ENTRY..(place + 1) * ENTRY];
            entry[..8].copy_from_slice(&(begin as u64).to_le_bytes());
            entry[8..].copy_from_slice(&(len as u64).to_le_bytes());
            if packed {
                let own = state.own();
                memory.loans().read(offer.part(offset, len), |bytes| {
                    own.write_slot(seq, next, bytes);
                })?;
                next += len;
            }
        }
        state.own().write_slot(seq, 0, &table);
        if packed {
            state.publish(seq, kind::SLOT | kind::TABLE, &[]);
            return Ok(());
        }
        // The table is in the slot.
        let mapped = memory.range_of(&offer).heap.is_some();
        let placement = placement(offer.len, mapped, COLL_SLOT, state.tuning.limits.temp_max);
        let given = GivenPiece {
            piece: offer,
            is_replaced: false,
            unread: 0..0,
            readers: self.readers,
            result: None,
            flags: kind::TABLE,
        };
        expose(cx, given, placement)
    }
}

impl Exchange {
    /// One of `size` members, as `me` takes part in it.
    pub(crate) fn new(plan: ExchangePlan, size: usize, me: usize) -> Self {
        let pending = behind(size, me)
            .filter(|&place| plan.takes.of(place).len > 0)
            .collect();
        Self {
            plan,
            push: Push::default(),
            messages: None,
            pieces: None,
            lines: Lines::default(),
            pending,
            got: 0,
        }
    }

    /// What this rank takes from itself stands where it belongs.
    pub(crate) fn skip_own(&mut self) {
        self.push.skip_own();
    }

    pub(crate) fn begin(&mut self, cx: &mut MessageContext<'_>) -> Result<()> {
        let StepParts {
            memory,
            state,
            shared,
            ..
        } = cx.over_channel().parts();
        let (plan, way, blocking) = (&self.plan, shared.way, shared.blocking);
        let message = match plan.unmapped_part(memory, state, way) {
            Some((placement, part)) => {
                let in_pieces = placement == Placement::Pieces && blocking;
                if in_pieces && self.begin_pieces(cx.over_channel(), part.range)? {
                    return Ok(());
                }
                // Two that wait and both give would cross messages.
                (!in_pieces || self.pending.is_empty()).then_some(part)
            }
            None => None,
        };
        let StepParts {
            memory, state, seq, ..
        } = cx.over_channel().parts();
        let plan = &self.plan;
        let goes = message.is_some();
        let promises = self.push.promises(plan, memory, state, blocking, goes);
        let flags = promises.flags();
        let gives = plan.readers != Readers::Nobody && message.is_none();
        self.post_early(cx, way)?;
        let plan = &self.plan;
        match (plan.offer, &plan.table) {
            (Some(offer), None) if gives => {
                let given = GivenPiece {
                    piece: offer,
                    is_replaced: false,
                    unread: plan.unread(),
                    readers: plan.readers,
                    result: plan.open(),
                    flags,
                };
                give(cx.over_channel(), plan.scheme, given)?;
            }
            (Some(offer), Some(parts)) if gives => {
                plan.give_parts(cx.over_channel(), offer, parts)?;
            }
            _ if plan.published || message.is_some() => {
                let StepParts { memory, state, .. } = cx.over_channel().parts();
                let mut line = [0u8; INLINE];
                let mut content = kind::NOTHING;
                if let Some(message) = message {
                    content = kind::MESSAGE;
                    describe_message(message.range.len, &mut line[..24]);
                }
                if let Some(open) = plan.open() {
                    describe(&memory.range_of(&open), &mut line[24..]);
                }
                state.publish(seq, content | flags, &line);
            }
            _ => {}
        }
        if let Some(message) = message {
            // Behind the line, which the reader finds once it has the message.
            let messages = self.messages.get_or_insert_default();
            messages.send_part(cx, message)?;
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, cx: &mut MessageContext<'_>) -> Result<Step> {
        // What the other rank waits for goes before what this one copies for itself.
        let mut written = 0;
        while written < STEP_MAX {
            match self.write_piece(cx.over_channel())? {
                0 => break,
                n => written += n,
            }
        }
        let Self {
            plan, push, lines, ..
        } = self;
        let pushed = push.step(plan, lines, cx.over_channel())?;
        let mut moved = written + pushed.moved + self.step_pieces(cx.over_channel())?;
        self.withdraw_for_pieces(cx);
        let mut index = 0;
        while index < self.pending.len() && moved < STEP_MAX {
            let place = self.pending[index];
            if self.got > 0 && index > 0 {
                break;
            }
            let channel = cx.over_channel();
            let phase = channel.state.channel_ends[place].phase(channel.seq);
            let Some(line) = self.lines.get_or_read(channel.state, place, channel.seq)? else {
                index += 1;
                continue;
            };
            let ByteRange { offset: to, len } = self.plan.takes.of(place);
            if line.content == Content::Pieces && channel.state.size() == 2 {
                // Of two ranks: it is the only one.
                break;
            }
            if line.content == Content::Message {
                if line.given.len != len as u64 {
                    return Err(member_buffer::mismatch(
                        channel.state,
                        place,
                        line.given.len,
                        len,
                    ));
                }
                let messages = self.messages.get_or_insert_default();
                messages.take(&self.plan, cx, place)?;
                self.pending.remove(index);
                continue;
            }
            if let Some(messages) = &mut self.messages {
                messages.withdraw(&mut cx.by_messages().messenger, place);
            }
            let channel = cx.over_channel();
            let reads = self.push.reads(&self.plan, &line, len);
            let part = MemberPart {
                place,
                line,
                to,
                len,
                reads,
            };
            let n = self.take(channel, &part)?;
            moved += n;
            self.got += n;
            if self.got == reads && has_come(reads, len, phase) {
                self.pending.remove(index);
                self.got = 0;
                // The rest was written here by its owner.
                let rank = channel.state.members[place];
                channel.tally.add(rank, LayerId::MAP, len - reads);
                moved += len - reads;
            } else {
                // The part that is under way stands first.
                if self.got > 0 {
                    self.pending.swap(0, index);
                    index = 0;
                }
                if n == 0 && self.got > 0 {
                    break;
                }
                index += usize::from(n == 0);
            }
        }
        let all = self.pending.is_empty()
            && pushed.over
            && self
                .pieces
                .as_ref()
                .is_none_or(|pieces| pieces.is_written())
            && match &mut self.messages {
                Some(messages) => messages.came(cx)?,
                None => true,
            };
        Ok(match (all, moved) {
            (true, _) => Step::Done,
            (false, 0) => Step::Idle,
            (false, _) => Step::Moved,
        })
    }

    /// See [`super::op::Operation::awaits`].
    pub(crate) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        let takes = self.pending.contains(&place);
        if self.awaits_pieces(state, seq) {
            return true;
        }
        let phase = state.channel_ends[place].phase(seq);
        if phase == 0 {
            return takes || self.push.awaits(place);
        }
        let len = self.plan.takes.of(place).len;
        let line = self.lines.cached(place).filter(|_| takes);
        line.is_some_and(|line| !has_come(self.push.reads(&self.plan, &line, len), len, phase))
    }

    /// Takes bytes of a part for this rank, all or the next of them.
    fn take(&mut self, cx: &mut StepContext<'_>, part: &MemberPart) -> Result<usize> {
        let Some(recv) = self.plan.recv else {
            return Ok(part.reads);
        };
        let &MemberPart {
            place,
            line,
            to,
            len,
            ..
        } = part;
        let state = &*cx.state;
        let all = match line.content {
            Content::Inline(all) | Content::Slot(all) | Content::Spare(_, all) => all,
            Content::Nothing | Content::Buffer | Content::Message | Content::Pieces => {
                usize::try_from(line.given.len).unwrap_or(usize::MAX)
            }
        };
        // Where this rank's part is, what it is a part of, and how long that is to be.
        let (offset, there, expected) = match self.lines.entry(state, place, cx.seq)? {
            Some(entry) => (entry.offset, entry.len, len),
            // Of equal parts, only the sum shows whether they are as long as this rank thinks.
            None => {
                let find = self.plan.find;
                let sum = find.all(len, state.size());
                (find.begin(len, state.me), all, sum)
            }
        };
        let mismatch = || member_buffer::mismatch(state, place, there as u64, expected);
        if there != expected {
            return Err(mismatch());
        }
        match line.content {
            Content::Inline(_) | Content::Slot(_) | Content::Spare(..) => {
                let view = state.in_channel(place, cx.seq, &line, ByteRange { offset, len });
                let view = view.ok_or_else(mismatch)?;
                cx.memory.loans().write(recv.range(to, len), |out| {
                    view.copy_to(out, Kernel::Memcpy);
                })?;
                let rank = state.members[place];
                cx.tally.add(rank, LayerId::CHUNKS, len);
                Ok(len)
            }
            Content::Buffer => self.take_of_buffer(cx, part, offset, recv),
            Content::Nothing | Content::Message | Content::Pieces => Err(mismatch()),
        }
    }

    /// Reads the next bytes of a part that begins at byte `offset` of its owner's buffer.
    fn take_of_buffer(
        &self,
        cx: &mut StepContext<'_>,
        part: &MemberPart,
        offset: usize,
        recv: Loan,
    ) -> Result<usize> {
        let (place, reads, seq) = (part.place, part.reads, cx.seq);
        let (peers, state) = (cx.memory.peers(), &*cx.state);
        let source = MemberBuffer::of(&part.line, seq, place, GIVEN);
        if self.got == 0
            && offset
                .checked_add(reads)
                .is_some_and(|end| end as u64 <= source.range.len)
        {
            // The page tables for all of it are filled in one call.
            let all = source.range.part(offset as u64, reads as u64);
            let _ = reader::view(peers, state, place, &all);
        }
        let most = match source.range.heap {
            Some(_) => READ_MAPPED,
            None => READ_MAX,
        };
        let n = (reads - self.got).min(most);
        let next = place_of(seq, reads, self.got, n);
        let Some(offset) = offset.checked_add(next) else {
            return Err(member_buffer::mismatch(
                state,
                place,
                part.len as u64,
                part.len,
            ));
        };
        let target = CopyTarget::Loan(recv, part.to + next);
        reader::fetch(cx, &source, ByteRange { offset, len: n }, target)
    }
}

/// What a rank gives, and how.
pub(crate) struct GivenPiece {
    pub(crate) piece: LoanRange,
    /// Whether this rank's result replaces it, while others may still read it. Then it does not stand where it is.
    pub(crate) is_replaced: bool,
    /// A part of it that nobody else reads.
    pub(crate) unread: Range<usize>,
    pub(crate) readers: Readers,
    /// A second buffer, where the rank receives.
    pub(crate) result: Option<LoanRange>,
    /// For the line, beside its kind.
    pub(crate) flags: u8,
}

/// Publishes what a rank gives, in the way that suits its size and place and how the members of its node do it. A
/// second buffer is described with it, if there is one.
pub(crate) fn give(cx: &mut StepContext<'_>, scheme: NodeScheme, given: GivenPiece) -> Result<()> {
    let StepParts { memory, state, .. } = cx.parts();
    let piece = given.piece;
    let in_place = piece.len > COLL_SLOT && !given.is_replaced;
    let mapped = in_place && memory.range_of(&piece).heap.is_some();
    let placement = scheme.placement(piece.len, mapped, &state.placement_limits(false));
    match placement {
        Placement::Line | Placement::Slot => give_short(cx, piece),
        _ => expose(cx, given, placement),
    }
}

/// Publishes what a rank gives in its line, or in the slot next to it.
pub(super) fn give_short(cx: &mut StepContext<'_>, piece: LoanRange) -> Result<()> {
    let StepParts {
        memory, state, seq, ..
    } = cx.parts();
    if piece.len > INLINE {
        state.need_slots(memory.home())?;
    }
    let loans = memory.loans();
    loans.read(piece, |bytes| {
        state.publish_short(seq, bytes, || iter::once(0..piece.len));
    })?;
    Ok(())
}

/// Publishes where a rank's bytes are, or a temporary copy of them, for peers to read. What a collective leaves in its
/// result buffer is described with it.
fn expose(cx: &mut StepContext<'_>, given: GivenPiece, placement: Placement) -> Result<()> {
    let StepParts {
        memory,
        state,
        seq,
        shared,
        ..
    } = cx.parts();
    let GivenPiece {
        piece,
        unread,
        readers,
        result,
        mut flags,
        ..
    } = given;
    let mut line = [0u8; INLINE];
    if placement == Placement::Copy {
        shared.temp = memory.temp(&piece, unread)?;
        // That is neither of the two ways whose times are compared.
        shared.timed = None;
    }
    shared.readers = readers;
    if let Some(temp) = &shared.temp {
        describe(&range_of_temp(temp), &mut line[..24]);
        shared.served[GIVEN] = Some(Served::Temp);
    } else {
        describe(&memory.range_of(&piece), &mut line[..24]);
        shared.served[GIVEN] = Some(Served::Loan(piece));
    }
    match (&shared.temp, result) {
        // A share of the result is left in the temporary buffer, too.
        (Some(temp), _) if shared.shares => {
            flags &= !kind::OPEN;
            describe(&range_of_temp(temp), &mut line[24..]);
            shared.served[RESULT] = Some(Served::Temp);
        }
        (_, Some(result)) => {
            describe(&memory.range_of(&result), &mut line[24..]);
            shared.served[RESULT] = Some(Served::Loan(result));
        }
        _ => {}
    }
    state.publish(seq, kind::BUFFER | flags, &line);
    Ok(())
}

/// Whether the rest of a part is there, of whose `len` bytes this rank reads the first. What its owner writes to this
/// rank's buffer comes with its second phase.
fn has_come(reads: usize, len: usize, phase: u32) -> bool {
    reads == len || phase >= WRITTEN
}
