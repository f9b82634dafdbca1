// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ranks and launcher say to one another: fixed little-endian encoding, one message per packet.
//!
//! Both sides treat what arrives as untrusted input: [`ToLauncher::decode`] and [`ToRank::decode`] check every length
//! and value, accept nothing behind the end, and never panic. Descriptors travel beside a message, see
//! [`onecopy_shm::fdpass`].

mod bytes;
mod kind;

pub(super) use bytes::{OpenedMessage, Reader, Writer};
pub(super) use kind::MessageKind;
pub use kind::Sender;

use super::{Card, Event, Missing};

/// Longest message. Two cards with the most ranges of processors fit, and so do `MAX_MISSING` ranks.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Cards of several ranks are put into one message until it is this long; what one more card needs fits behind it.
/// Chosen by magnitude: hundreds of usual cards, so that a job's cards are few messages.
pub const CARDS_MESSAGE: usize = 16 * 1024;

/// Most ranks that a job may have: as many as each rank's segment has room for.
pub use onecopy_shm::layout::MAX_RANKS;
/// A timeout names at most so many missing ranks. Chosen by magnitude: no person reads more, and they are 32 KiB of a
/// message.
const MAX_MISSING: usize = 4096;
/// Longest text of a refusal. Chosen by magnitude: reasons have a line or two.
const MAX_TEXT: usize = 4096;

/// From a rank.
#[derive(Clone, Debug, PartialEq)]
pub enum ToLauncher {
    /// Here I am. With the segment's descriptor, and then that of the memory that I grant peers, if I do.
    Join {
        /// Who I am.
        card: Card,
    },
    /// Who is this?
    Introduce {
        /// The rank in question.
        peer: u32,
    },
    /// I leave the job in an orderly way.
    Leave,
    /// End the job.
    Abort {
        /// With this code.
        code: i32,
    },
    /// Before all else on a connection that no launcher prepared: which rank I am, and that I belong to the job.
    Hello {
        /// Who I am.
        rank: u32,
        /// Ranks that the job has, as I know it.
        size: u32,
        /// What only ranks of the job know; zero where the launcher offers no way to share it.
        secret: [u8; 16],
    },
}

/// From the launcher.
#[derive(Clone, Debug, PartialEq)]
pub enum ToRank {
    /// All have joined: a part of the cards.
    Cards {
        /// Rank of the first card here.
        first: u32,
        /// Cards in all messages together.
        total: u32,
        /// The cards.
        cards: Vec<Card>,
    },
    /// Not all have joined, and the launcher gave up.
    Absent {
        /// How long it waited; 0 if it did not wait because a missing rank can no longer come.
        waited_ms: u32,
        /// Who is missing.
        missing: Vec<Missing>,
    },
    /// Answer to `Introduce`. With the segment's descriptor, then the process' if `pidfd`, then that of the peer's
    /// memory if `grant`.
    Introduction {
        /// The rank asked for.
        peer: u32,
        /// Its user id.
        uid: u32,
        /// Its process id as the launcher sees it; 0 if unknown.
        pid: i32,
        /// The launcher's pid namespace.
        pid_ns: u64,
        /// Whether a process descriptor comes along.
        pidfd: bool,
        /// Whether a descriptor comes along by which the peer grants its memory.
        grant: bool,
    },
    /// A request cannot be granted.
    Refused {
        /// Why.
        reason: String,
    },
    /// Something happened.
    Event(Event),
    /// Answer to `Hello`: the rank may join.
    Welcome,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Does not begin as a message does.
    #[error("not a message of a onecopy job")]
    Magic,
    /// Another release.
    #[error("protocol version {found}, expected {}", super::PROTOCOL_VERSION)]
    Version {
        /// The version found.
        found: u16,
    },
    /// A kind that does not exist, or that this sender may not send.
    #[error("{sender} sent a message of {}", kind::described(*found))]
    Kind {
        /// The kind found.
        found: u16,
        /// Who sent it.
        sender: Sender,
    },
    /// Ends too early.
    #[error("{needed} bytes missing at offset {position}")]
    Short {
        /// Where.
        position: usize,
        /// Bytes that are missing.
        needed: usize,
    },
    /// Goes on behind its end.
    #[error("{count} bytes too many")]
    Trailing {
        /// Bytes behind the end.
        count: usize,
    },
    /// A field has a value that it cannot have.
    #[error("field {field} has the impossible value {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
    },
}

impl ToLauncher {
    /// The bytes of this message.
    pub fn encode(&self) -> Vec<u8> {
        let mut w;
        match self {
            Self::Join { card } => {
                w = Writer::new(MessageKind::Join);
                w.card(card);
            }
            Self::Introduce { peer } => {
                w = Writer::new(MessageKind::Introduce);
                w.u32(*peer);
            }
            Self::Leave => w = Writer::new(MessageKind::Leave),
            Self::Abort { code } => {
                w = Writer::new(MessageKind::Abort);
                w.u32(code.cast_unsigned());
            }
            Self::Hello { rank, size, secret } => {
                w = Writer::new(MessageKind::Hello);
                w.u32(*rank);
                w.u32(*size);
                w.bytes(secret);
            }
        }
        w.into_bytes()
    }

