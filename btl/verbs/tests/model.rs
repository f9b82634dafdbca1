// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners over the model: what arrives, what comes back, and what becomes of both when something fails.

#[path = "common/side.rs"]
mod side;

use std::time::Duration;

use onecopy_verbs::model::{Fabric, Impairment, usual_limits};
use onecopy_verbs::provider::{Access, Depths, Kind};
use onecopy_verbs::queue::DATAGRAM_HEAD;
use onecopy_verbs::{
    Device, Done, Event, Local, Operation, Queue, QueuePair, Ready, Status, Timing,
};
use side::{Side, both, connected, datagrams};

const SEND: Operation<'static, Fabric> = Operation::Send { immediate: None };

fn sides() -> (Fabric, Side<Fabric>, Side<Fabric>) {
    let fabric = Fabric::default();
    let (a, b) = (Side::new(&fabric, "m0"), Side::new(&fabric, "m1"));
    (fabric, a, b)
}

fn silence() -> Duration {
    Timing::default().silence() + Duration::from_millis(1)
}

#[test]
fn a_message_takes_a_shared_receive_and_both_slots_come_back() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(2);
    let before = a.region.taken();
    a.send(&to_b, b"hello", 7).expect("room");
    let sent = a.poll();
    assert_eq!(
        (sent.len(), sent[0].cookie, sent[0].outcome),
        (1, Some(7), Ok(()))
    );
    assert!(sent[0].slot.is_some());
    drop(sent);
    assert_eq!(a.region.taken(), before);
    let received = b.poll();
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].done, received[0].bytes), (Done::Received, 5));
    let slot = received[0].slot.as_ref().expect("its slot");
    assert_eq!(slot.bytes(0..5), b"hello");
    assert_eq!(b.queue.under_way(), 1);
}

#[test]
fn reads_and_writes_reach_what_the_key_shows_and_no_more() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    let access = Access {
        remote_read: true,
        remote_write: true,
    };
    let open = b.domain.region(1, 256, access).expect("memory");
    let mut target = open.take().expect("slot");
    target.write(0, b"0123456789");
    let mut slot = a.slot();
    slot.write(0, b"written");
    let write = Operation::Write {
        to: target.remote(3),
        immediate: None,
    };
    to_b.post(&mut a.queue, write, Local::first(slot, 7), 1)
        .expect("room");
    let slot = a.one().slot.expect("slot");
    assert_eq!(target.bytes(0..10), b"012written");
    let read = Operation::Read {
        from: target.remote(1),
    };
    to_b.post(&mut a.queue, read, Local::Slot(slot, 8..12), 2)
        .expect("room");
    let slot = a.one().slot.expect("slot");
    assert_eq!(slot.bytes(8..12), b"12wr");
    // One byte beyond what is registered. Regions are whole pages.
    let end = onecopy_verbs::Remote {
        address: target.remote(0).address + 4096 - 3,
        ..target.remote(0)
    };
    to_b.post(
        &mut a.queue,
        Operation::Read { from: end },
        Local::first(slot, 4),
        3,
    )
    .expect("room");
    let failed = a.one();
    assert_eq!(failed.outcome, Err(Status::PEER_ACCESS));
    assert!(failed.slot.is_some());
}

#[test]
fn a_write_with_immediate_data_notifies_the_peer() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(1);
    let open = b
        .domain
        .region(
            1,
            64,
            Access {
                remote_read: false,
                remote_write: true,
            },
        )
        .expect("memory");
    let target = open.take().expect("slot");
    let mut slot = a.slot();
    slot.write(0, b"abc");
    let write = Operation::Write {
        to: target.remote(0),
        immediate: Some(0xdead_beef),
    };
    to_b.post(&mut a.queue, write, Local::first(slot, 3), 1)
        .expect("room");
    let completion = b.one();
    assert_eq!(
        (completion.immediate, completion.bytes, completion.done),
        (Some(0xdead_beef), 3, Done::Received)
    );
    assert_eq!(target.bytes(0..3), b"abc");
}

