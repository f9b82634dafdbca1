// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges of a peer beside the local pieces that they are copied to or from.

use crate::contract::RemoteRange;
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, Range};

/// Local pieces to read from, for [`walk`].
pub(crate) fn pieces<'a>(bytes: &'a [IoSlice<'_>]) -> impl Iterator<Item = &'a [u8]> {
    bytes.iter().map(|piece| &**piece)
}

/// Local pieces to write to, for [`walk`].
pub(crate) fn pieces_mut<'a>(out: &'a mut [IoSliceMut<'_>]) -> impl Iterator<Item = &'a mut [u8]> {
    out.iter_mut().map(|piece| &mut **piece)
}

/// What is gathered for one call, at most `N` pieces; nothing is allocated.
pub(crate) struct Gathered<T, const N: usize> {
    pieces: [T; N],
    count: usize,
}

impl<T: Copy, const N: usize> Gathered<T, N> {
    pub(crate) fn new(empty: T) -> Self {
        Self {
            pieces: [empty; N],
            count: 0,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == N
    }

    /// Adds a piece, for which there is room.
    pub(crate) fn push(&mut self, piece: T) {
        self.pieces[self.count] = piece;
        self.count += 1;
    }

    /// All pieces; what is added next begins anew.
    pub(crate) fn take(&mut self) -> &[T] {
        &self.pieces[..std::mem::take(&mut self.count)]
    }
}

/// Walks two lists of ranges of the same total length and calls `step(part of a remote range, local piece, part of that
/// piece)`.
pub(crate) fn walk<P: Deref<Target = [u8]>, E>(
    remote: &[RemoteRange],
    local: impl Iterator<Item = P>,
    mut step: impl FnMut(RemoteRange, &mut P, Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    let mut ranges = remote.iter().filter(|r| r.len > 0);
    let (mut range, mut used) = (ranges.next(), 0u64);
    for mut piece in local {
        let (len, mut offset) = (piece.len(), 0);
        while offset < len {
            let Some(current) = range else { return Ok(()) };
            let n = (len - offset).min(usize::try_from(current.len - used).unwrap_or(usize::MAX));
            step(current.part(used, n as u64), &mut piece, offset..offset + n)?;
            offset += n;
            used += n as u64;
            if used == current.len {
                (range, used) = (ranges.next(), 0);
            }
        }
    }
    Ok(())
}
