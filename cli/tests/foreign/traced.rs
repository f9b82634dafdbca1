// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy trace` on other MPI libraries: two jobs at once exchange known messages. Every cell of the matrix is what
//! the libraries called, by a count of the program itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::launchers::Launcher;
use crate::processes::{limit, say};

/// Ranks of each job.
const RANKS: usize = 3;

/// A library, and how it is told to let the kernel copy.
struct Case {
    launcher: Launcher,
    compiler: &'static str,
    words: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// What its messages go by.
    mechanism: &'static str,
    /// How the job of a rank is named; PMIx says it by itself.
    by_launcher: Option<&'static str>,
}

/// It copies so by itself.
const MPICH: Case = Case {
    launcher: Launcher::Mpich,
    compiler: "mpicc_abi",
    words: &[],
    env: &[],
    mechanism: "cma-read",
    by_launcher: Some("hydra_pmi_proxy"),
};

const OPEN_MPI: Case = Case {
    launcher: Launcher::OpenMpi,
    compiler: "mpicc",
    words: &["--mca", "pml", "ob1", "--mca", "smsc", "cma"],
    env: &[],
    mechanism: "cma-read",
    by_launcher: None,
};

/// Open MPI over UCX, which cuts each message.
const UCX: Case = Case {
    words: &[
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "pml_ucx_tls",
        "any",
        "--mca",
        "pml_ucx_devices",
        "any",
    ],
    env: &[("UCX_TLS", "self,posix,sysv,cma")],
    ..OPEN_MPI
};

/// The same, written by the sender.
const UCX_PUT: Case = Case {
    env: &[
        ("UCX_TLS", "self,posix,sysv,cma"),
        ("UCX_RNDV_SCHEME", "put_zcopy"),
    ],
    mechanism: "cma-write",
    ..UCX
};

/// Whose memory was read, whose was written, and how.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    job: String,
    /// Rank and id of the source, then of the sink.
    source: (u64, u64),
    sink: (u64, u64),
    mechanism: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    calls: u64,
    bytes: u64,
    errors: BTreeMap<String, u64>,
}

type Matrix = BTreeMap<Cell, Counts>;

/// Messages from one rank to another, and bytes of each; the program has the same formulas.
fn sent(source: u64, sink: u64) -> (u64, u64) {
    let place = source * RANKS as u64 + sink;
    (3 + 2 * source + sink, (1 << 20) + 4096 * place)
}

/// Builds the program with the library's own compiler.
fn build(case: &Case, home: &Path, folder: &Path) -> PathBuf {
    let program = folder.join("traffic");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/traffic.c");
    let mut command = Command::new(home.join("bin").join(case.compiler));
    // The library must find the program's functions.
    command.args(["-O2", "-std=gnu11", "-rdynamic", "-pthread", "-o"]);
    command.arg(&program).arg(source);
    let built = limit::output(command.env("OPAL_PREFIX", home));
    let text = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{command:?}: {text}");
    program
}

/// Runs two jobs of it at once under `onecopy trace`, each of which writes to a folder of its own.
fn run(case: &Case, home: &Path, folder: &Path, program: &Path) -> Option<Value> {
    let launcher = case.launcher.command(RANKS)?;
    let json = folder.join("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["trace", "--json"]).arg(&json).arg("--");
    let both = "\"$@\" a & one=$!; \"$@\" b || exit 9; wait $one";
    command
        .args(["sh", "-c", both, "sh"])
        .arg(launcher.get_program());
    command
        .args(launcher.get_args())
        .args(case.words)
        .arg(program);
    for (name, value) in launcher.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .env("OPAL_PREFIX", home)
        .env("LD_LIBRARY_PATH", home.join("lib"))
        .envs(case.env.iter().copied())
        .current_dir(folder);
    for job in ["a", "b"] {
        fs::create_dir(folder.join(job)).expect("a folder");
    }
    let output = limit::output(&mut command);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}: {text}",
        output.status
    );
    let report: Value = serde_json::from_slice(&fs::read(json).expect("a report")).expect("JSON");
    let limits = report["limits"].as_array().expect("a list");
    let mut limits = limits.iter().filter_map(Value::as_str);
    if let Some(why) = limits.find(|limit| limit.starts_with("only onecopy's own ranks")) {
        say(&format!("skipped: {why}"));
        return None;
    }
    Some(report)
}

/// What a rank wrote: itself, and its calls.
struct Story {
    pid: u64,
    job: String,
    calls: Vec<(String, usize, u64, u64, i32)>,
}

