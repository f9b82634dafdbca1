// SPDX-License-Identifier: MIT OR Apache-2.0
//! Three ways to reach many peers, and what each needs: a formula, before anything is made.
//!
//! | mode | pairs of a rank | receives |
//! | --- | --- | --- |
//! | connections | one for each peer that it talks with | one pool, which all share |
//! | extended | one for each other node; and its part of those that the other ranks send to its node by | one pool |
//! | datagrams | one | one pool; a message is cut to packets, and order and losses are the software's |
//!
//! By several rails there are so many connections on each; the other two modes go by one rail. Each rail may come to
//! have the whole of the pools: at first the streams go by one of them.
//!
//! Pinned memory does not grow with peers in any of them; what a device and the kernel keep of each pair does.

use std::collections::BTreeMap;

use crate::adapter::{parts, read_slots};
use crate::provider::Limits;

/// How peers are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reliable connections with shared receives.
    Connections,
    /// Extended connections.
    Extended,
    /// Datagrams.
    Datagrams,
}

/// A job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobShape {
    /// Ranks on each node.
    pub per_node: u32,
    /// Nodes.
    pub nodes: u32,
    /// Peers on other nodes that each rank talks with.
    pub peers: u32,
}

impl JobShape {
    /// A job whose ranks are on these nodes, of which each talks with all others.
    #[must_use]
    pub fn on(nodes: impl IntoIterator<Item = u32>) -> Self {
        let mut counts = BTreeMap::<u32, u32>::new();
        for node in nodes {
            *counts.entry(node).or_default() += 1;
        }
        let ranks: u32 = counts.values().sum();
        Self {
            per_node: counts.values().copied().max().unwrap_or(0),
            nodes: counts.len() as u32,
            peers: ranks - counts.values().copied().min().unwrap_or(0),
        }
    }
}

/// Sizes that knobs give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of a slot of connections.
    pub slot: u32,
    /// Bytes of a slot of datagrams: a packet of the port, of which the network's header takes a part.
    pub packet: u32,
    /// Slots to receive into, of connections: at first, and by how many they grow.
    pub receives: u32,
    /// As many of them at most.
    pub receives_max: u32,
    /// Bytes that are read of a peer at a time.
    pub stripe: u32,
    /// Whether devices read memory of peers. Else there is nothing to read into.
    pub reads: bool,
    /// Slots to receive into, of datagrams.
    pub datagrams: u32,
    /// Slots to send from.
    pub sends: u32,
    /// Sends under way in a pair.
    pub depth: u32,
    /// Connections that a rank keeps, at most, by each rail.
    pub lanes: u32,
    /// Rails.
    pub rails: u32,
}

impl Default for Sizes {
    /// A slot holds what is sent before it is asked for; there are so many that a burst of each of a few peers fits.
    /// Datagrams that find no slot are sent again, so that fewer will do: with what is sent, less than 1 MB.
    fn default() -> Self {
        Self {
            slot: 8 << 10,
            packet: 4096,
            receives: 256,
            receives_max: 1024,
            stripe: 64 << 10,
            reads: true,
            datagrams: 160,
            sends: 64,
            depth: 32,
            lanes: 1024,
            rails: 1,
        }
    }
}

impl Sizes {
    /// Bytes that connections pin: once a stream goes by one of the rails, and at most.
    fn connections(&self) -> [u64; 2] {
        let rails = u64::from(self.rails.max(1));
        let sends = region(self.sends, self.slot);
        let first = region(self.receives, self.slot) + sends;
        // A rail without streams has one slot.
        let at_first = first + (rails - 1) * region(1, self.slot);
        let number = |value: u32| value as usize;
        let (receives, slot) = (number(self.receives), number(self.slot));
        let (part, count) = parts(receives, number(self.receives_max), slot);
        let receives = count as u64 * region(part as u32, self.slot);
        let reads = match self.reads {
            true => region(read_slots(number(self.stripe)) as u32, self.stripe),
            false => 0,
        };
        [at_first, rails * (receives + sends + reads)]
    }
}

/// What a rank needs to reach its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// By which mode.
    pub mode: Mode,
    /// Pairs.
    pub pairs: u32,
    /// Bytes that are pinned once a stream goes by one of the rails: exactly what `Domain::region` registers for so
    /// many slots.
    pub pinned: u64,
    /// The same at most: each rail has carried streams that used all of their windows, and long messages.
    pub pinned_max: u64,
    /// Bytes that device and kernel keep of the pairs: an estimate.
    pub kept: u64,
}

/// Bytes of a request in a pair's queue. Devices use one to four lines of a cache. The estimate takes two.
const REQUEST: u64 = 128;
/// Bytes that kernel and device keep of a pair beside its queue. Contexts of hardware have 256 to 512 bytes, the
/// kernel's structures and the library's some KiB. An estimate, rounded up.
const PAIR: u64 = 8 << 10;

