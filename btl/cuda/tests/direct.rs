// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies from device to device, over the driver in software: within one process, and what is declined. Between
//! processes they are tested by `mpi/tests/cuda`.
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
use onecopy_cuda::direct::{BYTES, By, End, Fetch, Offering, forget, set_bound};
use onecopy_shm::sync::{AtomicU32, Ordering};

const LEN: usize = 3 << 20;

/// The buffers of a send and of a receive. One message has gone between them, so that all is ready for more.
fn two_buffers(driver: &Driver, len: usize) -> (u64, u64) {
    let (from, to) = (driver.alloc(len), driver.alloc(len));
    fetched(to, &offered(from, len), len);
    (from, to)
}

fn declined(fetch: &Fetch, reason: &str) {
    match end_of(fetch) {
        End::Declined(why) => assert!(why.contains(reason), "{why}"),
        other => panic!("{other:?} and not {reason}"),
    }
    assert_eq!(fetch.settled(), Some(Ok(())));
}

#[test]
fn a_buffer_of_this_process_is_copied_once() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
    let bytes = pattern(LEN, 3);
    put(whole(from), &bytes).expect("a copy");
    for (offset, len) in [(0, LEN), (1, LEN - 1), (4096, 600_000), (LEN - 1, 1)] {
        put(whole(to), &pattern(LEN, 4)).expect("a copy");
        let offering = offered(from + offset as u64, len);
        fetched(to, &offering, len);
        assert!(offering.close(), "nobody reads it any more");
        let got = get(whole(to), LEN).expect("a copy");
        assert!(
            got[..len] == bytes[offset..offset + len],
            "{len} at {offset}"
        );
        assert!(got[len..] == pattern(LEN, 4)[len..], "behind {len}");
    }
}

#[test]
fn a_send_is_not_over_while_a_device_reads_its_buffer() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, to) = two_buffers(&driver, LEN);
    let offering = offered(from, LEN);
    let fetch = held(&driver, to, &offering, LEN);
    for _ in 0..1000 {
        fetch.advance();
        assert!(!offering.close() && fetch.settled().is_none());
        fetch.close();
    }
    let other = fetch_to(Some((to, LEN as u64)));
    assert!(
        !other.accept(By::Own, &offering.own(), LEN as u64),
        "it is closed"
    );
    driver.let_go();
    assert_eq!(end_of(&fetch), End::All);
    assert!(offering.close());
}

/// Who drops a fetch may be the thread that moves messages, which calls no driver. The source is kept all the same.
#[test]
fn a_fetch_that_is_dropped_amid_its_copy_calls_no_driver_and_keeps_the_source() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, to) = two_buffers(&driver, LEN);
    let offering = offered(from, LEN);
    let fetch = held(&driver, to, &offering, LEN);
    let before = driver.entries();
    drop(fetch);
    assert_eq!(driver.entries(), before);
    for _ in 0..1000 {
        assert!(!offering.close(), "the device reads it");
    }
    driver.let_go();
    assert!(
        limit::wait_until(|| offering.close()),
        "it is kept for ever"
    );
}

/// The copy has begun, and no event can be recorded behind it: both buffers stay the device's until the copy is over.
#[test]
fn a_copy_without_an_event_is_not_over_while_the_device_works() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, to) = two_buffers(&driver, LEN);
    let bytes = pattern(LEN, 7);
    put(whole(from), &bytes).expect("a copy");
    for comes_later in [false, true] {
        put(whole(to), &pattern(LEN, 8)).expect("a copy");
        let offering = offered(from, LEN);
        driver.fault(NO_EVENT, 0);
        let fetch = held(&driver, to, &offering, LEN);
        for _ in 0..100 {
            fetch.advance();
            assert!(!offering.close() && fetch.settled().is_none());
        }
        if comes_later {
            driver.fault(NO_FAULT, 0);
        }
        for _ in 0..100 {
            fetch.advance();
            assert!(!offering.close() && fetch.settled().is_none());
        }
        driver.let_go();
        assert_eq!(end_of(&fetch), End::All);
        assert!(offering.close());
        driver.fault(NO_FAULT, 0);
        assert!(get(whole(to), LEN).expect("a copy") == bytes);
    }
}

#[test]
fn what_is_not_in_one_allocation_of_a_device_is_not_offered_nor_fetched() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, managed) = (driver.alloc(LEN), driver.managed(LEN));
    let host = vec![0u8; 4096];
    let host = host.as_ptr().expose_provenance() as u64;
    assert!(
        Offering::of(from + 1, LEN as u64).is_none(),
        "it ends before"
    );
    assert!(Offering::of(managed, LEN as u64).is_none(), "it moves");
    assert!(Offering::of(host, 4096).is_none(), "the host's");
    let offering = offered(from, LEN);
    let offer = offering.own();
    let runs = fetch_to(None);
    assert!(!runs.accept(By::Own, &offer, 100), "in several runs");
    let short = fetch_to(Some((from, 99)));
    assert!(!short.accept(By::Own, &offer, 100), "no room");
    for (to, len) in [(managed, LEN), (host, 4096), (from + 1, LEN)] {
        let fetch = fetch_to(Some((to, len as u64)));
        assert!(fetch.accept(By::Own, &offer, len as u64));
        declined(
            &fetch,
            "the buffer of the receive is not in one allocation of a device",
        );
    }
}

