// SPDX-License-Identifier: MIT OR Apache-2.0
//! A member's end of a channel: lines that are published, moved on and used again, and a
//! communicator that is given up.

use super::model;
use super::watched::Watched;
use loom::sync::Arc;
use loom::thread;
use onecopy_shm::coll::line::reached;
use onecopy_shm::coll::{Channel, Content, EndMemory, Info, SpareOf, kind};
use onecopy_shm::layout::COLL_DEPTH;
use onecopy_shm::sync::{AtomicU64, Ordering, spin_hint};

const TAG: u64 = 9;
/// The collective that uses the line of collective 1 again.
const AGAIN: u32 = 1 + COLL_DEPTH as u32;

/// An end that is open for collectives from 1 on.
pub(crate) fn end() -> Channel {
    let end = Channel::new(EndMemory::default(), 0);
    end.open(TAG, 0);
    end
}

pub(crate) fn wait(ready: impl Fn() -> bool) {
    while !ready() {
        spin_hint();
    }
}

fn inline(done: u32) -> Info {
    Info {
        done,
        kind: kind::INLINE,
        len: 8,
    }
}

fn value(seq: u32, writer: u64) -> [u8; 8] {
    (u64::from(seq) * 10 + writer).to_le_bytes()
}

/// Waits for a contribution to `seq`, and reads it as an exchange does. Gives what stands beside
/// it.
fn read(end: &Channel, seq: u32, writer: u64) -> u32 {
    wait(|| end.phase(seq) > 0);
    let checked = end.read_line(seq).expect("a good line");
    assert_eq!(checked.content, Content::Inline(8));
    let bytes = end.bytes(seq, &checked, 0, 8).expect("they are there");
    assert_eq!(bytes.bytes(), value(seq, writer));
    checked.done
}

/// A payload in the line, and later one in the slot, which a second phase of the line publishes.
#[test]
fn what_is_published_is_seen_whole() {
    model(3, || {
        let owner = end();
        let reader = {
            let owner = owner.clone();
            thread::spawn(move || {
                assert_eq!(read(&owner, 1, 0), 0);
                wait(|| owner.phase(1) == 2);
                let slot = owner.in_slot(1, 8, 8).expect("within the slot");
                assert_eq!(slot.bytes(), value(1, 5));
            })
        };
        owner.publish(1, 1, inline(0), &value(1, 0));
        owner.write_slot(1, 8, &value(1, 5));
        owner.advance(1, 2);
        reader.join().expect("no panic");
    });
}

/// A communicator opens an end. A member that finds its tag there finds nothing of the one before.
#[test]
fn a_new_communicator_finds_a_new_end() {
    model(3, || {
        let owner = end();
        owner.publish(1, 1, inline(0), &value(1, 0));
        owner.set_done(1);
        owner.fail(3);
        let peer = {
            let owner = owner.clone();
            thread::spawn(move || {
                wait(|| owner.tag() == TAG + 1);
                // `failure` last: it has a fence of its own.
                assert_eq!((owner.done(), owner.phase(1), owner.failure()), (0, 0, 0));
            })
        };
        owner.open(TAG + 1, 0);
        peer.join().expect("no panic");
    });
}

/// A line is used again once the reader has set its `done`: the reader's last look at it comes
/// before.
#[test]
fn a_line_is_used_again_after_done() {
    model(3, || {
        let (owner, reader) = (end(), end());
        let other = {
            let (owner, reader) = (owner.clone(), reader.clone());
            thread::spawn(move || {
                for seq in [1, AGAIN] {
                    wait(|| owner.phase(seq) > 0);
                    let short = owner.read_short(seq);
                    let bytes = owner.short_bytes(seq, short, 8).expect("eight bytes");
                    assert_eq!(bytes.bytes(), value(seq, 0));
                    assert_eq!(
                        owner.in_slot(seq, 0, 8).expect("there").bytes(),
                        [seq as u8; 8]
                    );
                    reader.set_done(seq);
                }
            })
        };
        for seq in [1, AGAIN] {
            let before = seq.saturating_sub(COLL_DEPTH as u32);
            wait(|| reached(reader.done(), before));
            owner.write_slot(seq, 0, &[seq as u8; 8]);
            owner.publish(seq, 1, inline(0), &value(seq, 0));
        }
        other.join().expect("no panic");
    });
}

/// As above, but what a member has read stands in its own lines alone, where the other finds it.
#[test]
fn a_line_is_used_again_after_a_line_said_done() {
    model(2, || {
        let ends = [end(), end()];
        let play = |me: usize, ends: [Channel; 2]| {
            let (own, other) = (&ends[me], &ends[1 - me]);
            let mut read_before = 0;
            for seq in [1, 2, AGAIN] {
                own.publish(seq, 1, inline(read_before), &value(seq, me as u64));
                let done = read(other, seq, 1 - me as u64);
                assert_eq!(done, read_before);
                // The next line but one is that of the first collective: here the other has said
                // that it has read that.
                read_before = seq;
            }
        };
        let second = {
            let ends = ends.clone();
            thread::spawn(move || play(1, ends))
        };
        play(0, ends);
        second.join().expect("no panic");
    });
}

