// SPDX-License-Identifier: MIT OR Apache-2.0
//! `trace`: known traffic is shown as it was, files are written whole or not at all, and the program's code and signals
//! pass.

#[path = "../../tests/harness/command.rs"]
mod command;
#[path = "../../tests/harness/say.rs"]
mod say;

use command::{limit, onecopy, text};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::Mode;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Pid, mkfifo};
use onecopy_obs::tracepoints::TRACEPOINTS;
use onecopy_trace::proc::Stat;
use say::say;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Calls of the reader, and bytes of each.
const CALLS: usize = 50;
const BYTES: usize = 4096;
/// A late reader begins after several looks at it, on a busy machine too, and ends before the next one.
const LATE: Duration = Duration::from_secs(5);

/// Not a test by itself: a program that reads so often from the memory of another one.
#[test]
fn reader() {
    let Some(mode) = std::env::var_os("READER") else {
        return;
    };
    let mut source = limit::start(
        Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    // It answers: so it is `cat` by now.
    let mut answer = [0];
    Write::write_all(source.stdin.as_mut().expect("a pipe"), b"x").expect("written");
    Read::read_exact(source.stdout.as_mut().expect("a pipe"), &mut answer).expect("read");
    if mode == "late" {
        std::thread::sleep(LATE);
    }
    let maps = fs::read_to_string(format!("/proc/{}/maps", source.id())).expect("maps");
    let stack = maps
        .lines()
        .find(|line| line.ends_with("[stack]"))
        .expect("a stack");
    let (_, rest) = stack.split_once('-').expect("a range");
    let end = usize::from_str_radix(rest.split(' ').next().expect("an end"), 16).expect("a number");
    let pid = Pid::from_raw(source.id().cast_signed());
    let mut buffer = [0; BYTES];
    let from = [RemoteIoVec {
        base: end - BYTES,
        len: BYTES,
    }];
    for _ in 0..CALLS {
        let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut buffer)], &from);
        assert_eq!(read, Ok(BYTES));
    }
    let nowhere = [RemoteIoVec {
        base: 8,
        len: BYTES,
    }];
    assert!(process_vm_readv(pid, &mut [IoSliceMut::new(&mut buffer)], &nowhere).is_err());
    drop(source.stdin.take());
    assert!(source.finish().status.success());
    std::process::exit(5);
}

