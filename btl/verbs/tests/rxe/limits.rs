// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the device can do, and how much of it.

use std::time::{Duration, Instant};

use onecopy_verbs::pair::InitAttributes;
use onecopy_verbs::provider::{Access, Depths, Kind};
use onecopy_verbs::{QueuePair, Status};

use crate::side::connected;
use crate::{LONG, here, say, wait};

/// The first number of the kernel's release.
fn kernel() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    text.split('.')
        .next()
        .and_then(|first| first.parse().ok())
        .expect("a number")
}

fn pinned() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("a state");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmPin:"))
        .expect("VmPin");
    line.split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

pub(crate) fn caps() {
    let mut side = here(4, 1024);
    let limits = side.device.limits().clone();
    let port = side.chosen.state.clone();
    say(&format!("{}: {limits:?}", side.device.name()));
    say(&format!("port {}: {port:?}", side.chosen.port));
    assert_eq!((limits.pieces, limits.shared_pieces), (32, 27));
    assert!(limits.pairs >= 1_000_000 && limits.completions == 32_767 && limits.reads == 128);
    assert!(limits.shared_receives >= 1_000_000 && limits.atomics && limits.interrupts >= 1);
    assert_eq!((port.packet, port.ethernet), (4096, true));
    // Newer kernels allow 2 GiB.
    assert!(
        [8 << 20, 1 << 31].contains(&port.message),
        "{}",
        port.message
    );
    let address = side.chosen.address.expect("an address");
    assert_eq!(
        address.bytes[10..12],
        [0xff, 0xff],
        "an address of IP version 4: {address:?}"
    );
    // Pages that are faulted in by the device came between 6.12 and 7.2.
    assert_eq!(limits.faults, kernel() >= 7);
    assert!(!limits.shared_connections);
    let error = side
        .device
        .shared(None)
        .expect_err("no extended connections");
    assert_eq!(error.reason.raw_os_error(), Some(95), "{error}");
    say(&format!("extended connections: {error}"));
    for (inline, works) in [(512, true), (1024, false)] {
        let depths = Depths {
            sends: 4,
            receives: 0,
            inline,
        };
        let attributes = InitAttributes {
            kind: Kind::Connection,
            receives: Some(&side.receives),
            shared: None,
            depths,
        };
        let pair = QueuePair::new(&side.domain, &mut side.queue, &attributes);
        assert_eq!(pair.is_ok(), works, "{inline} bytes in a request");
        if let Ok(pair) = pair {
            assert!(pair.inline() >= 512);
            drop(side.queue.retire(pair));
        }
    }
}

pub(crate) fn many_pairs() {
    let (mut a, mut b) = (here(128, 256), here(128, 256));
    b.fill(64);
    let started = Instant::now();
    let pairs: Vec<_> = (0..500).map(|_| connected(&mut a, &mut b)).collect();
    say(&format!(
        "many: 1000 pairs in {:?}, {} KiB pinned",
        started.elapsed(),
        pinned()
    ));
    let some = pairs.iter().step_by(25);
    for (cookie, (to_b, _)) in some.clone().enumerate() {
        a.send(to_b, b"one of many", cookie as u64).expect("room");
    }
    let mut left = 2 * some.len();
    let end = Instant::now() + LONG;
    while left > 0 {
        assert!(Instant::now() < end, "{left} completions are missing");
        let (there, here) = (a.poll(), b.poll());
        for done in there.into_iter().chain(here) {
            done.outcome.expect("nothing fails");
            left -= 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    for (to_b, to_a) in pairs {
        drop(a.queue.retire(to_b));
        drop(b.queue.retire(to_a));
    }
}

/// With a limit of 1 MiB on locked memory.
pub(crate) fn as_an_ordinary_user() {
    assert!(!nix::unistd::geteuid().is_root(), "root has no limit");
    let side = here(4, 1024);
    let before = pinned();
    let half = side
        .domain
        .region(1, 512 << 10, Access::default())
        .expect("half a MiB");
    say(&format!(
        "memlock: {} KiB pinned, then {}",
        before,
        pinned()
    ));
    assert!(pinned() >= before + 512);
    let error = side
        .domain
        .region(4, 1 << 20, Access::default())
        .expect_err("4 MiB");
    assert!(
        error.is_exhaustion() && error.to_string().contains("ulimit -l"),
        "{error}"
    );
    say(&format!("memlock: {error}"));
    // Half of the limit twice is more than the limit, and what ended does not count.
    side.domain
        .region(1, 600 << 10, Access::default())
        .expect_err("together too much");
    drop(half);
    assert_eq!(pinned(), before);
    side.domain
        .region(1, 600 << 10, Access::default())
        .expect("alone it fits");
    // A peer can be reached with what little there is.
    let (mut a, mut b) = (here(4, 256), here(4, 256));
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(1);
    a.send(&to_b, b"poor", 1).expect("room");
    assert_eq!(wait(&mut b, LONG).remove(0).outcome, Ok::<(), Status>(()));
}
