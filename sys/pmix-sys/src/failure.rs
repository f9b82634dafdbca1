// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a call failed.

use std::fmt;
use std::time::Duration;

use crate::library::Missing;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no library that can be used.
    Missing(Missing),
    /// The library is there, but no launcher answers it.
    Unreached {
        /// The library's words.
        words: String,
    },
    /// A function of the library says no.
    Refused {
        /// Its name.
        function: &'static str,
        /// Its words.
        words: String,
    },
    /// A rank or the launcher has not answered in time.
    Late {
        /// The function that waits for it.
        function: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// What the library or the caller gave is not what it should be.
    Bad {
        /// In which call.
        function: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A call was late before, or this process is not the one that joined the job.
    Over,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(f),
            Self::Unreached { words } => write!(
                f,
                "PMIx_Init: the launcher's server cannot be reached ({words}); does the rank run in a network namespace of its own?"
            ),
            Self::Refused { function, words } => write!(f, "{function}: {words}"),
            Self::Late { function, waited } => write!(
                f,
                "{function}: no answer within {} s",
                waited.as_secs_f32()
            ),
            Self::Bad { function, reason } => write!(f, "{function}: {reason}"),
            Self::Over => f.write_str(
                "PMIx: a call before this one had no answer, or this is a child of the process that joined",
            ),
        }
    }
}

impl std::error::Error for Failure {}

pub(crate) fn bad(function: &'static str, reason: String) -> Failure {
    Failure::Bad { function, reason }
}
