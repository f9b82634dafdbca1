// SPDX-License-Identifier: MIT OR Apache-2.0
//! What travels on a stream: a head of [`HEAD`] bytes, a record's payload, and the chunk that the record names.
//! *Control frames* are heads alone: credit, that a rank gives up or leaves, and all about a lane but its offer.
//!
//! The record stands before its chunk: the receiver knows where the chunk belongs before it reads it, and reads it
//! there.

use crate::endpoint::{MAX_RECORD_SLOTS, payload_of};
use onecopy_btl::lanes::Offer;

/// Bytes of a head: what it is, the record's kind, its payload's bytes, its chunk's bytes, a value.
pub(super) const HEAD: usize = 16;
/// Bytes of a chunk at most. No segment has longer chunks, and `ONECOPY_TCP_PIECE` permits no longer pieces.
pub(super) const CHUNK_MAX: usize = 1 << 20;
/// Bytes of the payload of a record that names a chunk, at most.
pub(super) const NAMING_MAX: usize = payload_of(1);
/// Bytes of a frame without its chunk, at most.
pub(super) const FRAME_MAX: usize = HEAD + payload_of(MAX_RECORD_SLOTS);

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Record = 1,
    /// How much credit was given back, ever.
    Credit = 2,
    /// Its sender does not talk with this rank any more.
    GivenUp = 3,
    /// Its sender leaves: nothing follows.
    Farewell = 4,
    /// A lane that its sender has made, and how it is reached.
    Offer = 5,
    /// Its sender's lane is connected with this rank's.
    Ready = 6,
    /// What follows in its sender's stream goes by the lane.
    Switch = 7,
    /// The lane is over: so many bytes of this rank's have come by it, and no more will.
    End = 8,
    /// The number of the target that its sender has made for the peer's initiator (XRC).
    Target = 9,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) what: FrameKind,
    pub(super) kind: u8,
    pub(super) len: usize,
    pub(super) chunk: usize,
    pub(super) value: u64,
}

impl Head {
    /// Of a control frame.
    pub(super) fn control(what: FrameKind, value: u64) -> Self {
        Self {
            what,
            kind: 0,
            len: 0,
            chunk: 0,
            value,
        }
    }

    #[inline]
    pub(super) fn encode(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[0] = self.what as u8;
        head[1] = self.kind;
        head[2..4].copy_from_slice(&(self.len as u16).to_le_bytes());
        head[4..8].copy_from_slice(&(self.chunk as u32).to_le_bytes());
        head[8..].copy_from_slice(&self.value.to_le_bytes());
        head
    }

    /// An error says what no correct peer writes.
    #[inline]
    pub(super) fn decode(bytes: &[u8; HEAD]) -> Result<Self, &'static str> {
        let [what, kind, a, b, c, d, e, f, value @ ..] = *bytes;
        let len = usize::from(u16::from_le_bytes([a, b]));
        let chunk = u32::from_le_bytes([c, d, e, f]) as usize;
        let what = match what {
            1 if kind == 0 => return Err("a record of no kind"),
            1 if len > payload_of(MAX_RECORD_SLOTS) => return Err("a record of impossible extent"),
            1 if chunk > CHUNK_MAX => return Err("a chunk of impossible extent"),
            1 if chunk > 0 && len > NAMING_MAX => {
                return Err("a chunk behind a record that names none");
            }
            1 => FrameKind::Record,
            5 if kind != 0 || len != Offer::BYTES || chunk != 0 => {
                return Err("an offer of another length");
            }
            5 => FrameKind::Offer,
            2..=9 if kind != 0 || len != 0 || chunk != 0 => {
                return Err("a control frame with a payload");
            }
            2 => FrameKind::Credit,
            3 => FrameKind::GivenUp,
            4 => FrameKind::Farewell,
            6 => FrameKind::Ready,
            7 => FrameKind::Switch,
            8 => FrameKind::End,
            9 => FrameKind::Target,
            _ => return Err("a frame of no kind"),
        };
        Ok(Self {
            what,
            kind,
            len,
            chunk,
            value: u64::from_le_bytes(value),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_come_back(kind in 1u8.., len in 0..=NAMING_MAX, chunk in 0..=CHUNK_MAX, value: u64) {
            let head = Head { what: FrameKind::Record, kind, len, chunk, value };
            prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
        }

        #[test]
        fn what_is_read_has_bounds(bytes: [u8; HEAD]) {
            if let Ok(head) = Head::decode(&bytes) {
                prop_assert!(HEAD + head.len <= FRAME_MAX && head.chunk <= CHUNK_MAX);
                prop_assert!(head.chunk == 0 || head.len <= NAMING_MAX);
            }
        }
    }

    #[test]
    fn control_frames_have_no_payload() {
        for what in [
            FrameKind::Credit,
            FrameKind::GivenUp,
            FrameKind::Farewell,
            FrameKind::Ready,
            FrameKind::Switch,
            FrameKind::End,
            FrameKind::Target,
        ] {
            let head = Head::control(what, 9);
            assert_eq!(Head::decode(&head.encode()), Ok(head));
            let long = Head { len: 1, ..head };
            assert!(Head::decode(&long.encode()).is_err());
        }
    }
}
