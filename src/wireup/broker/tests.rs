// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::wireup::Wireup;
use crate::wireup::launched::Launched;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A broker of `ranks` ranks, all played by this process, and the ranks' ends.
fn broker(ranks: usize) -> (Broker, Vec<OwnedFd>) {
    let mut broker = Broker::new(Duration::from_secs(3600));
    let sockets = (0..ranks).map(|_| {
        let (ours, theirs) = fdpass::pair().expect("pair");
        fdpass::ask_for_credentials(ours.as_fd()).expect("credentials");
        broker.add(ours, Pid::this(), None);
        theirs
    });
    let sockets = sockets.collect();
    (broker, sockets)
}

fn serve(broker: &mut Broker, ranks: usize) {
    for rank in 0..ranks {
        broker.ready(Token::Socket(rank), Instant::now());
    }
}

fn say(end: &OwnedFd, bytes: &[u8], fds: usize) {
    let segment = memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd");
    let fds = vec![segment.as_fd(); fds];
    fdpass::send(end.as_fd(), bytes, &fds, Wait::Never).expect("send");
}

fn heard(end: &OwnedFd) -> Option<ToRank> {
    let mut buffer = vec![0; MAX_MESSAGE];
    let got = fdpass::recv(end.as_fd(), &mut buffer, 2, Wait::Never).ok()?;
    Some(ToRank::decode(&buffer[..got.len]).expect("message"))
}

fn join() -> Vec<u8> {
    let card = Card::of_this_process();
    ToLauncher::Join { card }.encode()
}

#[test]
fn cards_are_given_out_when_the_last_has_joined() {
    let (mut broker, sockets) = broker(2);
    say(&sockets[0], &join(), 1);
    serve(&mut broker, 2);
    assert_eq!(heard(&sockets[0]), None);
    say(&sockets[1], &join(), 1);
    serve(&mut broker, 2);
    for end in &sockets {
        assert!(matches!(heard(end), Some(ToRank::Cards { total: 2, .. })));
    }
    assert!(broker.tick(Instant::now()).is_empty());
}

/// A rank may end at what it hears, and the broker in its process with it.
#[test]
fn the_rank_in_whose_process_the_broker_runs_hears_last() {
    let (mut broker, sockets) = broker(3);
    broker.runs_in(0);
    sockets.iter().for_each(|end| say(end, &join(), 1));
    serve(&mut broker, 3);
    for end in &sockets[1..] {
        assert!(matches!(heard(end), Some(ToRank::Cards { .. })));
    }
    assert_eq!(heard(&sockets[0]), None);
    broker.release();
    assert!(matches!(heard(&sockets[0]), Some(ToRank::Cards { .. })));
    assert_eq!(broker.held_since(), None);
    say(&sockets[1], &ToLauncher::Leave.encode(), 0);
    serve(&mut broker, 3);
    say(&sockets[1], &ToLauncher::Abort { code: 7 }.encode(), 0);
    serve(&mut broker, 3);
    let left = Some(ToRank::Event(Event::Left { rank: 1 }));
    let abort = Some(ToRank::Event(Event::Abort { code: 7 }));
    assert_eq!(
        [heard(&sockets[2]), heard(&sockets[2])],
        [left.clone(), abort.clone()]
    );
    assert_eq!(heard(&sockets[0]), None);
    assert!(broker.held_since().is_some());
    broker.release();
    assert_eq!([heard(&sockets[0]), heard(&sockets[0])], [left, abort]);
    broker.release();
    assert_eq!(heard(&sockets[0]), None);
}

#[test]
fn ranks_that_did_not_join_are_named_to_the_own_rank_last() {
    let (mut broker, sockets) = broker(3);
    broker.runs_in(0);
    sockets[..2].iter().for_each(|end| say(end, &join(), 1));
    serve(&mut broker, 3);
    broker.tick(Instant::now() + Duration::from_secs(3600));
    assert!(matches!(heard(&sockets[1]), Some(ToRank::Absent { .. })));
    assert_eq!(heard(&sockets[0]), None);
    broker.release();
    assert!(matches!(heard(&sockets[0]), Some(ToRank::Absent { .. })));
}

#[test]
fn a_rank_that_sends_nonsense_loses_its_connection_and_no_other_does() {
    let mut cut = join();
    cut.pop();
    for (bytes, fds) in [
        (b"nonsense".to_vec(), 0),
        (cut, 1),
        (join(), 0),
        (join(), 3),
    ] {
        let (mut broker, sockets) = broker(2);
        say(&sockets[0], &bytes, fds);
        serve(&mut broker, 2);
        assert!(matches!(heard(&sockets[0]), Some(ToRank::Refused { .. })));
        let notices = broker.tick(Instant::now());
        assert!(matches!(notices[..], [Notice::Complaint { rank: 0, .. }]));
        // It can never join now: the other one is notified at once.
        say(&sockets[1], &join(), 1);
        serve(&mut broker, 2);
        let late = Instant::now() + STATUS_DELAY;
        let notices = broker.tick(late);
        assert!(matches!(notices[..], [Notice::GaveUp { waited: None, .. }]));
        assert!(matches!(
            heard(&sockets[1]),
            Some(ToRank::Absent { waited_ms: 0, .. })
        ));
    }
}

