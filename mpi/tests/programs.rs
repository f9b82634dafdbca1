// SPDX-License-Identifier: MIT OR Apache-2.0
//! C programs, compiled with this library's header and run as jobs of real processes.

#[path = "cuda/suite.rs"]
mod cuda;
#[path = "../../tests/harness/limit.rs"]
mod limit;
#[path = "wrong/suite.rs"]
mod wrong;

use onecopy_launch::Output::Lines;
use onecopy_launch::{Job, Stream};
use onecopy_vm::progress::Progress;
use onecopy_vm::pypi;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where this run's library, launcher and programs are.
struct InstalledFiles {
    directory: PathBuf,
    launcher: PathBuf,
}

fn place() -> &'static InstalledFiles {
    static PLACE: OnceLock<InstalledFiles> = OnceLock::new();
    PLACE.get_or_init(|| {
        let exe = std::env::current_exe().expect("the test's own path");
        let deps = exe.parent().expect("the folder of tests");
        let profile = deps.parent().expect("the folder of the profile");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi");
        std::fs::create_dir_all(&directory).expect("a folder for the programs");
        // The library as it was built for this test; its name in deps has no hash.
        let built = deps.join("libmpi_abi.so");
        for name in ["libmpi_abi.so", "libmpi_abi.so.1"] {
            let target = directory.join(name);
            let _ = std::fs::remove_file(&target);
            std::fs::copy(&built, &target).expect("the library is built with the test");
        }
        if std::env::var_os("TEST_COMMAND_BUILT").is_none() {
            build_command(profile);
        }
        InstalledFiles {
            directory,
            launcher: profile.join("onecopy"),
        }
    })
}

/// Builds the launcher. Who has built it with the tests says so by `TEST_COMMAND_BUILT`. Else cargo would compile what
/// both use a second time, since it counts features for each of its calls.
fn build_command(profile: &Path) {
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--quiet",
        "--package",
        "onecopy-cli",
        "--bin",
        "onecopy",
    ]);
    if cfg!(feature = "fault-points") {
        build.args(["--features", "fault-points"]);
    }
    if profile.ends_with("release") {
        build.arg("--release");
    }
    // Another build may hold cargo's lock.
    let limit = 10 * limit::limit();
    let built = limit::output_within(build.current_dir(package()), limit).expect("cargo");
    let text = String::from_utf8_lossy(&built.stderr);
    assert!(
        built.status.success(),
        "the launcher cannot be built: {text}"
    );
}

/// Compiles a program, once for all tests that run it.
fn compile(name: &str) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let program = compiled.entry(name.to_owned()).or_insert_with(|| {
        compile_file(
            &package().join(format!("tests/programs/{name}.c")),
            &place().directory.join(name),
        )
    });
    program.clone()
}

fn compile_file(source: &Path, program: &Path) -> PathBuf {
    compile_with(source, program, &[])
}

/// The same, with more arguments to the compiler.
fn compile_with(source: &Path, program: &Path, extra: &[String]) -> PathBuf {
    let place = place();
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(program)
        .arg(source)
        .arg("-I")
        .arg(package().join("include"))
        .arg("-L")
        .arg(&place.directory);
    command.args(["-lmpi_abi", "-lm", "-lpthread"]).args(extra);
    let compiled = limit::output(&mut command);
    assert!(
        compiled.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&compiled.stderr)
    );
    program.to_path_buf()
}

fn run(program: &Path, ranks: usize, arguments: &[&str]) -> Output {
    run_on(&place().directory, 300, program, ranks, arguments)
}

/// Runs a program on the library in a folder.
fn run_on(
    library: &Path,
    seconds: u64,
    program: &Path,
    ranks: usize,
    arguments: &[&str],
) -> Output {
    let ranks = ranks.to_string();
    let mut command = job(library, &["-n", &ranks], program);
    command.args(arguments);
    limit::output_within(&mut command, Duration::from_secs(seconds)).expect("the launcher")
}

