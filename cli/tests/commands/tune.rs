// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of this machine's figures: what `tune` and the first `run` write, and who uses it.

use super::{ALONE, command, json, onecopy, text};
use serde_json::Value;
use std::process::Command;

#[test]
fn a_tune_file_sets_knobs_and_curves() {
    let dir = std::env::temp_dir().join(format!("onecopy-commands-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("made");
    let path = dir.join("tune.json");
    let name = path.to_str().expect("text");
    std::fs::write(
        &path,
        r#"{"format": 1, "onecopy": "0", "date": "2026-01-01",
            "machine": {"processor": "another", "processors": "0", "kernel": "0"},
            "curves": {"get_coop": {"setup_ns": 1, "per_kib_ns": 1, "knee": 1024, "per_kib_far_ns": 1}},
            "knobs": {"ONECOPY_NT_MIN": "5 MiB", "ONECOPY_COOP_MIN": "20K"}}"#,
    )
    .expect("written");
    let env = [("ONECOPY_TUNE_FILE", name), ("ONECOPY_COOP_MIN", "30K")];
    let listing = json(&["env", "--json"], &env);
    let knob = |name: &str| {
        let knobs = listing["knobs"].as_array().expect("a list");
        let found = knobs
            .iter()
            .find(|knob| knob["name"] == name)
            .expect("listed");
        (found["value"].clone(), found["origin"].clone())
    };
    assert_eq!(knob("ONECOPY_NT_MIN"), ("5 MiB".into(), "file".into()));
    assert_eq!(
        knob("ONECOPY_COOP_MIN"),
        ("30 KiB".into(), "environment".into())
    );
    assert!(
        listing["warnings"][0]
            .as_str()
            .is_some_and(|w| w.contains("another"))
    );
    std::fs::write(&path, "{}").expect("written");
    let output = onecopy(&["info"], &[("ONECOPY_TUNE_FILE", name)]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains(name) && said.contains("format"), "{said}");
    std::fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn tune_writes_a_file_that_is_then_used() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = std::env::temp_dir().join(format!("onecopy-tune-run-{}", std::process::id()));
    let path = dir.join("onecopy").join("tune.json");
    let home = dir.to_str().expect("text");
    let output = onecopy(&["tune", "--quick"], &[("XDG_CONFIG_HOME", home)]);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new())
    );
    assert!(text(&output.stdout).contains("eager"));
    assert!(path.exists());
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(["env", "--json"]);
    command.env_remove("ONECOPY_TUNE_FILE");
    let output = command::limit::output(command.env("XDG_CONFIG_HOME", home));
    let listing: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(listing["tune_file"].as_str(), path.to_str());
    std::fs::remove_dir_all(dir).expect("removed");
}

/// A first run measures, once; what it cannot use or write is no reason to fail a job.
#[test]
fn the_first_run_on_a_machine_measures_its_profile() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = std::env::temp_dir().join(format!("onecopy-profile-{}", std::process::id()));
    let path = dir.join("onecopy").join("profile.json");
    let program = env!("CARGO_BIN_EXE_onecopy");
    let command = |args: &[&str], home: &std::path::Path| {
        let mut command = Command::new(program);
        command.args(args).env_remove("ONECOPY_TUNE_FILE");
        command
            .env("XDG_CONFIG_HOME", home)
            .env("XDG_CACHE_HOME", home);
        command
    };
    let run = |mut command: Command| {
        let output = command::limit::output(&mut command);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
        output.stdout
    };
    let started = ["run", "-n", "2", "true"];
    let mut forbidden = command(&started, &dir);
    run({
        forbidden.env("ONECOPY_TUNE_FILE", "none");
        forbidden
    });
    let mut decided = command(&started, &dir);
    run({
        decided.env("ONECOPY_CHUNK_COPY", "owned");
        decided
    });
    assert!(!path.exists(), "nothing was asked");
    run(command(&started, &dir));
    if onecopy::wireup::own_processors().len() < 2 {
        assert!(!path.exists(), "there is nothing to compare");
        return;
    }
    let first = std::fs::read_to_string(&path).expect("written");
    let used = || -> Value {
        serde_json::from_slice(&run(command(&["env", "--json"], &dir))).expect("JSON")
    };
    assert_eq!(used()["tune_file"].as_str(), path.to_str());

    // What the ranks do follows from the file.
    let mut edited: Value = serde_json::from_str(&first).expect("JSON");
    edited["date"] = "2000-01-01".into();
    for kind in ["owned", "string"] {
        edited["knobs"] = serde_json::json!({ "ONECOPY_CHUNK_COPY": kind });
        std::fs::write(&path, edited.to_string()).expect("written");
        run(command(&started, &dir));
        let kept = std::fs::read_to_string(&path).expect("there");
        assert_eq!(kept, edited.to_string(), "a profile is measured once");
        let listing = used();
        let knobs = listing["knobs"].as_array().expect("a list");
        let knob = knobs
            .iter()
            .find(|knob| knob["name"] == "ONECOPY_CHUNK_COPY");
        assert_eq!(knob.expect("listed")["value"], kind);
    }

    // Another machine's, or half a file: measured again.
    edited["machine"]["kernel"] = "another".into();
    for useless in [edited.to_string(), first[..first.len() / 2].to_owned()] {
        std::fs::write(&path, &useless).expect("written");
        assert!(used()["tune_file"].is_null());
        run(command(&started, &dir));
        assert_ne!(std::fs::read_to_string(&path).expect("there"), useless);
    }
    std::fs::remove_dir_all(&dir).expect("removed");

    // There is no folder to write to, and none can be made.
    std::fs::write(&dir, "a file").expect("written");
    run(command(&started, &dir));
    std::fs::remove_file(&dir).expect("removed");
}
