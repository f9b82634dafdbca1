// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a collective is done, by what all ranks know: how many they are and how long the vectors are.

pub mod explain;
pub mod levels;

use super::pieces::kept::LONGEST as BOUNCE_LONGEST;
use super::{ByteRange, Collective, ElemType};
use onecopy_btl::LayerId;
use onecopy_btl::cost::Costs;
use onecopy_obs::knobs::auto;
use onecopy_obs::{Knobs, seeds};
use onecopy_shm::coll::INLINE;
use onecopy_shm::layout::{COLL_SLOT, COLL_SLOT_LONG, Geometry, LINE};

/// Groups up to this size do without a tree. Lines that are on their way at once cost about a tenth of a hand-off each
/// (docs/performance.md, "Small messages"). Seven of them are cheaper than a second level.
pub(crate) const FLAT: usize = 8;

/// How a reduction is shared between the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Everyone combines all it needs itself.
    Flat,
    /// Everyone combines its share of the vector for the root, if the root's buffer is open and all others write;
    /// otherwise the root combines all.
    Helped,
    /// Partial results go up a tree of ranks; all read the result of its root.
    Tree,
    /// Everyone combines its share of the vector for all.
    Split,
    /// Each hands on a prefix to the next, piece by piece.
    Stream,
}

/// The share of a vector of `len` bytes that `place` of `size` ranks combines. It begins and ends on cache lines where
/// elements allow it.
#[must_use]
pub fn share(len: usize, elem: ElemType, size: usize, place: usize) -> ByteRange {
    let elem = elem.size().max(1);
    let unit = if LINE.is_multiple_of(elem) {
        LINE
    } else {
        elem
    };
    let units = len.div_ceil(unit);
    let each = units.div_ceil(size.max(1)) * unit;
    let begin = (each * place).min(len);
    ByteRange::between(begin, (begin + each).min(len))
}

/// Bytes of a slot of a channel in a job of so many ranks.
#[must_use]
pub const fn slot_for(ranks: usize) -> usize {
    Geometry::slot_for(ranks)
}

/// How `collective` combines vectors of `len` bytes on `size` ranks; none: it combines nothing. A slot has `slot`
/// bytes.
///
/// Vectors of which each rank combines all fit into slots: so those that the result replaces can stand there.
#[must_use]
pub fn algorithm(
    collective: &Collective,
    len: usize,
    size: usize,
    slot: usize,
) -> Option<Algorithm> {
    let short = len <= if size == 2 { slot } else { COLL_SLOT };
    let tree = short && size > FLAT;
    match collective {
        Collective::Allreduce { .. } if tree => Some(Algorithm::Tree),
        Collective::Allreduce { .. } if short => Some(Algorithm::Flat),
        Collective::Allreduce { .. } => Some(Algorithm::Split),
        Collective::Reduce { .. } if tree => Some(Algorithm::Tree),
        Collective::Reduce { .. } if len >= seeds::HELPED_MIN => Some(Algorithm::Helped),
        Collective::Reduce { .. } | Collective::ReduceScatter { .. } => Some(Algorithm::Flat),
        // A copy of the first one's vector.
        Collective::Exscan { .. } if size == 2 => None,
        Collective::Scan { .. } | Collective::Exscan { .. } if short => Some(Algorithm::Flat),
        Collective::Scan { .. } | Collective::Exscan { .. } => Some(Algorithm::Stream),
        _ => None,
    }
}

/// Bytes of the shortest contribution to a reduction of vectors of `len` bytes.
#[must_use]
pub fn contribution(collective: &Collective, len: usize, size: usize) -> usize {
    match collective {
        // Nobody reads more than its part.
        Collective::ReduceScatter { parts, .. } if size == 2 => {
            parts.of(0).len.min(parts.of(1).len)
        }
        _ => len,
    }
}

