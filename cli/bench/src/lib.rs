// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the ranks of a benchmark do: patterns of messages, timed, and checked byte for byte outside of the timed loops.
//! `onecopy bench` and `cargo xtask peers` start them, send each what to measure, and show what they report.
//!
//! This is a package of its own because the library's generic functions are compiled where they are used. What times
//! them is optimised as the library is; the command is not, which saves most of the time of its build.
#![forbid(unsafe_code)]

pub mod curve;
pub mod driver;
pub mod net;
pub mod pattern;
pub mod payload;
pub mod protocol;
pub mod rank;

use onecopy_shm::limits::LimitError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Environment variable that tells a rank of the benchmark which descriptors it inherited.
pub const ENV: &str = "ONECOPY_JOB_BENCH";

/// How messages follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum Pattern {
    /// One message there, one back; half the round trip
    PingPong,
    /// Both ranks send and receive at once; time of one exchange
    SendRecv,
    /// One-way bandwidth, a window of nonblocking messages, then an acknowledgement
    Bw,
    /// Two-way bandwidth, a window in each direction at once
    BiBw,
    /// Message rate: 8 bytes, window 64
    Rate,
    /// Collective: all ranks meet
    Barrier,
    /// Collective: one rank's message to all; roots take turns, so no rank runs ahead
    Bcast,
    /// Collective: sums of doubles to one rank; roots take turns
    Reduce,
    /// Collective: sums of doubles to all ranks
    Allreduce,
    /// Collective: sums of doubles, of which each rank gets its block; SIZE is that of all blocks
    ReduceScatter,
    /// Collective: sums over the ranks up to each
    Scan,
    /// Collective: sums over the ranks before each
    Exscan,
    /// Collective: SIZE bytes of each rank to one rank; roots take turns
    Gather,
    /// Collective: SIZE bytes to each rank from one rank; roots take turns
    Scatter,
    /// Collective: SIZE bytes of each rank to all ranks
    Allgather,
    /// Collective: SIZE bytes of each rank to each rank
    Alltoall,
    /// Every collective
    Coll,
    /// Every pattern between two ranks
    All,
}

impl Pattern {
    /// Every collective.
    pub const COLLECTIVES: [Self; 11] = [
        Self::Barrier,
        Self::Bcast,
        Self::Reduce,
        Self::Allreduce,
        Self::ReduceScatter,
        Self::Scan,
        Self::Exscan,
        Self::Gather,
        Self::Scatter,
        Self::Allgather,
        Self::Alltoall,
    ];

    /// Whether all ranks take part at once.
    #[must_use]
    pub fn is_collective(self) -> bool {
        self == Self::Coll || Self::COLLECTIVES.contains(&self)
    }

    /// Every pattern between two ranks.
    pub const EACH: [Self; 5] = [
        Self::PingPong,
        Self::SendRecv,
        Self::Bw,
        Self::BiBw,
        Self::Rate,
    ];

    /// Name on the command line and in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PingPong => "pingpong",
            Self::SendRecv => "sendrecv",
            Self::Bw => "bw",
            Self::BiBw => "bibw",
            Self::Rate => "rate",
            Self::Barrier => "barrier",
            Self::Bcast => "bcast",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::ReduceScatter => "reducescatter",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Allgather => "allgather",
            Self::Alltoall => "alltoall",
            Self::Coll => "coll",
            Self::All => "all",
        }
    }

    /// Those of `sizes` that it is run with.
    #[must_use]
    pub fn sizes(self, sizes: &[usize]) -> Vec<usize> {
        match self {
            Self::Rate => vec![8],
            Self::Barrier => vec![0],
            // Bandwidth of nothing is nothing, and so is a collective's time.
            Self::Bw | Self::BiBw => sizes.iter().copied().filter(|&n| n > 0).collect(),
            pattern if pattern.is_collective() => {
                sizes.iter().copied().filter(|&n| n > 0).collect()
            }
            _ => sizes.to_vec(),
        }
    }

    /// Messages of one direction that are on their way at once, for messages of this size.
    #[must_use]
    pub fn window(self, size: usize) -> usize {
        /// So many bytes of one window at most, so that mode `same` stays in the caches. Chosen by magnitude: a quarter
        /// of a third-level cache of 32 MiB.
        const BYTES: usize = 8 << 20;
        match self {
            Self::Rate => 64,
            Self::Bw | Self::BiBw => (BYTES / size.max(1)).clamp(2, 64),
            _ => 1,
        }
    }
}

/// Which memory the messages use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum Mode {
    /// The same buffers each time, which stay in the caches
    Same,
    /// Buffers rotate through 256 MiB, so they are not in the caches
    OffCache,
    /// The sender fills its buffer before each send, inside the timed loop
    Rewrite,
    /// Every mode
    All,
}

