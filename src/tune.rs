// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tune file: this machine's cost curves and copy kernels, written by `onecopy tune`, read when a runtime starts.
//!
//! `ONECOPY_TUNE_FILE` names it. Without that variable the user's own is looked for, `onecopy/tune.json` below
//! `$XDG_CONFIG_HOME` or `~/.config`, and used if it was written on this machine. What it does not say of the stores is
//! taken from the machine's [`profile`]. `ONECOPY_TUNE_FILE=none` uses neither.

mod file;
pub mod profile;

use crate::error::{Error, Result};
use crate::machine;
use file::Trust;
use onecopy_btl::cost::{Costs, Curve};
use onecopy_obs::{Knobs, Origin, Origins, UnknownVariable};
use profile::{Profile, StoresOrigin};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Version of the file's format.
pub const FORMAT: u32 = 1;

/// What a file's figures hold for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// Processor model.
    pub processor: String,
    /// Processors that are switched on, as the kernel writes a list.
    pub processors: String,
    /// Kernel release.
    pub kernel: String,
}

impl Fingerprint {
    /// This machine's.
    #[must_use]
    pub fn here() -> Self {
        Self {
            processor: machine::processor(),
            processors: machine::online(),
            kernel: machine::kernel(),
        }
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            processor,
            processors,
            kernel,
        } = self;
        write!(f, "{processor}, processors {processors}, Linux {kernel}")
    }
}

/// A cost curve as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurveText {
    /// Nanoseconds of a message without payload.
    pub setup_ns: f64,
    /// Nanoseconds per KiB up to the knee.
    pub per_kib_ns: f64,
    /// Bytes from where the second slope counts.
    pub knee: u64,
    /// Nanoseconds per KiB beyond.
    pub per_kib_far_ns: f64,
}

impl From<Curve> for CurveText {
    fn from(curve: Curve) -> Self {
        // A tenth of a nanosecond is finer than any measurement here.
        let round = |ns: f64| (ns * 10.0).round() / 10.0;
        Self {
            setup_ns: round(curve.setup_ns),
            per_kib_ns: round(curve.per_kib_ns),
            knee: curve.knee,
            per_kib_far_ns: round(curve.per_kib_far_ns),
        }
    }
}

impl CurveText {
    fn curve(self) -> Result<Curve, String> {
        for (name, value) in [
            ("setup_ns", self.setup_ns),
            ("per_kib_ns", self.per_kib_ns),
            ("per_kib_far_ns", self.per_kib_far_ns),
        ] {
            if !(0.0..=1e9).contains(&value) {
                return Err(format!("{name} is {value}; 0 to 1e9 is possible"));
            }
        }
        Ok(Curve {
            setup_ns: self.setup_ns,
            per_kib_ns: self.per_kib_ns,
            knee: self.knee,
            per_kib_far_ns: self.per_kib_far_ns,
        })
    }
}

/// A tune file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneFile {
    /// Version of the format.
    pub format: u32,
    /// Version of onecopy that wrote it.
    pub onecopy: String,
    /// Day of the measurement.
    pub date: String,
    /// The machine of the measurement.
    pub machine: Fingerprint,
    /// Curves by name; those that are missing stay at their seeds.
    pub curves: BTreeMap<String, CurveText>,
    /// Knobs by the names of their variables.
    #[serde(default)]
    pub knobs: BTreeMap<String, String>,
}

impl TuneFile {
    /// Reads and checks a file. The error says what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, String> {
        Self::read_as(path, Trust::Named)
    }

    fn read_as(path: &Path, trust: Trust) -> Result<Self, String> {
        let text = file::read(path, trust)?;
        let file: Self = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if file.format != FORMAT {
            return Err(format!("format {} instead of {FORMAT}", file.format));
        }
        file.costs(Costs::default())?;
        let none = std::iter::empty::<(&str, &str)>();
        let (_, _, unknown) = Knobs::load(none, &file.knobs).map_err(|error| error.to_string())?;
        match unknown.first() {
            Some(variable) => Err(variable.to_string()),
            None => Ok(file),
        }
    }

    /// The seeds, with this file's curves in their place.
    pub fn costs(&self, seeds: Costs) -> Result<Costs, String> {
        let mut costs = seeds;
        for (name, text) in &self.curves {
            let place = costs
                .named(name)
                .ok_or_else(|| format!("no curve is called '{name}'"))?;
            *place = text.curve().map_err(|bad| format!("curve {name}: {bad}"))?;
        }
        Ok(costs)
    }
}

