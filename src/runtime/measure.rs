// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which stores fill chunks faster between two processors of this machine, and from which size on chunks return.
//!
//! Neither the processor's model nor its features tell that, so it is measured, with the code that sends messages.
//! `onecopy tune` does, and so does the first job on a machine, which keeps the result as the machine's [`profile`].
//! `onecopy run` measures before it starts the ranks, or the first rank of a node under another launcher, before it
//! joins. Until then the processor's maker is a first guess ([`onecopy_obs::machine`]).

use super::{Options, Runtime};
use crate::comm::Comm;
use crate::error::Result;
use crate::machine::{spread_processors, unbind_thread};
use crate::tune::profile::{self, Profile};
use crate::wireup::{self, WireupError};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use onecopy_btl::LayerId;
use onecopy_obs::{ChunkCopy, Knobs, seeds};
use onecopy_shm::copy;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;
/// The kinds of stores that are compared.
const KINDS: [ChunkCopy; 2] = [ChunkCopy::Owned, ChunkCopy::String];
/// A batch of short messages there and back: those that slots hold where they do not return, and longer ones. How often
/// each goes is chosen by magnitude: all take about as long.
const SHORT_BATCH: [(usize, usize); 3] = [(640, 12), (KIB, 10), (2 * KIB, 8)];
/// From which size on messages return, as it is compared.
const RETURN_MINS: [usize; 2] = [seeds::RETURN_MIN_IF_SHORT, seeds::RETURN_MIN];
/// How long short messages are compared for a profile.
const RETURNS_TIME: Duration = Duration::from_millis(20);
/// A batch: messages of each size there and back. Jobs send both sizes in chunks, whatever stores fill these. Of longer
/// ones that is true by strings alone: where calls of the kernel are cheap, they say nothing of what a job gains. How
/// often each goes is chosen by magnitude: both take about as long, some ten microseconds each way.
const BATCH: [(usize, usize); 2] = [(4 << 10, 8), (16 << 10, 4)];
/// By how much one kind must be faster. Less is within what one machine's runs differ. Chosen by magnitude: figures
/// move by 5 % with where the linker puts code (G, 11-28).
const CLEARLY: f64 = 1.05;
/// From so many rounds on a comparison counts. Chosen by magnitude: quartiles of fewer say little.
const ROUNDS_MIN: usize = 16;
/// The ranks never sleep for long, so on an idle machine their threads run all the time. If one had its processor for
/// less than this part of it, other programs took the rest, and bent what was measured. Chosen by magnitude.
const SHARE_MIN: f64 = 0.9;
/// How long the stores are compared for a profile, where the machine is not busy. Chosen by magnitude: some hundred
/// rounds, and a start that nobody sees to be longer.
const PROFILE_TIME: Duration = Duration::from_millis(40);
/// Bytes of the stack of the thread that measures. Those of its ranks have as many as any thread of the language.
/// Chosen by magnitude.
const STACK: usize = 512 << 10;
/// Ranks that are threads of one process join at once, or never.
const JOIN: Duration = Duration::from_secs(2);

/// One of two settings that are compared.
struct Setting {
    knobs: Vec<(&'static str, String)>,
    /// Whether the process prefers vectors meanwhile.
    vectors: bool,
}

/// What a comparison of two values of a setting found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison<T> {
    /// Batches with each, in turn.
    pub rounds: usize,
    /// Median time of a batch with the first, over that with the second.
    pub ratio: f64,
    /// Other programs took the ranks' processors for a while, so the comparison does not count.
    pub busy: bool,
    /// The value that is clearly faster; none: neither, or a busy machine, so the first guess holds.
    pub faster: Option<T>,
}

impl<T> Comparison<T> {
    /// From the ratios of all rounds, and the part of the time for which the ranks had their processors. Most rounds
    /// must agree: another program's burst bends a few.
    fn of([first, second]: [T; 2], mut ratios: Vec<f64>, share: f64) -> Self {
        ratios.sort_by(f64::total_cmp);
        let rounds = ratios.len();
        let quantile = |part: f64| ratios.get((rounds.saturating_sub(1) as f64 * part) as usize);
        let ratio = quantile(0.5).copied().unwrap_or(1.0);
        let busy = share < SHARE_MIN;
        let (low, high) = (quantile(0.25), quantile(0.75));
        let faster = match (low, high) {
            _ if rounds < ROUNDS_MIN || busy => None,
            (Some(&low), _) if low > 1.0 && ratio > CLEARLY => Some(second),
            (_, Some(&high)) if high < 1.0 && ratio < 1.0 / CLEARLY => Some(first),
            _ => None,
        };
        Self {
            rounds,
            ratio,
            busy,
            faster,
        }
    }
}

