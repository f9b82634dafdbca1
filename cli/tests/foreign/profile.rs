// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's profile, which the first job of another launcher measures: once, and without any harm to the job.

use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use onecopy::tune::profile::Claim;
use tempfile::TempDir;

use crate::launchers::Launcher;
use crate::meeting::{add_rank, finish, possible};
use crate::processes::{Ranks, say};

/// A folder in which profiles are kept, and removed in the end.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let mode = Permissions::from_mode(0o700);
        let made = tempfile::Builder::new().permissions(mode).tempdir();
        Self(made.expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// All that is in its folder: names, and the numbers of files, which tell whether one was written anew.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        let listed = std::fs::read_dir(self.path().join("onecopy"));
        let entries = listed
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("readable"));
        entries
            .map(|entry| (entry.path(), entry.metadata().expect("there").ino()))
            .collect()
    }

    /// Whether there is nothing but one profile.
    fn has_profile(&self) -> bool {
        let files = self.files();
        let is_profile = |path: &Path| {
            let text = std::fs::read_to_string(path).expect("readable");
            let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            found["rounds"].as_u64() > Some(0)
        };
        matches!(&files[..], [(path, _)] if is_profile(path))
    }
}

/// Whether there is something to compare.
fn is_possible() -> bool {
    onecopy::machine::all_processors().len() > 1
}

/// Ranks that meet by the PMI-1 of `onecopy run`, and take it for another launcher.
fn by_pmi(ranks: usize, home: &Path) -> Ranks {
    let apart = "unset ONECOPY_JOB_FD ONECOPY_JOB_RANK ONECOPY_JOB_SIZE; exec \"$@\"";
    let home = home.to_str().expect("text");
    Ranks::new(ranks, "ring")
        .env("XDG_CACHE_HOME", home)
        .env("XDG_CONFIG_HOME", home)
        .wrapped(&["env", "-u", "ONECOPY_TUNE_FILE", "sh", "-c", apart, "sh"])
}

fn launched(launcher: Launcher, options: &[&str], ranks: usize, home: &Home) -> Option<Command> {
    let mut command = launcher.command(ranks)?;
    command.args(options);
    add_rank(&mut command, "ring");
    command
        .env_remove("ONECOPY_TUNE_FILE")
        .env("XDG_CACHE_HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path());
    Some(command)
}

#[test]
fn the_first_job_measures_the_profile_once() {
    let home = Home::new();
    let none = by_pmi(2, home.path())
        .env("ONECOPY_CHUNK_COPY", "owned")
        .run();
    none.expect_success();
    by_pmi(1, home.path()).run().expect_success();
    assert_eq!(home.files(), [], "nobody needs it");
    by_pmi(2, home.path()).run().expect_success();
    assert_eq!(home.has_profile(), is_possible());
    let first = home.files();
    by_pmi(3, home.path()).run().expect_success();
    // What nothing follows from counts for a day.
    assert_eq!(home.files(), first);
}

/// A rank that is alone on its node fills no chunks by stores.
#[test]
fn a_node_of_one_rank_measures_nothing() {
    let home = Home::new();
    let apart = "unset ONECOPY_JOB_FD ONECOPY_JOB_RANK ONECOPY_JOB_SIZE; \
                 ONECOPY_NODE=node$PMI_RANK exec \"$@\"";
    let command = ["env", "-u", "ONECOPY_TUNE_FILE", "sh", "-c", apart, "sh"];
    let alone = by_pmi(2, home.path()).env("ONECOPY_NODE_TIMEOUT", "60");
    alone.wrapped(&command).run().expect_success();
    assert_eq!(home.files(), []);
}

#[test]
fn each_launcher_has_the_profile_measured() {
    for launcher in Launcher::ALL {
        // Bound to one processor, a rank measures between two all the same.
        for options in [&[][..], &["--bind-to", "core"]] {
            // Intel's hydra has a variable for that instead.
            if launcher == Launcher::Intel && !options.is_empty() {
                continue;
            }
            let home = Home::new();
            for _ in 0..2 {
                let Some(mut command) = launched(launcher, options, 2, &home) else {
                    break;
                };
                let ran = finish(&mut command);
                ran.expect_ring(2);
                assert!(!ran.text.contains("profile"), "{}", ran.text);
                assert_eq!(
                    home.has_profile(),
                    is_possible(),
                    "{launcher:?} {options:?}"
                );
            }
        }
    }
}

/// One of them measures. The others go without, and none waits for it.
#[test]
fn jobs_that_start_at_once_leave_one_profile() {
    let home = Home::new();
    let jobs: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| by_pmi(2, home.path()).run()))
            .collect();
        let ended = started.into_iter().map(|job| job.join().expect("a job"));
        ended.collect()
    });
    for job in jobs {
        job.expect_success();
    }
    assert_eq!(home.has_profile(), is_possible());
}

