// SPDX-License-Identifier: MIT OR Apache-2.0
//! With each set of capabilities there is the right message, and no panic.

#![allow(
    clippy::print_stdout,
    reason = "what is skipped is told, and tests talk to what they start"
)]

#[path = "../../tests/harness/limit.rs"]
mod limit;

use std::path::Path;
use std::process::Command;

use onecopy_trace::bpf::{Collector, Options, State, check, sees_the_kernel};

const ROLE: &str = "TEST_ROLE";

#[test]
fn checks_if_it_is_told_to() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    println!("sees: {}", sees_the_kernel());
    for probe in check() {
        println!("check: {probe:?}");
    }
    match Collector::start(&Options::default()) {
        Ok((_, probes)) => {
            let copies = probes.iter().find(|probe| probe.name.contains("readv"));
            println!("start: {:?}", copies.expect("a probe").state);
        }
        Err(error) => println!("start: {error}"),
    }
}

/// What a process without other privileges says. None if such a process cannot be made here.
fn refusal(capabilities: &[&str]) -> Option<String> {
    let exe = std::env::current_exe().expect("own path");
    let mut set = "-all".to_owned();
    for capability in capabilities {
        set.push_str(",+");
        set.push_str(capability);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args([format!("--inh-caps={set}"), format!("--ambient-caps={set}")]);
    command
        .arg(exe)
        .args(["--exact", "checks_if_it_is_told_to", "--nocapture"]);
    let output = limit::try_output(command.env(ROLE, "1")).ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !text.contains("start: ") {
        println!("skipped: {capabilities:?}: {errors}");
        return None;
    }
    assert!(
        output.status.success() && !errors.contains("panicked"),
        "{text}{errors}"
    );
    assert!(text.contains("sees: true"), "{text}");
    Some(text)
}

/// All capabilities, of a user namespace: what the kernel refuses then is an answer, not a look that failed.
#[test]
fn a_user_namespace_has_its_answer() {
    let exe = std::env::current_exe().expect("own path");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).arg(exe);
    command.args(["--exact", "checks_if_it_is_told_to", "--nocapture"]);
    let output = limit::try_output(command.env(ROLE, "1")).expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains("start: ") {
        println!("skipped: no user namespace here: {output:?}");
        return;
    }
    assert!(text.contains("sees: true"), "{text}");
}

#[test]
fn each_set_of_capabilities_has_its_message() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can give capabilities");
        return;
    }
    let events = [
        "/sys/kernel/tracing/events",
        "/sys/kernel/debug/tracing/events",
    ];
    let has_tracefs = events.iter().any(|path| Path::new(path).exists());
    let all = ["bpf", "perfmon", "sys_admin", "dac_read_search"];
    for bits in 0..1_u32 << all.len() {
        let chosen = all
            .iter()
            .enumerate()
            .filter(|(bit, _)| bits >> bit & 1 == 1);
        let chosen: Vec<&str> = chosen.map(|(_, name)| *name).collect();
        let Some(text) = refusal(&chosen) else {
            continue;
        };
        let has = |name: &str| chosen.contains(&name);
        let admin = has("sys_admin");
        let (bpf, perfmon) = (admin || has("bpf"), admin || has("perfmon"));
        let start = text.lines().find_map(|line| line.split_once("start: "));
        let (_, start) = start.expect("an answer");
        let expected = match (bpf, perfmon) {
            (false, false) => "CAP_BPF and CAP_PERFMON are missing",
            (true, false) => "CAP_PERFMON is missing",
            (false, true) => "CAP_BPF is missing",
            // Nobody has mounted it.
            (true, true) if !has_tracefs => "Fallback { errno: 2 }",
            (true, true) if has("dac_read_search") => "Attached",
            // Without it the folder of tracefs cannot be read, where only root may read it.
            (true, true) => "Fallback { errno: 13 }",
        };
        let open = expected.starts_with("Fallback") && start.contains("Attached");
        assert!(start.contains(expected) || open, "{chosen:?}: {text}");
        if !(bpf && perfmon) {
            assert!(text.contains("setcap"), "{chosen:?}: {text}");
        }
        if bpf && perfmon && !admin {
            assert!(
                text.contains("uprobes need CAP_SYS_ADMIN")
                    || text.contains("(uprobes)\", state: Attached"),
                "{chosen:?}: {text}"
            );
        }
    }
}

#[test]
fn without_tracefs_it_says_how_to_mount_it() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can hide tracefs");
        return;
    }
    let exe = std::env::current_exe().expect("own path");
    let mut command = Command::new("unshare");
    let hide = "for at in /sys/kernel/tracing /sys/kernel/debug; do mount -t tmpfs none $at; done; exec \"$0\" \"$@\"";
    command.args(["-m", "sh", "-c", hide]).arg(exe);
    command.args(["--exact", "checks_if_it_is_told_to", "--nocapture"]);
    let output = limit::output(command.env(ROLE, "1"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("start: "), "{text}");
    if text.contains("missing") {
        println!("skipped: {text}");
        return;
    }
    assert!(
        text.contains("mount -t tracefs nodev /sys/kernel/tracing"),
        "{text}"
    );
    assert!(text.contains("start: Fallback"), "{text}");
}

#[test]
fn what_is_refused_has_a_loss_and_what_is_there_has_none() {
    for probe in check() {
        assert!(!probe.name.is_empty());
        let refused = matches!(probe.state, State::Refused { .. });
        assert_eq!(
            probe.state == State::Attached,
            probe.lost.is_empty(),
            "{probe:?}"
        );
        if refused {
            assert!(
                !probe.lost.is_empty() && !probe.remedy.is_empty(),
                "{probe:?}"
            );
        }
        println!("{probe:?}");
    }
}