/// Traces the reader, with these options.
fn trace_reader(options: &[&str], env: &[(&str, &str)]) -> std::process::Output {
    let own = std::env::current_exe().expect("a path");
    let own = own.to_str().expect("text");
    let mut args = vec!["trace"];
    args.extend(options);
    args.extend(["--", own, "--exact", "reader", "--nocapture"]);
    onecopy(&args, env)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

/// Whether the kernel observes for this user here.
fn is_permitted(report: &Value) -> bool {
    let limits = report["limits"].as_array().expect("a list");
    let refused = limits
        .iter()
        .filter_map(Value::as_str)
        .find(|limit| limit.starts_with("only onecopy's own ranks"));
    if let Some(why) = refused {
        say(&format!("skipped: {why}"));
    }
    refused.is_none()
}

#[test]
fn known_traffic_is_shown_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let path_of = |name: &str| folder.path().join(name);
    let [json, timeline, metrics] = [path_of("a.json"), path_of("a.trace"), path_of("a.prom")];
    let name = |path: &Path| path.to_str().expect("text").to_owned();
    let output = trace_reader(
        &[
            "--json",
            &name(&json),
            "--perfetto",
            &name(&timeline),
            "--prometheus",
            &name(&metrics),
        ],
        &[("READER", "1")],
    );
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let report = read(&json);
    assert_eq!(report["version"], 1);
    assert!(report["overhead"]["ns_per_event"].is_number());
    if !is_permitted(&report) {
        return;
    }
    let pairs = report["pairs"].as_array().expect("a list");
    let pair = pairs
        .iter()
        .find(|pair| pair["source"]["comm"] == "cat")
        .expect("the pair");
    assert_eq!(pair["mechanism"], "cma-read");
    assert_eq!(pair["calls"], CALLS + 1);
    assert_eq!(pair["bytes"], CALLS * BYTES);
    assert_eq!(pair["errors"], serde_json::json!({"EFAULT": 1}));
    let sizes: u64 = pair["sizes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|bin| bin["calls"].as_u64().expect("a number"))
        .sum();
    assert_eq!(sizes, CALLS as u64 + 1);
    assert!(pair["latency_us"]["p999"].as_f64().expect("a number") > 0.0);
    let missed = report["missed"].as_array().expect("a list");
    assert!(missed.iter().any(|missed| {
        missed["what"]
            .as_str()
            .is_some_and(|what| what.contains("EFAULT"))
            && missed["remedy"].is_string()
    }));

    let events = read(&timeline);
    let events = events["traceEvents"].as_array().expect("a list");
    let copies = events.iter().filter(|event| event["ph"] == "X");
    let bytes: u64 = copies
        .clone()
        .filter_map(|event| event["args"]["bytes"].as_u64())
        .sum();
    assert_eq!((copies.count(), bytes), (CALLS + 1, (CALLS * BYTES) as u64));
    let metrics = fs::read_to_string(metrics).expect("metrics");
    assert!(metrics.contains("onecopy_copy_bytes_total{mechanism=\"cma-read\""));

    let table = text(&output.stdout);
    assert!(
        table.contains("cma-read") && table.contains("EFAULT 1"),
        "{table}"
    );
    let diff = onecopy(
        &["trace", "diff", "--json", &name(&json), &name(&json)],
        &[],
    );
    assert_eq!(diff.status.code(), Some(0));
    let diff: Value = serde_json::from_slice(&diff.stdout).expect("JSON");
    let changes = diff["changes"].as_array().expect("a list");
    assert_eq!(changes.len(), pairs.len());
    assert!(changes.iter().all(|change| change["a"] == change["b"]));
}

/// How often the ranks exchange messages once they are watched, and bytes of each.
const EXCHANGES: u64 = 20;
const LONG: usize = 1 << 20;

/// Not a test by itself: a rank of a program that has the runtime linked into it. It exchanges messages until it is
/// watched, or for ten seconds.
#[test]
fn rank() {
    if std::env::var_os("RANK_ROLE").is_none() {
        return;
    }
    let is_watched = || {
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        maps.contains("[uprobes")
    };
    let rt = onecopy::Runtime::init().expect("init");
    let world = rt.world();
    let mut buf = vec![1_u8; LONG];
    let (mut left, mut rounds) = (EXCHANGES, 0);
    while left > 0 && rounds < 1000 {
        if world.rank() == 0 {
            let watched = is_watched();
            buf[0] = u8::from(watched);
            world.send(&buf, 1, 7).expect("send");
        } else {
            world.recv(&mut buf, 0, 7).expect("recv");
        }
        left -= u64::from(buf[0]);
        rounds += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(world);
    rt.finalize().expect("finalize");
}

/// Whether probe points were seen in a program that the runtime is linked into, started by this script.
fn sees_the_runtime(script: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path_of = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let own = std::env::current_exe().expect("a path");
    let (timeline, json) = (path_of("a.trace"), path_of("a.json"));
    let mut args = vec!["trace", "--perfetto", &timeline, "--json", &json, "--"];
    args.extend(script);
    let env = [
        ("RANK_ROLE", "1"),
        ("ONECOPY", env!("CARGO_BIN_EXE_onecopy")),
        ("OWN", own.to_str().expect("text")),
    ];
    let output = onecopy(&args, &env);
    let printed = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{printed:?}");
    let report = read(Path::new(&json));
    let limits = report["limits"].to_string();
    if !is_permitted(&report) || limits.contains("without rendezvous_done in") {
        say(&format!("skipped: {limits}"));
        return;
    }
    let events = read(Path::new(&timeline));
    let events = events["traceEvents"].as_array().expect("a list");
    let of_messages = |event: &&Value| {
        event["name"] == "rendezvous_done" && event["args"]["bytes"] == LONG as u64
    };
    let seen = events.iter().filter(of_messages).count() as u64;
    assert!(seen >= EXCHANGES, "{seen}: {printed:?} {limits}");
}

#[test]
fn a_program_that_the_runtime_is_linked_into_is_watched_when_it_runs() {
    sees_the_runtime(&["sh", "-c", "$ONECOPY run -n 2 $OWN --exact rank"]);
}

#[test]
fn a_program_that_the_command_names_is_watched_before_it_runs() {
    let (command, own) = (env!("CARGO_BIN_EXE_onecopy"), std::env::current_exe());
    let own = own.expect("a path");
    let own = own.to_str().expect("text");
    sees_the_runtime(&[command, "run", "-n", "2", own, "--exact", "rank"]);
}

/// A rank that copies only just before its end keeps its names.
#[test]
fn a_rank_that_copies_at_its_end_has_its_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("a.json");
    let place = [("READER", "late"), ("PMI_RANK", "6"), ("PMI_SIZE", "9")];
    let output = trace_reader(&["--json", json.to_str().expect("text")], &place);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let report = read(&json);
    if !is_permitted(&report) {
        return;
    }
    // This process told the command a rank, and all that it starts.
    let own = Stat::read(Path::new("/proc/self")).expect("own");
    let job = format!("{}-{}", own.comm, std::process::id());
    let pairs = report["pairs"].as_array().expect("a list");
    assert_eq!(pairs.len(), 1, "{pairs:?}");
    for side in ["source", "sink"] {
        let who = &pairs[0][side];
        assert_eq!(
            (&who["rank"], &who["job"]),
            (&6.into(), &job.as_str().into()),
            "{pairs:?}"
        );
    }
}

/// Each tracepoint of the table is a probe point of a built program, with as many arguments, and there are no others.
#[test]
fn probe_points_are_those_of_the_table() {
    let sites = onecopy_trace::bpf::sites(Path::new(env!("CARGO_BIN_EXE_onecopy"))).expect("notes");
    let found: BTreeSet<&str> = sites.iter().map(|site| site.name.as_str()).collect();
    let table: BTreeSet<&str> = TRACEPOINTS.iter().map(|info| info.name).collect();
    assert_eq!(found, table);
    for site in &sites {
        let info = site.tracepoint().expect("in the table");
        assert_eq!(site.arguments(), info.args.len(), "{}", info.name);
    }
}

#[test]
fn codes_of_the_program_pass() {
    for (program, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["/nonexistent/program"], 127),
        (&["/"], 126),
    ] {
        let mut args = vec!["trace", "--"];
        args.extend(program);
        let output = onecopy(&args, &[]);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{program:?}: {}",
            text(&output.stderr)
        );
    }
}

