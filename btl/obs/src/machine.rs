// SPDX-License-Identifier: MIT OR Apache-2.0
//! A first guess at how this machine stores, for as long as nobody measured it (the machine's profile, which a tune
//! file holds).

use std::sync::OnceLock;

/// Whether the processor's string instruction (`rep movsb`) may take the lines that it overwrites without reading them.
/// Then to own them ahead of it is work for nothing. So it is with processors of AMD that have fast strings (measured
/// on Zen 5). On Intel's, ordinary stores into lines that were asked for ahead are faster (measured on Sapphire
/// Rapids). No feature bit tells them apart, so the guess goes by the maker.
#[must_use]
pub fn strings_take_lines() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(look)
}

#[cfg(target_arch = "x86_64")]
fn look() -> bool {
    let cpuid = raw_cpuid::CpuId::new();
    let amd = cpuid
        .get_vendor_info()
        .is_some_and(|vendor| matches!(vendor.as_str(), "AuthenticAMD" | "HygonGenuine"));
    let fast = cpuid
        .get_extended_feature_info()
        .is_some_and(|features| features.has_rep_movsb_stosb());
    amd && fast
}

#[cfg(not(target_arch = "x86_64"))]
fn look() -> bool {
    false
}
