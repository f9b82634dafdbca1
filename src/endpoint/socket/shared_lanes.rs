// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's lanes, as its endpoints share them.

use onecopy_btl::lanes::Lanes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lanes of one device.
#[derive(Debug, Clone)]
pub(crate) struct SharedLanes(Arc<Mutex<Box<dyn Lanes>>>);

impl SharedLanes {
    pub(crate) fn new(lanes: Box<dyn Lanes>) -> Self {
        Self(Arc::new(Mutex::new(lanes)))
    }

    /// No thread holds it while it waits for anything.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Box<dyn Lanes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the lanes of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedLane<'l> {
    pub(super) lanes: &'l SharedLanes,
    pub(super) name: u64,
}
