// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wire-up between launcher and ranks. The ranks are this very test program, run with one test only: [`as_rank`].

use std::os::fd::AsFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, raise};
use onecopy::wireup::{Card, Event, Introduction, Wireup, WireupError, from_environment};

use crate::limit::{self, wait_until};
use crate::say::say;

use super::support::{RunOutput, run};

const ROLE: &str = "TEST_ROLE";

/// Runs ranks of this program in `role`.
fn ranks(count: &str, role: &str, options: &[&str]) -> RunOutput {
    wrapped(count, role, options, &[])
}

/// Runs ranks of this program in `role`, each started by `wrapper`.
fn wrapped(count: &str, role: &str, options: &[&str], wrapper: &[&str]) -> RunOutput {
    let own = std::env::current_exe().expect("own path");
    let own = own.to_str().expect("path in UTF-8");
    let role = format!("{ROLE}={role}");
    let mut args = vec!["-n", count, "--env", &role];
    args.extend(options);
    args.push("--");
    args.extend(wrapper);
    args.extend([own, "--exact", "ranks::as_rank", "--nocapture", "-q"]);
    run(&args)
}

/// What a rank does. Not a test of its own: without a role it does nothing.
#[test]
fn as_rank() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (knobs, ..) = onecopy_obs::Knobs::from_env().expect("knobs");
    let mut job = from_environment(&knobs).expect("environment");
    let (rank, size) = (job.rank(), job.size());
    if role == "absent" && rank == 1 {
        // Longer than the others wait.
        return std::thread::sleep(std::time::Duration::from_secs(5));
    }
    if role == "no-show" && rank == 1 {
        return;
    }
    let segment = memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd");
    let mut card = Card::of_this_process();
    card.quota_cpus = rank as f32;
    nix::unistd::ftruncate(&segment, 100 + rank as i64).expect("ftruncate");
    let cards = match job.join(card, segment.as_fd()) {
        Ok(cards) => cards,
        Err(error) => {
            let expected = match role.as_str() {
                "absent" => {
                    matches!(&error, WireupError::Timeout { missing, .. } if missing[0].rank == 1 && missing[0].running)
                }
                _ => matches!(&error, WireupError::Absent { .. }),
            };
            say(&format!("rank {rank}: {error}"));
            assert!(expected, "{error:?}");
            std::process::exit(17);
        }
    };
    assert_eq!(cards.len(), size);
    for (peer, card) in cards.iter().enumerate() {
        assert_eq!(card.quota_cpus, peer as f32);
        let known = job.introduce(peer).expect("introduce");
        let stat = nix::sys::stat::fstat(&known.memory).expect("stat");
        assert_eq!(stat.st_size, 100 + peer as i64);
        if role != "apart" {
            assert_eq!(known.uid, nix::unistd::getuid().as_raw());
        }
        match role.as_str() {
            "apart" => assert!(peer == rank || known.pid.is_none()),
            // A peer may have done its part already and be gone.
            _ => assert!(known.pid.is_some_and(|pid| pid > 1) || ended(&known)),
        }
        assert_eq!(
            known.pid == Some(std::process::id().cast_signed()),
            peer == rank
        );
    }
    assert!(job.introduce(size).is_err());
    match (role.as_str(), rank) {
        ("die", 0) => raise(Signal::SIGKILL).expect("raise"),
        // The shell sees a code of eight bits, which is 0.
        ("desert", 0) => std::process::exit(256),
        ("abort", 1) => {
            job.abort(77).expect("abort");
            std::thread::sleep(std::time::Duration::from_secs(3600));
        }
        ("meet" | "apart", _) | ("leave", 0) => {}
        _ => await_event(&mut *job),
    }
    job.leave().expect("leave");
}

/// Whether the process that was introduced has ended.
fn ended(known: &Introduction) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let pidfd = known.pidfd.as_ref().expect("pidfd");
    let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).expect("poll") == 1
}

