// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that the distribution built: chosen, fetched, unpacked, mended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::apt::{self, Apt, Package};
use crate::arch::Arch;
use crate::cache::{self, Cache};
use crate::catalog::{Catalog, KernelEntry, ToolchainEntry};
use crate::progress::Progress;
use crate::toolchain::Toolchain;
use crate::{Error, Result};

/// A kernel that can be booted and built against.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What it is called here, with its profile where that is not the distribution's.
    pub name: String,
    /// What `uname -r` will say.
    pub release: String,
    /// The image.
    pub image: PathBuf,
    /// What modules are built against.
    pub headers: PathBuf,
    /// Its own modules, where it has any.
    pub modules: Option<PathBuf>,
    /// Its architecture.
    pub arch: &'static Arch,
    /// What compiles for it.
    pub toolchain: Toolchain,
    /// What make is told of that.
    pub variables: Vec<String>,
    /// How many times longer than on the distribution's kernel a test may take.
    pub slower: u32,
    /// What its command line has besides.
    pub words: String,
}

impl Kernel {
    /// Whether its configuration has this option, built in or as a module.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        let text = fs::read_to_string(self.headers.join(".config")).unwrap_or_default();
        let (built_in, module) = (format!("{option}=y"), format!("{option}=m"));
        text.lines().any(|line| line == built_in || line == module)
    }
}

/// What was fetched: written last, so that where it lies all else lies too.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fetched {
    /// What `uname -r` will say.
    pub release: String,
    /// The packages and their versions.
    pub packages: BTreeMap<String, String>,
}

fn note(cache: &Cache, name: &str, arch: &Arch) -> PathBuf {
    let file = format!("{}.json", arch.tag(name));
    cache.root().join("kernels").join(file)
}

/// What lies in the cache for a kernel, if anything.
#[must_use]
pub fn fetched(cache: &Cache, name: &str, arch: &Arch) -> Option<Fetched> {
    let text = fs::read_to_string(note(cache, name, arch)).ok()?;
    let fetched: Fetched = serde_json::from_str(&text).ok()?;
    let image = folder(cache, &fetched.release).join("vmlinuz");
    image.exists().then_some(fetched)
}

fn folder(cache: &Cache, release: &str) -> PathBuf {
    cache.root().join("kernels").join(release)
}

/// The kernel, fetched first where it is not in the cache or `refresh` asks for the newest again.
///
/// # Errors
///
/// When no release has both image and headers, or something cannot be fetched or unpacked.
pub fn fetch(
    cache: &Cache,
    catalog: &Catalog,
    entry: &KernelEntry,
    refresh: bool,
    progress: &Progress,
) -> Result<Kernel> {
    let _lock = cache.lock("fetch")?;
    let known = fetched(cache, &entry.name, entry.arch).filter(|_| !refresh);
    let fetched = match known {
        Some(fetched) => fetched,
        None => get(cache, catalog, entry, refresh, progress)?,
    };
    let folder = folder(cache, &fetched.release);
    let root = folder.join("root");
    let modules = modules_folder(&root, &fetched.release);
    let headers = root
        .join("usr/src")
        .join(format!("linux-headers-{}", fetched.release));
    let toolchain = Toolchain::choose_for(
        cache,
        catalog,
        &entry.toolchain,
        entry.arch,
        &headers,
        progress,
    )?;
    // The machine's own kernels name their compiler themselves.
    let tools = catalog
        .toolchain_for(&entry.toolchain, entry.arch)
        .filter(|tools| !tools.arch.is_here());
    Ok(Kernel {
        name: entry.arch.tag(&entry.name),
        release: fetched.release,
        arch: entry.arch,
        variables: tools.map_or_else(Vec::new, ToolchainEntry::variables),
        image: folder.join("vmlinuz"),
        headers,
        modules,
        toolchain,
        slower: 1,
        words: String::new(),
    })
}