/// What was found about the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Stores into lines that were asked for, and strings.
    pub stores: Comparison<ChunkCopy>,
    /// Short messages in chunks that return, and as they go elsewhere: bytes from which on messages return.
    pub returns: Comparison<usize>,
}

impl Measured {
    /// The knobs that follow.
    #[must_use]
    pub fn knobs(&self) -> BTreeMap<String, String> {
        self.profile().knobs()
    }

    /// The profile that keeps it.
    #[must_use]
    pub fn profile(&self) -> Profile {
        let Comparison {
            rounds,
            ratio,
            busy,
            faster,
        } = self.stores;
        let kind = faster.map(|kind| kind.to_string());
        let from = self.returns.faster.map(|from| from.to_string());
        Profile::new(rounds, ratio, busy, kind).with_returns(self.returns.ratio, from)
    }
}

/// Measures the machine's profile and keeps it. The error says why not; nothing is lost by it.
pub fn keep_profile() -> std::result::Result<(), String> {
    let claim = profile::Claim::take()?;
    let measured = measure(PROFILE_TIME, RETURNS_TIME).map_err(|error| error.to_string())?;
    let profile = measured.profile();
    // What was clear once stays, if it is not clear now.
    let before = claim.before();
    let profile = match before {
        Some(before) => profile.or(before),
        None => profile,
    };
    claim.keep(&profile)
}

/// As [`keep_profile`], in a rank of another launcher's job, while the others of its node wait in the kernel for it to
/// join. A thread of its own, without signals of the program, is bound to no processor. If it panics, the job goes on.
///
/// It needs no limit of its own: the measurement looks at the clock after each round, and each of its ranks ends with
/// the other.
pub(super) fn before_joining() {
    let measure = || match keep_profile() {
        Ok(()) => tracing::info!("the machine's profile was measured"),
        Err(reason) => tracing::info!("the machine's profile was not measured: {reason}"),
    };
    let started = onecopy_shm::thread::start("onecopy-measure", STACK, move || {
        unbind_thread();
        measure();
    });
    match started.map(std::thread::JoinHandle::join) {
        Ok(Ok(())) => {}
        Ok(Err(_)) => tracing::info!("the measurement of the machine's profile failed"),
        Err(error) => tracing::info!("the machine's profile was not measured: {error}"),
    }
}

/// Compares the stores for this long, and short messages for that long. Each takes up to four times as long on a busy
/// machine. The messages go between two processors that this thread may run on: two cores, if there are. Whether this
/// process copies by vectors ([`copy::prefer_vectors`]) is as before in the end.
pub fn measure(stores: Duration, returns: Duration) -> Result<Measured> {
    let stores = compare(KINDS, of_kind, &BATCH, stores)?;
    let kind = stores.faster.unwrap_or(ChunkCopy::Auto);
    let returning = |from: usize| {
        let Setting { mut knobs, vectors } = of_kind(kind);
        knobs.push((profile::RETURN_KNOB, from.to_string()));
        Setting { knobs, vectors }
    };
    let returns = match written(kind).maps_writable() {
        true => compare(RETURN_MINS, returning, &SHORT_BATCH, returns)?,
        // No chunk returns, so there is nothing to compare.
        false => Comparison {
            faster: Some(seeds::RETURN_MIN),
            ..Comparison::of(RETURN_MINS, Vec::new(), 1.0)
        },
    };
    Ok(Measured { stores, returns })
}

/// Knobs by which chunks are written by this kind of stores.
fn written(kind: ChunkCopy) -> Knobs {
    Knobs {
        chunk_copy: kind,
        ..Knobs::default()
    }
}

fn of_kind(kind: ChunkCopy) -> Setting {
    Setting {
        knobs: vec![(profile::KNOB, kind.to_string())],
        vectors: written(kind).writes_strings(),
    }
}