impl Story {
    fn read(case: &Case, path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("a rank's file");
        let mut lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let own = lines.next().expect("a line");
        let calls = lines.map(|words| {
            // A peer of -1 is none of the job.
            let peer = words[2].parse().expect("a rank");
            let number = |index: usize| words[index].parse::<u64>().expect("a number");
            let errno = words[5].parse().expect("an errno");
            (words[1].to_owned(), peer, number(3), number(4), errno)
        });
        Self {
            pid: own[1].parse().expect("an id"),
            job: match case.by_launcher {
                Some(name) => format!("{name}-{}", own[2]),
                None => own[3].to_owned(),
            },
            calls: calls.collect(),
        }
    }
}

/// The matrix as the ranks of one job counted it.
fn counted(case: &Case, folder: &Path) -> Matrix {
    let stories: Vec<Story> = (0..RANKS)
        .map(|rank| Story::read(case, &folder.join(rank.to_string())))
        .collect();
    let mut matrix = Matrix::new();
    for (rank, story) in stories.iter().enumerate() {
        for (mechanism, peer, calls, bytes, errno) in &story.calls {
            let caller = (rank as u64, story.pid);
            let other = (*peer as u64, stories[*peer].pid);
            let (source, sink) = match mechanism.as_str() {
                "cma-write" => (caller, other),
                _ => (other, caller),
            };
            let cell = Cell {
                job: story.job.clone(),
                source,
                sink,
                mechanism: mechanism.clone(),
            };
            let counts = matrix.entry(cell).or_default();
            counts.calls += calls;
            counts.bytes += bytes;
            if *errno != 0 {
                let name = format!("{:?}", nix::errno::Errno::from_raw(*errno));
                counts.errors.insert(name, *calls);
            }
        }
    }
    matrix
}

/// The matrix of a report. Nobody has called but ranks.
fn reported(report: &Value) -> Matrix {
    let mut matrix = Matrix::new();
    for pair in report["pairs"].as_array().expect("a list") {
        let who = |side: &str| {
            let who = &pair[side];
            assert_eq!(who["comm"], "traffic", "{pair}");
            let number = |name: &str| {
                who[name]
                    .as_u64()
                    .unwrap_or_else(|| panic!("{name}: {pair}"))
            };
            (number("rank"), number("pid"))
        };
        assert_eq!(pair["source"]["job"], pair["sink"]["job"], "{pair}");
        let text = |value: &Value| {
            value
                .as_str()
                .unwrap_or_else(|| panic!("{pair}"))
                .to_owned()
        };
        let cell = Cell {
            job: text(&pair["sink"]["job"]),
            source: who("source"),
            sink: who("sink"),
            mechanism: text(&pair["mechanism"]),
        };
        let number = |value: &Value| value.as_u64().expect("a number");
        let errors = pair["errors"].as_object().expect("an object");
        let counts = Counts {
            calls: number(&pair["calls"]),
            bytes: number(&pair["bytes"]),
            errors: errors
                .iter()
                .map(|(name, times)| (name.clone(), number(times)))
                .collect(),
        };
        assert!(matrix.insert(cell, counts).is_none(), "twice: {pair}");
    }
    matrix
}

fn check(case: &Case) {
    let Some(home) = case.launcher.home() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let program = build(case, &home, folder.path());
    let Some(report) = run(case, &home, folder.path(), &program) else {
        return;
    };
    let mut expected = Matrix::new();
    for job in ["a", "b"] {
        let job = counted(case, &folder.path().join(job));
        for source in 0..RANKS as u64 {
            for sink in (0..RANKS as u64).filter(|sink| *sink != source) {
                let cells = job.iter().filter(|(cell, _)| {
                    let pair = (cell.source.0, cell.sink.0) == (source, sink);
                    pair && cell.mechanism == case.mechanism
                });
                let (messages, bytes) = sent(source, sink);
                let copied: u64 = cells.map(|(_, counts)| counts.bytes).sum();
                assert_eq!(copied, messages * bytes, "{source} to {sink}: {job:?}");
            }
        }
        expected.extend(job);
    }
    assert_eq!(reported(&report), expected);
    assert_eq!(report["overhead"]["not_counted"], 0);
    // A trial that finds no memory misses nothing.
    assert_eq!(report["missed"], serde_json::json!([]));
}

#[test]
fn mpich_is_seen_as_it_copies() {
    check(&MPICH);
}

#[test]
fn open_mpi_is_seen_as_it_copies() {
    check(&OPEN_MPI);
}

#[test]
fn ucx_is_seen_as_it_reads() {
    check(&UCX);
}

#[test]
fn ucx_is_seen_as_it_writes() {
    check(&UCX_PUT);
}
