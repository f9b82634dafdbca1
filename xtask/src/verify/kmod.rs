// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel module's sources under the tools that kernel developers run. These are the compiler with `W=1`, sparse,
//! smatch, checkpatch, the kernel's own coccinelle scripts, and kernel-doc.
//!
//! Each works on a copy of `kmod/`, against the headers of a kernel that the virtual machines run, or
//! with the scripts of its source. A tool that cannot be had is not run, which is said, and has not
//! passed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use onecopy_vm::cache::Cache;
use onecopy_vm::catalog::Catalog;
use onecopy_vm::kernel::{self, Kernel};
use onecopy_vm::module::{self, Sources};
use onecopy_vm::progress::Progress;
use onecopy_vm::toolchain::Toolchain;
use onecopy_vm::{program, source};

use crate::steps::Tally;
use crate::{Failure, root, say};

/// The kernel against which sources are read, and the profile whose source has the scripts.
const KERNEL: &str = "6.1";
const PROFILE: &str = "debug";
/// The kernels for which it is compiled with more warnings.
const COMPILED_FOR: &[&str] = &[KERNEL, "newest"];
/// What checkpatch says of a patch, or of a tree's own files, and not of these.
const NOT_OURS: &[&str] = &["CONFIG_DESCRIPTION", "FILE_PATH_CHANGES"];
/// What it says of one file with reason, and the reason.
const ACCEPTED: &[(&str, &str, &str)] = &[
    ("compat.h", "DEPRECATED_API", "old kernels have no other"),
    (
        "compat.h",
        "CONSTANT_COMPARISON",
        "a parameter of a macro is none",
    ),
    (
        "ktap.h",
        "MACRO_WITH_FLOW_CONTROL",
        "an assertion ends its test",
    ),
    (
        "pure.h",
        "MACRO_ARG_REUSE",
        "of constants, for the size of an array",
    ),
    ("trace.h", "OPEN_ENDED_LINE", "events are written so"),
    ("trace.h", "PARENTHESIS_ALIGNMENT", "events are written so"),
];
const COLUMNS: usize = 100;

/// What a tool found, or why it did not run.
enum Verdict {
    Found(Vec<String>),
    NotRun(String),
}
use Verdict::{Found, NotRun};

type Checked = Result<Verdict, Failure>;
type Check = fn(&Workspace) -> Checked;

struct Workspace {
    cache: Cache,
    catalog: Catalog,
    progress: Progress,
    /// A copy of `kmod/`, and where else files may lie.
    run: PathBuf,
}

fn text(error: onecopy_vm::Error) -> Failure {
    error.to_string()
}

