// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wire-up of ranks that a foreign launcher started. hydra (MPICH, Intel MPI) and Slurm go by PMI-1. Open MPI's
//! mpirun, PRRTE and Slurm go by PMIx. Where neither is to be had, ranks go by what launchers leave in the environment.
//!
//! Rank 0 opens a listener (`meet.rs`) and introduces the others (`host.rs`); they come with a secret. Where there is a
//! table (`table.rs`), which only the job's ranks see, it carries the secret and the way to the listener. Then the job
//! may span nodes: `gather.rs`. Where there is only the environment, the listener's name is derived from the launcher's
//! number of the job. The kernel reports the user id of a caller, which decides whether it may come in.
//!
//! A launcher that is there but of no use is an error, never a job of one rank. N copies of a program, each taking
//! itself for the whole job, would overwrite one another's results.

mod gather;
#[cfg(test)]
pub(super) use gather::tests::job;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use onecopy_obs::Knobs;
use onecopy_shm::fdpass;

use super::host::{Config, FIRST, Host, StartedHost};
use super::launched::Launched;
use super::meet::{Address, BASES, Folder, Listener};
use super::nodes::Nodes;
use super::singleton::Singleton;
use super::table::Table;
use super::{
    Card, Emergency, Event, Introduction, NetIdentity, Wireup, WireupError, environment, exit_code,
    pmi, pmix,
};

const CALL: &str = "join";

/// Ranks of the same network namespace meet at once; when some are missing after this, there is a listener for the
/// others too. Chosen by magnitude: launchers start the ranks of a node within some ten milliseconds, and nobody
/// notices that delay.
const LATE: Duration = Duration::from_millis(250);
/// How long a rank waits to be ended by its launcher after an abort, before it ends itself. Chosen by magnitude, as the
/// launcher's own grace: a launcher acts in milliseconds.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// A rank that a foreign launcher started.
#[derive(Debug)]
pub(super) struct Foreign {
    inner: Inner,
    rest: Arc<EmergencyParts>,
    /// In a job that spans nodes: which rank is where, and what this one needs to meet others.
    between: Option<(Arc<Nodes>, NetIdentity)>,
}

/// What the end of a job needs besides.
#[derive(Debug)]
struct EmergencyParts {
    table: Mutex<Option<Box<dyn Table>>>,
    host: Mutex<Option<Host>>,
}

impl EmergencyParts {
    fn new(table: Option<Box<dyn Table>>, host: Option<Host>) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::new(table),
            host: Mutex::new(host),
        })
    }

    /// Waits until a host's thread has notified the others, and until its node can do without it.
    fn wait_until_over(&self) {
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = &*host {
            host.wait_until_announced();
            host.wait_until_over();
        }
    }
}

#[derive(Debug)]
enum Inner {
    Singleton(Singleton),
    Launched(Launched),
}

impl Foreign {
    /// The wire-up that a foreign launcher's traces in the environment lead to; none if there are none.
    pub(super) fn from_environment(knobs: &Knobs) -> Result<Option<Self>, WireupError> {
        if pmi::is_present()
            && let Some(client) = pmi::Client::from_environment(knobs.join_timeout)?
        {
            tracing::info!("this rank meets the others by PMI-1");
            return gather::by_table(Box::new(client), knobs).map(Some);
        }
        let mut without = None;
        if pmix::is_present() {
            match pmix::Pmix::from_environment(knobs.join_timeout)? {
                pmix::Discovery::Table(table) => return gather::by_table(table, knobs).map(Some),
                pmix::Discovery::Unusable(reason) => {
                    tracing::info!("{reason}; the environment is asked instead");
                    without = Some(reason);
                }
            }
        }
        let found = environment::find();
        match found.map_err(|error| beside(error, without.as_deref()))? {
            Some(job) => {
                let (rank, size, launcher) = (job.rank, job.size, job.launcher);
                tracing::info!(
                    "rank {rank} of {size} meets the others by the environment of {launcher}"
                );
                Self::by_name(&job, knobs.join_timeout).map(Some)
            }
            None => Ok(None),
        }
    }

