// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages of several suites, with lists of our own: the host's lists, keys and packages stay as they are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::arch::{self, Arch};
use crate::cache::{self, Cache};
use crate::catalog::Catalog;
use crate::mirrors::Mirrors;
use crate::program::{self, find, gentle};
use crate::version::Version;
use crate::{Error, Result};

/// Lists older than this are fetched again before something is fetched by them.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// The list of packages that are installed, in apt's folder.
const STATUS: &str = "status";

/// What a list says of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: Version,
    /// What it depends on: of alternatives the first, without versions.
    pub depends: Vec<String>,
}

/// The packages of a few suites.
#[derive(Debug)]
pub struct Apt {
    apt_get: PathBuf,
    apt_cache: PathBuf,
    options: Vec<String>,
    folder: PathBuf,
    stamp: PathBuf,
    arch: &'static Arch,
}

impl Apt {
    /// Prepares lists for these suites; fetches nothing yet.
    ///
    /// # Errors
    ///
    /// When apt or the keyring is missing, or the cache cannot be written.
    pub fn open(cache: &Cache, catalog: &Catalog, suites: &[String]) -> Result<Self> {
        Self::with_lists(cache, catalog, suites, "deb", arch::here())
    }

    /// As [`Self::open`], with the suites' source packages too.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn with_sources(cache: &Cache, catalog: &Catalog, suites: &[String]) -> Result<Self> {
        Self::with_lists(cache, catalog, suites, "deb deb-src", arch::here())
    }

    /// As [`Self::open`], for an architecture.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn of_arch(
        cache: &Cache,
        catalog: &Catalog,
        suites: &[String],
        arch: &'static Arch,
    ) -> Result<Self> {
        Self::with_lists(cache, catalog, suites, "deb", arch)
    }

    fn with_lists(
        cache: &Cache,
        catalog: &Catalog,
        suites: &[String],
        types: &str,
        arch: &'static Arch,
    ) -> Result<Self> {
        let apt_get = find("apt-get", "apt")?;
        let apt_cache = find("apt-cache", "apt")?;
        let lists = Mirrors::of_machine()?.stanzas(suites, types, arch.name, &catalog.keyring)?;
        let mut name = suites.join("+");
        if types != "deb" {
            name.push_str("+sources");
        }
        if !arch.is_here() {
            name = format!("{name}+{}", arch.name);
        }
        let folder = cache.folder("apt")?;
        cache.folder("apt/state/lists/partial")?;
        cache.folder("apt/cache/archives/partial")?;
        let list = folder.join(format!("{name}.sources"));
        let stamp = folder.join(format!("{name}.updated"));
        if cache::read(&list).ok().as_deref() != Some(&lists) {
            cache::write(&list, &lists)?;
            // Another mirror, other lists.
            let _ = std::fs::remove_file(&stamp);
        }
        // An empty list of installed packages: what we fetch must be whole by itself.
        cache::write(&folder.join(STATUS), "")?;
        Ok(Self {
            apt_get,
            apt_cache,
            options: Self::options(&folder, &list, arch),
            folder,
            stamp,
            arch,
        })
    }

    /// What keeps apt to a folder of ours and to a list of sources.
    fn options(folder: &Path, list: &Path, arch: &Arch) -> Vec<String> {
        let place = |name: &str, path: &Path| format!("{name}={}", path.display());
        vec![
            place("Dir::State", &folder.join("state")),
            place("Dir::State::Lists", &folder.join("state/lists")),
            place("Dir::State::status", &folder.join(STATUS)),
            place("Dir::Cache", &folder.join("cache")),
            place("Dir::Etc::sourcelist", list),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            "Dir::Cache::pkgcache=".to_owned(),
            "Dir::Cache::srcpkgcache=".to_owned(),
            format!("APT::Architecture={}", arch.name),
            format!("APT::Architectures={}", arch.name),
            "APT::Sandbox::User=".to_owned(),
            // The suites of one kernel must not throw away the lists of another.
            "APT::Get::List-Cleanup=false".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::CNF::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false".to_owned(),
            "Debug::NoLocking=true".to_owned(),
        ]
    }

    /// Takes packages from this suite where it has them. Of several suites apt prefers the release itself to its
    /// backports.
    #[must_use]
    pub fn prefer(mut self, suite: &str) -> Self {
        self.options.push(format!("APT::Default-Release={suite}"));
        self
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = gentle(program);
        command.env("LC_ALL", "C").env_remove("APT_CONFIG");
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command
    }

    /// Fetches the lists where they are old or `now` is set.
    ///
    /// # Errors
    ///
    /// When they cannot be fetched.
    pub fn update(&self, now: bool) -> Result<()> {
        let age = std::fs::metadata(&self.stamp)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|then| SystemTime::now().duration_since(then).ok());
        if !now && age.is_some_and(|age| age < FRESH) {
            return Ok(());
        }
        program::output(self.command(&self.apt_get).args(["-q", "update"]))?;
        cache::write(&self.stamp, "")
    }

    /// The names of the packages that begin so.
    ///
    /// # Errors
    ///
    /// When the lists cannot be read.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let text = program::output(self.command(&self.apt_cache).args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// What the lists say of packages: of each its highest version; nothing of those that are not there.
    ///
    /// # Errors
    ///
    /// When the lists cannot be read.
    pub fn show(&self, names: &[String]) -> Result<Vec<Package>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = self.command(&self.apt_cache);
        command.args(["show", "--no-all-versions"]).args(names);
        // It fails where one of the names is not there, and shows the others.
        let output = program::run(&mut command)?;
        Ok(stanzas(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Fetches packages into a folder, in the versions named; apt checks their sums. Those that lie there already are
    /// not fetched again.
    ///
    /// # Errors
    ///
    /// When one cannot be fetched.
    pub fn download(&self, packages: &[Package], into: &Path) -> Result<Vec<PathBuf>> {
        cache::make(into)?;
        let place = |package: &Package| find_deb(into, &package.name, &package.version, self.arch);
        let missing: Vec<String> = packages
            .iter()
            .filter(|package| place(package).is_none())
            .map(|package| format!("{}={}", package.name, package.version))
            .collect();
        if !missing.is_empty() {
            let mut command = self.command(&self.apt_get);
            command.args(["-q", "download"]).args(&missing);
            program::output(command.current_dir(into))?;
        }
        packages
            .iter()
            .map(|package| {
                place(package).ok_or_else(|| {
                    Error::Refused(format!(
                        "apt-get download said that it fetched {} {}, but {} has no such file",
                        package.name,
                        package.version,
                        into.display()
                    ))
                })
            })
            .collect()
    }

    /// Fetches the authors' archive of a source package, without the distribution's changes; apt checks its sum.
    ///
    /// # Errors
    ///
    /// When it cannot be fetched.
    pub fn download_source(&self, name: &str, into: &Path) -> Result<PathBuf> {
        cache::make(into)?;
        let mut command = self.command(&self.apt_get);
        command
            .args(["-q", "source", "--download-only", "--tar-only"])
            .arg(name);
        program::output(command.current_dir(into))?;
        let mut archives = cache::entries(into)?;
        archives.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.contains(".orig.tar.")
        });
        archives.pop().ok_or_else(|| {
            Error::Refused(format!(
                "apt-get source said that it fetched {name}, but {} has no archive",
                into.display()
            ))
        })
    }

    /// Fetches packages with all that they depend on, as into an empty system.
    ///
    /// # Errors
    ///
    /// When one cannot be fetched.
    pub fn download_closure(&self, names: &[&str], into: &Path) -> Result<Vec<PathBuf>> {
        cache::make(&into.join("partial"))?;
        let mut command = self.command(&self.apt_get);
        command
            .arg("-o")
            .arg(format!("Dir::Cache::archives={}", into.display()))
            .args(["-q", "-y", "--download-only", "--no-install-recommends"])
            .arg("install")
            .args(names);
        program::output(&mut command)?;
        let mut debs = cache::entries(into)?;
        debs.retain(|path| path.extension().is_some_and(|end| end == "deb"));
        debs.sort();
        Ok(debs)
    }

    /// The architecture.
    #[must_use]
    pub fn arch(&self) -> &'static Arch {
        self.arch
    }

    /// The folder of the lists.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Unpacks a package beside the host: nothing of it runs.
