// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bpf`: builds the programs that observe in the kernel, or compares them with what is committed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::steps::Tally;
use crate::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only compare: hashes of the sources, and instructions where the compiler is here
    #[arg(long)]
    check: bool,
}

const SOURCES: &str = "ebpf/bpf";
const MAIN: &str = "onecopy.bpf.c";
const OBJECT: &str = "ebpf/prebuilt/onecopy.bpf.o";
/// The hashes of the sources, as `sha256sum -c` reads them in their folder.
const HASHES: &str = "ebpf/prebuilt/sources.sha256";
/// Which compiler built the object. Others order instructions differently.
const COMPILER: &str = "ebpf/prebuilt/compiler";

pub(crate) fn run(args: &Args, root: &Path) -> Result<(), Failure> {
    if args.check {
        return check(root).map(|_| ()).map_err(|(_, failure)| failure);
    }
    let version = version()?;
    build(root, &root.join(OBJECT))?;
    write(root, HASHES, &hashes(root)?)?;
    write(root, COMPILER, &format!("{version}\n"))?;
    say::line(&format!("{OBJECT}: built by {version}"));
    Ok(())
}

/// Compares what is committed with its sources.
pub(crate) fn check(root: &Path) -> Result<Tally, (Tally, Failure)> {
    let fail = |failure| (Tally::default(), failure);
    if hashes(root).map_err(fail)? != read(root, HASHES).map_err(fail)? {
        let failure = format!("{OBJECT} is older than {SOURCES}; run `cargo xtask bpf`");
        return Err(fail(failure));
    }
    say::line(&format!("{HASHES}: as {SOURCES}"));
    let recorded = read(root, COMPILER).map_err(fail)?;
    let recorded = recorded.trim();
    let tool = "comparing instructions of the observing programs";
    match version() {
        Ok(here) if here == recorded => {}
        Ok(here) => {
            let reason = format!("they were built by {recorded}; here is {here}");
            return Ok(Tally::ONE.and(Tally::not_run(tool, &reason)));
        }
        Err(reason) => return Ok(Tally::ONE.and(Tally::not_run(tool, &reason))),
    }
    let folder = tempfile::tempdir().map_err(|error| fail(error.to_string()))?;
    let fresh = folder.path().join("fresh.o");
    build(root, &fresh).map_err(fail)?;
    let (built, committed) = (instructions(&fresh), instructions(&root.join(OBJECT)));
    if built.map_err(fail)? != committed.map_err(fail)? {
        let failure = format!("{OBJECT} has other instructions than its sources");
        return Err(fail(failure));
    }
    say::line(&format!("{OBJECT}: the instructions of {SOURCES}"));
    Ok(Tally::ONE.and(Tally::ONE))
}

fn build(root: &Path, object: &Path) -> Result<(), Failure> {
    let folder = root.join(SOURCES);
    output(
        Command::new("clang")
            .args([
                "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror",
            ])
            .args(["-c", MAIN, "-o"])
            .arg(object)
            .current_dir(folder),
    )?;
    output(Command::new("llvm-strip").arg("-g").arg(object))?;
    Ok(())
}

/// The first line of what the compiler says of itself.
fn version() -> Result<String, Failure> {
    let text = output(Command::new("clang").arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The instructions of each section, without the name of the file.
fn instructions(object: &Path) -> Result<String, Failure> {
    let text = output(Command::new("llvm-objdump").arg("-dr").arg(object))?;
    let lines = text.lines().filter(|line| !line.contains("file format"));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// One line for each source, in the order of their names.
fn hashes(root: &Path) -> Result<String, Failure> {
    let folder = root.join(SOURCES);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{SOURCES}: {error}"))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    let mut text = String::new();
    for name in names {
        let bytes =
            std::fs::read(folder.join(&name)).map_err(|error| format!("{name}: {error}"))?;
        for byte in Sha256::digest(bytes) {
            let _ = write!(text, "{byte:02x}");
        }
        let _ = writeln!(text, "  {name}");
    }
    Ok(text)
}

fn read(root: &Path, path: &str) -> Result<String, Failure> {
    std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))
}

fn write(root: &Path, path: &str, text: &str) -> Result<(), Failure> {
    std::fs::write(root.join(path), text).map_err(|error| format!("{path}: {error}"))
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let reason = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program}: {}", reason.trim()))
    }
}