#[test]
fn a_peer_without_receives_is_waited_for_and_then_given_up() {
    let (fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    a.send(&to_b, b"late", 1).expect("room");
    assert!(a.poll().is_empty());
    b.fill(1);
    assert_eq!(a.one().outcome, Ok(()));
    assert_eq!(b.one().bytes, 4);
    a.send(&to_b, b"never", 2).expect("room");
    a.send(&to_b, b"behind it", 3).expect("room");
    fabric.advance(Duration::from_secs(1));
    let failed: Vec<_> = a
        .poll()
        .into_iter()
        .map(|done| (done.cookie, done.outcome))
        .collect();
    assert_eq!(
        failed,
        [
            (Some(2), Err(Status::PEER_FULL)),
            (Some(3), Err(Status::FLUSHED))
        ]
    );
}

#[test]
fn a_dead_peer_is_reported_after_the_silence_and_not_before() {
    let (fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(4);
    fabric.kill("m1");
    a.send(&to_b, b"hello?", 1).expect("room");
    fabric.advance(Timing::default().silence() / 2);
    assert!(a.poll().is_empty());
    fabric.advance(silence());
    let failed = a.one();
    assert_eq!(failed.outcome, Err(Status::PEER_SILENT));
    // What is posted to a failed pair is flushed, with its slot.
    a.send(&to_b, b"more", 2).expect("room");
    let flushed = a.one();
    assert_eq!(
        (flushed.outcome, flushed.slot.is_some()),
        (Err(Status::FLUSHED), true)
    );
    assert_eq!(a.queue.retire(to_b).len(), 0);
}

#[test]
fn data_can_arrive_although_its_sender_fails() {
    let (fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(1);
    fabric.lose_answers(to_b.number());
    a.send(&to_b, b"last words", 1).expect("room");
    assert_eq!(b.one().bytes, 10);
    assert!(a.poll().is_empty());
    fabric.advance(silence());
    assert_eq!(a.one().outcome, Err(Status::PEER_SILENT));
}

#[test]
fn a_link_that_goes_down_is_an_event_and_an_error() {
    let (fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(1);
    fabric.set_link("m0", false);
    assert_eq!(
        a.device.next_event().expect("event"),
        Some(Event::PortDown(1))
    );
    assert_eq!(a.device.next_event().expect("no event"), None);
    assert!(!a.device.port(1).expect("port").active);
    a.send(&to_b, b"x", 1).expect("room");
    assert_eq!(a.one().outcome, Err(Status::OWN_PAIR));
    fabric.set_link("m0", true);
    assert_eq!(
        a.device.next_event().expect("event"),
        Some(Event::PortUp(1))
    );
    // A new pair works.
    let (to_b, _to_a) = connected(&mut a, &mut b);
    a.send(&to_b, b"x", 2).expect("room");
    assert_eq!(a.one().outcome, Ok(()));
}

#[test]
fn memory_of_another_domain_is_refused_by_the_device() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(1);
    let other = a
        .device
        .domain()
        .expect("domain")
        .region(1, 64, Access::default())
        .expect("memory");
    let slot = other.take().expect("slot");
    to_b.post(&mut a.queue, SEND, Local::first(slot, 1), 1)
        .expect("room");
    assert_eq!(a.one().outcome, Err(Status::OWN_MEMORY));
    assert_eq!(other.taken(), 0);
}

#[test]
fn faults_come_where_a_test_wants_them() {
    for status in [Status::OWN_MEMORY, Status::PEER_FAILED, Status::GENERAL] {
        let (fabric, mut a, mut b) = sides();
        let (to_b, _to_a) = connected(&mut a, &mut b);
        b.fill(1);
        fabric.fail_next(to_b.number(), status);
        a.send(&to_b, b"x", 1).expect("room");
        assert_eq!(a.one().outcome, Err(status));
        assert!(b.poll().is_empty());
    }
}

#[test]
fn a_message_longer_than_a_receive_fails_both_sides() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    let small = b.domain.region(1, 64, Access::default()).expect("memory");
    b.queue
        .receive_shared(&b.receives, small.take().expect("slot"), 0)
        .expect("room");
    a.send(&to_b, &[1; 65], 1).expect("room");
    assert_eq!(a.one().outcome, Err(Status::INVALID_REQUEST));
    assert_eq!(b.one().outcome, Err(Status::TOO_LONG));
}

#[test]
fn few_bytes_go_inline_and_room_comes_back_in_a_while() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(32);
    let room = to_b.room(&mut a.queue);
    let mut posted = 0;
    for round in 0..200_u32 {
        while to_b
            .post_inline(&mut a.queue, SEND, &round.to_le_bytes())
            .is_err()
        {
            assert!(
                a.poll().is_empty(),
                "inline sends do not complete one by one"
            );
        }
        posted += 1;
        for done in b.poll() {
            let slot = done.slot.expect("slot");
            b.queue.receive_shared(&b.receives, slot, 0).expect("room");
        }
    }
    a.poll();
    assert_eq!(posted, 200);
    assert!(to_b.room(&mut a.queue) > room / 2 - 1);
    let too_many = vec![0; to_b.inline() + 1];
    let refused = to_b
        .post_inline(&mut a.queue, SEND, &too_many)
        .expect_err("too many bytes");
    assert!(!refused.is_full(), "{}", refused.error);
}

#[test]
fn a_full_pair_says_so_and_gives_the_memory_back() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    let room = to_b.room(&mut a.queue);
    for cookie in 0..u64::from(room) {
        a.send(&to_b, b"x", cookie).expect("room");
    }
    let taken = a.region.taken();
    let slot = a.slot();
    let refused = to_b
        .post(&mut a.queue, SEND, Local::first(slot, 1), 99)
        .expect_err("full");
    assert!(refused.is_full(), "{}", refused.error);
    assert!(matches!(refused.local, Local::Slot(..)));
    drop(refused);
    assert_eq!(a.region.taken(), taken);
}

