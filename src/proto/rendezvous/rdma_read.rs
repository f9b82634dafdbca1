// SPDX-License-Identifier: MIT OR Apache-2.0
//! An announced message that a device of this rank reads from the sender's memory. What it fails to read goes the other
//! way.

use super::super::destination::Destination;
use super::Stepped;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::peer::Peer;
use crate::state::Core;
use crate::state::message::Remote;
use crate::state::transfer::{Mode, RdmaRead, Transfer};
use onecopy_btl::lanes::{ReadState, RemoteAddress};
use onecopy_shm::coop::MessageRange;

/// Reads that one step takes at most, so that a long message does not keep out the others. With stripes of the default
/// length they are 1 MiB, a step's share by other layers, too.
const READS: u32 = 16;

/// Begins to read a range, if the sender has shown them and a device can.
pub(super) fn begin(
    endpoint: &Endpoint,
    transfer: &Transfer,
    range: MessageRange,
) -> Option<RdmaRead> {
    if transfer.unread || endpoint.shares_memory() {
        return None;
    }
    let Remote::One(remote) = &transfer.announcement.remote else {
        return None;
    };
    let key = remote.region?.cookie;
    endpoint.remote_reads()?;
    Some(RdmaRead {
        received: range.offset,
        posted: range.offset,
        end: range.end(),
        from: RemoteAddress {
            address: remote.address,
            key,
        },
    })
}

/// Takes what has come, and asks for more.
pub(super) fn step(
    core: &mut Core,
    peer: &mut Peer,
    number: u64,
    transfer: &mut Transfer,
) -> Stepped {
    let request = transfer.request;
    let Mode::RdmaRead(reading) = &mut transfer.mode else {
        return Stepped::Rests { moved: false };
    };
    let mut moved = false;
    let mut failed = false;
    match peer.endpoint.remote_reads() {
        None => failed = true,
        Some(remote_reads) => {
            for _ in 0..READS {
                let left = reading.end - reading.posted;
                if left > 0 {
                    let from = reading.from.offset_by(reading.posted);
                    reading.posted += remote_reads.post_read(number, from, left);
                }
                let count = match remote_reads.next(number) {
                    ReadState::Bytes(count) => count,
                    ReadState::Nothing => break,
                    ReadState::Failed => {
                        failed = true;
                        break;
                    }
                };
                moved = true;
                let to = Destination::of_request(&core.requests, request);
                let read = |offset: usize, out: &mut [u8]| remote_reads.read(number, offset, out);
                let range = MessageRange {
                    offset: reading.received,
                    len: count as u64,
                };
                if to.fill(&mut core.loans, range, read).is_err() {
                    let withdrawn = Err(Error::withdrawn(peer.rank));
                    core.requests.complete(request, withdrawn);
                }
                remote_reads.pass(number);
                reading.received += count as u64;
            }
        }
    }
    let (received, end) = (reading.received, reading.end);
    if received < end && !failed {
        return Stepped::Rests { moved };
    }
    transfer.remaining.pop();
    if received < end {
        transfer.unread = true;
        transfer.remaining.push(MessageRange {
            offset: received,
            len: end - received,
        });
    }
    transfer.mode = Mode::Choose;
    Stepped::On
}