///
/// # Errors
///
/// When it cannot be read or written.
pub fn unpack(deb: &Path, into: &Path) -> Result<()> {
    cache::make(into)?;
    let dpkg = find("dpkg-deb", "dpkg")?;
    program::output(gentle(dpkg).arg("-x").arg(deb).arg(into))?;
    Ok(())
}

/// The file of a package: `NAME_VERSION_ARCH.deb`, an epoch's colon written `%3a`.
fn find_deb(folder: &Path, name: &str, version: &Version, arch: &Arch) -> Option<PathBuf> {
    let version = version.to_string().replace(':', "%3a");
    [arch.name, "all"]
        .iter()
        .map(|arch| folder.join(format!("{name}_{version}_{arch}.deb")))
        .find(|path| path.exists())
}

/// Reads what `apt-cache show` writes.
fn stanzas(text: &str) -> Vec<Package> {
    text.split("\n\n").filter_map(stanza).collect()
}

fn stanza(text: &str) -> Option<Package> {
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let first = |alternatives: &str| {
        let name = alternatives.split('|').next()?.trim();
        let end = name.find([' ', '(', ':']).unwrap_or(name.len());
        (end > 0).then(|| name[..end].to_owned())
    };
    Some(Package {
        name: field("Package")?.to_owned(),
        version: field("Version")?.parse().ok()?,
        depends: field("Depends")
            .unwrap_or_default()
            .split(',')
            .filter_map(first)
            .collect(),
    })
}

