// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches of what a peer offers. It is this process itself, which the driver in software permits for what is shown by
//! descriptors. Included by tests, beside `fetches`, `harness` and `limit`.
#![allow(dead_code, reason = "each test program uses a part")]

use crate::fetches::{end_of, fetch_to, shown};
use crate::harness::Driver;
use crate::limit;
use onecopy_cuda::direct::{By, End, Fetch, Offering, close_all};
use onecopy_shm::process::pidfd_open;
use std::os::fd::{AsFd, OwnedFd};

/// A multiple of what virtual memory is made in.
pub(crate) const LEN: usize = 2 << 20;

pub(crate) fn own_process() -> OwnedFd {
    pidfd_open(nix::unistd::Pid::this()).expect("this process")
}

/// A fetch of what a peer offers.
pub(crate) fn begun(peer: u32, process: &OwnedFd, to: u64, offering: &Offering) -> Fetch {
    let offer = offering.shown().expect("it is shown");
    let fetch = fetch_to(Some((to, LEN as u64)));
    assert!(fetch.accept(By::Peer(peer, Some(process.as_fd())), offer, LEN as u64));
    fetch
}

/// A device or a helper that is late makes a fetch decline; then it is tried again.
pub(crate) fn fetched_from(peer: u32, to: u64, from: u64) {
    let process = own_process();
    let mut last = None;
    for _ in 0..50 {
        let offering = shown(from, LEN);
        match end_of(&begun(peer, &process, to, &offering)) {
            End::All => return,
            end => last = Some(end),
        }
    }
    panic!("{last:?}");
}

/// Why a fetch has copied nothing.
pub(crate) fn reason_of(fetch: &Fetch) -> String {
    match end_of(fetch) {
        End::Declined(why) => why.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Everything is closed, also what the helper closes.
pub(crate) fn settle(driver: &Driver) {
    close_all();
    assert!(limit::wait_until(|| driver.mappings() == 0), "it stays");
}
