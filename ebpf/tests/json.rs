// SPDX-License-Identifier: MIT OR Apache-2.0
//! `docs/trace-json.md` says what is in a report and in a comparison of two, and all of it.

use onecopy_trace::diff::diff;
use onecopy_trace::missed::{System, missed};
use onecopy_trace::modules::Counters;
use onecopy_trace::observed::{Mechanism, Observed, PairCounts, PairKey, Peer, Task, Wait};
use onecopy_trace::rdma::Ports;
use onecopy_trace::report::{self, Report};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Which section of the page describes the objects at a place of a report, or of a comparison, which is at `diff`.
/// Elements of a list have `[]`.
const SECTIONS: [(&str, &str); 32] = [
    ("", "Report"),
    (".pairs[]", "Pair"),
    (".pairs[].source", "Who"),
    (".pairs[].sink", "Who"),
    (".pairs[].latency_us", "Latency"),
    (".pairs[].sizes[]", "Size"),
    (".faults[]", "Faults"),
    (".faults[].who", "Who"),
    (".waits[]", "Waits"),
    (".waits[].who", "Who"),
    (".waits[].owner", "Who"),
    (".missed[]", "Missed"),
    (".missed[].who[]", "Who"),
    (".overhead", "Overhead"),
    (".ranks[]", "Rank"),
    (".ranks[].who", "Who"),
    (".rdma[]", "Port"),
    (".modules[]", "Counter"),
    ("diff", "Diff"),
    ("diff.changes[]", "Change"),
    ("diff.changes[].source", "Who"),
    ("diff.changes[].sink", "Who"),
    ("diff.changes[].a", "Pair"),
    ("diff.changes[].a.source", "Who"),
    ("diff.changes[].a.sink", "Who"),
    ("diff.changes[].a.latency_us", "Latency"),
    ("diff.changes[].a.sizes[]", "Size"),
    ("diff.changes[].b", "Pair"),
    ("diff.changes[].b.source", "Who"),
    ("diff.changes[].b.sink", "Who"),
    ("diff.changes[].b.latency_us", "Latency"),
    ("diff.changes[].b.sizes[]", "Size"),
];

/// Sections of other things than objects here: a list of names, and what the command prints of probes.
const OTHERS: [&str; 2] = ["Mechanisms", "Check"];

/// A row of a table: type, and when the key is absent.
type Row = (String, String);

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/trace-json.md");
    fs::read_to_string(path).expect("the page")
}

/// The rows of the page's tables, by section and by what the first column has between backticks.
fn documented() -> BTreeMap<String, BTreeMap<String, Row>> {
    let mut found = BTreeMap::<String, BTreeMap<String, Row>>::new();
    let mut section = String::new();
    for line in page().lines() {
        if let Some(name) = line.strip_prefix("## ") {
            name.clone_into(&mut section);
        }
        let Some(row) = line.strip_prefix("| `") else {
            continue;
        };
        let (key, rest) = row.split_once("` |").expect("a row");
        let cells: Vec<&str> = rest.split('|').map(str::trim).collect();
        let row = (
            cells[0].to_owned(),
            cells.get(2).copied().unwrap_or_default().to_owned(),
        );
        let before = found
            .entry(section.clone())
            .or_default()
            .insert(key.to_owned(), row);
        assert_eq!(before, None, "{section}: {key}");
    }
    found
}

fn put(root: &Path, file: &str, text: &str) {
    let file = root.join(file);
    fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    fs::write(file, text).expect("written");
}

/// A report in which nothing is absent, or all that may be.
fn report(is_full: bool) -> Report {
    let mut observed = Observed::default();
    let key = PairKey {
        caller: 1,
        peer: Peer::Process(2),
        mechanism: Mechanism::CmaRead,
        writes: false,
    };
    let mut counts = PairCounts {
        calls: 2,
        ..PairCounts::default()
    };
    let nowhere = PairKey {
        peer: Peer::InNamespace {
            namespace: 7,
            pid: 8,
        },
        ..key
    };
    let unknown = PairKey {
        peer: Peer::Unknown,
        ..key
    };
    if is_full {
        for pid in [1, 2] {
            let task = Task {
                comm: "x".to_owned(),
                rank: Some(pid),
                job: Some("j".to_owned()),
                container: Some("docker:0123456789ab".to_owned()),
                ..Task::default()
            };
            observed.tasks.insert(pid, task);
        }
        (counts.bytes, counts.time_ns, counts.faults) = (8192, 4096, 1);
        counts.latency_ns.add(2048, 2);
        counts.sizes.add(4096, 2);
        counts.errors.insert(libc::EPERM, 1);
        counts.missing_bytes = 4096;
        let wait = Wait {
            waiter: 1,
            owner: Some(2),
            waits: 1,
            total_ns: 2,
            longest_ns: 2,
        };
        observed.waits.push(wait);
        observed.counters.insert(1, vec![("put_bytes", 3)]);
        observed.overhead.not_counted_by_user.insert(1000, 2);
        observed.pairs.insert(nowhere, counts.clone());
        observed.pairs.insert(key, counts);
    } else {
        observed.pairs.insert(unknown, counts);
    }
    let name = |pid| report::who(&observed, pid);
    let found = missed(&observed, name, System::default());
    let mut report = report::build(&observed, &["x".to_owned()], found, vec!["y".to_owned()]);
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let mut counters = Counters::look(root);
    let ports = Ports::look(root);
    // Devices differ in what they count.
    let bytes = ["port_xmit_data", "port_rcv_data"];
    let packets = ["port_xmit_packets", "port_rcv_packets"];
    let devices = if is_full {
        vec![("one", [bytes, packets].concat())]
    } else {
        vec![("one", bytes.to_vec()), ("other", packets.to_vec())]
    };
    for (device, files) in devices {
        for file in files {
            put(root, &format!("{device}/ports/1/counters/{file}"), "5");
        }
    }
    put(root, "proc/xpmem/global_pages", "pages: 5\n");
    report.rdma = ports.traffic();
    report.modules = counters.added();
    report
}

