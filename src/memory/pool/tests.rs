// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool against its rules: one by one, at random against a model, and under threads.

use super::*;
use onecopy_shm::layout::Geometry;
use onecopy_shm::segment::OwnSegment;
use onecopy_shm::sync::HeavyFence;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::mpsc;

fn segment(heap: u64) -> Arc<OwnSegment> {
    let geometry = Geometry {
        ranks: 1,
        ring_slots: 32,
        chunk_bytes: 4096,
        chunks: 4,
        heap_bytes: heap,
        coll_channels: 0,
    };
    Arc::new(OwnSegment::create(0, geometry, HeavyFence::without_membarrier(), 1).unwrap())
}

fn settings(cap: u64, shards: usize) -> Settings {
    Settings {
        buckets: Buckets::new(PAGE, 256 << 10),
        cap,
        age: Duration::from_millis(20),
        collective_share: 64 << 10,
        shards,
    }
}

fn pool(cap: u64, shards: usize) -> Pool {
    Pool::new(settings(cap, shards), Heap::new(segment(64 << 20)))
}

/// Shared memory of a segment as the kernel counts it.
fn blocks(segment: &OwnSegment) -> u64 {
    let stat = nix::sys::stat::fstat(segment.fd()).unwrap();
    u64::try_from(stat.st_blocks).unwrap() * 512
}

/// A figure of this process as the kernel counts it.
fn memory(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap();
    kib << 10
}

/// What the buffer's owner writes at its ends, so that a second owner would be found out.
fn stamp(buf: &mut PoolBuf, mark: u64) {
    let bytes = mark.to_le_bytes();
    let n = buf.len().min(8);
    buf[..n].copy_from_slice(&bytes[..n]);
    let end = buf.len();
    buf[end - n..].copy_from_slice(&bytes[..n]);
}

fn bears(buf: &PoolBuf, mark: u64) -> bool {
    let bytes = mark.to_le_bytes();
    let (n, end) = (buf.len().min(8), buf.len());
    // Of less than 16 bytes the second mark overlies the first.
    buf[end - n..] == bytes[..n] && (end < 16 || buf[..n] == bytes[..n])
}

#[test]
fn a_buffer_given_back_is_found_again() {
    let pool = pool(1 << 20, 1);
    let mut a = pool.take(10_000, MemoryKind::Shared).unwrap();
    assert_eq!((a.len(), a.capacity()), (10_000, 12 << 10));
    let offset = a.offset().unwrap();
    a.fill(9);
    drop(a);
    let b = pool.take(9000, MemoryKind::Shared).unwrap();
    assert_eq!(b.offset(), Some(offset));
    assert!(b.iter().all(|&byte| byte == 9));
    // The same bucket of the other kind is another.
    let c = pool.take(9000, MemoryKind::Private).unwrap();
    assert_eq!(c.offset(), None);
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.bytes), (1, 2, 24 << 10));
    assert_eq!(stats.free_bytes, 0);
}

#[test]
fn a_larger_free_buffer_does_not_serve_a_smaller_request() {
    let pool = pool(1 << 20, 1);
    drop(pool.take(64 << 10, MemoryKind::Private).unwrap());
    let small = pool.take(100, MemoryKind::Private).unwrap();
    assert_eq!(small.capacity(), PAGE);
}

