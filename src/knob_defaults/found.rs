// SPDX-License-Identifier: MIT OR Apache-2.0
//! Knobs whose `auto` is found on the machine: in files, by modules and by devices.

use super::auto_value;
use crate::tune::profile::{self, Profile};
use crate::tune::{self, Fingerprint, TuneFile};
use onecopy_btl::Refusal;
use onecopy_btl::layers::verbs::{choose, mode, settings, sizes, unsound};
use onecopy_btl::module::{Interface, Module};
use onecopy_obs::knobs::auto::{Situation, Value};
use onecopy_obs::{ChunkCopy, Knobs};
use onecopy_verbs::Limits;
use onecopy_verbs::model::{Fabric, usual_limits};
use onecopy_verbs::modes::{JobShape, Mode, Need};
use std::ffi::OsString;
use std::path::Path;

/// The devices are looked at unless the knob forbids it, and a pair takes the extension where both have it.
pub(super) fn module_abi() {
    let here = Module::open(true, true, Knobs::default().module_abi);
    let refusals = [
        here.onecopy.as_ref().err(),
        here.xpmem.as_ref().err(),
        here.knem.as_ref().err(),
    ];
    for refusal in refusals.into_iter().flatten() {
        let reason = &refusal.reason;
        assert!(!reason.contains("ONECOPY_MODULE_ABI"), "{reason}");
    }
    for extension in [false, true] {
        let situation = Situation {
            extension,
            ..Situation::here()
        };
        let expected = match Interface::of_pair(extension, true) {
            Some(Interface::Extension) => "onecopy",
            Some(Interface::Plain) => "plain",
            None => panic!("both have the plain interface"),
        };
        let value = auto_value("ONECOPY_MODULE_ABI", &Knobs::default(), situation);
        assert_eq!(value, Value::Word(expected));
        // What the word means where it is set is what `auto` came to.
        let mut forced = Knobs::default();
        forced.set("ONECOPY_MODULE_ABI", expected).expect("a word");
        let module = Module::open(true, true, forced.module_abi);
        let forbidden = |reason: Option<&Refusal>| {
            reason.is_some_and(|refusal| refusal.reason.contains("ONECOPY_MODULE_ABI"))
        };
        assert_eq!(forbidden(module.onecopy.as_ref().err()), !extension);
        assert_eq!(forbidden(module.xpmem.as_ref().err()), extension);
        assert_eq!(forbidden(module.knem.as_ref().err()), extension);
    }
}

/// The user's own file counts if it was written here, by either variable; the profile is read, too.
pub(super) fn tune_file() {
    let folder = std::env::temp_dir().join(format!("onecopy-unset-{}", std::process::id()));
    own_file(&folder);
    measured_profile(&folder);
    std::fs::remove_dir_all(&folder).expect("removed");
}

fn own_file(folder: &Path) {
    let file = |machine: Fingerprint| {
        let file = TuneFile {
            format: tune::FORMAT,
            onecopy: "0".into(),
            date: "2026-01-01".into(),
            machine,
            curves: Default::default(),
            knobs: [("ONECOPY_NT_MIN".to_owned(), "1 MiB".to_owned())].into(),
        };
        serde_json::to_string(&file).expect("text")
    };
    let elsewhere = Fingerprint {
        processor: "another".to_owned(),
        ..Fingerprint::here()
    };
    let own = folder.join("own");
    for (variable, path) in [
        ("XDG_CONFIG_HOME", own.join("onecopy/tune.json")),
        ("HOME", own.join(".config/onecopy/tune.json")),
    ] {
        let variables = &only(variable, &own);
        write(&path, &file(Fingerprint::here()));
        let used = tune::settings_by(Vec::new(), variables).expect("settings");
        assert_eq!(used.file.as_ref(), Some(&path), "{variable}");
        assert_eq!(used.knobs.nt_min, Some(1 << 20), "{variable}");
        let none = vec![("ONECOPY_TUNE_FILE".to_owned(), "none".to_owned())];
        let none = tune::settings_by(none, variables).expect("settings");
        assert_eq!(none.file, None, "{variable}");
        write(&path, &file(elsewhere.clone()));
        let other = tune::settings_by(Vec::new(), variables).expect("settings");
        assert_eq!((other.file, other.knobs.nt_min), (None, None), "{variable}");
        assert_eq!(other.warnings.len(), 1, "{variable}");
    }
}

