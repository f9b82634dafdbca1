// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job of one rank: what a program gets that no launcher started.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{Card, Emergency, Event, Introduction, Wireup, WireupError};

/// The only rank of its job.
#[derive(Debug, Default)]
pub struct Singleton {
    segment: Option<OwnedFd>,
}

impl Singleton {
    /// A job of one rank.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Wireup for Singleton {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn job(&self) -> u64 {
        u64::from(std::process::id())
    }

    fn join(&mut self, card: Card, segment: BorrowedFd<'_>) -> Result<Vec<Card>, WireupError> {
        let copy = segment.try_clone_to_owned();
        self.segment = Some(copy.map_err(|source| WireupError::System {
            call: "join",
            what: "dup of the segment",
            source,
        })?);
        Ok(vec![card])
    }

    fn introduce(&mut self, peer: usize) -> Result<Introduction, WireupError> {
        const CALL: &str = "introduce";
        if peer != 0 {
            return Err(WireupError::NoSuchRank {
                call: CALL,
                rank: peer,
                size: 1,
            });
        }
        let segment = self.segment.as_ref().ok_or(WireupError::Order {
            call: CALL,
            reason: "this rank has not joined",
        })?;
        Ok(Introduction {
            grant: None,
            memory: segment.try_clone().map_err(|source| WireupError::System {
                call: CALL,
                what: "dup of the segment",
                source,
            })?,
            pidfd: None,
            pid: Some(std::process::id().cast_signed()),
            uid: nix::unistd::getuid().as_raw(),
        })
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll(&mut self) -> Result<Option<Event>, WireupError> {
        Ok(None)
    }

    fn leave(&mut self) -> Result<(), WireupError> {
        Ok(())
    }

    fn emergency(&self) -> Arc<dyn Emergency> {
        Arc::new(AloneEmergency)
    }
}

/// There is no other rank to notify.
struct AloneEmergency;

impl Emergency for AloneEmergency {
    fn abort(&self, _code: i32) -> Result<(), WireupError> {
        Ok(())
    }
}