#[test]
fn the_kernel_names_the_sender() {
    let (mut broker, sockets) = broker(1);
    say(&sockets[0], &join(), 1);
    serve(&mut broker, 1);
    let own = Credentials {
        pid: Pid::this().as_raw(),
        uid: nix::unistd::getuid().as_raw(),
        gid: 0,
    };
    assert_eq!(broker.check(0, Some(own)), Ok(own));
    assert!(broker.check(0, None).is_err());
    let other = Credentials { pid: 1, ..own };
    assert!(broker.check(0, Some(other)).is_err());
    broker.own_uid = 1000;
    let stranger = Credentials { uid: 1001, ..own };
    let error = broker.check(0, Some(stranger)).expect_err("stranger");
    assert!(error.contains("user 1001"), "{error}");
}

#[test]
fn only_members_get_deaths_and_departures() {
    let (mut broker, sockets) = broker(3);
    for end in &sockets {
        say(end, &join(), 1);
    }
    serve(&mut broker, 3);
    for end in &sockets {
        assert!(heard(end).is_some());
    }
    say(&sockets[2], &ToLauncher::Leave.encode(), 0);
    broker.ready(Token::Socket(2), Instant::now());
    broker.child_ended(2, Death::Code(0), Instant::now());
    broker.child_ended(1, Death::Signal(11), Instant::now());
    let left = ToRank::Event(Event::Left { rank: 2 });
    assert_eq!(heard(&sockets[0]), Some(left.clone()));
    let death = Death::Signal(11);
    let died = ToRank::Event(Event::Died { rank: 1, death });
    assert_eq!(heard(&sockets[0]), Some(died));
    assert_eq!(heard(&sockets[0]), None);
    assert_eq!(heard(&sockets[1]), Some(left));
    assert_eq!(heard(&sockets[1]), None);
    assert_eq!(heard(&sockets[2]), None);
    // The dead one's segment can still be had: its last messages may be there.
    say(&sockets[0], &ToLauncher::Introduce { peer: 1 }.encode(), 0);
    broker.ready(Token::Socket(0), Instant::now());
    assert!(matches!(
        heard(&sockets[0]),
        Some(ToRank::Introduction { peer: 1, .. })
    ));
}

#[test]
fn a_rank_that_does_not_read_is_not_asked_for_more() {
    let (mut broker, sockets) = broker(1);
    say(&sockets[0], &join(), 1);
    serve(&mut broker, 1);
    let ask = ToLauncher::Introduce { peer: 0 }.encode();
    let mut asked = 0;
    while broker.polled().all(|polled| polled.read) {
        if fdpass::send(sockets[0].as_fd(), &ask, &[], Wait::Never).is_ok() {
            asked += 1;
        }
        serve(&mut broker, 1);
        assert!(asked < 100_000, "answers are queued without bound");
    }
    let mut answered = 0;
    while answered < asked {
        broker.ready(Token::Socket(0), Instant::now());
        while let Some(message) = heard(&sockets[0]) {
            answered += usize::from(matches!(message, ToRank::Introduction { .. }));
        }
    }
}

