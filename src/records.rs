// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the records in a ring mean: kinds, and the bodies of the control records.
//!
//! A record's meta word is its envelope, `tag i32 | context u32`. Control records carry a body of six words, the last
//! of which checks the others. Everything is decoded by value; a value that cannot be is an error that fails the peer.

use onecopy_shm::coop::MessageRange;
use onecopy_shm::layout::{ChunkName, LINE};

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A whole message in the slots.
    Eager = 1,
    /// The same, behind the sender's request number: it wants to know when it is matched.
    EagerSync = 2,
    /// The first chunk of a message.
    ChunkFirst = 3,
    /// A further chunk of the message that is under way.
    ChunkNext = 4,
    /// A message is announced.
    Rts = 5,
    /// The receiver asks the sender to do something for an announced message.
    Cts = 6,
    /// A chunk of an announced message.
    Data = 7,
    /// An announced message was received.
    Fin = 8,
    /// A message of which a part has come, or was asked for, ends here: its sender has given it up.
    BreakOff = 9,
}

impl Kind {
    /// Whether such a record is the first one of a message.
    #[inline]
    pub(crate) fn begins(self) -> bool {
        matches!(
            self,
            Self::Eager | Self::EagerSync | Self::ChunkFirst | Self::Rts
        )
    }
}

/// A malformed record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadBody {
    #[error("unknown record kind {0}")]
    Kind(u8),
    #[error("a {kind:?} record with a body of {len} bytes")]
    Length { kind: Kind, len: usize },
    #[error("the body of a {0:?} record does not check")]
    Check(Kind),
    #[error("a {kind:?} record with {what}")]
    Value { kind: Kind, what: String },
}

impl TryFrom<u8> for Kind {
    type Error = BadBody;
    #[inline(always)]
    fn try_from(value: u8) -> Result<Self, BadBody> {
        Ok(match value {
            1 => Self::Eager,
            2 => Self::EagerSync,
            3 => Self::ChunkFirst,
            4 => Self::ChunkNext,
            5 => Self::Rts,
            6 => Self::Cts,
            7 => Self::Data,
            8 => Self::Fin,
            9 => Self::BreakOff,
            other => return Err(BadBody::Kind(other)),
        })
    }
}

/// Bytes of a control body: it fills a slot.
pub(crate) const BODY: usize = 48;
/// Stands for "not in a heap" and "no request".
pub(crate) const NONE: u64 = u64::MAX;

fn seal(kind: Kind, words: [u64; 5]) -> [u8; BODY] {
    let mut bytes = [0; BODY];
    let check = check(kind, &words);
    for (to, word) in bytes.chunks_exact_mut(8).zip(words.iter().chain([&check])) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn check(kind: Kind, words: &[u64; 5]) -> u64 {
    // Rotations by different amounts: exchanging two words changes the sum, as any flipped bit does.
    words
        .iter()
        .enumerate()
        .fold(0x6f6e_6563_6f70_7900 ^ kind as u64, |sum, (i, word)| {
            sum ^ word.rotate_left(7 * i as u32 + 1)
        })
}

fn open(kind: Kind, bytes: &[u8; BODY]) -> Result<[u64; 5], BadBody> {
    let mut words = [0u64; 6];
    for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut raw = [0; 8];
        raw.copy_from_slice(from);
        *word = u64::from_le_bytes(raw);
    }
    let [a, b, c, d, e, sum] = words;
    let words = [a, b, c, d, e];
    if sum == check(kind, &words) {
        Ok(words)
    } else {
        Err(BadBody::Check(kind))
    }
}

#[inline]
const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}
#[inline]
const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The first chunk of a message, or a further one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkBody {
    /// Bytes of the whole message.
    pub(crate) total: u64,
    /// Where in the message the chunk's bytes belong.
    pub(crate) offset: u64,
    pub(crate) chunk: ChunkName,
    /// Where in the chunk its bytes begin: less than a cache line behind its begin.
    pub(crate) begin: u32,
    /// Bytes in the chunk.
    pub(crate) piece: u32,
    /// The sender's request if it waits for the match; for `Data`, the receiver's transfer.
    pub(crate) number: u64,
}

