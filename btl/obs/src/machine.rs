// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the defaults take from this machine: how large its first cache is, and a first guess at how it stores. That
//! guess counts as long as nobody measured it (the machine's profile, which a tune file holds).

use std::fs;
use std::path::Path;
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

/// Bytes of the first data cache of processor 0, as the kernel says; none: it does not. Whichever processor asks gets
/// the same answer, also where some are unlike.
#[must_use]
pub fn first_data_cache() -> Option<usize> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    *FOUND.get_or_init(|| first_data_cache_in(Path::new("/sys/devices/system/cpu/cpu0/cache")))
}

/// What a folder of the kernel says of a processor's caches.
fn first_data_cache_in(folder: &Path) -> Option<usize> {
    let caches = fs::read_dir(folder).ok()?.flatten();
    let size_of_first = |cache: fs::DirEntry| {
        let says = |what| fs::read_to_string(cache.path().join(what)).ok();
        let holds_data = says("type").is_some_and(|kind| kind.trim() != "Instruction");
        let is_first = holds_data && says("level")?.trim() == "1";
        let kib = says("size").filter(|_| is_first)?;
        let kib: usize = kib.trim().strip_suffix('K')?.parse().ok()?;
        kib.checked_mul(1024)
    };
    caches.filter_map(size_of_first).next()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as the kernel has it, of caches with level, type and size.
    fn folder(caches: &[[&str; 3]]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (index, of_cache) in caches.iter().enumerate() {
            let cache = folder.path().join(format!("index{index}"));
            fs::create_dir(&cache).expect("a folder");
            for (name, text) in ["level", "type", "size"].iter().zip(of_cache) {
                fs::write(cache.join(name), format!("{text}\n")).expect("written");
            }
        }
        fs::write(folder.path().join("uevent"), "").expect("written");
        folder
    }

    #[test]
    fn the_first_data_cache_is_the_first_level_s() {
        let of = |caches: &[[&str; 3]]| first_data_cache_in(folder(caches).path());
        let instructions = ["1", "Instruction", "64K"];
        let second = ["2", "Unified", "1024K"];
        assert_eq!(
            of(&[second, instructions, ["1", "Data", "48K"]]),
            Some(48 << 10)
        );
        assert_eq!(of(&[["1", "Unified", "32K"], second]), Some(32 << 10));
        assert_eq!(of(&[instructions, second]), None);
        for size in ["", "48", "K", "-1K", "99999999999999999999K"] {
            assert_eq!(of(&[["1", "Data", size]]), None, "{size}");
        }
        assert_eq!(first_data_cache_in(Path::new("/nowhere")), None);
    }
}
