// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptors of a rank's wires. It says which of them are ready, and wakes a rank that sleeps.
//!
//! A wire puts its descriptors into the [`Set`], each with its [`EventSource`]. The rank asks the [`Hub`] by turns
//! which of them are ready. Before it sleeps, it arms the waker. The waker then waits for all descriptors in its stead.
//!
//! A wire that is not polled is found by its descriptor. A call may look at it all the same, for the message that it
//! waits for. It may read more than that, and no descriptor tells of bytes that are read. So such a wire is *noted* in
//! the set, and the rank polls it from its next look at the hub on. It does not fall asleep before. Where another
//! thread of it sleeps already, that is after its period (`ONECOPY_LIVENESS_PERIOD`) at the latest.

mod waker;

use super::Doorbell;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use waker::Waker;

/// What a descriptor belongs to: the source of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventSource {
    /// The order to the waker's thread to end.
    Stop,
    /// The listening socket.
    Listener,
    /// An inbound connection, by its place. Its process has to prove which rank it is.
    Inbound(u32),
    /// A connection that this process makes to the rank.
    Outbound(u32),
    /// The finished connection with the rank.
    Pair(u32),
    /// The device of this rank's lanes.
    Device,
}

impl EventSource {
    fn word(self) -> u64 {
        let (kind, number) = match self {
            Self::Stop => (0u64, 0),
            Self::Listener => (1, 0),
            Self::Inbound(number) => (2, number),
            Self::Outbound(rank) => (3, rank),
            Self::Pair(rank) => (4, rank),
            Self::Device => (5, 0),
        };
        kind << 32 | u64::from(number)
    }

    fn of(word: u64) -> Self {
        let number = word as u32;
        match word >> 32 {
            1 => Self::Listener,
            2 => Self::Inbound(number),
            3 => Self::Outbound(number),
            4 => Self::Pair(number),
            5 => Self::Device,
            _ => Self::Stop,
        }
    }
}

/// All descriptors of a rank's wires.
#[derive(Debug)]
pub(crate) struct Set {
    epoll: Epoll,
    /// Ranks whose wires were read though they are not polled.
    noted: Mutex<Vec<u32>>,
}

/// What a descriptor is watched for, besides the end of its connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Interest {
    pub(super) const NONE: Self = Self {
        read: false,
        write: false,
    };
    pub(super) const READ: Self = Self {
        read: true,
        write: false,
    };
    pub(super) const WRITE: Self = Self {
        read: false,
        write: true,
    };

    fn flags(self) -> EpollFlags {
        let mut flags = EpollFlags::EPOLLRDHUP;
        flags.set(EpollFlags::EPOLLIN, self.read);
        flags.set(EpollFlags::EPOLLOUT, self.write);
        flags
    }
}

impl Set {
    pub(crate) fn new() -> nix::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            noted: Mutex::default(),
        })
    }

    /// The wire of a rank was read though it is not polled.
    #[cold]
    pub(super) fn note(&self, rank: u32) {
        let mut noted = self.noted();
        if !noted.contains(&rank) {
            noted.push(rank);
        }
    }

    /// The ranks whose wires are noted.
    pub(super) fn noted(&self) -> MutexGuard<'_, Vec<u32>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a descriptor, which is to be removed before it is closed.
    pub(super) fn add(
        &self,
        fd: impl AsFd,
        source: EventSource,
        interest: Interest,
    ) -> nix::Result<()> {
        let event = EpollEvent::new(interest.flags(), source.word());
        self.epoll.add(fd, event)
    }

    /// Changes what a descriptor is watched for.
    pub(super) fn watch(
        &self,
        fd: impl AsFd,
        source: EventSource,
        interest: Interest,
    ) -> nix::Result<()> {
        let mut event = EpollEvent::new(interest.flags(), source.word());
        self.epoll.modify(fd, &mut event)
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        // It is there, or its end was seen before.
        let _ = self.epoll.delete(fd);
    }

    /// Fills `ready`; gives how many there are.
    fn wait(&self, ready: &mut [EpollEvent], timeout: EpollTimeout) -> nix::Result<usize> {
        self.epoll.wait(ready, timeout)
    }
}

