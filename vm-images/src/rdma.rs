// SPDX-License-Identifier: MIT OR Apache-2.0
//! Beds for RDMA: guests with the kernel's software device for RoCE, and what its users need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::apt::{self, Apt};
use crate::cache::{self, Cache};
use crate::catalog::{Catalog, RdmaEntry};
use crate::initramfs::Initramfs;
use crate::kernel::{self, Kernel};
use crate::program::{self, find};
use crate::progress::Progress;
use crate::qemu::{self, Beside, Cable, Machine};
use crate::{Error, Result, load_order};

/// How many machines there are, and what joins what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bed {
    /// One machine, the device on its loopback.
    Loop,
    /// One machine, two spaces of the network with a device each.
    Spaces,
    /// One machine, two devices in networks of their own, beside the loopback.
    Rails,
    /// Two machines with a device each.
    Pair,
}

impl Bed {
    /// The word for the guest's scripts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Spaces => "spaces",
            Self::Rails => "rails",
            Self::Pair => "pair",
        }
    }
}

/// What was fetched and unpacked.
#[derive(Clone, Debug)]
pub struct Tools {
    root: PathBuf,
    entry: RdmaEntry,
}

/// A kernel with the software device, and what goes with it; fetched where it is missing.
///
/// # Errors
///
/// When something cannot be fetched or unpacked.
pub fn prepare(
    cache: &Cache,
    catalog: &Catalog,
    name: &str,
    progress: &Progress,
) -> Result<(Kernel, Tools)> {
    let kernel = kernel::fetch(cache, catalog, catalog.bed(name)?, false, progress)?;
    let entry = catalog.rdma.clone();
    let root = cache.folder("rdma")?.join("root");
    let _lock = cache.lock("rdma")?;
    let note = entry.packages.join(" ");
    let stamp = root.with_extension("packages");
    if !root.exists() || fs::read_to_string(&stamp).ok().as_deref() != Some(&note) {
        progress.step("fetching libraries for RDMA");
        let apt = Apt::open(cache, catalog, &entry.suites)?;
        apt.update(false)?;
        let packages = apt.show(&entry.packages)?;
        if packages.len() < entry.packages.len() {
            let missing: Vec<&str> = entry
                .packages
                .iter()
                .filter(|name| !packages.iter().any(|p| p.name == **name))
                .map(String::as_str)
                .collect();
            return Err(Error::Refused(format!(
                "{} have no {}; name others in kernels.toml",
                entry.suites.join(", "),
                missing.join(", ")
            )));
        }
        let debs = apt.download(&packages, &cache.folder("debs")?)?;
        let part = root.with_extension("part");
        cache::remove(&part)?;
        debs.iter().try_for_each(|deb| apt::unpack(deb, &part))?;
        cache::remove(&root)?;
        fs::rename(&part, &root).map_err(Error::io(part.display().to_string()))?;
        cache::write(&stamp, &note)?;
    }
    Ok((kernel, Tools { root, entry }))
}

impl Tools {
    /// Puts modules, programs and libraries into a guest.
    ///
    /// # Errors
    ///
    /// When something is not where it belongs.
    pub fn fill(&self, guest: &mut Initramfs, kernel: &Kernel) -> Result<()> {
        let Some(folder) = &kernel.modules else {
            return Err(Error::Refused(format!(
                "{} has no modules of its own",
                kernel.name
            )));
        };
        let available = load_order::Available::read(folder)?;
        for (index, (name, bytes)) in available
            .load_order(&self.entry.modules)?
            .into_iter()
            .enumerate()
        {
            guest.bytes(
                &format!("payload/modules/{index:02}-{name}.ko"),
                0o644,
                bytes,
            );
        }
        let libraries = self.libraries()?;
        let found = |name: &str| {
            let mut places = libraries.iter().map(|folder| folder.join(name));
            places
                .find(|path| path.exists())
                .ok_or_else(|| self.lacks(name))
        };
        for program in &self.entry.programs {
            let place = self.root.join(program);
            let name = place
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            self.with_libraries(guest, &place, &libraries)?;
            guest.copy(&place, &format!("payload/bin/{name}"))?;
        }
        for plugin in &self.entry.plugins {
            let place = found(plugin)?;
            self.with_libraries(guest, &place, &libraries)?;
            guest.copy(&place, &format!("usr/lib/{}/{plugin}", machine()))?;
        }
        guest.bytes("etc/libibverbs.d/rxe.driver", 0o644, "driver rxe\n");
        // busybox takes its own `ip` and `tc` wherever its shell looks for a program; this one looks in PATH.
        let dash = find("dash", "dash")?;
        guest.program(&dash, "bin/dash")?;
        guest.link("bin/sh", "dash");
        Ok(())
    }

