// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asks a C compiler what a header means. Included by the tests of the crates that declare the same in Rust.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// What a C program prints. `name` is that of its files in the scratch folder, `flags` are the compiler's.
///
/// # Panics
///
/// If the program cannot be compiled, or ends with another code than zero.
pub(crate) fn output_of(name: &str, program: &str, flags: &[&OsStr]) -> String {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = scratch.join(format!("layout-{name}.c"));
    let binary = scratch.join(format!("layout-{name}.bin"));
    std::fs::write(&source, program).expect("the scratch folder can be written");
    let compiled = Command::new("cc")
        .args(flags)
        .arg("-o")
        .arg(&binary)
        .arg(&source)
        .output()
        .expect("cc runs");
    let reason = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{}: {reason}", source.display());
    let ran = Command::new(&binary).output().expect("the program runs");
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{}: {printed}", ran.status);
    printed
}
