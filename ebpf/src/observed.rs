// SPDX-License-Identifier: MIT OR Apache-2.0
//! What collectors give: figures since the start, by process ids of this node.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// Defines [`Mechanism`]: those of the kernel and of modules, then those that ranks count, each with its name.
macro_rules! mechanisms {
    (
        of_kernel { $($(#[doc = $seen:literal])+ $calls:ident = $call:literal,)+ }
        of_ranks { $($(#[doc = $doc:literal])+ $layer:ident = $name:literal,)+ }
    ) => {
        /// How bytes got from one process to another.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Mechanism {
            $($(#[doc = $seen])+ #[serde(rename = $call)] $calls,)+
            $($(#[doc = $doc])+ #[serde(rename = $name)] $layer,)+
        }

        impl Mechanism {
            /// All.
            pub const ALL: &[Self] = &[$(Self::$calls,)+ $(Self::$layer),+];

            /// Those that onecopy's ranks count, each since its own beginning.
            pub const OF_RANKS: &[Self] = &[$(Self::$layer),+];

            /// Whether onecopy's ranks count it.
            #[must_use]
            pub const fn is_of_ranks(self) -> bool {
                matches!(self, $(Self::$layer)|+)
            }

            /// As people write it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$calls => $call,)+
                    $(Self::$layer => $name,)+
                }
            }
        }
    };
}

mechanisms! {
    of_kernel {
        /// `process_vm_readv`: the sink calls.
        CmaRead = "cma-read",
        /// `process_vm_writev`: the source calls.
        CmaWrite = "cma-write",
        /// Memory of the source was attached by the sink, by XPMEM's interface; bytes are those attached.
        XpmemAttach = "xpmem-attach",
        /// Pages of attached memory that were shown at first touch; bytes are those shown.
        XpmemFault = "xpmem-fault",
        /// A copy by KNEM's interface, as the module tells it; either side calls.
        KnemCopy = "knem-copy",
    }
    of_ranks {
        /// onecopy: loads from memory that a module attached.
        Xpmem = "xpmem",
        /// onecopy: a module's copy, as the runtime counts it.
        Knem = "knem",
        /// onecopy: loads from or stores into the other's heap.
        Heap = "heap",
        /// onecopy: the kernel's copy, as the runtime counts it.
        Cma = "cma",
        /// onecopy: in slots and chunks of shared memory.
        Cico = "cico",
        /// onecopy: by a device for RDMA.
        Verbs = "verbs",
        /// onecopy: by a stream between nodes.
        Tcp = "tcp",
        /// onecopy: by one copy of a CUDA device, from another device's memory or its own.
        Device = "device",
    }
}

/// The other process of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// A process, by its id as this node's outermost namespace says it.
    Process(u32),
    /// An id in the caller's pid namespace that could not be translated.
    InNamespace {
        /// The inode of the namespace.
        namespace: u64,
        /// The id that the call gave.
        pid: i32,
    },
    /// A rank of the same job whose process is not known.
    Rank(u32),
    /// Not known.
    Unknown,
}

/// Whose a process is. That decides who may read its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its user, as the node's outermost namespace numbers it; none if not known.
    pub user: Option<u32>,
    /// The inode of its user namespace; none if not known.
    pub namespace: Option<u64>,
}

impl Owner {
    /// What another look at the same process adds.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            user: self.user.or(other.user),
            namespace: self.namespace.or(other.namespace),
        }
    }
}

/// What was seen of one process, so that it keeps its name after it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Its command's name.
    pub comm: String,
    /// The inode of its pid namespace; 0 if not known.
    pub namespace: u64,
    /// Its id there; 0 if not known.
    pub local_pid: i32,
    /// Whose it is.
    pub owner: Owner,
    /// Its rank, if it is known.
    pub rank: Option<u32>,
    /// The job, as its launcher names it.
    pub job: Option<String>,
    /// The container, if its control group names one.
    pub container: Option<String>,
    /// When it began, in ticks as `/proc` says it, which tells it from others that had its id; none if not known.
    pub started: Option<u64>,
    /// Whether it has ended.
    pub ended: bool,
}

/// Which copies are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairKey {
    /// The process that made the call; of what onecopy's ranks count, the receiver.
    pub caller: u32,
    /// The other one.
    pub peer: Peer,
    /// How the bytes went.
    pub mechanism: Mechanism,
    /// Whether the caller wrote into the other's memory, which makes it the source.
    pub writes: bool,
}

/// What one caller did with one peer by one mechanism.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairCounts {
    /// Calls, those that failed too.
    pub calls: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Calls that failed, by errno.
    pub errors: BTreeMap<i32, u64>,
    /// Nanoseconds from entry to exit; empty where none are measured.
    pub latency_ns: Histogram,
    /// Nanoseconds of all calls together.
    pub time_ns: u64,
    /// Bytes asked for, per call.
    pub sizes: Histogram,
    /// Bytes that calls asked for and did not get.
    pub missing_bytes: u64,
    /// Page faults of the caller while its calls ran.
    pub faults: u64,
    /// Calls with more than one piece of remote memory, and those pieces.
    pub vectored: (u64, u64),
    /// Waits for a lock on an address space while a call ran, in nanoseconds.
    pub wait_ns: u64,
    /// Flushes of translations while calls ran.
    pub flushes: u64,
}

