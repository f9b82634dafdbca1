// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two ranks that one thread drives in turn, so that no poll is in vain and the count of instructions is the same in every run.
//!
//! Instructions of a send and of its receive, from two runs whose difference is the messages:
//!
//! ```text
//! cargo bench --no-run --bench instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/deps/instructions-* BYTES MESSAGES
//! ```

use onecopy::{Options, Runtime};
use std::sync::Mutex;

/// No more than a ring holds of the smallest, so that nothing waits.
const WINDOW: usize = 16;

fn main() {
    let mut numbers = std::env::args().filter_map(|text| text.parse::<usize>().ok());
    let bytes = numbers.next().unwrap_or(8);
    let messages = numbers.next().unwrap_or(1 << 14);
    let ranks = onecopy::wireup::local::world(2).expect("a job of threads");
    let joined = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for wireup in ranks {
            scope.spawn(|| {
                let options = Options {
                    wireup: Some(Box::new(wireup)),
                    ..Options::default()
                };
                let rank = Runtime::init_with(options).expect("joining");
                joined.lock().expect("lock").push(rank);
            });
        }
    });
    let mut ranks = joined.into_inner().expect("lock");
    ranks.sort_by_key(Runtime::rank);
    let worlds = [ranks[0].world(), ranks[1].world()];
    let from = vec![7u8; bytes];
    let mut to = vec![0u8; bytes];
    for _ in 0..messages.div_ceil(WINDOW) {
        for _ in 0..WINDOW {
            worlds[0].send(&from, 1, 3).expect("send");
        }
        for _ in 0..WINDOW {
            worlds[1].recv(&mut to, 0, 3).expect("recv");
        }
    }
    assert_eq!(from, to, "the messages arrived");
    drop(worlds);
    drop(ranks);
}
