// SPDX-License-Identifier: MIT OR Apache-2.0
//! A timeline leads from each announced message to the system calls that copied it, and back to its sender.

#[path = "../../tests/harness/processes.rs"]
mod processes;

use onecopy::Runtime;
use onecopy_trace::bpf::{Collector, Options, State};
use onecopy_trace::perfetto;
use processes::{Ranks, body, say};
use serde_json::Value;
use std::collections::BTreeSet;

const MESSAGES: usize = 7;
const LEN: usize = 1 << 20;

#[test]
fn as_rank() {
    if body().is_none() {
        return;
    }
    let rt = Runtime::init().expect("init");
    let world = rt.world();
    let mut long = vec![world.rank() as u8; LEN];
    for _ in 0..MESSAGES {
        if world.rank() == 0 {
            world.send(&long, 1, 7).expect("send");
            // These have no events.
            world.send(&[1_u64], 1, 8).expect("send");
        } else {
            world.recv(&mut long, 0, 7).expect("recv");
            world.recv(&mut [0_u64], 0, 8).expect("recv");
        }
    }
    assert!(long.iter().all(|byte| *byte == 0));
    drop(world);
    rt.finalize().expect("finalize");
}

/// Begin and end, in nanoseconds.
fn span(slice: &Value) -> (u64, u64) {
    let ns = |name: &str| (slice[name].as_f64().expect("a number") * 1000.0).round() as u64;
    (ns("ts"), ns("ts") + ns("dur"))
}

#[test]
fn each_message_leads_to_its_system_calls_and_back() {
    let options = Options {
        events: true,
        ..Options::default()
    };
    let mut collector = match Collector::start(&options) {
        Ok((collector, _)) => collector,
        Err(error) => return say(&format!("skipped: {error}")),
    };
    let exe = std::env::current_exe().expect("own path");
    let probes = collector.watch_runtime(&exe);
    if let Some(refused) = probes.iter().find(|probe| probe.state != State::Attached) {
        return say(&format!("skipped: {refused:?}"));
    }
    let ranks = Ranks::new(2, "messages")
        .env("ONECOPY_LAYERS", "cma,cico")
        .env("ONECOPY_EAGER_MAX", "64K")
        .env("ONECOPY_CMA_MIN", "64K")
        // All by the receiver's calls.
        .env("ONECOPY_COOP", "off");
    ranks.run().expect_success();
    let observed = collector.observe();
    let events = collector.events();
    let mut file = Vec::new();
    perfetto::write(&events, &observed.tasks, &mut file).expect("memory");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    let all = file["traceEvents"].as_array().expect("a list");
    let of_phase = |ph: &'static str| all.iter().filter(move |event| event["ph"] == ph);

    let begins: BTreeSet<&str> = of_phase("s")
        .map(|arrow| arrow["id"].as_str().expect("an id"))
        .collect();
    assert_eq!((begins.len(), of_phase("s").count()), (MESSAGES, MESSAGES));
    let mut receivers = BTreeSet::new();
    for id in begins {
        let arrows: Vec<&Value> = all.iter().filter(|event| event["id"] == id).collect();
        let [begin, step, end] = arrows[..] else {
            panic!("{arrows:?}")
        };
        assert_eq!(
            (&begin["ph"], &step["ph"], &end["ph"]),
            (&"s".into(), &"t".into(), &"f".into())
        );
        assert_eq!(begin["pid"], end["pid"], "the sender's");
        assert_ne!(begin["pid"], step["pid"]);
        let ts = [begin, step, end].map(|arrow| arrow["ts"].as_f64().expect("a time"));
        assert!(ts[0] <= ts[1] && ts[1] <= ts[2], "{ts:?}");
        receivers.insert(step["pid"].as_u64());

        let track = |event: &&Value| (&event["pid"], &event["tid"]) == (&step["pid"], &step["tid"]);
        let copies = of_phase("X")
            .filter(track)
            .filter(|slice| slice["name"] == "copy");
        let mut copies = copies.filter(|copy| copy["ts"] == step["ts"]);
        let copy = copies.next().expect("the arrow leads to a copy");
        assert_eq!(copy["args"]["bytes"], LEN);
        let number = copy["args"]["message"].as_i64().expect("a number");
        assert!(id.ends_with(&format!(":0:{number:x}")), "{id}");
        let (from, to) = span(copy);
        let calls = of_phase("X")
            .filter(track)
            .filter(|slice| slice["name"] == "cma-read");
        let inside = calls.filter(|call| {
            let (begin, end) = span(call);
            from <= begin && end <= to
        });
        let bytes: u64 = inside
            .filter_map(|call| call["args"]["bytes"].as_u64())
            .sum();
        assert_eq!(bytes, LEN as u64, "{id}");
    }
    assert_eq!(receivers.len(), 1);
}