/// The command that runs a program with `options` of the launcher.
fn job(library: &Path, options: &[&str], program: &Path) -> Command {
    let mut command = Command::new(&place().launcher);
    command
        .env("ONECOPY_TUNE_FILE", "none")
        .arg("run")
        .args(options)
        .arg(program)
        .env("LD_LIBRARY_PATH", library)
        // MPICH looks at network devices, which come and go with other tests.
        .env("UCX_TLS", "self,posix,sysv,cma");
    command
}

/// The command that runs a program on so many ranks, which lie on so many nodes; all of these are this machine.
fn job_on_nodes(ranks: usize, nodes: usize, program: &Path) -> Command {
    let ranks = ranks.to_string();
    let mut command = job(&place().directory, &["-n", &ranks], &place().launcher);
    command.args(["__on-node", &nodes.to_string()]).arg(program);
    // This machine has other work.
    command.env("ONECOPY_NODE_TIMEOUT", "60");
    command
}

fn is_good(what: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{what}: {:?}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn passes(name: &str, ranks: &[usize]) {
    let program = compile(name);
    for &ranks in ranks {
        is_good(
            &format!("{name} with {ranks} ranks"),
            &run(&program, ranks, &[]),
        );
    }
}

#[test]
fn point_to_point() {
    passes("p2p", &[2]);
}

#[test]
fn a_communicator_that_is_freed_while_a_thread_waits_on_it() {
    passes("freed", &[2]);
}

#[test]
fn persistent_collectives() {
    passes("persistent", &[1, 2, 3]);
}

#[test]
fn datatypes() {
    passes("types", &[1, 2]);
}

#[test]
fn collectives() {
    passes("coll", &[1, 2, 3, 4]);
}

#[test]
fn communicators() {
    passes("comms", &[1, 2, 3, 4]);
}

#[test]
fn errors() {
    passes("errors", &[1, 2, 3]);
}

/// A peer's line that no correct peer writes is an error of the call, not the end of the process.
#[test]
fn nonsense_in_a_line_is_an_error_of_the_collective() {
    let program = compile("rogue");
    // Kind, length, first word: too long for a line, too long for a slot, of no kind, a buffer outside of the heap.
    let lines = [
        ["1", "56", "0"],
        ["2", "8", "20000"],
        ["7", "48", "0"],
        ["3", "48", "0x4000000000000000"],
    ];
    for (index, what) in ["allreduce", "longer", "bcast", "allgather"]
        .iter()
        .enumerate()
    {
        for [kind, len, word] in [lines[index], lines[(index + 1) % lines.len()]] {
            let output = run(&program, 2, &[what, kind, len, word]);
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.code() == Some(42) && text.contains("refused: "),
                "{what}, kind {kind}, {len} bytes, {word}: {:?}\n{text}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[test]
fn what_a_failing_call_had_started_is_undone() {
    passes("undone", &[2]);
}

#[test]
fn messages_held_back_hold_nothing_else_back() {
    passes("held", &[2]);
}

#[test]
fn what_has_no_place_in_the_table_is_not_started() {
    // Without the fault points the table would have to be filled with four million requests.
    if cfg!(feature = "fault-points") {
        let program = compile("undone");
        let mut command = job(&place().directory, &["-n", "2"], &program);
        let command = command.arg("full").env("ONECOPY_JOB_LIMIT", "handles:4096");
        is_good(
            "undone with a short table",
            &limit::output_within(command, Duration::from_secs(300)).expect("the launcher"),
        );
    }
}

#[test]
fn calls_with_a_dead_member_leave_nothing_under_way() {
    let program = compile("undone");
    let options = ["--keep-going", "-n", "3"];
    let mut command = job(&place().directory, &options, &program);
    command.arg("dead");
    let output =
        limit::output_within(&mut command, Duration::from_secs(300)).expect("the launcher");
    let text = String::from_utf8_lossy(&output.stdout);
    for rank in 0..2 {
        let well = format!("rank {rank} is well");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains(&well),
            "{:?}\n{text}\n{errors}",
            output.status
        );
    }
}

#[test]
fn strings_are_bytes() {
    passes("names", &[1]);
    let program = compile("names");
    let mut command = job(&place().directory, &["-n", "1"], &program);
    command.arg(OsStr::from_bytes(b"a\x80 argument \xff"));
    let output = limit::output(&mut command);
    is_good("names with an argument that is no UTF-8", &output);
}

const LEVELS: [&str; 3] = ["single", "serialized", "multiple"];

#[test]
fn the_job_is_aborted_from_within_every_function_of_the_program() {
    let program = compile("ends");
    for level in LEVELS {
        for place in [
            "allreduce",
            "allreduce_long",
            "reduce",
            "scan",
            "exscan",
            "reduce_scatter",
            "ireduce",
            "tested",
            "reduce_local",
            "copy",
            "delete",
            "replace",
            "finalize",
            "handler",
            "exit",
            "plain",
        ] {
            // The second rank's part of an exscan is a copy: the third one combines.
            let ranks = if place == "exscan" { 3 } else { 2 };
            let output = run(&program, ranks, &[place, "7", level]);
            let (printed, why) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            let context = format!("{place}, {level}: {:?}\n{printed}\n{why}", output.status);
            assert_eq!(output.status.code(), Some(7), "{context}");
            assert!(
                printed.contains("aborts") && !printed.contains("went on"),
                "{context}"
            );
        }
    }
}

/// The reduction's function holds what its call waits for.
#[test]
fn a_reduction_that_communicates_is_told_that_it_cannot() {
    let program = compile("ends");
    for level in LEVELS {
        for place in ["allreduce", "allreduce_long", "scan", "ireduce"] {
            let output = run(&program, 2, &[place, "7", level, "communicates"]);
            let text = String::from_utf8_lossy(&output.stdout);
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success()
                    && !text.contains("went on")
                    && why.contains("it may compute, and abort the job, but not communicate")
                    && !why.contains("panicked"),
                "{place}, {level}: {:?}\n{text}\n{why}",
                output.status
            );
        }
    }
}

#[test]
fn a_second_thread_is_told_what_to_ask_for() {
    let program = compile("ends");
    let output = run(&program, 2, &["second_thread", "7", "single"]);
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(
        why.contains("a second thread called MPI")
            && why.contains("MPI_THREAD_MULTIPLE")
            && !why.contains("panicked"),
        "{why}"
    );
}

#[test]
fn an_aborted_job_never_ends_with_0() {
    let program = compile("ends");
    for (code, expected) in [
        (0, 1),
        (1, 1),
        (255, 255),
        (256, 1),
        (257, 1),
        (512, 1),
        (0x1234, 0x34),
        (-1, 255),
        (-256, 1),
        (i32::MIN, 1),
        (i32::MAX, 255),
    ] {
        for place in ["plain", "exit"] {
            let output = run(&program, 2, &[place, &code.to_string(), "single"]);
            assert_eq!(output.status.code(), Some(expected), "{code}, {place}");
        }
        // Without a launcher the process is all there is.
        let mut alone = Command::new(&program);
        alone
            .args(["plain", &code.to_string(), "single"])
            .env("LD_LIBRARY_PATH", &place().directory);
        let alone = limit::output(&mut alone);
        assert_eq!(alone.status.code(), Some(expected), "{code}, alone");
    }
    // A class of the program's own, whose low byte is 0, that is fatal.
    let output = run(&program, 2, &["fatal", "7", "single"]);
    assert_eq!(output.status.code(), Some(1));
}

/// Each wait of a rank, when the job is aborted and when the peer that it waits for dies.
#[test]
fn every_wait_ends() {
    limit::usual_signals();
    let program = compile("aborted");
    for arguments in [
        ["one"].as_slice(),
        &["one", "dies"],
        &["threads"],
        &["threads", "dies"],
    ] {
        let written = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&written);
        let take = move |_: usize, _: Stream, line: &[u8]| {
            let mut written = lines.lock().unwrap_or_else(PoisonError::into_inner);
            written.extend_from_slice(line);
        };
        // Ranks that are asked to end have time to show what their waits do.
        let outcome = Job::new(&program, 3)
            .args(arguments)
            .env("LD_LIBRARY_PATH", &place().directory)
            .output(Lines(Box::new(take)))
            .keep_going(true)
            .grace(Duration::from_secs(120))
            .timeout(Duration::from_secs(240))
            .quiet(true)
            .run()
            .expect("a job");
        let written = written.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&written);
        assert!(
            text.contains("all ended"),
            "{arguments:?}: {outcome:?}\n{text}"
        );
    }
}

