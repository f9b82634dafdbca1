// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attach cache: windows of one peer's memory that are kept mapped, because to map them costs more than to copy a
//! little.
//!
//! A window names a range of the peer's *addresses*, not its pages. When the peer maps other memory there, the module
//! takes the old pages away, and the next access finds the new ones. So a cached window is never stale in the way in
//! which a cached registration of pages is. It can be a hole, which each copy finds out for itself.
//!
//! Invariants:
//!
//! - Windows do not overlap. They begin and end at multiples of the window size, clipped to the peer's address space
//!   and to their neighbours. So a lookup is one step in a tree by address.
//! - Their number and bytes are bounded; the one that was used longest ago goes first. A range that is larger than the
//!   bound is copied in parts.
//! - To be attached is *earned*: by size, or because one of the windows was asked for before. One-off small buffers
//!   take no mapping.

use std::collections::BTreeMap;
use std::io;

/// What bounds a cache, and what earns an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Windows begin and end at multiples of this: 2 MiB or a multiple of it, so that huge pages can be mapped as such.
    pub window: u64,
    /// Bytes attached at a time.
    pub bytes: u64,
    /// Windows at a time.
    pub count: usize,
    /// Transfers of so many bytes attach at first sight.
    pub earn: u64,
    /// End of the peer's address space.
    pub end: u64,
}

/// What a cache has done since it was last asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Windows mapped.
    pub attached: u64,
    /// Copies that found their windows mapped.
    pub hits: u64,
    /// Windows given up for others.
    pub evicted: u64,
    /// Windows given up because a hole was found in them.
    pub dropped: u64,
    /// Transfers that had not earned an attachment.
    pub unearned: u64,
}

#[derive(Debug)]
struct Entry<W> {
    window: W,
    len: u64,
    used: u64,
}

/// Windows asked for and not attached that are remembered. Each request looks through all: they are 512 bytes.
const SEEN: usize = 64;

/// The windows of one peer.
#[derive(Debug)]
pub struct AttachCache<W> {
    limits: Limits,
    windows: BTreeMap<u64, Entry<W>>,
    bytes: u64,
    clock: u64,
    seen: [u64; SEEN],
    next_seen: usize,
    stats: Stats,
}

