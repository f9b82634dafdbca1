// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registration cache over the model, with mappings of this process that really change.
//!
//! # Safety
//!
//! Mappings are the test's own. What is registered is touched by no operation.
#![allow(unsafe_code, reason = "maps, unmaps and registers memory")]

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::mman::{
    MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pause};
use onecopy_verbs::cache::{Bounds, Cache, RegisteredBuffer, RegistrationSpec};
use onecopy_verbs::model::Fabric;
use onecopy_verbs::provider::Access;
use onecopy_verbs::unmaps::{Observer, Watcher};
use onecopy_verbs::{Device, Domain};

const PAGE: usize = 4096;

fn domain(fabric: &Fabric) -> Domain<Fabric> {
    Device::open(fabric, "m0")
        .and_then(|device| device.domain())
        .expect("domain")
}

/// A cache, unless nobody tells of changes here: then what is kept is nothing, and the test is over.
fn cache(fabric: &Fabric, bytes: usize, entries: usize) -> Option<Cache<Fabric>> {
    let cache = Cache::new(&domain(fabric), Bounds { bytes, entries });
    if let Some(why) = cache.refused() {
        assert!(why.contains("userfaultfd"), "{why}");
        let mapped = map(None, 1);
        drop(get(&cache, mapped, 10));
        assert_eq!((cache.count(), cache.stats().untrusted), (0, 1));
        return None;
    }
    Some(cache)
}

fn map(base: Option<NonNull<u8>>, pages: usize) -> NonNull<u8> {
    // In place of what is there, at once: another test may want the place.
    let fixed = if base.is_some() {
        MapFlags::MAP_FIXED
    } else {
        MapFlags::empty()
    };
    let address = base.and_then(|base| NonZeroUsize::new(base.as_ptr().addr()));
    let length = NonZeroUsize::new(pages * PAGE).expect("pages");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE | fixed;
    // SAFETY: new memory, where nothing is, or in place of the test's own.
    let mapped = unsafe {
        mmap_anonymous(
            address,
            length,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            flags,
        )
    };
    mapped.expect("memory").cast()
}

fn unmap(base: NonNull<u8>, pages: usize) {
    // SAFETY: the test's own mapping.
    unsafe { munmap(base.cast(), pages * PAGE) }.expect("unmapped");
}

fn get(cache: &Cache<Fabric>, base: NonNull<u8>, length: usize) -> RegisteredBuffer<Fabric> {
    // SAFETY: no operation touches it.
    unsafe { cache.get(base, length, Access::default()) }.expect("registered")
}

fn add(base: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // SAFETY: in the test's own mapping.
    unsafe { base.add(bytes) }
}

#[test]
fn what_was_registered_is_found_again() {
    let fabric = Fabric::default();
    let Some(cache) = cache(&fabric, 1 << 20, 8) else {
        return;
    };
    let base = map(None, 4);
    let first = get(&cache, add(base, 100), 2 * PAGE);
    assert_eq!((first.offset, first.memory.len()), (100, 3 * PAGE));
    let again = get(&cache, add(base, PAGE), PAGE);
    assert_eq!(again.offset, PAGE);
    assert!(Arc::ptr_eq(&first.memory, &again.memory));
    // Peers may do more with it: another registration.
    let access = Access {
        remote_read: true,
        remote_write: false,
    };
    // SAFETY: no operation touches it.
    let shown = unsafe { cache.get(base, 10, access) }.expect("registered");
    assert!(!Arc::ptr_eq(&first.memory, &shown.memory));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.kept, stats.ended), (1, 2, 0));
    unmap(base, 4);
    assert_eq!(
        (cache.count(), cache.bytes(), cache.stats().ended),
        (0, 0, 2)
    );
    drop((first, again, shown));
    cache.collect();
    assert_eq!(fabric.registered(), 0);
}

#[test]
fn other_memory_at_the_same_place_is_registered_anew() {
    let fabric = Fabric::default();
    let Some(cache) = cache(&fabric, 1 << 20, 8) else {
        return;
    };
    let mut base = map(None, 2);
    let mut key = get(&cache, base, PAGE).memory.remote(0).key;
    for round in 0..50 {
        base = map(Some(base), 2);
        let now = get(&cache, base, PAGE).memory.remote(0).key;
        assert_ne!(key, now, "round {round}");
        key = now;
    }
    assert_eq!(cache.stats().ended, 50);
}

