// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads and stores that may fault: a signal becomes a result.
//!
//! # Safety
//!
//! The two probes are a few instructions of our own. The handler, when the faulting instruction is one of them, goes on behind it with
//! the signal's number in a register; at any other instruction it puts the default action back, so that the fault recurs and ends
//! the process. A probe may be given any address: it is a word that only this process's tests use, or it faults.
#![allow(unsafe_code, reason = "a fault is caught at an instruction of our own")]

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::global_asm;

    global_asm!(
        ".globl onecopy_probe_load",
        ".globl onecopy_probe_store",
        ".globl onecopy_probe_landing",
        "onecopy_probe_load:",
        "mov rax, [rdi]",
        "xor edx, edx",
        "ret",
        "onecopy_probe_store:",
        "mov [rdi], rsi",
        "xor eax, eax",
        "xor edx, edx",
        "ret",
        "onecopy_probe_landing:",
        "xor eax, eax",
        "ret",
    );

    #[repr(C)]
    pub(super) struct Answer {
        pub(super) value: u64,
        pub(super) signal: u64,
    }

    unsafe extern "C" {
        pub(super) fn onecopy_probe_load(address: usize) -> Answer;
        pub(super) fn onecopy_probe_store(address: usize, value: u64) -> Answer;
        fn onecopy_probe_landing();
    }

    /// Goes on at the landing if the fault was a probe's. Says whether it was.
    pub(super) fn land(signal: i32, context: &mut libc::ucontext_t) -> bool {
        let registers = &mut context.uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as usize;
        let ours = at == onecopy_probe_load as *const () as usize
            || at == onecopy_probe_store as *const () as usize;
        if ours {
            registers[libc::REG_RIP as usize] = onecopy_probe_landing as *const () as usize as i64;
            registers[libc::REG_RDX as usize] = i64::from(signal);
        }
        ours
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use std::arch::global_asm;

    global_asm!(
        ".globl onecopy_probe_load",
        ".globl onecopy_probe_store",
        ".globl onecopy_probe_landing",
        "onecopy_probe_load:",
        "ldr x0, [x0]",
        "mov x1, xzr",
        "ret",
        "onecopy_probe_store:",
        "str x1, [x0]",
        "mov x0, xzr",
        "mov x1, xzr",
        "ret",
        "onecopy_probe_landing:",
        "mov x0, xzr",
        "ret",
    );

    #[repr(C)]
    pub(super) struct Answer {
        pub(super) value: u64,
        pub(super) signal: u64,
    }

    unsafe extern "C" {
        pub(super) fn onecopy_probe_load(address: usize) -> Answer;
        pub(super) fn onecopy_probe_store(address: usize, value: u64) -> Answer;
        fn onecopy_probe_landing();
    }

    /// Goes on at the landing if the fault was a probe's. Says whether it was.
    pub(super) fn land(signal: i32, context: &mut libc::ucontext_t) -> bool {
        let registers = &mut context.uc_mcontext;
        let at = registers.pc as usize;
        let ours = at == onecopy_probe_load as *const () as usize
            || at == onecopy_probe_store as *const () as usize;
        if ours {
            registers.pc = onecopy_probe_landing as *const () as usize as u64;
            registers.regs[1] = signal.unsigned_abs().into();
        }
        ours
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "the probes are written for x86-64 and aarch64, which is what the virtual machines are"
);

/// Loads a word; or the number of the signal that came.
pub(crate) fn load(address: usize) -> Result<u64, i32> {
    // SAFETY: see the module.
    let answer = unsafe { machine::onecopy_probe_load(address) };
    judge(&answer)
}

/// Stores a word; or the number of the signal that came.
pub(crate) fn store(address: usize, value: u64) -> Result<(), i32> {
    // SAFETY: see the module.
    let answer = unsafe { machine::onecopy_probe_store(address, value) };
    judge(&answer).map(|_| ())
}

fn judge(answer: &machine::Answer) -> Result<u64, i32> {
    match answer.signal {
        0 => Ok(answer.value),
        signal => Err(signal as i32),
    }
}

extern "C" fn handler(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted context, which is this handler's to change.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    if !machine::land(signal, context) {
        // SAFETY: allowed in a handler; the fault then recurs with its default action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Makes the probes work in this process and in those that it forks.
pub(crate) fn install() {
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        catch(signal);
    }
}

/// Lets a signal that comes during a probe be its result.
pub(crate) fn catch(signal: i32) {
    // SAFETY: zeroes are a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the handler has the signature that the flags promise.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}
