// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of this machine's figures: what `tune` and the first `run` write, and who uses it.

use super::{ALONE, command, json, onecopy, text};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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
    let printed = text(&output.stderr);
    assert!(
        printed.contains(name) && printed.contains("format"),
        "{printed}"
    );
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
    // What is written has to be used, whatever the mask lets others do.
    let script = ["-c", "umask 0; exec \"$0\" tune --quick"];
    let mut command = Command::new("sh");
    command.args(script).arg(env!("CARGO_BIN_EXE_onecopy"));
    command.env("ONECOPY_TUNE_FILE", "none");
    let output = command::limit::output(command.env("XDG_CONFIG_HOME", home));
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

/// A process with the profile's home, in which nothing else says how chunks are written.
fn in_home(args: &[&str], home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.args(args).env_remove("ONECOPY_TUNE_FILE");
    command
        .env("XDG_CONFIG_HOME", home)
        .env("XDG_CACHE_HOME", home);
    command
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = command::limit::output(command);
    let printed = text(&output.stderr);
    assert_eq!((output.status.code(), printed.as_str()), (Some(0), ""));
    output.stdout
}

/// The files of a home.
fn files(home: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(home.join("onecopy"))
        .into_iter()
        .flatten();
    listed
        .map(|entry| entry.expect("readable").path())
        .collect()
}

const START: [&str; 4] = ["run", "-n", "2", "true"];

