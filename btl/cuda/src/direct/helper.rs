// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that makes those calls of the driver which may wait for a device. They open and close mappings, and
//! allocate memory of ours. No message waits for it without a bound.
//!
//! What messages ask for has a bound, too: a peer may show ever new allocations. The rest has one by itself. For
//! each opening there is one closing at most, for each copy that a device has begun one look.

use super::PATIENCE;
use crate::pipeline::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// What is done for others.
pub(super) type Task = Box<dyn FnOnce() + Send>;

/// Tasks at most that messages have asked for and nobody has begun. Chosen by magnitude: one takes milliseconds, and
/// what stands behind so many would be late for its message.
const ASKED: usize = 16;

struct Left {
    task: Task,
    since: Instant,
    /// A message waits for it.
    is_asked: bool,
}

struct Queue {
    tasks: VecDeque<Left>,
    /// Since when the task is left that is being done.
    current: Option<Instant>,
    is_served: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue::new());
static MORE: Condvar = Condvar::new();

impl Queue {
    const fn new() -> Self {
        Self {
            tasks: VecDeque::new(),
            current: None,
            is_served: false,
        }
    }

    fn leave(&mut self, task: Task, now: Instant, is_asked: bool) {
        self.tasks.push_back(Left {
            task,
            since: now,
            is_asked,
        });
        if !self.is_served {
            let name = "onecopy-cuda".to_owned();
            // Without it, tasks stay undone: messages wait for their bound and are staged.
            self.is_served = std::thread::Builder::new().name(name).spawn(serve).is_ok();
        }
    }

    /// Why a message had better not ask now.
    fn refusal(&self, now: Instant) -> Option<Arc<str>> {
        let front = self.tasks.front().map(|left| left.since);
        let oldest = self.current.or(front);
        if oldest.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE) {
            return Some("the thread that opens mappings waits for a device".into());
        }
        let asked = self.tasks.iter().filter(|left| left.is_asked).count();
        (asked >= ASKED).then(|| {
            format!("the thread that opens mappings has {ASKED} tasks before this one").into()
        })
    }

    fn ask(&mut self, task: Task, now: Instant) -> Result<(), Arc<str>> {
        self.refusal(now).map_or(Ok(()), Err)?;
        self.leave(task, now, true);
        Ok(())
    }
}

/// Leaves a task to the thread, which the first one starts.
pub(super) fn leave(task: Task) {
    lock(&QUEUE).leave(task, Instant::now(), false);
    MORE.notify_one();
}

/// Leaves a task for which a message waits. An error: why that would take too long.
pub(super) fn ask(task: Task) -> Result<(), Arc<str>> {
    lock(&QUEUE).ask(task, Instant::now())?;
    MORE.notify_one();
    Ok(())
}

/// Why nothing can be asked for now.
pub(super) fn refusal() -> Option<Arc<str>> {
    lock(&QUEUE).refusal(Instant::now())
}

fn serve() {
    loop {
        let mut queue = lock(&QUEUE);
        queue.current = None;
        let left = loop {
            match queue.tasks.pop_front() {
                Some(next) => break next,
                None => queue = MORE.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        queue.current = Some(left.since);
        drop(queue);
        (left.task)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue that nobody serves.
    fn queue() -> Queue {
        Queue {
            is_served: true,
            ..Queue::new()
        }
    }

    fn nothing() -> Task {
        Box::new(|| ())
    }

    #[test]
    fn a_message_asks_for_no_more_than_the_bound_and_other_tasks_have_none() {
        let (mut queue, now) = (queue(), Instant::now());
        for _ in 0..10 * ASKED {
            queue.leave(nothing(), now, false);
        }
        let accepted = (0..10 * ASKED).filter(|_| queue.ask(nothing(), now).is_ok());
        assert_eq!(accepted.count(), ASKED);
        queue.leave(nothing(), now, false);
        assert_eq!(queue.tasks.len(), 11 * ASKED + 1);
    }

    #[test]
    fn nothing_is_asked_of_a_thread_that_is_late_until_it_has_caught_up() {
        let (mut queue, begin) = (queue(), Instant::now());
        let late = begin + PATIENCE;
        queue.current = Some(begin);
        queue.ask(nothing(), begin).expect("it is not late");
        assert!(queue.ask(nothing(), late).is_err(), "it is in a call");
        queue.current = None;
        assert!(queue.ask(nothing(), late).is_err(), "a task waits for it");
        queue.tasks.clear();
        queue.ask(nothing(), late).expect("it has caught up");
    }
}
