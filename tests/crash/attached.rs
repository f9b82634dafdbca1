// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank is killed while others read its memory through the kernel module, to copy it or to combine it in place. They
//! get an error, soon, and no signal.
//!
//! The ranks leave SIGBUS at its default action, so a rank that got one would be dead, not only wrong.

use super::job::{self, RANKS, Random};
use super::module;
use super::traffic::names;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use onecopy::coll::{Collective, ElemType, Op, PredefinedOp};
use onecopy::wireup::Death;
use onecopy::{Comm, Error, Runtime};
use onecopy_shm::process::pidfd_open;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::Stdio;

/// Variable with the moment of the death, in thousandths of the time that a round takes.
const KILL: &str = "TEST_KILL_AFTER";
const COUNT: &str = "TEST_KILLS";
const SEED: &str = "TEST_SEED";
/// Variable with the process that a witness watches.
const WITNESSED: &str = "TEST_WITNESSED";
/// Variable with what the victim's memory is read for: one of [`WAYS`].
const WAY: &str = "TEST_WAY";
const WAYS: [&str; 2] = ["messages", "reductions"];
const VICTIM: usize = RANKS - 1;
const LEN: usize = 12 << 20;

/// What the victim's witness does: it says when the kernel says that the victim has ended. Between the signal and that
/// word the kernel takes down the victim's memory. That takes long where the processor is emulated, and nobody can know
/// of the death meanwhile.
pub(crate) fn witness() {
    let pid: i32 = std::env::var(WITNESSED)
        .ok()
        .and_then(|text| text.parse().ok())
        .expect("a process");
    let victim = pidfd_open(Pid::from_raw(pid)).expect("it lives");
    writeln!(std::io::stderr(), "watching").expect("a pipe");
    let mut set = [PollFd::new(victim.as_fd(), PollFlags::POLLIN)];
    while poll(&mut set, PollTimeout::NONE).is_err() {}
    job::say(&format!("ended {}", job::now()));
}

/// Starts a witness of this process and waits until it watches. The launcher ends it with the rank's process group, if
/// anything is left.
fn call_witness() -> crate::limit::Limited {
    let pid = std::process::id().to_string();
    let mut witness = job::another("witness");
    let mut witness = crate::limit::start(witness.env(WITNESSED, pid).stderr(Stdio::piped()));
    let mut line = String::new();
    let stderr = witness.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut line).expect("a word");
    assert_eq!(line, "watching\n");
    witness
}

fn add(world: &Comm, mine: &[u8], sum: &mut [u8]) -> Result<(), Error> {
    let what = Collective::Allreduce {
        elem: ElemType::U8,
        op: Op::Predefined(PredefinedOp::Sum),
    };
    world.run(&what, Some(mine), Some(sum))
}

