// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between two ranks on two nodes, beside a bare loop over a socket or a queue pair in the same run.
//!
//! Both nodes are this machine. The ranks are processes that share no memory, as far as the library knows. They reach
//! each other over the loopback. The bare loop is what a good program without a library does: sockets without delay,
//! polled by `send` and `recv`, and no envelope. Both take turns batch by batch, between the same two processes.

mod pair;
mod perftest;

use crate::BenchError;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use onecopy::{Comm, Knobs, Options, Runtime};
use onecopy_btl::LayerId;
use onecopy_btl::layers::verbs::refused_mode;
use onecopy_obs::VerbsMode;
use pair::BarePair;
use perftest::Perftest;
use serde::{Deserialize, Serialize};
use std::hint::{black_box, spin_loop};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How messages follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum NetPattern {
    /// One message there, one back; half the round trip
    PingPong,
    /// A window of messages one way, then an acknowledgement
    Bw,
    /// A window each way at once
    BiBw,
    /// 8 bytes, a window of 64 one way
    Rate,
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum NetMode {
    /// Sockets
    Tcp,
    /// Reliable connections of a device for RDMA
    Rc,
    /// Extended connections of a device for RDMA, beside a bare reliable connection
    Xrc,
    /// Datagrams of a device for RDMA, beside a bare reliable connection
    Ud,
}

/// A result: one pattern and size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetRow {
    /// What carried the messages.
    pub mode: NetMode,
    /// The pattern.
    pub pattern: NetPattern,
    /// Bytes of a message.
    pub bytes: usize,
    /// Microseconds per message through the library, the median of the batches. Of a ping-pong a batch gives the median
    /// of its round trips.
    pub us: f64,
    /// The same by the bare loop.
    pub bare_us: f64,
    /// The same by a program of perftest: typical, or by its average. None: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perftest_us: Option<f64>,
    /// The first divided by the limit: perftest's figure, or the bare loop's where there is none.
    pub ratio: f64,
    /// Batches of each.
    pub batches: usize,
}

impl NetRow {
    /// Megabytes a second, by the library and by the bare loop.
    #[must_use]
    pub fn mb_per_s(&self) -> (f64, f64) {
        let bytes = self.bytes as f64;
        (bytes / self.us, bytes / self.bare_us)
    }
}

/// What is measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetPlan {
    /// What carries the messages.
    pub mode: NetMode,
    /// Patterns, in their order.
    pub patterns: Vec<NetPattern>,
    /// Sizes of all patterns but the rate.
    pub sizes: Vec<usize>,
    /// Batches of each contestant.
    pub batches: usize,
    /// How long a batch lasts, about.
    pub batch: Duration,
}

const TAG: i32 = 1;
const OUT_OF_TURN: &str = "the two sides of the benchmark are not at the same place";

/// One side of a contestant.
trait Side {
    /// Gets ready for messages of so many bytes, and windows of so many messages.
    fn prepare(&mut self, bytes: usize, window: usize) -> Result<(), BenchError> {
        let _ = (bytes, window);
        Ok(())
    }
    fn send(&mut self, message: &[u8]) -> Result<(), BenchError>;
    fn recv(&mut self, place: &mut [u8]) -> Result<(), BenchError>;
    /// Sends messages of `size` bytes each, one after the other.
    fn send_all(&mut self, messages: &[u8], size: usize) -> Result<(), BenchError> {
        let mut all = messages.chunks_exact(size);
        all.try_for_each(|message| self.send(message))
    }
    fn recv_all(&mut self, places: &mut [u8], size: usize) -> Result<(), BenchError> {
        let mut all = places.chunks_exact_mut(size);
        all.try_for_each(|place| self.recv(place))
    }
    fn exchange(
        &mut self,
        messages: &[u8],
        places: &mut [u8],
        size: usize,
    ) -> Result<(), BenchError>;
}

