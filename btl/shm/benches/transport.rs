// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ring and copy kernels on one thread: what their instructions cost, without the travel of lines between processors.
//! That, and the limits of the machine, is what `onecopy bench` measures.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::layout::Geometry;
use onecopy_shm::segment::{OwnSegment, PeerSegment};
use onecopy_shm::sync::HeavyFence;
use std::hint::black_box;
use std::time::Duration;

const KIND: u8 = 1;

/// A record is claimed, written, published, found, read and passed.
fn ring(c: &mut Criterion) {
    let geometry = Geometry {
        ranks: 2,
        ring_slots: 128,
        chunk_bytes: 4096,
        chunks: 8,
        heap_bytes: 0,
        coll_channels: 0,
    };
    let own =
        OwnSegment::create(0, geometry, HeavyFence::without_membarrier(), 5).expect("a segment");
    let fd = own.fd().try_clone_to_owned().expect("a descriptor");
    let peer = PeerSegment::open(fd, 0, 1, &geometry).expect("the segment");
    let mut producer = peer.producer().expect("a ring");
    let mut consumer = own.consumer(1);
    let mut group = c.benchmark_group("ring");
    for len in [8_usize, 48, 256, 1024, 2048] {
        let payload = vec![7_u8; len];
        let mut got = vec![0_u8; len];
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("record", len), |bench| {
            bench.iter(|| {
                let slots = onecopy_shm::ring::slots_for(len);
                let mut claim = producer.claim(slots).expect("room");
                claim.write(0, &payload);
                claim.publish(KIND, len, 3);
                // At the ring's end there may be a no-op before it.
                let record = loop {
                    let record = consumer.peek().expect("valid").expect("published");
                    if record.kind == KIND {
                        break record;
                    }
                    consumer.advance(record);
                };
                consumer.read(&record, 0, &mut got);
                consumer.advance(record);
                consumer.publish_tail();
            });
        });
        assert_eq!(got, payload);
    }
    group.finish();
}

fn copies(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200));
    for size in [64_usize, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let from = vec![5_u8; size];
        let mut to = vec![0_u8; size];
        group.throughput(Throughput::Bytes(size as u64));
        for kernel in [Kernel::Memcpy, Kernel::NonTemporal, Kernel::RepMovsb] {
            group.bench_function(BenchmarkId::new(format!("{kernel:?}"), size), |bench| {
                bench.iter(|| copy_slices(kernel, &mut to, black_box(&from)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, ring, copies);
criterion_main!(benches);
