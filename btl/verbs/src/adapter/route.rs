// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the requests of a lane say where they go, and how their completions say whose they were.

use crate::pair::Operation;
use crate::provider::{Provider, Remote};

/// Where in a cookie the number of an extended connection's lane begins. What is below is the request's own.
const NUMBER: u32 = 33;
/// Numbers of such lanes: from 1 up to this. A cookie has no more bits, and one with all of them set names nothing.
pub(super) const NUMBER_MAX: u32 = (1 << (u64::BITS - NUMBER)) - 2;

/// A lane's route.
///
/// A reliable connection leads to the peer alone, so its requests name nobody. An extended one leads to all ranks of a
/// node: each request names the queue of receives of one of them. The receiver finds its lane by the immediate data.
/// The sender finds its own by the cookie, since the lanes to a node share a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Route {
    /// The peer's queue of receives, and what it calls the lane.
    peer: Option<(u32, u32)>,
    /// What is set in the cookies.
    tag: u64,
}

impl Route {
    /// That of a lane of this number whose peer is not known yet.
    pub(super) fn to_nobody(own: u32) -> Self {
        Self {
            peer: None,
            tag: u64::from(own) << NUMBER,
        }
    }

    /// The same once the peer is known.
    pub(super) fn to(self, receives: u32, lane: u32) -> Self {
        Self {
            peer: Some((receives, lane)),
            ..self
        }
    }

    #[inline]
    pub(super) fn send<P: Provider>(self) -> Operation<'static, P> {
        match self.peer {
            None => Operation::Send { immediate: None },
            Some((receives, lane)) => Operation::SendShared {
                receives,
                immediate: Some(lane),
            },
        }
    }

    #[inline]
    pub(super) fn read<P: Provider>(self, from: Remote) -> Operation<'static, P> {
        match self.peer {
            None => Operation::Read { from },
            Some((receives, _)) => Operation::ReadShared { from, receives },
        }
    }

    /// The cookie of a request, of which `own` is below [`NUMBER`].
    #[inline]
    pub(super) fn cookie(self, own: u64) -> u64 {
        self.tag | own
    }

    /// The number of the lane that a request was of.
    #[inline]
    pub(super) fn lane_of(cookie: u64) -> u32 {
        (cookie >> NUMBER) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::reads::READ;
    use crate::queue::UNNAMED;

    #[test]
    fn a_cookie_names_its_lane_and_never_nobody() {
        for number in [1, 77, NUMBER_MAX] {
            let route = Route::to_nobody(number);
            let cookie = route.cookie(READ | u64::from(u32::MAX));
            assert_eq!(Route::lane_of(cookie), number);
            assert_eq!(cookie as u32, u32::MAX);
            assert_ne!(cookie, UNNAMED);
        }
    }
}
