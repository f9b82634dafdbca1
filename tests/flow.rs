// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank uses while it waits or does not receive: memory that is bounded, and hardly any processor.

#[path = "harness/bytes.rs"]
mod bytes;
#[path = "harness/processes.rs"]
mod processes;
#[path = "harness/resident.rs"]
mod resident;

use bytes::{check, pattern};
use onecopy::memory::pool::MemoryKind;
use onecopy::{ChunkCopy, Options, Runtime};
use processes::{Ranks, say};
use resident::resident;
use std::time::{Duration, Instant};

/// How often an idle rank looks whether its peers live.
const LIVENESS: Duration = Duration::from_millis(20);

/// What a rank does. Not a test of its own: outside of a job it does nothing.
#[test]
fn as_rank() {
    let Some(role) = processes::body() else {
        return;
    };
    let mut options = Options::from_env().expect("knobs");
    if role == "chunks" {
        // Each rank believes to have another processor.
        let odd = std::env::var("ONECOPY_JOB_RANK").expect("a rank") != "0";
        options.knobs.chunk_copy = if odd {
            ChunkCopy::String
        } else {
            ChunkCopy::Owned
        };
    }
    let rt = Runtime::init_with(options).expect("join");
    match role.as_str() {
        "flood" => flood(&rt),
        "flood unseen" => flood_unseen(&rt),
        "held back" => held_back(&rt),
        "the last first" => the_last_first(&rt),
        "ahead" => ahead(&rt),
        "rewritten" => rewritten(&rt),
        "idle" => idle(&rt),
        "crowd" => crowd(&rt),
        "burst" => burst(&rt),
        "chunks" => chunks(&rt),
        other => panic!("no role {other}"),
    }
    rt.finalize().expect("finalize");
}

/// Messages both ways, eager and in a pipeline, between ranks whose chunks are of different sizes.
fn chunks(rt: &Runtime) {
    let world = rt.world();
    let (me, peer) = (rt.rank(), 1 - rt.rank());
    for round in 0..3 {
        for size in [2000, 5000, 8192, 8193, 16_384, 20_000, 100_000, 1_000_000] {
            let mut got = vec![0; size];
            world
                .sendrecv(&pattern(size, me + round), peer, 1, &mut got, peer, 1)
                .expect("sendrecv");
            check(&got, peer + round, "of another size");
        }
    }
    assert!(rt.counters().sends_chunk > 0 && rt.counters().pipeline_bytes > 0);
}

const CREDIT: u64 = 256 << 10;
const FLOOD: usize = 100_000;
const FLOOD_SIZES: [usize; 6] = [8, 0, 600, 40, 3000, 1];

fn send_flood(rt: &Runtime, windows: usize) {
    let world = rt.world();
    let mut sent = 0;
    for _ in 0..windows {
        let requests: Vec<_> = (0..FLOOD / windows)
            .map(|_| {
                let message = pattern(FLOOD_SIZES[sent % FLOOD_SIZES.len()], sent);
                sent += 1;
                world.isend(message, 0, 1).expect("isend")
            })
            .collect();
        // Behind the flood, and received before it.
        world.send(&[sent as u64], 0, 2).expect("send");
        onecopy::wait_all(requests).expect("wait");
    }
}

fn receive_flood(rt: &Runtime, source: usize, range: std::ops::Range<usize>) {
    let mut got = vec![0u8; 3000];
    for i in range {
        let status = rt.world().recv(&mut got, source, 1).expect("recv");
        assert_eq!(status.bytes, FLOOD_SIZES[i % FLOOD_SIZES.len()], "{i}");
        check(&got[..status.bytes], i, "in order");
    }
}

/// Rank 0 takes what comes, but receives nothing of the flood until all of it has been announced.
fn flood(rt: &Runtime) {
    let world = rt.world();
    let senders = rt.size() - 1;
    if rt.rank() > 0 {
        let before = resident();
        send_flood(rt, 1);
        let grown = resident().saturating_sub(before);
        // The program's own buffers and one request each; the runtime holds no copies.
        assert!(grown < 200 << 20, "a sender grew by {grown} bytes");
        return;
    }
    let before = resident();
    for sender in 1..=senders {
        world.recv(&mut [0u64], sender, 2).expect("recv");
    }
    let counters = rt.counters();
    let limit = CREDIT * senders as u64 * 2;
    assert!(counters.recv_unexpected > 1000, "{counters:?}");
    assert!(counters.unexpected_bytes_peak <= limit, "{counters:?}");
    let grown = resident().saturating_sub(before);
    // An announcement takes memory, too, but no payload.
    let announcements = (senders * FLOOD * 400) as u64;
    assert!(grown < announcements + (32 << 20), "grew by {grown} bytes");
    for sender in 1..=senders {
        receive_flood(rt, sender, 0..FLOOD);
    }
    assert_eq!(rt.counters().unexpected_bytes_now, 0);
    let peak = rt.counters().unexpected_bytes_peak;
    assert!(peak <= limit, "{peak} bytes");
}

