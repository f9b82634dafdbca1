// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what the program asks for to a collective under way.

use super::communicator::Communicator;
use super::exchange::{Exchange, Find, Takes};
use super::fold::Fold;
use super::lines::Lines;
use super::messages::{MessageChain, MessageExchange, To};
use super::op::{Body, Op as Running};
use super::push::Gives;
use super::relay::Relay;
use super::select::{Algorithm, algorithm, by_message, relays, share};
use super::shared::{Piece, Readers, whole};
use super::stream::Stream;
use super::swap::Swap;
use super::{Collective, Parts};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::{Request, RequestId, State as RequestState, UserBuf};
use onecopy_shm::loan::Loan;
use std::sync::Arc;

/// What a rank is to do.
enum Plan {
    Barrier,
    Exchange(Exchange),
    Swap(Loan, Parts),
    /// The reduction, and who gets the result if it goes by messages.
    Fold(Fold, To),
    Stream(Stream, To),
}

/// How a program calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// It waits, and this rank's contribution is published already.
    Begun,
    /// It waits.
    Waits,
    /// It goes on.
    GoesOn,
}

/// The buffers of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) send: Option<Loan>,
    pub(crate) recv: Option<Loan>,
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

/// A buffer that a rank cannot do without.
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

    fn plan(&self, size: usize, me: usize, buffers: Buffers) -> Result<Plan> {
        let Buffers { send, recv } = buffers;
        if let Some(root) = self.root()
            && root >= size
        {
            return Err(Error::NoSuchRank { rank: root, size });
        }
        match self {
            Self::Barrier => Ok(Plan::Barrier),
            Self::Bcast { .. }
            | Self::Gather { .. }
            | Self::Scatter { .. }
            | Self::Allgather { .. }
            | Self::Alltoall { .. } => self.plan_exchange(size, me, send, recv),
            _ => self.plan_fold(size, me, send, recv),
        }
    }

    fn plan_exchange(
        &self,
        size: usize,
        me: usize,
        send: Option<Loan>,
        recv: Option<Loan>,
    ) -> Result<Plan> {
        let mut x = Exchange::new(Find::All);
        x.recv = recv;
        match self {
            Self::Bcast { root } => {
                let buffer = needed("receive", recv)?;
                if by_message(self, buffer.len(), size) {
                    (x.by_message, x.gives) = (true, Gives::Half);
                    (x.says, x.open) = (*root != me, (*root != me).then(|| whole(buffer)));
                }
                if *root == me {
                    (x.offer, x.readers) = (Some(whole(buffer)), Readers::Everyone);
                } else {
                    x.takes = Takes::From(*root, buffer.len());
                }
            }
            Self::Gather { root, parts } => {
                x.offer = send.map(whole);
                if *root == me {
                    check("receive", parts, size, recv)?;
                    x.takes = Takes::Each(parts.clone());
                    let (to, len) = parts.of(me);
                    x.own = own(send, 0, to, len)?;
                    (x.says, x.open) = (true, room_of(recv, parts, size));
                } else {
                    needed("send", send)?;
                    x.readers = Readers::Only(*root);
                    x.gives = Gives::All;
                }
            }
            Self::Scatter { root, parts } => {
                x.find = Find::Index;
                if *root == me {
                    check("send", parts, size, send)?;
                    x.offer = Some(whole(needed("send", send)?));
                    x.readers = Readers::Everyone;
                    (x.offer, x.table) = give(x.offer, parts, size);
                    let (from, len) = parts.of(me);
                    if recv.is_some() {
                        room(recv, len)?;
                        x.own = own(send, from, 0, len)?;
                    }
                } else {
                    x.takes = Takes::From(*root, needed("receive", recv)?.len());
                }
            }
            Self::Allgather { parts } => {
                check("receive", parts, size, recv)?;
                let recv = needed("receive", recv)?;
                let (to, len) = parts.of(me);
                x.takes = Takes::Each(parts.clone());
                x.readers = Readers::Everyone;
                x.offer = Some(match send {
                    Some(send) => whole(send),
                    None => Piece {
                        loan: recv,
                        at: to,
                        len,
                    },
                });
                x.own = own(send, 0, to, len)?;
                x.open = room_of(Some(recv), parts, size);
                if x.open.is_some() {
                    x.gives = Gives::All;
                }
            }
            Self::Alltoall {
                send: give_parts,
                recv: parts,
            } => {
                check("receive", parts, size, recv)?;
                let recv = needed("receive", recv)?;
                let Some(send) = send else {
                    return Ok(Plan::Swap(recv, parts.clone()));
                };
                check("send", give_parts, size, Some(send))?;
                x.takes = Takes::Each(parts.clone());
                x.readers = Readers::Everyone;
                x.find = Find::Index;
                (x.offer, x.table) = give(Some(whole(send)), give_parts, size);
                let ((from, n), (to, len)) = (give_parts.of(me), parts.of(me));
                if n != len {
                    return Err(bad(format!(
                        "this rank gives itself {n} bytes and takes {len}"
                    )));
                }
                x.own = own(Some(send), from, to, len)?;
                if let (Parts::Equal(part), Parts::Equal(_)) = (give_parts, parts) {
                    x.open = room_of(Some(recv), parts, size);
                    x.gives = Gives::Parts(*part);
                }
            }
            _ => return Err(bad("no exchange")),
        }
        Ok(Plan::Exchange(x))
    }

    fn plan_fold(
        &self,
        size: usize,
        me: usize,
        send: Option<Loan>,
        recv: Option<Loan>,
    ) -> Result<Plan> {
        let (Self::Reduce { elem, op, .. }
        | Self::Allreduce { elem, op }
        | Self::ReduceScatter { elem, op, .. }
        | Self::Scan { elem, op }
        | Self::Exscan { elem, op }) = self
        else {
            return Err(bad("no reduction"));
        };
        op.check(*elem)?;
        let root_only = matches!(self, Self::Reduce { root, .. } if *root != me);
        let in_place = send.is_none();
        let mut vector = match send {
            Some(send) => whole(send),
            None if root_only => return Err(bad("this rank needs a send buffer")),
            None => whole(needed("send or receive", recv)?),
        };
        if let Self::ReduceScatter { parts, .. } = self {
            check("send", parts, size, Some(vector.loan))?;
            vector.len = parts.end(size);
        }
        if !vector.len.is_multiple_of(elem.size()) {
            return Err(bad(format!(
                "a vector of {} bytes is no whole number of elements of {}",
                vector.len,
                elem.size()
            )));
        }
        let len = vector.len;
        let algorithm = algorithm(self, len, size).ok_or_else(|| bad("no reduction"))?;
        let exclusive = matches!(self, Self::Exscan { .. });
        if algorithm == Algorithm::Stream {
            let stream = Stream {
                op: op.clone(),
                elem: *elem,
                exclusive,
                send: vector,
                recv: (room(recv, len)?, 0),
                in_place,
                passed: 0,
                temp: None,
                copied: 0,
                lines: Lines::default(),
            };
            return Ok(Plan::Stream(stream, To::Prefix { exclusive }));
        }
        let mut fold = Fold::new(op.clone(), *elem, algorithm, vector);
        fold.in_place = in_place;
        fold.upto = size;
        let to = match self {
            Self::Reduce { root, .. } => {
                fold.root = Some(*root);
                if *root == me {
                    fold.recv = Some((room(recv, len)?, 0));
                    fold.range = (0, len);
                    fold.readers = Readers::Nobody;
                } else {
                    fold.readers = Readers::Only(*root);
                }
                To::Root(*root)
            }
            Self::ReduceScatter { parts, .. } => {
                let (at, n) = parts.of(me);
                if !at.is_multiple_of(elem.size()) || !n.is_multiple_of(elem.size()) {
                    return Err(bad("a part that is no whole number of elements"));
                }
                fold.recv = Some((room(recv, n)?, 0));
                fold.range = (at, at + n);
                fold.to_front = in_place.then_some((at, n));
                To::Parts(parts.clone())
            }
            Self::Scan { .. } | Self::Exscan { .. } => {
                fold.recv = Some((room(recv, len)?, 0));
                fold.upto = if exclusive { me } else { me + 1 };
                fold.range = if fold.upto > 0 { (0, len) } else { (0, 0) };
                To::Prefix { exclusive }
            }
            _ => {
                fold.recv = Some((room(recv, len)?, 0));
                fold.range = match algorithm {
                    Algorithm::Split => share(len, *elem, size, me),
                    _ => (0, len),
                };
                To::Everyone
            }
        };
        Ok(Plan::Fold(fold, to))
    }
}