/// Each signal that users and batch systems end commands by.
const ENDING: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGXCPU,
];

/// Whether a process holds back the signals that it takes by a descriptor.
fn is_watching(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) & 1 << (Signal::SIGTERM as i32 - 1) != 0
}

#[test]
fn the_report_is_written_before_a_signal_ends_the_tracer() {
    let folder = tempfile::tempdir().expect("a folder");
    for signal in ENDING {
        let json = folder.path().join(signal.as_str());
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(["trace", "--json"]).arg(&json);
        let tracer = limit::start(command.stdout(Stdio::null()));
        assert!(limit::wait_until(|| is_watching(tracer.id())), "{signal}");
        kill(Pid::from_raw(tracer.id().cast_signed()), signal).expect("kill");
        let code = tracer.finish().status.code();
        assert_eq!(code, Some(128 + signal as i32), "{signal}");
        assert_eq!(read(&json)["version"], 1, "{signal}");
    }
}

#[test]
fn a_traced_program_gets_the_tracers_signals() {
    let folder = tempfile::tempdir().expect("a folder");
    for signal in ENDING {
        let json = folder.path().join(signal.as_str());
        let name = signal.as_str().trim_start_matches("SIG");
        let script = format!("trap 'exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(["trace", "--json"]).arg(&json);
        command.args(["--", "sh", "-c", &script]);
        let mut tracer = limit::start(command.stdout(Stdio::piped()));
        let mut ready = [0; 5];
        let output = tracer.stdout.as_mut().expect("a pipe");
        Read::read_exact(output, &mut ready).expect("the trap is set");
        kill(Pid::from_raw(tracer.id().cast_signed()), signal).expect("kill");
        assert_eq!(tracer.finish().status.code(), Some(9), "{signal}");
        assert_eq!(read(&json)["version"], 1, "{signal}");
    }
}

/// A file that cannot be written is known before the program begins; one that is there stays as it was.
#[test]
fn files_are_known_before_the_program_begins() {
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("mark");
    let touch = format!("touch {}", mark.display());
    for (option, file) in [
        ("--json", "/nonexistent/a"),
        ("--perfetto", "/"),
        ("--prometheus", "/dev/null/a"),
    ] {
        let output = onecopy(&["trace", option, file, "--", "sh", "-c", &touch], &[]);
        assert_eq!(output.status.code(), Some(1), "{option} {file}");
        assert!(
            text(&output.stderr).contains(file),
            "{}",
            text(&output.stderr)
        );
        assert!(!mark.exists(), "{option} {file}");
    }
    let full = onecopy(&["trace", "--json", "/dev/full", "--", "true"], &[]);
    assert_eq!(full.status.code(), Some(1));
    assert!(
        text(&full.stderr).contains("/dev/full"),
        "{}",
        text(&full.stderr)
    );
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = folder.path().join("wrong.json");
    fs::write(&wrong, "{\"version\": 99}").expect("written");
    let wrong = wrong.to_str().expect("text");
    for (args, code, word) in [
        (
            &["trace", "--max-overhead", "0%", "--", "true"][..],
            2,
            "percent",
        ),
        (&["trace", "--seconds=-1"], 2, "seconds"),
        (&["trace", "true"], 2, "unexpected"),
        (
            &["trace", "--json", "/tmp/none/", "--", "true"],
            1,
            "/tmp/none/",
        ),
        (
            &["trace", "--max-overhead", "-5", "--", "true"],
            2,
            "percent",
        ),
        (&["trace", "--check", "--", "true"], 2, "cannot be used"),
        (&["trace", "--check", "--seconds", "1"], 2, "cannot be used"),
        (&["top", "--interval", "0"], 2, "seconds"),
        (&["trace", "diff", wrong, wrong], 1, "no report"),
        (
            &["trace", "diff", "/nonexistent/a", wrong],
            1,
            "/nonexistent/a",
        ),
    ] {
        let output = onecopy(args, &[]);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {printed}");
        assert!(printed.contains(word), "{args:?}: {printed}");
    }
}

#[test]
fn a_check_names_every_probe() {
    let output = onecopy(&["trace", "--check", "--json", "-"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let probes: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let probes = probes.as_array().expect("a list");
    assert!(!probes.is_empty());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/trace-json.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once("## Check\n").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("another one");
    let rows = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<&str> = rows.map(|(key, _)| key).collect();
    for probe in probes {
        let keys = probe.as_object().expect("an object").keys();
        assert_eq!(
            keys.map(String::as_str).collect::<BTreeSet<_>>(),
            documented
        );
        match probe["state"].as_str() {
            Some("works") => {}
            Some("other" | "refused") => {
                assert!(
                    probe["lost"].as_str().is_some_and(|lost| !lost.is_empty()),
                    "{probe}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A standard output that nobody reads.
fn unread() -> Stdio {
    let (_, unread) = std::io::pipe().expect("a pipe");
    unread.into()
}

#[test]
fn a_report_that_nobody_reads_changes_no_code_of_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let file_name = file.to_str().expect("text");
    for (options, program, code) in [
        (&["--json", file_name][..], &["sh", "-c", "exit 7"][..], 7),
        (&["--json", file_name], &["true"], 0),
        (
            &["--perfetto", "-", "--json", file_name],
            &["sh", "-c", "exit 7"],
            7,
        ),
        (&["--seconds", "0.1", "--json", file_name], &[], 1),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.arg("trace").args(options);
        if !program.is_empty() {
            command.arg("--").args(program);
        }
        command.stdout(unread()).stderr(Stdio::piped());
        let output = limit::start(&mut command).finish();
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {printed}");
        assert_eq!(printed.contains("standard output"), code == 1, "{printed}");
        assert_eq!(read(&file)["version"], 1, "{options:?}");
        fs::remove_file(&file).expect("removed");
    }
}

/// A pipe by name is a file that was asked for: one that nobody reads any more was not written.
#[test]
fn a_named_pipe_that_nobody_reads_is_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["trace", "--json"]).arg(&pipe);
    command.args(["--", "cat"]).stdin(Stdio::piped());
    let mut tracer = limit::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    // The tracer has opened it as well, and waits for the program.
    drop(File::open(&pipe).expect("a reader"));
    drop(tracer.stdin.take());
    let output = tracer.finish();
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stderr);
    assert!(printed.contains(pipe.to_str().expect("text")), "{printed}");
}

/// The parent of the command may have SIGCHLD ignored, which `exec` keeps.
#[test]
fn a_program_has_its_code_where_sigchld_is_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("a.json");
    // Shells do not ignore it for others.
    let mut command = Command::new("env");
    command.arg("--ignore-signal=CHLD");
    command.args([env!("CARGO_BIN_EXE_onecopy"), "trace", "--json"]);
    command.arg(&json).args(["--", "sh", "-c", "exit 7"]);
    let output = limit::output(&mut command);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{printed}");
    assert_eq!(read(&json)["version"], 1);
}

/// A program ignores the signals that it would ignore without the tracer.
#[test]
fn a_program_ignores_what_the_tracer_was_started_to_ignore() {
    let ignored = "grep SigIgn /proc/self/status";
    for trapped in ["", "PIPE", "CHLD", "PIPE CHLD"] {
        let trap = match trapped {
            "" => String::new(),
            signals => format!("trap '' {signals};"),
        };
        let tool = env!("CARGO_BIN_EXE_onecopy");
        let sees = |command: &str| {
            let script = format!("{trap} exec {command}");
            let output = limit::output(Command::new("sh").args(["-c", &script]));
            let printed = text(&output.stdout);
            let line = printed.lines().find(|line| line.starts_with("SigIgn:"));
            line.unwrap_or_else(|| panic!("{output:?}")).to_owned()
        };
        let own = sees(ignored);
        assert_eq!(
            sees(&format!("{tool} trace -- {ignored}")),
            own,
            "{trapped}"
        );
        assert_eq!(
            sees(&format!("{tool} run -n 1 -- {ignored}")),
            own,
            "{trapped}"
        );
    }
}

/// Where the command's file has capabilities, the C library takes variables away that the program may need. And what
/// its capabilities do not permit is said once, with the remedy.
#[test]
fn capabilities_of_the_file_take_nothing_from_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(folder.path(), open.clone()).expect("a mode");
    let tool = folder.path().join("onecopy");
    fs::copy(env!("CARGO_BIN_EXE_onecopy"), &tool).expect("copied");
    fs::set_permissions(&tool, open).expect("a mode");
    let given = limit::try_output(
        Command::new("setcap")
            .args(["cap_bpf,cap_perfmon+ep"])
            .arg(&tool),
    );
    if !given.is_ok_and(|output| output.status.success()) {
        say("skipped: no capabilities can be given to files here");
        return;
    }
    let json = folder.path().join("report.json");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    // In between, what root could do is lost: the file gives more than there was.
    command.arg("env").arg(&tool);
    command.args(["trace", "--json"]).arg(&json);
    command
        .arg("--perfetto")
        .arg(folder.path().join("events.json"));
    command.args([
        "--",
        "sh",
        "-c",
        "echo \"$LD_LIBRARY_PATH:$TMPDIR:$OTHER:$HOME\"",
    ]);
    command.envs([
        ("LD_LIBRARY_PATH", "/x"),
        ("TMPDIR", "/y"),
        ("OTHER", "z"),
        ("HOME", ""),
    ]);
    let output = limit::output(&mut command);
    let printed = text(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert!(text(&output.stdout).starts_with("/x:/y:z:\n"), "{output:?}");
    let notes = read(&json)["limits"].clone();
    if notes.to_string().contains("only onecopy's own ranks") {
        say(&format!("skipped: {notes}"));
        return;
    }
    let notes = notes.as_array().expect("a list").iter();
    let about = notes
        .filter_map(Value::as_str)
        .filter(|note| note.contains("probe points in"));
    let about: Vec<&str> = about.collect();
    assert_eq!(about.len(), 1, "{about:?}");
    assert!(about[0].contains("CAP_SYS_ADMIN"), "{about:?}");
}

/// The kernel's check of a program ends when the tracer is stopped. What it can do must not be taken for less then.
#[test]
fn stopping_a_tracer_that_begins_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json");
    let trace = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command
            .args(["trace", "--json"])
            .arg(&json)
            .args(["--", "true"]);
        command
    };
    assert!(limit::output(&mut trace()).status.success());
    if !is_permitted(&read(&json)) {
        return;
    }
    fs::remove_file(&json).expect("removed");
    let tracer = limit::start(&mut trace());
    let pid = Pid::from_raw(tracer.id().cast_signed());
    // All the time: while it looks at the kernel, at first without a pause, then while it loads and attaches. On any
    // machine the pauses get long enough for the check of a program to come to its end. They begin before the tracer
    // has begun anew for so long that it gives up.
    let begun = Instant::now();
    let mut is_looking = true;
    let mut pause = Duration::from_millis(2);
    while state(tracer.id()) != Some('Z') {
        kill(pid, Signal::SIGSTOP).expect("stopped");
        kill(pid, Signal::SIGCONT).expect("continued");
        is_looking &= child_of(tracer.id()).is_none();
        if !is_looking || begun.elapsed() > Duration::from_millis(300) {
            std::thread::sleep(pause);
            pause = pause * 11 / 10;
        }
    }
    assert!(tracer.finish().status.success());
    let report = read(&json);
    assert!(is_permitted(&report), "{}", report["limits"]);
}

/// A report of an earlier run stays when there is no program.
#[test]
fn a_program_that_is_not_there_replaces_no_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json");
    fs::write(&json, "before").expect("written");
    let trace = |program: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command
            .args(["trace", "--json"])
            .arg(&json)
            .args(["--", program]);
        limit::output(&mut command)
    };
    for (program, code) in [("", 127), ("/no such program", 127), ("/", 126)] {
        let output = trace(program);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(
            printed.contains(&format!("cannot start {program:?}")),
            "{printed}"
        );
        assert_eq!(fs::read_to_string(&json).expect("read"), "before");
        let entries = fs::read_dir(folder.path()).expect("a folder");
        assert_eq!(entries.count(), 1, "something stayed beside it");
    }
    // One that a signal ends before it was observed has not begun.
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command
        .args(["trace", "--json"])
        .arg(&json)
        .args(["--", "true"]);
    let (tracer, gate) = stopped_before_it_begins(&mut command);
    fs::write(&json, "before").expect("written");
    kill(gate, Signal::SIGKILL).expect("killed");
    assert_eq!(tracer.finish().status.code(), Some(137));
    assert_eq!(fs::read_to_string(&json).expect("read"), "before");
    // Nor has one that gets the tracer's signal before it has begun.
    let (tracer, gate) = stopped_before_it_begins(&mut command);
    fs::write(&json, "before").expect("written");
    assert!(limit::wait_until(|| is_watching(tracer.id())));
    let tracer_pid = Pid::from_raw(tracer.id().cast_signed());
    kill(tracer_pid, Signal::SIGTERM).expect("asked");
    let pending = || fs::read_to_string(format!("/proc/{gate}/status")).unwrap_or_default();
    assert!(limit::wait_until(
        || !pending().contains("ShdPnd:\t0000000000000000")
    ));
    kill(gate, Signal::SIGCONT).expect("continued");
    assert_eq!(tracer.finish().status.code(), Some(143));
    assert_eq!(fs::read_to_string(&json).expect("read"), "before");
    // One whose code is the same has begun.
    let script = folder.path().join("script");
    fs::write(&script, "#!/bin/sh\nexit 127\n").expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a mode");
    let output = trace(script.to_str().expect("a name"));
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(read(&json)["version"], 1);
}

