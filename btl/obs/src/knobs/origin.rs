// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the value of a knob comes from.

/// Where a knob's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Origin {
    /// Nobody set it.
    #[default]
    Default,
    /// The tune file.
    File,
    /// The environment, or an option of a command that stands for it.
    Environment,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
        })
    }
}

/// The origin of each knob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Vec<(&'static str, Origin)>);

impl Origins {
    /// The origin of the knob with this environment name.
    #[must_use]
    pub fn origin(&self, name: &str) -> Origin {
        self.0
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(Origin::Default, |&(_, origin)| origin)
    }

    pub(super) fn set(&mut self, name: &'static str, origin: Origin) {
        self.0.retain(|(known, _)| *known != name);
        self.0.push((name, origin));
    }
}
