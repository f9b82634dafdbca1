// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of a launcher that speaks PMIx (Open MPI's mpirun, PRRTE, Slurm with its pmix plugin), by libpmix.
//!
//! The library is opened at run time. Where it cannot be used, or no server answers, nothing has been done yet, and the
//! ranks may still meet by their environment. The reason is kept, and reported if they cannot. All ranks of a job must
//! find the same way. A rank that finds another one does not meet the others, and ends with an error in time.

use std::time::Duration;

use pmix_sys::{Client, Failure};

use super::message::MAX_RANKS;
use super::table::Table;
use super::{WireupError, environment};

/// What errors call the launcher.
pub(super) const LAUNCHER: &str = "a launcher that speaks PMIx";

/// What a PMIx launcher leaves for every rank.
const TRACES: [&str; 2] = ["PMIX_NAMESPACE", "PMIX_RANK"];

/// A rank's place in a job, and the job's table.
#[derive(Debug)]
pub(super) struct Pmix {
    client: Client,
    rank: usize,
    size: usize,
}

/// What came of a launcher's traces.
#[derive(Debug)]
pub(super) enum Discovery {
    /// Its table.
    Table(Box<Pmix>),
    /// Why there is none that can be used.
    Unusable(String),
}

/// Whether a PMIx launcher has left traces.
pub(super) fn is_present() -> bool {
    TRACES.iter().all(|name| std::env::var_os(name).is_some())
}

impl Pmix {
    /// Joins the job that the launcher's traces name.
    pub(super) fn from_environment(limit: Duration) -> Result<Discovery, WireupError> {
        let client = match Client::join(limit) {
            Ok(client) => client,
            Err(failure @ (Failure::Missing(_) | Failure::Unreached { .. })) => {
                return Ok(Discovery::Unusable(failure.to_string()));
            }
            Err(failure) => return Err(failed("init", &failure)),
        };
        let (rank, size) = (client.rank(), client.size());
        if size > MAX_RANKS {
            return Err(WireupError::Foreign {
                call: "init",
                launcher: LAUNCHER.to_owned(),
                reason: format!(
                    "its number of ranks, {size}, is {}",
                    environment::too_many()
                ),
            });
        }
        let library = client.library();
        tracing::info!(
            "rank {rank} of {size} meets the others by PMIx: {}, {}",
            library.version(),
            library.path()
        );
        Ok(Discovery::Table(Box::new(Self {
            client,
            rank: rank as usize,
            size: size as usize,
        })))
    }
}

fn failed(call: &'static str, failure: &Failure) -> WireupError {
    let remedy = match failure {
        Failure::Late { .. } => {
            ". Does every rank initialise onecopy? Raise ONECOPY_JOIN_TIMEOUT if they start slowly"
        }
        _ => "",
    };
    WireupError::Foreign {
        call,
        launcher: LAUNCHER.to_owned(),
        reason: format!("{failure}{remedy}"),
    }
}

impl Table for Pmix {
    fn launcher(&self) -> &'static str {
        LAUNCHER
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn longest_value(&self) -> usize {
        self.client.longest_value()
    }

    fn put(&mut self, call: &'static str, key: &str, value: &str) -> Result<(), WireupError> {
        let put = self.client.put(key, value);
        put.map_err(|failure| failed(call, &failure))
    }

    fn get(&mut self, call: &'static str, rank: usize, key: &str) -> Result<String, WireupError> {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        let value = self.client.get(rank, key);
        value.map_err(|failure| failed(call, &failure))
    }

    fn barrier(&mut self, call: &'static str) -> Result<(), WireupError> {
        let fenced = self.client.fence();
        fenced.map_err(|failure| failed(call, &failure))
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        let left = self.client.finalize();
        left.map_err(|failure| failed("leave", &failure))
    }

    fn abort(&mut self, code: i32) -> Result<(), WireupError> {
        let aborted = self.client.abort(code);
        aborted.map_err(|failure| failed("abort", &failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_does_not_come_is_reported_with_the_remedy() {
        let late = Failure::Late {
            function: "PMIx_Fence",
            waited: Duration::from_secs(3),
        };
        let text = failed("join", &late).to_string();
        for part in ["join", "PMIx_Fence", "within 3 s", "ONECOPY_JOIN_TIMEOUT"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
