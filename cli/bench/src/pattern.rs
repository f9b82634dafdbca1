// SPDX-License-Identifier: MIT OR Apache-2.0
//! The patterns, as both ends run them.

mod collective;

use super::driver::{Driver, Window, WindowMut};
use super::protocol::Work;
use super::{BenchError, Mode, Pattern, payload};
use std::time::Instant;

/// A rank's part in a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPart {
    /// This rank.
    pub rank: usize,
    /// Ranks of the job.
    pub ranks: usize,
}

impl RankPart {
    /// 0 for the first rank, 1 for the last; the ranks between only wait.
    #[must_use]
    pub fn side(self) -> Option<usize> {
        if self.rank == 0 {
            Some(0)
        } else if self.rank + 1 == self.ranks {
            Some(1)
        } else {
            None
        }
    }

    fn peer(self) -> usize {
        if self.rank == 0 { self.ranks - 1 } else { 0 }
    }
}

/// Source and destination memory of one rank.
#[derive(Debug)]
pub struct Buffers<B> {
    source: B,
    destination: B,
    bytes: usize,
    offset: usize,
}

fn stride(size: usize) -> usize {
    size.next_multiple_of(64).max(64)
}

/// Bytes of memory that a batch needs for source and for destination each.
#[must_use]
pub fn bytes_needed(work: &Work, pool: usize, ranks: usize) -> usize {
    let window = if work.pattern.is_collective() {
        collective::Shape::of(work.pattern, work.size, ranks).span()
    } else {
        stride(work.size) * work.window
    };
    match work.mode {
        Mode::OffCache => pool.max(window),
        Mode::Same | Mode::Rewrite | Mode::All => window,
    }
}

impl<B: std::ops::DerefMut<Target = [u8]>> Buffers<B> {
    /// Memory for `bytes` bytes in and out.
    ///
    /// # Errors
    ///
    /// If there is not enough.
    pub fn new<D: Driver<Buffer = B>>(driver: &mut D, bytes: usize) -> Result<Self, BenchError> {
        let mut source = driver.alloc(bytes)?;
        let mut destination = driver.alloc(bytes)?;
        source.fill(1);
        destination.fill(2);
        Ok(Self {
            source,
            destination,
            bytes,
            offset: 0,
        })
    }

    /// Whether a batch of this need can use it: in mode `same` only the exact size keeps the caches honest, more does
    /// no harm.
    #[must_use]
    pub fn holds(&self, bytes: usize) -> bool {
        self.bytes >= bytes
    }

    fn step(&mut self, work: &Work) {
        self.advance(work.mode, stride(work.size) * work.window);
    }

    /// Goes on to the next `window` bytes in source and destination, where buffers rotate.
    pub(super) fn advance(&mut self, mode: Mode, window: usize) {
        if mode != Mode::OffCache {
            self.offset = 0;
            return;
        }
        self.offset += window;
        if self.offset + window > self.bytes {
            self.offset = 0;
        }
    }

    /// The first bytes of source and destination from where the rotation is.
    pub(super) fn both(&mut self, source: usize, destination: usize) -> (&mut [u8], &mut [u8]) {
        (
            &mut self.source[self.offset..][..source],
            &mut self.destination[self.offset..][..destination],
        )
    }

    fn windows(&mut self, work: &Work) -> (Window<'_>, WindowMut<'_>) {
        let distance = stride(work.size);
        let range = self.offset..self.offset + distance * work.window;
        let out = Window {
            bytes: &self.source[range.clone()],
            size: work.size,
            // Nothing writes the sources of a window in mode `same`, so one will do, as benchmarks of this kind have
            // it.
            stride: if work.mode == Mode::Same { 0 } else { distance },
            count: work.window,
        };
        let into = WindowMut {
            bytes: &mut self.destination[range],
            size: work.size,
            stride: distance,
            count: work.window,
        };
        (out, into)
    }

    fn source(&mut self, work: &Work) -> &mut [u8] {
        let range = self.offset..self.offset + stride(work.size) * work.window;
        &mut self.source[range]
    }

    fn rewrite(&mut self, work: &Work, value: u64) {
        if work.mode == Mode::Rewrite {
            let (size, distance) = (work.size, stride(work.size));
            for message in self.source(work).chunks_mut(distance) {
                message[..size].fill(value.to_le_bytes()[0]);
            }
        }
    }
}

/// What the timed and the checked loop do around each iteration.
trait IterationSteps<B> {
    /// At the start, before anything is sent or received.
    fn spoil(&mut self, buffers: &mut Buffers<B>, work: &Work, iteration: u64);
    /// Just before this rank sends.
    fn fill(&mut self, buffers: &mut Buffers<B>, work: &Work, iteration: u64);
    /// When this rank has received.
    fn after(
        &mut self,
        buffers: &mut Buffers<B>,
        work: &Work,
        iteration: u64,
    ) -> Result<(), BenchError>;
}

struct Timed;

