// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a layer is not used, and what a look at the machine says of it.

use std::fmt;
use std::io;

/// Why a layer is not used, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What was seen: a call, its object, an error.
    pub reason: String,
    /// What the user or the administrator can do.
    pub remedy: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

/// What a look at the machine says about a layer, before any peer is known.
#[derive(Debug)]
pub enum Probe {
    /// It can be used; peers may still refuse.
    Available {
        /// What was seen.
        detail: String,
    },
    /// It cannot be used.
    Unavailable(Refusal),
    /// The question could not be answered.
    Undetermined(io::Error),
}
