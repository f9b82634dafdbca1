// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ranks and launcher say to one another: fixed little-endian encoding, one message per packet.
//!
//! Both sides treat what arrives as untrusted input: [`ToLauncher::decode`] and [`ToRank::decode`] check every length
//! and value, accept nothing behind the end, and never panic. Descriptors travel beside a message, see
//! [`onecopy_shm::fdpass`].

use super::{Card, Death, Event, Missing, Offer};
use std::net::{Ipv6Addr, SocketAddr};

/// Longest message.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Cards of several ranks are put into one message until it is this long; what one more card needs fits behind it.
pub const CARDS_MESSAGE: usize = 16 * 1024;

const MAGIC: u32 = u32::from_le_bytes(*b"1cpy");
/// Most ranks that a job may have.
pub const MAX_RANKS: u32 = 1 << 16;
/// A mask of alternating processors needs this many ranges at most.
const MAX_RANGES: usize = 4096;
/// A timeout names at most so many missing ranks.
const MAX_MISSING: usize = 4096;
/// Longest text of a refusal.
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
    /// A kind that does not exist.
    #[error("unknown kind {found}")]
    Kind {
        /// The kind found.
        found: u16,
    },
    /// Ends too early.
    #[error("{needed} bytes missing at offset {at}")]
    Short {
        /// Where.
        at: usize,
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

pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new(kind: u16) -> Self {
        let mut writer = Self(Vec::with_capacity(64));
        writer.u32(MAGIC);
        writer.u16(super::PROTOCOL_VERSION as u16);
        writer.u16(kind);
        writer
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A count that the caller has bounded by one of the limits above.
    pub(super) fn count(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub(super) fn card(&mut self, card: &Card) {
        self.u64(card.pid_ns);
        self.u64(card.user_ns);
        self.u32(card.uid);
        self.u32(card.quota_cpus.to_bits());
        self.u32(card.version);
        for number in [card.offer.segid.map(i64::cast_unsigned), card.offer.proof] {
            self.u32(number.is_some().into());
            self.u64(number.unwrap_or(0));
        }
        self.address(card.listens);
        let ranges = ranges(&card.affinity);
        self.count(ranges.len());
        for (first, len) in ranges {
            self.u16(first);
            self.u16(len);
        }
    }

    /// The family's number, 16 bytes of address, the port.
    fn address(&mut self, address: Option<SocketAddr>) {
        let (family, bytes, port) = match address {
            None => (0, [0; 16], 0),
            Some(SocketAddr::V4(v4)) => (4, v4.ip().to_ipv6_mapped().octets(), v4.port()),
            Some(SocketAddr::V6(v6)) => (6, v6.ip().octets(), v6.port()),
        };
        self.u32(family);
        self.0.extend_from_slice(&bytes);
        self.u16(port);
    }

    fn death(&mut self, how: Death) {
        let (what, detail) = how.encode();
        self.u32(what.into());
        self.u32(detail.cast_unsigned());
    }
}

/// Ascending numbers as (first, how many). Numbers out of order or too many ranges are dropped: a card describes,
/// nothing depends on it.
fn ranges(numbers: &[u16]) -> Vec<(u16, u16)> {
    let mut out: Vec<(u16, u16)> = Vec::new();
    let mut free = 0_u32;
    for &number in numbers {
        if u32::from(number) < free {
            continue;
        }
        match out.last_mut() {
            Some((_, len)) if u32::from(number) == free && *len < u16::MAX => *len += 1,
            _ => out.push((number, 1)),
        }
        free = u32::from(number) + 1;
    }
    out.truncate(MAX_RANGES);
    out
}

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader behind the head, and the kind.
    pub(super) fn new(bytes: &'a [u8]) -> Result<(Self, u16), DecodeError> {
        let mut reader = Self { bytes, at: 0 };
        if reader.u32()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        let found = reader.u16()?;
        if u32::from(found) != super::PROTOCOL_VERSION {
            return Err(DecodeError::Version { found });
        }
        let kind = reader.u16()?;
        Ok((reader, kind))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        if rest.len() < len {
            return Err(DecodeError::Short {
                at: self.at,
                needed: len - rest.len(),
            });
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn count(&mut self, field: &'static str, limit: usize) -> Result<usize, DecodeError> {
        let value = self.u32()?;
        match usize::try_from(value) {
            Ok(count) if count <= limit => Ok(count),
            _ => Err(DecodeError::Value {
                field,
                value: value.into(),
            }),
        }
    }

    pub(super) fn rank(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let value = self.u32()?;
        if value >= MAX_RANKS {
            return Err(DecodeError::Value {
                field,
                value: value.into(),
            });
        }
        Ok(value)
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Value {
                field,
                value: other.into(),
            }),
        }
    }

    /// A number that may be missing.
    fn number(&mut self, field: &'static str) -> Result<Option<u64>, DecodeError> {
        let there = self.flag(field)?;
        let value = self.u64()?;
        Ok(there.then_some(value))
    }

    fn address(&mut self) -> Result<Option<SocketAddr>, DecodeError> {
        let family = self.u32()?;
        let ip = Ipv6Addr::from(self.array::<16>()?);
        let port = self.u16()?;
        let bad = |field, value| Err(DecodeError::Value { field, value });
        match (family, ip.to_ipv4_mapped()) {
            (0, _) if ip.is_unspecified() && port == 0 => Ok(None),
            (4, Some(v4)) => Ok(Some(SocketAddr::from((v4, port)))),
            (6, _) => Ok(Some(SocketAddr::from((ip, port)))),
            (0 | 4, _) => bad("listens", port.into()),
            _ => bad("listens", family.into()),
        }
    }

    pub(super) fn card(&mut self) -> Result<Card, DecodeError> {
        let pid_ns = self.u64()?;
        let user_ns = self.u64()?;
        let uid = self.u32()?;
        let quota_bits = self.u32()?;
        let quota_cpus = f32::from_bits(quota_bits);
        if !quota_cpus.is_finite() || quota_cpus.is_sign_negative() {
            return Err(DecodeError::Value {
                field: "quota_cpus",
                value: quota_bits.into(),
            });
        }
        let version = self.u32()?;
        let offer = Offer {
            segid: self.number("segid")?.map(u64::cast_signed),
            proof: self.number("proof")?,
        };
        let listens = self.address()?;
        let mut affinity = Vec::new();
        let mut free = 0_u32;
        for _ in 0..self.count("affinity", MAX_RANGES)? {
            let first = u32::from(self.u16()?);
            let len = u32::from(self.u16()?);
            // Ascending and disjoint, which also bounds the sum of the lengths.
            if first < free || len == 0 || first + len > 1 << 16 {
                return Err(DecodeError::Value {
                    field: "affinity",
                    value: u64::from(first) << 16 | u64::from(len),
                });
            }
            free = first + len;
            affinity.extend((first..free).filter_map(|cpu| u16::try_from(cpu).ok()));
        }
        Ok(Card {
            pid_ns,
            user_ns,
            uid,
            affinity,
            quota_cpus,
            version,
            offer,
            listens,
        })
    }

    fn death(&mut self) -> Result<Death, DecodeError> {
        let what = self.u32()?;
        let detail = self.i32()?;
        let how = u8::try_from(what).ok();
        let how = how.and_then(|what| Death::decode(what, detail));
        how.ok_or(DecodeError::Value {
            field: "death",
            value: what.into(),
        })
    }

    pub(super) fn end<T>(self, value: T) -> Result<T, DecodeError> {
        match self.bytes.len() - self.at {
            0 => Ok(value),
            count => Err(DecodeError::Trailing { count }),
        }
    }
}

impl ToLauncher {
    /// The bytes of this message.
    pub fn encode(&self) -> Vec<u8> {
        let mut w;
        match self {
            Self::Join { card } => {
                w = Writer::new(1);
                w.card(card);
            }
            Self::Introduce { peer } => {
                w = Writer::new(2);
                w.u32(*peer);
            }
            Self::Leave => w = Writer::new(3),
            Self::Abort { code } => {
                w = Writer::new(4);
                w.u32(code.cast_unsigned());
            }
            Self::Hello { rank, size, secret } => {
                w = Writer::new(5);
                w.u32(*rank);
                w.u32(*size);
                w.0.extend_from_slice(secret);
            }
        }
        w.0
    }

    /// The message in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut r, kind) = Reader::new(bytes)?;
        let message = match kind {
            1 => Self::Join { card: r.card()? },
            2 => Self::Introduce {
                peer: r.rank("peer")?,
            },
            3 => Self::Leave,
            4 => Self::Abort { code: r.i32()? },
            5 => Self::Hello {
                rank: r.rank("rank")?,
                size: r.u32()?,
                secret: r.array()?,
            },
            found => return Err(DecodeError::Kind { found }),
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
                size += 80 + 4 * ranges(&cards[end].affinity).len();
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
                w = Writer::new(65);
                w.u32(*first);
                w.u32(*total);
                w.count(cards.len());
                for card in cards {
                    w.card(card);
                }
            }
            Self::Absent { waited_ms, missing } => {
                w = Writer::new(66);
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
                w = Writer::new(67);
                w.u32(*peer);
                w.u32(*uid);
                w.u32(pid.cast_unsigned());
                w.u64(*pid_ns);
                w.u32((*pidfd).into());
                w.u32((*grant).into());
            }
            Self::Refused { reason } => {
                w = Writer::new(68);
                let text = reason.as_bytes();
                let text = &text[..text.len().min(MAX_TEXT)];
                w.count(text.len());
                w.0.extend_from_slice(text);
            }
            Self::Event(Event::Died { rank, how }) => {
                w = Writer::new(69);
                w.count(*rank);
                w.death(*how);
            }
            Self::Event(Event::Left { rank }) => {
                w = Writer::new(70);
                w.count(*rank);
            }
            Self::Event(Event::Abort { code }) => {
                w = Writer::new(71);
                w.u32(code.cast_unsigned());
            }
            Self::Welcome => w = Writer::new(72),
        }
        w.0
    }

    /// The message in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut r, kind) = Reader::new(bytes)?;
        let message = match kind {
            65 => {
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
            66 => {
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
            67 => Self::Introduction {
                peer: r.rank("peer")?,
                uid: r.u32()?,
                pid: r.i32()?,
                pid_ns: r.u64()?,
                pidfd: r.flag("pidfd")?,
                grant: r.flag("grant")?,
            },
            68 => {
                let len = r.count("reason", MAX_TEXT)?;
                let text = r.take(len)?;
                Self::Refused {
                    reason: String::from_utf8_lossy(text).into_owned(),
                }
            }
            69 => Self::Event(Event::Died {
                rank: r.rank("rank")? as usize,
                how: r.death()?,
            }),
            70 => Self::Event(Event::Left {
                rank: r.rank("rank")? as usize,
            }),
            71 => Self::Event(Event::Abort { code: r.i32()? }),
            72 => Self::Welcome,
            found => return Err(DecodeError::Kind { found }),
        };
        r.end(message)
    }
}

#[cfg(test)]
mod tests;
