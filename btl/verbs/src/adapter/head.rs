// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands before the bytes of a lane's message: their offset in the stream, what the sender has taken, and what it
//! permits.

use crate::bytes::word;
use crate::matching::{OfferedRail, RAILS_MAX};

/// Bytes of a head.
pub(super) const HEAD: usize = 16;
/// Set in the offset of a message that belongs to no stream: a *note* of one side's lanes to the other's.
const NOTE: u64 = 1 << 63;

/// A head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Where in the stream the first byte belongs.
    pub(super) offset: u64,
    /// Messages that the sender has taken from its peer, ever.
    pub(super) taken: u32,
    /// Messages that the peer may send, ever.
    pub(super) granted: u32,
    /// Whether the bytes are a note, and the next byte of the stream is still to come.
    pub(super) is_note: bool,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let offset = self.offset | if self.is_note { NOTE } else { 0 };
        bytes[..8].copy_from_slice(&offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.taken.to_le_bytes());
        bytes[12..].copy_from_slice(&self.granted.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEAD]) -> Self {
        let [a, b, c, d, e, f, g, h, taken @ .., i, j, k, l] = *bytes;
        let offset = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Self {
            offset: offset & !NOTE,
            is_note: offset & NOTE != 0,
            taken: u32::from_le_bytes(taken),
            granted: u32::from_le_bytes([i, j, k, l]),
        }
    }
}

/// What the two sides of a lane tell each other before it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The pair, and its port.
    pub rail: OfferedRail,
    /// Other ports by which the rank can be reached, each with a pair of its own.
    pub more: [Option<OfferedRail>; RAILS_MAX - 1],
    /// Bytes that a receive has room for.
    pub room: u32,
    /// Messages that the peer may send at first.
    pub granted: u32,
    /// How a lane by datagrams knows its packets; none of a connection.
    pub mark: Option<Mark>,
    /// What a lane by an extended connection is reached by; none of another one.
    pub extended: Option<ExtendedOffer>,
}

/// How a rank is reached by an extended connection. The pair of the offer is the initiator that leads to the peer's
/// node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedOffer {
    /// The number of the rank's queue of receives.
    pub receives: u32,
    /// What it calls the lane; never 0.
    pub lane: u32,
    /// Whether the peer is to make the target of the initiator.
    pub wants_target: bool,
}

/// What packets for one side of a lane by datagrams must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What their seal is made with.
    pub key: u64,
    /// What that side calls the lane; never 0.
    pub mark: u32,
    /// The Q_Key of its pair.
    pub qkey: u32,
}

/// Bytes of a message that a peer may offer at most. It bounds what a rank allocates on a peer's word. It is the
/// largest that `ONECOPY_VERBS_SLOT` permits.
const ROOM_MAX: u32 = 1 << 20;

impl Offer {
    /// Bytes of it on a wire.
    pub const BYTES: usize = RAILS_MAX * OfferedRail::BYTES + 36;

    /// What tells this lane from others between the two ranks.
    #[must_use]
    pub fn number(&self) -> u32 {
        let extended = self.extended.map(|extended| extended.lane);
        extended.unwrap_or(self.rail.pair.number)
    }

    /// The rails that are offered, at least one.
    #[must_use]
    pub fn rails(&self) -> Vec<OfferedRail> {
        let more = self.more.iter().flatten().copied();
        std::iter::once(self.rail).chain(more).collect()
    }

