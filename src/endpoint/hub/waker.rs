// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that waits for a rank's wires while the rank sleeps, and rings its doorbell.
//!
//! Shared memory rings a rank by a futex, and a descriptor cannot. So a rank that both may wake sleeps on the futex,
//! and this thread waits for the descriptors. It rings once for each time that it is armed.
//!
//! No wake-up is lost. The rank arms its doorbell, then the waker, looks once more, and sleeps. Descriptors are watched
//! by level. The waker finds bytes that were not read whenever it begins to wait, before the rank's last look or after
//! it. A ring finds the doorbell armed, or the rank awake, which looks again before its next sleep. A ring too many,
//! for what the rank has read meanwhile, is a look in vain.

use super::{Doorbell, EventSource, Interest, Set};
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// It calls the kernel and little else; the default would be address space for nothing. glibc permits no less on arm64
/// (`PTHREAD_STACK_MIN`).
const STACK: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Waker {
    /// Holds how often it was armed since it looked.
    armed: Arc<EventFd>,
    /// In the set: readable when the thread is to end.
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Waker {
    pub(super) fn start(set: Arc<Set>, doorbell: Doorbell) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC;
        let armed = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let nonblocking = flags | EfdFlags::EFD_NONBLOCK;
        let stop = Arc::new(EventFd::from_value_and_flags(0, nonblocking)?);
        set.add(&*stop, EventSource::Stop, Interest::READ)?;
        let thread = Thread {
            set: Arc::clone(&set),
            doorbell,
            armed: Arc::clone(&armed),
            stop: Arc::clone(&stop),
        };
        match onecopy_shm::thread::start("onecopy-waker", STACK, move || thread.serve()) {
            Ok(thread) => Ok(Self {
                armed,
                stop,
                thread: Some(thread),
            }),
            Err(error) => {
                set.remove(&*stop);
                Err(error)
            }
        }
    }

    /// Has the thread ring once. Says whether it will.
    pub(super) fn arm(&self) -> bool {
        self.armed.write(1).is_ok()
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // Both are refused only when their counter is full: then they are readable.
        let _ = self.stop.write(1);
        let _ = self.armed.write(1);
        if let Some(thread) = self.thread.take() {
            // It panics nowhere; if it did, it has ended as well.
            let _ = thread.join();
        }
    }
}

struct Thread {
    set: Arc<Set>,
    doorbell: Doorbell,
    armed: Arc<EventFd>,
    stop: Arc<EventFd>,
}

impl Thread {
    fn serve(&self) {
        let mut ready = [EpollEvent::empty(); 1];
        loop {
            match self.armed.read() {
                Ok(_) | Err(Errno::EINTR) => {}
                // Nothing that waits can go wrong; the rank's own sleep has a bound.
                Err(_) => return,
            }
            if self.stop.read().is_ok() {
                return;
            }
            while self.set.wait(&mut ready, EpollTimeout::NONE) == Err(Errno::EINTR) {}
            self.doorbell.ring();
        }
    }
}