struct Library {
    world: Comm,
    peer: usize,
}

impl Side for Library {
    fn send(&mut self, message: &[u8]) -> Result<(), BenchError> {
        Ok(self.world.send(message, self.peer, TAG)?)
    }

    fn recv(&mut self, place: &mut [u8]) -> Result<(), BenchError> {
        let status = self.world.recv(place, self.peer, TAG)?;
        match status.bytes == place.len() {
            true => Ok(()),
            false => Err(BenchError::Wrong(OUT_OF_TURN.into())),
        }
    }

    fn send_all(&mut self, messages: &[u8], size: usize) -> Result<(), BenchError> {
        self.world.scope(|scope| {
            for message in messages.chunks_exact(size) {
                scope.isend(message, self.peer, TAG)?;
            }
            scope.wait_all()
        })?;
        Ok(())
    }

    fn recv_all(&mut self, places: &mut [u8], size: usize) -> Result<(), BenchError> {
        self.world.scope(|scope| {
            for place in places.chunks_exact_mut(size) {
                scope.irecv(place, self.peer, TAG)?;
            }
            scope.wait_all()
        })?;
        Ok(())
    }

    fn exchange(
        &mut self,
        messages: &[u8],
        places: &mut [u8],
        size: usize,
    ) -> Result<(), BenchError> {
        self.world.scope(|scope| {
            for place in places.chunks_exact_mut(size) {
                scope.irecv(place, self.peer, TAG)?;
            }
            for message in messages.chunks_exact(size) {
                scope.isend(message, self.peer, TAG)?;
            }
            scope.wait_all()
        })?;
        Ok(())
    }
}

struct Bare(TcpStream);

/// How far one call came: nothing where it would have to wait.
fn moved(result: std::io::Result<usize>) -> Result<usize, BenchError> {
    match result {
        Ok(0) => Err(BenchError::Wrong("the socket's other end is gone".into())),
        Ok(count) => Ok(count),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            spin_loop();
            Ok(0)
        }
        Err(error) => Err(BenchError::io("socket of the bare loop")(error)),
    }
}

impl Side for Bare {
    fn send(&mut self, message: &[u8]) -> Result<(), BenchError> {
        let mut done = 0;
        while done < message.len() {
            done += moved(self.0.write(&message[done..]))?;
        }
        Ok(())
    }

    fn recv(&mut self, place: &mut [u8]) -> Result<(), BenchError> {
        let mut done = 0;
        while done < place.len() {
            done += moved(self.0.read(&mut place[done..]))?;
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        messages: &[u8],
        places: &mut [u8],
        size: usize,
    ) -> Result<(), BenchError> {
        let (mut sent, mut got) = (0, 0);
        while sent < messages.len() || got < places.len() {
            if sent < messages.len() {
                // No message is sent together with the next one.
                let end = (sent / size + 1) * size;
                sent += moved(self.0.write(&messages[sent..end]))?;
            }
            if got < places.len() {
                let end = (got / size + 1) * size;
                got += moved(self.0.read(&mut places[got..end]))?;
            }
        }
        Ok(())
    }
}

/// Memory of one side.
struct Buffers {
    out: Vec<u8>,
    into: Vec<u8>,
    ack: [u8; 4],
}

/// Messages of a window: some MiB in all.
fn window(pattern: NetPattern, bytes: usize) -> usize {
    match pattern {
        NetPattern::PingPong => 1,
        _ => ((4 << 20) / bytes.max(1)).clamp(1, 64),
    }
}

/// One round of a pattern, on one side.
fn round(
    side: &mut dyn Side,
    rank: usize,
    pattern: NetPattern,
    bytes: usize,
    buffers: &mut Buffers,
) -> Result<(), BenchError> {
    let Buffers { out, into, ack } = buffers;
    match (pattern, rank) {
        (NetPattern::PingPong, 0) => {
            side.send(out)?;
            side.recv(into)
        }
        (NetPattern::PingPong, _) => {
            side.recv(into)?;
            side.send(out)
        }
        (NetPattern::BiBw, _) => side.exchange(out, into, bytes),
        (_, 0) => {
            side.send_all(out, bytes)?;
            side.recv(ack)
        }
        (_, _) => {
            side.recv_all(into, bytes)?;
            side.send(ack)
        }
    }
}

/// Messages one way in a round, by which its time is divided.
fn messages(pattern: NetPattern, bytes: usize) -> usize {
    match pattern {
        NetPattern::PingPong => 2,
        _ => window(pattern, bytes),
    }
}

/// One rank's part in the benchmark.
struct Rank<'p> {
    plan: &'p NetPlan,
    /// By which the ranks meet. A rank that waits here for one that has failed gets an error.
    world: Comm,
    /// Beside a device.
    perftest: Option<Perftest>,
}

