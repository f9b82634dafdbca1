// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is shown by descriptors, over the driver in software: pools and virtual memory. The peer is this process
//! itself, which the driver in software permits. Between processes they are tested by `mpi/tests/cuda`.
//!
//! # Safety
//! Functions of the driver beside this file, called as its header says. The environment is changed while other tests
//! wait for their turn.
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

use fetches::*;
use harness::*;
use memory::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use onecopy_cuda::direct::{By, End, Offering, forget, set_bound};
use peer::*;
use std::os::fd::{AsFd, AsRawFd};

/// Descriptors of device memory that are open, and how many of them an exec would keep.
fn descriptors() -> (usize, usize) {
    let mut found = (0, 0);
    for entry in std::fs::read_dir("/proc/self/fd").expect("descriptors") {
        let path = entry.expect("an entry").path();
        let name = std::fs::read_link(&path).unwrap_or_default();
        let name = name.to_string_lossy();
        if !name.contains("memfd:physical") && !name.contains("memfd:pool") {
            continue;
        }
        let number = path.file_name().expect("a number").to_string_lossy();
        let number: i32 = number.parse().expect("a number");
        // SAFETY: the call touches no memory.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        found.0 += 1;
        found.1 += usize::from(flags & libc::FD_CLOEXEC == 0);
    }
    found
}

#[test]
fn memory_of_both_kinds_is_fetched_by_a_descriptor() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let pool = driver.pool(BY_DESCRIPTOR);
    let pooled = [driver.alloc_from(pool, LEN), driver.alloc_from(pool, LEN)];
    let mapped = [
        driver.map(LEN, BY_DESCRIPTOR),
        driver.map(LEN, BY_DESCRIPTOR),
    ];
    let plain = driver.alloc(LEN);
    let mut seed = 1;
    for from in pooled.iter().chain(&mapped) {
        for to in [plain, pooled[1], mapped[1]] {
            if to == *from {
                continue;
            }
            seed += 1;
            let bytes = pattern(LEN, seed);
            put(whole(*from), &bytes).expect("a copy");
            put(whole(to), &pattern(LEN, 0)).expect("a copy");
            let before = driver.between();
            fetched_from(1, to, *from);
            assert_eq!(driver.between(), before + 1);
            assert!(get(whole(to), LEN).expect("a copy") == bytes);
        }
    }
    assert!(descriptors().0 > 0);
    assert_eq!(descriptors().1, 0, "an exec keeps none");
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
    for address in pooled {
        driver.free(address);
    }
    driver.end_pool(pool);
}

/// What is mapped stays open, memory of a pool does not: its owner may free it as soon as the message is over.
#[test]
fn memory_of_a_pool_is_given_back_before_its_message_is_over() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let pool = driver.pool(BY_DESCRIPTOR);
    let mapped = driver.map(LEN, BY_DESCRIPTOR);
    fetched_from(1, to, mapped);
    let (open, openings) = (driver.mappings(), driver.openings());
    fetched_from(1, to, mapped);
    assert_eq!((driver.mappings(), driver.openings()), (open, openings));
    for turn in 0..20 {
        let from = driver.alloc_from(pool, LEN);
        put(whole(from), &pattern(LEN, turn)).expect("a copy");
        fetched_from(1, to, from);
        assert_eq!(driver.mappings(), open);
        driver.free(from);
        assert!(get(whole(to), LEN).expect("a copy") == pattern(LEN, turn));
    }
    // Also where nothing was copied.
    let from = driver.alloc_from(pool, LEN);
    let process = own_process();
    // SAFETY: copies of the device wait until they are let go.
    unsafe { (driver.functions.hold)(0, 1) };
    let (mut seen, before) = (0, driver.openings());
    for _ in 0..50 {
        let offering = shown(from, LEN);
        let fetch = begun(1, &process, to, &offering);
        while fetch.end().is_none() {
            fetch.advance();
            seen = seen.max(driver.mappings());
        }
        assert!(reason_of(&fetch).contains("occupied"));
        assert_eq!(driver.mappings(), open);
        if driver.openings() > before {
            break;
        }
    }
    assert_eq!(seen, open + 1, "it was never open");
    driver.let_go();
    driver.free(from);
    driver.end_pool(pool);
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}

