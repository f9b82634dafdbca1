// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that arrive: by sends, by reads and writes, by datagrams.
//!
//! # Safety
//!
//! The buffer that is registered lives to the end of its case. The program touches it only while no operation with it
//! is under way.
#![allow(unsafe_code, reason = "registers memory of the test's own")]

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::Instant;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use onecopy_verbs::cache::{Bounds, Cache};
use onecopy_verbs::provider::{Access, Kind};
use onecopy_verbs::queue::DATAGRAM_HEAD;
use onecopy_verbs::split::pieces;
use onecopy_verbs::{Done, Local, Operation, QueuePair, QueuePairAddress, Remote, Verbs};

use crate::other::{KEY, Other, SLOT, Sum};
use crate::side::connected;
use crate::{LONG, Side, here, pattern, say, sent, wait};

/// The answer to a message, and the message's own completion.
pub(crate) fn answered(side: &mut Side, sends: u32) -> Vec<u8> {
    let mut answer = None;
    let mut sends = sends;
    while answer.is_none() || sends > 0 {
        for done in wait(side, LONG) {
            if let Err(status) = done.outcome {
                panic!("{status}");
            }
            match done.done {
                Done::Sent => sends -= 1,
                Done::Received => {
                    let slot = done.slot.expect("slot");
                    answer = Some(slot.bytes(0..done.bytes));
                    side.queue
                        .receive_shared(&side.receives, slot, 0)
                        .expect("room");
                }
            }
        }
    }
    answer.expect("an answer")
}

/// Sends a message and compares what comes back.
pub(crate) fn ping(side: &mut Side, pair: &QueuePair<Verbs>, bytes: &[u8]) {
    side.send(pair, bytes, 1).expect("room");
    let answer = answered(side, 1);
    assert!(
        answer == bytes,
        "{} bytes came back as {}",
        bytes.len(),
        answer.len()
    );
}

pub(crate) fn finish(mut other: Other, side: &mut Side, pair: QueuePair<Verbs>) {
    ping(side, &pair, b"Q");
    assert_eq!(other.link.receive(), b"over");
    other.link.send(b"over");
    other.end();
    drop(side.queue.retire(pair));
}

pub(crate) fn ping_pong() {
    let mut other = Other::start("echo");
    let mut side = here(256, SLOT);
    side.timing = crate::faults::patient();
    side.fill(200);
    let pair = other.connect(&mut side);
    for (round, length) in [1, 8, 64, 1000, 1024, 4096, 4097, 16 << 10, SLOT]
        .into_iter()
        .enumerate()
    {
        let started = Instant::now();
        ping(&mut side, &pair, &pattern(round, length));
        say(&format!(
            "rc: {length} bytes there and back in {:?}",
            started.elapsed()
        ));
    }
    // Nothing is a message, too.
    pair.post(
        &mut side.queue,
        Operation::Send { immediate: Some(5) },
        Local::Nothing,
        1,
    )
    .expect("room");
    assert!(answered(&mut side, 1).is_empty());
    let (rounds, started) = (100, Instant::now());
    for round in 0..rounds {
        let bytes = pattern(round, pair.inline().min(64));
        pair.post_inline(&mut side.queue, Operation::Send { immediate: None }, &bytes)
            .expect("room");
        assert!(answered(&mut side, 0) == bytes);
    }
    let each = started.elapsed() / u32::try_from(2 * rounds).unwrap_or(1);
    say(&format!("rc: {each:?} for an inline message of 64 bytes"));
    finish(other, &mut side, pair);
}

/// What older kernels allow in a message: what is longer is cut, also where it need not be.
const LARGEST: u32 = 8 << 20;

pub(crate) fn read_and_write() {
    of_bytes(20 << 20);
}

pub(crate) fn read_and_write_long() {
    of_bytes(64 << 20);
}

fn of_bytes(length: usize) {
    let mut other = Other::start("memory");
    other.link.send(length.to_string().as_bytes());
    let mut side = here(16, 1024);
    side.timing = crate::faults::patient();
    let pair = other.connect(&mut side);
    let shown = other.link.receive();
    let address = u64::from_le_bytes(shown[..8].try_into().expect("eight bytes"));
    let key = u32::from_le_bytes(shown[8..12].try_into().expect("four bytes"));
    let mut buffer = pattern(3, length);
    let mut sum = Sum::default();
    sum.add(&buffer);
    let started = Instant::now();
    go(&mut side, &pair, &mut buffer, |offset| Operation::Write {
        to: Remote {
            address: address + offset,
            key,
        },
        immediate: None,
    });
    let wrote = started.elapsed();
    other.link.send(b"sum");
    assert_eq!(
        other.link.receive(),
        sum.0.to_le_bytes(),
        "what was written is not there"
    );
    buffer.fill(0);
    let started = Instant::now();
    go(&mut side, &pair, &mut buffer, |offset| Operation::Read {
        from: Remote {
            address: address + offset,
            key,
        },
    });
    let read = started.elapsed();
    let mut again = Sum::default();
    again.add(&buffer);
    assert_eq!(again.0, sum.0, "what was read is not what was written");
    let rate = |time: std::time::Duration| length as f64 / time.as_secs_f64() / 1e6;
    say(&format!(
        "memory: wrote {:.1} MB/s, read {:.1} MB/s",
        rate(wrote),
        rate(read)
    ));
    // Beyond what the other side shows.
    let slot = side.slot();
    let from = Remote {
        address: address + (length as u64).next_multiple_of(4096) - 1,
        key,
    };
    pair.post(
        &mut side.queue,
        Operation::Read { from },
        Local::first(slot, 2),
        9,
    )
    .expect("room");
    assert_eq!(
        sent(&mut side, LONG).outcome,
        Err(onecopy_verbs::Status::PEER_ACCESS)
    );
    other.link.send(b"stop");
    other.end();
}

