// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kernels.toml`: which kernels there are.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::arch::{self, Arch};
use crate::{Error, Result, guest};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// What their signatures are checked with.
    pub keyring: String,
    /// Kernels that the distribution built.
    #[serde(rename = "kernel")]
    pub kernels: Vec<KernelEntry>,
    /// What compiles for them.
    #[serde(rename = "toolchain")]
    pub toolchains: Vec<ToolchainEntry>,
    /// Kernels that are built here.
    #[serde(rename = "profile")]
    pub profiles: Vec<ProfileEntry>,
    /// Releases of the distribution, for whose every kernel the module is to be built.
    #[serde(rename = "distribution", default)]
    pub distributions: Vec<DistributionEntry>,
    /// Kernels with a software device for RDMA: `rdma-` and the name of one above.
    #[serde(rename = "bed", default)]
    pub beds: Vec<KernelEntry>,
    /// What the guests of beds have beside the kernel.
    pub rdma: RdmaEntry,
    /// What guests of other architectures have beside the kernel.
    #[serde(rename = "userland", default)]
    pub userlands: Vec<UserlandEntry>,
}

/// A release of the distribution.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DistributionEntry {
    /// What it is called here.
    pub name: String,
    /// Where its kernels are.
    pub suites: Vec<String>,
    /// What compiles for them.
    pub toolchain: String,
}

/// What the guests of beds for RDMA have beside the kernel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaEntry {
    /// Modules, in the order in which they are loaded. Each brings what it depends on; what the kernel has built in, or
    /// has not, is left out.
    pub modules: Vec<String>,
    /// Where packages come from.
    pub suites: Vec<String>,
    /// The packages: nothing is added for what they depend on.
    pub packages: Vec<String>,
    /// Programs of theirs.
    pub programs: Vec<String>,
    /// Libraries of theirs that are opened by name, from the folder of libraries on.
    pub plugins: Vec<String>,
}

/// What builds programs for another architecture, and what they find in its guests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserlandEntry {
    /// The architecture.
    #[serde(deserialize_with = "arch_named")]
    pub arch: &'static Arch,
    /// Where its packages come from.
    pub suites: Vec<String>,
    /// Of these suites the one whose packages are taken where it has them.
    pub prefer: String,
    /// What runs while building: packages of this machine's architecture, with all that they depend on.
    pub build: Vec<String>,
    /// What is linked in, of the other one, in the very versions of `build`.
    pub link: Vec<String>,
    /// What lies in the guest: busybox, the C library.
    pub guest: Vec<String>,
}

/// A kernel that the distribution built.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelEntry {
    /// What it is called here.
    pub name: String,
    /// Its architecture.
    #[serde(default = "here", deserialize_with = "arch_named")]
    pub arch: &'static Arch,
    /// The versions it may have: `6.1` takes every 6.1.x; without it, any.
    pub series: Option<String>,
    /// The end of its packages' names.
    pub flavour: String,
    /// Where it is looked for.
    pub suites: Vec<String>,
    /// What compiles for it.
    pub toolchain: String,
    /// Whether each change is tested on it.
    #[serde(default)]
    pub ci: bool,
}

/// What compiles modules.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolchainEntry {
    /// What it is called here.
    pub name: String,
    /// Where its packages come from.
    pub suites: Vec<String>,
    /// The compiler's program and package.
    pub compiler: String,
    /// For another architecture; where none is named, for the machines on which this runs.
    #[serde(default = "here", deserialize_with = "arch_named")]
    pub arch: &'static Arch,
    /// What the kernel's build programs need besides.
    pub packages: Vec<String>,
}

fn here() -> &'static Arch {
    arch::here()
}

fn arch_named<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<&'static Arch, D::Error> {
    let name = String::deserialize(from)?;
    arch::named(&name).map_err(D::Error::custom)
}

