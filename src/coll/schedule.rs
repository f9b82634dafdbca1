// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schedule of a collective with a request: the [plan](super::plan) on lent buffers, and the body that executes it.

use super::contribution::{CallBuffers, Readers};
use super::exchange::ExchangePlan;
use super::fold::FoldPlan;
use super::messages::Recipients;
use super::plan::{Combination, MemberCall, Offer, Plan, Side, Task};
use super::push::Gives;
use super::select::NodeScheme;
use super::swap::SwapPlan;
use super::{Collective, Parts};
use crate::error::Result;
use onecopy_shm::loan::{Loan, LoanRange};

/// What this rank will do in a collective.
pub(super) enum Schedule {
    Barrier,
    Exchange(ExchangePlan),
    Swap(SwapPlan),
    /// A reduction, and who gets the result.
    Fold(FoldPlan, Recipients),
}

/// Makes the schedule of a collective of `size` ranks, as the rank `me` calls it.
#[derive(Clone, Copy)]
pub(super) struct Scheduler<'c> {
    pub(super) collective: &'c Collective,
    /// Bytes of a slot of the channel.
    pub(super) slot: usize,
    pub(super) size: usize,
    pub(super) me: usize,
    pub(super) buffers: CallBuffers,
}

impl<'c> Scheduler<'c> {
    /// Checks the call, and says what this rank does.
    pub(super) fn plan(&self) -> Result<Plan<'c>> {
        let call = MemberCall {
            collective: self.collective,
            slot: self.slot,
            size: self.size,
            me: self.me,
            send: self.buffers.send.map(|send| send.len()),
            recv: self.buffers.recv.map(|recv| recv.len()),
        };
        let plan: Result<_, _> = call.plan();
        plan.map_err(|fault| call.error(fault))
    }

    /// The bytes by which the members choose how they do it: those of a vector, or of a broadcast.
    pub(super) fn payload(&self, plan: &Plan<'c>) -> usize {
        match (&plan.task, plan.offer) {
            (Task::Combine(_), Some(offer)) => offer.len,
            _ => self.buffers.recv.map_or(0, |recv| recv.len()),
        }
    }

    /// What this rank does by its plan. `scheme`: how the members of its node do it.
    pub(super) fn schedule(&self, plan: &Plan<'c>, scheme: NodeScheme) -> Schedule {
        let Plan { offer, own, task } = plan;
        let given = offer.and_then(|offer| self.range(&offer));
        match (task, given, self.buffers.recv) {
            (Task::Combine(part), Some(given), recv) => {
                let readers = offer.map_or(Readers::Nobody, |offer| offer.readers);
                Schedule::Fold(self.fold(part, given, readers, recv), self.recipients())
            }
            (Task::Swap(parts), _, Some(recv)) => Schedule::Swap(SwapPlan {
                recv,
                parts: (*parts).clone(),
            }),
            (Task::Take { takes, find }, ..) => {
                let mut exchange = ExchangePlan {
                    recv: self.buffers.recv,
                    takes: takes.into_owned(),
                    own: *own,
                    ..ExchangePlan::new(scheme, *find)
                };
                if let Some(offer) = offer {
                    exchange.offer = given;
                    exchange.readers = offer.readers;
                    exchange.by_parts = offer.by_parts;
                    exchange.table = offer.table.cloned();
                } else if own.is_some() {
                    // What a rank takes from itself alone.
                    exchange.offer = self.buffers.send.map(LoanRange::whole);
                }
                self.open(&mut exchange);
                Schedule::Exchange(exchange)
            }
            // The plan has seen that the buffers are there.
            (Task::Meet | Task::Swap(_) | Task::Combine(_), ..) => Schedule::Barrier,
        }
    }

    /// Checks the call; this rank's contribution, if the call is a reduction.
    pub(super) fn given(&self) -> Result<Option<LoanRange>> {
        let plan = self.plan()?;
        Ok(match plan.task {
            Task::Combine(_) => plan.offer.and_then(|offer| self.range(&offer)),
            _ => None,
        })
    }

    /// Where an offer lies.
    pub(super) fn range(&self, offer: &Offer<'_>) -> Option<LoanRange> {
        let loan = match offer.side {
            Side::Send => self.buffers.send,
            Side::Recv => self.buffers.recv,
        };
        loan.map(|loan| LoanRange {
            loan,
            offset: offer.offset,
            len: offer.len,
        })
    }

    /// What members may write into each other's buffers, and whether both ends of a broadcast copy.
    fn open(&self, exchange: &mut ExchangePlan) {
        match self.collective {
            Collective::Bcast { root } => {
                if let NodeScheme::Exchange { halves: true, .. } = exchange.scheme {
                    let takes = *root != self.me;
                    exchange.gives = Gives::Half;
                    exchange.published = takes;
                    exchange.open = self.buffers.recv.filter(|_| takes).map(|recv| recv.len());
                }
            }
            Collective::Gather { root, parts } if *root == self.me => {
                (exchange.published, exchange.open) = (true, self.room(parts));
            }
            Collective::Gather { .. } => exchange.gives = Gives::All,
            Collective::Allgather { parts } => {
                exchange.open = self.room(parts);
                if exchange.open.is_some() {
                    exchange.gives = Gives::All;
                }
            }
            Collective::Alltoall {
                send: Parts::Equal(part),
                recv: parts @ Parts::Equal(_),
            } => {
                exchange.open = self.room(parts);
                exchange.gives = Gives::Parts(*part);
            }
            _ => {}
        }
    }

    /// Bytes of the receive buffer that members may write to. They know the places only where parts are equal.
    fn room(&self, parts: &Parts) -> Option<usize> {
        match (self.buffers.recv, parts) {
            (Some(_), Parts::Equal(len)) => Some(len * self.size),
            _ => None,
        }
    }

    /// A reduction of what this rank has `given`, and the others' vectors.
    fn fold(
        &self,
        part: &Combination<'_>,
        given: LoanRange,
        readers: Readers,
        recv: Option<Loan>,
    ) -> FoldPlan {
        FoldPlan {
            op: part.op.clone(),
            elem: part.elem,
            algorithm: part.algorithm,
            send: given,
            part_given: part
                .part_given
                .map(|part| given.part(part.offset, part.len)),
            recv: part.result.and(recv),
            range: part.range,
            upto: part.upto,
            in_place: self.buffers.send.is_none(),
            readers,
            to_front: part.to_front,
            root: match self.collective {
                Collective::Reduce { root, .. } => Some(*root),
                _ => None,
            },
        }
    }

    /// Who gets the result of a reduction.
    fn recipients(&self) -> Recipients {
        match self.collective {
            Collective::Reduce { root, .. } => Recipients::Root(*root),
            Collective::ReduceScatter { parts, .. } => Recipients::Parts(parts.clone()),
            Collective::Scan { .. } => Recipients::Prefix { exclusive: false },
            Collective::Exscan { .. } => Recipients::Prefix { exclusive: true },
            _ => Recipients::Everyone,
        }
    }
}
