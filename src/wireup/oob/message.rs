// SPDX-License-Identifier: MIT OR Apache-2.0
//! What hosts say to one another over a connection: as `message.rs`, one message per frame.
//!
//! A frame is its length and a message. A connection is a stream of another machine, so what has come of it is
//! untrusted also after the proof. Lengths and values are checked, and what is no message ends the connection.

use super::super::message::{
    DecodeError, MAX_MESSAGE, MessageKind, OpenedMessage, Reader, Sender, ToRank, Writer,
};
use super::super::{Card, Event, Missing};

/// One message over a connection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToHost {
    /// To rank 0's host: a rank of this node joins.
    Joined {
        /// Which.
        rank: usize,
        /// Who it is.
        card: Card,
    },
    /// From rank 0's host: all have joined, and a part of the cards.
    Cards {
        /// Rank of the first card here.
        first: u32,
        /// Cards in all messages together.
        total: u32,
        /// The cards.
        cards: Vec<Card>,
    },
    /// From rank 0's host: not all have joined.
    Absent {
        /// How long it waited; 0 if it did not.
        waited_ms: u32,
        /// Who is missing.
        missing: Vec<Missing>,
    },
    /// Something happened on a node of the sender's side.
    Event(Event),
    /// This side lives.
    Beat,
    /// To rank 0's host: all ranks of this node are out of the job.
    Farewell,
    /// One of the above that has been encoded already, because ranks get the same.
    Encoded(Vec<u8>),
}

impl ToHost {
    /// The message as it is for a rank; none if it is for hosts only.
    pub(crate) fn for_ranks(self) -> Option<ToRank> {
        match self {
            Self::Cards {
                first,
                total,
                cards,
            } => Some(ToRank::Cards {
                first,
                total,
                cards,
            }),
            Self::Absent { waited_ms, missing } => Some(ToRank::Absent { waited_ms, missing }),
            Self::Event(event) => Some(ToRank::Event(event)),
            Self::Joined { .. } | Self::Beat | Self::Farewell | Self::Encoded(_) => None,
        }
    }

    /// The bytes of this message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Joined { rank, card } => {
                let mut writer = Writer::new(MessageKind::Joined);
                writer.count(*rank);
                writer.card(card);
                writer.into_bytes()
            }
            Self::Beat => Writer::new(MessageKind::Beat).into_bytes(),
            Self::Farewell => Writer::new(MessageKind::Farewell).into_bytes(),
            Self::Encoded(bytes) => bytes.clone(),
            both => {
                let message = both.clone().for_ranks();
                message.map(|message| message.encode()).unwrap_or_default()
            }
        }
    }

    /// The message in these bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let OpenedMessage { kind, mut reader } = Reader::open(bytes, Sender::Host)?;
        let message = match kind {
            MessageKind::Joined => Self::Joined {
                rank: reader.rank("rank")? as usize,
                card: reader.card()?,
            },
            MessageKind::Beat => Self::Beat,
            MessageKind::Farewell => Self::Farewell,
            // Of what a launcher sends, hosts pass on what concerns all ranks.
            MessageKind::Cards
            | MessageKind::Absent
            | MessageKind::Introduction
            | MessageKind::Refused
            | MessageKind::Died
            | MessageKind::Left
            | MessageKind::Aborted
            | MessageKind::Welcome => {
                return match ToRank::decode(bytes)? {
                    ToRank::Cards {
                        first,
                        total,
                        cards,
                    } => Ok(Self::Cards {
                        first,
                        total,
                        cards,
                    }),
                    ToRank::Absent { waited_ms, missing } => {
                        Ok(Self::Absent { waited_ms, missing })
                    }
                    ToRank::Event(event) => Ok(Self::Event(event)),
                    ToRank::Introduction { .. } | ToRank::Refused { .. } | ToRank::Welcome => {
                        Err(Sender::Host.wrong_kind(kind))
                    }
                };
            }
            MessageKind::Join
            | MessageKind::Introduce
            | MessageKind::Leave
            | MessageKind::Abort
            | MessageKind::Hello => return Err(Sender::Host.wrong_kind(kind)),
        };
        reader.end(message)
    }

    /// As a frame.
    pub(crate) fn frame(&self) -> Vec<u8> {
        framed(&self.encode())
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(4 + message.len());
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(message);
    frame
}

