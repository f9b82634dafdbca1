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

use fetches::*;
use harness::*;
use onecopy_cuda::direct::End;

const LEN: usize = 1 << 20;
/// All that the first context has is within so many bytes.
const ALL: usize = 16 * LEN;

/// Bytes of which no two halves of a short piece are the same.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 21) as u8)
        .collect()
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
    // SAFETY: nothing of the device is in use.
    assert_eq!(unsafe { (driver.functions.reset)(0) }, 0);
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
        // SAFETY: the copy ends with the device's context.
        assert_eq!(unsafe { (driver.functions.reset)(0) }, 0);
        match end_of(&fetch) {
            End::Failed(error) => assert!(error.remedy().contains("keep the context"), "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(fetch.settled(), Some(Err(_))) && offering.close());
        driver.let_go();
    }
}
