// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of the fuzzer, read as choices. What is read behind the end is zero.

/// What is left of an input.
#[derive(Debug)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    position: usize,
    /// Values that an input can name: numbers that the other side gave out.
    pub(crate) known: [u64; 8],
}

impl Input {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            position: 0,
            known: [0; 8],
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.position >= self.bytes.len()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.position).copied().unwrap_or(0);
        self.position += 1;
        byte
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        u64::from(self.byte()) % limit
    }

    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next bytes, at most `most`; a byte says how many.
    pub(crate) fn piece(&mut self, most: usize) -> Vec<u8> {
        let len = usize::from(self.byte()).min(most);
        (0..len).map(|_| self.byte()).collect()
    }

    /// A word of the sort that fields hold: small, a power of two, close to the end, two halves,
    /// something known, or anything.
    pub(crate) fn word(&mut self) -> u64 {
        let choice = self.byte();
        let rest = u64::from(choice);
        match choice {
            0..=127 => rest,
            128..=191 => 1 << (rest - 128),
            192..=215 => u64::MAX - (rest - 192),
            216..=231 => u64::from(self.short()),
            232..=239 => self.known[usize::from(choice) - 232],
            240..=247 => u64::from(self.byte()) | u64::from(self.short()) << 32,
            _ => (0..8).fold(0, |word, byte| word | u64::from(self.byte()) << (8 * byte)),
        }
    }

    /// How a generator of seeds writes `word` so that it is read back.
    pub(crate) fn spell(word: u64) -> Vec<u8> {
        if word < 128 {
            return vec![word as u8];
        }
        let mut bytes = vec![255];
        bytes.extend(word.to_le_bytes());
        bytes
    }
}
