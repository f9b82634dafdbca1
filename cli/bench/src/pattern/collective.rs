// SPDX-License-Identifier: MIT OR Apache-2.0
//! The collectives, as every rank runs them.

use super::super::driver::{Call, Driver};
use super::super::protocol::Work;
use super::super::{BenchError, Mode, Pattern, payload};
use super::{Buffers, RankPart};
use std::ops::DerefMut;
use std::time::Instant;

/// Bytes of an element of the reductions, a double.
const ELEMENT: usize = size_of::<f64>();

/// The buffers that a collective takes of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes that a rank gives; of a scatter, that the root gives.
    pub source: usize,
    /// Bytes that a rank gets; of a gather, that the root gets.
    pub destination: usize,
    /// Bytes of a block of one rank.
    pub block: usize,
}

impl Shape {
    /// For messages of `size` bytes. Reductions work on whole elements, at least one for each rank that gets some.
    #[must_use]
    pub(super) fn of(pattern: Pattern, size: usize, ranks: usize) -> Self {
        let elements = size.next_multiple_of(ELEMENT);
        let (source, destination, block) = match pattern {
            Pattern::Barrier => (0, 0, 0),
            Pattern::Reduce | Pattern::Allreduce | Pattern::Scan | Pattern::Exscan => {
                (elements, elements, elements)
            }
            Pattern::ReduceScatter => {
                let block = (size / ranks / ELEMENT * ELEMENT).max(ELEMENT);
                (block * ranks, block, block)
            }
            Pattern::Gather | Pattern::Allgather => (size, size * ranks, size),
            Pattern::Scatter => (size * ranks, size, size),
            Pattern::Alltoall => (size * ranks, size * ranks, size),
            _ => (size, size, size),
        };
        Self {
            source,
            destination,
            block,
        }
    }

    /// Bytes of each buffer from one place of the rotation to the next.
    #[must_use]
    pub(super) fn span(self) -> usize {
        self.source
            .max(self.destination)
            .next_multiple_of(64)
            .max(64)
    }
}

fn has_root(pattern: Pattern) -> bool {
    matches!(
        pattern,
        Pattern::Bcast | Pattern::Reduce | Pattern::Gather | Pattern::Scatter
    )
}

/// Whether this rank gives something.
fn gives(pattern: Pattern, rank: usize, root: usize) -> bool {
    rank == root || !matches!(pattern, Pattern::Bcast | Pattern::Scatter)
}

/// Whether what this rank gets is defined.
fn gets(pattern: Pattern, rank: usize, root: usize) -> bool {
    match pattern {
        // The root's own buffer is its source.
        Pattern::Bcast => rank != root,
        Pattern::Reduce | Pattern::Gather => rank == root,
        Pattern::Exscan => rank > 0,
        _ => true,
    }
}

/// Runs one batch on this rank and gives the microseconds per operation.
///
/// # Errors
///
/// If an operation fails.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(super) fn timed<D: Driver>(
    driver: &mut D,
    part: RankPart,
    buffers: &mut Buffers<D::Buffer>,
    work: &Work,
) -> Result<f64, BenchError> {
    let shape = Shape::of(work.pattern, work.size, part.ranks);
    meet(driver)?;
    let start = Instant::now();
    for iteration in 0..work.iterations {
        buffers.advance(work.mode, shape.span());
        let root = root_of(work, iteration, part);
        let (source, destination) = buffers.both(shape.source, shape.destination);
        if work.mode == Mode::Rewrite && gives(work.pattern, part.rank, root) {
            source.fill(iteration.to_le_bytes()[0]);
        }
        driver.collective(Call {
            pattern: work.pattern,
            source,
            destination,
            root,
        })?;
    }
    meet(driver)?;
    let elapsed = start.elapsed().as_secs_f64() * 1e6;
    Ok(elapsed / work.iterations.max(1) as f64)
}

fn root_of(work: &Work, iteration: u64, part: RankPart) -> usize {
    if has_root(work.pattern) && !work.one_root {
        usize::try_from(iteration).unwrap_or(0) % part.ranks
    } else {
        0
    }
}

fn meet<D: Driver>(driver: &mut D) -> Result<(), BenchError> {
    driver.collective(Call {
        pattern: Pattern::Barrier,
        source: &mut [],
        destination: &mut [],
        root: 0,
    })
}

/// Names a block of a message.
fn number(iteration: u64, from: usize, to: usize) -> u64 {
    iteration << 32 | (from as u64) << 16 | to as u64
}

