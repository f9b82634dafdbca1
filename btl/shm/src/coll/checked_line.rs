// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checked content of a member's line. A line is memory that peers write, so it is copied out once and checked
//! before use. No code above this gets the raw words, so no length or range that does not hold can reach a copy.

use crate::layout::COLL_SLOT;

/// Bytes that a line carries itself.
pub const INLINE: usize = 48;

/// What stands in a line besides number and payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Up to which collective the writer has read, so that no member needs to look that up.
    pub done: u32,
    /// What the payload is; the layer above knows.
    pub kind: u8,
    /// Bytes of payload in the line.
    pub len: u8,
}

impl Info {
    #[inline]
    pub(super) fn encode(self) -> u64 {
        u64::from(self.done) | u64::from(self.kind) << 32 | u64::from(self.len) << 40
    }
    #[inline]
    pub(super) fn decode(word: u64) -> Self {
        Self {
            done: word as u32,
            kind: (word >> 32) as u8,
            len: (word >> 40) as u8,
        }
    }
}

/// What the payload of a line is.
pub mod kind {
    /// There is none.
    pub const NOTHING: u8 = 0;
    /// The bytes themselves.
    pub const INLINE: u8 = 1;
    /// The bytes stand in the slot.
    pub const SLOT: u8 = 2;
    /// The bytes stand in a buffer, which the payload describes.
    pub const BUFFER: u8 = 3;
    /// The bytes come as a message; the payload describes a buffer of as many.
    pub const MESSAGE: u8 = 4;
    /// The bytes come piece by piece through the first buffer that the payload describes, in the owner's heap. The
    /// second one has as many bytes as come in all.
    pub const PIECES: u8 = 5;
    /// The bytes stand in the spare slot of the line's owner. Who has read them may write there.
    pub const SPARE: u8 = 6;
    /// The same of the spare slot of the line's one reader.
    pub const READERS_SPARE: u8 = 7;
    /// The slot begins with a table of the parts for each member.
    pub const TABLE: u8 = 0x10;
    /// Of pieces: they come through the reader's buffer, in which it has given pieces before.
    pub const RETURNED: u8 = TABLE;
    /// Members may write into the second buffer that the line describes. Of pieces: their reader may give its next ones
    /// in the first buffer.
    pub const OPEN: u8 = 0x20;
    /// The line's owner writes into the buffers of members that are open.
    pub const WRITES: u8 = 0x40;
    /// The line's owner waits in the call and copies at once what it is asked for.
    pub const ANSWERS: u8 = 0x80;
    /// Without the flags.
    pub const MASK: u8 = 0x0f;
}

/// Where a member's buffer is, within its heap and its address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferLocation {
    /// Its address in the member.
    pub address: u64,
    /// Its place in the member's heap, if it lies there.
    pub heap: Option<u64>,
    /// Its bytes.
    pub len: u64,
}

/// Whose spare slot a contribution stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpareOf {
    /// The giver's: the line's owner's.
    Giver,
    /// That of the one reader.
    Reader,
}

/// Where the bytes are that a member contributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// There are none.
    Nothing,
    /// So many in the line; no more than fit.
    Inline(usize),
    /// So many in the slot; no more than fit.
    Slot(usize),
    /// So many in a spare slot; no more than fit.
    Spare(SpareOf, usize),
    /// In the first buffer that the line describes.
    Buffer,
    /// In a message, of as many bytes as the first buffer that the line describes.
    Message,
    /// Piece by piece through the first buffer that the line describes: as many bytes as the second one has.
    Pieces,
}

/// The content of a line, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedLine {
    /// Up to which collective the writer has read. Not checked here: a reader
    /// believes it only as far ahead of its own number as there are lines.
    pub done: u32,
    /// Where the contribution is.
    pub content: Content,
    /// The buffer that the writer gives; empty if the line describes none.
    pub given: BufferLocation,
    /// The buffer in which the writer receives; empty if the line describes none.
    pub result: BufferLocation,
    flags: u8,
}

impl CheckedLine {
    /// Whether the line has this flag.
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag == flag
    }
}

/// A line that no correct member writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the line of collective {seq} is of kind {kind:#04x} with {len} bytes: {what}")]
pub struct BadLine {
    /// The collective.
    pub seq: u32,
    /// The kind in the line.
    pub kind: u8,
    /// The length in the line.
    pub len: u8,
    /// What is wrong with it.
    pub what: &'static str,
}

