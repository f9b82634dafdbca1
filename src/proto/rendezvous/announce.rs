// SPDX-License-Identifier: MIT OR Apache-2.0
//! The announcement: what the sender says of where the bytes are, and how the receiver reads it.

use super::{Announcement, Remote, start};
use crate::endpoint::{ChunkName, Naming};
use crate::matching::Envelope;
use crate::peer::{Announced, Peer, charge};
use crate::proto::control::{give_credit, open, put_body};
use crate::proto::eager::Chunked;
use crate::proto::{eager, plan};
use crate::records::{BODY, Kind, LIST_ENTRY, NONE, Rts, SourceLayout};
use crate::request::{OFFER_MAX, RequestId, RequestState, SendPlan, StagedBuf, UserBuf};
use crate::select::observed;
use crate::state::UnexpectedMessage;
use crate::state::{Core, Receives};
use onecopy_btl::registry::Power;
use onecopy_btl::{RegionPart, RemoteRange};
use onecopy_obs::tracepoints;
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::HeapOffset;
use onecopy_shm::loan::{Loan, LoanRange};

/// Announces the send `id`. `false`: no room yet.
#[inline]
pub(crate) fn announce(core: &mut Core, peer: &mut Peer, id: RequestId, coop_id: u32) -> bool {
    let Some(request) = core.requests.get(id) else {
        return true;
    };
    let (len, meta, buf) = (
        request.len,
        request.match_bits().word(),
        request.buf.clone(),
    );
    let layout = locate(core, peer, id, &buf, len);
    let coop_id = match layout {
        Layout::List { .. } if !core.knobs.coop => 0,
        _ => coop_id,
    };
    let rewritten = matters(peer) && is_rewritten(core, &buf, &layout);
    let rts = |layout| {
        let rts = Rts {
            len,
            request: id.0,
            layout,
            coop_id,
            rewritten,
        };
        rts.encode()
    };
    let out = match layout {
        Layout::Described(layout) => put_body(core, peer, Kind::Rts, meta, &rts(layout)),
        Layout::List { bytes, cookie } => {
            let count = (bytes.len() / LIST_ENTRY) as u32;
            let list = |chunk| {
                rts(SourceLayout::List {
                    chunk,
                    count,
                    cookie,
                })
            };
            put_in_chunk(core, peer, meta, bytes, list, rts)
        }
        Layout::Unoffered => {
            let out = put_body(core, peer, Kind::Rts, meta, &rts(SourceLayout::Scattered));
            core.counters.device_unoffered += u64::from(out);
            out
        }
        Layout::Offered(offer) => {
            let bytes = offer.len() as u32;
            let offered = |chunk| rts(SourceLayout::Offered { chunk, bytes });
            put_in_chunk(core, peer, meta, offer.into(), offered, rts)
        }
    };
    if !out {
        return false;
    }
    peer.outbound.asked();
    if coop_id != 0 {
        peer.outbound.announced.push_back(Announced {
            coop_id,
            request: id,
            asked_by: None,
            finished: 0,
            out: false,
        });
    }
    if let Some(request) = core.requests.get_mut(id) {
        request.state = RequestState::Awaiting(SendPlan::Announced { coop_id });
    }
    let (to, me) = (peer.rank as usize, core.me as usize);
    tracepoints::rendezvous_announced(to, me, id.0, len);
    core.counters.sends_rendezvous += 1;
    core.counters.bytes_sent += len;
    true
}

/// Announces the send `id` of this context, which is in no queue, if nothing that is queued for the peer comes first.
/// `false`: it is to be queued.
#[inline]
pub(crate) fn announce_at_once(
    core: &mut Core,
    peer: &mut Peer,
    id: RequestId,
    context: u32,
    coop_id: u32,
) -> bool {
    if peer.has_output() || peer.outbound.must_hold(context, true) {
        return false;
    }
    let out = announce(core, peer, id, coop_id);
    if out {
        peer.outbound.take_place(context);
    }
    out
}

/// Whether the receiver decides between two ways by what it has seen, as this rank would.
fn matters(peer: &Peer) -> bool {
    let calls = || peer.link.proven().by(Power::Copy).next().is_some();
    peer.endpoint.shares_memory() && !peer.policy.observed.is_fixed() && calls()
}

