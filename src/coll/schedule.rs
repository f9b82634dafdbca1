// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schedule of a collective: what this rank will do in it. Buffers and parts are checked, and the body is filled
//! in.

use super::contribution::{LoanRange, Readers, whole};
use super::exchange::{Exchange, Find, Takes};
use super::fold::Fold;
use super::lines::Lines;
use super::messages::Recipients;
use super::push::Gives;
use super::select::{Algorithm, algorithm, by_message, share};
use super::stream::Stream;
use super::{Collective, ElemType, Op, Parts};
use crate::error::{Error, Result};
use onecopy_shm::loan::Loan;

/// What this rank will do in a collective.
pub(super) enum Schedule {
    Barrier,
    Exchange(Exchange),
    Swap(Loan, Parts),
    /// A reduction. `Recipients` says who gets the result where it goes by messages.
    Fold(Fold, Recipients),
    Stream(Stream, Recipients),
}

fn bad(reason: impl Into<String>) -> Error {
    Error::Collective {
        reason: reason.into(),
    }
}

/// Checks that the parts lie in the buffer.
fn check(what: &str, parts: &Parts, size: usize, buffer: Option<Loan>) -> Result<()> {
    if let Parts::Listed(list) = parts
        && list.len() != size
    {
        return Err(bad(format!(
            "{} parts of the {what} buffer for {size} ranks",
            list.len()
        )));
    }
    let (end, len) = (parts.end(size), buffer.map_or(0, |loan| loan.len()));
    if end > len {
        return Err(bad(format!(
            "the parts of the {what} buffer end at byte {end}; it has {len}"
        )));
    }
    Ok(())
}

/// A buffer that the call must have.
fn needed(what: &str, buffer: Option<Loan>) -> Result<Loan> {
    buffer.ok_or_else(|| bad(format!("this rank needs a {what} buffer")))
}

/// A receive buffer of at least `len` bytes.
fn room(buffer: Option<Loan>, len: usize) -> Result<Loan> {
    let recv = needed("receive", buffer)?;
    if recv.len() < len {
        return Err(bad(format!(
            "the receive buffer has {} bytes; the result has {len}",
            recv.len()
        )));
    }
    Ok(recv)
}

impl Collective {
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

/// Makes the schedule of a collective of `size` ranks, as the rank `me` calls it.
pub(super) struct Scheduler<'c> {
    pub(super) collective: &'c Collective,
    pub(super) size: usize,
    pub(super) me: usize,
    pub(super) send: Option<Loan>,
    pub(super) recv: Option<Loan>,
}

