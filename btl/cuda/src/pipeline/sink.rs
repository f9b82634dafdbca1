// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a receive, on their way from the host to a device.
//!
//! # Safety
//! The program's memory is written from the first `advance` on until the sink is settled. The caller that makes one
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

/// Room for bytes of a receive, and how many have come.
struct Room {
    piece: Piece,
    written: usize,
}

impl Room {
    /// Where the next byte goes.
    fn at(&self) -> u64 {
        self.piece.start + self.written as u64
    }
}

/// What those who receive see of a sink.
struct Open {
    asked: Option<Range<u64>>,
    rooms: VecDeque<Room>,
    /// Pieces that have come and that nobody copies yet.
    filled: VecDeque<Piece>,
    /// Copies that a device has begun, and the piece of which some are.
    under_way: usize,
    failed: Option<Error>,
}

impl Open {
    /// Nothing more is copied.
    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        self.filled.clear();
        self.rooms.clear();
    }
}

/// What the copies of a sink need.
struct Taking {
    buffer: Buffer,
    /// The piece that is being copied, and how many of its bytes are begun.
    current: Option<(Piece, usize)>,
    leaving: VecDeque<UnderWay>,
}

/// The bytes of a receive, on their way to a device.
pub struct Sink {
    len: u64,
    open: Mutex<Open>,
    taking: Mutex<Taking>,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a sink of {} bytes", self.len)
    }
}

