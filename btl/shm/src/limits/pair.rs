// SPDX-License-Identifier: MIT OR Apache-2.0
//! One side of a measurement.

use super::arena::{Arena, Pool, STOP};
use super::kernels::copy;
use super::{Batch, CopyKernel, Flow, Limit, LimitError, Mode, PageBuf, Pages};
use crate::sync::Ordering;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

// Byte offsets in the control area. Words that different sides write are at least 256 bytes apart. The rings have 64
// KiB each, as many slots as [`RING_SLOTS`]. Where the offsets lie decides nothing else.
const BARRIER: [usize; 2] = [0, 256];
const PROBE: [usize; 2] = [512, 768];
const CARD: [usize; 2] = [1536, 1792];
const DIRECTION: [usize; 2] = [4096, 5 * 4096];
const NEXT_FLAG: usize = 128;
const NEXT_LINE: usize = 192;
const DONE: usize = 1024;
const ACK: usize = 2048;
const RING: [usize; 2] = [64 << 10, 128 << 10];
const RING_SLOTS: u64 = 1024;

/// Looks between two looks at the clock, so that the clock is no part of what is measured. Chosen by magnitude: they
/// take about a millisecond, and a clock tens of nanoseconds.
const SPINS: u32 = 1 << 16;
/// How long a side waits for the other one: longer than any single batch, also on a loaded machine.
const SILENCE: Duration = Duration::from_secs(20);

/// One side of a measurement: both sides make the same calls in the same order.
#[derive(Debug)]
pub struct Pair {
    arena: Arena,
    side: usize,
    barriers: u64,
    probes: u64,
    messages: u64,
    slots: [u64; 2],
    ready: usize,
    private: [Option<Private>; 2],
    pages: Pages,
    offset: usize,
    cma_refused: Option<Errno>,
}

/// Private buffers of this side on one kind of pages, and where the peer has its own.
#[derive(Debug)]
struct Private {
    source: PageBuf,
    destination: PageBuf,
    peer: Pid,
    peer_source: usize,
    peer_destination: usize,
}

impl Pair {
    /// Side 0 or side 1 of a measurement in this arena.
    ///
    /// # Panics
    ///
    /// If `side` is neither.
    #[must_use]
    pub fn new(arena: Arena, side: usize) -> Self {
        assert!(side < 2, "a measurement has two sides");
        Self {
            arena,
            side,
            barriers: 0,
            probes: 0,
            messages: 0,
            slots: [0; 2],
            ready: 0,
            private: [None, None],
            pages: Pages::Small,
            offset: 0,
            cma_refused: None,
        }
    }

    /// Chooses the pages of the private buffers from now on.
    pub fn use_pages(&mut self, pages: Pages) {
        self.pages = pages;
    }

    /// Gives the private buffers back.
    pub fn release(&mut self) {
        self.private = [None, None];
    }

    /// Waits for the other side.
    ///
    /// # Errors
    ///
    /// If the other side does not come.
    pub fn barrier(&mut self) -> Result<(), LimitError> {
        self.barriers += 1;
        if self.side == 0 {
            self.raise(BARRIER[0], self.barriers);
            self.wait(BARRIER[1], self.barriers)
        } else {
            self.wait(BARRIER[0], self.barriers)?;
            self.raise(BARRIER[1], self.barriers);
            Ok(())
        }
    }

