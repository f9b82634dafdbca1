// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that the launcher takes and passes on.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::{LaunchError, system};

/// Signals that are passed on to ranks, unless they are [ignored](forwarded).
const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Those of them that ask for the end of the job; the second one kills.
pub(super) const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// The signals that are passed on. Those of a terminal that were ignored when this process was started (`nohup`, a
/// shell's background jobs) are meant for others. They stay ignored here, as they are in the ranks, which inherit that.
pub(super) fn forwarded() -> SigSet {
    let ignored = ignored();
    let of_terminal = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP];
    let is_ignored = |signal: &Signal| of_terminal.contains(signal) && ignored.contains(*signal);
    let taken = FORWARDED.into_iter().filter(|signal| !is_ignored(signal));
    taken.collect()
}

/// The signals that this process ignores: those that it was started to ignore, if it has set none itself.
#[must_use]
pub fn ignored() -> SigSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let is_in = |signal: &Signal| mask & 1 << (*signal as i32 - 1) != 0;
    Signal::iterator().filter(is_in).collect()
}

/// Signals that come through a descriptor, for as long as this lives.
pub(super) struct Signals {
    pub(super) fd: SignalFd,
    mask_before: SigSet,
}

impl Signals {
    /// Catches what is forwarded. Writing to a terminal does not stop us either.
    pub(super) fn catch() -> Result<Self, LaunchError> {
        let set = forwarded();
        let mut blocked = set;
        blocked.add(Signal::SIGTTOU);
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map_err(system("signalfd"))?;
        let mask_before = blocked
            .thread_swap_mask(SigmaskHow::SIG_BLOCK)
            .map_err(system("block signals for forwarding"))?;
        Ok(Self { fd, mask_before })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Fails only for a mask that does not exist.
        let _ = self.mask_before.thread_set_mask();
    }
}
