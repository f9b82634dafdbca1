// SPDX-License-Identifier: MIT OR Apache-2.0
//! How ranks find one another: who is in the job, what each is like, and the descriptor of each one's segment.
//!
//! The rest of the runtime sees only the trait [`Wireup`]. There are four of them. [`singleton`] is for a program that
//! no launcher started, [`local`] for ranks that are threads of one process. [`launched`] is for ranks that `onecopy
//! run` started, and `foreign` for ranks of another launcher. A wire-up brings no bytes of a message: after the
//! introduction two ranks talk through their segments only.

mod acceptor;
mod address;
#[doc(hidden)]
pub mod broker;
mod digest;
pub(crate) mod environment;
mod foreign;
mod host;
pub mod launched;
pub mod local;
mod meet;
pub mod message;
pub(crate) mod nodes;
pub(crate) mod oob;
#[doc(hidden)]
pub mod pmi;
mod pmix;
#[doc(hidden)]
pub mod poll_args;
pub mod singleton;
mod table;
#[cfg(test)]
pub(crate) mod unset;

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use onecopy_btl::lanes;
use onecopy_btl::module::Export;
use onecopy_obs::Knobs;
use onecopy_shm::fdpass::FdPassError;
use onecopy_shm::fork;

/// Version of the messages between ranks and launcher, and of what a [`Card`] means.
pub const PROTOCOL_VERSION: u32 = 3;

/// Environment variable with the number of the descriptor that leads to the launcher.
pub const ENV_FD: &str = "ONECOPY_JOB_FD";
/// Environment variable with the rank's number.
pub const ENV_RANK: &str = "ONECOPY_JOB_RANK";
/// Environment variable with the number of ranks.
pub const ENV_SIZE: &str = "ONECOPY_JOB_SIZE";
/// Environment variable with a number that only the ranks of one job share.
pub const ENV_JOB: &str = "ONECOPY_JOB_ID";

/// A number for a job that this process starts, of what lies at `place` as long as the job runs.
#[must_use]
pub fn job_number(place: usize) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((std::process::id(), place))
}

/// What a rank publishes about itself when it joins.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// Inode number of its pid namespace; 0 if unknown.
    pub pid_ns: u64,
    /// Inode number of its user namespace; 0 if unknown.
    pub user_ns: u64,
    /// Its user id, as it sees it itself.
    pub uid: u32,
    /// Processors that it may run on, ascending.
    pub affinity: Vec<u16>,
    /// Processors that its control group grants it; 0 for no limit.
    pub quota_cpus: f32,
    /// Its [`PROTOCOL_VERSION`].
    pub version: u32,
    /// Numbers by which peers may reach its memory through a kernel module.
    pub export: Export,
    /// Where it accepts connections of ranks on other nodes; none in a job of one node.
    pub listens: Option<SocketAddr>,
}

/// What a rank of a job of several nodes needs to meet those on other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetIdentity {
    /// The address of its own node by which the others reach it.
    pub address: IpAddr,
    /// What only ranks of the job know. It never travels; a rank that connects proves that it knows it.
    pub secret: [u8; 32],
}

impl Card {
    /// The card of this process. What cannot be found out is left empty; the quota is the caller's to fill in.
    pub fn of_this_process() -> Self {
        let namespace = |kind: &str| {
            std::fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |found| found.ino())
        };
        Self {
            pid_ns: namespace("pid"),
            user_ns: namespace("user"),
            uid: nix::unistd::getuid().as_raw(),
            affinity: own_processors(),
            quota_cpus: 0.0,
            version: PROTOCOL_VERSION,
            export: Export::default(),
            listens: None,
        }
    }
}

/// Processors in this thread's affinity mask, ascending; empty if the kernel does not say.
pub fn own_processors() -> Vec<u16> {
    let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)) else {
        return Vec::new();
    };
    (0..nix::sched::CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .filter_map(|cpu| u16::try_from(cpu).ok())
        .collect()
}

/// What a rank needs to reach a peer.
#[derive(Debug)]
pub struct Introduction {
    /// The memory that the peer shares: its segment.
    pub memory: OwnedFd,
    /// The descriptor by which the peer grants its memory through the kernel module; none if it has no such module.
    pub grant: Option<OwnedFd>,
    /// Becomes readable when the peer's process ends; none if the kernel refused it or the peer is a thread of this
    /// process.
    pub pidfd: Option<OwnedFd>,
    /// The peer's process id in our pid namespace; none if it is not visible there, or has ended and was waited for.
    pub pid: Option<i32>,
    /// The peer's user id as the launcher sees it.
    pub uid: u32,
}