    /// One-way nanoseconds of a raw line hand-off, over this many rounds after twenty that warm up.
    ///
    /// # Errors
    ///
    /// If the other side does not answer.
    pub fn probe(&mut self, rounds: u32) -> Result<f64, LimitError> {
        self.barrier()?;
        self.bounce(20)?;
        let start = Instant::now();
        self.bounce(rounds)?;
        Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds.max(1)) / 2.0)
    }

    fn bounce(&mut self, rounds: u32) -> Result<(), LimitError> {
        for _ in 0..rounds {
            self.probes += 1;
            if self.side == 0 {
                self.raise(PROBE[0], self.probes);
                self.wait(PROBE[1], self.probes)?;
            } else {
                self.wait(PROBE[0], self.probes)?;
                self.raise(PROBE[1], self.probes);
            }
        }
        Ok(())
    }

    /// Runs one batch and gives the seconds per message as the flow defines it.
    ///
    /// # Errors
    ///
    /// If memory lacks, the kernel refuses a call, or the other side does not answer.
    pub fn run(&mut self, batch: &Batch) -> Result<f64, LimitError> {
        self.make_ready(batch)?;
        if matches!(batch.limit, Limit::CmaRead | Limit::CmaCooperative)
            && let Some(errno) = self.cma_refused
        {
            return Err(LimitError::Refused {
                call: "process_vm_readv",
                errno,
            });
        }
        self.barrier()?;
        let start = Instant::now();
        for _ in 0..batch.iterations {
            self.step(batch);
            match batch.flow {
                Flow::PingPong => self.ping_pong(batch)?,
                Flow::OneWay(window) => self.one_way(batch, window.max(1))?,
                Flow::TwoWay(window) => self.two_way(batch, window.max(1))?,
            }
        }
        let elapsed = start.elapsed().as_secs_f64();
        let halves = if batch.flow == Flow::PingPong {
            2.0
        } else {
            1.0
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "counts of messages are far below 2^52"
        )]
        let messages = (batch.iterations.max(1) * batch.flow.window() as u64) as f64;
        Ok(elapsed / messages / halves)
    }

    #[inline(always)]
    fn raise(&self, offset: usize, value: u64) {
        self.arena.word(offset).store(value, Ordering::Release);
    }

    #[inline(always)]
    fn wait(&self, offset: usize, value: u64) -> Result<(), LimitError> {
        let word = self.arena.word(offset);
        for _ in 0..SPINS {
            if word.load(Ordering::Acquire) >= value {
                return Ok(());
            }
        }
        self.wait_long(offset, value)
    }

    #[cold]
    #[inline(never)]
    fn wait_long(&self, offset: usize, value: u64) -> Result<(), LimitError> {
        let word = self.arena.word(offset);
        let mut since: Option<Instant> = None;
        loop {
            for _ in 0..SPINS {
                if word.load(Ordering::Acquire) >= value {
                    return Ok(());
                }
            }
            if self.arena.word(STOP).load(Ordering::Acquire) != 0 {
                return Err(LimitError::Stopped);
            }
            if since.get_or_insert_with(Instant::now).elapsed() > SILENCE {
                return Err(LimitError::Silent(SILENCE.as_secs()));
            }
            std::thread::yield_now();
        }
    }

    // Memory
    // --------------------------------------------------------------------------------

    fn stride(size: usize) -> usize {
        size.next_multiple_of(64).max(64)
    }

    fn make_ready(&mut self, batch: &Batch) -> Result<(), LimitError> {
        let window = Self::stride(batch.size) * batch.flow.window();
        let pool = self.arena.pool();
        if window > pool {
            return Err(LimitError::TooLarge {
                bytes: window,
                pool,
            });
        }
        let bytes = match batch.mode {
            Mode::OffCache => pool,
            Mode::Same | Mode::Rewrite => window,
        };
        if bytes > self.ready {
            // Each side maps what it touches: its own pools and the peer's.
            self.arena.make_ready(self.side, bytes)?;
            self.barrier()?;
            self.arena.make_ready(1 - self.side, bytes)?;
            self.ready = bytes;
        }
        let kept = self.private[self.pages as usize].as_ref();
        if kept.is_none_or(|private| private.source.len() < bytes) {
            self.exchange(bytes)?;
        }
        if self.offset + window > bytes || batch.mode != Mode::OffCache {
            self.offset = 0;
        }
        Ok(())
    }

    fn exchange(&mut self, bytes: usize) -> Result<(), LimitError> {
        self.private[self.pages as usize] = None;
        let map = |what| {
            PageBuf::new(bytes, self.pages).map_err(|source| LimitError::Io { what, source })
        };
        let mut source = map("private source buffer")?;
        source.fill(self.side as u8 + 1);
        let destination = map("private destination buffer")?;
        let card = CARD[self.side];
        self.raise(card, u64::from(std::process::id()));
        self.raise(card + 8, source.as_ptr().addr() as u64);
        self.raise(card + 16, destination.as_ptr().addr() as u64);
        self.barrier()?;
        let card = CARD[1 - self.side];
        let read = |offset: usize| self.arena.word(card + offset).load(Ordering::Acquire);
        self.private[self.pages as usize] = Some(Private {
            source,
            destination,
            peer: Pid::from_raw(i32::try_from(read(0)).unwrap_or(0)),
            peer_source: usize::try_from(read(8)).unwrap_or(0),
            peer_destination: usize::try_from(read(16)).unwrap_or(0),
        });
        self.try_cma()
    }

    /// Both sides try to read the other's memory, so that both know when one of them may not.
    fn try_cma(&mut self) -> Result<(), LimitError> {
        let mine = match &mut self.private[self.pages as usize] {
            None => Errno::ENOMEM as i32,
            Some(private) => {
                let mut bytes = [0_u8; 8];
                let remote = RemoteIoVec {
                    base: private.peer_source,
                    len: bytes.len(),
                };
                let local = IoSliceMut::new(&mut bytes);
                process_vm_readv(private.peer, &mut [local], &[remote])
                    .err()
                    .map_or(0, |errno| errno as i32)
            }
        };
        self.raise(CARD[self.side] + 24, u64::from(mine.unsigned_abs()));
        self.barrier()?;
        let refused = CARD
            .iter()
            .map(|card| self.arena.word(card + 24).load(Ordering::Acquire))
            .find(|&errno| errno != 0);
        self.cma_refused =
            refused.map(|errno| Errno::from_raw(i32::try_from(errno).unwrap_or(i32::MAX)));
        self.barrier()
    }

    fn step(&mut self, batch: &Batch) {
        if batch.mode == Mode::OffCache {
            let window = Self::stride(batch.size) * batch.flow.window();
            self.offset += window;
            if self.offset + window > self.arena.pool() {
                self.offset = 0;
            }
        }
    }

    /// Where message `index` of a window lies: sources are shared by the messages of a window while nothing rewrites
    /// them.
    fn at(&self, batch: &Batch, index: usize) -> (usize, usize) {
        let slot = self.offset + index * Self::stride(batch.size);
        match batch.mode {
            Mode::Same => (self.offset, slot),
            Mode::OffCache | Mode::Rewrite => (slot, slot),
        }
    }

    // Flows
    // --------------------------------------------------------------------------------

    fn ping_pong(&mut self, batch: &Batch) -> Result<(), LimitError> {
        self.messages += 1;
        let k = self.messages;
        if self.side == 0 {
            self.send_one(batch, k)?;
            self.receive_one(batch, k)
        } else {
            self.receive_one(batch, k)?;
            self.send_one(batch, k)
        }
    }

    fn send_one(&mut self, batch: &Batch, k: u64) -> Result<(), LimitError> {
        let block = DIRECTION[self.side];
        self.rewrite(batch, 0);
        match batch.limit {
            Limit::HandOff | Limit::Slots => {
                for word in 1..batch.size.div_ceil(8).min(7) + usize::from(batch.size > 0) {
                    self.arena
                        .word(block + word * 8)
                        .store(k + word as u64, Ordering::Relaxed);
                }
                self.raise(block, k);
                return Ok(());
            }
            Limit::NextLine => {
                for word in 0..8 {
                    self.arena
                        .word(block + NEXT_LINE + word * 8)
                        .store(k + word as u64, Ordering::Relaxed);
                }
                self.raise(block + NEXT_FLAG, k);
                return Ok(());
            }
            Limit::Direct(_) | Limit::Cooperative | Limit::CmaRead | Limit::CmaCooperative => {}
        }
        self.raise(block, k);
        self.push(batch, 0)?;
        self.raise(block + DONE, k);
        Ok(())
    }

    fn receive_one(&mut self, batch: &Batch, k: u64) -> Result<(), LimitError> {
        let block = DIRECTION[1 - self.side];
        match batch.limit {
            Limit::HandOff | Limit::Slots => {
                self.wait(block, k)?;
                let mut sum = 0_u64;
                for word in 1..batch.size.div_ceil(8).min(7) + usize::from(batch.size > 0) {
                    let value = self.arena.word(block + word * 8).load(Ordering::Relaxed);
                    sum = sum.wrapping_add(value);
                }
                std::hint::black_box(sum);
                return Ok(());
            }
            Limit::NextLine => {
                self.wait(block + NEXT_FLAG, k)?;
                let mut sum = 0_u64;
                for word in 0..8 {
                    let offset = block + NEXT_LINE + word * 8;
                    sum = sum.wrapping_add(self.arena.word(offset).load(Ordering::Relaxed));
                }
                std::hint::black_box(sum);
                return Ok(());
            }
            Limit::Direct(_) | Limit::Cooperative | Limit::CmaRead | Limit::CmaCooperative => {}
        }
        self.wait(block, k)?;
        self.pull(batch, 0)?;
        if self.sender_works(batch) {
            self.wait(block + DONE, k)?;
        }
        Ok(())
    }

    fn one_way(&mut self, batch: &Batch, window: usize) -> Result<(), LimitError> {
        self.messages += 1;
        let k = self.messages;
        let block = DIRECTION[0];
        if batch.limit == Limit::Slots || batch.limit == Limit::HandOff {
            self.slots(0, window)?;
        } else if self.side == 0 {
            for index in 0..window {
                self.rewrite(batch, index);
            }
            self.raise(block, k);
            for index in 0..window {
                self.push(batch, index)?;
            }
            self.raise(block + DONE, k);
        } else {
            self.wait(block, k)?;
            for index in 0..window {
                self.pull(batch, index)?;
            }
            if self.sender_works(batch) {
                self.wait(block + DONE, k)?;
            }
        }
        if self.side == 0 {
            self.wait(block + ACK, k)
        } else {
            self.raise(block + ACK, k);
            Ok(())
        }
    }

    fn two_way(&mut self, batch: &Batch, window: usize) -> Result<(), LimitError> {
        self.messages += 1;
        let k = self.messages;
        let (mine, theirs) = (DIRECTION[self.side], DIRECTION[1 - self.side]);
        match batch.limit {
            Limit::HandOff | Limit::Slots if window == 1 => {
                self.send_one(batch, k)?;
                self.receive_one(batch, k)?;
            }
            Limit::NextLine if window == 1 => {
                self.send_one(batch, k)?;
                self.receive_one(batch, k)?;
            }
            Limit::HandOff | Limit::Slots => self.slots_both(window)?,
            _ => {
                for index in 0..window {
                    self.rewrite(batch, index);
                }
                self.raise(mine, k);
                self.wait(theirs, k)?;
                // Both cores are busy with their own messages, so neither helps the other.
                for index in 0..window {
                    self.pull_all(batch, index)?;
                }
            }
        }
        self.raise(mine + ACK, k);
        self.wait(theirs + ACK, k)
    }

    // Payload
    // --------------------------------------------------------------------------------

    fn sender_works(&self, batch: &Batch) -> bool {
        matches!(batch.limit, Limit::Cooperative | Limit::CmaCooperative)
    }

    fn rewrite(&mut self, batch: &Batch, index: usize) {
        if batch.mode != Mode::Rewrite || batch.size == 0 {
            return;
        }
        let (offset, _) = self.at(batch, index);
        let value = self.messages as u8;
        if matches!(batch.limit, Limit::CmaRead | Limit::CmaCooperative) {
            if let Some(private) = &mut self.private[self.pages as usize] {
                private.source[offset..offset + batch.size].fill(value);
            }
            return;
        }
        let source = self
            .arena
            .pool_at(self.side, Pool::Source, offset, batch.size);
        // SAFETY: `pool_at` checked that the bytes lie in this side's source pool, which is mapped writable. The peer
        // reads them only after the flag that this side raises later.
        unsafe { std::ptr::write_bytes(source, value, batch.size) };
    }

    /// The receiver's part of one message.
    fn pull(&mut self, batch: &Batch, index: usize) -> Result<(), LimitError> {
        let n = batch.size;
        match batch.limit {
            Limit::Cooperative => {
                self.copy_shared(1 - self.side, batch, index, 0, n / 2);
                Ok(())
            }
            Limit::CmaCooperative => self.read_peer(batch, index, n / 2),
            _ => self.pull_all(batch, index),
        }
    }

    /// One whole message, without the sender's help.
    fn pull_all(&mut self, batch: &Batch, index: usize) -> Result<(), LimitError> {
        let n = batch.size;
        match batch.limit {
            Limit::CmaRead | Limit::CmaCooperative => self.read_peer(batch, index, n),
            Limit::Cooperative => {
                self.copy_shared(1 - self.side, batch, index, 0, n);
                Ok(())
            }
            Limit::Direct(kernel) => {
                self.copy_private(batch, index, kernel);
                Ok(())
            }
            Limit::HandOff | Limit::NextLine | Limit::Slots => {
                self.copy_private(batch, index, CopyKernel::Memcpy);
                Ok(())
            }
        }
    }

    /// The sender's part of one message.
    fn push(&mut self, batch: &Batch, index: usize) -> Result<(), LimitError> {
        let n = batch.size;
        match batch.limit {
            Limit::Cooperative => {
                self.copy_shared(self.side, batch, index, n / 2, n - n / 2);
                Ok(())
            }
            Limit::CmaCooperative => {
                let (source_at, destination_at) = self.at(batch, index);
                let Some(private) = &self.private[self.pages as usize] else {
                    return Ok(());
                };
                let local = IoSlice::new(&private.source[source_at + n / 2..source_at + n]);
                let remote = RemoteIoVec {
                    base: private.peer_destination + destination_at + n / 2,
                    len: n - n / 2,
                };
                let done = process_vm_writev(private.peer, &[local], &[remote]);
                whole("process_vm_writev", done, n - n / 2)
            }
            _ => Ok(()),
        }
    }

    fn read_peer(&mut self, batch: &Batch, index: usize, n: usize) -> Result<(), LimitError> {
        let (source_at, destination_at) = self.at(batch, index);
        let Some(private) = &mut self.private[self.pages as usize] else {
            return Ok(());
        };
        let local = IoSliceMut::new(&mut private.destination[destination_at..destination_at + n]);
        let remote = RemoteIoVec {
            base: private.peer_source + source_at,
            len: n,
        };
        let done = process_vm_readv(private.peer, &mut [local], &[remote]);
        whole("process_vm_readv", done, n)
    }

    fn copy_private(&mut self, batch: &Batch, index: usize, kernel: CopyKernel) {
        let n = batch.size;
        let (source_at, destination_at) = self.at(batch, index);
        let source = self
            .arena
            .pool_at(1 - self.side, Pool::Source, source_at, n);
        let Some(private) = &mut self.private[self.pages as usize] else {
            return;
        };
        let destination = private.destination[destination_at..destination_at + n].as_mut_ptr();
        // SAFETY: the slice is `n` writable private bytes, and `pool_at` checked `n` mapped bytes of the peer's pool. A
        // private and a shared mapping do not overlap. The peer's flag, seen before, orders its writes before this
        // read.
        unsafe { copy(kernel, destination, source, n) };
    }

    /// Copies a part of a message that side `from` sends to the other side's shared destination pool.
    fn copy_shared(&self, from: usize, batch: &Batch, index: usize, start: usize, n: usize) {
        let (source_at, destination_at) = self.at(batch, index);
        let source = self.arena.pool_at(from, Pool::Source, source_at + start, n);
        let destination =
            self.arena
                .pool_at(1 - from, Pool::Destination, destination_at + start, n);
        // SAFETY: `pool_at` checked both ranges. They are in different pools of one mapping, so they do not overlap.
        // The other side copies another part of the message, and the flags order this copy against the next use of the
        // range.
        unsafe { copy(CopyKernel::Memcpy, destination, source, n) };
    }
}

fn whole(call: &'static str, done: nix::Result<usize>, expected: usize) -> Result<(), LimitError> {
    match done {
        Ok(n) if n == expected => Ok(()),
        Ok(_) => Err(LimitError::Refused {
            call,
            errno: Errno::EFAULT,
        }),
        Err(errno) => Err(LimitError::Refused { call, errno }),
    }
}

mod slots;
#[cfg(test)]
mod tests;