impl Scheduler<'_> {
    pub(super) fn schedule(&self) -> Result<Schedule> {
        let size = self.size;
        if let Some(root) = self.collective.root()
            && root >= size
        {
            return Err(Error::NoSuchRank { rank: root, size });
        }
        match self.collective {
            Collective::Barrier => Ok(Schedule::Barrier),
            Collective::Bcast { root } => self.bcast(*root).map(Schedule::Exchange),
            Collective::Gather { root, parts } => self.gather(*root, parts).map(Schedule::Exchange),
            Collective::Scatter { root, parts } => {
                self.scatter(*root, parts).map(Schedule::Exchange)
            }
            Collective::Allgather { parts } => self.allgather(parts).map(Schedule::Exchange),
            Collective::Alltoall { send, recv } => self.alltoall(send, recv),
            Collective::Reduce { elem, op, .. }
            | Collective::Allreduce { elem, op }
            | Collective::ReduceScatter { elem, op, .. }
            | Collective::Scan { elem, op }
            | Collective::Exscan { elem, op } => self.reduction(*elem, op),
        }
    }

    /// Checks the call; this rank's contribution, if the call is a reduction.
    pub(super) fn given(&self) -> Result<Option<LoanRange>> {
        self.schedule()?;
        match self.collective {
            Collective::Reduce { elem, .. }
            | Collective::Allreduce { elem, .. }
            | Collective::ReduceScatter { elem, .. }
            | Collective::Scan { elem, .. }
            | Collective::Exscan { elem, .. } => self.vector(*elem).map(Some),
            _ => Ok(None),
        }
    }

    fn bcast(&self, root: usize) -> Result<Exchange> {
        let mut x = self.exchange(Find::All);
        let is_root = root == self.me;
        let buffer = needed("receive", self.recv)?;
        if by_message(self.collective, buffer.len(), self.size) {
            (x.by_message, x.gives) = (true, Gives::Half);
            (x.says, x.open) = (!is_root, (!is_root).then(|| whole(buffer)));
        }
        if is_root {
            (x.offer, x.readers) = (Some(whole(buffer)), Readers::Everyone);
        } else {
            x.takes = Takes::From(root, buffer.len());
        }
        Ok(x)
    }

    fn gather(&self, root: usize, parts: &Parts) -> Result<Exchange> {
        let mut x = self.exchange(Find::All);
        x.offer = self.send.map(whole);
        if root == self.me {
            check("receive", parts, self.size, self.recv)?;
            x.takes = Takes::Each(parts.clone());
            let (to, len) = parts.of(self.me);
            x.own = own(self.send, 0, to, len)?;
            (x.says, x.open) = (true, room_of(self.recv, parts, self.size));
        } else {
            needed("send", self.send)?;
            x.readers = Readers::Only(root);
            x.gives = Gives::All;
        }
        Ok(x)
    }

    fn scatter(&self, root: usize, parts: &Parts) -> Result<Exchange> {
        let mut x = self.exchange(Find::Index);
        if root == self.me {
            check("send", parts, self.size, self.send)?;
            x.offer = Some(whole(needed("send", self.send)?));
            x.readers = Readers::Everyone;
            (x.offer, x.table) = give(x.offer, parts, self.size);
            let (from, len) = parts.of(self.me);
            if self.recv.is_some() {
                room(self.recv, len)?;
                x.own = own(self.send, from, 0, len)?;
            }
        } else {
            x.takes = Takes::From(root, needed("receive", self.recv)?.len());
        }
        Ok(x)
    }

    fn allgather(&self, parts: &Parts) -> Result<Exchange> {
        let mut x = self.exchange(Find::All);
        check("receive", parts, self.size, self.recv)?;
        let recv = needed("receive", self.recv)?;
        let (to, len) = parts.of(self.me);
        x.takes = Takes::Each(parts.clone());
        x.readers = Readers::Everyone;
        x.offer = Some(match self.send {
            Some(send) => whole(send),
            None => LoanRange {
                loan: recv,
                at: to,
                len,
            },
        });
        x.own = own(self.send, 0, to, len)?;
        x.open = room_of(Some(recv), parts, self.size);
        if x.open.is_some() {
            x.gives = Gives::All;
        }
        Ok(x)
    }

    fn alltoall(&self, give_parts: &Parts, parts: &Parts) -> Result<Schedule> {
        let mut x = self.exchange(Find::Index);
        check("receive", parts, self.size, self.recv)?;
        let recv = needed("receive", self.recv)?;
        let Some(send) = self.send else {
            return Ok(Schedule::Swap(recv, parts.clone()));
        };
        check("send", give_parts, self.size, Some(send))?;
        x.takes = Takes::Each(parts.clone());
        x.readers = Readers::Everyone;
        (x.offer, x.table) = give(Some(whole(send)), give_parts, self.size);
        let ((from, n), (to, len)) = (give_parts.of(self.me), parts.of(self.me));
        if n != len {
            return Err(bad(format!(
                "this rank gives itself {n} bytes and takes {len}"
            )));
        }
        x.own = own(Some(send), from, to, len)?;
        if let (Parts::Equal(part), Parts::Equal(_)) = (give_parts, parts) {
            x.open = room_of(Some(recv), parts, self.size);
            x.gives = Gives::Parts(*part);
        }
        Ok(Schedule::Exchange(x))
    }

    /// An exchange with the receive buffer of the call.
    fn exchange(&self, find: Find) -> Exchange {
        let mut x = Exchange::new(find);
        x.recv = self.recv;
        x
    }

    fn reduction(&self, elem: ElemType, op: &Op) -> Result<Schedule> {
        op.check(elem)?;
        let vector = self.vector(elem)?;
        let algorithm = algorithm(self.collective, vector.len, self.size);
        let algorithm = algorithm.ok_or_else(|| bad("no reduction"))?;
        if algorithm == Algorithm::Stream {
            return self.stream(elem, op, vector);
        }
        let mut fold = Fold::new(op.clone(), elem, algorithm, vector);
        fold.in_place = self.send.is_none();
        fold.upto = self.size;
        self.fold(fold)
    }

    /// This rank's contribution to a reduction.
    pub(super) fn vector(&self, elem: ElemType) -> Result<LoanRange> {
        let gives_only =
            matches!(self.collective, Collective::Reduce { root, .. } if *root != self.me);
        let mut vector = match self.send {
            Some(send) => whole(send),
            None if gives_only => return Err(bad("this rank needs a send buffer")),
            None => whole(needed("send or receive", self.recv)?),
        };
        if let Collective::ReduceScatter { parts, .. } = self.collective {
            check("send", parts, self.size, Some(vector.loan))?;
            vector.len = parts.end(self.size);
        }
        if !vector.len.is_multiple_of(elem.size()) {
            return Err(bad(format!(
                "a vector of {} bytes is no whole number of elements of {}",
                vector.len,
                elem.size()
            )));
        }
        Ok(vector)
    }

    fn stream(&self, elem: ElemType, op: &Op, send: LoanRange) -> Result<Schedule> {
        let exclusive = matches!(self.collective, Collective::Exscan { .. });
        let stream = Stream {
            op: op.clone(),
            elem,
            exclusive,
            send,
            recv: (room(self.recv, send.len)?, 0),
            in_place: self.send.is_none(),
            passed: 0,
            copied: 0,
            lines: Lines::default(),
        };
        Ok(Schedule::Stream(stream, Recipients::Prefix { exclusive }))
    }

    /// Decides what this rank combines of the vectors, and who needs the result.
    fn fold(&self, mut fold: Fold) -> Result<Schedule> {
        let (me, len, elem) = (self.me, fold.send.len, fold.elem);
        let to = match self.collective {
            Collective::Reduce { root, .. } => {
                fold.root = Some(*root);
                if *root == me {
                    fold.recv = Some((room(self.recv, len)?, 0));
                    fold.range = (0, len);
                    fold.readers = Readers::Nobody;
                } else {
                    fold.readers = Readers::Only(*root);
                }
                Recipients::Root(*root)
            }
            Collective::ReduceScatter { parts, .. } => {
                let (at, n) = parts.of(me);
                if !at.is_multiple_of(elem.size()) || !n.is_multiple_of(elem.size()) {
                    return Err(bad("a part that is no whole number of elements"));
                }
                fold.recv = Some((room(self.recv, n)?, 0));
                fold.range = (at, at + n);
                fold.to_front = fold.in_place.then_some((at, n));
                Recipients::Parts(parts.clone())
            }
            Collective::Scan { .. } | Collective::Exscan { .. } => {
                let exclusive = matches!(self.collective, Collective::Exscan { .. });
                fold.recv = Some((room(self.recv, len)?, 0));
                fold.upto = if exclusive { me } else { me + 1 };
                fold.range = if fold.upto > 0 { (0, len) } else { (0, 0) };
                Recipients::Prefix { exclusive }
            }
            _ => {
                fold.recv = Some((room(self.recv, len)?, 0));
                fold.range = match fold.algorithm {
                    Algorithm::Split => share(len, elem, self.size, me),
                    _ => (0, len),
                };
                Recipients::Everyone
            }
        };
        Ok(Schedule::Fold(fold, to))
    }
}

