// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks find one another, wherever their launcher puts them, and refuse to be alone when it is of no use.

use std::process::{Command, Output};

use crate::launchers::Launcher;
use crate::processes::{limit, say};

/// Variables by which ranks know of a launcher.
pub(crate) const TRACES: [&str; 18] = [
    "ONECOPY_JOB_FD",
    "ONECOPY_JOB_RANK",
    "ONECOPY_JOB_SIZE",
    "PMI_FD",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_PORT",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES",
];

/// What a run left.
#[derive(Debug)]
pub(crate) struct RunOutput {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

impl RunOutput {
    pub(crate) fn of(output: Output) -> Self {
        let text = [output.stdout, output.stderr].concat();
        Self {
            code: output.status.code(),
            text: String::from_utf8_lossy(&text).into_owned(),
        }
    }

    pub(crate) fn lines_with(&self, mark: &str) -> usize {
        self.text.lines().filter(|line| line.contains(mark)).count()
    }

    /// Each of so many ranks has said that it was in the ring.
    #[track_caller]
    pub(crate) fn expect_ring(&self, ranks: usize) {
        assert_eq!(self.code, Some(0), "{}", self.text);
        let lines = self.lines_with(&format!("of {ranks}"));
        assert_eq!(lines, ranks, "{}", self.text);
    }
}

/// A process that is one rank, as a part of `command` or as its whole.
pub(crate) fn add_rank(command: &mut Command, body: &str) {
    let own = std::env::current_exe().expect("own path");
    command
        .arg(own)
        .args(["--exact", "as_rank", "--nocapture", "-q"]);
    command.env("TEST_BODY", body);
}

/// Runs to the end, but not for ever.
pub(crate) fn finish(command: &mut Command) -> RunOutput {
    RunOutput::of(limit::output(command))
}

/// Runs `ranks` ranks under `launcher`, each started by `wrapper`; none if that launcher cannot be had.
fn run(launcher: Launcher, ranks: usize, wrapper: &[&str], body: &str) -> Option<RunOutput> {
    let mut command = launcher.command(ranks)?;
    command.args(wrapper);
    add_rank(&mut command, body);
    Some(finish(&mut command))
}

/// Whether this machine lets us start programs so. What is skipped is printed.
pub(crate) fn possible(wrapper: &[&str]) -> bool {
    let mut command = Command::new(wrapper[0]);
    let tried = limit::try_output(command.args(&wrapper[1..]).arg("true"));
    let possible = tried.as_ref().is_ok_and(|ran| ran.status.success());
    if !possible {
        say(&format!(
            "skipped: {wrapper:?} is not possible here: {tried:?}"
        ));
    }
    possible
}

#[test]
fn ranks_of_each_launcher_meet() {
    for launcher in Launcher::ALL {
        for ranks in [1, 2, 5] {
            if let Some(ran) = run(launcher, ranks, &[], "ring") {
                ran.expect_ring(ranks);
            }
        }
    }
}

/// Ways to start a rank in namespaces of its own, and whether ranks that have only their environment can meet there.
const APART: [&[&str]; 5] = [
    &["unshare", "--net"],
    &["unshare", "--pid", "--fork"],
    &["unshare", "--pid", "--fork", "--mount-proc"],
    &["unshare", "--net", "--pid", "--fork"],
    &["unshare", "--net", "--pid", "--fork", "--mount-proc"],
];

#[test]
fn ranks_in_namespaces_of_their_own_meet() {
    for wrapper in APART {
        if !possible(wrapper) {
            continue;
        }
        for launcher in Launcher::ALL {
            if let Some(ran) = run(launcher, 3, wrapper, "ring") {
                ran.expect_ring(3);
            }
        }
    }
}
