// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a launcher may offer to the ranks of its job. That is a table that they alone write and read; a
//! barrier; a way to end the job.
//!
//! Each protocol of a launcher is a [`Table`] of its own. `foreign.rs` opens the one that is there, and all that
//! follows is the same for each.

use std::fmt;

use super::WireupError;

/// The table of one job, as one of its ranks sees it.
pub(super) trait Table: Send + fmt::Debug {
    /// What errors call the launcher.
    fn launcher(&self) -> &'static str;

    /// This rank's number.
    fn rank(&self) -> usize;

    /// Ranks in the job.
    fn size(&self) -> usize;

    /// How long a value may be, in bytes.
    fn longest_value(&self) -> usize;

    /// Puts a value, in graphic ASCII without blanks, under a key that no other rank uses. Others see it after a
    /// barrier.
    fn put(&mut self, call: &'static str, key: &str, value: &str) -> Result<(), WireupError>;

    /// The value that `rank` put under `key`.
    fn get(&mut self, call: &'static str, rank: usize, key: &str) -> Result<String, WireupError>;

    /// Waits until all ranks have come here.
    fn barrier(&mut self, call: &'static str) -> Result<(), WireupError>;

    /// Tells the launcher that the end of this process is no failure.
    fn finalize(&mut self) -> Result<(), WireupError>;

    /// Has the launcher end the job. There is no answer.
    fn abort(&mut self, code: i32) -> Result<(), WireupError>;
}
