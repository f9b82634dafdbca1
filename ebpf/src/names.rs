// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of processes: command, rank, job and container. What cannot be read stays unknown; nothing is guessed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::observed::{Observed, Task};
use crate::proc::{self, Stat};
use crate::shares::Shares;

/// Which program a process is at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    /// When the process began: tells it from an earlier one of its id.
    started: u64,
    comm: String,
    /// Where its environment lies: another place in each program that it becomes. 0 while one begins, and if it is not
    /// shown.
    environment: u64,
    /// Its main thread has ended. Others may go on.
    is_over: bool,
}

/// Processes between a rank and its launcher at most.
const WRAPPERS_MAX: usize = 16;

/// Threads at most in which the environment of a process is looked for whose main thread has ended.
const THREADS_MAX: usize = 8;

/// How often a process is read that becomes another program meanwhile.
const READS_MAX: usize = 3;

/// Processes whose names are kept. A long observation sees any number of them.
const KNOWN_MAX: u64 = 1 << 16;
/// Whose a process is of which that is not known.
const NOBODY: u32 = u32::MAX;

/// What stands between the names of processes that had one id one after the other, in a row of all of them.
pub(crate) const THEN: &str = ", then ";

/// Names of processes, which are kept when these have ended.
#[derive(Debug)]
pub struct Names {
    root: PathBuf,
    /// Of each id, those that had it one after the other, by when they began.
    known: HashMap<u32, BTreeMap<u64, (Version, Task)>>,
    /// How many of them each user has, and which: the oldest first.
    shares: Shares,
    of_user: BTreeMap<u32, BTreeSet<(u64, u32)>>,
}

