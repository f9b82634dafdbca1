// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that are threads, on several nodes, and can die at any moment: their memory stays, but they do nothing more.

use onecopy::wireup::local::{Local, world_on};
use onecopy::wireup::{
    Card, Death, Emergency, Event, Introduction, NetIdentity, Wireup, WireupError,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The place of a rank in its job; none: it has died.
type Shared = Arc<Mutex<Option<Local>>>;

/// By what a rank is ended.
pub(crate) struct Life(Shared);

impl Life {
    /// The rank dies: all others hear of it.
    pub(crate) fn end(&self) {
        if let Some(local) = enter(&self.0).take() {
            local.die(Death::Signal(9));
        }
    }
}

/// The way into the job of a rank that may die.
pub(crate) struct Mortal {
    inner: Shared,
    rank: usize,
    nodes: Arc<[u32]>,
    event_fd: OwnedFd,
    emergency: Arc<dyn Emergency>,
}

fn enter(shared: &Shared) -> MutexGuard<'_, Option<Local>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ranks on these nodes, and by what each is ended.
pub(crate) fn mortals(nodes: &[u32]) -> Vec<(Mortal, Life)> {
    let world = world_on(nodes.into()).expect("a job of threads");
    let mortal = |(rank, local): (usize, Local)| {
        let event_fd = local.event_fd().expect("an event descriptor");
        let event_fd = event_fd.try_clone_to_owned().expect("another descriptor");
        let emergency = local.emergency();
        let inner = Arc::new(Mutex::new(Some(local)));
        let mortal = Mortal {
            inner: Arc::clone(&inner),
            rank,
            nodes: nodes.into(),
            event_fd,
            emergency,
        };
        (mortal, Life(inner))
    };
    world.into_iter().enumerate().map(mortal).collect()
}

impl Mortal {
    fn with<R>(
        &self,
        f: impl FnOnce(&mut Local) -> Result<R, WireupError>,
    ) -> Result<R, WireupError> {
        match &mut *enter(&self.inner) {
            Some(local) => f(local),
            None => Err(WireupError::Order {
                call: "mortal",
                reason: "this rank is dead",
            }),
        }
    }
}

impl Wireup for Mortal {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.nodes.len()
    }

    fn grant(&mut self, grant: Option<BorrowedFd<'_>>) -> Result<(), WireupError> {
        self.with(|local| local.grant(grant))
    }

    fn join(&mut self, card: Card, segment: BorrowedFd<'_>) -> Result<Vec<Card>, WireupError> {
        self.with(|local| local.join(card, segment))
    }

    fn introduce(&mut self, peer: usize) -> Result<Introduction, WireupError> {
        self.with(|local| local.introduce(peer))
    }

    fn node(&self, rank: usize) -> u32 {
        self.nodes[rank]
    }

    fn net(&self) -> Option<NetIdentity> {
        enter(&self.inner).as_ref()?.net()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event_fd.as_fd())
    }

    fn poll(&mut self) -> Result<Option<Event>, WireupError> {
        self.with(Local::poll)
    }

    fn leave(&mut self) -> Result<(), WireupError> {
        self.with(Local::leave)
    }

    fn emergency(&self) -> Arc<dyn Emergency> {
        Arc::clone(&self.emergency)
    }
}
