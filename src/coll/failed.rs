// SPDX-License-Identifier: MIT OR Apache-2.0
//! A failure, encoded in one word for the other members.

use crate::error::{Error, Result};
use crate::wireup::{Death, EncodedDeath};

/// In the place of how a rank died: it has left.
const LEFT: EncodedDeath = EncodedDeath {
    what: u8::MAX,
    detail: 0,
};

/// What a rank tells its partners in a barrier about those who cannot come: `rank + 1` and how it ended, or 0.
pub(crate) struct Failed;

impl Failed {
    /// Given up for a reason that names no rank.
    pub(crate) const GIVEN_UP: u64 = 1;

    pub(crate) fn encode(failure: Option<&Error>) -> u64 {
        let (rank, how) = match failure {
            None => return 0,
            Some(Error::PeerDied { rank, death }) => (*rank, death.encode()),
            Some(Error::PeerLeft { rank }) => (*rank, LEFT),
            // This rank is cut off from another one in some other way; only the fact is reported.
            Some(Error::Protocol { rank, .. } | Error::Unreachable { rank, .. }) => {
                (*rank, Death::Unknown.encode())
            }
            Some(_) => return 0,
        };
        let detail = u64::from(how.detail as u32 & 0xFFFF);
        (rank as u64 + 1) << 32 | detail << 8 | u64::from(how.what)
    }

    pub(crate) fn decode(word: u64) -> Result<()> {
        let Some(rank) = ((word >> 32) as usize).checked_sub(1) else {
            return Ok(());
        };
        let how = EncodedDeath {
            what: word as u8,
            detail: (word as u32 >> 8) as i32,
        };
        if how.what == LEFT.what {
            return Err(Error::PeerLeft { rank });
        }
        // What cannot be decoded still says that the rank is gone.
        let death = Death::decode(how).unwrap_or(Death::Unknown);
        Err(Error::PeerDied { rank, death })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_rank_went_is_told_in_one_word() {
        let deaths = [
            Death::Code(3),
            Death::Signal(9),
            Death::Unknown,
            Death::NodeLost,
            Death::Unheard,
        ];
        let died = deaths.map(|death| Error::PeerDied { rank: 7, death });
        for failure in died.into_iter().chain([Error::PeerLeft { rank: 0 }]) {
            let decoded = Failed::decode(Failed::encode(Some(&failure)));
            let decoded = decoded.expect_err("a failure");
            assert_eq!(decoded.to_string(), failure.to_string());
        }
        assert!(Failed::decode(Failed::encode(None)).is_ok());
        assert!(Failed::decode(Failed::GIVEN_UP).is_ok());
    }
}
