// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of messages and their numbers: one table, from which messages are written and read.

use super::DecodeError;

/// Who sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A rank, to its launcher.
    Rank,
    /// The launcher, or a host in its place, to a rank.
    Launcher,
    /// A host, to the host of another node.
    Host,
}

impl std::fmt::Display for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rank => "a rank",
            Self::Launcher => "the launcher",
            Self::Host => "another node's host",
        })
    }
}

impl Sender {
    /// The error of a message whose kind is not one of this sender's.
    pub(in crate::wireup) fn wrong_kind(self, kind: MessageKind) -> DecodeError {
        DecodeError::Kind {
            found: kind.number(),
            sender: self,
        }
    }
}

macro_rules! kinds {
    ($($kind:ident = $number:literal,)*) => {
        /// What a message is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(in crate::wireup) enum MessageKind {
            $($kind = $number,)*
        }

        impl MessageKind {
            #[cfg(test)]
            pub(in crate::wireup) const ALL: &[Self] = &[$(Self::$kind,)*];

            pub(in crate::wireup) fn number(self) -> u16 {
                self as u16
            }

            /// The kind of that number, if there is one.
            pub(in crate::wireup) fn of(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

// Numbers never change. A new kind takes a new one, and raises `PROTOCOL_VERSION`.
kinds! {
    // From a rank.
    Join = 1,
    Introduce = 2,
    Leave = 3,
    Abort = 4,
    Hello = 5,
    // From the launcher. Hosts tell each other those about all ranks, too.
    Cards = 65,
    Absent = 66,
    Introduction = 67,
    Refused = 68,
    Died = 69,
    Left = 70,
    Aborted = 71,
    Welcome = 72,
    // Between hosts only.
    Joined = 129,
    Beat = 130,
    Farewell = 131,
}

/// A wrong kind in the words of an error.
pub(super) fn described(number: u16) -> String {
    match MessageKind::of(number) {
        Some(kind) => format!("kind {number} ({kind:?}), which it may not send"),
        None => format!("unknown kind {number}"),
    }
}
