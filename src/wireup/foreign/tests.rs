// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::wireup::Death;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::OwnedFd;

fn segment() -> OwnedFd {
    memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd")
}

/// A host for `size` ranks at an abstract listener, its own rank, and how to reach it.
fn host(size: usize, what: &str, limit: Duration) -> (Foreign, Address, [u8; 16]) {
    let name = format!("test-{what}-{}", std::process::id());
    let secret = [7; 16];
    let config = Config {
        rank: FIRST,
        size,
        secret,
        join_timeout: limit,
        listeners: vec![Listener::at_abstract(&name).expect("listener")],
        late: None,
        oob: None,
    };
    let StartedHost { host, socket } = Host::start(config).expect("host");
    let inner = Launched::new(socket, FIRST, size).expect("rank 0");
    let rank = Foreign::new(
        Inner::Launched(inner),
        EmergencyParts::new(None, Some(host)),
    );
    (rank, Address::Abstract(name), secret)
}

fn guest(
    address: &Address,
    rank: usize,
    size: usize,
    secret: [u8; 16],
) -> Result<Launched, WireupError> {
    let socket = address.connect().expect("connect");
    Launched::at_host(socket, rank, size, FIRST, secret, Duration::from_secs(20))
}

#[test]
fn who_does_not_belong_to_the_job_is_refused_and_the_others_join() {
    let (mut zero, address, secret) = host(2, "refused", Duration::from_secs(20));
    for (rank, size, secret, why) in [
        (1, 2, [8; 16], "secret"),
        (2, 2, secret, "does not belong"),
        (1, 3, secret, "does not belong"),
        (0, 2, secret, "has come already"),
    ] {
        let error = guest(&address, rank, size, secret).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
    let noise = address.connect().expect("connect");
    fdpass::send(noise.as_fd(), b"noise", &[], fdpass::Wait::Never).expect("send");
    let silent = address.connect().expect("connect");
    let card = Card::of_this_process();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut one = guest(&address, 1, 2, secret).expect("let in");
            one.join(Card::of_this_process(), segment().as_fd())
                .expect("join");
            let peer = one.introduce(0).expect("introduce");
            assert_eq!(peer.pid, Some(std::process::id().cast_signed()));
            one.leave().expect("leave");
            one
        });
        let cards = zero.join(card.clone(), segment().as_fd()).expect("join");
        assert_eq!(cards.len(), 2);
        let mut one = other.join().expect("rank 1");
        // No rank is let in any more, and the name is free, as soon as the host's thread comes to that.
        let begun = Instant::now();
        while address.connect().is_ok() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "the listener is open"
            );
            std::thread::yield_now();
        }
        zero.leave().expect("leave");
        drop(zero);
        // The thread has announced it before it ended.
        let mut events = Vec::new();
        while let Some(event) = one.poll().expect("poll") {
            events.push(event);
        }
        assert!(
            events.is_empty(),
            "a rank that has left gets nothing: {events:?}"
        );
    });
    drop(silent);
}

/// What a rank grants its peers comes with its introduction, as under our own launcher.
#[test]
fn what_a_rank_grants_comes_with_its_introduction() {
    let (mut zero, address, secret) = host(2, "grant", Duration::from_secs(20));
    let own = segment();
    zero.grant(Some(own.as_fd())).expect("grant");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let inner = guest(&address, 1, 2, secret).expect("let in");
            let mut one = Foreign::new(Inner::Launched(inner), EmergencyParts::new(None, None));
            one.join(Card::of_this_process(), segment().as_fd())
                .expect("join");
            let granted = one.introduce(0).expect("introduce").grant;
            one.leave().expect("leave");
            granted.expect("a grant")
        });
        zero.join(Card::of_this_process(), segment().as_fd())
            .expect("join");
        let granted = other.join().expect("rank 1");
        let number = |fd: &OwnedFd| nix::sys::stat::fstat(fd).expect("fstat").st_ino;
        assert_eq!(number(&granted), number(&own));
        // It granted nothing itself.
        assert!(zero.introduce(1).expect("introduce").grant.is_none());
        zero.leave().expect("leave");
    });
}

#[test]
fn the_end_of_the_host_is_a_death_and_not_the_end_of_the_job() {
    for orderly in [true, false] {
        let what = format!("end-{orderly}");
        let (mut zero, address, secret) = host(2, &what, Duration::from_secs(20));
        let mut one = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut one = guest(&address, 1, 2, secret).expect("let in");
                one.join(Card::of_this_process(), segment().as_fd())
                    .expect("join");
                one
            });
            zero.join(Card::of_this_process(), segment().as_fd())
                .expect("join");
            other.join().expect("rank 1")
        });
        if orderly {
            zero.leave().expect("leave");
        }
        drop(zero);
        let death = Death::Unknown;
        let expected = match orderly {
            true => Event::Left { rank: 0 },
            false => Event::Died { rank: 0, death },
        };
        let start = Instant::now();
        let event = loop {
            if let Some(event) = one.poll().expect("poll") {
                break event;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "nothing is heard"
            );
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(event, expected);
    }
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let (mut zero, address, secret) = host(3, "late", Duration::from_millis(100));
    let card = Card::of_this_process();
    let _one = guest(&address, 1, 3, secret).expect("let in, but does not join");
    let error = zero.join(card, segment().as_fd()).expect_err("alone");
    assert!(
        error.to_string().contains("1, 2 (still running)"),
        "{error}"
    );
    // The thread of the host closes it after the word is out.
    let start = Instant::now();
    while address.connect().is_ok() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the listener is open"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
