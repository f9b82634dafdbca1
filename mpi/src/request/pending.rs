// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of the runtime, with the memory that they work on.
//!
//! The runtime knows a buffer by its address until the operation is over. So sends and receives are started here alone
//! (collectives in `coll.rs`). What starts one is a value that takes it back when it is dropped. A receive that no
//! message has matched is cancelled. A send of the program's memory is withdrawn. Memory of the library lives on until
//! nobody uses it.

use crate::datatype::layout::Layout;
use crate::device::{Incoming, Outgoing, StagedMessage};
use crate::ffi::Addr;
use crate::{device, memory, phase};
use onecopy::raw::{MessageBuf, Operation, Poll, SendOptions};
use onecopy::{Comm, Error, Result, Span, Status};
use std::sync::{Arc, Mutex};

/// Where a received message that comes in packed form goes, in the host.
pub(crate) struct Unpack {
    layout: Layout,
    base: Addr,
}

impl Unpack {
    pub(crate) fn new(layout: Layout, base: Addr) -> Self {
        Self { layout, base }
    }
}

/// What is left to do when the operation is over.
enum Rest {
    Unpack(Unpack),
    /// A device may still copy; and what is to be reported then.
    Settle(StagedMessage, Option<Result<Status>>),
}

impl Rest {
    /// Takes the result of the operation, and gives it back when the bytes are where they belong.
    fn end(
        &mut self,
        packed: &[u8],
        result: Result<Status>,
        poll: &mut Poll<'_>,
    ) -> Option<Result<Status>> {
        match self {
            Self::Unpack(unpack) => {
                let bytes = match &result {
                    Ok(status) => status.bytes,
                    Err(Error::Truncated { .. }) => packed.len(),
                    Err(_) => 0,
                };
                let bytes = &packed[..bytes];
                memory::scatter_in_host(&unpack.layout, unpack.base, 0, bytes);
                Some(result)
            }
            Self::Settle(_, kept) => {
                *kept = Some(result);
                self.settle(poll)
            }
        }
    }

    /// The result, if it is there and no device uses the program's buffer any more.
    fn settle(&mut self, poll: &mut Poll<'_>) -> Option<Result<Status>> {
        let Self::Settle(message, result @ Some(_)) = self else {
            return Some(Err(Error::Cancelled));
        };
        let Some(settled) = message.end() else {
            poll.stay_awake();
            return None;
        };
        let result = result.take()?;
        if let Err(error) = &result {
            device::forget_if_gone(error);
        }
        Some(settled.and(result))
    }
}

/// A send or a receive under way.
#[must_use = "an operation that is dropped is taken back"]
pub(crate) struct Pending {
    /// None: it is over.
    operation: Option<Operation>,
    /// The packed form, if the message does not go straight from or to the program's buffer.
    packed: Vec<u8>,
    rest: Option<Box<Rest>>,
    receives: bool,
}

impl Pending {
    fn new(operation: Operation, packed: Vec<u8>, receives: bool) -> Self {
        Self {
            operation: Some(operation),
            packed,
            rest: None,
            receives,
        }
    }

    /// Starts a send of the program's memory.
    pub(crate) fn send(
        link: &Comm,
        spans: &[Span],
        rank: usize,
        tag: i32,
        options: impl Into<SendOptions>,
    ) -> Result<Self> {
        let operation = link.begin_send(spans, rank, tag, options)?;
        Ok(Self::new(operation, Vec::new(), false))
    }

    /// Starts a send of bytes of the library.
    pub(crate) fn send_packed(
        link: &Comm,
        mut packed: Vec<u8>,
        rank: usize,
        tag: i32,
        options: impl Into<SendOptions>,
    ) -> Result<Self> {
        let span = memory::sent(memory::address_of(&mut packed), packed.len());
        let operation = link.begin_send(&[span], rank, tag, options)?;
        Ok(Self::new(operation, packed, false))
    }

    /// Starts a send of a device's memory.
    pub(crate) fn send_staged(
        link: &Comm,
        buffer: Arc<Outgoing>,
        rank: usize,
        tag: i32,
        options: impl Into<SendOptions>,
    ) -> Result<Self> {
        let staged = MessageBuf::Staged(Arc::clone(&buffer) as _);
        let operation = link.begin_send(staged, rank, tag, options)?;
        Ok(Self::staged(
            operation,
            StagedMessage::Outgoing(buffer),
            false,
        ))
    }

