// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that hand memory of devices to MPI: over the driver in software, and on a device where there is one.

use super::{compile_with, is_good, job, job_on_nodes, limit, package, place, say};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[path = "../../../btl/cuda/tests/driver/build.rs"]
mod build;

/// The driver in software.
fn driver() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = place().directory.join("cuda");
        build::build(&folder);
        folder
    });
    folder.clone()
}

/// Compiles a program against the driver, once: another test may be starting it.
fn compile(name: &'static str) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled
        .entry(name)
        .or_insert_with(|| compile_now(name))
        .clone()
}

fn compile_now(name: &str) -> PathBuf {
    let source = package().join(format!("tests/cuda/{name}.c"));
    let program = place().directory.join(format!("cuda-{name}"));
    let extra = [
        format!("-I{}", build::sources().display()),
        format!("-L{}", driver().display()),
        // Not linked to a program that loads it itself.
        "-Wl,--as-needed".to_owned(),
        "-l:libcuda.so.1".to_owned(),
    ];
    compile_with(&source, &program, &extra)
}

fn command(program: &Path, driver: Option<&Path>, arguments: &[&str]) -> Command {
    let mut command = job(&place().directory, &["-n", "2"], program);
    command.args(arguments).env(MAPPINGS.0, MAPPINGS.1);
    if let Some(driver) = driver {
        command.env("LD_LIBRARY_PATH", libraries(driver));
    }
    command
}

/// Messages between devices go by one copy, which is off unless a user permits it.
const MAPPINGS: (&str, &str) = ("ONECOPY_DEVICE_MAPPINGS", "64");

/// Where the library is, and the driver in software.
fn libraries(driver: &Path) -> String {
    format!("{}:{}", place().directory.display(), driver.display())
}

/// Runs it over the driver in software; it says `word` when it is through.
fn passes(name: &'static str, arguments: &[&str], settings: &[(&str, &str)], word: &str) {
    let program = compile(name);
    let mut command = command(&program, Some(&driver()), arguments);
    command.envs(settings.iter().copied());
    let output = limit::output_within(&mut command, 2 * limit::limit()).expect("the launcher");
    is_good(&format!("{name} {arguments:?} {settings:?}"), &output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(word), "{name}: {text}");
}

#[test]
fn every_kind_of_device_memory() {
    passes("kinds", &[], &[], "all kinds");
}

#[test]
fn device_memory_without_a_single_copy() {
    passes("kinds", &[], &[("ONECOPY_LAYERS", "cico")], "all kinds");
}

#[test]
fn device_memory_between_nodes() {
    let program = compile("kinds");
    let mut command = job_on_nodes(2, 2, &program);
    command.env(MAPPINGS.0, MAPPINGS.1);
    command.env("LD_LIBRARY_PATH", libraries(&driver()));
    let output = limit::output_within(&mut command, 2 * limit::limit()).expect("the launcher");
    is_good("kinds between nodes", &output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("all kinds"), "{text}");
}

#[test]
fn a_driver_that_is_loaded_late_and_addresses_that_come_again() {
    passes("late", &[], &[], "late");
}

#[test]
fn a_driver_that_only_its_path_finds() {
    let program = compile("late");
    let path = driver().join("libcuda.so.1");
    let mut command = job(&place().directory, &["-n", "2"], &program);
    command.arg(path);
    let output = limit::output_within(&mut command, 2 * limit::limit()).expect("the launcher");
    is_good("late by its path", &output);
}

#[test]
fn messages_while_a_kernel_that_waits_for_them_occupies_the_device() {
    passes("spinning", &[], &[], "every length");
    passes("spinning", &[], &[(MAPPINGS.0, "0")], "every length");
}

#[test]
fn handles_of_the_driver_in_software_are_strict() {
    passes("handles", &[], &[], "strict");
    passes("descriptors", &[], &[], "strict");
}

/// On one device, and on one for each rank.
#[test]
fn long_messages_between_devices_are_copied_once() {
    let word = "from device to device";
    passes("direct", &["once"], &[], word);
    let two = ("MODEL_CUDA_DEVICES", "2");
    passes("direct", &["once", "apart"], &[two], word);
    // One allocation open at a time, by ours or by the driver's bound.
    passes(
        "direct",
        &["once"],
        &[("ONECOPY_DEVICE_MAPPINGS", "1")],
        word,
    );
    passes("direct", &["once"], &[("MODEL_CUDA_MAPPINGS", "1")], word);
}

