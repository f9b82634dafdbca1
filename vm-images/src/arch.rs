// SPDX-License-Identifier: MIT OR Apache-2.0
//! The architectures of guests: one row each, of all that differs between them.

use crate::{Error, Result};

/// A row.
#[derive(Debug, PartialEq, Eq)]
pub struct Arch {
    /// As Debian calls it.
    pub name: &'static str,
    /// What others call it: the kernel's `uname -m`, QEMU, compilers.
    pub others: &'static [&'static str],
    /// What the kernel's Makefiles are told as `ARCH`.
    pub kernel: &'static str,
    /// What the names of programs that compile for it begin with on other machines.
    pub prefix: &'static str,
    /// As the Rust compiler calls it.
    pub rust: &'static str,
    /// QEMU's program.
    pub qemu: &'static str,
    /// The package with it.
    pub package: &'static str,
    /// The machine that QEMU makes.
    pub machine: &'static str,
    /// The processor, where it is translated.
    pub processor: &'static str,
    /// The kernel's console, on QEMU's first serial line.
    pub console: &'static str,
    /// The device for a second serial line, by which a guest sends files: QEMU's arguments, to which the line's name is
    /// appended.
    pub second: &'static [&'static str],
    /// What the guest calls that.
    pub results: &'static str,
    /// What the kernel's command line has besides under translation.
    pub words: &'static str,
    /// Whether a translated kernel is to be told the rate of the host's time stamp counter, which it reads as it is.
    pub tells_rate: bool,
}

/// All that there are; the first is that of the machines on which this runs.
pub static ALL: [Arch; 2] = [
    Arch {
        name: "amd64",
        others: &["x86_64", "x86-64"],
        kernel: "x86",
        prefix: "x86_64-linux-gnu-",
        rust: "x86_64-unknown-linux-gnu",
        qemu: "qemu-system-x86_64",
        package: "qemu-system-x86",
        machine: "pc",
        // Without cmpxchg16b, which allocators of kernels use. QEMU 7.2 translates it with flags that are not up to
        // date. So now and then a kernel got flags that it never had, the direction among them, and wrote over its
        // stack.
        processor: "max,-cx16",
        console: "ttyS0",
        second: &["-serial", "chardev:"],
        results: "/dev/ttyS1",
        words: "no_timer_check",
        tells_rate: true,
    },
    Arch {
        name: "arm64",
        others: &["aarch64"],
        kernel: "arm64",
        prefix: "aarch64-linux-gnu-",
        rust: "aarch64-unknown-linux-gnu",
        qemu: "qemu-system-aarch64",
        package: "qemu-system-arm",
        // The older interrupt controller has its registers where pages of 64 KiB cannot tell them apart.
        machine: "virt,gic-version=3",
        // Pointers are signed by a cheap function of QEMU's own: the standard's makes everything three times slower.
        processor: "max,pauth-impdef=on",
        console: "ttyAMA0",
        // The machine has one line; a card brings another.
        second: &["-device", "pci-serial,chardev="],
        results: "/dev/ttyS0",
        words: "",
        tells_rate: false,
    },
];

/// The architecture of the machines on which this runs.
#[must_use]
pub fn here() -> &'static Arch {
    &ALL[0]
}

/// The architecture of that name, ours or one of others.
///
/// # Errors
///
/// When there is none; the error lists those that there are.
pub fn named(name: &str) -> Result<&'static Arch> {
    ALL.iter()
        .find(|arch| arch.name == name || arch.others.contains(&name))
        .ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|arch| arch.name).collect();
            Error::Refused(format!(
                "no architecture '{name}'; there are {}",
                names.join(", ")
            ))
        })
}

impl Arch {
    /// Whether it is that of the machines on which this runs.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self == here()
    }

    /// A name with the architecture, where it is not that of the machines on which this runs.
    #[must_use]
    pub fn tag(&self, name: &str) -> String {
        if self.is_here() {
            name.to_owned()
        } else {
            format!("{name}-{}", self.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_all_its_names() {
        for arch in &ALL {
            assert_eq!(named(arch.name).expect("its own name"), arch);
            for other in arch.others {
                assert_eq!(named(other).expect("another name"), arch);
            }
        }
        assert_eq!(named("aarch64").expect("aarch64").name, "arm64");
        let text = named("vax").expect_err("none").to_string();
        assert_eq!(text, "no architecture 'vax'; there are amd64, arm64");
    }

    #[test]
    fn no_name_is_twice_and_no_field_is_forgotten() {
        let names: Vec<&str> = ALL
            .iter()
            .flat_map(|arch| arch.others.iter().copied().chain([arch.name]))
            .collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for arch in &ALL {
            assert!(arch.prefix.ends_with("-linux-gnu-"), "{arch:?}");
            assert!(arch.rust.ends_with("-linux-gnu"), "{arch:?}");
            assert!(arch.qemu.starts_with("qemu-system-"), "{arch:?}");
            assert!(arch.results.starts_with("/dev/tty"), "{arch:?}");
            // The console and what a guest sends are two lines.
            assert_ne!(arch.results, format!("/dev/{}", arch.console));
        }
    }

    #[test]
    fn only_others_are_named() {
        assert!(here().is_here());
        assert_eq!(here().tag("6.1"), "6.1");
        assert_eq!(named("arm64").expect("arm64").tag("6.1"), "6.1-arm64");
    }
}
