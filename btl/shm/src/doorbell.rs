// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a rank that sleeps is woken, and only then.
//!
//! The doorbell is a futex word in the sleeper's segment: 0 awake, 1 asleep. The sleeper arms it, issues the heavy half
//! of the asymmetric fence, and looks once more for work. It sleeps in the kernel only while the word is still 1, and
//! never longer than its bound. A thread that has made work for the rank and finds the doorbell armed takes it back to
//! 0 and wakes the sleeper.
//!
//! # Safety
//! The only unsafe operation is `futex(2)` on a word that the reference keeps alive; the kernel checks the address.
#![allow(unsafe_code, reason = "the system call futex")]

use crate::sync::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::time::Duration;

/// The doorbell of one rank, in its segment.
#[derive(Debug)]
#[repr(transparent)]
pub struct Doorbell(AtomicU32);

/// How a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepOutcome {
    /// Someone rang, or the doorbell was no longer armed.
    Rung,
    /// The bound passed.
    TimedOut,
    /// The kernel refuses `futex`; the caller has to yield instead.
    Refused,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Doorbell {
    /// Announces that the owner is about to sleep. The caller issues a heavy fence next and looks once more for work.
    pub fn arm(&self) {
        self.0.store(1, Ordering::SeqCst);
        crate::fault::point("doorbell.armed");
    }

    /// The owner is awake again.
    pub fn disarm(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Whether the owner sleeps or is about to.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Takes the doorbell back if it is armed. Exactly one of all ringers gets `true` and has to wake the owner.
    #[inline]
    pub fn take(&self) -> bool {
        self.is_armed() && self.0.swap(0, Ordering::SeqCst) != 0
    }

    /// Wakes the owner if it sleeps. The caller has published its work and passed a light fence. Says whether someone
    /// was woken.
    #[cfg(not(loom))]
    #[inline]
    pub fn ring(&self) -> bool {
        let asleep = self.take();
        if asleep {
            self.wake();
            crate::fault::point("doorbell.rung");
        }
        asleep
    }

    #[cfg(not(loom))]
    #[cold]
    fn wake(&self) {
        // SAFETY: the word is alive; FUTEX_WAKE reads no memory through it. The futex is shared between processes.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAKE,
                1,
                0,
                0,
                0,
            )
        };
    }

    /// Sleeps until rung, at most `bound`. The caller has armed the doorbell and looked for work after its heavy fence.
    #[cfg(not(loom))]
    pub fn sleep(&self, bound: Duration) -> SleepOutcome {
        if crate::failing::attempt("doorbell.sleep").is_err() {
            self.disarm();
            return SleepOutcome::Refused;
        }
        let time = libc::timespec {
            tv_sec: bound.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(bound.subsec_nanos() as i32),
        };
        // SAFETY: the word and the timespec are alive for the call; the kernel only reads both.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAIT,
                1,
                &raw const time,
                0,
                0,
            )
        };
        let woken = if result == 0 {
            SleepOutcome::Rung
        } else {
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ETIMEDOUT) => SleepOutcome::TimedOut,
                Some(libc::EAGAIN | libc::EINTR) => SleepOutcome::Rung,
                _ => SleepOutcome::Refused,
            }
        };
        self.disarm();
        woken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_doorbell_that_is_not_armed_does_not_sleep() {
        let doorbell = Doorbell::default();
        assert_eq!(doorbell.sleep(Duration::from_secs(60)), SleepOutcome::Rung);
        assert!(!doorbell.ring());
    }

    #[test]
    fn a_ring_wakes_a_sleeper() {
        let doorbell = Arc::new(Doorbell::default());
        doorbell.arm();
        let ringer = std::thread::spawn({
            let doorbell = Arc::clone(&doorbell);
            move || doorbell.ring()
        });
        assert_ne!(
            doorbell.sleep(Duration::from_secs(60)),
            SleepOutcome::TimedOut
        );
        assert!(ringer.join().unwrap());
    }

    #[test]
    fn a_sleep_is_bounded() {
        let doorbell = Doorbell::default();
        doorbell.arm();
        assert_eq!(
            doorbell.sleep(Duration::from_millis(5)),
            SleepOutcome::TimedOut
        );
        assert!(!doorbell.is_armed());
    }
}