impl ChunkBody {
    /// Which bytes of the message are in the chunk.
    #[inline]
    pub(crate) fn range(&self) -> MessageRange {
        MessageRange {
            offset: self.offset,
            len: u64::from(self.piece),
        }
    }

    pub(crate) fn encode(&self, kind: Kind) -> [u8; BODY] {
        seal(
            kind,
            [
                self.total,
                self.offset,
                pair(self.chunk.to_word(), self.piece),
                self.number,
                u64::from(self.begin),
            ],
        )
    }
    pub(crate) fn decode(kind: Kind, bytes: &[u8; BODY]) -> Result<Self, BadBody> {
        let [total, offset, place, number, begin] = open(kind, bytes)?;
        let (chunk, piece) = halves(place);
        if begin >= LINE as u64 {
            return Err(BadBody::Value {
                kind,
                what: format!("bytes from {begin} on of a chunk"),
            });
        }
        let body = Self {
            total,
            offset,
            chunk: ChunkName::from_word(chunk),
            begin: begin as u32,
            piece,
            number,
        };
        match offset.checked_add(u64::from(piece)) {
            Some(end) if end <= total => Ok(body),
            _ => Err(BadBody::Value {
                kind,
                what: format!("{piece} bytes at {offset} of {total}"),
            }),
        }
    }
}

/// Where an announced message's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceLayout {
    /// In one piece.
    One { address: u64, heap: Option<u64> },
    /// In one piece, in no heap, exposed as a region by this cookie.
    Region { address: u64, cookie: u64 },
    /// In several, listed in a chunk; perhaps exposed together as a region.
    List {
        chunk: ChunkName,
        count: u32,
        cookie: Option<u64>,
    },
    /// In too many to list.
    Scattered,
    /// In a device. What its sender offers stands in a chunk, in so many bytes.
    Offered { chunk: ChunkName, bytes: u32 },
}

/// Shapes of a source that lies in the pieces of a list.
const LIST: u32 = 1;
const LIST_EXPOSED: u32 = 4;
/// The shape of a source that is offered.
const OFFERED: u32 = 5;
/// Set beside the shape of a source that was rewritten.
const REWRITTEN: u32 = 1 << 31;

/// An announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rts {
    pub(crate) len: u64,
    /// The sender's request.
    pub(crate) request: u64,
    pub(crate) layout: SourceLayout,
    /// Names a cooperative transfer of this message; 0: the sender will not take part in one.
    pub(crate) coop_id: u32,
    /// The sender has rewritten its buffer since it sent it last.
    pub(crate) rewritten: bool,
}

