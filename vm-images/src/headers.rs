// SPDX-License-Identifier: MIT OR Apache-2.0
//! Headers of every kernel that the mirrors have, to build the module against. Nothing of them is booted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::Result;
use crate::apt::{self, Apt, Package};
use crate::arch::Arch;
use crate::cache::{self, Cache};
use crate::catalog::{Catalog, DistributionEntry, ToolchainEntry};
use crate::kernel::{self, Kernel};
use crate::progress::Progress;
use crate::toolchain::Toolchain;

/// The headers of one kernel.
#[derive(Clone, Debug)]
pub struct Headers {
    /// What `uname -r` says of that kernel.
    pub release: String,
    /// The architecture.
    pub arch: &'static Arch,
    package: Package,
}

/// All headers of a release of the distribution, the oldest first.
///
/// # Errors
///
/// When its lists cannot be fetched.
pub fn list(
    cache: &Cache,
    catalog: &Catalog,
    entry: &DistributionEntry,
    arch: &'static Arch,
    progress: &Progress,
) -> Result<Vec<Headers>> {
    progress.step(&format!("{} {}: package lists", entry.name, arch.name));
    let apt = Apt::of_arch(cache, catalog, &entry.suites, arch)?;
    apt.update(false)?;
    let mut names = apt.names(PREFIX)?;
    names.retain(|name| release(name, arch.name).is_some());
    let mut found: Vec<Headers> = apt
        .show(&names)?
        .into_iter()
        .filter_map(|package| {
            let release = release(&package.name, arch.name)?.to_owned();
            Some((release, package))
        })
        .collect::<BTreeMap<_, _>>()
        .into_iter()
        .map(|(release, package)| Headers {
            release,
            arch,
            package,
        })
        .collect();
    found.sort_by(|a, b| a.package.version.cmp(&b.package.version));
    Ok(found)
}

const PREFIX: &str = "linux-headers-";

/// The release in the name of a package with one kernel's headers. Names of metapackages have two numbers at most, and
/// `common` no architecture.
fn release<'a>(name: &'a str, arch: &str) -> Option<&'a str> {
    let release = name.strip_prefix(PREFIX)?;
    let version = release.split('-').next()?;
    // Other page sizes follow the architecture: arm64-16k.
    let ours = release.ends_with(&format!("-{arch}")) || release.contains(&format!("-{arch}-"));
    let begins = release.starts_with(|c: char| c.is_ascii_digit());
    (ours && begins && version.matches('.').count() >= 2).then_some(release)
}

impl Headers {
    /// The version's first two numbers, and the release without any version: `6.1` and `cloud-amd64`.
    #[must_use]
    pub fn series(&self) -> (String, String) {
        let version = self.release.split(['-', '+']).next().unwrap_or_default();
        let numbers: Vec<&str> = version.split('.').take(2).collect();
        let begins = self.release.find(self.arch.name).unwrap_or_default();
        let before = self.release[..begins].trim_end_matches('-');
        let kind = before.rsplit('-').next().unwrap_or_default();
        let kind = if kind.contains(|c: char| c.is_ascii_digit()) {
            ""
        } else {
            kind
        };
        (
            numbers.join("."),
            format!("{kind}-{}", &self.release[begins..]),
        )
    }
}

/// Of each series and flavour the newest.
#[must_use]
pub fn newest(all: Vec<Headers>) -> Vec<Headers> {
    let mut newest: BTreeMap<_, Headers> = BTreeMap::new();
    for headers in all {
        // The oldest come first.
        newest.insert(headers.series(), headers);
    }
    newest.into_values().collect()
}

/// Where the headers of a kernel are unpacked.
fn folder(cache: &Cache, headers: &Headers) -> PathBuf {
    cache.root().join("headers").join(&headers.release)
}

/// Fetches and unpacks headers, with what compiles for them.
///
/// # Errors
///
/// When something cannot be fetched or unpacked.
pub fn fetch(
    cache: &Cache,
    catalog: &Catalog,
    entry: &DistributionEntry,
    headers: &Headers,
    progress: &Progress,
) -> Result<Kernel> {
    let _lock = cache.lock("headers")?;
    progress.step(&format!("{}: fetching", headers.release));
    let apt = Apt::of_arch(cache, catalog, &entry.suites, headers.arch)?;
    apt.update(false)?;
    let packages = kernel::closure(&apt, vec![headers.package.name.clone()])?;
    let found = kernel::download(cache, catalog, &entry.suites, &apt, packages)?;
    let root = folder(cache, headers);
    cache::remove(&root)?;
    for deb in &found {
        apt::unpack(deb, &root)?;
    }
    kernel::mend(&root)?;
    let source = root.join("usr/src").join(&headers.package.name);
    let toolchain = Toolchain::choose_for(
        cache,
        catalog,
        &entry.toolchain,
        headers.arch,
        &source,
        progress,
    )?;
    // With this compiler, whichever the distribution's kernel was compiled with.
    let tools = catalog.toolchain_for(&entry.toolchain, headers.arch);
    Ok(Kernel {
        arch: headers.arch,
        variables: tools.map_or_else(Vec::new, ToolchainEntry::variables),
        name: headers.release.clone(),
        release: headers.release.clone(),
        image: PathBuf::new(),
        headers: source,
        modules: None,
        toolchain,
        slower: 1,
        words: String::new(),
    })
}

/// Removes what [`fetch`] unpacked: what was fetched stays.
///
/// # Errors
///
/// When it cannot be removed.
pub fn forget(cache: &Cache, headers: &Headers) -> Result<()> {
    cache::remove(&folder(cache, headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_kernel_are_told_from_the_rest() {
        let release_of = |name| release(name, "amd64");
        let name = "linux-headers-6.1.0-56-cloud-amd64";
        assert_eq!(release_of(name), Some("6.1.0-56-cloud-amd64"));
        let name = "linux-headers-7.3.4+deb13-rt-amd64";
        assert_eq!(release_of(name), Some("7.3.4+deb13-rt-amd64"));
        for name in [
            "linux-headers-amd64",
            "linux-headers-6.1-amd64",
            "linux-headers-6.1.0-56-common",
            "linux-headers-6.1.0-56-arm64",
            "linux-image-6.1.0-56-amd64",
        ] {
            assert_eq!(release_of(name), None, "{name}");
        }
        let series = |release: &str, arch: &str| {
            Headers {
                release: release.to_owned(),
                arch: crate::arch::named(arch).expect("architecture"),
                package: Package {
                    name: String::new(),
                    version: "1".parse().expect("version"),
                    depends: Vec::new(),
                },
            }
            .series()
        };
        let is = |found: (String, String), a: &str, b: &str| {
            assert_eq!(found, (a.to_owned(), b.to_owned()));
        };
        is(
            series("6.1.0-0.deb11.48-rt-amd64", "amd64"),
            "6.1",
            "rt-amd64",
        );
        is(series("6.12.117+deb12-amd64", "amd64"), "6.12", "-amd64");
        is(series("7.3.4-arm64-16k", "arm64"), "7.3", "-arm64-16k");
        let name = "linux-headers-7.3.4-arm64-16k";
        assert_eq!(release(name, "arm64"), Some("7.3.4-arm64-16k"));
    }
}
