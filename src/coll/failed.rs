// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a failure is told in one word.

use crate::error::{Error, Result};
use crate::wireup::Death;

/// What a rank tells its partners in a barrier about those who cannot come: `rank + 1` and how it ended, or 0.
pub(crate) struct Failed;

impl Failed {
    /// Given up for a reason that names no rank.
    pub(crate) const GIVEN_UP: u64 = 1;

    pub(crate) fn encode(failure: Option<&Error>) -> u64 {
        let (rank, how) = match failure {
            None => return 0,
            Some(Error::PeerDied { rank, how }) => match how {
                Death::Code(code) => (*rank, 1 | u64::from(*code as u32 & 0xFFFF) << 8),
                Death::Signal(signal) => (*rank, 2 | u64::from(*signal as u32 & 0xFFFF) << 8),
                Death::Unknown => (*rank, 3),
                Death::NodeLost => (*rank, 5),
                Death::Unheard => (*rank, 6),
            },
            Some(Error::PeerLeft { rank }) => (*rank, 4),
            // This rank is cut off from another one in some other way; only the fact is told.
            Some(Error::Protocol { rank, .. } | Error::Unreachable { rank, .. }) => (*rank, 3),
            Some(_) => return 0,
        };
        (rank as u64 + 1) << 32 | how
    }

    pub(crate) fn decode(word: u64) -> Result<()> {
        let (rank, detail) = ((word >> 32) as usize, (word as u32 >> 8) as i32);
        let Some(rank) = rank.checked_sub(1) else {
            return Ok(());
        };
        let how = match word as u8 {
            1 => Death::Code(detail),
            2 => Death::Signal(detail),
            4 => return Err(Error::PeerLeft { rank }),
            5 => Death::NodeLost,
            6 => Death::Unheard,
            _ => Death::Unknown,
        };
        Err(Error::PeerDied { rank, how })
    }
}
