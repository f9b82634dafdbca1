// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's programs, run on events that modules would tell: no module has to be there for that.
#![allow(clippy::print_stdout, reason = "what is skipped is told")]

use aya::programs::{RawTracePoint, RawTracePointRunOptions, TestRun};

use super::translate::Ids;
use super::{Options, attach, read};
use crate::observed::{Mechanism, Observed, PairCounts, PairKey, Peer};
use crate::report;

/// The process that the events are about.
const PEER: u32 = 1;

/// What is counted of events of one tracepoint, with pages of so many bytes; none where nothing may be observed.
fn counted(page: u64, program: &str, events: &[&[u64]]) -> Option<Observed> {
    let loaded = attach::load_for(&Options::default(), page);
    let mut ebpf = match loaded {
        Ok((ebpf, _)) => ebpf,
        Err(error) => {
            println!("skipped: {error}");
            let may = nix::unistd::geteuid().is_root();
            assert!(!may || error.reason.contains("permitted"), "{error}");
            return None;
        }
    };
    let found = ebpf.program_mut(program).expect("a program");
    let found: &mut RawTracePoint = found.try_into().expect("a tracepoint");
    found.load().expect("loaded");
    for event in events {
        let mut run = RawTracePointRunOptions::new();
        run.args[..event.len()].copy_from_slice(event);
        if let Err(error) = found.test_run(run) {
            // Kernels before 5.10 do not run one.
            println!("skipped: {error}");
            return None;
        }
    }
    let mut observed = Observed::default();
    read::pairs(&ebpf, &mut Ids::new(), &mut observed);
    Some(observed)
}

fn pair_counts(observed: &Observed, mechanism: Mechanism, writes: bool) -> PairCounts {
    let key = PairKey {
        caller: std::process::id(),
        peer: Peer::Process(PEER),
        mechanism,
        writes,
    };
    let found = observed.pairs.get(&key).cloned();
    found.unwrap_or_else(|| panic!("{key:?} is not among {:?}", observed.pairs.keys()))
}

#[test]
fn pages_that_a_fault_shows_are_those_of_the_kernel() {
    // seg, addr, owner_addr, write, pages, err, owner_tgid
    let fault = |pages, err: i64| [0, 0, 0, 0, pages, err.cast_unsigned(), u64::from(PEER)];
    let failed = -i64::from(libc::EFAULT);
    for page in [4096, 16_384, 65_536] {
        // One page, a window by one entry, and one that failed.
        let events = [fault(1, 0), fault(512, 0), fault(1, failed)];
        let events = events.each_ref().map(<[u64; 7]>::as_slice);
        let Some(observed) = counted(page, "module_fault", &events) else {
            return;
        };
        let counts = pair_counts(&observed, Mechanism::XpmemFault, false);
        assert_eq!((counts.calls, counts.bytes), (3, 513 * page));
        assert_eq!(counts.missing_bytes, page);
        assert_eq!(counts.errors.get(&libc::EFAULT), Some(&1));
    }
}

#[test]
fn a_copy_of_the_module_goes_the_way_that_it_tells() {
    // dst, src, len, done, err, peer, to_peer
    let copy = |len, to_peer| [0, 0, len, len, 0, u64::from(PEER), to_peer];
    let events = [copy(100, 0), copy(20, 1), copy(3, 1)];
    let events = events.each_ref().map(<[u64; 7]>::as_slice);
    let Some(observed) = counted(4096, "module_copy", &events) else {
        return;
    };
    let report = report::build(&observed, &[], Vec::new(), Vec::new());
    let own = std::process::id();
    let mut ways = report.pairs.iter().map(|pair| {
        assert_eq!(pair.mechanism, Mechanism::KnemCopy);
        (pair.source.pid, pair.sink.pid, pair.calls, pair.bytes)
    });
    assert_eq!(ways.next(), Some((Some(PEER), Some(own), 1, 100)));
    assert_eq!(ways.next(), Some((Some(own), Some(PEER), 2, 23)));
    assert_eq!(ways.next(), None);
}

#[test]
fn a_module_that_does_not_tell_the_way_has_the_caller_as_the_sink() {
    let event = [0, 0, 9, 9, 0, u64::from(PEER)];
    let Some(observed) = counted(4096, "module_copy_older", &[&event]) else {
        return;
    };
    assert_eq!(pair_counts(&observed, Mechanism::KnemCopy, false).bytes, 9);
}
