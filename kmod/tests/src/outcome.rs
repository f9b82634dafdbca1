// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a test ends.

use std::fmt;
use std::io;

/// Why a test did not succeed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// What was expected did not happen.
    Fail(String),
    /// The kernel or the machine lacks what the test needs.
    Skip(String),
}

/// How a test ends.
pub(crate) type Outcome<T = ()> = Result<T, Fault>;

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail(reason) | Self::Skip(reason) => out.write_str(reason),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Fail(error.to_string())
    }
}

impl From<nix::Error> for Fault {
    fn from(error: nix::Error) -> Self {
        Self::Fail(error.to_string())
    }
}

/// Says what was being done when an error came.
pub(crate) trait At<T> {
    fn at(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> At<T> for Result<T, E> {
    fn at(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Fault::Fail(format!("{what}: {error}")))
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
            Err(Fault::Fail(format!("{what}: {error}, expected {names}")))
        }
    }
}
