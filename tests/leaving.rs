// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leaving a job: what was sent before is received, and nobody waits for a rank that is gone.

use onecopy::{ANY_SOURCE, Error, local};

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

/// A job that has lost a rank may be in any state. A rank that is in `finalize` takes part in nothing any more, and
/// says so by leaving.
#[test]
fn who_finalizes_in_a_job_that_lost_a_rank_leaves_others_waiting_for_nothing() {
    for call in 0..4 {
        local(4, |rt| {
            let world = rt.world();
            match world.rank() {
                // Gone without a word to anybody.
                3 => {}
                2 => {
                    let mut got = [0u8];
                    let error = match call {
                        0 => world.recv(&mut got, 0, 1).map(drop),
                        1 => world.ssend(&[1u8], 0, 1),
                        2 => world.send(&vec![1u8; 4 << 20], 1, 1),
                        _ => world.probe(1, 1).map(drop),
                    };
                    let error = error.unwrap_err();
                    let left = matches!(error, Error::PeerLeft { rank: 0 | 1 });
                    assert!(left, "{call}: {error}");
                    drop(world);
                    rt.finalize().unwrap();
                }
                _ => {
                    drop(world);
                    rt.finalize().unwrap();
                }
            }
        });
    }
}

#[test]
fn who_is_left_alone_waits_for_nobody() {
    local(3, |rt| {
        let world = rt.world();
        if world.rank() != 1 {
            world.send(&[5u8], 1, 0).unwrap();
            return;
        }
        let mut got = [0u8];
        for _ in 0..2 {
            // What came before the end is received.
            world.recv(&mut got, ANY_SOURCE, 0).unwrap();
        }
        let left = |error: &Error| matches!(error, Error::PeerLeft { rank: 0 | 2 });
        let error = world.recv(&mut got, ANY_SOURCE, 0).unwrap_err();
        assert!(left(&error), "{error}");
        let error = world.probe(ANY_SOURCE, 0).unwrap_err();
        assert!(left(&error), "{error}");
        assert!(world.mprobe(ANY_SOURCE, 1).is_err());
        // As does what only asks.
        assert!(left(&world.iprobe(ANY_SOURCE, 0).unwrap_err()));
        assert!(world.improbe(ANY_SOURCE, 0).is_err());
        // To itself it can still send.
        let receive = world.irecv(vec![0u8; 3], ANY_SOURCE, 4).unwrap();
        world.send(&[1u8, 2, 3], 1, 4).unwrap();
        assert_eq!(receive.wait().unwrap().0, [1, 2, 3]);
    });
}

/// What outlives the runtime ends with an error: nothing comes any more, and nobody is told of anything.
#[test]
fn what_outlives_the_runtime_waits_for_nothing() {
    local(2, |rt| {
        let world = rt.world();
        let peer = 1 - world.rank();
        let mut under_way = world.irecv(vec![3u8; 4], peer, 1).unwrap();
        rt.finalize().unwrap();
        let finalized = |error: Error| assert!(matches!(error, Error::Finalized), "{error}");
        assert!(under_way.test());
        let (result, buffer) = under_way.wait_both();
        finalized(result.unwrap_err());
        assert_eq!(buffer, [3; 4]);
        finalized(world.recv(&mut [0u8], peer, 1).unwrap_err());
        finalized(world.recv(&mut [0u8], ANY_SOURCE, 1).unwrap_err());
        finalized(world.probe(ANY_SOURCE, 1).unwrap_err());
        finalized(world.ssend(&[1u8], peer, 1).unwrap_err());
        finalized(world.send(&vec![1u8; 4 << 20], peer, 1).unwrap_err());
        finalized(world.barrier().unwrap_err());
        finalized(world.bcast(&mut vec![1u8; 1 << 20], 0).unwrap_err());
        // Small ones may be accepted, until there is no room for more of them.
        while world.send(&[1u8; 100], peer, 2).is_ok() {}
    });
}
