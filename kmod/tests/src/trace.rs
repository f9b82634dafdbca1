// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace events of the kernel, in a buffer of their own.
//!
//! The kernel patches its own code to switch an event on. A CPU that QEMU emulates may still run what stood
//! there meanwhile: a breakpoint that nobody knows any more. Then the kernel ends ("Oops: int3"). So nothing of this
//! runs unless it is asked for.

use std::fs;
use std::path::PathBuf;

use nix::unistd::gettid;

use crate::outcome::{At, Fault, Outcome};

const FOLDER: &str = "/sys/kernel/tracing";

/// One event that one thread causes. Nothing is left of it when it is dropped.
pub(crate) struct Events {
    instance: PathBuf,
    name: String,
}

impl Events {
    /// Events `system/name` of the calling thread that the filter lets through. A kernel without the event is a reason
    /// to skip.
    pub(crate) fn of_this_thread(event: &str, filter: &str) -> Outcome<Self> {
        if std::env::var_os("TEST_EVENTS").is_none() {
            let reason =
                "TEST_EVENTS is not set, and to switch an event on may end a translated kernel";
            return Err(Fault::Skip(reason.to_owned()));
        }
        let path = format!("{FOLDER}/events/{event}");
        if !fs::exists(&path).at(&path)? {
            return Err(Fault::Skip(format!("no event {event}")));
        }
        let thread = gettid();
        let instance = PathBuf::from(format!("{FOLDER}/instances/onecopy-{thread}"));
        fs::create_dir(&instance).at(instance.display())?;
        let name = event.rsplit('/').next().unwrap_or(event).to_owned();
        let events = Self { instance, name };
        let filter = format!("common_pid == {thread} && {filter}");
        events.set(&format!("events/{event}/filter"), &filter)?;
        events.set(&format!("events/{event}/enable"), "1")?;
        Ok(events)
    }

    fn set(&self, file: &str, value: &str) -> Outcome {
        let path = self.instance.join(file);
        fs::write(&path, value).at(path.display())
    }

    /// How many there were.
    pub(crate) fn count(&self) -> Outcome<usize> {
        let path = self.instance.join("trace");
        let text = fs::read_to_string(&path).at(path.display())?;
        let name = format!(" {}: ", self.name);
        let is_event = |line: &&str| !line.starts_with('#') && line.contains(&name);
        Ok(text.lines().filter(is_event).count())
    }

    pub(crate) fn forget(&self) -> Outcome {
        self.set("trace", "\n")
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // The test has its verdict; the machine ends soon.
        let _ = fs::remove_dir(&self.instance);
    }
}