impl Mode {
    /// Every mode that can be run.
    pub const EACH: [Self; 3] = [Self::Same, Self::OffCache, Self::Rewrite];

    /// Name on the command line and in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::OffCache => "offcache",
            Self::Rewrite => "rewrite",
            Self::All => "all",
        }
    }

    /// The same mode of a limit.
    #[must_use]
    pub fn of_limit(self) -> onecopy_shm::limits::Mode {
        match self {
            Self::Same | Self::All => onecopy_shm::limits::Mode::Same,
            Self::OffCache => onecopy_shm::limits::Mode::OffCache,
            Self::Rewrite => onecopy_shm::limits::Mode::Rewrite,
        }
    }
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Copy in, copy out through shared memory
    Cico,
    /// Buffers from the runtime's `alloc`, read straight from the peer's pages
    Heap,
    /// Attached memory, by a kernel module
    Xpmem,
    /// Cross-memory attach, buffers on base pages
    Cma,
    /// Cross-memory attach, buffers on huge pages
    CmaHuge,
    /// Copies by a kernel module
    Knem,
    /// What the runtime picks for memory from malloc
    Auto,
    /// A Unix socket, for comparison: two copies, by the kernel
    Unix,
    /// Every mechanism that this machine has
    All,
}

impl Mechanism {
    /// What `all` stands for.
    pub const EACH: [Self; 6] = [
        Self::Cico,
        Self::Heap,
        Self::Xpmem,
        Self::Cma,
        Self::CmaHuge,
        Self::Knem,
    ];

    /// Name on the command line and in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cico => "cico",
            Self::Heap => "heap",
            Self::Cma => "cma",
            Self::CmaHuge => "cma-huge",
            Self::Xpmem => "xpmem",
            Self::Knem => "knem",
            Self::Auto => "auto",
            Self::Unix => "unix",
            Self::All => "all",
        }
    }

    /// The layers that the runtime may use, as its knob says it; none for what does not use the runtime's choice.
    #[must_use]
    pub fn layers(self) -> Option<&'static str> {
        match self {
            Self::Cico => Some("cico"),
            Self::Heap => Some("cico,heap"),
            Self::Cma | Self::CmaHuge => Some("cico,cma"),
            Self::Xpmem => Some("cico,xpmem"),
            Self::Knem => Some("cico,knem"),
            Self::Auto | Self::Unix | Self::All => None,
        }
    }

    /// Whether it copies by system calls into another process: the kernel's own copy is its limit.
    #[must_use]
    pub fn is_kernel_copy(self) -> bool {
        matches!(self, Self::Cma | Self::CmaHuge | Self::Knem)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A mechanism that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Its name.
    pub mechanism: String,
    /// What was observed.
    pub reason: String,
    /// What would change it.
    pub remedy: String,
}

/// Why the benchmark ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An operation of the system failed.
    #[error("{what}: {source}")]
    Io {
        /// The object and what was done with it.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// The runtime failed.
    #[error(transparent)]
    Runtime(#[from] onecopy::Error),
    /// A limit could not be measured.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A rank reported a failure, or ended.
    #[error("{mechanism}: rank {rank}: {reason}")]
    Rank {
        /// The job.
        mechanism: String,
        /// The rank.
        rank: usize,
        /// Its message.
        reason: String,
    },
    /// A received message is not what was sent.
    #[error("{0}")]
    Wrong(String),
    /// The request cannot be followed.
    #[error("{0}")]
    Usage(String),
    /// A graph could not be drawn.
    #[error("graph {what}: {reason}")]
    Graph {
        /// Which.
        what: String,
        /// Why.
        reason: String,
    },
}

impl BenchError {
    /// Wraps an I/O error with the object and what was done with it.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        use clap::ValueEnum;
        for pattern in Pattern::value_variants() {
            let value = pattern.to_possible_value().unwrap();
            assert_eq!(value.get_name(), pattern.name());
        }
        for mode in Mode::value_variants() {
            assert_eq!(mode.to_possible_value().unwrap().get_name(), mode.name());
        }
        for mechanism in Mechanism::value_variants() {
            let value = mechanism.to_possible_value().unwrap();
            assert_eq!(value.get_name(), mechanism.name());
            let json = serde_json::to_string(mechanism).unwrap();
            assert_eq!(json, format!("\"{}\"", mechanism.name()));
        }
    }

    #[test]
    fn windows_are_capped_by_bytes() {
        assert_eq!(Pattern::PingPong.window(8), 1);
        assert_eq!(Pattern::Bw.window(0), 64);
        assert_eq!(Pattern::Bw.window(64 << 10), 64);
        assert_eq!(Pattern::Bw.window(1 << 20), 8);
        assert_eq!(Pattern::Bw.window(64 << 20), 2);
        assert_eq!(Pattern::Rate.window(8), 64);
    }
}
