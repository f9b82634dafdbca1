// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of processes of a proc file system that is made for the test.

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

    /// A process, and where its environment lies.
    fn put_at(&self, place: u64, pid: u32, comm: &str, environment: &[&str]) {
        self.put(pid, 5, comm, environment);
        let file = self.0.path().join(format!("{pid}/stat"));
        let stat = fs::read_to_string(&file).expect("stat");
        let zeros = vec!["0"; 26].join(" ");
        fs::write(file, format!("{stat} {zeros} {place}")).expect("stat");
    }

    /// Its main thread ends.
    fn end(&self, pid: u32) {
        let file = self.0.path().join(format!("{pid}/stat"));
        let stat = fs::read_to_string(&file).expect("stat");
        fs::write(file, stat.replacen(") S ", ") Z ", 1)).expect("stat");
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
        let task = proc.names().task(pid).expect("there");
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
    let mut rank_and_job = |pid| {
        let task = names.task(pid).expect("there");
        (task.rank, task.job)
    };
    let hydra = Some("hydra-20".to_owned());
    assert_eq!(rank_and_job(21), (Some(0), hydra.clone()));
    assert_eq!(rank_and_job(23), (Some(1), hydra));
    // Its launcher has ended, or is hidden.
    assert_eq!(rank_and_job(24), (Some(0), None));
    assert_eq!(rank_and_job(25), (Some(0), None));
}

#[test]
fn an_id_that_is_used_again_has_new_names() {
    let proc = Proc::new();
    let mut names = proc.names();
    proc.put(9, 5, "one", &["PMI_RANK=1"]);
    assert_eq!(names.task(9).expect("there").rank, Some(1));
    proc.put(9, 6, "one", &[]);
    assert_eq!(names.task(9).expect("there").rank, None);
    proc.put(9, 6, "a) (b", &["PMI_RANK=2"]);
    let task = names.task(9).expect("there");
    assert_eq!((task.comm.as_str(), task.rank), ("a) (b", Some(2)));
    fs::remove_dir_all(proc.0.path().join("9")).expect("removed");
    let task = names.task(9).expect("known");
    assert!(task.ended);
    assert_eq!(task.rank, Some(2));
    assert!(names.task(10).is_none());
}

#[test]
fn processes_of_one_user_do_not_have_others_forgotten() {
    let mut names = Names::new(Path::new("/nonexistent"));
    let mut keep = |pid, started, user| {
        let version = Version {
            started,
            comm: String::new(),
            environment: 0,
            is_over: false,
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
    assert_eq!(names.shares.taken_by(7), 1);
}

#[test]
fn a_name_may_be_any_bytes() {
    let proc = Proc::new();
    proc.put(9, 5, "x", &["PMI_RANK=1"]);
    let mut stat = b"9 (gr\xc3) S ".to_vec();
    stat.extend(format!("{} 5 0", vec!["0"; 18].join(" ")).bytes());
    fs::write(proc.0.path().join("9/stat"), stat).expect("stat");
    let task = proc.names().task(9).expect("there");
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
    let put = |place, environment| proc.put_at(place, 9, "same", environment);
    put(0, &[]);
    assert_eq!(names.task(9).expect("there").rank, None);
    put(4096, &["PMI_RANK=3"]);
    assert_eq!(names.task(9).expect("there").rank, Some(3));
    // Nothing is read again as long as it is the same program.
    put(4096, &["PMI_RANK=4"]);
    assert_eq!(names.task(9).expect("there").rank, Some(3));
}

#[test]
fn one_that_ends_keeps_the_names_that_it_had() {
    let proc = Proc::new();
    let mut names = proc.names();
    proc.put_at(4096, 9, "same", &["PMI_RANK=3"]);
    assert_eq!(names.task(9).expect("there").rank, Some(3));
    // It has ended, and its parent has not waited for it: there is neither memory nor environment.
    proc.put_at(0, 9, "same", &[]);
    assert_eq!(names.task(9).expect("there").rank, Some(3));
    fs::remove_dir_all(proc.0.path().join("9")).expect("gone");
    let last = names.task(9).expect("known");
    assert_eq!((last.rank, last.ended), (Some(3), true));
    // One that has become another program is read again, though it does not show its environment.
    proc.put_at(4096, 8, "old", &["PMI_RANK=3"]);
    assert_eq!(names.task(8).expect("there").rank, Some(3));
    proc.put_at(0, 8, "new", &[]);
    let new = names.task(8).expect("there");
    assert_eq!((new.rank, new.comm.as_str()), (None, "new"));
}

/// The main thread has ended, and another one goes on.
#[test]
fn threads_that_go_on_have_the_environment() {
    let proc = Proc::new();
    proc.put_at(0, 9, "same", &[]);
    proc.end(9);
    for (thread, environment) in [("9", ""), ("12", "PMI_RANK=4")] {
        let folder = proc.0.path().join("9/task").join(thread);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("environ"), environment).expect("environ");
    }
    assert_eq!(proc.names().task(9).expect("there").rank, Some(4));
}

/// A process that changes its name stays the one that was observed.
#[test]
fn a_new_name_of_a_process_takes_no_rank() {
    let proc = Proc::new();
    proc.put(9, 5, "new", &["PMI_RANK=1"]);
    let rank_of = |names: &mut Names, comm: &str, started| {
        let mut observed = Observed::default();
        let task = Task {
            comm: comm.to_owned(),
            started,
            ..Task::default()
        };
        observed.tasks.insert(9, task);
        names.complete(&mut observed);
        observed.tasks[&9].rank
    };
    let mut names = proc.names();
    for (started, rank) in [(Some(5), Some(1)), (Some(4), None), (None, None)] {
        assert_eq!(rank_of(&mut names, "old", started), rank, "{started:?}");
    }
    // A row of several that had the id is of none of them.
    assert_eq!(rank_of(&mut names, "first, then old", Some(5)), None);
    // One that has ended may have been another program by then.
    fs::remove_dir_all(proc.0.path().join("9")).expect("gone");
    assert_eq!(rank_of(&mut names, "old", Some(5)), None);
    assert_eq!(rank_of(&mut names, "new", Some(5)), Some(1));
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
