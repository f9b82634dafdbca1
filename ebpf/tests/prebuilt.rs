// SPDX-License-Identifier: MIT OR Apache-2.0
//! The committed programs were built from the committed sources. (`cargo xtask bpf --check` compares instructions.)

use std::path::Path;

use sha2::{Digest, Sha256};

#[test]
fn the_object_was_built_from_these_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recorded = std::fs::read_to_string(root.join("prebuilt/sources.sha256")).expect("hashes");
    let mut names: Vec<String> = std::fs::read_dir(root.join("bpf"))
        .expect("sources")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    names.sort();
    let mut found = String::new();
    for name in names {
        let bytes = std::fs::read(root.join("bpf").join(&name)).expect("a source");
        let hash: String = Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        found.push_str(&format!("{hash}  {name}\n"));
    }
    assert_eq!(found, recorded, "run `cargo xtask bpf`");
}
