// SPDX-License-Identifier: MIT OR Apache-2.0
//! What transfers do to the layers of a pair: give one up, and count what the attach cache does.

use crate::error::Error;
use crate::peer::Peer;
use crate::request::{Offer, RequestId, StagedBuf, UserBuf};
use crate::state::Core;
use crate::state::message::Remote;
use onecopy_btl::contract::AttachStats;
use onecopy_btl::link::Link;
use onecopy_btl::{CopyError, LayerId, RemoteRange};
use onecopy_obs::{Counters, tracepoints};
use onecopy_shm::coop::MessageRange;
use std::io::IoSliceMut;
use std::time::Instant;

/// Gives up a layer for this pair.
pub(crate) fn demote(core: &mut Core, peer: &mut Peer, error: &CopyError) {
    tracepoints::layer_demoted(
        peer.rank as usize,
        error.layer.name(),
        error.source.raw_os_error().unwrap_or(0),
    );
    tracing::info!(
        peer = peer.rank,
        "{error}; the pair goes on without {}",
        error.layer
    );
    core.counters.demotions += 1;
    if error.owner_is_dead() {
        peer.life.end(Instant::now());
    }
    detach_layer(&mut core.counters, &peer.link, error.layer);
    peer.link.demote(error);
    peer.policy.adapt(&core.knobs, &core.costs, &peer.link);
    peer.announce_reading();
}

/// Offers a staged receive the first `len` bytes of a message. Says whether it takes all of them itself.
#[cold]
pub(crate) fn offer(
    counters: &mut Counters,
    to: &StagedBuf,
    offered: &Offer<'_>,
    len: u64,
) -> bool {
    let accepted = to.accept(offered, len);
    if !accepted {
        declined(counters, "the buffer of the receive takes no such offer");
    }
    accepted
}

/// A staged receive has taken all of a message itself.
pub(crate) fn taken_directly(counters: &mut Counters, bytes: u64) {
    counters.device_direct += 1;
    counters.device_bytes += bytes;
}

/// A message between devices is staged.
#[cold]
pub(crate) fn declined(counters: &mut Counters, why: &str) {
    if counters.device_declined == 0 {
        tracing::info!("a message between devices goes through host memory: {why}");
    }
    counters.device_declined += 1;
}

/// Counts what the attach cache of this peer did, if `layer` has one.
#[inline]
pub(crate) fn note_attachments(counters: &mut Counters, link: &Link, layer: LayerId) {
    if let Some(attaching) = link.attaching(layer) {
        note(counters, attaching.take_stats());
    }
}

/// Counts what the attach caches of this peer did.
pub(crate) fn note_all_attachments(counters: &mut Counters, link: &Link) {
    for layer in LayerId::SINGLE {
        note_attachments(counters, link, layer);
    }
}

fn note(counters: &mut Counters, AttachStats { counts, growth }: AttachStats) {
    counters.attaches += counts.attached;
    counters.attach_hits += counts.hits;
    counters.attach_evictions += counts.evicted;
    counters.attach_holes += counts.dropped;
    counters.attach_unearned += counts.unearned;
    counters.attached_windows = counters
        .attached_windows
        .wrapping_add_signed(growth.windows);
    counters.attached_bytes = counters.attached_bytes.wrapping_add_signed(growth.bytes);
}

/// Gives up all that is attached of this peer.
pub(crate) fn detach(counters: &mut Counters, link: &Link) {
    for layer in LayerId::SINGLE {
        detach_layer(counters, link, layer);
    }
}

/// Gives up all that `layer` has attached of this peer.
fn detach_layer(counters: &mut Counters, link: &Link, layer: LayerId) {
    if let Some(attaching) = link.attaching(layer) {
        attaching.detach();
        note(counters, attaching.take_stats());
    }
}

/// Reads ranges of the peer's memory by a layer.
#[inline(always)]
pub(crate) fn read(
    counters: &mut Counters,
    link: &Link,
    layer: LayerId,
    ranges: &[RemoteRange],
    out: &mut [IoSliceMut<'_>],
) -> Result<(), CopyError> {
    let read = link.get(layer, ranges, out);
    note_attachments(counters, link, layer);
    if read.is_ok() {
        layer.count(counters, ranges.iter().map(|range| range.len).sum());
    }
    read
}

/// An announced message whose bytes a layer reads into the buffer of `request`.
pub(crate) struct Reading<'r> {
    pub(crate) request: RequestId,
    pub(crate) remote: &'r Remote,
    pub(crate) layer: LayerId,
}

impl Reading<'_> {
    /// Reads a range of it.
    pub(crate) fn get(
        &self,
        core: &mut Core,
        peer: &Peer,
        range: MessageRange,
    ) -> Result<(), CopyError> {
        let Some(found) = core.requests.get(self.request) else {
            return Ok(());
        };
        let MessageRange { offset, len } = range;
        let (counters, layer) = (&mut core.counters, self.layer);
        let result = match (&found.buf, self.remote) {
            (UserBuf::One(loan), Remote::One(from)) => {
                let from = [from.part(offset, len)];
                let offset = offset as usize;
                core.loans.write(loan.range(offset, len as usize), |out| {
                    let out = &mut [IoSliceMut::new(out)];
                    read(counters, &peer.link, layer, &from, out)
                })
            }
            (UserBuf::Staged(buffer), remote) => {
                let mut read_all = Ok(());
                let taken = buffer.take(offset, len as usize, |at, out| {
                    let ranges = remote.ranges(MessageRange {
                        offset: offset + at as u64,
                        len: out.len() as u64,
                    });
                    if read_all.is_ok() {
                        let out = &mut [IoSliceMut::new(out)];
                        read_all = read(counters, &peer.link, layer, &ranges, out);
                    }
                });
                taken.map(|()| read_all)
            }
            (buf, remote) => {
                let (ranges, pieces) = (remote.ranges(range), buf.pieces(offset, len));
                core.loans.write_many(&pieces, |out| {
                    read(counters, &peer.link, layer, &ranges, out)
                })
            }
        };
        result.unwrap_or_else(|_| {
            let withdrawn = Err(Error::withdrawn(peer.rank));
            core.requests.complete(self.request, withdrawn);
            Ok(())
        })
    }
}
