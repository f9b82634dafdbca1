// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two ranks that work in turn, so that no poll is in vain and the count of instructions is the same in every run.
//!
//! Instructions of a send and of its receive, or of a broadcast by both ranks, from two runs that differ in their
//! messages:
//!
//! ```text
//! cargo bench --no-run --bench instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/deps/instructions-* BYTES MESSAGES [bcast]
//! ```

use std::sync::Barrier;

/// Broadcasts of a turn: a root waits for nobody before its lines are full.
const BROADCASTS: usize = 4;

/// Messages of a turn: the ring and the chunks of a peer have room for them all.
fn messages(bytes: usize) -> usize {
    (96 / bytes.div_ceil(64).max(1)).clamp(4, 64)
}

fn main() {
    let mut numbers = std::env::args().filter_map(|text| text.parse::<usize>().ok());
    let bytes = numbers.next().unwrap_or(8);
    let broadcasts = std::env::args().any(|text| text == "bcast");
    let turn_of = if broadcasts {
        BROADCASTS
    } else {
        messages(bytes)
    };
    let turns = numbers.next().unwrap_or(1 << 14).div_ceil(turn_of);
    let turn = Barrier::new(2);
    onecopy::local(2, |rank| {
        let world = rank.world();
        let mut buffer = vec![rank.rank() as u8; bytes];
        for _ in 0..turns {
            if rank.rank() == 0 {
                for _ in 0..turn_of {
                    if broadcasts {
                        world.bcast(&mut buffer, 0).expect("bcast");
                    } else {
                        world.send(&buffer, 1, 3).expect("send");
                    }
                }
                turn.wait();
            } else {
                turn.wait();
                for _ in 0..turn_of {
                    if broadcasts {
                        world.bcast(&mut buffer, 0).expect("bcast");
                    } else {
                        world.recv(&mut buffer, 0, 3).expect("recv");
                    }
                }
            }
            turn.wait();
        }
        assert!(buffer.iter().all(|&byte| byte == 0), "the messages arrived");
    });
}