#[test]
fn attributes() {
    passes("attributes", &[1, 2]);
}

#[test]
fn groups() {
    passes("groups", &[1, 2, 3, 4]);
}

#[test]
fn topologies() {
    passes("topology", &[1, 2, 3, 4]);
}

#[test]
fn contents_of_datatypes() {
    passes("contents", &[1]);
}

#[test]
fn elements() {
    passes("elements", &[1, 2]);
}

#[test]
fn lifetimes() {
    passes("lifetimes", &[1, 2, 3]);
}

#[test]
fn a_fatal_error_ends_the_job_and_says_why() {
    let program = compile("errors");
    let output = run(&program, 2, &["fatal"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("MPI_Send") && text.contains("MPI_ERR_RANK") && text.contains("rank 0"),
        "{text}"
    );
}

#[test]
fn forked_children_are_no_ranks_and_harm_none() {
    let program = compile("fork");
    for what in ["forks", "thread"] {
        let mut command = job(&place().directory, &["-n", "2"], &program);
        // To a sanitizer, what stacks of its parent's other threads refer to looks lost in a child.
        command.arg(what).env("ASAN_OPTIONS", "detect_leaks=0");
        is_good(
            &format!("{what} by two ranks"),
            &limit::output(&mut command),
        );
    }
}

#[test]
fn children_that_outlive_the_ranks_hold_up_nobody() {
    is_good("children that live", &run(&compile("fork"), 2, &["lives"]));
}

/// Ranks of several nodes fork amid their traffic, and children of theirs outlive them.
#[test]
fn ranks_of_several_nodes_fork() {
    let program = compile("fork");
    for what in ["forks", "thread", "lives", "exit"] {
        for (ranks, nodes) in [(2, 2), (3, 2)] {
            let mut command = job_on_nodes(ranks, nodes, &program);
            command.arg(what).env("ASAN_OPTIONS", "detect_leaks=0");
            let output = limit::output(&mut command);
            is_good(&format!("{what}: {ranks} ranks on {nodes} nodes"), &output);
        }
    }
}

/// The program that a bed of two machines runs under hydra.
#[test]
fn ranks_of_several_nodes_exchange_payload() {
    let program = compile("hosts");
    is_good("on one node", &run(&program, 3, &["1"]));
    let mut command = job_on_nodes(4, 2, &program);
    command.args(["2", "1"]);
    is_good("on two nodes", &limit::output(&mut command));
}

#[test]
fn signals_interrupt_no_message() {
    let program = compile("signals");
    is_good("on one node", &run(&program, 2, &[]));
    let output = limit::output(&mut job_on_nodes(2, 2, &program));
    is_good("on two nodes", &output);
}

#[test]
fn ranks_may_finalize_while_they_exit() {
    is_good("work at exit", &run(&compile("fork"), 2, &["exit"]));
}

#[test]
fn a_rank_that_ends_without_finalize_fails_the_job() {
    let program = compile("deserts");
    for ending in ["exit", "beyond", "at once", "returns"] {
        for ranks in [1, 3] {
            let output = run(&program, ranks, &[ending]);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{ending}: {text}");
            let reports = text.lines().filter(|line| {
                line.starts_with(&format!("onecopy run: rank {} (pid ", ranks - 1))
                    && line.contains("exited with code 0) has left the job without finalizing")
            });
            assert_eq!(reports.count(), 1, "{ending}: {text}");
        }
    }
}

/// `TEST_SOAK`: seconds; `TEST_SEED`: where the random numbers begin.
#[test]
fn threads() {
    let program = compile("threads");
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("TEST_SEED").unwrap_or(1);
    let jobs: &[usize] = &[2, 3, 4];
    let seconds: u64 = number("TEST_SOAK").map_or(4, |all: u64| all / jobs.len() as u64);
    for &ranks in jobs {
        let arguments = [seconds.to_string(), seed.to_string(), "8".to_owned()];
        let arguments = arguments.each_ref().map(String::as_str);
        // It ends itself when nothing moves any more.
        let output = run_on(
            &place().directory,
            seconds + 600,
            &program,
            ranks,
            &arguments,
        );
        is_good(&format!("8 threads in each of {ranks} ranks"), &output);
        say(&String::from_utf8_lossy(&output.stdout));
    }
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{}", text.trim_end());
}

/// The library of another MPI; none, after saying why, if it cannot be had here.
fn peer(environment: &pypi::Environment) -> Option<PathBuf> {
    let home = pypi::cache().and_then(|cache| environment.home(&cache, &Progress::new()));
    match home {
        Ok(home) => Some(home.join("lib")),
        Err(error) => {
            say(&format!(
                "skipped: {} cannot be installed: {error}",
                environment.name
            ));
            None
        }
    }
}

#[test]
fn one_binary_runs_on_each_library_in_turn() {
    // Other libraries' collectives are compared at two ranks: with more ranks than processors some of them poll for
    // minutes.
    let (p2p, coll) = (compile("p2p"), compile("coll"));
    let own = place().directory.clone();
    let mpich = peer(&pypi::MPICH);
    let mut turns = vec![(&p2p, own.clone()), (&coll, own.clone())];
    turns.extend(mpich.iter().map(|library| (&p2p, library.clone())));
    turns.extend(mpich.iter().map(|library| (&coll, library.clone())));
    turns.push((&p2p, own.clone()));
    turns.extend(peer(&pypi::INTEL).map(|library| (&p2p, library)));
    turns.push((&p2p, own));
    for (program, library) in &turns {
        let what = format!("{} on {}", program.display(), library.display());
        is_good(&what, &run_on(library, 120, program, 2, &[]));
    }
}

#[test]
fn a_send_takes_little_memory_and_locks_none() {
    let source = package().join("../examples/send_memory.c");
    let program = compile_file(&source, &place().directory.join("send_memory"));
    let output = run(&program, 8, &[]);
    is_good("send_memory", &output);
    let text = String::from_utf8_lossy(&output.stdout);
    let more = |name: &str| -> i64 {
        let line = text.lines().find(|line| line.starts_with(name));
        let last = line.and_then(|line| line.split_whitespace().last());
        last.and_then(|word| word.parse().ok()).expect("a figure")
    };
    assert_eq!(more("VmLck"), 0, "{text}");
    // In kB, for seven peers.
    assert!(more("VmRSS") < 4096, "{text}");
    assert!(more("VmData") < 4096, "{text}");
}

/// A few modules of mpi4py's tests, where `cargo xtask mpi4py` has built it: all of them take minutes.
#[test]
fn mpi4py_where_it_was_built() {
    let cache = pypi::cache().expect("a cache");
    let python = cache.root().join("mpi4py/bin/python");
    let built = cache.root().join("mpi4py/.installed").exists();
    let tests = std::fs::read_dir(cache.root().join("sources"));
    let tests = tests.ok().and_then(|mut entries| {
        let entry = entries.find_map(|entry| Some(entry.ok()?.path().join("test/main.py")))?;
        entry.exists().then_some(entry)
    });
    let (true, Some(tests)) = (built, tests) else {
        return say("skipped: no mpi4py in the cache; `cargo xtask mpi4py` builds it");
    };
    for module in ["p2p_buf", "cco_vec", "msgzero", "threads"] {
        let include = format!("^test_{module}\\.py$");
        let tests = tests.to_string_lossy();
        let arguments = [&*tests, "-i", &include];
        let output = run_on(&place().directory, 300, &python, 2, &arguments);
        is_good(&format!("mpi4py's {module}"), &output);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.matches("\nOK").count(), 2, "{text}");
    }
}
