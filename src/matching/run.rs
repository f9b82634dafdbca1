// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives of one pattern that were posted one after the other: programs post windows of them, and messages take them
//! in that order. So they lie side by side, and nothing is hashed to post or to take one.

use super::{Aged, Envelope, Pattern};
use std::collections::VecDeque;

/// The bit that tells the names of such receives from others.
const OF_A_RUN: u32 = 1 << 31;

/// The age of what was taken back.
const GONE: u64 = u64::MAX;

/// A receive that waits.
#[derive(Debug, Clone, Copy)]
struct Waiting<T> {
    age: u64,
    value: T,
}

/// Receives of one pattern, oldest first. The first is never one that was taken back.
#[derive(Debug)]
pub(super) struct Run<T> {
    pattern: Pattern,
    waiting: VecDeque<Waiting<T>>,
    /// The name of the first; it wraps below [`OF_A_RUN`].
    first: u32,
}

impl<T> Default for Run<T> {
    fn default() -> Self {
        Self {
            pattern: Pattern {
                context: 0,
                source: None,
                tag: None,
            },
            waiting: VecDeque::new(),
            first: 0,
        }
    }
}

impl<T: Copy> Run<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Those that were taken back among them.
    #[inline]
    pub(super) fn length(&self) -> usize {
        self.waiting.len()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.iter().filter(|one| one.age != GONE).count()
    }

    /// Whether it is one of `pattern`, or of none yet.
    #[inline]
    pub(super) fn takes(&self, pattern: &Pattern) -> bool {
        self.waiting.is_empty() || self.pattern == *pattern
    }

    /// Adds the youngest and names it. There is room for 2^31.
    #[inline]
    pub(super) fn push(&mut self, pattern: Pattern, age: u64, value: T) -> u32 {
        if self.waiting.is_empty() {
            self.pattern = pattern;
        }
        let name = self.first.wrapping_add(self.waiting.len() as u32) | OF_A_RUN;
        self.waiting.push_back(Waiting { age, value });
        name
    }

    /// The age of the oldest, if it accepts `envelope`.
    #[inline]
    pub(super) fn first(&self, envelope: &Envelope) -> Option<u64> {
        match self.waiting.front() {
            Some(first) if self.pattern.accepts(envelope) => Some(first.age),
            _ => None,
        }
    }

    /// Takes the oldest.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        let first = self.waiting.pop_front()?;
        self.first = self.first.wrapping_add(1);
        if let Some(Waiting { age: GONE, .. }) = self.waiting.front() {
            self.skip();
        }
        Some(first.value)
    }

    /// What was taken back is of no use in front.
    #[cold]
    fn skip(&mut self) {
        while let Some(Waiting { age: GONE, .. }) = self.waiting.front() {
            self.waiting.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    fn index_of(&self, name: u32) -> usize {
        (name.wrapping_sub(self.first) & !OF_A_RUN) as usize
    }

    pub(super) fn has(name: u32) -> bool {
        name & OF_A_RUN != 0
    }

    pub(super) fn pattern(&self) -> Pattern {
        self.pattern
    }

    fn get_mut(&mut self, name: u32) -> Option<&mut Waiting<T>> {
        let index = self.index_of(name);
        self.waiting.get_mut(index).filter(|one| one.age != GONE)
    }

    pub(super) fn value_mut(&mut self, name: u32) -> Option<&mut T> {
        self.get_mut(name).map(|one| &mut one.value)
    }

    /// Takes one back.
    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        let waiting = self.get_mut(name)?;
        let value = waiting.value;
        waiting.age = GONE;
        self.skip();
        Some(value)
    }

    /// Those for which `which` holds.
    pub(super) fn names_where(&self, mut which: impl FnMut(&Pattern, T) -> bool) -> Vec<Aged> {
        let mut names = Vec::new();
        for (index, &Waiting { age, value }) in self.waiting.iter().enumerate() {
            if age != GONE && which(&self.pattern, value) {
                names.push(Aged {
                    age,
                    id: self.first.wrapping_add(index as u32) | OF_A_RUN,
                });
            }
        }
        names
    }
}
