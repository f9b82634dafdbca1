// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments between two ends in one process.

use super::*;
use crate::copy::Kernel;
use crate::layout::{ChunkIndex, HeapOffset};
use crate::ring::slots_for;
use crate::sync::HeavyFence;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;

fn geometry(ranks: u32) -> Geometry {
    Geometry {
        ranks,
        ring_slots: 128,
        chunk_bytes: 8192,
        chunks: 16,
        heap_bytes: 1 << 20,
        coll_channels: 1,
    }
}

fn segment(rank: u32) -> OwnSegment {
    OwnSegment::create(rank, geometry(2), HeavyFence::without_membarrier(), 77).unwrap()
}

#[test]
fn a_record_crosses() {
    let own = segment(1);
    let peer =
        PeerSegment::open(own.fd().try_clone_to_owned().unwrap(), 1, 0, &geometry(2)).unwrap();
    let mut producer = peer.producer().unwrap();
    let mut claim = producer.claim(slots_for(100)).unwrap();
    claim.write(0, &[7; 100]);
    claim.publish(3, 100, 42);
    assert!(producer.must_notify(true));
    peer.set_active();
    assert_eq!(own.take_active(0), 1);
    let mut consumer = own.consumer(0);
    let record = consumer.peek().unwrap().unwrap();
    let mut out = [0; 100];
    consumer.read(&record, 0, &mut out);
    assert_eq!(
        (record.kind, record.len, record.meta, out),
        (3, 100, 42, [7; 100])
    );
    consumer.advance(record);
    assert_eq!(consumer.peek().unwrap(), None);
}

#[test]
fn a_segment_cannot_be_resized_by_anyone() {
    let own = segment(1);
    let file = File::from(own.fd().try_clone_to_owned().unwrap());
    assert!(file.set_len(10).is_err());
    assert!(file.set_len(1 << 40).is_err());
}

#[test]
fn foreign_descriptors_are_refused_with_the_reason() {
    let own = segment(1);
    let fd = || own.fd().try_clone_to_owned().unwrap();
    let wrong_rank = PeerSegment::open(fd(), 0, 1, &geometry(2))
        .unwrap_err()
        .to_string();
    assert!(wrong_rank.contains("made for rank 1"), "{wrong_rank}");
    let other = Geometry {
        chunk_bytes: 4096,
        ..geometry(2)
    };
    assert!(PeerSegment::open(fd(), 1, 0, &other).is_err());
    let plain = File::open("/dev/zero").unwrap();
    assert!(
        PeerSegment::open(plain.into(), 1, 0, &geometry(2))
            .unwrap_err()
            .to_string()
            .contains("memfd")
    );
    let unsealed = memfd_create("x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    assert!(
        PeerSegment::open(unsealed, 1, 0, &geometry(2))
            .unwrap_err()
            .to_string()
            .contains("sealed")
    );
}

#[test]
fn the_pool_is_mapped_writable_where_that_is_asked_for() {
    let own = segment(0);
    own.reserve_chunks(0, 1).unwrap();
    own.write_chunk(ChunkIndex(0), 0, b"bytes", Kernel::Memcpy)
        .unwrap();
    for writable in [false, true] {
        let fd = own.fd().try_clone_to_owned().unwrap();
        let mut peer = PeerSegment::open(fd, 0, 1, &geometry(2)).unwrap();
        peer.map_pool(writable).unwrap();
        let base = peer.pool_address().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps
            .lines()
            .find(|line| line.starts_with(&format!("{base:x}-")));
        let found = line.and_then(|line| line.split(' ').nth(1));
        assert_eq!(found, Some(if writable { "rw-s" } else { "r--s" }));
        let mut out = [0; 5];
        peer.read_chunk(ChunkIndex(0), 0, &mut out, Kernel::Memcpy)
            .unwrap();
        assert_eq!(&out, b"bytes");
    }
}

#[test]
fn ranges_outside_are_refused() {
    let own = segment(0);
    own.reserve_chunks(0, 2).unwrap();
    assert!(
        own.write_chunk(ChunkIndex(0), 8000, &[0; 500], Kernel::Memcpy)
            .is_err()
    );
    assert!(
        own.write_chunk(ChunkIndex(u32::MAX), 0, &[0; 500], Kernel::Memcpy)
            .is_err()
    );
    let mut peer =
        PeerSegment::open(own.fd().try_clone_to_owned().unwrap(), 0, 1, &geometry(2)).unwrap();
    let mut out = [0; 64];
    assert!(
        peer.read_chunk(ChunkIndex(0), 0, &mut out, Kernel::Memcpy)
            .is_err(),
        "not mapped yet"
    );
    peer.map_pool(false).unwrap();
    peer.read_chunk(ChunkIndex(1), 0, &mut out, Kernel::Memcpy)
        .unwrap();
    assert!(
        peer.read_chunk(ChunkIndex(16), 0, &mut out, Kernel::Memcpy)
            .is_err()
    );
    peer.map_heap().unwrap();
    assert!(
        peer.read_heap(HeapOffset((1 << 20) - 10), &mut out, Kernel::Memcpy)
            .is_err()
    );
    assert!(
        peer.write_heap(HeapOffset(u64::MAX - 3), &out, Kernel::Memcpy)
            .is_err()
    );
}
