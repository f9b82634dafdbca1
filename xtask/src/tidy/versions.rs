// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel module has the version of the packages, and its files agree on it.

use super::{File, Findings};

/// Where the version is set.
const SOURCE: &str = "Cargo.toml";

/// Which files name it, and what stands before it. Each of these stands there at least once with a version behind it.
const PLACES: &[(&str, &[&str])] = &[
    ("kmod/core.h", &["OC_VERSION \""]),
    ("kmod/dkms.conf", &["PACKAGE_VERSION=\""]),
    ("kmod/onecopy.4", &["\"onecopy ", "onecopy-"]),
    ("kmod/README.md", &["onecopy-", "onecopy/"]),
    (
        "vm-images/programs/install.sh",
        &["onecopy-", "onecopy/", "onecopy*", "\"the version\" "],
    ),
];

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let text_of = |path: &str| {
        let file = files.iter().find(|file| file.path == path);
        file.map_or("", |file| file.text.as_str())
    };
    let Some(expected) = version_of_packages(text_of(SOURCE)) else {
        findings.error(SOURCE, "[workspace.package] has no version");
        return;
    };
    for (path, marks) in PLACES {
        for mark in *marks {
            let mut found = versions_after(text_of(path), mark).peekable();
            if found.peek().is_none() {
                findings.error(path, format!("has no version after '{mark}'"));
            }
            for (line, version) in found.filter(|(_, version)| *version != expected) {
                findings.error(
                    format!("{path}:{line}"),
                    format!("version {version}, but {SOURCE} has {expected}"),
                );
            }
        }
    }
}

fn version_of_packages(manifest: &str) -> Option<&str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[workspace.package]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
}

/// The versions that stand behind a mark, with their lines. Where no digit follows the mark, it is of another name.
fn versions_after<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    text.lines().enumerate().flat_map(move |(index, line)| {
        line.match_indices(mark).filter_map(move |(position, _)| {
            let rest = &line[position + mark.len()..];
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && !".+-".contains(c))
                .unwrap_or(rest.len());
            let version = rest[..end].trim_end_matches('.');
            let is_version = version.starts_with(|c: char| c.is_ascii_digit());
            is_version.then_some((index + 1, version))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that name a version as those of the repository do.
    fn files(version: &str) -> Vec<File> {
        let manifest =
            "[workspace]\nversion = \"9\"\n[workspace.package]\nversion = \"0.2.0\"\n[x]\n";
        let named = PLACES.iter().map(|(path, marks)| {
            let lines = marks.iter().map(|mark| format!("{mark}{version}\" x\n"));
            (*path, lines.collect::<String>())
        });
        [(SOURCE, manifest.to_owned())]
            .into_iter()
            .chain(named)
            .map(|(path, text): (&str, String)| File {
                path: path.to_owned(),
                text,
            })
            .collect()
    }

    fn errors(files: &[File]) -> Vec<String> {
        let mut findings = Findings::default();
        check(files, &mut findings);
        findings.errors
    }

    #[test]
    fn files_with_the_same_version_are_in_order() {
        assert_eq!(errors(&files("0.2.0")), [""; 0]);
    }

    #[test]
    fn each_other_version_is_found() {
        let found = errors(&files("0.1.0"));
        let marks: usize = PLACES.iter().map(|(_, marks)| marks.len()).sum();
        assert_eq!(found.len(), marks, "{found:?}");
        assert!(
            found.contains(&"kmod/README.md:2: version 0.1.0, but Cargo.toml has 0.2.0".to_owned())
        );
    }

    #[test]
    fn a_place_without_a_version_is_found() {
        let found = errors(&files("local"));
        assert!(found.contains(&"kmod/core.h: has no version after 'OC_VERSION \"'".to_owned()));
    }

    #[test]
    fn the_packages_have_a_version() {
        assert_eq!(
            errors(&[]),
            ["Cargo.toml: [workspace.package] has no version"]
        );
    }
}