/// How a rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It is gone, but how is not known: for example, it was not the launcher's own child.
    Unknown,
    /// Its node does not answer any more.
    NodeLost,
    /// Its node may be well, but no host is left that would forward its events.
    Unheard,
}

impl Death {
    /// As two numbers.
    pub(crate) fn encode(self) -> EncodedDeath {
        let (what, detail) = match self {
            Self::Code(code) => (0, code),
            Self::Signal(signal) => (1, signal),
            Self::Unknown => (2, 0),
            Self::NodeLost => (3, 0),
            Self::Unheard => (4, 0),
        };
        EncodedDeath { what, detail }
    }

    /// What [`Self::encode`] made two numbers of; none if it made these of nothing.
    pub(crate) fn decode(encoded: EncodedDeath) -> Option<Self> {
        Some(match encoded.what {
            0 => Self::Code(encoded.detail),
            1 => Self::Signal(encoded.detail),
            2 => Self::Unknown,
            3 => Self::NodeLost,
            4 => Self::Unheard,
            _ => return None,
        })
    }
}

/// A [`Death`] in two numbers.
#[derive(Clone, Copy)]
pub(crate) struct EncodedDeath {
    pub(crate) what: u8,
    pub(crate) detail: i32,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => match nix::sys::signal::Signal::try_from(*signal) {
                Ok(name) => write!(f, "killed by signal {signal} ({name})"),
                Err(_) => write!(f, "killed by signal {signal}"),
            },
            Self::Unknown => f.write_str("ended or closed its connection to the job"),
            Self::NodeLost => f.write_str("its node does not answer any more"),
            Self::Unheard => f.write_str(
                "nothing is known of its node: the host that forwarded its events is gone",
            ),
        }
    }
}

/// Something that happened to the job while the rank did something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank ended without leaving the job.
    Died {
        /// Which.
        rank: usize,
        /// How.
        death: Death,
    },
    /// A rank left the job in an orderly way.
    Left {
        /// Which.
        rank: usize,
    },
    /// A rank aborted the job.
    Abort {
        /// With this code.
        code: i32,
    },
}

/// A rank that has not joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Which.
    pub rank: usize,
    /// Whether its process still runs.
    pub running: bool,
}

fn list_missing(missing: &[Missing]) -> String {
    let part = |running: bool, what: &str| {
        let ranks: Vec<String> = missing
            .iter()
            .filter(|one| one.running == running)
            .map(|one| one.rank.to_string())
            .collect();
        (!ranks.is_empty()).then(|| format!("{} ({what})", ranks.join(", ")))
    };
    let parts: Vec<String> = [part(true, "still running"), part(false, "already ended")]
        .into_iter()
        .flatten()
        .collect();
    parts.join("; ")
}

