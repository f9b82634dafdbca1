// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every kind of wait ends when the rank that it waits for dies, with an error that names it, soon.

use super::job::{self, RANKS};
use super::traffic::names;
use onecopy::coll::PredefinedOp;
use onecopy::wireup::Death;
use onecopy::{ANY_SOURCE, Comm, Error, Request, Result, Runtime};
use std::time::Duration;

const KIND: &str = "TEST_WAIT";
const VICTIM: usize = RANKS - 1;
const KINDS: [&str; 26] = [
    "recv",
    "recv-any",
    "send-rendezvous",
    "send-heap",
    "send-flood",
    "ssend",
    "ssend-chunks",
    "barrier",
    "probe",
    "probe-any",
    "mprobe",
    "scope",
    "sendrecv",
    "irecv",
    "isend",
    "half-message",
    "bcasts",
    "gathers",
    "scatters",
    "reduces",
    // Of these none blocks: a program may do nothing else.
    "tests",
    "tests-now-and-then",
    "tests-of-a-send",
    "tests-of-a-barrier",
    "iprobes",
    "improbes",
];

fn wait(rt: &Runtime, world: &Comm, kind: &str) -> Result<()> {
    let mut small = [0u8; 64];
    let large = vec![7u8; 2 << 20];
    match kind {
        "recv" | "half-message" => world.recv(&mut small, VICTIM, 1).map(drop),
        "recv-any" => world.recv(&mut small, ANY_SOURCE, 1).map(drop),
        "send-rendezvous" => world.send(&large, VICTIM, 1),
        "send-heap" => {
            let buffer = rt.alloc(2 << 20)?;
            world.send(&buffer, VICTIM, 1)
        }
        // Until the credit is used up and the ring is full.
        "send-flood" => loop {
            world.send(&[1u8; 40], VICTIM, 1)?;
        },
        "ssend" => world.ssend(&small, VICTIM, 1),
        "ssend-chunks" => world.ssend(&large[..5000], VICTIM, 1),
        "barrier" => world.barrier(),
        "probe" => world.probe(VICTIM, 1).map(drop),
        "probe-any" => world.probe(ANY_SOURCE, 1).map(drop),
        "mprobe" => world.mprobe(VICTIM, 1).map(drop),
        "scope" => world.scope(|scope| {
            scope.irecv(&mut small, VICTIM, 1)?;
            scope.isend(&large, VICTIM, 1)?;
            scope.wait_all().map(drop)
        }),
        "sendrecv" => world
            .sendrecv(&large, VICTIM, 1, &mut small, VICTIM, 1)
            .map(drop),
        "irecv" => world.irecv(vec![0u8; 100], VICTIM, 1)?.wait().map(drop),
        "isend" => world.isend(large, VICTIM, 1)?.wait().map(drop),
        // A rank that only gives runs ahead until the channel is full of what the victim has not read.
        "bcasts" => loop {
            world.bcast(&mut small, 0)?;
        },
        "gathers" => loop {
            world.gather(&small, &mut [], VICTIM)?;
        },
        "scatters" => loop {
            world.scatter(&[0u8; 64 * RANKS], &mut small, 0)?;
        },
        "reduces" => loop {
            world.reduce(&small, &mut [], PredefinedOp::Sum, VICTIM)?;
        },
        "tests" => test(world.irecv(vec![0u8; 100], VICTIM, 1)?, || {}),
        "tests-now-and-then" => test(world.irecv(vec![0u8; 100], VICTIM, 1)?, || {
            std::thread::sleep(Duration::from_millis(40));
        }),
        "tests-of-a-send" => test(world.isend(large, VICTIM, 1)?, || {}),
        "tests-of-a-barrier" => world.scope(|scope| {
            let barrier = scope.ibarrier()?;
            loop {
                if let Some(result) = scope.test(barrier) {
                    return result.map(drop);
                }
            }
        }),
        "iprobes" => loop {
            world.iprobe(VICTIM, 1)?;
        },
        "improbes" => loop {
            world.improbe(VICTIM, 1)?;
        },
        other => panic!("no wait {other}"),
    }
}

/// Asks whether a request is complete until it is, and does something else between.
fn test<B>(mut request: Request<B>, otherwise: impl Fn()) -> Result<()> {
    while !request.test() {
        otherwise();
    }
    request.wait().map(drop)
}

/// What a rank does.
pub(crate) fn rank() {
    let rt = Runtime::init().expect("a job");
    let world = rt.world();
    let kinds = std::env::var(KIND).expect("a wait");
    let (kind, late) = kinds.split_once(':').expect("when");
    // Everybody is connected.
    world.barrier().expect("all live");
    if world.rank() == VICTIM {
        if late == "late" {
            // The others are deep in their waits then; if they are not, the test is only less hard.
            std::thread::sleep(Duration::from_millis(30));
        }
        job::say(&format!("dying {}", job::now()));
        job::die();
    }
    let error = wait(&rt, &world, kind).expect_err("the victim is dead");
    job::say(&format!("error {}", job::now()));
    assert!(
        names(&error, VICTIM) && matches!(error, Error::PeerDied { .. }),
        "{error}"
    );
    // It stays dead, at once.
    assert!(wait(&rt, &world, kind).is_err());
    assert_eq!(rt.acknowledge_deaths(), [VICTIM]);
    // The others live on, and receives from any source go on without the dead.
    let mut seen = 0;
    for _ in 0..50 {
        for peer in (0..VICTIM).filter(|&peer| peer != world.rank()) {
            world
                .send(&[world.rank() as u64; 30], peer, 2)
                .expect("a living peer");
        }
        for _ in 0..VICTIM - 1 {
            let mut got = [0u64; 30];
            let status = world.recv(&mut got, ANY_SOURCE, 2).expect("a living peer");
            assert_eq!(got, [status.source as u64; 30]);
            seen += 1;
        }
    }
    assert_eq!(seen, 100);
    drop(world);
    rt.finalize().expect("finalize");
    job::say("fine");
}

#[test]
fn every_wait_ends_with_the_name_of_the_dead() {
    for sleep in ["auto", "off"] {
        let mut delays = Vec::new();
        for kind in KINDS {
            for when in ["at-once", "late"] {
                let env = [
                    (KIND, format!("{kind}:{when}")),
                    ("ONECOPY_WAIT_SLEEP", sleep.to_owned()),
                    ("ONECOPY_EAGER_CREDIT", "16K".to_owned()),
                ];
                let ran = job::run("waits", &env);
                let death = ran.number(VICTIM, "dying", 0).expect("it says so");
                for rank in 0..VICTIM {
                    assert_eq!(
                        ran.ranks[rank],
                        Death::Code(0),
                        "{kind} {when}: {}",
                        ran.story()
                    );
                    let error = ran.number(rank, "error", 0).expect("an error");
                    delays.push((error.saturating_sub(death), kind, rank));
                }
            }
        }
        delays.sort_unstable();
        let (median, worst) = (delays[delays.len() / 2], delays[delays.len() - 1]);
        job::say(&format!(
            "sleep {sleep}: from death to error: p50 {} us, max {} us ({} on rank {}), {} waits",
            median.0,
            worst.0,
            worst.1,
            worst.2,
            delays.len()
        ));
        assert!(worst.0 < 1_000_000, "{worst:?}");
    }
}
