// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners over the kernel's software device, in a guest of `cargo xtask vm verbs`: `rxe CASE...`. The other side is a
//! process of this program, which `at b` starts: `rxe peer a:PORT ROLE`.

#[path = "../common/side.rs"]
mod side;

mod faults;
mod limits;
mod other;
mod traffic;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use onecopy_verbs::{Completion, Verbs};

type Side = side::Side<Verbs>;

/// Cases by name.
const CASES: &[(&str, fn())] = &[
    ("caps", limits::caps),
    ("rc", traffic::ping_pong),
    ("memory", traffic::read_and_write),
    ("memory-long", traffic::read_and_write_long),
    ("ud", traffic::datagrams),
    ("cache", traffic::other_memory_at_the_same_place),
    ("many", limits::many_pairs),
    ("memlock", limits::as_an_ordinary_user),
    ("kill", faults::peer_is_killed),
    ("link", faults::link_goes_down_and_up),
    ("leave", faults::peer_leaves_and_its_answer_is_lost),
    ("netem", faults::bad_network),
    ("death", faults::machine_dies),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os("BED").is_none() {
        say("rxe: no bed here; `cargo xtask vm verbs` runs this");
        return ExitCode::SUCCESS;
    }
    if let [first, place, role] = arguments.as_slice()
        && first == "peer"
    {
        other::be(place, role);
        return ExitCode::SUCCESS;
    }
    for name in &arguments {
        let Some((_, case)) = CASES.iter().find(|(known, _)| known == name) else {
            say(&format!("rxe: no case '{name}'"));
            return ExitCode::from(2);
        };
        let started = Instant::now();
        // A failed assertion ends the program with a code, and its text.
        case();
        say(&format!(
            "{name}: ok, {:.1} s",
            started.elapsed().as_secs_f64()
        ));
    }
    ExitCode::SUCCESS
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// Guests are translated: what takes a moment elsewhere may take seconds.
const LONG: Duration = Duration::from_secs(60);

fn verbs() -> Verbs {
    Verbs::load().expect("libibverbs")
}

/// The own device by its name.
fn own() -> String {
    std::env::var("BED_DEVICE").expect("BED_DEVICE")
}

fn bed() -> String {
    std::env::var("BED").expect("BED")
}

/// This side, with so many slots.
fn here(slots: usize, bytes: usize) -> Side {
    Side::with(&verbs(), &own(), slots, bytes)
}

/// Completions, once there are some, by sleeping on the queue's descriptor.
fn wait(side: &mut Side, limit: Duration) -> Vec<Completion<Verbs>> {
    let end = Instant::now() + limit;
    loop {
        let some = side.poll();
        if !some.is_empty() {
            return some;
        }
        side.queue.arm().expect("armed");
        let some = side.poll();
        if !some.is_empty() {
            return some;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "no completion within {limit:?}");
        let milliseconds = u16::try_from(left.as_millis().max(1)).unwrap_or(u16::MAX);
        let descriptor = side.queue.descriptor().expect("a descriptor");
        let mut sets = [nix::poll::PollFd::new(
            descriptor,
            nix::poll::PollFlags::POLLIN,
        )];
        nix::poll::poll(&mut sets, milliseconds).expect("poll");
        side.queue.take_wakes().expect("wakes");
    }
}

/// The completion of a send, once it is there; receives in between are an error.
fn sent(side: &mut Side, limit: Duration) -> Completion<Verbs> {
    let mut all = wait(side, limit);
    assert_eq!(all.len(), 1, "{all:?}");
    let one = all.remove(0);
    assert_eq!(one.done, onecopy_verbs::Done::Sent, "{one:?}");
    one
}

/// Bytes that say where they belong. The first one is no letter: those mean something to the other side.
fn pattern(round: usize, length: usize) -> Vec<u8> {
    let byte = |offset: usize| (offset.wrapping_mul(31) ^ offset >> 8 ^ round) as u8;
    (0..length)
        .map(|offset| {
            if offset == 0 {
                byte(offset) | 0x80
            } else {
                byte(offset)
            }
        })
        .collect()
}

/// Runs a command of the guest.
fn run(command: &str) {
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", command])
        .status();
    let status = status.expect("a shell");
    assert!(status.success(), "{command}: {status}");
}
