// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests with real holes: a file that is shorter than its mapping raises SIGBUS as an attachment of a dead process
//! does.

use super::*;
use crate::sync::AtomicU32;
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::sync::MutexGuard;

/// Whole pages, whatever these have.
const PAGE: usize = 64 << 10;

/// The disposition of a signal belongs to the whole process: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pages of a file of which only the first `there` exist.
fn pages(there: usize, mapped: usize) -> (File, MmapRaw) {
    let file = File::from(memfd_create("hole", MFdFlags::MFD_CLOEXEC).expect("memfd"));
    file.set_len((mapped * PAGE) as u64).expect("size");
    let map = MmapOptions::new()
        .len(mapped * PAGE)
        .map_raw(&file)
        .expect("mmap");
    // SAFETY: the mapping has that many bytes, and nobody else knows it.
    let all = unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr(), mapped * PAGE) };
    for (index, byte) in all.iter_mut().enumerate() {
        *byte = (index % 251) as u8;
    }
    file.set_len((there * PAGE) as u64).expect("shorter");
    (file, map)
}

fn area(map: &MmapRaw) -> Range<usize> {
    let begin = map.as_ptr() as usize;
    begin..begin + map.len()
}

fn read(map: &MmapRaw, from: usize, out: &mut [u8]) -> Result<(), Hole> {
    assert!(from + out.len() <= map.len());
    // SAFETY: within the mapping, by the assertion; pages may be missing.
    let source = unsafe { map.as_ptr().add(from) };
    // SAFETY: as above; `out` is memory of its own.
    unsafe { copy(out.as_mut_ptr(), source, out.len(), area(map)) }
}

#[test]
fn every_length_and_alignment_is_copied() {
    let _one = one();
    let (_file, map) = pages(2, 2);
    for len in [0, 1, 7, 63, 64, 65, 127, 128, 200, 1000, 4096, 5000] {
        for shift in [0, 1, 15, 33] {
            let mut out = vec![0xee; len + 2];
            read(&map, shift, &mut out[1..=len]).expect("all there");
            assert_eq!((out[0], out[len + 1]), (0xee, 0xee));
            let right = (0..len).all(|index| out[index + 1] == ((shift + index) % 251) as u8);
            assert!(right, "{len} bytes at {shift}");
        }
    }
}

#[test]
fn a_hole_is_an_error_wherever_it_begins() {
    let _one = one();
    let (_file, map) = pages(1, 4);
    for from in [0, 1, PAGE - 65, PAGE - 64, PAGE - 1, PAGE, 3 * PAGE] {
        for len in [1, 3, 64, 70, PAGE] {
            let mut out = vec![0; len];
            let reaches = from + len > PAGE;
            assert_eq!(
                read(&map, from, &mut out).is_err(),
                reaches,
                "{len} at {from}"
            );
        }
    }
    // Writing to one is the same error.
    // SAFETY: the second page lies in the mapping.
    let target = unsafe { map.as_mut_ptr().add(PAGE) };
    // SAFETY: within the mapping; the page is missing, which the area says.
    let written = unsafe { copy(target, [1u8; 100].as_ptr(), 100, area(&map)) };
    assert_eq!(written, Err(Hole));
    // The way out was used up: the next copy is as good as the first.
    let mut out = [0; 64];
    assert_eq!(read(&map, 0, &mut out), Ok(()));
    assert_eq!(out[63], 63);
}

#[test]
fn the_action_of_the_program_is_there_before_and_after() {
    extern "C" fn mine(_: libc::c_int) {}
    let _one = one();
    let (_file, map) = pages(1, 2);
    let before = action(None);
    let mut set = before;
    set.sa_sigaction = mine as extern "C" fn(libc::c_int) as *const () as usize;
    set.sa_flags = libc::SA_RESTART;
    // SAFETY: a set that is there.
    unsafe { libc::sigaddset(&raw mut set.sa_mask, libc::SIGUSR2) };
    action(Some(&set));
    let mut out = [0; 8];
    assert_eq!(read(&map, PAGE, &mut out), Err(Hole));
    let after = action(Some(&before));
    assert_eq!(after.sa_sigaction, set.sa_sigaction);
    assert_eq!(after.sa_flags & libc::SA_RESTART, libc::SA_RESTART);
    assert_eq!(bits(&after.sa_mask), bits(&set.sa_mask));
}

#[test]
fn a_thread_that_blocks_the_signal_lives_and_blocks_it_still() {
    let _one = one();
    let (_file, map) = pages(1, 2);
    let thread = std::thread::spawn(move || {
        let blocked = || {
            // SAFETY: a set of bits.
            let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: the set lives through the call.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask) };
            bits(&mask) >> (libc::SIGBUS - 1) & 1 == 1
        };
        // SAFETY: the set lives through the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &only_bus(), std::ptr::null_mut()) };
        let mut out = [0; 8];
        assert_eq!(read(&map, PAGE, &mut out), Err(Hole));
        assert!(blocked());
    });
    thread.join().expect("it lives");
}

#[test]
fn a_fault_elsewhere_goes_to_the_program() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    static LATE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn mine(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel's siginfo_t, which nothing writes to while the handler runs.
        let notified = unsafe { &*info };
        // SAFETY: a fault's siginfo_t has an address.
        let address = unsafe { notified.si_addr() } as u64;
        SEEN.fetch_add(1, Ordering::Relaxed);
        // Mends the file behind the mapping, so that the instruction succeeds when it is tried again.
        let fd = LATE.load(Ordering::Relaxed) as libc::c_int;
        // SAFETY: makes a file longer; async-signal-safe.
        unsafe { libc::ftruncate(fd, 2 * PAGE as libc::off_t) };
        assert_ne!(address, 0);
    }
    let _one = one();
    let (ours_file, ours) = pages(1, 2);
    let (file, other) = pages(1, 2);
    LATE.store(
        std::os::fd::AsRawFd::as_raw_fd(&file) as u64,
        Ordering::Relaxed,
    );
    let before = action(None);
    let mut set = before;
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = mine;
    set.sa_sigaction = handler as *const () as usize;
    set.sa_flags = libc::SA_SIGINFO;
    action(Some(&set));
    // The source is not in the area that is guarded: the program's own handler sees it, although ours stands before it.
    let mut out = [7; 8];
    // SAFETY: the second page lies in the mapping.
    let source = unsafe { other.as_ptr().add(PAGE) };
    // SAFETY: the source's page is missing; the handler above mends it.
    let copied = unsafe { copy(out.as_mut_ptr(), source, 8, area(&ours)) };
    action(Some(&before));
    assert_eq!(copied, Ok(()));
    assert_eq!(out, [0; 8]);
    assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    drop(ours_file);
}

#[test]
fn threads_guard_at_the_same_time() {
    let _one = one();
    let before = action(None).sa_sigaction;
    let (_file, map) = pages(1, 2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..500 {
                    let mut out = [0; 96];
                    let from = if round % 2 == 0 { 0 } else { PAGE - 32 };
                    assert_eq!(read(&map, from, &mut out).is_err(), from > 0);
                }
            });
        }
    });
    assert_eq!(action(None).sa_sigaction, before);
}
