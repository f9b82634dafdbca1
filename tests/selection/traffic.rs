// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of every protocol, with the cause made before them, between them, or in the middle of a large one.

use crate::bytes::{check, fill, pattern};
use crate::processes::{JobRun, Ranks, say};
use onecopy::Runtime;

const SIZES: [usize; 8] = [0, 8, 1000, 5000, 70_000, 300_000, 2_000_003, 9_000_001];

/// All ranks exchange messages of all sizes with all others.
fn exchange(rt: &Runtime, round: usize) {
    let world = rt.world();
    let (me, size) = (world.rank(), world.size());
    let seed = |from: usize, to: usize, n: usize| round * 1000 + from * 100 + to * 10 + n;
    for (n, &len) in SIZES.iter().enumerate() {
        for distance in 1..size {
            let (to, from) = ((me + distance) % size, (me + size - distance) % size);
            let mut got = vec![0xee; len];
            let message = pattern(len, seed(me, to, n));
            world
                .sendrecv(&message, to, 1, &mut got, from, 1)
                .expect("a message is not failed");
            check(&got, seed(from, me, n), "exchanged");
        }
    }
}

/// More than a small file system for shared memory holds.
fn exchange_large(rt: &Runtime) {
    let (len, world) = (256 << 20, rt.world());
    if world.rank() == 0 {
        world
            .send(&pattern(len, 3), 1, 4)
            .expect("a message is not failed");
    } else if world.rank() == 1 {
        let mut got = vec![0; len];
        world.recv(&mut got, 0, 4).expect("a message is not failed");
        check(&got, 3, "large");
    }
}

/// Exchanges in the heap, where there is one.
fn exchange_heap(rt: &Runtime) {
    let world = rt.world();
    let peer = world.size() - 1 - world.rank();
    if peer == world.rank() {
        return;
    }
    let len = 3_000_001;
    let (Ok(mut mine), Ok(mut got)) = (rt.alloc(len), rt.alloc(len)) else {
        say("no heap");
        let mut got = vec![0; len];
        let mine = pattern(len, world.rank());
        world
            .sendrecv(&mine, peer, 2, &mut got, peer, 2)
            .expect("a message is not failed");
        return check(&got, peer, "exchanged");
    };
    fill(&mut mine, world.rank());
    world
        .sendrecv(&mine, peer, 2, &mut got, peer, 2)
        .expect("a message is not failed");
    check(&got, peer, "exchanged in the heap");
}

/// Times that a message may be too fast: one of its ranks has to wait for a processor for as long as it takes.
const TRIES: usize = 50;

/// Breaks the layer while a large message is under way.
fn break_in_the_middle(rt: &Runtime, cause: impl Fn(), who: usize) {
    let world = rt.world();
    if world.rank() > 1 {
        return;
    }
    let peer = 1 - world.rank();
    for _ in 0..TRIES {
        let mut broken = [u8::from(try_to_break(rt, &cause, who))];
        if who == world.rank() {
            world.send(&broken, peer, 4).expect("a word");
        } else {
            world.recv(&mut broken, peer, 4).expect("a word");
        }
        if broken[0] == 1 {
            return;
        }
    }
    panic!("{TRIES} messages were too fast to be broken in the middle");
}

/// Sends a large message from rank 0 to rank 1, of which `who` calls `cause` between two looks at its request. The
/// receiver does so when some of the bytes have arrived and others have not. Says whether this rank has called it.
fn try_to_break(rt: &Runtime, cause: impl Fn(), who: usize) -> bool {
    let len = 96 << 20;
    let world = rt.world();
    let message = if world.rank() == 0 {
        pattern(len, 5)
    } else {
        Vec::new()
    };
    world.barrier_of_two();
    if world.rank() == 0 {
        let mut request = world.isend(message, 1, 3).expect("isend");
        // Only a sender that waits takes part in copying: look in small steps.
        let breaks = who == 0 && !request.test();
        if breaks {
            cause();
        }
        request.wait().expect("a message is not failed");
        breaks
    } else {
        let mut request = world.irecv(vec![0u8; len], 0, 3).expect("irecv");
        let begun = |rt: &Runtime| {
            let counters = rt.counters();
            counters.get_bytes + counters.map_bytes + counters.attach_bytes + counters.knem_bytes
        };
        let before = begun(rt);
        while begun(rt) == before && !request.test() {}
        let breaks = who == 1 && !request.test();
        if breaks {
            cause();
        }
        let (got, _) = request.wait().expect("a message is not failed");
        check(&got, 5, "broken in the middle");
        breaks
    }
}

