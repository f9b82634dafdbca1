// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the driver in software. Included by tests, beside `limit`.

use crate::limit;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the sources.
pub(crate) fn sources() -> PathBuf {
    Path::new(file!())
        .parent()
        .map(|folder| workspace().join(folder))
        .expect("a file lies in a folder")
}

/// The folder from which `file!()` begins.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").exists())
        .expect("the package is in a workspace")
}

/// Builds `libcuda.so.1` into a folder.
pub(crate) fn build(folder: &Path) -> PathBuf {
    std::fs::create_dir_all(folder).expect("a folder for the driver");
    let library = folder.join("libcuda.so.1");
    // Another process may be using the one that is there.
    let made = folder.join(format!("libcuda.{}", std::process::id()));
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(&made)
        .arg(sources().join("libcuda.c"))
        .arg("-lpthread");
    let built = limit::output(&mut command);
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "libcuda.c: {said}");
    std::fs::rename(&made, &library).expect("a folder that can be written");
    library
}
