// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that are built here, from the distribution's source and a small configuration: what finds mistakes is in no
//! package.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use crate::apt::Apt;
use crate::arch;
use crate::cache::{self, Cache};
use crate::catalog::{Catalog, ProfileEntry};
use crate::kernel::{self, Kernel};
use crate::program::{self, find, gentle};
use crate::progress::Progress;
use crate::toolchain::Toolchain;
use crate::{Error, Result, guest};

/// What compiles these kernels, and modules for them.
pub const COMPILER: &str = "gcc";
/// What building a kernel takes besides the compiler: programs, and the packages that have them.
const TOOLS: &[(&str, &str)] = &[
    (COMPILER, "gcc"),
    ("make", "make"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("xz", "xz-utils"),
    ("tar", "tar"),
];
const SCRIPT: &str = "build-kernel.sh";

/// Whether a profile's kernel is built.
#[must_use]
pub fn is_built(cache: &Cache, profile: &ProfileEntry) -> bool {
    folder(cache, profile).join("release").exists()
}

/// What a profile is built from, in words.
#[must_use]
pub fn package_name(profile: &ProfileEntry) -> String {
    let own = || "of its series".to_owned();
    profile.source.clone().unwrap_or_else(own)
}

fn folder(cache: &Cache, profile: &ProfileEntry) -> std::path::PathBuf {
    let name = format!("{}-{}", profile.kernel, profile.name);
    cache.root().join("kernels").join(name)
}

/// The profile's kernel, built first where it is missing or its configuration has changed.
///
/// # Errors
///
/// When it cannot be fetched or built.
pub fn build(
    cache: &Cache,
    catalog: &Catalog,
    profile: &ProfileEntry,
    progress: &Progress,
) -> Result<Kernel> {
    let folder = folder(cache, profile);
    let tree = folder.join("build");
    let image = tree.join("arch/x86/boot/bzImage");
    let stamp = folder.join("release");
    let wanted = configuration(profile)?;
    let package = package(cache, catalog, profile, progress)?;
    let series = series_of(&package);
    // A run of one kernel does not wait for the build of another: the stamp comes last.
    let is_current = || {
        let same = fs::read(tree.join("configured")).is_ok_and(|have| have == wanted);
        let release = fs::read_to_string(&stamp).unwrap_or_default();
        same && is_of(release.trim(), series) && image.exists()
    };
    let lock = if is_current() {
        None
    } else {
        Some(cache.lock("source")?)
    };
    if lock.is_some() && !is_current() {
        match fs::remove_file(&stamp) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(stamp.display().to_string())(error));
            }
            _ => {}
        }
        require_tools()?;
        let source = fetch(cache, catalog, profile, &package, progress)?;
        // What another source's build left is no beginning.
        let made = tree.join("include/config/kernel.release");
        if !is_of(&fs::read_to_string(made).unwrap_or_default(), series) {
            cache::remove(&tree)?;
        }
        compile(profile, &folder, &source, progress)?;
        let release = fs::read_to_string(tree.join("include/config/kernel.release"))
            .map_err(Error::io("the release of the kernel just built"))?;
        cache::write(&stamp, release.trim())?;
    }
    let release = cache::read(&stamp)?;
    Ok(Kernel {
        name: format!("{}-{}", profile.kernel, profile.name),
        release,
        image,
        headers: tree,
        modules: None,
        arch: arch::here(),
        toolchain: Toolchain::Host {
            compiler: COMPILER.to_owned(),
        },
        variables: Vec::new(),
        slower: profile.slower,
        words: profile.words.clone(),
    })
}

/// Sees that all is there that building a kernel takes.
fn require_tools() -> Result<()> {
    for (tool, package) in TOOLS {
        find(tool, package)?;
    }
    if Path::new("/usr/include/libelf.h").exists() {
        return Ok(());
    }
    Err(Error::Missing {
        what: "libelf.h".to_owned(),
        packages: "libelf-dev".to_owned(),
    })
}

/// The source of a profile's kernel, unpacked: its scripts are in no other package.
///
/// # Errors
///
/// When it cannot be fetched or unpacked.
pub fn tree(
    cache: &Cache,
    catalog: &Catalog,
    profile: &ProfileEntry,
    progress: &Progress,
) -> Result<std::path::PathBuf> {
    let package = package(cache, catalog, profile, progress)?;
    let place = cache.folder("source")?.join(&package);
    // It came there whole; other builds now only read it.
    if place.join("Makefile").exists() {
        return Ok(place);
    }
    let _lock = cache.lock("source")?;
    fetch(cache, catalog, profile, &package, progress)
}

/// What the names of packages with a kernel's source begin with.
const SOURCE: &str = "linux-source-";

