// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a change of the code costs, for a quick look at a desk: ranks are threads of this process. Figures of transport
//! between processes come from `onecopy bench`, which has the machine's limits beside them.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use onecopy::{Runtime, local};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Runs `body` on some ranks and gives the time that it took on rank 0.
fn timed(ranks: usize, body: impl Fn(&Runtime) + Sync) -> Duration {
    let time = Mutex::new(Duration::ZERO);
    local(ranks, |rt: Runtime| {
        rt.world().barrier().expect("barrier");
        let start = Instant::now();
        body(&rt);
        if rt.rank() == 0 {
            *time.lock().expect("one writer") = start.elapsed();
        }
    });
    time.into_inner().expect("one writer")
}

/// A message there and one back: ring, matching, copies.
fn ping_pong(c: &mut Criterion) {
    let mut group = c.benchmark_group("ping-pong");
    for size in [8_usize, 1024, 65_536] {
        group.throughput(Throughput::Bytes(2 * size as u64));
        group.bench_function(size.to_string(), |b| {
            b.iter_custom(|rounds| {
                timed(2, |rt| {
                    let world = rt.world();
                    let mut buffer = vec![0_u8; size];
                    for _ in 0..rounds {
                        if rt.rank() == 0 {
                            world.send(&buffer, 1, 0).expect("send");
                            world.recv(&mut buffer, 1, 0).expect("receive");
                        } else {
                            world.recv(&mut buffer, 0, 0).expect("receive");
                            world.send(&buffer, 0, 0).expect("send");
                        }
                    }
                })
            });
        });
    }
    group.finish();
}

/// A receive that is posted behind many others, and the message that it is for: requests and matching, on one rank.
fn matching(c: &mut Criterion) {
    let mut group = c.benchmark_group("matching");
    for depth in [1_i32, 64, 1024] {
        group.throughput(Throughput::Elements(u64::from(depth.unsigned_abs())));
        group.bench_function(format!("posted-{depth}-deep"), |b| {
            b.iter_custom(|rounds| {
                timed(1, |rt| {
                    let world = rt.world();
                    let mut places = vec![0_u64; depth.unsigned_abs() as usize];
                    for _ in 0..rounds {
                        world.scope(|scope| {
                            for (tag, place) in (0_i32..).zip(places.chunks_mut(1)) {
                                scope.irecv(place, 0, tag).expect("receive");
                            }
                            // The last posted is the first to be matched.
                            for tag in (0..depth).rev() {
                                scope.isend(&[7_u64], 0, tag).expect("send");
                            }
                            scope.wait_all().expect("all");
                        });
                    }
                })
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(3));
    targets = ping_pong, matching
}
criterion_main!(benches);
