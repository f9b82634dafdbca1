// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue pair: a connection, or a place for datagrams. Its type says how far it has come.
//!
//! # Safety
//!
//! Everything that is posted is in the queue's table before; see [`crate::queue`]. Inline bytes are copied by the call.
#![allow(unsafe_code, reason = "posts sends and receives")]

mod post;

use std::marker::PhantomData;
use std::sync::Arc;

use crate::account::Keep;
use crate::domain::{Domain, Receives};
use crate::error::{Error, Result};
use crate::memory::{Local, Slot};
use crate::port::{Chosen, NUMBER_MAX, QueuePairAddress};
use crate::provider::{Change, Depths, Kind, PairSpec, Peer, Provider};
use crate::queue::Queue;
use crate::refused::Refused;
use crate::timing::Timing;
pub use post::Operation;

/// New: of no use yet.
#[derive(Debug)]
pub enum Fresh {}
/// Takes receives, and has a port.
#[derive(Debug)]
pub enum Prepared {}
/// Sends and receives.
#[derive(Debug)]
pub enum Ready {}

/// A queue pair. [`Queue::retire`] ends it; one that is dropped instead stays connected as long as its queue exists.
#[derive(Debug)]
pub struct QueuePair<P: Provider, S = Ready> {
    raw: Arc<P::QueuePair>,
    /// What its receives come from exists at least as long.
    receives: Option<Arc<P::Receives>>,
    kind: Kind,
    account: u64,
    queue: u64,
    inline: u32,
    largest: u32,
    own_receives: bool,
    state: PhantomData<S>,
}

/// What a pair is made with.
#[derive(Debug)]
pub struct InitAttributes<'a, P: Provider> {
    /// Its kind.
    pub kind: Kind,
    /// Shared receives; own ones if none.
    pub receives: Option<&'a Receives<P>>,
    /// The domain of an extended connection's receiving end.
    pub shared: Option<&'a P::Shared>,
    /// Lengths.
    pub depths: Depths,
}

impl<P: Provider> QueuePair<P, Fresh> {
    /// Makes a pair, whose operations complete in `queue`.
    ///
    /// # Errors
    ///
    /// Those of the device; receives of another queue; more than the device allows.
    pub fn new(
        domain: &Domain<P>,
        queue: &mut Queue<P>,
        attributes: &InitAttributes<'_, P>,
    ) -> Result<Self> {
        let limits = queue.device().limits();
        let object = || format!("{:?} on {}", attributes.kind, domain.device().name());
        if attributes.depths.sends > limits.depth || attributes.depths.receives > limits.depth {
            let why = format!("the device allows {} operations", limits.depth);
            return Err(Error::refused(
                "ibv_create_qp",
                object(),
                why,
                "ask for fewer",
            ));
        }
        if attributes
            .receives
            .is_some_and(|receives| receives.queue != queue.id())
        {
            let why = "its receives complete in another queue";
            return Err(Error::refused(
                "ibv_create_qp",
                object(),
                why,
                "make both of one queue",
            ));
        }
        let spec = PairSpec {
            kind: attributes.kind,
            completions: queue.raw(),
            receives: attributes.receives.map(|receives| &*receives.raw),
            shared: attributes.shared,
            depths: attributes.depths,
        };
        let (raw, inline) =
            P::pair(domain.raw(), &spec).map_err(Error::of("ibv_create_qp", object()))?;
        let raw = Arc::new(raw);
        let own = if attributes.receives.is_some() {
            0
        } else {
            attributes.depths.receives
        };
        let receives = attributes
            .receives
            .map(|receives| Arc::clone(&receives.raw));
        let keep = Keep::QueuePair(Arc::clone(&raw), receives.clone());
        let account = queue.open_account(keep, attributes.depths.sends, own)?;
        Ok(Self {
            raw,
            receives,
            kind: attributes.kind,
            account,
            queue: queue.id(),
            inline,
            largest: 0,
            own_receives: own > 0,
            state: PhantomData,
        })
    }

    /// Gives it a port. Datagrams for it must have this `qkey` (Q_Key).
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn prepare(self, on: &Chosen<P>, qkey: u32) -> Result<QueuePair<P, Prepared>> {
        self.change(&Change::Prepare {
            port: on.port,
            qkey,
        })?;
        let largest = match self.kind {
            Kind::Datagrams => on.state.packet,
            _ => on.state.message,
        };
        Ok(QueuePair {
            largest,
            ..self.into()
        })
    }
}

impl<P: Provider> QueuePair<P, Ready> {
    /// Opens the receiving end of an extended connection that another process of the domain has made. It exists at
    /// least as long as what is returned.
    ///
    /// # Errors
    ///
    /// Those of the device: the pair is gone, or is none of the domain.
    pub fn open_shared(
        domain: &Domain<P>,
        queue: &mut Queue<P>,
        shared: &P::Shared,
        number: u32,
    ) -> Result<Self> {
        let object = || format!("queue pair {number} on {}", domain.device().name());
        let raw = P::open_pair(domain.raw(), shared, queue.raw(), number)
            .map_err(Error::of("ibv_open_qp", object()))?;
        let raw = Arc::new(raw);
        let account = queue.open_account(Keep::QueuePair(Arc::clone(&raw), None), 0, 0)?;
        Ok(Self {
            raw,
            receives: None,
            kind: Kind::SharedReceive,
            account,
            queue: queue.id(),
            inline: 0,
            largest: 0,
            own_receives: false,
            state: PhantomData,
        })
    }

