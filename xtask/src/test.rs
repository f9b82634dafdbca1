// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask test`: everything that must pass.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use onecopy_vm::cache::Cache;

use crate::built::{COMMAND_IS_BUILT, FEATURES};
use crate::room::{self, Folder};
use crate::steps::{Steps, cargo, count, metadata, show};
use crate::{Failure, bpf, root, say, tidy, verify, vm};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave out the long steps: the pages of the API, the models under loom, the sanitizer, the fuzzer, and the
    /// virtual machines
    #[arg(long)]
    quick: bool,
}

/// Where this writes, and about how much if it begins with nothing.
fn folders(quick: bool) -> Vec<Folder> {
    const GIB: u64 = 1 << 30;
    let target = metadata(&root())
        .ok()
        .and_then(|known| Some(PathBuf::from(known["target_directory"].as_str()?)));
    let cache = Cache::open().ok().filter(|_| !quick);
    let folder = |name, path: &Path, late: Option<&str>, bytes| Folder {
        name,
        path: path.to_owned(),
        bytes,
        late: late.map(|late| path.join(late)),
    };
    // Models are built after what is built for tests, and modules for VMs after their kernels are fetched.
    let target = target.map(|path| folder("what is built", &path, Some("loom"), 8 * GIB));
    let cache = cache.map(|cache| folder("what is fetched", cache.root(), Some("runs"), 10 * GIB));
    let temporary = folder("temporary files", &std::env::temp_dir(), None, GIB);
    target.into_iter().chain(cache).chain([temporary]).collect()
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folders = folders(args.quick);
    room::warn(&folders);
    let mut steps = Steps::new(if args.quick { 5 } else { 12 });
    steps.check("what tests need", || {
        show(Command::new("bash").arg("ci/setup.sh").current_dir(root()))
    });
    let fetched = (!args.quick).then(vm::fetch_ahead);
    steps.check("tidy", || tidy::run(&root()));
    steps.tests("the observing programs", || bpf::check(&root()));
    steps.check("clippy", || {
        let lint = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            FEATURES,
            "--",
            "-D",
            "warnings",
        ];
        show(cargo().args(lint))
    });
    steps.tests("tests", || {
        let all = [
            "test",
            "--workspace",
            "--features",
            FEATURES,
            "--no-fail-fast",
        ];
        // Cargo builds all programs before it runs the first test.
        count(cargo().args(all).env(COMMAND_IS_BUILT, "1"))
    });
    if !args.quick {
        steps.check("pages of the API", || {
            let doc = [
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
            ];
            show(cargo().args(doc).env("RUSTDOCFLAGS", "-D warnings"))
        });
        steps.tests("models under loom", verify::loom::run);
        steps.tests("C programs under AddressSanitizer", verify::asan::reduced);
        steps.tests("the malloc front under valgrind", verify::valgrind::reduced);
        steps.tests("fuzzing", verify::fuzz::reduced);
        if fetched.as_ref().is_some_and(|fetch| !fetch.is_finished()) {
            say::line("waiting for kernels that are being fetched");
        }
        // Its thread has no failure of its own.
        let _ = fetched.map(JoinHandle::join);
        steps.tests("other kernels", vm::ci);
        steps.tests("RDMA on the software device", vm::verbs_ci);
    }
    steps.finish().inspect_err(|_| room::explain(&folders))
}
