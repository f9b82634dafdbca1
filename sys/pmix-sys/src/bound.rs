// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call of the library on a thread of its own, which is waited for only so long.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::failure::{Failure, bad};

/// Calls `work` on a thread of its own; what it gives, unless it takes too long.
pub(crate) fn bounded<T: Send + 'static>(
    function: &'static str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let (give, take) = channel();
    let blocked = Blocked::all();
    let started = std::thread::Builder::new()
        .name("onecopy-pmix".to_owned())
        .spawn(move || {
            // The caller may have given up.
            let _ = give.send(work());
        });
    drop(blocked);
    started.map_err(|error| bad(function, format!("start a thread for it: {error}")))?;
    take.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => Failure::Late {
            function,
            waited: limit,
        },
        RecvTimeoutError::Disconnected => {
            bad(function, "its thread ended without a word".to_owned())
        }
    })
}

/// No signal comes to this thread while it lives. A thread that is started meanwhile inherits that, and so do those
/// that the library starts in it: the program's signals are not for them.
struct Blocked(Option<libc::sigset_t>);

impl Blocked {
    fn all() -> Self {
        // SAFETY: a set of signals is plain data, for which zeros are a value.
        let (mut all, mut before) =
            unsafe { std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>() };
        // SAFETY: the set is the caller's.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both sets are the caller's.
        let set =
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self((set == 0).then_some(before))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // SAFETY: the set is the one that was in force.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_never_returns_is_not_waited_for() {
        let late = bounded("it", Duration::from_millis(10), || {
            loop {
                std::thread::park();
            }
        });
        let late: Failure = Result::<(), _>::expect_err(late, "late");
        assert!(late.to_string().contains("it: no answer within"), "{late}");
        assert_eq!(bounded("it", Duration::from_secs(60), || 7), Ok(7));
        let failed = bounded("it", Duration::from_secs(60), || -> u8 {
            panic!("on purpose")
        });
        assert!(failed.is_err());
    }
}
