// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that Slurm starts, with PMIx and with PMI-1. Its daemons run on the loopback for the length of a test, from
//! Debian's packages unpacked below the build folder. They are put over `/usr` in namespaces of their own, as programs
//! and plugins name one another by their places.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::launchers::peers;
use crate::meeting::{RunOutput, TRACES, add_rank, finish, possible};
use crate::pmix::SPREAD;
use crate::processes::{limit, say};

/// Slurm, and what it needs that a machine may lack.
const PACKAGES: &[&str] = &[
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "libmunge2",
    "libpmix2",
    "libevent-core-2.1-7",
    "libevent-pthreads-2.1-7",
    "libhwloc15",
    "libjson-c5",
    "libyaml-0-2",
    "liblua5.1-0",
    "libdbus-1-3",
    "liblz4-1",
    "libnuma1",
];

/// Everything that the daemons start ends with the shell that started them. The ports of their loopback are theirs
/// alone, so that nothing else takes one before they do.
const APART: [&str; 7] = [
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Starts the daemons, then the command that follows its first two arguments: what lies over `/usr`, and the folder of
/// everything that they write. They look up no name while all addresses are loopback's, so there is one more. The code
/// is 98 if a daemon ended before its node was ready: a job would wait for ever.
const BED: &str = r#"
ip link set lo up && ip address add 192.0.2.1/32 dev lo || exit 99
mount -t overlay overlay -o "lowerdir=$1/usr:/usr" /usr || exit 99
here=$2; shift 2
head -c 1024 /dev/urandom > "$here/key"; chmod 400 "$here/key"
export SLURM_CONF=$here/slurm.conf
munged --foreground --force --key-file="$here/key" --socket="$here/munge" --pid-file="$here/munge.pid" \
    --log-file="$here/munge.log" --seed-file="$here/seed" > "$here/munged.out" 2>&1 & munged=$!
until [ -S "$here/munge" ] || ! kill -0 $munged; do sleep 0.05; done
slurmctld-wlm -D -c > "$here/slurmctld.out" 2>&1 & control=$!
slurmd-wlm -D -d /usr/sbin/slurmstepd-wlm > "$here/slurmd.out" 2>&1 & node=$!
until [ "$(sinfo -h -o %t)" = idle ]; do
    for daemon in $munged $control $node; do kill -0 $daemon || exit 98; done
    sleep 0.1
done 2> /dev/null
"$@"
exit $?
"#;

/// What lies over `/usr`; none, after saying why, if it cannot be had here.
fn packages() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(unpack).as_deref()
}

fn unpack() -> Option<PathBuf> {
    let apart = [&APART[..], &["sh", "-c", "ip link set lo up"]].concat();
    if !nix::unistd::getuid().is_root() || !possible(&apart) {
        say("skipped: Slurm's daemons need root, namespaces and ip");
        return None;
    }
    let folder = peers().join("slurm");
    let root = folder.join("root");
    if root.join("done").exists() {
        return Some(root);
    }
    // What a run that was ended left is no matter.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&root).expect("folder");
    for package in PACKAGES {
        let mut fetch = Command::new("apt-get");
        fetch.args(["download", "-q", package]).current_dir(&folder);
        if !ran(&mut fetch) {
            return None;
        }
    }
    for entry in fs::read_dir(&folder).expect("folder").flatten() {
        if entry.path().extension().is_some_and(|kind| kind == "deb") {
            let mut unpack = Command::new("dpkg-deb");
            if !ran(unpack.arg("-x").arg(entry.path()).arg(&root)) {
                return None;
            }
        }
    }
    // The plugin opens the name that only the package for developers has.
    let arch = std::env::consts::ARCH;
    let library = root.join(format!("usr/lib/{arch}-linux-gnu/pmix2/lib/libpmix.so"));
    std::os::unix::fs::symlink("libpmix.so.2", library).expect("link");
    fs::write(root.join("done"), "").expect("write");
    Some(root)
}

fn ran(command: &mut Command) -> bool {
    let output = limit::try_output(command);
    let success = output.as_ref().is_ok_and(|ran| ran.status.success());
    if !success {
        say(&format!("skipped: Slurm: {command:?}: {output:?}"));
    }
    success
}