impl<B: std::ops::DerefMut<Target = [u8]>> IterationSteps<B> for Timed {
    #[inline]
    fn spoil(&mut self, _: &mut Buffers<B>, _: &Work, _: u64) {}

    #[inline]
    fn fill(&mut self, buffers: &mut Buffers<B>, work: &Work, iteration: u64) {
        buffers.rewrite(work, iteration);
    }

    #[inline]
    fn after(&mut self, _: &mut Buffers<B>, _: &Work, _: u64) -> Result<(), BenchError> {
        Ok(())
    }
}

struct Checked {
    side: usize,
    bytes: u64,
    receives: bool,
}

impl Checked {
    fn number(side: usize, iteration: u64, index: usize) -> u64 {
        (iteration << 16) | (index as u64) << 1 | side as u64
    }
}

impl<B: std::ops::DerefMut<Target = [u8]>> IterationSteps<B> for Checked {
    fn spoil(&mut self, buffers: &mut Buffers<B>, work: &Work, iteration: u64) {
        let (_, into) = buffers.windows(work);
        for (index, place) in into.places().enumerate() {
            payload::spoil(place, Self::number(1 - self.side, iteration, index));
        }
    }

    fn fill(&mut self, buffers: &mut Buffers<B>, work: &Work, iteration: u64) {
        let side = self.side;
        let (size, distance) = (work.size, stride(work.size));
        // In mode `same` all messages of a window are the first slot's bytes.
        let slots = buffers.source(work).chunks_mut(distance).enumerate();
        for (index, message) in slots {
            payload::fill(&mut message[..size], Self::number(side, iteration, index));
        }
    }

    fn after(
        &mut self,
        buffers: &mut Buffers<B>,
        work: &Work,
        iteration: u64,
    ) -> Result<(), BenchError> {
        if !self.receives {
            return Ok(());
        }
        let same = work.mode == Mode::Same;
        let (_, into) = buffers.windows(work);
        for (index, place) in into.places().enumerate() {
            let sent = if same { 0 } else { index };
            let number = Self::number(1 - self.side, iteration, sent);
            if let Some(wrong) = payload::first_wrong(place, number) {
                return Err(BenchError::Wrong(format!(
                    "{} of {} bytes, iteration {iteration}, message {index} of the window: byte {wrong} is not what was sent",
                    work.pattern.name(),
                    work.size
                )));
            }
            self.bytes += place.len() as u64;
        }
        Ok(())
    }
}

/// Runs a batch and gives microseconds per message. For ping-pong that is half the round trip, for sendrecv the time of
/// one exchange, otherwise per message of one direction.
///
/// # Errors
///
/// If the transport fails.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of messages are far below 2^52"
)]
pub fn timed<D: Driver>(
    driver: &mut D,
    part: RankPart,
    buffers: &mut Buffers<D::Buffer>,
    work: &Work,
) -> Result<f64, BenchError> {
    if work.pattern.is_collective() {
        return collective::timed(driver, part, buffers, work);
    }
    let start = Instant::now();
    run(driver, part, buffers, work, &mut Timed)?;
    let elapsed = start.elapsed().as_secs_f64() * 1e6;
    let halves = if work.pattern == Pattern::PingPong {
        2.0
    } else {
        1.0
    };
    Ok(elapsed / (work.iterations.max(1) * work.window as u64) as f64 / halves)
}

/// Visits all memory of buffers that rotate once, in both directions. So pages which a mechanism maps on first use are
/// mapped before anything is timed.
///
/// # Errors
///
/// If the transport fails.
pub fn tour<D: Driver>(
    driver: &mut D,
    part: RankPart,
    buffers: &mut Buffers<D::Buffer>,
    work: &Work,
    bytes: usize,
) -> Result<(), BenchError> {
    /// Bytes of a message of the tour. Chosen by magnitude: few messages map everything.
    const STEP: usize = 1 << 20;
    if work.mode != Mode::OffCache || work.pattern.is_collective() {
        return Ok(());
    }
    let tour = Work {
        pattern: Pattern::PingPong,
        size: STEP.min(bytes),
        window: 1,
        iterations: (bytes / STEP).max(1) as u64,
        ..work.clone()
    };
    run(driver, part, buffers, &tour, &mut Timed)
}

/// Runs the same messages with a payload that is checked, and gives the number of bytes that this rank found right.
///
/// # Errors
///
/// If the transport fails, or a byte is wrong.
pub fn checked<D: Driver>(
    driver: &mut D,
    part: RankPart,
    buffers: &mut Buffers<D::Buffer>,
    work: &Work,
) -> Result<u64, BenchError> {
    if work.pattern.is_collective() {
        return collective::checked(driver, part, buffers, work);
    }
    let side = part.side().unwrap_or(0);
    let one_way = matches!(work.pattern, Pattern::Bw | Pattern::Rate);
    let mut around = Checked {
        side,
        bytes: 0,
        receives: part.side().is_some() && !(one_way && side == 0),
    };
    run(driver, part, buffers, work, &mut around)?;
    Ok(around.bytes)
}