/// The state of a process, as the kernel says it.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// What waits to become the program of a tracer, once it is there.
fn gate_of(tracer: u32) -> Pid {
    let mut gate = None;
    assert!(limit::wait_until(|| {
        gate = child_of(tracer);
        gate.is_some()
    }));
    Pid::from_raw(gate.expect("a child").cast_signed())
}

/// Starts a tracer, and stops its program while that still waits. On a busy machine it may have gone on before it
/// stops.
fn stopped_before_it_begins(command: &mut Command) -> (limit::Limited, Pid) {
    let waits_at = format!("{} ", nix::libc::SYS_recvfrom);
    for _ in 0..100 {
        let tracer = limit::start(command);
        let gate = gate_of(tracer.id());
        let file = |name: &str| fs::read_to_string(format!("/proc/{gate}/{name}"));
        let is_waiting = || file("syscall").is_ok_and(|call| call.starts_with(&waits_at));
        let has_gone_on =
            || file("cmdline").is_ok_and(|words| words.is_empty() || words == "true\0");
        assert!(limit::wait_until(|| is_waiting() || has_gone_on()));
        let _ = kill(gate, Signal::SIGSTOP);
        let is_over = || {
            let status = file("status").unwrap_or_default();
            ["T (stopped)", "Z (zombie)"]
                .iter()
                .any(|state| status.contains(state))
                || status.is_empty()
        };
        assert!(limit::wait_until(is_over));
        if is_waiting() {
            return (tracer, gate);
        }
        let _ = kill(gate, Signal::SIGCONT);
        tracer.finish();
    }
    panic!("no program of 100 waited when it was stopped");
}

fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split(' ').next()?.parse().ok()
}

/// A shell that ends leaves its background job without anybody who could continue it. The kernel then sends SIGHUP to a
/// group that has stopped processes.
#[test]
fn a_program_begins_in_a_group_that_nobody_controls() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("a.json");
    let mark = folder.path().join("mark");
    let script = "\"$0\" trace --json \"$1\" -- touch \"$2\" >/dev/null & echo $!; read end";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_onecopy")]);
    command.arg(&json).arg(&mark).process_group(0);
    let mut shell = limit::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    let output = shell.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("an id");
    let tracer: u32 = line.trim().parse().expect("an id");
    let is_waiting = || {
        let has_begun = mark.exists() || json.exists();
        has_begun || matches!(child_of(tracer).and_then(state), Some('S' | 'T'))
    };
    assert!(limit::wait_until(is_waiting));
    drop(shell.stdin.take());
    assert!(limit::wait_until(|| matches!(
        state(tracer),
        None | Some('Z')
    )));
    assert!(mark.exists(), "the program has not run");
    assert_eq!(read(&json)["version"], 1);
    shell.finish();
}

/// The tracer is killed while its program waits: that ends without having begun.
#[test]
fn a_program_does_not_begin_without_its_tracer() {
    let folder = tempfile::tempdir().expect("a folder");
    for (goes, code) in [(true, 0), (false, 137)] {
        let mark = folder.path().join(code.to_string());
        let (tracer, gate) = onecopy_shm::fdpass::pair().expect("sockets");
        fcntl(&gate, FcntlArg::F_SETFD(FdFlag::empty())).expect("kept open");
        let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
        command.args(["__gate", &gate.as_raw_fd().to_string(), "--", "touch"]);
        let program = limit::start(command.arg(&mark));
        drop(gate);
        assert!(limit::wait_until(|| state(program.id()) == Some('S')));
        assert!(!mark.exists());
        if goes {
            send(tracer.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL).expect("sent");
        }
        drop(tracer);
        assert_eq!(program.finish().status.code(), Some(code));
        assert_eq!(mark.exists(), goes);
    }
}

