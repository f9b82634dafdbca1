// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a member does in a collective: what it gives to whom, and what it takes from whom. It follows from the call and
//! the lengths of its buffers. One plan has two executors: [`super::fast`] on the caller's slices, and
//! [`super::schedule`] for a request.

use super::contribution::Readers;
use super::select::{Algorithm, algorithm, share};
use super::{ByteRange, Collective, ElemType, Op, Parts};
use crate::error::Error;
use std::borrow::Borrow;

/// A collective of `size` members as the member `me` calls it, with the bytes of its buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberCall<'c> {
    pub(crate) collective: &'c Collective,
    /// Bytes of a slot of the channel.
    pub(crate) slot: usize,
    pub(crate) size: usize,
    pub(crate) me: usize,
    pub(crate) send: Option<usize>,
    pub(crate) recv: Option<usize>,
}

/// One of the two buffers of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Recv,
}

/// What a member does.
#[derive(Debug)]
pub(crate) struct Plan<'c> {
    /// What it publishes.
    pub(crate) offer: Option<Offer<'c>>,
    /// What it copies from its own send buffer.
    pub(crate) own: Option<BufferCopy>,
    pub(crate) task: Task<'c>,
}

/// Bytes that a member publishes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'c> {
    pub(crate) side: Side,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) readers: Readers,
    /// Whether each reader takes a part of its own. Nobody else reads this member's own part then.
    pub(crate) by_parts: bool,
    /// What of it is for whom, if readers cannot know.
    pub(crate) table: Option<&'c Parts>,
}

/// Bytes that go from one buffer to another: from where in the one, to where in the other, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferCopy {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) len: usize,
}

/// What a member does with what others publish.
#[derive(Debug)]
pub(crate) enum Task<'c> {
    /// It waits for all of them.
    Meet,
    /// It takes bytes, of those that give it some.
    Take {
        takes: Takes<&'c Parts>,
        find: Find,
    },
    /// It replaces its parts by theirs.
    Swap(&'c Parts),
    Combine(Combination<'c>),
}

/// What a member takes from the others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Takes<P = Parts> {
    Nothing,
    /// From one member, to the front of the receive buffer.
    From(usize, usize),
    /// From everyone, by parts of the receive buffer.
    Each(P),
}

/// Where a member's part is in what another one gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Find {
    /// All of it.
    All,
    /// Parts of the same length, by place.
    Index,
}

/// What a member combines of the vectors, and what it receives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Combination<'c> {
    pub(crate) op: &'c Op,
    pub(crate) elem: ElemType,
    pub(crate) algorithm: Algorithm,
    /// What of the vectors it combines; empty: nothing.
    pub(crate) range: ByteRange,
    /// Of two members each gives no more than the other one's part of its vector.
    pub(crate) part_given: Option<ByteRange>,
    /// Members below this place contribute to the range.
    pub(crate) upto: usize,
    /// Bytes of the result that it receives; none: it receives none.
    pub(crate) result: Option<usize>,
    /// Whether the range, which lies in the receive buffer, comes to its front at the end.
    pub(crate) to_front: bool,
}

/// Why a call cannot be planned.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault<'c> {
    NoSuchRoot(usize),
    NoBuffer(Side),
    /// A member that gives a vector has neither buffer.
    NoVector,
    PartCount(Side, usize),
    /// The parts of the buffer end there.
    PartsEnd(Side, usize),
    /// The receive buffer has no room for so many bytes.
    NoRoom(usize),
    /// The send buffer has fewer bytes than this.
    SendsLess(usize),
    /// What a member gives itself, and what it takes from itself.
    OwnParts(usize, usize),
    Operator(&'c Op, ElemType),
    /// A vector of so many bytes.
    BrokenVector(usize, ElemType),
    BrokenPart,
    OverlappingParts,
}

