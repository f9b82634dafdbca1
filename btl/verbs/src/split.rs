// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cuts what is longer than the device's largest message.

/// The pieces of so many bytes: where each begins, and how long it is. None is longer than `largest`; of several, all
/// but the last begin at multiples of it.
///
/// # Panics
///
/// When `largest` is zero.
pub fn pieces(length: u64, largest: u32) -> impl Iterator<Item = (u64, u32)> {
    assert!(largest > 0, "a device whose largest message is empty");
    let step = u64::from(largest);
    (0..length.div_ceil(step)).map(move |index| {
        let offset = index * step;
        let piece = u32::try_from((length - offset).min(step)).unwrap_or(largest);
        (offset, piece)
    })
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_are_whole_and_in_order() {
        for (length, largest) in [
            (0, 8),
            (1, 8),
            (8, 8),
            (9, 8),
            (64, 8),
            (65, 1),
            (u64::from(u32::MAX) + 3, u32::MAX),
        ] {
            let mut offset = 0;
            for (begin, piece) in pieces(length, largest) {
                assert_eq!(begin, offset);
                assert!(piece > 0 && piece <= largest);
                offset += u64::from(piece);
            }
            assert_eq!(offset, length);
        }
        assert_eq!(pieces(20 << 20, 8 << 20).count(), 3);
    }
}
