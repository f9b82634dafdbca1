// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the exported functions and the constants from the tables, and names the library.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from);
    let out = out.ok_or_else(|| std::io::Error::other("OUT_DIR is not set"))?;
    std::fs::write(out.join("edge.rs"), onecopy_mpi_abi::edge::functions())?;
    std::fs::write(
        out.join("constants.rs"),
        onecopy_mpi_abi::edge::rust_constants(),
    )?;
    let mut stdout = std::io::stdout().lock();
    use std::io::Write;
    writeln!(
        stdout,
        "cargo:rustc-cdylib-link-arg=-Wl,-soname,libmpi_abi.so.1"
    )?;
    writeln!(stdout, "cargo:rerun-if-changed=build.rs")
}
