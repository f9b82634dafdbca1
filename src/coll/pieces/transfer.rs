// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that go between two ranks piece by piece, through a *bounce buffer* that both map.
//!
//! Where both give pieces, they *cross* them. A rank writes its next piece where it has read the other's one just now.
//! Those lines are in its cache, and each travels once for two pieces. Lines of a bounce buffer of its own would have
//! to come back from their reader each time. And who has read a piece may write there, so nobody waits for room.

use super::super::ByteRange;
use super::super::context::{StepContext, StepParts};
use super::super::contribution::{
    Contribution, GIVEN, Readers, Served, describe, describe_message, range_of_temp,
};
use super::super::lines::{self, Lines};
use super::super::member_buffer::{self, CopyTarget, MemberBuffer, mismatch, part};
use super::super::push::{WriteSource, WriteTarget, put_to_all, reaches_all};
use super::super::reader;
use super::super::select::TEMP_LIMIT;
use super::super::state::CommState;
use super::kept::{KeptBounce, KeptBuffer, PIECE};
use crate::error::Result;
use onecopy_btl::RemoteRange;
use onecopy_shm::coll::{CheckedLine, Content, INLINE, kind};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::layout::LINE;
use onecopy_shm::loan::LoanRange;

/// Bytes of a bounce buffer. Where lines return that the other rank read just now, each costs a hand-off. So a short
/// vector does not begin where the one before did, unless ranks cross pieces.
const BOUNCE: usize = TEMP_LIMIT;
/// Pieces of each rank that are under way where the two cross them: while one is read, the next is written. More only
/// take more lines. 256 KiB took 12.0 us with two, 13.8 with four (D, near, 11-30; docs/performance.md,
/// "Collectives").
const CROSSED: usize = 2;
/// Looks at the other rank's line between two rounds of progress. They take about as long as a piece, and a round costs
/// half as much. With a round between two looks 64 KiB took 15.9 instead of 11.2 us (A, 11-29; docs/performance.md,
/// "Collectives"). The number is chosen by magnitude.
const POLLS: usize = 128;

/// Where a piece stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coll) enum PieceLocation {
    /// In memory of the other rank.
    There(RemoteRange),
    /// In this rank's bounce buffer, from this byte on.
    Here(usize),
}

/// Where a rank's pieces stand.
#[derive(Debug, Clone, Copy)]
enum Bounce {
    /// In a temporary buffer of the collective.
    Temp,
    /// In a buffer that the communicator keeps.
    Kept(KeptBuffer),
}

/// What two ranks give each other in pieces, as one of them sees it.
pub(in crate::coll) struct PieceTransfer {
    /// Bytes of an element, of which a piece has whole ones.
    elem: usize,
    /// What this rank gives, in pieces or not.
    given: LoanRange,
    /// Whether it gives pieces, where they stand, and how far it has written them.
    gives: bool,
    bounce: Bounce,
    /// How many the buffer has room for.
    room: usize,
    written: Progress,
    /// How far it has read what it takes.
    read: Progress,
    taken: usize,
    /// Whether its line says that it crosses pieces with one that does, too.
    may_cross: bool,
    /// The other rank's line, once it was read, and whether the two cross pieces.
    line: Option<CheckedLine>,
    crosses: bool,
}

/// How far a vector has gone in pieces of `unit` bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    unit: usize,
    bytes: usize,
    pieces: usize,
}

impl Progress {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.pieces += 1;
    }
}

impl PieceTransfer {
    /// `elem`: bytes of an element; no more than [`PIECE`], if this rank gives pieces.
    pub(in crate::coll) fn new(given: LoanRange, taken: usize, elem: usize) -> Self {
        Self {
            elem: elem.max(1),
            given,
            gives: false,
            bounce: Bounce::Temp,
            room: BOUNCE / PIECE,
            written: Progress::default(),
            read: Progress::default(),
            taken,
            may_cross: false,
            line: None,
            crosses: false,
        }
    }