/// Handles that the driver does not give out or does not open, devices out of reach, none that may be open, contexts
/// without a number.
#[test]
fn what_no_device_can_fetch_is_staged() {
    let word = "from device to device";
    for ipc in ["refused", "closed"] {
        passes("direct", &["staged"], &[("MODEL_CUDA_IPC", ipc)], word);
    }
    let apart = [("MODEL_CUDA_DEVICES", "2"), ("MODEL_CUDA_APART", "1")];
    passes("direct", &["staged", "apart"], &apart, word);
    for driver in [("MODEL_CUDA_MAPPINGS", "0"), ("MODEL_CUDA_OLD", "1")] {
        passes("direct", &["staged"], &[driver], word);
    }
    passes(
        "direct",
        &["staged"],
        &[("ONECOPY_DEVICE_MAPPINGS", "0")],
        word,
    );
}

/// Pools and virtual memory: each with each other kind, on one device, and on one for each rank.
#[test]
fn memory_that_is_shown_by_descriptors_is_copied_once() {
    passes("shown", &["kinds"], &[], "by descriptors");
    let one = ("ONECOPY_DEVICE_MAPPINGS", "1");
    passes("shown", &["kinds"], &[one], "by descriptors");
    let two = ("MODEL_CUDA_DEVICES", "2");
    passes("shown", &["kinds", "apart"], &[two], "by descriptors");
}

/// Where the kernel gives out none, or there are none left.
#[test]
fn memory_whose_descriptors_cannot_be_had_is_staged() {
    passes("shown", &["refused"], &[], "by descriptors");
    passes("shown", &["scarce"], &[], "by descriptors");
}

#[test]
fn memory_that_is_shown_by_descriptors_comes_and_goes() {
    let kept = ("MODEL_CUDA_IDS", "kept");
    passes("shown", &["churn", "1000"], &[kept], "by descriptors");
}

#[test]
fn memory_that_no_other_rank_of_the_node_reads_is_not_shown() {
    let program = compile("shown");
    let mut command = job_on_nodes(2, 2, &program);
    command.arg("unseen").env(MAPPINGS.0, MAPPINGS.1);
    command.env("LD_LIBRARY_PATH", libraries(&driver()));
    let output = limit::output_within(&mut command, 2 * limit::limit()).expect("the launcher");
    is_good("unseen between nodes", &output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("by descriptors"), "{text}");
}

#[test]
fn memory_that_comes_and_goes_is_never_taken_for_what_it_was() {
    passes("churn", &["10000"], &[], "always the new one");
}

#[test]
fn what_was_open_before_a_reset_of_the_device_is_not_used_behind_it() {
    passes("reset", &[], &[], "after a reset");
}

/// Amid a copy from it, and to it.
#[test]
fn a_death_amid_a_copy_between_devices_is_named() {
    let program = compile("mourned");
    for (dies, of) in [
        ("sender", None),
        ("receiver", None),
        ("sender", Some("pool")),
        ("receiver", Some("pool")),
        ("sender", Some("virtual")),
        ("receiver", Some("virtual")),
    ] {
        let mut command = job(&place().directory, &["--keep-going", "-n", "2"], &program);
        command
            .arg(dies)
            .args(of)
            .env(MAPPINGS.0, MAPPINGS.1)
            .env("LD_LIBRARY_PATH", libraries(&driver()));
        let output = limit::output_within(&mut command, limit::limit()).expect("the launcher");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains("rank 0 is well"),
            "{dies} {of:?}: {text}\n{errors}"
        );
    }
    let mut command = command(&program, Some(&driver()), &["nobody"]);
    let output = limit::output_within(&mut command, limit::limit()).expect("the launcher");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
}

#[test]
fn contexts_that_end_take_no_memory_along() {
    passes("contexts", &[], &[], "all contexts");
}

