// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache: everything that is fetched or built lies in one folder that may be deleted at any time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Error, Result};

/// How many runs' folders stay.
const RUNS_KEPT: usize = 30;

/// The folder.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `ONECOPY_VM_CACHE`, or `onecopy/vm` in the user's cache folder.
    ///
    /// # Errors
    ///
    /// When no place is known or the folder cannot be made.
    pub fn open() -> Result<Self> {
        let chosen = variable("ONECOPY_VM_CACHE").map(PathBuf::from);
        chosen.map_or_else(|| Self::named("vm"), Self::in_folder)
    }

    /// The folder `onecopy/NAME` in the user's cache folder.
    ///
    /// # Errors
    ///
    /// When no place is known or the folder cannot be made.
    pub fn named(name: &str) -> Result<Self> {
        let caches = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
        let root = caches.or_else(home).ok_or_else(|| {
            Error::Refused(format!(
                "no place for onecopy/{name}: set HOME or XDG_CACHE_HOME"
            ))
        })?;
        Self::in_folder(root.join("onecopy").join(name))
    }

    /// In a folder of one's own choice.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made.
    pub fn in_folder(root: PathBuf) -> Result<Self> {
        make(&root)?;
        // Programs that run elsewhere are told these paths.
        let root = fs::canonicalize(&root).map_err(Error::io(root.display().to_string()))?;
        Ok(Self { root })
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A folder in it, made if missing.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        make(&path)?;
        Ok(path)
    }

    /// Keeps others from fetching or unpacking the same at the same time, until it is dropped.
    ///
    /// # Errors
    ///
    /// When the lock file cannot be used.
    pub fn lock(&self, what: &str) -> Result<File> {
        let path = self.root.join(format!("{what}.lock"));
        let name = || path.display().to_string();
        let file = File::create(&path).map_err(Error::io(name()))?;
        file.lock().map_err(Error::io(format!("lock {}", name())))?;
        Ok(file)
    }

    /// A new folder for one run; the oldest beyond a number are removed.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn new_run(&self, name: &str) -> Result<PathBuf> {
        let runs = self.folder("runs")?;
        let mut old: Vec<PathBuf> = entries(&runs)?;
        old.retain(|run| !is_under_way(run));
        old.sort();
        let surplus = (old.len() + 1).saturating_sub(RUNS_KEPT);
        for path in &old[..surplus] {
            // One that cannot go is no reason not to run.
            let _ = fs::remove_dir_all(path);
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let stamp = format!("{}-{:06}", now.as_secs(), now.subsec_micros());
        let run = runs.join(format!("{stamp}-{name}-{}", std::process::id()));
        make(&run)?;
        Ok(run)
    }

    /// Removes what can be fetched and built again; with `all` also what takes long.
    ///
    /// # Errors
    ///
    /// When something cannot be removed.
    pub fn clean(&self, all: bool) -> Result<()> {
        let quick = ["runs", "debs", "apt"];
        let slow = ["kernels", "source", "toolchain", "userland"];
        for name in quick
            .iter()
            .chain(if all { &slow[..] } else { &[] })
            .map(|name| self.root.join(name))
        {
            if name.exists() {
                fs::remove_dir_all(&name).map_err(Error::io(name.display().to_string()))?;
            }
        }
        Ok(())
    }
}

/// A variable of the environment that says something.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

pub(crate) fn make(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::io(path.display().to_string()))
}

/// What lies in a folder.
pub(crate) fn entries(path: &Path) -> Result<Vec<PathBuf>> {
    let name = || path.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(Error::io(name()))? {
        found.push(entry.map_err(Error::io(name()))?.path());
    }
    Ok(found)
}

/// Writes a file whole.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, content).map_err(Error::io(path.display().to_string()))
}

/// Reads a text.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io(path.display().to_string()))
}

/// Removes a folder that may not be there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(path.display().to_string())(error))
        }
        _ => Ok(()),
    }
}

/// Whether another process, the one that its name ends with, is at work in a run's folder.
fn is_under_way(run: &Path) -> bool {
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    let pid = name.rsplit('-').next().and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid: u32| {
        pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_runs_go_and_new_ones_stay() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::in_folder(folder.path().join("deep/cache")).expect("cache");
        let runs: Vec<PathBuf> = (0..RUNS_KEPT + 3)
            .map(|_| cache.new_run("k").expect("run"))
            .collect();
        assert_eq!(
            entries(&cache.root().join("runs")).expect("runs").len(),
            RUNS_KEPT
        );
        assert!(!runs[0].exists());
        assert!(runs[RUNS_KEPT + 2].exists());
    }

    #[test]
    fn a_run_under_way_stays() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::in_folder(folder.path().to_path_buf()).expect("cache");
        // The first process always lives.
        let other = cache.root().join("runs/0-000000-k-1");
        make(&other).expect("run");
        for _ in 0..RUNS_KEPT + 3 {
            cache.new_run("k").expect("run");
        }
        assert!(other.exists());
    }

    #[test]
    fn cleaning_keeps_what_takes_long() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::in_folder(folder.path().to_path_buf()).expect("cache");
        for name in ["runs", "kernels"] {
            cache.folder(name).expect("folder");
        }
        cache.clean(false).expect("clean");
        assert!(!folder.path().join("runs").exists());
        assert!(folder.path().join("kernels").exists());
        cache.clean(true).expect("clean all");
        assert!(!folder.path().join("kernels").exists());
    }
}
