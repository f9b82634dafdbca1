// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's profile: what the first `onecopy run` on a machine found about its stores ([`crate::measure`]), in a
//! file of its own below `$XDG_CACHE_HOME` or `~/.cache`.
//!
//! It says one thing only, so that a file that somebody put there can do no more. The name of the file holds what the
//! figures hold for. Machines that share a home have a file each, and so has each version and kind of build.

use super::file::{self, Trust};
use super::{Fingerprint, Variables, in_home, of_this_process};
use crate::machine;
use onecopy_obs::Knobs;
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

const FORMAT: u32 = 1;
/// What names the folder of its file, and where that is in a home.
const VARIABLE: &str = "XDG_CACHE_HOME";
const FOLDER: &str = ".cache";
/// The knob that it sets.
pub const KNOB: &str = "ONECOPY_CHUNK_COPY";

/// A profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    format: u32,
    onecopy: String,
    /// Day of the measurement.
    pub date: String,
    machine: Fingerprint,
    /// Rounds of the measurement.
    pub rounds: usize,
    /// What they found, as [`crate::measure::MeasuredStores`] has it.
    pub ratio: f64,
    /// The value of the knob; none: neither kind of stores was clearly faster.
    pub chunk_copy: Option<String>,
}

impl Profile {
    /// What was found on this machine today.
    #[must_use]
    pub fn new(rounds: usize, ratio: f64, chunk_copy: Option<String>) -> Self {
        Self {
            format: FORMAT,
            onecopy: env!("CARGO_PKG_VERSION").to_owned(),
            date: machine::today(),
            machine: Fingerprint::here(),
            rounds,
            ratio,
            chunk_copy,
        }
    }

    /// This machine's and its file, if there is one that can be used.
    pub(super) fn find(variables: Variables<'_>) -> Option<(PathBuf, Self)> {
        // Ranks that find no folder need not ask what machine this is.
        in_home(variables, VARIABLE, FOLDER, "")?
            .is_dir()
            .then_some(())?;
        let here = Fingerprint::here();
        let path = path_for(variables, &here)?;
        let text = file::read(&path, Trust::Found).ok()?;
        let profile: Self = serde_json::from_str(&text).ok()?;
        let knob = profile.chunk_copy.iter().map(|value| (KNOB, value));
        let counts = profile.format == FORMAT
            && profile.onecopy == env!("CARGO_PKG_VERSION")
            && profile.machine == here
            && Knobs::from_iter(knob).is_ok();
        counts.then_some((path, profile))
    }

    /// Whether it counts today: what found nothing may have met a busy machine, and is tried again on another day.
    pub(super) fn is_current(&self) -> bool {
        self.chunk_copy.is_some() || self.date == machine::today()
    }
}

/// The file of this machine's profile, whether it exists or not; none without a home.
#[must_use]
pub fn path() -> Option<PathBuf> {
    path_by(&of_this_process)
}

/// The same, where these variables are set.
pub(crate) fn path_by(variables: Variables<'_>) -> Option<PathBuf> {
    path_for(variables, &Fingerprint::here())
}

fn path_for(variables: Variables<'_>, here: &Fingerprint) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (&here.processor, &here.processors, &here.kernel).hash(&mut hasher);
    machine::stepping().hash(&mut hasher);
    // A build without optimisation copies at other speeds.
    (env!("CARGO_PKG_VERSION"), cfg!(debug_assertions)).hash(&mut hasher);
    let name = format!("profile-{:016x}.json", hasher.finish());
    in_home(variables, VARIABLE, FOLDER, &name)
}
