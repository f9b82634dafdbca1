// SPDX-License-Identifier: MIT OR Apache-2.0
//! `make install` of the libraries and headers: what is installed, that programs find it by each of its names, and that
//! `make uninstall` leaves nothing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where packages are installed; not the default, so that this is seen to count.
const PREFIX: &str = "/opt/onecopy";

/// What is installed, below the prefix.
const FILES: &[&str] = &[
    "include/knem_io.h",
    "include/onecopy/onecopy.h",
    "include/xpmem.h",
    "lib/libxpmem.a",
    "lib/libxpmem.so",
    "lib/libxpmem.so.0",
    "lib/libxpmem.so.0.0.0",
    "lib/pkgconfig/cray-xpmem.pc",
    "lib/pkgconfig/knem.pc",
    "lib/pkgconfig/onecopy-knem.pc",
    "lib/pkgconfig/onecopy-xpmem.pc",
];

/// A program that opens the devices by their headers, and one that links with the library.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <knem_io.h>
#include <onecopy/onecopy.h>
#include <xpmem.h>

int main(void)
{
	struct xpmem_cmd_make make = { .permit_type = XPMEM_PERMIT_MODE };
	int fd = open(XPMEM_DEV_PATH, O_RDWR);

	ioctl(fd, XPMEM_CMD_MAKE, &make);
	ioctl(fd, ONECOPY_IOC_INFO, 0);
	ioctl(fd, KNEM_CMD_GET_INFO, 0);
	return xpmem_version() < 0;
}
"#;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("onecopy-library-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn skipped(lacking: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: this machine has no {lacking}");
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// What a command writes; it must succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().expect("the command runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// Files and links below a folder.
fn files(folder: &Path, below: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, below, into);
        } else {
            let path = path.strip_prefix(below).expect("below");
            into.push(path.to_str().expect("a name").to_owned());
        }
    }
}

#[test]
fn install_and_uninstall() {
    if let Some(lacking) = ["make", "cc", "ar"]
        .into_iter()
        .find(|name| !is_there(name))
    {
        skipped(lacking);
        return;
    }
    let folder = Folder::new();
    let (root, built) = (folder.0.join("root"), folder.0.join("built"));
    let make = |target: &str| {
        let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lib");
        let mut command = Command::new("make");
        // Flags of a make that runs this are not for that one.
        command.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        command.arg("-s").arg("-C").arg(library).arg(target);
        command.arg(format!("DESTDIR={}", root.display()));
        command.arg(format!("OUT={}", built.display()));
        command.arg(format!("PREFIX={PREFIX}"));
        output(&mut command);
    };
    make("install");
    let prefix = root.join(PREFIX.trim_start_matches('/'));
    let mut found = Vec::new();
    files(&root, &prefix, &mut found);
    found.sort_unstable();
    assert_eq!(found, FILES);
    for link in ["lib/libxpmem.so", "lib/libxpmem.so.0"] {
        assert!(prefix.join(link).exists(), "{link} leads nowhere");
    }
    names(&root, &prefix, &folder.0);
    make("uninstall");
    let mut left = Vec::new();
    files(&root, &root, &mut left);
    assert!(left.is_empty(), "uninstall leaves {left:?}");
}

/// The names by which pkg-config has them, and a program that is built by what it says.
fn names(root: &Path, prefix: &Path, folder: &Path) {
    let pc = |name: &str| {
        let path = prefix.join(format!("lib/pkgconfig/{name}.pc"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert_eq!(pc("cray-xpmem"), pc("onecopy-xpmem"));
    assert_eq!(pc("knem"), pc("onecopy-knem"));
    for name in ["cray-xpmem", "knem"] {
        let text = pc(name);
        assert!(text.contains(PREFIX), "{name}: no {PREFIX} in {text}");
        assert!(
            !text.contains('@'),
            "{name}: a place that is not filled in {text}"
        );
    }
    if !is_there("pkg-config") {
        skipped("pkg-config");
        return;
    }
    let flags = |name: &str| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_LIBDIR", prefix.join("lib/pkgconfig"));
        command.env("PKG_CONFIG_SYSROOT_DIR", root);
        output(command.args(["--cflags", "--libs", name]))
    };
    let source = folder.join("program.c");
    std::fs::write(&source, PROGRAM).expect("the program");
    for (xpmem, knem) in [("cray-xpmem", "knem"), ("onecopy-xpmem", "onecopy-knem")] {
        let flags = flags(xpmem) + &flags(knem);
        let mut command = Command::new("cc");
        command.args(["-Wall", "-Wextra", "-Werror", "-o"]);
        command.arg(folder.join("program")).arg(&source);
        output(command.args(flags.split_whitespace()));
    }
}