/// The first signal asks for the report. Another one while that is written ends the command, with its code, and leaves
/// nothing beside the files.
#[test]
fn a_second_signal_ends_the_writing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (json, pipe) = (folder.path().join("a.json"), folder.path().join("pipe"));
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    // Both ends are open, and there is no room left: a writer waits.
    let mut both = File::options();
    both.read(true)
        .write(true)
        .custom_flags(OFlag::O_NONBLOCK.bits());
    let mut full = both.open(&pipe).expect("a pipe");
    while full.write(&[0; 4096]).is_ok() {}
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["trace", "--perfetto"]).arg(&pipe);
    command.arg("--json").arg(&json);
    let mut tracer = limit::start(command.stdout(Stdio::null()));
    let pid = tracer.id();
    assert!(limit::wait_until(|| is_watching(pid)));
    let signal = |signal| kill(Pid::from_raw(pid.cast_signed()), signal).expect("kill");
    signal(Signal::SIGTERM);
    // Those that come before it writes ask for the report once more.
    assert!(limit::wait_until(|| {
        let is_over = tracer.try_wait().expect("wait").is_some();
        if !is_over {
            signal(Signal::SIGINT);
        }
        is_over
    }));
    assert_eq!(tracer.finish().status.code(), Some(130));
    let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Programs call themselves what they like, and reports are read on terminals.