/// The part of a receive buffer that members may write to. They know the places only where parts are equal.
fn room_of(recv: Option<Loan>, parts: &Parts, size: usize) -> Option<LoanRange> {
    match (recv, parts) {
        (Some(loan), Parts::Equal(part)) => Some(LoanRange {
            loan,
            at: 0,
            len: part * size,
        }),
        _ => None,
    }
}

/// What a rank copies from its own send buffer. Without one, its part is in place.
fn own(
    send: Option<Loan>,
    from: usize,
    to: usize,
    len: usize,
) -> Result<Option<(usize, usize, usize)>> {
    let Some(send) = send else { return Ok(None) };
    if from + len > send.len() {
        return Err(bad(format!(
            "the send buffer has {} bytes; {} are needed",
            send.len(),
            from + len
        )));
    }
    Ok((len > 0).then_some((from, to, len)))
}

/// An offer of parts: equal ones need no table.
fn give(
    offer: Option<LoanRange>,
    parts: &Parts,
    size: usize,
) -> (Option<LoanRange>, Option<Parts>) {
    match parts {
        Parts::Equal(len) => (
            offer.map(|piece| LoanRange {
                len: len * size,
                ..piece
            }),
            None,
        ),
        Parts::Listed(_) => (offer, Some(parts.clone())),
    }
}