/// Whether a buffer that the receiver may read by the kernel was rewritten since it was sent last: what it decides
/// between depends on that.
fn is_rewritten(core: &mut Core, buf: &UserBuf, layout: &Layout) -> bool {
    match (buf, layout) {
        (_, Layout::Described(SourceLayout::One { heap: Some(_), .. })) => false,
        (UserBuf::One(loan), Layout::Described(_)) if loan.len() as u64 >= observed::MIN => {
            plan::has_changed(core, *loan)
        }
        _ => false,
    }
}

/// Writes an announcement of which some bytes go in a chunk: a list of pieces, or an offer. `named`: its body, by the
/// chunk; `rts`: the same, by where the bytes of the message are. `false`: no room yet.
fn put_in_chunk(
    core: &mut Core,
    peer: &mut Peer,
    meta: u64,
    bytes: Vec<u8>,
    named: impl FnOnce(ChunkName) -> [u8; BODY],
    rts: impl Fn(SourceLayout) -> [u8; BODY],
) -> bool {
    if !peer.endpoint.is_open() && !open(core, peer) {
        return false;
    }
    let naming = Naming {
        kind: Kind::Rts as u8,
        meta,
        begin: 0,
        len: bytes.len(),
        total: bytes.len(),
        kernel: Kernel::Memcpy,
        share: core.chunks.share,
    };
    let (endpoint, home) = (&mut peer.endpoint, &mut core.home);
    let put = endpoint.put_chunk(home, naming, named, &bytes);
    match eager::named(core, peer, Kind::Rts, put) {
        Chunked::Sent => {
            peer.outbound.credit.spend(charge(bytes.len() as u64));
            true
        }
        // Without a chunk the message is collected, or staged.
        Chunked::Refused => {
            let scattered = rts(SourceLayout::Scattered);
            put_body(core, peer, Kind::Rts, meta, &scattered)
        }
        Chunked::NoRoom | Chunked::Withdrawn => false,
    }
}

/// What an announcement says of where the bytes are.
enum Layout {
    Described(SourceLayout),
    /// In the pieces of this list, which goes in a chunk; perhaps exposed together as a region.
    List {
        bytes: Vec<u8>,
        cookie: Option<u64>,
    },
    /// In a device; this goes in a chunk.
    Offered(Box<[u8]>),
    /// The same, but this rank's device shows them to no other process.
    Unoffered,
}

/// Finds out where the bytes of the send `id` are, and lists them if they are in several pieces.
#[inline]
fn locate(core: &mut Core, peer: &mut Peer, id: RequestId, buf: &UserBuf, len: u64) -> Layout {
    match buf {
        UserBuf::One(loan) => {
            if let Some(layout) = show(core, peer, id, *loan) {
                return Layout::Described(layout);
            }
            let heap = core.home.heap_offset_of(loan.address(), loan.len());
            let address = loan.address() as u64;
            let cookie = match heap {
                None => expose(core, peer, id, std::slice::from_ref(loan), len),
                Some(_) => None,
            };
            Layout::Described(match cookie {
                Some(cookie) => SourceLayout::Region { address, cookie },
                None => SourceLayout::One {
                    address,
                    heap: heap.map(|h| h.0),
                },
            })
        }
        UserBuf::Many(loans)
            if peer.endpoint.shares_memory() && loans.len() * LIST_ENTRY <= core.chunks.bytes =>
        {
            list(core, peer, id, loans, len)
        }
        UserBuf::Staged(buffer) => locate_staged(core, peer, buffer),
        UserBuf::Many(_) => Layout::Described(SourceLayout::Scattered),
    }
}

/// What a staged send says: the processor of no other rank can read it, but perhaps its device can. The receiver keeps
/// an offer as it keeps a list.
fn locate_staged(core: &Core, peer: &mut Peer, buffer: &StagedBuf) -> Layout {
    if !peer.endpoint.shares_memory() {
        return Layout::Described(SourceLayout::Scattered);
    }
    let Some(offer) = buffer.offer(false) else {
        return Layout::Unoffered;
    };
    let len = offer.len();
    if len > core.chunks.bytes || !plan::has_credit(core, peer, charge(len as u64)) {
        return Layout::Described(SourceLayout::Scattered);
    }
    Layout::Offered(offer)
}