    /// The message in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let OpenedMessage {
            kind,
            reader: mut r,
        } = Reader::open(bytes, Sender::Rank)?;
        let message = match kind {
            MessageKind::Join => Self::Join { card: r.card()? },
            MessageKind::Introduce => Self::Introduce {
                peer: r.rank("peer")?,
            },
            MessageKind::Leave => Self::Leave,
            MessageKind::Abort => Self::Abort { code: r.i32()? },
            MessageKind::Hello => Self::Hello {
                rank: r.rank("rank")?,
                size: r.u32()?,
                secret: r.array()?,
            },
            other => return Err(Sender::Rank.wrong_kind(other)),
        };
        r.end(message)
    }
}

impl ToRank {
    /// All cards, as as many messages as needed.
    pub fn all_cards(cards: &[Card]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        let mut first = 0;
        while first < cards.len() {
            let mut size = 0;
            let mut end = first;
            while end < cards.len() && size < CARDS_MESSAGE {
                size += 80 + 4 * bytes::ranges(&cards[end].affinity).len();
                end += 1;
            }
            let message = Self::Cards {
                first: u32::try_from(first).unwrap_or(u32::MAX),
                total: u32::try_from(cards.len()).unwrap_or(u32::MAX),
                cards: cards[first..end].to_vec(),
            };
            out.push(message.encode());
            first = end;
        }
        out
    }

    /// The bytes of this message.
    pub fn encode(&self) -> Vec<u8> {
        let mut w;
        match self {
            Self::Cards {
                first,
                total,
                cards,
            } => {
                w = Writer::new(MessageKind::Cards);
                w.u32(*first);
                w.u32(*total);
                w.count(cards.len());
                for card in cards {
                    w.card(card);
                }
            }
            Self::Absent { waited_ms, missing } => {
                w = Writer::new(MessageKind::Absent);
                w.u32(*waited_ms);
                let named = &missing[..missing.len().min(MAX_MISSING)];
                w.count(named.len());
                for one in named {
                    w.count(one.rank);
                    w.u32(one.running.into());
                }
            }
            Self::Introduction {
                peer,
                uid,
                pid,
                pid_ns,
                pidfd,
                grant,
            } => {
                w = Writer::new(MessageKind::Introduction);
                w.u32(*peer);
                w.u32(*uid);
                w.u32(pid.cast_unsigned());
                w.u64(*pid_ns);
                w.u32((*pidfd).into());
                w.u32((*grant).into());
            }
            Self::Refused { reason } => {
                w = Writer::new(MessageKind::Refused);
                let text = reason.as_bytes();
                let text = &text[..text.len().min(MAX_TEXT)];
                w.count(text.len());
                w.bytes(text);
            }
            Self::Event(Event::Died { rank, death }) => {
                w = Writer::new(MessageKind::Died);
                w.count(*rank);
                w.death(*death);
            }
            Self::Event(Event::Left { rank }) => {
                w = Writer::new(MessageKind::Left);
                w.count(*rank);
            }
            Self::Event(Event::Abort { code }) => {
                w = Writer::new(MessageKind::Aborted);
                w.u32(code.cast_unsigned());
            }
            Self::Welcome => w = Writer::new(MessageKind::Welcome),
        }
        w.into_bytes()
    }

    /// The message in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let OpenedMessage {
            kind,
            reader: mut r,
        } = Reader::open(bytes, Sender::Launcher)?;
        let message = match kind {
            MessageKind::Cards => {
                let first = r.rank("first")?;
                let total = r.u32()?;
                let count = r.count("cards", MAX_RANKS as usize)?;
                // Not reserved by the count: it is not to be trusted before the cards have been seen.
                let mut cards = Vec::new();
                for _ in 0..count {
                    cards.push(r.card()?);
                }
                Self::Cards {
                    first,
                    total,
                    cards,
                }
            }
            MessageKind::Absent => {
                let waited_ms = r.u32()?;
                let mut missing = Vec::new();
                for _ in 0..r.count("missing", MAX_MISSING)? {
                    missing.push(Missing {
                        rank: r.rank("missing")? as usize,
                        running: r.flag("running")?,
                    });
                }
                Self::Absent { waited_ms, missing }
            }
            MessageKind::Introduction => Self::Introduction {
                peer: r.rank("peer")?,
                uid: r.u32()?,
                pid: r.i32()?,
                pid_ns: r.u64()?,
                pidfd: r.flag("pidfd")?,
                grant: r.flag("grant")?,
            },
            MessageKind::Refused => {
                let len = r.count("reason", MAX_TEXT)?;
                let text = r.take(len)?;
                Self::Refused {
                    reason: String::from_utf8_lossy(text).into_owned(),
                }
            }
            MessageKind::Died => Self::Event(Event::Died {
                rank: r.rank("rank")? as usize,
                death: r.death()?,
            }),
            MessageKind::Left => Self::Event(Event::Left {
                rank: r.rank("rank")? as usize,
            }),
            MessageKind::Aborted => Self::Event(Event::Abort { code: r.i32()? }),
            MessageKind::Welcome => Self::Welcome,
            other => return Err(Sender::Launcher.wrong_kind(other)),
        };
        r.end(message)
    }
}

#[cfg(test)]
mod tests;