/// Messages out of a stream.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    got: Vec<u8>,
    /// So much of it has been given out.
    passed: usize,
}

impl Frames {
    /// These bytes have come.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.got.drain(..self.passed);
        self.passed = 0;
        self.got.extend_from_slice(bytes);
    }

    /// The next message that is there as a whole.
    pub(crate) fn next(&mut self) -> Result<Option<ToHost>, DecodeError> {
        let rest = &self.got[self.passed..];
        let Some((length, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_MESSAGE {
            return Err(DecodeError::Value {
                field: "length",
                value: length as u64,
            });
        }
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let message = ToHost::decode(message)?;
        self.passed += 4 + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wireup::Death;
    use crate::wireup::message::MAX_RANKS;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = ToHost> {
        let rank = 0..MAX_RANKS as usize;
        let card = (
            any::<u64>(),
            any::<u32>(),
            any::<Option<(std::net::IpAddr, u16)>>(),
        )
            .prop_map(|(pid_ns, uid, listens)| Card {
                pid_ns,
                uid,
                listens: listens.map(std::net::SocketAddr::from),
                ..Card::of_this_process()
            });
        let death = prop_oneof![
            any::<i32>().prop_map(Death::Code),
            any::<i32>().prop_map(Death::Signal),
            Just(Death::Unknown),
            Just(Death::NodeLost),
            Just(Death::Unheard),
        ];
        let missing =
            (rank.clone(), any::<bool>()).prop_map(|(rank, running)| Missing { rank, running });
        prop_oneof![
            (rank.clone(), card.clone()).prop_map(|(rank, card)| ToHost::Joined { rank, card }),
            (
                0..MAX_RANKS,
                any::<u32>(),
                proptest::collection::vec(card, 0..5)
            )
                .prop_map(|(first, total, cards)| ToHost::Cards {
                    first,
                    total,
                    cards
                }),
            (any::<u32>(), proptest::collection::vec(missing, 0..5))
                .prop_map(|(waited_ms, missing)| ToHost::Absent { waited_ms, missing }),
            (rank.clone(), death)
                .prop_map(|(rank, death)| ToHost::Event(Event::Died { rank, death })),
            rank.prop_map(|rank| ToHost::Event(Event::Left { rank })),
            any::<i32>().prop_map(|code| ToHost::Event(Event::Abort { code })),
            Just(ToHost::Beat),
            Just(ToHost::Farewell),
        ]
    }

    proptest! {
        #[test]
        fn messages_arrive_however_the_stream_is_cut(
            messages in proptest::collection::vec(message(), 0..6),
            step in 1_usize..300,
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(ToHost::frame).collect();
            let (mut frames, mut heard) = (Frames::default(), Vec::new());
            for piece in stream.chunks(step) {
                frames.take(piece);
                while let Some(message) = frames.next().expect("whole") {
                    heard.push(message);
                }
            }
            prop_assert_eq!(heard, messages);
        }

        #[test]
        fn damage_never_panics(message in message(), position in any::<prop::sample::Index>(), flip in 1_u8..) {
            let mut frame = message.frame();
            let position = position.index(frame.len());
            frame[position] ^= flip;
            let mut frames = Frames::default();
            frames.take(&frame);
            if let Ok(Some(other)) = frames.next() {
                prop_assert_eq!(ToHost::decode(&other.encode()), Ok(other));
            }
        }

        #[test]
        fn noise_is_no_message(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(ToHost::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_frame_is_bounded_before_it_has_come() {
        let mut frames = Frames::default();
        frames.take(&u32::MAX.to_le_bytes());
        assert!(frames.next().is_err());
        // What only a launcher sends to its ranks.
        let mut frames = Frames::default();
        frames.take(&framed(&ToRank::Welcome.encode()));
        assert_eq!(
            frames.next(),
            Err(Sender::Host.wrong_kind(MessageKind::Welcome))
        );
    }
}
