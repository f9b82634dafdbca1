// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which package may depend on which.

use std::path::Path;

use serde_json::Value;

use super::Findings;
use crate::Failure;

/// The page with the same table for people.
pub(super) const PAGE: &str = "ARCHITECTURE.md";

/// Each package with what it may depend on inside the workspace.
const ARROWS: &[(&str, &[&str])] = &[
    ("onecopy-obs", &[]),
    ("onecopy-shm", &["onecopy-obs"]),
    ("cuda-sys", &[]),
    ("knem-sys", &[]),
    ("onecopy-sys", &[]),
    ("pmix-sys", &[]),
    ("verbs-sys", &[]),
    ("xpmem-sys", &[]),
    (
        "onecopy-kmod-tests",
        &["knem-sys", "onecopy-sys", "xpmem-sys"],
    ),
    (
        "onecopy-btl",
        &[
            "onecopy-obs",
            "onecopy-shm",
            "onecopy-verbs",
            "knem-sys",
            "onecopy-sys",
            "xpmem-sys",
        ],
    ),
    (
        "onecopy",
        &["onecopy-obs", "onecopy-shm", "onecopy-btl", "pmix-sys"],
    ),
    ("onecopy-launch", &["onecopy", "onecopy-shm"]),
    (
        "onecopy-bench",
        &[
            "onecopy",
            "onecopy-obs",
            "onecopy-shm",
            "onecopy-btl",
            "onecopy-verbs",
        ],
    ),
    (
        "onecopy-cli",
        &[
            "onecopy",
            "onecopy-bench",
            "onecopy-launch",
            "onecopy-obs",
            "onecopy-shm",
            "onecopy-btl",
            "onecopy-mpi-abi",
            "onecopy-trace",
            "onecopy-cuda",
            "onecopy-verbs",
            "onecopy-vm",
        ],
    ),
    ("onecopy-mpi-abi", &[]),
    (
        "onecopy-mpi",
        &[
            "onecopy",
            "onecopy-obs",
            "onecopy-shm",
            "onecopy-cuda",
            "onecopy-mpi-abi",
        ],
    ),
    ("onecopy-heap", &["onecopy-obs", "onecopy-shm"]),
    (
        "onecopy-fuzz",
        &[
            "onecopy",
            "onecopy-cli",
            "onecopy-launch",
            "onecopy-mpi",
            "onecopy-obs",
            "onecopy-shm",
        ],
    ),
    ("onecopy-cuda", &["onecopy-shm", "cuda-sys"]),
    ("onecopy-verbs", &["onecopy-shm", "verbs-sys"]),
    ("onecopy-trace", &["onecopy-obs", "onecopy-shm"]),
    ("onecopy-vm", &[]),
    (
        "onecopy-peers",
        &["onecopy", "onecopy-bench", "onecopy-cli", "onecopy-vm"],
    ),
    ("xtask", &["onecopy-mpi-abi", "onecopy-obs", "onecopy-vm"]),
];

/// The packages that a person calls by name: tools above the library.
const TOOLS: &[&str] = &["onecopy-cli", "onecopy-peers", "xtask"];

/// Outside packages that only some may use. The reason is that their interface is unsafe, or that a program that uses
/// the library builds none of what only tools need.
const RESERVED: &[(&str, &[&str])] = &[
    (
        "libc",
        &[
            "onecopy-shm",
            "onecopy-btl",
            "onecopy-cuda",
            "onecopy-heap",
            "onecopy-kmod-tests",
            "onecopy-mpi",
            "onecopy-trace",
            "onecopy-verbs",
            "cuda-sys",
            "knem-sys",
            "onecopy-sys",
            "pmix-sys",
            "verbs-sys",
            "xpmem-sys",
        ],
    ),
    ("memmap2", &["onecopy-shm"]),
    ("aya", &["onecopy-trace"]),
    ("object", &["onecopy-trace"]),
    ("ratatui", &["onecopy-cli"]),
    (
        "clap",
        &[
            "onecopy-bench",
            "onecopy-cli",
            "onecopy-kmod-tests",
            "onecopy-peers",
            "xtask",
        ],
    ),
    ("indicatif", &["onecopy-cli", "onecopy-peers", "onecopy-vm"]),
    ("plotters", TOOLS),
    ("tabled", TOOLS),
    ("tracing-subscriber", TOOLS),
];

/// The rows of the page's table that begin with these words, each as the names that stand as code in its
/// cells.
pub(super) fn rows(page: &str, head: &str) -> Vec<Vec<Vec<String>>> {
    let names = |cell: &str| {
        let parts = cell.split('`').skip(1).step_by(2);
        parts.map(str::to_owned).collect()
    };
    let lines = page.lines().skip_while(|line| !line.starts_with(head));
    lines
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(names).collect())
        .collect()
}