    /// As bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (rails, rest) = bytes.split_at_mut(RAILS_MAX * OfferedRail::BYTES);
        for (place, rail) in rails.chunks_exact_mut(OfferedRail::BYTES).zip(self.rails()) {
            place.copy_from_slice(&rail.to_bytes());
        }
        rest[..4].copy_from_slice(&self.room.to_le_bytes());
        rest[4..8].copy_from_slice(&self.granted.to_le_bytes());
        if let Some(Mark { key, mark, qkey }) = self.mark {
            rest[8..16].copy_from_slice(&key.to_le_bytes());
            rest[16..20].copy_from_slice(&mark.to_le_bytes());
            rest[20..24].copy_from_slice(&qkey.to_le_bytes());
        }
        if let Some(extended) = self.extended {
            rest[24..28].copy_from_slice(&extended.receives.to_le_bytes());
            rest[28..32].copy_from_slice(&extended.lane.to_le_bytes());
            rest[32] = u8::from(extended.wants_target);
        }
        bytes
    }

    /// From a peer's bytes; none where they can be no offer.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (rails, rest) = bytes.split_at(RAILS_MAX * OfferedRail::BYTES);
        let (first, others) = rails.split_at(OfferedRail::BYTES);
        let first = OfferedRail::from_bytes(first)?;
        let mut more = [None; RAILS_MAX - 1];
        for (place, bytes) in more.iter_mut().zip(others.chunks_exact(OfferedRail::BYTES)) {
            // What is left out is all zeros, and has no others behind it.
            let is_there = bytes.iter().any(|byte| *byte != 0);
            *place = match is_there {
                true => Some(OfferedRail::from_bytes(bytes)?),
                false => None,
            };
        }
        if !more.is_sorted_by_key(Option::is_none) {
            return None;
        }
        let word = |offset| word(rest, offset);
        let mark = Mark {
            key: u64::from(word(8)) | u64::from(word(12)) << 32,
            mark: word(16),
            qkey: word(20),
        };
        let extended = ExtendedOffer {
            receives: word(24),
            lane: word(28),
            wants_target: word(32) != 0,
        };
        let offer = Self {
            rail: first,
            more,
            room: word(0),
            granted: word(4),
            mark: (mark.mark != 0).then_some(mark),
            extended: (extended.lane != 0).then_some(extended),
        };
        let sound = offer.room > HEAD as u32
            && offer.room <= ROOM_MAX
            && (super::GRANT_MIN..=super::WINDOW_MAX).contains(&offer.granted);
        sound.then_some(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueuePairAddress;

    #[test]
    fn heads_and_offers_come_back() {
        let head = Head {
            offset: u64::MAX / 2 - 3,
            taken: 7,
            granted: u32::MAX,
            is_note: false,
        };
        let note = Head {
            is_note: true,
            ..head
        };
        assert_eq!(Head::decode(&head.encode()), head);
        assert_eq!(Head::decode(&note.encode()), note);
        let offer = Offer {
            rail: OfferedRail {
                pair: QueuePairAddress {
                    packet: 4096,
                    ..QueuePairAddress::default()
                },
                ..OfferedRail::default()
            },
            more: [None; RAILS_MAX - 1],
            room: 8192,
            granted: 4,
            mark: None,
            extended: None,
        };
        assert_eq!(Offer::from_bytes(&offer.to_bytes()), Some(offer));
        let datagrams = Offer {
            mark: Some(Mark {
                key: u64::MAX - 5,
                mark: 3,
                qkey: 77,
            }),
            ..offer
        };
        assert_eq!(Offer::from_bytes(&datagrams.to_bytes()), Some(datagrams));
        let extended = Offer {
            extended: Some(ExtendedOffer {
                receives: 9,
                lane: u32::MAX,
                wants_target: true,
            }),
            ..offer
        };
        assert_eq!(Offer::from_bytes(&extended.to_bytes()), Some(extended));
        assert_eq!((offer.number(), extended.number()), (0, u32::MAX));
        let other = OfferedRail {
            speed: 10_000,
            index: 1,
            ..offer.rail
        };
        let two = Offer {
            more: [Some(other), None, None],
            ..offer
        };
        assert_eq!(Offer::from_bytes(&two.to_bytes()), Some(two));
        let mut gap = two.to_bytes();
        gap.copy_within(
            OfferedRail::BYTES..2 * OfferedRail::BYTES,
            2 * OfferedRail::BYTES,
        );
        gap[OfferedRail::BYTES..2 * OfferedRail::BYTES].fill(0);
        assert_eq!(Offer::from_bytes(&gap), None);
        for wrong in [
            Offer { room: 16, ..offer },
            Offer {
                room: u32::MAX,
                ..offer
            },
            Offer {
                granted: 0,
                ..offer
            },
            Offer {
                granted: u32::MAX,
                ..offer
            },
        ] {
            assert_eq!(Offer::from_bytes(&wrong.to_bytes()), None, "{wrong:?}");
        }
    }
}