    fn new(inner: Inner, rest: Arc<EmergencyParts>) -> Self {
        Self {
            inner,
            rest,
            between: None,
        }
    }

    /// A rank of a job that spans nodes.
    fn on_node(
        inner: Inner,
        rest: Arc<EmergencyParts>,
        nodes: Arc<Nodes>,
        net: NetIdentity,
    ) -> Self {
        let between = Some((nodes, net));
        Self {
            inner,
            rest,
            between,
        }
    }

    /// Meets the others at a name that all of them derive from the number of the job.
    fn by_name(job: &environment::RankEnvironment, limit: Duration) -> Result<Self, WireupError> {
        let (rank, size) = (job.rank, job.size);
        let done = |inner, host| Self::new(inner, EmergencyParts::new(None, host));
        if size == 1 {
            return Ok(done(Inner::Singleton(Singleton::new()), None));
        }
        let name = job.name();
        if rank == FIRST {
            // If the name is taken (by another user: names are no secret) there is still the other listener, at once.
            let (listeners, late) = match Listener::at_abstract(&name) {
                Ok(listener) => (vec![listener], LATE),
                Err(_) => (Vec::new(), Duration::ZERO),
            };
            let config = Config {
                rank,
                size,
                secret: [0; 16],
                join_timeout: limit,
                listeners,
                late: Some((late, name)),
                oob: None,
            };
            let StartedHost { host, socket } = Host::start(config)?;
            let inner = Launched::new(socket, rank, size)?;
            return Ok(done(Inner::Launched(inner), Some(host)));
        }
        let own = nix::unistd::getuid().as_raw();
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        let mut round = 0_u64;
        loop {
            for address in &places(&name, round) {
                let Ok(socket) = address.connect() else {
                    continue;
                };
                // The name is no secret: the listener there must be of our user.
                if fdpass::peer_credentials(socket.as_fd()).is_ok_and(|who| who.uid == own) {
                    match Launched::at_host(socket, rank, size, FIRST, [0; 16], limit) {
                        Ok(inner) => return Ok(done(Inner::Launched(inner), None)),
                        // The listener was closed at this moment.
                        Err(WireupError::HostGone { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            if start.elapsed() > limit {
                let reason = format!(
                    "rank 0 was not found within {} s. Does every rank initialise onecopy, on the same node? Raise ONECOPY_JOIN_TIMEOUT if they start slowly",
                    limit.as_secs_f32()
                );
                return Err(unusable(job.launcher, reason));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
            round += 1;
        }
    }

    fn wireup(&mut self) -> &mut dyn Wireup {
        match &mut self.inner {
            Inner::Singleton(inner) => inner,
            Inner::Launched(inner) => inner,
        }
    }
}

/// Where rank 0 may be found, in this round of looking for it.
fn places(name: &str, round: u64) -> Vec<Address> {
    let mut found = vec![Address::Abstract(name.to_owned())];
    for base in BASES.map(Path::new) {
        let first = Folder::below(base);
        // To look through a whole directory takes longer, and is of no use while the folder's name is free.
        let others = match round % 8 == 7 || first.is_taken() {
            true => Folder::others(base),
            false => Vec::new(),
        };
        let folders = std::iter::once(first).filter(Folder::is_ours).chain(others);
        found.extend(folders.map(|folder| Address::Path(folder.file(name))));
    }
    found
}

fn unusable(launcher: &str, reason: impl Into<String>) -> WireupError {
    WireupError::Foreign {
        call: CALL,
        launcher: launcher.to_owned(),
        reason: reason.into(),
    }
}

/// The error for what the environment lacks, together with the reason why PMIx did not give it.
fn beside(error: WireupError, without: Option<&str>) -> WireupError {
    match (error, without) {
        (
            WireupError::Foreign {
                call,
                launcher,
                reason,
            },
            Some(without),
        ) => WireupError::Foreign {
            call,
            launcher,
            reason: format!("{reason}. PMIx would do, but {without}"),
        },
        (error, _) => error,
    }
}

impl Wireup for Foreign {
    fn rank(&self) -> usize {
        match &self.inner {
            Inner::Singleton(inner) => inner.rank(),
            Inner::Launched(inner) => inner.rank(),
        }
    }

    fn size(&self) -> usize {
        match &self.inner {
            Inner::Singleton(inner) => inner.size(),
            Inner::Launched(inner) => inner.size(),
        }
    }

    fn job(&self) -> u64 {
        match &self.inner {
            Inner::Singleton(inner) => inner.job(),
            Inner::Launched(inner) => inner.job(),
        }
    }

    fn prepares_node(&self) -> bool {
        let (me, node) = (self.rank(), self.node(self.rank()));
        let mut neighbours = (0..self.size()).filter(|&rank| self.node(rank) == node);
        neighbours.next() == Some(me) && neighbours.next().is_some()
    }

    fn grant(&mut self, grant: Option<BorrowedFd<'_>>) -> Result<(), WireupError> {
        self.wireup().grant(grant)
    }

    fn join(&mut self, card: Card, segment: BorrowedFd<'_>) -> Result<Vec<Card>, WireupError> {
        self.wireup().join(card, segment)
    }

    fn introduce(&mut self, peer: usize) -> Result<Introduction, WireupError> {
        let node = self.node(peer);
        if peer < self.size() && node != self.node(self.rank()) {
            return Err(WireupError::OtherNode {
                call: "introduce",
                rank: peer,
                node,
            });
        }
        self.wireup().introduce(peer)
    }

    fn node(&self, rank: usize) -> u32 {
        let nodes = self.between.as_ref().map(|(nodes, _)| nodes);
        nodes.and_then(|nodes| nodes.node(rank)).unwrap_or(0)
    }

    fn net(&self) -> Option<NetIdentity> {
        self.between.as_ref().map(|(_, net)| net.clone())
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.inner {
            Inner::Singleton(inner) => inner.event_fd(),
            Inner::Launched(inner) => inner.event_fd(),
        }
    }

    fn poll(&mut self) -> Result<Option<Event>, WireupError> {
        self.wireup().poll()
    }

    fn leave(&mut self) -> Result<(), WireupError> {
        let left = self.wireup().leave();
        self.rest.wait_until_over();
        let table = &self.rest.table;
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = &mut *table {
            table.finalize()?;
        }
        left
    }

    fn emergency(&self) -> Arc<dyn Emergency> {
        let inner = match &self.inner {
            Inner::Singleton(inner) => inner.emergency(),
            Inner::Launched(inner) => inner.emergency(),
        };
        let rest = Arc::clone(&self.rest);
        Arc::new(ForeignEmergency { inner, rest })
    }
}

/// The other ranks and the launcher.
struct ForeignEmergency {
    inner: Arc<dyn Emergency>,
    rest: Arc<EmergencyParts>,
}

impl Emergency for ForeignEmergency {
    /// Ends the job with `code`, and this process if the launcher does not do so.
    fn abort(&self, code: i32) -> Result<(), WireupError> {
        // Launchers hand on the code that they get, of which the system keeps eight bits.
        let status = exit_code(code);
        // The launcher first. It kills all when a rank ends, and would then report that instead of the code.
        if let Ok(mut table) = self.rest.table.try_lock()
            && let Some(table) = &mut *table
            && table.abort(status).is_ok()
        {
            std::thread::sleep(ABORT_GRACE);
        }
        let _ = self.inner.abort(code);
        // A thread that leaves the job at this moment may have the rest. Then the end of this process shows the abort.
        if let Ok(host) = self.rest.host.try_lock()
            && let Some(host) = &*host
        {
            host.wait_until_announced();
        }
        // Without a table a launcher hears of it in one way only: by how a rank ends.
        std::process::exit(status)
    }
}

#[cfg(test)]
mod tests;
