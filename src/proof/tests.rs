// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use proptest::prelude::*;

const SECRET: Secret = [7; 32];

fn caller(secret: Secret, purpose: Purpose, fresh: u8) -> Handshake {
    Handshake::call(secret, purpose, 5, 2, [fresh; 32])
}

fn listener(secret: Secret, purpose: Purpose, fresh: u8) -> Handshake {
    Handshake::answer(secret, purpose, 2, [fresh; 32])
}

/// Moves what `from` has to send to `to`, in pieces of `step` bytes.
fn pass(from: &mut Handshake, to: &mut Handshake, step: usize) -> Result<Vec<u8>, Rejected> {
    let mut passed = Vec::new();
    while !from.to_send().is_empty() {
        let count = from.to_send().len().min(step).min(to.wanted());
        assert!(count > 0, "more is sent than wanted");
        let piece = from.to_send()[..count].to_vec();
        from.sent(count);
        to.take(&piece)?;
        passed.extend_from_slice(&piece);
    }
    Ok(passed)
}

#[test]
fn two_that_know_the_secret_know_each_other_in_the_end() {
    for step in [1, 7, 1000] {
        let (mut call, mut answer) = (
            caller(SECRET, Purpose::Oob, 1),
            listener(SECRET, Purpose::Oob, 2),
        );
        pass(&mut answer, &mut call, step).expect("challenge");
        assert_eq!((call.proven(), answer.proven()), (None, None));
        pass(&mut call, &mut answer, step).expect("response");
        assert_eq!((call.proven(), answer.proven()), (None, None));
        pass(&mut answer, &mut call, step).expect("confirmation");
        assert_eq!((call.proven(), answer.proven()), (Some(2), Some(5)));
        // What follows belongs to the connection.
        assert_eq!((call.wanted(), answer.wanted()), (0, 0));
        assert!(call.take(b"").is_ok());
    }
}

#[test]
fn a_side_with_another_secret_learns_nothing_and_is_rejected() {
    let (mut call, mut answer) = (
        caller([8; 32], Purpose::Pair, 1),
        listener(SECRET, Purpose::Pair, 2),
    );
    pass(&mut answer, &mut call, 99).expect("anyone gets the challenge");
    assert_eq!(pass(&mut call, &mut answer, 99), Err(Rejected::Secret));
    assert!(answer.to_send().is_empty() && answer.proven().is_none());
    assert_eq!(answer.take(&[]), Err(Rejected::Secret));
    // A false listener gets the caller's proof, and cannot confirm it.
    let (mut call, mut answer) = (
        caller(SECRET, Purpose::Pair, 1),
        listener([8; 32], Purpose::Pair, 2),
    );
    pass(&mut answer, &mut call, 99).expect("challenge");
    let length = call.to_send().len();
    call.sent(length);
    assert_eq!(call.take(&[0; CONFIRMATION]), Err(Rejected::Secret));
    assert_eq!(call.proven(), None);
}

#[test]
fn a_recorded_proof_serves_for_no_other_connection() {
    let (mut call, mut answer) = (
        caller(SECRET, Purpose::Oob, 1),
        listener(SECRET, Purpose::Oob, 2),
    );
    pass(&mut answer, &mut call, 99).expect("challenge");
    let response = pass(&mut call, &mut answer, 99).expect("response");
    let confirmation = pass(&mut answer, &mut call, 99).expect("confirmation");
    let mut other = listener(SECRET, Purpose::Oob, 3);
    assert_eq!(other.take(&response), Err(Rejected::Secret));
    // The same numbers, for another purpose.
    let mut other = listener(SECRET, Purpose::Pair, 2);
    assert_eq!(other.take(&response), Err(Rejected::Secret));
    // The listener's own word, and the caller's, sent back.
    let mut again = caller(SECRET, Purpose::Oob, 4);
    pass(
        &mut listener(SECRET, Purpose::Oob, 2),
        &mut again,
        CHALLENGE,
    )
    .expect("challenge");
    let own = again.to_send()[RESPONSE - HASH..].to_vec();
    assert_eq!(again.take(&own), Err(Rejected::Secret));
    let mut again = caller(SECRET, Purpose::Oob, 4);
    pass(
        &mut listener(SECRET, Purpose::Oob, 2),
        &mut again,
        CHALLENGE,
    )
    .expect("challenge");
    assert_eq!(again.take(&confirmation), Err(Rejected::Secret));
}

#[test]
fn the_wrong_side_of_the_right_job_is_rejected() {
    let mut call = caller(SECRET, Purpose::Oob, 1);
    let mut answer = listener(SECRET, Purpose::Pair, 2);
    let why = Rejected::Wrong {
        rank: 2,
        purpose: 2,
    };
    assert_eq!(pass(&mut answer, &mut call, 99), Err(why));
    let mut call = caller(SECRET, Purpose::Oob, 1);
    let mut answer = Handshake::answer(SECRET, Purpose::Oob, 3, [2; 32]);
    let why = Rejected::Wrong {
        rank: 3,
        purpose: 1,
    };
    assert_eq!(pass(&mut answer, &mut call, 99), Err(why));
    let mut call = caller(SECRET, Purpose::Oob, 1);
    let mut challenge = listener(SECRET, Purpose::Oob, 2).to_send().to_vec();
    challenge[4] = 9;
    let why = Rejected::Version { found: 9 };
    assert_eq!(call.take(&challenge), Err(why));
    let mut call = caller(SECRET, Purpose::Oob, 1);
    assert_eq!(call.take(&[b'?'; CHALLENGE]), Err(Rejected::Magic));
    assert!(call.to_send().is_empty(), "nothing is said to a stranger");
}

/// The hash is the one of the standard: what another implementation computes for these bytes.
#[test]
fn the_hash_is_hmac_sha256() {
    // RFC 4231, test case 2.
    let mut mac: Hmac<Sha256> = Hmac::new_from_slice(b"Jefe").expect("key");
    mac.update(b"what do ya want for nothing?");
    let found: [u8; 32] = mac.finalize().into_bytes().into();
    let expected = [
        0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75,
        0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec,
        0x38, 0x43,
    ];
    assert_eq!(found, expected);
}

#[test]
fn fresh_numbers_differ() {
    let (a, b): (Fresh, Fresh) = (fresh().expect("a"), fresh().expect("b"));
    assert_ne!(a, b);
}

proptest! {
    /// One bit that differs, anywhere in what is passed, and the handshake fails on one side at least.
    #[test]
    fn no_damage_is_overlooked(message in 0_usize..3, position in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut sides = [caller(SECRET, Purpose::Oob, 1), listener(SECRET, Purpose::Oob, 2)];
        for round in 0..3 {
            let [call, answer] = &mut sides;
            let (from, to) = if round == 1 { (call, answer) } else { (answer, call) };
            let mut bytes = from.to_send().to_vec();
            from.sent(bytes.len());
            if round == message {
                let position = position.index(bytes.len());
                bytes[position] ^= 1 << bit;
            }
            // A side that was rejected has nothing to send any more.
            let wanted = to.wanted().min(bytes.len());
            let _ = to.take(&bytes[..wanted]);
        }
        prop_assert!(sides.iter().any(|side| side.proven().is_none()));
    }

    #[test]
    fn noise_is_never_believed(bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1_usize..50) {
        for mut side in [caller(SECRET, Purpose::Pair, 1), listener(SECRET, Purpose::Pair, 2)] {
            for piece in bytes.chunks(step) {
                let piece = &piece[..piece.len().min(side.wanted())];
                if side.take(piece).is_err() {
                    break;
                }
            }
            prop_assert_eq!(side.proven(), None);
        }
    }
}
