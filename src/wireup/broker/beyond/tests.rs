// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::wireup::Card;
use crate::wireup::message::{MAX_MESSAGE, ToLauncher, ToRank};
use nix::sys::memfd::{MFdFlags, memfd_create};
use onecopy_shm::fdpass::{self, Wait};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(3600);

/// Brokers of two nodes with two ranks each, and the ranks' ends.
struct TwoBrokers {
    brokers: [Broker; 2],
    sockets: Vec<OwnedFd>,
}

fn job() -> TwoBrokers {
    let nodes = Arc::new(Nodes::by_keys([0, 0, 1, 1]));
    let mut sockets = Vec::new();
    let brokers = [0, 1].map(|node| {
        let mut broker = Broker::new(TIMEOUT);
        broker.make_room(4);
        broker.serve_node(Arc::clone(&nodes), node);
        for rank in nodes.ranks(node) {
            let (ours, theirs) = fdpass::pair().expect("pair");
            fdpass::ask_for_credentials(ours.as_fd()).expect("credentials");
            let who = fdpass::peer_credentials(ours.as_fd()).expect("peer");
            broker.seat(rank, ours, who, None);
            sockets.push(theirs);
        }
        broker
    });
    TwoBrokers { brokers, sockets }
}

impl TwoBrokers {
    fn say(&mut self, rank: usize, message: &ToLauncher) {
        let segment = memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd");
        let fds = [segment.as_fd()];
        let fds = if matches!(message, ToLauncher::Join { .. }) {
            &fds[..]
        } else {
            &[]
        };
        fdpass::send(
            self.sockets[rank].as_fd(),
            &message.encode(),
            fds,
            Wait::Never,
        )
        .expect("say");
        self.serve(rank);
    }

    /// Serves a rank, and carries what follows from that from broker to broker.
    fn serve(&mut self, rank: usize) {
        let now = Instant::now();
        let broker = &mut self.brokers[rank / 2];
        broker.ready(super::super::Token::Socket(rank), now);
        broker.tick(now + super::super::STATUS_DELAY);
        self.carry();
    }

    fn carry(&mut self) {
        for from in [1, 0, 1] {
            for MessageBeyond { about, message } in self.brokers[from].messages() {
                // As with out-of-band connections: no node gets messages about its own ranks.
                let own = about.map(|rank| rank / 2);
                if from == 1 && own != Some(1) || from == 0 && own == Some(1) {
                    continue;
                }
                let message = ToHost::decode(&message.encode()).expect("a message");
                let node = u32::try_from(from).expect("small");
                self.brokers[1 - from]
                    .hear(node, message, Instant::now())
                    .expect("a good message");
            }
        }
    }

    fn join(&mut self, rank: usize) {
        let card = Card::of_this_process();
        self.say(rank, &ToLauncher::Join { card });
    }

    fn all_join(&mut self) {
        for rank in [2, 0, 1, 3] {
            assert_eq!(self.heard(rank), None);
            self.join(rank);
        }
        for rank in 0..4 {
            assert!(matches!(
                self.heard(rank),
                Some(ToRank::Cards { total: 4, .. })
            ));
        }
    }

    fn heard(&self, rank: usize) -> Option<ToRank> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let got = fdpass::recv(self.sockets[rank].as_fd(), &mut buffer, 2, Wait::Never).ok()?;
        Some(ToRank::decode(&buffer[..got.len]).expect("message"))
    }
}

fn died(rank: usize, death: Death) -> Option<ToRank> {
    Some(ToRank::Event(Event::Died { rank, death }))
}

#[test]
fn what_happens_on_one_node_is_heard_on_the_other() {
    let mut job = job();
    job.all_join();
    job.say(3, &ToLauncher::Leave);
    let left = Some(ToRank::Event(Event::Left { rank: 3 }));
    for rank in 0..3 {
        assert_eq!(job.heard(rank), left);
    }
    assert_eq!(job.heard(3), None);
    // The end of a connection, on the node of rank 0.
    let (ours, _) = fdpass::pair().expect("pair");
    job.sockets[1] = ours;
    job.serve(1);
    for rank in [0, 2] {
        assert_eq!(job.heard(rank), died(1, Death::Unknown));
    }
    for _ in 0..3 {
        job.say(2, &ToLauncher::Abort { code: 7 });
    }
    let abort = Some(ToRank::Event(Event::Abort { code: 7 }));
    assert_eq!(job.heard(0), abort);
    assert_eq!(job.heard(0), None, "only the first abort counts");
    assert!(!job.brokers[1].all_are_out() && !job.brokers[0].all_are_out());
    job.say(2, &ToLauncher::Leave);
    assert!(job.brokers[1].all_are_out());
}