    /// Begins to give pieces to the other rank: the first one is written, and the line published. `false`: there is no
    /// bounce buffer, and nothing has happened.
    pub(in crate::coll) fn begin(&mut self, cx: &mut StepContext<'_>) -> Result<bool> {
        let StepParts { memory, shared, .. } = cx.parts();
        let Some(bounce) = memory.pool().try_take_collective(BOUNCE) else {
            return Ok(false);
        };
        let range = range_of_temp(&bounce);
        shared.temp = Some(bounce);
        shared.served[GIVEN] = Some(Served::Temp);
        shared.readers = Readers::Everyone;
        self.publish_first(cx, &range, 0)?;
        Ok(true)
    }

    /// The same in a [kept buffer](super::kept). `false`: there is none for this collective.
    pub(in crate::coll) fn begin_kept(&mut self, cx: &mut StepContext<'_>) -> Result<bool> {
        let StepParts {
            memory,
            state,
            seq,
            shared,
            ..
        } = cx.parts();
        let both = self.taken > 0;
        if !shared.alone || !reaches_all(memory.peers(), state) {
            return Ok(false);
        }
        let other = 1 - state.me;
        let lent = state.bounce.lent();
        let is_read = lent.is_none_or(|seq| state.has_read(other, seq));
        let (kept, pool) = (&mut state.bounce, memory.pool());
        let Some(chosen) = kept.choose(pool, self.given.len, both, is_read) else {
            return Ok(false);
        };
        let (range, flag) = match chosen {
            KeptBuffer::Own => {
                let range = state.bounce.own.as_ref().map(range_of_temp);
                (range.unwrap_or(NOWHERE), kind::OPEN)
            }
            KeptBuffer::Theirs(theirs) => {
                self.room = theirs.len as usize / PIECE;
                state.bounce.give_back();
                (NOWHERE, kind::RETURNED)
            }
        };
        if let KeptBuffer::Own = chosen {
            self.room = range.len as usize / PIECE;
            state.bounce.lend(seq);
            shared.served[GIVEN] = Some(Served::Kept);
        }
        // Who takes nothing is timed seldom, since it has to wait then: how long the other one reads is a part of that.
        shared.timed = shared.timed.filter(|timed| both || !timed.is_usual);
        let waits = !state.bounce.is_mapped() || !both && shared.timed.is_some();
        shared.readers = match waits {
            true => Readers::Everyone,
            false => Readers::Nobody,
        };
        self.bounce = Bounce::Kept(chosen);
        self.publish_first(cx, &range, flag)?;
        Ok(true)
    }

    fn publish_first(
        &mut self,
        cx: &mut StepContext<'_>,
        bounce: &RemoteRange,
        flag: u8,
    ) -> Result<()> {
        let mut line = [0u8; INLINE];
        describe(bounce, &mut line[..24]);
        describe_message(self.given.len, &mut line[24..]);
        let blocking = cx.shared.blocking;
        let StepParts { memory, state, .. } = cx.parts();
        self.gives = true;
        self.may_cross = self.taken > 0 && blocking && reaches_all(memory.peers(), state);
        self.written.unit = self.unit(self.given.len, self.may_cross || flag != 0);
        self.copy_piece(cx)?;
        let StepParts {
            memory, state, seq, ..
        } = cx.parts();
        let crosses = if self.may_cross { kind::WRITES } else { 0 };
        state.publish_in(seq, 2, kind::PIECES | crosses | flag, &line);
        memory.counters().coll_in_pieces += 1;
        Ok(())
    }

    /// The other rank's line has come.
    pub(in crate::coll) fn note(&mut self, state: &mut CommState, line: CheckedLine) {
        let in_pieces = line.content == Content::Pieces;
        let is_long = line.given.len >= (CROSSED * PIECE) as u64;
        let crosses = in_pieces && line.has(kind::WRITES) && is_long && !line.has(kind::RETURNED);
        self.read.unit = self.unit(self.taken, in_pieces && is_from_front(&line));
        self.crosses = self.may_cross && crosses;
        self.line = Some(line);
        if crosses || in_pieces && line.has(kind::RETURNED) {
            state.bounce.note_mapped();
        }
        if crosses {
            // It is written by its owner now.
            state.bounce.give_back();
        }
    }