#[test]
fn what_is_discarded_or_moved_is_forgotten() {
    let fabric = Fabric::default();
    let Some(cache) = cache(&fabric, 1 << 20, 8) else {
        return;
    };
    let base = map(None, 4);
    drop(get(&cache, base, 4 * PAGE));
    // One page in the middle.
    // SAFETY: the test's own mapping.
    unsafe { madvise(add(base, PAGE).cast(), PAGE, MmapAdvise::MADV_DONTNEED) }.expect("discarded");
    assert_eq!(cache.count(), 0);
    drop(get(&cache, base, 4 * PAGE));
    assert_eq!(cache.count(), 1);
    let beside = map(None, 1);
    drop(get(&cache, beside, PAGE));
    // SAFETY: the test's own mapping, to where the kernel finds room.
    let moved = unsafe {
        mremap(
            base.cast(),
            4 * PAGE,
            1 << 20,
            MRemapFlags::MREMAP_MAYMOVE,
            None,
        )
    };
    let moved = moved.expect("moved").cast::<u8>();
    if moved != base {
        assert_eq!(cache.count(), 1, "only that which moved");
    }
    drop(get(&cache, moved, PAGE));
}

#[test]
fn the_oldest_goes_first_and_bounds_hold() {
    let fabric = Fabric::default();
    let Some(cache) = cache(&fabric, 8 * PAGE, 3) else {
        return;
    };
    let bases: Vec<_> = (0..4).map(|_| map(None, 2)).collect();
    for start in &bases[..3] {
        drop(get(&cache, *start, 2 * PAGE));
    }
    drop(get(&cache, bases[0], 1));
    // A fourth: the second has not been used for longest.
    let used = get(&cache, bases[3], 2 * PAGE);
    assert_eq!(
        (cache.count(), cache.bytes(), cache.stats().evicted),
        (3, 6 * PAGE, 1)
    );
    assert_eq!(fabric.registered(), 6 * PAGE);
    let hits = cache.stats().hits;
    drop(get(&cache, bases[0], 1));
    assert_eq!(cache.stats().hits, hits + 1);
    // More than fits is not kept.
    let large = map(None, 9);
    drop(get(&cache, large, 9 * PAGE));
    assert_eq!(cache.count(), 3);
    cache.clear();
    assert_eq!(fabric.registered(), 2 * PAGE, "what is in use");
    drop(used);
    assert_eq!(fabric.registered(), 0);
}

/// A domain had no memory for a buffer when another one came first, and comes first itself from then on.
#[test]
fn what_the_wanted_domain_lacks_is_registered_anew_once() {
    let fabric = Fabric::default();
    let domains = ["m0", "m1"].map(|name| {
        let device = Device::open(&fabric, name);
        device.and_then(|device| device.domain()).expect("domain")
    });
    let bounds = Bounds {
        bytes: 1 << 20,
        entries: 8,
    };
    let cache = Cache::of(domains.to_vec(), bounds);
    if cache.refused().is_some() {
        return;
    }
    let base = map(None, 1);
    let get_in = |first| {
        let wanted = RegistrationSpec {
            access: Access::default(),
            domains: 0b11,
            first,
        };
        // SAFETY: no operation touches it.
        unsafe { cache.get_in(base, PAGE, wanted) }
            .expect("registered")
            .0
    };
    fabric.limit_memory(PAGE);
    let lacking = get_in(0);
    assert!(lacking.in_domain(0).is_some() && lacking.in_domain(1).is_none());
    fabric.limit_memory(usize::MAX);
    let whole = get_in(1);
    for _ in 0..3 {
        assert!(Arc::ptr_eq(&get_in(1), &whole));
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.kept, cache.count()), (3, 2, 2));
}

#[test]
fn at_the_limit_of_memory_what_is_kept_makes_room() {
    let fabric = Fabric::default();
    let Some(cache) = cache(&fabric, 1 << 20, 8) else {
        return;
    };
    fabric.limit_memory(4 * PAGE);
    let (a, b) = (map(None, 3), map(None, 3));
    drop(get(&cache, a, 3 * PAGE));
    let used = get(&cache, b, 3 * PAGE);
    assert_eq!(fabric.registered(), 3 * PAGE);
    // SAFETY: no operation touches it.
    let error =
        unsafe { cache.get(a, 3 * PAGE, Access::default()) }.expect_err("the other is in use");
    assert!(error.is_exhaustion(), "{error}");
    drop(used);
}

#[test]
fn memory_of_a_file_is_not_kept() {
    let fabric = Fabric::default();
    let Some(cache) = cache(&fabric, 1 << 20, 8) else {
        return;
    };
    let length = NonZeroUsize::new(PAGE).expect("a page");
    let (read, shared) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_SHARED,
    );
    // SAFETY: new memory, where nothing is.
    let base = unsafe { mmap_anonymous(None, length, read, shared) }
        .expect("memory")
        .cast();
    drop(get(&cache, base, 100));
    assert_eq!((cache.count(), cache.stats().untrusted), (0, 1));
    assert_eq!(fabric.registered(), 0);
}

