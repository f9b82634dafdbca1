// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes: connections of a device that take over what the wire to a peer on another node carries.

pub use onecopy_verbs::adapter::{ExposedMemory, Figures, Lanes, Offer, ReadState};
pub use onecopy_verbs::modes::JobShape;

use crate::refusal::Refusal;
use onecopy_obs::Knobs;
use std::fmt;
use std::sync::Arc;

type Opens = dyn Fn(&Knobs, &JobShape) -> Result<Box<dyn Lanes>, Refusal> + Send + Sync;

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
        open: impl Fn(&Knobs, &JobShape) -> Result<Box<dyn Lanes>, Refusal> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(open))
    }

    /// Opens it for a rank of this job.
    ///
    /// # Errors
    /// A [`Refusal`]: the rank has no lanes, and its messages go by the socket.
    pub fn open(&self, knobs: &Knobs, job: &JobShape) -> Result<Box<dyn Lanes>, Refusal> {
        (self.0)(knobs, job)
    }
}
