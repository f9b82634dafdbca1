// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place where atomics come from: the standard library's, or loom's when the models run.
//!
//! Also the *asymmetric fence*. A side that runs often orders a store before a load for free ([`light_fence`]), because
//! the side that runs rarely pays for both ([`HeavyFence::issue`], `membarrier(2)`). Where the kernel or a seccomp
//! filter refuses `membarrier`, both sides use a full fence; each segment's header says whether its rank needs it.
//!
//! # Safety
//! The only unsafe operation is the system call `membarrier`, which takes two integers and touches no memory of ours.
#![expect(
    clippy::disallowed_types,
    reason = "this file is the facade that everything else imports"
)]
#![allow(unsafe_code, reason = "the system call membarrier")]

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Condvar, Mutex};
#[cfg(loom)]
pub use loom::thread::yield_now;
#[cfg(not(loom))]
pub use std::sync::atomic::{Ordering, compiler_fence, fence};
#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex};
#[cfg(not(loom))]
pub use std::thread::yield_now;

// Aliases, not re-exports: clippy would report a re-export of a disallowed type wherever it is used.
/// The standard library's, unless the models run.
#[cfg(not(loom))]
pub type AtomicBool = std::sync::atomic::AtomicBool;
/// The standard library's, unless the models run.
#[cfg(not(loom))]
pub type AtomicU32 = std::sync::atomic::AtomicU32;
/// The standard library's, unless the models run.
#[cfg(not(loom))]
pub type AtomicU64 = std::sync::atomic::AtomicU64;
/// The standard library's, unless the models run.
#[cfg(not(loom))]
pub type AtomicUsize = std::sync::atomic::AtomicUsize;
/// The standard library's, unless the models run.
#[cfg(not(loom))]
pub type AtomicPtr<T> = std::sync::atomic::AtomicPtr<T>;

/// Tells the processor that this is a polling loop.
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    yield_now();
}

/// The cheap half of the asymmetric fence. The store before it is ordered before the load after it, provided that the
/// other side issues a [`HeavyFence`] between its own store and load. With `strong` it is a full fence and needs no
/// help.
#[inline(always)]
pub fn light_fence(strong: bool) {
    #[cfg(not(loom))]
    if strong {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
    #[cfg(loom)]
    {
        let _ = strong;
        fence(Ordering::SeqCst);
    }
}

/// Stands between two sequentially consistent accesses, which need no fence between them. loom takes such accesses for
/// acquire and release only, so that under it there is one.
#[inline(always)]
pub fn between_seq_cst() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// The expensive half of the asymmetric fence.
#[derive(Debug, Clone, Copy)]
pub struct HeavyFence {
    expedited: bool,
}

const MEMBARRIER_CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) reads its two integer arguments only; unknown commands return EINVAL, a filter's refusal
    // EPERM or ENOSYS.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    result == 0
}

impl HeavyFence {
    /// Registers this process as a target of other processes' fences. The result says whether that worked.
    #[must_use]
    pub fn register() -> Self {
        let expedited = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
            && membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        Self { expedited }
    }

    /// A fence for a machine or a test without `membarrier`: every side must then use full fences.
    #[must_use]
    pub fn without_membarrier() -> Self {
        Self { expedited: false }
    }

    /// Whether `membarrier` works here. If not, this process and all who signal it must use full fences.
    #[must_use]
    pub fn is_expedited(self) -> bool {
        self.expedited
    }

    /// Orders all earlier stores of this thread before all its later loads, and the same on every registered process.
    pub fn issue(self) {
        fence(Ordering::SeqCst);
        if self.expedited {
            membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        }
    }
}

/// A number that no other call in this process returns.
#[must_use]
pub fn next_id() -> u64 {
    use std::sync::atomic::{AtomicU64 as Counter, Ordering::Relaxed};
    static NEXT: Counter = Counter::new(1);
    NEXT.fetch_add(1, Relaxed)
}
