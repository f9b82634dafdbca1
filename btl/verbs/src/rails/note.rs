// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the two sides of a lane tell each other about its further rails.
//!
//! ```text
//! leader                        other side
//!   Offer(c, n, rail)  ──────►                     the rail's connection c is to be made, for the n-th time
//!                      ◄──────  Answer(c, n, rail)
//!   Ready(c, n)        ◄─────►  Ready(c, n)        this side is connected: the other may read
//!   Over(c, n)         ◄─────►  Over(c, n)         it failed here, or cannot be made
//!                      ◄──────  Up(c)              the port came back: offer soon
//!   Keys(id, keys)     ◄─────►  Keys(id, keys)     memory that was shown, and its key by each rail
//! ```

use crate::matching::{OfferedRail, RAILS_MAX};

/// A note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    Offer(Place, OfferedRail),
    Answer(Place, OfferedRail),
    Ready(Place),
    Over(Place),
    Up(Place),
    Keys(u32, Keys),
}

/// A connection, and which try it is to make it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) connection: u8,
    pub(super) attempt: u32,
}

/// The key of some memory by each connection. None: it cannot be read there.
pub(super) type Keys = [Option<u32>; RAILS_MAX];

/// Bytes before a rail, or before keys.
const FRONT: usize = 8;

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        let front = |what: u8,
                     Place {
                         connection,
                         attempt,
                     }: Place| {
            let mut bytes = vec![what, connection, 0, 0];
            bytes.extend(attempt.to_le_bytes());
            bytes
        };
        match self {
            Self::Offer(place, rail) => [front(1, *place), rail.to_bytes().to_vec()].concat(),
            Self::Answer(place, rail) => [front(2, *place), rail.to_bytes().to_vec()].concat(),
            Self::Ready(place) => front(3, *place),
            Self::Over(place) => front(4, *place),
            Self::Up(place) => front(5, *place),
            Self::Keys(id, keys) => {
                let present = keys.iter().enumerate();
                let mask = present.map(|(at, key)| u8::from(key.is_some()) << at).sum();
                let place = Place {
                    connection: mask,
                    attempt: *id,
                };
                let keys = keys.iter().flat_map(|key| key.unwrap_or(0).to_le_bytes());
                front(6, place).into_iter().chain(keys).collect()
            }
        }
    }

    /// From a peer's bytes; none where no correct peer would send them.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (front, rest) = bytes.split_first_chunk::<FRONT>()?;
        let [what, connection, 0, 0, attempt @ ..] = *front else {
            return None;
        };
        let attempt = u32::from_le_bytes(attempt);
        let place = Place {
            connection,
            attempt,
        };
        let alone = |note| rest.is_empty().then_some(note);
        match what {
            1 => Some(Self::Offer(place, rail(rest)?)),
            2 => Some(Self::Answer(place, rail(rest)?)),
            3 => alone(Self::Ready(place)),
            4 => alone(Self::Over(place)),
            5 => alone(Self::Up(place)),
            6 if rest.len() == 4 * RAILS_MAX && connection >> RAILS_MAX == 0 => {
                let mut keys = [None; RAILS_MAX];
                for (at, (key, bytes)) in keys.iter_mut().zip(rest.chunks_exact(4)).enumerate() {
                    let word = u32::from_le_bytes(bytes.try_into().ok()?);
                    *key = (connection & 1 << at != 0).then_some(word);
                }
                Some(Self::Keys(attempt, keys))
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
    use crate::port::Reach;

    #[test]
    fn notes_come_back_and_nothing_else_does() {
        let place = Place {
            connection: 2,
            attempt: u32::MAX - 1,
        };
        let rail = OfferedRail {
            reach: Reach {
                packet: 4096,
                ..Reach::default()
            },
            speed: 9,
            doubtful: true,
            absent: false,
            index: 2,
        };
        let notes = [
            Note::Offer(place, rail),
            Note::Answer(place, rail),
            Note::Ready(place),
            Note::Over(place),
            Note::Up(place),
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