    /// This rank's buffer for pieces, its own or the temporary one.
    pub(in crate::coll) fn here<'h>(
        &self,
        kept: &'h KeptBounce,
        shared: &'h Contribution,
    ) -> &'h [u8] {
        let is_returned = self.line.is_some_and(|line| line.has(kind::RETURNED));
        match self.bounce {
            Bounce::Temp if !is_returned => shared.temp.as_deref().unwrap_or_default(),
            _ => kept.own(),
        }
    }

    /// The other rank's line, once it was read.
    pub(in crate::coll) fn line(&self) -> Option<&CheckedLine> {
        self.line.as_ref()
    }

    /// Whether the other rank gives pieces; none: its line was not read.
    pub(in crate::coll) fn other_gives(&self) -> Option<bool> {
        let line = self.line.as_ref();
        line.map(|line| line.content == Content::Pieces)
    }

    /// Whether the other rank's line says where the next piece goes, and was not read.
    pub(in crate::coll) fn lacks_line(&self) -> bool {
        self.may_cross && self.line.is_none() && !self.is_written()
    }

    /// Whether this rank gives pieces.
    pub(in crate::coll) fn gives(&self) -> bool {
        self.gives
    }

    /// Bytes of its own that it has written.
    pub(in crate::coll) fn written(&self) -> usize {
        self.written.bytes
    }

    /// Bytes of the other rank's that it has read.
    pub(in crate::coll) fn read(&self) -> usize {
        self.read.bytes
    }

    /// Bytes of the longest piece.
    pub(in crate::coll) fn most(&self) -> usize {
        (PIECE / self.elem * self.elem).max(self.elem)
    }

    /// Bytes of a piece of one that gives `len` bytes; `from_front`: see [`is_from_front`]. Where ranks cross pieces,
    /// the last ones stand in the other rank's bounce buffer then. So this rank has the lines of its own in its cache
    /// when it begins again.
    fn unit(&self, len: usize, from_front: bool) -> usize {
        let most = self.most();
        if !from_front {
            return most;
        }
        let pieces = len.div_ceil(2 * CROSSED * most).max(1) * 2 * CROSSED;
        let unit = (len / self.elem).div_ceil(pieces).max(1) * self.elem;
        match LINE.is_multiple_of(self.elem) {
            true => unit.next_multiple_of(LINE),
            false => unit,
        }
    }

    /// Bytes of a piece that it reads, once the other rank's line is known.
    pub(in crate::coll) fn taken_unit(&self) -> usize {
        self.read.unit
    }

    /// Bytes of the next piece to read; 0: there is none.
    pub(in crate::coll) fn next_bytes(&self) -> usize {
        self.read.unit.min(self.taken - self.read.bytes)
    }

    /// Whether all that this rank gives in pieces is written.
    pub(in crate::coll) fn is_written(&self) -> bool {
        !self.gives || self.written.bytes == self.given.len
    }

    /// Fails if neither can go on: both only give, since they called with different roots. Each waits for room then.
    pub(in crate::coll) fn check_roots(
        &self,
        lines: &mut Lines,
        state: &CommState,
        seq: u32,
    ) -> Result<()> {
        if self.taken > 0 || self.is_written() || self.has_room(state, seq) {
            return Ok(());
        }
        let other = 1 - state.me;
        match lines.get_or_read(state, other, seq)? {
            Some(line) if line.content == Content::Pieces => {
                Err(member_buffer::unlike(state.members[other] as usize))
            }
            _ => Ok(()),
        }
    }

    /// Whether all is read.
    pub(in crate::coll) fn is_read(&self) -> bool {
        self.read.bytes == self.taken
    }

    /// Whether there is room for the next piece.
    pub(in crate::coll) fn has_room(&self, state: &CommState, seq: u32) -> bool {
        let index = self.written.pieces;
        let read = || state.channel_ends[1 - state.me].ack(seq) as usize;
        if !self.may_cross || self.line.is_some() && !self.crosses {
            return index < self.room + read();
        }
        let Some(before) = index.checked_sub(CROSSED) else {
            // The first ones stand in the bounce buffer, whatever the other rank does.
            return true;
        };
        // It goes where the other rank's stood. Where that gives no more, this rank's own stood there before.
        match before * self.read.unit < self.taken {
            true => self.crosses && self.read.pieces > before,
            false => index < 2 * CROSSED + read(),
        }
    }

    #[inline]
    pub(in crate::coll) fn can_write(&self, state: &CommState, seq: u32) -> bool {
        !self.is_written() && self.has_room(state, seq)
    }

    /// Writes the next piece, if there is room. Gives its bytes.
    pub(in crate::coll) fn write(&mut self, cx: &mut StepContext<'_>) -> Result<usize> {
        if !self.can_write(cx.state, cx.seq) {
            return Ok(0);
        }
        let n = self.copy_piece(cx)?;
        cx.state.advance(cx.seq, phase_of(self.written.pieces));
        Ok(n)
    }

    fn copy_piece(&mut self, cx: &mut StepContext<'_>) -> Result<usize> {
        let StepParts {
            memory,
            state,
            seq,
            shared,
            ..
        } = cx.parts();
        let Progress { unit, bytes, .. } = self.written;
        let n = unit.min(self.given.len - bytes);
        let LoanRange { loan, offset, .. } = self.given;
        let from = offset + bytes;
        match self.written_at(seq) {
            PieceLocation::There(range) => {
                let targets = [WriteTarget {
                    place: 1 - state.me,
                    range,
                }];
                let source = WriteSource::Loan(loan, from);
                put_to_all(memory, state, &targets, ByteRange::first(n), source)?;
            }
            PieceLocation::Here(at) => {
                let bounce = match self.bounce {
                    Bounce::Temp => shared.temp.as_deref_mut().unwrap_or_default(),
                    Bounce::Kept(_) => state.bounce.own_mut(),
                };
                memory.loans().read(loan.range(from, n), |bytes| {
                    copy_slices(Kernel::Memcpy, &mut bounce[at..at + n], bytes);
                })?;
            }
        }
        self.written.add(n);
        Ok(n)
    }

    /// Where the next piece of this rank's goes.
    fn written_at(&self, seq: u32) -> PieceLocation {
        let index = self.written.pieces;
        let there = |range: RemoteRange, at: usize| {
            PieceLocation::There(range.part(at as u64, PIECE as u64))
        };
        if let (true, Some(line)) = (self.crosses, &self.line) {
            let at = index % CROSSED * PIECE;
            return match is_crossed(index) {
                true => there(lines::range(line.given), at),
                false => PieceLocation::Here(at),
            };
        }
        match self.bounce {
            Bounce::Kept(KeptBuffer::Theirs(range)) => there(range, index % self.room * PIECE),
            Bounce::Kept(KeptBuffer::Own) => PieceLocation::Here(index % self.room * PIECE),
            Bounce::Temp if self.may_cross => PieceLocation::Here(index % self.room * PIECE),
            Bounce::Temp => PieceLocation::Here(self.turned(index, self.given.len, self.room, seq)),
        }
    }

    /// Where a piece stands in a temporary buffer, of so many pieces, of one that gives `len` bytes, if ranks do not
    /// cross them. Both know.
    fn turned(&self, index: usize, len: usize, room: usize, seq: u32) -> usize {
        let first = (seq as usize).wrapping_mul(len.div_ceil(self.most()));
        first.wrapping_add(index) % room * PIECE
    }

    /// Whether the other rank has the next piece, or its line if that was not read.
    #[inline]
    pub(in crate::coll) fn is_there(&self, state: &CommState, seq: u32) -> bool {
        let phase = match self.other_gives() {
            Some(true) => phase_of(self.read.pieces + 1),
            _ => 1,
        };
        !state.lacks(1 - state.me, seq, phase)
    }

    /// Where the next piece of the other rank's stands, which is there; `line`: its line.
    pub(in crate::coll) fn read_at(
        &self,
        state: &CommState,
        seq: u32,
        line: &CheckedLine,
    ) -> Result<PieceLocation> {
        let (other, there) = (1 - state.me, line.result.len);
        let is_returned = line.has(kind::RETURNED);
        let bytes = match is_returned {
            true => state.bounce.own_bytes(),
            false => line.given.len as usize,
        };
        let room = bytes / PIECE;
        let is_good = line.content == Content::Pieces
            && room >= CROSSED
            && self.most() <= PIECE
            && !(is_returned && line.has(kind::WRITES));
        if !is_good || there != self.taken as u64 {
            return Err(mismatch(state, other, there, self.taken));
        }
        let index = self.read.pieces;
        if self.crosses {
            let at = index % CROSSED * PIECE;
            return match is_crossed(index) {
                true => Ok(PieceLocation::Here(at)),
                false => self.there(state, seq, line, at),
            };
        }
        let at = match is_from_front(line) {
            true => index % room * PIECE,
            false => self.turned(index, self.taken, room, seq),
        };
        match is_returned {
            true => Ok(PieceLocation::Here(at)),
            false => self.there(state, seq, line, at),
        }
    }

    /// The next bytes to read, from byte `at` on of the buffer that the other rank's line describes.
    pub(in crate::coll) fn there(
        &self,
        state: &CommState,
        seq: u32,
        line: &CheckedLine,
        at: usize,
    ) -> Result<PieceLocation> {
        let source = MemberBuffer::of(line, seq, 1 - state.me, GIVEN);
        let wanted = ByteRange {
            offset: at,
            len: self.next_bytes(),
        };
        part(state, &source, wanted).map(PieceLocation::There)
    }

    /// Reads the next bytes, which stand at `range` of what the other rank's line describes, to `target`. As many as it
    /// gives are there now.
    pub(in crate::coll) fn fetch(
        &self,
        cx: &mut StepContext<'_>,
        line: &CheckedLine,
        range: &RemoteRange,
        target: CopyTarget<'_>,
    ) -> Result<usize> {
        let source = MemberBuffer::of(line, cx.seq, 1 - cx.state.me, GIVEN);
        let wanted = ByteRange {
            offset: range.address.wrapping_sub(source.range.address) as usize,
            len: self.next_bytes(),
        };
        reader::fetch(cx, &source, wanted, target)
    }

    /// The next piece, of `n` bytes, is read.
    pub(in crate::coll) fn has_read(
        &mut self,
        state: &mut CommState,
        seq: u32,
        n: usize,
    ) -> Result<()> {
        state.failure_of(1 - state.me).map_or(Ok(()), Err)?;
        self.read.add(n);
        // Who crosses pieces sees by the next piece written that this one was read, unless the other rank gives more.
        if !self.crosses || self.given.len != self.taken {
            let pieces = u32::try_from(self.read.pieces).unwrap_or(u32::MAX);
            state.own().set_ack(seq, pieces);
            state.wake();
        }
        if self.is_read()
            && self.other_gives() == Some(true)
            && let Some(line) = &self.line
        {
            self.note_read(&mut state.bounce, line);
        }
        Ok(())
    }

    /// All pieces of the other rank's are read.
    fn note_read(&self, kept: &mut KeptBounce, line: &CheckedLine) {
        let is_kept = matches!(self.bounce, Bounce::Kept(_));
        if self.crosses {
            // The last pieces in this rank's buffer are those that it has just read, unless one has none.
            if is_kept
                && self.read.pieces.is_multiple_of(2 * CROSSED)
                && self.given.len == self.taken
            {
                kept.is_returned();
            }
        } else if line.has(kind::RETURNED) {
            kept.is_returned();
        } else if line.has(kind::OPEN) {
            kept.borrow(lines::range(line.given));
        }
    }

    /// Polls until `ready` says so, if the program waits. Says whether it has.
    #[inline]
    pub(in crate::coll) fn poll(
        cx: &StepContext<'_>,
        ready: impl Fn(&CommState, u32) -> bool,
    ) -> bool {
        if !cx.shared.blocking {
            return false;
        }
        // Where ranks take turns, the other one may be waiting for this processor.
        let polls = cx.memory.spin().clamp(1, POLLS);
        (0..polls).any(|_| {
            onecopy_shm::sync::spin_hint();
            ready(cx.state, cx.seq)
        })
    }
}

/// Whether the first piece stands at the front of its buffer, whose lines the writer has. Otherwise it does not begin
/// where the one before did.
fn is_from_front(line: &CheckedLine) -> bool {
    [kind::WRITES, kind::OPEN, kind::RETURNED]
        .iter()
        .any(|&flag| line.has(flag))
}

/// No buffer of this rank's.
const NOWHERE: RemoteRange = RemoteRange {
    address: 0,
    heap: None,
    region: None,
    len: 0,
};

/// Whether this piece of a rank's stands in the other one's bounce buffer, where the two cross pieces.
fn is_crossed(index: usize) -> bool {
    index / CROSSED % 2 == 1
}

/// The phase of a line whose owner has written so many pieces.
fn phase_of(pieces: usize) -> u32 {
    u32::try_from(pieces + 1).unwrap_or(u32::MAX)
}
