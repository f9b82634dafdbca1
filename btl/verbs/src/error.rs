// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a call that failed says: the call, its object, the reason, the remedy.

use std::{fmt, io};

/// A failed call.
#[derive(Debug)]
pub struct Error {
    /// The call.
    pub call: &'static str,
    /// What it was about.
    pub object: String,
    /// Why it failed.
    pub reason: io::Error,
    /// What would help.
    pub remedy: String,
}

/// Of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            call,
            object,
            reason,
            remedy,
        } = self;
        write!(f, "{call} of {object}: {reason}; {remedy}")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

impl Error {
    /// The error of a call of the device, with what usually helps.
    pub(crate) fn of(
        call: &'static str,
        object: impl Into<String>,
    ) -> impl FnOnce(io::Error) -> Self {
        let object = object.into();
        move |reason| {
            let remedy = remedy(call, &reason);
            Self {
                call,
                object,
                reason,
                remedy: remedy.to_owned(),
            }
        }
    }

    /// The error of something that is refused before the device is asked.
    pub(crate) fn refused(
        call: &'static str,
        object: impl Into<String>,
        why: impl Into<String>,
        remedy: &str,
    ) -> Self {
        Self {
            call,
            object: object.into(),
            reason: io::Error::new(io::ErrorKind::InvalidInput, why.into()),
            remedy: remedy.to_owned(),
        }
    }

    /// Whether it may go later: there was no room.
    pub(crate) fn is_full(&self) -> bool {
        self.reason.kind() == io::ErrorKind::WouldBlock
    }

    /// Whether memory or a limit ran out: another way can carry the message.
    #[must_use]
    pub fn is_exhaustion(&self) -> bool {
        matches!(
            self.reason.raw_os_error(),
            Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC | libc::EMFILE)
        )
    }
}

/// What usually helps.
fn remedy(call: &str, reason: &io::Error) -> &'static str {
    match (call, reason.raw_os_error()) {
        ("ibv_reg_mr", Some(libc::ENOMEM)) => {
            "raise the limit on locked memory (ulimit -l), or let fewer bytes be registered"
        }
        ("ibv_reg_mr", Some(libc::EFAULT)) => "the memory is not mapped, or not writable",
        (_, Some(libc::ENOMEM)) => {
            "the device or the limit on locked memory (ulimit -l) allows no more of these"
        }
        ("ibv_get_device_list", Some(libc::ENOSYS)) => {
            "the kernel has no RDMA: load the device's driver and ib_uverbs; over plain Ethernet rdma_rxe is one"
        }
        (_, Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
            "the device does not offer it; choose another mode"
        }
        (_, Some(libc::EACCES | libc::EPERM)) => {
            "give the user access to /dev/infiniband (usually the group rdma)"
        }
        (_, Some(libc::ENODEV | libc::ENOENT)) => {
            "look for devices with `rdma link`; the module ib_uverbs must be loaded"
        }
        (_, Some(libc::ETIMEDOUT)) => "the peer's address does not answer; is its link up?",
        (_, Some(libc::EINVAL)) => {
            "the device refuses these values; see its limits with `ibv_devinfo -v`"
        }
        _ => "see the kernel's log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_all_four() {
        let error =
            Error::of("ibv_reg_mr", "4 MiB on rxe0")(io::Error::from_raw_os_error(libc::ENOMEM));
        let text = error.to_string();
        assert!(
            text.starts_with("ibv_reg_mr of 4 MiB on rxe0: Cannot allocate memory"),
            "{text}"
        );
        assert!(text.contains("ulimit -l"), "{text}");
        assert!(error.is_exhaustion());
    }
}
