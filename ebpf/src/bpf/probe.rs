// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was tried, what refused, what is lost without it, and what would permit it.

use std::fmt;
use std::io;

use aya::maps::MapError;
use aya::programs::ProgramError;

use super::privileges::{Privileges, remedy};

/// A place in the kernel that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What it is.
    pub name: String,
    /// How it went.
    pub state: State,
    /// What is lost; empty if nothing is.
    pub lost: String,
    /// What to do; empty if nothing need be done.
    pub remedy: String,
    /// The kernel module that it is about, if it is about one: without that nothing is lost.
    pub module: Option<&'static str>,
}

/// How trying went. An errno of 0 says that something else than a system call refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is there.
    Attached,
    /// It is not; another one stands in.
    Fallback {
        /// Why the better one is not there.
        errno: i32,
    },
    /// It is not there.
    Refused {
        /// Why.
        errno: i32,
    },
}

/// Why nothing can be observed: which call on which object was refused, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The call.
    pub call: &'static str,
    /// What it was about.
    pub object: String,
    /// Why it failed.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, object) = (self.call, &self.object);
        write!(f, "{call} of {object}: {}", self.reason)?;
        if self.remedy.is_empty() {
            return Ok(());
        }
        write!(f, "; {}", self.remedy)
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(super) fn new(
        call: &'static str,
        object: impl Into<String>,
        error: &(dyn std::error::Error + 'static),
    ) -> Self {
        let errno = errno_of(error);
        Self {
            call,
            object: object.into(),
            reason: reason(error),
            remedy: remedy(errno, &Privileges::own()),
        }
    }
}

impl Probe {
    pub(super) fn attached(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Attached,
            lost: String::new(),
            remedy: String::new(),
            module: None,
        }
    }

    pub(super) fn of_module(self, module: &'static str) -> Self {
        Self {
            module: Some(module),
            ..self
        }
    }

    pub(super) fn refused(
        name: impl Into<String>,
        errno: i32,
        lost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Refused { errno },
            ..Self::fallback(name, errno, lost, remedy)
        }
    }

    pub(super) fn fallback(
        name: impl Into<String>,
        errno: i32,
        lost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            state: State::Fallback { errno },
            lost: lost.into(),
            remedy: remedy.into(),
            module: None,
        }
    }
}

/// The errno at the root of an error; 0 if there is none.
pub(super) fn errno_of(error: &(dyn std::error::Error + 'static)) -> i32 {
    let mut next = Some(error);
    while let Some(error) = next {
        // These show an error of the system as themselves, so it is not among their sources.
        let found = match (error.downcast_ref(), error.downcast_ref()) {
            (Some(ProgramError::IOError(inner)), _) | (_, Some(MapError::IoError(inner))) => {
                Some(inner)
            }
            _ => error.downcast_ref::<io::Error>(),
        };
        if let Some(errno) = found.and_then(io::Error::raw_os_error) {
            return errno;
        }
        next = error.source();
    }
    0
}

/// The whole chain of an error in one line; only the first line of a log of the verifier.
fn reason(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let part = error.to_string();
        let part = part.lines().next().unwrap_or_default();
        let part = part.split(". Verifier output").next().unwrap_or_default();
        if !text.contains(part) {
            let between = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{between}{part}");
        }
        next = error.source();
    }
    text
}
