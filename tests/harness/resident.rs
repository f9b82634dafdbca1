// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process takes.

#![allow(dead_code, reason = "each test program uses a part")]

fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().split(' ').next());
    kib.and_then(|n| n.parse::<u64>().ok()).expect(name) * 1024
}

/// Memory of this process in bytes.
pub(crate) fn resident() -> u64 {
    field("VmRSS:")
}

/// What of it is this process's own.
pub(crate) fn private() -> u64 {
    field("RssAnon:")
}
