// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a buffer has changed since it was last sent.
//!
//! What a peer has read in place stands in its cache, too. So a program that writes its buffer again has to take each
//! line back. The peer's next read takes it from the writer's cache once more. Copied through chunks, the buffer's
//! lines stay where they are. So a message of middle size goes in chunks if its buffer was rewritten, and is read in
//! place if it was not. The program does not say which it is. So a few words of the buffer are compared with what they
//! were when it was last sent. A buffer that is not remembered goes as its size decides.

/// Buffers that are remembered: one for each value of a hash of address and length. Programs send from few; of one that
/// is forgotten nothing is known, and nothing changes. Chosen by magnitude.
const BUFFERS: usize = 128;
/// Words that are looked at, spread over the buffer: as many lines, which the sender has in its cache if it wrote them.
/// Chosen by magnitude: eight lines of the cache cost next to nothing.
const WORDS: usize = 8;
/// Bytes of the shortest buffer that is looked at.
pub(super) const SHORTEST: usize = 8 * WORDS;
/// An odd number without pattern. It is 2^64 divided by the golden ratio, as for Fibonacci hashing.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Debug, Clone, Copy, Default)]
struct Fingerprint {
    address: usize,
    len: usize,
    words: u64,
}

/// What was sent lately.
#[derive(Debug)]
pub(crate) struct Rewritten {
    sent: Box<[Fingerprint; BUFFERS]>,
}

impl Default for Rewritten {
    fn default() -> Self {
        Self {
            sent: Box::new([Fingerprint::default(); BUFFERS]),
        }
    }
}

/// A number that stands for some words of at least so many bytes.
fn words(bytes: &[u8]) -> u64 {
    let last = bytes.len() - 8;
    let word = |index: usize| bytes[last * index / (WORDS - 1)..].first_chunk().copied();
    // Each is mixed by itself: one behind the other would take forty cycles.
    (0..WORDS)
        .map(|index| {
            let word = u64::from_ne_bytes(word(index).unwrap_or_default());
            let mixed = (word ^ word >> 32).wrapping_mul(MIX + 2 * index as u64);
            mixed ^ mixed >> 29
        })
        .fold(0, u64::wrapping_add)
}

/// Where a buffer is remembered. Two buffers of one place forget each other.
const fn place(address: usize, len: usize) -> usize {
    let hash = (address as u64 ^ (len as u64).rotate_left(32)).wrapping_mul(MIX);
    (hash >> 32) as usize % BUFFERS
}

impl Rewritten {
    /// Whether these bytes were sent before, lately, and are others now. They are remembered as sent. A message that
    /// could not be sent at once is asked about again; then the answer is that nothing changed.
    pub(crate) fn changed(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() < SHORTEST {
            return false;
        }
        let (address, len) = (bytes.as_ptr().addr(), bytes.len());
        let sent = &mut self.sent[place(address, len)];
        let now = Fingerprint {
            address,
            len,
            words: words(bytes),
        };
        let before = std::mem::replace(sent, now);
        (before.address, before.len) == (address, len) && before.words != now.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of these bytes that is remembered at the same place as all of them, or at another one.
    fn part(bytes: &[u8], same_place: bool) -> &[u8] {
        let place_of = |bytes: &[u8]| place(bytes.as_ptr().addr(), bytes.len());
        (1..bytes.len() / 2)
            .map(|skipped| &bytes[skipped..])
            .find(|part| (place_of(part) == place_of(bytes)) == same_place)
            .expect("a part of each kind among 20 000")
    }

    #[test]
    fn only_what_was_sent_before_and_is_different_now_has_changed() {
        let mut rewritten = Rewritten::default();
        let mut bytes = vec![1u8; 40_000];
        assert!(!rewritten.changed(&bytes), "never seen");
        assert!(!rewritten.changed(&bytes), "the same");
        bytes.fill(2);
        assert!(rewritten.changed(&bytes));
        assert!(!rewritten.changed(&bytes));
        assert!(!rewritten.changed(part(&bytes, false)), "another buffer");
        bytes[39_999] = 7;
        assert!(rewritten.changed(&bytes), "its last byte");
        bytes[0] = 7;
        assert!(rewritten.changed(&bytes), "its first");
        assert!(!rewritten.changed(part(&bytes, true)), "of the same place");
        bytes[0] = 8;
        assert!(!rewritten.changed(&bytes), "forgotten for that one");
        assert!(!rewritten.changed(&[]) && !rewritten.changed(&[1; 63]));
    }

    #[test]
    fn more_buffers_than_are_remembered_are_not_mixed_up() {
        let mut rewritten = Rewritten::default();
        let mut all = vec![0u8; 1 << 20];
        for round in 0..3u8 {
            for buffer in all.chunks_exact_mut(1024) {
                let known = round > 0;
                buffer.fill(round);
                assert!(known || !rewritten.changed(buffer));
            }
        }
        let unchanged = all.chunks_exact(1024).filter(|buffer| {
            rewritten.changed(buffer);
            !rewritten.changed(buffer)
        });
        assert_eq!(unchanged.count(), 1024);
    }
}
