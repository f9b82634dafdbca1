// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptors of a rank's wires: which of them have something, and what a rank that sleeps is woken by.
//!
//! A wire puts its descriptors into the [`Set`] and says what each stands for. The rank asks the [`Hub`] by turns which
//! of them are ready. Before it sleeps it arms the waker, which waits for all of them in its stead.

mod waker;

use super::Bell;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::os::fd::AsFd;
use std::sync::Arc;
use waker::Waker;

/// What a descriptor of a wire stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The end of the waker.
    Stop,
    /// Others may connect.
    Listener,
    /// Somebody who has connected and is to prove who it is.
    Inbound(u32),
    /// A connection to this rank is being made.
    Outbound(u32),
    /// The connection with this rank.
    Pair(u32),
    /// The device of this rank's lanes.
    Device,
}

impl Origin {
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
pub(crate) struct Set(Epoll);

/// What is waited for, besides the end of a connection.
fn flags(read: bool, write: bool) -> EpollFlags {
    let mut flags = EpollFlags::EPOLLRDHUP;
    flags.set(EpollFlags::EPOLLIN, read);
    flags.set(EpollFlags::EPOLLOUT, write);
    flags
}

impl Set {
    pub(crate) fn new() -> nix::Result<Self> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Self)
    }

    /// Adds a descriptor, which is to be removed before it is closed.
    pub(super) fn add(
        &self,
        fd: impl AsFd,
        origin: Origin,
        (read, write): (bool, bool),
    ) -> nix::Result<()> {
        let event = EpollEvent::new(flags(read, write), origin.word());
        self.0.add(fd, event)
    }

    /// Changes what a descriptor is watched for.
    pub(super) fn watch(
        &self,
        fd: impl AsFd,
        origin: Origin,
        (read, write): (bool, bool),
    ) -> nix::Result<()> {
        let mut event = EpollEvent::new(flags(read, write), origin.word());
        self.0.modify(fd, &mut event)
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        // It is there, or its end was seen before.
        let _ = self.0.delete(fd);
    }

    /// Fills `ready`; gives how many there are.
    fn wait(&self, ready: &mut [EpollEvent], timeout: EpollTimeout) -> nix::Result<usize> {
        self.0.wait(ready, timeout)
    }
}

/// Descriptors that one look finds at most; the others come with the next.
const READY: usize = 32;

/// A rank's view of its wires.
#[derive(Debug)]
pub(crate) struct Hub {
    set: Arc<Set>,
    bell: Bell,
    waker: Option<Waker>,
    ready: [EpollEvent; READY],
}

impl Hub {
    /// Of the rank with this bell.
    pub(crate) fn new(bell: Bell) -> std::io::Result<Self> {
        Ok(Self {
            set: Arc::new(Set::new()?),
            bell,
            waker: None,
            ready: [EpollEvent::empty(); READY],
        })
    }

    pub(crate) fn set(&self) -> &Arc<Set> {
        &self.set
    }

    /// Watches a descriptor for what can be read, to the end of its own life.
    pub(crate) fn watch(&self, fd: impl AsFd, origin: Origin) -> nix::Result<()> {
        self.set.add(fd, origin, (true, false))
    }

    /// What is ready now. Never waits.
    pub(crate) fn look(&mut self) -> impl Iterator<Item = Origin> {
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
            .map(|event| Origin::of(event.data()))
    }

    /// From now on the rank's bell is rung once for whatever is ready, also for what is ready already. The rank has
    /// armed its bell before. `false`: there is nobody who could ring, and the rank must not sleep.
    pub(crate) fn arm(&mut self) -> bool {
        if self.waker.is_none() {
            match Waker::start(Arc::clone(&self.set), self.bell.clone()) {
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

    #[test]
    fn origins_come_back() {
        for origin in [
            Origin::Stop,
            Origin::Listener,
            Origin::Inbound(7),
            Origin::Outbound(u32::MAX),
            Origin::Pair(0),
            Origin::Device,
        ] {
            assert_eq!(Origin::of(origin.word()), origin);
        }
    }
}