#[test]
fn retiring_gives_slots_back_and_late_completions_find_nothing() {
    let (fabric, mut a, mut b) = sides();
    let (to_b, to_a) = connected(&mut a, &mut b);
    b.fill(3);
    a.send(&to_b, b"done, but not polled", 1).expect("room");
    fabric.kill("m1");
    a.send(&to_b, b"waits", 2).expect("room");
    let slots = a.queue.retire(to_b);
    assert_eq!(slots.len(), 2);
    assert_eq!(a.queue.under_way(), 0);
    assert!(a.poll().is_empty());
    assert_eq!(a.queue.late(), 1);
    // Shared receives end when their pairs have.
    drop(b.queue.retire(to_a));
    let Side {
        mut queue,
        receives,
        region,
        ..
    } = b;
    // One has completed, and nobody polled: its completion will find nothing.
    assert_eq!(queue.retire_receives(receives).len(), 3);
    assert_eq!(region.taken(), 0);
    assert_eq!(fabric.pairs(), 0);
}

#[test]
fn receives_that_a_pair_still_uses_are_never_given_back() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(3);
    let Side {
        mut queue,
        receives,
        region,
        ..
    } = b;
    // The pair is still there: its peer may still send.
    assert_eq!(queue.retire_receives(receives).len(), 0);
    assert_eq!(region.taken(), 3);
    a.send(&to_b, b"into lost memory", 1).expect("room");
    assert_eq!(a.one().outcome, Ok(()));
    drop(queue);
    assert_eq!(region.taken(), 3);
}

#[test]
fn a_queue_that_goes_first_keeps_what_its_pairs_may_touch() {
    let (fabric, mut a, mut b) = sides();
    let (to_b, to_a) = connected(&mut a, &mut b);
    b.fill(2);
    fabric.set_link("m1", false);
    a.send(&to_b, b"waits", 1).expect("room");
    let Side { queue, region, .. } = a;
    drop(queue);
    assert_eq!(region.taken(), 1, "the pair exists");
    drop(to_b);
    // Where all went together, all came back.
    let Side {
        queue,
        region,
        receives,
        ..
    } = b;
    drop((to_a, receives));
    drop(queue);
    assert_eq!(region.taken(), 0);
}