impl Rank<'_> {
    /// Microseconds per message of one batch: the median of its round trips, as `ib_send_lat` has it, or the mean of
    /// what has no round trips. A processor that is taken away for a while shows in a mean alone.
    fn batch(
        &self,
        side: &mut dyn Side,
        rank: usize,
        (pattern, bytes): (NetPattern, usize),
        buffers: &mut Buffers,
        rounds: usize,
    ) -> Result<f64, BenchError> {
        let mut trips = Vec::new();
        if pattern == NetPattern::PingPong {
            trips.reserve_exact(rounds);
        }
        self.world.barrier()?;
        let begun = Instant::now();
        let mut last = begun;
        for _ in 0..rounds {
            round(side, rank, pattern, bytes, buffers)?;
            if pattern == NetPattern::PingPong {
                let now = Instant::now();
                trips.push((now - last).as_secs_f64());
                last = now;
            }
        }
        let each = match pattern {
            NetPattern::PingPong => median(trips),
            _ => begun.elapsed().as_secs_f64() / rounds as f64,
        };
        Ok(each * 1e6 / messages(pattern, bytes) as f64)
    }

    /// One pattern and size.
    fn point(
        &self,
        rank: usize,
        sides: &mut [&mut dyn Side; 2],
        (pattern, bytes): (NetPattern, usize),
    ) -> Result<NetRow, BenchError> {
        let all = bytes * window(pattern, bytes);
        let mut buffers = Buffers {
            out: (0..all).map(|index| (index % 251) as u8).collect(),
            into: vec![0xff; all],
            ack: [0; 4],
        };
        let point = (pattern, bytes);
        let mut times = [Vec::new(), Vec::new()];
        let mut rounds = [1, 1];
        for number in 0..2 {
            let side = &mut *sides[number];
            side.prepare(bytes, window(pattern, bytes))?;
            self.batch(side, rank, point, &mut buffers, 3)?;
            let us = self.batch(side, rank, point, &mut buffers, 3)?;
            let each = us * messages(pattern, bytes) as f64;
            let fit = self.plan.batch.as_secs_f64() * 1e6 / each.max(0.01);
            let mut agreed = [(fit as usize).clamp(1, 100_000)];
            self.world.bcast(&mut agreed, 0)?;
            rounds[number] = agreed[0];
            let arrived =
                pattern != NetPattern::PingPong && pattern != NetPattern::BiBw && rank == 0
                    || black_box(&buffers.into) == &buffers.out;
            if !arrived {
                let text = format!("{bytes} bytes did not arrive as they were sent");
                return Err(BenchError::Wrong(text));
            }
            buffers.into.fill(0xff);
        }
        for _ in 0..self.plan.batches {
            for number in 0..2 {
                let side = &mut *sides[number];
                times[number].push(self.batch(side, rank, point, &mut buffers, rounds[number])?);
            }
        }
        let [us, bare_us] = times.map(median);
        let perftest_us = self.perftest(rank, point, bare_us)?;
        Ok(NetRow {
            mode: self.plan.mode,
            pattern,
            bytes,
            us,
            bare_us,
            perftest_us,
            ratio: us / perftest_us.unwrap_or(bare_us),
            batches: self.plan.batches,
        })
    }

    /// The figure of perftest, at rank 0. It takes about as long as the batches of a contestant. The other rank sleeps
    /// meanwhile: one that polls would take a processor from it.
    fn perftest(
        &self,
        rank: usize,
        point: (NetPattern, usize),
        bare_us: f64,
    ) -> Result<Option<f64>, BenchError> {
        let Some(perftest) = &self.perftest else {
            return Ok(None);
        };
        if rank == 1 {
            while self.world.iprobe(0, TAG)?.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.world.recv(&mut [0u8], 0, TAG)?;
            return Ok(None);
        }
        let all = self.plan.batch * u32::try_from(self.plan.batches).unwrap_or(u32::MAX);
        let iterations = all.as_secs_f64() * 1e6 / bare_us.max(0.01);
        let measured = perftest.measure(point, iterations as usize);
        self.world.send(&[0u8], 1, TAG)?;
        Ok(measured.unwrap_or_else(|reason| {
            tracing::warn!("{reason}; the bare queue pair is the limit");
            None
        }))
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How long a lane may take to take over. Chosen by magnitude: to find a peer's address may take the kernel a second.
const TAKE_OVER: Duration = Duration::from_secs(20);

/// Has a lane carry the messages of this rank and its peer. `patience`: how long it may take. Each tells the other when
/// its time is over, so that both stop in the same round, whatever their clocks say.
fn take_over(runtime: &Runtime, peer: usize, patience: Duration) -> Result<(), BenchError> {
    let world = runtime.world();
    let begun = Instant::now();
    loop {
        let is_late = u64::from(begun.elapsed() >= patience);
        let (here, mut there) = ([runtime.counters().lane_connects, is_late], [0u64; 2]);
        world.sendrecv(&here, peer, TAG, &mut there, peer, TAG)?;
        if here[0] > 0 && there[0] > 0 {
            return Ok(());
        }
        if here[1] > 0 || there[1] > 0 {
            let text = "no lane has taken over: `onecopy info` says whether there is a device";
            return Err(BenchError::Wrong(text.into()));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// How long one side waits for the other's socket. As long as ranks wait for each other by default
/// (`ONECOPY_JOIN_TIMEOUT`).
const MEET: Duration = Duration::from_secs(30);

/// This rank's end of a pair of sockets over the loopback, whose places are told by the library.
fn bare_end(world: &Comm) -> Result<TcpStream, BenchError> {
    let system = || BenchError::io("sockets of the bare loop");
    let mut place = [0u16];
    let end = if world.rank() == 0 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system())?;
        listener.set_nonblocking(true).map_err(system())?;
        place[0] = listener.local_addr().map_err(system())?.port();
        world.send(&place, 1, TAG)?;
        world.recv(&mut place, 1, TAG)?;
        accepted(&listener, place[0])?
    } else {
        world.recv(&mut place, 0, TAG)?;
        let end = TcpStream::connect((Ipv4Addr::LOCALHOST, place[0])).map_err(system())?;
        place[0] = end.local_addr().map_err(system())?.port();
        world.send(&place, 0, TAG)?;
        end
    };
    end.set_nodelay(true).map_err(system())?;
    end.set_nonblocking(true).map_err(system())?;
    Ok(end)
}

/// The connection that comes from this port.
fn accepted(listener: &TcpListener, port: u16) -> Result<TcpStream, BenchError> {
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((end, from)) if from.port() == port => return Ok(end),
            // Somebody else.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && begun.elapsed() < MEET => {
                std::thread::yield_now();
            }
            Err(error) => return Err(BenchError::io("sockets of the bare loop")(error)),
        }
    }
}

