// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of the runtime beside those of the program.

use nix::sys::signal::{SigSet, SigmaskHow};
use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that gets none of the program's signals, with a stack of so many bytes.
///
/// # Errors
/// The system has no room for a thread.
pub fn start(
    name: &str,
    stack: usize,
    serve: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    // The thread inherits the mask.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let started = Builder::new()
        .name(name.to_owned())
        .stack_size(stack)
        .spawn(serve);
    if let Ok(before) = before {
        // Fails only for a mask that does not exist.
        let _ = before.thread_set_mask();
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_the_runtime_gets_no_signals() {
        let before = SigSet::thread_get_mask().expect("mask");
        let thread = start("onecopy-test", 128 << 10, || {
            let own = SigSet::thread_get_mask().expect("mask");
            assert!(own.contains(nix::sys::signal::Signal::SIGUSR1));
            assert_eq!(std::thread::current().name(), Some("onecopy-test"));
        });
        thread.expect("a thread").join().expect("no panic");
        assert_eq!(SigSet::thread_get_mask().expect("mask"), before);
    }
}
