// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copy in, copy out: the layer that always works. The sender copies into a chunk of its own segment, the receiver out
//! of it.

use crate::contract::{NodeFacts, Probe, Refusal};
use onecopy_shm::segment::{PeerSegment, SegmentError};

/// Whether the machine can share memory at all: if not, no rank can start.
#[must_use]
pub fn probe(here: &NodeFacts) -> Probe {
    match &here.segment {
        Ok(()) => Probe::Available {
            detail: "memfd segments; no name in any file system".into(),
        },
        Err(refusal) => Probe::Unavailable(refusal.clone()),
    }
}

/// Maps the peer's pool, `writable` or not, and sees a number that it writes in the peer's segment there again. Without
/// this the pair cannot talk.
///
/// # Errors
/// A [`Refusal`]: the two ranks cannot talk by shared memory.
pub fn prove(peer: &mut PeerSegment, writable: bool) -> Result<(), Refusal> {
    let refused =
        |e: SegmentError| Refusal::new(e.to_string(), "without shared memory ranks cannot talk");
    peer.map_pool(writable).map_err(refused)?;
    if !peer.prove() {
        return Err(Refusal::new(
            format!(
                "what was written to rank {}'s segment is not there",
                peer.rank()
            ),
            "without shared memory ranks cannot talk",
        ));
    }
    Ok(())
}