#[test]
fn requests_beyond_the_capacity_are_served_counted_and_not_retained() {
    let pool = pool(64 << 10, 1);
    let buffers: Vec<_> = (0..10)
        .map(|_| pool.take(16 << 10, MemoryKind::Shared).unwrap())
        .collect();
    let stats = pool.stats();
    assert_eq!((stats.bytes, stats.beyond_cap), (160 << 10, 6));
    drop(buffers);
    let stats = pool.stats();
    assert_eq!((stats.bytes, stats.free_bytes), (64 << 10, 64 << 10));
    assert_eq!((stats.releases, stats.released_bytes), (6, 96 << 10));
    assert_eq!(stats.peak_bytes, 160 << 10);
    // Growth near the capacity releases what is free.
    let other = pool.take(30 << 10, MemoryKind::Shared).unwrap();
    let stats = pool.stats();
    assert!(stats.bytes <= pool.settings().near(), "{stats:?}");
    assert_eq!(stats.beyond_cap, 6);
    drop(other);
    // Larger than any bucket: served, not retained.
    let huge = pool.take(1 << 20, MemoryKind::Shared).unwrap();
    assert_eq!(pool.stats().beyond_cap, 7);
    drop(huge);
    assert!(pool.stats().bytes <= 64 << 10);
}

#[test]
fn a_full_heap_is_emptied_of_free_buffers_and_then_stood_in_for() {
    let pool = Pool::new(settings(1 << 30, 1), Heap::new(segment(256 << 10)));
    let all: Vec<_> = (0..4)
        .map(|_| pool.take(64 << 10, MemoryKind::Shared).unwrap())
        .collect();
    assert!(all.iter().all(|buf| buf.offset().is_some()));
    let one_more = pool.take(128 << 10, MemoryKind::Shared).unwrap();
    assert_eq!(one_more.offset(), None);
    assert!(pool.try_take_collective(PAGE).is_none());
    assert_eq!(pool.stats().collective_bytes, 0);
    drop(all);
    let now_it_fits = pool.take(128 << 10, MemoryKind::Shared).unwrap();
    assert!(now_it_fits.offset().is_some());
    drop(one_more);
    assert_eq!(
        pool.stats().free_bytes,
        0,
        "private memory is not kept as shared"
    );
}

#[test]
fn without_a_heap_everything_is_private_and_collectives_get_nothing() {
    let pool = Pool::new(settings(1 << 20, 1), Heap::new(segment(0)));
    let buf = pool.take(5000, MemoryKind::Shared).unwrap();
    assert_eq!(buf.offset(), None);
    drop(buf);
    assert_eq!(pool.stats().free_bytes, 8192);
    assert!(pool.try_take_collective(100).is_none());
}

#[test]
fn what_cannot_be_had_at_all_is_an_error() {
    let pool = pool(1 << 20, 1);
    drop(pool.take(5000, MemoryKind::Private).unwrap());
    assert!(pool.take(usize::MAX / 2, MemoryKind::Private).is_err());
    assert!(pool.take(usize::MAX, MemoryKind::Shared).is_err());
    let stats = pool.stats();
    assert_eq!(stats.bytes, stats.free_bytes);
    pool.take(5000, MemoryKind::Private).unwrap();
}

#[test]
fn collectives_have_a_share_and_no_more() {
    let pool = pool(1 << 20, 2);
    let a = pool.try_take_collective(32 << 10).unwrap();
    let b = pool.try_take_collective(30 << 10).unwrap();
    assert!(a.offset().is_some() && b.offset().is_some());
    assert!(pool.try_take_collective(1).is_none());
    // Others are not held to the share.
    let c = pool.take(128 << 10, MemoryKind::Shared).unwrap();
    drop(a);
    let d = pool.try_take_collective(20 << 10).unwrap();
    let stats = pool.stats();
    assert_eq!(stats.collective_bytes, (32 << 10) + (24 << 10));
    assert_eq!(stats.collective_refusals, 1);
    drop((b, c, d));
    assert_eq!(pool.stats().collective_bytes, 0);
    assert!(pool.try_take_collective(usize::MAX).is_none());
}

/// Runs a test alone in a process of its own: the kernel counts what other tests of this one have, too. Whether this is
/// that process.
fn alone(test: &str) -> bool {
    const ALONE: &str = "TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let path = module_path!().split_once("::").unwrap().1;
    let ran = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{path}::{test}"), "--nocapture"])
        .env(ALONE, "")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    false
}

