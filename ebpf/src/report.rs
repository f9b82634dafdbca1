// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a person or a program reads: the JSON of `onecopy trace` and `onecopy top`.

mod build;

use std::collections::BTreeMap;

use serde::de::value::Error as ValueError;
use serde::de::{Error as _, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::modules;
use crate::observed::{Mechanism, Overhead};
use crate::rdma;
pub use build::{build, who};

/// The version of the form of a report.
pub const VERSION: u32 = 1;

/// One report. Its JSON form is stable: fields are added, never renamed. What makes a file a report is always there.
/// What older versions lack is read as nothing, and what later ones have more is passed over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this form.
    pub version: u32,
    /// Seconds that it covers.
    pub seconds: f64,
    /// The program that was followed; empty for the whole node.
    #[serde(default)]
    pub program: Vec<String>,
    /// The matrix, most bytes first.
    #[serde(deserialize_with = "known_pairs")]
    pub pairs: Vec<Pair>,
    /// Page faults in calls.
    #[serde(default)]
    pub faults: Vec<Faults>,
    /// Waits for address spaces.
    #[serde(default)]
    pub waits: Vec<Waits>,
    /// Single copies that were missed, most bytes first.
    #[serde(default)]
    pub missed: Vec<MissedCopy>,
    /// What observing cost.
    #[serde(default)]
    pub overhead: Overhead,
    /// Counters of onecopy's own ranks.
    #[serde(default)]
    pub ranks: Vec<RankCounters>,
    /// What went over ports of devices for RDMA, of all programs of the node.
    #[serde(default)]
    pub rdma: Vec<rdma::Port>,
    /// What kernel modules counted by themselves, of all programs of the node.
    #[serde(default)]
    pub modules: Vec<modules::Counter>,
    /// What could not be observed, and what would permit it.
    #[serde(default)]
    pub limits: Vec<String>,
}

/// Pairs of mechanisms that this release knows: a later one may have more.
fn known_pairs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Pair>, D::Error> {
    let mut pairs = Vec::<Value>::deserialize(from)?;
    pairs.retain(|pair| {
        let mechanism = pair.get("mechanism");
        // One that is none at all is an error below.
        mechanism.and_then(Value::as_str).is_none_or(|name| {
            Mechanism::deserialize(name.into_deserializer())
                .map_err(|_: ValueError| ())
                .is_ok()
        })
    });
    let pairs = pairs.into_iter().map(Pair::deserialize);
    pairs.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// A process as people know it. What is not known is absent, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedProcess {
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
    pub source: NamedProcess,
    /// Whose memory was written.
    pub sink: NamedProcess,
    /// How.
    pub mechanism: Mechanism,
    /// Calls, those that failed too.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Calls that failed, by the name of the errno.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
    /// Percentiles of a call; absent where no times are measured.
    pub latency_us: Option<Latency>,
    /// Bytes over the time of the calls, in units of 10⁹ bytes per second.
    pub gb_per_s: Option<f64>,
    /// Bytes over the time of the calls less that of faults and waits, where those are known.
    pub copy_gb_per_s: Option<f64>,
    /// Calls by bytes asked for.
    #[serde(default)]
    pub sizes: Vec<SizeBin>,
    /// Page faults of the caller in these calls.
    #[serde(default)]
    pub faults: u64,
    /// Microseconds in which these calls waited for a lock on an address space.
    #[serde(default)]
    pub wait_us: f64,
    /// Flushes of translations in these calls.
    #[serde(default)]
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
    #[serde(default)]
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
    pub who: NamedProcess,
    /// How many.
    pub faults: u64,
}

/// Waits of one process for the lock of an address space, its own included, in observed calls and outside of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// Who waited.
    pub who: NamedProcess,
    /// For whose address space.
    #[serde(default)]
    pub owner: NamedProcess,
    /// How often.
    pub waits: u64,
    /// All together, in microseconds.
    #[serde(default)]
    pub total_us: f64,
    /// The longest, in microseconds.
    #[serde(default)]
    pub longest_us: f64,
}

/// A single copy that was missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedCopy {
    /// What was seen.
    pub what: String,
    /// Why it happens.
    #[serde(default)]
    pub why: String,
    /// What to do.
    #[serde(default)]
    pub remedy: String,
    /// Payload that it concerns; 0 where it is not known.
    #[serde(default)]
    pub bytes: u64,
    /// Between whom.
    #[serde(default)]
    pub who: Vec<NamedProcess>,
}

/// Counters of one rank of onecopy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankCounters {
    /// Which.
    pub who: NamedProcess,
    /// By name, those that are not zero.
    pub counters: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least that a report of version 1 had.
    const OLDEST: &str = r#"{"version": 1, "seconds": 2.5, "pairs": [{"source": {"pid": 1}, "sink": {"rank": 3},
        "mechanism": "cma-read", "calls": 7, "bytes": 70, "latency_us": {"p50": 1.0, "p99": 2.0}}],
        "waits": [{"who": {}, "waits": 1}], "missed": [{"what": "x"}], "overhead": {"events": 7}}"#;

    #[test]
    fn a_report_of_an_older_version_is_read() {
        let report: Report = serde_json::from_str(OLDEST).expect("a report");
        let pair = &report.pairs[0];
        assert_eq!((pair.calls, pair.faults, pair.sizes.len()), (7, 0, 0));
        assert_eq!((pair.source.pid, pair.sink.rank), (Some(1), Some(3)));
        assert_eq!(report.overhead.events, 7);
        assert!(report.program.is_empty() && report.overhead.given_up.is_empty());
    }

    #[test]
    fn a_mechanism_of_a_later_version_is_passed_over() {
        let begin = OLDEST.find("{\"source").expect("a pair");
        let end = OLDEST.find("}}],").expect("its end") + 2;
        let pair = &OLDEST[begin..end];
        let later = pair.replace("cma-read", "of-another-kind");
        let both = OLDEST.replace(pair, &format!("{later}, {pair}"));
        let report: Report = serde_json::from_str(&both).expect("a report");
        assert_eq!(report.pairs.len(), 1);
        assert_eq!(report.pairs[0].mechanism, Mechanism::CmaRead);
        let none = OLDEST.replace("\"cma-read\"", "7");
        serde_json::from_str::<Report>(&none).expect_err("a number is no mechanism");
    }

    #[test]
    fn a_report_of_a_later_version_is_read() {
        let later = OLDEST
            .replacen('{', "{\"later\": [1], ", 1)
            .replacen("\"pid\": 1", "\"pid\": 1, \"later\": {}", 1)
            .replacen("\"calls\"", "\"later\": null, \"calls\"", 1)
            .replacen("\"events\"", "\"later\": 0.5, \"events\"", 1);
        let (one, other): (Report, Report) = (
            serde_json::from_str(OLDEST).expect("a report"),
            serde_json::from_str(&later).expect("a report"),
        );
        assert_eq!(one, other);
    }

    #[test]
    fn what_makes_a_report_is_not_left_out() {
        for name in ["version", "seconds", "pairs", "mechanism", "calls", "bytes"] {
            let without = OLDEST.replacen(&format!("\"{name}\""), "\"other\"", 1);
            assert!(serde_json::from_str::<Report>(&without).is_err(), "{name}");
        }
    }
}