#[test]
fn a_rank_is_introduced_on_its_own_node_only() {
    let mut job = job();
    job.all_join();
    job.say(2, &ToLauncher::Introduce { peer: 3 });
    assert!(matches!(
        job.heard(2),
        Some(ToRank::Introduction { peer: 3, .. })
    ));
    job.say(2, &ToLauncher::Introduce { peer: 0 });
    let Some(ToRank::Refused { reason }) = job.heard(2) else {
        panic!("a rank of another node was introduced");
    };
    assert!(reason.contains("another node"), "{reason}");
}

#[test]
fn who_is_missing_is_named_on_both_nodes() {
    let mut job = job();
    job.join(2);
    job.join(0);
    // Rank 1 never comes, and rank 3 is dead before it has joined.
    let (ours, _) = fdpass::pair().expect("pair");
    job.sockets[3] = ours;
    job.serve(3);
    for rank in [0, 2] {
        let Some(ToRank::Absent {
            waited_ms: 0,
            missing,
        }) = job
            .heard(rank)
            .into_iter()
            .chain(job.heard(rank))
            .find(|message| matches!(message, ToRank::Absent { .. }))
        else {
            panic!("rank {rank} hears nothing");
        };
        let missing: Vec<usize> = missing.iter().map(|one| one.rank).collect();
        assert_eq!(missing, [1, 3]);
    }
    // A rank that joins now gets the same answer.
    job.join(1);
    assert!(matches!(job.heard(1), Some(ToRank::Absent { .. })));
}

#[test]
fn the_broker_that_decides_waits_for_all_nodes() {
    let mut job = job();
    job.join(3);
    assert!(
        job.brokers[1].deadline().is_none(),
        "it is not for this one to give up"
    );
    let deadline = job.brokers[0].deadline().expect("somebody has joined");
    job.brokers[0].tick(deadline);
    job.carry();
    let Some(ToRank::Absent { waited_ms, missing }) = job.heard(3) else {
        panic!("rank 3 hears nothing");
    };
    assert!(waited_ms > 0);
    let missing: Vec<usize> = missing.iter().map(|one| one.rank).collect();
    assert_eq!(missing, [0, 1, 2]);
}

#[test]
fn a_lost_node_takes_its_ranks_along() {
    let mut job = job();
    job.all_join();
    job.brokers[0].lose_node(1);
    for rank in [2, 3] {
        assert_eq!(job.heard(0), died(rank, Death::NodeLost));
    }
    assert_eq!(job.heard(0), None);
    job.brokers[1].lose_node(0);
    for rank in [0, 1] {
        assert_eq!(job.heard(3), died(rank, Death::NodeLost));
    }
    // Before all have joined, it ends the join.
    let mut job = self::job();
    job.join(3);
    job.brokers[1].lose_node(0);
    let heard = [job.heard(3), job.heard(3), job.heard(3)];
    assert!(
        heard
            .iter()
            .flatten()
            .any(|message| matches!(message, ToRank::Absent { .. })),
        "{heard:?}"
    );
    // A rank that comes later gets it as well.
    job.join(2);
    assert!(matches!(job.heard(2), Some(ToRank::Absent { .. })));
}

