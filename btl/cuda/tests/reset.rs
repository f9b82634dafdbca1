// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reset of a device. It takes the process's registered memory along, so this has a process of its own.
//!
//! # Safety
//! Functions of the driver beside this file, called as its header says.
#![allow(unsafe_code, reason = "calls of the driver")]

#[path = "driver/build.rs"]
mod build;
#[path = "driver/fetches.rs"]
mod fetches;
#[path = "driver/harness.rs"]
mod harness;
#[path = "../../../tests/harness/limit.rs"]
mod limit;
#[path = "driver/memory.rs"]
mod memory;
#[path = "driver/peer.rs"]
mod peer;

use cuda_sys::CUmemoryPool;
use fetches::*;
use harness::*;
use memory::*;
use onecopy_cuda::direct::End;
use peer::*;

/// All that the first context has is within so many bytes.
const ALL: usize = 16 * LEN;

/// Bytes of which no two halves of a short piece are the same.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 21) as u8)
        .collect()
}

/// All that the device's context has is gone, and what it copies is over.
fn reset(driver: &Driver) {
    // SAFETY: as these tests want it.
    assert_eq!(unsafe { (driver.functions.reset)(0) }, 0);
}

/// What the library has allocated in a device is the program's after a reset.
#[test]
fn memory_of_a_context_that_is_gone_is_not_touched() {
    let driver = driver();
    let first = Shared::enter(&driver);
    let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
    let offering = offered(from, LEN);
    fetched(to, &offering, LEN);
    drop((offering, first));
    reset(&driver);
    let _next = Shared::enter(&driver);
    // It begins where the first allocation began: places are used again.
    let all = driver.alloc(ALL);
    assert!(all <= from && to < all + (ALL - LEN) as u64);
    let bytes = noise(ALL);
    put(whole(all), &bytes).expect("a copy");
    let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
    let before = driver.between();
    put(whole(from), &bytes[..LEN]).expect("a copy");
    let offering = offered(from, LEN);
    fetched(to, &offering, LEN);
    assert_eq!(driver.between(), before + 1);
    assert!(get(whole(to), LEN).expect("a copy") == bytes[..LEN]);
    assert!(get(whole(all), ALL).expect("a copy") == bytes);
}

/// With an event behind the copy, and without one.
#[test]
fn a_copy_whose_context_ends_fails_and_is_over() {
    for fault in [NO_FAULT, NO_EVENT] {
        let driver = driver();
        let _shared = Shared::enter(&driver);
        let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
        let offering = offered(from, LEN);
        driver.fault(fault, 0);
        let fetch = held(&driver, to, &offering, LEN);
        reset(&driver);
        match end_of(&fetch) {
            End::Failed(error) => assert!(error.remedy().contains("keep the context"), "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(fetch.settled(), Some(Err(_))) && offering.close());
        driver.let_go();
        assert_eq!(driver.misuses(), 0);
    }
}

/// Bytes of a pool, on their way to plain memory. Both end with the context.
fn pooled(driver: &Driver) -> (CUmemoryPool, u64, u64) {
    let to = driver.alloc(LEN);
    let pool = driver.pool(BY_DESCRIPTOR);
    let from = driver.alloc_from(pool, LEN);
    put(whole(from), &noise(LEN)).expect("a copy");
    fetched_from(1, to, from);
    (pool, from, to)
}

/// In the next context memory of a pool is copied as before, and nothing else of that context is touched.
fn expect_next_context(driver: &Driver) {
    let _next = Shared::enter(driver);
    let all = driver.alloc(ALL);
    let bytes = noise(ALL);
    put(whole(all), &bytes).expect("a copy");
    let (pool, from, to) = pooled(driver);
    assert!(get(whole(to), LEN).expect("a copy") == noise(LEN));
    assert!(get(whole(all), ALL).expect("a copy") == bytes);
    driver.free(from);
    driver.end_pool(pool);
    driver.free(to);
    driver.free(all);
    settle(driver);
    assert_eq!(driver.misuses(), 0);
}

/// The device has not begun to copy. What the library has made in the context is not named any more.
#[test]
fn a_message_of_a_pool_that_waits_while_its_context_ends_is_declined() {
    for is_closed in [false, true] {
        let driver = driver();
        let shared = Shared::enter(&driver);
        let (_, from, to) = pooled(&driver);
        let process = own_process();
        let mut waiting = None;
        let waits = limit::wait_until(|| {
            driver.let_go();
            if driver.mappings() != 0 {
                return false;
            }
            // SAFETY: copies of the device wait until they are let go.
            unsafe { (driver.functions.hold)(0, 1) };
            let offering = shown(from, LEN);
            let fetch = begun(1, &process, to, &offering);
            while fetch.end().is_none() && driver.mappings() == 0 {
                fetch.advance();
            }
            let waits = fetch.end().is_none();
            waiting = Some((fetch, offering));
            waits
        });
        assert!(waits, "it is never open");
        let (fetch, offering) = waiting.expect("a fetch");
        if is_closed {
            fetch.close();
        }
        reset(&driver);
        driver.let_go();
        drop(shared);
        let _next = Shared::enter(&driver);
        let (why, before) = (reason_of(&fetch), driver.between());
        let wanted = match is_closed {
            false => "of device 0: the context has ended",
            true => "the receive is over",
        };
        assert!(why.contains(wanted), "{why}");
        drop((fetch, offering));
        assert_eq!((driver.between(), driver.mappings()), (before, 0));
        expect_next_context(&driver);
    }
}

/// The device copies: the bytes are lost, and that is said.
#[test]
fn a_copy_from_a_pool_whose_context_ends_fails_and_is_over() {
    for fault in [NO_FAULT, NO_EVENT] {
        let driver = driver();
        let shared = Shared::enter(&driver);
        let (_, from, to) = pooled(&driver);
        let (process, offering) = (own_process(), shown(from, LEN));
        driver.fault(fault, 0);
        let fetch = held_as(&driver, || begun(1, &process, to, &offering));
        reset(&driver);
        drop(shared);
        let next = Shared::enter(&driver);
        match end_of(&fetch) {
            End::Failed(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("of device 0: the context has ended"),
                    "{text}"
                );
                assert!(error.remedy().contains("keep the context"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        drop((fetch, offering, next));
        driver.fault(NO_FAULT, 0);
        driver.let_go();
        expect_next_context(&driver);
    }
}
