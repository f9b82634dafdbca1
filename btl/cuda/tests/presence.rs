// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver is found as soon as something has loaded it, also late, and nothing before.
//!
//! # Safety
//! Libraries of these tests, which do nothing when they are loaded.
#![allow(unsafe_code, reason = "loads libraries")]

#[path = "driver/build.rs"]
mod build;
#[path = "../../../tests/harness/limit.rs"]
mod limit;

use onecopy_cuda::is_possible;
use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

fn load(path: &Path) -> *mut c_void {
    let name = CString::new(path.as_os_str().as_bytes()).expect("a name");
    // SAFETY: libraries of these tests, which do nothing when they are loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{}", path.display());
    handle
}

/// A library of no use.
fn other(folder: &Path, index: usize) -> std::path::PathBuf {
    let source = folder.join("other.c");
    std::fs::write(&source, "int other;\n").expect("a source");
    let library = folder.join(format!("libother{index}.so"));
    let mut command = Command::new("cc");
    command
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    assert!(limit::output(&mut command).status.success());
    library
}

#[test]
fn the_driver_is_seen_when_it_comes_and_not_before() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("presence");
    let driver = build::build(&folder);
    let never = |times| (0..times).for_each(|_| assert!(!is_possible()));
    never(1000);
    // Libraries come and go, also the last one of the list, before and after it is pinned.
    for index in 0..4 {
        let handle = load(&other(&folder, index));
        never(if index % 2 == 0 { 10 } else { 1000 });
        // SAFETY: the handle is open.
        unsafe { libc::dlclose(handle) };
        never(if index < 2 { 10 } else { 1000 });
    }
    let threads: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(move || never(10_000)))
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
    load(&driver);
    assert!(is_possible(), "at the first look");
    assert!(is_possible(), "and for ever");
}
