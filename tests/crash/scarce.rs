// SPDX-License-Identifier: MIT OR Apache-2.0
//! One rank lacks descriptors or memory, for a moment: nobody waits for what it cannot do.

use super::job::{self, RANKS};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use onecopy::wireup::Death;
use onecopy::{Comm, Error, Runtime};
use std::os::fd::{AsFd, AsRawFd};

/// The rank that lacks something.
const LACKING: usize = 1;

/// Runs `body` while this process gets no descriptor more.
fn without_descriptors<R>(body: impl FnOnce() -> R) -> R {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let next = std::io::stdin().as_fd().try_clone_to_owned();
    let next = next.expect("a descriptor").as_raw_fd() as u64;
    setrlimit(Resource::RLIMIT_NOFILE, next, hard).expect("a lower limit");
    let result = body();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("the old limit");
    result
}

/// Each sends to the next one.
fn ring(world: &Comm) {
    let (rank, size) = (world.rank(), world.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut got = [0];
    let met = world.sendrecv(&[rank], next, 1, &mut got, before, 1);
    met.expect("a message");
    assert_eq!(got, [before]);
}

/// A rank whose first collective one member cannot take part in.
pub(crate) fn unopened() {
    let rt = Runtime::init().expect("a job");
    let world = rt.world();
    let first = if world.rank() == LACKING {
        without_descriptors(|| world.barrier())
    } else {
        world.barrier()
    };
    let error = first.expect_err("one member did not come");
    job::say(&format!("error {error}"));
    assert!(world.barrier().is_err(), "it stays given up");
    ring(&world);
    drop(world);
    rt.finalize().expect("finalize");
}

#[test]
fn a_member_that_cannot_open_its_channel_fails_the_collective_of_all() {
    let ran = job::run("unopened", &[]);
    for rank in 0..RANKS {
        assert_eq!(ran.ranks[rank], Death::Code(0), "{}", ran.story());
        let error = &ran.reports(rank, "error")[0].join(" ");
        // The first to hear of it tells the rest.
        let is_reported = error.contains("gave the communicator up");
        assert_eq!(is_reported, rank != LACKING, "{}", ran.story());
    }
}

/// A rank of which some step of reserving memory fails, perhaps.
pub(crate) fn forming() {
    let made = Runtime::init().and_then(|rt| {
        let world = rt.world();
        let formed = world.dup();
        let used = formed.and_then(|formed| formed.barrier());
        job::say(if used.is_ok() { "used" } else { "unused" });
        drop(world);
        rt.finalize()
    });
    if let Err(error) = made {
        let reserve = matches!(error, Error::Segment(_) | Error::Collective { .. });
        let absent = matches!(error, Error::Wireup(_));
        assert!(reserve || absent, "{error}");
        job::say("failed");
    }
}

#[cfg(feature = "fault-points")]
#[test]
fn a_member_without_memory_for_its_end_fails_the_collectives_of_all() {
    let mut agreed = 0;
    for count in 1.. {
        let order = format!("segment.reserve:{count}:{LACKING}");
        let ran = job::run("forming", &[("ONECOPY_JOB_FAIL", order)]);
        let complaints = ran.complaints.iter().flatten();
        let failed = complaints.filter(|line| line.contains("fails by order"));
        if failed.count() == 0 {
            break;
        }
        for rank in 0..RANKS {
            assert_eq!(ran.ranks[rank], Death::Code(0), "{}", ran.story());
        }
        let unused = (0..RANKS).filter(|&rank| !ran.reports(rank, "unused").is_empty());
        let unused = unused.count();
        assert!(unused == 0 || unused == RANKS, "{}", ran.story());
        agreed += usize::from(unused == RANKS);
    }
    assert!(agreed > 0, "no end was without memory");
}

/// A rank that does `body` and leaves, or says that it could not.
fn as_member(body: impl FnOnce(Comm) -> onecopy::Result<()>) {
    let made = Runtime::init().and_then(|rt| {
        body(rt.world())?;
        rt.finalize()
    });
    if made.is_err() {
        job::say("failed");
    }
}

/// A rank that may miss an answer of the launcher, and asks again.
pub(crate) fn introduced() {
    as_member(|world| {
        job::say("joined");
        let (rank, size) = (world.rank(), world.size());
        let mut missed = false;
        for peer in (1..size).map(|step| (rank + step) % size) {
            let sent = || world.send(&[rank], peer, 1);
            match sent() {
                Err(_) if !std::mem::replace(&mut missed, true) => sent()?,
                sent => sent?,
            }
        }
        for peer in (0..size).filter(|&peer| peer != rank) {
            let mut got = [0];
            world.recv(&mut got, peer, 1)?;
            assert_eq!(got, [peer]);
        }
        Ok(())
    });
}

#[cfg(feature = "fault-points")]
#[test]
fn an_answer_that_is_missed_is_no_answer_to_the_next_question() {
    // How often a rank looks for answers depends on how long they take.
    let mut missed = 0;
    for count in 1..=8 {
        let order = format!("socket.receive:{count}:{LACKING}");
        let ran = job::run("introduced", &[("ONECOPY_JOB_FAIL", order)]);
        let joined = !ran.reports(LACKING, "joined").is_empty();
        for rank in 0..RANKS {
            assert_eq!(ran.ranks[rank], Death::Code(0), "{}", ran.story());
            let failed = !ran.reports(rank, "failed").is_empty();
            assert!(!joined || !failed, "{}", ran.story());
        }
        let mut complaints = ran.complaints[LACKING].iter();
        missed += usize::from(joined && complaints.any(|line| line.contains("fails by order")));
    }
    assert!(missed > 0, "no answer was missed");
}

/// Variable with the bytes of a message that needs a chunk.
const LEN: &str = "TEST_LEN";

/// Bytes of a message that is announced.
const LONG: usize = 1 << 20;

/// A rank that sends a short message and one that needs a chunk, and gets memory for neither, perhaps. If that was
/// announced, both sides get an error, and talk on.
pub(crate) fn sending() {
    let len = std::env::var(LEN).ok().and_then(|text| text.parse().ok());
    let len: usize = len.expect("a length");
    as_member(|world| {
        let mut got = vec![0u8; len];
        if world.rank() == LACKING {
            world.send(&[1u8], 0, 1)?;
            job::say("short");
            let sent = world.send(&vec![2u8; len], 0, 2);
            if sent.is_err() && len == LONG {
                world.send(&[3u8], 0, 3)?;
                job::say("talked");
            }
            sent?;
        } else if world.rank() == 0 {
            world.recv(&mut got[..1], LACKING, 1)?;
            let received = world.recv(&mut got, LACKING, 2);
            if received.is_err() && len == LONG {
                world.recv(&mut got[..1], LACKING, 3)?;
                job::say("talked");
            }
            received?;
            assert!(got.iter().all(|&byte| byte == 2));
        }
        job::say("all");
        Ok(())
    });
}

#[cfg(feature = "fault-points")]
#[test]
fn a_message_without_memory_for_a_chunk_is_an_error() {
    for len in [8000, LONG] {
        let mut refused = 0;
        for count in 1.. {
            let env = [
                (
                    "ONECOPY_JOB_FAIL",
                    format!("segment.reserve:{count}..:{LACKING}"),
                ),
                ("ONECOPY_LAYERS", "cico".to_owned()),
                (LEN, len.to_string()),
            ];
            let ran = job::run("sending", &env);
            for rank in 0..RANKS {
                assert_eq!(ran.ranks[rank], Death::Code(0), "{}", ran.story());
            }
            let has_reported = |rank, word| !ran.reports(rank, word).is_empty();
            // What fails later is the end of the job, not the message.
            if has_reported(LACKING, "short") && !has_reported(LACKING, "all") {
                refused += 1;
                let both = [0, LACKING]
                    .iter()
                    .all(|&rank| has_reported(rank, "talked"));
                assert!(both || len < LONG, "{}", ran.story());
            }
            let mut complaints = ran.complaints.iter().flatten();
            if !complaints.any(|line| line.contains("fails by order")) {
                break;
            }
        }
        assert!(refused > 0, "no message of {len} bytes was refused");
    }
}
