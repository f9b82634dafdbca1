// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a message that came before its receive.

use crate::memory::pool::{MemoryKind, Pool, PoolBuf, Settings};
use onecopy_shm::heap::Heap;
use std::sync::Arc;

/// From this length on a message is held in a buffer of the pool; of a shorter one a page would be mostly waste. Half a
/// page.
const POOLED: usize = 2 << 10;
/// Short buffers that are kept for use again. Chosen by magnitude: a window of messages, at most 128 KiB.
const SPARE: usize = 64;

/// Bytes received so far of a message.
#[derive(Debug)]
pub(crate) enum StoredBytes {
    /// A short message.
    Short(Vec<u8>),
    /// The first `filled` bytes of a buffer.
    Pooled { buf: PoolBuf, filled: usize },
}

impl StoredBytes {
    /// Room for the next `more` bytes; none if the message would be longer than announced.
    pub(crate) fn extend(&mut self, more: usize) -> Option<&mut [u8]> {
        match self {
            Self::Short(bytes) => {
                let begin = bytes.len();
                if more > bytes.capacity() - begin {
                    return None;
                }
                bytes.resize(begin + more, 0);
                Some(&mut bytes[begin..])
            }
            Self::Pooled { buf, filled } => {
                let begin = *filled;
                let room = buf.get_mut(begin..begin.checked_add(more)?)?;
                *filled += more;
                Some(room)
            }
        }
    }
}

impl std::ops::Deref for StoredBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Pooled { buf, filled } => &buf[..*filled],
        }
    }
}

/// Where a rank has room: its heap, and what it keeps for use again.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// The rank's heap, which `alloc` and the temporary buffers share.
    pub(crate) heap: Arc<Heap>,
    /// Temporary buffers.
    pub(crate) pool: Pool,
    /// Short buffers of unexpected messages.
    spare: Vec<Vec<u8>>,
}

impl Buffers {
    pub(crate) fn new(heap: Arc<Heap>, settings: Settings) -> Self {
        Self {
            pool: Pool::new(settings, Arc::clone(&heap)),
            heap,
            spare: Vec::new(),
        }
    }

    /// A place for a message of `len` bytes, empty.
    pub(crate) fn place_to_hold(&mut self, len: usize) -> StoredBytes {
        if len >= POOLED
            && let Ok(buf) = self.pool.take(len, MemoryKind::Private)
        {
            return StoredBytes::Pooled { buf, filled: 0 };
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.reserve_exact(len);
        StoredBytes::Short(bytes)
    }

    /// Takes the place back.
    pub(crate) fn give_back(&mut self, held: StoredBytes) {
        if let StoredBytes::Short(mut bytes) = held
            && self.spare.len() < SPARE
            && bytes.capacity() <= POOLED
        {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_fits_than_was_said() {
        let mut held = StoredBytes::Short(Vec::with_capacity(10));
        let room = match &held {
            StoredBytes::Short(bytes) => bytes.capacity(),
            StoredBytes::Pooled { .. } => 0,
        };
        held.extend(room).expect("room").fill(7);
        assert_eq!(&*held, vec![7; room]);
        assert!(held.extend(1).is_none());
    }
}