/// More messages than a receiver remembers, before any of them is received: the sender keeps back what is too much,
/// and all arrive in order.
fn held_back(rt: &Runtime) {
    const MANY: usize = 300_000;
    let world = rt.world();
    if rt.rank() == 1 {
        let requests: Vec<_> = (0..MANY)
            .map(|i| world.isend(vec![i as u64], 0, 1).expect("isend"))
            .collect();
        world.barrier().expect("barrier");
        onecopy::wait_all(requests).expect("wait");
        return;
    }
    let before = resident();
    world.barrier().expect("barrier");
    // What is there comes in, but nothing is received.
    let mut known = 0;
    while rt.counters().recv_unexpected > known {
        known = rt.counters().recv_unexpected;
        for _ in 0..1000 {
            assert!(world.iprobe(1, 2).expect("iprobe").is_none());
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(known < MANY as u64, "{known} messages were remembered");
    assert!(grown < 128 << 20, "grew by {grown} bytes");
    for i in 0..MANY as u64 {
        let mut got = [u64::MAX];
        world.recv(&mut got, 1, 1).expect("recv");
        assert_eq!(got, [i]);
    }
}

/// Rank 0 wants the last of many messages first. If it is held back, rank 1 says so, in the file; then rank 0 takes the
/// others first.
fn the_last_first(rt: &Runtime) {
    const MANY: u64 = 5000;
    let world = rt.world();
    if rt.rank() == 1 {
        let mut requests: Vec<_> = (0..MANY)
            .map(|i| world.isend(vec![i], 0, 1).expect("isend"))
            .collect();
        requests.push(world.isend(vec![MANY], 0, 2).expect("isend"));
        onecopy::wait_all(requests).expect("wait");
        world.barrier().expect("barrier");
        return;
    }
    let receive_all = || {
        for i in 0..MANY {
            let mut got = [u64::MAX];
            world.recv(&mut got, 1, 1).expect("recv");
            assert_eq!(got, [i]);
        }
    };
    let path = std::env::var_os("TEST_FILE").expect("a file");
    let last = world.irecv(vec![0u64; 1], 1, 2).expect("irecv");
    let held = std::env::var_os("TEST_HELD").is_some();
    if held {
        // What is there comes in meanwhile.
        while std::fs::read(&path).is_ok_and(|text| text.is_empty()) {
            assert!(world.iprobe(1, 3).expect("iprobe").is_none());
            std::thread::sleep(Duration::from_millis(5));
        }
        receive_all();
    }
    assert_eq!(last.wait().expect("wait").0, [MANY]);
    if !held {
        receive_all();
    }
    world.barrier().expect("barrier");
}

/// Waits, without a look at messages, until another rank has written to the file.
fn await_word(path: &std::ffi::OsStr) {
    while std::fs::read(path).is_ok_and(|text| text.is_empty()) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rank 1 is a window ahead of rank 0, which leaves what it is yet to post receives for where it is.
fn ahead(rt: &Runtime) {
    const POSTED: usize = 16;
    const LATER: usize = 32;
    let path = std::env::var_os("TEST_FILE").expect("a file");
    let world = rt.world();
    let other = 1 - rt.rank();
    world.send(&[0u8], other, 2).expect("send");
    world.recv(&mut [0u8], other, 2).expect("recv");
    if rt.rank() == 1 {
        world.recv(&mut [0u8], 0, 2).expect("recv");
        for i in 0..POSTED + LATER {
            world.send(&[i as u64], 0, 1).expect("send");
        }
        std::fs::write(path, b"started").expect("write");
        world.recv(&mut [0u8], 0, 2).expect("recv");
        return;
    }
    let posted: Vec<_> = (0..POSTED)
        .map(|_| world.irecv(vec![0u64; 1], 1, 1).expect("irecv"))
        .collect();
    world.send(&[0u8], 1, 2).expect("send");
    await_word(&path);
    let before = rt.counters().recv_unexpected;
    for (i, request) in posted.into_iter().enumerate() {
        let (got, _) = request.wait().expect("wait");
        assert_eq!(got, [i as u64]);
    }
    for i in POSTED..POSTED + LATER {
        let mut got = [0u64];
        world.recv(&mut got, 1, 1).expect("recv");
        assert_eq!(got, [i as u64]);
    }
    let held = rt.counters().recv_unexpected - before;
    assert_eq!(held, 0, "messages that were held");
    world.send(&[0u8], 1, 2).expect("send");
}

/// Rank 0 does not even look until the senders have started everything.
fn flood_unseen(rt: &Runtime) {
    let path = std::env::var_os("TEST_FILE").expect("a file");
    if rt.rank() == 1 {
        let world = rt.world();
        let requests: Vec<_> = (0..FLOOD)
            .map(|i| {
                let message = pattern(FLOOD_SIZES[i % FLOOD_SIZES.len()], i);
                world.isend(message, 0, 1).expect("isend")
            })
            .collect();
        std::fs::write(path, b"started").expect("write");
        onecopy::wait_all(requests).expect("wait");
    } else {
        let before = resident();
        await_word(&path);
        let grown = resident().saturating_sub(before);
        assert!(grown < 8 << 20, "grew by {grown} bytes");
        receive_flood(rt, 1, 0..FLOOD);
        let peak = rt.counters().unexpected_bytes_peak;
        assert!(peak <= 2 * CREDIT, "{peak} bytes");
    }
}

/// A buffer that is rewritten between sends goes in chunks, one that is not is announced; what arrives is right either
/// way.
fn rewritten(rt: &Runtime) {
    const LEN: usize = 48 << 10;
    const TIMES: u8 = 10;
    let world = rt.world();
    let mut own = vec![0u8; LEN];
    let mut heap = rt.alloc(LEN).expect("alloc");
    let mut stalls_before = 0;
    for in_heap in [false, true] {
        let buffer: &mut [u8] = if in_heap { &mut heap } else { &mut own };
        for blocking in [true, false] {
            for rewrites in [true, false] {
                let before = rt.counters();
                for i in 1..=TIMES {
                    let byte = if rewrites { i } else { TIMES };
                    // One at a time: a message for which no chunk is free is announced, however fast the receiver is.
                    if rt.rank() == 1 {
                        buffer.fill(0);
                        world.recv(&mut *buffer, 0, 1).expect("recv");
                        assert!(buffer.iter().all(|&b| b == byte));
                        world.send(&[0u8], 0, 2).expect("answer");
                        continue;
                    }
                    buffer.fill(byte);
                    if blocking {
                        world.send(&*buffer, 1, 1).expect("send");
                    } else {
                        world.scope(|scope| {
                            scope.isend(&*buffer, 1, 1).expect("isend");
                            scope.wait_all().map(drop).expect("wait");
                        });
                    }
                    world.recv(&mut [0u8], 1, 2).expect("answer");
                }
                world.barrier().expect("barrier");
                let after = rt.counters();
                let chunks = after.sends_chunk - before.sends_chunk;
                let announced = after.sends_rendezvous - before.sends_rendezvous;
                let case = format!("heap {in_heap} blocking {blocking} rewrites {rewrites}");
                if rt.rank() == 1 {
                    assert_eq!((chunks, announced), (0, 0), "{case}");
                    continue;
                }
                // What finds no credit is announced without a look at it, so that the next one is compared with one
                // before.
                let stalls = after.credit_stalls - before.credit_stalls;
                let slack = stalls + std::mem::replace(&mut stalls_before, stalls);
                assert_eq!(chunks + announced, u64::from(TIMES), "{case}");
                if rewrites {
                    assert!(announced <= 1 + slack, "{case}: {announced} announced");
                } else {
                    assert!(chunks <= slack, "{case}: {chunks} in chunks");
                }
            }
        }
    }
}

/// This rank's segment as the kernel counts it.
fn segment_bytes() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let mut bytes = std::collections::BTreeMap::new();
    for entry in descriptors.flatten() {
        let path = entry.path();
        if std::fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().contains("memfd:onecopy"))
        {
            let found = std::fs::metadata(path).expect("stat");
            bytes.insert(found.ino(), found.blocks() * 512);
        }
    }
    bytes.values().sum()
}

/// A burst of everything that takes memory, and then nothing but waiting.
fn burst(rt: &Runtime) {
    const EACH: usize = 16 << 10;
    let world = rt.world();
    let peer = 1 - rt.rank();
    // Connections and rings stay.
    let mut one = [0u8];
    world
        .sendrecv(&[1u8], peer, 0, &mut one, peer, 0)
        .expect("sendrecv");
    world.barrier().expect("barrier");
    let (shared, private) = (segment_bytes(), resident());
    let requests: Vec<_> = (0..12)
        .map(|i| world.isend(pattern(EACH, i), peer, 1).expect("isend"))
        .collect();
    // What arrives before this has no receive yet.
    world
        .sendrecv(&[1u8], peer, 2, &mut one, peer, 2)
        .expect("sendrecv");
    let mut temporary: Vec<_> = (0..20)
        .map(|_| {
            rt.buffers()
                .take(1 << 20, MemoryKind::Shared)
                .expect("take")
        })
        .collect();
    temporary.iter_mut().for_each(|buf| buf.fill(1));
    drop(temporary);
    let at_peak = rt.counters();
    assert!(at_peak.buffers_bytes > 20 << 20, "{at_peak:?}");
    assert!(at_peak.unexpected_bytes_now > 64 << 10, "{at_peak:?}");
    assert!(segment_bytes() > shared + (16 << 20));
    let mut got = vec![0; EACH];
    for i in 0..12 {
        world.recv(&mut got, peer, 1).expect("recv");
        check(&got, i, "in order");
    }
    onecopy::wait_all(requests).expect("wait");
    world.barrier().expect("barrier");
    // One rank waits for the other, which polls for a while.
    if rt.rank() == 0 {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            assert!(world.iprobe(peer, 3).expect("iprobe").is_none());
            std::thread::sleep(Duration::from_micros(100));
        }
        world.send(&[1u8], peer, 3).expect("send");
    } else {
        world.recv(&mut one, peer, 3).expect("recv");
    }
    let after = rt.counters();
    assert_eq!(after.buffers_bytes, 0, "{after:?}");
    assert_eq!(after.pool_chunks, 8, "{after:?}");
    // Both segments are open here; of each there are the first chunks.
    let grown = segment_bytes().saturating_sub(shared);
    // The machine's profile has a say in their size.
    let knobs = onecopy::tune::settings().expect("settings").knobs;
    let chunks = 2 * 8 * knobs.chunk_bytes() as u64;
    assert!(grown <= chunks, "{grown} bytes of shared memory");
    let grown = resident().saturating_sub(private);
    say(&format!("PRIVATE {grown}"));
    assert!(grown < 2 << 20, "{grown} bytes");
}

