// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a test ends.

use std::fmt;
use std::io;

use libc::{EFAULT, ENOMEM};

/// Why a test did not succeed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// What was expected did not happen.
    Fail(String),
    /// The kernel had no memory, or could not reach the caller's: what a call says where fault injection fails it.
    Short(String),
    /// What no shortage of memory excuses: wrong bytes, an end by a signal, or a hang in the module.
    Wrong(String),
    /// The kernel or the machine lacks what the test needs.
    Skip(String),
}

/// How a test ends.
pub(crate) type Outcome<T = ()> = Result<T, Fault>;

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail(reason) | Self::Short(reason) | Self::Wrong(reason) | Self::Skip(reason) => {
                out.write_str(reason)
            }
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        error.fault(error.to_string())
    }
}

impl From<nix::Error> for Fault {
    fn from(error: nix::Error) -> Self {
        error.fault(error.to_string())
    }
}

/// An error that can be the reason of a fault.
pub(crate) trait Cause: fmt::Display {
    /// The fault with this text.
    fn fault(&self, text: String) -> Fault {
        Fault::Fail(text)
    }
}

/// The fault with this text, by the number of the error behind it.
fn by_number(raw: Option<i32>, text: String) -> Fault {
    if matches!(raw, Some(ENOMEM | EFAULT)) {
        Fault::Short(text)
    } else {
        Fault::Fail(text)
    }
}

impl Cause for io::Error {
    fn fault(&self, text: String) -> Fault {
        by_number(self.raw_os_error(), text)
    }
}

impl Cause for nix::Error {
    fn fault(&self, text: String) -> Fault {
        by_number(Some(*self as i32), text)
    }
}

impl Cause for std::num::ParseIntError {}

impl Cause for Fault {
    fn fault(&self, text: String) -> Fault {
        match self {
            Self::Short(_) => Self::Short(text),
            Self::Wrong(_) => Self::Wrong(text),
            Self::Fail(_) | Self::Skip(_) => Self::Fail(text),
        }
    }
}

/// Says what was being done when an error came.
pub(crate) trait At<T> {
    fn at(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: Cause> At<T> for Result<T, E> {
    fn at(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| error.fault(format!("{what}: {error}")))
    }
}

/// Fails unless the condition holds.
macro_rules! check {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::outcome::Fault::Fail(format!($($reason)+)));
        }
    };
}
pub(crate) use check;

/// Fails unless the two are equal.
macro_rules! check_eq {
    ($left:expr, $right:expr, $($reason:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let what = format!($($reason)+);
            return Err($crate::outcome::Fault::Fail(format!("{what}: {left:?}, expected {right:?}")));
        }
    }};
}
pub(crate) use check_eq;

/// Fails unless the call failed with one of the errors.
pub(crate) fn refused<T>(
    result: io::Result<T>,
    errors: &[i32],
    what: impl fmt::Display,
) -> Outcome {
    match result {
        Ok(_) => Err(Fault::Fail(format!("{what}: it worked"))),
        Err(error)
            if error
                .raw_os_error()
                .is_some_and(|raw| errors.contains(&raw)) =>
        {
            Ok(())
        }
        Err(error) => {
            let names: Vec<String> = errors
                .iter()
                .map(|raw| nix::Error::from_raw(*raw).to_string())
                .collect();
            let names = names.join(" or ");
            Err(error.fault(format!("{what}: {error}, expected {names}")))
        }
    }
}
