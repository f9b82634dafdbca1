// SPDX-License-Identifier: MIT OR Apache-2.0
//! What compiles modules: the host, or a tree of unpacked packages that is entered, where the host is too old for a
//! kernel's build programs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::{self, Apt};
use crate::arch::{self, Arch};
use crate::cache::{self, Cache};
use crate::catalog::{Catalog, KernelEntry};
use crate::program::{self, find, gentle};
use crate::progress::Progress;
use crate::{Error, Result};

/// What a tree needs besides the compiler and what the kernel's programs link with.
pub(crate) const BASE: &[&str] = &[
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "gawk",
    "grep",
    "libc-bin",
    "make",
    "perl-base",
    "sed",
];

/// Enters a tree with the host's `/proc` and `/dev`, and folders at their own places, in mount points that nobody else
/// sees.
const ENTER: &str = "set -e; tree=$1; shift
mount --make-rprivate /
mount --rbind /proc \"$tree/proc\"
mount --rbind /dev \"$tree/dev\"
while [ \"$1\" != -- ]; do
    mkdir -p \"$tree$1\"
    mount --rbind \"$1\" \"$tree$1\"
    shift
done
shift
exec chroot \"$tree\" \"$@\"";

/// What compiles.
#[derive(Clone, Debug)]
pub enum Toolchain {
    /// The host's own compiler.
    Host {
        /// Its program.
        compiler: String,
    },
    /// A tree of unpacked packages.
    Tree {
        /// Where it lies.
        root: PathBuf,
        /// What must be seen inside at the same place.
        seen: Vec<PathBuf>,
        /// The compiler's program.
        compiler: String,
    },
}

impl Toolchain {
    /// The host where it can, otherwise the tree, made first where it is missing.
    ///
    /// # Errors
    ///
    /// When a tree is needed and cannot be made.
    pub fn choose(
        cache: &Cache,
        catalog: &Catalog,
        name: &str,
        headers: &Path,
        progress: &Progress,
    ) -> Result<Self> {
        Self::choose_for(cache, catalog, name, arch::here(), headers, progress)
    }

    /// As [`Self::choose`], for an architecture.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn choose_for(
        cache: &Cache,
        catalog: &Catalog,
        name: &str,
        arch: &'static Arch,
        headers: &Path,
        progress: &Progress,
    ) -> Result<Self> {
        let Some(entry) = catalog.toolchain_for(name, arch) else {
            return Err(Error::Refused(format!(
                "kernels.toml has no toolchain {name} for {}",
                arch.name
            )));
        };
        let compiler = entry.program();
        if find(&compiler, "").is_ok() && find("make", "").is_ok() && host_runs(headers) {
            return Ok(Self::Host { compiler });
        }
        let name = arch.tag(name);
        let root = cache.folder("toolchain")?.join(&name);
        if !root.exists() {
            progress.step(&format!("{name}: fetching the toolchain"));
            let apt = Apt::open(cache, catalog, &entry.suites)?;
            apt.update(false)?;
            let debs = cache.folder(&format!("debs/toolchain-{name}"))?;
            let mut wanted: Vec<&str> = BASE.to_vec();
            let package = entry.package();
            wanted.push(&package);
            wanted.extend(entry.packages.iter().map(String::as_str));
            let debs = apt.download_closure(&wanted, &debs)?;
            progress.step(&format!("{name}: unpacking the toolchain"));
            let part = root.with_extension("part");
            plant(&debs, &part)?;
            fs::rename(&part, &root).map_err(Error::io(part.display().to_string()))?;
        }
        Ok(Self::Tree {
            root,
            seen: vec![cache.root().to_path_buf()],
            compiler,
        })
    }

    /// What it is, in a word.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Host { compiler } => format!("{compiler} of the host"),
            Self::Tree { root, compiler, .. } => {
                let name = root.file_name().unwrap_or_default().to_string_lossy();
                format!("{compiler} in the tree {name}")
            }
        }
    }

    /// A command that runs in it.
    ///
    /// # Errors
    ///
    /// When the host lacks what entering a tree takes.
    pub fn command(&self, program: &str) -> Result<Command> {
        let (root, seen) = match self {
            Self::Host { .. } => return Ok(gentle(find(program, program)?)),
            Self::Tree { root, seen, .. } => (root, seen),
        };
        let mut command = gentle(find("unshare", "util-linux")?);
        if !is_root()? {
            // Root in a namespace of one's own is enough.
            command.arg("--map-root-user");
        }
        command.args(["--mount", "sh", "-c", ENTER, "sh"]);
        command.arg(root).args(seen).arg("--").arg(program);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        Ok(command)
    }
}

