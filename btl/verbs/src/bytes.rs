// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers in what crosses a wire, the least byte first.

/// The number of four bytes that begins at `offset`; 0 behind the end.
pub(crate) fn word(bytes: &[u8], offset: usize) -> u32 {
    let found = bytes.get(offset..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |&bytes| u32::from_le_bytes(bytes))
}