/// The user's own tune file, whether it exists or not; none without a home.
#[must_use]
pub fn default_path() -> Option<PathBuf> {
    default_path_by(&of_this_process)
}

fn default_path_by(variables: Variables<'_>) -> Option<PathBuf> {
    in_home(variables, "XDG_CONFIG_HOME", ".config", "tune.json")
}

/// What environment variables say.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn of_this_process(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn in_home(variables: Variables<'_>, variable: &str, folder: &str, file: &str) -> Option<PathBuf> {
    let set = |name| {
        variables(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    // A home that is not there is none, as that of many system users: nobody is to make it.
    let home = || set("HOME").filter(|home| home.is_dir());
    let base = set(variable).or_else(|| Some(home()?.join(folder)))?;
    Some(base.join("onecopy").join(file))
}

/// Everything that is set from outside.
#[derive(Debug)]
pub struct Settings {
    /// The knobs.
    pub knobs: Knobs,
    /// Where each comes from.
    pub origins: Origins,
    /// Variables that are no knobs.
    pub unknown: Vec<UnknownVariable>,
    /// The cost curves.
    pub costs: Costs,
    /// The tune file that was used.
    pub file: Option<PathBuf>,
    /// The machine's profile that was used.
    pub profile: Option<PathBuf>,
    /// Where the kind of stores into chunks comes from.
    pub stores: StoresOrigin,
    /// Whether a job should have the profile measured: nothing says how chunks are written, and nothing forbids it.
    pub lacks_profile: bool,
    /// What is odd about the tune file.
    pub warnings: Vec<String>,
}

/// A tune file, read.
struct Source {
    path: PathBuf,
    file: TuneFile,
}

impl Source {
    fn refusal(path: &Path, reason: String) -> Error {
        Error::TuneFile {
            path: path.display().to_string(),
            reason,
        }
    }

    fn read(path: PathBuf, trust: Trust) -> Result<Self> {
        match TuneFile::read_as(&path, trust) {
            Ok(file) => Ok(Self { path, file }),
            Err(reason) => Err(Self::refusal(&path, reason)),
        }
    }

    fn warning(&self, here: &Fingerprint, why: &str) -> String {
        let (path, machine) = (self.path.display(), &self.file.machine);
        format!("tune file {path}: {why} on {machine}, this is {here}; run `onecopy tune` again")
    }
}

/// The tune file that counts: the named one, or the user's own if it is from this machine. What is odd about it goes to
/// `warnings`.
fn source(
    named: Option<PathBuf>,
    variables: Variables<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<Source>> {
    let (path, trust, why) = match named {
        Some(path) => (Some(path), Trust::Named, "measured"),
        None => {
            let own = default_path_by(variables).filter(|path| path.exists());
            (own, Trust::Found, "not used, as it was measured")
        }
    };
    let Some(path) = path else { return Ok(None) };
    let source = Source::read(path, trust)?;
    let here = Fingerprint::here();
    if source.file.machine == here {
        return Ok(Some(source));
    }
    warnings.push(source.warning(&here, why));
    Ok((trust == Trust::Named).then_some(source))
}

/// Reads the environment, the tune file and the profile. Nothing is logged.
pub fn settings() -> Result<Settings> {
    settings_with(&[])
}

/// As [`settings`], of a process that is started with these variables besides.
pub fn settings_with(set: &[(String, String)]) -> Result<Settings> {
    let mut pairs = onecopy_obs::knobs::env_pairs()?;
    // Of a variable that occurs twice, the later counts.
    pairs.extend(
        set.iter()
            .filter(|(name, _)| name.starts_with("ONECOPY_"))
            .cloned(),
    );
    settings_by(pairs, &of_this_process)
}

/// The settings of a process with these knobs in its environment, and these variables besides.
pub(crate) fn settings_by(
    pairs: Vec<(String, String)>,
    variables: Variables<'_>,
) -> Result<Settings> {
    let set = Knobs::from_iter(pairs_of(&pairs))?.0.tune_file;
    let is_set = set.is_some();
    let mut warnings = Vec::new();
    let source = match set {
        Some(None) => None,
        named => source(named.flatten(), variables, &mut warnings)?,
    };
    // Nobody wrote the profile by hand: one that cannot be used is as good as none.
    let found = match is_set {
        true => Err("ONECOPY_TUNE_FILE is set, so nothing is measured".to_owned()),
        false => Profile::find(variables),
    };
    let is_current = matches!(&found, Ok(found) if found.profile.is_current());
    let measured = found.as_ref().ok();
    let mut from_file = BTreeMap::new();
    if let Some(found) = measured {
        from_file.extend(found.profile.knobs());
    }
    let by_tune_file = source.as_ref().map(|source| &source.file.knobs);
    let is_in_file = by_tune_file.is_some_and(|knobs| knobs.contains_key(profile::KNOB));
    from_file.extend(by_tune_file.cloned().unwrap_or_default());
    let (knobs, origins, unknown) = Knobs::load(pairs, from_file)?;
    let stores = match origins.origin(profile::KNOB) {
        Origin::Environment => StoresOrigin::Named(Origin::Environment),
        Origin::File if is_in_file => StoresOrigin::Named(Origin::File),
        _ => StoresOrigin::of(&found),
    };
    let profile = found.ok().map(|found| found.path);
    let mut costs = Costs::seeds(&knobs);
    if let Some(Source { path, file }) = &source {
        costs = file
            .costs(costs)
            .map_err(|reason| Source::refusal(path, reason))?;
    }
    Ok(Settings {
        lacks_profile: !is_set && !is_current && !matches!(stores, StoresOrigin::Named(_)),
        knobs,
        origins,
        unknown,
        costs,
        file: source.map(|source| source.path),
        profile,
        stores,
        warnings,
    })
}

fn pairs_of(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

/// The settings of this process. What is odd about them is logged.
pub(crate) fn load() -> Result<Settings> {
    let settings = settings()?;
    for variable in &settings.unknown {
        tracing::warn!("{variable}");
    }
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    Ok(settings)
}

/// Prints every knob that is not at its default to standard error.
pub(crate) fn print_knobs(knobs: &Knobs) {
    let mut text = String::new();
    for info in onecopy_obs::KNOBS {
        let value = knobs.text(info.name).unwrap_or_default();
        if value != info.default_text() {
            text.push_str(&format!("onecopy: {}={value}\n", info.name));
        }
    }
    // A rank without standard error has asked for nothing that could fail.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_btl::LayerId;

    fn file() -> TuneFile {
        TuneFile {
            format: FORMAT,
            onecopy: "0".into(),
            date: "2026-01-01".into(),
            machine: Fingerprint::here(),
            curves: [(
                "get".to_owned(),
                Costs::default().by[LayerId::MAP].one_sided.into(),
            )]
            .into(),
            knobs: [("ONECOPY_NT_MIN".to_owned(), "1 MiB".to_owned())].into(),
        }
    }

    fn written(file: &TuneFile, name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("onecopy-tune-{}-{name}", std::process::id()));
        std::fs::write(&path, serde_json::to_string(file).expect("text")).expect("written");
        path
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let path = written(&file(), "same");
        let read = TuneFile::read(&path).expect("read");
        std::fs::remove_file(path).expect("removed");
        assert_eq!(read, file());
        assert_eq!(
            read.costs(Costs::default()).expect("good").by[LayerId::CALL].one_sided,
            Costs::default().by[LayerId::MAP].one_sided
        );
        assert_eq!(
            read.costs(Costs::default()).expect("good").eager,
            Costs::default().eager
        );
    }

    #[test]
    fn a_bad_file_is_refused_with_the_reason() {
        for (change, word) in [
            (
                TuneFile {
                    format: 9,
                    ..file()
                },
                "format 9",
            ),
            (
                TuneFile {
                    curves: [(
                        "gett".to_owned(),
                        Costs::default().by[LayerId::CALL].one_sided.into(),
                    )]
                    .into(),
                    ..file()
                },
                "gett",
            ),
            (
                TuneFile {
                    curves: [(
                        "get".to_owned(),
                        CurveText {
                            setup_ns: -1.0,
                            ..Costs::default().by[LayerId::CALL].one_sided.into()
                        },
                    )]
                    .into(),
                    ..file()
                },
                "setup_ns",
            ),
            (
                TuneFile {
                    knobs: [("ONECOPY_RING_SLOTS".to_owned(), "7".to_owned())].into(),
                    ..file()
                },
                "ONECOPY_RING_SLOTS=7",
            ),
            (
                TuneFile {
                    knobs: [("ONECOPY_NTMIN".to_owned(), "7".to_owned())].into(),
                    ..file()
                },
                "ONECOPY_NT_MIN",
            ),
        ] {
            let path = written(&change, word);
            let error = TuneFile::read(&path).expect_err("refused");
            std::fs::remove_file(path).expect("removed");
            assert!(error.contains(word), "{error}");
        }
        assert!(TuneFile::read(Path::new("/nonexistent/x")).is_err());
    }
}