/// Shows the send to the peer's device, if that can read it.
fn show(core: &mut Core, peer: &Peer, id: RequestId, loan: Loan) -> Option<SourceLayout> {
    if peer.endpoint.shares_memory() {
        return None;
    }
    // An announcement that found no room is made again.
    if core.requests.shown(id).is_none() {
        let show = |bytes: &[u8]| peer.endpoint.show(bytes);
        let shown = core.loans.read(LoanRange::whole(loan), show).ok()??;
        core.requests.keep_shown(id, shown);
    }
    core.requests.shown(id).map(|shown| SourceLayout::Region {
        address: shown.address,
        cookie: shown.key,
    })
}

/// Lists the pieces of a send for a chunk.
///
/// The receiver keeps the list until it is matched, at this rank's charge. Without credit for that the message is
/// collected by its sender, as one in too many pieces is.
fn list(core: &mut Core, peer: &mut Peer, id: RequestId, loans: &[Loan], len: u64) -> Layout {
    let list_bytes = loans.len() * LIST_ENTRY;
    if !plan::has_credit(core, peer, charge(list_bytes as u64)) {
        return Layout::Described(SourceLayout::Scattered);
    }
    let mut bytes = Vec::with_capacity(list_bytes);
    for loan in loans {
        let heap = core.home.heap_offset_of(loan.address(), loan.len());
        let heap = heap.map_or(NONE, |h| h.0);
        for word in [loan.address() as u64, heap, loan.len() as u64] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    let cookie = expose(core, peer, id, loans, len);
    Layout::List { bytes, cookie }
}

/// The cookie of the region in which the send is exposed. There is one if the receiver can read it by the kernel module
/// and in no better way.
fn expose(core: &mut Core, peer: &Peer, id: RequestId, loans: &[Loan], len: u64) -> Option<u64> {
    if let Some(region) = core.requests.region(id) {
        return Some(region.cookie());
    }
    let layer = peer.link.exposing()?;
    let exposures = layer.row().exposes.as_ref()?;
    // Until the peer has announced its needs, this rank takes its own for the peer's: as a rule they are the same.
    let wanted = peer
        .endpoint
        .wants_exposed()
        .unwrap_or_else(|| peer.link.wants_exposure());
    // A receiver that decides by the times that it has seen has to try this layer at sizes below its threshold, too.
    let from = if peer.policy.observed.is_fixed() {
        peer.policy.thresholds.min[layer]
    } else {
        peer.policy.thresholds.min[layer].min(observed::MIN)
    };
    if !wanted || len < from {
        return None;
    }
    let pieces = loans.iter().map(|loan| (loan.address(), loan.len()));
    match peer.link.expose(layer, pieces)? {
        Ok(region) => {
            let cookie = region.cookie();
            core.requests.keep_region(id, region);
            *(exposures.done)(&mut core.counters) += 1;
            Some(cookie)
        }
        Err(error) => {
            let refused = (exposures.refused)(&mut core.counters);
            if *refused == 0 {
                tracing::info!("{}; the message goes another way", error.explain());
            }
            *refused += 1;
            None
        }
    }
}

/// An announcement has arrived.
pub(crate) fn announced(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    envelope: Envelope,
    rts: Rts,
) -> Result<(), String> {
    if peer.inbound.incoming.is_some() {
        return Err("a message begins within another".into());
    }
    let remote = remote(core, peer, &rts)?;
    let announcement = Announcement {
        len: rts.len,
        request: rts.request,
        remote,
        coop_id: rts.coop_id,
        rewritten: rts.rewritten,
    };
    match receives.match_request(core, &envelope) {
        Some(id) => {
            give_credit(core, peer, announcement.list_charge());
            let transfers = &mut receives.transfers;
            start(core, transfers, peer, envelope, announcement, id);
        }
        None => {
            let inbound = &mut peer.inbound;
            inbound.check_unmatched(&core.knobs)?;
            if let Some(list) = announcement.list_bytes() {
                inbound.hold(&core.knobs, list)?;
            }
            inbound.remember();
            receives.keep_unexpected(core, envelope, UnexpectedMessage::Announced(announcement));
        }
    }
    Ok(())
}

/// Where the bytes of an announced message are, checked.
fn remote(core: &Core, peer: &mut Peer, rts: &Rts) -> Result<Remote, String> {
    Ok(match rts.layout {
        SourceLayout::One { address, heap } => {
            let heap = in_heap(heap, rts.len, core.home.heap_bytes())?;
            Remote::One(RemoteRange {
                address,
                heap,
                region: None,
                len: rts.len,
            })
        }
        SourceLayout::Region { address, cookie } => Remote::One(RemoteRange {
            address,
            heap: None,
            region: Some(RegionPart { cookie, offset: 0 }),
            len: rts.len,
        }),
        SourceLayout::List {
            chunk,
            count,
            cookie,
        } => {
            let bytes = count as usize * LIST_ENTRY;
            if bytes > peer.endpoint.chunk_bytes() {
                return Err(format!("a list of {count} pieces in one chunk"));
            }
            let raw = bytes_of(peer, chunk, bytes)?;
            let ranges = read_list(&raw, core.home.heap_bytes(), cookie)?;
            let sum = ranges
                .iter()
                .try_fold(0u64, |sum, range| sum.checked_add(range.len));
            if sum != Some(rts.len) {
                return Err(format!(
                    "a list of pieces that are not {} bytes together",
                    rts.len
                ));
            }
            Remote::Many(ranges)
        }
        SourceLayout::Scattered => Remote::Unknown,
        SourceLayout::Offered { chunk, bytes } => {
            let most = OFFER_MAX.min(peer.endpoint.chunk_bytes());
            let bytes = bytes as usize;
            if bytes == 0 || bytes > most || !peer.endpoint.shares_memory() {
                return Err(format!("an offer of {bytes} bytes in a chunk"));
            }
            Remote::Offered(bytes_of(peer, chunk, bytes)?.into())
        }
    })
}

/// The first `len` bytes of a chunk that an announcement names.
fn bytes_of(peer: &mut Peer, chunk: ChunkName, len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len];
    peer.endpoint
        .read_chunk(chunk, 0, &mut bytes, Kernel::Memcpy)
        .map_err(|bad| bad.to_string())?;
    Ok(bytes)
}

