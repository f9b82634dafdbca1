// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's profile: what the first job on a machine found ([`crate::measure`]), in a file of its own below
//! `$XDG_CACHE_HOME` or `~/.cache`.
//!
//! It says two things only, so a file that somebody else put there can change no more than these. The file's name says
//! for which machine, version and build the figures hold. Machines that share a home have a file each, and so has each
//! version and kind of build.
//!
//! A process that measures holds the folder locked ([`Claim`]), so that jobs that start at once measure once. The lock
//! ends with its process, and leaves no file.

use super::file::{self, Trust};
use super::{Fingerprint, Variables, in_home, of_this_process};
use crate::machine;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{AccessFlags, eaccess, geteuid};
use onecopy_obs::{Knobs, Origin};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const FORMAT: u32 = 3;
/// Bytes that a profile takes at most: a few hundred of names and figures.
const ROOM: usize = 2 << 10;
/// What names the folder of its file, and where that is in a home.
const VARIABLE: &str = "XDG_CACHE_HOME";
const FOLDER: &str = ".cache";
/// The knob that it sets, and decides whether there is anything to measure.
pub const KNOB: &str = "ONECOPY_CHUNK_COPY";
/// The other knob that it sets.
pub const RETURN_KNOB: &str = "ONECOPY_RETURN_MIN";

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
    /// What they found, as [`crate::measure::Comparison`] has it.
    pub ratio: f64,
    /// Other programs ran, so that nothing counts.
    pub busy: bool,
    /// The value of the knob; none: neither kind of stores was clearly faster, or the machine was busy.
    pub chunk_copy: Option<String>,
    /// The same of short messages in chunks that return.
    pub returns_ratio: f64,
    /// The value of the knob; none: short messages neither clearly gain nor lose by it, or the machine was busy.
    pub return_min: Option<String>,
}

impl Profile {
    /// What was found on this machine today about its stores.
    #[must_use]
    pub fn new(rounds: usize, ratio: f64, busy: bool, chunk_copy: Option<String>) -> Self {
        Self {
            format: FORMAT,
            onecopy: env!("CARGO_PKG_VERSION").to_owned(),
            date: machine::today(),
            machine: Fingerprint::here(),
            rounds,
            ratio,
            busy,
            chunk_copy,
            returns_ratio: 1.0,
            return_min: None,
        }
    }

    /// The same, with what was found about chunks that return.
    #[must_use]
    pub fn with_returns(self, ratio: f64, return_min: Option<String>) -> Self {
        Self {
            returns_ratio: ratio,
            return_min,
            ..self
        }
    }

    /// The same; what is not clear is as in another profile of this machine.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            chunk_copy: self.chunk_copy.or(other.chunk_copy),
            return_min: self.return_min.or(other.return_min),
            ..self
        }
    }

    /// The knobs that follow.
    #[must_use]
    pub fn knobs(&self) -> BTreeMap<String, String> {
        let values = [(KNOB, &self.chunk_copy), (RETURN_KNOB, &self.return_min)];
        let set = values.into_iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some((name.to_owned(), value.clone()))
        });
        set.collect()
    }

    /// This machine's, or why there is none that can be used.
    pub(super) fn find(variables: Variables<'_>) -> Result<FoundProfile, String> {
        // Ranks that find no folder need not ask what machine this is.
        let folder = in_home(variables, VARIABLE, FOLDER, "").ok_or(HOMELESS)?;
        if !folder.is_dir() {
            return Err(UNMEASURED.to_owned());
        }
        let here = Fingerprint::here();
        let path = path_for(variables, &here).ok_or(HOMELESS)?;
        if matches!(path.try_exists(), Ok(false)) {
            return Err(UNMEASURED.to_owned());
        }
        let useless = |why: &str| format!("{} is of no use: {why}", path.display());
        let text = file::read(&path, Trust::Found).map_err(|why| useless(&why))?;
        let profile: Self =
            serde_json::from_str(&text).map_err(|error| useless(&error.to_string()))?;
        let counts = profile.format == FORMAT
            && profile.onecopy == env!("CARGO_PKG_VERSION")
            && profile.machine == here
            && Knobs::from_iter(profile.knobs()).is_ok();
        match counts {
            true => Ok(FoundProfile { path, profile }),
            false => Err(useless("it is another version's or another machine's")),
        }
    }

    /// Whether it counts today: what found nothing may have met a busy machine, and is tried again on another day.
    pub(super) fn is_current(&self) -> bool {
        let found_all = self.chunk_copy.is_some() && self.return_min.is_some();
        found_all || self.date == machine::today()
    }
}

/// A profile, and the file in which it was found.
pub(super) struct FoundProfile {
    pub(super) path: PathBuf,
    pub(super) profile: Profile,
}

const HOMELESS: &str = "there is no home to keep it in";
const UNMEASURED: &str = "nothing was measured";

/// Where the kind of stores into chunks comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoresOrigin {
    /// The environment or the tune file names it.
    Named(Origin),
    /// It was measured: when, and the kind that was clearly faster, if one was.
    Measured {
        /// The day.
        date: String,
        /// Comparisons.
        rounds: usize,
        /// Other programs ran meanwhile.
        busy: bool,
        /// The value of the knob.
        kind: Option<String>,
        /// The value of the other knob: from which size on messages return.
        returns: Option<String>,
    },
    /// The processor's maker is the first guess: why.
    Seed(String),
}

