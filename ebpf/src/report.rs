// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a person or a program reads: the JSON of `onecopy trace` and `onecopy top`.

mod build;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::observed::{Mechanism, Overhead};
use crate::rdma;
pub use build::{build, who};

/// The version of the form of a report.
pub const VERSION: u32 = 1;

/// One report. Its JSON form is stable: fields are added, never renamed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this form.
    pub version: u32,
    /// Seconds that it covers.
    pub seconds: f64,
    /// The program that was followed; empty for the whole node.
    pub program: Vec<String>,
    /// The matrix, most bytes first.
    pub pairs: Vec<Pair>,
    /// Page faults in calls.
    pub faults: Vec<Faults>,
    /// Waits for address spaces.
    pub waits: Vec<Waits>,
    /// Single copies that were missed, most bytes first.
    pub missed: Vec<Missed>,
    /// What observing cost.
    pub overhead: Overhead,
    /// Counters of onecopy's own ranks.
    pub ranks: Vec<RankCounters>,
    /// What went over ports of devices for RDMA, of all programs of the node.
    #[serde(default)]
    pub rdma: Vec<rdma::Port>,
    /// What could not be observed, and what would permit it.
    pub limits: Vec<String>,
}

/// A process as people know it. What is not known is absent, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Who {
    /// Its id in this node's outermost namespace.
    pub pid: Option<u32>,
    /// Its rank.
    pub rank: Option<u32>,
    /// Its job.
    pub job: Option<String>,
    /// Its command's name.
    pub comm: Option<String>,
    /// Its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// `NAMESPACE:PID`, where only an id in a pid namespace is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_namespace: Option<String>,
}

/// One cell of the matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Whose memory was read.
    pub source: Who,
    /// Whose memory was written.
    pub sink: Who,
    /// How.
    pub mechanism: Mechanism,
    /// Calls, those that failed too.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Calls that failed, by the name of the errno.
    pub errors: BTreeMap<String, u64>,
    /// Percentiles of a call; absent where no times are measured.
    pub latency_us: Option<Latency>,
    /// Bytes over the time of the calls, in units of 10⁹ bytes per second.
    pub gb_per_s: Option<f64>,
    /// Bytes over the time of the calls less that of faults and waits, where those are known.
    pub copy_gb_per_s: Option<f64>,
    /// Calls by bytes asked for.
    pub sizes: Vec<SizeBin>,
    /// Page faults of the caller in these calls.
    pub faults: u64,
    /// Microseconds in which these calls waited for a lock on an address space.
    pub wait_us: f64,
    /// Flushes of translations in these calls.
    pub flushes: u64,
}

/// Percentiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// 99 of 100 calls took less.
    pub p99: f64,
    /// 999 of 1000 calls took less.
    pub p999: f64,
}

/// Calls that asked for `from` up to, and not including, `below` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeBin {
    /// The least.
    pub from: u64,
    /// The first size beyond.
    pub below: u64,
    /// Calls.
    pub calls: u64,
}

/// Page faults of one process in its calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Whose.
    pub who: Who,
    /// How many.
    pub faults: u64,
}

/// Waits of one process for the address space of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// Who waited.
    pub who: Who,
    /// For whose address space.
    pub owner: Who,
    /// How often.
    pub waits: u64,
    /// All together, in microseconds.
    pub total_us: f64,
    /// The longest, in microseconds.
    pub longest_us: f64,
}

/// A single copy that was missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// What was seen.
    pub what: String,
    /// Why it happens.
    pub why: String,
    /// What to do.
    pub remedy: String,
    /// Payload that it concerns; 0 where it is not known.
    pub bytes: u64,
    /// Between whom.
    pub who: Vec<Who>,
}

/// Counters of one rank of onecopy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankCounters {
    /// Which.
    pub who: Who,
    /// By name, those that are not zero.
    pub counters: BTreeMap<String, u64>,
}
