// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that makes those calls of the driver which may wait for a device. They open and close mappings, and
//! allocate memory of ours. No message waits for it without a bound.

use crate::pipeline::lock;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

/// What is done for others.
pub(super) type Task = Box<dyn FnOnce() + Send>;

struct Queue {
    tasks: VecDeque<Task>,
    is_served: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    tasks: VecDeque::new(),
    is_served: false,
});
static MORE: Condvar = Condvar::new();

/// Leaves a task to the thread, which the first one starts.
pub(super) fn leave(task: Task) {
    let mut queue = lock(&QUEUE);
    queue.tasks.push_back(task);
    if !queue.is_served {
        let name = "onecopy-cuda".to_owned();
        // Without it, tasks stay undone: messages wait for their bound and are staged.
        queue.is_served = std::thread::Builder::new().name(name).spawn(serve).is_ok();
    }
    drop(queue);
    MORE.notify_one();
}

fn serve() {
    loop {
        let mut queue = lock(&QUEUE);
        let task = loop {
            match queue.tasks.pop_front() {
                Some(next) => break next,
                None => queue = MORE.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        task();
    }
}
