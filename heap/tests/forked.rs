// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that fork while they use the runtime: the child has a copy of everything, and none of it does anything.
//!
//! The ranks are this very test program, run with one test only: [`as_rank`].
//!
//! # Safety
//! A child of a process with threads may only do what needs no lock that another thread held. These ranks have one
//! thread that does anything while they fork, and the C library's allocator is usable in a child.
#![allow(unsafe_code, reason = "fork")]

#[path = "support/built.rs"]
mod built;
#[path = "../../tests/harness/limit.rs"]
mod limit;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use onecopy::{Error, Options, Runtime, Threads};
use onecopy_launch::{Bind, Job, Output};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

const BYTES: usize = 1 << 20;

/// Whether `call` ends with the words that a child is told.
fn is_refused(call: impl FnOnce()) -> bool {
    let ended = catch_unwind(AssertUnwindSafe(call));
    ended.is_err_and(|words| {
        let message = words.downcast_ref::<&str>().copied().unwrap_or_default();
        message.contains("is no rank")
    })
}

/// Forks; the child does its part and ends, and the parent sees that it was well.
fn in_child(part: impl FnOnce()) {
    // SAFETY: see the module's safety case.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => {
            let well = catch_unwind(AssertUnwindSafe(part)).is_ok();
            std::process::exit(if well { 0 } else { 7 });
        }
        ForkResult::Parent { child } => {
            let end = waitpid(child, None).expect("wait");
            assert_eq!(end, WaitStatus::Exited(child, 0));
        }
    }
}

/// What a rank does. Not a test of its own: without a role it does nothing.
#[test]
fn as_rank() {
    let Ok(role) = std::env::var("TEST_ROLE") else {
        return;
    };
    let mut options = Options::from_env().expect("options");
    if role == "multiple" {
        options.threads = Threads::Multiple;
    }
    let runtime = Runtime::init_with(options).expect("init");
    let world = runtime.world();
    let peer = 1 - runtime.rank();
    let mut kept = Some(runtime.alloc(BYTES).expect("alloc"));
    kept.iter_mut().for_each(|buffer| buffer.fill(5));
    let mut pending = Some(world.irecv(vec![0_u8; BYTES], peer, 1).expect("irecv"));
    let mut runtime = Some(runtime);
    in_child(|| {
        assert!(is_refused(|| drop(world.send(&[1_u8], peer, 1))));
        assert!(is_refused(|| drop(world.barrier())));
        let waited = pending.take().map(|request| request.wait());
        assert!(matches!(waited, Some(Err(Error::Forked))));
        let copy = runtime.take().expect("a copy");
        // Memory of its own, not what the parent gives out next.
        let mut own = copy.alloc(BYTES).expect("alloc");
        assert!(own.offset().is_none());
        own.fill(6);
        assert!(
            kept.as_ref()
                .is_some_and(|buffer| buffer.iter().all(|&byte| byte == 5))
        );
        drop(kept.take());
        assert!(matches!(copy.abort(9), Err(Error::Forked)));
        assert!(matches!(copy.finalize(), Err(Error::Forked)));
    });
    in_child(|| {
        drop(pending.take());
        drop(runtime.take());
        // It forks again.
        in_child(|| drop(kept.take()));
    });
    // The parent's is as it was: what it allocated, what it waits for, and its place in the job.
    let kept = kept.expect("not taken here");
    assert!(kept.iter().all(|&byte| byte == 5));
    world.send(&kept, peer, 1).expect("send");
    let (got, _) = pending.expect("not taken here").wait().expect("wait");
    assert!(got.iter().all(|&byte| byte == 5));
    world.barrier().expect("barrier");
    runtime
        .expect("not taken here")
        .finalize()
        .expect("finalize");
}

fn run(role: &str, env: &[(&str, &str)]) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&lines);
    limit::usual_signals();
    let mut job = Job::new(std::env::current_exe().expect("own path"), 2)
        .args(["--exact", "as_rank", "--nocapture", "-q"])
        .bind(Bind::None)
        .quiet(true)
        .env("TEST_ROLE", role)
        .env("RUST_BACKTRACE", "0")
        .timeout(limit::limit())
        .output(Output::Lines(Box::new(move |_, _, line| {
            let line = String::from_utf8_lossy(line).into_owned();
            collected.lock().expect("lines").push(line);
        })));
    for (name, value) in env {
        job = job.env(name, value);
    }
    let outcome = job.run().expect("start");
    let lines = lines.lock().expect("lines");
    assert_eq!(outcome.code, 0, "{outcome:?}: {}", lines.concat());
}

#[test]
fn a_child_has_a_runtime_that_does_nothing() {
    for role in ["single", "multiple"] {
        run(role, &[]);
        run(role, &[("ONECOPY_LAYERS", "cico")]);
        let library = built::library();
        let library = library.to_str().expect("a path in UTF-8");
        run(role, &[("LD_PRELOAD", library)]);
    }
}
