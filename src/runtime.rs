// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process's part in a job.

pub mod measure;

use crate::coll::Worker;
use crate::comm::{Comm, REGROUP};
use crate::error::{Error, Result};
use crate::handle::{Handle, RankInner};
use crate::memory::pool::Pool;
use crate::select::other_node;
use crate::wireup::{self, Emergency, Wireup, emergency_of};
use onecopy_btl::cost::Costs;
use onecopy_btl::{LayerId, Refusal};
use onecopy_obs::{CounterSnapshot, Knobs};
use onecopy_shm::fault;
use onecopy_shm::gate::Gate;
use onecopy_shm::heap::HeapBuf;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use onecopy_shm::gate::Threads;

/// How long [`Runtime::reach`] waits for a lane to take over, or to be refused. To find a peer's address may take the
/// kernel a second. Chosen by magnitude: twice that.
const LANE_WAIT: Duration = Duration::from_secs(2);

/// How a runtime is made.
pub struct Options {
    /// The knobs.
    pub knobs: Knobs,
    /// The cost curves that protocols are selected by.
    pub costs: Costs,
    /// How many threads use the runtime.
    pub threads: Threads,
    /// The way into the job; none: what the environment says.
    pub wireup: Option<Box<dyn Wireup>>,
    /// Whether the machine's [profile](crate::tune::profile) is to be measured before the job is joined, if that is
    /// this rank's part in a job of another launcher.
    pub lacks_profile: bool,
}

impl Default for Options {
    fn default() -> Self {
        let knobs = Knobs::default();
        Self {
            costs: Costs::seeds(&knobs),
            knobs,
            threads: Threads::Single,
            wireup: None,
            lacks_profile: false,
        }
    }
}

impl Options {
    /// The options that the environment and the tune file describe.
    pub fn from_env() -> Result<Self> {
        let crate::tune::Settings {
            knobs,
            costs,
            lacks_profile,
            ..
        } = crate::tune::load()?;
        Ok(Self {
            knobs,
            costs,
            lacks_profile,
            ..Self::default()
        })
    }
}

/// One layer as a pair of ranks sees it.
#[derive(Debug, Clone)]
pub struct LayerState {
    /// The layer.
    pub layer: LayerId,
    /// Why it is not used with this peer; none: it was proven.
    pub refusal: Option<Refusal>,
}

/// A process's part in a job.
///
/// ```
/// // Two ranks as threads of this process; `onecopy run -n 2` makes them processes.
/// onecopy::local(2, |rt| {
///     let world = rt.world();
///     if world.rank() == 0 {
///         world.send(&[1.0f64, 2.0], 1, 7).unwrap();
///     } else {
///         let mut numbers = [0.0f64; 2];
///         let status = world.recv(&mut numbers, 0, 7).unwrap();
///         assert_eq!((numbers, status.bytes), ([1.0, 2.0], 16));
///     }
/// });
/// ```
pub struct Runtime {
    handle: Handle,
    finalized: bool,
}

/// How a peer on another node is reached.
#[derive(Debug, Clone, Copy)]
pub struct ReachedPeer {
    /// The layer that carries messages.
    pub carrier: LayerId,
    /// Where the peer listens.
    pub place: SocketAddr,
}

impl Runtime {
    /// Joins the job whose launcher started this process, or makes a job of one rank. Settings come from `ONECOPY_`
    /// variables. One thread may use the runtime; see [`Self::init_with`].
    ///
    /// # Errors
    ///
    /// [`Error::Knob`] and [`Error::TuneFile`] for settings that cannot be used; otherwise those of
    /// [`Self::init_with`].
    pub fn init() -> Result<Self> {
        Self::init_with(Options::from_env()?)
    }