impl Names {
    /// Names from a proc file system: `/proc`, or another one of the same form.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            known: HashMap::new(),
            shares: Shares::new(KNOWN_MAX),
            of_user: BTreeMap::new(),
        }
    }

    /// What is known of the process that has an id, or had it last; none: it never was there when it was asked for.
    pub fn task(&mut self, pid: u32) -> Option<Task> {
        let folder = self.root.join(pid.to_string());
        let mut version = version(&folder);
        for _ in 0..READS_MAX {
            let Some(before) = version else { break };
            if let Some(task) = self.unchanged(pid, &before) {
                return Some(task);
            }
            let task = self.read(&folder, &before);
            version = self::version(&folder);
            if version.as_ref() == Some(&before) {
                self.keep(pid, before, task.clone());
                return Some(task);
            }
            // It ended, or became another program, while it was read. What was known before is whole.
            let known = self.known.get(&pid);
            if known.is_none_or(|all| !all.contains_key(&before.started)) {
                self.keep(pid, before, task);
            }
        }
        let (_, (_, last)) = self.known.get(&pid)?.last_key_value()?;
        Some(if version.is_none() {
            ended(last)
        } else {
            last.clone()
        })
    }

    /// What is known of a process that is at this version still.
    fn unchanged(&self, pid: u32, now: &Version) -> Option<Task> {
        let (known, task) = self.known.get(&pid)?.get(&now.started)?;
        // One that is ending shows no environment any more. Nor does one that begins another program, which soon has
        // another name as a rule. One that has another name now may be another program.
        let shows_none = now.environment == 0 && known.comm == now.comm;
        (known == now || shows_none).then(|| task.clone())
    }

    /// Where there are too many, the oldest process goes of the user that has most. If it lives it is read again when
    /// it is asked for.
    fn keep(&mut self, pid: u32, version: Version, task: Task) {
        let started = version.started;
        let user = task.owner.user.unwrap_or(NOBODY);
        let all = self.known.entry(pid).or_default();
        if let Some((_, before)) = all.insert(started, (version, task)) {
            self.forget(before.owner.user.unwrap_or(NOBODY), (started, pid));
        }
        self.shares.add(user, 1);
        self.of_user.entry(user).or_default().insert((started, pid));
        while let Some(user) = self.shares.beyond() {
            let oldest = self.of_user.get(&user).and_then(BTreeSet::first).copied();
            let Some((started, pid)) = oldest else { break };
            self.forget(user, (started, pid));
            if let Some(all) = self.known.get_mut(&pid) {
                all.remove(&started);
                if all.is_empty() {
                    self.known.remove(&pid);
                }
            }
        }
    }

    fn forget(&mut self, user: u32, process: (u64, u32)) {
        self.shares.give(user, 1);
        if let Some(of_user) = self.of_user.get_mut(&user) {
            of_user.remove(&process);
            if of_user.is_empty() {
                self.of_user.remove(&user);
            }
        }
    }

    /// Reads the names of processes that are there, so that they are known when these end. One that makes its first
    /// call just before its end is gone at the next look.
    pub fn learn(&mut self, pids: impl IntoIterator<Item = u32>) {
        for pid in pids {
            self.task(pid);
        }
    }

    /// What was known of one that has ended. Where several had the id, only its beginning says which one it was.
    fn past(&self, pid: u32, started: Option<u64>) -> Option<Task> {
        let all = self.known.get(&pid)?;
        let (_, task) = match started {
            Some(started) => all.get(&started)?,
            None if all.len() == 1 => all.values().next()?,
            None => return None,
        };
        Some(ended(task))
    }

    /// Completes what collectors know of processes. A process of another name than the one that was observed is
    /// another one, and gives none of its names.
    pub fn complete(&mut self, observed: &mut Observed) {
        let mut pids: Vec<u32> = observed.tasks.keys().copied().collect();
        for key in observed.pairs.keys() {
            pids.push(key.caller);
            if let crate::observed::Peer::Process(pid) = key.peer {
                pids.push(pid);
            }
        }
        for wait in &observed.waits {
            pids.push(wait.waiter);
            pids.extend(wait.owner);
        }
        pids.sort_unstable();
        pids.dedup();
        for pid in pids {
            let seen = observed.tasks.get(&pid);
            let (ended, started) = seen.map_or((false, None), |task| (task.ended, task.started));
            // The process that has the id of an ended one is another one.
            let now = if ended { None } else { self.task(pid) };
            let is_it = |task: &Task| started.is_none_or(|started| task.started == Some(started));
            let found = match now.filter(is_it) {
                Some(found) => Some(found),
                None if ended || started.is_some() => self.past(pid, started),
                None => None,
            };
            let Some(found) = found else { continue };
            let task = observed.tasks.entry(pid).or_default();
            // One that lives is the same if it began then, whatever it calls itself now. Of one that has ended only the
            // name says whether it was the same program. And a name of several says that the row is of several.
            let lives = started.is_some() && !ended && !found.ended;
            let is_one = lives && !task.comm.contains(THEN);
            if !is_one && !task.comm.is_empty() && task.comm != found.comm {
                continue;
            }
            task.comm = found.comm;
            task.rank = task.rank.or(found.rank);
            task.job = task.job.take().or(found.job);
            task.container = task.container.take().or(found.container);
            task.owner = task.owner.or(found.owner);
            if task.namespace == 0 {
                (task.namespace, task.local_pid) = (found.namespace, found.local_pid);
            }
        }
    }

    fn read(&self, folder: &Path, version: &Version) -> Task {
        let mut environment = proc::environment(folder).unwrap_or_default();
        if version.is_over {
            // A thread that goes on has the same one.
            let tasks = folder.join("task");
            let of_threads = proc::numbers(&tasks).into_iter().take(THREADS_MAX);
            let mut of_threads =
                of_threads.filter_map(|thread| proc::environment(&tasks.join(thread.to_string())));
            environment = of_threads
                .find(|found| !found.is_empty())
                .unwrap_or(environment);
        }
        let of_job = Environment(&environment);
        let facts = of_job.launcher_facts();
        let slurm = of_job.slurm();
        let launched = || {
            facts
                .is_nameless
                .then(|| self.launcher(folder, &of_job))
                .flatten()
        };
        let status = proc::text(&folder.join("status")).unwrap_or_default();
        let local_pid = proc::innermost(&status).unwrap_or(0);
        let namespace = proc::pid_namespace(folder).unwrap_or(0);
        let cgroup = proc::text(&folder.join("cgroup")).unwrap_or_default();
        Task {
            comm: version.comm.clone(),
            started: Some(version.started),
            namespace,
            local_pid,
            owner: proc::owner(folder, &status),
            rank: facts.rank,
            job: facts.job.or_else(launched).or(slurm),
            container: container(&cgroup),
            ended: false,
        }
    }

    /// The process that started the ranks, as the name of a job that has none: the first ancestor that was not told
    /// the same place. What stands between is a rank's wrapper, a shell or a debugger.
    fn launcher(&self, folder: &Path, rank: &Environment<'_>) -> Option<String> {
        let place = rank.of_launcher();
        let mut parent = Stat::read(folder)?.parent()?;
        for _ in 0..WRAPPERS_MAX {
            // Its launcher has ended.
            if parent <= 1 {
                return None;
            }
            let folder = self.root.join(parent.to_string());
            let environment = proc::environment(&folder)?;
            let stat = Stat::read(&folder)?;
            if Environment(&environment).of_launcher() != place {
                return Some(format!("{}-{parent}", stat.comm));
            }
            parent = stat.parent()?;
        }
        None
    }
}

