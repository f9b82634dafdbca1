// SPDX-License-Identifier: MIT OR Apache-2.0
//! A virtual machine for a person: its console is the terminal.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitStatus;

use crate::cache::Cache;
use crate::program;
use crate::progress::Progress;
use crate::qemu::{self, Machine};
use crate::{Error, Result};

/// Boots and hands over the terminal until the guest is switched off. Of what stands on the terminal QEMU keeps Ctrl-A.
///
/// # Errors
///
/// When QEMU cannot be started.
pub fn run(
    cache: &Cache,
    machine: &Machine,
    log: &Path,
    progress: &Progress,
) -> Result<ExitStatus> {
    let accelerator = qemu::accelerator(cache, machine, progress)?;
    let mut machine = machine.clone();
    machine.words.push_str(" onecopy.shell");
    progress.note(
        "booting; 'exit' switches the machine off, Ctrl-A x stops it at once, Ctrl-A h lists what else QEMU does",
    );
    progress.finish();
    let mut command = qemu::command(&machine, accelerator)?;
    let chardev = format!(
        "stdio,id=console,mux=on,signal=off,logfile={}",
        log.display()
    );
    command
        .args(["-display", "none", "-chardev", &chardev])
        .args(["-serial", "chardev:console", "-mon", "console"]);
    let status = command.status().map_err(Error::io(program::line(&command)));
    if io::stdin().is_terminal() {
        // QEMU restores the terminal where it ends by itself; where it was stopped, it does not.
        let _ = std::process::Command::new("stty").arg("sane").status();
    }
    status
}