fn word(payload: &[u8; INLINE], offset: usize) -> u64 {
    payload
        .get(offset..offset + 8)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

fn describe(payload: &[u8; INLINE], offset: usize, heap_bytes: u64) -> Option<BufferLocation> {
    let (address, heap, len) = (
        word(payload, offset),
        word(payload, offset + 8),
        word(payload, offset + 16),
    );
    let heap = (heap != u64::MAX).then_some(heap);
    let is_within = |begin: u64, limit: u64| begin.checked_add(len).is_some_and(|end| end <= limit);
    let is_valid =
        is_within(address, u64::MAX) && heap.is_none_or(|heap| is_within(heap, heap_bytes));
    is_valid.then_some(BufferLocation { address, heap, len })
}

/// Whose spare slot a line of this kind names, if it is of one.
fn spare_of(kind: u8) -> SpareOf {
    match kind {
        kind::READERS_SPARE => SpareOf::Reader,
        _ => SpareOf::Giver,
    }
}

/// Checks what was copied out of a line of a member whose slots have `slot` bytes, and whose heap has `heap_bytes`.
pub(super) fn check(
    seq: u32,
    info: Info,
    payload: &[u8; INLINE],
    (slot, heap_bytes): (usize, u64),
) -> Result<CheckedLine, BadLine> {
    let bad = |what| BadLine {
        seq,
        kind: info.kind,
        len: info.len,
        what,
    };
    let len = usize::from(info.len);
    let (mut given, mut result) = (BufferLocation::default(), BufferLocation::default());
    let content = match info.kind & kind::MASK {
        kind::NOTHING if len == 0 || len == INLINE => Content::Nothing,
        kind::INLINE if len <= INLINE => Content::Inline(len),
        // A slot with a table, or with a piece of a stream, whose reader knows how much is in it.
        kind::SLOT if len == 0 => Content::Slot(COLL_SLOT),
        kind::SLOT if len == 8 => match usize::try_from(word(payload, 0)) {
            Ok(there) if there <= slot => Content::Slot(there),
            _ => return Err(bad("more bytes than a slot has")),
        },
        kind::SPARE | kind::READERS_SPARE if len == 8 => match usize::try_from(word(payload, 0)) {
            Ok(there) if there <= slot => Content::Spare(spare_of(info.kind & kind::MASK), there),
            _ => return Err(bad("more bytes than a slot has")),
        },
        kind::BUFFER if len == INLINE => Content::Buffer,
        kind::MESSAGE if len == INLINE => Content::Message,
        kind::PIECES if len == INLINE => Content::Pieces,
        kind::NOTHING..=kind::READERS_SPARE => {
            return Err(bad("such a line has another length"));
        }
        _ => return Err(bad("there is no such kind")),
    };
    let describes = matches!(
        content,
        Content::Nothing | Content::Buffer | Content::Message | Content::Pieces
    );
    if describes && len == INLINE {
        let outside = || bad("a buffer outside of its owner's memory");
        given = describe(payload, 0, heap_bytes).ok_or_else(outside)?;
        result = describe(payload, 24, heap_bytes).ok_or_else(outside)?;
    }
    if content == Content::Message && (given.address, given.heap) != (0, None) {
        return Err(bad("a message has no address"));
    }
    if content == Content::Pieces {
        if info.kind & kind::RETURNED == 0 && given.heap.is_none() {
            return Err(bad("pieces come through memory that others map"));
        }
        if (result.address, result.heap) != (0, None) {
            return Err(bad("the sum of pieces has no address"));
        }
    }
    Ok(CheckedLine {
        done: info.done,
        content,
        given,
        result,
        flags: info.kind & !kind::MASK,
    })
}

/// What a line says of itself, read once: enough for a short contribution, of which its reader knows the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortContribution(pub(super) u64);

/// Where a short contribution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShortPlace {
    Line,
    Slot,
    Spare(SpareOf),
    /// It is no short one, it has another length, or the line is malformed.
    Elsewhere,
}

impl ShortContribution {
    /// As in [`CheckedLine`].
    #[inline(always)]
    #[must_use]
    pub fn done(self) -> u32 {
        self.0 as u32
    }