/// Moves a buffer, in pieces that the device allows.
fn go<'a>(
    side: &mut Side,
    pair: &QueuePair<Verbs>,
    buffer: &mut [u8],
    operation: impl Fn(u64) -> Operation<'a, Verbs>,
) {
    let base = NonNull::new(buffer.as_mut_ptr()).expect("a buffer");
    // SAFETY: the buffer is not touched before all operations have completed, and outlives the registration.
    let memory = unsafe { side.domain.register(base, buffer.len(), Access::default()) };
    let memory = memory.expect("registered");
    let mut under_way = 0;
    for (offset, length) in pieces(buffer.len() as u64, pair.largest().min(LARGEST)) {
        let begin = usize::try_from(offset).expect("an offset");
        let local = Local::Program(
            std::sync::Arc::clone(&memory),
            begin..begin + length as usize,
        );
        pair.post(&mut side.queue, operation(offset), local, offset)
            .expect("room");
        under_way += 1;
    }
    while under_way > 0 {
        for done in wait(side, LONG) {
            if let Err(status) = done.outcome {
                panic!("{status}");
            }
            under_way -= 1;
        }
    }
}

pub(crate) fn datagrams() {
    let mut other = Other::start("datagrams");
    let mut side = here(256, 2048);
    side.fill(200);
    let pair = side.prepared(Kind::Datagrams, KEY, None);
    let own = pair.address(&side.chosen, 0);
    let pair = pair.open().expect("open");
    let peer = QueuePairAddress::from_bytes(&other.link.receive().try_into().expect("a pair"))
        .expect("a pair");
    other.link.send(&own.to_bytes());
    let ah = side
        .domain
        .address_handle(&peer.path(&side.chosen))
        .expect("an address handle");
    for round in 0..50_usize {
        let last = round == 49;
        let mut bytes = pattern(round, if last { 1 } else { 1 + 20 * round });
        bytes[0] = if last { b'Q' } else { b'M' };
        let mut slot = side.slot();
        slot.write(0, &bytes);
        let immediate = u32::try_from(round).ok();
        let send = Operation::SendTo {
            ah: &ah,
            pair: peer.number,
            qkey: KEY,
            immediate,
        };
        pair.post(&mut side.queue, send, Local::first(slot, bytes.len()), 1)
            .expect("room");
        let answer = answered(&mut side, 1);
        assert!(
            answer[DATAGRAM_HEAD..] == bytes,
            "round {round}: {} bytes",
            answer.len()
        );
    }
    assert_eq!(other.link.receive(), b"over");
    other.link.send(b"over");
    other.end();
}

/// A buffer is sent, unmapped, mapped again at the same place with other bytes, and sent again. What arrives must be
/// the new bytes, though the old pages were registered.
pub(crate) fn other_memory_at_the_same_place() {
    const LENGTH: usize = 64 << 10;
    let (mut a, mut b) = (here(16, 1024), here(16, LENGTH));
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(8);
    let cache = Cache::new(
        &a.domain,
        Bounds {
            bytes: 1 << 20,
            entries: 8,
        },
    );
    assert_eq!(cache.refused(), None, "the kernel tells of changes");
    let mut place = None;
    for round in 0..20 {
        let fixed = if place.is_some() {
            MapFlags::MAP_FIXED_NOREPLACE
        } else {
            MapFlags::empty()
        };
        let length = NonZeroUsize::new(LENGTH).expect("bytes");
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, where nothing is.
        let base = unsafe { mmap_anonymous(place, length, both, MapFlags::MAP_PRIVATE | fixed) };
        let base: NonNull<u8> = base.expect("memory").cast();
        place = NonZeroUsize::new(base.as_ptr().addr());
        for again in 0..2 {
            let bytes = pattern(round * 2 + again, LENGTH);
            // SAFETY: the mapping is as long, and nobody refers to it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.as_ptr(), LENGTH) };
            // SAFETY: mapped, and not touched before the send has completed.
            let found = unsafe { cache.get(base, LENGTH, Access::default()) }.expect("registered");
            let local = Local::Program(found.memory, found.offset..found.offset + LENGTH);
            to_b.post(&mut a.queue, Operation::Send { immediate: None }, local, 1)
                .expect("room");
            assert_eq!(sent(&mut a, LONG).outcome, Ok(()));
            let done = wait(&mut b, LONG).remove(0);
            let slot = done.slot.expect("slot");
            assert!(
                slot.bytes(0..done.bytes) == bytes,
                "round {round}: bytes of the past"
            );
            b.queue.receive_shared(&b.receives, slot, 0).expect("room");
        }
        // SAFETY: the test's own mapping.
        unsafe { munmap(base.cast(), LENGTH) }.expect("unmapped");
    }
    let stats = cache.stats();
    say(&format!("cache: {stats:?}"));
    assert_eq!((stats.hits, stats.ended), (20, 20));
}
