// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives of all kinds in which a rank dies: every other one gets an error that names it, and goes on without
//! collectives.

use super::job::{self, CrashRun, RANKS, Random};
use super::traffic::names;
use onecopy::coll::{Collective, ElemType, Op, Parts, PredefinedOp};
use onecopy::wireup::Death;
use onecopy::{Comm, Error, Runtime};

/// Variable with the rank that is to die.
const VICTIM: &str = "TEST_VICTIM";
/// Variable with the number of rounds.
const ROUNDS: &str = "TEST_ROUNDS";

/// Bytes of each rank's contribution: in a line, in a slot, in a temporary copy, in the buffer itself.
const SIZES: [usize; 4] = [16, 3008, 40_000, 300_000];

/// All kinds of collectives, for parts of `len` bytes.
fn kinds(len: usize, root: usize) -> Vec<(Collective, usize, usize)> {
    let all = len * RANKS;
    let parts = || Parts::Equal(len);
    let elem = ElemType::F64;
    let op = || Op::from(PredefinedOp::Sum);
    let listed = || Parts::packed(&[len; RANKS], 1);
    vec![
        (Collective::Barrier, 0, 0),
        (Collective::Bcast { root }, 0, len),
        (
            Collective::Gather {
                root,
                parts: parts(),
            },
            len,
            all,
        ),
        (
            Collective::Scatter {
                root,
                parts: listed(),
            },
            all,
            len,
        ),
        (
            Collective::Scatter {
                root,
                parts: parts(),
            },
            all,
            len,
        ),
        (Collective::Allgather { parts: parts() }, len, all),
        (
            Collective::Alltoall {
                send: listed(),
                recv: parts(),
            },
            all,
            all,
        ),
        (
            Collective::Alltoall {
                send: parts(),
                recv: parts(),
            },
            0,
            all,
        ),
        (
            Collective::Reduce {
                root,
                elem,
                op: op(),
            },
            len,
            len,
        ),
        (Collective::Allreduce { elem, op: op() }, len, len),
        (
            Collective::ReduceScatter {
                parts: parts(),
                elem,
                op: op(),
            },
            all,
            len,
        ),
        (Collective::Scan { elem, op: op() }, len, len),
        (Collective::Exscan { elem, op: op() }, len, len),
    ]
}

fn round(rt: &Runtime, comm: &Comm, number: usize) -> Result<(), Error> {
    let size = SIZES[number % SIZES.len()];
    for (kind, (what, send, recv)) in kinds(size, number % RANKS).into_iter().enumerate() {
        // Half of the buffers lie where peers can map them.
        let heap = (kind + number).is_multiple_of(2);
        let alloc = |len: usize| (heap && len > 0).then(|| rt.alloc(len).ok()).flatten();
        let (mut from, mut to) = ((alloc(send), vec![1; send]), (alloc(recv), vec![0; recv]));
        let from: &mut [u8] = from.0.as_deref_mut().unwrap_or(&mut from.1);
        let to: &mut [u8] = to.0.as_deref_mut().unwrap_or(&mut to.1);
        from.fill(1);
        let from = (send > 0).then_some(&*from);
        let to = (recv > 0).then_some(to);
        if number % 3 == 2 {
            comm.scope(|scope| {
                scope.collective(&what, from, to)?;
                scope.wait_all().map(drop)
            })?;
        } else {
            comm.run(&what, from, to)?;
        }
    }
    Ok(())
}

