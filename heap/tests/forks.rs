// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks with other libraries' handlers, forks that the front has no room for, cancelled threads, and limits.

#[path = "support/built.rs"]
mod built;
#[path = "../../tests/harness/limit.rs"]
mod limit;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The C program and the library that it needs, built once.
fn program() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = built::folder().join(format!("malloc-forks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("folder");
        built::compile(
            &folder.join("libhandlers.so"),
            "handlers.c",
            &["-shared", "-fPIC"],
        );
        let to = folder.join("forks");
        let place = folder.to_str().expect("a path in UTF-8");
        built::compile(
            &to,
            "forks.c",
            &["-L", place, "-lhandlers", &format!("-Wl,-rpath,{place}")],
        );
        to
    })
}

/// Runs one part of the program under the front, in a shell that ran `before`.
#[track_caller]
fn passes(what: &str, before: &str, env: &[(&str, &str)]) {
    let mut command = Command::new("sh");
    let text = format!(r#"{before} export LD_PRELOAD="$1"; shift; exec "$@" {what}"#);
    command
        .args(["-c", &text, "sh"])
        .arg(built::library())
        .args(built::under())
        .arg(program());
    let output = limit::output(command.envs(env.iter().copied()));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}: {text}", output.status);
}

#[test]
fn handlers_of_other_libraries_may_allocate_and_write() {
    passes("handlers", "", &[("TEST_HANDLERS", "1")]);
    passes("handlers_threads", "", &[("TEST_HANDLERS", "1")]);
}

#[test]
fn a_child_without_a_copy_gets_zeros_from_calloc() {
    passes("refused_address_space", "", &[]);
    passes("refused_data", "", &[]);
}

#[test]
fn neither_malloc_nor_free_is_a_cancellation_point() {
    passes("cancel", "", &[]);
}

#[test]
fn a_limit_of_the_size_of_files_kills_nobody() {
    // Nothing of the region fits; only what lies before it does; a smaller one fits.
    for limit in ["1024", "5000000", "100000000"] {
        passes("file_limit", &format!("ulimit -f {limit};"), &[]);
        let set = [("ONECOPY_HEAP_SIZE", "1G")];
        passes("file_limit", &format!("ulimit -f {limit};"), &set);
    }
}