#[test]
fn memory_that_goes_while_a_message_is_under_way_is_an_error() {
    passes("gone", &[], &[], "named, and on");
    passes("gone", &["frees"], &[], "named, and on");
}

/// One region is registered, or two, where a pool may have more.
#[test]
fn messages_of_devices_go_on_with_what_the_driver_registers() {
    passes("scarce", &["1"], &[], "with what there is");
    passes(
        "scarce",
        &["2"],
        &[("ONECOPY_DEVICE_STAGING", "5M")],
        "with what there is",
    );
}

/// With the least memory to stage in, and as usual; with single copies, and without.
#[test]
fn long_messages_of_devices_take_bounded_memory() {
    let least = ("ONECOPY_DEVICE_STAGING", "2M");
    passes("long", &["2"], &[least], "long ones");
    passes("long", &["16"], &[("ONECOPY_LAYERS", "cico")], "long ones");
}

#[test]
fn long_messages_of_devices_between_nodes() {
    let program = compile("long");
    let mut command = job_on_nodes(2, 1, &program);
    command.env("LD_LIBRARY_PATH", libraries(&driver()));
    let output = limit::output_within(&mut command, 2 * limit::limit()).expect("the launcher");
    is_good("long between nodes", &output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("long ones"), "{text}");
}

#[test]
fn a_driver_that_keeps_one_thread_keeps_no_other() {
    passes("stalled", &[], &[], "not kept");
}

#[test]
fn faults_of_a_device_are_named() {
    for fault in ["2", "3"] {
        passes("broken", &[fault], &[], "named");
        for after in ["0", "1", "7"] {
            passes("broken", &[fault, "9000000", after], &[], "named");
        }
    }
}

/// At each of the points that a long message passes, early and late.
#[cfg(feature = "fault-points")]
#[test]
fn a_death_amid_long_messages_of_devices_hurts_nobody_else() {
    for (label, counts) in [
        ("rts.sent", [1, 6]),
        ("device.accepted", [1, 6]),
        ("fin.sent", [1, 6]),
    ] {
        for count in counts {
            dies_amid(&format!("{label}:{count}:2"), "cico,cma", "64");
        }
    }
    for (label, counts) in [
        ("rts.sent", [1, 6]),
        ("cts.sent", [1, 20]),
        ("data.sent", [1, 300]),
        ("fin.sent", [1, 6]),
        ("ring.release", [1, 40]),
    ] {
        for (layers, count) in [("cico,cma", counts[0]), ("cico", counts[1])] {
            dies_amid(&format!("{label}:{count}:2"), layers, "0");
        }
    }
}

/// Rank 2 dies there; the others are well.
#[cfg(feature = "fault-points")]
fn dies_amid(fault: &str, layers: &str, mappings: &str) {
    let program = compile("killed");
    let options = ["--keep-going", "-n", "3"];
    let mut command = job(&place().directory, &options, &program);
    command.env("LD_LIBRARY_PATH", libraries(&driver()));
    command.envs([
        ("ONECOPY_JOB_FAULT", fault),
        ("ONECOPY_LAYERS", layers),
        ("ONECOPY_DEVICE_MAPPINGS", mappings),
        ("ONECOPY_DEVICE_STAGING", "2M"),
    ]);
    let output = limit::output_within(&mut command, limit::limit()).expect("the launcher");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("nobody died"), "{fault}: {text}");
    for rank in 0..2 {
        let well = format!("rank {rank} is well");
        assert!(text.contains(&well), "{fault}: {text}\n{errors}");
    }
}

/// On a machine with a device, the machine's own driver is found.
#[test]
fn the_same_on_a_device_where_there_is_one() {
    if !Path::new("/dev/nvidiactl").exists() {
        return say("skipped: no CUDA device");
    }
    for (name, argument) in [
        ("spinning", None),
        ("kinds", None),
        ("direct", Some("once")),
    ] {
        let program = compile(name);
        let mut command = command(&program, None, argument.as_slice());
        let limit = Duration::from_secs(600);
        let output = limit::output_within(&mut command, limit).expect("the launcher");
        is_good(&format!("{name} on a device"), &output);
        say(&String::from_utf8_lossy(&output.stdout));
    }
}
