// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the two sides of a lane send each other about its further rails.
//!
//! ```text
//! leader                        other side
//!   Offer(c, n, rail)  ──────►                     connection c is to be made by this rail, for the n-th time
//!                      ◄──────  Answer(c, n, rail)
//!   Ready(c, n)        ◄─────►  Ready(c, n)        this side is connected: the other may read
//!   Over(c, n)         ◄─────►  Over(c, n)         it failed here, or cannot be made
//!                      ◄──────  Up(c)              the port came back: offer soon
//!   Keys(r, keys)      ◄─────►  Keys(r, keys)      registration r of memory that was shown: its key by each rail
//! ```

use crate::matching::{OfferedRail, RAILS_MAX};

/// A note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    Offer(Attempt, OfferedRail),
    Answer(Attempt, OfferedRail),
    Ready(Attempt),
    Over(Attempt),
    Up(Attempt),
    Keys(u32, Keys),
}

/// An attempt to make a connection, the `number`-th one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) connection: u8,
    pub(super) number: u32,
}

/// The key of some memory by each of its owner's rails. None: it cannot be read there.
pub(super) type Keys = [Option<u32>; RAILS_MAX];

/// Bytes before a rail, or before keys.
const FRONT: usize = 8;

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        let front_of = |kind: u8, byte: u8, word: u32| {
            let mut bytes = vec![kind, byte, 0, 0];
            bytes.extend(word.to_le_bytes());
            bytes
        };
        let front = |kind, attempt: &Attempt| front_of(kind, attempt.connection, attempt.number);
        match self {
            Self::Offer(attempt, rail) => [front(1, attempt), rail.to_bytes().to_vec()].concat(),
            Self::Answer(attempt, rail) => [front(2, attempt), rail.to_bytes().to_vec()].concat(),
            Self::Ready(attempt) => front(3, attempt),
            Self::Over(attempt) => front(4, attempt),
            Self::Up(attempt) => front(5, attempt),
            Self::Keys(registration, keys) => {
                let present = keys.iter().enumerate();
                let mask = present
                    .map(|(index, key)| u8::from(key.is_some()) << index)
                    .sum();
                let keys = keys.iter().flat_map(|key| key.unwrap_or(0).to_le_bytes());
                front_of(6, mask, *registration)
                    .into_iter()
                    .chain(keys)
                    .collect()
            }
        }
    }

    /// From a peer's bytes; none where no correct peer would send them.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (front, rest) = bytes.split_first_chunk::<FRONT>()?;
        let [kind, byte, 0, 0, word @ ..] = *front else {
            return None;
        };
        let word = u32::from_le_bytes(word);
        let attempt = Attempt {
            connection: byte,
            number: word,
        };
        let alone = |note| rest.is_empty().then_some(note);
        match kind {
            1 => Some(Self::Offer(attempt, rail(rest)?)),
            2 => Some(Self::Answer(attempt, rail(rest)?)),
            3 => alone(Self::Ready(attempt)),
            4 => alone(Self::Over(attempt)),
            5 => alone(Self::Up(attempt)),
            6 if rest.len() == 4 * RAILS_MAX && byte >> RAILS_MAX == 0 => {
                let mut keys = [None; RAILS_MAX];
                for (index, (key, bytes)) in keys.iter_mut().zip(rest.chunks_exact(4)).enumerate() {
                    let bits = u32::from_le_bytes(bytes.try_into().ok()?);
                    *key = (byte & 1 << index != 0).then_some(bits);
                }
                Some(Self::Keys(word, keys))
            }
            _ => None,
        }
    }
}

fn rail(bytes: &[u8]) -> Option<OfferedRail> {
    (bytes.len() == OfferedRail::BYTES).then(|| OfferedRail::from_bytes(bytes))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::NOTE_MAX;
    use crate::port::QueuePairAddress;

    #[test]
    fn notes_come_back_and_nothing_else_does() {
        let attempt = Attempt {
            connection: 2,
            number: u32::MAX - 1,
        };
        let rail = OfferedRail {
            pair: QueuePairAddress {
                packet: 4096,
                ..QueuePairAddress::default()
            },
            speed: 9,
            doubtful: true,
            absent: false,
            index: 2,
        };
        let notes = [
            Note::Offer(attempt, rail),
            Note::Answer(attempt, rail),
            Note::Ready(attempt),
            Note::Over(attempt),
            Note::Up(attempt),
            Note::Keys(7, [Some(0), None, Some(u32::MAX), None]),
        ];
        for note in notes {
            let bytes = note.encode();
            assert!(bytes.len() <= NOTE_MAX, "{note:?}");
            assert_eq!(Note::decode(&bytes), Some(note));
            assert_eq!(Note::decode(&bytes[..bytes.len() - 1]), None, "{note:?}");
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Note::decode(&longer), None, "{note:?}");
            let unknown = [&[9], &bytes[1..]].concat();
            assert_eq!(Note::decode(&unknown), None, "{note:?}");
        }
    }
}