impl Sink {
    /// A sink of `len` bytes, which lie in these runs.
    ///
    /// # Safety
    /// The runs are memory of the program that it lets us write until [`Self::settled`] gives something and nothing
    /// more comes.
    #[must_use]
    pub unsafe fn new(
        runs: impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) + Send + 'static,
        len: u64,
    ) -> Self {
        Self {
            len,
            open: Mutex::new(Open {
                asked: None,
                rooms: VecDeque::new(),
                filled: VecDeque::new(),
                under_way: 0,
                failed: None,
            }),
            taking: Mutex::new(Taking {
                buffer: Buffer {
                    runs: Box::new(runs),
                    lane: None,
                },
                current: None,
                leaving: VecDeque::with_capacity(DEPTH),
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

    /// How many bytes have room from the beginning of a range on. If there is none, it is asked for.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn room(&self, range: Range<u64>) -> Result<u64, Error> {
        let mut open = lock(&self.open);
        if let Some(error) = &open.failed {
            return Err(error.clone());
        }
        if open
            .rooms
            .front()
            .is_some_and(|room| room.at() == range.start)
        {
            let end = open
                .rooms
                .back()
                .map_or(range.start, |room| room.piece.end());
            return Ok(end.min(range.end) - range.start);
        }
        open.rooms.clear();
        open.asked = Some(range);
        Ok(0)
    }

    /// Lets `from` write bytes. `false`: nothing more is taken, since a copy has failed.
    pub fn take(&self, offset: u64, len: usize, from: &mut dyn FnMut(usize, &mut [u8])) -> bool {
        let mut open = lock(&self.open);
        if open.failed.is_some() {
            return false;
        }
        if len == 0 {
            from(0, &mut []);
        }
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let Some(room) = open.rooms.front_mut().filter(|room| room.at() == at) else {
                // What comes unasked is short: its sender's credit bounds it.
                let Some(mut piece) = Piece::plain(at, len - done) else {
                    open.fail(no_memory(len - done));
                    return false;
                };
                from(done, piece.bytes_mut());
                open.filled.push_back(piece);
                break;
            };
            let n = (len - done).min(room.piece.len - room.written);
            let written = room.written;
            from(done, &mut room.piece.bytes_mut()[written..written + n]);
            room.written += n;
            done += n;
            if room.written == room.piece.len
                && let Some(room) = open.rooms.pop_front()
            {
                open.filled.push_back(room.piece);
            }
        }
        true
    }

    /// Whether all that has come is where it belongs, or a copy has failed. No device writes the program's memory then.
    #[must_use]
    pub fn settled(&self) -> Settled {
        let open = lock(&self.open);
        match &open.failed {
            _ if open.under_way > 0 => None,
            Some(error) => Some(Err(error.clone())),
            None if open.filled.is_empty() => Some(Ok(())),
            None => None,
        }
    }

    /// Makes room, begins copies, and looks which are done.
    pub fn advance(&self) -> Activity {
        let Some(mut taking) = try_lock(&self.taking) else {
            return Activity::Waits;
        };
        let mut moved = false;
        if let Err(error) = self.step(&mut taking, &mut moved) {
            let mut open = lock(&self.open);
            open.fail(error);
            if taking.current.take().is_some() {
                open.under_way -= 1;
            }
            moved = true;
        }
        let open = lock(&self.open);
        let works = open.under_way > 0 || !open.filled.is_empty() || open.asked.is_some();
        match (moved, works && open.failed.is_none() || open.under_way > 0) {
            (true, _) => Activity::Moved,
            (false, true) => Activity::Waits,
            (false, false) => Activity::Rests,
        }
    }

    fn step(&self, taking: &mut Taking, moved: &mut bool) -> Result<(), Error> {
        let driver = in_process()?;
        // First what is done: its chunks serve what follows.
        let mut failed = self.look(taking, moved);
        if failed.is_none() {
            failed = self.begin_all(driver, taking).err();
        }
        if failed.is_none() {
            failed = self.make_room(driver, taking, moved).err();
        }
        failed.map_or(Ok(()), Err)
    }

    /// Looks which copies are done. Gives what has failed.
    fn look(&self, taking: &mut Taking, moved: &mut bool) -> Option<Error> {
        let mut failed = None;
        while let Some(done) = UnderWay::end_first(&mut taking.leaving) {
            failed = failed.or(done.err());
            let mut open = lock(&self.open);
            open.under_way -= 1;
            *moved |= open.under_way == 0;
        }
        failed
    }

    fn begin_all(&self, driver: &'static Library, taking: &mut Taking) -> Result<(), Error> {
        loop {
            if taking.current.is_none() {
                let mut open = lock(&self.open);
                let Some(piece) = open.filled.pop_front() else {
                    return Ok(());
                };
                open.under_way += 1;
                taking.current = Some((piece, 0));
            }
            let Some((piece, begun)) = taking.current.take() else {
                return Ok(());
            };
            match self.begin(driver, taking, piece, begun) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    lock(&self.open).under_way -= 1;
                    return Err(error);
                }
            }
        }
    }

    /// Begins to copy a piece, of which so many bytes are begun. `false`: there is no chunk for the rest.
    fn begin(
        &self,
        driver: &'static Library,
        taking: &mut Taking,
        piece: Piece,
        begun: usize,
    ) -> Result<bool, Error> {
        let Piece { memory, start, len } = piece;
        let end = len.min(begun + CHUNK);
        let range = start + begun as u64..start + end as u64;
        let located = locate(driver, &mut *taking.buffer.runs, range)?;
        let (chunk, rest) = match memory {
            Memory::Chunk(chunk) => (chunk, None),
            Memory::Plain(bytes) => {
                let Some(mut chunk) = located.chunk(driver)? else {
                    let memory = Memory::Plain(bytes);
                    taking.current = Some((Piece { memory, start, len }, begun));
                    return Ok(false);
                };
                chunk.write(0, &bytes[begun..end]);
                (chunk, Some(bytes).filter(|_| end < len))
            }
        };
        lock(&self.open).under_way += 1;
        // SAFETY: the maker of this sink answers for the runs until it is settled, which it is not while a copy counts
        // as under way.
        let (begun, failed) = unsafe { start_all(chunk, &located, Direction::ToDevice) };
        taking.leaving.push_back(begun);
        if let Some(error) = failed {
            return Err(error);
        }
        match rest {
            Some(bytes) => {
                let memory = Memory::Plain(bytes);
                taking.current = Some((Piece { memory, start, len }, end));
            }
            None => lock(&self.open).under_way -= 1,
        }
        Ok(true)
    }

    /// Makes room, if that was asked for.
    fn make_room(
        &self,
        driver: &'static Library,
        taking: &mut Taking,
        moved: &mut bool,
    ) -> Result<(), Error> {
        let Some(range) = lock(&self.open).asked.clone() else {
            return Ok(());
        };
        let mut rooms = VecDeque::new();
        let mut start = range.start;
        let end = range.end.min(self.len);
        while start < end && rooms.len() < DEPTH {
            let reserved = taking.buffer.reserve(driver, start, Direction::ToDevice)?;
            let piece = match reserved {
                Some(chunk) => Piece {
                    memory: Memory::Chunk(chunk),
                    start,
                    len: CHUNK.min((end - start) as usize),
                },
                None if rooms.is_empty() && lock(&self.open).under_way == 0 => {
                    let len = SPARE.min((end - start) as usize);
                    Piece::plain(start, len).ok_or_else(|| no_memory(len))?
                }
                None => break,
            };
            start = piece.end();
            rooms.push_back(Room { piece, written: 0 });
        }
        let mut open = lock(&self.open);
        if !rooms.is_empty() && open.asked == Some(range) {
            open.asked = None;
            open.rooms = rooms;
            *moved = true;
        }
        Ok(())
    }
}
