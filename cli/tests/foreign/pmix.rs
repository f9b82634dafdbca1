// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks under launchers that speak PMIx: Open MPI's mpirun, and prterun, whose environment alone does not tell how
//! many ranks there are.

use std::io::{BufRead, BufReader};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::launchers::Launcher;
use crate::meeting::{RunOutput, add_rank, finish, possible};
use crate::processes::limit::start;
use crate::processes::say;

const PROGRAMS: [&str; 2] = ["mpirun", "prterun"];

/// Whether libpmix is in this process.
pub(crate) fn is_loaded() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps");
    maps.expect("maps").contains("libpmix.so")
}

/// One of Open MPI's launchers with `ranks` ranks, each started by `wrapper`.
fn launcher(program: &str, ranks: usize, wrapper: &[&str], body: &str) -> Option<Command> {
    let mut command = Launcher::OpenMpi.program(program)?;
    command.args(["-n", &ranks.to_string()]).args(wrapper);
    add_rank(&mut command, body);
    Some(command)
}

/// Starts a rank where its launcher's library is not found: it stands between the two and names no folder of it.
const WITHOUT: [&str; 4] = [
    "sh",
    "-c",
    "unset PMIX_PREFIX OPAL_PREFIX LD_LIBRARY_PATH; \"$@\"; exit $?",
    "rank",
];

/// Starts a rank as if it were on one of two nodes, by turns.
pub(crate) const SPREAD: [&str; 4] = [
    "sh",
    "-c",
    "export ONECOPY_NODE=n$((PMIX_RANK % 2)); exec \"$@\"",
    "rank",
];

/// Whether ranks without their launcher's library have none at all. If not, what is skipped is printed.
fn none_else() -> bool {
    let Some(mut command) = launcher("mpirun", 1, &WITHOUT, "means") else {
        return false;
    };
    let ran = finish(&mut command);
    let none = ran.text.contains("by PMIx: false");
    if !none {
        say(&format!(
            "skipped: another libpmix is installed: {}",
            ran.text
        ));
    }
    none
}

#[test]
fn ranks_meet_by_the_table_of_pmix() {
    for program in PROGRAMS {
        for ranks in [1, 2, 5] {
            let Some(mut command) = launcher(program, ranks, &[], "ring") else {
                return;
            };
            finish(&mut command).expect_ring(ranks);
        }
        let mut command = launcher(program, 2, &[], "means").expect("as before");
        let ran = finish(&mut command);
        assert_eq!(
            ran.lines_with("by PMIx: true"),
            2,
            "{program}: {}",
            ran.text
        );
    }
}

#[test]
fn ranks_on_several_nodes_meet() {
    for program in PROGRAMS {
        for ranks in [2, 5] {
            let Some(mut command) = launcher(program, ranks, &SPREAD, "nodes-meet") else {
                return;
            };
            let ran = finish(&mut command);
            assert_eq!(ran.code, Some(0), "{program}: {}", ran.text);
            for (node, count) in [(0, ranks.div_ceil(2)), (1, ranks / 2)] {
                let mark = format!("of {ranks} on node {node} at ");
                assert_eq!(ran.lines_with(&mark), count, "{program}: {}", ran.text);
            }
        }
        let mut command = launcher(program, 4, &SPREAD, "nodes-abort").expect("as before");
        let ran = finish(&mut command);
        assert_eq!(ran.code, Some(7), "{program}: {}", ran.text);
    }
}

#[test]
fn without_the_library_the_environment_is_asked() {
    if !none_else() {
        return;
    }
    let mut command = launcher("mpirun", 3, &WITHOUT, "ring").expect("as before");
    let ran = finish(&mut command);
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    assert_eq!(ran.lines_with("of 3"), 3, "{}", ran.text);
    // What the environment does not tell is an error that says what would.
    let mut command = launcher("prterun", 2, &WITHOUT, "ring").expect("as before");
    let ran = finish(&mut command);
    assert_eq!(ran.code, Some(3), "{}", ran.text);
    for part in [
        "how many there are",
        "libpmix.so.2 cannot be used",
        "libpmix2",
    ] {
        assert!(ran.text.contains(part), "{part}: {}", ran.text);
    }
}

#[test]
fn without_a_way_to_the_server_the_environment_is_asked() {
    let apart = ["unshare", "--net"];
    if !possible(&apart) {
        return;
    }
    let Some(mut command) = launcher("prterun", 2, &apart, "ring") else {
        return;
    };
    let ran = finish(&mut command);
    assert_eq!(ran.code, Some(3), "{}", ran.text);
    assert!(ran.text.contains("cannot be reached"), "{}", ran.text);
}

#[test]
fn an_abort_ends_the_job_with_its_code() {
    for (body, code) in [("abort", 7), ("abort-256", 1)] {
        let Some(mut command) = launcher("prterun", 3, &[], body) else {
            return;
        };
        let ran = finish(&mut command);
        assert_eq!(ran.code, Some(code), "{}", ran.text);
    }
}

#[test]
fn a_rank_that_leaves_without_a_word_fails_the_job() {
    for program in PROGRAMS {
        let Some(mut command) = launcher(program, 3, &[], "desert") else {
            return;
        };
        let ran = finish(&mut command);
        assert!(
            ran.code.is_none_or(|code| code != 0),
            "{program}: {}",
            ran.text
        );
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    let tell = ["sh", "-c", "echo pid $PMIX_RANK $$; exec \"$@\"", "rank"];
    let Some(mut command) = launcher("prterun", 3, &tell, "sleep") else {
        return;
    };
    let mut child = start(&mut command);
    let mut victim = None;
    let mut waiting = 0;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (out, err) = (out.expect("piped"), err.expect("piped"));
    // The tests' own words go to standard error.
    let errors = std::thread::spawn(move || {
        BufReader::new(err)
            .lines()
            .map_while(Result::ok)
            .filter(|line| line.starts_with("waiting"))
            .take(3)
            .count()
    });
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if let Some(pid) = line.strip_prefix("pid 1 ") {
            victim = Some(Pid::from_raw(pid.parse().expect("a pid")));
        }
        if victim.is_some() && line.starts_with("running") {
            break;
        }
    }
    waiting += errors.join().expect("reader");
    assert_eq!(waiting, 3);
    kill(victim.expect("told"), Signal::SIGKILL).expect("kill");
    let status = child.wait().expect("wait");
    assert!(!status.success(), "{status}");
}

#[test]
fn a_rank_that_never_initialises_is_waited_for_in_bounds() {
    let Some(mut command) = launcher("prterun", 1, &[], "ring") else {
        return;
    };
    command.args([":", "-n", "1", "sleep", "20"]);
    command.env("ONECOPY_JOIN_TIMEOUT", "1");
    let ran: RunOutput = finish(&mut command);
    assert_eq!(ran.code, Some(3), "{}", ran.text);
    for part in ["PMIx_Fence: no answer within 1 s", "ONECOPY_JOIN_TIMEOUT"] {
        assert!(ran.text.contains(part), "{part}: {}", ran.text);
    }
}
