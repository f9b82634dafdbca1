// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies that survive a hole: memory of another process that may vanish while it is read, where the kernel answers
//! with SIGBUS.
//!
//! An attachment made by the plain XPMEM interface has no other way to say that its owner is gone. The signal must not
//! reach the program, so [`copy`] lets this module's handler take it, for the length of one copy only. It saves the
//! program's action, sets its own, copies, and puts the program's back. The copy loop first notes, in thread-local
//! memory, where it is to go on after a fault. The handler compares the faulting address with the range that this
//! thread is copying. It moves the instruction pointer to the noted place, so that the loop ends early and says so.
//! Nothing is unwound, nothing is remapped. A SIGBUS of another thread or of other memory is not ours. It is passed on
//! to the action that the program had set, as if we were not there.
//!
//! What this leaves to be seen: during a copy, `sigaction(SIGBUS)` of another thread finds our handler. If that thread
//! then sets one of its own, it stays, and the copy that is under way is not guarded any more. A thread that blocks
//! SIGBUS has it unblocked during its copies, because the kernel kills a thread for a fault that it cannot report.
//!
//! # Safety
//! The loop is one `asm!` block that touches the two ranges, its declared registers and the thread's own note of the
//! way out. The only jump into it from outside is to that way out. That is a label at its end, at which every register
//! that it changes is declared clobbered. The handler runs on the faulting thread. It reads that thread's note and
//! statics made of atomics, and changes the saved instruction pointer. Otherwise it makes system calls that are
//! async-signal-safe.
#![allow(
    unsafe_code,
    reason = "a copy loop that a signal handler can end, and that handler"
)]

use crate::sync::{AtomicU64, Ordering};
use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The copy touched memory that is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer's memory is not there any more")]
pub struct Hole;

/// Whether this processor's copies can be guarded.
#[must_use]
pub fn available() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
}

/// What a thread is copying.
struct Note {
    /// Where the loop goes on after a fault; zero while there is no loop.
    way_out: Cell<usize>,
    begin: Cell<usize>,
    end: Cell<usize>,
}

thread_local! {
    // Without a destructor and made at compile time: the handler may look at it.
    static NOTE: Note = const {
        Note { way_out: Cell::new(0), begin: Cell::new(0), end: Cell::new(0) }
    };
}

/// The action that the program had set when the first guarded copy began, in parts.
static OLD_HANDLER: AtomicU64 = AtomicU64::new(0);
static OLD_FLAGS: AtomicU64 = AtomicU64::new(0);
static OLD_MASK: AtomicU64 = AtomicU64::new(0);

/// Guarded copies that are under way.
static GUARDS: Mutex<usize> = Mutex::new(0);

fn action(set: Option<&libc::sigaction>) -> libc::sigaction {
    // SAFETY: sigaction consists of integers and a set of bits; zeroes are a value of it.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    let new = set.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both pointers are null or to a sigaction that lives through the call. SIGBUS is a signal that may be
    // caught, so this cannot fail.
    unsafe { libc::sigaction(libc::SIGBUS, new, &raw mut old) };
    old
}

fn ours() -> libc::sigaction {
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handler;
    ours.sa_sigaction = handler as *const () as usize;
    // On the alternate stack if the program has one: its own handler, to which we may pass the signal, may need that.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    ours
}

/// The first 64 signals of a set: Linux has no others.
fn bits(set: &libc::sigset_t) -> u64 {
    (1..=64)
        .filter(|&signal| {
            // SAFETY: reads a set that is there; numbers that the C library keeps for itself return an error, which is
            // not 1.
            unsafe { libc::sigismember(set, signal) == 1 }
        })
        .fold(0, |bits, signal| bits | 1 << (signal - 1))
}

/// While it lives, SIGBUS comes here, and reaches this thread.
struct Guard {
    /// The thread had it blocked.
    blocked: bool,
}

fn only_bus() -> libc::sigset_t {
    // SAFETY: a set of bits; zeroes are a value of it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set that is there, and a signal that exists.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGBUS) };
    set
}