/// Waits of one process for the lock of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who waited.
    pub waiter: u32,
    /// Whose address space; none if its process is not known.
    pub owner: Option<u32>,
    /// How often.
    pub waits: u64,
    /// All of these waits, in nanoseconds.
    pub total_ns: u64,
    /// The longest.
    pub longest_ns: u64,
}

/// What observing costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overhead {
    /// Nanoseconds that an observed call takes longer, as measured on this machine when observing began.
    pub ns_per_event: f64,
    /// Nanoseconds that every other system call of the node takes longer.
    pub ns_per_other_call: f64,
    /// Events seen.
    pub events: u64,
    /// Records that were lost because nobody took them in time. Counts are exact all the same.
    pub dropped: u64,
    /// Calls or processes that found no place in a table: figures lack them.
    pub not_counted: u64,
    /// The same by the user whose calls and processes they were. Of several users none takes the place of others.
    pub not_counted_by_user: BTreeMap<u32, u64>,
    /// What was given up to stay within the permitted overhead, in the order in which it went.
    pub given_up: Vec<String>,
}

/// One event of a timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When it began, in nanoseconds of the monotonic clock.
    pub start_ns: u64,
    /// How long it took; none for a moment.
    pub duration_ns: Option<u64>,
    /// Whose it is.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// What happened.
    pub what: EventKind,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// A copy.
    Copy {
        /// How.
        mechanism: Mechanism,
        /// With whom.
        peer: Peer,
        /// Bytes asked for.
        asked: u64,
        /// Bytes copied, or a negative errno.
        result: i64,
        /// Page faults of the caller meanwhile.
        faults: u32,
    },
    /// A tracepoint of onecopy's runtime: its name and its arguments, by name.
    Runtime {
        /// The name, as `docs/counters.md` has it.
        name: &'static str,
        /// Argument names and values.
        args: Vec<(&'static str, i64)>,
    },
}

/// Figures since observing began. Later ones of the same collector hold the earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Since when.
    pub elapsed: Duration,
    /// The processes that occur.
    pub tasks: BTreeMap<u32, Task>,
    /// The matrix.
    pub pairs: BTreeMap<PairKey, PairCounts>,
    /// Who waits for whose address space.
    pub waits: Vec<Wait>,
    /// What it costs.
    pub overhead: Overhead,
    /// Counters of the runtime's own ranks, per process, by name.
    pub counters: BTreeMap<u32, Vec<(&'static str, u64)>>,
}

impl Observed {
    /// Adds what another collector has seen of the same time. No two have a mechanism in common, so no row is lost.
    pub fn join(&mut self, other: Self) {
        self.elapsed = self.elapsed.max(other.elapsed);
        for (pid, theirs) in other.tasks {
            let task = self.tasks.entry(pid).or_default();
            if task.comm.is_empty() {
                task.comm = theirs.comm;
            }
            if task.namespace == 0 {
                (task.namespace, task.local_pid) = (theirs.namespace, theirs.local_pid);
            }
            task.owner = task.owner.or(theirs.owner);
            task.rank = task.rank.or(theirs.rank);
            task.job = task.job.take().or(theirs.job);
            task.container = task.container.take().or(theirs.container);
            task.started = task.started.or(theirs.started);
            task.ended |= theirs.ended;
        }
        self.pairs.extend(other.pairs);
        self.waits.extend(other.waits);
        self.counters.extend(other.counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mechanism_is_written_as_its_json_is() {
        for &mechanism in Mechanism::ALL {
            let json = serde_json::to_string(&mechanism).expect("text");
            assert_eq!(json, format!("\"{}\"", mechanism.name()));
        }
    }

    #[test]
    fn the_pages_name_each_mechanism() {
        let pages = [
            include_str!("../../docs/tracing.md"),
            include_str!("../../docs/trace-json.md"),
        ];
        for mechanism in Mechanism::ALL {
            let name = format!("`{}`", mechanism.name());
            assert!(pages.iter().all(|page| page.contains(&name)), "{name}");
        }
    }

    #[test]
    fn what_one_collector_lacks_the_other_gives() {
        let task = |comm: &str, rank| Task {
            comm: comm.to_owned(),
            rank,
            ..Task::default()
        };
        let mut kernel = Observed::default();
        kernel.tasks.insert(1, task("seen", None));
        let mut own = Observed::default();
        own.tasks.insert(1, task("other", Some(3)));
        own.tasks.insert(2, task("b", Some(4)));
        kernel.join(own);
        assert_eq!(kernel.tasks[&1].comm, "seen");
        assert_eq!(kernel.tasks[&1].rank, Some(3));
        assert_eq!(kernel.tasks.len(), 2);
    }
}
