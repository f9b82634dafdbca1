// SPDX-License-Identifier: MIT OR Apache-2.0
//! An announced message that a device of this rank reads from the sender's memory. What it fails to read goes the other
//! way.

use super::Stepped;
use crate::error::Error;
use crate::peer::Peer;
use crate::state::Core;
use crate::state::message::Remote;
use crate::state::transfer::{Fetching, Mode, Transfer};
use onecopy_btl::lanes::Fetched;

/// Reads that one step takes at most, so that a long message does not keep out the others.
const READS: u32 = 16;

/// Begins to read `len` bytes from `offset` on, if the sender has shown them and a device can.
pub(super) fn begin(
    peer: &Peer,
    transfer: &Transfer,
    (offset, len): (u64, u64),
) -> Option<Fetching> {
    if transfer.unread || peer.endpoint.shares_memory() {
        return None;
    }
    let Remote::One(range) = &transfer.announcement.remote else {
        return None;
    };
    let key = u32::try_from(range.region?.cookie).ok()?;
    peer.endpoint.fetches()?;
    Some(Fetching {
        at: offset,
        asked: offset,
        end: offset + len,
        from: (range.address, key),
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
    let Mode::Fetch(fetching) = &mut transfer.mode else {
        return Stepped::Rests { moved: false };
    };
    let mut moved = false;
    let mut failed = false;
    match peer.endpoint.fetches() {
        None => failed = true,
        Some(fetches) => {
            for _ in 0..READS {
                let left = fetching.end - fetching.asked;
                if left > 0 {
                    let (address, key) = fetching.from;
                    let from = (address.wrapping_add(fetching.asked), key);
                    fetching.asked += fetches.ask(number, from, left);
                }
                let count = match fetches.next(number) {
                    Fetched::Bytes(count) => count,
                    Fetched::Nothing => break,
                    Fetched::Failed => {
                        failed = true;
                        break;
                    }
                };
                moved = true;
                if let Some(found) = core.requests.get(request) {
                    let read = |at: usize, out: &mut [u8]| fetches.read(number, at, out);
                    let loans = &mut core.loans;
                    if found.buf.write(loans, fetching.at, count, read).is_err() {
                        let rank = peer.rank as usize;
                        core.requests
                            .complete(request, Err(Error::Withdrawn { rank }));
                    }
                }
                fetches.pass(number);
                fetching.at += count as u64;
            }
        }
    }
    let (at, end) = (fetching.at, fetching.end);
    if at < end && !failed {
        return Stepped::Rests { moved };
    }
    transfer.remaining.pop();
    if at < end {
        transfer.unread = true;
        transfer.remaining.push((at, end - at));
    }
    transfer.mode = Mode::Choose;
    Stepped::On
}
