// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process may do, and what would permit what is refused: capabilities, the kernel's policy, tracefs.

use std::path::Path;

/// What a process may do here, by its capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one for each capability")]
pub(super) struct Privileges {
    /// `CAP_BPF`, or what stood for it before.
    pub(super) bpf: bool,
    /// `CAP_PERFMON`, or what stood for it before.
    pub(super) perfmon: bool,
    /// `CAP_SYS_ADMIN`.
    pub(super) admin: bool,
    /// Whether directories that it does not own can be read.
    pub(super) reads_all: bool,
}

impl Privileges {
    /// Those of this thread. What cannot be read counts as nothing.
    pub(super) fn own() -> Self {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Self::of(&status)
    }

    fn of(status: &str) -> Self {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let bits = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let has = |number: u32| bits.unwrap_or(0) >> number & 1 == 1;
        let admin = has(21);
        Self {
            bpf: admin || has(39),
            perfmon: admin || has(38),
            admin,
            reads_all: has(1) || has(2),
        }
    }

    /// What is missing for the kernel's programs; none if nothing is.
    pub(super) fn missing(self) -> Option<&'static str> {
        match (self.bpf, self.perfmon) {
            (true, true) => None,
            (true, false) => Some("CAP_PERFMON is missing"),
            (false, true) => Some("CAP_BPF is missing"),
            (false, false) => Some("CAP_BPF and CAP_PERFMON are missing"),
        }
    }
}

/// What gives a program its privileges.
pub(super) const SETCAP: &str = "run as root, or once: sudo setcap \
    cap_bpf,cap_perfmon+ep $(command -v onecopy)";
const EPERM: i32 = 1;
const EACCES: i32 = 13;
/// The kernel's own `ENOTSUPP`, which programs should never see.
const NOT_SUPPORTED: i32 = 524;

pub(super) fn remedy(errno: i32, privileges: &Privileges) -> String {
    match (errno, privileges.missing()) {
        (EPERM | EACCES, Some(missing)) => format!("{missing}: {SETCAP}"),
        (EPERM | EACCES, None) => match lockdown() {
            Some(mode) => format!(
                "all capabilities are there: the kernel's policy refuses (lockdown is '{mode}', or seccomp)"
            ),
            None => "all capabilities are there: the kernel's policy or seccomp refuses".to_owned(),
        },
        (NOT_SUPPORTED, _) => "this kernel cannot attach there".to_owned(),
        _ => String::new(),
    }
}

/// The mode of lockdown, if it is on.
fn lockdown() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    let (_, rest) = text.split_once('[')?;
    let (mode, _) = rest.split_once(']')?;
    (mode != "none").then(|| mode.to_owned())
}

/// Where tracefs is, or why it cannot be used: errno and remedy.
pub(super) fn tracefs(privileges: &Privileges) -> Result<&'static Path, (i32, String)> {
    const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let mut refusal = 0;
    for place in PLACES {
        match std::fs::read_dir(place).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return Ok(Path::new(place)),
            Ok(false) => {}
            Err(error) if refusal == 0 || refusal == 2 => {
                refusal = error.raw_os_error().unwrap_or(0);
            }
            Err(_) => {}
        }
    }
    let remedy = if refusal == EACCES || refusal == EPERM {
        let missing = if privileges.reads_all {
            ""
        } else {
            ", or give CAP_DAC_READ_SEARCH"
        };
        format!(
            "tracefs is not readable: mount -o remount,gid=GROUP,mode=750 {}{missing}",
            PLACES[0]
        )
    } else {
        format!(
            "tracefs is not mounted: mount -t tracefs nodev {}",
            PLACES[0]
        )
    };
    Err((refusal, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_told_apart() {
        let with_bits = |bits: u64| Privileges::of(&format!("Name:\tx\nCapEff:\t{bits:016x}\n"));
        assert_eq!(
            with_bits(0).missing(),
            Some("CAP_BPF and CAP_PERFMON are missing")
        );
        assert_eq!(with_bits(1 << 39).missing(), Some("CAP_PERFMON is missing"));
        assert_eq!(with_bits(1 << 38).missing(), Some("CAP_BPF is missing"));
        assert_eq!(with_bits(1 << 38 | 1 << 39).missing(), None);
        assert_eq!(with_bits(1 << 21).missing(), None);
        assert!(!with_bits(1 << 21).reads_all && with_bits(1 << 2).reads_all);
    }

    #[test]
    fn a_refusal_with_all_capabilities_is_the_kernels_policy() {
        let all = Privileges::of("CapEff: 000001ffffffffff");
        assert!(remedy(EPERM, &all).contains("policy"));
        assert!(remedy(EPERM, &Privileges::default()).contains("setcap"));
        assert!(remedy(NOT_SUPPORTED, &all).contains("cannot attach"));
        assert_eq!(remedy(2, &all), "");
    }
}
