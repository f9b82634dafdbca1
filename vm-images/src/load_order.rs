// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel's modules, in the order in which they can be loaded: each names what it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{self, find};
use crate::{Error, Result, cache};

/// A kernel's modules by name.
pub(crate) struct Available {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

impl Available {
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(&folder.join("kernel"), &mut files)?;
        let list = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let built_in = list
            .lines()
            .filter_map(|line| name_of(Path::new(line)))
            .collect();
        Ok(Self { files, built_in })
    }

    /// Names and contents, each after what it depends on.
    pub(crate) fn load_order(&self, wanted: &[String]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in wanted {
            // An older kernel has it by another name, a newer one built in.
            if self.files.contains_key(name) {
                self.add(name, &mut seen, &mut order)?;
            }
        }
        Ok(order)
    }

    fn add(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<(String, Vec<u8>)>,
    ) -> Result<()> {
        if self.built_in.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let path = self.files.get(name).ok_or_else(|| {
            Error::Refused(format!(
                "the kernel has no module {name}, which another needs"
            ))
        })?;
        let bytes = contents(path)?;
        for needed in depends(&bytes) {
            self.add(&needed, seen, order)?;
        }
        order.push((name.to_owned(), bytes));
        Ok(())
    }
}

fn collect(folder: &Path, into: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for path in cache::entries(folder)? {
        if path.is_dir() {
            collect(&path, into)?;
        } else if let Some(name) = name_of(&path) {
            into.insert(name, path);
        }
    }
    Ok(())
}

/// A module's name is that of its file, with `_` for `-`.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, end) = file.split_once(".ko")?;
    matches!(end, "" | ".xz" | ".zst" | ".gz").then(|| name.replace('-', "_"))
}

fn contents(path: &Path) -> Result<Vec<u8>> {
    let end = path
        .extension()
        .and_then(|end| end.to_str())
        .unwrap_or_default();
    let (tool, package) = match end {
        "xz" => ("xz", "xz-utils"),
        "zst" => ("zstd", "zstd"),
        "gz" => ("gzip", "gzip"),
        _ => return fs::read(path).map_err(Error::io(path.display().to_string())),
    };
    let output = program::run(Command::new(find(tool, package)?).arg("-dc").arg(path))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(Error::Refused(format!(
            "{}: {tool} cannot unpack it",
            path.display()
        )))
    }
}

/// What a module says that it needs: `depends=a,b` among the texts that describe it.
fn depends(module: &[u8]) -> Vec<String> {
    let mark = b"\0depends=";
    let start = module.windows(mark.len()).position(|window| window == mark);
    let text = start.map_or(&[][..], |start| &module[start + mark.len()..]);
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&text[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_is_read_from_it() {
        assert_eq!(
            depends(b"x\0license=GPL\0depends=ib_core,udp-tunnel\0y"),
            ["ib_core", "udp_tunnel"]
        );
        assert_eq!(depends(b"\0depends=\0"), [""; 0]);
        assert_eq!(depends(b"nothing"), [""; 0]);
        assert_eq!(
            name_of(Path::new("a/crc32c-intel.ko.xz")).as_deref(),
            Some("crc32c_intel")
        );
        assert_eq!(name_of(Path::new("a/modules.order")), None);
    }

    #[test]
    fn modules_are_loaded_after_what_they_need() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(format!("kernel/{name}.ko"));
            cache::make(path.parent().expect("parent")).expect("folder");
            cache::write(&path, text).expect("module");
        };
        write("net/top", "\0depends=middle,inside\0");
        write("middle", "\0depends=base\0");
        write("base", "\0depends=\0");
        write("lost", "\0depends=nowhere\0");
        cache::write(&folder.path().join("modules.builtin"), "kernel/inside.ko\n").expect("list");
        let available = Available::read(folder.path()).expect("modules");
        let order = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
            available.load_order(&wanted)
        };
        let names: Vec<String> = order(&["not_there", "top", "base"])
            .expect("order")
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["base", "middle", "top"]);
        let text = order(&["lost"]).expect_err("it needs another").to_string();
        assert!(text.contains("no module nowhere"), "{text}");
    }
}
