// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that processes share: whether they shall stop, names of objects that others may try, and
//! counts.
//!
//! A count has one writer. Names are written by all without order: a torn or old one is as good a
//! try as another.

use std::marker::PhantomData;

use crate::mem::{Area, page_size};
use crate::outcome::Outcome;

/// Kinds of names.
pub(crate) trait Kind: Copy {
    const COUNT: usize;
    /// Names that are remembered, of each kind.
    const REMEMBERED: usize;

    fn place(self) -> usize;
}

const STOP: usize = 0;
const NAMES_AT: usize = 8;

#[derive(Clone, Copy)]
pub(crate) struct Notes<K> {
    area: Area,
    kinds: PhantomData<K>,
}

impl<K: Kind> Notes<K> {
    const COUNTS_AT: usize = NAMES_AT + K::COUNT * K::REMEMBERED * 8;

    pub(crate) fn new(counts: usize) -> Outcome<Self> {
        let length = Self::COUNTS_AT + counts * 8;
        Ok(Self {
            area: Area::shared(length.next_multiple_of(page_size()))?,
            kinds: PhantomData,
        })
    }

    pub(crate) fn stop(&self) {
        self.area.store(STOP, 1);
    }

    pub(crate) fn let_go(&self) {
        self.area.store(STOP, 0);
    }

    pub(crate) fn stopped(&self) -> bool {
        self.area.load(STOP) != 0
    }

    /// Remembers a name.
    pub(crate) fn offer(&self, kind: K, at: u64, name: u64) {
        self.area.store(Self::name(kind, at), name);
    }

    /// A name that somebody offered; zero if nobody did.
    pub(crate) fn name_at(&self, kind: K, at: u64) -> u64 {
        self.area.load(Self::name(kind, at))
    }

    pub(crate) fn add(&self, count: usize, more: u64) {
        let at = Self::COUNTS_AT + count * 8;
        self.area.store(at, self.area.load(at) + more);
    }

    pub(crate) fn count(&self, count: usize) -> u64 {
        self.area.load(Self::COUNTS_AT + count * 8)
    }

    fn name(kind: K, at: u64) -> usize {
        NAMES_AT + (kind.place() * K::REMEMBERED + at as usize % K::REMEMBERED) * 8
    }
}
