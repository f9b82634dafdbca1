// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single copies that were missed: what was seen, why, and what to do.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use libc::{EFAULT, ENOSYS, EPERM, ESRCH};

use crate::observed::{Mechanism, Observed, Owner, PairCounts, PairKey, Peer};
use crate::report::{MissedCopy, NamedProcess};

/// Calls below this many are no habit.
const CALLS_MIN: u64 = 64;
/// Bytes of a call below which two copies through shared memory are faster than one by the kernel.
const SMALL: f64 = 4096.0;
/// Bytes of all calls together below which they are a library's trial, and no payload.
const TRIAL_MAX: u64 = 4096;
/// Bytes from which a message is worth a single copy.
const LARGE: u64 = 64 << 10;

/// What the system permits.
#[derive(Clone, Copy, Debug, Default)]
pub struct System {
    /// Yama's mode; none if there is no Yama.
    pub ptrace_scope: Option<u32>,
}

impl System {
    /// What a proc file system says.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let scope = fs::read_to_string(root.join("sys/kernel/yama/ptrace_scope"));
        Self {
            ptrace_scope: scope.ok().and_then(|text| text.trim().parse().ok()),
        }
    }

    /// Why one process may not reach the memory of another one, and what would permit it.
    fn refusal(self, caller: Owner, peer: Owner) -> (String, String) {
        if let (Some(a), Some(b)) = (caller.user, peer.user)
            && a != b
        {
            return (
                format!("the processes have different users ({a} and {b})"),
                "run both as one user, or give the caller CAP_SYS_PTRACE".to_owned(),
            );
        }
        if let (Some(a), Some(b)) = (caller.namespace, peer.namespace)
            && a != b
        {
            return (
                "the processes are in different user namespaces, as rootless containers are"
                    .to_owned(),
                "start both in one user namespace, or share memory through a kernel module (layers xpmem, knem)"
                    .to_owned(),
            );
        }
        let all = [caller.user, peer.user].iter().all(Option::is_some)
            && [caller.namespace, peer.namespace]
                .iter()
                .all(Option::is_some);
        if !all {
            return (
                "the reason is not known, because a process could not be looked at while it lived. It is one of: other \
                 users, other user or pid namespaces, Yama, or a filter"
                    .to_owned(),
                "run both as one user in one user namespace and one pid namespace; look at kernel.yama.ptrace_scope"
                    .to_owned(),
            );
        }
        match self.ptrace_scope {
            Some(1) => (
                "Yama permits it for descendants only (kernel.yama.ptrace_scope = 1)".to_owned(),
                "sysctl kernel.yama.ptrace_scope=0, or have each process permit its peers by \
                 prctl(PR_SET_PTRACER), as onecopy's ranks do"
                    .to_owned(),
            ),
            Some(scope @ 2..) => (
                format!("Yama permits it for administrators only (kernel.yama.ptrace_scope = {scope})"),
                "sysctl kernel.yama.ptrace_scope=0".to_owned(),
            ),
            _ => (
                "the peer is not dumpable (set-user-id, or prctl(PR_SET_DUMPABLE, 0)), or a filter of system calls or \
                 a security module forbids it"
                    .to_owned(),
                "look at the peer's /proc/PID/status (Seccomp) and at the log of the security module; allow \
                 process_vm_readv and process_vm_writev in the container's seccomp profile"
                    .to_owned(),
            ),
        }
    }
}

fn is_cma(mechanism: Mechanism) -> bool {
    matches!(mechanism, Mechanism::CmaRead | Mechanism::CmaWrite)
}

