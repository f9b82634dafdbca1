// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's sources and the guest's files are part of the program: it is built anew when they change.

fn main() {
    for path in ["../kmod", "guest", "debug", "kernels.toml"] {
        println!("cargo::rerun-if-changed={path}");
    }
}
