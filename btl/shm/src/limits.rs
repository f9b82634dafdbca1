// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the machine itself allows between two processors: the yardstick that the benchmark divides by.
//!
//! Two sides, processes or threads, share an [`Arena`] and call the same functions of [`Pair`] with the same arguments
//! at the same time. No message layer of onecopy is involved. A flag is a word in shared memory, and a payload is
//! copied straight from where the other side keeps it.
//!
//! # What each limit means
//!
//! | limit | one message is |
//! |---|---|
//! | [`Limit::HandOff`] | one store that the other side sees; up to 56 bytes ride in the flag's own cache line |
//! | [`Limit::NextLine`] | the flag and 64 bytes in the line after it |
//! | [`Limit::Direct`] | a flag, then one core copies from the peer's shared pages to private memory |
//! | [`Limit::Cooperative`] | the receiver copies one half, the sender the other, between shared pages |
//! | [`Limit::CmaRead`] | a flag, then one `process_vm_readv` |
//! | [`Limit::CmaCooperative`] | the receiver reads one half, the sender writes the other (`process_vm_writev`) |
//! | [`Limit::Slots`] | 8 bytes in a 64-byte slot of a ring, an acknowledgement each window |
//!
//! A [`Flow`] says how messages follow one another, a [`Mode`] which memory they use.
//!
//! # Safety
//!
//! The module reaches the arena through raw pointers, because the other side writes it at the same time. What makes
//! that sound:
//!
//! - the memfd is sealed against shrinking and its size is checked before it is mapped, so a mapped page always exists;
//! - every offset is computed here from constants and from a size that `Pair::run` has checked against the pool, never
//!   read from the arena;
//! - control words are only reached as `AtomicU64`, at 8-aligned offsets inside the control area;
//! - payload is copied as bytes between raw pointers and never referenced. Copies of the two sides are ordered by the
//!   control words. A sender touches a message's bytes before it raises the flag, a receiver after it has seen the
//!   flag. A peer that breaks the rules can spoil bytes, not memory safety;
//! - addresses of the peer, which `process_vm_readv` needs, are only ever handed to the kernel, which checks them.
#![allow(
    unsafe_code,
    reason = "measures shared memory that another process writes; the safety case is above"
)]

mod arena;
mod inherit;
mod kernels;
mod pages;
mod pair;

pub use arena::{Arena, largest_pool};
pub use inherit::{Inherited, inherited};
pub use kernels::CopyKernel;
pub use pages::{PageBuf, Pages};
pub use pair::Pair;

/// What is measured; see the table in the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// A store that the other side sees, payload in the same line (0 to 56 bytes).
    HandOff,
    /// A flag and one more line (57 to 64 bytes).
    NextLine,
    /// One core copies from the peer's shared pages.
    Direct(CopyKernel),
    /// Both cores copy one half each.
    Cooperative,
    /// One `process_vm_readv`.
    CmaRead,
    /// Receiver reads one half, sender writes the other.
    CmaCooperative,
    /// A stream of 8-byte messages in a ring of 64-byte slots.
    Slots,
}

impl Limit {
    /// Name as it appears in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HandOff => "hand-off",
            Self::NextLine => "next-line",
            Self::Direct(CopyKernel::Memcpy) => "direct",
            Self::Direct(CopyKernel::NonTemporal) => "direct-nt",
            Self::Direct(CopyKernel::RepMovsb) => "direct-rep",
            Self::Cooperative => "coop",
            Self::CmaRead => "cma-read",
            Self::CmaCooperative => "cma-coop",
            Self::Slots => "slots",
        }
    }

    /// Every limit that this processor can run, in the order of the table.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::HandOff, Self::NextLine];
        all.extend(
            CopyKernel::available()
                .iter()
                .map(|&kernel| Self::Direct(kernel)),
        );
        all.extend([
            Self::Cooperative,
            Self::CmaRead,
            Self::CmaCooperative,
            Self::Slots,
        ]);
        all
    }

    /// The limit of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|limit| limit.name() == name)
    }

    /// Whether messages of `size` bytes can be carried this way.
    #[must_use]
    pub fn carries(self, size: usize) -> bool {
        match self {
            Self::HandOff => size <= 56,
            Self::NextLine => (57..=64).contains(&size),
            Self::Direct(CopyKernel::Memcpy) | Self::CmaRead => size > 0,
            Self::Direct(_) => size >= 256,
            Self::Cooperative | Self::CmaCooperative => size >= 4096,
            Self::Slots => size <= 56,
        }
    }
}

/// How messages follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// One message there, one back; the time is half the round.
    PingPong,
    /// This many messages from side 0 to side 1, then an acknowledgement; the time is per message.
    OneWay(usize),
    /// This many messages in each direction at once; the time is per message of one direction.
    TwoWay(usize),
}

impl Flow {
    /// Messages of one direction in one iteration.
    #[must_use]
    pub fn window(self) -> usize {
        match self {
            Self::PingPong => 1,
            Self::OneWay(window) | Self::TwoWay(window) => window.max(1),
        }
    }
}

/// Which memory messages use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The same buffers each time, so they stay in caches.
    Same,
    /// Buffers rotate through the pool, so they do not.
    OffCache,
    /// The sender fills its buffer before each send, inside the timed loop.
    Rewrite,
}

/// One batch.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// What to measure.
    pub limit: Limit,
    /// How messages follow one another.
    pub flow: Flow,
    /// Which memory they use.
    pub mode: Mode,
    /// Bytes of one message.
    pub size: usize,
    /// Iterations of the flow.
    pub iterations: u64,
}

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The other side ended, or did not answer in time.
    #[error("the other side of the measurement has not answered for {0} s")]
    Silent(u64),
    /// The arena was asked to stop.
    #[error("the measurement was stopped")]
    Stopped,
    /// The kernel refused a call that the limit is made of.
    #[error("{call} was refused: {errno}")]
    Refused {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: nix::errno::Errno,
    },
    /// The message does not fit in the arena's pool.
    #[error("a window of {bytes} bytes does not fit in a pool of {pool} bytes")]
    TooLarge {
        /// Bytes of the window.
        bytes: usize,
        /// Bytes of the pool.
        pool: usize,
    },
    /// The memory could not be had.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl LimitError {
    pub(crate) fn io(what: &'static str) -> impl Fn(nix::errno::Errno) -> Self {
        move |errno| Self::Io {
            what,
            source: errno.into(),
        }
    }
}
