// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments between two ends in one process.

use super::*;
use crate::copy::Kernel;
use crate::layout::{ChunkIndex, HeapOffset};
use crate::ring::slots_for;
use crate::sync::HeavyFence;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::fd::OwnedFd;

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

/// Whichever line of a record is written first, and at whichever place it is written in parts.
#[test]
fn records_of_all_lengths_cross() {
    let own = segment(1);
    let peer =
        PeerSegment::open(own.fd().try_clone_to_owned().unwrap(), 1, 0, &geometry(2)).unwrap();
    let (mut producer, mut consumer) = (peer.producer().unwrap(), own.consumer(0));
    let longest = (geometry(2).ring_slots as usize / 2 - 1) * 64;
    for len in 1..=longest.min(1100) {
        for begin in [0, 8.min(len), len / 2] {
            let sent: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
            let mut claim = producer.claim(slots_for(len)).expect("room");
            claim.write(begin, &sent[begin..]);
            claim.write(0, &sent[..begin]);
            claim.publish(3, len, 42);
            let record = consumer.peek().unwrap().expect("a record");
            let mut got = vec![0; len];
            consumer.read(&record, 0, &mut got);
            assert!(got == sent, "{len} bytes, in parts from {begin} on");
            consumer.advance(record);
            consumer.publish_tail();
        }
    }
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
}

/// Descriptors of every kind that a peer could hand over in place of its segment, and the reason that is given.
fn foreign_descriptors() -> Vec<(&'static str, OwnedFd, &'static str)> {
    use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use nix::sys::stat::Mode;
    let all = geometry(2).total_bytes();
    let sealed = |kind: MFdFlags, size: u64, seals: SealFlag| {
        let fd = memfd_create("x", kind | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        let file = File::from(fd);
        file.set_len(size).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        OwnedFd::from(file)
    };
    let plain = MFdFlags::empty();
    let shrink = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    let opened = |path: &str, flags: OFlag| open(path, flags, Mode::empty()).unwrap();
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    let stream = SockType::Stream;
    let (socket, _) = socketpair(AddressFamily::Unix, stream, None, SockFlag::empty()).unwrap();
    let regular = std::env::temp_dir().join(format!("onecopy-foreign-{}", std::process::id()));
    File::create(&regular).unwrap().set_len(all).unwrap();
    let regular_fd = File::options().read(true).write(true).open(&regular);
    std::fs::remove_file(&regular).unwrap();
    let shared = format!("/dev/shm/onecopy-foreign-{}", std::process::id());
    let in_tmpfs = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&shared);
    let in_tmpfs = in_tmpfs.unwrap();
    in_tmpfs.set_len(all).unwrap();
    std::fs::remove_file(&shared).unwrap();
    let own = sealed(plain, all, shrink);
    use std::os::fd::AsRawFd;
    let again = format!("/proc/self/fd/{}", own.as_raw_fd());
    let huge = MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
    let future = SealFlag::F_SEAL_FUTURE_WRITE | shrink;
    vec![
        ("a pipe", pipe, "no memfd"),
        ("a socket", socket, "no memfd"),
        ("a folder", opened("/", OFlag::O_RDONLY), "no memfd"),
        ("/dev/null", opened("/dev/null", OFlag::O_RDWR), "no memfd"),
        ("/dev/zero", opened("/dev/zero", OFlag::O_RDWR), "no memfd"),
        ("a path only", opened(&again, OFlag::O_PATH), "no memfd"),
        (
            "a regular file",
            regular_fd.unwrap().into(),
            "sealed|no memfd",
        ),
        ("a file of tmpfs", in_tmpfs.into(), "not sealed"),
        (
            "no seals",
            sealed(plain, all, SealFlag::empty()),
            "not sealed",
        ),
        ("too short", sealed(plain, all - 1, shrink), "bytes instead"),
        ("empty", sealed(plain, 0, shrink), "bytes instead"),
        (
            "read only",
            opened(&again, OFlag::O_RDONLY),
            "reading and writing",
        ),
        (
            "write only",
            opened(&again, OFlag::O_WRONLY),
            "reading and writing",
        ),
        (
            "never written",
            sealed(plain, all, SealFlag::F_SEAL_WRITE | shrink),
            "seals",
        ),
        ("written no more", sealed(plain, all, future), "seals"),
        (
            "huge pages",
            sealed(huge, all.next_multiple_of(2 << 20), shrink),
            "huge pages",
        ),
        ("zeros", own, "begin as a segment"),
    ]
}

#[test]
fn each_kind_of_foreign_descriptor_is_refused_with_the_reason() {
    for (name, fd, reason) in foreign_descriptors() {
        let found = PeerSegment::open(fd, 1, 0, &geometry(2)).unwrap_err();
        let text = found.to_string();
        assert!(
            reason.split('|').any(|reason| text.contains(reason)),
            "{name}: {text}"
        );
        assert!(
            matches!(found, SegmentError::Foreign { .. }),
            "{name}: {found:?}"
        );
    }
}

#[test]
fn the_pool_is_mapped_writable_where_that_is_asked_for() {
    let own = segment(0);
    own.reserve_chunks(0, 1).unwrap();
    own.pool()
        .write(ChunkIndex(0), 0, b"bytes", Kernel::Memcpy)
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
        peer.pool()
            .unwrap()
            .read(ChunkIndex(0), 0, &mut out, Kernel::Memcpy)
            .unwrap();
        assert_eq!(&out, b"bytes");
    }
}

#[test]
fn ranges_outside_are_refused() {
    let own = segment(0);
    own.reserve_chunks(0, 2).unwrap();
    assert!(
        own.pool()
            .write(ChunkIndex(0), 8000, &[0; 500], Kernel::Memcpy)
            .is_err()
    );
    assert!(
        own.pool()
            .write(ChunkIndex(u32::MAX), 0, &[0; 500], Kernel::Memcpy)
            .is_err()
    );
    let mut peer =
        PeerSegment::open(own.fd().try_clone_to_owned().unwrap(), 0, 1, &geometry(2)).unwrap();
    let mut out = [0; 64];
    assert!(peer.pool().is_none(), "not mapped yet");
    peer.map_pool(false).unwrap();
    peer.pool()
        .unwrap()
        .read(ChunkIndex(1), 0, &mut out, Kernel::Memcpy)
        .unwrap();
    assert!(
        peer.pool()
            .unwrap()
            .read(ChunkIndex(16), 0, &mut out, Kernel::Memcpy)
            .is_err()
    );
    // It was mapped to be read. A store would be a signal.
    assert!(!peer.returns_chunks());
    assert!(
        peer.pool()
            .unwrap()
            .write(ChunkIndex(1), 0, &out, Kernel::Memcpy)
            .is_err()
    );
    let heap = peer.map_heap().unwrap();
    assert!(
        heap.read(HeapOffset((1 << 20) - 10), &mut out, Kernel::Memcpy)
            .is_err()
    );
    assert!(
        heap.write(HeapOffset(u64::MAX - 3), &out, Kernel::Memcpy)
            .is_err()
    );
}
