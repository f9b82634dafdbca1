// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call of the device that may take long, on a thread of its own: no call of the program waits for it.

use std::sync::mpsc::{Receiver, sync_channel};

use crate::unmaps::without_signals;

/// Bytes of such a thread's stack. It calls the library and little else. glibc permits no less on arm64
/// (`PTHREAD_STACK_MIN`); the default of 2 MiB would be address space for nothing.
const STACK: usize = 128 << 10;

/// Has a thread of this name make the call. What it gives comes by the receiver, which may be dropped before.
pub(crate) fn call<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Receiver<T>> {
    let (sender, coming) = sync_channel(1);
    without_signals(|| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK)
            .spawn(move || {
                // What asked for it may have been given up meanwhile.
                let _ = sender.send(work());
            })
    })?;
    Ok(coming)
}
