// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the driver in software. Included by tests, beside `limit`.

use std::path::{Path, PathBuf};

#[path = "../../../../tests/harness/c_library.rs"]
mod c_library;

/// The folder of the sources.
pub(crate) fn sources() -> PathBuf {
    c_library::folder_of(file!())
}

/// Builds `libcuda.so.1` into a folder.
pub(crate) fn build(folder: &Path) -> PathBuf {
    c_library::build(&sources().join("libcuda.c"), folder, "libcuda.so.1")
}