#[test]
fn threads_that_unmap_and_threads_that_register_do_not_wait_for_each_other() {
    let fabric = Fabric::default();
    let Some(cache) = cache(&fabric, 64 * PAGE, 4) else {
        return;
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..200 {
                    let base = map(None, 1 + round % 5);
                    let found = get(&cache, base, PAGE);
                    // The allocator unmaps this: nothing of ours may wait for it.
                    drop(vec![round; 1 << 18]);
                    drop(found);
                    unmap(base, 1 + round % 5);
                }
            });
        }
    });
    assert_eq!(cache.count(), 0);
    cache.collect();
    assert_eq!(fabric.registered(), 0);
}

/// Unmaps a page when it is dropped, as an allocator may with anything that is freed.
#[derive(Debug)]
struct Unmaps(usize);

impl Drop for Unmaps {
    fn drop(&mut self) {
        let page = NonNull::new(std::ptr::with_exposed_provenance_mut(self.0));
        unmap(page.expect("a page"), 1);
    }
}

/// A page that is unmapped with the last reference of this observer.
#[derive(Debug)]
struct ByObserver(#[allow(dead_code, reason = "it is dropped")] Unmaps);

impl Observer for ByObserver {
    fn observe(&self, take: &mut dyn FnMut() -> Option<Range<usize>>) {
        while take().is_some() {}
    }
}

/// A page that is unmapped by the end of the thread that got an event.
#[derive(Debug)]
struct ByThread(usize);

thread_local!(static AT_END: RefCell<Option<Unmaps>> = const { RefCell::new(None) });

impl Observer for ByThread {
    fn observe(&self, take: &mut dyn FnMut() -> Option<Range<usize>>) {
        while take().is_some() {}
        AT_END.set(Some(Unmaps(self.0)));
    }
}

/// What the thread of a watcher frees at its end may change a mapping. Nobody reads the message about that any more.
#[test]
fn the_end_of_a_watcher_waits_for_no_message_of_its_own() {
    for by_thread in [false, true] {
        let (page, other) = (map(None, 1), map(None, 1));
        let [base, other_base] = [page, other].map(|page| page.as_ptr().expose_provenance());
        let observer: Arc<dyn Observer> = match by_thread {
            true => Arc::new(ByThread(base)),
            false => Arc::new(ByObserver(Unmaps(base))),
        };
        let kept = Arc::clone(&observer);
        let Ok(watcher) = Watcher::start(observer) else {
            std::mem::forget(kept);
            return;
        };
        let watched = [base, other_base].map(|base| watcher.watch(&(base..base + PAGE)));
        assert_eq!(watched, [true, true]);
        unmap(other, 1);
        drop(kept);
        let (done, over) = channel();
        std::thread::spawn(move || {
            drop(watcher);
            let _ = done.send(());
        });
        let over = over.recv_timeout(Duration::from_secs(60));
        assert!(over.is_ok(), "by its thread's end: {by_thread}");
    }
}

/// The child of a fork has copies of all descriptors, and outlives the watcher.
#[test]
fn a_child_that_is_forked_keeps_nobody_waiting() {
    let page = map(None, 1);
    let base = page.as_ptr().expose_provenance();
    let Ok(watcher) = Watcher::start(Arc::new(ByObserver(Unmaps(
        map(None, 1).as_ptr().expose_provenance(),
    )))) else {
        return;
    };
    assert!(watcher.watch(&(base..base + PAGE)));
    // SAFETY: the child only waits, and ends.
    let child = match unsafe { fork() }.expect("fork") {
        ForkResult::Child => loop {
            pause();
        },
        ForkResult::Parent { child } => child,
    };
    drop(watcher);
    let (done, over) = channel();
    std::thread::spawn(move || {
        drop(Unmaps(base));
        let _ = done.send(());
    });
    let over = over.recv_timeout(Duration::from_secs(60));
    kill(child, Signal::SIGKILL).expect("kill");
    waitpid(child, None).expect("wait");
    assert!(over.is_ok(), "the page is still watched");
}

#[test]
fn without_keeping_each_has_a_registration_of_its_own() {
    let fabric = Fabric::default();
    let cache = Cache::without_keeping(&domain(&fabric));
    let base = map(None, 1);
    let (a, b) = (get(&cache, base, 10), get(&cache, base, 10));
    assert!(!Arc::ptr_eq(&a.memory, &b.memory));
    assert_eq!((cache.count(), a.memory.len()), (0, 10));
    assert_eq!(cache.refused(), Some("not wanted"));
    for (bytes, entries) in [(0, 16), (1 << 20, 0)] {
        let cache = Cache::new(&domain(&fabric), Bounds { bytes, entries });
        drop(get(&cache, base, 10));
        assert_eq!((cache.count(), cache.refused()), (0, Some("not wanted")));
    }
}
