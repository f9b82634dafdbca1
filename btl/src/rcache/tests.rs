// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache over windows that remember where they begin, against a model.

use super::*;
use std::cell::RefCell;

const W: u64 = 0x20_0000;
const LIMITS: Limits = Limits {
    window: W,
    bytes: 8 * W,
    count: 6,
    earn: 64 << 10,
    end: 0x7fff_ffff_f000,
};

type Parts = Vec<(u64, u64)>;

/// Attaches a range and gives back the peer's addresses that were stepped over.
fn touch(cache: &mut AttachCache<(u64, u64)>, address: u64, len: u64) -> Parts {
    let parts = RefCell::new(Vec::new());
    cache
        .with::<io::Error>(
            address,
            len,
            |begin, bytes| Ok((begin, bytes)),
            |&(begin, bytes), offset, into, n| {
                assert!(offset + n <= bytes, "{offset} + {n} in a window of {bytes}");
                assert_eq!(begin + offset, address + into);
                parts.borrow_mut().push((begin + offset, n));
                Ok(())
            },
        )
        .expect("attaches");
    parts.into_inner()
}

fn check(cache: &AttachCache<(u64, u64)>) {
    let mut last = 0;
    let mut sum = 0;
    for (&begin, entry) in &cache.windows {
        assert!(begin >= last, "windows overlap");
        assert_eq!(entry.window, (begin, entry.len));
        last = begin + entry.len;
        sum += entry.len;
    }
    assert_eq!(sum, cache.bytes());
    assert!(cache.bytes() <= cache.limits.bytes && cache.count() <= cache.limits.count);
}

#[test]
fn a_window_is_aligned_and_serves_what_lies_in_it() {
    let mut cache = AttachCache::new(LIMITS);
    assert_eq!(
        touch(&mut cache, 5 * W + 100, 1000),
        [(5 * W + 100, 1000u64)]
    );
    assert_eq!((cache.bytes(), cache.count()), (W, 1));
    touch(&mut cache, 5 * W, W);
    assert!(cache.covers(5 * W + 7, 9) && !cache.covers(5 * W, W + 1));
    let stats = cache.take_stats();
    assert_eq!((stats.attached, stats.hits), (1, 1));
    assert_eq!(cache.take_stats(), Stats::default());
}

#[test]
fn a_range_over_windows_and_gaps_is_walked_in_order() {
    let mut cache = AttachCache::new(LIMITS);
    touch(&mut cache, 2 * W, 1);
    touch(&mut cache, 4 * W, 1);
    let parts = touch(&mut cache, W + 10, 4 * W);
    assert_eq!(parts.first(), Some(&(W + 10, W - 10)));
    assert_eq!(parts.iter().map(|&(_, n)| n).sum::<u64>(), 4 * W);
    assert!(
        parts
            .windows(2)
            .all(|pair| pair[0].0 + pair[0].1 == pair[1].0)
    );
    assert_eq!(cache.count(), 5);
    check(&cache);
}

#[test]
fn the_window_used_longest_ago_goes_first() {
    let mut cache = AttachCache::new(LIMITS);
    for index in 0..6 {
        touch(&mut cache, index * 10 * W, 1);
    }
    touch(&mut cache, 0, 1);
    touch(&mut cache, 100 * W, 1);
    assert!(cache.covers(0, 1) && !cache.covers(10 * W, 1) && cache.covers(20 * W, 1));
    assert_eq!(cache.take_stats().evicted, 1);
    check(&cache);
}

#[test]
fn more_than_the_bound_is_copied_in_parts() {
    let mut cache = AttachCache::new(LIMITS);
    let parts = touch(&mut cache, 3, 100 * W);
    assert_eq!(parts.iter().map(|&(_, n)| n).sum::<u64>(), 100 * W);
    assert!(parts.iter().all(|&(_, n)| n <= 8 * W));
    check(&cache);
}

#[test]
fn an_attachment_is_earned_by_size_or_by_coming_again() {
    let mut cache: AttachCache<(u64, u64)> = AttachCache::new(LIMITS);
    assert!(cache.earned(7 * W, 64 << 10, 64 << 10));
    assert!(cache.earned(7 * W, 10, 64 << 10), "a part of a large one");
    assert!(!cache.earned(7 * W, 100, 100));
    assert!(cache.earned(7 * W + 5000, 100, 100), "the window again");
    assert!(!cache.earned(8 * W, 100, 100));
    touch(&mut cache, 9 * W, 1);
    assert!(cache.earned(9 * W + 50, 100, 100), "attached already");
    for index in 0..SEEN as u64 {
        cache.earned((100 + index) * W, 1, 1);
    }
    assert!(!cache.earned(8 * W, 100, 100), "long forgotten");
}

#[test]
fn what_lies_outside_of_the_address_space_is_an_error_and_holes_end_windows() {
    let mut cache = AttachCache::new(LIMITS);
    for (address, len) in [
        (LIMITS.end - 10, 11),
        (u64::MAX - 5, 10),
        (LIMITS.end + W, 1),
    ] {
        let result = cache.with::<io::Error>(
            address,
            len,
            |begin, len| Ok((begin, len)),
            |_, _, _, _| Ok(()),
        );
        assert_eq!(
            result.expect_err("outside").raw_os_error(),
            Some(libc::EFAULT)
        );
    }
    // The last window ends with the address space.
    touch(&mut cache, LIMITS.end - 4096, 4096);
    let (&begin, entry) = cache.windows.iter().next().expect("one");
    assert_eq!(begin + entry.len, LIMITS.end);
    touch(&mut cache, 0, 3 * W);
    let before = cache.count();
    cache.drop_range(W + 5, 10);
    assert_eq!(cache.count(), before - 1);
    assert!(!cache.covers(W, 1));
    assert_eq!(cache.take_stats().dropped, 1);
    check(&cache);
}

#[test]
fn a_refused_attachment_leaves_the_cache_as_it_was() {
    let mut cache: AttachCache<(u64, u64)> = AttachCache::new(LIMITS);
    let refused = cache.with::<io::Error>(
        0,
        10,
        |_, _| Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        |_, _, _, _| Ok(()),
    );
    assert_eq!(
        refused.expect_err("refused").raw_os_error(),
        Some(libc::ENOMEM)
    );
    assert_eq!((cache.bytes(), cache.count()), (0, 0));
    touch(&mut cache, 0, 10);
    check(&cache);
}

#[test]
fn random_ranges_keep_the_invariants() {
    let mut cache = AttachCache::new(LIMITS);
    let mut random = 1u64;
    for _ in 0..20_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let address = (random >> 20) % (40 * W);
        let len = 1 + (random >> 8) % [100, 4096, W, 5 * W][(random >> 60) as usize % 4];
        if random >> 50 & 31 == 0 {
            cache.drop_range(address, len);
            assert!(!cache.covers(address, 1));
        } else {
            let parts = touch(&mut cache, address, len);
            assert_eq!(parts.iter().map(|&(_, n)| n).sum::<u64>(), len);
        }
        check(&cache);
    }
}
