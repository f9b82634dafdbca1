// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a layer must offer.

use onecopy_shm::layout::HeapOffset;
use onecopy_shm::segment::PeerSegment;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};

/// A layer's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerId {
    /// Within one process.
    Own,
    /// Memory that both share from the start.
    Heap,
    /// Memory of the peer, attached by a kernel module.
    Xpmem,
    /// Cross-memory attach.
    Cma,
    /// Copies by a kernel module.
    Knem,
    /// Copy in, copy out.
    Cico,
}

impl LayerId {
    /// All layers, in the order in which they are tried: when one fails, the next is used.
    pub const ALL: [Self; 6] = [
        Self::Own,
        Self::Heap,
        Self::Xpmem,
        Self::Cma,
        Self::Knem,
        Self::Cico,
    ];

    /// The name as users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "self",
            Self::Heap => "heap",
            Self::Xpmem => "xpmem",
            Self::Cma => "cma",
            Self::Knem => "knem",
            Self::Cico => "cico",
        }
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a layer is not used, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What was seen: a call, its object, an error.
    pub reason: String,
    /// What the user or the administrator can do.
    pub remedy: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }
}

impl CopyError {
    /// Whether the peer's memory is gone as a whole, with its process: what the module knows at once, while the process may still
    /// take long to end.
    #[must_use]
    pub fn owner_is_dead(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EOWNERDEAD)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

/// What a look at the machine says about a layer, before any peer is known.
#[derive(Debug)]
pub enum Probe {
    /// It can be used; peers may still refuse.
    Available {
        /// What was seen.
        detail: String,
    },
    /// It cannot be used.
    Unavailable(Refusal),
    /// The question could not be answered.
    Undetermined(io::Error),
}

/// A place in a region that the peer exposed by KNEM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionPart {
    /// The region's name.
    pub cookie: u64,
    /// Bytes before the place.
    pub offset: u64,
}

/// Bytes in the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRange {
    /// Their address in the peer.
    pub address: u64,
    /// Their place in the peer's heap, if they lie there.
    pub heap: Option<HeapOffset>,
    /// Their place in a region, if the peer exposed them as one.
    pub region: Option<RegionPart>,
    /// How many.
    pub len: u64,
}

impl RemoteRange {
    /// The part of `len` bytes that begins `offset` bytes into the range.
    #[must_use]
    pub fn part(&self, offset: u64, len: u64) -> Self {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        Self {
            address: self.address.wrapping_add(offset),
            heap: self.heap.map(|h| HeapOffset(h.0.wrapping_add(offset))),
            region: self.region.map(|part| RegionPart {
                offset: part.offset.wrapping_add(offset),
                ..part
            }),
            len,
        }
    }
}

/// A transfer that failed. Nothing is known of the bytes that it was to move.
#[derive(Debug, thiserror::Error)]
#[error("{layer}: {call} of {bytes} bytes with rank {peer}: {source}")]
pub struct CopyError {
    /// The layer.
    pub layer: LayerId,
    /// The call that failed.
    pub call: &'static str,
    /// The peer.
    pub peer: u32,
    /// Bytes asked for.
    pub bytes: u64,
    /// The reason.
    pub source: io::Error,
}

/// A layer that copies straight between the buffers of two processes.
pub trait CopyLayer {
    /// Its name.
    fn id(&self) -> LayerId;
    /// Whether it can reach these bytes at all.
    fn reaches(&self, range: &RemoteRange) -> bool;
    /// Copies all of `from` to `out`, which hold the same number of bytes.
    fn get(
        &self,
        peer: &PeerSegment,
        from: &[RemoteRange],
        out: &mut [IoSliceMut<'_>],
    ) -> Result<(), CopyError>;
    /// Copies all of `bytes` to `to`, which hold the same number of bytes.
    fn put(
        &self,
        peer: &PeerSegment,
        to: &[RemoteRange],
        bytes: &[IoSlice<'_>],
    ) -> Result<(), CopyError>;
}