impl Need {
    /// What a rank of the job needs in this mode.
    #[must_use]
    pub fn of(mode: Mode, job: &JobShape, sizes: &Sizes) -> Self {
        let others = job.nodes.saturating_sub(1);
        let remote = others.saturating_mul(job.per_node);
        let peers = job.peers.min(remote);
        // By one it sends to a node; of those that come to its own node it has a fair part.
        let (initiators, targets) = (
            others.min(peers),
            remote.div_ceil(job.per_node.max(1)).min(peers),
        );
        let pairs = match mode {
            Mode::Connections => peers.min(sizes.lanes),
            Mode::Extended => initiators + targets,
            Mode::Datagrams => 1,
        };
        let (rails, [pinned, pinned_max]) = match mode {
            Mode::Connections => (sizes.rails.max(1), sizes.connections()),
            Mode::Extended => (1, Sizes { rails: 1, ..*sizes }.connections()),
            Mode::Datagrams => {
                let pinned_by = |count| region(count, sizes.packet);
                (1, [pinned_by(sizes.datagrams) + pinned_by(sizes.sends); 2])
            }
        };
        let pairs = pairs.saturating_mul(rails);
        // A target has no queues of its own.
        let with_queues = match mode {
            Mode::Extended => initiators,
            Mode::Connections | Mode::Datagrams => pairs,
        };
        let kept =
            u64::from(pairs) * PAIR + u64::from(with_queues) * u64::from(sizes.depth) * REQUEST;
        Self {
            mode,
            pairs,
            pinned,
            pinned_max,
            kept,
        }
    }

    /// All of it, as it is at first.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pinned + self.kept
    }
}

/// What a region of so many slots pins.
fn region(count: u32, slot: u32) -> u64 {
    let slot = u64::from(slot.max(1)).next_multiple_of(64);
    (slot * u64::from(count.max(1))).next_multiple_of(4096)
}

/// The mode of a job, and why: connections if a rank has memory for them and the device offers as many. Else extended
/// connections, if the device has them, they take less, and there is memory for them. Else datagrams.
#[must_use]
pub fn choose(job: &JobShape, sizes: &Sizes, limits: &Limits, budget: u64) -> (Mode, Vec<String>) {
    let mut reasons = Vec::new();
    for mode in [Mode::Connections, Mode::Extended] {
        let need = Need::of(mode, job, sizes);
        let Some(why) = why_not(mode, job, sizes, limits, budget) else {
            let (bytes, pairs) = (need.bytes(), need.pairs);
            reasons.push(format!("{mode:?}: {bytes} bytes for {pairs} queue pairs"));
            return (mode, reasons);
        };
        reasons.push(format!("not {mode:?}: {why}"));
    }
    let need = Need::of(Mode::Datagrams, job, sizes);
    reasons.push(format!(
        "Datagrams: {} bytes, whatever the number of peers",
        need.bytes()
    ));
    (Mode::Datagrams, reasons)
}

