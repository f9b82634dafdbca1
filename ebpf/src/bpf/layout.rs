// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies in the maps, as `ebpf/bpf/maps.h` has it.

use crate::histogram::{BINS, Histogram};
use crate::observed::{Mechanism, Owner};
use crate::proc::TICK_NS;

/// How many bins the kernel's programs have; they count larger values in the last one.
pub(super) const KERNEL_BINS: usize = 176;
const FIGURES: usize = 10;
/// How many arguments of a probe point are read.
pub(super) const ARGS: usize = 6;

pub(super) type PairKeyWords = [u32; 6];
pub(super) type PairWords = [u64; FIGURES + 2 * KERNEL_BINS];
pub(super) type ErrorKeyWords = [u32; 8];
pub(super) type TaskWords = [u64; 9];
pub(super) type SiteWords = [u64; 1 + 2 * ARGS];

/// The tables that those who are observed fill, in the order of `enum table`.
pub(super) const TABLES: [&str; 9] = [
    "pairs", "errors", "tasks", "past", "peers", "calls", "waiting", "waits", "ioctls",
];

/// The counters of the programs themselves, by their place in the map.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Events = 0,
    Dropped = 1,
    NotCounted = 2,
}

/// Bits of what is wanted.
pub(super) const WANT_LATENCY: u32 = 1;
pub(super) const WANT_EVENTS: u32 = 2;

/// An id in a pid namespace: 0 for the outermost, 1 for one that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LocalId {
    pub(super) namespace: u32,
    pub(super) pid: i32,
}

impl LocalId {
    pub(super) fn of(words: [u32; 2]) -> Self {
        Self {
            namespace: words[0],
            pid: words[1].cast_signed(),
        }
    }
}

/// Which calls are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RawKey {
    pub(super) caller: u32,
    pub(super) generation: u32,
    pub(super) peer: LocalId,
    pub(super) mechanism: Mechanism,
    /// Whether the caller wrote into the other's memory.
    pub(super) writes: bool,
}

impl RawKey {
    /// None for a mechanism of another version.
    pub(super) fn of(words: &[u32]) -> Option<Self> {
        let mechanism = mechanism(words[4])?;
        Some(Self {
            caller: words[0],
            generation: words[1],
            peer: LocalId::of([words[2], words[3]]),
            mechanism,
            writes: mechanism == Mechanism::CmaWrite || words[5] != 0,
        })
    }
}

pub(super) fn mechanism(number: u32) -> Option<Mechanism> {
    Some(match number {
        0 => Mechanism::CmaRead,
        1 => Mechanism::CmaWrite,
        2 => Mechanism::XpmemAttach,
        3 => Mechanism::XpmemFault,
        4 => Mechanism::KnemCopy,
        _ => return None,
    })
}

/// What was counted.
pub(super) struct RawPair {
    pub(super) bytes: u64,
    pub(super) missing_bytes: u64,
    pub(super) time_ns: u64,
    pub(super) faults: u64,
    pub(super) vectored: (u64, u64),
    pub(super) wait_ns: u64,
    pub(super) flushes: u64,
    /// When the peer was there, first and last; 0 if never.
    pub(super) there: (u64, u64),
    pub(super) latency: Histogram,
    pub(super) sizes: Histogram,
}

impl RawPair {
    pub(super) fn of(words: &PairWords) -> Self {
        let (figures, bins) = words.split_at(FIGURES);
        let (latency, sizes) = bins.split_at(KERNEL_BINS);
        Self {
            bytes: figures[0],
            missing_bytes: figures[1],
            time_ns: figures[2],
            faults: figures[3],
            vectored: (figures[4], figures[5]),
            wait_ns: figures[6],
            flushes: figures[7],
            there: (figures[8], figures[9]),
            latency: histogram(latency),
            sizes: histogram(sizes),
        }
    }
}

fn histogram(bins: &[u64]) -> Histogram {
    let mut counts = [0; BINS];
    for (count, bin) in counts.iter_mut().zip(bins) {
        *count = *bin;
    }
    Histogram::from_counts(counts)
}

/// A process, as the programs saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawTask {
    /// When it began, and when it ended or 0: nanoseconds of the monotonic clock.
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// When it began, in ticks as `/proc` says it; none if it is not known.
    pub(super) started: Option<u64>,
    pub(super) tgid: u32,
    pub(super) generation: u32,
    pub(super) local: LocalId,
    pub(super) owner: Owner,
    pub(super) comm: String,
}

