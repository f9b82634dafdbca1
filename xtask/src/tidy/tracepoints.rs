// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each tracepoint of the table is emitted somewhere: the documentation lists them all.

use super::{File, Findings, is_rust};

/// Where the table stands, which emits none but in tests.
const TABLE: &str = "btl/obs/src/tracepoints.rs";

pub(super) fn check(files: &[File], findings: &mut Findings) {
    for info in onecopy_obs::TRACEPOINTS {
        if !is_emitted(info.name, files) {
            findings.error(TABLE, format!("nothing emits {}", info.name));
        }
    }
}

fn is_emitted(name: &str, files: &[File]) -> bool {
    let call = format!("tracepoints::{name}(");
    files
        .iter()
        .filter(|file| is_rust(file) && file.path != TABLE)
        .any(|file| file.text.contains(&call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracepoint_that_nothing_emits_is_found() {
        let file = |path: &str, text: &str| File {
            path: path.into(),
            text: text.into(),
        };
        let files = [
            file("src/wait.rs", "tracepoints::sleep(1);"),
            file(TABLE, "tracepoints::wake(true)"),
            file("docs/x.md", "tracepoints::wake(true)"),
        ];
        assert!(is_emitted("sleep", &files));
        assert!(!is_emitted("wake", &files));
    }
}
