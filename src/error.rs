// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, as the program sees it.

use crate::wireup::{Death, WireupError};
use nix::errno::Errno;
use onecopy_obs::KnobError;
use onecopy_shm::fdpass::FdPassError;
use onecopy_shm::heap::AllocError;
use onecopy_shm::segment::SegmentError;
use std::sync::Arc;

/// An error of a call or of a request. It names the object and the reason.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer died. What was under way from it or to it ends with this error.
    #[error("rank {rank} is dead: {death}")]
    PeerDied {
        /// The peer.
        rank: usize,
        /// How it ended.
        death: Death,
    },
    /// A peer has finalized and sends nothing more.
    #[error("rank {rank} has left the job")]
    PeerLeft {
        /// The peer.
        rank: usize,
    },
    /// A peer wrote something into shared memory that no correct peer writes. It is treated as dead.
    #[error("rank {rank} broke the protocol: {detail}")]
    Protocol {
        /// The peer.
        rank: usize,
        /// What was found.
        detail: String,
    },
    /// The message is longer than the buffer. As much as fits was received.
    #[error(
        "a message of {message} bytes from rank {rank} with tag {tag} was received into a buffer of {buffer} bytes"
    )]
    Truncated {
        /// The sender.
        rank: usize,
        /// The tag.
        tag: i32,
        /// Bytes of the message.
        message: u64,
        /// Bytes of the buffer.
        buffer: u64,
    },
    /// There is no such rank.
    #[error("there is no rank {rank} among {size}")]
    NoSuchRank {
        /// The rank that was given.
        rank: usize,
        /// Ranks of the communicator, or of the job.
        size: usize,
    },
    /// A tag below zero.
    #[error("tag {tag}: tags are zero or greater")]
    BadTag {
        /// The tag that was given.
        tag: i32,
    },
    /// The message's length is no multiple of the element size.
    #[error("a message of {bytes} bytes is not a whole number of elements of {element} bytes")]
    Uneven {
        /// Bytes of the message.
        bytes: u64,
        /// Bytes of an element.
        element: usize,
    },
    /// The receive was cancelled.
    #[error("the receive was cancelled")]
    Cancelled,
    /// A buffer of the transfer, on either side, was taken back, or its device failed.
    #[error(
        "the transfer with rank {rank} was broken off: one of its buffers was taken back, or its device failed; the error \
         of the rank that has this buffer says which"
    )]
    Withdrawn {
        /// The peer.
        rank: usize,
    },
    /// This process is a child of the rank, made by `fork`.
    #[error(
        "this process was forked from a rank and is no rank itself. Only the rank may use its runtime. The launcher must start whatever is to take part in the job"
    )]
    Forked,
    /// The runtime was finalized. Communicators that outlive it carry nothing any more.
    #[error(
        "the runtime was finalized: nothing is sent or received any more. Drop what outlives it before, or finalize later"
    )]
    Finalized,
    /// A rank has ended the whole job.
    #[error("the job was aborted with code {code}")]
    Aborted {
        /// The code given.
        code: i32,
    },
    /// A collective was called in a way that cannot work, or was given up by a member.
    #[error("collective: {reason}")]
    Collective {
        /// What is wrong.
        reason: String,
    },
    /// Shared memory failed.
    #[error(transparent)]
    Segment(Arc<SegmentError>),
    /// An allocation failed.
    #[error(transparent)]
    Alloc(Arc<AllocError>),
    /// The job could not be joined, or its launcher failed.
    #[error(transparent)]
    Wireup(Arc<WireupError>),
    /// A setting cannot be used.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The pair cannot talk at all.
    #[error("rank {rank} cannot be reached: {reason}")]
    Unreachable {
        /// The peer.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// Memory of a device that the program gave could not be read or written.
    #[error("device memory: {0}")]
    Device(Arc<str>),
    /// The tune file cannot be used.
    #[error("tune file {path}: {reason}; run `onecopy tune` again or unset ONECOPY_TUNE_FILE")]
    TuneFile {
        /// Its path.
        path: String,
        /// The reason.
        reason: String,
    },
}

impl Error {
    /// Whether the same may work a little later: descriptors or memory were short.
    pub(crate) fn is_temporary(&self) -> bool {
        let short = |source: &std::io::Error| {
            matches!(
                source.raw_os_error().map(Errno::from_raw),
                Some(
                    Errno::EMFILE
                        | Errno::ENFILE
                        | Errno::ENOMEM
                        | Errno::EAGAIN
                        | Errno::ENOBUFS
                        | Errno::EINTR
                )
            )
        };
        match self {
            Self::Wireup(error) => match &**error {
                WireupError::System { source, .. } => short(source),
                WireupError::Transport { source, .. } => match source {
                    FdPassError::FdsLost | FdPassError::WouldBlock => true,
                    FdPassError::System { source, .. } => short(source),
                    _ => false,
                },
                WireupError::NoAnswer { .. } => true,
                _ => false,
            },
            Self::Segment(error) => match &**error {
                SegmentError::Call { source, .. } => short(source),
                SegmentError::Reserve { .. } => true,
                _ => false,
            },
            _ => false,
        }
    }
}

impl From<onecopy_shm::loan::LoanError> for Error {
    fn from(error: onecopy_shm::loan::LoanError) -> Self {
        Self::Collective {
            reason: error.to_string(),
        }
    }
}
impl From<SegmentError> for Error {
    fn from(error: SegmentError) -> Self {
        Self::Segment(Arc::new(error))
    }
}
impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        Self::Alloc(Arc::new(error))
    }
}
impl From<WireupError> for Error {
    fn from(error: WireupError) -> Self {
        Self::Wireup(Arc::new(error))
    }
}

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The error of those whose communicator a member has given up.
    pub(crate) fn given_up(rank: usize) -> Self {
        Self::Collective {
            reason: format!("rank {rank} gave the communicator up"),
        }
    }

    /// The error of a request whose buffer was taken back before its transfer with a peer was over.
    pub(crate) fn withdrawn(peer: u32) -> Self {
        Self::Withdrawn {
            rank: peer as usize,
        }
    }
}