fn run<D: Driver>(
    driver: &mut D,
    part: RankPart,
    buffers: &mut Buffers<D::Buffer>,
    work: &Work,
    around: &mut impl IterationSteps<D::Buffer>,
) -> Result<(), BenchError> {
    const ACK: [u8; 8] = [0; 8];
    let mut ack = ACK;
    let peer = part.peer();
    let Some(side) = part.side() else {
        return Ok(());
    };
    for iteration in 0..work.iterations {
        buffers.step(work);
        around.spoil(buffers, work, iteration);
        match work.pattern {
            Pattern::PingPong => {
                if side == 0 {
                    around.fill(buffers, work, iteration);
                    one(driver, buffers, work, peer, true)?;
                    one(driver, buffers, work, peer, false)?;
                    around.after(buffers, work, iteration)?;
                } else {
                    one(driver, buffers, work, peer, false)?;
                    around.fill(buffers, work, iteration);
                    one(driver, buffers, work, peer, true)?;
                    around.after(buffers, work, iteration)?;
                }
            }
            Pattern::SendRecv => {
                around.fill(buffers, work, iteration);
                let (out, into) = buffers.windows(work);
                let message = &out.bytes[..work.size];
                driver.sendrecv(message, &mut into.bytes[..work.size], peer)?;
                around.after(buffers, work, iteration)?;
            }
            Pattern::Bw | Pattern::Rate => {
                // Small messages leave at once: for their rate, plain sends and receives do.
                let plain = work.pattern == Pattern::Rate;
                if side == 0 {
                    around.fill(buffers, work, iteration);
                    let (out, _) = buffers.windows(work);
                    if plain {
                        for message in out.messages() {
                            driver.send(message, peer)?;
                        }
                    } else {
                        driver.send_window(out, peer)?;
                    }
                    driver.recv(&mut ack, peer)?;
                } else {
                    let (_, into) = buffers.windows(work);
                    if plain {
                        for place in into.places() {
                            driver.recv(place, peer)?;
                        }
                    } else {
                        driver.recv_window(into, peer)?;
                    }
                    around.after(buffers, work, iteration)?;
                    driver.send(&ACK, peer)?;
                }
            }
            Pattern::BiBw => {
                around.fill(buffers, work, iteration);
                let (out, into) = buffers.windows(work);
                driver.exchange_windows(out, into, peer)?;
                around.after(buffers, work, iteration)?;
                driver.sendrecv(&ACK, &mut ack, peer)?;
            }
            other => return Err(BenchError::Usage(format!("{other:?} has no messages"))),
        }
    }
    Ok(())
}

fn one<D: Driver>(
    driver: &mut D,
    buffers: &mut Buffers<D::Buffer>,
    work: &Work,
    peer: usize,
    send: bool,
) -> Result<(), BenchError> {
    let range = buffers.offset..buffers.offset + work.size;
    if send {
        driver.send(&buffers.source[range], peer)
    } else {
        driver.recv(&mut buffers.destination[range], peer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::UnixDriver;
    use super::*;
    use std::os::unix::net::UnixStream;

    fn work(pattern: Pattern, mode: Mode, size: usize) -> Work {
        Work {
            limit: None,
            huge: false,
            pattern,
            mode,
            size,
            window: pattern.window(size).min(4),
            one_root: false,
            iterations: 3,
        }
    }

    #[test]
    fn every_pattern_checks_its_bytes_in_the_directions_it_has() {
        for pattern in Pattern::EACH {
            for mode in Mode::EACH {
                for size in [0, 8, 100, 70_000] {
                    let work = work(pattern, mode, size);
                    let (a, b) = UnixStream::pair().unwrap();
                    let counts = std::thread::scope(|scope| {
                        let threads: Vec<_> = [a, b]
                            .into_iter()
                            .enumerate()
                            .map(|(rank, socket)| {
                                let work = &work;
                                scope.spawn(move || {
                                    let mut driver = UnixDriver::new(Some(socket));
                                    let part = RankPart { rank, ranks: 2 };
                                    let need = bytes_needed(work, 1 << 20, 2);
                                    let mut buffers = Buffers::new(&mut driver, need).unwrap();
                                    assert!(
                                        timed(&mut driver, part, &mut buffers, work).unwrap() > 0.0
                                    );
                                    checked(&mut driver, part, &mut buffers, work).unwrap()
                                })
                            })
                            .collect();
                        threads
                            .into_iter()
                            .map(|thread| thread.join().unwrap())
                            .sum::<u64>()
                    });
                    let directions = match pattern {
                        Pattern::Bw | Pattern::Rate => 1,
                        _ => 2,
                    };
                    let messages = 3 * work.window as u64 * directions;
                    assert_eq!(counts, messages * size as u64, "{work:?}");
                }
            }
        }
    }

    #[test]
    fn ranks_between_take_no_part() {
        let parts = [0, 1, 2, 3].map(|rank| RankPart { rank, ranks: 4 }.side());
        assert_eq!(parts, [Some(0), None, None, Some(1)]);
    }
}