impl RawTask {
    pub(super) fn of(words: &TaskWords) -> Self {
        let pair = |word: u64| [low(word), high(word)];
        let [tgid, generation] = pair(words[3]);
        let mut comm = Vec::new();
        comm.extend(words[7].to_ne_bytes());
        comm.extend(words[8].to_ne_bytes());
        let end = comm.iter().position(|byte| *byte == 0);
        comm.truncate(end.unwrap_or(comm.len()));
        Self {
            start_ns: words[0],
            end_ns: words[1],
            started: (words[2] != 0).then_some(words[2] / TICK_NS),
            tgid,
            generation,
            local: LocalId::of(pair(words[4])),
            owner: Owner {
                // Nothing is written of a process that has not been seen.
                user: (tgid != 0).then_some(high(words[5])),
                namespace: Some(u64::from(low(words[6]))).filter(|inode| *inode != 0),
            },
            comm: String::from_utf8_lossy(&comm).into_owned(),
        }
    }
}

/// The word at the lower address.
const fn low(word: u64) -> u32 {
    let bytes = word.to_ne_bytes();
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The word at the higher address.
const fn high(word: u64) -> u32 {
    let bytes = word.to_ne_bytes();
    u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// A record of the ring, read from its start.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

/// A record of the ring.
pub(super) enum Record {
    Copy {
        caller: u32,
        generation: u32,
        peer: LocalId,
        mechanism: Mechanism,
        tid: u32,
        start_ns: u64,
        duration_ns: u64,
        asked: u64,
        result: i64,
        faults: u32,
    },
    Runtime {
        tgid: u32,
        tid: u32,
        site: u32,
        start_ns: u64,
        args: [i64; ARGS],
    },
}

impl Record {
    /// None if it is of another version.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let kind = from.u32()?;
        let (caller, tid, fourth) = (from.u32()?, from.u32()?, from.u32()?);
        let start_ns = from.u64()?;
        if kind == 1 {
            let mut args = [0; ARGS];
            for arg in &mut args {
                *arg = from.u64()?.cast_signed();
            }
            return Some(Self::Runtime {
                tgid: caller,
                tid,
                site: fourth,
                start_ns,
                args,
            });
        }
        let duration_ns = from.u64()?;
        let peer = LocalId::of([from.u32()?, from.u32()?]);
        let (asked, result) = (from.u64()?, from.u64()?.cast_signed());
        let (faults, generation) = (from.u32()?, from.u32()?);
        Some(Self::Copy {
            caller,
            generation,
            peer,
            mechanism: mechanism(fourth)?,
            tid,
            start_ns,
            duration_ns,
            asked,
            result,
            faults,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_read_as_it_was_written() {
        let mut words: TaskWords = [7, 9, 3 * TICK_NS + 1, 0, 0, 0, 0, 0, 0];
        let pair = |a: u32, b: u32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&a.to_ne_bytes());
            bytes[4..].copy_from_slice(&b.to_ne_bytes());
            u64::from_ne_bytes(bytes)
        };
        words[3] = pair(100, 3);
        words[4] = pair(4_026_532_000, 42);
        words[5] = pair(2, 1001);
        words[6] = pair(4_026_531_837, 0);
        words[7] = u64::from_ne_bytes(*b"a-longer");
        words[8] = u64::from_ne_bytes(*b"-name\0xx");
        let task = RawTask::of(&words);
        assert_eq!((task.start_ns, task.end_ns), (7, 9));
        assert_eq!(task.started, Some(3));
        assert_eq!((task.tgid, task.generation), (100, 3));
        assert_eq!(task.comm, "a-longer-name");
        let local = LocalId {
            namespace: 4_026_532_000,
            pid: 42,
        };
        assert_eq!(task.local, local);
        let owner = Owner {
            user: Some(1001),
            namespace: Some(4_026_531_837),
        };
        assert_eq!(task.owner, owner);
        words[6] = 0;
        assert_eq!(RawTask::of(&words).owner.namespace, None);
    }

    #[test]
    fn a_cut_record_is_none() {
        assert!(Record::of(&[0; 20]).is_none());
        assert!(Record::of(&[]).is_none());
        assert!(Record::of(&[0; 72]).is_some());
    }
}
