// SPDX-License-Identifier: MIT OR Apache-2.0

use super::super::oob::ToHost;
use super::super::{Death, Export};
use super::*;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

fn card() -> impl Strategy<Value = Card> {
    (
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        btree_set(any::<u16>(), 0..40),
        0.0_f32..1e6,
        any::<u32>(),
        any::<(Option<i64>, Option<u64>)>(),
        any::<Option<(std::net::IpAddr, u16)>>(),
    )
        .prop_map(
            |(pid_ns, user_ns, uid, cpus, quota_cpus, version, (segid, proof), listens)| Card {
                pid_ns,
                user_ns,
                uid,
                affinity: cpus.into_iter().collect(),
                quota_cpus,
                version,
                export: Export { segid, proof },
                listens: listens.map(std::net::SocketAddr::from),
            },
        )
}

fn to_launcher() -> impl Strategy<Value = ToLauncher> {
    prop_oneof![
        card().prop_map(|card| ToLauncher::Join { card }),
        (0..MAX_RANKS).prop_map(|peer| ToLauncher::Introduce { peer }),
        Just(ToLauncher::Leave),
        any::<i32>().prop_map(|code| ToLauncher::Abort { code }),
        (0..MAX_RANKS, any::<u32>(), any::<[u8; 16]>())
            .prop_map(|(rank, size, secret)| ToLauncher::Hello { rank, size, secret }),
    ]
}

fn to_rank() -> impl Strategy<Value = ToRank> {
    let rank = 0..MAX_RANKS as usize;
    let missing =
        (rank.clone(), any::<bool>()).prop_map(|(rank, running)| Missing { rank, running });
    let death = prop_oneof![
        any::<i32>().prop_map(Death::Code),
        any::<i32>().prop_map(Death::Signal),
        Just(Death::Unknown),
        Just(Death::NodeLost),
        Just(Death::Unheard),
    ];
    let identity = any::<(u32, i32, u64, bool, bool)>();
    prop_oneof![
        (0..MAX_RANKS, any::<u32>(), vec(card(), 0..6)).prop_map(|(first, total, cards)| {
            ToRank::Cards {
                first,
                total,
                cards,
            }
        }),
        (any::<u32>(), vec(missing, 0..9))
            .prop_map(|(waited_ms, missing)| ToRank::Absent { waited_ms, missing }),
        (0..MAX_RANKS, identity).prop_map(|(peer, (uid, pid, pid_ns, pidfd, grant))| {
            ToRank::Introduction {
                peer,
                uid,
                pid,
                pid_ns,
                pidfd,
                grant,
            }
        }),
        "[a-z ]{0,60}".prop_map(|reason| ToRank::Refused { reason }),
        (rank.clone(), death).prop_map(|(rank, death)| ToRank::Event(Event::Died { rank, death })),
        rank.prop_map(|rank| ToRank::Event(Event::Left { rank })),
        any::<i32>().prop_map(|code| ToRank::Event(Event::Abort { code })),
        Just(ToRank::Welcome),
    ]
}

