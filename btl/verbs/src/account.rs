// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a queue keeps of each pair and of each queue of receives.

use std::sync::{Arc, Weak};

use crate::provider::Provider;

/// What the operations of one pair, or one queue of receives, are kept for.
#[derive(Debug)]
pub(crate) enum Keep<P: Provider> {
    /// With the receives that it shares: they can be written to while one of their pairs exists.
    Pair(
        Arc<P::Pair>,
        #[allow(dead_code, reason = "it is only kept")] Option<Arc<P::Receives>>,
    ),
    Receives(Arc<P::Receives>),
}

/// Whether something still exists.
pub(crate) enum Watch<P: Provider> {
    Pair(Weak<P::Pair>),
    Receives(Weak<P::Receives>),
}

impl<P: Provider> Keep<P> {
    pub(crate) fn watch(self) -> Watch<P> {
        match self {
            Self::Pair(pair, _) => Watch::Pair(Arc::downgrade(&pair)),
            Self::Receives(receives) => Watch::Receives(Arc::downgrade(&receives)),
        }
    }
}

impl<P: Provider> Watch<P> {
    pub(crate) fn exists(&self) -> bool {
        match self {
            Self::Pair(pair) => pair.strong_count() > 0,
            Self::Receives(receives) => receives.strong_count() > 0,
        }
    }
}

/// Room and counts of a pair or a queue of receives.
#[derive(Debug)]
pub(crate) struct Account<P: Provider> {
    pub(crate) keep: Keep<P>,
    pub(crate) sends: u32,
    pub(crate) sends_free: u32,
    /// Sends since the last one that tells of its completion.
    pub(crate) silent: u32,
    pub(crate) receives_free: u32,
    /// Completions that may come, in all.
    pub(crate) reserved: u32,
}
