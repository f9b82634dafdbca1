// SPDX-License-Identifier: MIT OR Apache-2.0
//! Announced messages that lie in the peer's heap, too short to be shared: the receiver alone copies them, at once. So
//! they need no [`Transfer`]. Where this rank cannot load them, they go the long way.

use crate::matching::Envelope;
use crate::peer::{Peer, Policy};
use crate::proto::deliver::{Ended, Message, Receiver, deliver};
use crate::proto::layers;
use crate::request::{RequestId, UserBuf};
use crate::select::ReceiveProtocol;
use crate::select::decide::{Facts, decide};
use crate::state::Core;
use crate::state::message::{Announcement, Remote};
use crate::state::statistics::CameBy;
use crate::state::transfer::Transfer;
use onecopy_btl::link::Link;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_obs::{Counters, tracepoints};
use onecopy_shm::loan::LoanRange;
use std::io::IoSliceMut;

/// What is known at once of a message in the peer's heap: whether it can be loaded where it lies.
struct AloneByMap<'l> {
    link: &'l Link,
}

impl Facts for AloneByMap<'_> {
    #[inline(always)]
    fn is_shown(&self) -> bool {
        false
    }

    #[inline(always)]
    fn is_read_by(&self, layer: LayerId) -> bool {
        layer == LayerId::MAP && self.link.has(layer)
    }

    #[inline(always)]
    fn is_rewritten(&self) -> bool {
        false
    }

    #[inline(always)]
    fn sender_maps(&self) -> bool {
        false
    }

    #[inline(always)]
    fn block_free(&self) -> bool {
        true
    }
}

/// Whether this rank alone copies a message of `len` bytes in the peer's heap.
#[inline]
pub(crate) fn is_copied_alone(peer: &mut Peer, len: u64) -> bool {
    let facts = AloneByMap { link: &peer.link };
    let Policy {
        thresholds,
        observed,
        ..
    } = &mut peer.policy;
    decide(len, &facts, thresholds, observed) == ReceiveProtocol::Get(LayerId::MAP)
}

/// Copies the message that the peer's request `number` announced. `false`: the layer has failed, and nothing came.
#[inline]
pub(crate) fn copy(
    counters: &mut Counters,
    peer: &Peer,
    number: u64,
    from: RemoteRange,
    out: &mut [u8],
) -> bool {
    let (rank, len) = (peer.rank as usize, from.len);
    let protocol = ReceiveProtocol::Get(LayerId::MAP).name();
    tracepoints::rendezvous_matched(rank, rank, number, len);
    tracepoints::rendezvous_start(rank, rank, number, len, protocol);
    let out = &mut [IoSliceMut::new(out)];
    let read = layers::read(counters, &peer.link, LayerId::MAP, &[from], out);
    if read.is_ok() {
        tracepoints::rendezvous_done(rank, rank, number, len);
    }
    read.is_ok()
}

/// How such a message of `len` bytes ends.
#[inline]
pub(crate) fn ended(number: u64, len: u64) -> Ended {
    Ended {
        bytes: len,
        credit: 0,
        fin: Some(number),
        by: CameBy::Layer(LayerId::MAP),
    }
}

/// Receives such a message into the request `id`. `false`: it is another one, or its layer has failed.
pub(super) fn receive(
    core: &mut Core,
    peer: &mut Peer,
    envelope: Envelope,
    announcement: &Announcement,
    id: RequestId,
) -> bool {
    let &Remote::One(range) = &announcement.remote else {
        return false;
    };
    let len = announcement.len;
    let loan = core.requests.get(id).and_then(|request| match request.buf {
        UserBuf::One(loan) if len <= request.len => Some(loan),
        _ => None,
    });
    let Some(loan) = loan else { return false };
    if range.heap.is_none() || len > Transfer::STEP || !is_copied_alone(peer, len) {
        return false;
    }
    let number = announcement.request;
    let whole = LoanRange::first(loan, len as usize);
    let read = core.loans.write(whole, |out| {
        copy(&mut core.counters, peer, number, range, out)
    });
    if read != Ok(true) {
        return false;
    }
    let receiver = Receiver::Request(id);
    let message = Message {
        envelope,
        total: len,
    };
    deliver(core, peer, receiver, message, Ok(()), ended(number, len));
    true
}
