// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why something failed: the call, the object, the reason, the remedy.

use std::io;
use std::path::PathBuf;

/// Why a virtual machine could not be prepared or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or a program could not be used.
    #[error("{what}: {source}")]
    Io {
        /// The object and what was done with it.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("{command}: {status}\n{tail}")]
    Program {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: String,
        /// The last lines it wrote.
        tail: String,
    },
    /// The host lacks a program.
    #[error("{what} is missing; install it: apt-get install {packages}")]
    Missing {
        /// What is missing.
        what: String,
        /// The packages that have it.
        packages: String,
    },
    /// The module's build wrote warnings.
    #[error(
        "the module's build for {release} warns, and must not:\n{warnings}\nthe whole log: {log}"
    )]
    Warnings {
        /// The kernel.
        release: String,
        /// The lines.
        warnings: String,
        /// Where the whole output lies.
        log: PathBuf,
    },
    /// Something asked for does not exist, or not so.
    #[error("{0}")]
    Refused(String),
}

/// What the functions of this package give.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps an I/O error with the object and what was done with it.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
