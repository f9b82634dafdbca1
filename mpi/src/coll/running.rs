// SPDX-License-Identifier: MIT OR Apache-2.0
//! A collective under way.

use super::user_buffer::UserBuffer;
use crate::phase;
use onecopy::raw::{Operation, Poll};

/// A collective under way.
pub(crate) struct Running {
    /// None: it is over.
    pub(super) operation: Option<Operation>,
    /// Whether it is over, but for results on their way to where they belong.
    pub(super) delivering: bool,
    /// Kept until the end: the operation reads it.
    pub(super) _send: Option<UserBuffer>,
    pub(super) recv: Option<UserBuffer>,
}

impl Running {
    /// The result, if it is over; the results are where they belong then.
    pub(crate) fn take(&mut self, poll: &mut Poll<'_>) -> Option<Result<(), onecopy::Error>> {
        if let Some(operation) = &self.operation {
            let result = poll.take(operation)?;
            self.operation = None;
            if let Err(error) = result {
                return Some(Err(error));
            }
            self.delivering = true;
        }
        if !self.delivering {
            return Some(Err(onecopy::Error::Cancelled));
        }
        let delivered = self.recv.as_mut().map_or(Ok(true), UserBuffer::deliver);
        if matches!(delivered, Ok(false)) {
            poll.stay_awake();
            return None;
        }
        self.delivering = false;
        Some(delivered.map(drop))
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
