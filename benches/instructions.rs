// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that work in turn, so that no poll is in vain and the count of instructions is the same in every run.
//!
//! Instructions of a send and of its receive, or of a collective, from two runs that differ in their number:
//!
//! ```text
//! cargo bench --no-run --bench instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/deps/instructions-* BYTES TIMES [NAME]
//! ```
//!
//! `bcast`, `gather`, `reduce` and `scan` are counted for both of two ranks: the first gives before the second takes.
//! In `barrier` and `allreduce` each rank waits for the other, so a rank alone does them. What it does for itself is
//! what it does in any group.

use onecopy::coll::PredefinedOp;
use onecopy::{Comm, Runtime};
use std::sync::Barrier;

/// Collectives of a turn: a giver waits for nobody before its lines are full.
const COLLECTIVES: usize = 4;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Message,
    Bcast,
    Gather,
    Reduce,
    Scan,
    Barrier,
    Allreduce,
}

impl Call {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "bcast" => Self::Bcast,
            "gather" => Self::Gather,
            "reduce" => Self::Reduce,
            "scan" => Self::Scan,
            "barrier" => Self::Barrier,
            "allreduce" => Self::Allreduce,
            _ => return None,
        })
    }

    /// Whether each rank waits for every other one.
    fn meets(self) -> bool {
        matches!(self, Self::Barrier | Self::Allreduce)
    }

    /// Calls of a turn. Of messages as many as the ring and the chunks of a peer have room for.
    fn turn_of(self, bytes: usize) -> usize {
        match self {
            Self::Message => (96 / bytes.div_ceil(64).max(1)).clamp(4, 64),
            _ => COLLECTIVES,
        }
    }

    /// One call of this rank, as the first or the second of two.
    fn run(self, world: &Comm, send: &[u64], recv: &mut [u64]) {
        let sum = PredefinedOp::Sum;
        let one = &mut recv[..send.len()];
        let done = match self {
            Self::Message if world.rank() == 0 => world.send(send, 1, 3),
            Self::Message => world.recv(one, 0, 3).map(drop),
            Self::Bcast => world.bcast(one, 0),
            Self::Gather => world.gather(send, recv, 1),
            Self::Reduce => world.reduce(send, one, sum, 1),
            Self::Scan => world.scan(send, one, sum),
            Self::Barrier => world.barrier(),
            Self::Allreduce => world.allreduce(send, one, sum),
        };
        done.expect("the call");
    }
}

fn main() {
    let mut numbers = std::env::args().filter_map(|text| text.parse::<usize>().ok());
    let bytes = numbers.next().unwrap_or(8);
    let times = numbers.next().unwrap_or(1 << 14);
    let named = std::env::args().find_map(|name| Call::of(&name));
    let call = named.unwrap_or(Call::Message);
    let turn_of = call.turn_of(bytes);
    let turns = times.div_ceil(turn_of);
    let ranks = if call.meets() { 1 } else { 2 };
    let turn = Barrier::new(ranks);
    onecopy::local(ranks, |rank: Runtime| {
        let world = rank.world();
        let send = vec![1 + rank.rank() as u64; bytes.div_ceil(8)];
        let mut recv = vec![0u64; ranks * send.len()];
        for _ in 0..turns {
            if rank.rank() == 0 {
                (0..turn_of).for_each(|_| call.run(&world, &send, &mut recv));
                turn.wait();
            } else {
                turn.wait();
                (0..turn_of).for_each(|_| call.run(&world, &send, &mut recv));
            }
            turn.wait();
        }
        let came = recv.first().copied().unwrap_or(0);
        let last = rank.rank() + 1 == ranks;
        let expected = match call {
            Call::Bcast | Call::Barrier => 0,
            Call::Message | Call::Gather | Call::Allreduce => 1,
            Call::Reduce | Call::Scan => 3,
        };
        assert!(
            !last || bytes == 0 || came == expected,
            "what came is right"
        );
    });
}
