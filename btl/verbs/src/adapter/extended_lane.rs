// SPDX-License-Identifier: MIT OR Apache-2.0
//! What only a lane by an extended connection has. What it is for: [`super::extended`].

use super::connector::Connecting;
use crate::pair::{QueuePair, Ready};
use crate::port::QueuePairAddress;
use crate::provider::Provider;

/// A target that this rank has open.
#[derive(Debug)]
pub(super) enum Target<P: Provider> {
    /// It belongs to others.
    None,
    /// A thread connects it.
    Connecting(Connecting<P>),
    Held(QueuePair<P, Ready>),
}

/// What only a lane by an extended connection has.
#[derive(Debug)]
pub(super) struct ExtendedLane<P: Provider> {
    pub(super) number: u32,
    pub(super) initiator: u64,
    /// Its peer is asked for the initiator's target.
    pub(super) leads: bool,
    /// Whether it counts among the initiator's lanes.
    pub(super) uses: bool,
    /// The peer's initiator and port, once they are known.
    pub(super) peer: Option<QueuePairAddress>,
    /// The target of the peer's initiator, and whether the peer has asked this side to make it.
    pub(super) target: Target<P>,
    pub(super) is_asked: bool,
}

impl<P: Provider> ExtendedLane<P> {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Whether what the peer needs of this side is there.
    pub(super) fn serves(&self) -> bool {
        !matches!(self.target, Target::Connecting(..))
    }

    /// The number of a target that this side has made for the peer.
    pub(super) fn made_target(&self) -> Option<u32> {
        match &self.target {
            Target::Held(pair) if self.is_asked => Some(pair.number()),
            _ => None,
        }
    }
}
