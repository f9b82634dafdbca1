// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kinds of memory and copies, over the driver in software.
//!
//! # Safety
//! Functions of the driver beside this file, called as its header says.
#![allow(unsafe_code, reason = "calls of the driver")]

#[path = "driver/build.rs"]
mod build;
#[path = "driver/harness.rs"]
mod harness;
#[path = "../../../tests/harness/limit.rs"]
mod limit;

use harness::*;
use onecopy_cuda::copies::ToDevice;
use onecopy_cuda::pipeline::{Settled, Sink, Source};
use onecopy_cuda::{Error, Kind, memory};
use onecopy_shm::sync::{AtomicBool, AtomicU32, Ordering};
use std::ops::Range;
use std::ptr::null_mut;

#[test]
fn memory_of_the_device_cannot_be_touched_as_on_a_device() {
    let driver = driver();
    let device = driver.alloc(4096);
    let mut out = [0u8; 8];
    let local = [std::io::IoSliceMut::new(&mut out)];
    let remote = nix::sys::uio::RemoteIoVec {
        base: device as usize,
        len: 8,
    };
    let own = nix::unistd::getpid();
    let mut local = local;
    let read = nix::sys::uio::process_vm_readv(own, &mut local, &[remote]);
    assert_eq!(read, Err(nix::errno::Errno::EFAULT));
}

#[test]
fn each_kind_of_memory_is_known_by_any_of_its_addresses() {
    let driver = driver();
    let kind = |address| {
        memory::of(address)
            .expect("an answer")
            .map(|found| found.kind)
    };
    let device = driver.alloc(1 << 20);
    assert_eq!(kind(device), Some(Kind::Device));
    assert_eq!(kind(device + (1 << 20) - 1), Some(Kind::Device));
    assert_eq!(kind(driver.managed(4096) + 7), Some(Kind::Managed));
    let mut pinned = null_mut();
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.library.cuMemAllocHost)(&raw mut pinned, 4096) };
    assert_eq!(
        kind(pinned.expose_provenance() as u64 + 1),
        Some(Kind::Pinned)
    );
    let plain = [0u8; 64];
    assert_eq!(kind(plain.as_ptr().expose_provenance() as u64), None);
    let mut pooled = 0;
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.library.cuMemAllocAsync.expect("pools"))(&raw mut pooled, 4096, null_mut()) };
    assert_eq!(kind(pooled), Some(Kind::Device));
    let bytes = pattern(4096, 3);
    put(whole(pooled), &bytes).expect("memory without a context");
    assert_eq!(get(whole(pooled), 4096).expect("a copy"), bytes);
}

#[test]
fn an_address_that_is_freed_and_given_out_again_is_known_anew() {
    let driver = driver();
    for turn in 0..50 {
        let first = driver.alloc(4096);
        let before = memory::of(first).expect("an answer").expect("known");
        assert_eq!((before.kind, before.len), (Kind::Device, 4096));
        driver.free(first);
        assert_eq!(memory::of(first), Ok(None), "freed");
        let second = driver.managed(8192);
        assert_eq!(second, first, "the same address in turn {turn}");
        let after = memory::of(second).expect("an answer").expect("known");
        assert_eq!((after.kind, after.len), (Kind::Managed, 8192));
        assert_ne!(before.id, after.id);
        driver.free(second);
    }
}

#[test]
fn bytes_go_to_a_device_and_back_at_every_length() {
    let driver = driver();
    let longest = 9 * CHUNK + 12345;
    let device = driver.alloc(longest);
    let managed = driver.managed(longest);
    for (seed, len) in [0, 1, 8, 4095, CHUNK - 1, CHUNK, CHUNK + 1, longest]
        .into_iter()
        .enumerate()
    {
        for base in [device, managed] {
            let bytes = pattern(len, seed as u8);
            put(whole(base), &bytes).expect("a copy to the device");
            assert!(
                get(whole(base), len).expect("a copy from it") == bytes,
                "{len}"
            );
        }
    }
}

#[test]
fn rows_leave_alone_what_is_between_them() {
    let driver = driver();
    let (width, pitch, count) = (24u64, 40u64, 5_000usize);
    let span = pitch as usize * count;
    let device = driver.alloc(span);
    let before = pattern(span, 1);
    put(whole(device), &before).expect("a copy");
    let bytes = pattern(width as usize * count, 2);
    put(rows(device, width, pitch), &bytes).expect("rows");
    assert!(get(rows(device, width, pitch), bytes.len()).expect("rows") == bytes);
    let after = get(whole(device), span).expect("a copy");
    for (row, (old, new)) in before.chunks(40).zip(after.chunks(40)).enumerate() {
        assert_eq!(new[24..], old[24..], "row {row}");
        assert_eq!(new[..24], bytes[row * 24..][..24], "row {row}");
    }
}