/// Measures as one of the two ranks; at rank 0 each row is shown as soon as it is there.
///
/// # Errors
///
/// If the job is not one of two ranks on two nodes, or a message does not arrive as it was sent.
pub fn as_rank(
    plan: &NetPlan,
    mut knobs: Knobs,
    show: &mut dyn FnMut(&NetRow) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    if plan.mode == NetMode::Tcp && knobs.layers.allows(LayerId::LANE.name()) {
        // A device would carry the messages that are compared with a socket's.
        let wrong = |error: onecopy_obs::KnobError| BenchError::Usage(error.to_string());
        knobs.set("ONECOPY_LAYERS", "^verbs").map_err(wrong)?;
    }
    match plan.mode {
        NetMode::Tcp => {}
        NetMode::Rc => knobs.verbs_mode = VerbsMode::Connections,
        NetMode::Xrc => knobs.verbs_mode = VerbsMode::Extended,
        NetMode::Ud => knobs.verbs_mode = VerbsMode::Datagrams,
    }
    let options = Options {
        knobs: knobs.clone(),
        ..Options::default()
    };
    let runtime = Runtime::init_with(options)?;
    let rank = runtime.rank();
    if runtime.size() != 2 || runtime.reach(1 - rank)?.is_none() {
        let text = "the ranks of 'bench net' are two, on two nodes";
        return Err(BenchError::Usage(text.to_owned()));
    }
    pin(onecopy::machine::spread_processors().get(rank).copied());
    let world = runtime.world();
    let mut perftest = None;
    let mut bare: Box<dyn Side> = match plan.mode {
        NetMode::Tcp => Box::new(Bare(bare_end(&world)?)),
        NetMode::Rc | NetMode::Xrc | NetMode::Ud => {
            if let Some(refusal) = refused_mode(&knobs) {
                return Err(BenchError::Usage(refusal.to_string()));
            }
            let pair = BarePair::open(&knobs, runtime.world(), 1 - rank)?;
            take_over(&runtime, 1 - rank, TAKE_OVER)?;
            let processors = onecopy::machine::spread_processors();
            perftest = Some(Perftest::on(
                pair.chosen(),
                plan.mode == NetMode::Ud,
                [0, 1].map(|rank| processors.get(rank).copied()),
            ));
            Box::new(pair)
        }
    };
    let mut library = Library {
        world: runtime.world(),
        peer: 1 - rank,
    };
    let this = Rank {
        plan,
        world,
        perftest,
    };
    for point in points(plan) {
        let row = this.point(rank, &mut [&mut library, &mut *bare], point)?;
        if rank == 0 {
            show(&row)?;
        }
    }
    drop((library, this, bare));
    Ok(runtime.finalize()?)
}

fn points(plan: &NetPlan) -> Vec<(NetPattern, usize)> {
    let mut points = Vec::new();
    for &pattern in &plan.patterns {
        match pattern {
            NetPattern::Rate => points.push((pattern, 8)),
            _ => points.extend(plan.sizes.iter().map(|&bytes| (pattern, bytes))),
        }
    }
    points
}

fn pin(processor: Option<u16>) {
    let mut set = CpuSet::new();
    if let Some(processor) = processor
        && set.set(usize::from(processor)).is_ok()
    {
        // Where it is not permitted, the kernel's choice is as good as any.
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of one of two ranks that have no device runs out.
    #[test]
    fn who_waits_for_a_lane_stops_in_the_same_round_as_its_peer() {
        const NEVER: Duration = Duration::from_secs(1 << 20);
        for impatient in 0..2 {
            onecopy::local(2, |runtime| {
                let rank = runtime.rank();
                let patience = if rank == impatient {
                    Duration::ZERO
                } else {
                    NEVER
                };
                assert!(take_over(&runtime, 1 - rank, patience).is_err());
                runtime.world().barrier().expect("both are here");
                runtime.finalize().expect("finalize");
            });
        }
    }
}