/// Descriptors that one look finds at most. The next look finds the others. Chosen by magnitude: they are half a
/// kibibyte at most, and spread the cost of a call.
const READY: usize = 32;

/// A rank's view of its wires.
#[derive(Debug)]
pub(crate) struct Hub {
    set: Arc<Set>,
    doorbell: Doorbell,
    waker: Option<Waker>,
    ready: [EpollEvent; READY],
}

impl Hub {
    /// Of the rank with this doorbell.
    pub(crate) fn new(doorbell: Doorbell) -> std::io::Result<Self> {
        Ok(Self {
            set: Arc::new(Set::new()?),
            doorbell,
            waker: None,
            ready: [EpollEvent::empty(); READY],
        })
    }

    pub(crate) fn set(&self) -> &Arc<Set> {
        &self.set
    }

    /// Watches a descriptor for bytes to read, until it is closed.
    pub(crate) fn watch(&self, fd: impl AsFd, source: EventSource) -> nix::Result<()> {
        self.set.add(fd, source, Interest::READ)
    }

    /// Looks in which each of so many descriptors is found once if it is ready: the kernel tells of them in turn.
    pub(crate) const fn looks_to_find(descriptors: usize) -> usize {
        descriptors.div_ceil(READY)
    }

    /// The ranks whose wires were read though they are not polled, since this was last asked.
    pub(crate) fn take_noted(&self) -> Vec<u32> {
        std::mem::take(&mut self.set.noted())
    }

    /// What is ready now. Never waits.
    pub(crate) fn look(&mut self) -> impl Iterator<Item = EventSource> {
        let found = match self.set.wait(&mut self.ready, EpollTimeout::ZERO) {
            Ok(found) => found,
            Err(Errno::EINTR) => 0,
            Err(errno) => {
                debug_assert!(false, "epoll_wait: {errno}");
                0
            }
        };
        self.ready[..found]
            .iter()
            .map(|event| EventSource::of(event.data()))
    }

    /// The rank's doorbell will be rung once: when a descriptor becomes ready, or at once if one is ready. The rank has
    /// armed its doorbell before. `false`: the rank must not sleep. There is no waker, or a wire is noted.
    pub(crate) fn arm(&mut self) -> bool {
        if !self.set.noted().is_empty() {
            return false;
        }
        if self.waker.is_none() {
            match Waker::start(Arc::clone(&self.set), self.doorbell.clone()) {
                Ok(waker) => self.waker = Some(waker),
                Err(error) => {
                    tracing::debug!("the thread that wakes this rank: {error}; it polls instead");
                    return false;
                }
            }
        }
        self.waker.as_ref().is_some_and(Waker::arm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use std::collections::BTreeSet;

    /// More are ready than any fixed number of looks finds.
    #[test]
    fn each_ready_descriptor_is_found_in_its_turn() {
        const COUNT: u32 = 1000;
        let set = Set::new().expect("epoll");
        let ready: Vec<EventFd> = (0..COUNT)
            .map(|rank| {
                let one = EventFd::from_value(1).expect("eventfd");
                let source = EventSource::Pair(rank);
                set.add(&one, source, Interest::READ).expect("added");
                one
            })
            .collect();
        let mut found = BTreeSet::new();
        for _ in 0..Hub::looks_to_find(ready.len()) {
            let mut events = [EpollEvent::empty(); READY];
            let count = set.wait(&mut events, EpollTimeout::ZERO).expect("a look");
            found.extend(events[..count].iter().map(EpollEvent::data));
        }
        assert_eq!(found.len(), ready.len());
    }

    #[test]
    fn sources_come_back() {
        for source in [
            EventSource::Stop,
            EventSource::Listener,
            EventSource::Inbound(7),
            EventSource::Outbound(u32::MAX),
            EventSource::Pair(0),
            EventSource::Device,
        ] {
            assert_eq!(EventSource::of(source.word()), source);
        }
    }
}
