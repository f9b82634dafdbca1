// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output. A reader that has gone away does not stop a task; unit tests print nothing, so that their output holds no
//! summary but theirs.

use std::io::{self, Write};

/// A line on standard output.
pub(crate) fn line(text: &str) {
    if cfg!(test) {
        return;
    }
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// A line on standard error.
pub(crate) fn warn(text: &str) {
    if cfg!(test) {
        return;
    }
    let _ = writeln!(io::stderr().lock(), "{text}");
}