impl StoresOrigin {
    /// Where nothing names it.
    pub(super) fn of(found: &Result<FoundProfile, String>) -> Self {
        match found {
            Ok(FoundProfile { profile, .. }) => Self::Measured {
                date: profile.date.clone(),
                rounds: profile.rounds,
                busy: profile.busy,
                kind: profile.chunk_copy.clone(),
                returns: profile.return_min.clone(),
            },
            Err(why) => Self::Seed(why.clone()),
        }
    }
}

impl fmt::Display for StoresOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(origin) => write!(f, "{KNOB} is set ({origin})"),
            Self::Measured {
                date,
                rounds,
                busy,
                kind,
                returns,
            } => {
                write!(f, "measured on {date} in {rounds} rounds: ")?;
                match kind {
                    Some(kind) => write!(f, "{kind} stores are faster")?,
                    None if *busy => f
                        .write_str("other programs ran, so the processor's maker decides that day")?,
                    None => f.write_str(
                        "neither kind of stores is clearly faster, so the processor's maker decides",
                    )?,
                }
                match returns {
                    Some(from) => write!(f, "; chunks return from {from} B on"),
                    None => Ok(()),
                }
            }
            Self::Seed(why) => write!(f, "a seed, by the processor's maker: {why}"),
        }
    }
}

/// What is in the way of measuring and keeping the profile here; none: the next job of two ranks on this machine does.
#[must_use]
pub fn obstacle() -> Option<String> {
    obstacle_to(path().as_deref())
}

/// As [`obstacle`], with the profile at this place.
fn obstacle_to(path: Option<&Path>) -> Option<String> {
    let Some(path) = path else {
        return Some(HOMELESS.to_owned());
    };
    if machine::all_processors().len() < 2 {
        return Some("there is one processor, and nothing to compare".to_owned());
    }
    check_place(path).err()
}

/// Whether this user may put a file at `path`, as far as that can be seen without doing so.
fn check_place(path: &Path) -> Result<(), String> {
    let refused = |why: &str| Err(format!("{}: {why}", path.display()));
    let own = geteuid().as_raw();
    match path.symlink_metadata() {
        Ok(there) if !there.is_file() => return refused("it is no regular file"),
        Ok(there) if there.uid() != own => return refused("it belongs to another user"),
        _ => {}
    }
    // Root with the home of a user would leave files there that the user cannot replace.
    let mut folders = path.ancestors().skip(1);
    let existing = folders.find_map(|folder| Some((folder, folder.metadata().ok()?)));
    match existing {
        Some((_, about)) if about.uid() != own => refused("its folder belongs to another user"),
        Some((folder, _)) => match eaccess(folder, AccessFlags::W_OK | AccessFlags::X_OK) {
            Ok(()) => Ok(()),
            Err(errno) => Err(format!("{}: {}", folder.display(), errno.desc())),
        },
        None => refused("it has no folder"),
    }
}

/// The right to measure the profile and to write its file, which one process of this user has at a time.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// None where the file system has no locks for folders. Then two may measure, and the later file stays.
    _locked: Option<Flock<File>>,
}

impl Claim {
    /// Takes it. The error says why nothing is to be measured.
    pub fn take() -> Result<Self, String> {
        let path = path().ok_or(HOMELESS)?;
        obstacle_to(Some(&path)).map_or(Ok(()), Err)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let place = |error: &dyn fmt::Display| format!("{}: {error}", folder.display());
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| place(&error))?;
        let opened = File::open(folder).map_err(|error| place(&error))?;
        let locked = match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => Some(locked),
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(place(&"another process measures at this moment"));
            }
            Err(_) => None,
        };
        // The one before may have finished since the settings were read.
        if Profile::find(&of_this_process).is_ok_and(|found| found.profile.is_current()) {
            return Err(format!("{} was just written", path.display()));
        }
        let claim = Self {
            path,
            _locked: locked,
        };
        // Asked before the measurement, which each job would make again otherwise: a disk may be full, too. The file is
        // gone meanwhile, so that a process that is killed leaves none.
        let mut probe = claim.beside()?;
        let written = probe.write_all(&[0; ROOM]);
        written.map_err(|error| format!("{}: {error}", probe.path().display()))?;
        Ok(claim)
    }

    /// The profile that is there, of another day.
    #[must_use]
    pub fn before(&self) -> Option<Profile> {
        let found = Profile::find(&of_this_process);
        found.ok().map(|found| found.profile)
    }

    /// A file that can take the profile's place. It is gone if it does not.
    fn beside(&self) -> Result<NamedTempFile, String> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        NamedTempFile::new_in(folder).map_err(|error| format!("{}: {error}", folder.display()))
    }

    /// Writes the profile. Readers find the file that was there before, or all of the new one.
    pub fn keep(self, profile: &Profile) -> Result<(), String> {
        let place = |error: &dyn fmt::Display| format!("{}: {error}", self.path.display());
        let text = serde_json::to_string_pretty(profile).map_err(|error| place(&error))?;
        let mut file = self.beside()?;
        writeln!(file, "{text}").map_err(|error| place(&error))?;
        file.persist(&self.path).map_err(|error| place(&error))?;
        Ok(())
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
    (FORMAT, env!("CARGO_PKG_VERSION"), cfg!(debug_assertions)).hash(&mut hasher);
    let name = format!("profile-{:016x}.json", hasher.finish());
    in_home(variables, VARIABLE, FOLDER, &name)
}