/// How the members on one node do a collective, by what all of them know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeScheme {
    /// They only meet.
    Meet,
    /// Each takes from others what is for it.
    Exchange {
        /// What a member gives is for one reader alone.
        one_reader: bool,
        /// Of two members: who gives something.
        pair: Option<Pair>,
        /// Both ranks of a long broadcast to one copy a half each, if their buffers are mapped. Else the root would
        /// only wait.
        halves: bool,
    },
    /// The receivers of a broadcast take shares of it from each other, where its root's memory is not mapped.
    Relay,
    /// They combine vectors.
    Combine {
        /// How the combining is shared between them.
        algorithm: Algorithm,
        /// Whether one of two ranks that cannot map the other's vector gets it in pieces.
        in_pieces: bool,
        /// Whether a rank reads all that it needs at once. A result of which each combines a share is read besides.
        at_once: bool,
    },
}

/// Who of two members gives something in an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pair {
    /// One of them, the root or not.
    OneGives,
    /// Both.
    BothGive,
}

/// What decides how members on one node do a collective, beside what they are: the same on all of them.
#[derive(Debug, Clone, Copy)]
pub struct NodeLimits {
    /// Bytes of a slot.
    pub slot: usize,
    /// See [`relay_min`].
    pub relay_min: usize,
}

/// How `size` members on one node do `collective`, whose vector, or whose broadcast payload, has `len` bytes.
#[must_use]
pub fn node_scheme(
    collective: &Collective,
    len: usize,
    size: usize,
    limits: &NodeLimits,
) -> NodeScheme {
    if let Some(algorithm) = algorithm(collective, len, size, limits.slot) {
        let prefix = matches!(algorithm, Algorithm::Stream);
        let given = contribution(collective, len, size);
        return NodeScheme::Combine {
            algorithm,
            in_pieces: size == 2 && given > limits.slot && !prefix,
            at_once: algorithm != Algorithm::Split,
        };
    }
    match collective {
        Collective::Barrier => NodeScheme::Meet,
        Collective::Bcast { .. } if size > 2 && len >= limits.relay_min => NodeScheme::Relay,
        _ => NodeScheme::Exchange {
            one_reader: has_one_reader(collective, size),
            pair: (size == 2).then(|| Pair::of(collective)),
            halves: size == 2
                && len >= seeds::HALVES_MIN
                && matches!(collective, Collective::Bcast { .. }),
        },
    }
}

/// Whether chunks cost clearly less than calls of the kernel, by the machine's curves.
#[must_use]
pub fn chunks_are_cheaper(costs: &Costs) -> bool {
    auto::chunks_are_cheaper(&costs.asked_copies())
}

/// Whether the `given` bytes of a member go to their one reader, which cannot map them, as a message or in pieces. What
/// fits into a slot stands there. If calls of the kernel are cheaper, the reader reads by one: a message would only
/// precede that. Scatter of 64 KiB took 9.3 instead of 5.2 us near, as a message (A, 11-29).
///
/// For several readers messages would be copied in for each, or sent one after the other. With four ranks on two
/// processors an alltoall of 256 KiB, sent so, took 1.2 to 1.8 times as long (G, 11-28).
fn is_over_calls(given: usize, limits: &PlacementLimits) -> bool {
    given > limits.slot && (limits.over_calls || given >= seeds::BOTH_COPY_MIN)
}

/// Whether what a member of `size` gives in an exchange is for one reader.
fn has_one_reader(collective: &Collective, size: usize) -> bool {
    match collective {
        Collective::Gather { .. } => true,
        Collective::Bcast { .. }
        | Collective::Scatter { .. }
        | Collective::Allgather { .. }
        | Collective::Alltoall { .. }
        | Collective::Exscan { .. } => size == 2,
        _ => false,
    }
}

impl Pair {
    fn of(collective: &Collective) -> Self {
        match collective {
            Collective::Allgather { .. } | Collective::Alltoall { .. } => Self::BothGive,
            _ => Self::OneGives,
        }
    }
}

/// From this size on the receivers of a broadcast take shares of it from each other. `oversubscribed`: ranks outnumber
/// processors.
#[must_use]
pub fn relay_min(knobs: &Knobs, oversubscribed: bool) -> usize {
    // What fits into a slot stands there, where a rank that makes no request finds it.
    knobs.relay_from(oversubscribed).max(COLL_SLOT_LONG + 1)
}