impl ToolchainEntry {
    /// What its programs' names begin with.
    fn prefix(&self) -> &'static str {
        if self.arch.is_here() {
            ""
        } else {
            self.arch.prefix
        }
    }

    /// What make is told, so that it compiles for the architecture with this compiler, whichever the distribution's
    /// kernel was compiled with.
    #[must_use]
    pub fn variables(&self) -> Vec<String> {
        let mut variables = vec![format!("CC={}", self.program())];
        if !self.arch.is_here() {
            variables.push(format!("CROSS_COMPILE={}", self.arch.prefix));
            variables.push(format!("ARCH={}", self.arch.kernel));
        }
        variables
    }

    /// The compiler's program.
    #[must_use]
    pub fn program(&self) -> String {
        format!("{}{}", self.prefix(), self.compiler)
    }

    /// The package that it is in.
    #[must_use]
    pub fn package(&self) -> String {
        match self.prefix().strip_suffix('-') {
            Some(machine) => format!("{}-{machine}", self.compiler),
            None => self.compiler.clone(),
        }
    }
}

/// A kernel that is built here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileEntry {
    /// What it is called here.
    pub name: String,
    /// The kernel whose profile it is.
    pub kernel: String,
    /// The package with the source; where none is named, that of the kernel's own series.
    pub source: Option<String>,
    /// Where that comes from.
    pub suites: Vec<String>,
    /// Its configuration on top of the least possible: files in `debug/`.
    pub fragments: Vec<String>,
    /// How many times longer than on the distribution's kernel a test may take.
    pub slower: u32,
    /// What its command line has besides.
    #[serde(default)]
    pub words: String,
}

/// The name of the profile that means a kernel as the distribution built it.
pub const RELEASE: &str = "release";

/// What the names of kernels for RDMA begin with.
const BED: &str = "rdma-";

impl Catalog {
    /// The file that is part of this program.
    ///
    /// # Errors
    ///
    /// When it contradicts itself.
    pub fn load() -> Result<Self> {
        Self::parse(guest::KERNELS)
    }

