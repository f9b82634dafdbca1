// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two adapters of the model with a lane between them, for tests.

use super::{Adapter, Lanes};
use crate::model::Fabric;
use crate::port::{self, Chosen};
use std::time::{Duration, Instant};

/// Both sides as they are made of their ports, and the lane of each.
pub(super) fn connected(
    make: impl Fn(Chosen<Fabric>) -> Adapter<Fabric>,
) -> ([Adapter<Fabric>; 2], [u64; 2]) {
    let fabric = Fabric::default();
    let mut sides = ["m0", "m1"].map(|name| {
        let chosen = port::choose(&fabric, Some(name)).expect("a device");
        make(chosen)
    });
    let made = sides
        .each_mut()
        .map(|side| side.make_lane(0).expect("a lane"));
    let lanes = made.map(|(lane, _)| lane);
    for (index, side) in sides.iter_mut().enumerate() {
        side.start_connecting(lanes[index], &made[1 - index].1);
    }
    let end = Instant::now() + Duration::from_secs(20);
    while !(0..2).all(|index| sides[index].is_connected(lanes[index])) {
        assert!(Instant::now() < end, "connected");
        for side in &mut sides {
            side.poll();
        }
    }
    (sides, lanes)
}