/// Compares two values of a setting by messages of these sizes.
fn compare<T: Copy>(
    values: [T; 2],
    setting: impl Fn(T) -> Setting,
    sizes: &[(usize, usize)],
    time: Duration,
) -> Result<Comparison<T>> {
    let processors = spread_processors();
    let [first, second, ..] = processors[..] else {
        return Ok(Comparison::of(values, Vec::new(), 1.0));
    };
    let settings = &values.map(setting);
    let mut jobs = Vec::new();
    for _ in settings {
        jobs.push(wireup::local::world_with_timeout(2, JOIN)?);
    }
    let mut ranks: [Vec<_>; 2] = [Vec::new(), Vec::new()];
    for job in jobs {
        for (rank, wireup) in ranks.iter_mut().zip(job) {
            rank.push(wireup);
        }
    }
    let sides = ranks.into_iter().zip([first, second]);
    let before = copy::prefers_vectors();
    let found = std::thread::scope(|scope| {
        let start = |(wireups, processor)| {
            let thread = std::thread::Builder::new();
            let started = thread.spawn_scoped(scope, move || {
                side(settings, sizes, wireups, processor, time)
            });
            started.map_err(|source| WireupError::System {
                call: "measure",
                what: "a thread",
                source,
            })
        };
        let threads = sides
            .map(start)
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.collect::<Result<Vec<SideFindings>>>()
    });
    copy::prefer_vectors(before);
    let found = found?;
    let share = found.iter().map(|side| side.share).fold(1.0, f64::min);
    let ratios = found.into_iter().flat_map(|side| side.ratios);
    Ok(Comparison::of(values, ratios.collect(), share))
}

/// What one of the two ranks of both jobs has found.
struct SideFindings {
    /// On rank 0.
    ratios: Vec<f64>,
    /// The part of the time for which its thread ran.
    share: f64,
}

/// One of the two ranks of both jobs.
fn side(
    settings: &[Setting; 2],
    sizes: &[(usize, usize)],
    wireups: Vec<wireup::local::Local>,
    processor: u16,
    time: Duration,
) -> Result<SideFindings> {
    let mut only = CpuSet::new();
    // A processor that is switched off meanwhile: the kernel finds another one.
    let _ = only.set(processor.into());
    let _ = sched_setaffinity(Pid::from_raw(0), &only);
    let mut runtimes = Vec::new();
    for (setting, wireup) in settings.iter().zip(wireups) {
        let fixed = [
            ("ONECOPY_LAYERS", LayerId::CHUNKS.to_string()),
            ("ONECOPY_EAGER_MAX", "1M".to_owned()),
            // A size that nobody sets. The malloc front gives its memory once, to the first segment with a heap of its
            // size, and that is to be the rank's own.
            ("ONECOPY_HEAP_SIZE", "1088K".to_owned()),
        ];
        let knobs = Knobs::from_iter(fixed.into_iter().chain(setting.knobs.iter().cloned()))?.0;
        runtimes.push(Runtime::init_with(Options {
            knobs,
            wireup: Some(Box::new(wireup)),
            ..Options::default()
        })?);
    }
    let worlds: Vec<Comm> = runtimes.iter().map(Runtime::world).collect();
    let mut buffer = vec![1_u8; sizes.iter().map(|&(len, _)| len).max().unwrap_or(0)];
    let mut ratios = Vec::new();
    let (begin, ran_before) = (Instant::now(), running_time());
    loop {
        let elapsed = begin.elapsed();
        let more = elapsed < time || ratios.len() < ROUNDS_MIN && elapsed < 4 * time;
        let mut again = [u8::from(more)];
        worlds[0].bcast(&mut again, 0)?;
        if again == [0] {
            break;
        }
        let mut times = [0.0; 2];
        // Each kind is first in every other round.
        let first = ratios.len() % 2;
        for kind in [first, 1 - first] {
            // The runtimes share this switch of the process.
            copy::prefer_vectors(settings[kind].vectors);
            batch(&worlds[kind], sizes, &mut buffer)?;
            times[kind] = batch(&worlds[kind], sizes, &mut buffer)?;
        }
        ratios.push(times[0] / times[1]);
    }
    let share = share(running_time().saturating_sub(ran_before), begin.elapsed());
    drop(worlds);
    let rank = runtimes[0].rank();
    for runtime in runtimes {
        runtime.finalize()?;
    }
    if rank > 0 {
        ratios.clear();
    }
    Ok(SideFindings { ratios, share })
}

/// The time for which this thread has run; zero where the system does not count it.
fn running_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The part of `elapsed` in which a thread `ran`.
fn share(ran: Duration, elapsed: Duration) -> f64 {
    match (ran, elapsed) {
        (Duration::ZERO, _) | (_, Duration::ZERO) => 1.0,
        _ => ran.as_secs_f64() / elapsed.as_secs_f64(),
    }
}