    fn lacks(&self, name: &str) -> Error {
        Error::Refused(format!(
            "the packages under {} have no {name}; kernels.toml says which they are",
            self.root.display()
        ))
    }

    fn libraries(&self) -> Result<Vec<PathBuf>> {
        let folders = ["usr/lib", "lib"].map(|folder| self.root.join(folder).join(machine()));
        let folders: Vec<PathBuf> = folders
            .into_iter()
            .filter(|folder| folder.exists())
            .collect();
        if folders.is_empty() {
            return Err(self.lacks("libraries"));
        }
        Ok(folders)
    }

    /// The libraries that a file links with: ours where we have them, those of the host elsewhere.
    fn with_libraries(
        &self,
        guest: &mut Initramfs,
        file: &Path,
        libraries: &[PathBuf],
    ) -> Result<()> {
        let path: Vec<String> = libraries
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        let ldd = find("ldd", "libc-bin")?;
        let mut command = Command::new(ldd);
        command.env("LD_LIBRARY_PATH", path.join(":")).arg(file);
        let output = program::run(&mut command)?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if line.contains("not found") {
                return Err(Error::Refused(format!(
                    "{}: {}; add its package to kernels.toml",
                    file.display(),
                    line.trim()
                )));
            }
            let Some(library) = crate::initramfs::library(line) else {
                continue;
            };
            let name = library
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let place = match library.strip_prefix(&self.root) {
                Ok(_) => format!("usr/lib/{}/{name}", machine()),
                Err(_) => library.display().to_string(),
            };
            if !guest.contains(&place) {
                guest.copy(&library, &place)?;
            }
        }
        Ok(())
    }
}

/// What a bed's machines are.
pub struct Plan<'a> {
    /// How many, and what joins them.
    pub bed: Bed,
    /// Processors of each.
    pub processors: u32,
    /// Memory of each in MiB.
    pub memory: u32,
    /// What runs on side `a`, or on the only machine, when the bed is made: lines for the guest's shell.
    pub script: String,
    /// What all of them are given besides.
    pub with: &'a dyn Fn(&mut Initramfs) -> Result<()>,
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan({:?}, {} MiB)", self.bed, self.memory)
    }
}

/// A bed's machines, ready to be booted. The second one is switched on by [`Machines::start_second`].
#[derive(Debug)]
pub struct Machines {
    /// The one whose run counts.
    pub first: Machine,
    second: Option<(Machine, Cable)>,
}

/// Packs a bed's machines into the folder of a run.
///
/// # Errors
///
/// When something cannot be read or written.
pub fn pack(kernel: &Kernel, tools: &Tools, plan: &Plan<'_>, run: &Path) -> Result<Machines> {
    let machine = |script: String, name: &str| -> Result<Machine> {
        let mut guest = Initramfs::new()?;
        tools.fill(&mut guest, kernel)?;
        (plan.with)(&mut guest)?;
        guest.bytes("payload/run", 0o755, script);
        let initramfs = run.join(format!("{name}.gz"));
        guest.write(&initramfs)?;
        let mut machine = Machine::new(kernel, initramfs);
        machine.processors = plan.processors;
        machine.memory = plan.memory;
        Ok(machine)
    };
    let mut first = machine(
        format!("{}{}", setting_up(plan.bed), plan.script),
        "initramfs",
    )?;
    let second = if plan.bed == Bed::Pair {
        let cable = qemu::cable()?;
        let mut second = machine(serving(), "initramfs-b")?;
        first.plug(&cable, 1);
        second.plug(&cable, 2);
        Some((second, cable))
    } else {
        None
    };
    Ok(Machines { first, second })
}

impl Machines {
    /// Switches the second one on, where there is one. It runs until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// When QEMU cannot be started.
    pub fn start_second(
        &self,
        cache: &Cache,
        run: &Path,
        progress: &Progress,
    ) -> Result<Option<Beside>> {
        let Some((second, _)) = &self.second else {
            return Ok(None);
        };
        qemu::beside(cache, second, &run.join("console-b.log"), progress).map(Some)
    }
}

/// The script of a machine that serves the other one.
fn serving() -> String {
    format!("{BEGIN}rdma_bed pair b && echo VM-SERVES && rdma_serve\n")
}

/// What a bed's script begins with.
fn setting_up(bed: Bed) -> String {
    let meet = if bed == Bed::Pair {
        " && rdma_meet"
    } else {
        ""
    };
    format!("{BEGIN}rdma_bed {} a{meet} || exit 1\n", bed.word())
}

const BEGIN: &str = ". /payload/lib.sh\n. /payload/rdma.sh\n";

/// The folder of this machine's libraries.
fn machine() -> &'static str {
    crate::arch::here().prefix.trim_end_matches('-')
}