/// What keeps a rank from a mode of connections.
fn why_not(
    mode: Mode,
    job: &JobShape,
    sizes: &Sizes,
    limits: &Limits,
    budget: u64,
) -> Option<String> {
    let need = Need::of(mode, job, sizes);
    let (bytes, pairs) = (need.bytes(), need.pairs);
    let everyone = Sizes {
        lanes: u32::MAX,
        ..*sizes
    };
    let wanted = Need::of(Mode::Connections, job, &everyone).pairs;
    if mode == Mode::Extended && !limits.shared_connections {
        Some("the device has none (XRC)".to_owned())
    } else if pairs > limits.pairs {
        Some(format!(
            "{pairs} queue pairs, and the device has {}",
            limits.pairs
        ))
    } else if wanted > sizes.lanes {
        Some(format!(
            "{wanted} peers, and a rank keeps {} connections (ONECOPY_VERBS_LANES)",
            sizes.lanes
        ))
    } else if bytes > budget {
        Some(format!(
            "{bytes} bytes for {pairs} queue pairs, of {budget} that a rank may take"
        ))
    } else if mode == Mode::Extended && pairs >= wanted {
        Some(format!(
            "{pairs} queue pairs, and {wanted} by a connection to each peer"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        slot: 8 << 10,
        packet: 4096,
        receives: 256,
        receives_max: 1024,
        stripe: 64 << 10,
        reads: true,
        datagrams: 160,
        sends: 64,
        depth: 32,
        lanes: u32::MAX,
        rails: 1,
    };

    #[test]
    fn pinned_memory_does_not_grow_with_peers() {
        for mode in [Mode::Connections, Mode::Extended, Mode::Datagrams] {
            let need = |nodes| {
                let job = JobShape {
                    per_node: 32,
                    nodes,
                    peers: u32::MAX,
                };
                Need::of(mode, &job, &SIZES)
            };
            assert_eq!(need(2).pinned, need(2000).pinned);
        }
        let job = JobShape {
            per_node: 1,
            nodes: 64,
            peers: 63,
        };
        let bytes = |mode| Need::of(mode, &job, &SIZES).pinned;
        assert!(bytes(Mode::Connections) <= 4 << 20);
        assert!(bytes(Mode::Datagrams) <= 1_000_000);
    }

    #[test]
    fn each_rail_has_pairs_and_may_come_to_have_pools_of_its_own() {
        let job = JobShape {
            per_node: 1,
            nodes: 64,
            peers: 63,
        };
        let need = |mode, rails| Need::of(mode, &job, &Sizes { rails, ..SIZES });
        let [one, four] = [1, 4].map(|rails| need(Mode::Connections, rails));
        assert_eq!((four.pairs, four.kept), (4 * 63, 4 * one.kept));
        assert_eq!(one.pinned, (2 << 20) + (512 << 10));
        assert_eq!(four.pinned, one.pinned + 3 * (8 << 10));
        assert_eq!(one.pinned_max, (9 << 20) + (512 << 10));
        assert_eq!(four.pinned_max, 4 * one.pinned_max);
        assert_eq!(need(Mode::Datagrams, 4), need(Mode::Datagrams, 1));
    }

    #[test]
    fn extended_connections_grow_with_nodes_not_with_ranks() {
        let job = JobShape {
            per_node: 32,
            nodes: 10,
            peers: u32::MAX,
        };
        assert_eq!(Need::of(Mode::Connections, &job, &SIZES).pairs, 288);
        let extended = Need::of(Mode::Extended, &job, &SIZES);
        assert_eq!(
            (extended.pairs, extended.kept),
            (18, 18 * PAIR + 9 * 32 * REQUEST)
        );
        assert_eq!(Need::of(Mode::Datagrams, &job, &SIZES).pairs, 1);
        let alone = JobShape { nodes: 1, ..job };
        assert_eq!(Need::of(Mode::Connections, &alone, &SIZES).pairs, 0);
    }

    #[test]
    fn the_first_that_fits_is_taken_with_its_reason() {
        let extended = crate::model::usual_limits();
        let limits = Limits {
            shared_connections: false,
            ..extended.clone()
        };
        let job = JobShape {
            per_node: 32,
            nodes: 100,
            peers: u32::MAX,
        };
        let chosen = |limits: &Limits, budget| choose(&job, &SIZES, limits, budget);
        for limits in [&limits, &extended] {
            let (mode, reasons) = chosen(limits, 1 << 30);
            assert_eq!((mode, reasons.len()), (Mode::Connections, 1));
        }
        let (mode, reasons) = chosen(&limits, 8 << 20);
        assert_eq!(mode, Mode::Datagrams);
        assert!(reasons[0].contains("that a rank may take"), "{reasons:?}");
        assert_eq!(reasons[1], "not Extended: the device has none (XRC)");
        assert_eq!(reasons.len(), 3);
        let (mode, reasons) = chosen(&extended, 8 << 20);
        assert_eq!(mode, Mode::Extended);
        assert!(reasons[1].ends_with("for 198 queue pairs"), "{reasons:?}");
        assert_eq!(reasons.len(), 2);
        let (mode, reasons) = chosen(&extended, 1 << 20);
        assert_eq!(mode, Mode::Datagrams);
        assert!(reasons[1].contains("that a rank may take"), "{reasons:?}");
        let few = Limits { pairs: 9, ..limits };
        let (mode, reasons) = chosen(&few, 1 << 30);
        assert_eq!(mode, Mode::Datagrams);
        assert!(reasons[0].ends_with("the device has 9"), "{reasons:?}");
        let few = Limits {
            pairs: 198,
            ..extended.clone()
        };
        assert_eq!(chosen(&few, 1 << 30).0, Mode::Extended);
        let capped = Sizes { lanes: 16, ..SIZES };
        assert_eq!(Need::of(Mode::Connections, &job, &capped).pairs, 16);
        let small = JobShape { peers: 17, ..job };
        let (mode, reasons) = choose(&small, &capped, &extended, 1 << 30);
        assert_eq!(mode, Mode::Datagrams);
        assert!(reasons[0].contains("keeps 16 connections"), "{reasons:?}");
        // With one rank on each node they save nothing.
        let alone = JobShape { per_node: 1, ..job };
        let (mode, reasons) = choose(
            &alone,
            &SIZES,
            &Limits {
                pairs: 98,
                ..extended
            },
            1 << 30,
        );
        assert_eq!(mode, Mode::Datagrams, "{reasons:?}");
    }

    #[test]
    fn a_job_is_what_its_fullest_and_emptiest_nodes_make_it() {
        let job = |nodes: &[u32]| JobShape::on(nodes.iter().copied());
        let of = |per_node, nodes, peers| JobShape {
            per_node,
            nodes,
            peers,
        };
        assert_eq!(job(&[0, 0, 7, 0, 7, 3]), of(3, 3, 5));
        assert_eq!(job(&[1, 1]), of(2, 1, 0));
        assert_eq!(job(&[]), of(0, 0, 0));
    }
}