    /// Parses and checks.
    ///
    /// # Errors
    ///
    /// When it is malformed or contradicts itself.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |why: String| Error::Refused(format!("kernels.toml: {why}"));
        let catalog: Self = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
        catalog.check().map_err(refuse)?;
        Ok(catalog)
    }

    /// Finds contradictions.
    fn check(&self) -> std::result::Result<(), String> {
        for kernel in &self.kernels {
            self.check_kernel(kernel)?;
        }
        for bed in &self.beds {
            if !self.toolchains.iter().any(|t| t.name == bed.toolchain) {
                return Err(format!("bed {}: no toolchain {}", bed.name, bed.toolchain));
            }
        }
        for entry in &self.distributions {
            let (name, toolchain) = (&entry.name, &entry.toolchain);
            if self.toolchain(toolchain).is_none() {
                return Err(format!("distribution {name}: no toolchain {toolchain}"));
            }
        }
        self.profiles
            .iter()
            .try_for_each(|profile| self.check_profile(profile))
    }

    fn check_kernel(&self, kernel: &KernelEntry) -> std::result::Result<(), String> {
        let name = kernel.arch.tag(&kernel.name);
        let toolchain = &kernel.toolchain;
        if self.toolchain_for(toolchain, kernel.arch).is_none() {
            let wanted = kernel.arch.tag(toolchain);
            return Err(format!("kernel {name}: no toolchain {wanted}"));
        }
        if !kernel.arch.is_here() && self.userland(kernel.arch).is_none() {
            let arch = kernel.arch.name;
            return Err(format!("kernel {name}: no userland for {arch}"));
        }
        Ok(())
    }

    fn check_profile(&self, profile: &ProfileEntry) -> std::result::Result<(), String> {
        let (name, kernel) = (&profile.name, &profile.kernel);
        if name == RELEASE {
            return Err(format!("{RELEASE} is no name for a profile"));
        }
        if !self.kernels_for(arch::here()).any(|k| &k.name == kernel) {
            return Err(format!("profile {name}: no kernel {kernel}"));
        }
        let same = |p: &&ProfileEntry| &p.name == name && &p.kernel == kernel;
        if self.profiles.iter().filter(same).count() > 1 {
            return Err(format!("profile {name}: twice for kernel {kernel}"));
        }
        let mut fragments = profile.fragments.iter();
        match fragments.find(|fragment| guest::fragment(fragment).is_none()) {
            Some(fragment) => Err(format!("profile {name}: no file debug/{fragment}")),
            None => Ok(()),
        }
    }

    /// The kernels of an architecture.
    pub fn kernels_for(&self, arch: &'static Arch) -> impl Iterator<Item = &KernelEntry> {
        self.kernels.iter().filter(move |k| k.arch == arch)
    }

    /// The kernel of that name, for the machines on which this runs.
    ///
    /// # Errors
    ///
    /// When there is none; the error lists those that there are.
    pub fn kernel(&self, name: &str) -> Result<&KernelEntry> {
        self.kernel_for(name, arch::here())
    }

    /// The kernel of that name for an architecture.
    ///
    /// # Errors
    ///
    /// As for [`Self::kernel`].
    pub fn kernel_for(&self, name: &str, arch: &'static Arch) -> Result<&KernelEntry> {
        let found = self.kernels_for(arch).find(|k| k.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.kernels_for(arch).map(|k| k.name.as_str()).collect();
            let arch = if arch.is_here() {
                String::new()
            } else {
                format!(" for {}", arch.name)
            };
            Error::Refused(format!(
                "no kernel '{name}'{arch}; there are {}",
                names.join(", ")
            ))
        })
    }

    /// The kernel for RDMA that goes by the name of another one.
    ///
    /// # Errors
    ///
    /// When there is none; the error lists those that there are.
    pub fn bed(&self, name: &str) -> Result<&KernelEntry> {
        let plain = |bed: &KernelEntry| bed.name.trim_start_matches(BED).to_owned();
        let name = name.trim_start_matches(BED);
        let mut beds = self.beds.iter();
        beds.find(|bed| plain(bed) == name).ok_or_else(|| {
            let names: Vec<String> = self.beds.iter().map(plain).collect();
            Error::Refused(format!(
                "no kernel '{name}' with a software device for RDMA; there are {}",
                names.join(", ")
            ))
        })
    }

    /// The profile of that name; none for the distribution's own build.
    ///
    /// # Errors
    ///
    /// When there is none, or it is another kernel's.
    pub fn profile(&self, name: &str, kernel: &str) -> Result<Option<&ProfileEntry>> {
        self.profile_for(name, kernel, arch::here())
    }

    /// As [`Self::profile`], for a kernel of an architecture: only kernels of this machine's own are built here.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn profile_for(
        &self,
        name: &str,
        kernel: &str,
        arch: &'static Arch,
    ) -> Result<Option<&ProfileEntry>> {
        if name == RELEASE {
            return Ok(None);
        }
        if !arch.is_here() {
            return Err(Error::Refused(format!(
                "profile '{name}' is built for {} only; for {} there is {RELEASE}",
                arch::here().name,
                arch.name
            )));
        }
        let named = || self.profiles.iter().filter(|p| p.name == name);
        if let Some(profile) = named().find(|p| p.kernel == kernel) {
            return Ok(Some(profile));
        }
        let kernels: Vec<&str> = named().map(|p| p.kernel.as_str()).collect();
        if kernels.is_empty() {
            let mut names: Vec<&str> = self.profiles.iter().map(|p| p.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            return Err(Error::Refused(format!(
                "no profile '{name}'; there are {RELEASE}, {}",
                names.join(", ")
            )));
        }
        let kernels = kernels.join(" or ");
        Err(Error::Refused(format!(
            "profile '{name}' is built from kernel {kernels}; give --kernel {kernels}"
        )))
    }

    /// The toolchain of that name, for the machines on which this runs.
    #[must_use]
    pub fn toolchain(&self, name: &str) -> Option<&ToolchainEntry> {
        self.toolchain_for(name, arch::here())
    }

    /// The toolchain of that name for an architecture.
    #[must_use]
    pub fn toolchain_for(&self, name: &str, arch: &Arch) -> Option<&ToolchainEntry> {
        let mut entries = self.toolchains.iter();
        entries.find(|t| t.name == name && t.arch == arch)
    }

    /// What guests of an architecture have beside the kernel; this machine's own has what this machine has.
    #[must_use]
    pub fn userland(&self, arch: &Arch) -> Option<&UserlandEntry> {
        self.userlands.iter().find(|entry| entry.arch == arch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_file_is_in_order() {
        let catalog = Catalog::parse(guest::KERNELS).expect("kernels.toml");
        assert!(catalog.kernels.iter().filter(|k| k.ci).count() >= 2);
        let debug = catalog.profile("debug", "6.1").expect("profile");
        assert!(debug.is_some_and(|p| p.fragments.len() >= 2));
        assert!(catalog.profile(RELEASE, "6.1").expect("release").is_none());
        let newest = catalog.profile("debug", "newest").expect("profile");
        let newest = newest.expect("one of its own");
        assert_eq!((newest.kernel.as_str(), &newest.source), ("newest", &None));
    }

    #[test]
    fn mistakes_are_named() {
        let broken = |from: &str, to: &str| {
            Catalog::parse(&guest::KERNELS.replace(from, to))
                .expect_err("it is broken")
                .to_string()
        };
        let text = broken("toolchain = \"trixie\"", "toolchain = \"sarge\"");
        assert_eq!(text, "kernels.toml: kernel newest: no toolchain sarge");
        let text = broken("kmemleak.config", "lost.config");
        assert_eq!(
            text,
            "kernels.toml: profile kmemleak: no file debug/lost.config"
        );
        let text = broken("name = \"kmemleak\"", "name = \"debug\"");
        assert_eq!(text, "kernels.toml: profile debug: twice for kernel 6.1");
        let text = broken("arch = \"arm64\"", "arch = \"vax\"");
        assert!(text.contains("no architecture 'vax'"), "{text}");
        let text = broken(
            "[[userland]]\narch = \"arm64\"",
            "[[userland]]\narch = \"amd64\"",
        );
        assert_eq!(
            text,
            "kernels.toml: kernel 6.1-arm64: no userland for arm64"
        );
        let text = broken("ci = true", "cy = true");
        assert!(text.contains("unknown field `cy`"), "{text}");
    }

    #[test]
    fn unknown_names_list_the_known() {
        let catalog = Catalog::parse(guest::KERNELS).expect("kernels.toml");
        let text = catalog.bed("6.12").expect_err("none").to_string();
        assert_eq!(
            text,
            "no kernel '6.12' with a software device for RDMA; there are 6.1, newest"
        );
        assert_eq!(catalog.bed("newest").expect("bed").name, "rdma-newest");
        let text = catalog.kernel("2.6").expect_err("none").to_string();
        assert_eq!(text, "no kernel '2.6'; there are 5.10, 6.1, 6.12, newest");
        let arm64 = arch::named("arm64").expect("arm64");
        let text = catalog.kernel_for("5.10", arm64).expect_err("none");
        let text = text.to_string();
        assert!(
            text.starts_with("no kernel '5.10' for arm64; there are 6.1, "),
            "{text}"
        );
        let text = catalog.profile_for("debug", "6.1", arm64);
        let text = text.expect_err("none").to_string();
        assert!(text.contains("is built for amd64 only"), "{text}");
        let text = catalog.profile("slow", "6.1").expect_err("none");
        assert!(
            text.to_string()
                .ends_with("release, debug, kcsan, kmemleak")
        );
        let text = catalog.profile("debug", "5.10").expect_err("none");
        let text = text.to_string();
        assert!(text.ends_with("give --kernel 6.1 or newest"), "{text}");
    }
}