    /// Starts a receive into a device's memory.
    pub(crate) fn receive_staged(
        buffer: Incoming,
        begin: impl FnOnce(MessageBuf<'_>) -> Result<Operation>,
    ) -> Result<Self> {
        let buffer = Arc::new(buffer);
        let operation = begin(MessageBuf::Staged(Arc::clone(&buffer) as _))?;
        Ok(Self::staged(
            operation,
            StagedMessage::Incoming(buffer),
            true,
        ))
    }

    fn staged(operation: Operation, message: StagedMessage, receives: bool) -> Self {
        let mut pending = Self::new(operation, Vec::new(), receives);
        pending.rest = Some(Box::new(Rest::Settle(message, None)));
        pending
    }

    /// Starts a receive into the program's memory.
    pub(crate) fn receive(
        spans: &[Span],
        begin: impl FnOnce(MessageBuf<'_>) -> Result<Operation>,
    ) -> Result<Self> {
        Ok(Self::new(begin(spans.into())?, Vec::new(), true))
    }

    /// Starts a receive into memory of the library. `unpack`: where its bytes go then.
    pub(crate) fn receive_packed(
        mut packed: Vec<u8>,
        unpack: Option<Unpack>,
        begin: impl FnOnce(MessageBuf<'_>) -> Result<Operation>,
    ) -> Result<Self> {
        let len = packed.len();
        let span = memory::received(memory::address_of(&mut packed), len);
        let operation = begin((&[span]).into())?;
        let mut pending = Self::new(operation, packed, true);
        pending.rest = unpack.map(|unpack| Box::new(Rest::Unpack(unpack)));
        Ok(pending)
    }

    /// A receive that was started without an object.
    pub(super) fn adopted(operation: Operation) -> Self {
        Self::new(operation, Vec::new(), true)
    }

    pub(crate) fn receives(&self) -> bool {
        self.receives
    }

    /// What was received in packed form.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// The result if it is over; a received message is where it belongs then.
    ///
    /// Callers look until there is one, so a look in vain is the short way.
    #[inline]
    pub(crate) fn take(&mut self, poll: &mut Poll<'_>) -> Option<Result<Status>> {
        match &self.operation {
            Some(operation) if !poll.is_done(operation) => None,
            _ => self.take_result(poll),
        }
    }

    fn take_result(&mut self, poll: &mut Poll<'_>) -> Option<Result<Status>> {
        let Some(operation) = &self.operation else {
            return match &mut self.rest {
                Some(rest) => rest.settle(poll),
                None => Some(Err(Error::Cancelled)),
            };
        };
        let result = poll.take(operation)?;
        self.operation = None;
        match &mut self.rest {
            Some(rest) => rest.end(&self.packed, result, poll),
            None => Some(result),
        }
    }

    /// Takes back a receive that no message has matched.
    pub(crate) fn cancel(&self, poll: &mut Poll<'_>) -> bool {
        self.receives
            && self
                .operation
                .as_ref()
                .is_some_and(|operation| poll.cancel(operation))
    }
}

impl Drop for Pending {
    #[inline]
    fn drop(&mut self) {
        let rest = self.rest.take();
        if let Some(operation) = self.operation.take() {
            abandon(operation, std::mem::take(&mut self.packed), self.receives);
        }
        if let Some(rest) = rest {
            await_device(&rest);
        }
    }
}

/// Waits until no device uses the program's buffer any more. Before, its operation is over.
#[cold]
fn await_device(rest: &Rest) {
    if let Rest::Settle(message, _) = rest
        && message.end().is_none()
        && let Ok(link) = phase::engine()
    {
        link.wait_until(|poll| {
            let settled = message.end().map(drop);
            if settled.is_none() {
                poll.stay_awake();
            }
            settled
        });
    }
}

/// Operations that nobody asks for any more, on memory of the library.
static ABANDONED: Mutex<Vec<(Operation, Vec<u8>)>> = Mutex::new(Vec::new());

/// Ends an operation of a call that fails. When this returns, nobody uses memory of the program for it.
#[cold]
fn abandon(operation: Operation, packed: Vec<u8>, receives: bool) {
    let Ok(link) = phase::engine() else {
        // After the end of the job nothing is moved, but a peer may still look.
        std::mem::forget(packed);
        return;
    };
    reap_abandoned();
    let over = link.peek(|poll| {
        poll.cancel(&operation);
        poll.take(&operation).is_some()
    });
    if over {
        return;
    }
    if !packed.is_empty() {
        phase::lock(&ABANDONED).push((operation, packed));
    } else if receives {
        // Its message is under way to the program's memory; it comes, or its sender's end does.
        let _ = link.wait_until(|poll| poll.take(&operation));
    } else {
        link.peek(|poll| poll.withdraw(operation));
    }
}

/// Forgets what is over of what was abandoned.
pub(super) fn reap_abandoned() {
    let mut abandoned = std::mem::take(&mut *phase::lock(&ABANDONED));
    if abandoned.is_empty() {
        return;
    }
    if let Ok(link) = phase::engine() {
        link.look(|poll| abandoned.retain(|(operation, _)| poll.take(operation).is_none()));
    }
    phase::lock(&ABANDONED).append(&mut abandoned);
}

/// Withdraws what was abandoned and is not over at the end of the job: nobody may ever want it.
pub(super) fn withdraw_abandoned() {
    reap_abandoned();
    let abandoned = std::mem::take(&mut *phase::lock(&ABANDONED));
    let Ok(link) = phase::engine() else { return };
    for (operation, packed) in abandoned {
        link.peek(|poll| poll.withdraw(operation));
        // A peer that got its announcement may still read it.
        std::mem::forget(packed);
    }
}
