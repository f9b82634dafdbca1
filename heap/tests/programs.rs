// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ordinary programs under the malloc front.

#[path = "support/built.rs"]
mod built;
#[path = "../../tests/harness/limit.rs"]
mod limit;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The C program, built once.
fn program() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let to = built::folder().join(format!("malloc-program-{}", std::process::id()));
        built::compile(&to, "program.c", &["-Wno-use-after-free", "-ldl"]);
        to
    })
}

fn run(what: &str, env: &[(&str, &str)]) -> Output {
    // `env` runs what its words say, a tool in front of the program perhaps.
    let mut command = Command::new("env");
    command.args(built::under()).arg(program());
    command.arg(what).env("LD_PRELOAD", built::library());
    limit::output(command.envs(env.iter().copied()))
}

#[track_caller]
fn passes(what: &str, env: &[(&str, &str)]) {
    let output = run(what, env);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}: {text}", output.status);
}

#[test]
fn allocations_of_all_kinds() {
    for what in ["basics", "reallocation", "alignment", "libraries"] {
        passes(what, &[]);
    }
}

#[test]
fn freed_memory_goes_back_to_the_system() {
    passes("given_back", &[]);
}

#[test]
fn parent_and_child_have_memory_of_their_own() {
    passes("forks", &[]);
}

#[test]
fn threads_that_allocate_and_fork() {
    passes("threads", &[]);
}

#[test]
fn programs_that_start_programs() {
    passes("programs", &[]);
}

#[test]
fn without_room_everything_goes_to_the_next_allocator() {
    // Too little for the checks that look where memory is, but what the program does must go on: these have none.
    passes("threads", &[("ONECOPY_HEAP_SIZE", "1M")]);
    passes("threads", &[("ONECOPY_MALLOC_MIN", "1T")]);
}

#[test]
fn a_double_free_ends_the_program_and_says_why() {
    let output = run("double_free", &[]);
    assert_eq!(output.status.signal(), Some(6), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("free(): invalid pointer"), "{text}");
}