/// A context may end, and with it what is known of its memory; there nothing of ours is ready.
#[test]
fn memory_of_a_context_of_its_own_is_staged() {
    let driver = driver();
    set_bound(64);
    let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
    let offering = offered(from, LEN);
    let fetch = fetch_to(Some((to, LEN as u64)));
    assert!(fetch.accept(By::Own, &offering.own(), LEN as u64));
    declined(&fetch, "is not in one allocation of a device");
}

#[test]
fn a_kernel_that_occupies_the_device_lets_no_copy_begin() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
    let offering = offered(from, LEN);
    fetched(to, &offering, LEN);
    static WORD: AtomicU32 = AtomicU32::new(0);
    driver.spin(&WORD, 1, 2);
    let before = driver.between();
    for _ in 0..3 {
        let fetch = fetch_to(Some((to, LEN as u64)));
        assert!(fetch.accept(By::Own, &offering.own(), LEN as u64));
        declined(&fetch, "occupied");
    }
    assert_eq!(driver.between(), before, "none can be taken back");
    WORD.store(1, Ordering::Release);
    fetched(to, &offering, LEN);
}

#[test]
fn a_fetch_that_is_closed_before_it_begins_copies_nothing() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
    let offering = offered(from, LEN);
    let before = driver.between();
    let fetch = fetch_to(Some((to, LEN as u64)));
    assert!(fetch.accept(By::Own, &offering.own(), LEN as u64));
    fetch.close();
    declined(&fetch, "the receive is over");
    assert_eq!(driver.between(), before);
    assert!(offering.close());
}

/// A peer shows ever new allocations while the device lets none be opened.
#[test]
fn a_helper_that_is_late_or_has_much_to_do_holds_no_message_up() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
    let offering = shown(from, LEN);
    fetched(to, &offering, LEN);
    let offer = *offering.shown().expect("the driver shows it");
    let number = std::cell::Cell::new(1000u64);
    let begun = || {
        let mut new = offer;
        number.set(number.get() + 1);
        new[8..16].copy_from_slice(&number.get().to_le_bytes());
        let fetch = fetch_to(Some((to, LEN as u64)));
        assert!(fetch.accept(By::Peer(4, None), &new, 100));
        fetch.advance();
        fetch
    };
    static WORD: AtomicU32 = AtomicU32::new(0);
    driver.spin(&WORD, 1, 2);
    let all: Vec<_> = (0..500).map(|_| begun()).collect();
    let waiting = all.iter().filter(|fetch| fetch.end().is_none()).count();
    assert!(waiting <= 17, "{waiting} wait");
    for fetch in &all {
        declined(fetch, "");
    }
    // From now on it is known to be late.
    for _ in 0..10 {
        match begun().end() {
            Some(End::Declined(why)) => assert!(why.contains("waits for a device"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    WORD.store(1, Ordering::Release);
    let asked_again = limit::wait_until(
        || matches!(end_of(&begun()), End::Declined(why) if why.contains("cuIpcOpenMemHandle")),
    );
    assert!(asked_again, "it has caught up");
    forget(4);
}

/// What no correct peer offers, and what the driver does not open: nothing is read, and the reason is told.
#[test]
fn an_offer_of_another_process_is_looked_at_before_it_is_believed() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (from, to) = (driver.alloc(LEN), driver.alloc(LEN));
    let offering = shown(from, LEN);
    let offer = *offering.shown().expect("the driver shows it");
    let accepts = |offer: &[u8], len: u64| {
        let fetch = fetch_to(Some((to, LEN as u64)));
        fetch.accept(By::Peer(3, None), offer, len).then_some(fetch)
    };
    assert!(accepts(&offer[1..], 1).is_none() && accepts(&[], 1).is_none());
    assert!(accepts(&offering.own(), 1).is_none(), "one of this process");
    assert!(accepts(&[0xff; BYTES], 1).is_none());
    let with = |at: usize, word: u64| {
        let mut other = offer;
        other[at..at + 8].copy_from_slice(&word.to_le_bytes());
        other
    };
    let beyond = with(32, LEN as u64 - 10);
    assert!(accepts(&beyond, 11).is_none(), "behind its end");
    assert!(
        accepts(&with(32, u64::MAX - 5), 100).is_none(),
        "an end that wraps"
    );
    let elsewhere = accepts(&with(40, 7), 100).expect("it has the form");
    declined(&elsewhere, "is not visible to this process");
    // One's own handle cannot be opened, nor can the others of this peer, which is not asked for ever.
    for id in 0..8 {
        let fetch = accepts(&with(8, id), 100).expect("it has the form");
        declined(&fetch, "cuIpcOpenMemHandle");
    }
    forget(3);
}
