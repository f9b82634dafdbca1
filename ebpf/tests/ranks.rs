// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the pages of living ranks say from outside is what the ranks did, to the byte.

#[path = "../../tests/harness/processes.rs"]
mod processes;

use onecopy::{Comm, HeapBuf, Runtime};
use onecopy_trace::observed::{Mechanism, Observed, Peer};
use onecopy_trace::own::Collector;
use processes::{Ranks, body, limit};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Where the ranks find that they may end.
const END: &str = "TEST_END";
const SHORT: (u64, usize) = (100, 8);
const LONG: (u64, usize) = (5, 1 << 20);
/// What only rank 0 sends beside.
const ODD: usize = 12_345;

#[test]
fn as_rank() {
    let Some(layer) = body() else { return };
    let rt = Runtime::init().expect("init");
    let world = rt.world();
    let mut heap: HeapBuf = rt.alloc(LONG.1).expect("memory");
    let mut plain = vec![1_u8; LONG.1];
    let long = if layer == "heap" {
        &mut heap[..]
    } else {
        &mut plain
    };
    for first in [0, 1] {
        exchange(&world, SHORT.0, &mut [0; SHORT.1], first);
        exchange(&world, LONG.0, long, first);
    }
    exchange(&world, 1, &mut long[..ODD], 0);
    // A look from outside must find the last message ended at its sender, too.
    let end = std::env::var(END).expect("a path");
    assert!(limit::wait_until(|| Path::new(&end).exists()), "{end}");
    drop(world);
    rt.finalize().expect("finalize");
}

/// `first` sends so many messages to the other.
fn exchange(world: &Comm, times: u64, buf: &mut [u8], first: usize) {
    for _ in 0..times {
        if world.rank() == first {
            world.send(buf, 1 - first, 7).expect("send");
        } else {
            world.recv(buf, first, 7).expect("recv");
        }
    }
}

/// Messages and bytes, by the receiver's rank and how they came.
type Matrix = BTreeMap<(u32, Mechanism), (u64, u64)>;

/// The matrix of the job of the process that is our child's: the only one of two ranks whose sizes are these.
fn matrix(observed: &Observed, job: &str) -> Matrix {
    let task = |pid: &u32| {
        observed
            .tasks
            .get(pid)
            .filter(|task| task.job.as_deref() == Some(job))
    };
    let mut matrix = Matrix::new();
    for (key, counts) in &observed.pairs {
        let Some(sink) = task(&key.caller) else {
            continue;
        };
        let sink = sink.rank.expect("a rank");
        let Peer::Process(source) = key.peer else {
            panic!("the process of a peer is known: {key:?}")
        };
        assert_eq!(task(&source).expect("of the job").rank, Some(1 - sink));
        matrix.insert((sink, key.mechanism), (counts.calls, counts.bytes));
    }
    matrix
}

fn expected(short: Mechanism, long: Mechanism) -> Matrix {
    let mut matrix = Matrix::new();
    let mut add = |rank, mechanism, messages: u64, len: usize| {
        let entry: &mut (u64, u64) = matrix.entry((rank, mechanism)).or_default();
        entry.0 += messages;
        entry.1 += messages * len as u64;
    };
    for rank in [0, 1] {
        add(rank, short, SHORT.0, SHORT.1);
        add(rank, long, LONG.0, LONG.1);
    }
    add(1, Mechanism::Cico, 1, ODD);
    matrix
}

/// The job whose ranks have `mark` in their environment.
fn job_of(observed: &Observed, mark: &str) -> Option<String> {
    let marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .windows(mark.len())
            .any(|part| part == mark.as_bytes())
    };
    let (_, task) = observed
        .tasks
        .iter()
        .find(|(pid, task)| task.rank.is_some() && marked(pid))?;
    task.job.clone()
}

/// Runs a job whose long messages may go by `layer` only, and looks at it while it lives.
fn check(layer: &'static str, layers: &'static str, long: Mechanism) {
    let end = std::env::temp_dir().join(format!("onecopy-trace-{}-{layer}", std::process::id()));
    let mark = end.to_str().expect("a path").to_owned();
    let ranks = Ranks::new(2, layer)
        .env("ONECOPY_LAYERS", layers)
        .env("ONECOPY_EAGER_MAX", "64K")
        .env("ONECOPY_HEAP_MIN", "64K")
        // A pair compares no ways then.
        .env("ONECOPY_CMA_MIN", "64K")
        .env(END, &mark);
    let job = std::thread::spawn(move || ranks.run());
    let mut collector = Collector::new();
    let (expected, mut seen) = (expected(Mechanism::Cico, long), Matrix::new());
    // The ranks wait longer.
    let (start, patience) = (Instant::now(), limit::limit() / 6);
    let done = limit::wait_until(|| {
        let observed = collector.observe().expect("looks");
        if let Some(job) = job_of(&observed, &mark) {
            seen = matrix(&observed, &job);
        }
        seen == expected || job.is_finished() || start.elapsed() > patience
    });
    // It stays so: ranks that wait receive nothing more.
    let observed = collector.observe().expect("looks");
    let job_name = job_of(&observed, &mark);
    std::fs::write(&end, "").expect("ends the job");
    job.join().expect("the job").expect_success();
    std::fs::remove_file(&end).expect("removes");
    assert!(
        done && seen == expected,
        "{layer}: {seen:#?}, not {expected:#?}"
    );
    let name = job_name.expect("the ranks live");
    assert_eq!(matrix(&observed, &name), expected, "{layer}");
    // And what has ended keeps its figures.
    let observed = collector.observe().expect("looks");
    let ended = observed
        .tasks
        .values()
        .filter(|task| task.job.as_ref() == Some(&name));
    assert_eq!(ended.filter(|task| task.ended).count(), 2, "{layer}");
    let after: u64 = matrix(&observed, &name)
        .values()
        .map(|(_, bytes)| bytes)
        .sum();
    assert!(after >= expected.values().map(|(_, bytes)| bytes).sum());
}

#[test]
fn the_matrix_is_the_traffic_by_cico() {
    check("cico", "cico", Mechanism::Cico);
}

#[test]
fn the_matrix_is_the_traffic_by_cma() {
    check("cma", "cma,cico", Mechanism::Cma);
}

#[test]
fn the_matrix_is_the_traffic_by_heap() {
    check("heap", "heap,cico", Mechanism::Heap);
}
