// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rogue that writes whatever comes to its mind.

use super::bodies::{CTS, RTS, sealed};
use super::stage::{ROGUE, Rogue, play};
use onecopy::{Error, Result};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
    /// A word of the sort that fields hold: small, large, a boundary, or anything.
    fn word(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(16),
            1 => self.below(1 << 20),
            2 => u64::MAX - self.below(100),
            3 => 1 << self.below(64),
            4 => self.below(512) | (1 + self.below(8192)) << 32,
            _ => self.next(),
        }
    }
}

fn noise(rogue: &mut Rogue, random: &mut Random, is_over: &dyn Fn() -> bool) {
    for _ in 0..200 {
        match random.below(8) {
            // Raw bytes somewhere in its ring.
            0 => {
                let offset = rogue.ring() + random.below(8192 - 8) / 8 * 8;
                rogue.scribble(offset, &random.next().to_le_bytes());
            }
            // A word of its control lines.
            1 => {
                let offset = rogue.control() + random.below(32) * 8;
                rogue.scribble(offset, &random.word().to_le_bytes());
            }
            // A record with any payload.
            2 => {
                let body: Vec<u8> = (0..random.below(200))
                    .map(|_| random.next() as u8)
                    .collect();
                rogue.publish(1 + random.below(9) as u8, random.below(8), &body);
            }
            // A record that checks.
            _ => {
                let kind = 3 + random.below(6) as u8;
                let mut words = [(); 5].map(|()| random.word());
                if kind == RTS && random.below(2) == 0 {
                    // One that may well be followed.
                    words = [
                        1 + random.below(300_000),
                        random.below(4),
                        random.next(),
                        random.below(1 << 20),
                        random.below(4),
                    ];
                }
                if kind == CTS {
                    words[0] = 1 << 32 | random.below(4);
                    words[4] = random.below(3);
                }
                rogue.publish(kind, random.below(8), &sealed(kind, words));
            }
        }
        rogue.notify();
        if is_over() {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn noise_hurts_nobody_else() {
    for seed in 1..=150u64 {
        let name = format!("seed {seed}");
        let results: Vec<Result<()>> = play(
            &name,
            |rogue, is_over| {
                noise(
                    rogue,
                    &mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                    is_over,
                )
            },
            |rt, world| {
                let mut results = Vec::new();
                let heap = rt.alloc(200_000).expect("alloc");
                let sends = [
                    world.isend(vec![1u8; 100], ROGUE, 5),
                    world.isend(vec![2u8; 9000], ROGUE, 5),
                    world.isend(vec![3u8; 200_000], ROGUE, 5),
                ];
                let heap = world.isend(heap, ROGUE, 5);
                let receives: Vec<_> = (0..8)
                    .map(|tag| world.irecv(vec![0u8; 200_000], ROGUE, tag))
                    .collect();
                // Noise does not always come to an error, and an error is not always the rogue's last word: look for a
                // while.
                for _ in 0..300 {
                    if let Err(error) = world.iprobe(ROGUE, 9) {
                        results.push(Err(error));
                        break;
                    }
                    std::thread::yield_now();
                }
                std::mem::forget((sends, heap, receives));
                results
            },
        );
        for result in results {
            assert!(
                matches!(result, Err(Error::Protocol { rank: ROGUE, .. })),
                "{name}: {result:?}"
            );
        }
    }
}
