// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the command itself was started with, and its program is to have as well.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use nix::sys::prctl;
use onecopy_shm::process;

/// Has a program begin with the variables and the ignored signals that it would have without this command.
pub(crate) fn pass_on(command: &mut Command) {
    process::ignore_as_started(command);
    command.envs(hidden());
}

/// Variables that this process was started with and does not see. Where its file has capabilities, the C library takes
/// away those that could change the process itself, `LD_LIBRARY_PATH` and `TMPDIR` among them.
fn hidden() -> Vec<(OsString, OsString)> {
    let block = read().unwrap_or_default();
    let variables = block.split(|byte| *byte == 0).filter_map(|entry| {
        let end = entry.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&entry[..end], &entry[end + 1..]);
        Some((OsStr::from_bytes(name), OsStr::from_bytes(value)))
    });
    variables
        .filter(|(name, _)| !name.is_empty() && std::env::var_os(name).is_none())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The variables as the kernel keeps them. The file is an administrator's where the process cannot be dumped, as one
/// with capabilities.
fn read() -> std::io::Result<Vec<u8>> {
    const FILE: &str = "/proc/self/environ";
    let block = std::fs::read(FILE);
    if block.is_ok() {
        return block;
    }
    prctl::set_dumpable(true)?;
    let block = std::fs::read(FILE);
    prctl::set_dumpable(false)?;
    block
}
