// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the toolchain has of a sanitizer, and a `cargo` that builds with it.
//!
//! The compiler's flag for sanitizers is not stable, so the stable compiler is told to take it. The
//! runtime comes with it as a static library. It belongs into the executable, where `libmpi_abi.so`
//! finds its symbols. So a `cc` of ours, first in the path, links it into each C program, and has
//! the C compiler instrument that program, too.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::cargo;
use crate::{Failure, root};

pub(super) const TARGET: &str = "x86_64-unknown-linux-gnu";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sanitizer {
    Address,
    Thread,
}

/// Compiles C files with the sanitizer and links its runtime; whatever else is asked of it, the
/// real compiler does.
const WRAPPER: &str = r#"#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
set -e
source=
for argument; do
    case $argument in
    *.c) source=$argument ;;
    # What makes no program: of a build script, or a library that a program loads.
    -c | -E | -shared) exec REAL "$@" ;;
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
REAL $compile -g FLAG -fno-omit-frame-pointer -c "$source" -o "$object"
REAL "$@" -Wl,--whole-archive RUNTIME -Wl,--no-whole-archive -Wl,--export-dynamic -lm -lpthread -ldl -lresolv -lrt
"#;

impl Sanitizer {
    /// Its name, in the flags of both compilers.
    const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    const fn short(self) -> &'static str {
        match self {
            Self::Address => "asan",
            Self::Thread => "tsan",
        }
    }

    /// The flag for the Rust compiler.
    pub(super) fn flag(self) -> String {
        format!("-Zsanitizer={}", self.name())
    }

    /// The runtime that the compiler brings.
    pub(super) fn runtime(self) -> Result<PathBuf, Failure> {
        let folder = sysroot()?.join(format!("lib/rustlib/{TARGET}/lib"));
        let entries =
            std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let end = format!("_rt.{}.a", self.short());
        paths
            .find(|path| path.to_string_lossy().ends_with(&end))
            .ok_or_else(|| {
                format!(
                    "no runtime of the {} sanitizer in {}: the toolchains of rust-lang.org have one",
                    self.name(),
                    folder.display()
                )
            })
    }

    /// A folder with a `cc` that instruments.
    fn tools(self, target: &Path) -> Result<PathBuf, Failure> {
        let real = answer(Command::new("sh").args(["-c", "command -v cc"]))?;
        let text = WRAPPER
            .replace("REAL", &real)
            .replace("FLAG", &format!("-fsanitize={}", self.name()))
            .replace("RUNTIME", &self.runtime()?.to_string_lossy());
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

    /// A `cargo` whose code is instrumented, in a target folder of its own.
    pub(super) fn cargo(self) -> Result<Command, Failure> {
        let target = root().join("target").join(self.short());
        let tools = self.tools(&target)?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = cargo();
        command
            .env("PATH", format!("{}:{path}", tools.display()))
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_BUILD_TARGET", TARGET)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", self.flag());
        Ok(command)
    }
}

/// What a program prints.
fn answer(command: &mut Command) -> Result<String, Failure> {
    let output = command
        .current_dir(root())
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !text.is_empty() {
        Ok(text)
    } else {
        Err(format!("{command:?}: {}", output.status))
    }
}

/// Where the toolchain lies.
pub(super) fn sysroot() -> Result<PathBuf, Failure> {
    answer(Command::new("rustc").args(["--print", "sysroot"])).map(PathBuf::from)
}