#[test]
fn datagrams_are_lost_doubled_and_reordered_in_the_same_way_each_time() {
    let run = |seed| {
        let (fabric, mut a, mut b) = sides();
        let (from, to) = datagrams(&mut a, &mut b, 0x1234);
        b.fill(200);
        fabric.impair(
            Impairment {
                loss: 20,
                duplicate: 20,
                reorder: 20,
            },
            seed,
        );
        let ah = a.address_handle(&b);
        for cookie in 0..100_u64 {
            let mut slot = a.slot();
            slot.write(0, &cookie.to_le_bytes());
            let send = Operation::SendTo {
                ah: &ah,
                pair: to.number(),
                qkey: 0x1234,
                immediate: None,
            };
            from.post(&mut a.queue, send, Local::first(slot, 8), cookie)
                .expect("room");
            // The sender never learns.
            assert_eq!(a.one().outcome, Ok(()));
        }
        fabric.advance(Duration::ZERO);
        let mut order = Vec::new();
        loop {
            let done = b.poll();
            if done.is_empty() {
                return order;
            }
            for done in done {
                assert_eq!(
                    (done.bytes, done.source),
                    (DATAGRAM_HEAD + 8, from.number())
                );
                let bytes = done
                    .slot
                    .expect("slot")
                    .bytes(DATAGRAM_HEAD..DATAGRAM_HEAD + 8);
                order.push(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
            }
        }
    };
    let order = run(1);
    assert_eq!(order, run(1));
    assert_ne!(order, run(2));
    let unique: std::collections::BTreeSet<_> = order.iter().collect();
    assert!(unique.len() < 95, "some are lost: {}", unique.len());
    assert!(order.len() > unique.len(), "some are doubled");
    assert!(!order.is_sorted(), "some are reordered");
}

#[test]
fn a_datagram_with_another_qkey_or_without_a_receive_is_dropped() {
    let (fabric, mut a, mut b) = sides();
    let (from, to) = datagrams(&mut a, &mut b, 5);
    let ah = a.address_handle(&b);
    for (qkey, filled) in [(6, 1), (5, 0)] {
        let slot = a.slot();
        if filled == 0 {
            // The one that was posted is taken by a good one first.
            let good = Operation::SendTo {
                ah: &ah,
                pair: to.number(),
                qkey: 5,
                immediate: Some(9),
            };
            from.post_inline(&mut a.queue, good, b"good").expect("room");
            assert_eq!(b.one().immediate, Some(9));
        } else {
            b.fill(1);
        }
        let send = Operation::SendTo {
            ah: &ah,
            pair: to.number(),
            qkey,
            immediate: None,
        };
        from.post(&mut a.queue, send, Local::first(slot, 1), 0)
            .expect("room");
        assert!(b.poll().is_empty());
    }
    assert_eq!(fabric.dropped(), 2);
    fabric.kill("m1");
    let text = a
        .domain
        .address_handle(&b.path_from(&a))
        .expect_err("nobody answers")
        .to_string();
    assert!(text.contains("does not answer"), "{text}");
}

#[test]
fn ranks_of_a_node_share_an_extended_connection() {
    let fabric = Fabric::default();
    let mut a = Side::new(&fabric, "m0");
    // Two ranks of the other node, with one file for their domain.
    let file = std::env::temp_dir().join(format!("verbs-model-{}", std::process::id()));
    std::fs::write(&file, "").expect("file");
    let opened = std::fs::File::open(&file).expect("file");
    let (mut b, mut c) = (Side::new(&fabric, "m1"), Side::new(&fabric, "m1"));
    let mut numbers = Vec::new();
    let mut kept = Vec::new();
    let mut shared = None;
    for side in [&mut b, &mut c] {
        let domain = side
            .device
            .shared(Some(std::os::fd::AsFd::as_fd(&opened)))
            .expect("domain");
        let receives = side
            .queue
            .receives(&side.domain, 4, Some(&domain))
            .expect("receives");
        side.queue
            .receive_shared(&receives, side.region.take().expect("slot"), 0)
            .expect("room");
        numbers.push(receives.number().expect("number"));
        kept.push(receives);
        shared = Some(domain);
    }
    std::fs::remove_file(&file).expect("file");
    let (to_node, from_node) = side::extended(&mut a, &mut b, shared.as_ref());
    for (receives, text) in numbers.iter().zip([b"for b", b"for c"]) {
        let mut slot = a.slot();
        slot.write(0, text);
        let send = Operation::SendShared {
            receives: *receives,
            immediate: None,
        };
        to_node
            .post(&mut a.queue, send, Local::first(slot, 5), 0)
            .expect("room");
        assert_eq!(a.one().outcome, Ok(()));
    }
    for (side, text) in [(&mut b, b"for b"), (&mut c, b"for c")] {
        let done = side.one();
        assert_eq!(done.pair, from_node.number());
        assert_eq!(done.slot.expect("slot").bytes(0..5), text);
    }
}

#[test]
fn a_device_without_extended_connections_says_so() {
    let fabric = Fabric::new(&[]);
    fabric.add(
        "plain",
        onecopy_verbs::Limits {
            shared_connections: false,
            ..usual_limits()
        },
    );
    let side = Side::new(&fabric, "plain");
    let text = side.device.shared(None).expect_err("none").to_string();
    assert!(
        text.starts_with("ibv_open_xrcd of plain: ") && text.contains("another mode"),
        "{text}"
    );
}

#[test]
fn a_limit_on_memory_is_reported_with_its_remedy() {
    let (fabric, a, _b) = sides();
    fabric.limit_memory(fabric.registered() + 8192);
    let first = a.domain.region(1, 4096, Access::default()).expect("memory");
    let error = a
        .domain
        .region(2, 4096, Access::default())
        .expect_err("too much");
    assert!(error.is_exhaustion());
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    drop(first);
    a.domain.region(2, 4096, Access::default()).expect("memory");
}

#[test]
fn who_sleeps_is_woken_by_what_completes_after_arming() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(2);
    b.queue.arm().expect("armed");
    assert_eq!(b.queue.take_wakes().expect("none"), 0);
    a.send(&to_b, b"wake", 1).expect("room");
    a.send(&to_b, b"once", 2).expect("room");
    assert!(b.queue.descriptor().is_some());
    assert_eq!(b.queue.take_wakes().expect("one"), 1);
    assert_eq!(b.poll().len(), 2);
}