/// All objects in a value, with their places.
fn objects<'a>(place: &str, value: &'a Value, into: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Array(values) => {
            for value in values {
                objects(&format!("{place}[]"), value, into);
            }
        }
        Value::Object(fields) => {
            into.push((place.to_owned(), value));
            for (name, value) in fields {
                objects(&format!("{place}.{name}"), value, into);
            }
        }
        _ => {}
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind.split(' ').next() {
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        Some("text") => value.is_string(),
        Some("list") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    }
}

#[test]
fn each_key_of_a_report_is_documented_and_each_documented_key_is_there() {
    let documented = documented();
    let mut seen = BTreeMap::<&str, BTreeSet<String>>::new();
    let mut absent = BTreeSet::new();
    let mut places = BTreeSet::new();
    let (full, empty) = (report(true), report(false));
    let value = |value: Result<Value, serde_json::Error>| value.expect("JSON");
    let compare = |a, b| value(serde_json::to_value(diff(a, b)));
    for (root, json) in [
        ("", value(serde_json::to_value(&full))),
        ("", value(serde_json::to_value(&empty))),
        ("diff", compare(&full, &empty)),
        ("diff", compare(&empty, &full)),
    ] {
        let mut found = Vec::new();
        objects(root, &json, &mut found);
        for (place, object) in found {
            let parent = place.rsplit_once('.').and_then(|(parent, key)| {
                let (_, section) = SECTIONS.iter().find(|(place, _)| *place == parent)?;
                documented[*section].get(key.trim_end_matches("[]"))
            });
            if parent.is_some_and(|(kind, _)| kind.contains("any keys")) {
                continue;
            }
            let section = SECTIONS.iter().find(|(known, _)| *known == place);
            let (_, section) = section.unwrap_or_else(|| panic!("{place} has no section"));
            places.insert(place.clone());
            for (key, value) in object.as_object().expect("an object") {
                let row = documented[*section].get(key);
                let (kind, when) = row.unwrap_or_else(|| panic!("{section}: no row of {key}"));
                seen.entry(section).or_default().insert(key.clone());
                let may_be_null = when.starts_with("null") && value.is_null();
                assert!(
                    may_be_null || is_of(value, kind),
                    "{section}.{key}: {value}"
                );
                if value.is_null() {
                    absent.insert((*section, key.clone()));
                }
            }
            for (key, (_, when)) in &documented[*section] {
                let is_there = object.get(key).is_some();
                assert!(
                    is_there || when.starts_with("left out"),
                    "{section}.{key}: {when}"
                );
                if !is_there {
                    absent.insert((*section, key.clone()));
                }
            }
        }
    }
    for (place, _) in SECTIONS {
        assert!(places.contains(place), "nothing is at {place}");
    }
    for (section, rows) in documented
        .iter()
        .filter(|(name, _)| !OTHERS.contains(&name.as_str()))
    {
        for (key, (_, when)) in rows {
            let (_, named) = seen
                .iter()
                .find(|(name, _)| *name == section)
                .expect("a section");
            assert!(named.contains(key), "{section}.{key} is not in a report");
            let was_absent = absent
                .iter()
                .any(|(owner, name)| owner == section && name == key);
            assert_eq!(was_absent, when != "never", "{section}.{key}: {when}");
        }
    }
}

#[test]
fn each_mechanism_is_documented() {
    // A reader that is given another one says all that it knows.
    let error = serde_json::from_str::<Mechanism>("\"?\"")
        .expect_err("none")
        .to_string();
    let known: BTreeSet<&str> = error.split('`').skip(3).step_by(2).collect();
    assert!(known.contains("cma-read"), "{error}");
    let documented = documented();
    let named: BTreeSet<&str> = documented["Mechanisms"]
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(named, known);
}