impl<W> AttachCache<W> {
    /// An empty cache.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits: Limits {
                window: limits.window.max(1),
                bytes: limits.bytes.max(limits.window),
                count: limits.count.max(1),
                ..limits
            },
            windows: BTreeMap::new(),
            bytes: 0,
            clock: 0,
            seen: [u64::MAX; SEEN],
            next_seen: 0,
            stats: Stats::default(),
        }
    }

    /// What bounds it.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Gives up all windows.
    pub fn clear(&mut self) {
        self.windows.clear();
        self.bytes = 0;
    }

    /// Bytes attached now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Windows attached now.
    #[must_use]
    pub fn count(&self) -> usize {
        self.windows.len()
    }

    /// What was done since the last call.
    pub fn take_stats(&mut self) -> Stats {
        std::mem::take(&mut self.stats)
    }

    /// The window that holds the byte at `address`.
    fn find(&self, address: u64) -> Option<u64> {
        let (&begin, entry) = self.windows.range(..=address).next_back()?;
        (address - begin < entry.len).then_some(begin)
    }

    /// The window that holds all of these bytes, and where in it they begin.
    #[must_use]
    pub fn whole(&self, address: u64, len: u64) -> Option<(&W, u64)> {
        let begin = self.find(address)?;
        let (entry, offset) = (&self.windows[&begin], address - begin);
        (len <= entry.len - offset).then_some((&entry.window, offset))
    }

    /// Whether all bytes are attached.
    #[must_use]
    pub fn covers(&self, address: u64, len: u64) -> bool {
        let end = address.saturating_add(len);
        let mut next = address;
        while next < end {
            match self.find(next) {
                Some(begin) => next = begin + self.windows[&begin].len,
                None => return false,
            }
        }
        true
    }

    /// Whether a transfer of `total` bytes, of which these are some, has earned that they are attached. Remembers that
    /// they were asked for.
    pub fn earned(&mut self, address: u64, len: u64, total: u64) -> bool {
        if total >= self.limits.earn || self.covers(address, len) {
            return true;
        }
        let window = address / self.limits.window;
        if self.seen.contains(&window) {
            return true;
        }
        self.seen[self.next_seen] = window;
        self.next_seen = (self.next_seen + 1) % SEEN;
        self.stats.unearned += 1;
        false
    }

    /// Gives up windows until one of `len` bytes fits.
    fn make_room(&mut self, len: u64) {
        while self.windows.len() >= self.limits.count
            || (self.bytes.saturating_add(len) > self.limits.bytes && !self.windows.is_empty())
        {
            let oldest = self.windows.iter().min_by_key(|(_, entry)| entry.used);
            let Some((&begin, _)) = oldest else { return };
            self.remove(begin);
            self.stats.evicted += 1;
        }
    }

    fn remove(&mut self, begin: u64) {
        if let Some(entry) = self.windows.remove(&begin) {
            self.bytes -= entry.len;
        }
    }

    /// Where a new window that holds `address`, and goes on to `end` if it can, begins and ends.
    fn bounds(&self, address: u64, end: u64) -> (u64, u64) {
        let size = self.limits.window;
        let before = self.windows.range(..=address).next_back();
        let least = before.map_or(0, |(&begin, entry)| begin + entry.len);
        let after = self.windows.range(address..).next();
        let most = after.map_or(self.limits.end, |(&begin, _)| begin);
        let begin = (address / size * size).max(least);
        let wanted = end.saturating_add(size - 1) / size * size;
        let whole = self.limits.bytes / size * size;
        let to = wanted.max(begin + 1).min(begin.saturating_add(whole));
        (begin, to.min(most))
    }

    /// Calls `step(window, offset in the window, offset in the range, bytes)` for each part of the range, in order,
    /// attaching what is missing by `attach(begin, bytes)`.
    ///
    /// # Errors
    /// `EFAULT` beyond the end of addresses; otherwise that of `attach` or `step`. Parts before it are done then.
    pub fn with<E: From<io::Error>>(
        &mut self,
        address: u64,
        len: u64,
        mut attach: impl FnMut(u64, u64) -> io::Result<W>,
        mut step: impl FnMut(&W, u64, u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = address
            .checked_add(len)
            .filter(|&end| end <= self.limits.end)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        let mut next = address;
        let mut all = true;
        while next < end {
            let begin = match self.find(next) {
                Some(begin) => begin,
                None => {
                    all = false;
                    let (begin, to) = self.bounds(next, end);
                    self.make_room(to - begin);
                    let window = attach(begin, to - begin)?;
                    self.bytes += to - begin;
                    self.stats.attached += 1;
                    let entry = Entry {
                        window,
                        len: to - begin,
                        used: 0,
                    };
                    self.windows.insert(begin, entry);
                    begin
                }
            };
            self.clock += 1;
            let clock = self.clock;
            let Some(entry) = self.windows.get_mut(&begin) else {
                return Err(io::Error::from_raw_os_error(libc::EFAULT).into());
            };
            entry.used = clock;
            let n = (end - next).min(begin + entry.len - next);
            step(&entry.window, next - begin, next - address, n)?;
            next += n;
        }
        if all {
            self.stats.hits += 1;
        }
        Ok(())
    }

    /// Gives up all windows that hold bytes of the range: something in them was not there.
    pub fn drop_range(&mut self, address: u64, len: u64) {
        let end = address.saturating_add(len);
        let first = self.find(address).unwrap_or(address);
        let hit: Vec<u64> = self.windows.range(first..end).map(|(&b, _)| b).collect();
        for begin in hit {
            self.remove(begin);
            self.stats.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests;
