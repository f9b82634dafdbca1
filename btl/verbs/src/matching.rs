// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matching: which rail of one rank is connected with which rail of another.
//!
//! Invariant: both ranks find the same matches in the same order, from the same two offers. So no word is needed about
//! which connection carries the stream: it is the first one.

use std::cmp::Reverse;

use crate::port::QueuePairAddress;

/// Rails of a rank, at most. It bounds an offer's length. Machines with more ports for one job are rare. It is also the
/// most that `ONECOPY_VERBS_RAILS` permits.
pub const RAILS_MAX: usize = 4;

/// A rail as it is offered to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferedRail {
    /// The queue pair that was made on it for this peer.
    pub pair: QueuePairAddress,
    /// Megabits a second.
    pub speed: u32,
    /// Whether it failed lately between the two: another one is better for the stream.
    pub doubtful: bool,
    /// Whether there is no queue pair on it yet: its port is down, and may come back.
    pub absent: bool,
    /// Its index among the rails of its rank, as long as that lives.
    pub index: u8,
}

impl OfferedRail {
    /// Bytes of it on a wire.
    pub const BYTES: usize = QueuePairAddress::BYTES + 8;

    /// As bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (pair, rest) = bytes.split_at_mut(QueuePairAddress::BYTES);
        pair.copy_from_slice(&self.pair.to_bytes());
        rest[..4].copy_from_slice(&self.speed.to_le_bytes());
        rest[4] = u8::from(self.doubtful) | u8::from(self.absent) << 1;
        rest[5] = self.index;
        bytes
    }

    /// From a peer's bytes; none where they can be no rail's.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pair, rest) = bytes.split_first_chunk::<{ QueuePairAddress::BYTES }>()?;
        let [a, b, c, d, flags, index, 0, 0] = *rest else {
            return None;
        };
        let rail = Self {
            pair: QueuePairAddress::from_bytes(pair)?,
            speed: u32::from_le_bytes([a, b, c, d]),
            doubtful: flags & 1 != 0,
            absent: flags & 2 != 0,
            index,
        };
        let is_sound = flags <= 3 && usize::from(index) < RAILS_MAX;
        is_sound.then_some(rail)
    }

    /// What orders rails alike on both sides.
    fn order(&self) -> [u8; QueuePairAddress::BYTES] {
        self.pair.to_bytes()
    }
}

/// Two rails that may be matched. Both sides see all of it alike, but for `rails`.
struct Candidate {
    absent: bool,
    alike: Reverse<u32>,
    doubts: u8,
    speed: Reverse<u32>,
    /// How far apart their indices are.
    apart: u8,
    order: ([u8; QueuePairAddress::BYTES], [u8; QueuePairAddress::BYTES]),
    rails: MatchedRails,
}

/// A pair of matched rails, as indices into both offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedRails {
    /// Which of this rank's.
    pub own: usize,
    /// Which of the peer's.
    pub peer: usize,
}

/// How many bits two addresses have in common at their beginning. Two of InfiniBand are in one subnet, or not.
fn alike(a: &[u8; 16], b: &[u8; 16]) -> u32 {
    let common = (u128::from_be_bytes(*a) ^ u128::from_be_bytes(*b)).leading_zeros();
    let is_mapped = a[..10] == [0; 10] && a[10..12] == [0xff; 2];
    if is_mapped { common } else { common.min(64) }
}