/// The package with a profile's source. It is the one that is named, or that of the series of the kernel as the
/// distribution built it. That kernel is fetched first where it is missing.
fn package(
    cache: &Cache,
    catalog: &Catalog,
    profile: &ProfileEntry,
    progress: &Progress,
) -> Result<String> {
    if let Some(source) = &profile.source {
        return Ok(source.clone());
    }
    let release = match kernel::fetched(cache, &profile.kernel, arch::here()) {
        Some(fetched) => fetched.release,
        None => {
            let entry = catalog.kernel(&profile.kernel)?;
            kernel::fetch(cache, catalog, entry, false, progress)?.release
        }
    };
    let series = series(&release)
        .ok_or_else(|| Error::Refused(format!("kernel {release}: of no series that has a name")))?;
    Ok(format!("{SOURCE}{series}"))
}

/// The first two numbers of a release.
fn series(release: &str) -> Option<&str> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.find(|c: char| !c.is_ascii_digit());
    let end = major.len() + 1 + minor.unwrap_or(rest.len());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let series = &release[..end];
    let both = is_number(major) && is_number(&series[major.len() + 1..]);
    both.then_some(series)
}

fn series_of(package: &str) -> Option<&str> {
    package.strip_prefix(SOURCE).and_then(series)
}

/// Whether a release that was built is of the series of its source, as far as that has one.
fn is_of(release: &str, wanted: Option<&str>) -> bool {
    match series(release) {
        None => false,
        have => wanted.is_none() || have == wanted,
    }
}

fn configuration(profile: &ProfileEntry) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for name in &profile.fragments {
        let piece =
            guest::fragment(name).ok_or_else(|| Error::Refused(format!("no file debug/{name}")))?;
        text.extend_from_slice(piece);
    }
    Ok(text)
}

/// The unpacked source.
fn fetch(
    cache: &Cache,
    catalog: &Catalog,
    profile: &ProfileEntry,
    package: &str,
    progress: &Progress,
) -> Result<std::path::PathBuf> {
    let sources = cache.folder("source")?;
    let place = sources.join(package);
    if place.join("Makefile").exists() {
        return Ok(place);
    }
    progress.step(&format!("fetching {}", package));
    let apt = Apt::open(cache, catalog, &profile.suites)?;
    apt.update(false)?;
    let packages = apt.show(&[package.to_owned()])?;
    let debs = apt.download(&packages, &cache.folder("debs")?)?;
    let Some(deb) = debs.first() else {
        return Err(Error::Refused(format!(
            "{} has no package {}",
            profile.suites.join(", "),
            package
        )));
    };
    progress.step(&format!("unpacking {}", package));
    let part = sources.join(format!("{}.part", package));
    cache::remove(&part)?;
    crate::apt::unpack(deb, &part)?;
    let tar = part.join(format!("usr/src/{}.tar.xz", package));
    program::output(gentle("tar").arg("xJf").arg(&tar).arg("-C").arg(&part))?;
    let tree = part.join(package);
    fs::rename(&tree, &place).map_err(Error::io(tree.display().to_string()))?;
    cache::remove(&part)?;
    Ok(place)
}

fn compile(
    profile: &ProfileEntry,
    folder: &Path,
    source: &Path,
    progress: &Progress,
) -> Result<()> {
    progress.step(&format!(
        "building kernel {}-{}: about ten minutes on two processors",
        profile.kernel, profile.name
    ));
    cache::make(folder)?;
    let mut names = vec![SCRIPT];
    names.extend(profile.fragments.iter().map(String::as_str));
    for name in &names {
        let content =
            guest::fragment(name).ok_or_else(|| Error::Refused(format!("no file debug/{name}")))?;
        cache::write(&folder.join(name), content)?;
    }
    let log = folder.join("build.log");
    let file = File::create(&log).map_err(Error::io(log.display().to_string()))?;
    let copy = file
        .try_clone()
        .map_err(Error::io(log.display().to_string()))?;
    let mut command = gentle("bash");
    command
        .arg(folder.join(SCRIPT))
        .arg(source)
        .arg(folder.join("build"));
    for name in &names[1..] {
        command.arg(folder.join(name));
    }
    command.env("LC_ALL", "C");
    let status = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .status()
        .map_err(Error::io(program::line(&command)))?;
    if status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(&log).unwrap_or_default();
    Err(Error::Program {
        command: program::line(&command),
        status: status.to_string(),
        tail: program::tail(&text, 30),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_tells_its_series() {
        assert_eq!(series("7.3.4+deb13-cloud-amd64"), Some("7.3"));
        assert_eq!(series("6.1.0-56-cloud-amd64"), Some("6.1"));
        assert_eq!(series("7.3"), Some("7.3"));
        assert_eq!(series("7.10~rc1"), Some("7.10"));
        for none in ["", "7", "7.", ".3", "v7.3", "7.x"] {
            assert_eq!(series(none), None, "{none}");
        }
        assert_eq!(series_of("linux-source-6.1"), Some("6.1"));
        assert_eq!(series_of("linux-source"), None);
    }

    #[test]
    fn a_kernel_of_another_series_is_not_current() {
        assert!(is_of("7.3.4", Some("7.3")));
        assert!(!is_of("7.2.12", Some("7.3")));
        assert!(!is_of("7.30.1", Some("7.3")));
        assert!(!is_of("", Some("7.3")));
        assert!(!is_of("", None));
        assert!(is_of("6.1.192", None));
    }
}
