// SPDX-License-Identifier: MIT OR Apache-2.0
//! Announced messages in a timeline. The copy is a slice on the track of the thread that receives; its system calls lie
//! in that. An arrow leads from the announcement at the sender to the copy, and on to the end at the sender.
//!
//! What belongs together is found by the job, the sender's rank and the message's number, which the events of both
//! sides say. A message of which one of these events is missing has its slice, but no arrow.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::micros;
use crate::observed::{Event, EventKind, Task};

/// How long a moment is shown at most, so that an arrow has something to begin and end at.
const MOMENT_NS: u64 = 1000;
/// Where the number of a track beside that of a thread begins in an id: no id of a thread has more bits.
const TRACK_SHIFT: u32 = 22;
const CATEGORY: &str = "rendezvous";

/// The job, the sender's rank, the message's number.
type Id<'t> = (&'t str, i64, i64);

/// The events of one message.
#[derive(Debug, Default)]
struct Message<'e> {
    announced: Option<&'e Event>,
    matched: Option<&'e Event>,
    /// The first one.
    start: Option<&'e Event>,
    done: Option<&'e Event>,
    finished: Option<&'e Event>,
}

impl Message<'_> {
    /// When it was announced: the event comes behind the announcement, which the receiver may have met by then.
    fn announced_ns(&self) -> Option<u64> {
        let announced = self.announced?.start_ns;
        let met = [self.matched, self.start].into_iter().flatten();
        Some(met.map(|event| event.start_ns).fold(announced, u64::min))
    }

    /// The event at which the copy begins, and its end.
    fn copy(&self) -> Option<(&Event, u64)> {
        let begin = self.start.or(self.matched)?;
        Some((begin, self.done?.start_ns.max(begin.start_ns)))
    }

    fn bytes(&self) -> Option<i64> {
        argument(self.matched.or(self.done)?, "bytes")
    }
}

fn argument(event: &Event, wanted: &str) -> Option<i64> {
    let EventKind::Runtime { args, .. } = &event.what else {
        return None;
    };
    let found = args.iter().find(|(name, _)| *name == wanted);
    found.map(|(_, value)| *value)
}

fn messages<'e>(
    events: &'e [Event],
    tasks: &'e BTreeMap<u32, Task>,
) -> BTreeMap<Id<'e>, Message<'e>> {
    let mut messages = BTreeMap::<Id<'_>, Message<'_>>::new();
    for event in events {
        let EventKind::Runtime { name, .. } = &event.what else {
            continue;
        };
        let (Some(sender), Some(number)) = (argument(event, "sender"), argument(event, "message"))
        else {
            continue;
        };
        let job = tasks.get(&event.pid).and_then(|task| task.job.as_deref());
        let message = messages
            .entry((job.unwrap_or_default(), sender, number))
            .or_default();
        let place = match *name {
            "rendezvous_announced" => &mut message.announced,
            "rendezvous_matched" => &mut message.matched,
            "rendezvous_start" => &mut message.start,
            "rendezvous_done" => &mut message.done,
            "rendezvous_finished" => &mut message.finished,
            _ => continue,
        };
        // Events of a thread come in order, those of two may not.
        if place.is_none_or(|other| event.start_ns < other.start_ns) {
            *place = Some(event);
        }
    }
    messages
}

/// The slices of a track, as long as each lies in another one or behind it: the ends of those that are open.
type Open = Vec<u64>;

/// Whether a slice fits into a track. If it does, it is in it.
fn fits(open: &mut Open, begin: u64, end: u64) -> bool {
    while open.last().is_some_and(|last| *last <= begin) {
        open.pop();
    }
    let is_nested = open.last().is_none_or(|last| *last >= end);
    if is_nested {
        open.push(end);
    }
    is_nested
}

/// A thread: its process and itself.
type Thread = (u32, u32);

fn thread_of(event: &Event) -> Thread {
    (event.pid, event.tid)
}

/// The tracks of the threads that copy: their own, and those beside for copies that overlap.
#[derive(Debug, Default)]
struct Tracks(BTreeMap<Thread, Vec<Open>>);

