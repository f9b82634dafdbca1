// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every input that is kept is run once, without the fuzzer: what was found stays mended.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Beyond this an input hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(kind)
        .join(target);
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_input_is_survived() {
    for target in onecopy_fuzz::TARGETS {
        let mut paths = inputs("corpus", target.name);
        assert!(!paths.is_empty(), "{} has no corpus", target.name);
        paths.extend(inputs("regressions", target.name));
        for path in paths {
            let input = fs::read(&path).expect("an input");
            let (run, (over, ended)) = (target.run, mpsc::channel());
            let _run = std::thread::spawn(move || {
                let ran = std::panic::catch_unwind(|| run(&input));
                over.send(ran.is_ok()).ok();
            });
            let ran = ended.recv_timeout(LIMIT);
            assert_eq!(ran, Ok(true), "{}: {}", target.name, path.display());
        }
    }
}

/// The corpora are what the generator makes, and small.
#[test]
fn corpora_are_up_to_date() {
    let mut bytes = 0;
    for target in onecopy_fuzz::TARGETS {
        let kept: Vec<Vec<u8>> = inputs("corpus", target.name)
            .iter()
            .map(|path| fs::read(path).expect("an input"))
            .collect();
        bytes += kept.iter().map(Vec::len).sum::<usize>();
        assert_eq!(
            kept,
            (target.seeds)(),
            "{}: run `cargo run -p onecopy-fuzz --bin seeds`",
            target.name
        );
    }
    assert!(bytes < 200 << 10, "{bytes} bytes");
}