/// Looks for single copies that were missed; `name` says who a process is. Most bytes first.
///
/// Reasons come from what was seen of processes while they lived: most have ended, and who has their ids is another.
#[must_use]
pub fn missed(
    observed: &Observed,
    name: impl Fn(u32) -> NamedProcess,
    system: System,
) -> Vec<MissedCopy> {
    let mut found = Vec::new();
    // What went through shared memory from each rank, and is reported with the pairs.
    let mut explained = BTreeMap::<u32, u64>::new();
    for (key, counts) in &observed.pairs {
        let mut who = vec![name(key.caller)];
        if let Peer::Process(pid) = key.peer {
            who.push(name(pid));
        }
        let mut add = |what: String, why: String, remedy: String, bytes| {
            found.push(MissedCopy {
                what,
                why,
                remedy,
                bytes,
                who: who.clone(),
            });
        };
        if is_cma(key.mechanism) {
            let owner = |pid| {
                let task = observed.tasks.get(&pid);
                task.map_or_else(Owner::default, |task| task.owner)
            };
            let peer = match key.peer {
                Peer::Process(pid) => owner(pid),
                _ => Owner::default(),
            };
            let refusal = || system.refusal(owner(key.caller), peer);
            of_errors(key, counts, refusal, &mut add);
            of_sizes(key, counts, &mut add);
        } else if key.mechanism == Mechanism::Cico
            && of_two_copies(counts, &mut add)
            && let Peer::Process(source) = key.peer
        {
            let bytes = explained.entry(source).or_default();
            *bytes = bytes.saturating_add(counts.bytes);
        }
    }
    for (pid, counters) in &observed.counters {
        let value = |wanted: &str| {
            let mut all = counters.iter();
            all.find(|(name, _)| *name == wanted)
                .map_or(0, |(_, value)| *value)
        };
        let explained = explained.get(pid).copied().unwrap_or(0);
        of_rank(value, explained, name(*pid), &mut found);
    }
    found.sort_by_key(|missed| std::cmp::Reverse(missed.bytes));
    found
}

fn of_errors(
    key: &PairKey,
    counts: &PairCounts,
    refusal: impl Fn() -> (String, String),
    add: &mut impl FnMut(String, String, String, u64),
) {
    let call = if key.mechanism == Mechanism::CmaRead {
        "process_vm_readv"
    } else {
        "process_vm_writev"
    };
    // Which error lacks how much is not known where there are several.
    let bytes = match counts.errors.len() {
        1 => counts.missing_bytes,
        _ => 0,
    };
    for (errno, times) in &counts.errors {
        match *errno {
            EPERM => {
                let (why, remedy) = refusal();
                add(format!("{call} was refused {times} times (EPERM)"), why, remedy, bytes);
            }
            ENOSYS => add(
                format!("{call} is not there ({times} calls, ENOSYS)"),
                "the kernel was built without cross-memory attach, or a filter of system calls hides it".to_owned(),
                "use a kernel with CONFIG_CROSS_MEMORY_ATTACH, or allow the call in the container's seccomp profile"
                    .to_owned(),
                bytes,
            ),
            // A library tries with an address of its own whether it may read. What is refused for a reason of the
            // system has EPERM; so nothing was missed.
            EFAULT if counts.missing_bytes < TRIAL_MAX => {}
            EFAULT => add(
                format!("{call} found no memory {times} times (EFAULT)"),
                "a buffer was unmapped, or is memory of a device or of an attachment, which the kernel does not read \
                 so"
                    .to_owned(),
                "keep buffers mapped until the peer has read them; for memory of a device use that device's own copies"
                    .to_owned(),
                bytes,
            ),
            ESRCH => add(
                format!("{call} found no process {times} times (ESRCH)"),
                "the peer has ended, or is in another pid namespace, where it has another id".to_owned(),
                "run both in one pid namespace (docker run --pid=host, or --pid=container:NAME)".to_owned(),
                bytes,
            ),
            _ => {}
        }
    }
}

fn of_sizes(key: &PairKey, counts: &PairCounts, add: &mut impl FnMut(String, String, String, u64)) {
    let good = counts.calls - counts.errors.values().sum::<u64>().min(counts.calls);
    if good < CALLS_MIN {
        return;
    }
    let (calls, pieces) = counts.vectored;
    if calls >= CALLS_MIN && counts.bytes / pieces.max(1) < SMALL as u64 {
        add(
            format!(
                "{calls} calls of {} name {pieces} pieces of memory, of {} bytes each",
                key.mechanism.name(),
                counts.bytes / pieces.max(1)
            ),
            "the kernel looks each piece up for itself, which costs more than copying it"
                .to_owned(),
            "send contiguous data, or pack small pieces before sending".to_owned(),
            counts.bytes,
        );
    } else if counts
        .sizes
        .percentile(0.5)
        .is_some_and(|median| median < SMALL)
    {
        add(
            format!("at least half of {good} calls of {} copy less than 4 KiB", key.mechanism.name()),
            "a system call costs more than a second copy of so little".to_owned(),
            "raise the size from which this library copies singly (onecopy: ONECOPY_CMA_MIN; UCX: UCX_ZCOPY_THRESH or \
             UCX_RNDV_THRESH; Open MPI: btl_vader_eager_limit; MPICH: MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD)"
                .to_owned(),
            counts.bytes,
        );
    }
}