/// Prints the next event.
fn await_event(job: &mut dyn Wireup) {
    let mut event = None;
    assert!(wait_until(|| {
        event = job.poll().expect("poll");
        event.is_some()
    }));
    match event {
        Some(Event::Died { rank, death }) => say(&format!("saw: rank {rank} {death}")),
        Some(Event::Left { rank }) => say(&format!("saw: rank {rank} left")),
        Some(Event::Abort { code }) => say(&format!("saw: abort {code}")),
        None => {}
    }
}

#[test]
fn ranks_meet() {
    for count in ["1", "2", "7"] {
        let ran = ranks(count, "meet", &[]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

#[test]
fn survivors_learn_who_died_and_how() {
    let ran = ranks("4", "die", &["--keep-going"]);
    assert_eq!(ran.code, Some(137), "{ran:?}");
    let seen = ran.err.matches("saw: rank 0 killed by signal 9 (SIGKILL)");
    assert_eq!(seen.count(), 3, "{ran:?}");
    assert!(ran.err.contains("the others go on"), "{ran:?}");
}

#[test]
fn a_rank_may_be_the_child_of_a_wrapper() {
    let wrapper = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    let ran = wrapped("3", "meet", &[], &wrapper);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = wrapped("3", "die", &["--keep-going"], &wrapper);
    assert_eq!(ran.code, Some(137), "{ran:?}");
    assert_eq!(ran.err.matches("saw: rank 0 ").count(), 2, "{ran:?}");
}

#[test]
fn a_pid_that_means_nothing_here_is_not_told() {
    let wrapper = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    let mut plain = std::process::Command::new(wrapper[0]);
    if !limit::try_output(plain.args(&wrapper[1..]).arg("true"))
        .is_ok_and(|output| output.status.success())
    {
        return say("skipped: pid namespaces are not allowed here");
    }
    let ran = wrapped("3", "apart", &[], &wrapper);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn an_orderly_end_is_no_death() {
    let ran = ranks("3", "leave", &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("left"), "{ran:?}");
    assert!(!ran.err.contains("exited"), "{ran:?}");
}

/// A rank that joined has a part in the job: its exit code alone does not say that it did it.
#[test]
fn a_rank_that_ends_without_leaving_fails_the_job() {
    let shell = ["sh", "-c", "\"$@\"; exit 0", "sh"];
    for wrapper in [&[][..], &shell[..]] {
        for options in [&[][..], &["--keep-going"][..]] {
            for count in ["1", "3"] {
                let ran = wrapped(count, "desert", options, wrapper);
                assert_eq!(ran.code, Some(1), "{wrapper:?} {options:?} {ran:?}");
                let complaints = ran.err.lines().filter(|line| {
                    line.starts_with("onecopy run: rank 0 (pid ")
                        && line.contains("without finalizing (MPI_Finalize)")
                });
                assert_eq!(complaints.count(), 1, "{wrapper:?} {options:?} {ran:?}");
            }
        }
    }
}

#[test]
fn an_abort_ends_the_job_with_its_code() {
    let ran = ranks("3", "abort", &[]);
    assert_eq!(ran.code, Some(77), "{ran:?}");
    assert!(
        ran.err.contains("rank 1 aborted the job with code 77"),
        "{ran:?}"
    );
}

#[test]
fn a_rank_that_does_not_join_in_time_is_named() {
    let options = ["--env", "ONECOPY_JOIN_TIMEOUT=1", "--keep-going"];
    let ran = ranks("3", "absent", &options);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("onecopy run: rank 1 (pid "), "{ran:?}");
    assert!(ran.err.contains("still running) did not join"), "{ran:?}");
    assert!(ran.err.contains("1 (still running)"), "{ran:?}");
}

#[test]
fn a_rank_that_ended_without_joining_is_not_waited_for() {
    let ran = ranks("3", "no-show", &["--keep-going"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("cannot join any more"), "{ran:?}");
    assert!(ran.err.contains("1 (already ended)"), "{ran:?}");
}
