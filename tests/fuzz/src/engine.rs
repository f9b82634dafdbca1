// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flight of an engine against peers that write what the input says into its segment and their
//! own: rings, control lines, pools, anything.

use crate::input::Input;
use crate::stage::{Next, Shared, play};
use onecopy::{ANY_SOURCE, ANY_TAG, Comm, Request, Runtime, Source};

/// Requests at a time.
const MOST: usize = 24;

pub(crate) fn run(data: &[u8]) {
    play(data, 3, act);
}

/// What the victim does when it is its turn.
pub(crate) struct Victim<'r> {
    pub(crate) runtime: &'r Runtime,
    pub(crate) world: Comm,
    sends: Vec<Request<Vec<u8>>>,
    receives: Vec<Request<Vec<u8>>>,
}

impl<'r> Victim<'r> {
    pub(crate) fn new(runtime: &'r Runtime) -> Self {
        Self {
            runtime,
            world: runtime.world(),
            sends: Vec::new(),
            receives: Vec::new(),
        }
    }

    /// Does what `choice` says.
    pub(crate) fn turn(&mut self, script: &Shared, choice: u8) {
        let (rank, tag, len) = {
            let input = &mut script.lock().input;
            let rank = 1 + input.below(self.world.size() as u64 - 1) as usize;
            let tag = i32::from(input.byte() % 8);
            let len = match input.byte() {
                small @ 0..=127 => usize::from(small),
                large => (usize::from(large) - 127) * 2000,
            };
            (rank, tag, len)
        };
        // Whatever fails fails with an error; the peer's state says how.
        match choice % 12 {
            0 | 1 if self.receives.len() < MOST => {
                let source = if tag == 7 {
                    ANY_SOURCE
                } else {
                    Source::Rank(rank)
                };
                let made = if tag == 6 {
                    self.world.irecv(vec![0; len], source, ANY_TAG)
                } else {
                    self.world.irecv(vec![0; len], source, tag)
                };
                self.receives.extend(made);
            }
            2 if self.sends.len() < MOST => {
                self.sends.extend(self.world.isend(vec![1; len], rank, tag));
            }
            3 if self.sends.len() < MOST => {
                self.sends
                    .extend(self.world.issend(vec![2; len], rank, tag));
            }
            4 => drop(self.world.iprobe(rank, ANY_TAG)),
            5 => {
                for request in self.receives.iter_mut().chain(&mut self.sends) {
                    request.test();
                }
            }
            6 if !self.receives.is_empty() => {
                let index = len % self.receives.len();
                self.receives[index].cancel();
            }
            7 if !self.receives.is_empty() => {
                let index = len % self.receives.len();
                drop(self.receives.swap_remove(index));
            }
            8 if !self.sends.is_empty() => {
                let index = len % self.sends.len();
                drop(self.sends.swap_remove(index).wait_both());
            }
            9 => drop(self.world.recv(&mut vec![0u8; len], rank, tag)),
            10 => drop(self.world.send(&vec![3u8; len], rank, tag)),
            11 => {
                if let Ok(mut heap) = self.runtime.alloc(len.max(1)) {
                    heap.fill(5);
                    let _ = self.world.send(&heap, rank, tag);
                }
            }
            _ => {}
        }
    }

    /// Everything that was started comes to an end.
    pub(crate) fn finish(self) {
        for request in self.receives.into_iter().chain(self.sends) {
            drop(request.wait_both());
        }
    }
}

fn act(runtime: &Runtime, script: &Shared) {
    let mut victim = Victim::new(runtime);
    loop {
        let next = script.lock().step();
        match next {
            Next::Over => break,
            Next::Peers => {}
            Next::Victim(choice) => victim.turn(script, choice),
        }
    }
    victim.finish();
}

const PEER: u8 = 4;
const TURN: u8 = 31;

fn record(kind: u8, words: [u64; 5]) -> Vec<u8> {
    let mut step = vec![PEER, 0, kind - 1, 5];
    step.extend(words.iter().flat_map(|&word| Input::spell(word)));
    step
}

/// A receive of the victim's, of `len` code, tag 5.
fn receive(len: u8) -> Vec<u8> {
    vec![TURN, 0, 0, 5, len]
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let test = vec![TURN, 5, 0, 0, 0];
    let chunk = |total: u64, offset: u64, index: u64, piece: u64| {
        [total, offset, index | piece << 32, u64::MAX, 0]
    };
    let joined = |steps: &[Vec<u8>]| [&[0][..], &steps.concat()].concat();
    // An eager message to a posted receive, and to none.
    let mut eager = vec![PEER, 3, 0, 5, 20];
    eager.extend([9; 20]);
    let chunks = [
        receive(140),
        record(3, chunk(10_000, 0, 0, 8000)),
        record(4, chunk(10_000, 8000, 1, 2000)),
        test.clone(),
    ];
    let rts = |place: [u64; 3]| record(5, [50_000, 1, place[0], place[1], place[2]]);
    let heap = [receive(200), rts([0, 64, 0]), test.clone()];
    let scattered = [
        receive(200),
        rts([0, 0, 2 << 32]),
        test.clone(),
        record(7, [50_000, 0, 8000 << 32, 1 << 32, 0]),
        test.clone(),
    ];
    let cooperative = [
        receive(255),
        record(5, [200_000, 1, 0, 64, 3]),
        test.clone(),
    ];
    let list = [receive(200), rts([2 << 32, 0, 1 << 32]), test.clone()];
    // The victim sends, the peer takes it and asks for it in chunks, then ends it.
    let wish = |kind: u8, words: [u8; 5]| [&[PEER, 0, kind - 1, 0][..], &words].concat();
    let sent = [
        vec![TURN, 2, 0, 5, 200],
        vec![PEER, 7],
        wish(6, [233, 1, 0, 100, 0]),
        test.clone(),
        vec![PEER, 7],
        wish(8, [233, 0, 0, 0, 0]),
        test.clone(),
    ];
    let joins = [
        vec![TURN, 3, 0, 5, 255],
        vec![PEER, 7],
        wish(6, [233, 1, 0, 0, 1]),
        test.clone(),
    ];
    let broken = [
        record(3, chunk(10_000, 0, 0, 8000)),
        record(9, [0; 5]),
        receive(20),
        test.clone(),
    ];
    let seeds = [
        joined(&[receive(30), eager.clone(), test.clone()]),
        joined(&[eager, vec![TURN, 4, 0, 0, 0], receive(30), test]),
        joined(&chunks),
        joined(&heap),
        joined(&scattered),
        joined(&cooperative),
        joined(&list),
        joined(&sent),
        joined(&joins),
        joined(&broken),
    ];
    seeds.to_vec()
}