/// Whether it was reported.
fn of_two_copies(counts: &PairCounts, add: &mut impl FnMut(String, String, String, u64)) -> bool {
    let Some(each) = counts.bytes.checked_div(counts.calls) else {
        return false;
    };
    let is_large = each >= LARGE;
    if is_large {
        add(
            format!("messages of {each} bytes on average went through shared memory, by two copies"),
            "no layer with a single copy was usable, or two copies were measured to be faster for this pair".to_owned(),
            "'onecopy info' says which layers are refused and why; 'onecopy info protocols --peer R' which size goes \
             how"
                .to_owned(),
            counts.bytes,
        );
    }
    is_large
}

/// Of what the rank sent through shared memory, `explained` bytes are those of its receivers' pairs.
fn of_rank(
    value: impl Fn(&str) -> u64,
    explained: u64,
    who: NamedProcess,
    found: &mut Vec<MissedCopy>,
) {
    let mut add = |what: String, why: &str, remedy: &str, bytes| {
        found.push(MissedCopy {
            what,
            why: why.to_owned(),
            remedy: remedy.to_owned(),
            bytes,
            who: vec![who.clone()],
        });
    };
    let demotions = value("demotions");
    if demotions > 0 {
        add(
            format!("{demotions} layers were given up after a failure"),
            "a copy by them failed while the job ran",
            "set ONECOPY_LOG=debug to see which, for which peer, and the error",
            0,
        );
    }
    // The sender counts what it puts into chunks, the receiver's pair what it takes out.
    // Only what no pair reports is new.
    let pipeline = value("pipeline_bytes").saturating_sub(explained);
    if pipeline >= 16 * LARGE {
        add(
            format!("{pipeline} bytes of announced messages went through chunks, by two copies"),
            "no single copy was permitted between the pair, or the pair's own times were better so",
            "'onecopy info' says which layers are refused and why",
            pipeline,
        );
    }
    let unearned = value("attach_unearned");
    if unearned >= CALLS_MIN {
        add(
            format!(
                "{unearned} transfers found their memory not attached, and too small to attach it"
            ),
            "memory is attached for messages of ONECOPY_ATTACH_MIN bytes, or when it is asked for again",
            "reuse buffers, or lower ONECOPY_ATTACH_MIN",
            0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Task;

    fn system(ptrace_scope: Option<u32>) -> System {
        System { ptrace_scope }
    }

    fn owner(user: u32, namespace: u64) -> Owner {
        Owner {
            user: Some(user),
            namespace: Some(namespace),
        }
    }

    fn look(mechanism: Mechanism, counts: PairCounts, system: System) -> Vec<MissedCopy> {
        look_at([Owner::default(); 2], mechanism, counts, system)
    }

    /// Process 1 calls process 2; whose they are, in this order. Both have ended.
    fn look_at(
        owners: [Owner; 2],
        mechanism: Mechanism,
        counts: PairCounts,
        system: System,
    ) -> Vec<MissedCopy> {
        let mut observed = Observed::default();
        let key = PairKey {
            caller: 1,
            peer: Peer::Process(2),
            mechanism,
            writes: false,
        };
        observed.pairs.insert(key, counts);
        for (pid, owner) in (1..).zip(owners) {
            let task = Task {
                owner,
                ended: true,
                ..Task::default()
            };
            observed.tasks.insert(pid, task);
        }
        let name = |pid| NamedProcess {
            pid: Some(pid),
            ..NamedProcess::default()
        };
        missed(&observed, name, system)
    }

    const MISSING: u64 = 3 * TRIAL_MAX;

    fn refused(errno: i32) -> PairCounts {
        let mut counts = PairCounts {
            calls: 3,
            missing_bytes: MISSING,
            ..PairCounts::default()
        };
        counts.errors.insert(errno, 3);
        counts
    }

    #[test]
    fn a_refusal_names_its_reason() {
        let same = [owner(5, 1), owner(5, 1)];
        let users = [owner(5, 1), owner(6, 1)];
        let spaces = [owner(5, 1), owner(5, 2)];
        let unknown = [owner(5, 1), Owner::default()];
        for (scope, owners, why) in [
            (Some(1), same, "ptrace_scope = 1"),
            (Some(2), same, "administrators only"),
            (Some(0), same, "not dumpable"),
            (None, same, "not dumpable"),
            (Some(1), users, "different users (5 and 6)"),
            (Some(1), spaces, "different user namespaces"),
            (Some(1), unknown, "not known"),
            (None, unknown, "not known"),
        ] {
            let found = look_at(owners, Mechanism::CmaRead, refused(EPERM), system(scope));
            assert_eq!(found.len(), 1);
            assert!(found[0].why.contains(why), "{:?}", found[0]);
            assert_eq!(found[0].bytes, MISSING);
        }
    }

    #[test]
    fn each_errno_has_its_words() {
        let system = system(None);
        for (errno, what) in [
            (ENOSYS, "not there"),
            (EFAULT, "no memory"),
            (ESRCH, "no process"),
        ] {
            let found = look(Mechanism::CmaWrite, refused(errno), system);
            assert!(found[0].what.contains(what), "{:?}", found[0]);
        }
        assert!(look(Mechanism::CmaRead, refused(4), system).is_empty());
    }

    #[test]
    fn a_trial_misses_nothing_unless_it_is_refused() {
        let system = system(None);
        for (errno, found) in [(EFAULT, 0), (EPERM, 1), (ESRCH, 1)] {
            let mut counts = refused(errno);
            counts.missing_bytes = 3 * 16;
            assert_eq!(look(Mechanism::CmaRead, counts, system).len(), found);
        }
    }

    #[test]
    fn bytes_are_not_told_twice() {
        let system = system(None);
        let mut counts = refused(EFAULT);
        counts.errors.insert(ESRCH, 1);
        let found = look(Mechanism::CmaRead, counts, system);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|missed| missed.bytes == 0), "{found:?}");
    }

    #[test]
    fn small_calls_and_many_pieces_are_told_apart() {
        let system = system(None);
        let mut small = PairCounts {
            calls: 100,
            bytes: 100 * 512,
            ..PairCounts::default()
        };
        small.sizes.add(512, 100);
        let found = look(Mechanism::CmaRead, small.clone(), system);
        assert!(found[0].what.contains("less than 4 KiB"), "{found:?}");
        small.vectored = (100, 800);
        let found = look(Mechanism::CmaRead, small.clone(), system);
        assert!(found[0].what.contains("800 pieces"), "{found:?}");
        small.calls = 10;
        assert!(look(Mechanism::CmaRead, small, system).is_empty());
        let mut large = PairCounts {
            calls: 100,
            bytes: 100 << 20,
            ..PairCounts::default()
        };
        large.sizes.add(1 << 20, 100);
        assert!(look(Mechanism::CmaRead, large.clone(), system).is_empty());
        let found = look(Mechanism::Cico, large, system);
        assert!(found[0].what.contains("two copies"), "{found:?}");
    }

    #[test]
    fn what_a_pair_tells_its_rank_does_not_tell_again() {
        const BYTES: u64 = 1 << 30;
        let bytes_missed = |pair_bytes: u64, pipeline: u64| {
            let mut observed = Observed::default();
            let key = PairKey {
                caller: 1,
                peer: Peer::Process(2),
                mechanism: Mechanism::Cico,
                writes: false,
            };
            let counts = PairCounts {
                calls: pair_bytes.div_ceil(1 << 20),
                bytes: pair_bytes,
                ..PairCounts::default()
            };
            observed.pairs.insert(key, counts);
            let counters = vec![("pipeline_bytes", pipeline)];
            observed.counters.insert(2, counters);
            let found = missed(&observed, |_| NamedProcess::default(), System::default());
            let bytes: Vec<u64> = found.iter().map(|missed| missed.bytes).collect();
            bytes
        };
        assert_eq!(bytes_missed(BYTES, BYTES), [BYTES]);
        assert_eq!(bytes_missed(BYTES + 5, BYTES), [BYTES + 5]);
        // Another pair has small messages beside large ones, and tells nothing.
        assert_eq!(bytes_missed(BYTES, 3 * BYTES), [2 * BYTES, BYTES]);
        assert_eq!(bytes_missed(0, BYTES), [BYTES]);
    }

    #[test]
    fn counters_of_ranks_are_looked_at() {
        let mut observed = Observed::default();
        let counters = vec![
            ("demotions", 2),
            ("pipeline_bytes", 1 << 30),
            ("attach_unearned", 1000),
        ];
        observed.counters.insert(1, counters);
        let found = missed(&observed, |_| NamedProcess::default(), System::default());
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].bytes, 1 << 30);
    }
}
