// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands before the bytes of a lane's message: their place in the stream, what the sender has taken, and what it
//! permits.

/// Bytes of a head.
pub(super) const HEAD: usize = 16;

/// A head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Where in the stream the first byte belongs.
    pub(super) at: u64,
    /// Messages that the sender has taken from its peer, ever.
    pub(super) taken: u32,
    /// Messages that the peer may send, ever.
    pub(super) granted: u32,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.taken.to_le_bytes());
        bytes[12..].copy_from_slice(&self.granted.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEAD]) -> Self {
        let [a, b, c, d, e, f, g, h, taken @ .., i, j, k, l] = *bytes;
        Self {
            at: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            taken: u32::from_le_bytes(taken),
            granted: u32::from_le_bytes([i, j, k, l]),
        }
    }
}

/// What the two sides of a lane tell each other before it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The pair, and the address of its port.
    pub reach: crate::Reach,
    /// Bytes that a receive has room for.
    pub room: u32,
    /// Messages that the peer may send at first.
    pub granted: u32,
    /// How a lane by datagrams knows its packets; none of a connection.
    pub mark: Option<Mark>,
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

/// Bytes of a message that a peer may offer at most. It bounds what a rank allocates on a peer's word.
const ROOM_MAX: u32 = 1 << 20;

impl Offer {
    /// Bytes of it on a wire.
    pub const BYTES: usize = crate::Reach::BYTES + 24;

    /// As bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (reach, rest) = bytes.split_at_mut(crate::Reach::BYTES);
        reach.copy_from_slice(&self.reach.to_bytes());
        rest[..4].copy_from_slice(&self.room.to_le_bytes());
        rest[4..8].copy_from_slice(&self.granted.to_le_bytes());
        if let Some(Mark { key, mark, qkey }) = self.mark {
            rest[8..16].copy_from_slice(&key.to_le_bytes());
            rest[16..20].copy_from_slice(&mark.to_le_bytes());
            rest[20..].copy_from_slice(&qkey.to_le_bytes());
        }
        bytes
    }

    /// From a peer's bytes; none where they can be no offer.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (reach, rest) = bytes.split_first_chunk::<{ crate::Reach::BYTES }>()?;
        let word = |at: usize| {
            rest.get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok())
                .map(u32::from_le_bytes)
        };
        let mark = Mark {
            key: u64::from(word(8)?) | u64::from(word(12)?) << 32,
            mark: word(16)?,
            qkey: word(20)?,
        };
        let offer = Self {
            reach: crate::Reach::from_bytes(reach)?,
            room: word(0)?,
            granted: word(4)?,
            mark: (mark.mark != 0).then_some(mark),
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
    use crate::Reach;

    #[test]
    fn heads_and_offers_come_back() {
        let head = Head {
            at: u64::MAX - 3,
            taken: 7,
            granted: u32::MAX,
        };
        assert_eq!(Head::decode(&head.encode()), head);
        let offer = Offer {
            reach: Reach {
                packet: 4096,
                ..Reach::default()
            },
            room: 8192,
            granted: 4,
            mark: None,
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