#[test]
fn runs_may_lie_in_a_device_and_in_the_host() {
    let driver = driver();
    let device = driver.alloc(4096);
    let mut host = vec![0u8; 4096];
    let at = host.as_mut_ptr().expose_provenance() as u64;
    let both = || {
        move |range: Range<u64>, each: &mut dyn FnMut(u64, usize)| {
            assert_eq!(range, 0..8192);
            each(device, 4096);
            each(at, 4096);
        }
    };
    let bytes = pattern(8192, 9);
    put(both(), &bytes).expect("a copy");
    assert_eq!(get(both(), 8192).expect("a copy"), bytes);
    assert_eq!(host, bytes[4096..]);
}

/// Lets the kernel end, whatever has become of the test: the blocking copy waits for it.
struct EndsKernel<'w>(&'w AtomicU32);

impl Drop for EndsKernel<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Release);
    }
}

#[test]
fn copies_end_while_a_kernel_that_waits_for_them_occupies_the_device() {
    let driver = driver();
    let len = 3 * CHUNK + 5;
    let device = driver.alloc(len);
    let bytes = pattern(len, 4);
    put(whole(device), &bytes).expect("a copy");
    // The default stream, and the thread's own one.
    for stream in [0, 2] {
        let word = AtomicU32::new(0);
        driver.spin(&word, 1, stream);
        let over = AtomicBool::new(false);
        let context = driver.context.expose_provenance();
        std::thread::scope(|scope| {
            let _ended = EndsKernel(&word);
            scope.spawn(|| {
                let context = std::ptr::with_exposed_provenance_mut(context);
                // SAFETY: the test's context, which lives until the thread has ended.
                unsafe { (driver.functions.set_current)(context) };
                let mut out = [0u8; 8];
                // SAFETY: as a program copies that does not know better.
                unsafe { (driver.functions.blocking_copy)(out.as_mut_ptr().cast(), device, 8) };
                over.store(true, Ordering::Release);
            });
            let before = driver.blocking_calls();
            for len in [8, 4096, len] {
                assert!(get(whole(device), len).expect("a copy") == bytes[..len]);
                put(whole(device), &bytes[..len]).expect("a copy");
            }
            // The program's own names the default stream and waits, if it had not begun before.
            let calls = driver.blocking_calls() - before;
            assert!(calls <= 2, "{calls} blocking calls");
            assert!(
                !over.load(Ordering::Acquire),
                "the blocking copy did not wait"
            );
        });
        assert!(over.load(Ordering::Acquire));
    }
}

/// Moves the bytes of a send to a receive, as an engine would, and gives how many pieces that took.
fn carry(source: &Source, sink: &Sink, step: usize) -> usize {
    let (len, mut done, mut pieces) = (source.len(), 0, 0);
    while done < len {
        let room = sink.room(done..len).expect("room");
        let ready = source.ready(done..len).expect("bytes") as u64;
        let n = room.min(ready).min(step as u64) as usize;
        if n == 0 {
            source.advance();
            sink.advance();
            std::thread::yield_now();
            continue;
        }
        let taken = sink.take(done, n, &mut |at, out| {
            let shown = source.show(done + at as u64, out.len(), &mut |start, bytes| {
                out[start..start + bytes.len()].copy_from_slice(bytes);
            });
            assert!(shown, "{at} of {n} bytes at {done}");
        });
        assert!(taken);
        done += n as u64;
        pieces += 1;
    }
    source.close();
    pieces
}

fn settle(mut settled: impl FnMut() -> Settled, mut advance: impl FnMut()) -> Result<(), Error> {
    loop {
        if let Some(end) = settled() {
            return end;
        }
        advance();
        std::thread::yield_now();
    }
}

fn settle_both(source: &Source, sink: &Sink) {
    settle(|| source.settled(), || _ = source.advance()).expect("a copy from the device");
    settle(|| sink.settled(), || _ = sink.advance()).expect("a copy to the device");
}

fn source_of(base: u64, len: usize) -> Source {
    // SAFETY: memory of the test, which waits.
    unsafe { Source::new(whole(base), len as u64) }
}

fn sink_of(base: u64, len: usize) -> Sink {
    // SAFETY: memory of the test, which waits.
    unsafe { Sink::new(whole(base), len as u64) }
}

