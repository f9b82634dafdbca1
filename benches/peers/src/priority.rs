// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real-time priority of ranks, so that other work of the machine does not count.
//!
//! Ranks take it themselves, when their job has begun, and give it up before it ends. Their launchers have none. Where
//! one has, it may find a lock of the kernel taken by a task without, which it then keeps from running.

use crate::note;
use onecopy_bench::rank::ENV_PRIORITY;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Begins this program again, with an environment that tells ranks which priority to take. Where that is not permitted
/// it goes on without.
pub(crate) fn tell(ranks: u8) {
    if ranks == 0 || std::env::var_os(ENV_PRIORITY).is_some() {
        return;
    }
    let priority = ranks.to_string();
    match Command::new("chrt")
        .args(["-r", &priority, "true"])
        .output()
    {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) => {
            let text = String::from_utf8_lossy(&tried.stderr);
            return note(&format!("without real-time priority: {}", text.trim()));
        }
        Err(error) => return note(&format!("without real-time priority: chrt: {error}")),
    }
    let again = std::env::current_exe().map(|program| {
        Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(ENV_PRIORITY, priority)
            .exec()
    });
    let (Ok(error) | Err(error)) = again;
    note(&format!("without real-time priority: {error}"));
}