fn get(
    cache: &Cache,
    catalog: &Catalog,
    entry: &KernelEntry,
    refresh: bool,
    progress: &Progress,
) -> Result<Fetched> {
    let apt = Apt::of_arch(cache, catalog, &entry.suites, entry.arch)?;
    progress.step(&format!("{}: package lists", entry.arch.tag(&entry.name)));
    apt.update(refresh)?;
    let release = choose(&apt, entry)?;
    let packages = wanted(&apt, &release)?;
    let fetched = Fetched {
        release: release.clone(),
        packages: packages
            .iter()
            .map(|p| (p.name.clone(), p.version.to_string()))
            .collect(),
    };
    let folder = folder(cache, &release);
    let stamp = folder.join("packages.json");
    let text = serde_json::to_string_pretty(&fetched)
        .map_err(|error| Error::Refused(format!("{}: {error}", stamp.display())))?;
    if fs::read_to_string(&stamp).ok().as_deref() != Some(&text) {
        progress.step(&format!("{}: fetching {release}", entry.name));
        let debs = download(cache, catalog, &entry.suites, &apt, packages)?;
        progress.step(&format!("{}: unpacking {release}", entry.name));
        cache::remove(&folder)?;
        let root = folder.join("root");
        for deb in &debs {
            apt::unpack(deb, &root)?;
        }
        mend(&root)?;
        let image = image(&root, &release)?;
        let place = folder.join("vmlinuz");
        fs::copy(&image, &place).map_err(Error::io(image.display().to_string()))?;
        cache::write(&stamp, &text)?;
    }
    cache::write(&note(cache, &entry.name, entry.arch), &text)?;
    Ok(fetched)
}

/// Fetches packages of a kernel. What of them runs while building is this machine's, whatever the kernel's architecture
/// is.
pub(crate) fn download(
    cache: &Cache,
    catalog: &Catalog,
    suites: &[String],
    apt: &Apt,
    packages: Vec<Package>,
) -> Result<Vec<PathBuf>> {
    let (runs, read): (Vec<_>, Vec<_>) = packages
        .into_iter()
        .partition(|package| package.name.starts_with("linux-kbuild-"));
    let debs = cache.folder("debs")?;
    let mut found = apt.download(&read, &debs)?;
    if apt.arch().is_here() {
        found.extend(apt.download(&runs, &debs)?);
    } else {
        let ours = Apt::open(cache, catalog, suites)?;
        ours.update(false)?;
        found.extend(ours.download(&runs, &debs)?);
    }
    Ok(found)
}

/// The newest release that the suites have image and headers of.
fn choose(apt: &Apt, entry: &KernelEntry) -> Result<String> {
    let series = entry.series.as_deref();
    let flavour = entry.flavour.as_str();
    let packages = |prefix: &str| -> Result<Vec<Package>> {
        let mut names = apt.names(&format!("{prefix}{}", series.unwrap_or_default()))?;
        names.retain(|name| name.ends_with(flavour));
        apt.show(&names)
    };
    let images = packages("linux-image-")?;
    let headers = packages("linux-headers-")?;
    apt::newest(&images, &headers, flavour, series).ok_or_else(|| {
        Error::Refused(format!(
            "kernel {}: of {} images and {} headers in {} no release has both; \
             ONECOPY_VM_MIRROR may name a mirror that does",
            entry.arch.tag(&entry.name),
            images.len(),
            headers.len(),
            entry.suites.join(", ")
        ))
    })
}

/// Image and headers, and what they need of the kernel's own packages.
fn wanted(apt: &Apt, release: &str) -> Result<Vec<Package>> {
    closure(
        apt,
        vec![
            format!("linux-image-{release}"),
            format!("linux-headers-{release}"),
        ],
    )
}

/// Packages, and what they need of the kernel's own.
pub(crate) fn closure(apt: &Apt, mut open: Vec<String>) -> Result<Vec<Package>> {
    let mut seen: BTreeSet<String> = open.iter().cloned().collect();
    let mut found = Vec::new();
    while !open.is_empty() {
        let packages = apt.show(&open)?;
        if packages.len() < open.len() {
            return Err(Error::Refused(format!(
                "of {} the lists have {} only",
                open.join(", "),
                packages.len()
            )));
        }
        open = packages
            .iter()
            .flat_map(|package| &package.depends)
            .filter(|name| part_of_kernel(name) && seen.insert((*name).clone()))
            .cloned()
            .collect();
        found.extend(packages);
    }
    Ok(found)
}

