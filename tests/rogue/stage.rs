// SPDX-License-Identifier: MIT OR Apache-2.0
//! Three ranks: a victim, a friend of it, and the rogue.

use onecopy::wireup::local::{self, Local};
use onecopy::wireup::{Card, Wireup};
use onecopy::{Comm, Knobs, Options, Runtime};
use onecopy_shm::cells::MappedCells;
use onecopy_shm::coll::Channel;
use onecopy_shm::layout::Geometry;
use onecopy_shm::ring::{Consumer, Producer};
use onecopy_shm::segment::{OwnSegment, PeerSegment};
use onecopy_shm::sync::HeavyFence;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::Duration;

pub(crate) const VICTIM: usize = 0;
pub(crate) const FRIEND: usize = 1;
pub(crate) const ROGUE: usize = 2;
const RANKS: u32 = 3;
/// Beyond this something hangs.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn geometry() -> Geometry {
    geometry_of(RANKS)
}

fn geometry_of(ranks: u32) -> Geometry {
    let knobs = knobs();
    Geometry {
        ranks,
        ring_slots: knobs.ring_slots_among(ranks as usize) as u32,
        chunk_bytes: knobs.chunk_bytes() as u32,
        chunks: (knobs.pool_max / knobs.chunk_bytes()) as u32,
        heap_bytes: 4 << 20,
        coll_channels: Geometry::channels_for(knobs.coll_pool, ranks as usize),
    }
}

fn knobs() -> Knobs {
    Knobs {
        // Some of the fields that it sends are chosen for chunks of this size.
        chunk_size: Some(8 << 10),
        heap_size: Some(4 << 20),
        coop_min: Some(64 << 10),
        // A rank that waits for a rogue that has left learns it soon.
        liveness_period: Duration::from_millis(5),
        ..Knobs::default()
    }
}

/// The rogue's means.
pub(crate) struct Rogue {
    pub(crate) own: OwnSegment,
    pub(crate) victim: PeerSegment,
    /// The victim's segment as a file: anything can be written anywhere.
    pub(crate) file: File,
    pub(crate) out: Producer<MappedCells>,
    /// What the victim sends to the rogue.
    pub(crate) inbox: Consumer<MappedCells>,
}

impl Rogue {
    /// Tells the victim that something is there.
    pub(crate) fn notify(&self) {
        self.victim.set_active();
        self.victim.doorbell().ring();
    }

    /// Publishes a record. `false`: the ring is full.
    pub(crate) fn publish(&mut self, kind: u8, meta: u64, body: &[u8]) -> bool {
        let slots = onecopy_shm::ring::slots_for(body.len());
        let Some(mut claim) = self.out.claim(slots) else {
            return false;
        };
        claim.write(0, body);
        claim.publish(kind, body.len(), meta);
        self.notify();
        true
    }

    /// Writes raw bytes into the victim's segment.
    pub(crate) fn scribble(&self, offset: u64, bytes: &[u8]) {
        self.file
            .write_all_at(bytes, offset)
            .expect("write to the segment");
    }

    /// Where the rogue's ring in the victim's segment is.
    pub(crate) fn ring(&self) -> u64 {
        geometry().ring_offset(ROGUE as u32).0
    }

    /// Where the control lines of the rogue are in the victim's segment.
    pub(crate) fn control(&self) -> u64 {
        geometry().ctrl_offset(ROGUE as u32).0
    }
}

/// Runs `rogue` against `victim`. Meanwhile and afterwards victim and friend exchange messages, which must all arrive.
pub(crate) fn play<R: Send>(
    name: &str,
    rogue: impl FnOnce(&mut Rogue, &dyn Fn() -> bool) + Send,
    victim: impl FnOnce(&Runtime, &Comm) -> R + Send,
) -> R {
    let world = local::world(RANKS as usize).expect("a job of threads");
    let [for_victim, for_friend, for_rogue] =
        <[_; 3]>::try_from(world).unwrap_or_else(|_| panic!("three"));
    let (over, is_over) = mpsc::channel::<()>();
    let watchdog = Watchdog::new(name);
    let result = std::thread::scope(|scope| {
        scope.spawn(move || {
            let rt = Runtime::init_with(options(for_friend)).expect("join");
            let world = rt.world();
            talk(&world, VICTIM, 0);
            talk(&world, VICTIM, 1);
            drop(world);
            // The rogue comes to no barrier; that is its business.
            rt.finalize().expect("finalize");
        });
        scope.spawn(move || {
            let mut wireup = for_rogue;
            let own = join_by_hand(&mut wireup, RANKS);
            let known = wireup.introduce(VICTIM).expect("introduce");
            let file = File::from(known.memory.try_clone().expect("descriptor"));
            let segment = PeerSegment::open(known.memory, VICTIM as u32, ROGUE as u32, &geometry())
                .expect("open");
            let out = segment.producer().expect("ring");
            let inbox = own.consumer(VICTIM as u32);
            let mut means = Rogue {
                own,
                victim: segment,
                file,
                out,
                inbox,
            };
            let done = std::cell::Cell::new(false);
            let is_done = || {
                if !done.get() && is_over.try_recv() != Err(mpsc::TryRecvError::Empty) {
                    done.set(true);
                }
                done.get()
            };
            rogue(&mut means, &is_done);
            if !done.get() {
                // Fails when the victim has failed.
                let _ = is_over.recv();
            }
            wireup.leave().expect("leave");
        });
        let rt = Runtime::init_with(options(for_victim)).expect("join");
        let world = rt.world();
        talk(&world, FRIEND, 0);
        let result = victim(&rt, &world);
        talk(&world, FRIEND, 1);
        drop(over);
        drop(world);
        rt.finalize().expect("finalize");
        result
    });
    watchdog.end();
    result
}

