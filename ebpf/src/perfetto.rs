// SPDX-License-Identifier: MIT OR Apache-2.0
//! A timeline in the trace-event form, which ui.perfetto.dev and other viewers load.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::observed::{Event, EventKind, Peer, Task};
use crate::plain;

mod flows;

fn peer_name(peer: Peer, tasks: &BTreeMap<u32, Task>) -> String {
    match peer {
        Peer::Process(pid) => process_name(pid, tasks.get(&pid)),
        Peer::InNamespace { namespace, pid } => format!("ns:{namespace}:{pid}"),
        Peer::Rank(rank) => format!("rank {rank}"),
        Peer::Unknown => "?".to_owned(),
    }
}

fn process_name(pid: u32, task: Option<&Task>) -> String {
    match task {
        Some(Task {
            rank: Some(rank),
            comm,
            ..
        }) => format!("rank {rank} {comm}"),
        Some(task) if !task.comm.is_empty() => task.comm.clone(),
        _ => pid.to_string(),
    }
}

/// Nanoseconds as microseconds.
#[expect(clippy::cast_precision_loss, reason = "exact for a hundred days")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn value(event: &Event, first_ns: u64, tasks: &BTreeMap<u32, Task>) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    set("pid", json!(event.pid));
    set("tid", json!(event.tid));
    set("ts", json!(micros(event.start_ns.saturating_sub(first_ns))));
    match &event.what {
        EventKind::Copy {
            mechanism,
            peer,
            asked,
            result,
            faults,
        } => {
            set("ph", json!("X"));
            set("cat", json!("copy"));
            set("name", json!(mechanism.name()));
            let duration = event.duration_ns.unwrap_or(0);
            set("dur", json!(micros(duration)));
            let mut args = json!({
                "peer": peer_name(*peer, tasks),
                "asked": asked,
                "faults": faults,
            });
            if *result < 0 {
                args["errno"] = json!(-result);
            } else {
                args["bytes"] = json!(result);
            }
            set("args", args);
        }
        EventKind::Runtime { name, args } => {
            set("ph", json!("i"));
            set("s", json!("t"));
            set("cat", json!("runtime"));
            set("name", json!(name));
            let args: Map<String, Value> = args
                .iter()
                .map(|(name, value)| ((*name).to_owned(), json!(value)))
                .collect();
            set("args", Value::Object(args));
        }
    }
    Value::Object(fields)
}

/// Writes a timeline.
///
/// # Errors
/// Those of `out`.
pub fn write(
    events: &[Event],
    tasks: &BTreeMap<u32, Task>,
    out: &mut impl Write,
) -> io::Result<()> {
    let first = events.iter().map(|event| event.start_ns).min().unwrap_or(0);
    let processes: BTreeSet<u32> = events.iter().map(|event| event.pid).collect();
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut separator = "\n";
    let mut put = |out: &mut dyn Write, value: &Value| {
        write!(out, "{separator}{}", plain::json(&value.to_string()))?;
        separator = ",\n";
        io::Result::Ok(())
    };
    for pid in processes {
        let task = tasks.get(&pid);
        let name = process_name(pid, task);
        put(
            out,
            &json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}),
        )?;
        if let Some(rank) = task.and_then(|task| task.rank) {
            put(
                out,
                &json!({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": rank}}),
            )?;
        }
    }
    for event in events {
        put(out, &value(event, first, tasks))?;
    }
    for value in flows::records(events, first, tasks) {
        put(out, &value)?;
    }
    writeln!(out, "\n]}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Mechanism;

    #[test]
    fn a_timeline_has_names_slices_and_moments() {
        let tasks = BTreeMap::from([(
            7,
            Task {
                comm: "a \"quoted\" one".to_owned(),
                rank: Some(2),
                ..Task::default()
            },
        )]);
        let copy = |result| EventKind::Copy {
            mechanism: Mechanism::CmaRead,
            peer: Peer::Process(8),
            asked: 4096,
            result,
            faults: 1,
        };
        let event = |start_ns, duration_ns, what| Event {
            start_ns,
            duration_ns,
            pid: 7,
            tid: 9,
            what,
        };
        let events = [
            event(5000, Some(1500), copy(4096)),
            event(7000, Some(10), copy(-1)),
            event(
                6000,
                None,
                EventKind::Runtime {
                    name: "sleep",
                    args: vec![("timeout_us", 4)],
                },
            ),
        ];
        let mut out = Vec::new();
        write(&events, &tasks, &mut out).expect("memory");
        let read: Value = serde_json::from_slice(&out).expect("JSON");
        let list = read["traceEvents"].as_array().expect("a list");
        assert_eq!(list.len(), 5);
        assert_eq!(list[0]["args"]["name"], "rank 2 a \"quoted\" one");
        assert_eq!(list[2]["dur"], 1.5);
        assert_eq!(list[2]["args"]["bytes"], 4096);
        assert_eq!(list[3]["args"]["errno"], 1);
        assert_eq!(list[4]["ts"], 1.0);
        assert_eq!(list[4]["args"]["timeout_us"], 4);
    }

    #[test]
    fn an_empty_timeline_is_valid() {
        let mut out = Vec::new();
        write(&[], &BTreeMap::new(), &mut out).expect("memory");
        let read: Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(read["traceEvents"], json!([]));
    }
}
