// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operation that was not posted.

use crate::error::Error;
use crate::memory::Local;
use crate::provider::Provider;

/// What was not posted, and why.
#[derive(Debug)]
pub struct Refused<P: Provider> {
    /// Its memory.
    pub local: Local<P>,
    /// Why.
    pub error: Error,
}

impl<P: Provider> Refused<P> {
    pub(crate) fn of(local: Local<P>, call: &'static str, why: &str) -> Self {
        Self {
            local,
            error: Error::refused(call, "an operation", why, "report this"),
        }
    }

    pub(crate) fn full(local: Local<P>, call: &'static str) -> Self {
        let reason = std::io::ErrorKind::WouldBlock.into();
        let remedy = "poll for completions, then try again".to_owned();
        Self {
            local,
            error: Error {
                call,
                object: "an operation".to_owned(),
                reason,
                remedy,
            },
        }
    }

    pub(crate) fn by_device(
        local: Local<P>,
        call: &'static str,
        device: &str,
        error: std::io::Error,
    ) -> Self {
        Self {
            local,
            error: Error::of(call, device)(error),
        }
    }

    /// Whether it may go later: there was no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.error.is_full()
    }
}
