// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a send, on their way from a device to the host.
//!
//! # Safety
//! The program's memory is read from the first `advance` on until the source is settled. The caller that makes one
//! answers for that memory as long.
#![allow(unsafe_code, reason = "memory of the program")]

use super::{Activity, Buffer, DEPTH, Memory, Piece, SPARE, Settled, lock, no_memory, try_lock};
use crate::copies::{UnderWay, in_process, locate, start_all};
use crate::error::Error;
use crate::lane::Direction;
use crate::staging::CHUNK;
use cuda_sys::Library;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;

/// A piece that a device writes.
struct Coming {
    copies: UnderWay,
    range: Range<u64>,
    /// Of the order in which bytes were asked for.
    turn: u32,
    /// It goes on to plain memory.
    spare: bool,
}

/// What those who send see of a source.
struct Shown {
    wanted: Range<u64>,
    /// Counts how often bytes were asked for that are not the next ones.
    turn: u32,
    pieces: VecDeque<Piece>,
    /// Where the next piece begins.
    next: u64,
    /// Copies that a device has begun.
    under_way: usize,
    closed: bool,
    failed: Option<Error>,
}

/// What the copies of a source need.
struct Bringing {
    buffer: Buffer,
    turn: u32,
    next: u64,
    coming: VecDeque<Coming>,
}

/// The bytes of a send, on their way from a device.
pub struct Source {
    len: u64,
    shown: Mutex<Shown>,
    bringing: Mutex<Bringing>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a source of {} bytes", self.len)
    }
}