/// The matches. Those whose addresses are most alike are matched: they share a network,
/// if any do. Where addresses do not tell networks apart, rails of one index are: ranks of a cluster mostly find their
/// ports in one order. Rails that are there are matched with one another first. The first match is the one for the
/// stream: of those that did not fail lately, the fastest.
#[must_use]
pub fn match_rails(own: &[OfferedRail], peer: &[OfferedRail]) -> Vec<MatchedRails> {
    let mut all = Vec::new();
    for (own_index, one) in own.iter().enumerate() {
        for (peer_index, other) in peer.iter().enumerate() {
            let alike = alike(&one.pair.gid, &other.pair.gid);
            let speed = one.speed.min(other.speed);
            let doubts = u8::from(one.doubtful) + u8::from(other.doubtful);
            let absent = one.absent || other.absent;
            let (a, b) = (one.order(), other.order());
            all.push(Candidate {
                absent,
                alike: Reverse(alike),
                doubts,
                speed: Reverse(speed),
                apart: one.index.abs_diff(other.index),
                order: (a.min(b), a.max(b)),
                rails: MatchedRails {
                    own: own_index,
                    peer: peer_index,
                },
            });
        }
    }
    all.sort_by_key(|one| {
        let Candidate { absent, alike, .. } = *one;
        (absent, alike, one.doubts, one.speed, one.apart, one.order)
    });
    let mut found: Vec<Candidate> = Vec::new();
    for one in all {
        let MatchedRails { own, peer } = one.rails;
        let is_free = |other: &Candidate| other.rails.own != own && other.rails.peer != peer;
        if found.iter().all(is_free) {
            found.push(one);
        }
    }
    found.sort_by_key(|one| {
        let Candidate { absent, doubts, .. } = *one;
        (absent, doubts, one.speed, one.alike, one.apart, one.order)
    });
    found.into_iter().map(|one| one.rails).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(network: u8, host: u8, number: u32, speed: u32) -> OfferedRail {
        let mut address = [0; 16];
        address[10..12].copy_from_slice(&[0xff; 2]);
        address[12..].copy_from_slice(&[10, 77, network, host]);
        OfferedRail {
            pair: QueuePairAddress {
                packet: 1024,
                number,
                gid: address,
                ..QueuePairAddress::default()
            },
            speed,
            doubtful: false,
            absent: false,
            index: 3,
        }
    }

    fn both(own: &[OfferedRail], peer: &[OfferedRail]) -> Vec<(usize, usize)> {
        let here: Vec<_> = match_rails(own, peer)
            .into_iter()
            .map(|rails| (rails.own, rails.peer))
            .collect();
        let there: Vec<_> = match_rails(peer, own)
            .into_iter()
            .map(|rails| (rails.peer, rails.own))
            .collect();
        assert_eq!(here, there, "both sides find the same");
        here
    }

    #[test]
    fn rails_of_one_network_go_together() {
        let own = [rail(1, 1, 7, 10), rail(2, 1, 8, 10)];
        let peer = [rail(2, 2, 7, 10), rail(1, 2, 8, 10)];
        let mut found = both(&own, &peer);
        found.sort_unstable();
        assert_eq!(found, [(0, 1), (1, 0)]);
        assert_eq!(both(&own[1..], &peer), [(0, 0)]);
        assert_eq!(both(&own, &peer[1..]), [(0, 0)]);
        assert_eq!(both(&own, &[]), []);
    }

    #[test]
    fn the_stream_goes_by_the_fastest_that_did_not_fail() {
        let own = [rail(1, 1, 7, 10), rail(2, 1, 8, 40)];
        let mut peer = [rail(1, 2, 7, 100), rail(2, 2, 8, 40)];
        assert_eq!(both(&own, &peer), [(1, 1), (0, 0)]);
        peer[1].doubtful = true;
        assert_eq!(both(&own, &peer), [(0, 0), (1, 1)]);
        peer[0].doubtful = true;
        assert_eq!(both(&own, &peer), [(1, 1), (0, 0)]);
        peer[1].absent = true;
        assert_eq!(both(&own, &peer), [(0, 0), (1, 1)]);
        // In one network, those that are there meet.
        let own = [rail(1, 1, 7, 10), rail(1, 2, 8, 10)];
        let mut peer = [rail(1, 3, 7, 10), rail(1, 4, 8, 10)];
        (peer[0].absent, peer[0].doubtful) = (true, true);
        assert_eq!(both(&own, &peer)[0].1, 1);
        assert_eq!(both(&own[..1], &peer), [(0, 1)]);
    }

    #[test]
    fn rails_of_one_network_and_one_device_are_distinguished() {
        let own = [rail(1, 1, 7, 10), rail(1, 2, 8, 10)];
        assert_eq!(both(&own, &own).len(), 2);
        let peer = [rail(1, 3, 7, 10), rail(1, 4, 8, 10), rail(1, 5, 9, 10)];
        assert_eq!(both(&own, &peer).len(), 2);
    }

    #[test]
    fn rails_whose_addresses_say_nothing_are_matched_by_index() {
        let indexed = |host, index, pair| {
            let mut rail = rail(1, host, pair, 10);
            rail.index = index;
            rail.pair.gid = [0; 16];
            rail.pair.gid[..2].copy_from_slice(&[0xfe, 0x80]);
            rail.pair.gid[15] = host;
            rail
        };
        let own = [indexed(1, 0, 8), indexed(2, 1, 7)];
        let mut peer = [indexed(3, 0, 7), indexed(4, 1, 8)];
        let mut found = both(&own, &peer);
        found.sort_unstable();
        assert_eq!(found, [(0, 0), (1, 1)]);
        // A straight pair has failed: the other one is first.
        let mut own = own;
        (own[0].doubtful, peer[0].doubtful) = (true, true);
        assert_eq!(both(&own, &peer), [(1, 1), (0, 0)]);
        // One rank alone has found that.
        peer[0].doubtful = false;
        assert_eq!(both(&own, &peer), [(1, 1), (0, 0)]);
        // A crossed pair has failed, then the other one.
        peer[1].doubtful = true;
        assert_eq!(both(&own, &peer), [(1, 0), (0, 1)]);
        (own[1].doubtful, peer[0].doubtful) = (true, true);
        let first = both(&own, &peer)[0];
        assert_eq!(first.0, first.1, "straight ones are tried");
    }

    #[test]
    fn what_a_peer_says_of_a_rail_is_checked() {
        let rail = OfferedRail {
            doubtful: true,
            ..rail(1, 1, 7, u32::MAX)
        };
        assert_eq!(OfferedRail::from_bytes(&rail.to_bytes()), Some(rail));
        for wrong in [4, 5, 6, 7].map(|offset| QueuePairAddress::BYTES + offset) {
            let mut bytes = rail.to_bytes();
            bytes[wrong] = 4;
            assert_eq!(OfferedRail::from_bytes(&bytes), None);
        }
        assert_eq!(OfferedRail::from_bytes(&rail.to_bytes()[1..]), None);
    }
}
