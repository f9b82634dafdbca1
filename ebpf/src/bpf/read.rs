// SPDX-License-Identifier: MIT OR Apache-2.0
//! The maps: reads the figures, and writes what the programs are to do.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};

use super::layout::{
    Count, ErrorKeyWords, LocalId, PairKeyWords, PairWords, RawKey, RawPair, RawTask, TABLES,
    TaskWords,
};
use super::translate::{Ids, SeenProcesses, outermost, task_of};
use crate::names::THEN;
use crate::observed::{Observed, PairCounts, PairKey, Peer, Task, Wait};

/// The entries of a map. One that goes away while it is read is left out.
fn entries<K: aya::Pod, V: aya::Pod>(ebpf: &Ebpf, name: &str) -> Vec<(K, V)> {
    let Some(map) = ebpf.map(name) else {
        return Vec::new();
    };
    let Ok(map) = HashMap::<&MapData, K, V>::try_from(map) else {
        return Vec::new();
    };
    map.iter().filter_map(Result::ok).collect()
}

/// A counter of the programs, of all processors together.
pub(super) fn count(ebpf: &Ebpf, which: Count) -> u64 {
    let map = ebpf.map("counts");
    let map = map.and_then(|map| PerCpuArray::<&MapData, u64>::try_from(map).ok());
    let values = map.and_then(|map| map.get(&(which as u32), 0).ok());
    values.map_or(0, |values| values.iter().sum())
}

/// Tells the programs how many entries their tables have.
pub(super) fn furnish(ebpf: &mut Ebpf) -> Result<(), MapError> {
    for (number, name) in (0..).zip(TABLES) {
        let table = ebpf.map(name).ok_or(MapError::KeyNotFound)?;
        let (Map::HashMap(table) | Map::LruHashMap(table)) = table else {
            return Err(MapError::KeyNotFound);
        };
        let entries = u64::from(table.info()?.max_entries());
        let rooms = ebpf.map_mut("rooms").ok_or(MapError::KeyNotFound)?;
        Array::<_, [u64; 2]>::try_from(rooms)?.set(number, [entries, 0], 0)?;
    }
    Ok(())
}

/// What found no place in a table, by the user whose it was.
pub(super) fn lost(ebpf: &Ebpf) -> BTreeMap<u32, u64> {
    entries::<u32, u64>(ebpf, "lost").into_iter().collect()
}

/// Says what is wanted from now on.
pub(super) fn want(ebpf: &mut Ebpf, bits: u32) -> Result<(), MapError> {
    let map = ebpf.map_mut("config").ok_or(MapError::KeyNotFound)?;
    let mut map = Array::<_, [u32; 2]>::try_from(map)?;
    let tracer = if outermost() { std::process::id() } else { 0 };
    map.set(0, [bits, tracer], 0)
}

/// Adds a process, and all that it starts from now on, to the job that is followed.
pub(super) fn follow(ebpf: &mut Ebpf, tgid: u32) -> Result<(), MapError> {
    followed_map(ebpf)?.insert(tgid, 1, 0)
}

/// Adds a process alone, if it is not there.
pub(super) fn follow_alone(ebpf: &mut Ebpf, tgid: u32) -> Result<(), MapError> {
    const NOEXIST: u64 = 1;
    followed_map(ebpf)?.insert(tgid, 0, NOEXIST)
}

/// Takes a process out.
pub(super) fn leave(ebpf: &mut Ebpf, tgid: u32) -> Result<(), MapError> {
    followed_map(ebpf)?.remove(&tgid)
}

