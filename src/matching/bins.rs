// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hash bins of entries that are in `N` classes each, every bin in the order of insertion.

use super::{Aged, Pattern};

const NONE: u32 = u32::MAX;

/// Why there is an entry of every name that is used.
pub(super) const ONCE: &str =
    "an entry is removed once: its name is taken from the request or the message that holds it";

#[derive(Debug, Clone, Copy)]
struct Links {
    previous: u32,
    next: u32,
}

/// A pattern in two words, to be hashed and compared at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    /// The source and one more, or 0 for any; then the tag and one more, or 0 for any, in 33 bits.
    address: u64,
    context: u32,
}

impl Key {
    #[inline]
    fn new(pattern: &Pattern) -> Self {
        let source = pattern.source.map_or(0, |source| u64::from(source) + 1);
        let tag = pattern.tag.map_or(0, |tag| u64::from(tag as u32) + 1);
        debug_assert!(source >> 31 == 0, "fewer than 2^31 ranks");
        Self {
            address: source << 33 | tag,
            context: pattern.context,
        }
    }

    fn pattern(self) -> Pattern {
        let (source, tag) = (self.address >> 33, self.address & ((1 << 33) - 1));
        Pattern {
            context: self.context,
            source: source.checked_sub(1).map(|source| source as u32),
            tag: tag.checked_sub(1).map(|tag| tag as u32 as i32),
        }
    }

    #[inline]
    fn hash(self) -> u64 {
        let mut x = u64::from(self.context).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= self.address.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        x ^ x >> 32
    }
}

#[derive(Debug)]
struct Node<T, const N: usize> {
    age: u64,
    keys: [Key; N],
    links: [Links; N],
    value: Option<T>,
}

#[derive(Debug, Clone, Copy)]
struct Bin {
    first: u32,
    last: u32,
}

const EMPTY: Bin = Bin {
    first: NONE,
    last: NONE,
};

/// Entries with a `T`, each listed under `N` patterns.
#[derive(Debug)]
pub(super) struct Bins<T, const N: usize> {
    nodes: Vec<Node<T, N>>,
    free: Vec<u32>,
    bins: Vec<[Bin; N]>,
    len: usize,
    next_age: u64,
}

impl<T, const N: usize> Default for Bins<T, N> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            bins: vec![[EMPTY; N]; 16],
            len: 0,
            next_age: 0,
        }
    }
}

impl<T, const N: usize> Bins<T, N> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The age of the next entry, which is given to nobody else.
    #[inline]
    pub(super) fn next_age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age - 1
    }

    #[inline]
    fn bin(&self, key: Key) -> usize {
        key.hash() as usize & (self.bins.len() - 1)
    }

    pub(super) fn insert(&mut self, patterns: [Pattern; N], value: T) -> u32 {
        if self.len >= self.bins.len() * 2 {
            self.grow();
        }
        let node = Node {
            age: self.next_age(),
            keys: patterns.map(|pattern| Key::new(&pattern)),
            links: [Links {
                previous: NONE,
                next: NONE,
            }; N],
            value: Some(value),
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
            }
        };
        assert!(id >> 31 == 0, "2^31 messages or receives at once");
        self.link(id);
        self.len += 1;
        id
    }

    fn link(&mut self, id: u32) {
        for class in 0..N {
            let bin = self.bin(self.nodes[id as usize].keys[class]);
            let last = self.bins[bin][class].last;
            self.nodes[id as usize].links[class] = Links {
                previous: last,
                next: NONE,
            };
            match last {
                NONE => self.bins[bin][class].first = id,
                last => self.nodes[last as usize].links[class].next = id,
            }
            self.bins[bin][class].last = id;
        }
    }

    fn grow(&mut self) {
        let mut ids: Vec<u32> = (0..self.nodes.len() as u32)
            .filter(|&id| self.nodes[id as usize].value.is_some())
            .collect();
        ids.sort_unstable_by_key(|&id| self.nodes[id as usize].age);
        self.bins = vec![[EMPTY; N]; self.bins.len() * 4];
        for id in ids {
            self.link(id);
        }
    }

    /// The oldest entry listed under `pattern` in `class`.
    #[inline]
    pub(super) fn first(&self, class: usize, pattern: &Pattern) -> Option<Aged> {
        let key = Key::new(pattern);
        let mut id = self.bins[self.bin(key)][class].first;
        while id != NONE {
            let node = &self.nodes[id as usize];
            if node.keys[class] == key {
                return Some(Aged { age: node.age, id });
            }
            id = node.links[class].next;
        }
        None
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> T {
        for class in 0..N {
            let node = &self.nodes[id as usize];
            let (links, bin) = (node.links[class], self.bin(node.keys[class]));
            match links.previous {
                NONE => self.bins[bin][class].first = links.next,
                previous => self.nodes[previous as usize].links[class].next = links.next,
            }
            match links.next {
                NONE => self.bins[bin][class].last = links.previous,
                next => self.nodes[next as usize].links[class].previous = links.previous,
            }
        }
        self.free.push(id);
        self.len -= 1;
        self.nodes[id as usize].value.take().expect(ONCE)
    }

    pub(super) fn pattern(&self, id: u32, class: usize) -> Pattern {
        self.nodes[id as usize].keys[class].pattern()
    }

    pub(super) fn value(&self, id: u32) -> &T {
        self.nodes[id as usize]
            .value
            .as_ref()
            .expect("a live entry")
    }

    pub(super) fn value_mut(&mut self, id: u32) -> &mut T {
        self.nodes[id as usize]
            .value
            .as_mut()
            .expect("a live entry")
    }

    /// Entries for which `which` holds, oldest first.
    pub(super) fn ids_where(&self, mut which: impl FnMut(&[Pattern; N], &T) -> bool) -> Vec<Aged> {
        let mut found = Vec::new();
        for (id, node) in self.nodes.iter().enumerate() {
            if let Some(value) = &node.value
                && which(&node.keys.map(Key::pattern), value)
            {
                found.push(Aged {
                    age: node.age,
                    id: id as u32,
                });
            }
        }
        found.sort_unstable();
        found
    }
}
