// SPDX-License-Identifier: MIT OR Apache-2.0
//! A collective under way.

use super::user_buffer::UserBuffer;
use crate::phase;
use onecopy::raw::{Operation, Poll};

/// A collective under way.
pub(crate) struct Running {
    /// None: it is over.
    pub(super) operation: Option<Operation>,
    /// Kept until the end: the operation reads it.
    pub(super) _send: Option<UserBuffer>,
    pub(super) recv: Option<UserBuffer>,
}

impl Running {
    /// The result, if it is over; the results are where they belong then.
    pub(crate) fn take(&mut self, poll: &mut Poll<'_>) -> Option<Result<(), onecopy::Error>> {
        let Some(operation) = &self.operation else {
            return Some(Err(onecopy::Error::Cancelled));
        };
        let result = poll.take(operation)?;
        self.operation = None;
        if result.is_ok()
            && let Some(recv) = &mut self.recv
        {
            recv.deliver();
        }
        Some(result.map(drop))
    }
}

impl Drop for Running {
    /// What all members take part in cannot be taken back by one: its buffers stay until it is over.
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take()
            && let Ok(link) = phase::engine()
        {
            let _ = link.wait_until(|poll| poll.take(&operation));
        }
    }
}