/// While another process measures, a job neither waits nor measures.
#[test]
fn a_job_does_not_wait_for_a_measurement() {
    use nix::fcntl::{Flock, FlockArg};
    let home = Home::new();
    let folder = home.path().join("onecopy");
    std::fs::create_dir(&folder).expect("made");
    let opened = std::fs::File::open(&folder).expect("opened");
    let locked = Flock::lock(opened, FlockArg::LockExclusive).expect("locked");
    by_pmi(2, home.path()).run().expect_success();
    assert_eq!(home.files(), []);
    drop(locked);
    by_pmi(2, home.path()).run().expect_success();
    assert_eq!(home.has_profile(), is_possible());
}

/// What keeps the profile from being written is no matter of the job.
#[test]
fn a_profile_that_cannot_be_written_does_no_harm() {
    let home = Home::new();
    // A file in the place of the folder.
    let file = home.path().join("file");
    std::fs::write(&file, "").expect("written");
    by_pmi(2, &file).run().expect_success();
    // A folder that nobody may write to; root may, all the same.
    let closed = home.path().join("closed");
    let made = std::fs::DirBuilder::new().mode(0o500).create(&closed);
    made.expect("made");
    by_pmi(2, &closed).run().expect_success();
    if !nix::unistd::geteuid().is_root() {
        assert!(!closed.join("onecopy").exists());
    }
    // Root is not to leave files in another user's home.
    if nix::unistd::geteuid().is_root() {
        let other = home.path().join("other");
        std::fs::create_dir(&other).expect("made");
        std::os::unix::fs::chown(&other, Some(65534), None).expect("changed");
        by_pmi(2, &other).run().expect_success();
        assert!(!other.join("onecopy").exists());
    }
    let mode = Permissions::from_mode(0o700);
    std::fs::set_permissions(&closed, mode).expect("changed");
}

/// A job on a full disk runs, and leaves no part of a profile. Nobody measures what could not be kept.
#[test]
fn a_full_disk_does_no_harm() {
    let small = "mount -t tmpfs -o size=4k none /mnt";
    if !is_possible() || !possible(&["unshare", "--mount", "sh", "-c", small]) {
        return;
    }
    let home = Home::new();
    let full = "mount -t tmpfs -o size=4k none \"$XDG_CACHE_HOME\" && \
                head -c 4096 /dev/zero > \"$XDG_CACHE_HOME/all\" || exit 99; \
                unset ONECOPY_JOB_FD ONECOPY_JOB_RANK ONECOPY_JOB_SIZE; \
                \"$@\" && find \"$XDG_CACHE_HOME\" -type f -printf 'KEPT %f\n'";
    let full = ["unshare", "--mount", "sh", "-c", full, "sh"];
    let unset = ["env", "-u", "ONECOPY_TUNE_FILE"];
    let ran = by_pmi(2, home.path())
        .wrapped(&[&unset[..], &full].concat())
        .run()
        .expect_success();
    assert_eq!(ran.reports("KEPT "), ["all", "all"], "{ran:#?}");
    let mut command = Command::new(full[0]);
    command.args(&full[1..]);
    add_rank(&mut command, "claim");
    let ran = finish(command.env("XDG_CACHE_HOME", home.path()));
    assert_eq!(ran.lines_with("nothing to measure: "), 1, "{}", ran.text);
    assert!(ran.text.contains("No space left"), "{}", ran.text);
}

/// Says whether a profile may be measured.
pub(crate) fn claim() {
    match Claim::take() {
        Ok(_) => say("a profile may be measured"),
        Err(reason) => say(&format!("nothing to measure: {reason}")),
    }
}
