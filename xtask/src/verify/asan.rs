// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C programs of `mpi/tests` on a library that AddressSanitizer watches.
//!
//! The compiler's flag for sanitizers is not stable, so the stable one is told to take it. The
//! runtime comes with it as a static library. It belongs into the executable, where the library
//! finds its symbols; so a `cc` of ours, first in the path, links it into each C program, which it
//! has the C compiler watch, too. Leaks are looked for at the end of each rank.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::executed;
use crate::steps::{Tally, cargo, count};
use crate::{Failure, root, vm};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Compiles C files with the sanitizer and links its runtime; whatever else is asked of it, the
/// real compiler does.
const WRAPPER: &str = r#"#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
set -e
source=
for argument; do
    case $argument in
    *.c) source=$argument ;;
    # What makes no program is of a build script.
    -c | -E) exec REAL "$@" ;;
    esac
done
[ -n "$source" ] || exec REAL "$@"
object=$(mktemp --suffix=.o)
trap 'rm -f "$object"' EXIT
count=$#
compile=
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
    "$source") set -- "$@" "$object" ;;
    -I | -o | -L)
        [ "$argument" != -I ] || compile="$compile -I $1"
        set -- "$@" "$argument" "$1"
        shift
        count=$((count - 1))
        ;;
    -l* | -L*) set -- "$@" "$argument" ;;
    *)
        compile="$compile $argument"
        set -- "$@" "$argument"
        ;;
    esac
done
REAL $compile -g -fsanitize=address -fno-omit-frame-pointer -c "$source" -o "$object"
REAL "$@" -Wl,--whole-archive RUNTIME -Wl,--no-whole-archive -Wl,--export-dynamic -lm -lpthread -ldl -lresolv -lrt
"#;

/// Tests that say nothing under a sanitizer: they measure memory, or run programs of others.
const LEFT_OUT: [&str; 3] = [
    "a_send_takes_little_memory_and_locks_none",
    "one_binary_runs_on_each_library_in_turn",
    "mpi4py_where_it_was_built",
];

fn run_quietly(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !text.is_empty() {
        Ok(text)
    } else {
        Err(format!("{command:?}: {}", output.status))
    }
}

/// The runtime of the sanitizer that the compiler brings.
fn runtime() -> Result<PathBuf, Failure> {
    let sysroot = run_quietly(Command::new("rustc").args(["--print", "sysroot"]))?;
    let folder = Path::new(&sysroot).join(format!("lib/rustlib/{TARGET}/lib"));
    let entries = std::fs::read_dir(&folder).map_err(|error| error.to_string())?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .find(|path| path.to_string_lossy().ends_with("_rt.asan.a"))
        .ok_or_else(|| {
            format!(
                "no runtime of AddressSanitizer in {}: the toolchains of rust-lang.org have one",
                folder.display()
            )
        })
}

/// A folder with the `cc` that watches.
fn tools(target: &Path) -> Result<PathBuf, Failure> {
    let real = run_quietly(Command::new("sh").args(["-c", "command -v cc"]))?;
    let text = WRAPPER
        .replace("REAL", &real)
        .replace("RUNTIME", &runtime()?.to_string_lossy());
    let folder = target.join("tools");
    let made = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("cc"), text))
        .and_then(|()| {
            let runs = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(folder.join("cc"), runs)
        });
    made.map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// A `cargo` whose code is watched, in a target folder of its own.
pub(super) fn watched() -> Result<Command, Failure> {
    let target = root().join("target").join("asan");
    let tools = tools(&target)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = cargo();
    command
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_BUILD_TARGET", TARGET)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env(
            "ASAN_OPTIONS",
            "detect_leaks=1:handle_abort=1:allocator_may_return_null=1",
        );
    Ok(command)
}

fn programs(only: &[&str]) -> Result<Tally, (Tally, Failure)> {
    let mut command = watched().map_err(|failure| (Tally::default(), failure))?;
    command
        .args(["test", "--package", "onecopy-mpi", "--test", "programs"])
        .args(["--features", vm::TESTED_WITH, "--"])
        .args(only);
    for name in LEFT_OUT {
        command.args(["--skip", name]);
    }
    executed("asan", "tests", count(&mut command))
}

/// All of it.
pub(crate) fn run() -> Result<Tally, (Tally, Failure)> {
    programs(&[])
}

/// What finds most in a short time.
pub(crate) fn reduced() -> Result<Tally, (Tally, Failure)> {
    programs(&[
        "wrong_argument",
        "failing",
        "point_to_point",
        "communicators",
    ])
}
