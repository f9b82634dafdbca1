// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of the runtime, with the memory that they work on.
//!
//! The runtime knows a buffer by its address until the operation is over. So sends and receives are started here alone
//! (collectives in `coll.rs`). What starts one is a value that takes it back when it is dropped. A receive that no
//! message has matched is cancelled. A send of the program's memory is withdrawn. Memory of the library lives on until
//! nobody uses it.

use crate::datatype::layout::Layout;
use crate::ffi::Addr;
use crate::{device, memory, phase};
use onecopy::raw::{Operation, Poll, SendOptions};
use onecopy::{Comm, Error, Result, Span, Status};
use std::sync::Mutex;

/// Where a received message that comes in packed form goes.
pub(crate) struct Unpack {
    layout: Layout,
    base: Addr,
    to: Place,
}

/// What copies it there.
enum Place {
    /// The processor, at once.
    Host,
    /// A device, which nothing was asked yet.
    Device,
    /// A device, which copies so many bytes; and what is to be said then.
    Copying(device::Scatter, usize, Result<Status>),
}

impl Unpack {
    pub(crate) fn new(layout: Layout, base: Addr) -> Self {
        let to = match device::holds_any(&layout, base) {
            true => Place::Device,
            false => Place::Host,
        };
        Self { layout, base, to }
    }

    /// Takes what has come, the first `bytes` of the packed form. Gives the result back when it is where it belongs.
    fn deliver(
        &mut self,
        packed: &[u8],
        bytes: usize,
        result: Result<Status>,
    ) -> Option<Result<Status>> {
        if matches!(self.to, Place::Host) {
            memory::scatter_in_host(&self.layout, self.base, 0, &packed[..bytes]);
            return Some(result);
        }
        self.to = Place::Copying(device::Scatter::default(), bytes, result);
        self.advance(packed)?
    }

    /// Goes on with that. `None`: nothing is under way.
    fn advance(&mut self, packed: &[u8]) -> Option<Option<Result<Status>>> {
        let Place::Copying(scatter, bytes, result) = &mut self.to else {
            return None;
        };
        let result = match scatter.advance(&self.layout, self.base, &packed[..*bytes]) {
            Ok(false) => return Some(None),
            Ok(true) => result.clone(),
            Err(error) => Err(error),
        };
        self.to = Place::Device;
        Some(Some(result))
    }
}

/// A send or a receive under way.
#[must_use = "an operation that is dropped is taken back"]
pub(crate) struct Pending {
    /// None: it is over.
    operation: Option<Operation>,
    /// The packed form, if the message does not go straight from or to the program's buffer.
    packed: Vec<u8>,
    unpack: Option<Box<Unpack>>,
    receives: bool,
}

impl Pending {
    fn new(operation: Operation, packed: Vec<u8>, receives: bool) -> Self {
        Self {
            operation: Some(operation),
            packed,
            unpack: None,
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

    /// Starts a receive into the program's memory.
    pub(crate) fn receive(
        spans: &[Span],
        begin: impl FnOnce(&[Span]) -> Result<Operation>,
    ) -> Result<Self> {
        Ok(Self::new(begin(spans)?, Vec::new(), true))
    }

    /// Starts a receive into memory of the library. `unpack`: where its bytes go then.
    pub(crate) fn receive_packed(
        mut packed: Vec<u8>,
        unpack: Option<Box<Unpack>>,
        begin: impl FnOnce(&[Span]) -> Result<Operation>,
    ) -> Result<Self> {
        let len = packed.len();
        let span = memory::received(memory::address_of(&mut packed), len);
        let operation = begin(&[span])?;
        let mut pending = Self::new(operation, packed, true);
        pending.unpack = unpack;
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
            let unpack = self.unpack.as_mut();
            let copying = unpack.and_then(|unpack| unpack.advance(&self.packed));
            return match copying {
                None => Some(Err(Error::Cancelled)),
                Some(None) => {
                    poll.stay_awake();
                    None
                }
                Some(result) => result,
            };
        };
        let result = poll.take(operation)?;
        self.operation = None;
        let Some(unpack) = &mut self.unpack else {
            return Some(result);
        };
        let bytes = match &result {
            Ok(status) => status.bytes,
            Err(Error::Truncated { .. }) => self.packed.len(),
            Err(_) => 0,
        };
        let result = unpack.deliver(&self.packed, bytes, result);
        if result.is_none() {
            poll.stay_awake();
        }
        result
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
        if let Some(operation) = self.operation.take() {
            abandon(operation, std::mem::take(&mut self.packed), self.receives);
        }
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
        // A peer that was told of it may still read it.
        std::mem::forget(packed);
    }
}
