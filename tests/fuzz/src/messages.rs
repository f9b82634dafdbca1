// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is decoded: records of a ring, messages of the wire-up, and how datatypes name bytes.

use crate::input::Input;
use crate::seal::sealed;
use onecopy::fuzzing::{self, AtBroker};
use onecopy::wireup::message::{ToLauncher, ToRank};
use onecopy::wireup::{Card, Death, Event, Missing};

/// A record: kind, envelope, and either a body as it stands or five words that are sealed.
pub(crate) fn records(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, is_sealed) = (input.byte(), !input.byte().is_multiple_of(4));
    let envelope = input.word();
    let body = if is_sealed {
        sealed(kind, [(); 5].map(|()| input.word()))
    } else {
        [(); 48].map(|()| input.byte())
    };
    fuzzing::record(kind, envelope, &body);
}

pub(crate) fn records_seeds() -> Vec<Vec<u8>> {
    let words: [[u64; 5]; 4] = [
        [10_000, 0, 4000 << 32, u64::MAX, 0],
        [1 << 20, 1, 1 << 40, 64, 5],
        [300, 3, 2 << 32, 9, 1 << 32 | 4],
        [1 << 20, 2, 128 << 32 | 6, 0, 5 << 32],
    ];
    let kinds = (1..=9u8).flat_map(|kind| words.map(|words| (kind, words)));
    kinds
        .map(|(kind, words)| {
            let mut seed = vec![kind, 1, 5];
            seed.extend(words.iter().flat_map(|&word| Input::spell(word)));
            seed
        })
        .collect()
}

/// A message from a rank or from the launcher. What decodes must come back.
pub(crate) fn wireup(data: &[u8]) {
    if let Ok(message) = ToLauncher::decode(data) {
        assert_eq!(ToLauncher::decode(&message.encode()), Ok(message));
    }
    if let Ok(message) = ToRank::decode(data) {
        assert_eq!(ToRank::decode(&message.encode()), Ok(message));
    }
}

fn card() -> Card {
    Card {
        pid_ns: 1,
        user_ns: 2,
        uid: 0,
        affinity: vec![0, 1, 2, 8, 9],
        quota_cpus: 1.5,
        version: onecopy::wireup::PROTOCOL_VERSION,
        export: Default::default(),
        listens: Some(([10, 0, 0, 1], 4000).into()),
    }
}

fn to_launcher() -> Vec<Vec<u8>> {
    let messages = [
        ToLauncher::Join { card: card() },
        ToLauncher::Introduce { peer: 1 },
        ToLauncher::Leave,
        ToLauncher::Abort { code: 7 },
        ToLauncher::Hello {
            rank: 1,
            size: 2,
            secret: [9; 16],
        },
    ];
    messages.iter().map(ToLauncher::encode).collect()
}

pub(crate) fn wireup_seeds() -> Vec<Vec<u8>> {
    let missing = vec![Missing {
        rank: 1,
        running: true,
    }];
    let answers = [
        ToRank::Cards {
            first: 0,
            total: 2,
            cards: vec![card(), card()],
        },
        ToRank::Absent {
            waited_ms: 5,
            missing,
        },
        ToRank::Introduction {
            peer: 1,
            uid: 0,
            pid: 77,
            pid_ns: 1,
            pidfd: true,
            grant: false,
        },
        ToRank::Refused {
            reason: "no".to_owned(),
        },
        ToRank::Event(Event::Died {
            rank: 1,
            death: Death::Signal(9),
        }),
        ToRank::Event(Event::Left { rank: 1 }),
        ToRank::Event(Event::Abort { code: 3 }),
        ToRank::Welcome,
    ];
    let mut seeds = to_launcher();
    seeds.extend(answers.iter().map(ToRank::encode));
    seeds
}

