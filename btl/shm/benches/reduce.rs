// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reduction kernels beside a copy of the same bytes, which is the limit: a kernel at memory speed takes hardly longer.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::reduce::{ElemType, PredefinedOp, combine_slices, reduce_into};
use std::hint::black_box;
use std::time::Duration;

const CASES: [(PredefinedOp, ElemType); 12] = [
    (PredefinedOp::Sum, ElemType::F64),
    (PredefinedOp::Sum, ElemType::F32),
    (PredefinedOp::Sum, ElemType::I32),
    (PredefinedOp::Sum, ElemType::I8),
    (PredefinedOp::Prod, ElemType::F64),
    (PredefinedOp::Prod, ElemType::I64),
    (PredefinedOp::Prod, ElemType::U8),
    (PredefinedOp::Prod, ElemType::ComplexF64),
    (PredefinedOp::Max, ElemType::F32),
    (PredefinedOp::Min, ElemType::I64),
    (PredefinedOp::LogicalXor, ElemType::I32),
    (PredefinedOp::MaxLoc, ElemType::F64Index),
];

const SIZES: [usize; 5] = [1 << 10, 32 << 10, 1 << 20, 8 << 20, 64 << 20];

fn kernels(c: &mut Criterion) {
    for size in SIZES {
        let mut group = c.benchmark_group(format!("reduce/{size}"));
        group
            .throughput(Throughput::Bytes(size as u64))
            .sample_size(10)
            .warm_up_time(Duration::from_millis(50))
            .measurement_time(Duration::from_millis(200));
        // Ones as floats are no special values; kernels do not depend on what they combine.
        let (a, b) = (vec![0x3Fu8; size], vec![0x3Fu8; size]);
        let mut out = vec![0u8; size];
        group.bench_function("limit copy", |bench| {
            bench.iter(|| copy_slices(Kernel::Memcpy, &mut out, black_box(&a)));
        });
        group.bench_function("limit streaming copy", |bench| {
            bench.iter(|| copy_slices(Kernel::NonTemporal, &mut out, black_box(&a)));
        });
        for (op, elem) in CASES {
            let name = format!("{op:?} {elem:?}");
            let id = |form: &str| BenchmarkId::new(form, &name);
            group.bench_function(id("in place"), |bench| {
                bench.iter(|| reduce_into(op, elem, &mut out, black_box(&a)));
            });
            group.bench_function(id("apart"), |bench| {
                bench.iter(|| combine_slices(op, elem, &mut out, black_box(&a), &b));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, kernels);
criterion_main!(benches);