trait PairBarrier {
    fn barrier_of_two(&self);
}

impl PairBarrier for onecopy::Comm {
    fn barrier_of_two(&self) {
        let peer = 1 - self.rank();
        self.sendrecv::<u8, u8>(&[], peer, 9, &mut [], peer, 9)
            .expect("meet");
    }
}

/// The traffic of a role.
pub(crate) fn run(rt: &Runtime, words: &[&str], cause: impl Fn()) {
    let has = |word| words.contains(&word);
    if !has("before") {
        exchange(rt, 0);
    }
    if has("middle") {
        break_in_the_middle(rt, &cause, usize::from(!has("sender")));
    } else if has("between") && (has("all") || rt.rank() == 0) {
        cause();
    }
    // All of them have it now.
    rt.world().barrier().expect("barrier");
    exchange(rt, 1);
    if has("large") {
        exchange_large(rt);
    }
    exchange_heap(rt);
    exchange(rt, 2);
}

/// Writes what the test wants to see.
pub(crate) fn report(rt: &Runtime) {
    for peer in (0..rt.size()).filter(|&peer| peer != rt.rank()) {
        for state in rt.layers(peer).expect("layers") {
            match state.refusal {
                None => say(&format!("USES {}", state.layer)),
                Some(refusal) => say(&format!(
                    "LACKS {}: {} | {}",
                    state.layer, refusal.reason, refusal.remedy
                )),
            }
        }
    }
    let counters = rt.counters();
    say(&format!("DEMOTIONS {}", counters.demotions));
    say(&format!("DONE {}", counters.bytes_received));
}

/// A job whose large messages go by cross-memory attach where it is possible.
pub(crate) fn ranks(count: usize, role: &str) -> Ranks {
    Ranks::new(count, role)
        .env("ONECOPY_CMA_MIN", "64K")
        // Where a kernel module is loaded, attached memory would come first.
        .env("ONECOPY_LAYERS", "^xpmem,knem")
}

/// Runs a role on so many ranks; none may fail.
#[track_caller]
pub(crate) fn job(count: usize, role: &str) -> TrafficRun {
    TrafficRun::of(ranks(count, role).run(), count)
}

/// What the ranks reported.
#[derive(Debug)]
pub(crate) struct TrafficRun {
    pub(crate) ran: JobRun,
}

impl TrafficRun {
    #[track_caller]
    pub(crate) fn of(ran: JobRun, count: usize) -> Self {
        let ran = ran.expect_success();
        assert_eq!(ran.reports("DONE ").len(), count, "{ran:#?}");
        Self { ran }
    }

    pub(crate) fn demotions(&self) -> u64 {
        let reports = self.ran.reports("DEMOTIONS ");
        reports
            .iter()
            .map(|n| n.parse::<u64>().expect("a number"))
            .sum()
    }

    /// Fails unless some rank lacks the layer for a reason that contains `reason`, and offers a remedy.
    #[track_caller]
    pub(crate) fn lacks(&self, layer: &str, reason: &str) {
        let reports = self.ran.reports("LACKS ");
        let found = reports.iter().any(|line| {
            let words = line
                .strip_prefix(layer)
                .and_then(|line| line.split_once(" | "));
            words.is_some_and(|(why, remedy)| why.contains(reason) && !remedy.is_empty())
        });
        assert!(
            found,
            "{layer} is not lacked because of {reason}: {:#?}",
            self.ran
        );
    }

    /// Fails unless all use the layer.
    #[track_caller]
    pub(crate) fn uses(&self, layer: &str) {
        let lacking = self.ran.reports(&format!("LACKS {layer}"));
        assert!(lacking.is_empty(), "{lacking:?}");
        assert!(!self.ran.reports(&format!("USES {layer}")).is_empty());
    }
}