/// Ways in which a wire-up fails. Each names the call, the object, the reason, and a remedy where there is one.
#[derive(Debug, thiserror::Error)]
pub enum WireupError {
    /// Not all ranks joined in time.
    #[error(
        "join: ranks that did not join within {} s: {}. Does every rank initialise onecopy? Raise ONECOPY_JOIN_TIMEOUT if they start slowly",
        waited.as_secs_f32(), list_missing(missing)
    )]
    Timeout {
        /// Who is missing.
        missing: Vec<Missing>,
        /// How long the others waited.
        waited: Duration,
    },
    /// Ranks can no longer join.
    #[error(
        "join: ranks that ended or closed their connection to the job before they joined: {}. See their output for the reason",
        list_missing(missing)
    )]
    Absent {
        /// Who will not come.
        missing: Vec<Missing>,
    },
    /// The launcher is gone.
    #[error("{call}: the launcher is gone; the job cannot go on")]
    LauncherGone {
        /// The call that found out.
        call: &'static str,
    },
    /// The rank that introduces the others is gone.
    #[error(
        "{call}: rank {rank} is gone, which introduced the ranks of this job. Ranks that have not talked yet cannot find one another any more"
    )]
    HostGone {
        /// The call that found out.
        call: &'static str,
        /// That rank.
        rank: usize,
    },
    /// A foreign launcher is there but of no use.
    #[error("{call}: started by {launcher}: {reason}")]
    Foreign {
        /// The call.
        call: &'static str,
        /// What is known of the launcher.
        launcher: String,
        /// What does not work, and what helps.
        reason: String,
    },
    /// The launcher does not answer.
    #[error("{call}: the launcher has not answered for {} s; is it stopped?", waited.as_secs())]
    NoAnswer {
        /// The call that waited.
        call: &'static str,
        /// How long.
        waited: Duration,
    },
    /// The launcher refuses.
    #[error("{call}: refused by the launcher: {reason}")]
    Refused {
        /// The call.
        call: &'static str,
        /// The launcher's words.
        reason: String,
    },
    /// This process is a child of the rank, made by `fork`.
    #[error("{call}: this process was forked from a rank and is none itself")]
    Forked {
        /// The call.
        call: &'static str,
    },
    /// There is no such rank.
    #[error("{call}: there is no rank {rank} in a job of {size}")]
    NoSuchRank {
        /// The call.
        call: &'static str,
        /// The rank asked for.
        rank: usize,
        /// Ranks in the job.
        size: usize,
    },
    /// There is no memory to be shared.
    #[error(
        "{call}: rank {rank} is on another node (node {node}), and shares no memory with this one"
    )]
    OtherNode {
        /// The call.
        call: &'static str,
        /// The rank asked for.
        rank: usize,
        /// Its node.
        node: u32,
    },
    /// A call came out of order.
    #[error("{call}: {reason}")]
    Order {
        /// The call.
        call: &'static str,
        /// What was wrong.
        reason: &'static str,
    },
    /// The environment does not describe a job.
    #[error(
        "{name}={value:?}: {reason}. These variables are set by `onecopy run` for the ranks that it starts: unset them to run alone"
    )]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The process on the other side belongs to another user.
    #[error(
        "{call}: the launcher's end belongs to user {theirs}, we are user {ours}; only our own launcher or root's is trusted"
    )]
    Stranger {
        /// The call.
        call: &'static str,
        /// The other side's user id.
        theirs: u32,
        /// Our user id.
        ours: u32,
    },
    /// A message could not be understood.
    #[error(
        "{call}: bad message from the launcher: {source}; are program and launcher of the same onecopy release?"
    )]
    BadMessage {
        /// The call.
        call: &'static str,
        /// What is wrong with it.
        source: message::DecodeError,
    },
    /// A message came out of its turn, or with something else than it announces.
    #[error(
        "{call}: the launcher sent something else than {awaited}; are program and launcher of the same onecopy release?"
    )]
    Unexpected {
        /// The call.
        call: &'static str,
        /// What should have come.
        awaited: &'static str,
    },
    /// A job has more ranks than one can have.
    #[error(
        "{call}: {ranks} ranks are beyond the limit of {} ranks in a job",
        message::MAX_RANKS
    )]
    TooManyRanks {
        /// The call.
        call: &'static str,
        /// How many ranks were wanted.
        ranks: usize,
    },
    /// The connection to the launcher failed.
    #[error("{call}: connection to the launcher: {source}")]
    Transport {
        /// The call.
        call: &'static str,
        /// What failed.
        source: FdPassError,
    },
    /// A system call failed.
    #[error("{call}: {what}: {source}{}", remedy(source))]
    System {
        /// The call of this interface.
        call: &'static str,
        /// The system call and its object.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// What helps against a failed system call, as the end of its message.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.raw_os_error().map(nix::errno::Errno::from_raw) {
        Some(nix::errno::Errno::EMFILE) => "; raise the limit on descriptors (ulimit -n)",
        Some(nix::errno::Errno::ENFILE) => "; the system has no descriptors left (fs.file-max)",
        _ => "",
    }
}

/// The way into a job. One object per rank, used by one thread at a time.
pub trait Wireup: Send {
    /// This rank's number.
    fn rank(&self) -> usize;

    /// Ranks in the job.
    fn size(&self) -> usize;

    /// A number that only the ranks of this job on this node share, for tools that observe; 0 if there is none.
    fn job(&self) -> u64 {
        0
    }