fn measured_profile(folder: &Path) {
    let (cache, home) = (folder.join("cache"), folder.join("home"));
    std::fs::create_dir_all(&home).expect("made");
    for (variable, value, place) in [
        ("XDG_CACHE_HOME", &cache, cache.join("onecopy")),
        ("HOME", &home, home.join(".cache/onecopy")),
    ] {
        let variables = &only(variable, value);
        let path = profile::path_by(variables).expect("a path");
        assert!(path.starts_with(place), "{path:?}");
        let found = Profile::new(3, 2.0, false, Some("string".to_owned()));
        write(&path, &serde_json::to_string(&found).expect("text"));
        let used = tune::settings_by(Vec::new(), variables).expect("settings");
        assert_eq!(used.profile, Some(path));
        assert_eq!(used.knobs.chunk_copy, ChunkCopy::String);
    }
}

/// An environment in which one variable is set.
fn only(name: &'static str, value: &Path) -> impl Fn(&str) -> Option<OsString> {
    move |asked: &str| (asked == name).then(|| value.as_os_str().to_owned())
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::fs::write(path, text).expect("written");
}

/// Devices of a model: the first with a link is taken, by its first port that has one, and its address for RoCE v2.
pub(super) fn device_port_and_address() {
    let fabric = Fabric::new(&["m0", "m1", "m2"]);
    let chosen = |change: &[(&str, &str)]| {
        let mut knobs = Knobs::default();
        for (name, value) in change {
            knobs.set(name, value).expect("a value");
        }
        choose(&fabric, &knobs)
    };
    let name_of = |change: &[(&str, &str)]| {
        let chosen = chosen(change).expect("a device");
        chosen.device.name().to_owned()
    };
    assert_eq!(name_of(&[]), "m0");
    assert_eq!(name_of(&[("ONECOPY_VERBS_DEVICE", "m2")]), "m2");
    fabric.set_link("m0", false);
    assert_eq!(name_of(&[]), "m1");
    let found = chosen(&[]).expect("a device");
    let address = found.address.expect("it is Ethernet");
    assert!(found.state.active && found.state.ethernet && address.routable);
    let named = [
        ("ONECOPY_VERBS_PORT", found.port.to_string()),
        ("ONECOPY_VERBS_GID", address.index.to_string()),
    ];
    for (knob, place) in &named {
        let same = chosen(&[(knob, place)]).expect("a device");
        assert_eq!(
            (same.port, same.address),
            (found.port, found.address),
            "{knob}"
        );
        assert_eq!(same.device.name(), "m1");
    }
    // The model has an address at place 1, and one port.
    chosen(&[("ONECOPY_VERBS_GID", "0")]).expect_err("no address");
    chosen(&[("ONECOPY_VERBS_PORT", "2")]).expect_err("no port");
    for device in ["m1", "m2"] {
        fabric.set_link(device, false);
    }
    chosen(&[]).expect_err("no link");
}

/// Devices of a model: a message of the size that is said is read, unless a device is not sound.
pub(super) fn reads_of_devices() {
    let knobs = Knobs::default();
    let least = auto_value("ONECOPY_VERBS_READ_MIN", &knobs, Situation::here());
    let auto = settings(&knobs);
    assert_eq!(Value::Size(auto.read_min as usize), least);
    assert!(!auto.trusts_reads);
    assert_eq!(unsound(&Fabric::new(&["m0"]), &knobs), None);
    let soft = Fabric::new(&[]);
    let limits = Limits {
        sound_reads: false,
        ..usual_limits()
    };
    soft.add("soft", limits);
    assert_eq!(unsound(&soft, &knobs).as_deref(), Some("soft"));
}

/// Connections as long as device, knob and memory have room for them. With one peer more datagrams are used, or
/// extended connections where the device has them.
pub(super) fn mode_of_lanes() {
    let peers = 48;
    let job = JobShape {
        per_node: peers,
        nodes: 2,
        peers,
    };
    let taken = Need::of(Mode::Connections, &job, &sizes(&Knobs::default())).bytes() as usize;
    let mode_on = |shared_connections, pairs, lanes, memory| {
        let limits = Limits {
            pairs,
            shared_connections,
            ..usual_limits()
        };
        let knobs = Knobs {
            verbs_lanes: lanes as usize,
            verbs_memory: memory,
            ..Knobs::default()
        };
        mode(&knobs, &job, &limits).0
    };
    let mode = |pairs, lanes, memory| mode_on(false, pairs, lanes, memory);
    assert_eq!(mode(peers, peers, taken), Mode::Connections);
    assert_eq!(mode(peers - 1, peers, taken), Mode::Datagrams);
    assert_eq!(mode(peers, peers - 1, taken), Mode::Datagrams);
    assert_eq!(mode(peers, peers, taken - 1), Mode::Datagrams);
    assert_eq!(mode_on(true, peers, peers, taken - 1), Mode::Extended);
    assert_eq!(mode_on(true, peers, peers, taken), Mode::Connections);
}