proptest! {
    #[test]
    fn messages_of_a_rank_arrive(message in to_launcher()) {
        prop_assert_eq!(ToLauncher::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn messages_of_the_launcher_arrive(message in to_rank()) {
        let bytes = message.encode();
        prop_assert!(bytes.len() <= MAX_MESSAGE);
        prop_assert_eq!(ToRank::decode(&bytes), Ok(message));
    }

    /// Damaged bytes are refused, or mean something that encodes to the very same bytes: nothing is read past, nothing
    /// is ignored.
    #[test]
    fn damage_never_panics(message in to_rank(), position in any::<prop::sample::Index>(), flip in 1_u8..) {
        let mut bytes = message.encode();
        let position = position.index(bytes.len());
        bytes[position] ^= flip;
        if let Ok(other) = ToRank::decode(&bytes) {
            let refused = matches!(other, ToRank::Refused { .. });
            prop_assert!(refused || ToRank::decode(&other.encode()).as_ref() == Ok(&other));
        }
    }

    #[test]
    fn damaged_requests_never_panic(message in to_launcher(), position in any::<prop::sample::Index>(), flip in 1_u8..) {
        let mut bytes = message.encode();
        let position = position.index(bytes.len());
        bytes[position] ^= flip;
        if let Ok(other) = ToLauncher::decode(&bytes) {
            prop_assert_eq!(ToLauncher::decode(&other.encode()), Ok(other));
        }
    }

    #[test]
    fn a_cut_or_longer_message_is_refused(message in to_rank(), cut in any::<prop::sample::Index>()) {
        let mut bytes = message.encode();
        prop_assert!(ToRank::decode(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(ToRank::decode(&bytes).is_err());
    }

    #[test]
    fn noise_never_panics(bytes in vec(any::<u8>(), 0..200)) {
        let _ = ToRank::decode(&bytes);
        let _ = ToLauncher::decode(&bytes);
    }
}

#[test]
fn many_cards_are_split_into_messages_that_fit() {
    let mut card = Card::of_this_process();
    card.affinity = (0..8000).step_by(2).collect();
    let cards = vec![card; 50];
    let mut seen = 0;
    for bytes in ToRank::all_cards(&cards) {
        assert!(bytes.len() <= MAX_MESSAGE);
        let Ok(ToRank::Cards {
            first,
            total,
            cards: part,
        }) = ToRank::decode(&bytes)
        else {
            panic!("not cards")
        };
        assert_eq!((first as usize, total as usize), (seen, 50));
        assert_eq!(part[..], cards[seen..seen + part.len()]);
        seen += part.len();
    }
    assert_eq!(seen, 50);
}

/// A message of each kind, as its sender encodes it.
fn one_of_each_kind() -> Vec<(MessageKind, Sender, Vec<u8>)> {
    let card = Card::of_this_process();
    let from_rank = [
        (MessageKind::Join, ToLauncher::Join { card: card.clone() }),
        (MessageKind::Introduce, ToLauncher::Introduce { peer: 1 }),
        (MessageKind::Leave, ToLauncher::Leave),
        (MessageKind::Abort, ToLauncher::Abort { code: -1 }),
        (
            MessageKind::Hello,
            ToLauncher::Hello {
                rank: 1,
                size: 2,
                secret: [7; 16],
            },
        ),
    ];
    let missing = vec![Missing {
        rank: 1,
        running: true,
    }];
    let death = Death::Signal(9);
    let from_launcher = [
        (
            MessageKind::Cards,
            ToRank::Cards {
                first: 0,
                total: 1,
                cards: vec![card.clone()],
            },
        ),
        (
            MessageKind::Absent,
            ToRank::Absent {
                waited_ms: 5,
                missing,
            },
        ),
        (
            MessageKind::Introduction,
            ToRank::Introduction {
                peer: 1,
                uid: 2,
                pid: 3,
                pid_ns: 4,
                pidfd: true,
                grant: false,
            },
        ),
        (
            MessageKind::Refused,
            ToRank::Refused {
                reason: "why".to_owned(),
            },
        ),
        (
            MessageKind::Died,
            ToRank::Event(Event::Died { rank: 1, death }),
        ),
        (MessageKind::Left, ToRank::Event(Event::Left { rank: 1 })),
        (
            MessageKind::Aborted,
            ToRank::Event(Event::Abort { code: 3 }),
        ),
        (MessageKind::Welcome, ToRank::Welcome),
    ];
    let between_hosts = [
        (MessageKind::Joined, ToHost::Joined { rank: 1, card }),
        (MessageKind::Beat, ToHost::Beat),
        (MessageKind::Farewell, ToHost::Farewell),
    ];
    let mut all = Vec::new();
    all.extend(from_rank.map(|(kind, message)| (kind, Sender::Rank, message.encode())));
    all.extend(from_launcher.map(|(kind, message)| (kind, Sender::Launcher, message.encode())));
    all.extend(between_hosts.map(|(kind, message)| (kind, Sender::Host, message.encode())));
    all
}

/// Decodes a message of `sender`, and encodes it again.
fn again(sender: Sender, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    match sender {
        Sender::Rank => ToLauncher::decode(bytes).map(|message| message.encode()),
        Sender::Launcher => ToRank::decode(bytes).map(|message| message.encode()),
        Sender::Host => ToHost::decode(bytes).map(|message| message.encode()),
    }
}

#[test]
fn every_kind_comes_back_from_its_sender_and_no_other() {
    let each = one_of_each_kind();
    let kinds: Vec<MessageKind> = each.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, MessageKind::ALL, "one of each");
    for (kind, sender, bytes) in each {
        assert_eq!(MessageKind::of(kind.number()), Some(kind));
        assert_eq!(again(sender, &bytes).as_ref(), Ok(&bytes), "{kind:?}");
        for other in [Sender::Rank, Sender::Launcher, Sender::Host] {
            let hosts_send_it_too = matches!(
                kind,
                MessageKind::Cards
                    | MessageKind::Absent
                    | MessageKind::Died
                    | MessageKind::Left
                    | MessageKind::Aborted
            ) && other == Sender::Host;
            if other != sender && !hosts_send_it_too {
                assert_eq!(again(other, &bytes), Err(other.wrong_kind(kind)));
            }
        }
    }
}

/// Ranks, launchers and hosts of one protocol version may be of different builds.
#[test]
fn each_kind_keeps_its_number() {
    let numbers: Vec<(u16, MessageKind)> = MessageKind::ALL
        .iter()
        .map(|kind| (kind.number(), *kind))
        .collect();
    let pinned = [
        (1, MessageKind::Join),
        (2, MessageKind::Introduce),
        (3, MessageKind::Leave),
        (4, MessageKind::Abort),
        (5, MessageKind::Hello),
        (65, MessageKind::Cards),
        (66, MessageKind::Absent),
        (67, MessageKind::Introduction),
        (68, MessageKind::Refused),
        (69, MessageKind::Died),
        (70, MessageKind::Left),
        (71, MessageKind::Aborted),
        (72, MessageKind::Welcome),
        (129, MessageKind::Joined),
        (130, MessageKind::Beat),
        (131, MessageKind::Farewell),
    ];
    assert_eq!(numbers, pinned);
}

#[test]
fn an_unknown_kind_is_named_with_its_sender() {
    let mut bytes = ToLauncher::Leave.encode();
    bytes[6..8].copy_from_slice(&999_u16.to_le_bytes());
    for (sender, words) in [
        (Sender::Rank, "a rank sent a message of unknown kind 999"),
        (
            Sender::Launcher,
            "the launcher sent a message of unknown kind 999",
        ),
        (
            Sender::Host,
            "another node's host sent a message of unknown kind 999",
        ),
    ] {
        let error = again(sender, &bytes).expect_err("no such kind");
        assert_eq!(error.to_string(), words);
    }
    let error = ToLauncher::decode(&ToRank::Welcome.encode()).expect_err("from the launcher");
    assert_eq!(
        error.to_string(),
        "a rank sent a message of kind 72 (Welcome), which it may not send"
    );
}