impl Guard {
    fn new() -> Self {
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        *guards += 1;
        let ours = ours();
        let mut old = action(None);
        // Another thread may have taken it from us; then what it set is what is passed on to.
        while old.sa_sigaction != ours.sa_sigaction {
            // Written before ours is in place, so that ours never reads half of it.
            OLD_HANDLER.store(old.sa_sigaction as u64, Ordering::Relaxed);
            OLD_FLAGS.store(u64::from(old.sa_flags.cast_unsigned()), Ordering::Relaxed);
            OLD_MASK.store(bits(&old.sa_mask), Ordering::Relaxed);
            let replaced = action(Some(&ours));
            if replaced.sa_sigaction == old.sa_sigaction {
                break;
            }
            old = replaced;
        }
        drop(guards);
        // SAFETY: a set of bits; zeroes are a value of it.
        let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both sets live through the call.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &only_bus(), &raw mut mask) };
        // SAFETY: the set was just written.
        let blocked = unsafe { libc::sigismember(&raw const mask, libc::SIGBUS) == 1 };
        Self { blocked }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.blocked {
            // SAFETY: the set lives through the call.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &only_bus(), std::ptr::null_mut()) };
        }
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        *guards -= 1;
        if *guards > 0 {
            return;
        }
        let replaced = action(Some(&old_action()));
        if replaced.sa_sigaction != ours().sa_sigaction {
            // The program has set another meanwhile: that one counts.
            action(Some(&replaced));
        }
    }
}

fn old_action() -> libc::sigaction {
    // SAFETY: integers and a set of bits.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    old.sa_sigaction = OLD_HANDLER.load(Ordering::Relaxed) as usize;
    old.sa_flags = (OLD_FLAGS.load(Ordering::Relaxed) as u32).cast_signed();
    let mask = OLD_MASK.load(Ordering::Relaxed);
    for signal in (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1) {
        // SAFETY: a set that is there; numbers that the C library keeps for itself are refused.
        unsafe { libc::sigaddset(&raw mut old.sa_mask, signal) };
    }
    old
}

/// Takes a SIGBUS of a guarded copy, and passes on any other.
extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid siginfo_t.
    let code = unsafe { (*info).si_code };
    if code > 0 {
        // SAFETY: as above; nothing writes to it while the handler runs.
        let notified = unsafe { &*info };
        // SAFETY: a SIGBUS that the kernel raised (its code is positive) has an address.
        let address = unsafe { notified.si_addr() } as usize;
        let way_out = NOTE
            .try_with(|note| {
                let ours = (note.begin.get()..note.end.get()).contains(&address);
                if ours { note.way_out.take() } else { 0 }
            })
            .unwrap_or(0);
        if way_out != 0 && leave(context, way_out) {
            return;
        }
    }
    pass_on(signal, info, context, code > 0);
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn leave(context: *mut libc::c_void, way_out: usize) -> bool {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: the kernel gives a handler with SA_SIGINFO the interrupted thread's ucontext_t, which nothing else refers
    // to.
    let registers = unsafe { &mut (*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        registers.gregs[libc::REG_RIP as usize] = way_out as i64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        registers.pc = way_out as u64;
    }
    true
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn leave(_: *mut libc::c_void, _: usize) -> bool {
    false
}

fn pass_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    fault: bool,
) {
    let old = old_action();
    match old.sa_sigaction {
        libc::SIG_IGN if !fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // Ignoring a fault kills, too. A fault is raised again by the instruction that we return to; a signal that
            // was sent is sent again.
            let mut default = old;
            default.sa_sigaction = libc::SIG_DFL;
            action(Some(&default));
            if !fault {
                // SAFETY: sends this thread a signal, which stays pending until we return.
                unsafe { libc::raise(signal) };
            }
        }
        there => {
            // SAFETY: a set of bits; zeroes are a value of it.
            let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: both sets live through the call.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const old.sa_mask, &raw mut before)
            };
            if old.sa_flags & libc::SA_SIGINFO != 0 {
                type Long = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: the program set this address as a handler of this kind.
                let there = unsafe { std::mem::transmute::<usize, Long>(there) };
                there(signal, info, context);
            } else {
                // SAFETY: the program set this address as a handler of this kind.
                let there =
                    unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(there) };
                there(signal);
            }
            // SAFETY: the set was written above.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
            };
        }
    }
}

