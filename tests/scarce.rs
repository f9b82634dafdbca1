// SPDX-License-Identifier: MIT OR Apache-2.0
//! Little of everything: nothing waits for what has come back.

use onecopy::{Knobs, local_with};

/// All chunks went to one peer, which has read them; another peer's message needs one.
#[test]
fn chunks_come_back_from_peers_to_whom_nothing_more_goes() {
    let knobs = Knobs {
        pool_max: 64 << 10,
        pool_per_peer: Some(64 << 10),
        ..Knobs::default()
    };
    local_with(3, &knobs, |rt| {
        let world = rt.world();
        let message = vec![3u8; 8000];
        let mut got = vec![0u8; 8000];
        for _ in 0..10 {
            match world.rank() {
                0 => {
                    for _ in 0..8 {
                        world.send(&message, 1, 0).unwrap();
                    }
                    world.recv(&mut got[..1], 1, 1).unwrap();
                    world.send(&message, 2, 0).unwrap();
                }
                1 => {
                    for _ in 0..8 {
                        world.recv(&mut got, 0, 0).unwrap();
                    }
                    world.send(&message[..1], 0, 1).unwrap();
                }
                _ => assert_eq!(world.recv(&mut got, 0, 0).unwrap().bytes, 8000),
            }
        }
    });
}