impl<P: Borrow<Parts>> Takes<P> {
    /// Where what is taken from `place` goes in the receive buffer.
    pub(crate) fn of(&self, place: usize) -> ByteRange {
        match self {
            Self::From(root, len) if *root == place => ByteRange::first(*len),
            Self::Nothing | Self::From(..) => ByteRange::default(),
            Self::Each(parts) => parts.borrow().of(place),
        }
    }
}

impl Takes<&Parts> {
    /// The same, kept for longer than the call.
    pub(crate) fn into_owned(self) -> Takes {
        match self {
            Self::Nothing => Takes::Nothing,
            Self::From(root, len) => Takes::From(root, len),
            Self::Each(parts) => Takes::Each(parts.clone()),
        }
    }
}

impl Find {
    /// Where in a contribution the part of `len` bytes for the member `me` begins.
    #[inline(always)]
    pub(crate) fn begin(self, len: usize, me: usize) -> usize {
        match self {
            Self::All => 0,
            Self::Index => len.saturating_mul(me),
        }
    }

    /// Bytes of a contribution to `size` members of which each takes `len`.
    #[inline(always)]
    pub(crate) fn all(self, len: usize, size: usize) -> usize {
        match self {
            Self::All => len,
            Self::Index => len.saturating_mul(size),
        }
    }
}

impl Collective {
    #[inline(always)]
    fn root(&self) -> Option<usize> {
        match self {
            Self::Bcast { root }
            | Self::Gather { root, .. }
            | Self::Scatter { root, .. }
            | Self::Reduce { root, .. } => Some(*root),
            _ => None,
        }
    }
}

/// A barrier.
const MEETING: Plan<'_> = Plan {
    offer: None,
    own: None,
    task: Task::Meet,
};

/// A form of the plan, or why there is none.
pub(crate) trait PlanForm<'c> {
    fn of(plan: Result<Plan<'c>, Fault<'c>>, call: &MemberCall<'c>) -> Self;
}

impl<'c> PlanForm<'c> for Result<Plan<'c>, Fault<'c>> {
    fn of(plan: Self, _: &MemberCall<'c>) -> Self {
        plan
    }
}

