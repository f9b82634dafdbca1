// SPDX-License-Identifier: MIT OR Apache-2.0
//! For whom a knob is.

/// Who has cause to set a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Administrators and users of a job. These knobs say what may carry messages, how much memory
    /// they take, how ranks wait, and what a job checks and prints. They also say what a program
    /// can notice, as whether a send waits for its receive.
    User,
    /// Those who measure: where one way of moving bytes ends and the next begins, and grains and
    /// bounds within one way. `auto`, a default, or `onecopy tune` finds these.
    Expert,
    /// Tests of onecopy itself: these make a network worse, for example.
    Test,
}

impl std::fmt::Display for Audience {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::User => "users",
            Self::Expert => "experts",
            Self::Test => "tests",
        })
    }
}
