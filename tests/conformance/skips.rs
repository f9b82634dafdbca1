// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may be skipped on which class of machines: `tests/expected-skips/CLASS.toml`, a line `layer = "why"` per layer.
//! Layers in the list `TEST_REQUIRE` are never skipped: where their module is loaded, a test that cannot use it has
//! failed.

use crate::cases::Case;
use crate::processes::say;

/// The class of this machine: what `TEST_MACHINE_CLASS` says, else by what the kernel says about tracing.
fn class() -> String {
    if let Ok(class) = std::env::var("TEST_MACHINE_CLASS") {
        return class;
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.ok().and_then(|text| text.trim().parse::<u8>().ok());
    let root = nix::unistd::geteuid().is_root();
    match scope {
        Some(3) => "no-ptrace",
        Some(2) if !root => "no-ptrace",
        _ => "default",
    }
    .to_owned()
}

/// Prints what is skipped and why; fails if this class of machines is not expected to lack the layer.
#[track_caller]
pub(crate) fn expect(case: &Case, reason: &str) {
    let layer = reason.split(':').next().unwrap_or_default();
    let required = std::env::var("TEST_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|required| required == layer),
        "case '{}' cannot be run: {reason}; TEST_REQUIRE={required}",
        case.name
    );
    let class = class();
    let path = format!(
        "{}/tests/expected-skips/{class}.toml",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let why = text.lines().find_map(|line| {
        let (name, why) = line.split_once('=')?;
        (name.trim() == layer).then(|| why.trim().to_owned())
    });
    match why {
        Some(why) => say(&format!(
            "skipped on {class}: case '{}': {reason} (expected: {why})",
            case.name
        )),
        None => panic!(
            "case '{}' cannot be run: {reason}; {path} does not expect that",
            case.name
        ),
    }
}