/// A job of some ranks at a broker. What they say is the input as it stands, or a message that a
/// correct rank would send with a byte changed. It comes with descriptors, in any order.
pub(crate) fn broker(data: &[u8]) {
    let mut input = Input::new(data);
    let ranks = 1 + input.below(4) as usize;
    let correct = to_launcher();
    let mut packets: Vec<Vec<u8>> = Vec::new();
    let mut plan = Vec::new();
    while !input.is_over() && plan.len() < 400 {
        let (step, rank) = (input.below(8), input.below(4) as usize);
        plan.push((step, rank, packets.len(), input.byte()));
        match step {
            0 => packets.push(input.piece(200)),
            1 | 2 => {
                let mut packet = correct[input.below(5) as usize].clone();
                if step == 2 {
                    let index = usize::from(input.byte()) % packet.len();
                    packet[index] = input.byte();
                }
                packets.push(packet);
            }
            _ => {}
        }
    }
    let script = plan.iter().map(|&(step, rank, packet, number)| match step {
        0..=2 => AtBroker::Sends(rank, &packets[packet], usize::from(number % 5)),
        3 | 4 => AtBroker::Serve(rank),
        5 => AtBroker::Listen(rank),
        6 if number < 32 => AtBroker::HangUp(rank),
        6 => AtBroker::Ends(rank, i32::from(number)),
        _ => AtBroker::Tick(u16::from(number)),
    });
    fuzzing::broker(ranks, script);
}

pub(crate) fn broker_seeds() -> Vec<Vec<u8>> {
    // Both join with a segment, ask for one another, and leave; the second dies first.
    let join = |rank| [1, rank, 1, 0, 3, rank, 0];
    let ask = |rank| [1, rank, 0, 1, 3, rank, 0, 5, rank, 0];
    let leave = |rank| [1, rank, 0, 2, 3, rank, 0];
    let mut whole = vec![1];
    for rank in 0..2 {
        whole.extend(join(rank));
    }
    for rank in 0..2 {
        whole.extend(ask(rank));
    }
    let mut dies = whole.clone();
    for rank in 0..2 {
        whole.extend(leave(rank));
    }
    dies.extend([6, 1, 40, 7, 0, 30, 5, 0, 0]);
    let mut late = vec![2];
    late.extend(join(0));
    late.extend([7, 0, 255, 7, 0, 255, 5, 0, 0]);
    late.extend(join(1));
    vec![whole, dies, late]
}

/// The stream of an out-of-band connection: which side hears it, how it is cut, and its bytes.
pub(crate) fn oob(data: &[u8]) {
    let mut input = Input::new(data);
    let (own, step) = (u32::from(input.byte()), usize::from(input.byte()));
    fuzzing::oob(own, step, data.get(2..).unwrap_or_default());
}

pub(crate) fn oob_seeds() -> Vec<Vec<u8>> {
    let streams = fuzzing::oob_streams().into_iter().zip([200, 7, 100, 1]);
    streams
        .map(|(stream, step)| [&[stream.own as u8, step][..], &stream.bytes].concat())
        .collect()
}

/// Random constructors.
pub(crate) fn datatypes(data: &[u8]) {
    let mut input = Input::new(data);
    let next = || (!input.is_over()).then(|| input.word());
    mpi_abi::fuzzing::datatypes(next);
}

pub(crate) fn datatypes_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 20, 1, 5, 7, 2, 0, 100],
        vec![0, 30, 3, 3, 2, 60, 7, 3, 1, 90],
        vec![0, 10, 0, 11, 4, 1, 100, 120, 5, 64, 100, 7, 2, 3, 50],
        vec![0, 9, 2, 4, 20, 6, 90, 1, 3, 7, 1, 0, 120],
    ]
}

/// How many bytes are wanted, and what a peer offers of a device's memory.
pub(crate) fn offer(data: &[u8]) {
    let (wanted, offer) = data.split_at(data.len().min(8));
    let mut word = [0; 8];
    word[..wanted.len()].copy_from_slice(wanted);
    mpi_abi::fuzzing::offer(offer, u64::from_le_bytes(word));
}

pub(crate) fn offer_seeds() -> Vec<Vec<u8>> {
    // Bytes that are wanted; mark, number, base, size and offset of the allocation; device,
    // descriptor and handle.
    let words = |mark: &[u8; 8], wanted: u64, offset: u64, descriptor: u64, handle: u8| {
        let mark = u64::from_le_bytes(*mark);
        let mut seed: Vec<u8> = [wanted, mark, 7, 1 << 40, 1 << 20, offset]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        seed.extend([5; 16]);
        seed.extend(descriptor.to_le_bytes());
        seed.extend([handle; 64]);
        seed
    };
    let by_handle = b"ocshow\0\x01";
    vec![
        words(by_handle, 600_000, 4096, 0, 9),
        words(by_handle, 1 << 20, 0, 0, 9),
        words(by_handle, 2, u64::MAX, 0, 9),
        words(b"ocvirt\0\x01", 600_000, 4096, 77, 0),
        words(b"ocpool\0\x01", 600_000, 4096, 77, 9),
    ]
}