/// Seconds of one batch.
fn batch(world: &Comm, sizes: &[(usize, usize)], buffer: &mut [u8]) -> Result<f64> {
    let begin = Instant::now();
    for &(len, count) in sizes {
        let bytes = &mut buffer[..len];
        for _ in 0..count {
            if world.rank() == 0 {
                world.send(&*bytes, 1, 0)?;
                world.recv(bytes, 1, 0)?;
            } else {
                world.recv(bytes, 0, 0)?;
                world.send(&*bytes, 0, 0)?;
            }
        }
    }
    Ok(begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_stores_is_chosen_when_most_rounds_agree() {
        let of = |ratios: Vec<f64>, share| Comparison::of(KINDS, ratios, share);
        let measured = |ratios: &[f64]| of(ratios.repeat(8), 1.0);
        assert_eq!(measured(&[1.3, 1.4, 1.2]).faster, Some(ChunkCopy::String));
        assert_eq!(
            measured(&[0.7, 0.8, 0.9, 9.0]).faster,
            Some(ChunkCopy::Owned)
        );
        assert_eq!(measured(&[1.01, 1.04, 1.02]).faster, None, "hardly faster");
        assert_eq!(
            measured(&[0.5, 1.3, 1.3]).faster,
            None,
            "one round in three says the opposite"
        );
        assert_eq!(
            of(vec![2.0; ROUNDS_MIN - 1], 1.0).faster,
            None,
            "too few rounds"
        );
        let returns = |ratios: Vec<f64>| Comparison::of(RETURN_MINS, ratios, 1.0);
        let nothing = Measured {
            stores: of(Vec::new(), 1.0),
            returns: returns(Vec::new()),
        };
        assert_eq!(nothing.knobs(), BTreeMap::new());
        let knobs = Measured {
            stores: measured(&[2.0, 2.0, 2.0]),
            returns: returns(vec![0.7; ROUNDS_MIN]),
        }
        .knobs();
        assert_eq!(knobs["ONECOPY_CHUNK_COPY"], "string");
        assert_eq!(knobs["ONECOPY_RETURN_MIN"], "512");
        assert!(Knobs::from_iter(knobs).is_ok());
        assert_eq!(returns(vec![1.4; ROUNDS_MIN]).faster, Some(3 << 10));
        assert_eq!(
            returns(vec![0.97; ROUNDS_MIN]).faster,
            None,
            "hardly faster"
        );
    }

    #[test]
    fn what_a_busy_machine_shows_does_not_count() {
        let ratios = vec![2.0; ROUNDS_MIN];
        let measured = |share| Measured {
            stores: Comparison::of(KINDS, ratios.clone(), share),
            returns: Comparison::of(RETURN_MINS, ratios.clone(), share),
        };
        let idle = measured(0.95).stores;
        assert_eq!((idle.busy, idle.faster), (false, Some(ChunkCopy::String)));
        let busy = measured(0.6);
        assert_eq!((busy.stores.busy, busy.stores.faster), (true, None));
        assert!(busy.knobs().is_empty() && busy.profile().busy);
    }

    /// A thread that waits has no processor, as one that another program keeps from running.
    #[test]
    fn the_share_of_a_thread_is_what_it_ran() {
        let (begin, before) = (Instant::now(), running_time());
        let runs = || while running_time() < Duration::from_millis(20) {};
        std::thread::spawn(runs).join().expect("it runs");
        let waited = share(running_time() - before, begin.elapsed());
        assert!(waited < 0.5, "{waited}");
        assert_eq!(
            share(Duration::ZERO, Duration::from_secs(1)),
            1.0,
            "not counted"
        );
        assert_eq!(share(Duration::from_secs(1), Duration::from_secs(4)), 0.25);
    }

    #[test]
    fn this_machine_is_measured() {
        let time = Duration::from_millis(100);
        let Measured { stores, returns } = measure(time, time).expect("measured");
        // Where no chunk returns, there is one thing to compare.
        let is_writable = written(stores.faster.unwrap_or(ChunkCopy::Auto)).maps_writable();
        for (rounds, ratio, is_compared) in [
            (stores.rounds, stores.ratio, true),
            (returns.rounds, returns.ratio, is_writable),
        ] {
            if is_compared && spread_processors().len() > 1 {
                assert!(rounds > 0 && ratio > 0.0, "{stores:?}, {returns:?}");
            } else {
                assert_eq!(rounds, 0);
            }
        }
    }
}