impl Rts {
    pub(crate) fn encode(&self) -> [u8; BODY] {
        let (shape, a, b) = match self.layout {
            SourceLayout::One { address, heap } => (0, address, heap.unwrap_or(NONE)),
            SourceLayout::List {
                chunk,
                count,
                cookie: None,
            } => (LIST, pair(chunk.to_word(), count), 0),
            SourceLayout::Scattered => (2, 0, 0),
            SourceLayout::Region { address, cookie } => (3, address, cookie),
            SourceLayout::List {
                chunk,
                count,
                cookie: Some(cookie),
            } => (LIST_EXPOSED, pair(chunk.to_word(), count), cookie),
            SourceLayout::Offered { chunk, bytes } => (OFFERED, pair(chunk.to_word(), bytes), 0),
        };
        let shape = match self.rewritten {
            true => shape | REWRITTEN,
            false => shape,
        };
        seal(
            Kind::Rts,
            [self.len, self.request, a, b, pair(self.coop_id, shape)],
        )
    }
    pub(crate) fn decode(bytes: &[u8; BODY]) -> Result<Self, BadBody> {
        let [len, request, a, b, last] = open(Kind::Rts, bytes)?;
        let (coop_id, shape) = halves(last);
        let layout = match shape & !REWRITTEN {
            0 => SourceLayout::One {
                address: a,
                heap: (b != NONE).then_some(b),
            },
            LIST | LIST_EXPOSED => {
                let (chunk, count) = halves(a);
                SourceLayout::List {
                    chunk: ChunkName::from_word(chunk),
                    count,
                    cookie: (shape & !REWRITTEN == LIST_EXPOSED).then_some(b),
                }
            }
            2 => SourceLayout::Scattered,
            3 => SourceLayout::Region {
                address: a,
                cookie: b,
            },
            OFFERED => {
                let (chunk, bytes) = halves(a);
                SourceLayout::Offered {
                    chunk: ChunkName::from_word(chunk),
                    bytes,
                }
            }
            other => {
                return Err(BadBody::Value {
                    kind: Kind::Rts,
                    what: format!("a source of shape {other}"),
                });
            }
        };
        Ok(Self {
            len,
            request,
            layout,
            coop_id,
            rewritten: shape & REWRITTEN != 0,
        })
    }
}

/// The chunk that a record names, if it names one. Its body was decoded before, so it checks.
#[inline]
pub(crate) fn chunk_of(kind: Kind, bytes: &[u8; BODY]) -> Option<ChunkName> {
    let (words, _) = bytes.as_chunks();
    let word = |index: usize| words.get(index).map_or(0, |&word| u64::from_le_bytes(word));
    let names = match kind {
        Kind::ChunkFirst | Kind::ChunkNext | Kind::Data => true,
        Kind::Rts => matches!(
            halves(word(4)).1 & !REWRITTEN,
            LIST | LIST_EXPOSED | OFFERED
        ),
        _ => false,
    };
    names.then(|| ChunkName::from_word(halves(word(2)).0))
}

/// One piece of a listed source.
pub(crate) const LIST_ENTRY: usize = 24;

/// What a receiver asks of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CtsAction {
    /// Send these bytes in chunks.
    Chunks(MessageRange),
    /// Take part in the cooperative transfer, whether you wait or not: only you can copy.
    Join,
}

/// A request of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cts {
    /// The sender's request.
    pub(crate) request: u64,
    /// The receiver's transfer.
    pub(crate) transfer: u64,
    pub(crate) wanted: CtsAction,
}

impl Cts {
    pub(crate) fn encode(&self) -> [u8; BODY] {
        let (mode, offset, len) = match self.wanted {
            CtsAction::Chunks(range) => (0, range.offset, range.len),
            CtsAction::Join => (1, 0, 0),
        };
        seal(Kind::Cts, [self.request, self.transfer, offset, len, mode])
    }
    pub(crate) fn decode(bytes: &[u8; BODY]) -> Result<Self, BadBody> {
        let [request, transfer, offset, len, mode] = open(Kind::Cts, bytes)?;
        let wanted = match mode {
            0 => CtsAction::Chunks(MessageRange { offset, len }),
            1 => CtsAction::Join,
            other => {
                return Err(BadBody::Value {
                    kind: Kind::Cts,
                    what: format!("mode {other}"),
                });
            }
        };
        Ok(Self {
            request,
            transfer,
            wanted,
        })
    }
}

/// The end of a message that its sender has given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BreakOff {
    /// The one that is under way in chunks.
    Eager,
    /// The announced one that this transfer of the receiver's is of.
    Announced { transfer: u64 },
}

