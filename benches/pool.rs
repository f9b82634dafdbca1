// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool of temporary buffers: what a buffer costs that is taken and given back, alone and while other threads do
//! the same.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use onecopy::memory::pool::{MemoryKind, Pool};
use onecopy::{Options, Runtime, Threads};
use std::time::{Duration, Instant};

/// Each of `threads` takes and gives back so many times; gives the mean time of a thread.
fn many(pool: &Pool, threads: usize, rounds: u64) -> Duration {
    let take = || {
        let begun = Instant::now();
        for _ in 0..rounds {
            drop(pool.take(10_000, MemoryKind::Shared).expect("a buffer"));
        }
        begun.elapsed()
    };
    let sum: Duration = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"))
            .sum()
    });
    sum / u32::try_from(threads).unwrap_or(1)
}

fn pool(c: &mut Criterion) {
    let options = Options {
        threads: Threads::Multiple,
        ..Options::default()
    };
    let runtime = Runtime::init_with(options).expect("a job of one rank");
    let pool = runtime.buffers();
    let mut group = c.benchmark_group("pool");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(1));
    for threads in [1, 2, 4] {
        group.bench_function(BenchmarkId::new("take and give back", threads), |bench| {
            bench.iter_custom(|rounds| many(pool, threads, rounds));
        });
    }
    group.bench_function("system: a vector of the same size", |bench| {
        bench.iter(|| vec![0_u8; 10_000]);
    });
    group.bench_function("made and released", |bench| {
        bench.iter(|| {
            drop(pool.take(10_000, MemoryKind::Shared).expect("a buffer"));
            pool.release_free(u64::MAX)
        });
    });
    group.finish();
}

criterion_group!(benches, pool);
criterion_main!(benches);
