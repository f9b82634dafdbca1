// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands before the bytes of a datagram, and the seal over it.
//!
//! The seal is made of the head and a key that only the two sides of a lane know. A head that was altered, of another
//! lane, or of somebody who does not know the key, has another one.

use crate::bytes::word;

/// Bytes of a head.
pub(super) const HEAD: usize = 36;

/// A head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// What the receiver calls the lane.
    pub(super) mark: u32,
    /// The packet's number; of one without bytes, the number of the next one.
    pub(super) number: u32,
    /// The number that the sender expects next.
    pub(super) next: u32,
    /// The first number that the receiver may not use.
    pub(super) permitted: u32,
    /// Selective acknowledgements: which of the 64 numbers behind `next` the sender has, a bit each.
    pub(super) sacks: u64,
    /// Bytes of the stream that follow.
    pub(super) len: u16,
    /// The sender wants an answer.
    pub(super) asks: bool,
}

/// Each step can be undone, so that a change of one word always changes the seal.
fn seal(key: u64, sealed: &[u8]) -> u64 {
    let mut state = key;
    for chunk in sealed.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        // splitmix64.
        let mut word = state.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ u64::from_le_bytes(bytes);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        state = (word ^ word >> 31) ^ key;
    }
    state
}

impl Head {
    /// With its seal.
    pub(super) fn encode(&self, key: u64) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[8..12].copy_from_slice(&self.mark.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.next.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.permitted.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sacks.to_le_bytes());
        bytes[32..34].copy_from_slice(&self.len.to_le_bytes());
        bytes[34] = u8::from(self.asks);
        let seal = seal(key, &bytes[8..]);
        bytes[..8].copy_from_slice(&seal.to_le_bytes());
        bytes
    }

    /// For which lane a packet says to be. Nothing else of it may be believed before its seal is known to be good.
    pub(super) fn mark(bytes: &[u8; HEAD]) -> u32 {
        word(bytes, 8)
    }

    /// A head whose seal is good.
    pub(super) fn open(bytes: &[u8; HEAD], key: u64) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, ..] = *bytes;
        if u64::from_le_bytes([a, b, c, d, e, f, g, h]) != seal(key, &bytes[8..]) {
            return None;
        }
        let word = |offset| word(bytes, offset);
        Some(Self {
            mark: word(8),
            number: word(12),
            next: word(16),
            permitted: word(20),
            sacks: u64::from(word(24)) | u64::from(word(28)) << 32,
            len: u16::from_le_bytes([bytes[32], bytes[33]]),
            asks: bytes[34] != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_and_an_altered_one_does_not() {
        let head = Head {
            mark: 7,
            number: u32::MAX,
            next: 3,
            permitted: 35,
            sacks: 1 << 63 | 5,
            len: 4020,
            asks: true,
        };
        for key in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
            let bytes = head.encode(key);
            assert_eq!(Head::open(&bytes, key), Some(head));
            assert_eq!(Head::mark(&bytes), 7);
            assert_eq!(Head::open(&bytes, key ^ 1), None);
            for bit in 0..8 * HEAD {
                let mut altered = bytes;
                altered[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Head::open(&altered, key), None, "key {key:#x}, bit {bit}");
            }
        }
    }
}
