// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies from device to device within a process. Included by tests, beside `harness` and `limit`.
//!
//! # Safety
//! Functions of the driver beside this file, called as its header says.
#![allow(unsafe_code, reason = "calls of the driver")]
#![allow(dead_code, reason = "each test program uses a part")]

use crate::harness::Driver;
use crate::limit;
use onecopy_cuda::direct::{By, End, Fetch, Offering, set_bound};
use std::ptr::null_mut;

/// The context that all of the process share is the thread's one until this is dropped.
pub(crate) struct Shared<'d>(&'d Driver);

impl<'d> Shared<'d> {
    /// Copies from device to device are permitted from then on.
    pub(crate) fn enter(driver: &'d Driver) -> Self {
        set_bound(64);
        let mut context = null_mut();
        // SAFETY: the place for the answer is ours.
        unsafe { (driver.library.cuDevicePrimaryCtxRetain)(&raw mut context, 0) };
        // SAFETY: a context that stays.
        assert_eq!(unsafe { (driver.library.cuCtxPushCurrent)(context) }, 0);
        Self(driver)
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: the place for the answer is ours.
        unsafe { (self.0.library.cuCtxPopCurrent)(&raw mut popped) };
    }
}

/// A buffer of a device, as a send of it is offered within this process.
pub(crate) fn offered(address: u64, len: usize) -> Offering {
    Offering::of(address, len as u64).expect("in one allocation")
}

/// The same, to another process, too.
pub(crate) fn shown(address: u64, len: usize) -> Offering {
    let offering = offered(address, len);
    offering.show();
    offering
}

pub(crate) fn fetch_to(room: Option<(u64, u64)>) -> Fetch {
    // SAFETY: memory of the test, which waits.
    unsafe { Fetch::new(room) }
}

pub(crate) fn end_of(fetch: &Fetch) -> End {
    let mut end = None;
    let ended = limit::wait_until(|| {
        end = fetch.end();
        if end.is_none() {
            assert_eq!(fetch.settled(), None, "it is at work");
            fetch.advance();
        }
        end.is_some()
    });
    assert!(ended, "it never ends");
    end.expect("an end")
}

/// A device that is late makes a fetch decline; then it is tried again.
pub(crate) fn fetched(to: u64, offering: &Offering, len: usize) {
    for _ in 0..50 {
        let fetch = fetch_to(Some((to, len as u64)));
        assert!(fetch.accept(By::Own, &offering.own(), len as u64));
        match end_of(&fetch) {
            End::All => return,
            End::Declined(_) => {}
            End::Failed(error) => panic!("{error}"),
        }
    }
    panic!("never");
}

/// A fetch whose copy has begun and is held back, until the driver lets it go.
pub(crate) fn held(driver: &Driver, to: u64, offering: &Offering, len: usize) -> Fetch {
    held_as(driver, || {
        let fetch = fetch_to(Some((to, len as u64)));
        assert!(fetch.accept(By::Own, &offering.own(), len as u64));
        fetch
    })
}

/// The same, of fetches that are made so: a device that is late makes one decline.
pub(crate) fn held_as(driver: &Driver, made: impl Fn() -> Fetch) -> Fetch {
    // SAFETY: copies of the device wait until they are let go; short ones do not.
    unsafe { (driver.functions.hold)(0, 2) };
    let before = driver.between();
    let mut held = None;
    let begun = limit::wait_until(|| {
        let fetch = made();
        while fetch.end().is_none() && driver.between() == before {
            fetch.advance();
        }
        held = Some(fetch);
        driver.between() > before
    });
    assert!(begun, "no copy begins");
    held.expect("a fetch")
}
