// SPDX-License-Identifier: MIT OR Apache-2.0
//! One flipped bit in a record's header, its meta word, or a control body.

use super::bodies::{self, FIN};
use super::stage::{expect_protocol_error, geometry, play};
use onecopy_shm::segment::{OwnSegment, PeerSegment};
use onecopy_shm::sync::HeavyFence;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The bytes of a published record: the first slot of an otherwise empty ring.
fn slot(kind: u8, meta: u64, body: &[u8]) -> [u8; 64] {
    let fence = HeavyFence::without_membarrier();
    let scratch = OwnSegment::create(0, geometry(), fence, 1).expect("segment");
    let fd = || scratch.fd().try_clone_to_owned().expect("descriptor");
    let peer = PeerSegment::open(fd(), 0, 1, &geometry()).expect("open");
    let mut producer = peer.producer().expect("ring");
    let mut claim = producer.claim(1).expect("room");
    claim.write(0, body);
    claim.publish(kind, body.len(), meta);
    let mut slot = [0; 64];
    let offset = geometry().ring_offset(1).0;
    File::from(fd())
        .read_exact_at(&mut slot, offset)
        .expect("read");
    slot
}

fn flipped(name: &str, slot: [u8; 64], bits: impl Iterator<Item = usize>) {
    for bit in bits {
        let mut slot = slot;
        slot[bit / 8] ^= 1 << (bit % 8);
        let name = format!("{name}, bit {bit}");
        let result = play(
            &name,
            |rogue, _| {
                // The header last.
                rogue.scribble(rogue.ring() + 8, &slot[8..]);
                rogue.scribble(rogue.ring(), &slot[..8]);
                rogue.notify();
            },
            |_, world| world.recv(&mut [0u8; 64], super::stage::ROGUE, 5),
        );
        expect_protocol_error(&name, &result);
    }
}

#[test]
fn every_bit_of_header_and_meta() {
    flipped("an eager message", slot(1, 5, &[7; 40]), 0..128);
}

#[test]
fn every_bit_of_a_control_body() {
    let fin = bodies::sealed(FIN, [3, 0, 0, 0, 0]);
    flipped("a fin", slot(FIN, 0, &fin), (128..512).step_by(5));
}