fn followed_map(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, u32, u32>, MapError> {
    let map = ebpf.map_mut("followed").ok_or(MapError::KeyNotFound)?;
    HashMap::try_from(map)
}

/// The processes of the job that is followed.
pub(super) fn followed(ebpf: &Ebpf) -> Vec<u32> {
    let found = entries::<u32, u32>(ebpf, "followed").into_iter();
    found.map(|(tgid, _)| tgid).collect()
}

/// Ids that calls gave, and the first process that had it and ended; else its end is 0.
pub(super) fn peers(ebpf: &Ebpf) -> Vec<(LocalId, RawTask)> {
    let found = entries::<[u32; 2], TaskWords>(ebpf, "peers").into_iter();
    found
        .map(|(id, words)| (LocalId::of(id), RawTask::of(&words)))
        .collect()
}

/// Processes that made calls: of each id the last one.
pub(super) fn callers(ebpf: &Ebpf) -> Vec<(u32, RawTask)> {
    let found = entries::<u32, TaskWords>(ebpf, "tasks").into_iter();
    found
        .map(|(pid, words)| (pid, RawTask::of(&words)))
        .collect()
}

/// What was seen of processes.
pub(super) fn seen(ebpf: &Ebpf) -> SeenProcesses {
    let mut seen = SeenProcesses::default();
    let callers = entries::<u32, TaskWords>(ebpf, "tasks").into_iter();
    let past = entries::<[u32; 2], TaskWords>(ebpf, "past").into_iter();
    let all = callers
        .map(|(_, words)| words)
        .chain(past.map(|(_, words)| words));
    for task in all.map(|words| RawTask::of(&words)) {
        seen.callers.insert((task.tgid, task.generation), task);
    }
    let ended = peers(ebpf).into_iter().filter(|(_, task)| task.end_ns != 0);
    seen.ended.extend(ended);
    seen
}

/// Whether a call, of a process by its id and generation, is one by which the tracer measures itself.
pub(super) fn is_own(caller: (u32, u32), peer: LocalId, seen: &SeenProcesses) -> bool {
    let caller = seen.callers.get(&caller);
    caller.is_some_and(|task| {
        task.end_ns == 0
            && task.local == peer
            && task.local.pid.cast_unsigned() == std::process::id()
    })
}

/// The matrix, with the processes that occur in it.
pub(super) fn pairs(ebpf: &Ebpf, ids: &mut Ids, into: &mut Observed) {
    let seen = seen(ebpf);
    let mut errors: BTreeMap<RawKey, BTreeMap<i32, u64>> = BTreeMap::new();
    for (words, times) in entries::<ErrorKeyWords, u64>(ebpf, "errors") {
        if let Some(key) = RawKey::of(&words) {
            errors
                .entry(key)
                .or_default()
                .insert(words[6].cast_signed(), times);
        }
    }
    for task in seen.callers.values() {
        merge_task(&mut into.tasks, task.tgid, task_of(task));
    }
    let mut called = std::collections::BTreeSet::new();
    for (words, pair) in entries::<PairKeyWords, PairWords>(ebpf, "pairs") {
        let Some(key) = RawKey::of(&words) else {
            continue;
        };
        if is_own((key.caller, key.generation), key.peer, &seen) {
            continue;
        }
        let pair = RawPair::of(&pair);
        let (peer, task) = ids.resolve(key.peer, pair.there, &seen);
        called.insert(key.caller);
        if let (Peer::Process(tgid), Some(task)) = (peer, task) {
            called.insert(tgid);
            into.tasks.entry(tgid).or_insert(task);
        }
        let key = (
            PairKey {
                caller: key.caller,
                peer,
                mechanism: key.mechanism,
                writes: key.writes,
            },
            errors.remove(&key).unwrap_or_default(),
        );
        add(into.pairs.entry(key.0).or_default(), &pair, &key.1);
    }
    into.tasks.retain(|tgid, _| called.contains(tgid));
}

/// Two processes that had the same id, one after the other, are told by both names.
fn merge_task(tasks: &mut BTreeMap<u32, Task>, tgid: u32, task: Task) {
    let Some(before) = tasks.get_mut(&tgid) else {
        tasks.insert(tgid, task);
        return;
    };
    let comm = if before.comm == task.comm {
        task.comm.clone()
    } else {
        format!("{}{THEN}{}", before.comm, task.comm)
    };
    *before = Task { comm, ..task };
}

fn add(counts: &mut PairCounts, pair: &RawPair, errors: &BTreeMap<i32, u64>) {
    counts.calls += pair.sizes.total();
    counts.bytes += pair.bytes;
    counts.missing_bytes += pair.missing_bytes;
    counts.time_ns += pair.time_ns;
    counts.faults += pair.faults;
    counts.vectored.0 += pair.vectored.0;
    counts.vectored.1 += pair.vectored.1;
    counts.wait_ns += pair.wait_ns;
    counts.flushes += pair.flushes;
    counts.latency_ns.merge(&pair.latency);
    counts.sizes.merge(&pair.sizes);
    for (errno, times) in errors {
        *counts.errors.entry(*errno).or_default() += times;
    }
}

/// Who waited for whose address space.
pub(super) fn waits(ebpf: &Ebpf) -> Vec<Wait> {
    let found = entries::<[u32; 2], [u64; 3]>(ebpf, "waits");
    let mut waits: Vec<Wait> = found
        .into_iter()
        .map(|([waiter, owner], [waits, total_ns, longest_ns])| Wait {
            waiter,
            owner: (owner != 0).then_some(owner),
            waits,
            total_ns,
            longest_ns,
        })
        .collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.total_ns));
    waits
}