/// Whether a rank that waits in a collective copies, when it is asked, what others would read by the kernel. It copies
/// while they read the piece before. So what counts is a copy into chunks, which is the same; but a rank that has no
/// processor answers late.
#[must_use]
pub fn asks(knobs: &Knobs, costs: &Costs, oversubscribed: bool) -> bool {
    knobs.asks_owners(oversubscribed, costs.asked_copies())
}

/// Where a rank's contribution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// In the line itself.
    Line,
    /// In the slot next to it.
    Slot,
    /// In the rank's own buffer.
    Buffer,
    /// In a temporary copy that peers can map.
    Copy,
    /// Piece by piece in memory that the other one of two ranks maps.
    Pieces,
    /// It goes to its one reader as a message.
    Message,
}

/// What decides where contributions of a communicator stand, beside what they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlacementLimits {
    /// Bytes of a slot.
    pub slot: usize,
    /// See [`temp_max`].
    pub temp_max: usize,
    /// Whether messages are better than reads by calls of the kernel, or there are none.
    pub over_calls: bool,
    /// Whether peers can map memory of this rank's pool.
    pub maps: bool,
}

impl PlacementLimits {
    /// What holds for the ranks of a job of so many, unless a pair has no call of the kernel.
    #[must_use]
    pub fn new(knobs: &Knobs, costs: &Costs, ranks: usize) -> Self {
        let maps = knobs.layers.allows(LayerId::MAP.name());
        Self {
            slot: slot_for(ranks),
            // Without that, nobody reads a temporary copy.
            temp_max: if maps { temp_max(costs) } else { 0 },
            over_calls: chunks_are_cheaper(costs),
            maps,
        }
    }
}

impl NodeScheme {
    /// Whether what cannot be mapped may also go otherwise than by calls of the kernel: as a message or in pieces.
    pub(super) fn has_two_ways(self, limits: &PlacementLimits) -> bool {
        match self {
            Self::Exchange { one_reader, .. } => one_reader,
            Self::Combine { in_pieces, .. } => in_pieces && limits.maps,
            Self::Meet | Self::Relay => false,
        }
    }

    /// Where a contribution of `len` bytes stands; `mapped` says that peers can map its buffer.
    #[must_use]
    pub fn placement(self, len: usize, mapped: bool, limits: &PlacementLimits) -> Placement {
        match self {
            Self::Exchange {
                one_reader: true,
                pair,
                ..
            } if !mapped && is_over_calls(len, limits) => match pair {
                Some(Pair::BothGive) if limits.maps => Placement::Pieces,
                // A message has more chunks than a bounce buffer has room.
                Some(Pair::OneGives) if limits.maps && len <= BOUNCE_LONGEST => Placement::Pieces,
                _ => Placement::Message,
            },
            Self::Combine {
                in_pieces: true,
                at_once,
                ..
            } if !mapped && limits.maps && (!at_once || limits.over_calls) => Placement::Pieces,
            _ => self.placement_to_read(len, mapped, limits),
        }
    }

    /// The same of one that goes neither as a message nor in pieces: others read it where it stands.
    pub(super) fn placement_to_read(
        self,
        len: usize,
        mapped: bool,
        limits: &PlacementLimits,
    ) -> Placement {
        match self {
            Self::Meet => Placement::Line,
            Self::Relay
            | Self::Combine {
                algorithm: Algorithm::Stream,
                ..
            } => Placement::Buffer,
            // A share of the result is left beside the vector, for which a slot has no room.
            Self::Combine {
                algorithm: Algorithm::Split,
                ..
            } => placement(len, mapped, COLL_SLOT, limits.temp_max),
            Self::Exchange { .. } | Self::Combine { .. } => {
                placement(len, mapped, limits.slot, limits.temp_max)
            }
        }
    }
}

/// Whether a contribution of `len` bytes stands in the line or in a slot of `slot` bytes; `mapped` says that peers can
/// map the buffer. Then what has no room in a short slot is read in place.
#[inline]
#[must_use]
pub fn is_short(len: usize, mapped: bool, slot: usize) -> bool {
    len <= if mapped { COLL_SLOT } else { slot }
}

