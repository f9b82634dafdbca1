// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process takes.

/// Memory of this process in bytes.
pub(crate) fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().split(' ').next());
    kib.and_then(|n| n.parse::<u64>().ok()).expect("VmRSS") * 1024
}
