// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attachments and copies of modules that tell nothing of them, seen where they answer ioctls. onecopy's module has the
//! same interfaces. It tells of its attachments by a tracepoint, so that with its function watched, too, each is seen
//! twice.

#![allow(
    clippy::print_stdout,
    reason = "what is skipped is told, and the other process says what it made"
)]
#![allow(
    unsafe_code,
    reason = "others may read and write the memory of the test"
)]

#[path = "../../tests/harness/limit.rs"]
mod limit;
#[path = "support/roles.rs"]
mod roles;

use knem_sys::{KNEM_STATUS_SUCCESS, knem_cmd_param_iovec};
use knem_sys::{knem_cmd_copy, knem_cmd_copy_bounded};
use knem_sys::{knem_cmd_inline_copy, knem_cmd_inline_copy_bounded};
use onecopy_trace::bpf::{Options, Probe, State};
use onecopy_trace::modules::{Counter, Counters};
use onecopy_trace::observed::{Mechanism, Observed, PairCounts, PairKey, Peer};
use roles::{counts, observe};
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

const PAGE: usize = 4096;
const PAGES: usize = 8;
const ROLE: &str = "TEST_ROLE";
const MARK: &str = "made: ";

#[repr(align(4096))]
#[derive(Clone)]
#[expect(dead_code, reason = "only its address is looked at")]
struct Page([u8; PAGE]);

fn pages(value: u8) -> Vec<Page> {
    vec![Page([value; PAGE]); PAGES]
}

fn address(pages: &mut [Page]) -> usize {
    pages.as_mut_ptr().expose_provenance()
}

fn piece(base: usize, len: usize) -> knem_cmd_param_iovec {
    knem_cmd_param_iovec {
        base: base as u64,
        len: len as u64,
    }
}

const BOTH: u32 = (libc::PROT_READ | libc::PROT_WRITE).cast_unsigned();

/// The other process: exposes memory by one of the devices until its input ends.
#[test]
fn exposes_if_it_is_told_to() {
    let Ok(device) = std::env::var(ROLE) else {
        return;
    };
    let mut memory = pages(7);
    let base = address(&mut memory);
    let size = PAGES * PAGE;
    let wait = |number: i128| {
        println!("{MARK}{number}");
        let read = std::io::stdin().read_line(&mut String::new());
        assert_eq!(read.expect("input"), 0);
    };
    if device == xpmem_sys::DEVICE {
        let device = xpmem_sys::Device::open().expect("/dev/xpmem");
        // SAFETY: the memory lives until the device is closed, and is not looked at meanwhile.
        let segment = unsafe { device.make(base, size as u64, 0o666) };
        wait(segment.expect("a segment").into());
    } else {
        let device = knem_sys::Device::open().expect("/dev/knem");
        // SAFETY: as above.
        let region = unsafe { device.create_region(&[piece(base, size)], BOTH, 0) };
        wait(region.expect("a region").into());
    }
    drop(memory);
}

/// A process that exposes memory, and the number by which others reach it.
struct Owner {
    process: limit::Limited,
    lines: Lines<BufReader<ChildStdout>>,
    number: String,
}

impl Owner {
    /// None, after saying so, where there is no such device.
    fn start(device: &str) -> Option<Self> {
        if !Path::new(device).exists() {
            println!("skipped: there is no {device}");
            return None;
        }
        let exe = std::env::current_exe().expect("own path");
        let mut process = limit::start(
            Command::new(exe)
                .args(["--exact", "exposes_if_it_is_told_to", "--nocapture"])
                .env(ROLE, device)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        );
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let number = lines
            .by_ref()
            .map(|line| line.expect("a line"))
            .find_map(|line| line.split_once(MARK).map(|(_, number)| number.to_owned()))
            .expect("what was made");
        Some(Self {
            process,
            lines,
            number,
        })
    }

    fn peer(&self) -> Peer {
        Peer::Process(self.process.id())
    }

    fn end(mut self) {
        drop(self.process.stdin.take());
        self.lines.for_each(drop);
        assert!(self.process.wait().expect("wait").success());
    }
}

/// Whether a probe is there.
fn works(probes: &[Probe], name: &str) -> bool {
    let probe = probes.iter().find(|probe| probe.name == name);
    probe.is_some_and(|probe| probe.state == State::Attached)
}

fn pair_counts(observed: &Observed, peer: Peer, mechanism: Mechanism) -> PairCounts {
    counts(observed, std::process::id(), peer, mechanism)
}

/// What was counted of copies from a peer, or to it.
fn of_way(observed: &Observed, peer: Peer, writes: bool) -> PairCounts {
    let key = PairKey {
        caller: std::process::id(),
        peer,
        mechanism: Mechanism::KnemCopy,
        writes,
    };
    let found = observed.pairs.get(&key).cloned();
    found.unwrap_or_else(|| panic!("{key:?} is not among {:?}", observed.pairs.keys()))
}

