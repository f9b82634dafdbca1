// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are part of this program: the catalogue, the guest's scripts, configurations of kernels, the module's
//! sources.

use std::path::Path;

use include_dir::{Dir, include_dir};

use crate::{Error, Result, cache};

/// The catalogue's text.
pub(crate) const KERNELS: &str = include_str!("../kernels.toml");

static GUEST: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/guest");
static DEBUG: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/debug");
static MODULE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../kmod");

/// A script of the guest.
pub(crate) fn script(name: &str) -> Result<&'static [u8]> {
    GUEST
        .get_file(name)
        .map(include_dir::File::contents)
        .ok_or_else(|| Error::Refused(format!("this program was built without guest/{name}")))
}

/// A piece of a kernel's configuration, or the script that builds one.
pub(crate) fn fragment(name: &str) -> Option<&'static [u8]> {
    DEBUG.get_file(name).map(include_dir::File::contents)
}

/// Writes the module's sources into a folder.
///
/// # Errors
///
/// When a file cannot be written.
pub fn write_module(into: &Path) -> Result<()> {
    cache::make(into)?;
    MODULE
        .extract(into)
        .map_err(Error::io(into.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_inside() {
        let folder = tempfile::tempdir().expect("temporary folder");
        write_module(folder.path()).expect("module");
        assert!(folder.path().join("include/uapi/onecopy.h").exists());
    }

    #[test]
    fn the_guest_is_inside() {
        assert!(script("init").is_ok());
        assert!(script("no-such").is_err());
    }
}