impl BreakOff {
    pub(crate) fn encode(self) -> [u8; BODY] {
        let (mode, transfer) = match self {
            Self::Eager => (0, 0),
            Self::Announced { transfer } => (1, transfer),
        };
        seal(Kind::BreakOff, [mode, transfer, 0, 0, 0])
    }
    pub(crate) fn decode(bytes: &[u8; BODY]) -> Result<Self, BadBody> {
        let [mode, transfer, ..] = open(Kind::BreakOff, bytes)?;
        match mode {
            0 => Ok(Self::Eager),
            1 => Ok(Self::Announced { transfer }),
            other => Err(BadBody::Value {
                kind: Kind::BreakOff,
                what: format!("mode {other}"),
            }),
        }
    }
}

/// The end of an announced message, or the match of a synchronous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fin {
    /// The sender's request.
    pub(crate) request: u64,
}

impl Fin {
    pub(crate) fn encode(self) -> [u8; BODY] {
        seal(Kind::Fin, [self.request, 0, 0, 0, 0])
    }
    pub(crate) fn decode(bytes: &[u8; BODY]) -> Result<Self, BadBody> {
        let [request, ..] = open(Kind::Fin, bytes)?;
        Ok(Self { request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bodies_come_back(len: u64, request: u64, a in 0..u64::MAX, b in 0..u64::MAX, coop_id: u32, count: u32, shape in 0u8..6) {
            let layout = match shape {
                0 => SourceLayout::One { address: a, heap: (b % 2 == 0).then_some(b) },
                1 => SourceLayout::List { chunk: ChunkName::from_word(coop_id), count, cookie: None },
                3 => SourceLayout::Region { address: a, cookie: b },
                4 => SourceLayout::List { chunk: ChunkName::from_word(coop_id), count, cookie: Some(b) },
                5 => SourceLayout::Offered { chunk: ChunkName::from_word(coop_id), bytes: count },
                _ => SourceLayout::Scattered,
            };
            let rts = Rts { len, request, layout, coop_id, rewritten: len % 2 == 0 };
            prop_assert_eq!(chunk_of(Kind::Rts, &rts.encode()).is_some(), matches!(shape, 1 | 4 | 5));
            prop_assert_eq!(Rts::decode(&rts.encode()), Ok(rts));
            let wanted = if shape == 0 { CtsAction::Join } else { CtsAction::Chunks(MessageRange { offset: a, len: b }) };
            let cts = Cts { request, transfer: len, wanted };
            prop_assert_eq!(Cts::decode(&cts.encode()), Ok(cts));
            for end in [BreakOff::Eager, BreakOff::Announced { transfer: len }] {
                prop_assert_eq!(BreakOff::decode(&end.encode()), Ok(end));
            }
        }

        #[test]
        fn a_flipped_bit_is_found(len: u64, request: u64, address: u64, bit in 0usize..BODY * 8) {
            let mut bytes = Rts { len, request, layout: SourceLayout::One { address, heap: None }, coop_id: 1, rewritten: false }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Rts::decode(&bytes).is_err());
            let mut bytes = Fin { request }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Fin::decode(&bytes).is_err());
        }
    }

    #[test]
    fn chunks_outside_of_their_message_are_refused() {
        let body = ChunkBody {
            total: 100,
            offset: 90,
            chunk: ChunkName::from_word(0),
            begin: 0,
            piece: 20,
            number: 0,
        };
        assert!(ChunkBody::decode(Kind::Data, &body.encode(Kind::Data)).is_err());
        let body = ChunkBody {
            total: 100,
            offset: u64::MAX,
            chunk: ChunkName::from_word(0),
            begin: 0,
            piece: 20,
            number: 0,
        };
        assert!(ChunkBody::decode(Kind::Data, &body.encode(Kind::Data)).is_err());
        let body = |begin| ChunkBody {
            total: 100,
            offset: 0,
            chunk: ChunkName::from_word(0),
            begin,
            piece: 20,
            number: 0,
        };
        for (begin, is_good) in [(0, true), (63, true), (64, false), (u32::MAX, false)] {
            let decoded = ChunkBody::decode(Kind::Data, &body(begin).encode(Kind::Data));
            assert_eq!(decoded.ok(), is_good.then(|| body(begin)));
        }
    }
}
