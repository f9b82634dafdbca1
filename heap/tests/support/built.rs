// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the library is that these tests preload, and how their programs are run.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::limit;

/// The folder into which this test program was built.
pub(crate) fn folder() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.parent().expect("a folder").to_owned()
}

/// The library, which cargo builds before the tests of its package.
pub(crate) fn library() -> PathBuf {
    let deps = folder();
    let places = [
        deps.join("libonecopy_heap.so"),
        deps.with_file_name("libonecopy_heap.so"),
    ];
    let found = places.iter().find(|place| place.exists());
    found
        .unwrap_or_else(|| panic!("none of {places:?} exists"))
        .clone()
}

/// What a program with the front is run under: nothing, or the words of `TEST_UNDER`, a tool and its
/// options (`cargo xtask verify valgrind`).
pub(crate) fn under() -> Vec<String> {
    let words = std::env::var("TEST_UNDER").unwrap_or_default();
    words.split_whitespace().map(str::to_owned).collect()
}

/// Compiles a C program, or a library of one, of the folder of tests. The compiler knows nothing of malloc, so that no
/// call is hidden.
pub(crate) fn compile(to: &Path, source: &str, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(source);
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O1", "-Wall", "-fno-builtin", "-pthread"]);
    let compiled = limit::output(command.arg("-o").arg(to).arg(source).args(flags));
    let text = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{text}");
}