fn is_root() -> Result<bool> {
    let who = program::output(Command::new("id").arg("-u"))?;
    Ok(who.trim() == "0")
}

/// Whether the kernel's own build programs run on the host: they are made for their suite's C library.
fn host_runs(headers: &Path) -> bool {
    [
        "scripts/basic/fixdep",
        "scripts/mod/modpost",
        "tools/objtool/objtool",
    ]
    .iter()
    .map(|name| headers.join(name))
    .filter(|path| path.exists())
    .all(|path| {
        // Without arguments they end at once; one that cannot be loaded says so.
        program::run(&mut Command::new(&path)).is_ok_and(|output| {
            let text = String::from_utf8_lossy(&output.stderr);
            !text.contains("GLIBC_") && !text.contains("error while loading shared libraries")
        })
    })
}

/// A tree of a kernel's own distribution: packages with all they depend on, and among them the kernel's headers and its
/// compiler.
///
/// # Errors
///
/// When something cannot be fetched or unpacked.
pub fn distribution(
    cache: &Cache,
    catalog: &Catalog,
    entry: &KernelEntry,
    release: &str,
    packages: &[String],
    progress: &Progress,
) -> Result<PathBuf> {
    let headers = format!("linux-headers-{release}");
    let mut wanted: Vec<&str> = BASE.to_vec();
    wanted.push(&headers);
    wanted.extend(packages.iter().map(String::as_str));
    let note = wanted.join(" ");
    let folder = cache.folder("distribution")?;
    let (root, stamp) = (
        folder.join(release),
        folder.join(format!("{release}.packages")),
    );
    if fs::read_to_string(&stamp).is_ok_and(|found| found == note) && root.exists() {
        return Ok(root);
    }
    let _lock = cache.lock("distribution")?;
    progress.step(&format!("{}: fetching its distribution", entry.name));
    let mut suites = entry.suites.clone();
    let toolchain = catalog.toolchain(&entry.toolchain);
    for suite in toolchain.iter().flat_map(|toolchain| &toolchain.suites) {
        if !suites.contains(suite) {
            suites.push(suite.clone());
        }
    }
    let apt = Apt::of_arch(cache, catalog, &suites, entry.arch)?;
    apt.update(false)?;
    let debs = cache.folder(&format!("debs/distribution-{release}"))?;
    let debs = apt.download_closure(&wanted, &debs)?;
    progress.step(&format!("{}: unpacking its distribution", entry.name));
    let part = folder.join(format!("{release}.part"));
    plant(&debs, &part)?;
    cache::remove(&root)?;
    fs::rename(&part, &root).map_err(Error::io(part.display().to_string()))?;
    cache::write(&stamp, note)?;
    Ok(root)
}

/// Makes a tree out of packages, without running anything of them.
pub(crate) fn plant(debs: &[PathBuf], root: &Path) -> Result<()> {
    cache::remove(root)?;
    // The package with the links of the first level comes first, so that others unpack through them.
    let is_base = |path: &&PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("base-files_"))
    };
    for deb in debs.iter().filter(is_base) {
        apt::unpack(deb, root)?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        let merged = root.join("usr").join(name);
        cache::make(&merged)?;
        link(&format!("usr/{name}"), &root.join(name))?;
    }
    for deb in debs.iter().filter(|deb| !is_base(deb)) {
        apt::unpack(deb, root)?;
    }
    // What the packages' scripts would have linked.
    link("dash", &root.join("usr/bin/sh"))?;
    link("gawk", &root.join("usr/bin/awk"))?;
    link("gcc", &root.join("usr/bin/cc"))?;
    for name in ["proc", "dev", "tmp"] {
        cache::make(&root.join(name))?;
    }
    Ok(())
}

/// Makes a link where nothing is.
fn link(target: &str, path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    symlink(target, path).map_err(Error::io(path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_loaded_sends_us_into_a_tree() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("scripts/basic/fixdep");
        cache::make(&folder.path().join("scripts/basic")).expect("folder");
        let write = |text: &str| {
            cache::write(&path, format!("#!/bin/sh\n{text}\n")).expect("script");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&path, mode).expect("mode");
        };
        write("echo usage >&2; exit 1");
        assert!(host_runs(folder.path()));
        write("echo \"version \\`GLIBC_2.38' not found\" >&2; exit 1");
        assert!(!host_runs(folder.path()));
    }

    #[test]
    fn links_do_not_replace() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("sh");
        link("dash", &path).expect("link");
        link("bash", &path).expect("no link");
        assert_eq!(fs::read_link(&path).expect("link"), Path::new("dash"));
    }
}
