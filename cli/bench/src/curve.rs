// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank of `onecopy tune`: ping-pong in batches, each between two probes of the hand-off time.

use onecopy::Comm;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// One batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Bytes of a message.
    pub size: u64,
    /// Nanoseconds one way.
    pub ns: f64,
    /// Hand-off before the batch.
    pub before_ns: f64,
    /// Hand-off after it.
    pub after_ns: f64,
}

/// Round trips of a probe. Chosen by magnitude: some tens of microseconds, in which a state of the machine does not
/// change.
const PROBE: u32 = 100;

/// Round trips of a batch: about half a millisecond.
fn rounds(size: usize) -> u32 {
    u32::try_from(1_000_000 / (size / 16 + 500)).map_or(2, |n| n.clamp(2, 400))
}

/// Nanoseconds one way.
fn ping_pong(world: &Comm, rounds: u32, out: &[u8], back: &mut [u8]) -> onecopy::Result<f64> {
    let (rank, peer) = (world.rank(), 1 - world.rank());
    let start = Instant::now();
    for _ in 0..rounds {
        if rank == 0 {
            world.send(out, peer, 1)?;
            world.recv(back, peer, 1)?;
        } else {
            world.recv(back, peer, 1)?;
            world.send(out, peer, 1)?;
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(rounds) / 2.0)
}

/// What is measured.
#[derive(Debug)]
pub struct Curve<'a> {
    /// Bytes of messages.
    pub sizes: &'a [usize],
    /// Batches of each size.
    pub batches: u32,
}

impl Curve<'_> {
    /// Measures between the two ranks of `world`, with messages from `out` to `back`. Each batch is shown at both.
    ///
    /// # Errors
    ///
    /// If a message fails, or `show` does.
    pub fn measure<E: From<onecopy::Error>>(
        &self,
        world: &Comm,
        out: &[u8],
        back: &mut [u8],
        mut show: impl FnMut(Batch) -> Result<(), E>,
    ) -> Result<(), E> {
        for &size in self.sizes {
            ping_pong(world, 2, &out[..size], &mut back[..size])?;
        }
        // Sizes in turn, so that a state of the machine that lasts for a while does not hit one size only.
        for _ in 0..self.batches {
            let mut before_ns = ping_pong(world, PROBE, &[], &mut [])?;
            for &size in self.sizes {
                let ns = ping_pong(world, rounds(size), &out[..size], &mut back[..size])?;
                let after_ns = ping_pong(world, PROBE, &[], &mut [])?;
                show(Batch {
                    size: size as u64,
                    ns,
                    before_ns,
                    after_ns,
                })?;
                before_ns = after_ns;
            }
        }
        Ok(())
    }
}
