// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies from device to device before anybody has permitted them: a setting of the process, which has one of its own.
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
use onecopy_cuda::direct::{Offering, set_bound};

#[test]
fn nothing_is_offered_until_it_is_permitted() {
    let driver = driver();
    let address = driver.alloc(100);
    assert!(Offering::of(address, 100).is_none());
    set_bound(1);
    assert!(Offering::of(address, 100).is_some());
    set_bound(0);
    assert!(Offering::of(address, 100).is_none());
}
