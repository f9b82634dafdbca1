// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a launcher's own libpmix may be: below the places that it or an administrator names, and what it has loaded
//! itself.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Folders of installations, as launchers and administrators name them.
const PREFIXES: [&str; 4] = [
    "PMIX_INSTALL_PREFIX",
    "PMIX_PREFIX",
    "PRTE_PREFIX",
    "OPAL_PREFIX",
];
/// Folders of an installation that libraries are in. Open MPI puts the ones of its own into a folder below.
const FOLDERS: [&str; 4] = ["lib", "lib64", "lib/openmpi", "lib/pmix"];

/// All files that may be it, the best first. `maps` is what the launcher's process has mapped, in the kernel's words.
pub(crate) fn candidates(
    get: &dyn Fn(&str) -> Option<OsString>,
    maps: &[u8],
    name: &str,
) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut add = |path: PathBuf| {
        if path.is_absolute() && !found.contains(&path) {
            found.push(path);
        }
    };
    for prefix in PREFIXES.into_iter().filter_map(get) {
        for folder in FOLDERS {
            add(Path::new(&prefix).join(folder).join(name));
        }
    }
    // The loader looks into these, but not below them.
    for folder in get("LD_LIBRARY_PATH")
        .iter()
        .flat_map(std::env::split_paths)
    {
        add(folder.join("openmpi").join(name));
    }
    for line in maps.split(|&byte| byte == b'\n') {
        // Five words stand before the path, which may have blanks itself.
        let Some(start) = line.iter().position(|&byte| byte == b'/') else {
            continue;
        };
        let path = PathBuf::from(OsString::from_vec(line[start..].to_vec()));
        let file = path.file_name().map(|file| file.as_bytes());
        if file.is_some_and(|file| file.starts_with(name.as_bytes())) && !deleted(&path) {
            add(path);
        }
    }
    found
}

/// Whether the kernel says that the file is gone.
fn deleted(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b" (deleted)")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "libpmix.so.2";

    fn found(pairs: &[(&str, &str)], maps: &str) -> Vec<String> {
        let get = |name: &str| {
            let pair = pairs.iter().find(|(known, _)| *known == name);
            pair.map(|(_, value)| OsString::from(value))
        };
        let found = candidates(&get, maps.as_bytes(), NAME);
        found
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    }

    #[test]
    fn a_launcher_says_where_its_library_is() {
        assert!(found(&[], "").is_empty());
        let all = found(&[("OPAL_PREFIX", "/o"), ("PMIX_PREFIX", "/p")], "");
        assert_eq!(all[0], "/p/lib/libpmix.so.2");
        assert!(all.contains(&"/o/lib/openmpi/libpmix.so.2".to_owned()));
        let all = found(&[("LD_LIBRARY_PATH", "/a::rel:/a:/b")], "");
        assert_eq!(all, ["/a/openmpi/libpmix.so.2", "/b/openmpi/libpmix.so.2"]);
    }

    #[test]
    fn the_library_of_the_launcher_itself_is_found() {
        let maps = "7f0-7f1 r-xp 00000000 08:01 12   /opt/a b/libpmix.so.2.13.6\n\
            7f1-7f2 r-xp 00000000 08:01 12   /opt/a b/libpmix.so.2.13.6\n\
            7f2-7f3 r-xp 00000000 08:01 13   /opt/old/libpmix.so.2 (deleted)\n\
            7f3-7f4 rw-p 00000000 00:00 0    [heap]\n\
            7f4-7f5 r-xp 00000000 08:01 14   /lib/libc.so.6\n";
        assert_eq!(found(&[], maps), ["/opt/a b/libpmix.so.2.13.6"]);
    }
}
