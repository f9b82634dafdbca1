// SPDX-License-Identifier: MIT OR Apache-2.0
//! Payload is copied by `btl/shm/src/copy.rs` alone, which knows where the processor's string instruction is slow. The
//! C library's `memcpy`, and so `copy_from_slice`, does not.

use super::{File, Findings, test_items};

/// Where payload is copied.
const FOLDERS: [&str; 8] = [
    "btl/shm/src/coll/",
    "btl/shm/src/loan.rs",
    "src/coll/",
    "src/endpoint/",
    "src/proto/",
    "src/state/",
    "mpi/src/coll/user_buffer.rs",
    "mpi/src/memory.rs",
];
/// What copies past it.
const COPIES: [&str; 3] = ["copy_from_slice(", "copy_nonoverlapping(", "ptr::copy("];
/// What a line says of bytes that are few.
const SHORT: [&str; 3] = ["to_le_bytes()", ".encode()", "// short"];

pub(super) fn check(file: &File, findings: &mut Findings) {
    let is_payload = FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    if !is_payload || file.path.ends_with("tests.rs") {
        return;
    }
    let tests = match test_items::lines(&file.text) {
        Ok(tests) => tests,
        Err(why) => return findings.error(&file.path, why),
    };
    for (number, line) in (1..).zip(file.text.lines()) {
        if tests.iter().any(|test| test.contains(&number)) {
            continue;
        }
        let copies = COPIES.iter().any(|copy| line.contains(copy));
        let is_comment = line.trim_start().starts_with("//");
        if copies && !is_comment && !SHORT.iter().any(|short| line.contains(short)) {
            findings.error(
                format!("{}:{number}", file.path),
                "payload is copied by onecopy_shm::copy; say '// short' if there are few bytes",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> usize {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let mut findings = Findings::default();
        check(&file, &mut findings);
        findings.errors.len()
    }

    #[test]
    fn a_copy_of_payload_past_the_kernels_is_found() {
        let copy = "out.copy_from_slice(part);";
        assert_eq!(errors("src/proto/own.rs", copy), 1);
        assert_eq!(
            errors("mpi/src/memory.rs", "copy_nonoverlapping(a, b, len)"),
            1
        );
        assert_eq!(errors("btl/shm/src/loan.rs", "ptr::copy(a, b, len)"), 1);
        for short in [
            "a.copy_from_slice(&word.to_le_bytes());",
            "a.copy_from_slice(b); // short",
            "#[cfg(test)]\nmod tests {\n    out.copy_from_slice(part);\n}",
            "// out.copy_from_slice(part);",
        ] {
            assert_eq!(errors("src/proto/own.rs", short), 0, "{short}");
        }
        assert_eq!(errors("src/proto/own/tests.rs", copy), 0);
        let behind =
            "#[cfg(test)]\nmod tests {\n    a.copy_from_slice(b);\n}\nout.copy_from_slice(part);";
        assert_eq!(errors("src/proto/own.rs", behind), 1);
        assert_eq!(errors("cli/src/lib.rs", copy), 0);
    }
}
