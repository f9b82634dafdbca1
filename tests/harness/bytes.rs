// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes whose place and message can be told from their value.
#![allow(dead_code, reason = "each test program uses a part")]

/// Fills `bytes` with what message `seed` holds from `offset` on.
pub(crate) fn fill_from(bytes: &mut [u8], seed: usize, offset: usize) {
    let salt = seed.wrapping_mul(0x9e37_79b9).wrapping_add(17);
    for (i, byte) in bytes.iter_mut().enumerate() {
        let position = i + offset;
        *byte = (position.wrapping_mul(31) ^ (position >> 8) ^ (position >> 16) ^ salt) as u8;
    }
}

/// Fills `bytes` with what message `seed` holds.
pub(crate) fn fill(bytes: &mut [u8], seed: usize) {
    fill_from(bytes, seed, 0);
}

/// The bytes of message `seed`.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}

/// Fails with the first place where `got` is not what message `seed` holds.
#[track_caller]
pub(crate) fn check(got: &[u8], seed: usize, what: &str) {
    let expected = pattern(got.len(), seed);
    if got != expected {
        let index = got.iter().zip(&expected).position(|(a, b)| a != b);
        let index = index.unwrap_or(0);
        panic!(
            "{what}: {} bytes of message {seed} differ from byte {index} on: {:?} instead of {:?}",
            got.len(),
            &got[index..got.len().min(index + 16)],
            &expected[index..got.len().min(index + 16)]
        );
    }
}
