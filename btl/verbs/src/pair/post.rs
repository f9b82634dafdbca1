// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is called for every message of a pair.
//!
//! # Safety
//!
//! As [`super`]: what is posted is in the queue's table before, or copied by the call.
#![allow(unsafe_code, reason = "posts sends")]

use super::{QueuePair, Ready};
use crate::domain::AddressHandle;
use crate::memory::Local;
use crate::provider::{Piece, Provider, Remote, Request, Verb};
use crate::queue::{Done, Queue, UNNAMED};
use crate::refused::Refused;

/// The call that posts operations.
const CALL: &str = "ibv_post_send";

/// What a send does. The receiver gets `immediate` (immediate data) with the bytes.
#[derive(Debug)]
pub enum Operation<'a, P: Provider> {
    /// Arrives in a receive of the peer.
    Send {
        /// For the receiver.
        immediate: Option<u32>,
    },
    /// A datagram.
    SendTo {
        /// The address handle.
        ah: &'a AddressHandle<P>,
        /// The peer's pair.
        pair: u32,
        /// Its Q_Key.
        qkey: u32,
        /// For the receiver.
        immediate: Option<u32>,
    },
    /// Arrives in receives that the peer's processes share.
    SendShared {
        /// Their number.
        receives: u32,
        /// For the receiver.
        immediate: Option<u32>,
    },
    /// Arrives in the peer's memory; with immediate data, a receive of the peer completes.
    Write {
        /// Where.
        to: Remote,
        /// For the receiver.
        immediate: Option<u32>,
    },
    /// Comes from the peer's memory.
    Read {
        /// Where from.
        from: Remote,
    },
    /// The same by an extended connection: from memory of the domain of those receives.
    ReadShared {
        /// Where from.
        from: Remote,
        /// Their number.
        receives: u32,
    },
}

impl<P: Provider> QueuePair<P, Ready> {
    /// Posts an operation. `cookie` comes back with its completion, and so does the slot.
    ///
    /// # Errors
    ///
    /// With its memory, when there is no room, it is too long, or the device refuses.
    pub fn post(
        &self,
        queue: &mut Queue<P>,
        operation: Operation<'_, P>,
        local: Local<P>,
        cookie: u64,
    ) -> Result<(), Refused<P>> {
        let piece = match local.piece() {
            Some(piece) if self.queue == queue.id() && piece.length <= self.largest => piece,
            Some(_) if self.queue == queue.id() => {
                return Err(Refused::of(
                    local,
                    CALL,
                    "it is longer than the device's largest message",
                ));
            }
            _ => {
                return Err(Refused::of(
                    local,
                    CALL,
                    "memory or queue are not those of the queue pair",
                ));
            }
        };
        let Some(account) = queue.account(self.account) else {
            return Err(Refused::of(local, CALL, "the queue pair was retired"));
        };
        let Some(covers) = account.sends.take() else {
            return Err(Refused::full(local, CALL));
        };
        let Some(id) = queue.begin(self.account, Done::Sent, local, cookie, covers) else {
            return Err(Refused::of(Local::Nothing, CALL, "too many operations"));
        };
        let pieces = [piece];
        let used = usize::from(piece.length > 0);
        let (verb, immediate) = verb(&operation);
        let request = Request {
            id,
            verb,
            pieces: &pieces[..used],
            immediate,
            signaled: true,
            inline: false,
        };
        // SAFETY: the memory is in the table until its completion, or the end of the pair.
        let posted = unsafe { P::send(&self.raw, &request) };
        posted.map_err(|error| self.take_back(queue, id, covers, error))
    }

    /// Posts a few bytes, which are copied at once. Such sends do not complete one by one: their room comes back with
    /// one of them in a while, or with the next operation. A failure does complete, without a cookie.
    ///
    /// # Errors
    ///
    /// When there is no room, more bytes than [`Self::inline`], or the device refuses.
    pub fn post_inline(
        &self,
        queue: &mut Queue<P>,
        operation: Operation<'_, P>,
        bytes: &[u8],
    ) -> Result<(), Refused<P>> {
        let refused = |why| Err(Refused::of(Local::Nothing, CALL, why));
        if bytes.len() > self.inline() || self.queue != queue.id() {
            return refused("more bytes than a request carries, or another queue");
        }
        if matches!(
            operation,
            Operation::Read { .. } | Operation::ReadShared { .. }
        ) {
            return refused("a read has no bytes to copy");
        }
        let Some(account) = queue.account(self.account) else {
            return refused("the queue pair was retired");
        };
        let Some(covers) = account.sends.take_silent() else {
            return Err(Refused::full(Local::Nothing, CALL));
        };
        let signaled = covers > 0;
        let id = if signaled {
            queue
                .begin(self.account, Done::Sent, Local::Nothing, UNNAMED, covers)
                .unwrap_or(UNNAMED)
        } else {
            UNNAMED
        };
        let piece = Piece {
            address: bytes.as_ptr().expose_provenance() as u64,
            length: u32::try_from(bytes.len()).unwrap_or(0),
            key: 0,
        };
        let pieces = [piece];
        let used = usize::from(!bytes.is_empty());
        let (verb, immediate) = verb(&operation);
        let request = Request {
            id,
            verb,
            pieces: &pieces[..used],
            immediate,
            signaled,
            inline: true,
        };
        // SAFETY: the request is inline, so the call copies the bytes, which are borrowed until it returns.
        let posted = unsafe { P::send(&self.raw, &request) };
        posted.map_err(|error| self.take_back(queue, id, covers, error))
    }

    /// Takes back an operation that the device has refused, and its room.
    #[cold]
    fn take_back(
        &self,
        queue: &mut Queue<P>,
        id: u64,
        covers: u32,
        error: std::io::Error,
    ) -> Refused<P> {
        if let Some(account) = queue.account(self.account) {
            account.sends.give_back(covers);
        }
        Refused::by_device(queue.take_back(id), CALL, queue.device().name(), error)
    }

    /// Sends that can be posted now.
    #[must_use]
    pub fn room(&self, queue: &mut Queue<P>) -> u32 {
        queue
            .account(self.account)
            .map_or(0, |account| account.sends.free())
    }
}

fn verb<'a, P: Provider>(operation: &Operation<'a, P>) -> (Verb<'a, P>, Option<u32>) {
    match *operation {
        Operation::Send { immediate } => (Verb::Send, immediate),
        Operation::SendTo {
            ah,
            pair,
            qkey,
            immediate,
        } => (
            Verb::SendTo {
                ah: &ah.0,
                number: pair,
                qkey,
            },
            immediate,
        ),
        Operation::SendShared {
            receives,
            immediate,
        } => (Verb::SendShared { receives }, immediate),
        Operation::Write { to, immediate } => (Verb::Write(to), immediate),
        Operation::Read { from } => (Verb::Read(from), None),
        Operation::ReadShared { from, receives } => (Verb::ReadShared { from, receives }, None),
    }
}
