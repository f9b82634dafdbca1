// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a message: what writes its fields, and what reads and checks them.

use super::super::{Card, Death, EncodedDeath, Export, PROTOCOL_VERSION};
use super::{DecodeError, MAX_RANKS, MessageKind, Sender};
use std::net::{Ipv6Addr, SocketAddr};

const MAGIC: u32 = u32::from_le_bytes(*b"1cpy");
/// A mask of alternating processors needs this many ranges at most. The kernel counts 8192 processors at most on x86-64
/// (`NR_CPUS`).
const MAX_RANGES: usize = 4096;

/// Writes the fields of a message behind its head.
pub(in crate::wireup) struct Writer(Vec<u8>);

impl Writer {
    pub(in crate::wireup) fn new(kind: MessageKind) -> Self {
        let mut writer = Self(Vec::with_capacity(64));
        writer.u32(MAGIC);
        writer.u16(PROTOCOL_VERSION as u16);
        writer.u16(kind.number());
        writer
    }

    pub(in crate::wireup) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(in crate::wireup) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(in crate::wireup) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(in crate::wireup) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(in crate::wireup) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A count that the caller has bounded by one of the limits above.
    pub(in crate::wireup) fn count(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub(in crate::wireup) fn card(&mut self, card: &Card) {
        self.u64(card.pid_ns);
        self.u64(card.user_ns);
        self.u32(card.uid);
        self.u32(card.quota_cpus.to_bits());
        self.u32(card.version);
        for number in [card.export.segid.map(i64::cast_unsigned), card.export.proof] {
            self.u32(number.is_some().into());
            self.u64(number.unwrap_or(0));
        }
        self.address(card.listens);
        let ranges = ranges(&card.affinity);
        self.count(ranges.len());
        for NumberRange { first, len } in ranges {
            self.u16(first);
            self.u16(len);
        }
    }

    /// The family's number, 16 bytes of address, the port.
    pub(in crate::wireup) fn address(&mut self, address: Option<SocketAddr>) {
        let (family, bytes, port) = match address {
            None => (0, [0; 16], 0),
            Some(SocketAddr::V4(v4)) => (4, v4.ip().to_ipv6_mapped().octets(), v4.port()),
            Some(SocketAddr::V6(v6)) => (6, v6.ip().octets(), v6.port()),
        };
        self.u32(family);
        self.0.extend_from_slice(&bytes);
        self.u16(port);
    }

    pub(in crate::wireup) fn death(&mut self, death: Death) {
        let EncodedDeath { what, detail } = death.encode();
        self.u32(what.into());
        self.u32(detail.cast_unsigned());
    }
}

/// Numbers that follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberRange {
    pub(super) first: u16,
    /// How many they are.
    pub(super) len: u16,
}

/// The ranges of ascending numbers. Numbers out of order or too many ranges are dropped: a card describes, nothing
/// depends on it.
pub(super) fn ranges(numbers: &[u16]) -> Vec<NumberRange> {
    let mut out: Vec<NumberRange> = Vec::new();
    let mut free = 0_u32;
    for &number in numbers {
        if u32::from(number) < free {
            continue;
        }
        match out.last_mut() {
            Some(last) if u32::from(number) == free && last.len < u16::MAX => last.len += 1,
            _ => out.push(NumberRange {
                first: number,
                len: 1,
            }),
        }
        free = u32::from(number) + 1;
    }
    out.truncate(MAX_RANGES);
    out
}

/// Reads the fields of a message, each checked.
pub(in crate::wireup) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

/// A message whose head was read.
pub(in crate::wireup) struct OpenedMessage<'a> {
    pub(in crate::wireup) kind: MessageKind,
    /// Behind the head.
    pub(in crate::wireup) reader: Reader<'a>,
}

impl<'a> Reader<'a> {
    /// Reads the head.
    pub(in crate::wireup) fn open(
        bytes: &'a [u8],
        sender: Sender,
    ) -> Result<OpenedMessage<'a>, DecodeError> {
        let mut reader = Self { bytes, position: 0 };
        if reader.u32()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        let found = reader.u16()?;
        if u32::from(found) != PROTOCOL_VERSION {
            return Err(DecodeError::Version { found });
        }
        let found = reader.u16()?;
        match MessageKind::of(found) {
            Some(kind) => Ok(OpenedMessage { reader, kind }),
            None => Err(DecodeError::Kind { found, sender }),
        }
    }

    pub(in crate::wireup) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.position..];
        if rest.len() < len {
            return Err(DecodeError::Short {
                position: self.position,
                needed: len - rest.len(),
            });
        }
        self.position += len;
        Ok(&rest[..len])
    }

    pub(in crate::wireup) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(in crate::wireup) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(in crate::wireup) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(in crate::wireup) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_le_bytes)
    }

    pub(in crate::wireup) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(in crate::wireup) fn count(
        &mut self,
        field: &'static str,
        limit: usize,
    ) -> Result<usize, DecodeError> {
        let value = self.u32()?;
        match usize::try_from(value) {
            Ok(count) if count <= limit => Ok(count),
            _ => Err(DecodeError::Value {
                field,
                value: value.into(),
            }),
        }
    }

    pub(in crate::wireup) fn rank(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let value = self.u32()?;
        if value >= MAX_RANKS {
            return Err(DecodeError::Value {
                field,
                value: value.into(),
            });
        }
        Ok(value)
    }

    pub(in crate::wireup) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
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
    pub(in crate::wireup) fn number(
        &mut self,
        field: &'static str,
    ) -> Result<Option<u64>, DecodeError> {
        let there = self.flag(field)?;
        let value = self.u64()?;
        Ok(there.then_some(value))
    }

    pub(in crate::wireup) fn address(&mut self) -> Result<Option<SocketAddr>, DecodeError> {
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

    pub(in crate::wireup) fn card(&mut self) -> Result<Card, DecodeError> {
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
        let export = Export {
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
            export,
            listens,
        })
    }

    pub(in crate::wireup) fn death(&mut self) -> Result<Death, DecodeError> {
        let what = self.u32()?;
        let detail = self.i32()?;
        let death = u8::try_from(what).ok();
        let death = death.and_then(|what| Death::decode(EncodedDeath { what, detail }));
        death.ok_or(DecodeError::Value {
            field: "death",
            value: what.into(),
        })
    }

    pub(in crate::wireup) fn end<T>(self, value: T) -> Result<T, DecodeError> {
        match self.bytes.len() - self.position {
            0 => Ok(value),
            count => Err(DecodeError::Trailing { count }),
        }
    }
}