/// Where a contribution of `len` bytes stands; `mapped` says that peers can map the buffer. A slot has `slot` bytes.
#[must_use]
pub fn placement(len: usize, mapped: bool, slot: usize, temp_max: usize) -> Placement {
    if len <= INLINE {
        Placement::Line
    } else if is_short(len, mapped, slot) {
        Placement::Slot
    } else if mapped || len > temp_max {
        Placement::Buffer
    } else {
        Placement::Copy
    }
}

/// Up to this size a copy that peers can map, made before they read it, is cheaper than their reading the buffer by the
/// kernel.
#[must_use]
pub fn temp_max(costs: &Costs) -> usize {
    let [map, call] = [LayerId::MAP, LayerId::CALL].map(|layer| costs.by[layer].one_sided);
    // The writer must first regain the lines from their last reader, as with chunks. Nothing overlaps that here.
    let copied = |bytes: u64| costs.eager.estimate(bytes) + map.estimate(bytes);
    let sizes = std::iter::successors(Some(8 << 10), |size| Some(size * 2));
    let cheaper = sizes
        .take_while(|&size| size <= TEMP_LIMIT as u64)
        .take_while(|&size| copied(size) < call.estimate(size));
    cheaper.last().unwrap_or(COLL_SLOT as u64) as usize
}

/// Bytes of the largest temporary copy, whatever the costs: no collective's temporary memory grows with the payload.
/// The bound is structural. A rank runs ahead by the eight lines of a channel at most, each with one copy. That is
/// 1 MiB of a rank, so that its part of `ONECOPY_COLL_POOL` lasts for ten ranks of a node.
pub const TEMP_LIMIT: usize = 128 << 10;

/// Why a contribution stands where it does.
#[must_use]
pub fn why_placed(placement: Placement) -> &'static str {
    match placement {
        Placement::Line => "fits into the line that is polled anyway",
        Placement::Slot => "a copy costs less than a wait until nobody needs the buffer",
        Placement::Buffer => {
            "read in place where peers map it, else by the kernel, else by its owner"
        }
        Placement::Copy => "a copy that peers map is cheaper than their reads by the kernel",
        Placement::Message => "as a message, see 'onecopy info protocols'",
        Placement::Pieces => {
            "piece by piece, in memory that both map: the other rank takes one while the next is written"
        }
    }
}

/// Why a reduction is shared in this way.
#[must_use]
pub fn why(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Flat => "everyone reads what it needs itself: a single hand-off",
        Algorithm::Helped => {
            "a long vector: everyone combines its share for the root, where that is open to all; else the root combines all"
        }
        Algorithm::Tree => "a short vector in a large group: nobody polls more than a few lines",
        Algorithm::Split => {
            "a long vector: everyone combines its share, which the others then take"
        }
        Algorithm::Stream => "a long prefix: piece by piece from rank to rank, out of the buffers",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_copies_are_bounded_whatever_the_costs() {
        let mut costs = Costs::default();
        let usual = temp_max(&costs);
        assert!((COLL_SLOT..=TEMP_LIMIT).contains(&usual));
        costs.by[LayerId::CALL].one_sided.setup_ns = 1e9;
        assert_eq!(temp_max(&costs), TEMP_LIMIT);
        costs.by[LayerId::CALL].one_sided.setup_ns = 0.0;
        costs.by[LayerId::CALL].one_sided.per_kib_ns = 0.0;
        assert_eq!(temp_max(&costs), COLL_SLOT);
    }

    #[test]
    fn shares_cover_the_vector() {
        for elem in [ElemType::U8, ElemType::F64, ElemType::Opaque(12)] {
            for count in [0, 1, 7, 64, 1000] {
                for size in 1..18 {
                    let len = count * elem.size();
                    let mut next = 0;
                    for place in 0..size {
                        let share = share(len, elem, size, place);
                        let end = share.end();
                        assert!(share.offset == next && end <= len);
                        assert!(end.is_multiple_of(elem.size()));
                        next = end;
                    }
                    assert_eq!(next, len);
                }
            }
        }
    }
}