/// Copies `len` bytes. Memory of `area` that is not there ends the copy with an error; some of the bytes have been
/// copied then.
///
/// # Errors
/// [`Hole`]: memory of `area` was not there.
///
/// # Safety
/// Both ranges are mapped for `len` bytes, `to` for writes, and do not overlap; a page of `area` may be missing, no
/// other one.
pub unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    len: usize,
    area: Range<usize>,
) -> Result<(), Hole> {
    if len == 0 {
        return Ok(());
    }
    let _guard = Guard::new();
    NOTE.with(|note| {
        note.begin.set(area.start);
        note.end.set(area.end);
        // SAFETY: the caller's promise; the guard is in place, and the note names the area.
        let missing = unsafe { copy_or_leave(to, from, len, note.way_out.as_ptr()) };
        note.way_out.set(0);
        note.end.set(0);
        if missing { Err(Hole) } else { Ok(()) }
    })
}

/// Copies, with `way_out` pointing behind the loop meanwhile. Says whether that way was taken.
///
/// # Safety
/// As [`copy`], whose handler is in place.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_or_leave(to: *mut u8, from: *const u8, len: usize, way_out: *mut usize) -> bool {
    let mut missing = 1u64;
    // SAFETY: reads `len` bytes at `from`, writes as many at `to` and one word at `way_out`, all valid. The direction
    // flag is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "lea {there}, [rip + 5f]",
            "mov [{way_out}], {there}",
            "cmp rcx, 64",
            "jb 3f",
            "2:",
            "movdqu {a}, [rsi]",
            "movdqu {b}, [rsi + 16]",
            "movdqu {c}, [rsi + 32]",
            "movdqu {d}, [rsi + 48]",
            "movdqu [rdi], {a}",
            "movdqu [rdi + 16], {b}",
            "movdqu [rdi + 32], {c}",
            "movdqu [rdi + 48], {d}",
            "add rsi, 64",
            "add rdi, 64",
            "sub rcx, 64",
            "cmp rcx, 64",
            "jae 2b",
            "3:",
            "rep movsb",
            "xor {missing:e}, {missing:e}",
            "5:",
            there = out(reg) _,
            way_out = in(reg) way_out,
            missing = inout(reg) missing,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack),
        );
    }
    missing != 0
}

/// # Safety
/// As [`copy`], whose handler is in place.
#[cfg(target_arch = "aarch64")]
unsafe fn copy_or_leave(to: *mut u8, from: *const u8, len: usize, way_out: *mut usize) -> bool {
    let mut missing = 1u64;
    // SAFETY: reads `len` bytes at `from`, writes as many at `to` and one word at `way_out`, all valid.
    unsafe {
        std::arch::asm!(
            "adr {there}, 5f",
            "str {there}, [{way_out}]",
            "subs {len}, {len}, #64",
            "b.lo 3f",
            "2:",
            "ldp {a:q}, {b:q}, [{from}]",
            "ldp {c:q}, {d:q}, [{from}, #32]",
            "stp {a:q}, {b:q}, [{to}]",
            "stp {c:q}, {d:q}, [{to}, #32]",
            "add {from}, {from}, #64",
            "add {to}, {to}, #64",
            "subs {len}, {len}, #64",
            "b.hs 2b",
            "3:",
            "adds {len}, {len}, #64",
            "b.eq 6f",
            "4:",
            "ldrb {there:w}, [{from}], #1",
            "strb {there:w}, [{to}], #1",
            "subs {len}, {len}, #1",
            "b.ne 4b",
            "6:",
            "mov {missing}, xzr",
            "5:",
            there = out(reg) _,
            way_out = in(reg) way_out,
            missing = inout(reg) missing,
            a = out(vreg) _,
            b = out(vreg) _,
            c = out(vreg) _,
            d = out(vreg) _,
            len = inout(reg) len => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            options(nostack),
        );
    }
    missing != 0
}

/// # Safety
/// As [`copy`].
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn copy_or_leave(_: *mut u8, _: *const u8, _: usize, _: *mut usize) -> bool {
    // Nobody gets here: `available` says no.
    true
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