/// Compares the page's table with this one.
pub(super) fn check_page(page: &str, table: &[(&str, &[&str])], findings: &mut Findings) {
    let rows = rows(page, "| package | folder | may use |");
    let mut documented: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in &rows {
        if let [package, _, uses, ..] = &row[..]
            && let [package] = &package[..]
        {
            documented.push((package, uses.iter().map(String::as_str).collect()));
        }
    }
    for (package, allowed) in table {
        match documented.iter().find(|(name, _)| name == package) {
            None => findings.error(PAGE, format!("its table of packages lacks {package}")),
            Some((_, uses)) if uses != allowed => {
                findings.error(PAGE, format!("{package} may use {}", allowed.join(", ")))
            }
            Some(_) => {}
        }
    }
    for (package, _) in &documented {
        if !table.iter().any(|(name, _)| name == package) {
            findings.error(PAGE, format!("{package} is no package that may be used"));
        }
    }
}

pub(super) fn check(
    metadata: &Value,
    root: &Path,
    page: &str,
    findings: &mut Findings,
) -> Result<(), Failure> {
    check_page(page, ARROWS, findings);
    let packages = metadata["packages"].as_array().map_or(&[][..], |list| list);
    if packages.is_empty() {
        return Err("cargo metadata lists no package".to_owned());
    }
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let place = Path::new(manifest)
            .strip_prefix(root)
            .unwrap_or(Path::new(manifest))
            .display()
            .to_string();
        let dependencies = package["dependencies"]
            .as_array()
            .map_or(&[][..], |list| list)
            .iter()
            // What only tests use draws no arrow.
            .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
            .filter_map(|dependency| dependency["name"].as_str());
        judge(name, dependencies, &place, findings);
        let text = std::fs::read_to_string(manifest).unwrap_or_default();
        if !text.contains("[lints]\nworkspace = true") {
            findings.error(&place, "does not take the workspace's lints");
        }
    }
    Ok(())
}

fn judge<'a>(
    name: &str,
    dependencies: impl Iterator<Item = &'a str>,
    place: &str,
    findings: &mut Findings,
) {
    let Some((_, allowed)) = ARROWS.iter().find(|(package, _)| *package == name) else {
        findings.error(place, format!("{name} is not in the table of arrows"));
        return;
    };
    for dependency in dependencies {
        let internal = ARROWS.iter().any(|(package, _)| *package == dependency);
        if internal && !allowed.contains(&dependency) {
            findings.error(place, format!("{name} may not depend on {dependency}"));
        }
        if let Some((_, users)) = RESERVED
            .iter()
            .find(|(reserved, _)| *reserved == dependency)
            && !users.contains(&name)
        {
            let users = users.join(" and ");
            findings.error(place, format!("only {users} may use {dependency}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(name: &str, dependencies: &[&str]) -> Vec<String> {
        let mut findings = Findings::default();
        judge(
            name,
            dependencies.iter().copied(),
            "Cargo.toml",
            &mut findings,
        );
        findings.errors
    }

    #[test]
    fn arrows_point_down() {
        assert_eq!(errors("onecopy", &["onecopy-btl", "nix"]), [""; 0]);
        assert_eq!(errors("onecopy-cli", &["onecopy", "clap"]), [""; 0]);
        assert_eq!(errors("onecopy", &["onecopy-cli"]).len(), 1);
        assert_eq!(errors("onecopy", &["clap"]).len(), 1);
        assert_eq!(
            errors("onecopy-shm", &["onecopy-btl"]),
            ["Cargo.toml: onecopy-shm may not depend on onecopy-btl"]
        );
        assert_eq!(errors("onecopy-obs", &["onecopy-shm"]).len(), 1);
        assert_eq!(errors("onecopy", &["xtask"]).len(), 1);
    }

    #[test]
    fn libc_stays_below() {
        assert_eq!(errors("onecopy-shm", &["libc"]), [""; 0]);
        assert_eq!(
            errors("onecopy", &["libc"]),
            [
                "Cargo.toml: only onecopy-shm and onecopy-btl and onecopy-cuda and onecopy-heap and onecopy-kmod-tests and onecopy-mpi and onecopy-trace and onecopy-verbs and cuda-sys and knem-sys and onecopy-sys and pmix-sys and verbs-sys and xpmem-sys may use libc"
            ]
        );
    }

    #[test]
    fn the_page_has_the_same_table() {
        let table: &[(&str, &[&str])] = &[("a", &[]), ("b", &["a"])];
        let found = |b: &str, more: &str| {
            let page = format!(
                "# Page\n\n| package | folder | may use | for |\n| --- | --- | --- | --- |\n| `a` | `x/` | – | – |\n{b}{more}\ntext\n| `z` | | `y` |\n"
            );
            let mut findings = Findings::default();
            check_page(&page, table, &mut findings);
            findings.errors
        };
        let good = "| `b` | `y/` | `a` | of `c` |\n";
        assert_eq!(found(good, ""), [""; 0]);
        assert_eq!(found("", "").len(), 1);
        assert_eq!(found("| `b` | `y/` | – | – |\n", "").len(), 1);
        assert_eq!(found(good, "| `d` | `z/` | – | – |\n").len(), 1);
    }

    #[test]
    fn a_new_package_must_be_placed() {
        assert_eq!(errors("onecopy-new", &[]).len(), 1);
    }
}
