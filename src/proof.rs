// SPDX-License-Identifier: MIT OR Apache-2.0
//! How both ends of a connection between nodes prove to each other that they know the job's secret, which never
//! travels.
//!
//! Three messages of fixed length, after which the connection is the caller's and the listener's own:
//!
//! ```text
//!   listener ── challenge ────► caller     release, purpose, the listener's number, a fresh number
//!   listener ◄── response ───── caller     the caller's number, a fresh number, a hash over all of it
//!   listener ── confirmation ─► caller     a hash over all of it
//! ```
//!
//! The side that connects proves itself first: a stranger gets a random number and nothing else. The hashes are
//! HMAC-SHA256 under the secret, over both fresh numbers, both ranks, the purpose, and the role of the side that
//! computes it. So a recorded proof serves for no second connection, and no hash of one side serves as that of the
//! other.
//!
//! A side reads no byte behind the handshake: [`Handshake::wanted`] is the exact number of bytes that still belong to
//! it. This module does no input or output. The callers do, and keep time limits.

use std::fs::File;
use std::io::{self, Read};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The job's secret.
pub(crate) type Secret = [u8; 32];
/// A number that is used once.
pub(crate) type Fresh = [u8; 32];

const MAGIC: [u8; 4] = *b"1cpn";
/// Of these three messages.
const VERSION: u16 = 1;

// A number that is used once, and a hash of SHA-256, have 32 bytes.
const FRESH: usize = 32;
const HASH: usize = 32;
/// Magic, version, purpose, the listener's rank, its fresh number.
const CHALLENGE: usize = 4 + 2 + 2 + 4 + FRESH;
/// The caller's rank, its fresh number, its hash.
const RESPONSE: usize = 4 + FRESH + HASH;
const CONFIRMATION: usize = HASH;

/// What a connection is for. A proof for one purpose is none for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Joins a node's host to rank 0's.
    Oob = 1,
    /// Carries messages of two ranks.
    Pair = 2,
}

/// Why the other side is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejected {
    /// It does not begin with our magic number, or sends too much.
    #[error("it does not follow the onecopy handshake")]
    Magic,
    /// It is of another release.
    #[error(
        "it speaks version {found} of the handshake, we speak {VERSION}; are all ranks of the same onecopy release?"
    )]
    Version {
        /// The version found.
        found: u16,
    },
    /// Another listener was to be reached.
    #[error("wrong peer: it listens as rank {rank}, for purpose {purpose}")]
    Wrong {
        /// As which rank it listens.
        rank: u32,
        /// For what, by number.
        purpose: u16,
    },
    /// It has not the secret.
    #[error("it does not know the job's secret")]
    Secret,
}

/// Bytes that no attacker can guess.
pub(crate) fn fresh<const N: usize>() -> io::Result<[u8; N]> {
    let mut out = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut out)?;
    Ok(out)
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The listener waits for the response.
    Challenged,
    /// The caller waits for the challenge.
    Calling { rank: u32, fresh: Fresh },
    /// The caller waits for the confirmation.
    Responded { rank: u32 },
    /// The other side is this rank.
    Proven { rank: u32 },
    /// It is not.
    Rejected(Rejected),
}

/// One side of the handshake.
pub(crate) struct Handshake {
    secret: Secret,
    purpose: Purpose,
    own: u32,
    state: State,
    /// The challenge and, behind it, the caller's rank and fresh number: what the hashes are over.
    transcript: Vec<u8>,
    /// What has come of the message that is awaited.
    got: Vec<u8>,
    /// What is still to be sent.
    out: Vec<u8>,
}

impl Handshake {
    /// The side that connects: rank `own`, to reach rank `peer`.
    pub(crate) fn call(
        secret: Secret,
        purpose: Purpose,
        own: u32,
        peer: u32,
        fresh: Fresh,
    ) -> Self {
        let state = State::Calling { rank: peer, fresh };
        Self::new(secret, purpose, own, state)
    }

    /// The side that accepted the connection, rank `own`.
    pub(crate) fn answer(secret: Secret, purpose: Purpose, own: u32, fresh: Fresh) -> Self {
        let mut this = Self::new(secret, purpose, own, State::Challenged);
        this.transcript.extend_from_slice(&MAGIC);
        this.transcript.extend_from_slice(&VERSION.to_le_bytes());
        this.transcript
            .extend_from_slice(&(purpose as u16).to_le_bytes());
        this.transcript.extend_from_slice(&own.to_le_bytes());
        this.transcript.extend_from_slice(&fresh);
        this.out.clone_from(&this.transcript);
        this
    }

    fn new(secret: Secret, purpose: Purpose, own: u32, state: State) -> Self {
        Self {
            secret,
            purpose,
            own,
            state,
            transcript: Vec::with_capacity(CHALLENGE + RESPONSE),
            got: Vec::with_capacity(RESPONSE),
            out: Vec::new(),
        }
    }

