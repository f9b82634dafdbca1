// SPDX-License-Identifier: MIT OR Apache-2.0
//! A buffer of either kind: memory of the program, or of `alloc`, which peers map.

use onecopy::{HeapBuf, Runtime};
use std::ops::{Deref, DerefMut};

#[derive(Debug)]
pub(crate) enum Memory {
    Plain(Vec<u8>),
    Heap(HeapBuf),
}

impl Memory {
    /// `len` zeroes.
    pub(crate) fn new(rt: &Runtime, len: usize, in_heap: bool) -> Self {
        if in_heap {
            Self::Heap(rt.alloc(len).expect("memory"))
        } else {
            Self::Plain(vec![0; len])
        }
    }
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Heap(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Heap(bytes) => bytes,
        }
    }
}
