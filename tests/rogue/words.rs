// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control words: tail, credit, wake, the doorbell, the bitmap, the words of a cooperative transfer, and the header
//! page.

use super::bodies::{FIN, RTS, sealed};
use super::stage::{ROGUE, expect_protocol_error, play};
use onecopy::Error;
use onecopy_shm::layout::BITMAP_OFFSET;
use onecopy_shm::segment::OwnSegment;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Offsets in a pair's control lines.
const WAKE: u64 = 0;
const TAIL: u64 = 8;
const CREDIT: u64 = 16;
const WAITS: u64 = 64;
const COOP: u64 = 128;
const COUNTER: u64 = COOP + 64;
const DONE: u64 = COUNTER + 8;
const FAILED: u64 = COUNTER + 16;

const WORDS: [u64; 8] = [
    0,
    1,
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    0x0000_0001_0000_0000,
    0xFFFF_FFFF,
    0x0001_0001_0001_0001,
];

/// The rogue lies as a receiver, in its own segment: the victim overwrites nothing it should not and gives up when the
/// rogue leaves.
#[test]
fn lies_of_a_receiver() {
    for offset in [TAIL, CREDIT, WAKE] {
        for word in WORDS {
            let name = format!("word {offset} is {word:#x}");
            play(
                &name,
                |rogue, _| {
                    let own = rogue.own.fd().try_clone_to_owned().expect("descriptor");
                    let control = super::stage::geometry()
                        .ctrl_offset(super::stage::VICTIM as u32)
                        .0;
                    File::from(own)
                        .write_all_at(&word.to_le_bytes(), control + offset)
                        .expect("write");
                    rogue.notify();
                },
                |_, world| {
                    // As many as fit: the rogue takes nothing, and the last ones wait until they are given up.
                    let sent: Vec<_> = (0..300)
                        .map(|_| world.isend(vec![1u8; 3000], ROGUE, 5).expect("queued"))
                        .collect();
                    world.iprobe(ROGUE, 5).expect("nothing bad in the ring");
                    std::mem::forget(sent);
                },
            );
        }
    }
}

/// Words of the victim's that a peer writes in order, and in disorder here.
#[test]
fn nonsense_in_doorbell_bitmap_and_flags() {
    for word in WORDS {
        let name = format!("word {word:#x}");
        let result = play(
            &name,
            |rogue, is_over| {
                let bytes = word.to_le_bytes();
                for _ in 0..50 {
                    // Ranks that do not exist; the bits of others in the first byte are not the rogue's to clear.
                    rogue.scribble(BITMAP_OFFSET as u64 + 1, &bytes[1..]);
                    rogue.scribble(rogue.control() + WAITS, &bytes[..4]);
                    rogue.scribble(rogue.control() + WAKE, &bytes[..4]);
                    rogue.scribble(rogue.control() + TAIL, &bytes);
                    rogue.scribble(rogue.control() + CREDIT, &bytes);
                    rogue.victim.doorbell().ring();
                    if is_over() {
                        return;
                    }
                    std::thread::yield_now();
                }
                assert!(rogue.publish(FIN, 0, &sealed(FIN, [1, 0, 0, 0, 0])));
            },
            |_, world| world.recv(&mut [0u8; 10], ROGUE, 5),
        );
        expect_protocol_error(&name, &result);
    }
}

/// A cooperative transfer whose words the rogue, as its sender, writes: the victim's receive ends, in whichever way.
#[test]
fn nonsense_in_a_cooperative_transfer() {
    for offset in [COOP, COOP + 8, COOP + 16, COOP + 24, COUNTER, DONE, FAILED] {
        for word in WORDS.into_iter().chain([
            0x0000_0005_FFFF_FFFF,
            0x0000_0005_0000_0001,
            0x0000_0005_0001_0000,
        ]) {
            let name = format!("coop word {offset} is {word:#x}");
            let result = play(
                &name,
                |rogue, is_over| {
                    // In the rogue's heap, so that the victim copies itself, together with a sender that may join.
                    assert!(rogue.publish(RTS, 5, &sealed(RTS, [1 << 20, 1, 0, 0, 5])));
                    while !is_over() {
                        rogue.scribble(rogue.control() + offset, &word.to_le_bytes());
                    }
                },
                |_, world| world.recv(&mut vec![0u8; 1 << 20], ROGUE, 5),
            );
            match result {
                Ok(status) => assert_eq!(status.bytes, 1 << 20),
                Err(Error::Protocol { rank: ROGUE, .. }) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }
}

/// A segment whose header page says something else than the job's geometry is not used.
#[test]
fn a_header_page_that_lies() {
    for bit in (0..40 * 8).step_by(7) {
        // Magic, rank and geometry; the word of the fences in between is no lie whatever it is.
        if (28 * 8..32 * 8).contains(&bit) {
            continue;
        }
        let name = format!("bit {bit} of the header");
        let result = play(
            &name,
            |rogue, _| {
                flip(&rogue.own, bit);
                assert!(rogue.publish(FIN, 0, &sealed(FIN, [1, 0, 0, 0, 0])));
            },
            |_, world| world.recv(&mut [0u8; 10], ROGUE, 5),
        );
        expect_protocol_error(&name, &result);
    }
}

fn flip(segment: &OwnSegment, bit: usize) {
    let file = File::from(segment.fd().try_clone_to_owned().expect("descriptor"));
    let (mut byte, offset) = ([0], bit as u64 / 8);
    file.read_exact_at(&mut byte, offset).expect("read");
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, offset).expect("write");
}
