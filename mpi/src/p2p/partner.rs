// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other side of a message, as the program names it.

use crate::comm::CommObject;
use crate::failure::{Failure, Outcome, fail};
use crate::{c, phase};
use onecopy::{Source, Tag};
use std::sync::Arc;

/// What a message is addressed by, as the program gives it: the rank in a communicator of its other side, and a tag.
#[derive(Clone, Copy)]
pub(crate) struct Envelope<'c> {
    pub(crate) rank: i32,
    pub(crate) tag: i32,
    pub(crate) comm: &'c Arc<CommObject>,
}

impl<'c> Envelope<'c> {
    #[inline(always)]
    pub(crate) fn new(rank: i32, tag: i32, comm: &'c Arc<CommObject>) -> Self {
        Self { rank, tag, comm }
    }

    /// Where a message goes: a rank of the job, or nowhere.
    #[inline(always)]
    pub(crate) fn destination(&self) -> Outcome<Option<usize>> {
        destination(self.comm, self.rank, self.tag)
    }

    /// Where a message comes from: nowhere for `None`.
    #[inline(always)]
    pub(crate) fn origin(&self) -> Outcome<Option<(Source, Tag)>> {
        origin(self.comm, self.rank, self.tag)
    }
}

/// Where a message goes: a rank of the job, or nowhere.
#[inline(always)]
pub(crate) fn destination(comm: &CommObject, dest: i32, tag: i32) -> Outcome<Option<usize>> {
    if tag < 0 && phase::checks() {
        return Err(fail(c::ERR_TAG, format!("tag {tag} is below zero")));
    }
    if dest >= 0
        && let Some(rank) = comm.group.rank(dest as usize)
    {
        return Ok(Some(rank));
    }
    if dest == c::PROC_NULL {
        return Ok(None);
    }
    Err(bad_rank(dest, comm))
}

#[cold]
fn bad_rank(rank: i32, comm: &CommObject) -> Box<Failure> {
    fail(
        c::ERR_RANK,
        format!("rank {rank} is not in a communicator of {}", comm.size()),
    )
}

/// Where a message comes from: nowhere for `None`.
#[inline(always)]
pub(crate) fn origin(comm: &CommObject, source: i32, tag: i32) -> Outcome<Option<(Source, Tag)>> {
    let tag = match tag {
        c::ANY_TAG => Tag::Any,
        tag if tag < 0 => return Err(fail(c::ERR_TAG, format!("tag {tag} is below zero"))),
        tag => Tag::Is(tag),
    };
    if source >= 0
        && let Some(rank) = comm.group.rank(source as usize)
    {
        return Ok(Some((Source::Rank(rank), tag)));
    }
    match source {
        c::ANY_SOURCE => Ok(Some((Source::Any, tag))),
        c::PROC_NULL => Ok(None),
        _ => Err(bad_rank(source, comm)),
    }
}
