// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that ask a command for its end, as a descriptor beside others, and the codes that they end it with.

use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};

use crate::command::CliError;

/// A signal that came.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) signal: Signal,
    /// Sent by a terminal, or for a limit.
    pub(crate) by_kernel: bool,
}

impl Got {
    /// The code of a command that it ended.
    pub(crate) fn code(&self) -> ExitCode {
        code_of(self.signal)
    }

    /// Whether it asks for an end.
    pub(crate) fn asks_for_the_end(&self) -> bool {
        ENDING.contains(&self.signal)
    }

    /// Whether it says that the processor time of this very command is over: the program has its own.
    pub(crate) fn is_own_limit(&self) -> bool {
        self.by_kernel && self.signal == Signal::SIGXCPU
    }

    fn of(info: &siginfo) -> Option<Self> {
        /// Who sends the signals of a terminal and of limits, as `siginfo` says it.
        const SI_KERNEL: i32 = 0x80;
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
        Some(Self {
            signal,
            by_kernel: info.ssi_code == SI_KERNEL,
        })
    }
}

/// The code of a command that a signal ended.
pub(crate) fn code_of(signal: Signal) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal as i32).unwrap_or(1))
}

/// What users, terminals and batch systems send to end a command.
const ENDING: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGXCPU,
];

/// Signals that ask for an end, as a descriptor, as long as it lives. Children that are started meanwhile begin with
/// them held back.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd, SigSet);

impl Signals {
    pub(crate) fn catch() -> Result<Self, CliError> {
        Self::catch_also(&[])
    }

    /// And others, which ask for something else.
    pub(crate) fn catch_also(others: &[Signal]) -> Result<Self, CliError> {
        let fail = |errno: Errno| CliError::io("signalfd")(errno.into());
        let ignored = onecopy_launch::ignored_signals();
        let mut set: SigSet = others.iter().copied().collect();
        for signal in ENDING {
            // Under nohup, say. Held back, one that is ignored would come all the same. A shell ignores those of the
            // terminal for a command in the background, which may still be ended by them.
            let by_terminal = matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
            if by_terminal || !ignored.contains(signal) {
                set.add(signal);
            }
        }
        set.thread_block().map_err(fail)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        SignalFd::with_flags(&set, flags)
            .map(|fd| Self(fd, set))
            .map_err(fail)
    }

    pub(crate) fn next(&self) -> Option<Got> {
        let info = self.0.read_signal().ok().flatten()?;
        Got::of(&info)
    }

    /// What has come is answered by what is done now. The next one ends this process, with its code, after `last`.
    pub(crate) fn end_by_next(self, last: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        while self.next().is_some() {}
        let wait = move || {
            let got = loop {
                let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
                // An interrupted wait is begun again.
                let _ = poll(&mut fds, PollTimeout::NONE);
                if let Some(got) = self.next() {
                    break got;
                }
            };
            last();
            std::process::exit(128 + got.signal as i32);
        };
        std::thread::Builder::new().spawn(wait).map(drop)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // What came before was meant for what was under way.
        while self.next().is_some() {}
        // Fails for no set.
        let _ = self.1.thread_unblock();
    }
}