#[test]
fn attachments_are_seen_where_ioctls_are_answered() {
    let mut observers = Vec::new();
    for xpmem_ioctl in ["xpmem_ioctl", "oc_xpmem_ioctl"] {
        let options = Options {
            xpmem_ioctl,
            ..Options::default()
        };
        let Some((collector, probes)) = observe(&options) else {
            return;
        };
        let by_ioctl = u64::from(works(&probes, &format!("kprobe {xpmem_ioctl}")));
        let times = by_ioctl + u64::from(works(&probes, "onecopy_attach"));
        observers.push((collector, by_ioctl, times));
    }
    if observers.iter().all(|(_, by_ioctl, _)| *by_ioctl == 0) {
        println!("skipped: no module for /dev/xpmem, or no kprobes");
        return;
    }
    let Some(owner) = Owner::start(xpmem_sys::DEVICE) else {
        return;
    };
    let xpmem = xpmem_sys::Device::open().expect("/dev/xpmem");
    let segment = owner.number.parse().expect("a number");
    let permit = xpmem.get(segment, xpmem_sys::XPMEM_RDWR).expect("a permit");
    for _ in 0..5 {
        let address = xpmem
            .attach(permit, PAGE as i64, 3 * PAGE as u64)
            .expect("attached");
        // SAFETY: nobody looks at it.
        unsafe { xpmem.detach(address) }.expect("detached");
    }
    assert!(xpmem.attach(-1, 0, PAGE as u64).is_err());
    for (collector, by_ioctl, times) in &mut observers {
        let observed = collector.observe();
        assert_eq!(observed.overhead.not_counted, 0);
        if *times == 0 {
            assert!(observed.pairs.is_empty(), "{:?}", observed.pairs.keys());
            continue;
        }
        let counts = pair_counts(&observed, owner.peer(), Mechanism::XpmemAttach);
        let known = (*times * 5, *times * 5 * 3 * PAGE as u64);
        assert_eq!((counts.calls, counts.bytes), known);
        assert!(counts.errors.is_empty());
        // A tracepoint has no times.
        assert_eq!(counts.latency_ns.total(), *by_ioctl * 5);
        if *by_ioctl == 1 {
            failed_once(&observed, Mechanism::XpmemAttach);
        }
    }
    owner.end();
}

/// What nobody exposed is nobody's.
fn failed_once(observed: &Observed, mechanism: Mechanism) {
    let failed = pair_counts(observed, Peer::Unknown, mechanism);
    assert_eq!((failed.calls, failed.bytes), (1, 0));
    assert_eq!(failed.errors.values().sum::<u64>(), 1);
}

#[test]
fn copies_are_seen_where_ioctls_are_answered() {
    let Some((mut collector, probes)) = observe(&Options::default()) else {
        return;
    };
    let names = ["kprobe knem_miscdev_ioctl", "kprobe oc_knem_ioctl"];
    if !names.iter().any(|name| works(&probes, name)) {
        println!("skipped: no module for /dev/knem, or no kprobes");
        return;
    }
    let Some(owner) = Owner::start(knem_sys::KNEM_DEVICE_FILENAME) else {
        return;
    };
    let knem = knem_sys::Device::open().expect("/dev/knem");
    let mut memory = pages(0);
    let base = address(&mut memory);
    let region: u64 = owner.number.parse().expect("a number");
    let mut counted = Counters::look(Path::new("/"));
    let vector = [piece(base, 5000), piece(base + 8192, 10_000)];
    let read = knem_cmd_inline_copy {
        local_iovec_array: vector.as_ptr().expose_provenance() as u64,
        local_iovec_nr: 2,
        remote_cookie: region,
        ..knem_cmd_inline_copy::default()
    };
    for _ in 0..4 {
        let mut read = read;
        // SAFETY: the vector and its memory live until the call returns, which waits for the copy.
        unsafe { knem.inline_copy(&mut read) }.expect("copied");
        assert_eq!(read.current_status, u32::from(KNEM_STATUS_SUCCESS));
    }
    // The region ends before the bound, and the bound of the second is before all else.
    for (remote_offset, length) in [((PAGES * PAGE - 3000) as u64, 9000), (0, 700)] {
        let mut bounded = knem_cmd_inline_copy_bounded {
            local_iovec_array: read.local_iovec_array,
            local_iovec_nr: 2,
            write: 1,
            remote_cookie: region,
            remote_offset,
            length,
            ..knem_cmd_inline_copy_bounded::default()
        };
        // SAFETY: as above.
        unsafe { knem.inline_copy_bounded(&mut bounded) }.expect("copied");
    }
    // SAFETY: the memory lives until the device is closed, and is not looked at meanwhile.
    let own = unsafe { knem.create_region(&[piece(base, 2000)], BOTH, 0) }.expect("a region");
    let mut copy = knem_cmd_copy {
        src_cookie: own,
        dst_cookie: region,
        ..knem_cmd_copy::default()
    };
    knem.copy(&mut copy).expect("copied");
    let mut bounded = knem_cmd_copy_bounded {
        src_cookie: region,
        dst_cookie: own,
        length: 1500,
        ..knem_cmd_copy_bounded::default()
    };
    knem.copy_bounded(&mut bounded).expect("copied");
    let mut nowhere = read;
    nowhere.remote_cookie = 1;
    // SAFETY: as above.
    assert!(unsafe { knem.inline_copy(&mut nowhere) }.is_err());
    drop(knem);
    drop(memory);
    let observed = collector.observe();
    let (read, written) = (4 * 15_000 + 1500, 3000 + 700 + 2000);
    for (writes, calls, bytes) in [(false, 4 + 1, read), (true, 2 + 1, written)] {
        let counts = of_way(&observed, owner.peer(), writes);
        assert_eq!((counts.calls, counts.bytes), (calls, bytes), "{writes}");
        assert_eq!(counts.latency_ns.total(), counts.calls);
        assert_eq!((counts.missing_bytes, counts.errors.len()), (0, 0));
    }
    assert_eq!(observed.overhead.not_counted, 0);
    failed_once(&observed, Mechanism::KnemCopy);
    // What the module counts by itself; another's has other names.
    let own = |counter: &Counter| counter.module == "knem" && counter.name == "copied_bytes";
    let added = counted
        .added()
        .into_iter()
        .find(own)
        .map(|found| found.added);
    if works(&probes, "kprobe oc_knem_ioctl") {
        assert_eq!(added, Some(read + written));
    }
    owner.end();
}
