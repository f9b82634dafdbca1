// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads and stores that may fault: a signal becomes a result.
//!
//! # Safety
//!
//! The two probes are a few instructions of our own. If the faulting instruction is one of them, the handler goes on
//! behind it with the signal's number in a register. At any other instruction it puts the default action back, so that
//! the fault recurs and ends the process. A probe may be given any address: it is a word that only this process's tests
//! use, or it faults.
#![allow(unsafe_code, reason = "a fault is caught at an instruction of our own")]

#[cfg(target_arch = "x86_64")]
mod machine {
    std::arch::global_asm!(
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

    /// The instruction that faulted.
    pub(super) fn instruction(context: &libc::ucontext_t) -> usize {
        context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    }

    /// Goes on elsewhere, with the signal in the register of the answer's second word.
    pub(super) fn go_on(context: &mut libc::ucontext_t, at: usize, signal: i32) {
        let registers = &mut context.uc_mcontext.gregs;
        registers[libc::REG_RIP as usize] = at as i64;
        registers[libc::REG_RDX as usize] = i64::from(signal);
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    std::arch::global_asm!(
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

    /// The instruction that faulted.
    pub(super) fn instruction(context: &libc::ucontext_t) -> usize {
        context.uc_mcontext.pc as usize
    }

    /// Goes on elsewhere, with the signal in the register of the answer's second word.
    pub(super) fn go_on(context: &mut libc::ucontext_t, at: usize, signal: i32) {
        let registers = &mut context.uc_mcontext;
        registers.pc = at as u64;
        registers.regs[1] = signal.unsigned_abs().into();
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "the probes are written for x86-64 and aarch64, which is what the virtual machines are"
);

#[repr(C)]
struct Answer {
    value: u64,
    signal: u64,
}

unsafe extern "C" {
    fn onecopy_probe_load(address: usize) -> Answer;
    fn onecopy_probe_store(address: usize, value: u64) -> Answer;
    fn onecopy_probe_landing();
}

/// Loads a word; or the number of the signal that came.
pub(crate) fn load(address: usize) -> Result<u64, i32> {
    // SAFETY: see the module.
    let answer = unsafe { onecopy_probe_load(address) };
    judge(&answer)
}

/// Stores a word; or the number of the signal that came.
pub(crate) fn store(address: usize, value: u64) -> Result<(), i32> {
    // SAFETY: see the module.
    let answer = unsafe { onecopy_probe_store(address, value) };
    judge(&answer).map(|_| ())
}

fn judge(answer: &Answer) -> Result<u64, i32> {
    match answer.signal {
        0 => Ok(answer.value),
        signal => Err(signal as i32),
    }
}

extern "C" fn handler(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted context, which is this handler's to change.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let at = machine::instruction(context);
    if at == onecopy_probe_load as *const () as usize
        || at == onecopy_probe_store as *const () as usize
    {
        let landing = onecopy_probe_landing as *const () as usize;
        machine::go_on(context, landing, signal);
    } else {
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
