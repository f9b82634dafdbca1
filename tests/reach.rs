// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank that cannot be connected with at once, or at all: what goes over is tried again, and otherwise both sides
//! learn of it.

use onecopy::wireup::local::{self, Local};
use onecopy::wireup::{Card, Emergency, Event, Introduction, Wireup, WireupError};
use onecopy::{Error, Knobs, Options, Runtime};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// A wire-up whose first introductions fail as they do where descriptors are short; or for good.
struct Short {
    inner: Local,
    fails: usize,
    for_good: bool,
}

impl Wireup for Short {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn join(&mut self, card: Card, segment: BorrowedFd<'_>) -> Result<Vec<Card>, WireupError> {
        assert!(segment.as_raw_fd() >= 0);
        self.inner.join(card, segment)
    }
    fn introduce(&mut self, peer: usize) -> Result<Introduction, WireupError> {
        const CALL: &str = "introduce";
        if self.for_good {
            let reason = "the launcher lets nobody reach it".to_owned();
            return Err(WireupError::Refused { call: CALL, reason });
        }
        if self.fails > 0 {
            self.fails -= 1;
            return Err(WireupError::System {
                call: CALL,
                what: "dup",
                source: std::io::Error::from_raw_os_error(24),
            });
        }
        self.inner.introduce(peer)
    }
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }
    fn poll(&mut self) -> Result<Option<Event>, WireupError> {
        self.inner.poll()
    }
    fn leave(&mut self) -> Result<(), WireupError> {
        self.inner.leave()
    }
    fn emergency(&self) -> Arc<dyn Emergency> {
        self.inner.emergency()
    }
}

/// Rank 0 has trouble when rank 1 writes to it first.
fn play(
    fails: usize,
    for_good: bool,
    receiver: impl FnOnce(&Runtime) + Send,
    sender: impl FnOnce(&Runtime) + Send,
) {
    let world = local::world(2).expect("a job of threads");
    let [first, second] = <[_; 2]>::try_from(world).unwrap_or_else(|_| panic!("two"));
    let first = Short {
        inner: first,
        fails,
        for_good,
    };
    let options = |wireup: Box<dyn Wireup>| Options {
        knobs: Knobs {
            liveness_period: Duration::from_millis(5),
            ..Knobs::default()
        },
        wireup: Some(wireup),
        ..Options::default()
    };
    let (over, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let rt = Runtime::init_with(options(Box::new(second))).expect("join");
            sender(&rt);
            drop(over);
            // Says what the rank knows of the other one.
            let _ = rt.finalize();
        });
        let rt = Runtime::init_with(options(Box::new(first))).expect("join");
        receiver(&rt);
        // It stays until the other one is through, so that it is not its leaving that the other one learns of.
        assert!(ended.recv().is_err());
        let _ = rt.finalize();
    });
}

#[test]
fn a_shortage_of_descriptors_goes_over() {
    play(
        3,
        false,
        |rt| {
            let mut got = [0u8; 8];
            rt.world().recv(&mut got, 1, 0).expect("received later");
            assert_eq!(got, [7; 8]);
        },
        |rt| rt.world().ssend(&[7u8; 8], 0, 0).expect("sent later"),
    );
}

#[test]
fn what_does_not_go_over_both_sides_learn() {
    play(
        0,
        true,
        |rt| {
            let result = rt.world().recv(&mut [0u8; 8], 1, 0);
            let error = result.expect_err("nobody introduces rank 1");
            assert!(
                matches!(error, Error::Unreachable { rank: 1, .. }),
                "{error}"
            );
            assert!(
                error.to_string().contains("lets nobody reach it"),
                "{error}"
            );
        },
        |rt| {
            // A message that is answered, and one that is to come.
            let result = rt.world().ssend(&[7u8; 8], 0, 0);
            let error = result.expect_err("it does not answer");
            assert!(
                matches!(error, Error::Unreachable { rank: 0, .. }),
                "{error}"
            );
            let result = rt.world().recv(&mut [0u8; 8], 0, 0);
            assert!(
                matches!(result, Err(Error::Unreachable { rank: 0, .. })),
                "{result:?}"
            );
        },
    );
}