/// The driver refuses at first to take it back behind the copy. Its owner may free it no earlier than that was done.
#[test]
fn memory_of_a_pool_that_is_not_taken_back_at_once_keeps_its_message() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let pool = driver.pool(BY_DESCRIPTOR);
    for turn in 0..4 {
        let from = driver.alloc_from(pool, LEN);
        put(whole(from), &pattern(LEN, turn)).expect("a copy");
        let is_fetched = limit::wait_until(|| {
            driver.fault(NO_FAULT, 0);
            // Behind this one the helper has nothing to do any more.
            fetched_from(1, to, from);
            let before = driver.blocking_calls();
            driver.fault(NO_FREE, 1 + i32::from(turn % 2));
            let offering = shown(from, LEN);
            let end = end_of(&begun(1, &own_process(), to, &offering));
            assert!(limit::wait_until(|| driver.mappings() == 0), "it stays");
            let is_by_helper = driver.blocking_calls() > before;
            assert!(end != End::All || !is_by_helper, "it was over before");
            end == End::All
        });
        assert!(is_fetched);
        driver.fault(NO_FAULT, 0);
        driver.free(from);
        assert!(get(whole(to), LEN).expect("a copy") == pattern(LEN, turn));
    }
    // If it always does, no message waits for it. The helper asks in another way.
    let from = driver.alloc_from(pool, LEN);
    driver.fault(NO_FREE, i32::MAX);
    fetched_from(1, to, from);
    assert!(limit::wait_until(|| driver.mappings() == 0), "it stays");
    driver.free(from);
    driver.end_pool(pool);
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}

/// Nor is an allocation of a pool open twice at a time.
#[test]
fn two_messages_of_one_allocation_of_a_pool_do_not_share_it() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let (to, other) = (driver.alloc(LEN), driver.alloc(LEN));
    let pool = driver.pool(BY_DESCRIPTOR);
    let from = driver.alloc_from(pool, LEN);
    fetched_from(1, to, from);
    let process = own_process();
    let (first, second) = (shown(from, LEN), shown(from, LEN));
    let fetch = begun(1, &process, to, &first);
    fetch.advance();
    let late = begun(1, &process, other, &second);
    assert!(reason_of(&late).contains("another message"));
    // Nor under another number, and at another place, than it has.
    for words in [[(8, 1000), (16, 4096)], [(8, 1001), (16, 8192)]] {
        let why = forged(other, &second, &words);
        assert!(why.contains("another message"), "{why}");
    }
    end_of(&fetch);
    fetched_from(1, other, from);
    driver.free(from);
    driver.end_pool(pool);
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}

