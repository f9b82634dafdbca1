// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank is killed while others read its memory through the kernel module: they get an error, soon, and no signal.
//!
//! The ranks leave SIGBUS at its default action, so a rank that got one would be dead, not only wrong.

use super::job::{self, RANKS, Random};
use super::module;
use super::traffic::names;
use onecopy::wireup::Death;
use onecopy::{Error, Runtime};

const KILL: &str = "TEST_KILL_AFTER";
const COUNT: &str = "TEST_KILLS";
const SEED: &str = "TEST_SEED";
const VICTIM: usize = RANKS - 1;
const LEN: usize = 24 << 20;

/// What a rank does.
pub(crate) fn rank() {
    let rt = Runtime::init().expect("a job");
    let world = rt.world();
    world.barrier().expect("all live");
    let mut buffer = vec![0u8; LEN];
    if world.rank() == VICTIM {
        let micros = std::env::var(KILL).expect("a time");
        let micros = micros.parse().expect("microseconds");
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_micros(micros));
            job::say(&format!("dying {}", job::now()));
            job::die();
        });
        for round in 0u8.. {
            buffer.fill(round);
            for to in 0..VICTIM {
                world.send(&buffer, to, 1).expect("the others live");
            }
        }
    }
    let error = loop {
        match world.recv(&mut buffer, VICTIM, 1) {
            Ok(_) => {
                let first = buffer[0];
                let wrong = buffer.iter().position(|&byte| byte != first);
                assert_eq!(wrong, None, "a message of two rounds, or of holes");
            }
            Err(error) => break error,
        }
    };
    job::say(&format!("error {}", job::now()));
    assert!(
        names(&error, VICTIM) && matches!(error, Error::PeerDied { .. }),
        "{error}"
    );
    let counters = rt.counters();
    // Nothing of the dead stays attached; of the living nothing was.
    assert_eq!((counters.attached_windows, counters.attached_bytes), (0, 0));
    let moved = counters.attach_bytes + counters.knem_bytes;
    job::say(&format!("moved {moved} holes {}", counters.attach_holes));
    // The living go on, also by the layer that failed towards the dead.
    let peer = (world.rank() + 1) % VICTIM;
    let from = (world.rank() + VICTIM - 1) % VICTIM;
    let mine = vec![world.rank() as u8; LEN];
    world
        .sendrecv(&mine, peer, 2, &mut buffer, from, 2)
        .expect("the living");
    assert!(buffer.iter().all(|&byte| byte == from as u8));
    assert_eq!(rt.counters().protocol_errors, 0);
    drop(world);
    rt.finalize().expect("finalize");
    job::say("fine");
}

#[test]
fn a_death_while_its_memory_is_read_is_an_error_and_no_signal() {
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let count = number(COUNT, 8);
    for variant in module::variants(job::say) {
        let mut random = Random(number(SEED, 1));
        let mut delays = Vec::new();
        let (mut moved, mut holes) = (0u64, 0u64);
        for _ in 0..count {
            let micros = 20_000 + random.below(400_000);
            let mut env = vec![(KILL, micros.to_string())];
            env.extend(
                variant
                    .knobs
                    .iter()
                    .map(|&(name, value)| (name, value.to_owned())),
            );
            let ran = job::run("attached", &env);
            let time = |rank: usize, word: &str| {
                let said = ran.said(rank, word);
                said.first().and_then(|words| words[0].parse::<u64>().ok())
            };
            let death = time(VICTIM, "dying").expect("it says so");
            for rank in 0..VICTIM {
                let what = format!("{}, after {micros} us: {}", variant.name, ran.story());
                assert_eq!(ran.ranks[rank], Death::Code(0), "{what}");
                delays.push(time(rank, "error").expect("an error").saturating_sub(death));
                let said = ran.said(rank, "moved");
                moved += said[0][0].parse::<u64>().expect("bytes");
                holes += said[0][2].parse::<u64>().expect("windows");
            }
        }
        delays.sort_unstable();
        let worst = delays[delays.len() - 1];
        job::say(&format!(
            "{}: {count} deaths: from death to error p50 {} us, max {worst} us; {moved} bytes moved by the module, {holes} windows with holes",
            variant.name,
            delays[delays.len() / 2],
        ));
        assert!(moved > 0, "{}: nothing went by the module", variant.name);
    }
}
