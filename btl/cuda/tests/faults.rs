// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults of a device. What they leave behind is the process's, so they have one of their own.
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

#[test]
fn an_illegal_address_is_an_error_that_names_it_and_the_next_context_works() {
    for fault in [ILLEGAL, LOST] {
        for after in [0, 3, 7] {
            let broken = driver();
            let device = broken.alloc(8 * CHUNK);
            // SAFETY: a fault that this test asks for.
            unsafe { (broken.functions.fault)(fault, after) };
            let failed = get(whole(device), 8 * CHUNK).expect_err("a fault");
            let name = if fault == ILLEGAL {
                "CUDA_ERROR_ILLEGAL_ADDRESS"
            } else {
                "CUDA_ERROR_CONTEXT_IS_DESTROYED"
            };
            assert!(failed.to_string().contains(name), "{failed}");
            put(whole(device), &[1; 100]).expect_err("the context stays broken");
        }
    }
    let driver = driver();
    let device = driver.alloc(100);
    put(whole(device), &[7; 100]).expect("another context");
    assert_eq!(get(whole(device), 100).expect("a copy"), [7; 100]);
}