#[test]
fn low_receives_are_reported_once() {
    let (_fabric, mut a, mut b) = sides();
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(4);
    b.receives.report_below(3).expect("limit");
    for cookie in 0..3 {
        a.send(&to_b, b"x", cookie).expect("room");
    }
    assert_eq!(
        b.device.next_event().expect("event"),
        Some(Event::ReceivesLow)
    );
    assert_eq!(b.device.next_event().expect("event"), None);
}

#[test]
fn queues_grow_with_their_pairs_and_never_overrun() {
    let (fabric, mut a, mut b) = sides();
    let pairs: Vec<_> = (0..40).map(|_| connected(&mut a, &mut b)).collect();
    b.fill(60);
    for (to_b, _) in &pairs {
        a.send(to_b, b"x", 0).expect("room");
    }
    assert_eq!(a.poll_all().len(), 40);
    assert_eq!(b.poll_all().len(), 40);
    assert_eq!(b.device.next_event().expect("no event"), None);
    drop(fabric);
    let mut small = Queue::new(&a.device, 1, false).expect("queue");
    let attributes = onecopy_verbs::pair::InitAttributes {
        kind: Kind::Connection,
        receives: Some(&b.receives),
        shared: None,
        depths: Depths {
            sends: 4,
            receives: 0,
            inline: 0,
        },
    };
    let error = QueuePair::new(&a.domain, &mut small, &attributes).expect_err("of another queue");
    assert!(error.to_string().contains("another queue"), "{error}");
    let _: &QueuePair<Fabric, Ready> = &pairs[0].0;
    both(&mut a, &mut b);
}

#[test]
fn what_is_pinned_is_what_the_formula_says() {
    use onecopy_verbs::modes::{JobShape, Mode, Need, Sizes};
    let job = JobShape {
        per_node: 2,
        nodes: 8,
        peers: 14,
    };
    for (mode, slot) in [(Mode::Connections, 3000), (Mode::Datagrams, 1000)] {
        let sizes = Sizes {
            slot: 3000,
            packet: 1000,
            receives: 37,
            receives_max: 100,
            stripe: 5000,
            reads: true,
            datagrams: 37,
            sends: 11,
            depth: 16,
            lanes: 1024,
            rails: 1,
        };
        let need = Need::of(mode, &job, &sizes);
        let fabric = Fabric::default();
        let domain = Device::open(&fabric, "m0")
            .and_then(|device| device.domain())
            .expect("domain");
        let receives = domain
            .region(sizes.receives as usize, slot, Access::default())
            .expect("memory");
        let sends = domain
            .region(sizes.sends as usize, slot, Access::default())
            .expect("memory");
        assert_eq!(fabric.registered() as u64, need.pinned, "{mode:?}");
        assert_eq!((receives.bytes() + sends.bytes()) as u64, need.pinned);
    }
}
