// SPDX-License-Identifier: MIT OR Apache-2.0
//! What messages mean, on ranks that are threads of one process.

use onecopy::{ANY_SOURCE, ANY_TAG, local};

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(131)) as u8)
        .collect()
}

const SIZES: [usize; 17] = [
    0,
    1,
    8,
    47,
    48,
    49,
    64,
    256,
    1000,
    1024,
    1025,
    4096,
    8192,
    65536,
    100_000,
    1 << 20,
    5_000_001,
];

#[test]
fn every_size_arrives_in_both_directions() {
    local(2, |rt| {
        let world = rt.world();
        let peer = 1 - world.rank();
        for (round, &size) in SIZES.iter().enumerate() {
            for repeat in 0..20 {
                let mine = pattern(size, round * 2 + world.rank() + repeat);
                let theirs = pattern(size, round * 2 + peer + repeat);
                let mut got = vec![0u8; size];
                if world.rank() == 0 {
                    world.send(&mine, peer, round as i32).unwrap();
                    let status = world.recv(&mut got, peer, round as i32).unwrap();
                    assert_eq!(
                        (status.source, status.tag, status.bytes),
                        (peer, round as i32, size)
                    );
                } else {
                    world.recv(&mut got, peer, round as i32).unwrap();
                    world.send(&mine, peer, round as i32).unwrap();
                }
                assert!(got == theirs, "{size} bytes");
            }
        }
    });
}

#[test]
fn messages_do_not_overtake_one_another() {
    local(2, |rt| {
        let world = rt.world();
        let sizes = [8, 70_000, 0, 1024, 300_000, 3000, 40, 9000, 1 << 20, 16];
        if world.rank() == 0 {
            let requests: Vec<_> = (0..200)
                .map(|i| {
                    world
                        .isend(pattern(sizes[i % sizes.len()], i), 1, 3)
                        .unwrap()
                })
                .collect();
            onecopy::wait_all(requests).unwrap();
        } else {
            for i in 0..200 {
                let mut got = vec![0u8; 1 << 20];
                let status = world.recv(&mut got, ANY_SOURCE, ANY_TAG).unwrap();
                assert_eq!(status.bytes, sizes[i % sizes.len()], "message {i}");
                assert!(
                    got[..status.bytes] == pattern(status.bytes, i),
                    "message {i}"
                );
            }
        }
    });
}

#[test]
fn heap_buffers_travel_by_map() {
    local(2, |rt| {
        let world = rt.world();
        let peer = 1 - world.rank();
        for size in [5000, 65536, 1 << 20, 9_000_000] {
            let mut mine = rt.alloc(size).unwrap();
            let mut theirs = rt.alloc(size).unwrap();
            mine.copy_from_slice(&pattern(size, world.rank()));
            world
                .sendrecv(&mine, peer, 0, &mut theirs, peer, 0)
                .unwrap();
            assert!(theirs[..] == pattern(size, peer));
            let mut plain = vec![0u8; size];
            world.sendrecv(&mine, peer, 0, &mut plain, peer, 0).unwrap();
            assert!(plain == pattern(size, peer));
            theirs.fill(0);
            world
                .sendrecv(&plain, peer, 0, &mut theirs, peer, 0)
                .unwrap();
            assert!(theirs[..] == pattern(size, world.rank()));
        }
        let counters = rt.counters();
        assert!(counters.map_bytes > 0, "{counters:?}");
    });
}