/// The part of a receive buffer into which members know where to write: that of equal parts.
fn room_of(recv: Option<Loan>, parts: &Parts, size: usize) -> Option<Piece> {
    match (recv, parts) {
        (Some(loan), Parts::Equal(part)) => Some(Piece {
            loan,
            at: 0,
            len: part * size,
        }),
        _ => None,
    }
}

/// What a rank takes from its own send buffer; without one its part is in place.
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
fn give(offer: Option<Piece>, parts: &Parts, size: usize) -> (Option<Piece>, Option<Parts>) {
    match parts {
        Parts::Equal(len) => (
            offer.map(|piece| Piece {
                len: len * size,
                ..piece
            }),
            None,
        ),
        Parts::Listed(_) => (offer, Some(parts.clone())),
    }
}

impl Communicator {
    /// Starts a collective. `opened`: whether its channel could be made ready.
    pub(crate) fn start(
        &mut self,
        engine: &mut Engine,
        collective: &Collective,
        buffers: Buffers,
        call: Call,
        opened: Result<()>,
    ) -> Result<RequestId> {
        if let Some(error) = &self.state.failed {
            return Err(error.clone());
        }
        let lost = self.state.members.iter().find_map(|&rank| {
            let gone = engine.gone[rank as usize].as_ref()?;
            Some(gone.error(rank))
        });
        if let Some(error) = lost.or(opened.err()) {
            self.fail(engine, &error);
            return Err(error);
        }
        let Self { state, ops } = self;
        let plan = collective.plan(state.size(), state.me, buffers)?;
        let begun = call == Call::Begun;
        let seq = if begun {
            state.seq
        } else {
            state.seq.wrapping_add(1)
        };
        let body = if state.has_channel() {
            match plan {
                Plan::Barrier => Body::Barrier,
                Plan::Exchange(exchange) => match (&exchange.takes, exchange.recv) {
                    (&Takes::From(root, len), Some(recv))
                        if relays(collective, len, state.size(), state.tuning.relay_min) =>
                    {
                        Body::Relay(Relay::new(exchange, root, recv, state.size(), state.me))
                    }
                    _ => Body::Exchange(exchange),
                },
                Plan::Swap(recv, parts) => Body::Swap(Swap::new(recv, parts)),
                Plan::Fold(fold, _) => Body::Fold(fold),
                Plan::Stream(stream, _) => Body::Stream(stream),
            }
        } else {
            engine.core.counters.coll_by_messages += 1;
            match plan {
                Plan::Barrier => {
                    Body::MessageExchange(MessageExchange::barrier(state, seq, engine))
                }
                Plan::Exchange(exchange) => {
                    Body::MessageExchange(MessageExchange::new(exchange, seq))
                }
                Plan::Swap(recv, parts) => {
                    Body::MessageExchange(MessageExchange::swap(recv, parts, seq))
                }
                Plan::Fold(fold, to) => {
                    let Fold {
                        op,
                        elem,
                        send,
                        recv,
                        ..
                    } = fold;
                    Body::MessageChain(MessageChain::new(op, elem, send, recv, to, state, seq))
                }
                Plan::Stream(stream, to) => {
                    let Stream {
                        op,
                        elem,
                        send,
                        recv,
                        ..
                    } = stream;
                    let recv = Some(recv);
                    Body::MessageChain(MessageChain::new(op, elem, send, recv, to, state, seq))
                }
            }
        };
        state.seq = seq;
        engine.core.counters.collectives += 1;
        let nothing = UserBuf::Many(Arc::from([]));
        let request = Request::receive(RequestState::External, state.context, 0, nothing);
        let id = engine.core.requests.insert(request);
        let mut op = Running::new(id, seq, body, begun, call != Call::GoesOn);
        if begun {
            op.resume(state.size(), state.me);
        }
        ops.push_back(op);
        Ok(id)
    }
}