    /// Whether this rank is the first of several on its node, and no launcher of ours has prepared the node. Then it
    /// does what is to be done there once, before it joins: the others wait for it.
    fn prepares_node(&self) -> bool {
        false
    }

    /// Keeps the descriptor by which this rank grants its memory to peers, to be published with the next
    /// [`join`](Wireup::join). A wire-up that cannot pass it on leaves it: peers then do without.
    fn grant(&mut self, grant: Option<BorrowedFd<'_>>) -> Result<(), WireupError> {
        let _ = grant;
        Ok(())
    }

    /// Publishes this rank's card and segment; returns all cards, by rank, once every rank has joined.
    fn join(&mut self, card: Card, segment: BorrowedFd<'_>) -> Result<Vec<Card>, WireupError>;

    /// The peer's segment and identity. Waits shortly; answered even for a peer that is dead or has left. Its `pidfd`
    /// then reports the end.
    fn introduce(&mut self, peer: usize) -> Result<Introduction, WireupError>;

    /// The node of a rank, the same at all ranks; ranks of one node share memory.
    fn node(&self, rank: usize) -> u32 {
        let _ = rank;
        0
    }

    /// What this rank needs to meet ranks on other nodes; none in a job of one node. Known before [`join`](Self::join).
    fn net(&self) -> Option<NetIdentity> {
        None
    }

    /// What opens the device of this rank's lanes to ranks on other nodes; none: this host's.
    fn lanes(&self) -> Option<lanes::Open> {
        None
    }

    /// A descriptor that is readable when [`poll`](Wireup::poll) has something; none if this wire-up never has.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The next event, if there is one. Never waits.
    fn poll(&mut self) -> Result<Option<Event>, WireupError>;

    /// Leaves the job in an orderly way: the others see [`Event::Left`], and the end of this process is no death any
    /// more.
    fn leave(&mut self) -> Result<(), WireupError>;

    /// The way to end the job: of use also while another thread uses the wire-up.
    fn emergency(&self) -> Arc<dyn Emergency>;

    /// Ends the whole job with `code`: the others see [`Event::Abort`].
    fn abort(&mut self, code: i32) -> Result<(), WireupError> {
        self.emergency().abort(code)
    }
}

/// Ends a job, at any time and from any thread: also from within a function of the program that the engine has called.
pub trait Emergency: Send + Sync {
    /// Ends the whole job with `code`: the others see [`Event::Abort`].
    fn abort(&self, code: i32) -> Result<(), WireupError>;
}

/// The way to end the job of a rank, of no use in a child that the rank has forked. What reaches the launcher or the
/// host from the child would be taken for the rank's, or would cost the rank its connection.
struct RankEmergency {
    inner: Arc<dyn Emergency>,
    /// The rank's process, as [`fork::generation`] numbers it.
    process: u32,
}

impl Emergency for RankEmergency {
    fn abort(&self, code: i32) -> Result<(), WireupError> {
        if self.process != fork::generation() {
            return Err(WireupError::Forked { call: "abort" });
        }
        self.inner.abort(code)
    }
}

/// The way to end the job that `wireup` offers, for the rank's process alone.
pub(crate) fn emergency_of(wireup: &dyn Wireup) -> Arc<dyn Emergency> {
    fork::watch();
    Arc::new(RankEmergency {
        inner: wireup.emergency(),
        process: fork::generation(),
    })
}

/// What a process exits with when it fails with `code`, of which the system keeps eight bits: never 0.
#[must_use]
pub fn exit_code(code: i32) -> i32 {
    match code & 0xff {
        0 => 1,
        kept => kept,
    }
}

/// The wire-up that the environment describes: the launcher's if one started this process, ours before others;
/// otherwise a job of one rank. A launcher that is there but cannot be used is an error. Of another launcher's job,
/// `knobs` say how long ranks wait to meet, and where nodes reach one another.
pub fn from_environment(knobs: &Knobs) -> Result<Box<dyn Wireup>, WireupError> {
    if let Some(wireup) = launched::Launched::from_environment()? {
        return Ok(Box::new(wireup));
    }
    match foreign::Foreign::from_environment(knobs)? {
        Some(wireup) => Ok(Box::new(wireup)),
        None => Ok(Box::new(singleton::Singleton::new())),
    }
}
