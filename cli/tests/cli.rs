// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command as a user meets it.

#[path = "../../tests/harness/command.rs"]
mod command;

use command::{onecopy, text};
use std::process::Command;

#[test]
fn a_bad_knob_is_named_with_value_and_range() {
    let output = onecopy(&["env"], &[("ONECOPY_RING_SLOTS", "31")]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(
        text(&output.stderr),
        "onecopy: ONECOPY_RING_SLOTS=31: too small; accepted: auto, or a power of two from 32 to 32768\n"
    );
}

#[test]
fn an_unknown_variable_is_reported_with_the_nearest_knob() {
    let output = onecopy(&["env"], &[("ONECOPY_EAGERMAX", "1")]);
    assert_eq!(output.status.code(), Some(0));
    let listing = text(&output.stdout);
    let last = listing.lines().last().expect("a line");
    assert_eq!(
        last,
        "unknown: ONECOPY_EAGERMAX is not a knob; did you mean ONECOPY_EAGER_MAX?"
    );
}

#[test]
fn a_reader_that_stops_is_no_failure() {
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" env | true; \"$0\" env --json | head -c 1"]);
    let output = command::limit::output(command.arg(env!("CARGO_BIN_EXE_onecopy")));
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "{");
}

#[test]
fn wrong_usage_ends_with_2() {
    let output = onecopy(&["no-such-command"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no-such-command"));
    assert_eq!(onecopy(&[], &[]).status.code(), Some(2));
}

#[test]
fn vm_lists_kernels_without_fetching_any() {
    let folder = std::env::temp_dir().join(format!("onecopy-vm-{}", std::process::id()));
    let vm = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.arg("vm").args(args);
        command::limit::output(command.env("ONECOPY_VM_CACHE", &folder))
    };
    let listed = vm(&["--list"]);
    let unknown = vm(&["--kernel", "2.6"]);
    std::fs::remove_dir_all(&folder).expect("the cache");
    assert!(listed.status.success(), "{listed:?}");
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(text.contains("newest"), "{text}");
    assert!(
        !text.contains("cloud"),
        "an empty cache has no release: {text}"
    );
    assert_eq!(unknown.status.code(), Some(2));
    let text = String::from_utf8_lossy(&unknown.stderr);
    assert!(text.contains("no kernel '2.6'; there are 5.10"), "{text}");
}
