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
use onecopy_cuda::{Kind, memory};
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