    /// What is to be sent now.
    pub(crate) fn to_send(&self) -> &[u8] {
        &self.out
    }

    /// So many bytes of it were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.out.drain(..count.min(self.out.len()));
    }

    /// How many bytes of the other side still belong to what is awaited. No more may be read.
    pub(crate) fn wanted(&self) -> usize {
        self.awaited() - self.got.len()
    }

    fn awaited(&self) -> usize {
        match self.state {
            State::Challenged => RESPONSE,
            State::Calling { .. } => CHALLENGE,
            State::Responded { .. } => CONFIRMATION,
            State::Proven { .. } | State::Rejected(_) => 0,
        }
    }

    /// These bytes have come, at most as many as were [wanted](Self::wanted). After a rejection there is only to hang
    /// up, without another word.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), Rejected> {
        if let State::Rejected(why) = self.state {
            return Err(why);
        }
        let wanted = self.wanted();
        if bytes.len() > wanted {
            return self.reject(Rejected::Magic);
        }
        self.got.extend_from_slice(bytes);
        if bytes.is_empty() || self.got.len() < self.awaited() {
            return Ok(());
        }
        let got = std::mem::take(&mut self.got);
        let next = match self.state {
            State::Challenged => self.response(&got),
            State::Calling { rank, fresh } => self.challenge(&got, rank, &fresh),
            State::Responded { rank } => {
                self.check(LISTENER, &got).map(|()| State::Proven { rank })
            }
            state => Ok(state),
        };
        match next {
            Ok(state) => {
                self.state = state;
                Ok(())
            }
            Err(why) => self.reject(why),
        }
    }

    /// The other side's rank, once each side has proven itself and all is sent.
    pub(crate) fn proven(&self) -> Option<u32> {
        match self.state {
            State::Proven { rank } if self.out.is_empty() => Some(rank),
            _ => None,
        }
    }

    /// The other side's rank, once it has proven itself, whether or not the confirmation is sent.
    pub(crate) fn claimed(&self) -> Option<u32> {
        match self.state {
            State::Proven { rank } => Some(rank),
            _ => None,
        }
    }

    fn reject(&mut self, why: Rejected) -> Result<(), Rejected> {
        self.state = State::Rejected(why);
        self.out.clear();
        Err(why)
    }

    fn challenge(&mut self, got: &[u8], rank: u32, fresh: &Fresh) -> Result<State, Rejected> {
        let number = |offset: usize| u16::from_le_bytes([got[offset], got[offset + 1]]);
        if got[..4] != MAGIC {
            return Err(Rejected::Magic);
        }
        let (version, purpose) = (number(4), number(6));
        if version != VERSION {
            return Err(Rejected::Version { found: version });
        }
        let listener = u32::from_le_bytes([got[8], got[9], got[10], got[11]]);
        if purpose != self.purpose as u16 || listener != rank {
            return Err(Rejected::Wrong {
                rank: listener,
                purpose,
            });
        }
        self.transcript.extend_from_slice(got);
        self.transcript.extend_from_slice(&self.own.to_le_bytes());
        self.transcript.extend_from_slice(fresh);
        self.out.extend_from_slice(&self.transcript[CHALLENGE..]);
        let hash = self.hash(CALLER).finalize().into_bytes();
        self.out.extend_from_slice(&hash);
        Ok(State::Responded { rank })
    }

    fn response(&mut self, got: &[u8]) -> Result<State, Rejected> {
        let (claim, hash) = got.split_at(RESPONSE - HASH);
        self.transcript.extend_from_slice(claim);
        self.check(CALLER, hash)?;
        let rank = u32::from_le_bytes([claim[0], claim[1], claim[2], claim[3]]);
        let hash = self.hash(LISTENER).finalize().into_bytes();
        self.out.extend_from_slice(&hash);
        Ok(State::Proven { rank })
    }

    /// The hash that only a side with the secret can compute, in this role.
    fn hash(&self, role: &[u8; 16]) -> Hmac<Sha256> {
        let mut mac: Hmac<Sha256> =
            Hmac::new_from_slice(&self.secret).expect("a key of any length will do");
        mac.update(role);
        mac.update(&self.transcript);
        mac
    }

    /// Compares in constant time, so the time shows nothing of where the difference is.
    fn check(&self, role: &[u8; 16], hash: &[u8]) -> Result<(), Rejected> {
        let verdict = self.hash(role).verify_slice(hash);
        verdict.map_err(|_| Rejected::Secret)
    }
}

const CALLER: &[u8; 16] = b"onecopy caller  ";
const LISTENER: &[u8; 16] = b"onecopy listener";

#[cfg(test)]
mod tests;