fn ended(task: &Task) -> Task {
    Task {
        ended: true,
        ..task.clone()
    }
}

fn version(folder: &Path) -> Option<Version> {
    let stat = Stat::read(folder)?;
    Some(Version {
        started: stat.start_ticks()?,
        environment: stat.number(50).unwrap_or(0),
        is_over: stat.has_ended(),
        comm: stat.comm,
    })
}

/// Characters of a job's or a container's name. It stands in each row of a report.
const NAME_MAX: usize = 256;

/// The variables of a process.
struct Environment<'a>(&'a [u8]);

impl Environment<'_> {
    fn get(&self, name: &str) -> Option<String> {
        self.0
            .split(|byte| *byte == 0)
            .find_map(|entry| {
                entry
                    .strip_prefix(name.as_bytes())
                    .and_then(|rest| rest.strip_prefix(b"="))
            })
            .map(|value| {
                String::from_utf8_lossy(value)
                    .chars()
                    .take(NAME_MAX)
                    .collect()
            })
            .filter(|value: &String| !value.is_empty())
    }

    /// What launchers by PMI set: a rank and whatever it starts have the same.
    fn of_launcher(&self) -> BTreeSet<&[u8]> {
        let entries = self.0.split(|byte| *byte == 0);
        let is_of_launcher = |entry: &&[u8]| {
            [&b"PMI_"[..], b"MV2_"]
                .iter()
                .any(|prefix| entry.starts_with(prefix))
        };
        entries.filter(is_of_launcher).collect()
    }

    /// Rank and job, as launchers say them.
    fn launcher_facts(&self) -> LauncherFacts {
        /// The variable of the rank, those of the job, and whether the launcher may name no job, as hydra. Launchers
        /// that start others come last: a step of Slurm may hold an mpirun.
        const LAUNCHERS: [(&str, &[&str], bool); 7] = [
            ("ONECOPY_JOB_RANK", &[], false),
            ("PMIX_RANK", &["PMIX_NAMESPACE"], false),
            (
                "OMPI_COMM_WORLD_RANK",
                &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
                false,
            ),
            ("PMI_RANK", &["PMI_JOBID"], true),
            ("PMI_ID", &["PMI_JOBID"], true),
            ("MV2_COMM_WORLD_RANK", &["PMI_JOBID"], true),
            ("SLURM_PROCID", &[], false),
        ];
        let found = LAUNCHERS.iter().find_map(|(rank, jobs, nameless)| {
            let rank = self.get(rank)?.parse().ok()?;
            let job = jobs.iter().find_map(|name| self.get(name));
            Some(LauncherFacts {
                rank: Some(rank),
                is_nameless: *nameless && job.is_none(),
                job,
            })
        });
        found.unwrap_or_default()
    }

    /// The step of Slurm that the process belongs to.
    fn slurm(&self) -> Option<String> {
        let job = self.get("SLURM_JOB_ID")?;
        let step = self.get("SLURM_STEP_ID");
        Some(step.map_or_else(|| job.clone(), |step| format!("{job}.{step}")))
    }
}

/// What a launcher set for a rank.
#[derive(Debug, Default)]
struct LauncherFacts {
    rank: Option<u32>,
    job: Option<String>,
    /// Whether the launcher is one that may name no job, and did not.
    is_nameless: bool,
}

/// The container that a control group is of, as its engine names it.
fn container(cgroup: &str) -> Option<String> {
    /// What stands before an identifier, and in front of which name it is shown.
    const ENGINES: [(&str, &str); 7] = [
        ("docker-", "docker"),
        ("docker/", "docker"),
        ("libpod-", "podman"),
        ("cri-containerd-", "containerd"),
        ("crio-", "crio"),
        ("lxc.payload.", "lxc"),
        ("machine-", "machine"),
    ];
    let path = cgroup.lines().find_map(|line| line.splitn(3, ':').nth(2))?;
    ENGINES.iter().find_map(|(prefix, engine)| {
        let (_, rest) = path.split_once(prefix)?;
        let id = rest.split('/').next()?;
        let id = id.strip_suffix(".scope").unwrap_or(id);
        let is_hash = id.len() >= 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let named = matches!(*engine, "lxc" | "machine") && !id.is_empty();
        if is_hash {
            Some(format!("{engine}:{}", &id[..12]))
        } else {
            named.then(|| format!("{engine}:{id}"))
        }
    })
}

#[cfg(test)]
mod tests;
