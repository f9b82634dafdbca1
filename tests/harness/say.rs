// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process tells the test that started it.

use std::io::Write;

/// Writes a line where the test that started us finds it, in one piece.
pub(crate) fn say(text: &str) {
    let line = format!("{text}\n");
    std::io::stderr()
        .write_all(line.as_bytes())
        .expect("write a line");
}