/// What a rank does.
pub(crate) fn rank() {
    let number = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    let victim = number(VICTIM).unwrap_or(usize::MAX);
    let rounds = number(ROUNDS).unwrap_or(8);
    super::traffic::die_in_time();
    let rt = match Runtime::init() {
        Ok(rt) => rt,
        Err(Error::Wireup(error)) => {
            // The victim died before it joined.
            let absent = matches!(*error, onecopy::wireup::WireupError::Absent { .. });
            assert!(absent, "{error}");
            job::say("absent");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let world = rt.world();
    let result = (|| {
        let other = world.dup()?;
        for number in 0..rounds {
            round(&rt, if number % 2 == 0 { &world } else { &other }, number)?;
        }
        job::say("last");
        world.barrier()
    })();
    #[cfg(feature = "fault-points")]
    super::labels::say_passings();
    match result {
        Ok(()) => job::say("done"),
        Err(error) => {
            job::say(&format!("error {victim} {}", job::now()));
            assert!(
                names(&error, victim) || matches!(error, Error::Collective { .. }),
                "instead of the death of {victim}: {error}"
            );
            // Messages between those who are left go on.
            let left: Vec<usize> = (0..RANKS).filter(|&rank| rank != victim).collect();
            let me = left
                .iter()
                .position(|&rank| rank == rt.rank())
                .expect("alive");
            let (next, before) = (
                left[(me + 1) % left.len()],
                left[(me + left.len() - 1) % left.len()],
            );
            let mut got = [0];
            world
                .sendrecv(&[rt.rank()], next, 1, &mut got, before, 1)
                .expect("a message between survivors");
            assert_eq!(got, [before]);
        }
    }
    rt.finalize().expect("finalize");
}

/// Checks what a job left. Says whether the victim died.
fn verify(ran: &CrashRun, victim: usize, what: &str) -> bool {
    let died = ran.ranks[victim] == Death::Signal(9);
    // In the last barrier some may have met before the end.
    let last = !ran.reports(victim, "last").is_empty();
    let absent = |rank: usize| !ran.reports(rank, "absent").is_empty();
    let left = (0..RANKS).filter(|&rank| rank != victim || !died);
    for rank in left.filter(|&rank| !(died && absent(rank))) {
        let story = || format!("{what}: rank {rank}: {}", ran.story());
        assert_eq!(ran.ranks[rank], Death::Code(0), "{}", story());
        let (error, done) = (
            !ran.reports(rank, "error").is_empty(),
            !ran.reports(rank, "done").is_empty(),
        );
        assert!(
            if died { error || last && done } else { done },
            "{}",
            story()
        );
    }
    died
}

fn env(victim: usize, settings: &[(&'static str, &'static str)]) -> Vec<(&'static str, String)> {
    let mut env: Vec<_> = settings
        .iter()
        .map(|&(name, value)| (name, value.to_owned()))
        .collect();
    env.push((VICTIM, victim.to_string()));
    env
}

/// Ways that collectives go: all layers, chunks alone, messages alone, broadcasts by shares, owners that are asked to
/// copy.
const VARIANTS: [&[(&str, &str)]; 5] = [
    &[],
    &[("ONECOPY_LAYERS", "cico")],
    &[("ONECOPY_COLL_POOL", "0")],
    &[("ONECOPY_COLL_RELAY_MIN", "8K")],
    &[("ONECOPY_COLL_ASK", "on")],
];

#[test]
fn a_death_at_any_moment_of_a_collective_is_known_to_all() {
    let mut random = Random(17);
    let (mut deaths, mut delays) = (0, Vec::new());
    for turn in 0..15 {
        let victim = random.below(RANKS as u64) as usize;
        let mut env = env(victim, VARIANTS[turn % VARIANTS.len()]);
        env.push((ROUNDS, "400".to_owned()));
        let micros = 30_000 + random.below(60_000);
        env.push((super::traffic::KILL, format!("{victim}:{micros}")));
        let ran = job::run("collectives", &env);
        deaths += usize::from(verify(&ran, victim, &format!("{env:?}")));
        if let Some(death) = ran.number(victim, "dying", 0) {
            let errors = (0..RANKS).filter_map(|rank| ran.number(rank, "error", 1));
            delays.extend(errors.map(|error| error.saturating_sub(death)));
        }
    }
    job::say(&format!(
        "collectives: {deaths} deaths, from the signal to the error {}",
        job::spread(&mut delays)
    ));
    assert!(deaths > 0);
}

#[cfg(feature = "fault-points")]
mod points {
    use super::super::labels::{CrashJob, FAULT, Fault, NO_FAULT, kill_at_each};
    use super::{CrashRun, ROUNDS, VARIANTS, env, job, verify};

    /// Collectives under one of the variants.
    struct Collectives;

    impl CrashJob for Collectives {
        fn run(&self, variant: usize, fault: Option<Fault>) -> (CrashRun, bool) {
            let victim = fault.map_or(0, |fault| fault.victim);
            let order = fault.map_or(NO_FAULT.to_owned(), |fault| fault.to_string());
            let mut env = env(victim, VARIANTS[variant]);
            env.push((FAULT, order));
            env.push((ROUNDS, "5".to_owned()));
            let ran = job::run("collectives", &env);
            let died = verify(&ran, victim, &format!("{env:?}"));
            (ran, died)
        }

        fn moments(&self, passings: u64) -> Vec<u64> {
            let mut moments = vec![1, passings / 3, passings * 2 / 3];
            moments.retain(|&moment| moment > 0);
            moments.dedup();
            moments
        }
    }

    #[test]
    fn a_death_at_each_point_of_collectives_is_known_to_all() {
        let labels = kill_at_each(&Collectives, VARIANTS.len(), |label| {
            label.starts_with("coll.")
        });
        job::say(&format!("collectives: {labels:?}"));
        // A rank that gives a communicator up is no victim yet: that point is passed by survivors only.
        let missed = labels
            .iter()
            .filter(|(name, label)| label.passings() == 0 && **name != "coll.failed");
        assert_eq!(missed.count(), 0, "{labels:?}");
    }
}