impl Tracks {
    /// The number of the track that has room for a slice, not before `first`; whether it is a new one.
    fn place(&mut self, thread: Thread, first: usize, begin: u64, end: u64) -> (usize, bool) {
        let tracks = self.0.entry(thread).or_default();
        let known = tracks.len();
        tracks.resize(known.max(first), Open::new());
        let found = (first..tracks.len()).find(|&track| fits(&mut tracks[track], begin, end));
        let track = found.unwrap_or_else(|| {
            tracks.push(vec![end]);
            tracks.len() - 1
        });
        (track, track >= known)
    }
}

/// Draws messages.
struct Drawing {
    first_ns: u64,
    /// When the events of each thread were, in order.
    moments: BTreeMap<Thread, Vec<u64>>,
    tracks: Tracks,
    values: Vec<Value>,
}

impl Drawing {
    fn of(events: &[Event], first_ns: u64) -> Self {
        let mut moments = BTreeMap::<Thread, Vec<u64>>::new();
        for event in events {
            let of_thread = moments.entry(thread_of(event)).or_default();
            of_thread.push(event.start_ns);
        }
        for of_thread in moments.values_mut() {
            of_thread.sort_unstable();
        }
        Self {
            first_ns,
            moments,
            tracks: Tracks::default(),
            values: Vec::new(),
        }
    }

    fn micros_from_first(&self, ns: u64) -> f64 {
        micros(ns.saturating_sub(self.first_ns))
    }

    /// The slice of a copy. Returns its track.
    fn copy(&mut self, id: &Id<'_>, message: &Message<'_>, begin: &Event, end: u64) -> u32 {
        // One that another thread ends lies beside what the first one does meanwhile.
        let moved = message.done.is_some_and(|done| done.tid != begin.tid);
        let first = usize::from(moved);
        let (track, is_new) = self
            .tracks
            .place(thread_of(begin), first, begin.start_ns, end);
        let tid = begin.tid | u32::try_from(track).unwrap_or(u32::MAX) << TRACK_SHIFT;
        if track > 0 && is_new {
            let name = format!("copies beside {}", begin.tid);
            self.values.push(
                json!({"ph": "M", "name": "thread_name", "pid": begin.pid, "tid": tid,
                "args": {"name": name}}),
            );
        }
        self.values.push(json!({
            "ph": "X", "cat": CATEGORY, "name": "copy", "pid": begin.pid, "tid": tid,
            "ts": self.micros_from_first(begin.start_ns), "dur": micros(end - begin.start_ns),
            "args": {"sender": id.1, "message": id.2, "bytes": message.bytes()},
        }));
        tid
    }

    /// The slice of a moment, which ends before the thread's next event.
    fn moment(&mut self, id: &Id<'_>, name: &str, event: &Event, ns: u64) {
        let moments = self
            .moments
            .get(&thread_of(event))
            .map_or(&[][..], |all| all);
        let next = moments[moments.partition_point(|moment| *moment <= ns)..].first();
        let dur = next.map_or(MOMENT_NS, |next| (next - ns).min(MOMENT_NS));
        self.values.push(json!({
            "ph": "X", "cat": CATEGORY, "name": name, "pid": event.pid, "tid": event.tid,
            "ts": self.micros_from_first(ns), "dur": micros(dur), "args": {"sender": id.1, "message": id.2},
        }));
    }

    /// The arrow of a message through these points: a process, its track, and when.
    fn arrow(&mut self, id: &Id<'_>, points: [(u32, u32, u64); 3]) {
        let name = format!("{}:{}:{:x}", id.0, id.1, id.2);
        for (ph, (pid, tid, ns)) in ["s", "t", "f"].into_iter().zip(points) {
            self.values.push(json!({
                "ph": ph, "bp": "e", "cat": CATEGORY, "name": "message", "id": name,
                "pid": pid, "tid": tid, "ts": self.micros_from_first(ns),
            }));
        }
    }
}

