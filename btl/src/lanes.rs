// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes: connections of a device that take over what the wire to a peer on another node carries.

pub use onecopy_verbs::adapter::{
    ExposedMemory, Figures, Lanes, NodeShare, Offer, ReadState, RemoteAddress,
};
pub use onecopy_verbs::modes::JobShape;

use crate::refusal::Refusal;
use onecopy_obs::Knobs;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A job, as far as the lanes of a rank must know it.
pub struct LaneJob<'a> {
    /// The node of each rank.
    pub nodes: Arc<[u32]>,
    /// Finds a file that all ranks of this rank's node have, and nobody else. Only some lanes ask for it.
    pub node_file: &'a mut dyn FnMut() -> Result<OwnedFd, String>,
}

impl fmt::Debug for LaneJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneJob")
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl LaneJob<'_> {
    /// How many ranks are where.
    #[must_use]
    pub fn shape(&self) -> JobShape {
        JobShape::on(self.nodes.iter().copied())
    }
}

type Opens = dyn Fn(&Knobs, &mut LaneJob<'_>) -> Result<Box<dyn Lanes>, Refusal> + Send + Sync;

/// What opens the device of a rank.
#[derive(Clone)]
pub struct Open(Arc<Opens>);

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Open")
    }
}

impl Open {
    /// By this function.
    pub fn by(
        open: impl Fn(&Knobs, &mut LaneJob<'_>) -> Result<Box<dyn Lanes>, Refusal>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(open))
    }

    /// Opens it for a rank of this job.
    ///
    /// # Errors
    /// A [`Refusal`]: the rank has no lanes, and its messages go by the socket.
    pub fn open(&self, knobs: &Knobs, job: &mut LaneJob<'_>) -> Result<Box<dyn Lanes>, Refusal> {
        (self.0)(knobs, job)
    }
}