fn idle(rt: &Runtime) {
    let world = rt.world();
    world.barrier().expect("barrier");
    if rt.rank() == 0 {
        // This is the time that the others wait.
        std::thread::sleep(Duration::from_secs(2));
        for peer in 1..rt.size() {
            world.send(&[1u8], peer, 0).expect("send");
        }
        return;
    }
    let (before, started) = (rt.counters(), Instant::now());
    world.recv(&mut [0u8], 0, 0).expect("recv");
    let (after, waited) = (rt.counters(), started.elapsed());
    let sleeps = after.sleeps - before.sleeps;
    let turns =
        sleeps + after.yields - before.yields + after.liveness_checks - before.liveness_checks;
    say(&format!("IDLE {sleeps} sleeps, {turns} turns, {waited:?}"));
    // One sleep per look at the peers' lives, and what else wakes a rank is counted too. The processor's time is not,
    // as it is another machine's figure.
    let looks = waited.as_millis() / LIVENESS.as_millis() + 1;
    assert!(
        sleeps > 0 && u128::from(sleeps) <= 2 * looks,
        "{sleeps} of {looks}"
    );
    assert!(u128::from(turns) <= 10 * looks, "{turns} of {looks}");
}

fn crowd(rt: &Runtime) {
    let world = rt.world();
    assert!(rt.is_oversubscribed());
    for round in 0..50 {
        for size in [8, 5000, 100_000] {
            for distance in 1..rt.size() {
                let to = (rt.rank() + distance) % rt.size();
                let from = (rt.rank() + rt.size() - distance) % rt.size();
                let mut got = vec![0; size];
                world
                    .sendrecv(&pattern(size, rt.rank() + round), to, 1, &mut got, from, 1)
                    .expect("sendrecv");
                check(&got, from + round, "in a crowd");
            }
        }
    }
}

