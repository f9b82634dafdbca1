// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transfers by which a layer is proven with a peer: what the kernel or a module lets pass is known only from one.

use crate::contract::{CopyLayer, Failure, RegionPart, RemoteRange};
use onecopy_shm::segment::PeerSegment;
use std::io::{IoSlice, IoSliceMut};

/// A number of the peer's, at its address.
fn word(address: u64, region: Option<RegionPart>) -> [RemoteRange; 1] {
    [RemoteRange {
        address,
        heap: None,
        region,
        len: 8,
    }]
}

/// Reads the number that only the peer's segment has, and says whether it is that. `region`: where else it is found.
pub(crate) fn reads_nonce(
    layer: &impl CopyLayer,
    peer: &PeerSegment,
    region: Option<RegionPart>,
) -> Result<bool, Failure> {
    let mut number = [0; 8];
    let from = word(peer.nonce_address(), region);
    layer.get(&from, &mut [IoSliceMut::new(&mut number)])?;
    Ok(u64::from_ne_bytes(number) == peer.nonce())
}

/// Whether a number that is written to the peer is then seen in its segment. `turn` keeps the numbers of layers apart.
pub(crate) fn writes_seen(layer: &impl CopyLayer, peer: &PeerSegment, turn: u32) -> bool {
    let token = peer.nonce().rotate_left(turn) ^ u64::from(std::process::id());
    let to = word(peer.proof_address(), None);
    let written = layer.put(&to, &[IoSlice::new(&token.to_ne_bytes())]);
    written.is_ok() && peer.proof() == token
}
