// SPDX-License-Identifier: MIT OR Apache-2.0
//! What guests of another architecture have beside the kernel: the distribution's busybox and C library. And a tree of
//! its compilers, which is entered to build programs for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::{self, Apt, Package};
use crate::arch::Arch;
use crate::cache::{self, Cache};
use crate::catalog::{Catalog, UserlandEntry};
use crate::progress::Progress;
use crate::toolchain::{BASE, Toolchain, plant};
use crate::{Error, Result};

/// What was fetched and unpacked.
#[derive(Clone, Debug)]
pub struct Userland {
    /// The architecture.
    pub arch: &'static Arch,
    /// What builds programs.
    compilers: Toolchain,
    /// The guest's packages.
    root: PathBuf,
}

impl Userland {
    /// Fetches and unpacks what is missing; nothing for the architecture of this machine, which has all of it. `seen`:
    /// folders that compilers find at their own places, beside the cache.
    ///
    /// # Errors
    ///
    /// When something cannot be fetched or unpacked.
    pub fn prepare(
        cache: &Cache,
        catalog: &Catalog,
        arch: &'static Arch,
        seen: &[PathBuf],
        progress: &Progress,
    ) -> Result<Option<Self>> {
        if arch.is_here() {
            return Ok(None);
        }
        let Some(entry) = catalog.userland(arch) else {
            return Err(Error::Refused(format!(
                "kernels.toml has no userland for {}: add one, with the packages that build and carry programs",
                arch.name
            )));
        };
        let _lock = cache.lock("userland")?;
        let ours = Apt::open(cache, catalog, &entry.suites)?.prefer(&entry.prefer);
        let theirs = Apt::of_arch(cache, catalog, &entry.suites, arch)?.prefer(&entry.prefer);
        let tools = cache
            .folder("toolchain")?
            .join(format!("programs-{}", arch.name));
        let wanted: Vec<&str> = BASE
            .iter()
            .copied()
            .chain(entry.build.iter().map(String::as_str))
            .collect();
        let note = format!("{} {}", wanted.join(" "), entry.link.join(" "));
        once(&tools, &note, |part| {
            progress.step(&format!("{}: fetching compilers", arch.name));
            ours.update(false)?;
            theirs.update(false)?;
            let debs = cache.folder(&format!("debs/programs-{}", arch.name))?;
            let debs = ours.download_closure(&wanted, &debs)?;
            let linked = same_versions(&ours, &theirs, entry)?;
            let linked = theirs.download(&linked, &cache.folder("debs")?)?;
            progress.step(&format!("{}: unpacking compilers", arch.name));
            plant(&debs, part)?;
            linked.iter().try_for_each(|deb| apt::unpack(deb, part))
        })?;
        let root = cache.folder("userland")?.join(arch.name);
        once(&root, &entry.guest.join(" "), |part| {
            progress.step(&format!("{}: fetching busybox and libraries", arch.name));
            theirs.update(false)?;
            let packages = theirs.show(&entry.guest)?;
            let debs = theirs.download(&packages, &cache.folder("debs")?)?;
            debs.iter().try_for_each(|deb| apt::unpack(deb, part))
        })?;
        let mut all = vec![cache.root().to_path_buf()];
        all.extend_from_slice(seen);
        Ok(Some(Self {
            arch,
            compilers: Toolchain::Tree {
                root: tools,
                seen: all,
                compiler: format!("{}gcc", arch.prefix),
            },
            root,
        }))
    }

    /// A command among the compilers, in a folder, with the variables by which make finds them.
    ///
    /// # Errors
    ///
    /// When this machine lacks what entering their tree takes.
    pub fn command(&self, folder: &Path, program: &str) -> Result<Command> {
        let mut command = self.compilers.command("env")?;
        let path = command
            .get_envs()
            .find(|(name, _)| *name == "PATH")
            .and_then(|(_, value)| value.map(ToOwned::to_owned));
        // What cargo and rustup tell the programs that they start is about other compilers.
        command.env_clear();
        command.env("PATH", path.unwrap_or_default());
        command.env("LC_ALL", "C");
        command.env("CC", format!("{}gcc", self.arch.prefix));
        command.env("AR", format!("{}ar", self.arch.prefix));
        command.arg("-C").arg(folder).arg(program);
        Ok(command)
    }

    /// Cargo among the compilers, for a workspace: it builds into `target`, of what `home` has (`CARGO_HOME`), and
    /// fetches nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::command`].
    pub fn cargo(&self, workspace: &Path, target: &Path, home: &Path) -> Result<Command> {
        let mut command = self.command(workspace, "cargo")?;
        // These are for make. Build scripts are for this machine.
        command.env_remove("CC").env_remove("AR");
        let linker = format!(
            "CARGO_TARGET_{}_LINKER",
            self.arch.rust.to_ascii_uppercase().replace('-', "_")
        );
        command
            .env("CARGO_HOME", home)
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_BUILD_TARGET", self.arch.rust)
            .env("CARGO_NET_OFFLINE", "true")
            .env(linker, format!("{}gcc", self.arch.prefix))
            // The guest has a slow processor to unpack programs with, and this machine no `strip` for them.
            .env("CARGO_PROFILE_DEV_STRIP", "debuginfo")
            .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
        Ok(command)
    }

