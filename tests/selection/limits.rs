// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that are refused, and limits that are low.

use crate::traffic::{TrafficRun, job, ranks};

#[test]
fn calls_refused_before_the_start() {
    for (cause, reason) in [
        ("eperm", "not permitted"),
        ("enosys", "not implemented"),
        ("esrch", "No such process"),
        ("efault", "Bad address"),
        ("read-eperm", "not permitted"),
    ] {
        let seen = job(2, &format!("{cause} before"));
        seen.lacks("cma", reason);
        seen.uses("heap");
        assert_eq!(seen.demotions(), 0, "{cause}: never proven");
    }
}

#[test]
fn writing_alone_refused_before_the_start() {
    let seen = job(2, "write-eperm before");
    seen.uses("cma");
}

#[test]
fn calls_refused_between_messages() {
    for (cause, reason) in [
        ("eperm", "not permitted"),
        ("enosys", "not implemented"),
        ("esrch", "No such process"),
        ("efault", "Bad address"),
    ] {
        for who in ["", " all"] {
            let seen = job(3, &format!("{cause} between{who}"));
            seen.lacks("cma", reason);
            seen.uses("heap");
            assert!(seen.demotions() >= 1, "{cause}{who}");
        }
    }
}

#[test]
fn calls_refused_in_the_middle_of_a_message() {
    for cause in ["eperm", "enosys", "esrch", "efault"] {
        for who in ["", " sender"] {
            for coop in ["on", "off"] {
                let ran = ranks(2, &format!("{cause} middle{who}"))
                    .env("ONECOPY_COOP", coop)
                    .run();
                let seen = TrafficRun::of(ran, 2);
                seen.uses("heap");
                seen.lacks("cma", "process_vm_");
                assert!(seen.demotions() >= 1, "{cause}{who}, cooperative {coop}");
            }
        }
    }
}

#[test]
fn a_peer_that_is_not_dumpable_any_more() {
    // Only without capabilities does it matter; only root can take on another user.
    if !nix::unistd::geteuid().is_root() {
        return crate::processes::say("skipped: not root");
    }
    for when in ["between", "middle sender", "middle"] {
        let seen = job(2, &format!("not-dumpable {when} nobody"));
        seen.lacks("cma", "not permitted");
        seen.uses("heap");
        assert!(seen.demotions() >= 1, "{when}");
    }
}

#[test]
fn calls_that_the_runtime_can_do_without() {
    for cause in ["no-pidfd", "no-futex", "no-membarrier"] {
        job(2, &format!("{cause} before"));
        let ran = ranks(4, &format!("{cause} before"))
            .env("ONECOPY_WAIT_SPIN", "1")
            .env("ONECOPY_WAIT_YIELD", "1")
            .run();
        TrafficRun::of(ran, 4);
    }
}

#[test]
fn few_descriptors_suffice_or_are_asked_for() {
    job(2, "few-descriptors before");
    let ran = ranks(2, "no-descriptors before connect").run();
    let errors = ran.reports("ERROR ");
    assert!(errors.iter().any(|e| e.contains("descriptor")), "{ran:#?}");
}

#[test]
fn a_small_address_space_does_without_the_heap() {
    let run = |heap| {
        ranks(2, "small-address-space before")
            .env("ONECOPY_HEAP_SIZE", heap)
            .run()
    };
    // Room for one's own and the peer's; for one's own; for neither.
    TrafficRun::of(run("64M"), 2).uses("heap");
    let seen = TrafficRun::of(run("600M"), 2);
    seen.lacks("heap", "memory");
    seen.uses("cma");
    // By itself the heap takes what leaves room for all.
    TrafficRun::of(run("auto"), 2).uses("heap");
    let errors = run("4G").reports("ERROR ");
    assert_eq!(errors.len(), 2);
    let names_limits = |e: &String| e.contains("ONECOPY_HEAP_SIZE") && e.contains("ulimit -v");
    assert!(errors.iter().all(names_limits), "{errors:?}");
}

/// Beyond the limit of the size of files the kernel ends a process by a signal.
#[test]
fn a_limit_of_the_size_of_files_makes_the_heap_smaller() {
    // In blocks of 512 bytes.
    let run = |blocks: u64, heap: &str| {
        let limit = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
        ranks(2, "none between")
            .env("ONECOPY_HEAP_SIZE", heap)
            .wrapped(&["sh", "-c", &limit])
            .run()
    };
    // Room for a heap; for all but the heap; for nothing.
    TrafficRun::of(run(20_000_000, "auto"), 2).uses("heap");
    TrafficRun::of(run(8_000_000, "auto"), 2).uses("cma");
    for (blocks, heap) in [(100, "auto"), (8_000_000, "1G")] {
        let errors = run(blocks, heap).reports("ERROR ");
        assert_eq!(errors.len(), 2, "{blocks}");
        let names_limits = |e: &String| e.contains("ulimit -f") && e.contains("ONECOPY_HEAP_SIZE");
        assert!(errors.iter().all(names_limits), "{errors:?}");
    }
}

#[test]
fn without_memfd_the_error_says_so() {
    let ran = ranks(2, "no-memfd before").run();
    let errors = ran.reports("ERROR ");
    assert_eq!(errors.len(), 2, "{ran:#?}");
    assert!(
        errors.iter().all(|e| e.contains("memfd_create")),
        "{errors:?}"
    );
}