/// A first run measures, once; what it finds is what the ranks then do.
#[test]
fn the_first_run_on_a_machine_measures_its_profile() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let home = std::env::temp_dir().join(format!("onecopy-profile-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("made");
    run(in_home(&START, &home).env("ONECOPY_TUNE_FILE", "none"));
    run(in_home(&START, &home).env("ONECOPY_CHUNK_COPY", "owned"));
    let given = [
        "run",
        "-n",
        "2",
        "--env",
        "ONECOPY_CHUNK_COPY=owned",
        "true",
    ];
    run(&mut in_home(&given, &home));
    assert_eq!(
        files(&home),
        [""; 0].map(PathBuf::from),
        "nothing was asked"
    );
    let stores = |setting: Option<(&str, &str)>| {
        let listing = run(in_home(&["info", "--json"], &home).envs(setting));
        let listing: Value = serde_json::from_slice(&listing).expect("JSON");
        listing["stores"].as_str().expect("text").to_owned()
    };
    let (set, forbidden) = (
        ("ONECOPY_CHUNK_COPY", "string"),
        ("ONECOPY_TUNE_FILE", "none"),
    );
    assert!(stores(Some(set)).contains("is set (environment)"));
    let seed = stores(Some(forbidden));
    assert!(
        seed.starts_with("a seed") && seed.contains(forbidden.0),
        "{seed}"
    );
    let seed = stores(None);
    assert!(
        seed.starts_with("a seed") && seed.contains("nothing was measured"),
        "{seed}"
    );
    run(&mut in_home(&START, &home));
    if onecopy::machine::spread_processors().len() < 2 {
        assert!(files(&home).is_empty(), "there is nothing to compare");
        return;
    }
    let made = files(&home);
    let [path] = &made[..] else {
        panic!("{made:?}")
    };
    let first = std::fs::read_to_string(path).expect("written");
    let mut profile: Value = serde_json::from_str(&first).expect("JSON");
    let used = || -> (Value, Value) {
        let listing = run(&mut in_home(&["env", "--json"], &home));
        let listing: Value = serde_json::from_slice(&listing).expect("JSON");
        let knobs = listing["knobs"].as_array().expect("a list");
        let mut knobs = knobs.iter();
        let knob = knobs.find(|knob| knob["name"] == "ONECOPY_CHUNK_COPY");
        let value = knob.expect("listed")["value"].clone();
        (listing["profile"].clone(), value)
    };
    let kept = |profile: &str| {
        std::fs::write(path, profile).expect("written");
        run(&mut in_home(&START, &home));
        std::fs::read_to_string(path).expect("there") == profile
    };
    assert!(stores(None).starts_with("measured on "));
    for kind in ["owned", "string"] {
        profile["chunk_copy"] = kind.into();
        assert!(kept(&profile.to_string()), "a profile is measured once");
        assert_eq!(used(), (path.to_str().into(), kind.into()));
    }
    // What nothing follows from counts for a day.
    profile["chunk_copy"] = Value::Null;
    assert!(kept(&profile.to_string()));
    assert_eq!(used(), (path.to_str().into(), "auto".into()));
    profile["date"] = "2000-01-01".into();
    assert!(!kept(&profile.to_string()));

    // Another version's, half a file, or one that says more than a profile does: measured again.
    profile["chunk_copy"] = "owned".into();
    let with = |key: &str, value: &str| {
        let mut other = profile.clone();
        other[key] = value.into();
        other.to_string()
    };
    for useless in [
        with("onecopy", "0.0.0"),
        with("chunk_copy", "fast"),
        with("ONECOPY_LAYERS", "cico"),
        first[..first.len() / 2].to_owned(),
    ] {
        std::fs::write(path, &useless).expect("written");
        assert_eq!(used(), (Value::Null, "auto".into()), "{useless}");
        let seed = stores(None);
        assert!(
            seed.starts_with("a seed") && seed.contains("is of no use"),
            "{seed}"
        );
        assert!(!kept(&useless), "{useless}");
    }
    assert_eq!(files(&home), made, "nothing else is left");
    std::fs::remove_dir_all(&home).expect("removed");
}

/// What is in the way of the profile, or of the tune file, keeps no job from running, and none waiting.
#[test]
fn what_is_in_the_place_of_a_profile_does_no_harm() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let home = std::env::temp_dir().join(format!("onecopy-no-profile-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("made");
    run(&mut in_home(&START, &home));
    let Some(path) = files(&home).pop() else {
        return;
    };
    let victim = home.join("victim");
    std::fs::write(&victim, "kept").expect("written");
    let remove = |path: &Path| match path.is_dir() && !path.is_symlink() {
        true => std::fs::remove_dir(path),
        false => std::fs::remove_file(path),
    };
    let make_pipe = |path: &Path| {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made");
    };
    let link = |to: &Path| {
        std::os::unix::fs::symlink(to, &path).expect("made");
    };
    let ways: [&dyn Fn(); 4] = [
        &|| make_pipe(&path),
        &|| link(&victim),
        &|| link(Path::new("/dev/zero")),
        &|| std::fs::create_dir(&path).expect("made"),
    ];
    for (index, way) in ways.into_iter().enumerate() {
        remove(&path).expect("removed");
        way();
        run(&mut in_home(&START, &home));
        assert_eq!(
            files(&home),
            std::slice::from_ref(&path),
            "{index}: nothing is left beside"
        );
        assert_eq!(
            std::fs::read(&victim).expect("readable"),
            b"kept",
            "{index}"
        );
    }
    remove(&path).expect("removed");
    let tune = path.with_file_name("tune.json");
    make_pipe(&tune);
    let output = command::limit::output(&mut in_home(&START, &home));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no regular file"));
    std::fs::remove_dir_all(&home).expect("removed");
    // There is no folder to write to, and none can be made.
    std::fs::write(&home, "a file").expect("written");
    run(&mut in_home(&START, &home));
    std::fs::remove_file(&home).expect("removed");
    // Nor is a home made that is not there.
    let mut homeless = in_home(&START, &home);
    for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
        homeless.env_remove(name);
    }
    run(homeless.env("HOME", &home));
    assert!(!home.exists());
}

/// Its launcher may be killed, or give it up.
#[test]
fn a_measurement_that_is_killed_leaves_no_file() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if onecopy::machine::spread_processors().len() < 2 {
        return;
    }
    let home = std::env::temp_dir().join(format!("onecopy-killed-{}", std::process::id()));
    let folder = home.join("onecopy");
    let own = std::process::id().to_string();
    // On a busy machine one may be killed at the wrong moment, or be over before.
    let left_nothing = (0..20).any(|_| {
        std::fs::create_dir_all(&home).expect("made");
        let mut child = command::limit::start(&mut in_home(&["__profile", &own], &home));
        for _ in 0..1000 {
            if folder.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(10));
        child.kill().expect("killed");
        let killed = child.wait().expect("ended").signal().is_some();
        let nothing = files(&home).is_empty();
        std::fs::remove_dir_all(&home).expect("removed");
        killed && nothing
    });
    assert!(left_nothing, "each one leaves a file");
}