/// Two members hand the spare slot of one to each other: each writes there only once it has read what stood there.
#[test]
fn a_spare_slot_goes_from_hand_to_hand() {
    model(2, || {
        let ends = [end(), end()];
        let spare = |kind| Info {
            done: 0,
            kind,
            len: 8,
        };
        let bytes = 8u64.to_le_bytes();
        let read = |from: &Channel, seq: u32, of: SpareOf, expected: u8| {
            wait(|| from.phase(seq) > 0);
            let short = from.read_short(seq);
            assert!(
                from.short_bytes(seq, short, 8).is_none(),
                "it is in no slot of a line"
            );
            assert_eq!(from.short_spare(seq, short, 8), Some(of));
            let view = ends[0].in_spare(0, 8).expect("within the slot");
            assert_eq!(view.bytes(), [expected; 8]);
        };
        let second = {
            let ends = ends.clone();
            thread::spawn(move || {
                let [first, own] = &ends;
                wait(|| first.phase(1) > 0);
                let line = first.read_line(1).expect("a good line");
                assert_eq!(line.content, Content::Spare(SpareOf::Giver, 8));
                let view = first.in_spare(0, 8).expect("within the slot");
                assert_eq!(view.bytes(), [1; 8]);
                first.write_spare(0, &[2; 8]);
                own.publish(2, 1, spare(kind::READERS_SPARE), &bytes);
            })
        };
        ends[0].write_spare(0, &[1; 8]);
        ends[0].publish(1, 1, spare(kind::SPARE), &bytes);
        read(&ends[1], 2, SpareOf::Reader, 2);
        ends[0].write_spare(0, &[3; 8]);
        second.join().expect("no panic");
    });
}

/// A member's end goes to another communicator while the other one of two still holds its spare slot. Either that one
/// sees so and does not write there, or it is waited for.
#[test]
fn nothing_is_written_to_the_spare_slot_of_a_closed_end() {
    model(3, || {
        let (owner, writer) = (end(), end());
        let slot = Arc::new(Watched::new(0));
        let other = {
            let (owner, writer, slot) = (owner.clone(), writer.clone(), Arc::clone(&slot));
            thread::spawn(move || {
                writer.begin_writes();
                if owner.tag() == TAG {
                    slot.change(|bytes| *bytes = 5);
                }
                writer.end_writes();
            })
        };
        owner.close();
        wait(|| !writer.is_writing());
        slot.change(|bytes| *bytes = 7);
        other.join().expect("no panic");
        assert_eq!(slot.look(|&bytes| bytes), 7);
    });
}

/// A member gives up and uses its buffer for something else: a reader that saw the other contents
/// knows that they are no contribution.
#[test]
fn who_gave_up_is_found_out() {
    model(3, || {
        // The contents are an atomic here: that a reader sees torn bytes is allowed, that it
        // believes them is not.
        let (owner, contents) = (end(), Arc::new(AtomicU64::new(1)));
        let reader = {
            let (owner, contents) = (owner.clone(), Arc::clone(&contents));
            thread::spawn(move || {
                wait(|| owner.phase(1) > 0);
                let seen = contents.load(Ordering::Relaxed);
                if owner.failure() == 0 {
                    assert_eq!(seen, 1);
                }
            })
        };
        owner.publish(1, 1, inline(0), &value(1, 0));
        owner.fail(3);
        contents.store(2, Ordering::Relaxed);
        reader.join().expect("no panic");
    });
}

/// A member gives up while another writes into its buffer, again and again: once it has waited for
/// the writer, nothing is written there.
#[test]
fn no_write_comes_after_a_member_gave_up() {
    model(3, || {
        let (giver, writer) = (end(), end());
        let buffer = Arc::new(Watched::new(0));
        let other = {
            let (giver, writer, buffer) = (giver.clone(), writer.clone(), Arc::clone(&buffer));
            thread::spawn(move || {
                for _ in 0..2 {
                    writer.begin_writes();
                    let lost = giver.failure() != 0;
                    if !lost {
                        buffer.change(|bytes| *bytes = 5);
                    }
                    writer.end_writes();
                }
            })
        };
        giver.fail(3);
        wait(|| !writer.is_writing());
        buffer.change(|bytes| *bytes = 7);
        other.join().expect("no panic");
        assert_eq!(buffer.look(|&bytes| bytes), 7);
    });
}