#[test]
fn with_rank_0_goes_the_news_of_all_others() {
    let mut broker = Broker::new(TIMEOUT);
    broker.make_room(3);
    broker.serve_node(Arc::new(Nodes::by_keys([0, 1, 2])), 1);
    let (ours, theirs) = fdpass::pair().expect("pair");
    fdpass::ask_for_credentials(ours.as_fd()).expect("credentials");
    let who = fdpass::peer_credentials(ours.as_fd()).expect("peer");
    broker.seat(1, ours, who, None);
    let mut job = TwoBrokers {
        brokers: [broker, Broker::new(TIMEOUT)],
        sockets: vec![theirs],
    };
    let card = Card::of_this_process();
    let segment = memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd");
    let join = ToLauncher::Join { card: card.clone() }.encode();
    fdpass::send(
        job.sockets[0].as_fd(),
        &join,
        &[segment.as_fd()],
        Wait::Never,
    )
    .expect("join");
    let broker = &mut job.brokers[0];
    broker.ready(super::super::Token::Socket(1), Instant::now());
    let cards = ToHost::Cards {
        first: 0,
        total: 3,
        cards: vec![card.clone(), card.clone(), card],
    };
    broker.hear(0, cards, Instant::now()).expect("cards");
    broker.lose_node(0);
    assert!(matches!(job.heard(0), Some(ToRank::Cards { .. })));
    assert_eq!(job.heard(0), died(0, Death::NodeLost));
    assert_eq!(job.heard(0), died(2, Death::Unheard));
}

#[test]
fn a_broker_speaks_for_its_own_node_and_in_its_turn() {
    let card = Card::of_this_process();
    let joined = |rank| ToHost::Joined {
        rank,
        card: card.clone(),
    };
    let cards = |first, total| ToHost::Cards {
        first,
        total,
        cards: vec![card.clone()],
    };
    let absent = ToHost::Absent {
        waited_ms: 0,
        missing: Vec::new(),
    };
    let left = |rank| ToHost::Event(Event::Left { rank });
    let now = Instant::now();
    // What node 1 may not say to rank 0's broker, and what that one may not say to node 1's.
    for (to, message) in [
        (0, joined(1)),
        (0, joined(9)),
        (0, left(0)),
        (0, cards(0, 4)),
        (0, absent.clone()),
        (0, ToHost::Farewell),
        (1, joined(0)),
        (1, left(2)),
        (1, left(9)),
        (1, cards(1, 4)),
        (1, cards(0, 5)),
        (1, ToHost::Encoded(Vec::new())),
    ] {
        let mut job = job();
        let from = 1 - u32::try_from(to).expect("small");
        let error = job.brokers[to].hear(from, message.clone(), now);
        assert!(error.is_err(), "{to}: {message:?}");
    }
    let mut job = job();
    job.brokers[0].hear(1, joined(2), now).expect("once");
    job.brokers[0].hear(1, joined(2), now).expect_err("twice");
    job.brokers[1].hear(0, absent.clone(), now).expect("once");
    job.brokers[1].hear(0, absent, now).expect_err("twice");
    let mut broker = Broker::new(TIMEOUT);
    broker
        .hear(1, ToHost::Beat, now)
        .expect_err("there is one node");
}

#[test]
fn cards_of_many_nodes_fit() {
    let nodes = Arc::new(Nodes::by_keys((0..4096).map(|rank| rank / 64)));
    let mut zero = Broker::new(TIMEOUT);
    zero.make_room(4096);
    zero.serve_node(Arc::clone(&nodes), 0);
    let now = Instant::now();
    let mut card = Card::of_this_process();
    card.affinity = (0..64).step_by(2).collect();
    // All messages go by out-of-band connections here, to ranks of others.
    for rank in 0..4096 {
        if nodes.node(rank) == Some(0) {
            zero.clients[rank].card = Some(card.clone());
            zero.clients[rank].state = ClientState::Joined;
        }
    }
    for rank in nodes.beyond(0) {
        let node = nodes.node(rank).expect("a node");
        let card = card.clone();
        zero.hear(node, ToHost::Joined { rank, card }, now)
            .expect("joined");
    }
    let messages: Vec<ToHost> = zero.messages().into_iter().map(|one| one.message).collect();
    let mut one = Broker::new(TIMEOUT);
    one.make_room(4096);
    one.serve_node(nodes, 1);
    let mut bytes = 0;
    for message in messages {
        let frame = message.encode();
        assert!(frame.len() <= MAX_MESSAGE);
        bytes += frame.len();
        one.hear(0, ToHost::decode(&frame).expect("a message"), now)
            .expect("cards");
    }
    assert!(one.is_settled() && bytes < 2 << 20, "{bytes} bytes");
}
