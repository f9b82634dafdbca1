// SPDX-License-Identifier: MIT OR Apache-2.0
//! Yama, which restricts who may trace a process.

/// What Yama's setting is, if Yama is there.
#[must_use]
pub fn ptrace_scope() -> Option<u8> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .ok()?
        .trim()
        .parse()
        .ok()
}