/// The slices and arrows of all announced messages.
pub(super) fn records(events: &[Event], first_ns: u64, tasks: &BTreeMap<u32, Task>) -> Vec<Value> {
    let messages = messages(events, tasks);
    let mut copies: Vec<_> = messages
        .iter()
        .filter_map(|(id, message)| Some((id, message, message.copy()?)))
        .collect();
    copies.sort_by_key(|(_, _, (begin, end))| (begin.start_ns, std::cmp::Reverse(*end)));
    let mut drawing = Drawing::of(events, first_ns);
    for (id, message, (begin, end)) in copies {
        let track = drawing.copy(id, message, begin, end);
        let (Some(announced), Some(announced_ns), Some(finished)) =
            (message.announced, message.announced_ns(), message.finished)
        else {
            continue;
        };
        let finished_ns = finished.start_ns.max(end);
        drawing.moment(id, "RTS", announced, announced_ns);
        drawing.moment(id, "FIN", finished, finished_ns);
        drawing.arrow(
            id,
            [
                (announced.pid, announced.tid, announced_ns),
                (begin.pid, track, begin.start_ns),
                (finished.pid, finished.tid, finished_ns),
            ],
        );
    }
    drawing.values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &'static str, pid: u32, start_ns: u64, number: i64) -> Event {
        let args = vec![
            ("peer", 1),
            ("sender", 0),
            ("message", number),
            ("bytes", 9),
        ];
        Event {
            start_ns,
            duration_ns: None,
            pid,
            tid: pid,
            what: EventKind::Runtime { name, args },
        }
    }

    /// All events of a message: copied by process 2 in this time.
    fn message(number: i64, begin: u64, end: u64) -> [Event; 5] {
        [
            event("rendezvous_announced", 1, begin - 5, number),
            event("rendezvous_matched", 2, begin - 1, number),
            event("rendezvous_start", 2, begin, number),
            event("rendezvous_done", 2, end, number),
            event("rendezvous_finished", 1, end + 5, number),
        ]
    }

    fn with(values: &[Value], name: &str, value: &str) -> Vec<Value> {
        let found = values.iter().filter(|found| found[name] == value);
        found.cloned().collect()
    }

    #[test]
    fn a_message_has_a_copy_and_an_arrow_through_it() {
        let values = records(&message(7, 1000, 9000), 0, &BTreeMap::new());
        let copies = with(&values, "name", "copy");
        assert_eq!(copies.len(), 1);
        assert_eq!(
            (&copies[0]["ts"], &copies[0]["dur"]),
            (&json!(1.0), &json!(8.0))
        );
        let arrows = with(&values, "id", ":0:7");
        let phases: Vec<_> = arrows.iter().map(|arrow| arrow["ph"].clone()).collect();
        assert_eq!(phases, ["s", "t", "f"]);
        assert_eq!(arrows[1]["ts"], 1.0);
    }

    #[test]
    fn what_is_incomplete_has_no_arrow() {
        let all = message(7, 1000, 9000);
        for missing in [0, 3, 4] {
            let mut events = all.to_vec();
            events.remove(missing);
            let values = records(&events, 0, &BTreeMap::new());
            assert_eq!(with(&values, "id", ":0:7").len(), 0, "{missing}");
            let copies = usize::from(missing != 3);
            assert_eq!(with(&values, "name", "copy").len(), copies, "{missing}");
        }
    }

    #[test]
    fn copies_that_overlap_lie_side_by_side() {
        let mut events = message(1, 1000, 5000).to_vec();
        events.extend(message(2, 2000, 3000));
        events.extend(message(3, 4000, 8000));
        events.extend(message(4, 5000, 6000));
        let copies = with(&records(&events, 0, &BTreeMap::new()), "name", "copy");
        let tids: Vec<_> = copies.iter().map(|copy| copy["tid"].clone()).collect();
        let beside = 2 | 1 << TRACK_SHIFT;
        assert_eq!(tids, [json!(2), json!(2), json!(beside), json!(2)]);
    }

    #[test]
    fn an_arrow_begins_before_it_arrives() {
        let mut events = message(7, 1000, 9000);
        // The sender was interrupted between the announcement and its event.
        events[0].start_ns = 4000;
        let values = records(&events, 0, &BTreeMap::new());
        let begins = with(&values, "ph", "s");
        assert_eq!(begins[0]["ts"], 0.999);
    }
}
