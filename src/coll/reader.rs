// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading a member's buffer: in place where it can be mapped, by the kernel, or by a copy request to its owner.

use super::ByteRange;
use super::context::{StepContext, StepParts};
use super::copy_request;
use super::member_buffer::{CopyTarget, MemberBuffer, part};
use super::state::CommState;
use crate::error::Result;
use crate::peer::Peer;
use crate::proto::layers;
use onecopy_btl::contract::AttachedBytes;
use onecopy_btl::registry::Power;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::View;
use std::io::IoSliceMut;

/// The bytes in place, where a layer maps them.
pub(crate) fn view<'p>(
    peers: &'p [Option<Box<Peer>>],
    state: &CommState,
    place: usize,
    range: &RemoteRange,
) -> Option<View<'p>> {
    let peer = peers[state.members[place] as usize].as_ref()?;
    peer.link.view(range)
}

/// The bytes in place, where the kernel module has attached them.
pub(crate) fn attached<'p>(
    peers: &'p [Option<Box<Peer>>],
    state: &CommState,
    place: usize,
    range: &RemoteRange,
) -> Option<AttachedBytes<'p>> {
    let peer = peers[state.members[place] as usize].as_ref()?;
    peer.link.attached(range)
}

/// Reads bytes of a member's buffer; as many as `Ok` says are there now, the others come later.
pub(crate) fn fetch(
    cx: &mut StepContext<'_>,
    source: &MemberBuffer,
    wanted: ByteRange,
    mut target: CopyTarget<'_>,
) -> Result<usize> {
    let StepParts {
        memory,
        state,
        tally,
        ..
    } = cx.parts();
    let (range, len) = (part(state, source, wanted)?, wanted.len);
    if len == 0 {
        return Ok(0);
    }
    if copy_request::is_under_way(state, source, wanted) {
        return copy_request::fetch(cx, source, wanted, target);
    }
    let kernel = memory.kernel(len);
    let place = source.place;
    let rank = state.members[place] as usize;
    let mut parts = memory.parts();
    if let Some(view) = parts.peer(rank)?.link.view(&range) {
        target.write(parts.loans, 0, len, |out| view.copy_to(out, kernel))?;
        LayerId::MAP.count(parts.counters, len as u64);
        tally.add(rank as u32, LayerId::MAP, len);
        return still_good(state, place).map(|()| len);
    }
    for layer in LayerId::ALL {
        parts = memory.parts();
        let link = &parts.peer(rank)?.link;
        if !link.can_get(layer, &range) || !link.has_earned(layer, &range, len as u64) {
            continue;
        }
        if source.answers && layer.power() == Power::Copy {
            break;
        }
        let got = target.write(parts.loans, 0, len, |out| {
            let mut out = [IoSliceMut::new(out)];
            link.get(layer, &[range], &mut out)
        })?;
        layers::note_attachments(parts.counters, link, layer);
        match got {
            Ok(()) => {
                layer.count(parts.counters, len as u64);
                tally.add(rank as u32, layer, len);
                return still_good(state, place).map(|()| len);
            }
            Err(error) => {
                // The owner may have given its buffer back because the communicator has failed; then the layer is not
                // to blame.
                still_good(state, place)?;
                memory.demote(rank, &error);
            }
        }
    }
    copy_request::fetch(cx, source, wanted, target)
}

/// What was read is good if the owner has not given up the communicator, and with it its buffers.
pub(super) fn still_good(state: &CommState, place: usize) -> Result<()> {
    onecopy_shm::fault::point("coll.read");
    state.failure_of(place).map_or(Ok(()), Err)
}