fn configuration(folder: &Path) -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("name");
    let name = name.trim().split('.').next().unwrap_or("localhost");
    let arch = std::env::consts::ARCH;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = folder.display();
    format!(
        "ClusterName=test\nSlurmctldHost={name}(127.0.0.1)\nSlurmUser=root\nAuthType=auth/munge\n\
        AuthInfo=socket={folder}/munge\nCredType=cred/munge\nPluginDir=/usr/lib/{arch}-linux-gnu/slurm-wlm\n\
        StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\nSlurmctldPidFile={folder}/slurmctld.pid\n\
        SlurmdPidFile={folder}/slurmd.pid\nSlurmctldPort=6817\nSlurmdPort=6818\n\
        ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
        JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\nSwitchType=switch/none\n\
        MpiDefault=none\nReturnToService=2\nKillWait=2\n\
        NodeName={name} NodeAddr=127.0.0.1 CPUs={processors} State=UNKNOWN\n\
        PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    )
}

/// Runs ranks in a step of a cluster that is there for their time only; none if there is no Slurm to be had.
pub(crate) fn run(mpi: &str, ranks: usize, wrapper: &[&str], body: &str) -> Option<RunOutput> {
    let root = packages()?;
    let folder = format!("onecopy-slurm-{}-{mpi}-{body}-{ranks}", std::process::id());
    // Names of sockets are short.
    let folder = std::env::temp_dir().join(folder);
    for name in ["state", "spool"] {
        fs::create_dir_all(folder.join(name)).expect("folder");
    }
    fs::write(folder.join("slurm.conf"), configuration(&folder)).expect("write");
    // What a step leaves in the usual place keeps the step of the same number, of the next cluster, from its start.
    let pmix = format!("PMIxCliTmpDirBase={}\n", folder.display());
    fs::write(folder.join("mpi.conf"), pmix).expect("write");
    let mut command = Command::new(APART[0]);
    command.args(&APART[1..]).args(["sh", "-c", BED, "bed"]);
    command.arg(root).arg(&folder);
    command.args(["srun", "--overcommit", "--kill-on-bad-exit", "--mpi", mpi]);
    command.args(["-n", &ranks.to_string()]).args(wrapper);
    add_rank(&mut command, body);
    for name in TRACES {
        command.env_remove(name);
    }
    command.env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut ran = finish(&mut command);
    if ran.code != Some(0) {
        let out = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
        ran.text += &[out("munged.out"), out("slurmctld.out"), out("slurmd.out")].concat();
    }
    fs::remove_dir_all(&folder).expect("remove");
    // The bed's own.
    assert!(!matches!(ran.code, Some(98 | 99)), "{mpi}: {}", ran.text);
    Some(ran)
}

#[test]
fn ranks_of_slurm_meet() {
    for mpi in ["pmix", "pmi2", "none"] {
        for ranks in [1, 3] {
            let Some(ran) = run(mpi, ranks, &[], "ring") else {
                return;
            };
            ran.expect_ring(ranks);
        }
    }
    let ran = run("pmix", 2, &[], "means").expect("as before");
    assert_eq!(ran.lines_with("by PMIx: true"), 2, "{}", ran.text);
}

#[test]
fn ranks_of_slurm_meet_on_several_nodes() {
    let Some(ran) = run("pmix", 4, &SPREAD, "nodes-meet") else {
        return;
    };
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    for node in 0..2 {
        let mark = format!("of 4 on node {node} at ");
        assert_eq!(ran.lines_with(&mark), 2, "{}", ran.text);
    }
}

#[test]
fn an_abort_ends_a_step_of_slurm() {
    let Some(ran) = run("pmix", 3, &[], "abort") else {
        return;
    };
    // By the code of the abort, or by the signal with which Slurm ends ranks.
    assert!(matches!(ran.code, Some(7 | 137)), "{}", ran.text);
    let ran = run("pmix", 3, &[], "desert").expect("as before");
    assert!(ran.code.is_none_or(|code| code != 0), "{}", ran.text);
}
