// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask tidy`: the rules of ARCHITECTURE.md that a program can check.

mod arrows;
mod calls;
mod copies;
mod cycles;
mod layers;
mod modules;
mod paths;
mod sentences;
mod source;
mod starts;
mod sync;
mod test_items;
mod tracepoints;
mod versions;
mod words;

use std::path::Path;
use std::process::Command;

use crate::steps::{cargo, metadata};
use crate::{Failure, docs, say};

/// A file of the repository.
pub(crate) struct File {
    /// Its path from the root, with `/`.
    path: String,
    /// Its text; files that are no text have none.
    text: String,
}

/// What was found. Each finding says where and what.
#[derive(Default)]
pub(crate) struct Findings {
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn error(&mut self, place: impl std::fmt::Display, what: impl std::fmt::Display) {
        self.errors.push(format!("{place}: {what}"));
    }

    fn warn(&mut self, place: impl std::fmt::Display, what: impl std::fmt::Display) {
        self.warnings.push(format!("{place}: {what}"));
    }
}

pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    let files = tracked(root)?;
    let mut findings = Findings::default();
    let metadata = metadata(root)?;
    let page = files.iter().find(|file| file.path == arrows::PAGE);
    let page = page.map_or("", |page| page.text.as_str());
    arrows::check(&metadata, root, page, &mut findings)?;
    modules::check_page(page, &mut findings);
    for file in &files {
        words::check(file, &mut findings);
        sentences::check(file, &mut findings);
        sentences::check_width(file, &mut findings);
        if is_rust(file) {
            source::check(file, &mut findings);
            starts::check(file, &mut findings);
            copies::check(file, &mut findings);
        }
    }
    modules::check(&metadata, root, &files, &mut findings);
    layers::check(&files, &mut findings);
    calls::check(&files, &mut findings);
    paths::check(&files, &mut findings);
    tracepoints::check(&files, &mut findings);
    versions::check(&files, &mut findings);
    sync::check(files.iter().filter(|file| is_rust(file)), &mut findings);
    entry_points(&files, &mut findings);
    for page in docs::stale(root) {
        findings.error(page, "stale; run `cargo xtask docs`");
    }
    let formatted = cargo()
        .args(["fmt", "--all", "--check", "--", "-l"])
        .output()
        .map_err(|error| format!("cargo fmt: {error}"))?;
    if !formatted.status.success() {
        let list = String::from_utf8_lossy(&formatted.stdout);
        let reason = String::from_utf8_lossy(&formatted.stderr);
        findings.error(
            "cargo fmt --check",
            format!("{} {}", list.trim(), reason.trim()),
        );
    }
    for warning in &findings.warnings {
        say::warn(&format!("tidy: warning: {warning}"));
    }
    for error in &findings.errors {
        say::warn(&format!("tidy: {error}"));
    }
    if findings.errors.is_empty() {
        say::line(&format!("tidy: {} files in order", files.len()));
        Ok(())
    } else {
        Err(format!("tidy found {} errors", findings.errors.len()))
    }
}

fn is_rust(file: &File) -> bool {
    file.path.ends_with(".rs")
}

/// The files that git tracks or would track.
fn tracked(root: &Path) -> Result<Vec<File>, Failure> {
    let listed = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached"])
        .args(["--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    let mut paths: Vec<String> = if listed.status.success() {
        String::from_utf8_lossy(&listed.stdout)
            .split('\0')
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect()
    } else {
        // An exported tree without its history.
        let mut found = Vec::new();
        walk(root, root, &mut found)?;
        found
    };
    paths.sort();
    paths.dedup();
    let mut files = Vec::new();
    for path in paths {
        let full = root.join(&path);
        // Deleted but not yet removed from the index, or no text.
        if let Some(text) = std::fs::read(full)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
        {
            files.push(File { path, text });
        }
    }
    if files.iter().any(is_rust) {
        Ok(files)
    } else {
        Err(format!("no source file found under {}", root.display()))
    }
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<String>) -> Result<(), Failure> {
    let entries = std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for entry in entries {
        let path = entry
            .map_err(|error| format!("{}: {error}", dir.display()))?
            .path();
        let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        if matches!(&*relative, "target" | "bench-out" | ".git") || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            walk(root, &path, found)?;
        } else {
            found.push(relative.into_owned());
        }
    }
    Ok(())
}

/// The README, and what runs unattended, must call the same thing.
fn entry_points(files: &[File], findings: &mut Findings) {
    for (path, line) in [
        ("README.md", "cargo run --release -- bench --quick"),
        ("README.md", "cargo xtask test --quick"),
        ("README.md", "cargo xtask test"),
        (".ci/run", "cargo xtask test"),
    ] {
        let found = files
            .iter()
            .any(|file| file.path == path && file.text.lines().any(|text| text.trim() == line));
        if !found {
            findings.error(path, format!("has no line `{line}`"));
        }
    }
}