/// An element that a rank gives to a reduction: sums of these are exact, in whatever order.
#[expect(clippy::cast_precision_loss, reason = "below 1009")]
fn element(iteration: u64, rank: usize, index: usize) -> f64 {
    ((index * 31 + rank * 17) as u64 + iteration * 7).rem_euclid(1009) as f64
}

fn fill(work: &Work, shape: Shape, iteration: u64, rank: usize, source: &mut [u8]) {
    match work.pattern {
        Pattern::Reduce
        | Pattern::Allreduce
        | Pattern::ReduceScatter
        | Pattern::Scan
        | Pattern::Exscan => {
            for (index, place) in source.chunks_mut(ELEMENT).enumerate() {
                place.copy_from_slice(&element(iteration, rank, index).to_le_bytes());
            }
        }
        _ => {
            for (to, block) in source.chunks_mut(shape.block.max(1)).enumerate() {
                payload::fill(block, number(iteration, rank, to));
            }
        }
    }
}

/// The first byte of what this rank got that is not what it should be.
fn first_wrong(
    work: &Work,
    shape: Shape,
    iteration: u64,
    part: RankPart,
    root: usize,
    got: &[u8],
) -> Option<usize> {
    let sums = |ranks: std::ops::Range<usize>, first: usize| {
        got.chunks(ELEMENT).enumerate().find_map(|(index, bytes)| {
            let contribution = |rank| element(iteration, rank, first + index);
            let expected: f64 = ranks.clone().map(contribution).sum();
            (bytes != expected.to_le_bytes()).then_some(index * ELEMENT)
        })
    };
    let blocks = |name: &dyn Fn(usize) -> u64| {
        let mut blocks = got.chunks(shape.block.max(1)).enumerate();
        blocks.find_map(|(from, block)| {
            let wrong = payload::first_wrong(block, name(from))?;
            Some(from * shape.block + wrong)
        })
    };
    match work.pattern {
        Pattern::Reduce | Pattern::Allreduce => sums(0..part.ranks, 0),
        Pattern::ReduceScatter => sums(0..part.ranks, part.rank * shape.block / ELEMENT),
        Pattern::Scan => sums(0..part.rank + 1, 0),
        Pattern::Exscan => sums(0..part.rank, 0),
        Pattern::Gather | Pattern::Allgather => blocks(&|from| number(iteration, from, 0)),
        Pattern::Scatter => blocks(&|_| number(iteration, root, part.rank)),
        Pattern::Alltoall => blocks(&|from| number(iteration, from, part.rank)),
        _ => blocks(&|_| number(iteration, root, 0)),
    }
}

/// Runs the same operations on data that is checked, and gives the number of bytes that this rank found right.
///
/// # Errors
///
/// If an operation fails, or a byte is wrong.
pub(super) fn checked<D: Driver>(
    driver: &mut D,
    part: RankPart,
    buffers: &mut Buffers<D::Buffer>,
    work: &Work,
) -> Result<u64, BenchError>
where
    D::Buffer: DerefMut<Target = [u8]>,
{
    let shape = Shape::of(work.pattern, work.size, part.ranks);
    let mut bytes = 0;
    // Every rank is root once at least.
    let iterations = if has_root(work.pattern) {
        work.iterations.max(part.ranks as u64)
    } else {
        work.iterations
    };
    for iteration in 0..iterations {
        buffers.advance(work.mode, shape.span());
        let root = root_of(work, iteration, part);
        let (source, destination) = buffers.both(shape.source, shape.destination);
        payload::spoil(destination, number(iteration, 0, 0));
        if gives(work.pattern, part.rank, root) {
            fill(work, shape, iteration, part.rank, source);
        } else {
            payload::spoil(source, number(iteration, 0, 1));
        }
        driver.collective(Call {
            pattern: work.pattern,
            source,
            destination,
            root,
        })?;
        if !gets(work.pattern, part.rank, root) {
            continue;
        }
        if let Some(wrong) = first_wrong(work, shape, iteration, part, root, destination) {
            return Err(BenchError::Wrong(format!(
                "{} of {} bytes in mode {}, iteration {iteration}, root {root}: byte {wrong} is wrong at rank {}",
                work.pattern.name(),
                work.size,
                work.mode.name(),
                part.rank
            )));
        }
        bytes += destination.len() as u64;
    }
    // A peer may still read this rank's source.
    meet(driver)?;
    Ok(bytes)
}