/// What a fetch of a forged offer ends with: the words at these places are others.
fn forged(to: u64, offering: &Offering, words: &[(usize, u64)]) -> String {
    let process = own_process();
    let mut offer = *offering.shown().expect("it is shown");
    for (at, word) in words {
        offer[*at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    let fetch = fetch_to(Some((to, LEN as u64)));
    let from = By::Peer(1, Some(process.as_fd()));
    assert!(fetch.accept(from, &offer, LEN as u64), "it has the form");
    reason_of(&fetch)
}

/// An offer that lies about its size, or about its device, is declined. It closes nothing, and breaks no context.
#[test]
fn a_forged_offer_is_declined_alone() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let memory = driver.map(LEN, BY_DESCRIPTOR);
    let pool = driver.pool_on(1, BY_DESCRIPTOR);
    let far = driver.alloc_from(pool, LEN);
    fetched_from(1, to, memory);
    let (near, mappings) = (shown(memory, LEN), driver.mappings());
    let here = near.shown().expect("it is shown");
    // The device's identity, of two words.
    let device = [40, 48].map(|at| {
        let word = here[at..].first_chunk().expect("a word");
        (at, u64::from_le_bytes(*word))
    });
    for turn in 0..4 {
        // Another number and place, so that what is open neither serves it nor is replaced.
        let long = forged(to, &near, &[(8, 1000 + turn), (16, 4096), (24, 1 << 60)]);
        assert!(long.contains("cuMem"), "{long}");
        let other = forged(to, &shown(far, LEN), &device);
        assert!(other.contains("of another device"), "{other}");
    }
    assert_eq!(driver.mappings(), mappings, "what was open is open");
    put(whole(memory), &pattern(LEN, 5)).expect("the context is well");
    fetched_from(1, to, memory);
    assert!(get(whole(to), LEN).expect("a copy") == pattern(LEN, 5));
    driver.unmap(memory, LEN);
    driver.free(far);
    driver.end_pool(pool);
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}

/// Of what is shown at an address: the number of the memory, and that of the descriptor.
fn numbers_of(address: u64) -> (u64, i32) {
    number_and_fd(&shown(address, LEN))
}

fn number_and_fd(offering: &Offering) -> (u64, i32) {
    let offer = offering.shown().expect("it is shown");
    let word = |at: usize| u64::from_le_bytes(*offer[at..].first_chunk().expect("a word"));
    (word(8), i32::try_from(word(56)).expect("a descriptor"))
}

/// The driver in software gives each next allocation the handle, the address and the number of the one before. The
/// kernel gives it the number of the descriptor, too.
#[test]
fn other_memory_at_the_same_addresses_is_other_memory() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    // SAFETY: the driver reads it in calls of this thread, and other tests wait for their turn.
    unsafe { std::env::set_var("MODEL_CUDA_IDS", "kept") };
    let address = driver.reserve(LEN);
    let (mut all, mut again) = (Vec::new(), 0);
    for turn in 0..20 {
        driver.map_at(address, LEN, BY_DESCRIPTOR);
        put(whole(address), &pattern(LEN, turn)).expect("a copy");
        fetched_from(1, to, address);
        assert!(get(whole(to), LEN).expect("a copy") == pattern(LEN, turn));
        let (number, fd) = numbers_of(address);
        again += usize::from(all.iter().any(|(_, other)| *other == fd));
        all.push((number, fd));
        driver.unmap(address, LEN);
        // With the next export it is seen that this memory is gone. It may have the descriptor's number itself.
        let other = driver.map(LEN, BY_DESCRIPTOR);
        let is_taken = numbers_of(other).1 == fd;
        // SAFETY: the call touches no memory.
        let is_closed = || unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1;
        assert!(is_taken || limit::wait_until(is_closed));
        driver.unmap(other, LEN);
    }
    assert!(again > 3, "{all:?}");
    all.sort_unstable();
    all.dedup_by_key(|(number, _)| *number);
    assert_eq!(all.len(), 20, "numbers never come again");
    // SAFETY: as above.
    unsafe { std::env::remove_var("MODEL_CUDA_IDS") };
    let mut pools = Vec::new();
    for turn in 0..20 {
        let pool = driver.pool(BY_DESCRIPTOR);
        let from = driver.alloc_from(pool, LEN);
        put(whole(from), &pattern(LEN, 100 + turn)).expect("a copy");
        fetched_from(1, to, from);
        assert!(get(whole(to), LEN).expect("a copy") == pattern(LEN, 100 + turn));
        driver.free(from);
        driver.end_pool(pool);
        pools.push(pool);
    }
    pools.dedup();
    assert!(pools.len() < 20, "handles come again");
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}

/// Nobody is shown what only this process reads, or another node.
#[test]
fn what_no_other_process_asks_for_is_not_shown() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let pool = driver.pool(BY_DESCRIPTOR);
    let pooled = driver.alloc_from(pool, LEN);
    let all = [pooled, driver.map(LEN, BY_DESCRIPTOR), driver.alloc(LEN)];
    let before = (driver.showings(), descriptors());
    for from in all {
        let offering = offered(from, LEN);
        fetched(to, &offering, LEN);
        let why = offering.shown().expect_err("nobody has asked for it");
        assert!(why.contains("nobody has asked"), "{why}");
    }
    assert_eq!((driver.showings(), descriptors()), before);
    let all = all.map(|from| shown(from, LEN));
    assert!(all.iter().all(|offering| offering.shown().is_ok()));
    assert_eq!(driver.showings(), before.0 + 3);
    all.iter().for_each(Offering::show);
    assert_eq!(driver.showings(), before.0 + 3, "once for each");
    drop(all);
    driver.free(pooled);
    driver.end_pool(pool);
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}