impl Source {
    /// A source of `len` bytes, which lie in these runs.
    ///
    /// # Safety
    /// The runs are memory of the program that it lets us read until [`Self::settled`] gives something.
    #[must_use]
    pub unsafe fn new(
        runs: impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) + Send + 'static,
        len: u64,
    ) -> Self {
        Self {
            len,
            shown: Mutex::new(Shown {
                wanted: 0..0,
                turn: 0,
                pieces: VecDeque::new(),
                next: 0,
                under_way: 0,
                closed: false,
                failed: None,
            }),
            bringing: Mutex::new(Bringing {
                buffer: Buffer {
                    runs: Box::new(runs),
                    lane: None,
                },
                turn: 0,
                next: 0,
                coming: VecDeque::with_capacity(DEPTH),
            }),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many bytes are here from the beginning of a range on. All of the range is wanted, and nothing before it.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn ready(&self, range: Range<u64>) -> Result<usize, Error> {
        let mut shown = lock(&self.shown);
        if let Some(error) = &shown.failed {
            return Err(error.clone());
        }
        while shown
            .pieces
            .front()
            .is_some_and(|piece| piece.end() <= range.start)
        {
            shown.pieces.pop_front();
        }
        let first = shown.pieces.front().map_or(shown.next, |piece| piece.start);
        let here = shown.pieces.front().map(Piece::end);
        shown.wanted = range.start..range.end.min(self.len);
        match here {
            Some(end) if first <= range.start => Ok((end - range.start) as usize),
            _ => {
                if first != range.start {
                    // They were asked for once more, or some are left out.
                    shown.pieces.clear();
                    shown.next = range.start;
                    shown.turn = shown.turn.wrapping_add(1);
                }
                Ok(0)
            }
        }
    }

    /// Shows bytes that are here. `false`: they are not.
    pub fn show(&self, offset: u64, len: usize, to: &mut dyn FnMut(usize, &[u8])) -> bool {
        let shown = lock(&self.shown);
        let Some(piece) = shown.pieces.front() else {
            return len == 0;
        };
        if offset < piece.start || offset + len as u64 > piece.end() {
            return false;
        }
        let start = (offset - piece.start) as usize;
        to(0, &piece.bytes()[start..start + len]);
        true
    }

    /// Brings nothing more.
    pub fn close(&self) {
        let mut shown = lock(&self.shown);
        shown.closed = true;
        shown.pieces.clear();
    }

    /// Whether no device reads the program's memory any more, nor will, and what has failed. Only if it is closed, or
    /// has failed.
    #[must_use]
    pub fn settled(&self) -> Settled {
        let shown = lock(&self.shown);
        match (&shown.failed, shown.closed) {
            _ if shown.under_way > 0 => None,
            (Some(error), _) => Some(Err(error.clone())),
            (None, true) => Some(Ok(())),
            (None, false) => None,
        }
    }

    /// Begins copies, and looks which are done.
    pub fn advance(&self) -> Activity {
        let Some(mut bringing) = try_lock(&self.bringing) else {
            return Activity::Waits;
        };
        let mut moved = false;
        if let Err(error) = self.step(&mut bringing, &mut moved) {
            lock(&self.shown).failed.get_or_insert(error);
            // Who sends has to be told.
            moved = true;
        }
        match (moved, bringing.coming.is_empty()) {
            (true, _) => Activity::Moved,
            (false, false) => Activity::Waits,
            (false, true) if self.may_begin(&bringing).is_some() => Activity::Waits,
            (false, true) => Activity::Rests,
        }
    }

    /// The range to begin with, if there is one and another piece may be under way.
    fn may_begin(&self, bringing: &Bringing) -> Option<(Range<u64>, u32, usize)> {
        let shown = lock(&self.shown);
        let next = match bringing.turn == shown.turn {
            true => bringing.next,
            false => shown.wanted.start,
        };
        let held = shown.pieces.len() + shown.under_way;
        let goes_on = !shown.closed && shown.failed.is_none();
        (goes_on && next < shown.wanted.end && held < DEPTH)
            .then(|| (next..shown.wanted.end, shown.turn, held))
    }

    fn step(&self, bringing: &mut Bringing, moved: &mut bool) -> Result<(), Error> {
        let driver = in_process()?;
        let mut failed = None;
        while let Some((range, turn, held)) = self.may_begin(bringing) {
            match self.begin(driver, bringing, range, turn, held) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        while let Some(done) = bringing.coming.front().and_then(|it| it.copies.outcome()) {
            let Some(first) = bringing.coming.pop_front() else {
                break;
            };
            *moved |= self.came(first, &done)?;
            failed = failed.or(done.err());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Begins to copy one piece. `false`: there is no chunk for it.
    fn begin(
        &self,
        driver: &'static Library,
        bringing: &mut Bringing,
        range: Range<u64>,
        turn: u32,
        held: usize,
    ) -> Result<bool, Error> {
        let start = range.start;
        let buffer = &mut bringing.buffer;
        let reserved = buffer.reserve(driver, start, Direction::ToHost)?;
        let spare = reserved.is_none();
        // A message that keeps nothing gets through without a reservation.
        if spare && held > 0 {
            return Ok(false);
        }
        let most = if spare { SPARE } else { CHUNK } as u64;
        let range = start..range.end.min(start + most);
        let located = locate(driver, &mut *buffer.runs, range.clone())?;
        let Some(chunk) = (match reserved {
            Some(chunk) => Some(chunk),
            None => located.chunk(driver)?,
        }) else {
            return Ok(false);
        };
        {
            let mut shown = lock(&self.shown);
            if shown.closed {
                return Ok(false);
            }
            shown.under_way += 1;
        }
        // SAFETY: the maker of this source answers for the runs until it is settled, which it is not while a copy
        // counts as under way.
        let (copies, failed) = unsafe { start_all(chunk, &located, Direction::ToHost) };
        if let Some(error) = &failed {
            lock(&self.shown).failed.get_or_insert(error.clone());
        }
        bringing.turn = turn;
        bringing.next = range.end;
        bringing.coming.push_back(Coming {
            copies,
            range,
            turn,
            spare,
        });
        failed.map_or(Ok(true), Err)
    }

    /// The copies of a piece are over. Gives whether it is here, and still wanted.
    fn came(&self, coming: Coming, outcome: &Result<(), Error>) -> Result<bool, Error> {
        let Coming {
            copies,
            range,
            turn,
            spare,
        } = coming;
        let Some(chunk) = copies.end(outcome) else {
            lock(&self.shown).under_way -= 1;
            return Ok(false);
        };
        let len = (range.end - range.start) as usize;
        let piece = if spare {
            let copied = Piece::plain(range.start, len).map(|mut piece| {
                chunk.read(0, piece.bytes_mut());
                piece
            });
            drop(chunk);
            copied
        } else {
            Some(Piece {
                memory: Memory::Chunk(chunk),
                start: range.start,
                len,
            })
        };
        let mut shown = lock(&self.shown);
        shown.under_way -= 1;
        let wanted = shown.turn == turn && !shown.closed && shown.failed.is_none();
        let piece = piece.ok_or_else(|| no_memory(len))?;
        if wanted {
            shown.next = piece.end();
            shown.pieces.push_back(piece);
        }
        Ok(wanted)
    }
}