    /// Joins a job with the given options.
    ///
    /// # Errors
    ///  As a rule [`Error::Wireup`] if the launcher or other ranks cannot be reached, [`Error::Segment`] if the node
    /// has too little shared memory.
    pub fn init_with(options: Options) -> Result<Self> {
        let wireup = match options.wireup {
            Some(wireup) => wireup,
            None => {
                let wireup = wireup::from_environment(&options.knobs)?;
                if options.lacks_profile && wireup.prepares_node() {
                    measure::before_joining();
                }
                wireup
            }
        };
        if options.knobs.print_env && wireup.rank() == 0 {
            crate::tune::print_knobs(&options.knobs);
        }
        let worker = Worker::start(options.knobs, options.costs, options.threads, wireup)?;
        let doorbell = worker.engine.core.home.doorbell();
        let (rank, size) = (
            worker.engine.core.me as usize,
            worker.engine.core.size as usize,
        );
        let (heap, buffers) = (
            Arc::clone(&worker.engine.core.buffers.heap),
            worker.engine.core.buffers.pool.clone(),
        );
        let stages = Arc::clone(&worker.engine.core.stages);
        let emergency = emergency_of(&*worker.engine.wireup);
        let shared = RankInner {
            gate: Gate::new(options.threads, worker),
            emergency,
            doorbell,
            heap,
            buffers,
            stages,
            rank,
            size,
        };
        Ok(Self {
            handle: Handle(Arc::new(shared)),
            finalized: false,
        })
    }

