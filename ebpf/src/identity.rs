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
}

/// Processes between a rank and its launcher at most.
const WRAPPERS_MAX: usize = 16;

/// Processes whose names are kept. Whoever goes on observing sees any number of them.
const KNOWN_MAX: u64 = 1 << 16;
/// Whose a process is of which that is not known.
const NOBODY: u32 = u32::MAX;

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
    pub fn of(&mut self, pid: u32) -> Option<Task> {
        let folder = self.root.join(pid.to_string());
        let Some(version) = version(&folder) else {
            let (_, (_, last)) = self.known.get(&pid)?.last_key_value()?;
            return Some(ended(last));
        };
        let known = self.known.get(&pid);
        if let Some((known, task)) = known.and_then(|all| all.get(&version.started))
            && *known == version
        {
            return Some(task.clone());
        }
        let task = self.read(&folder, &version);
        self.keep(pid, version, task.clone());
        Some(task)
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
            self.of(pid);
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
            // Whoever has the id of an ended one now is another one.
            let now = if ended { None } else { self.of(pid) };
            let is_it = |task: &Task| started.is_none_or(|started| task.started == Some(started));
            let found = match now.filter(is_it) {
                Some(found) => Some(found),
                None if ended || started.is_some() => self.past(pid, started),
                None => None,
            };
            let Some(found) = found else { continue };
            let task = observed.tasks.entry(pid).or_default();
            if !task.comm.is_empty() && task.comm != found.comm {
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
        let environment = proc::environment(folder).unwrap_or_default();
        let of_job = Environment(&environment);
        let place = of_job.place();
        let slurm = of_job.slurm();
        let launched = || {
            place
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
            rank: place.rank,
            job: place.job.or_else(launched).or(slurm),
            container: container(&cgroup),
            ended: false,
        }
    }

    /// The process that started the ranks, as the name of a job that has none: the first ancestor that was not told
    /// the same place. What stands between is a rank's wrapper, a shell or a debugger.
    fn launcher(&self, folder: &Path, rank: &Environment<'_>) -> Option<String> {
        let place = rank.told();
        let mut parent = Stat::read(folder)?.parent()?;
        for _ in 0..WRAPPERS_MAX {
            // Its launcher has ended.
            if parent <= 1 {
                return None;
            }
            let folder = self.root.join(parent.to_string());
            let environment = proc::environment(&folder)?;
            let stat = Stat::read(&folder)?;
            if Environment(&environment).told() != place {
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

    /// What launchers by PMI told: a rank and whatever it starts have the same.
    fn told(&self) -> BTreeSet<&[u8]> {
        let entries = self.0.split(|byte| *byte == 0);
        let of_launcher = |entry: &&[u8]| {
            [&b"PMI_"[..], b"MV2_"]
                .iter()
                .any(|of| entry.starts_with(of))
        };
        entries.filter(of_launcher).collect()
    }

    /// Rank and job, as launchers say them.
    fn place(&self) -> Place {
        /// Launchers that start others come last: a step of Slurm may hold an mpirun. Whether one may name no job:
        /// hydra names none.
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
            Some(Place {
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

/// What a launcher told a rank.
#[derive(Debug, Default)]
struct Place {
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
mod tests {
    use super::*;
    use crate::observed::Owner;
    use std::fs;

    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn put(&self, pid: u32, started: u64, comm: &str, environment: &[&str]) {
            self.put_below(1, pid, started, comm, environment);
        }

        fn put_below(&self, parent: u32, pid: u32, started: u64, comm: &str, environment: &[&str]) {
            let folder = self.0.path().join(pid.to_string());
            fs::create_dir_all(folder.join("ns")).expect("a folder");
            let fields = vec!["0"; 17].join(" ");
            let stat = format!("{pid} ({comm}) S {parent} {fields} {started} 0");
            fs::write(folder.join("stat"), stat).expect("stat");
            fs::write(folder.join("environ"), environment.join("\0")).expect("environ");
            let _ = fs::remove_file(folder.join("ns/pid"));
            std::os::unix::fs::symlink("pid:[77]", folder.join("ns/pid")).expect("ns");
            let _ = fs::remove_file(folder.join("ns/user"));
            std::os::unix::fs::symlink("user:[88]", folder.join("ns/user")).expect("ns");
            fs::write(
                folder.join("status"),
                format!("NSpid:\t{pid}\t5\nUid:\t8\t0\t0\t0\n"),
            )
            .expect("status");
        }

        fn names(&self) -> Names {
            Names::new(self.0.path())
        }
    }

    #[test]
    fn launchers_say_rank_and_job() {
        let proc = Proc::new();
        let cases: [(&[&str], Option<u32>, Option<&str>); 6] = [
            (&["PMIX_RANK=3", "PMIX_NAMESPACE=a.1"], Some(3), Some("a.1")),
            (
                &["OMPI_COMM_WORLD_RANK=1", "OMPI_MCA_ess_base_jobid=9"],
                Some(1),
                Some("9"),
            ),
            (&["XPMI_RANK=8", "PMI_RANK=4"], Some(4), None),
            (
                &["SLURM_PROCID=6", "SLURM_JOB_ID=12", "SLURM_STEP_ID=0"],
                Some(6),
                Some("12.0"),
            ),
            (&["PMI_RANK=x"], None, None),
            (&["HOME=/"], None, None),
        ];
        for (index, (environment, rank, job)) in cases.into_iter().enumerate() {
            let pid = 100 + index as u32;
            proc.put(pid, 5, "prog", environment);
            let task = proc.names().of(pid).expect("there");
            assert_eq!((task.rank, task.job.as_deref()), (rank, job));
            assert_eq!((task.namespace, task.local_pid), (77, 5));
        }
    }

    #[test]
    fn a_job_without_a_name_has_that_of_its_launcher() {
        let proc = Proc::new();
        let place = |rank| [format!("PMI_RANK={rank}"), "PMI_SIZE=2".to_owned()];
        let put = |parent, pid, comm: &str, environment: &[String]| {
            let environment: Vec<&str> = environment.iter().map(String::as_str).collect();
            proc.put_below(parent, pid, 5, comm, &environment);
        };
        // The launcher is itself a rank of another job.
        proc.put_below(1, 20, 5, "hydra", &["PMI_RANK=0", "PMI_SIZE=1"]);
        put(20, 21, "prog", &place(0));
        put(20, 22, "sh", &place(1));
        put(22, 23, "prog", &place(1));
        put(1, 24, "prog", &place(0));
        put(99, 25, "prog", &place(0));
        let mut names = proc.names();
        let mut of = |pid| {
            let task = names.of(pid).expect("there");
            (task.rank, task.job)
        };
        let hydra = Some("hydra-20".to_owned());
        assert_eq!(of(21), (Some(0), hydra.clone()));
        assert_eq!(of(23), (Some(1), hydra));
        // Its launcher has ended, or is hidden.
        assert_eq!(of(24), (Some(0), None));
        assert_eq!(of(25), (Some(0), None));
    }

    #[test]
    fn an_id_that_is_used_again_has_new_names() {
        let proc = Proc::new();
        let mut names = proc.names();
        proc.put(9, 5, "one", &["PMI_RANK=1"]);
        assert_eq!(names.of(9).expect("there").rank, Some(1));
        proc.put(9, 6, "one", &[]);
        assert_eq!(names.of(9).expect("there").rank, None);
        proc.put(9, 6, "a) (b", &["PMI_RANK=2"]);
        let task = names.of(9).expect("there");
        assert_eq!((task.comm.as_str(), task.rank), ("a) (b", Some(2)));
        fs::remove_dir_all(proc.0.path().join("9")).expect("removed");
        let task = names.of(9).expect("known");
        assert!(task.ended);
        assert_eq!(task.rank, Some(2));
        assert!(names.of(10).is_none());
    }

    #[test]
    fn processes_of_one_user_do_not_have_others_forgotten() {
        let mut names = Names::new(Path::new("/nonexistent"));
        let mut keep = |pid, started, user| {
            let version = Version {
                started,
                comm: String::new(),
                environment: 0,
            };
            let owner = Owner {
                user,
                namespace: None,
            };
            let task = Task {
                owner,
                ..Task::default()
            };
            names.keep(pid, version, task);
        };
        // The oldest is another's, and one became another program, of another user.
        keep(1, 1, Some(7));
        keep(2, 2, Some(7));
        keep(2, 2, Some(8));
        for number in 0..KNOWN_MAX + 5 {
            keep(3, 10 + number, Some(9));
        }
        keep(4, 3, None);
        assert_eq!(names.known[&1].len(), 1);
        assert_eq!(names.known[&2].len(), 1);
        assert_eq!(names.known[&4].len(), 1);
        let of_third = &names.known[&3];
        assert_eq!(of_third.len() as u64, KNOWN_MAX - 3);
        // What came last is there.
        assert!(of_third.contains_key(&(10 + KNOWN_MAX + 4)));
        let kept: usize = names.of_user.values().map(BTreeSet::len).sum();
        assert_eq!(kept as u64, KNOWN_MAX);
        assert_eq!(names.shares.of(7), 1);
    }

    #[test]
    fn a_name_may_be_any_bytes() {
        let proc = Proc::new();
        proc.put(9, 5, "x", &["PMI_RANK=1"]);
        let mut stat = b"9 (gr\xc3) S ".to_vec();
        stat.extend(format!("{} 5 0", vec!["0"; 18].join(" ")).bytes());
        fs::write(proc.0.path().join("9/stat"), stat).expect("stat");
        let task = proc.names().of(9).expect("there");
        assert_eq!((task.comm.as_str(), task.rank), ("gr\u{fffd}", Some(1)));
    }

    #[test]
    fn an_ended_process_keeps_its_rank_when_its_id_is_used_again() {
        let proc = Proc::new();
        let mut names = proc.names();
        let mut observed = Observed::default();
        observed.tasks.insert(9, Task::default());
        proc.put(9, 5, "same", &["PMI_RANK=1"]);
        names.complete(&mut observed);
        proc.put(9, 6, "same", &["PMI_RANK=2"]);
        let ended = Task {
            comm: "same".to_owned(),
            ended: true,
            ..Task::default()
        };
        observed.tasks.insert(9, ended);
        names.complete(&mut observed);
        assert_eq!(observed.tasks[&9].rank, Some(1));
    }

    #[test]
    fn an_ended_process_keeps_whose_it_was() {
        let proc = Proc::new();
        let mut names = proc.names();
        proc.put(9, 5, "same", &[]);
        names.learn([9]);
        fs::remove_dir_all(proc.0.path().join("9")).expect("removed");
        let mut observed = Observed::default();
        let ended = Task {
            ended: true,
            ..Task::default()
        };
        observed.tasks.insert(9, ended);
        names.complete(&mut observed);
        let owner = Owner {
            user: Some(8),
            namespace: Some(88),
        };
        assert_eq!(observed.tasks[&9].owner, owner);
    }

    #[test]
    fn an_ended_process_is_told_from_the_next_one_of_its_id() {
        let proc = Proc::new();
        let mut names = proc.names();
        for (started, rank) in [(5, "PMI_RANK=1"), (6, "PMI_RANK=2")] {
            proc.put(9, started, "same", &[rank]);
            names.learn([9]);
        }
        for (started, ended, rank) in [
            (Some(5), true, Some(1)),
            // Nobody saw that it ended.
            (Some(5), false, Some(1)),
            (Some(6), false, Some(2)),
            (Some(4), true, None),
            (None, true, None),
        ] {
            let mut observed = Observed::default();
            let task = Task {
                comm: "same".to_owned(),
                started,
                ended,
                ..Task::default()
            };
            observed.tasks.insert(9, task);
            names.complete(&mut observed);
            assert_eq!(observed.tasks[&9].rank, rank, "{started:?}, {ended}");
        }
    }

    #[test]
    fn a_process_that_became_another_program_is_read_again() {
        let proc = Proc::new();
        let mut names = proc.names();
        let at = |place: u64, environment: &[&str]| {
            proc.put(9, 5, "same", environment);
            let stat = fs::read_to_string(proc.0.path().join("9/stat")).expect("stat");
            let zeros = vec!["0"; 26].join(" ");
            let stat = format!("{stat} {zeros} {place}");
            fs::write(proc.0.path().join("9/stat"), stat).expect("stat");
        };
        at(0, &[]);
        assert_eq!(names.of(9).expect("there").rank, None);
        at(4096, &["PMI_RANK=3"]);
        assert_eq!(names.of(9).expect("there").rank, Some(3));
        // Nothing is read again as long as it is the same program.
        at(4096, &["PMI_RANK=4"]);
        assert_eq!(names.of(9).expect("there").rank, Some(3));
    }

    #[test]
    fn another_process_gives_no_name() {
        let proc = Proc::new();
        proc.put(9, 5, "new", &["PMI_RANK=1"]);
        proc.put(8, 5, "same", &["PMI_RANK=2"]);
        let mut observed = Observed::default();
        for (pid, comm, ended) in [(9, "old", false), (8, "same", false), (7, "gone", true)] {
            let task = Task {
                comm: comm.to_owned(),
                ended,
                ..Task::default()
            };
            observed.tasks.insert(pid, task);
        }
        proc.names().complete(&mut observed);
        assert_eq!(observed.tasks[&9].rank, None);
        assert_eq!(observed.tasks[&9].comm, "old");
        assert_eq!(observed.tasks[&8].rank, Some(2));
        assert_eq!(observed.tasks[&7].rank, None);
    }

    #[test]
    fn control_groups_name_containers() {
        let hash = "0123456789abcdef0123456789abcdef";
        for (path, name) in [
            (
                format!("0::/system.slice/docker-{hash}.scope"),
                "docker:0123456789ab",
            ),
            (format!("0::/docker/{hash}"), "docker:0123456789ab"),
            (
                format!("0::/kubepods.slice/pod1/cri-containerd-{hash}.scope"),
                "containerd:0123456789ab",
            ),
            ("0::/lxc.payload.web/x".to_owned(), "lxc:web"),
        ] {
            assert_eq!(container(&path).as_deref(), Some(name), "{path}");
        }
        assert_eq!(container("0::/user.slice/docker-compose.service"), None);
        assert_eq!(container(""), None);
    }
}
