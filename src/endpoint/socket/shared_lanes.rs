// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device of a rank's lanes.

use onecopy_btl::lanes::Lanes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A rank's lanes, which its endpoints share.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<Mutex<Box<dyn Lanes>>>);

impl Shared {
    pub(crate) fn new(lanes: Box<dyn Lanes>) -> Self {
        Self(Arc::new(Mutex::new(lanes)))
    }

    /// Nobody holds it while waiting for anything.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Box<dyn Lanes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
