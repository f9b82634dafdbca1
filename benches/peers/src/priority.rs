// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real-time priority, so that other work of the machine does not count.
//!
//! This program takes one more than the ranks are to have, and so do the launchers that it starts: a rank that polls
//! without pause must not keep them from running. The ranks of the C program lower their own, by [`ENV`].

use crate::note;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Tells ranks, and this program when it begins again, which priority ranks are to have.
pub(crate) const ENV: &str = "ONECOPY_PEERS_PRIORITY";

/// Begins this program again with a higher priority, unless it has it. Where that is refused it goes on without.
pub(crate) fn take(ranks: u8) {
    if ranks == 0 || std::env::var_os(ENV).is_some() {
        return;
    }
    let own = format!("{}", ranks + 1);
    let permitted = Command::new("chrt").args(["-f", &own, "true"]).output();
    match permitted {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) => {
            let said = String::from_utf8_lossy(&tried.stderr);
            return note(&format!("without real-time priority: {}", said.trim()));
        }
        Err(error) => return note(&format!("without real-time priority: chrt: {error}")),
    }
    let again = std::env::current_exe().map(|program| {
        Command::new("chrt")
            .args(["-f", &own])
            .arg(program)
            .args(std::env::args_os().skip(1))
            .env(ENV, ranks.to_string())
            .exec()
    });
    let (Ok(error) | Err(error)) = again;
    note(&format!("without real-time priority: {error}"));
}