/// An offer may outlive its send. The next pool has the handle of the one that was offered.
#[test]
fn a_pool_with_the_handle_of_one_that_is_gone_is_another_one() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let first = driver.pool(BY_DESCRIPTOR);
    let from = driver.alloc_from(first, LEN);
    let outlives = shown(from, LEN);
    assert!(outlives.shown().is_ok());
    driver.free(from);
    driver.end_pool(first);
    let next = driver.pool(BY_DESCRIPTOR);
    assert_eq!(next, first, "its handle comes again");
    let from = driver.alloc_from(next, LEN);
    put(whole(from), &pattern(LEN, 9)).expect("a copy");
    fetched_from(1, to, from);
    assert!(get(whole(to), LEN).expect("a copy") == pattern(LEN, 9));
    // What is of one pool shares its descriptor.
    let other = driver.alloc_from(next, LEN);
    let both = [from, other].map(|address| shown(address, LEN));
    let (number, fd) = number_and_fd(&both[0]);
    assert_eq!(fd, number_and_fd(&both[1]).1);
    assert_ne!(number, number_and_fd(&both[1]).0);
    drop((outlives, both));
    driver.free(from);
    driver.free(other);
    driver.end_pool(next);
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}

#[test]
fn what_was_not_made_to_be_shown_is_not_offered_to_others() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let pool = driver.pool(NOT_SHOWN);
    let hidden = [driver.alloc_from(pool, LEN), driver.map(LEN, NOT_SHOWN)];
    for from in hidden {
        let offering = shown(from, LEN);
        let why = offering.shown().expect_err("it was not made for that");
        assert!(why.contains("cuMem"), "{why}");
        assert_eq!(shown(from, LEN).shown().expect_err("as before"), why);
        // Within this process no handle is needed.
        fetched(to, &offering, LEN);
    }
    let before = driver.showings();
    assert!(shown(hidden[0], LEN).shown().is_err());
    assert_eq!(driver.showings(), before, "it was asked once");
    // Two allocations side by side are two, also where one of them alone would do.
    let both = driver.reserve(2 * LEN);
    driver.map_at(both, LEN, BY_DESCRIPTOR);
    driver.map_at(both + LEN as u64, LEN, BY_DESCRIPTOR);
    let is_hidden = || {
        let across = Offering::of(both + 4096, LEN as u64);
        across.is_none_or(|across| {
            across.show();
            across.shown().is_err()
        })
    };
    // A driver may name the whole reservation where it is asked for an address.
    // SAFETY: the driver reads it in calls of this thread, and other tests wait for their turn.
    unsafe { std::env::set_var("MODEL_CUDA_RANGES", "reserved") };
    assert!(is_hidden());
    assert!(shown(both + 4096, LEN - 4096).shown().is_ok());
    // SAFETY: as above.
    unsafe { std::env::remove_var("MODEL_CUDA_RANGES") };
    let both = driver.reserve(2 * LEN);
    driver.map_at(both, LEN, BY_DESCRIPTOR);
    driver.map_at(both + LEN as u64, LEN, BY_DESCRIPTOR);
    assert!(Offering::of(both + 4096, LEN as u64).is_none());
    let second = both + LEN as u64;
    put(whole(both), &pattern(LEN, 1)).expect("a copy");
    put(whole(second), &pattern(LEN, 2)).expect("a copy");
    fetched_from(1, to, second);
    assert!(get(whole(to), LEN).expect("a copy") == pattern(LEN, 2));
    driver.free(hidden[0]);
    driver.end_pool(pool);
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}

