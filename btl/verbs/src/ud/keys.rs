// SPDX-License-Identifier: MIT OR Apache-2.0
//! What peers cannot guess: the keys of lanes, and the Q_Key.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};

/// Makes marks and keys of lanes.
///
/// Invariants: no mark is 0 or that of the lane before. No key is 0, and none tells of another one.
#[derive(Debug)]
pub(super) struct Keys {
    secret: RandomState,
    /// The last mark.
    mark: u32,
    /// The Q_Key that datagrams for the pair must have. A pair that is made anew has it, too, and may have the number
    /// of an earlier one. So a late datagram can reach it. None is believed: its lane has failed with the earlier pair,
    /// and later lanes have other marks and keys.
    qkey: u32,
}

impl Keys {
    pub(super) fn new() -> Self {
        let secret = RandomState::new();
        // Q_Keys with the highest bit are the kernel's.
        let qkey = number(&secret, u32::MAX) as u32 & 0x7fff_ffff;
        Self {
            secret,
            mark: 0,
            qkey,
        }
    }

    /// The mark and the key of a new lane.
    pub(super) fn next_lane(&mut self) -> (u32, u64) {
        self.mark = self.mark.wrapping_add(1).max(1);
        (self.mark, number(&self.secret, self.mark).max(1))
    }

    pub(super) fn qkey(&self) -> u32 {
        self.qkey
    }
}

/// A number that peers cannot guess.
fn number(secret: &RandomState, salt: u32) -> u64 {
    let mut hasher = secret.build_hasher();
    hasher.write_u32(salt);
    hasher.finish()
}
