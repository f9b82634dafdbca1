// SPDX-License-Identifier: MIT OR Apache-2.0
//! Channels: the shared memory of a communicator's collectives.
//!
//! Each member has one end of the channel in its own segment and publishes only there. So nothing is to be repaired
//! when a member dies. The collectives of a communicator are numbered; all members count alike. What a member
//! contributes to collective `seq` stands in line `seq mod DEPTH` of its end. The line has a word with the number and a
//! phase, and next to it a payload, or where the payload is. Everyone who needs it polls that line. A line is used
//! again when every member's `done` has said that it has read all it needs of the collective that stood there.
//!
//! Each end has a spare slot. Two members hand theirs to each other: who gives in one loses it to the reader, who may
//! give in it next. The line says whose spare slot it is. The reader's cache has the slot's lines then, so each line
//! travels once for a contribution, not twice.
//!
//! A member that cannot read a peer's memory calls the peer, which copies into a stage of the caller's end.

pub mod line;

mod channel;
mod checked_line;
#[cfg(not(loom))]
mod view;

pub use channel::memory::EndMemory;
pub use channel::{Channel, CopyRequest};
pub use checked_line::{
    BadLine, BufferLocation, CheckedLine, Content, INLINE, Info, ShortContribution, SpareOf, kind,
};
#[cfg(not(loom))]
pub use view::{View, accumulate, combine, precede};
