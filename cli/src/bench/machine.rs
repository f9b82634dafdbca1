// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a result depends on and a reader must know: the machine's fingerprint.

use onecopy::machine::{caches, field, kernel, processor, read, setting, spread_processors};
use serde::{Deserialize, Serialize};

/// The machine's fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Last-level cache of the first processor, as the kernel writes it.
    pub last_level_cache: String,
    /// Kernel release.
    pub kernel: String,
    /// Architecture.
    pub architecture: String,
    /// Whether the kernel runs under a hypervisor.
    pub virtual_machine: bool,
    /// Memory in MiB.
    pub memory_mib: usize,
    /// Setting of transparent huge pages for anonymous memory.
    pub huge_pages: String,
    /// Version of onecopy.
    pub onecopy: String,
}

fn kibibytes(name: &str) -> usize {
    field(&read("/proc/meminfo"), name)
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Bytes that could be used now without swapping.
#[must_use]
pub fn available_bytes() -> usize {
    kibibytes("MemAvailable") << 10
}

/// What to say of figures where [`is_translated`].
pub const TRANSLATED: &str =
    "instructions are translated (QEMU TCG): the figures are only relative";

/// Whether this machine's instructions are translated by QEMU: then times say little, and only relations count.
#[must_use]
pub fn is_translated() -> bool {
    processor().contains("TCG")
}

impl Machine {
    /// The machine that this runs on.
    #[must_use]
    pub fn here() -> Self {
        let processors = spread_processors();
        let cache = caches(&processors).into_iter().next();
        Self {
            processor: processor(),
            processors: processors.len(),
            last_level_cache: cache.map_or_else(String::new, |cache| cache.size),
            kernel: kernel(),
            architecture: std::env::consts::ARCH.to_owned(),
            virtual_machine: field(&read("/proc/cpuinfo"), "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_mib: kibibytes("MemTotal") >> 10,
            huge_pages: setting("/sys/kernel/mm/transparent_hugepage/enabled"),
            onecopy: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} processors{}, {} MiB, Linux {}",
            self.processor,
            self.processors,
            if self.virtual_machine {
                " (virtual machine)"
            } else {
                ""
            },
            self.memory_mib,
            self.kernel
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_fingerprint() {
        let machine = Machine::here();
        assert!(machine.processors >= 1);
        assert!(machine.memory_mib > 0);
        assert!(!machine.kernel.is_empty());
    }
}
