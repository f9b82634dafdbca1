// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared libraries in C that stand in for those of a machine. Included by what builds one, beside `limit`.

use crate::limit;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of a source, of which `file!()` is the name.
pub(crate) fn folder_of(file: &str) -> PathBuf {
    Path::new(file)
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

/// Builds a source into a folder, as the library of this name.
pub(crate) fn build(source: &Path, folder: &Path, name: &str) -> PathBuf {
    std::fs::create_dir_all(folder).expect("a folder for the library");
    let library = folder.join(name);
    // Another process may be using the one that is there.
    let made = folder.join(format!("{name}.{}", std::process::id()));
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-shared", "-fPIC", &format!("-Wl,-soname,{name}"), "-o"])
        .arg(&made)
        .arg(source)
        .arg("-lpthread");
    let built = limit::output(&mut command);
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{}: {errors}", source.display());
    std::fs::rename(&made, &library).expect("a folder that can be written");
    library
}