    /// Where `len` bytes stand. `first` gives the first word of the payload. A slot has `slot` bytes.
    #[inline(always)]
    pub(super) fn place(self, len: usize, slot: usize, first: impl Fn() -> u64) -> ShortPlace {
        // One comparison says all that is to be known of the shortest.
        let says = |kind, len| self.0 >> 32 == Info { done: 0, kind, len }.encode() >> 32;
        if len <= INLINE && says(kind::INLINE, len as u8) {
            ShortPlace::Line
        } else if len <= slot && says(kind::SLOT, 8) && first() == len as u64 {
            ShortPlace::Slot
        } else if len <= slot
            && (says(kind::SPARE, 8) || says(kind::READERS_SPARE, 8))
            && first() == len as u64
        {
            ShortPlace::Spare(spare_of((self.0 >> 32) as u8))
        } else {
            ShortPlace::Elsewhere
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAP: u64 = 1 << 20;

    /// All kinds, lengths and words at the limits: what comes through lies in line, slot, heap and address space.
    #[test]
    fn what_comes_through_can_be_copied() {
        let words = [
            0,
            1,
            8,
            COLL_SLOT as u64,
            COLL_SLOT as u64 + 1,
            HEAP,
            HEAP + 1,
            1 << 32,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        let (mut good, mut bad) = (0u64, 0u64);
        for kind in 0..=u8::MAX {
            for len in 0..=u8::MAX {
                for (i, &word) in words.iter().enumerate() {
                    let mut payload = [0u8; INLINE];
                    for (index, out) in payload.chunks_exact_mut(8).enumerate() {
                        let source = words[(i + index * usize::from(kind & 7)) % words.len()];
                        out.copy_from_slice(&source.to_le_bytes());
                    }
                    payload[..8].copy_from_slice(&word.to_le_bytes());
                    let info = Info { done: 1, kind, len };
                    let short = ShortContribution(info.encode());
                    assert_eq!(short.done(), 1);
                    let checked = check(7, info, &payload, (COLL_SLOT, HEAP));
                    for want in [
                        0,
                        8,
                        INLINE,
                        INLINE + 1,
                        COLL_SLOT,
                        COLL_SLOT + 1,
                        usize::MAX,
                    ] {
                        let content = checked.as_ref().map(|checked| checked.content);
                        match short.place(want, COLL_SLOT, || word) {
                            ShortPlace::Line => assert_eq!(content, Ok(Content::Inline(want))),
                            ShortPlace::Slot => assert_eq!(content, Ok(Content::Slot(want))),
                            ShortPlace::Spare(of) => {
                                assert_eq!(content, Ok(Content::Spare(of, want)));
                            }
                            ShortPlace::Elsewhere => {
                                let (line, slot) = (Content::Inline(want), Content::Slot(want));
                                // A slot of which nothing is said is whole.
                                let spare = [SpareOf::Giver, SpareOf::Reader]
                                    .map(|of| Ok(Content::Spare(of, want)));
                                let is_short = content == Ok(line)
                                    || content == Ok(slot) && len == 8
                                    || spare.contains(&content);
                                assert!(!is_short || kind > kind::MASK, "{info:?} {want}");
                            }
                        }
                    }
                    let Ok(checked) = checked else {
                        bad += 1;
                        continue;
                    };
                    good += 1;
                    match checked.content {
                        Content::Inline(len) => assert!(len <= INLINE),
                        Content::Slot(len) | Content::Spare(_, len) => assert!(len <= COLL_SLOT),
                        Content::Nothing | Content::Buffer | Content::Message | Content::Pieces => {
                        }
                    }
                    for range in [checked.given, checked.result] {
                        assert!(range.address.checked_add(range.len).is_some());
                        let heap = range.heap.unwrap_or(0);
                        assert!(heap.checked_add(range.len).is_some());
                        assert!(range.heap.is_none() || heap + range.len <= HEAP);
                    }
                }
            }
        }
        assert!(good > 1000 && bad > 1000, "{good} and {bad}");
    }

    #[test]
    fn a_bad_line_names_the_collective_and_what_is_wrong() {
        let info = Info {
            done: 0,
            kind: kind::INLINE,
            len: 49,
        };
        let bad = check(5, info, &[0; INLINE], (COLL_SLOT, 0)).expect_err("49 bytes in a line");
        let text = bad.to_string();
        assert!(
            text.contains("collective 5") && text.contains("49 bytes"),
            "{text}"
        );
    }
}