/// What is sent when more descriptors are under way than the user may have open: the kernel refuses for as long as
/// nobody takes them.
#[test]
fn descriptors_that_nobody_takes_delay_answers_and_lose_none() {
    const ROLE: &str = "TEST_ORDINARY_USER";
    if std::env::var_os(ROLE).is_none() {
        let own = std::env::current_exe().expect("own path");
        // Root is not refused.
        let user = match nix::unistd::geteuid().is_root() {
            true => "setpriv --reuid=64217 --clear-groups",
            false => "exec",
        };
        let mut command = std::process::Command::new("timeout");
        let text = format!(
            "ulimit -n 100; {user} \"$0\" --exact wireup::broker::tests::descriptors_that_nobody_takes_delay_answers_and_lose_none --nocapture"
        );
        command
            .args(["100", "sh", "-c", &text])
            .arg(&own)
            .env(ROLE, "1");
        let ran = command.output().expect("timeout");
        let (out, err) = (ran.stdout, ran.stderr);
        let text = String::from_utf8_lossy(&[out, err].concat()).into_owned();
        if ran.status.code() == Some(126) {
            // Below a folder that other users may not enter.
            return drop(std::io::Write::write_all(
                &mut std::io::stderr(),
                text.as_bytes(),
            ));
        }
        assert!(ran.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (mut broker, sockets) = broker(2);
    for end in &sockets {
        say(end, &join(), 1);
    }
    serve(&mut broker, 2);
    while heard(&sockets[0]).is_some() {}
    let ask = ToLauncher::Introduce { peer: 1 }.encode();
    let mut asked = 0;
    while broker.clients[0].stuck.is_none() {
        fdpass::send(sockets[0].as_fd(), &ask, &[], Wait::Never).expect("ask");
        asked += 1;
        serve(&mut broker, 2);
        assert!(asked < 1000, "the kernel refuses nothing");
    }
    assert!(broker.deadline().is_some(), "it is tried again");
    let (mut answered, start) = (0, Instant::now());
    while answered < asked {
        broker.tick(Instant::now());
        while let Some(message) = heard(&sockets[0]) {
            assert!(
                matches!(message, ToRank::Introduction { peer: 1, .. }),
                "{message:?}"
            );
            answered += 1;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{answered} of {asked} answers"
        );
    }
}

#[test]
fn a_rank_that_reads_nothing_gets_the_reason_and_the_others_its_end() {
    use nix::sys::socket::{setsockopt, sockopt};
    let (mut broker, sockets) = broker(2);
    let socket = broker.clients[0].socket.as_ref().expect("connected");
    setsockopt(socket, sockopt::SndBuf, &0).expect("a small buffer");
    for end in &sockets {
        let mut card = Card::of_this_process();
        // Each a range of its own, so that all cards together are longer than the buffer.
        card.affinity = (0..1000).map(|cpu| 2 * cpu).collect();
        say(end, &ToLauncher::Join { card }.encode(), 1);
    }
    serve(&mut broker, 2);
    let Some(ToRank::Refused { reason }) = heard(&sockets[0]) else {
        panic!("rank 0 waits for ever");
    };
    assert!(reason.contains("wmem_default"), "{reason}");
    assert!(matches!(heard(&sockets[1]), Some(ToRank::Cards { .. })));
    let notices = broker.tick(Instant::now() + STATUS_DELAY);
    assert!(
        matches!(notices[..], [Notice::Complaint { rank: 0, .. }]),
        "{notices:?}"
    );
    let death = Death::Unknown;
    let died = Event::Died { rank: 0, death };
    assert_eq!(heard(&sockets[1]), Some(ToRank::Event(died)));
}

#[test]
fn a_rank_that_came_by_itself_is_a_member_like_others() {
    let mut broker = Broker::new(Duration::from_secs(3600));
    broker.make_room(2);
    assert!(broker.is_vacant(0) && !broker.is_settled());
    let mut sockets = Vec::new();
    for rank in 0..2 {
        let (ours, theirs) = fdpass::pair().expect("pair");
        fdpass::ask_for_credentials(ours.as_fd()).expect("credentials");
        let who = fdpass::peer_credentials(ours.as_fd()).expect("peer");
        broker.seat(rank, ours, who, None);
        assert!(!broker.is_vacant(rank));
        say(&theirs, &join(), 1);
        sockets.push(theirs);
    }
    serve(&mut broker, 2);
    assert!(broker.is_settled());
    for end in &sockets {
        assert!(matches!(heard(end), Some(ToRank::Cards { total: 2, .. })));
    }
    // The end of its connection is its death, as there is no child of ours to ask.
    drop(sockets.remove(1));
    broker.ready(Token::Socket(1), Instant::now());
    assert!(!broker.is_deserted(), "its end is still to be judged");
    broker.tick(Instant::now() + STATUS_DELAY);
    let died = Event::Died {
        rank: 1,
        death: Death::Unknown,
    };
    assert_eq!(heard(&sockets[0]), Some(ToRank::Event(died)));
    assert!(broker.is_out(1) && broker.nothing_to_send());
    drop(sockets);
    broker.ready(Token::Socket(0), Instant::now());
    broker.tick(Instant::now() + STATUS_DELAY);
    assert!(broker.is_deserted());
}

#[test]
fn client_and_broker_understand_each_other() {
    let (mut broker, sockets) = broker(2);
    std::thread::scope(|scope| {
        let threads: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(rank, end)| {
                scope.spawn(move || {
                    let mut job = Launched::new(end, rank, 2).expect("client");
                    let segment = memfd_create("s", MFdFlags::MFD_CLOEXEC).expect("memfd");
                    let card = Card::of_this_process();
                    let cards = job.join(card.clone(), segment.as_fd()).expect("join");
                    assert_eq!(cards, [card.clone(), card]);
                    let peer = job.introduce(1 - rank).expect("introduce");
                    assert_eq!(peer.pid, Some(Pid::this().as_raw()));
                    job.leave().expect("leave");
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            serve(&mut broker, 2);
        }
    });
    serve(&mut broker, 2);
    assert!(
        broker
            .clients
            .iter()
            .all(|client| client.state == ClientState::Left)
    );
}