#[test]
fn allocations_that_come_and_go_take_a_bounded_number_of_descriptors() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let mut most = 0;
    for _ in 0..500 {
        let address = driver.map(LEN, BY_DESCRIPTOR);
        fetched_from(1, to, address);
        driver.unmap(address, LEN);
        let pool = driver.pool(BY_DESCRIPTOR);
        let from = driver.alloc_from(pool, LEN);
        fetched_from(1, to, from);
        driver.free(from);
        driver.end_pool(pool);
        most = most.max(descriptors().0);
    }
    // Those of the driver in software among them: one for what is mapped here, one for what it maps from there.
    assert!(most <= 4 * 64 + 16, "{most}");
    settle(&driver);
    // The least recently used makes room: of a live one, too.
    let all: Vec<_> = (0..200).map(|_| driver.map(LEN, BY_DESCRIPTOR)).collect();
    let is_shown = |from: &u64| limit::wait_until(|| shown(*from, LEN).shown().is_ok());
    assert!(all.iter().all(is_shown));
    // What is offered and not over is bounded.
    let offerings: Vec<_> = all.iter().map(|from| shown(*from, LEN)).collect();
    let shown = offerings.iter().filter(|offering| offering.shown().is_ok());
    assert!((1..=64).contains(&shown.count()));
    drop(offerings);
    settle(&driver);
    for address in all {
        driver.unmap(address, LEN);
    }
    let ended = limit::wait_until(|| descriptors().0 == 0);
    assert!(ended, "{:?}", descriptors());
    assert_eq!(driver.misuses(), 0);
}

/// A process that nobody names, or whose descriptors the kernel keeps: it is seen once, and looked at again later.
#[test]
fn a_peer_whose_descriptors_cannot_be_had_is_staged() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let from = driver.map(LEN, BY_DESCRIPTOR);
    fetched_from(5, to, from);
    let offering = shown(from, LEN);
    let unknown = |count| {
        for _ in 0..count {
            let fetch = fetch_to(Some((to, LEN as u64)));
            assert!(fetch.accept(By::Peer(6, None), offering.shown().expect("it"), LEN as u64));
            let why = reason_of(&fetch);
            assert!(why.contains("pidfd_getfd"), "{why}");
        }
    };
    unknown(10);
    // Now it is known, and asked again in a while.
    let process = own_process();
    let mut declined = 0;
    while end_of(&begun(6, &process, to, &offering)) != End::All {
        declined += 1;
        assert!(declined < 200, "it is never asked again");
    }
    assert!(declined > 10, "{declined}: it is asked each time");
    forget(6);
    drop(offering);
    settle(&driver);
    driver.unmap(from, LEN);
    assert_eq!(driver.misuses(), 0);
}

#[test]
fn without_descriptors_messages_are_staged() {
    let driver = driver();
    let _shared = Shared::enter(&driver);
    let to = driver.alloc(LEN);
    let pool = driver.pool(BY_DESCRIPTOR);
    let all = [driver.alloc_from(pool, LEN), driver.map(LEN, BY_DESCRIPTOR)];
    fetched_from(1, to, all[0]);
    let process = own_process();
    let next = nix::unistd::dup(&process).expect("a descriptor");
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let limit_at = |most: u64| setrlimit(Resource::RLIMIT_NOFILE, most, hard).expect("a limit");
    let lowest = next.as_raw_fd() as u64;
    drop(next);
    // The sender has none.
    limit_at(lowest);
    for from in all {
        assert!(shown(from, LEN).shown().is_err());
    }
    limit_at(soft);
    // The receiver has none.
    for from in all {
        let offering = shown(from, LEN);
        assert!(offering.shown().is_ok());
        let fetch = begun(1, &process, to, &offering);
        limit_at(lowest);
        let why = reason_of(&fetch);
        limit_at(soft);
        let is_known = ["pidfd_getfd", "Import"]
            .iter()
            .any(|call| why.contains(call));
        assert!(is_known, "{why}");
    }
    forget(1);
    for from in all {
        fetched_from(1, to, from);
    }
    set_bound(64);
    driver.free(all[0]);
    driver.end_pool(pool);
    settle(&driver);
    assert_eq!(driver.misuses(), 0);
}
