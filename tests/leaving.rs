// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leaving a job: what was sent before is received, and nobody waits for who is gone.

use onecopy::{Error, local};

#[test]
fn a_rank_that_leaves_early_holds_up_nobody() {
    local(3, |rt| {
        let world = rt.world();
        let large: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        match world.rank() {
            1 => {
                world.send(&[7u8; 10], 0, 1).unwrap();
                world.send(&large, 0, 2).unwrap();
                // Dropped without `finalize`: an early return, say.
            }
            0 => {
                let error = world.recv(&mut [0u8; 10], 1, 9).unwrap_err();
                assert!(matches!(error, Error::PeerLeft { rank: 1 }), "{error}");
                let (mut short, mut long) = ([0u8; 10], vec![0u8; 20_000]);
                world.recv(&mut long, 1, 2).unwrap();
                world.recv(&mut short, 1, 1).unwrap();
                assert!(short == [7; 10] && long == large);
                let error = world.ssend(&[1u8], 1, 3).unwrap_err();
                assert!(matches!(error, Error::PeerLeft { rank: 1 }), "{error}");
                world.send(&[1u8], 2, 4).unwrap();
                drop(world);
                rt.finalize().unwrap();
            }
            _ => {
                world.recv(&mut [0u8], 0, 4).unwrap();
                drop(world);
                rt.finalize().unwrap();
            }
        }
    });
}
