// SPDX-License-Identifier: MIT OR Apache-2.0
//! Payload whose every byte depends on its place and on the message.

const PHI: u64 = 0x9E37_79B9_7F4A_7C15;

fn seed(message: u64) -> u64 {
    let mut x = message.wrapping_add(1).wrapping_mul(PHI);
    x = (x ^ (x >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 29)
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    let x = (index ^ seed).wrapping_mul(PHI);
    (x ^ (x >> 32)).to_le_bytes()
}

/// Fills a message.
pub fn fill(bytes: &mut [u8], message: u64) {
    let seed = seed(message);
    for (index, chunk) in (0_u64..).zip(bytes.chunks_mut(8)) {
        let word = word(seed, index);
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Makes sure that no byte is right by accident of an earlier message.
pub fn spoil(bytes: &mut [u8], message: u64) {
    fill(bytes, !message);
}

/// The first byte that is not what [`fill`] wrote.
#[must_use]
pub fn first_wrong(bytes: &[u8], message: u64) -> Option<usize> {
    let seed = seed(message);
    (0_u64..)
        .zip(bytes.chunks(8))
        .find(|(index, chunk)| word(seed, *index)[..chunk.len()] != **chunk)
        .map(|(index, chunk)| {
            let right = word(seed, index);
            let within = chunk.iter().zip(right).position(|(a, b)| *a != b);
            usize::try_from(index).unwrap_or(usize::MAX) * 8 + within.unwrap_or(0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        for bytes in [0, 1, 7, 8, 9, 100] {
            let mut message = vec![0; bytes];
            fill(&mut message, 7);
            assert_eq!(first_wrong(&message, 7), None);
            for index in 0..bytes {
                message[index] ^= 0x10;
                assert_eq!(first_wrong(&message, 7), Some(index));
                message[index] ^= 0x10;
            }
        }
    }

    #[test]
    fn messages_differ() {
        let mut message = vec![0; 64];
        fill(&mut message, 1);
        assert!(first_wrong(&message, 2).is_some());
        spoil(&mut message, 1);
        assert_eq!(first_wrong(&message, 1), Some(0));
    }
}