#[test]
fn pieces_come_and_go_at_every_length() {
    let driver = driver();
    let longest = 21 * CHUNK + 12345;
    let (from, to) = (driver.alloc(longest), driver.alloc(longest));
    for (seed, len) in [1, 4095, CHUNK, CHUNK + 1, 5 * CHUNK - 1, longest]
        .into_iter()
        .enumerate()
    {
        for step in [64 << 10, 3 * CHUNK] {
            let bytes = pattern(len, seed as u8);
            put(whole(from), &bytes).expect("a copy");
            let (source, sink) = (source_of(from, len), sink_of(to, len));
            carry(&source, &sink, step);
            settle_both(&source, &sink);
            assert!(
                get(whole(to), len).expect("a copy") == bytes,
                "{len}, {step}"
            );
        }
    }
}

/// More messages than there are chunks, all begun before any goes on: each still does, the last one first.
#[test]
fn each_message_goes_on_whatever_others_keep() {
    const MESSAGES: usize = 24;
    let driver = driver();
    // SAFETY: a look.
    let registered = || unsafe { (driver.functions.registered)() };
    let before = registered();
    let len = 3 * CHUNK + 77;
    let (from, to) = (driver.alloc(MESSAGES * len), driver.alloc(MESSAGES * len));
    let bytes = pattern(MESSAGES * len, 8);
    put(whole(from), &bytes).expect("a copy");
    let at = |base: u64, index: usize| base + (index * len) as u64;
    let sources: Vec<_> = (0..MESSAGES)
        .map(|index| source_of(at(from, index), len))
        .collect();
    let sinks: Vec<_> = (0..MESSAGES)
        .map(|index| sink_of(at(to, index), len))
        .collect();
    for (source, sink) in sources.iter().zip(&sinks) {
        // Those that find nothing more to reserve get a short piece, and keep it.
        while source.ready(0..len as u64).expect("bytes") == 0 {
            source.advance();
        }
        while sink.room(0..len as u64).expect("room") == 0 {
            sink.advance();
        }
    }
    // A call still finds chunks for its copies.
    assert!(get(whole(from), len).expect("a copy") == bytes[..len]);
    for (source, sink) in sources.iter().zip(&sinks).rev() {
        carry(source, sink, 100_000);
        settle_both(source, sink);
    }
    assert!(get(whole(to), bytes.len()).expect("a copy") == bytes);
    let more = registered() - before;
    assert!(more <= 16 << 20, "{more} bytes more are registered");
}

/// A receiver asks again for what it has lost, and passes over what it has.
#[test]
fn bytes_may_be_asked_for_again() {
    let driver = driver();
    let len = 9 * CHUNK;
    let from = driver.alloc(len);
    let bytes = pattern(len, 12);
    put(whole(from), &bytes).expect("a copy");
    let source = source_of(from, len);
    for start in [0, 5 * CHUNK + 9, 7, CHUNK, len - 1, 3 * CHUNK] {
        let range = start as u64..len as u64;
        let ready = loop {
            match source.ready(range.clone()).expect("bytes") {
                0 => _ = source.advance(),
                ready => break ready,
            }
        };
        let mut got = Vec::new();
        assert!(source.show(range.start, ready, &mut |_, bytes| {
            got.extend_from_slice(bytes)
        }));
        assert!(got == bytes[start..start + ready], "from {start}");
    }
    source.close();
    settle(|| source.settled(), || _ = source.advance()).expect("a copy");
}

/// A device that does nothing keeps the chunks of its own pool alone.
#[test]
fn a_device_that_is_stuck_keeps_no_chunks_of_another() {
    let driver = driver();
    let stuck = driver.alloc(64 * CHUNK);
    let mut other = null_mut();
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.functions.create)(&raw mut other, 0, 1) };
    let well = driver.alloc(CHUNK);
    // SAFETY: the driver in software only remembers it.
    unsafe { (driver.functions.hold)(0, 1) };
    // The first ones take all chunks that there may be.
    let bytes = pattern(CHUNK, 1);
    let mut jobs: Vec<_> = (0..64).map(|_| ToDevice::new()).collect();
    for job in &mut jobs {
        // SAFETY: memory of the test, which waits.
        let over = unsafe { job.advance(&mut whole(stuck), &bytes) };
        assert_eq!(over, Ok(false));
    }
    put(whole(well), &bytes).expect("the other device");
    assert!(get(whole(well), CHUNK).expect("the other device") == bytes);
    // SAFETY: as above.
    unsafe { (driver.functions.hold)(0, 0) };
    for job in &mut jobs {
        // SAFETY: memory of the test, which waits.
        while !unsafe { job.advance(&mut whole(stuck), &bytes) }.expect("the first device") {
            std::thread::yield_now();
        }
    }
    // SAFETY: a context of this test.
    unsafe { (driver.functions.destroy)(other) };
}