// Inlined by force: the compiler alone passes plans of short collectives in memory, for 8 % more instructions.
impl<'c> MemberCall<'c> {
    /// The plan, in some form. It is made apart for each collective, so that a plan of which a smaller form is wanted
    /// never exists.
    #[inline(always)]
    pub(crate) fn plan<F: PlanForm<'c>>(&self) -> F {
        if let Some(root) = self.collective.root()
            && root >= self.size
        {
            return F::of(Err(Fault::NoSuchRoot(root)), self);
        }
        match self.collective {
            Collective::Barrier => F::of(Ok(MEETING), self),
            Collective::Bcast { root } => F::of(self.bcast(*root), self),
            Collective::Gather { root, parts } => F::of(self.gather(*root, parts), self),
            Collective::Scatter { root, parts } => F::of(self.scatter(*root, parts), self),
            Collective::Allgather { parts } => F::of(self.allgather(parts), self),
            Collective::Alltoall { send, recv } => F::of(self.alltoall(send, recv), self),
            Collective::Reduce { elem, op, .. } => F::of(self.reduction(*elem, op), self),
            Collective::Allreduce { elem, op } => F::of(self.reduction(*elem, op), self),
            Collective::ReduceScatter { elem, op, .. } => F::of(self.reduction(*elem, op), self),
            Collective::Scan { elem, op } => F::of(self.reduction(*elem, op), self),
            Collective::Exscan { elem, op } if self.size == 2 => {
                F::of(self.exscan_of_two(*elem, op), self)
            }
            Collective::Exscan { elem, op } => F::of(self.reduction(*elem, op), self),
        }
    }

    #[inline(always)]
    fn bcast(&self, root: usize) -> Result<Plan<'c>, Fault<'c>> {
        let len = self.recv.ok_or(Fault::NoBuffer(Side::Recv))?;
        if root == self.me {
            return Ok(gives(offer(Side::Recv, len, Readers::Everyone)));
        }
        Ok(takes(Takes::From(root, len), Find::All))
    }

    #[inline(always)]
    fn gather(&self, root: usize, parts: &'c Parts) -> Result<Plan<'c>, Fault<'c>> {
        if root != self.me {
            let len = self.send.ok_or(Fault::NoBuffer(Side::Send))?;
            return Ok(gives(offer(Side::Send, len, Readers::Only(root))));
        }
        self.check(Side::Recv, parts)?;
        let ByteRange { offset: to, len } = parts.of(self.me);
        Ok(Plan {
            own: self.own(0, to, len)?,
            ..takes(Takes::Each(parts), Find::All)
        })
    }

    /// The others know the parts by their own: they are equal, or the root's line says that they are not.
    #[inline(always)]
    fn scatter(&self, root: usize, parts: &'c Parts) -> Result<Plan<'c>, Fault<'c>> {
        if root != self.me {
            let len = self.recv.ok_or(Fault::NoBuffer(Side::Recv))?;
            return Ok(takes(Takes::From(root, len), self.find_part()));
        }
        self.check(Side::Send, parts)?;
        let ByteRange { offset: from, len } = parts.of(self.me);
        let own = match self.recv {
            Some(_) => {
                self.has_room(len)?;
                self.own(from, 0, len)?
            }
            None => None,
        };
        let given = self.parts_given(parts)?;
        Ok(Plan {
            own,
            ..gives(given)
        })
    }

    #[inline(always)]
    fn allgather(&self, parts: &'c Parts) -> Result<Plan<'c>, Fault<'c>> {
        self.check(Side::Recv, parts)?;
        self.has_room(0)?;
        let ByteRange { offset: to, len } = parts.of(self.me);
        let given = match self.send {
            Some(send) => offer(Side::Send, send, Readers::Everyone),
            None => Offer {
                offset: to,
                ..offer(Side::Recv, len, Readers::Everyone)
            },
        };
        Ok(Plan {
            offer: Some(given),
            own: self.own(0, to, len)?,
            ..takes(Takes::Each(parts), Find::All)
        })
    }

    #[inline(always)]
    fn alltoall(&self, given: &'c Parts, taken: &'c Parts) -> Result<Plan<'c>, Fault<'c>> {
        self.check(Side::Recv, taken)?;
        self.has_room(0)?;
        if self.send.is_none() {
            return Ok(Plan {
                offer: None,
                own: None,
                task: Task::Swap(taken),
            });
        }
        self.check(Side::Send, given)?;
        let (from, to) = (given.of(self.me), taken.of(self.me));
        if from.len != to.len {
            return Err(Fault::OwnParts(from.len, to.len));
        }
        Ok(Plan {
            offer: Some(self.parts_given(given)?),
            own: self.own(from.offset, to.offset, to.len)?,
            ..takes(Takes::Each(taken), self.find_part())
        })
    }

    /// Where a member's part is in [`Self::parts_given`].
    #[inline(always)]
    fn find_part(&self) -> Find {
        if self.size == 2 {
            Find::All
        } else {
            Find::Index
        }
    }

    /// An offer of parts to everyone: equal ones need no table. Where only one member reads, it is that one's part
    /// alone: it fits into less, and its owner writes no bytes that nobody reads.
    #[inline(always)]
    fn parts_given(&self, parts: &'c Parts) -> Result<Offer<'c>, Fault<'c>> {
        let all = self.send.ok_or(Fault::NoBuffer(Side::Send))?;
        if self.size == 2 {
            let ByteRange { offset, len } = parts.of(1 - self.me);
            return Ok(Offer {
                offset,
                ..offer(Side::Send, len, Readers::Everyone)
            });
        }
        let (len, table) = match parts {
            Parts::Equal(len) => (len * self.size, None),
            Parts::Listed(_) => (all, Some(parts)),
        };
        Ok(Offer {
            by_parts: true,
            table,
            ..offer(Side::Send, len, Readers::Everyone)
        })
    }

    #[inline(always)]
    fn reduction(&self, elem: ElemType, op: &'c Op) -> Result<Plan<'c>, Fault<'c>> {
        if !op.suits(elem) {
            return Err(Fault::Operator(op, elem));
        }
        let mut vector = self.vector(elem)?;
        let (size, me, len) = (self.size, self.me, vector.len);
        let way = algorithm(self.collective, len, size, self.slot).unwrap_or(Algorithm::Flat);
        let mut part = Combination {
            op,
            elem,
            algorithm: way,
            range: ByteRange::first(len),
            part_given: None,
            upto: size,
            result: Some(len),
            to_front: false,
        };
        match self.collective {
            Collective::Reduce { root, .. } if *root == me => vector.readers = Readers::Nobody,
            Collective::Reduce { root, .. } => {
                vector.readers = Readers::Only(*root);
                (part.range, part.result) = (ByteRange::default(), None);
            }
            Collective::ReduceScatter { parts, .. } => {
                let mine = parts.of(me);
                if !elem.divides(mine.offset) || !elem.divides(mine.len) {
                    return Err(Fault::BrokenPart);
                }
                (part.range, part.result) = (mine, Some(mine.len));
                part.to_front = vector.side == Side::Recv;
                if size == 2 {
                    let other = parts.of(1 - me);
                    if mine.offset < other.end() && other.offset < mine.end() {
                        return Err(Fault::OverlappingParts);
                    }
                    part.part_given = Some(other);
                }
            }
            Collective::Scan { .. } => part.upto = me + 1,
            Collective::Exscan { .. } => {
                part.upto = me;
                part.range.len = if me > 0 { len } else { 0 };
            }
            _ if way == Algorithm::Split => part.range = share(len, elem, size, me),
            _ => {}
        }
        let is_prefix = matches!(
            self.collective,
            Collective::Scan { .. } | Collective::Exscan { .. }
        );
        if is_prefix && way == Algorithm::Flat && me + 1 == size {
            vector.readers = Readers::Nobody;
        }
        if let Some(bytes) = part.result {
            self.has_room(bytes)?;
        }
        Ok(Plan {
            offer: Some(vector),
            own: None,
            task: Task::Combine(part),
        })
    }

    /// The second of two gets a copy of the first one's vector, and nothing is combined.
    #[inline(always)]
    fn exscan_of_two(&self, elem: ElemType, op: &'c Op) -> Result<Plan<'c>, Fault<'c>> {
        if !op.suits(elem) {
            return Err(Fault::Operator(op, elem));
        }
        let vector = self.vector(elem)?;
        self.has_room(vector.len)?;
        Ok(if self.me == 0 {
            gives(vector)
        } else {
            takes(Takes::From(0, vector.len), Find::All)
        })
    }

    /// What this member gives to a reduction. It stands in the receive buffer if there is no other.
    #[inline(always)]
    fn vector(&self, elem: ElemType) -> Result<Offer<'c>, Fault<'c>> {
        let gives_only =
            matches!(self.collective, Collective::Reduce { root, .. } if *root != self.me);
        let (side, mut len) = match (self.send, self.recv) {
            (Some(len), _) => (Side::Send, len),
            (None, _) if gives_only => return Err(Fault::NoBuffer(Side::Send)),
            (None, Some(len)) => (Side::Recv, len),
            (None, None) => return Err(Fault::NoVector),
        };
        if let Collective::ReduceScatter { parts, .. } = self.collective {
            self.check(side, parts)?;
            len = parts.end(self.size);
        }
        if !elem.divides(len) {
            return Err(Fault::BrokenVector(len, elem));
        }
        Ok(offer(side, len, Readers::Everyone))
    }

    #[inline(always)]
    fn bytes(&self, side: Side) -> Option<usize> {
        match side {
            Side::Send => self.send,
            Side::Recv => self.recv,
        }
    }

    /// Checks that the parts lie in the buffer.
    #[inline(always)]
    fn check(&self, side: Side, parts: &Parts) -> Result<(), Fault<'c>> {
        let end = match parts {
            Parts::Equal(len) => len.saturating_mul(self.size),
            Parts::Listed(list) if list.len() != self.size => {
                return Err(Fault::PartCount(side, list.len()));
            }
            Parts::Listed(_) => parts.end(self.size),
        };
        match self.bytes(side) {
            Some(len) if end <= len => Ok(()),
            None if end == 0 => Ok(()),
            _ => Err(Fault::PartsEnd(side, end)),
        }
    }

    /// Checks that the result, of so many bytes, fits into the receive buffer.
    #[inline(always)]
    fn has_room(&self, bytes: usize) -> Result<(), Fault<'c>> {
        match self.recv {
            None => Err(Fault::NoBuffer(Side::Recv)),
            Some(room) if room < bytes => Err(Fault::NoRoom(bytes)),
            Some(_) => Ok(()),
        }
    }

    /// What this member copies from its own send buffer. Without one, its part is in place.
    #[inline(always)]
    fn own(&self, from: usize, to: usize, len: usize) -> Result<Option<BufferCopy>, Fault<'c>> {
        let Some(send) = self.send else {
            return Ok(None);
        };
        match from.checked_add(len) {
            Some(end) if end <= send => Ok((len > 0).then_some(BufferCopy { from, to, len })),
            end => Err(Fault::SendsLess(end.unwrap_or(usize::MAX))),
        }
    }

    /// What the program did wrong.
    #[cold]
    pub(crate) fn error(&self, fault: Fault<'c>) -> Error {
        let name = |side| match side {
            Side::Send => "send",
            Side::Recv => "receive",
        };
        let len = |side| self.bytes(side).unwrap_or(0);
        let size = self.size;
        let reason = match fault {
            Fault::NoSuchRoot(rank) => return Error::NoSuchRank { rank, size },
            Fault::NoBuffer(side) => format!("this rank needs a {} buffer", name(side)),
            Fault::NoVector => "this rank needs a send or receive buffer".to_owned(),
            Fault::PartCount(side, parts) => {
                format!(
                    "{parts} parts of the {} buffer for {size} ranks",
                    name(side)
                )
            }
            Fault::PartsEnd(side, end) => format!(
                "the parts of the {} buffer end at byte {end}; it has {}",
                name(side),
                len(side)
            ),
            Fault::NoRoom(bytes) => format!(
                "the receive buffer has {} bytes; the result has {bytes}",
                len(Side::Recv)
            ),
            Fault::SendsLess(bytes) => format!(
                "the send buffer has {} bytes; {bytes} are needed",
                len(Side::Send)
            ),
            Fault::OwnParts(gives, takes) => {
                format!("this rank gives itself {gives} bytes and takes {takes}")
            }
            Fault::Operator(op, elem) => return op.misfit(elem),
            Fault::BrokenVector(bytes, elem) => format!(
                "a vector of {bytes} bytes is no whole number of elements of {}",
                elem.size()
            ),
            Fault::BrokenPart => "a part that is no whole number of elements".to_owned(),
            Fault::OverlappingParts => {
                "the parts of the two ranks overlap; they stand one after the other".to_owned()
            }
        };
        Error::Collective { reason }
    }
}

/// All of a buffer's first `len` bytes.
#[inline(always)]
fn offer<'c>(side: Side, len: usize, readers: Readers) -> Offer<'c> {
    Offer {
        side,
        offset: 0,
        len,
        readers,
        by_parts: false,
        table: None,
    }
}

/// A member that only gives.
#[inline(always)]
fn gives(offer: Offer<'_>) -> Plan<'_> {
    Plan {
        offer: Some(offer),
        ..takes(Takes::Nothing, Find::All)
    }
}

/// A member that takes, and so far gives nothing.
#[inline(always)]
fn takes(takes: Takes<&Parts>, find: Find) -> Plan<'_> {
    Plan {
        offer: None,
        own: None,
        task: Task::Take { takes, find },
    }
}

#[cfg(test)]
mod tests;
