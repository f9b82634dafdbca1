// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a queue keeps of each pair and of each queue of receives.

use std::sync::{Arc, Weak};

use crate::provider::Provider;

/// What the operations of one pair, or one queue of receives, are kept for.
#[derive(Debug)]
pub(crate) enum Keep<P: Provider> {
    /// With the receives that it shares: they can be written to while one of their pairs exists.
    QueuePair(
        Arc<P::QueuePair>,
        #[allow(dead_code, reason = "it is only kept")] Option<Arc<P::Receives>>,
    ),
    Receives(Arc<P::Receives>),
}

/// Whether something still exists.
pub(crate) enum Watch<P: Provider> {
    QueuePair(Weak<P::QueuePair>),
    Receives(Weak<P::Receives>),
}

impl<P: Provider> Keep<P> {
    pub(crate) fn watch(self) -> Watch<P> {
        match self {
            Self::QueuePair(pair, _) => Watch::QueuePair(Arc::downgrade(&pair)),
            Self::Receives(receives) => Watch::Receives(Arc::downgrade(&receives)),
        }
    }
}

impl<P: Provider> Watch<P> {
    pub(crate) fn exists(&self) -> bool {
        match self {
            Self::QueuePair(pair) => pair.strong_count() > 0,
            Self::Receives(receives) => receives.strong_count() > 0,
        }
    }
}

/// Room and counts of a pair or a queue of receives.
#[derive(Debug)]
pub(crate) struct Account<P: Provider> {
    pub(crate) keep: Keep<P>,
    pub(crate) sends: SendRoom,
    pub(crate) receives_free: u32,
    /// Completions that may come, in all.
    pub(crate) reserved: u32,
}

/// Room for the sends of a pair.
///
/// It knows how many fit, how many of these are free, and how many *silent* ones went since one that tells of its end.
/// Invariant: each send that holds room is silent and counted here, or covered by one that tells.
#[derive(Debug)]
pub(crate) struct SendRoom {
    length: u32,
    free: u32,
    silent: u32,
    /// A send found no room since this was last asked.
    is_wanted: bool,
}

impl SendRoom {
    pub(crate) fn new(length: u32) -> Self {
        Self {
            length,
            free: length,
            silent: 0,
            is_wanted: false,
        }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Whether a send found no room since this was last asked.
    pub(crate) fn take_wanted(&mut self) -> bool {
        std::mem::take(&mut self.is_wanted)
    }

    /// Takes one place.
    #[inline]
    fn take_one(&mut self) -> Option<()> {
        match self.free.checked_sub(1) {
            Some(free) => {
                self.free = free;
                Some(())
            }
            None => {
                self.is_wanted = true;
                None
            }
        }
    }

    /// Takes room for a send that tells of its end. Gives how many have ended when it has; none if there is no room.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.take_one()?;
        Some(std::mem::take(&mut self.silent) + 1)
    }

    /// Takes room for a send that holds nothing. It is silent, and 0 is given, until silent ones hold half of the room.
    /// The one that fills this half tells of its end, and so of theirs.
    #[inline]
    pub(crate) fn take_silent(&mut self) -> Option<u32> {
        self.take_one()?;
        self.silent += 1;
        if self.silent >= self.length.div_ceil(2) {
            Some(std::mem::take(&mut self.silent))
        } else {
            Some(0)
        }
    }

    /// The send that room was last taken for did not go.
    pub(crate) fn give_back(&mut self, covers: u32) {
        self.free += 1;
        self.silent = match covers {
            0 => self.silent - 1,
            _ => covers - 1,
        };
    }

    /// So many sends have ended.
    #[inline]
    pub(crate) fn end(&mut self, covers: u32) {
        self.free = (self.free + covers).min(self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_with_the_one_that_signals() {
        let mut room = SendRoom::new(4);
        assert_eq!((room.take_silent(), room.take_silent()), (Some(0), Some(2)));
        assert_eq!((room.take_silent(), room.take()), (Some(0), Some(2)));
        assert!(!room.take_wanted());
        assert_eq!((room.take(), room.take_silent()), (None, None));
        assert_eq!((room.take_wanted(), room.take_wanted()), (true, false));
        room.end(2);
        room.end(2);
        assert_eq!(room.free(), 4);
    }

    #[test]
    fn what_did_not_go_leaves_no_trace() {
        let mut room = SendRoom::new(4);
        for _ in 0..10 {
            assert_eq!(room.take_silent(), Some(0));
            room.give_back(0);
            assert_eq!(room.take(), Some(1));
            room.give_back(1);
        }
        assert_eq!(room.take_silent(), Some(0));
        assert_eq!(room.take_silent(), Some(2));
        room.give_back(2);
        assert_eq!((room.take(), room.free()), (Some(2), 2));
    }
}