/// The program may free a buffer when it is told that a copy has failed: by then none is under way.
#[test]
fn an_error_is_told_when_no_copy_is_under_way_any_more() {
    let driver = driver();
    let device = driver.alloc(2 * CHUNK);
    let bytes = pattern(2 * CHUNK + 10, 3);
    let hold = |on| {
        // SAFETY: the driver in software only remembers it.
        unsafe { (driver.functions.hold)(0, on) };
    };
    // The third piece lies beyond the allocation.
    hold(1);
    let mut job = ToDevice::new();
    let mut advance = || {
        // SAFETY: memory of the test, which waits.
        unsafe { job.advance(&mut whole(device), &bytes) }
    };
    let sink = sink_of(device, bytes.len());
    let source = source_of(device, bytes.len());
    sink.take(0, bytes.len(), &mut |at, out| {
        out.copy_from_slice(&bytes[at..at + out.len()])
    });
    for _ in 0..100 {
        assert_eq!(advance(), Ok(false));
        let _ = source.ready(0..bytes.len() as u64);
        source.advance();
        sink.advance();
        assert_eq!((source.settled(), sink.settled()), (None, None));
    }
    hold(0);
    let end = loop {
        match advance() {
            Ok(true) => panic!("the buffer is too short"),
            Ok(false) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(end.to_string().contains("ends before them"), "{end}");
    assert!(end.to_string().ends_with("within the allocation"), "{end}");
    for end in [
        settle(|| source.settled(), || _ = source.advance()),
        settle(|| sink.settled(), || _ = sink.advance()),
    ] {
        let end = end.expect_err("too short");
        assert!(end.to_string().contains("ends before them"), "{end}");
    }
}

#[test]
fn nothing_waits_for_the_device_or_uses_a_default_stream() {
    let driver = driver();
    let device = driver.alloc(4 * CHUNK);
    let bytes = pattern(4 * CHUNK, 5);
    let before = driver.blocking_calls();
    for _ in 0..10 {
        put(whole(device), &bytes).expect("a copy");
        assert!(get(whole(device), bytes.len()).expect("a copy") == bytes);
    }
    assert_eq!(driver.blocking_calls(), before);
}

#[test]
fn a_capture_of_the_program_goes_on_during_copies() {
    let driver = driver();
    let device = driver.alloc(2 * CHUNK);
    let bytes = pattern(2 * CHUNK, 6);
    // SAFETY: the driver in software only remembers it.
    unsafe { (driver.functions.capture)(1) };
    put(whole(device), &bytes).expect("a copy");
    assert!(get(whole(device), bytes.len()).expect("a copy") == bytes);
    // SAFETY: a look.
    let broken = unsafe { (driver.functions.capture_is_broken)() };
    // The program itself may not do so.
    let mut address = 0;
    // SAFETY: the place for the answer is ours.
    let refused = unsafe { (driver.library.cuMemAlloc)(&raw mut address, 1) };
    // SAFETY: as above.
    unsafe { (driver.functions.capture)(0) };
    assert_eq!((broken, refused), (0, 900));
}

#[test]
fn a_context_may_end_and_another_one_get_its_handle() {
    let mut last = null_mut();
    let mut same = 0;
    for turn in 0..20 {
        let driver = driver();
        same += u32::from(driver.context == last);
        last = driver.context;
        let device = driver.alloc(CHUNK + 1);
        let bytes = pattern(CHUNK + 1, turn);
        put(whole(device), &bytes).expect("a copy");
        assert!(get(whole(device), bytes.len()).expect("a copy") == bytes);
    }
    assert!(same > 0, "no handle came again");
}

#[test]
fn a_run_beyond_its_allocation_is_refused() {
    let driver = driver();
    let device = driver.alloc(4096);
    let error = get(whole(device), 4097).expect_err("too long");
    assert!(error.to_string().contains("ends before them"), "{error}");
    let error = put(whole(device + 4090), &[0; 100]).expect_err("too long");
    assert!(error.to_string().contains("ends before them"), "{error}");
}

#[test]
fn nothing_grows_with_allocations_that_come_and_go() {
    let driver = driver();
    let turn = |seed: usize| {
        let len = 1 + seed * 37 % 100_000;
        let device = driver.alloc(len);
        let bytes = pattern(len.min(64), seed as u8);
        put(whole(device), &bytes).expect("a copy");
        assert_eq!(get(whole(device), bytes.len()).expect("a copy"), bytes);
        driver.free(device);
    };
    (0..100).for_each(turn);
    // SAFETY: a look.
    let before = unsafe { (driver.functions.objects)() };
    (0..2000).for_each(turn);
    // SAFETY: a look.
    assert_eq!(unsafe { (driver.functions.objects)() }, before);
}