#[test]
fn reports_of_others_do_not_reach_the_terminal_as_controls() {
    let folder = tempfile::tempdir().expect("a folder");
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    let output = onecopy(&["trace", "--json", "-", "--", "true"], &[]);
    let mut report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let name = "\u{1b}[31m\u{9b}31m\u{202e}";
    let who = serde_json::json!({"pid": 1, "comm": name});
    let pair = serde_json::json!({
        "source": who, "sink": who, "mechanism": "cma-read", "calls": 1, "bytes": 1, "errors": {name: 1},
    });
    report["pairs"] = Value::Array(vec![pair]);
    fs::write(&good, report.to_string()).expect("written");
    report["pairs"][0]["calls"] = name.into();
    fs::write(&bad, report.to_string()).expect("written");
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    let (good, bad) = (path(&good), path(&bad));
    for (args, code) in [
        (&["trace", "diff", &good, &good][..], 0),
        (&["trace", "diff", "--json", &good, &good], 0),
        (&["trace", "diff", &good, &bad], 1),
        (&["trace", "diff", &good, &format!("/none{name}")], 1),
    ] {
        let output = onecopy(args, &[]);
        let all = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{all:?}");
        assert!(all.contains("[31m"), "{all:?}");
        let obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!all.contains(obeyed), "{all:?}");
    }
}

/// The terminal of a login that breaks off: nobody reads the report, and the program has its code.
#[test]
fn a_terminal_that_is_gone_changes_no_code_of_the_program() {
    let pty = nix::pty::openpty(None, None).expect("a terminal");
    // The holder of the other end keeps it.
    fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("fcntl");
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["trace", "--", "sh", "-c", "echo begun; read word; exit 6"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut traced = limit::start(command.stdout(pty.slave));
    drop(command);
    // The program has begun: it can go on once there is no terminal any more.
    let mut begun = [0; 5];
    let mut terminal = File::from(pty.master);
    terminal.read_exact(&mut begun).expect("what it said");
    drop(terminal);
    drop(traced.stdin.take());
    let output = traced.finish();
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
}

#[test]
fn a_limit_of_the_size_of_files_is_an_error_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json");
    let words = "ulimit -f 0; exec \"$0\" trace --json \"$1\" -- true";
    let mut command = Command::new("sh");
    command.args(["-c", words]);
    command.arg(env!("CARGO_BIN_EXE_onecopy")).arg(&json);
    let output = limit::output(&mut command);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("too large"), "{printed}");
    let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}