    /// The guest's busybox.
    #[must_use]
    pub fn busybox(&self) -> PathBuf {
        self.root.join("usr/bin/busybox")
    }

    /// The C library with its loader: files, and where they belong in the guest.
    ///
    /// # Errors
    ///
    /// When they cannot be listed.
    pub fn libraries(&self) -> Result<Vec<(PathBuf, String)>> {
        let folder = self.root.join("usr/lib");
        let machine = self.arch.prefix.trim_end_matches('-');
        let mut found = Vec::new();
        for (folder, place) in [
            (folder.clone(), "lib".to_owned()),
            (folder.join(machine), format!("lib/{machine}")),
        ] {
            for path in cache::entries(&folder)? {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if name.contains(".so") && path.is_file() {
                    found.push((path.clone(), format!("{place}/{name}")));
                }
            }
        }
        if found.is_empty() {
            return Err(Error::Refused(format!(
                "{} has no library: of {} none has one where it belongs",
                folder.display(),
                self.arch.name
            )));
        }
        Ok(found)
    }
}

/// Makes a folder by `make` where it is missing, or was made of something else; the note beside it is written last.
fn once(place: &Path, note: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let stamp = place.with_extension("packages");
    if place.exists() && fs::read_to_string(&stamp).is_ok_and(|found| found == note) {
        return Ok(());
    }
    let part = place.with_extension("part");
    cache::remove(&part)?;
    make(&part)?;
    cache::remove(place)?;
    fs::rename(&part, place).map_err(Error::io(part.display().to_string()))?;
    cache::write(&stamp, note)
}

/// What is linked in: the compiler takes its own version's standard library only.
fn same_versions(ours: &Apt, theirs: &Apt, entry: &UserlandEntry) -> Result<Vec<Package>> {
    let (here, there) = (ours.show(&entry.link)?, theirs.show(&entry.link)?);
    for name in &entry.link {
        let version = |packages: &[Package]| {
            let package = packages.iter().find(|package| package.name == *name);
            package.map_or("none".to_owned(), |package| package.version.to_string())
        };
        let (here, there) = (version(&here), version(&there));
        if here != there || here == "none" {
            return Err(Error::Refused(format!(
                "{name} in {}: {here} for {}, {there} for {}, and both must be one; the mirror may have it in some hours, or name \
                 other suites in kernels.toml",
                entry.suites.join(", "),
                ours.arch().name,
                theirs.arch().name
            )));
        }
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;

    fn userland(root: &Path) -> Userland {
        Userland {
            arch: arch::named("arm64").expect("arm64"),
            compilers: Toolchain::Tree {
                root: root.join("tree"),
                seen: vec![root.join("cache")],
                compiler: "aarch64-linux-gnu-gcc".to_owned(),
            },
            root: root.join("guest"),
        }
    }

    #[test]
    fn libraries_lie_in_the_guest_where_its_loader_looks() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let lib = folder.path().join("guest/usr/lib/aarch64-linux-gnu");
        cache::make(&lib.join("gconv")).expect("folder");
        cache::write(&lib.join("libc.so.6"), "x").expect("file");
        cache::write(&lib.join("libc.a"), "x").expect("file");
        cache::write(&lib.join("../ld-linux-aarch64.so.1"), "x").expect("file");
        let found = userland(folder.path()).libraries().expect("libraries");
        let mut places: Vec<String> = found.into_iter().map(|(_, place)| place).collect();
        places.sort();
        assert_eq!(
            places,
            [
                "lib/aarch64-linux-gnu/libc.so.6",
                "lib/ld-linux-aarch64.so.1"
            ]
        );
    }

    #[test]
    fn cargo_builds_for_the_guest_with_the_trees_linker() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let place = |name: &str| folder.path().join(name);
        let command = userland(folder.path())
            .cargo(&place("repository"), &place("target"), &place("home"))
            .expect("unshare");
        let line = crate::program::line(&command);
        assert!(line.ends_with("/repository cargo"), "{line}");
        let variable = |wanted: &str| {
            command
                .get_envs()
                .find(|(name, _)| *name == wanted)
                .and_then(|(_, value)| Some(value?.to_string_lossy().into_owned()))
        };
        let linker = variable("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
        assert_eq!(linker.as_deref(), Some("aarch64-linux-gnu-gcc"));
        assert_eq!(variable("CC"), None);
    }

    #[test]
    fn what_was_made_of_other_packages_is_made_anew() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let place = folder.path().join("tree");
        let count = std::cell::Cell::new(0);
        let make = |note: &str| {
            once(&place, note, |part| {
                count.set(count.get() + 1);
                cache::make(part)
            })
            .expect("made");
        };
        make("a");
        make("a");
        assert_eq!(count.get(), 1);
        make("b");
        assert_eq!(count.get(), 2);
        assert!(place.exists() && !place.with_extension("part").exists());
    }
}