/// All of it. What is found is printed.
pub(super) fn run() -> Result<Tally, (Tally, Failure)> {
    let mut tally = Tally::default();
    let workspace = Workspace::open().map_err(|failure| (tally, failure))?;
    let checks: [(&str, Check); 6] = [
        ("the compiler, W=1", warnings),
        ("sparse", sparse),
        ("smatch", smatch),
        ("checkpatch", checkpatch),
        ("coccinelle", coccinelle),
        ("kernel-doc", kernel_doc),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        let verdict = check(&workspace);
        workspace.progress.finish();
        match verdict {
            Ok(Found(lines)) if lines.is_empty() => {
                say::line(&format!("kmod: {name}: ok"));
                tally.passed += 1;
            }
            Ok(Found(lines)) => {
                for line in &lines {
                    say::line(&format!("    {line}"));
                }
                say::line(&format!("kmod: {name}: {} findings", lines.len()));
                tally.failed += 1;
                failed.push(name);
            }
            Ok(NotRun(why)) => {
                tally = tally.and(Tally::not_run(&format!("kmod: {name}"), &why));
            }
            Err(failure) => {
                say::line(&format!("kmod: {name}: {failure}"));
                tally.failed += 1;
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        super::executed("kmod", "tools", Ok(tally))
    } else {
        Err((tally, format!("kmod: {}", failed.join(", "))))
    }
}

impl Workspace {
    fn open() -> Result<Self, Failure> {
        let cache = Cache::open().map_err(text)?;
        let run = cache.new_run("verify").map_err(text)?;
        let workspace = Self {
            catalog: Catalog::load().map_err(text)?,
            progress: Progress::new(),
            run,
            cache,
        };
        let mut files = Vec::new();
        sources(&root().join("kmod"), &mut files)?;
        for from in files {
            let name = from.strip_prefix(root()).unwrap_or(&from);
            let to = workspace.run.join(name);
            let failed = |error: std::io::Error| format!("{}: {error}", to.display());
            fs::create_dir_all(to.parent().unwrap_or(&workspace.run)).map_err(failed)?;
            fs::copy(&from, &to).map_err(failed)?;
        }
        Ok(workspace)
    }

    fn kernel(&self, name: &str) -> Result<Kernel, Failure> {
        let entry = self.catalog.kernel(name).map_err(text)?;
        kernel::fetch(&self.cache, &self.catalog, entry, false, &self.progress).map_err(text)
    }

    /// A kernel's source, where the scripts lie.
    fn tree(&self) -> Result<PathBuf, Failure> {
        let profile = self.catalog.profile(PROFILE, KERNEL).map_err(text)?;
        let none = || format!("kernels.toml has no profile {PROFILE} of {KERNEL}");
        let profile = profile.ok_or_else(none)?;
        source::tree(&self.cache, &self.catalog, profile, &self.progress).map_err(text)
    }

    /// The C files, headers and interfaces, by their path in the copy.
    fn files(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut files = Vec::new();
        sources(&self.run.join("kmod"), &mut files)?;
        files.retain(|file| file.extension().is_some_and(|end| end == "c" || end == "h"));
        // A library of user space and its test are in C as well.
        files.retain(|file| !file.parent().is_some_and(|folder| folder.ends_with("lib")));
        // What the build of the module wrote.
        files.retain(|file| !file.to_string_lossy().ends_with(".mod.c"));
        files.sort();
        Ok(files)
    }

    /// Lines about our files, with the path as it is in the repository.
    fn ours(&self, lines: &str) -> Vec<String> {
        let copy = format!("{}/", self.run.display());
        let mut found: Vec<String> = lines
            .lines()
            .filter(|line| is_finding(line, &copy))
            .map(|line| line.replace(&copy, ""))
            .collect();
        found.sort();
        found.dedup();
        found
    }

    /// The module read by a tool instead of compiled by the compiler: what that says.
    fn read_by(&self, check: &str) -> Result<String, Failure> {
        let kernel = self.kernel(KERNEL)?;
        let Toolchain::Host { .. } = kernel.toolchain else {
            return Err(format!("the host cannot build for {}", kernel.release));
        };
        let mut output_text = String::new();
        for variable in ["NO_HMM=", "NO_HMM=1"] {
            let mut command = kernel.toolchain.command("make").map_err(text)?;
            command
                .arg("-C")
                .arg(&kernel.headers)
                .arg(format!("M={}", self.run.join("kmod").display()))
                .args([
                    "C=2",
                    "CONFIG_ONECOPY_KUNIT=y",
                    "CONFIG_DEBUG_INFO_BTF_MODULES=",
                ])
                .arg(format!("CHECK={check}"))
                .args([variable, "modules"])
                .env("LC_ALL", "C");
            let output = program::run(&mut command).map_err(text)?;
            output_text.push_str(&String::from_utf8_lossy(&output.stdout));
            output_text.push_str(&String::from_utf8_lossy(&output.stderr));
            if !output.status.success() {
                return Err(format!("make C=2: {}", program::tail(&output_text, 20)));
            }
        }
        if !output_text.contains("  CHECK  ") {
            return Err(format!("make C=2 did not run {check}"));
        }
        Ok(output_text)
    }
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                sources(&path, files)?;
            }
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether a line of output names a line of one of our files, at its begin or behind a word. One that only names the
/// file that is read now has no number.
fn is_finding(line: &str, copy: &str) -> bool {
    let Some((_, rest)) = line.split_once(copy) else {
        return false;
    };
    let number = rest.split(':').nth(1).unwrap_or_default();
    number.starts_with(|c: char| c.is_ascii_digit())
}

fn missing(tool: &str, packages: &str) -> Option<Verdict> {
    program::find(tool, packages)
        .err()
        .map(|error| NotRun(error.to_string()))
}

fn warnings(workspace: &Workspace) -> Checked {
    let mut found = Vec::new();
    for name in COMPILED_FOR {
        let kernel = workspace.kernel(name)?;
        let run = workspace.cache.new_run("verify").map_err(text)?;
        let variables = ["CONFIG_ONECOPY_KUNIT=y".to_owned(), "W=1".to_owned()];
        let sources = Sources::Folder(workspace.run.join("kmod"));
        let built = module::build(&kernel, &sources, &variables, &run, &workspace.progress);
        match built {
            Ok(_) => {}
            Err(onecopy_vm::Error::Warnings { warnings, .. }) => {
                found.extend(warnings.lines().map(|line| format!("{name}: {line}")));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(Found(found))
}

fn sparse(workspace: &Workspace) -> Checked {
    if let Some(why) = missing("sparse", "sparse") {
        return Ok(why);
    }
    Ok(Found(workspace.ours(&workspace.read_by("sparse")?)))
}

fn smatch(workspace: &Workspace) -> Checked {
    if program::find("smatch", "").is_err() {
        let why = "no program smatch; Debian has no package of it: build it and put it into PATH";
        return Ok(NotRun(why.to_owned()));
    }
    let text = workspace.read_by("smatch -p=kernel")?;
    let lines = workspace.ours(&text);
    // The compiler checks those assertions, of the kernel's macros; smatch takes types under RCU for others.
    let is_finding = |line: &&String| {
        (line.contains(" warn: ") || line.contains(" error: "))
            && !line.contains("static assertion failed")
    };
    Ok(Found(lines.iter().filter(is_finding).cloned().collect()))
}

fn checkpatch(workspace: &Workspace) -> Checked {
    if let Some(why) = missing("perl", "perl") {
        return Ok(why);
    }
    let script = workspace.tree()?.join("scripts/checkpatch.pl");
    let mut command = program::gentle("perl");
    command
        .arg(&script)
        .args([
            "--no-tree",
            "--strict",
            "--terse",
            "--show-types",
            "--no-summary",
        ])
        .arg(format!("--max-line-length={COLUMNS}"))
        .arg(format!("--ignore={}", NOT_OURS.join(",")))
        .arg("-f")
        .args(workspace.files()?);
    let output = program::run(&mut command).map_err(text)?;
    // It ends with 1 when it found something; with anything else it did not do its work.
    if !matches!(output.status.code(), Some(0 | 1)) {
        let printed = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "checkpatch: {}: {}",
            output.status,
            program::tail(&printed, 5)
        ));
    }
    let mut found = workspace.ours(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() && found.is_empty() {
        return Err(format!("checkpatch: {}, and no finding", output.status));
    }
    found.retain(|line| {
        !ACCEPTED.iter().any(|(file, kind, _)| {
            line.contains(&format!("/{file}:")) && line.contains(&format!(":{kind}:"))
        })
    });
    Ok(Found(found))
}

fn coccinelle(workspace: &Workspace) -> Checked {
    if let Some(why) = missing("spatch", "coccinelle") {
        return Ok(why);
    }
    let folder = workspace.tree()?.join("scripts/coccinelle");
    let mut scripts = Vec::new();
    sources(&folder, &mut scripts)?;
    scripts.retain(|script| script.extension().is_some_and(|end| end == "cocci"));
    scripts.sort();
    let (mut found, mut ran, mut left) = (Vec::new(), 0, 0);
    let ocaml = program::find("ocamlopt", "").is_ok();
    for script in &scripts {
        let printed = fs::read_to_string(script).unwrap_or_default();
        if !printed.contains("virtual report") {
            continue;
        }
        // A few have parts that are compiled.
        if printed.contains(":ocaml") && !ocaml {
            left += 1;
            continue;
        }
        workspace
            .progress
            .detail(&format!("coccinelle: {}", script.display()));
        let mut command = spatch(script, &printed, &workspace.run.join("kmod"));
        let output = program::run(&mut command).map_err(text)?;
        if !output.status.success() {
            let printed = String::from_utf8_lossy(&output.stderr);
            return Err(format!(
                "{}: {}",
                script.display(),
                program::tail(&printed, 5)
            ));
        }
        ran += 1;
        found.extend(workspace.ours(&String::from_utf8_lossy(&output.stdout)));
    }
    if ran == 0 {
        return Err(format!("{}: no script that reports", folder.display()));
    }
    say::line(&format!(
        "kmod: {ran} scripts of coccinelle ran, {left} that need OCaml did not"
    ));
    Ok(Found(found))
}

/// The command that looks for what a script, whose text is this, finds in a folder.
fn spatch(script: &Path, text: &str, folder: &Path) -> Command {
    let mut command = program::gentle("spatch");
    command
        .args([
            "-D",
            "report",
            "--very-quiet",
            "--no-show-diff",
            "--no-includes",
        ])
        .arg("--include-headers")
        .arg("--cocci-file")
        .arg(script)
        .arg("--dir")
        .arg(folder);
    // Some ask for an option of their own.
    let options = text
        .lines()
        .find_map(|line| line.strip_prefix("// Options:"));
    if let Some(options) = options {
        let known = ["--include-headers", "--no-includes"];
        let more = options
            .split_whitespace()
            .filter(|word| !known.contains(word));
        command.args(more);
    }
    command
}

fn kernel_doc(workspace: &Workspace) -> Checked {
    if let Some(why) = missing("perl", "perl") {
        return Ok(why);
    }
    let script = workspace.tree()?.join("scripts/kernel-doc");
    let files = workspace.files()?;
    let mut found = Vec::new();
    for header in files.iter().filter(|file| is_documented(file)) {
        let text = fs::read_to_string(header).map_err(|error| error.to_string())?;
        let path = header.strip_prefix(&workspace.run).unwrap_or(header);
        found.extend(
            undocumented(&text)
                .map(|name| format!("{}: struct {name} has no kernel-doc", path.display())),
        );
    }
    let mut command: Command = program::gentle("perl");
    command.arg(&script).args(["-none", "-Werror"]).args(&files);
    let output = program::run(&mut command).map_err(text)?;
    let printed = String::from_utf8_lossy(&output.stderr);
    let lines = workspace.ours(&printed);
    if !output.status.success() && lines.is_empty() {
        return Err(format!(
            "kernel-doc: {}: {}",
            output.status,
            program::tail(&printed, 5)
        ));
    }
    found.extend(lines);
    Ok(Found(found))
}

/// Headers whose structures have comments that kernel-doc reads. Those of `ktap.h` stand for KUnit's.
fn is_documented(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "h") && !file.ends_with("ktap.h")
}

/// Structures without a comment that kernel-doc reads: it says nothing of those.
fn undocumented(header: &str) -> impl Iterator<Item = &str> {
    header.lines().filter_map(move |line| {
        let name = line.strip_prefix("struct ")?.strip_suffix(" {")?;
        (!header.contains(&format!("/**\n * struct {name} - "))).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_without_a_comment_is_found() {
        let header = "/**\n * struct a - one\n * @x: a\n */\nstruct a {\n\tint x;\n};\n\
            /* struct b - no such comment */\nstruct b {\n\tint x;\n};\n";
        assert_eq!(undocumented(header).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn what_is_only_read_is_no_finding() {
        assert!(is_finding("/r/kmod/a.c:12:3: warning: x", "/r/"));
        assert!(is_finding("/r/kmod/a.c:12 f() warn: x", "/r/"));
        assert!(is_finding("WARNING: /r/kmod/a.c:12: x", "/r/"));
        assert!(!is_finding("  CHECK   /r/kmod/a.c", "/r/"));
        assert!(!is_finding("/usr/include/a.h:12: warning: x", "/r/"));
    }

    #[test]
    fn every_structure_of_a_header_has_one() {
        let mut files = Vec::new();
        sources(&root().join("kmod"), &mut files).expect("kmod");
        files.retain(|file| {
            is_documented(file) && file.parent().is_none_or(|folder| !folder.ends_with("lib"))
        });
        assert!(files.len() > 5, "{files:?}");
        for file in files {
            let header = fs::read_to_string(&file).expect("header");
            let without: Vec<&str> = undocumented(&header).collect();
            assert!(without.is_empty(), "{}: {without:?}", file.display());
        }
    }
}
