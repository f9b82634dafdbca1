// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that the launcher takes and passes on.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::{LaunchError, system};

/// Signals that are passed on to ranks.
pub(super) const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Signals that come through a descriptor, for as long as this lives.
pub(super) struct Signals {
    pub(super) fd: SignalFd,
    mask_before: SigSet,
}

impl Signals {
    /// Catches what is forwarded. Writing to a terminal does not stop us either.
    pub(super) fn catch() -> Result<Self, LaunchError> {
        let set: SigSet = FORWARDED.into_iter().collect();
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