#[test]
fn a_flood_to_a_rank_that_does_not_receive_is_bounded() {
    Ranks::new(2, "flood").run().expect_success();
    Ranks::new(4, "flood").run().expect_success();
}

#[test]
fn a_sender_of_more_than_a_receiver_remembers_is_held_back() {
    Ranks::new(2, "held back").run().expect_success();
}

/// What rank 1 says on standard error in such a job.
fn stderr_of_the_last_first(max: &str, held: bool) -> String {
    let path = std::env::temp_dir().join(format!("onecopy-flow-last-{max}-{}", std::process::id()));
    std::fs::write(&path, b"").expect("a file");
    let mut ranks = Ranks::new(2, "the last first")
        .env("TEST_FILE", &path.to_string_lossy())
        .env("ONECOPY_EAGER_CREDIT", "4K")
        .env("ONECOPY_UNANSWERED_MAX", max)
        .wrapped(&[
            "sh",
            "-c",
            r#"[ $ONECOPY_JOB_RANK = 1 ] && exec "$0" "$@" 2>"$TEST_FILE"; exec "$0" "$@""#,
        ]);
    if held {
        ranks = ranks.env("TEST_HELD", "yes");
    }
    let ran = ranks.run();
    let text = std::fs::read_to_string(&path).expect("the file");
    std::fs::remove_file(&path).expect("remove");
    ran.expect_success();
    text
}