/// Whether a package that another depends on is a piece of the same kernel.
fn part_of_kernel(name: &str) -> bool {
    [
        "linux-headers-",
        "linux-kbuild-",
        "linux-binary-",
        "linux-modules-",
        "linux-base-",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// Headers name one another, and the build programs, by where they would be installed: name where they lie instead.
pub(crate) fn mend(root: &Path) -> Result<()> {
    let here = root.display();
    for tree in cache::entries(&root.join("usr/src"))? {
        for name in ["Makefile", ".kernelvariables"] {
            let path = tree.join(name);
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let mended = mended(&text, &here.to_string());
            if mended != text {
                cache::write(&path, mended)?;
            }
        }
    }
    Ok(())
}

fn mended(text: &str, root: &str) -> String {
    text.replace(
        "/usr/src/linux-headers",
        &format!("{root}/usr/src/linux-headers"),
    )
    .replace(
        "/usr/lib/linux-kbuild",
        &format!("{root}/usr/lib/linux-kbuild"),
    )
    // The suite's compiler may have gone with the suite; the toolchain's is close enough for a module.
    .replace("gcc-10", "gcc-12")
}

/// Where the image lies: newer kernels have it beside their modules.
fn image(root: &Path, release: &str) -> Result<PathBuf> {
    let places = [
        root.join(format!("boot/vmlinuz-{release}")),
        root.join(format!("usr/lib/modules/{release}/vmlinuz")),
        root.join(format!("lib/modules/{release}/vmlinuz")),
    ];
    let found = places.iter().find(|path| path.exists()).cloned();
    found.ok_or_else(|| {
        Error::Refused(format!(
            "the packages of {release} have no image at any of the known places under {}",
            root.display()
        ))
    })
}

fn modules_folder(root: &Path, release: &str) -> Option<PathBuf> {
    [root.join("usr/lib/modules"), root.join("lib/modules")]
        .into_iter()
        .map(|folder| folder.join(release))
        .find(|folder| folder.join("kernel").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_mended_once() {
        let text = "include /usr/src/linux-headers-6.1.0-56-common/Makefile\nCC = gcc-10\n";
        assert_eq!(
            mended(text, "/c"),
            "include /c/usr/src/linux-headers-6.1.0-56-common/Makefile\nCC = gcc-12\n"
        );
        assert_eq!(mended("include ../x", "/c"), "include ../x");
    }

    #[test]
    fn a_kernel_is_not_the_whole_distribution() {
        assert!(part_of_kernel("linux-kbuild-6.1"));
        assert!(part_of_kernel("linux-binary-7.3.4+deb13-cloud-amd64"));
        assert!(!part_of_kernel("linux-base"));
        assert!(!part_of_kernel("initramfs-tools"));
        assert!(!part_of_kernel("linux-image-6.1.0-56-cloud-amd64"));
        assert!(!part_of_kernel("gcc-12"));
    }

    #[test]
    fn a_note_without_its_kernel_does_not_count() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::in_folder(folder.path().to_path_buf()).expect("cache");
        cache.folder("kernels/1.2.3").expect("folder");
        let text = r#"{"release":"1.2.3","packages":{}}"#;
        let here = crate::arch::here();
        cache::write(&note(&cache, "old", here), text).expect("note");
        assert!(fetched(&cache, "old", here).is_none());
        let image = folder.path().join("kernels/1.2.3/vmlinuz");
        cache::write(&image, "x").expect("image");
        let found = fetched(&cache, "old", here).expect("fetched");
        assert_eq!(found.release, "1.2.3");
        let other = crate::arch::named("arm64").expect("arm64");
        assert!(fetched(&cache, "old", other).is_none());
    }
}
