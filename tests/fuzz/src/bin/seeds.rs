// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the corpora under `tests/fuzz/corpus` anew.

use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in onecopy_fuzz::TARGETS {
        let folder = all.join(target.name);
        fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(format!("{number:02}")), seed)?;
        }
    }
    Ok(())
}