    /// The same pair for another user. Who has the last one retires it.
    pub(crate) fn share(&self) -> Self {
        Self {
            raw: Arc::clone(&self.raw),
            receives: self.receives.clone(),
            state: PhantomData,
            ..*self
        }
    }
}

impl<P: Provider> QueuePair<P, Prepared> {
    /// Connects it to a peer's pair. May wait a second for a peer that does not answer: keep it off a path that must
    /// not wait.
    ///
    /// # Errors
    ///
    /// Those of the device: `ETIMEDOUT` where the peer's address does not answer.
    pub fn connect(
        self,
        on: &Chosen<P>,
        own: &QueuePairAddress,
        peer: &QueuePairAddress,
        timing: Timing,
    ) -> Result<QueuePair<P, Ready>> {
        let peer = Peer {
            path: peer.path(on),
            number: peer.number,
            first: peer.first,
            packet: peer.packet.min(own.packet),
            reads: peer.reads.min(own.reads),
        };
        self.change(&Change::Receive {
            peer: Some(peer),
            timing,
        })?;
        self.change(&Change::Send {
            first: own.first,
            reads: peer.reads,
            timing,
        })?;
        Ok(self.into())
    }

    /// Makes a pair for datagrams ready.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn open(self) -> Result<QueuePair<P, Ready>> {
        let timing = Timing::default();
        self.change(&Change::Receive { peer: None, timing })?;
        self.change(&Change::Send {
            first: 0,
            reads: 0,
            timing,
        })?;
        Ok(self.into())
    }
}

impl<P: Provider, S> QueuePair<P, S> {
    /// Its account in the queue.
    pub(crate) fn account(&self) -> u64 {
        self.account
    }

    fn into<T>(self) -> QueuePair<P, T> {
        let Self {
            raw,
            receives,
            kind,
            account,
            queue,
            inline,
            largest,
            own_receives,
            ..
        } = self;
        QueuePair {
            raw,
            receives,
            kind,
            account,
            queue,
            inline,
            largest,
            own_receives,
            state: PhantomData,
        }
    }

    fn change(&self, change: &Change) -> Result<()> {
        let object = || format!("queue pair {} ({change:?})", self.number());
        P::change(&self.raw, self.kind, change).map_err(Error::of("ibv_modify_qp", object()))
    }

    /// Its address, once it has a port. `first` is the number of its first packet.
    #[must_use]
    pub fn address(&self, on: &Chosen<P>, first: u32) -> QueuePairAddress {
        QueuePairAddress {
            number: self.number(),
            first: first & NUMBER_MAX,
            reads: on.device.limits().reads.clamp(1, 16),
            ..QueuePairAddress::on_port(on)
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        P::number(&self.raw)
    }

    /// Bytes that a request itself carries.
    #[must_use]
    pub fn inline(&self) -> usize {
        self.inline as usize
    }

    /// Bytes of the largest message. What is longer is cut: [`crate::split::pieces`].
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.largest
    }

    /// Puts the pair into the error state. All operations that are under way complete with an error; then the pair can
    /// be retired.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn fail(&self) -> Result<()> {
        self.change(&Change::Fail)
    }

    /// Posts a slot to receive into, of a pair that has receives of its own.
    ///
    /// # Errors
    ///
    /// With the slot, when there is no room, or the device refuses.
    pub fn receive(
        &self,
        queue: &mut Queue<P>,
        slot: Slot<P>,
        cookie: u64,
    ) -> std::result::Result<(), Refused<P>> {
        const CALL: &str = "ibv_post_recv";
        if self.queue != queue.id() || !self.own_receives {
            let why = "the queue pair has no receives of its own in this queue";
            return Err(Refused::of(Local::Nothing.or(slot), CALL, why));
        }
        queue.receive_by(self.account, slot, cookie, CALL, |id, pieces| {
            // SAFETY: the slot is in the table until its completion, or the end of the pair.
            unsafe { P::receive(&self.raw, id, pieces) }
        })
    }
}

impl<P: Provider> Queue<P> {
    /// Destroys a queue pair, and returns the slots of its operations that were under way.
    ///
    /// The slots of shared receives stay posted. If a message is arriving in one of them, that slot is lost until the
    /// receives are retired. So first put a pair that shares receives into the error state ([`QueuePair::fail`]), and
    /// poll until no completion comes.
    pub fn retire<S>(&mut self, pair: QueuePair<P, S>) -> Vec<Slot<P>> {
        let QueuePair {
            raw,
            receives,
            account,
            queue,
            ..
        } = pair;
        if queue != self.id() {
            return Vec::new();
        }
        drop(raw);
        drop(receives);
        self.close_account(account)
    }
}
