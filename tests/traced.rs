// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each announced message fires the same tracepoints, whatever brings it, and whichever side waits for it.

use onecopy::local_with;
use onecopy::{Knobs, Runtime};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Barrier, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Tracepoints of a message in their order, once each but for `rendezvous_start`.
const COURSE: [&str; 5] = [
    "rendezvous_announced",
    "rendezvous_matched",
    "rendezvous_start",
    "rendezvous_done",
    "rendezvous_finished",
];

/// How often each event was told, by the number of the message.
static TOLD: Mutex<BTreeMap<u64, BTreeMap<String, usize>>> = Mutex::new(BTreeMap::new());

struct Recorder;

#[derive(Default)]
struct Fields {
    name: String,
    message: Option<u64>,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        // `message` is what the macros of tracing call the text of an event, too.
        if field.name() == "message" {
            self.message = Some(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.name = format!("{value:?}");
        }
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == onecopy_obs::tracepoints::TARGET
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(message) = fields.message {
            let mut traced = TOLD.lock().expect("no rank panics");
            *traced
                .entry(message)
                .or_default()
                .entry(fields.name)
                .or_default() += 1;
        }
    }
}

/// Sends one message, from memory of either kind. It comes before its receive, which is a call, or after it.
fn one(rt: &Runtime, len: usize, from_heap: bool, late: bool, meet: &Barrier) {
    let world = rt.world();
    // Ranks connect with their first messages.
    world.barrier().expect("both");
    if rt.rank() == 0 {
        let mut bytes = rt.alloc(len).expect("memory");
        bytes.fill(7);
        let plain = bytes.to_vec();
        let bytes = if from_heap { &bytes[..] } else { &plain[..] };
        world.scope(|scope| {
            if !late {
                meet.wait();
            }
            let sent = scope.isend(bytes, 1, 3).expect("send");
            if late {
                meet.wait();
            }
            scope.wait(sent).expect("sent");
        });
    } else {
        let mut bytes = vec![0u8; len];
        if late {
            meet.wait();
            world.recv(&mut bytes[..], 0, 3).expect("a message");
        } else {
            world.scope(|scope| {
                let posted = scope.irecv(&mut bytes, 0, 3).expect("receive");
                meet.wait();
                scope.wait(posted).expect("a message");
            });
        }
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}

#[test]
fn the_course_of_each_announced_message_is_told() {
    tracing::subscriber::set_global_default(Recorder).expect("the only one");
    let long = 4 << 20;
    for (layers, len, from_heap) in [
        // So short that the receiver copies it alone.
        ("all", 8 << 10, true),
        ("all", 64 << 10, true),
        ("all", long, true),
        ("all", long, false),
        ("cico", long, true),
        ("cico", long, false),
        ("cico,cma", long, false),
    ] {
        for late in [true, false] {
            TOLD.lock().expect("no rank panics").clear();
            let knobs = Knobs::from_iter([("ONECOPY_LAYERS", layers)]).expect("knobs");
            let meet = Barrier::new(2);
            local_with(2, &knobs.0, |rt| one(&rt, len, from_heap, late, &meet));
            let traced = TOLD.lock().expect("no rank panics").clone();
            let case = format!(
                "{layers}, {len} bytes, from the heap: {from_heap}, late: {late}: {traced:?}"
            );
            let long: Vec<_> = traced
                .values()
                .filter(|fields| fields.contains_key("rendezvous_announced"))
                .collect();
            assert!(!long.is_empty(), "{case}");
            for fields in long {
                for name in COURSE {
                    let times = fields.get(name).copied().unwrap_or(0);
                    let once = times == 1 || times > 1 && name == "rendezvous_start";
                    assert!(once, "{name}: {case}");
                }
            }
        }
    }
}