/// The sixth rule, against the kernel's own count.
#[test]
fn memory_is_back_at_its_start_after_a_burst() {
    if !alone("memory_is_back_at_its_start_after_a_burst") {
        return;
    }
    let segment = segment(256 << 20);
    let pool = Pool::new(settings(64 << 20, 2), Heap::new(Arc::clone(&segment)));
    let (shared_before, private_before) = (blocks(&segment), memory("Anonymous:"));
    let burst = || -> Vec<PoolBuf> {
        let take = |kind| (0..120).map(move |_| (kind, 200 << 10));
        take(MemoryKind::Shared)
            .chain(take(MemoryKind::Private))
            .map(|(kind, bytes)| {
                let mut buf = pool.take(bytes, kind).unwrap();
                buf.fill(1);
                buf
            })
            .collect()
    };
    drop(burst());
    let held = pool.stats().bytes;
    assert!(held == 60 << 20, "{held}");
    assert_eq!(blocks(&segment) - shared_before, 30 << 20);
    let private = memory("Anonymous:") - private_before;
    assert!(private >= 120 * (200 << 10), "{private}");

    // Progress calls are all that happens.
    let begun = Instant::now();
    while pool.stats().bytes > 0 && begun.elapsed() < Duration::from_secs(20) {
        pool.tick(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pool.stats().bytes, 0);
    assert_eq!(blocks(&segment), shared_before);
    let private = memory("Anonymous:").saturating_sub(private_before);
    assert!(private < 1 << 20, "{private}");
}

#[test]
fn what_is_needed_does_not_age() {
    let pool = pool(16 << 20, 1);
    let mut buffers: Vec<_> = (0..8)
        .map(|_| pool.take(PAGE, MemoryKind::Private).unwrap())
        .collect();
    buffers.truncate(0);
    pool.age_out();
    let warm = pool.stats().misses;
    for _ in 0..50 {
        // Three at a time are in use.
        let three: Vec<_> = (0..3)
            .map(|_| pool.take(PAGE, MemoryKind::Private).unwrap())
            .collect();
        drop(three);
        pool.age_out();
    }
    let stats = pool.stats();
    assert_eq!(stats.misses, warm);
    assert_eq!(stats.bytes, 3 * PAGE as u64);
}

#[test]
fn a_look_is_due_once_per_period_and_sooner_near_the_capacity() {
    let age = Duration::from_secs(1000);
    let settings = Settings {
        age,
        ..settings(64 << 10, 1)
    };
    let pool = Pool::new(settings, Heap::new(segment(1 << 20)));
    let start = Instant::now();
    drop(pool.take(PAGE, MemoryKind::Private).unwrap());
    pool.tick(start + age / 2);
    pool.tick(start + age + age / 100);
    assert_eq!(
        pool.stats().free_bytes,
        PAGE as u64,
        "needed in this period"
    );
    pool.tick(start + age + age / 50);
    assert_eq!(pool.stats().free_bytes, PAGE as u64, "the next is not over");
    pool.tick(start + age * 2 + age / 50);
    assert_eq!(pool.stats().free_bytes, 0);

    let later = start + age * 2 + age / 50;
    let hold = pool.take(60 << 10, MemoryKind::Private).unwrap();
    assert!(pool.stats().bytes > pool.settings().near());
    drop(hold);
    pool.tick(later + age / 5);
    pool.tick(later + age * 2 / 5);
    assert_eq!(pool.stats().free_bytes, 0);
}

#[derive(Debug, Clone)]
enum Step {
    Take(usize, MemoryKind),
    Collective(usize),
    Give(usize),
    Age,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        4 => 0usize..20_000,
        2 => 0usize..256 << 10,
        1 => 0usize..600 << 10
    ];
    let kind = prop_oneof![Just(MemoryKind::Shared), Just(MemoryKind::Private)];
    prop_oneof![
        6 => (bytes.clone(), kind).prop_map(|(bytes, kind)| Step::Take(bytes, kind)),
        1 => bytes.prop_map(Step::Collective),
        6 => (0usize..64).prop_map(Step::Give),
        1 => Just(Step::Age)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every rule that can be stated of one thread, after every step.
    #[test]
    fn the_rules_hold_after_every_step(cap in 0u64..800_000, steps in prop::collection::vec(step(), 0..120)) {
        let pool = pool(cap, 2);
        let mut held: Vec<(PoolBuf, u64)> = Vec::new();
        let mut takes = 0u64;
        let mut mark = 1;
        for step in steps {
            let before = pool.stats();
            match step {
                Step::Take(bytes, kind) => {
                    takes += 1;
                    let mut buf = pool.take(bytes, kind).unwrap();
                    prop_assert_eq!(buf.len(), bytes);
                    prop_assert_eq!(buf.as_ptr() as usize % PAGE, 0);
                    prop_assert_eq!(buf.offset().is_some(), kind == MemoryKind::Shared);
                    let expected = pool.settings().buckets.index(bytes)
                        .map_or(bytes.next_multiple_of(PAGE), |bucket| pool.settings().buckets.size(bucket));
                    prop_assert_eq!(buf.capacity(), expected);
                    let after = pool.stats();
                    if after.misses > before.misses {
                        prop_assert_eq!(after.beyond_cap - before.beyond_cap, u64::from(after.bytes > cap));
                        // Nothing is beyond, or near, while there is something free to release.
                        prop_assert!(after.bytes <= pool.settings().near() || after.free_bytes == 0);
                    }
                    stamp(&mut buf, mark);
                    held.push((buf, mark));
                    mark += 1;
                }
                Step::Collective(bytes) => {
                    let size = pool.settings().buckets.index(bytes)
                        .map_or(bytes.next_multiple_of(PAGE), |bucket| pool.settings().buckets.size(bucket)) as u64;
                    let fits = before.collective_bytes + size <= pool.settings().collective_share;
                    let got = pool.try_take_collective(bytes);
                    prop_assert_eq!(got.is_some(), fits);
                    if let Some(mut buf) = got {
                        takes += 1;
                        stamp(&mut buf, mark);
                        held.push((buf, mark));
                        mark += 1;
                    }
                }
                Step::Give(which) if !held.is_empty() => {
                    let (buf, mark) = held.swap_remove(which % held.len());
                    prop_assert!(bears(&buf, mark), "somebody else wrote to it");
                    let bytes = buf.capacity() as u64;
                    drop(buf);
                    let after = pool.stats();
                    let kept = after.free_bytes - before.free_bytes;
                    prop_assert!(kept == bytes || kept == 0 && (before.bytes > cap || bytes > 256 << 10));
                }
                Step::Give(_) => {}
                Step::Age => { pool.age_out(); }
            }
            let stats = pool.stats();
            let out: u64 = held.iter().map(|(buf, _)| buf.capacity() as u64).sum();
            prop_assert_eq!(stats.bytes, stats.free_bytes + out);
            prop_assert!(stats.free_bytes <= cap);
            prop_assert_eq!(stats.hits + stats.misses, takes);
            prop_assert_eq!(stats.grown_bytes, stats.bytes + stats.released_bytes);
            prop_assert!(stats.peak_bytes >= stats.bytes);
        }
        drop(held);
        pool.age_out();
        pool.age_out();
        prop_assert_eq!(pool.stats().bytes, 0);
        prop_assert_eq!(pool.stats().collective_bytes, 0);
    }
}

/// What a thread does with the pool: takes, holds, gives back, or hands to the next thread to give back.
fn work(
    pool: &Pool,
    seed: u64,
    steps: usize,
    next: &mpsc::Sender<(PoolBuf, u64)>,
    from: &mpsc::Receiver<(PoolBuf, u64)>,
) -> BTreeMap<&'static str, u64> {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut counts = BTreeMap::from([("takes", 0), ("collective", 0)]);
    let mut held: Vec<(PoolBuf, u64)> = Vec::new();
    for step in 0..steps as u64 {
        let choice = random();
        let bytes = (random() % [5000, 60_000, 300_000][(choice >> 32) as usize % 3]) as usize;
        match choice % 8 {
            0..4 => {
                let kind = [MemoryKind::Shared, MemoryKind::Private][(choice >> 16) as usize % 2];
                let mut buf = pool.take(bytes, kind).expect("served");
                *counts.get_mut("takes").expect("there") += 1;
                assert!(buf.len() == bytes && buf.capacity() >= bytes);
                let mark = seed << 32 | step;
                stamp(&mut buf, mark);
                held.push((buf, mark));
            }
            4 => {
                if let Some(mut buf) = pool.try_take_collective(bytes) {
                    *counts.get_mut("takes").expect("there") += 1;
                    let mark = seed << 32 | step;
                    stamp(&mut buf, mark);
                    held.push((buf, mark));
                } else {
                    *counts.get_mut("collective").expect("there") += 1;
                }
            }
            5 if !held.is_empty() => {
                let given = held.swap_remove(choice as usize % held.len());
                next.send(given).expect("the other lives");
            }
            6 => {
                pool.tick(Instant::now());
            }
            _ => {
                if held.len() > 8 {
                    held.remove(0);
                }
            }
        }
        for (buf, mark) in &held {
            assert!(bears(buf, *mark), "a buffer has two owners");
        }
        while let Ok((buf, mark)) = from.try_recv() {
            assert!(bears(&buf, mark), "a buffer has two owners");
        }
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Threads take, give back what others took, and age the pool, while statistics are read.
    #[test]
    fn the_rules_hold_under_threads(threads in 2usize..6, shards in 0u32..4, cap in 0u64..2_000_000, seed in 1u64..1 << 30) {
        let pool = pool(cap, 1 << shards);
        let (mut tell, mut hear): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
        tell.rotate_left(1);
        let finished = AtomicU64::new(0);
        let counts: Vec<_> = std::thread::scope(|scope| {
            let watched = &pool;
            let finished = &finished;
            scope.spawn(move || {
                while finished.load(Ordering::Relaxed) < threads as u64 {
                    let stats = watched.stats();
                    assert!(stats.collective_bytes <= watched.settings().collective_share);
                    assert!(stats.free_bytes <= stats.peak_bytes);
                    std::thread::yield_now();
                }
            });
            let workers: Vec<_> = tell.drain(..).zip(hear.drain(..)).enumerate().map(|(thread, (tell, hear))| {
                let pool = pool.clone();
                scope.spawn(move || {
                    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        work(&pool, seed + thread as u64, 400, &tell, &hear)
                    }));
                    finished.fetch_add(1, Ordering::Relaxed);
                    // What others still send is given back when the ends of the channel go.
                    (done, hear)
                })
            }).collect();
            let ended: Vec<_> = workers.into_iter().map(|worker| worker.join().expect("caught")).collect();
            ended.into_iter().map(|(done, _)| done.expect("no rule was broken")).collect()
        });
        let sum = |name: &str| counts.iter().map(|count| count[name]).sum::<u64>();
        let stats = pool.stats();
        prop_assert_eq!(stats.hits + stats.misses, sum("takes"));
        prop_assert_eq!(stats.collective_refusals, sum("collective"));
        prop_assert_eq!(stats.bytes, stats.free_bytes, "everything came back");
        prop_assert_eq!(stats.grown_bytes, stats.bytes + stats.released_bytes);
        prop_assert!(stats.bytes <= cap);
        prop_assert_eq!(stats.collective_bytes, 0);
        pool.age_out();
        pool.age_out();
        prop_assert_eq!(pool.stats().bytes, 0);
    }
}
