// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate: passes exclude one another, and each sees what the last one wrote.

use super::model;
use super::watched::Watched;
use loom::sync::Arc;
use loom::thread;
use onecopy_shm::gate::{Gate, Guarded, Threads};

/// What stands behind the gate: a count, and one more that is made when the gate is given back.
struct Value {
    count: Watched<u32>,
    left: Watched<u32>,
}

impl Value {
    fn new() -> Self {
        Self {
            count: Watched::new(0),
            left: Watched::new(0),
        }
    }
}

impl Guarded for Value {
    fn leave(&mut self) {
        self.left.change(|left| *left += 1);
    }
}

fn counted(preemptions: usize, others: usize, way: fn(&Gate<Value>)) {
    model(preemptions, move || {
        let gate = Arc::new(Gate::new(Threads::Multiple, Value::new()));
        let threads: Vec<_> = (0..others)
            .map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || way(&gate))
            })
            .collect();
        way(&gate);
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        let pass = gate.enter();
        let all = 2 * (others as u32 + 1);
        assert_eq!(pass.count.look(|&count| count), all);
        // One that found nobody waiting was not given back in between.
        assert!((others as u32 + 1..=all).contains(&pass.left.look(|&left| left)));
    });
}

#[test]
fn passes_exclude_one_another() {
    counted(3, 1, |gate| {
        for _ in 0..2 {
            gate.enter().count.change(|count| *count += 1);
        }
    });
}

/// A thread that gives way enters again, after those that waited, and sees what they wrote.
#[test]
fn who_gives_way_comes_back() {
    counted(3, 1, |gate| {
        let pass = gate.enter();
        pass.count.change(|count| *count += 1);
        let pass = gate.give_way(pass);
        pass.count.change(|count| *count += 1);
    });
}