#[test]
fn a_message_that_is_held_back_for_long_is_told_once() {
    let stderr = stderr_of_the_last_first("1000", true);
    let words = [
        "rank 1 holds back",
        "messages to rank 0",
        "1000 others wait",
    ];
    for part in words
        .into_iter()
        .chain(["ONECOPY_UNANSWERED_MAX", "communicator of all ranks"])
    {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn the_knob_lets_a_receiver_remember_more() {
    assert_eq!(stderr_of_the_last_first("100000", false), "");
}

/// Two ranks with an empty file for a word of one to the other.
fn with_a_file(role: &str) {
    let name = role.replace(' ', "-");
    let path = std::env::temp_dir().join(format!("onecopy-flow-{name}-{}", std::process::id()));
    std::fs::write(&path, b"").expect("a file");
    let ran = Ranks::new(2, role)
        .env("TEST_FILE", &path.to_string_lossy())
        .run();
    std::fs::remove_file(&path).expect("remove");
    ran.expect_success();
}

#[test]
fn a_flood_to_a_rank_that_does_not_look_is_bounded() {
    with_a_file("flood unseen");
}

#[test]
fn a_rewritten_buffer_goes_in_chunks() {
    // Whatever this machine prefers.
    Ranks::new(2, "rewritten")
        .env("ONECOPY_CHUNK_COPY", "owned")
        .run()
        .expect_success();
}

#[test]
fn ranks_with_chunks_of_different_sizes_understand_each_other() {
    Ranks::new(2, "chunks")
        .env("ONECOPY_LAYERS", "cico")
        .run()
        .expect_success();
}

#[test]
fn what_comes_before_its_receive_is_posted_stays_in_the_ring() {
    with_a_file("ahead");
}

#[test]
fn memory_comes_back_after_a_burst() {
    Ranks::new(2, "burst")
        .env("ONECOPY_BUFFERS_AGE", "100ms")
        .run()
        .expect_success();
}

#[test]
fn an_idle_rank_uses_hardly_any_processor() {
    let ran = Ranks::new(4, "idle")
        .env("ONECOPY_WAIT_SLEEP", "on")
        .env(
            "ONECOPY_LIVENESS_PERIOD",
            &format!("{}ms", LIVENESS.as_millis()),
        )
        .run();
    let ran = ran.expect_success();
    assert_eq!(ran.reports("IDLE ").len(), 3, "{ran:#?}");
}

#[test]
fn more_ranks_than_processors_finish() {
    let processors = std::thread::available_parallelism().expect("processors");
    let ranks = (processors.get() * 4).min(32);
    Ranks::new(ranks, "crowd").run().expect_success();
}