    #[cfg(test)]
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Bytes of this rank's segment as the kernel counts them.
    #[doc(hidden)]
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.handle.gate.enter().engine.core.home.bytes()
    }

    /// The communicator of all ranks.
    #[must_use]
    pub fn world(&self) -> Comm {
        Comm::all(self.handle.clone())
    }

    /// This rank's number.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.handle.rank
    }

    /// Ranks in the job.
    #[must_use]
    pub fn size(&self) -> usize {
        self.handle.size
    }

    /// Allocates memory that peers can read in place, so that messages from and to it need a single copy and no
    /// privilege. Zeroed, aligned to a page; given back to the system when dropped.
    ///
    /// ```
    /// onecopy::local(2, |rt| {
    ///     let world = rt.world();
    ///     let mut buffer = rt.alloc(1 << 20).unwrap();
    ///     if world.rank() == 0 {
    ///         buffer.fill(42);
    ///         world.send(&buffer, 1, 0).unwrap();
    ///     } else {
    ///         world.recv(&mut buffer, 0, 0).unwrap();
    ///         assert!(buffer.iter().all(|&byte| byte == 42));
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Alloc`]: the heap's range (`ONECOPY_HEAP_SIZE`) or the node's memory is used up.
    pub fn alloc(&self, bytes: usize) -> Result<HeapBuf> {
        let RankInner { heap, buffers, .. } = &*self.handle;
        let buffer = heap.alloc(bytes).or_else(|error| {
            // The program comes before what lies free in the pool.
            if buffers.release_free(u64::MAX) == 0 {
                return Err(error);
            }
            heap.alloc(bytes)
        })?;
        Ok(buffer)
    }

    /// The pool of temporary buffers, which collectives and the transport use too.
    #[must_use]
    pub fn buffers(&self) -> &Pool {
        &self.handle.buffers
    }

    /// The counters of this rank.
    #[must_use]
    pub fn counters(&self) -> CounterSnapshot {
        let mut worker = self.handle.gate.enter();
        worker.engine.count_wires();
        let counters = &mut worker.engine.core.counters;
        counters.heap_bytes = self.handle.heap.used();
        self.handle.buffers.stats().fill(counters);
        counters.snapshot()
    }

    /// The layers between this rank and `peer`, which is connected now if it was not before.
    pub fn layers(&self, peer: usize) -> Result<Vec<LayerState>> {
        let mut worker = self.handle.gate.enter();
        let rank = worker.engine.core.check_rank(peer)?;
        let own = LayerState {
            layer: LayerId::OWN,
            refusal: None,
        };
        if rank == worker.engine.core.me {
            return Ok(vec![own]);
        }
        let (_, peer) = worker.engine.peer(rank)?;
        let copying = peer.link.refusals();
        let mut states: Vec<_> = copying
            .map(|(layer, refusal)| LayerState {
                layer,
                refusal: refusal.cloned(),
            })
            .collect();
        let shares = peer.endpoint.shares_memory();
        states.push(LayerState {
            layer: LayerId::CHUNKS,
            refusal: (!shares).then(other_node),
        });
        if !shares {
            let by_lane = peer.endpoint.carrier() == LayerId::LANE;
            let refusal = worker.engine.no_lane(rank).or_else(|| {
                let remedy = "talk with the rank: a lane takes over while messages go by the wire";
                (!by_lane).then(|| Refusal::new("no lane has taken over yet", remedy))
            });
            states.extend([
                LayerState {
                    layer: LayerId::LANE,
                    refusal,
                },
                LayerState {
                    layer: LayerId::WIRE,
                    refusal: None,
                },
            ]);
        }
        Ok(states)
    }

    /// The node of a rank. Ranks of one node share memory.
    pub fn node(&self, rank: usize) -> Result<u32> {
        let worker = self.handle.gate.enter();
        let rank = worker.engine.core.check_rank(rank)?;
        Ok(worker.engine.node(rank))
    }

    /// Connects with `peer` and waits until that is done, or cannot be. None: the two share memory. A lane that is
    /// being made is waited for, but not for long; [`layers`](Self::layers) says why there is none.
    pub fn reach(&self, peer: usize) -> Result<Option<ReachedPeer>> {
        let rank = {
            let mut worker = self.handle.gate.enter();
            let rank = worker.engine.core.check_rank(peer)?;
            if worker.engine.shares_node(rank) {
                return Ok(None);
            }
            worker.engine.peer(rank)?;
            rank
        };
        let place = self.handle.wait(|worker| worker.engine.reached(rank))?;
        let until = Instant::now() + LANE_WAIT;
        let carrier = self.handle.wait(|worker| {
            let late = Instant::now() >= until;
            let carrier = worker.engine.settled_carrier(rank);
            carrier.or_else(|| late.then_some(LayerId::WIRE))
        });
        Ok(Some(ReachedPeer { carrier, place }))
    }

    /// The ports of devices by which messages to `peer` on another node go. First comes that of the stream of messages,
    /// then those that carry stripes of long messages besides. None while no lane carries messages.
    pub fn rails(&self, peer: usize) -> Result<Vec<String>> {
        let mut worker = self.handle.gate.enter();
        let rank = worker.engine.core.check_rank(peer)?;
        Ok(worker.engine.rails(rank))
    }

    /// The thresholds of this rank towards `peer`.
    pub fn thresholds(&self, peer: usize) -> Result<crate::select::Thresholds> {
        let mut worker = self.handle.gate.enter();
        let rank = worker.engine.core.check_rank(peer)?;
        let (_, peer) = worker.engine.peer(rank)?;
        Ok(peer.policy.thresholds)
    }

    /// Whether this rank found more ranks than processors, and so waits with less polling.
    #[must_use]
    pub fn is_oversubscribed(&self) -> bool {
        self.handle.gate.enter().engine.waits.policy.oversubscribed
    }

    /// Acknowledges all deaths that are known, and names the dead: receives from any source no longer fail because of
    /// them.
    pub fn acknowledge_deaths(&self) -> Vec<usize> {
        self.handle.gate.enter().engine.lives.acknowledge()
    }

    /// Ends the whole job with `code`.
    pub fn abort(&self, code: i32) -> Result<()> {
        if !self.handle.gate.is_ours() {
            return Err(Error::Forked);
        }
        self.handle.emergency.abort(code)?;
        Ok(())
    }

    /// The way to end the job, of use at any time and on any thread: also within a function of the program that
    /// reduces. In a child of a fork it is of no use, and refuses.
    #[must_use]
    pub fn emergency(&self) -> Arc<dyn Emergency> {
        Arc::clone(&self.handle.emergency)
    }

    /// Leaves the job: waits until everything sent is out and all ranks have come here, then tells the launcher.
    ///
    /// What communicators that outlive it are asked for ends with [`Error::Finalized`], also what is under way. A small
    /// message may still be accepted for sending; nobody receives it.
    ///
    /// A runtime that is dropped instead leaves without waiting for the others. So a rank that gives up early holds up
    /// nobody: a rank that still waits for it gets [`Error::PeerLeft`]. Dropped by a panic, it counts as dead.
    ///
    /// A child of a fork has a copy of the runtime that is of no use to it. Dropping it does nothing, and this is
    /// [`Error::Forked`].
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`] after an abort, [`Error::Wireup`] if the launcher is gone. That a rank has died or left is
    /// none. The runtime has ended all the same.
    pub fn finalize(mut self) -> Result<()> {
        self.leave(true)
    }

    /// Tells ranks on other nodes that nothing more comes, and waits until all that was sent is with them. The end of
    /// this process would destroy what its kernel still keeps for them.
    fn take_leave(&self) {
        self.handle.gate.enter().engine.say_farewell();
        self.handle.wait(|worker| {
            (worker.engine.lives.fatal().is_some() || worker.engine.is_delivered()).then_some(())
        });
    }

    /// Waits until ranks on other nodes have reported the same, but not for long: one that does not may be gone.
    fn hear_others_leave(&self) {
        let since = Instant::now();
        self.handle.wait(|worker| {
            let done = worker.engine.has_heard_farewells() || since.elapsed() > REGROUP;
            (worker.engine.lives.fatal().is_some() || done).then_some(())
        });
    }

    fn leave(&mut self, together: bool) -> Result<()> {
        if std::mem::replace(&mut self.finalized, true) {
            return Ok(());
        }
        if !self.handle.gate.is_ours() {
            // Nothing of the engine may be ended here, not even its copy: what it stands for is the parent's.
            std::mem::forget(self.handle.clone());
            return Err(Error::Forked);
        }
        let flushed = |worker: &mut Worker| {
            (worker.engine.lives.fatal().is_some() || worker.engine.is_flushed()).then_some(())
        };
        self.handle.wait(flushed);
        fault::point("leave.before");
        let met = if together {
            self.world().meet()
        } else {
            Ok(())
        };
        self.handle.wait(flushed);
        fault::point("leave.met");
        self.take_leave();
        let left = self.handle.gate.enter().engine.wireup.leave();
        fault::point("leave.after");
        if together {
            self.hear_others_leave();
        }
        self.handle
            .gate
            .enter()
            .engine
            .end_everything(Error::Finalized);
        match met {
            // Peers that died cannot come; leaving is still in order.
            Ok(())
            | Err(Error::PeerDied { .. } | Error::PeerLeft { .. } | Error::Protocol { .. }) => {
                Ok(left?)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !std::thread::panicking()
            && let Err(error) = self.leave(false)
            // A child that drops its copy does what any program does at its end.
            && !matches!(error, Error::Forked)
        {
            tracing::warn!("leaving the job: {error}");
        }
    }
}

/// Runs `body` on `ranks` ranks that are threads of this process.
///
/// # Panics
/// If the body panics on a rank, or the job cannot be made.
pub fn local(ranks: usize, body: impl Fn(Runtime) + Sync) {
    local_with(ranks, &Knobs::default(), body);
}

/// As [`local`], with knobs.
///
/// # Panics
/// If the body panics on a rank, or the job cannot be made.
pub fn local_with(ranks: usize, knobs: &Knobs, body: impl Fn(Runtime) + Sync) {
    local_of(ranks, knobs, Threads::Single, body);
}

/// As [`local_with`], each rank for so many threads.
pub(crate) fn local_of(
    ranks: usize,
    knobs: &Knobs,
    threads: Threads,
    body: impl Fn(Runtime) + Sync,
) {
    let world = wireup::local::world(ranks).expect("a job of threads");
    run_local(world, knobs, threads, body);
}

/// As [`local_with`], on so many nodes, to which the ranks are dealt out in turn.
///
/// # Panics
/// If the body panics on a rank, or the job cannot be made.
#[doc(hidden)]
pub fn local_of_nodes(ranks: usize, nodes: u32, knobs: &Knobs, body: impl Fn(Runtime) + Sync) {
    let world = wireup::local::world_of_nodes(ranks, nodes).expect("a job of threads");
    run_local(world, knobs, Threads::Single, body);
}

/// As [`local_of_nodes`], of as many ranks as `nodes` has entries: the node of each.
///
/// # Panics
/// As [`local_of_nodes`].
#[doc(hidden)]
pub fn local_on(nodes: &[u32], knobs: &Knobs, body: impl Fn(Runtime) + Sync) {
    let world = wireup::local::world_on(nodes.into()).expect("a job of threads");
    run_local(world, knobs, Threads::Single, body);
}

fn run_local(
    world: Vec<wireup::local::Local>,
    knobs: &Knobs,
    threads: Threads,
    body: impl Fn(Runtime) + Sync,
) {
    std::thread::scope(|scope| {
        for wireup in world {
            let body = &body;
            scope.spawn(move || {
                let options = Options {
                    knobs: knobs.clone(),
                    threads,
                    wireup: Some(Box::new(wireup)),
                    ..Options::default()
                };
                body(Runtime::init_with(options).expect("joining a job of threads"));
            });
        }
    });
}