/// Where in the sender's heap `len` bytes are, if they lie there; checked.
fn in_heap(offset: Option<u64>, len: u64, heap_bytes: u64) -> Result<Option<HeapOffset>, String> {
    if let Some(offset) = offset {
        onecopy_shm::layout::check_range("the sender's heap", offset, len, heap_bytes)
            .map_err(|bad| bad.to_string())?;
    }
    Ok(offset.map(HeapOffset))
}

fn read_list(raw: &[u8], heap_bytes: u64, cookie: Option<u64>) -> Result<Vec<RemoteRange>, String> {
    // The region has the pieces in their order.
    let mut offset = 0u64;
    let mut ranges = Vec::with_capacity(raw.len() / LIST_ENTRY);
    for entry in raw.chunks_exact(LIST_ENTRY) {
        let word = |offset: usize| {
            entry[offset..offset + 8]
                .try_into()
                .map_or(0, u64::from_le_bytes)
        };
        let (address, heap, len) = (word(0), word(8), word(16));
        let heap = in_heap((heap != NONE).then_some(heap), len, heap_bytes)?;
        ranges.push(RemoteRange {
            address,
            heap,
            region: cookie.map(|cookie| RegionPart { cookie, offset }),
            len,
        });
        offset = offset.wrapping_add(len);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use crate::runtime::local_with;
    use crate::select::observed::Source;
    use onecopy_btl::registry::Power;
    use onecopy_obs::Knobs;

    /// The receiver learns of messages whose buffer was rewritten for themselves.
    #[test]
    fn a_receiver_knows_which_buffers_were_rewritten() {
        const LEN: usize = 1 << 20;
        local_with(2, &Knobs::default(), |rt| {
            let (world, other) = (rt.world(), 1 - rt.rank());
            let mut bytes = vec![0_u8; LEN];
            // The first one is not known, and the last two are the same.
            for value in [1, 2, 3, 3, 3] {
                if rt.rank() == 0 {
                    bytes.fill(value);
                    world.send(&bytes, other, 0).expect("send");
                } else {
                    world.recv(&mut bytes, other, 0).expect("receive");
                    assert!(bytes.iter().all(|&byte| byte == value));
                }
            }
            world.barrier().expect("the channel is open");
            if rt.rank() == 1 {
                let worker = &mut *rt.handle().gate.enter();
                let peer = worker.engine.peers[other].as_ref().expect("it is known");
                let decided = [false, true].map(|rewritten| {
                    let bytes = LEN as u64;
                    peer.policy.observed.transfers(Source { bytes, rewritten })
                });
                let calls = peer.link.proven().by(Power::Copy).next().is_some();
                assert_eq!(decided, if calls { [3, 2] } else { [0, 0] });
            }
            rt.finalize().expect("finalize");
        });
    }
}
