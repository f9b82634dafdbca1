// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::wireup::{Death, RankEmergency, emergency_of};
use nix::sys::memfd::{MFdFlags, memfd_create};
use onecopy_shm::fork;

fn client(size: usize) -> (Launched, OwnedFd) {
    let (theirs, ours) = fdpass::pair().expect("pair");
    (Launched::new(ours, 0, size).expect("client"), theirs)
}

fn segment() -> OwnedFd {
    memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd")
}

fn say(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    fdpass::send(socket.as_fd(), bytes, fds, Wait::Never).expect("send");
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).expect("poll") == 1
}

#[test]
fn events_that_come_before_an_answer_are_kept() {
    let (mut rank, launcher) = client(3);
    let died = Event::Died {
        rank: 2,
        death: Death::Signal(11),
    };
    let left = Event::Left { rank: 1 };
    say(&launcher, &ToRank::Event(died).encode(), &[]);
    say(&launcher, &ToRank::Event(left).encode(), &[]);
    let answer = ToRank::Introduction {
        peer: 1,
        uid: 7,
        pid: 42,
        pid_ns: rank.pid_ns,
        pidfd: false,
        grant: false,
    };
    say(&launcher, &answer.encode(), &[segment().as_fd()]);
    let got = rank.introduce(1).expect("introduce");
    assert_eq!((got.uid, got.pid), (7, Some(42)));
    assert!(!readable(rank.socket.as_fd()));
    assert!(readable(rank.event_fd().expect("fd")));
    assert_eq!(rank.poll().expect("poll"), Some(died));
    assert!(readable(rank.event_fd().expect("fd")));
    assert_eq!(rank.poll().expect("poll"), Some(left));
    assert_eq!(rank.poll().expect("poll"), None);
    assert!(!readable(rank.event_fd().expect("fd")));
}

#[test]
fn a_pid_of_another_namespace_is_not_believed() {
    let (mut rank, launcher) = client(2);
    let answer = ToRank::Introduction {
        peer: 1,
        uid: 7,
        pid: 42,
        pid_ns: rank.pid_ns.wrapping_add(1),
        pidfd: false,
        grant: false,
    };
    say(&launcher, &answer.encode(), &[segment().as_fd()]);
    assert_eq!(rank.introduce(1).expect("introduce").pid, None);
}

#[test]
fn corrupted_answers_are_errors() {
    let card = Card::of_this_process();
    let cards = |first, total| ToRank::Cards {
        first,
        total,
        cards: vec![card.clone()],
    };
    let mut damaged = cards(0, 2).encode();
    damaged[6] = 99;
    let long = vec![0_u8; MAX_MESSAGE + 1];
    for bytes in [
        damaged,
        long,
        cards(1, 2).encode(),
        cards(0, 3).encode(),
        b"?".to_vec(),
    ] {
        let (mut rank, launcher) = client(2);
        say(&launcher, &bytes, &[]);
        let error = rank.join(card.clone(), segment().as_fd());
        assert!(error.is_err(), "{error:?}");
    }
    // Descriptors must be those that were announced.
    for (count, pidfd) in [(0, false), (1, true), (2, false)] {
        let (mut rank, launcher) = client(2);
        let answer = ToRank::Introduction {
            peer: 1,
            uid: 0,
            pid: 0,
            pid_ns: 0,
            pidfd,
            grant: false,
        };
        let fd = segment();
        say(&launcher, &answer.encode(), &vec![fd.as_fd(); count]);
        assert!(rank.introduce(1).is_err());
    }
}

#[test]
fn a_launcher_that_is_gone_is_an_error_and_no_hang() {
    let (mut rank, launcher) = client(2);
    drop(launcher);
    let card = Card::of_this_process();
    let error = rank.join(card, segment().as_fd()).expect_err("gone");
    assert!(matches!(error, WireupError::LauncherGone { call: "join" }));
    let error = rank.introduce(1).expect_err("gone");
    assert!(matches!(error, WireupError::LauncherGone { .. }));
    assert!(rank.poll().is_err());
}

/// In a child of a fork the way to end the job refuses, and says nothing in the rank's name.
#[test]
fn only_the_rank_ends_its_job() {
    let (rank, launcher) = client(2);
    let ours = emergency_of(&rank);
    let inherited = RankEmergency {
        inner: rank.emergency(),
        process: fork::generation().wrapping_sub(1),
    };
    let error = inherited.abort(3).expect_err("a child of the rank");
    assert!(matches!(error, WireupError::Forked { .. }), "{error}");
    assert!(!readable(launcher.as_fd()));
    ours.abort(3).expect("the rank itself");
    assert!(readable(launcher.as_fd()));
}

/// The launcher answers when no call waits any more: the answer is no event, and not that to the next question.
#[test]
fn a_late_answer_is_discarded() {
    let introduction = |peer: u32| ToRank::Introduction {
        peer,
        uid: peer,
        pid: 0,
        pid_ns: 0,
        pidfd: false,
        grant: false,
    };
    let refused = ToRank::Refused {
        reason: "not now".to_owned(),
    };
    let fd = segment();
    let introduce = |socket: &OwnedFd, peer| {
        say(socket, &introduction(peer).encode(), &[fd.as_fd()]);
    };
    for refuses in [false, true] {
        let (mut rank, launcher) = client(3);
        let late = |socket: &OwnedFd| match refuses {
            true => say(socket, &refused.encode(), &[]),
            false => introduce(socket, 1),
        };
        rank.answer_timeout = Duration::ZERO;
        for _ in 0..2 {
            let error = rank.introduce(1).expect_err("nothing was said");
            assert!(matches!(error, WireupError::NoAnswer { .. }), "{error}");
        }
        let left = Event::Left { rank: 1 };
        late(&launcher);
        say(&launcher, &ToRank::Event(left).encode(), &[]);
        assert_eq!(rank.poll().expect("poll"), Some(left));
        assert_eq!(rank.poll().expect("poll"), None);
        late(&launcher);
        introduce(&launcher, 2);
        assert_eq!(rank.introduce(2).expect("introduce").uid, 2);
        // An answer that was not asked for is an error as before.
        introduce(&launcher, 1);
        assert!(rank.poll().is_err());
    }
}

#[test]
fn a_message_out_of_its_turn_is_named_by_what_was_awaited() {
    let (mut rank, launcher) = client(2);
    say(&launcher, &ToRank::Welcome.encode(), &[]);
    let error = rank.poll().expect_err("no event");
    assert_eq!(
        error.to_string(),
        "poll: the launcher sent something else than an event; are program and launcher of the same onecopy release?"
    );
}