/// Of images and headers, the newest release that has both, in the same version. `prefix` is what the names of images
/// begin with.
#[must_use]
pub fn newest(
    images: &[Package],
    headers: &[Package],
    flavour: &str,
    series: Option<&str>,
) -> Option<String> {
    let release = |package: &Package, prefix: &str| {
        let release = package.name.strip_prefix(prefix)?;
        let version = release.strip_suffix(flavour)?.strip_suffix('-')?;
        let begins = version.starts_with(|c: char| c.is_ascii_digit());
        // Names of metapackages have two numbers at most.
        let whole = version.matches('.').count() >= 2;
        // Another flavour may end as this one does.
        let kind = version.rsplit('-').next().unwrap_or_default();
        let ours = !kind.chars().all(|c| c.is_ascii_alphabetic());
        let in_series = series.is_none_or(|series| {
            version
                .strip_prefix(series)
                .is_some_and(|rest| rest.starts_with('.'))
        });
        (begins && whole && ours && in_series).then(|| release.to_owned())
    };
    let with_headers: BTreeSet<(String, String)> = headers
        .iter()
        .filter_map(|p| Some((release(p, "linux-headers-")?, p.version.to_string())))
        .collect();
    images
        .iter()
        .filter_map(|p| Some((release(p, "linux-image-")?, p.version.clone())))
        .filter(|(release, version)| with_headers.contains(&(release.clone(), version.to_string())))
        .max_by(|a, b| a.1.cmp(&b.1))
        .map(|(release, _)| release)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: version.parse().expect("version"),
            depends: Vec::new(),
        }
    }

    #[test]
    fn a_stanza_is_read() {
        let text = "Package: linux-headers-6.12.117+deb12-cloud-amd64\nSource: linux-6.12\n\
            Version: 6.12.117-1~deb12u1\nDepends: linux-base (>= 4.12~), linux-kbuild-6.12 | other, gcc-12:amd64\n\
            Description: x\n Version: not this\n\nPackage: b\nVersion: 2:1-1\n";
        let found = stanzas(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].name, "linux-headers-6.12.117+deb12-cloud-amd64");
        assert_eq!(found[0].version.to_string(), "6.12.117-1~deb12u1");
        assert_eq!(
            found[0].depends,
            ["linux-base", "linux-kbuild-6.12", "gcc-12"]
        );
        assert_eq!(found[1].version.to_string(), "2:1-1");
        assert!(found[1].depends.is_empty());
    }

    #[test]
    fn the_newest_with_both_is_taken() {
        // By text 6.1.0-9 would be the newest, and 7.3.10 older than 7.3.9.
        let images = [
            package("linux-image-6.1.0-9-cloud-amd64", "6.1.27-1"),
            package("linux-image-6.1.0-56-cloud-amd64", "6.1.192-2"),
            package("linux-image-6.1.0-56-cloud-amd64-dbg", "6.1.192-2"),
            package("linux-image-6.1-cloud-amd64", "6.1.192-2"),
            package("linux-image-6.12.9+deb13-cloud-amd64", "6.12.9-1"),
            package("linux-image-7.3.9+deb13-cloud-amd64", "7.3.9-1~bpo13+1"),
            package("linux-image-7.3.10+deb13-cloud-amd64", "7.3.10-1~bpo13+1"),
        ];
        let headers: Vec<Package> = images
            .iter()
            .filter(|p| !p.name.contains("7.3.10"))
            .map(|p| package(&p.name.replace("image", "headers"), &p.version.to_string()))
            .collect();
        let pick = |series| newest(&images, &headers, "cloud-amd64", series);
        assert_eq!(pick(Some("6.1")).as_deref(), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(pick(None).as_deref(), Some("7.3.9+deb13-cloud-amd64"));
        assert_eq!(pick(Some("5.10")), None);
        assert_eq!(newest(&images, &headers, "amd64", None), None);
        let rebuilt = [package(
            "linux-headers-7.3.10+deb13-cloud-amd64",
            "7.3.10-2",
        )];
        assert_eq!(newest(&images, &rebuilt, "cloud-amd64", None), None);
    }

    #[test]
    fn the_file_of_a_package_is_found() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("gcc_4%3a12.2-1_amd64.deb");
        std::fs::write(&path, "").expect("file");
        let found = find_deb(
            folder.path(),
            "gcc",
            &"4:12.2-1".parse().expect("version"),
            arch::here(),
        );
        assert_eq!(found, Some(path));
    }
}