fn options(wireup: Local) -> Options {
    Options {
        knobs: knobs(),
        wireup: Some(Box::new(wireup) as Box<dyn Wireup>),
        ..Options::default()
    }
}

/// Ends the process, with a word of the reason, when it is not ended in time. A hang cannot be told to the test that
/// hangs.
struct Watchdog {
    finished: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Watchdog {
    fn new(name: &str) -> Self {
        let (finished, watch) = mpsc::channel::<()>();
        let name = name.to_owned();
        let thread = std::thread::spawn(move || {
            if watch.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                use std::io::Write;
                let _ = writeln!(std::io::stderr(), "rogue: {name}: hangs");
                std::process::abort();
            }
        });
        Self { finished, thread }
    }

    fn end(self) {
        drop(self.finished);
        self.thread.join().expect("watchdog");
    }
}

/// Joins a job as a rank that no engine runs: gives its segment.
pub(crate) fn join_by_hand(wireup: &mut Local, ranks: u32) -> OwnSegment {
    let rank = wireup.rank() as u32;
    let fence = HeavyFence::without_membarrier();
    let own = OwnSegment::create(rank, geometry_of(ranks), fence, 77).expect("segment");
    if let Some(end) = own.channel(0) {
        end.open(1, 0);
    }
    wireup
        .join(Card::of_this_process(), own.fd())
        .expect("join");
    own
}

/// A job of `ranks`, all of them correct but the one that is `rogue`. That one does what `line` says to its end of the
/// channel of all ranks, and leaves. Gives what `body` came to, by rank.
pub(crate) fn collective<R: Send>(
    name: &str,
    ranks: u32,
    rogue: usize,
    line: impl FnOnce(&Channel) + Send,
    body: impl Fn(&Comm) -> R + Sync,
) -> Vec<R> {
    let watchdog = Watchdog::new(name);
    let world = local::world(ranks as usize).expect("a job of threads");
    let mut line = Some(line);
    let results = std::thread::scope(|scope| {
        let mut correct = Vec::new();
        for mut wireup in world {
            if wireup.rank() == rogue {
                let line = line.take().expect("one rogue");
                scope.spawn(move || {
                    let own = join_by_hand(&mut wireup, ranks);
                    line(&own.channel(0).expect("a channel"));
                    wireup.leave().expect("leave");
                });
                continue;
            }
            let body = &body;
            correct.push(scope.spawn(move || {
                let rt = Runtime::init_with(options(wireup)).expect("join");
                let result = body(&rt.world());
                rt.finalize().expect("finalize");
                result
            }));
        }
        let all = correct.into_iter().map(|thread| thread.join());
        all.map(|result| result.expect("no rank panics")).collect()
    });
    watchdog.end();
    results
}

/// Three ranks. Rank 0 runs `body`, and rank 1 joins and leaves. Rank 2, the rogue, has its end of the channel of all
/// ranks and the victim's.
pub(crate) fn asked_without_end(
    name: &str,
    rogue: impl FnOnce(&Channel, &Channel) + Send,
    body: impl FnOnce(&Comm) + Send,
) {
    let watchdog = Watchdog::new(name);
    let world = local::world(3).expect("a job of threads");
    let [first, mut second, mut third] =
        <[_; 3]>::try_from(world).unwrap_or_else(|_| panic!("three"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _own = join_by_hand(&mut second, 3);
            second.leave().expect("leave");
        });
        scope.spawn(move || {
            let own = join_by_hand(&mut third, 3);
            let known = third.introduce(0).expect("introduce");
            let victim = PeerSegment::open(known.memory, 0, 2, &geometry_of(3)).expect("open");
            let ends = (own.channel(0), victim.channel(0));
            rogue(&ends.0.expect("a channel"), &ends.1.expect("a channel"));
            third.leave().expect("leave");
        });
        let rt = Runtime::init_with(options(first)).expect("join");
        body(&rt.world());
        rt.finalize().expect("finalize");
    });
    watchdog.end();
}

/// Messages of all protocols between victim and friend.
fn talk(world: &Comm, peer: usize, part: i32) {
    for (tag, size) in (100..).zip([8usize, 500, 9000, 300_000]) {
        let tag = tag + part * 10;
        let mine = vec![world.rank() as u8 + tag as u8; size];
        let mut theirs = vec![0u8; size];
        world
            .sendrecv(&mine, peer, tag, &mut theirs, peer, tag)
            .expect("a friend");
        assert!(theirs.iter().all(|&byte| byte == peer as u8 + tag as u8));
    }
}

/// Fails unless the rogue was found out.
pub(crate) fn expect_protocol_error(name: &str, result: &onecopy::Result<onecopy::Status>) {
    assert!(
        matches!(result, Err(onecopy::Error::Protocol { rank: ROGUE, .. })),
        "{name}: {result:?}"
    );
}
