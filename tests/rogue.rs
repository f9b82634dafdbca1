// SPDX-License-Identifier: MIT OR Apache-2.0
//! A peer that writes what no correct peer writes: it is failed with a protocol error, nothing crashes or hangs, and
//! nobody else notices.
//!
//! The ranks are threads of this process. The rogue is not run by the engine: it joins by the wire-up alone, gets its
//! victim's segment as everybody does, and writes into it.

#[path = "rogue/bits.rs"]
mod bits;
#[path = "rogue/bodies.rs"]
mod bodies;
#[path = "rogue/held.rs"]
mod held;
#[path = "rogue/leaving.rs"]
mod leaving;
#[path = "rogue/lines.rs"]
mod lines;
#[path = "rogue/noise.rs"]
mod noise;
#[path = "rogue/seal.rs"]
mod seal;
#[path = "rogue/stage.rs"]
mod stage;
#[path = "rogue/words.rs"]
mod words;
