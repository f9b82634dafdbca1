// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seal of a control record, spelled out apart from the code that is tested.

/// A control body as a correct peer would seal it.
pub(crate) fn sealed(kind: u8, words: [u64; 5]) -> [u8; 48] {
    let check = (0u32..)
        .zip(&words)
        .fold(0x6f6e_6563_6f70_7900 ^ u64::from(kind), |sum, (i, word)| {
            sum ^ word.rotate_left(7 * i + 1)
        });
    let mut bytes = [0; 48];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words.iter().chain([&check])) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
