// SPDX-License-Identifier: MIT OR Apache-2.0
//! How jobs of foreign launchers end: aborted, killed in the middle of the start, never begun.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xxhash_rust::xxh3::xxh3_128;

use crate::launchers::Launcher;
use crate::meeting::{RunOutput, TRACES, add_rank, finish, possible};
use crate::processes::limit::{Limited, start, wait_until};
use crate::processes::say;

/// A rank that this program plays the launcher of: by the environment that one would leave.
pub(crate) fn rank(env: &[(&str, &str)], wrapper: &[&str], body: &str) -> Command {
    let own = std::env::current_exe().expect("own path");
    let mut command = match wrapper {
        [] => Command::new(own),
        [program, args @ ..] => {
            let mut command = Command::new(program);
            command.args(args).arg(own);
            command
        }
    };
    command.args(["--exact", "as_rank", "--nocapture", "-q"]);
    for name in TRACES {
        command.env_remove(name);
    }
    command.env("TEST_BODY", body).env("RUST_BACKTRACE", "0");
    command.envs(env.iter().copied()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The environment of rank `number` of a Slurm step that no other test plays.
fn step(number: usize, size: usize, name: &str) -> [(&'static str, String); 4] {
    [
        ("SLURM_PROCID", number.to_string()),
        ("SLURM_STEP_NUM_TASKS", size.to_string()),
        ("SLURM_JOB_ID", format!("{name}{}", std::process::id())),
        ("SLURM_STEP_ID", "0".to_owned()),
    ]
}

fn stepped(number: usize, size: usize, name: &str, wrapper: &[&str], body: &str) -> Command {
    let env = step(number, size, name);
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    rank(&env, wrapper, body)
}

pub(crate) fn end(child: Limited) -> RunOutput {
    RunOutput::of(child.finish())
}

/// The name at which the ranks of such a step meet.
fn meeting_name(size: usize, name: &str) -> String {
    let uid = nix::unistd::getuid();
    let job = format!("{name}{}", std::process::id());
    let text = format!("Slurm's srun\0{job}.0\0{size}\0{uid}");
    format!("onecopy-{:032x}", xxh3_128(text.as_bytes()))
}

/// Whether there is a file at which the ranks of such a step meet.
fn has_file(size: usize, name: &str) -> bool {
    let uid = nix::unistd::getuid();
    let file = meeting_name(size, name);
    let paths = ["/dev/shm", "/tmp"].map(|base| format!("{base}/onecopy-{uid}/{file}"));
    paths
        .iter()
        .any(|path| std::fs::symlink_metadata(path).is_ok())
}

#[test]
fn an_abort_ends_the_job_with_its_code() {
    for launcher in Launcher::ALL {
        let Some(mut command) = launcher.command(3) else {
            continue;
        };
        add_rank(&mut command, "abort");
        let ran = finish(&mut command);
        assert_eq!(ran.code, Some(7), "{launcher:?}: {}", ran.text);
    }
    // A code of which the system would keep nothing is a failure all the same.
    for launcher in Launcher::ALL {
        let Some(mut command) = launcher.command(3) else {
            continue;
        };
        add_rank(&mut command, "abort-256");
        let ran = finish(&mut command);
        assert_eq!(ran.code, Some(1), "{launcher:?}: {}", ran.text);
    }
    // Nobody ends these ranks: the word of the abort does.
    let ranks: Vec<_> = (0..3)
        .map(|number| start(&mut stepped(number, 3, "abort", &[], "abort")))
        .collect();
    for child in ranks {
        let ran = end(child);
        assert_eq!(ran.code, Some(7), "{}", ran.text);
    }
}

#[test]
fn ranks_that_have_only_their_environment_meet() {
    let apart = ["unshare", "--net", "--pid", "--fork", "--mount-proc"];
    for (name, wrapper) in [("near", &[][..]), ("apart", &apart[..])] {
        if !wrapper.is_empty() && !possible(wrapper) {
            continue;
        }
        // Rank 0 comes last: the others wait for it.
        let ranks: Vec<_> = (0..3)
            .rev()
            .map(|number| start(&mut stepped(number, 3, name, wrapper, "ring")))
            .collect();
        for child in ranks {
            let ran = end(child);
            assert_eq!(ran.code, Some(0), "{}", ran.text);
            assert_eq!(ran.lines_with("of 3"), 1, "{}", ran.text);
        }
    }
}

/// Listens at the name in `TEST_NAME` until standard input ends: what another user can do before a job starts.
pub(crate) fn squat() {
    let name = std::env::var("TEST_NAME").expect("a name");
    let address = SocketAddr::from_abstract_name(name.as_bytes()).expect("address");
    // The family's names are common to all kinds of sockets, so a stream takes it as well.
    let taken = UnixListener::bind_addr(&address).expect("bind");
    let mut waiting = Vec::new();
    if std::env::var_os("TEST_FULL").is_some() {
        // As the ranks connect: a rank that comes now is left to wait for as long as it likes.
        drop(taken);
        let kept = full_queue(&address);
        waiting.extend(kept);
    }
    say("taken");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("read");
}

/// A socket at this name that nobody accepts from, with as many connections as its queue takes, and no room for another
/// one.
fn full_queue(address: &SocketAddr) -> Vec<OwnedFd> {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
    };
    let name = address.as_abstract_name().expect("abstract");
    let address = UnixAddr::new_abstract(name).expect("address");
    let make = || {
        let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_NONBLOCK);
        socket(AddressFamily::Unix, kind, flags, None).expect("socket")
    };
    let listening = make();
    bind(listening.as_raw_fd(), &address).expect("bind");
    listen(&listening, Backlog::new(0).expect("backlog")).expect("listen");
    let mut kept = vec![listening];
    loop {
        let guest = make();
        match connect(guest.as_raw_fd(), &address) {
            Ok(()) => kept.push(guest),
            Err(nix::errno::Errno::EAGAIN) => return kept,
            Err(errno) => panic!("connect: {errno}"),
        }
    }
}

/// Everything at once that another user can do: the abstract name, whose queue is full, and both folders, are his.
#[test]
fn another_user_delays_nobody() {
    let (other, own_user) = ("--reuid=65534", "--reuid=64218");
    let other = ["setpriv", other, "--clear-groups"];
    let ours = ["setpriv", own_user, "--clear-groups"];
    let own = std::env::current_exe().expect("own path");
    let own = own.to_str().expect("a path in UTF-8");
    for user in [other, ours] {
        if !possible(&[&user[..], &[own, "--list", "--exact"]].concat()) {
            return;
        }
    }
    let job = format!("delayed{}", std::process::id());
    let text = format!("Slurm's srun\0{job}.0\02\064218");
    let name = format!("onecopy-{:032x}", xxh3_128(text.as_bytes()));
    let env = [("TEST_NAME", name.as_str()), ("TEST_FULL", "1")];
    let mut stranger = rank(&env, &other, "squat");
    let mut stranger = start(stranger.stdin(Stdio::piped()));
    let mut lines = BufReader::new(stranger.stderr.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "taken");
    let folders = ["/dev/shm", "/tmp"].map(|base| format!("{base}/onecopy-64218"));
    for folder in &folders {
        let made = [&other[..], &["mkdir", "-m", "700", folder]].concat();
        assert!(possible_exactly(&made), "{folder}");
    }
    let mut ranks = Vec::new();
    for number in (0..2).rev() {
        let mut command = stepped(number, 2, "delayed", &ours, "ring");
        ranks.push(start(&mut command));
    }
    let ended: Vec<_> = ranks.into_iter().map(end).collect();
    for folder in &folders {
        std::fs::remove_dir(folder).expect("what the stranger made");
    }
    for ran in ended {
        assert_eq!(ran.code, Some(0), "{}", ran.text);
    }
    // Nor is anything left where they met.
    for base in ["/dev/shm", "/tmp"] {
        let entries = std::fs::read_dir(base).expect(base).flatten();
        let left = |name: &str| name.starts_with("onecopy-64218");
        let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        assert!(!names.any(|name| left(&name)), "{base}");
    }
    drop(stranger.stdin.take());
    stranger.wait().expect("wait");
}

fn possible_exactly(line: &[&str]) -> bool {
    let mut command = Command::new(line[0]);
    crate::processes::limit::output(command.args(&line[1..]))
        .status
        .success()
}

#[test]
fn a_name_that_another_user_has_taken_keeps_nobody_out() {
    let other = ["setpriv", "--reuid=65534", "--clear-groups"];
    let own = std::env::current_exe().expect("own path");
    let own = own.to_str().expect("a path in UTF-8");
    if !possible(&[&other[..], &[own, "--list", "--exact"]].concat()) {
        return;
    }
    let name = meeting_name(2, "taken");
    let mut stranger = rank(&[("TEST_NAME", &name)], &other, "squat");
    let mut stranger = start(stranger.stdin(Stdio::piped()));
    let mut lines = BufReader::new(stranger.stderr.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "taken");
    let ranks: Vec<_> = (0..2)
        .map(|number| start(&mut stepped(number, 2, "taken", &[], "ring")))
        .collect();
    for child in ranks {
        let ran = end(child);
        assert_eq!(ran.code, Some(0), "{}", ran.text);
    }
    drop(stranger.stdin.take());
    stranger.wait().expect("wait");
}

#[test]
fn a_launcher_that_is_of_no_use_is_an_error_and_no_job_of_one() {
    let closed = [("PMI_FD", "77"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")];
    for (env, message) in [
        (&closed[..], "is not the launcher's socket"),
        (&closed[..2], "but not PMI_RANK and PMI_SIZE"),
        (&closed[1..], "but not PMI_FD"),
        (
            &[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_PORT", "h:1")][..],
            "PMI_PORT",
        ),
        (&[("PMIX_RANK", "0")][..], "how many there are"),
        (
            &[("OMPI_COMM_WORLD_RANK", "0")][..],
            "OMPI_COMM_WORLD_SIZE is not set",
        ),
        (
            &[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "1")][..],
            "is not set",
        ),
    ] {
        let ran = end(start(&mut rank(env, &[], "ring")));
        assert_eq!(ran.code, Some(3), "{env:?}: {}", ran.text);
        assert!(ran.text.contains(message), "{env:?}: {}", ran.text);
    }
    // The others never come.
    let mut alone = stepped(1, 2, "nobody", &[], "ring");
    let ran = end(start(alone.env("ONECOPY_JOIN_TIMEOUT", "1")));
    assert_eq!(ran.code, Some(3), "{}", ran.text);
    assert!(ran.text.contains("rank 0 was not found"), "{}", ran.text);
    let mut alone = stepped(0, 2, "nobody", &[], "ring");
    let ran = end(start(alone.env("ONECOPY_JOIN_TIMEOUT", "1")));
    assert_eq!(ran.code, Some(3), "{}", ran.text);
    assert!(ran.text.contains("did not join"), "{}", ran.text);
}

/// Kills ranks, and the launcher with them, at once.
fn kill_all(children: &mut [Limited]) {
    for child in children.iter() {
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).expect("kill");
    }
    for child in children {
        child.wait().expect("wait");
    }
}

#[test]
fn a_job_that_is_killed_while_it_starts_leaves_nothing() {
    // Rank 0 listens for one that never comes. It is killed at growing times of its start.
    for delay in [0, 1, 2, 5, 10, 20, 50, 100] {
        let name = format!("killed{delay}");
        let mut ranks: Vec<_> = (0..2)
            .map(|number| start(&mut stepped(number, 3, &name, &[], "ring")))
            .collect();
        std::thread::sleep(Duration::from_millis(delay));
        kill_all(&mut ranks);
        assert!(!has_file(3, &name), "killed after {delay} ms");
    }
}

#[test]
fn a_file_that_a_killed_job_left_is_removed_by_the_next() {
    let mut zero = [start(&mut stepped(0, 2, "file", &[], "ring"))];
    assert!(wait_until(|| has_file(2, "file")), "no file to meet at");
    kill_all(&mut zero);
    let next = start(&mut stepped(0, 2, "next", &[], "ring"));
    assert!(
        wait_until(|| !has_file(2, "file")),
        "what was left is there still"
    );
    assert!(wait_until(|| has_file(2, "next")), "no file to meet at");
    let other = start(&mut stepped(1, 2, "next", &[], "ring"));
    assert_eq!((end(next).code, end(other).code), (Some(0), Some(0)));
    assert!(!has_file(2, "next"));
}
