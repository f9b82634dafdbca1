// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread of a rank watches for all that wait.
//!
//! Threads that wait would only take the engine from one another. So one of them, the *watcher*, polls and sleeps on the rank's bell, and
//! the others rest on a count of news that stays in the process, without the engine. Whoever has the engine and completes a request, keeps a
//! message that nobody expected, or finds a peer gone, makes news: it is told when the engine is given back at the latest. Who is told looks
//! whether that was what it waits for, and becomes the watcher if there is none. A watcher that has what it waited for makes news, too.

use super::Patience;
use crate::engine::Engine;
use onecopy_shm::gate::Guarded;
use onecopy_shm::segment::OwnSegment;
use onecopy_shm::sync::{AtomicU32, Ordering, spin_hint};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The threads of a rank that wait; part of the engine.
#[derive(Debug)]
pub(crate) struct Waits {
    /// Whether there is a watcher.
    pub(super) watched: bool,
    /// Whether it sleeps on the bell.
    pub(super) asleep: bool,
    /// How often was asked in vain whether something is complete, one after the other.
    asked_in_vain: usize,
    /// Threads that rest.
    resting: u32,
    /// Peers found gone so far; it wraps.
    pub(crate) gone: u32,
    /// What made news so far, as far as it was told.
    told: u32,
    news: Arc<News>,
    segment: Arc<OwnSegment>,
}

/// A count of news, and those who sleep until it changes.
#[derive(Debug, Default)]
pub(super) struct News {
    count: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Waits {
    pub(crate) fn new(segment: Arc<OwnSegment>) -> Self {
        Self {
            watched: false,
            asleep: false,
            asked_in_vain: 0,
            resting: 0,
            gone: 0,
            told: 0,
            news: Arc::default(),
            segment,
        }
    }

    /// The calling thread is going to rest: what to rest on, and up to where it knows the news.
    pub(super) fn rest(&mut self) -> (Arc<News>, u32) {
        self.resting += 1;
        // The watcher has gone to sleep without what this thread has started since.
        self.wake_watcher();
        (
            Arc::clone(&self.news),
            self.news.count.load(Ordering::SeqCst),
        )
    }

    pub(super) fn end_rest(&mut self) {
        self.resting -= 1;
    }

    /// Threads that wait.
    pub(super) fn threads(&self) -> u32 {
        self.resting + u32::from(self.watched)
    }

    /// The watcher leaves: another one is needed.
    pub(super) fn end_watch(&mut self) {
        self.watched = false;
        if self.resting > 0 {
            self.news.tell();
        }
    }

    fn wake_watcher(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.segment.bell().ring();
        }
    }
}

impl Engine {
    /// Tells those who wait, if something has come that one of them may wait for.
    #[inline]
    pub(super) fn tell(&mut self) {
        let waits = &mut self.core.waits;
        if waits.resting > 0 || waits.asleep {
            let sources = [
                self.core.requests.completed,
                self.core.unexpected.kept,
                waits.gone,
            ];
            let all = sources.into_iter().fold(0, u32::wrapping_add);
            if waits.told != all {
                waits.told = all;
                waits.wake_watcher();
                if waits.resting > 0 {
                    waits.news.tell();
                }
            }
        }
    }

    /// The calling thread has asked whether something is complete, and something `moved` or not: whether it has asked in vain so often that it makes
    /// room.
    #[inline]
    pub(super) fn asked(&mut self, moved: bool) -> bool {
        let (waits, patience) = (&mut self.core.waits, &self.core.patience);
        waits.asked_in_vain += 1;
        let makes_room = !moved && waits.asked_in_vain > patience.among(waits.threads() + 1).spin;
        if moved || makes_room {
            waits.asked_in_vain = 0;
        }
        makes_room
    }
}

impl Guarded for Engine {
    #[inline]
    fn leave(&mut self) {
        self.tell();
    }
}

impl News {
    #[cold]
    fn tell(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // With the lock, so that none is between its look and its sleep.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    fn is_new(&self, known: u32) -> bool {
        self.count.load(Ordering::SeqCst) != known
    }

    /// Returns when there are news, or after the longest sleep.
    pub(super) fn wait(&self, known: u32, patience: &Patience) {
        for _ in 0..patience.spin {
            if self.is_new(known) {
                return;
            }
            spin_hint();
        }
        for _ in 0..patience.yields {
            if self.is_new(known) {
                return;
            }
            std::thread::yield_now();
        }
        if !patience.sleep {
            return;
        }
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        drop(
            self.changed
                .wait_timeout_while(guard, patience.period, |()| !self.is_new(known)),
        );
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn patience(spin: usize, yields: usize) -> Patience {
        Patience {
            spin,
            yields,
            sleep: true,
            period: Duration::from_secs(3600),
            crowded: false,
            share: 1.0,
        }
    }

    /// Each thread makes news only after it was told the other's, and the longest sleep is longer than the test: news that are lost stop both.
    #[test]
    fn no_news_is_lost() {
        for patience in [patience(0, 0), patience(10, 2), patience(1000, 1000)] {
            let pair = Arc::new((News::default(), News::default()));
            let (over, ended) = mpsc::channel();
            let play = |first: bool| {
                let (pair, over) = (Arc::clone(&pair), over.clone());
                std::thread::spawn(move || {
                    let (own, other) = if first {
                        (&pair.0, &pair.1)
                    } else {
                        (&pair.1, &pair.0)
                    };
                    for round in 0..2000 {
                        if first {
                            own.tell();
                        }
                        while !other.is_new(round) {
                            other.wait(round, &patience);
                        }
                        if !first {
                            own.tell();
                        }
                    }
                    over.send(()).expect("somebody listens");
                })
            };
            let _players = [play(true), play(false)];
            for _ in 0..2 {
                let end = ended.recv_timeout(Duration::from_secs(60));
                assert!(end.is_ok(), "news were lost");
            }
        }
    }
}
