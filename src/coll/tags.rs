// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tags of messages of collectives: by them communicators that share a context are told apart, and collectives of
//! one communicator.
//!
//! ```text
//! bit  30    29    28 27     21 20         11 10        2 1       0
//!     level  0  level  user     number ................. poison  kind     that of an agreed id, and its levels
//!       0    1    tag ........  group         number     poison  kind     that of messages in another's context
//! ```
//!
//! A freed id is not used again at once, and messages that came for it before are thrown away then. Still a message of
//! an earlier user can come late, by another way than the agreement's messages. So the tag has the number of the user.
//! A communicator in another's context needs no agreement, so its tags have no user. A failed attempt and the
//! next one differ in their groups, as a group that has lost a member never succeeds.

/// Bits of a number: with an agreed id, and without.
const AGREED_BITS: u32 = 19;
const OTHER_BITS: u32 = 9;
/// The first bit of a number.
const NUMBER: u32 = 2;
/// In the tag by which a rank says that it has given the communicator up.
const POISON: i32 = 1 << 1;
/// In the tags of what is made in another's context.
const OTHERS: u32 = 1 << 29;
/// Where the number of the user, or the tag of the program, stands.
const SHIFT: u32 = 21;
const USERS: u32 = 0x7F;
const TAGS: u32 = 0xFF;

/// In the tags of messages: between leaders, and of a node group's exchanges that go better by messages.
pub(super) const WIRE: i32 = 1 << 30;
pub(super) const GROUP: i32 = 1 << 30 | 1 << 28;

/// What the tags of a communicator have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tags {
    base: i32,
    bits: u32,
}

impl Tags {
    /// Those of the user number `user` of an id.
    pub(crate) const fn of_user(user: u32) -> Self {
        Self {
            base: ((user & USERS) << SHIFT).cast_signed(),
            bits: AGREED_BITS,
        }
    }

    /// Those of a group in the context of another communicator. The lowest 8 bits of `tag` count.
    pub(crate) fn of_group(tag: u32, members: &[u32]) -> Self {
        // A group and the same one without a member, or with another one in its place, have different sums.
        let sum = members.iter().fold(0u32, |sum, rank| {
            sum.wrapping_add(rank.wrapping_mul(0x9E37_79B1) >> 22 | 1)
        });
        let group = (sum & 0x3FF) << (NUMBER + OTHER_BITS);
        Self {
            base: (OTHERS | (tag & TAGS) << SHIFT | group).cast_signed(),
            bits: OTHER_BITS,
        }
    }

    /// Those of a level of the communicator.
    pub(super) const fn of_level(self, level: i32) -> Self {
        Self {
            base: self.base | level,
            ..self
        }
    }

    /// The first of the two tags of collective `seq`: far more than can be under way at a time are told apart.
    pub(super) const fn of(self, seq: u32) -> i32 {
        self.base | ((seq & ((1 << self.bits) - 1)) << NUMBER).cast_signed()
    }

    /// The tag by which a rank says that it has given the communicator up.
    pub(super) const fn poison(self) -> i32 {
        self.base | POISON
    }

    /// Whether `tag` is one of these.
    pub(super) const fn has(self, tag: i32) -> bool {
        (tag ^ self.base) >> (NUMBER + self.bits) == 0
    }

    /// Whether `tag` is that of a message in another communicator's context.
    pub(super) const fn is_others(tag: i32) -> bool {
        tag & OTHERS.cast_signed() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communicators_of_a_context_are_told_apart() {
        let groups: [&[u32]; 6] = [&[0, 1, 2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 3], &[0]];
        let mut all = vec![
            Tags::of_user(0),
            Tags::of_user(1),
            Tags::of_user(2).of_level(WIRE),
            Tags::of_user(2).of_level(GROUP),
        ];
        all.extend(groups.map(|group| Tags::of_group(5, group)));
        all.push(Tags::of_group(6, groups[0]));
        for (place, tags) in all.iter().enumerate() {
            for seq in [0, 1, 77, u32::MAX] {
                for tag in [tags.of(seq), tags.of(seq) + 1, tags.poison()] {
                    assert!(tag >= 0);
                    let of = all.iter().position(|tags| tags.has(tag));
                    assert_eq!(of, Some(place), "{tag:#x}");
                }
                assert_ne!(tags.of(seq), tags.poison());
                assert_ne!(tags.of(seq) + 1, tags.poison());
            }
            assert_eq!(Tags::is_others(tags.of(1)), place >= 4);
        }
    }
}