/// What a rank does.
pub(crate) fn rank() {
    let rt = Runtime::init().expect("a job");
    let world = rt.world();
    world.barrier().expect("all live");
    let reduces = std::env::var(WAY).is_ok_and(|way| way == WAYS[1]);
    let mut buffer = vec![0u8; LEN];
    let mut sum = vec![0u8; if reduces { LEN } else { 0 }];
    if world.rank() == VICTIM {
        // It outlives this process.
        std::mem::forget(call_witness());
        let share: u64 = std::env::var(KILL)
            .ok()
            .and_then(|text| text.parse().ok())
            .expect("thousandths");
        for round in 0u8.. {
            let begun = std::time::Instant::now();
            buffer.fill(round);
            if reduces {
                add(&world, &buffer, &mut sum).expect("the others live");
            } else {
                for to in 0..VICTIM {
                    world.send(&buffer, to, 1).expect("the others live");
                }
            }
            if round == 1 {
                // In the time of a round from now on: somebody is reading then.
                let after = begun.elapsed() * share as u32 / 1000;
                std::thread::spawn(move || {
                    std::thread::sleep(after);
                    job::say(&format!("dying {}", job::now()));
                    job::die();
                });
            }
        }
    }
    let mut round = 0u8;
    let (error, called) = loop {
        let called = job::now();
        let (result, got) = if reduces {
            buffer.fill(world.rank() as u8);
            (add(&world, &buffer, &mut sum), &sum)
        } else {
            (world.recv(&mut buffer, VICTIM, 1).map(drop), &buffer)
        };
        if let Err(error) = result {
            break (error, called);
        }
        let others = if reduces { (0..VICTIM).sum() } else { 0 };
        let expected = round.wrapping_add(others as u8);
        let wrong = got.iter().position(|&byte| byte != expected);
        assert_eq!(wrong, None, "bytes of two rounds, or of holes");
        round = round.wrapping_add(1);
    };
    job::say(&format!("error {} {called}", job::now()));
    let expected = match error {
        // Another one knew of the death first.
        Error::Collective { .. } => reduces,
        _ => names(&error, VICTIM) && (reduces || matches!(error, Error::PeerDied { .. })),
    };
    assert!(expected, "{error}");
    let counters = rt.counters();
    // Nothing of the dead stays attached; of the living nothing was, by messages.
    let attached = (counters.attached_windows, counters.attached_bytes);
    assert!(reduces || attached == (0, 0), "{attached:?}");
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
fn a_death_while_xpmem_or_knem_reads_is_an_error_and_no_signal() {
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let count = number(COUNT, 8);
    // The layers that need no module, to compare.
    let others = [
        ("cma", &[("ONECOPY_LAYERS", "cico,cma")] as &[_]),
        ("cico", &[("ONECOPY_LAYERS", "cico")]),
    ];
    let modules = module::variants(job::say);
    let modules: Vec<_> = modules
        .iter()
        .map(|module| (module.name, module.knobs))
        .collect();
    let cases = modules.iter().copied().chain(others);
    for ((name, knobs), way) in cases.flat_map(|case| WAYS.map(|way| (case, way))) {
        let by_module = modules.iter().any(|(module, _)| *module == name);
        let mut random = Random(number(SEED, 1));
        let (mut delays, mut after_end) = (Vec::new(), Vec::new());
        let (mut moved, mut holes) = (0u64, 0u64);
        for _ in 0..count {
            let share = random.below(1000);
            let mut env = vec![(KILL, share.to_string()), (WAY, way.to_owned())];
            env.extend(knobs.iter().map(|&(name, value)| (name, value.to_owned())));
            let ran = job::run("attached", &env);
            let time = |rank: usize, word: &str, index: usize| {
                ran.number(rank, word, index).expect("it says so")
            };
            let (death, end) = (time(VICTIM, "dying", 0), time(VICTIM, "ended", 0));
            for rank in 0..VICTIM {
                let what = format!("{name}, {way}, at {share} of 1000: {}", ran.story());
                assert_eq!(ran.ranks[rank], Death::Code(0), "{what}");
                // A rank that looks at the last message when it happens learns of it in the next call.
                let (error, called) = (time(rank, "error", 0), time(rank, "error", 1));
                delays.push(error.saturating_sub(death.max(called)));
                after_end.push(error.saturating_sub(end.max(called)));
                let reports = ran.reports(rank, "moved");
                moved += reports[0][0].parse::<u64>().expect("bytes");
                holes += reports[0][2].parse::<u64>().expect("windows");
            }
        }
        job::say(&format!(
            "{name}, {way}: {count} deaths: from the signal to the error {}; from the end of the process {}; {moved} bytes moved by the module, {holes} windows with holes",
            job::spread(&mut delays),
            job::spread(&mut after_end),
        ));
        // The plain interface of knem has a region per message; what is reduced has none.
        let expected = by_module && (name, way) != ("knem, plain", WAYS[1]);
        assert_eq!(
            moved > 0,
            expected,
            "{name}, {way}: {moved} bytes by the module"
        );
    }
}
