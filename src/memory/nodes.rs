// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank takes to talk with ranks on other nodes by streams: its own memory, and the kernel's.
//!
//! | part | of each connection | when |
//! | --- | --- | --- |
//! | state | the peer, its queues, a page of the buffer to read into | with the first message of the pair |
//! | input | the rest of that buffer | when much comes at once |
//! | output | what the kernel has not taken yet: frames that wait, and the rest of a piece | when the peer is slow |
//! | kernel | its buffers, both ways | while bytes lie in them |

use crate::endpoint::{STREAM_INPUT, stream_output};
use onecopy_obs::Knobs;
use onecopy_shm::layout::PAGE;

/// Private bytes per peer on another node, estimated from a measurement: its state, its queues, the first page that is
/// read into; rounded up.
pub const PRIVATE_PER_STREAM: u64 = 28 << 10;

/// Descriptors of a rank that do not depend on its peers. They are where it listens, what it waits by, and two of the
/// thread that waits while it sleeps.
pub const DESCRIPTORS: u64 = 4;

/// What the streams of one rank take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    /// Peers on other nodes that the rank talks with: a connection each.
    pub peers: u64,
    /// Private bytes of a connection that has carried a short message, estimated.
    pub state: u64,
    /// Private bytes more, at most, for what comes.
    pub input: u64,
    /// Private bytes more, at most, for what goes.
    pub output: u64,
    /// Bytes of the kernel's buffers of a connection, at most.
    pub kernel: u64,
}

impl Streams {
    /// Those of a rank that talks with `peers` on other nodes.
    #[must_use]
    pub fn new(knobs: &Knobs, peers: usize) -> Self {
        let page = PAGE as u64;
        Self {
            peers: peers as u64,
            state: PRIVATE_PER_STREAM,
            input: (STREAM_INPUT as u64).saturating_sub(page),
            output: stream_output(&knobs.stream()) as u64,
            kernel: kernel_buffers(knobs),
        }
    }

    /// Private bytes of the rank once each connection has carried a short message, estimated.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.peers * self.state
    }

    /// Private bytes of the rank at most.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.peers * (self.state + self.input + self.output)
    }

    /// Bytes of the kernel's buffers at most.
    #[must_use]
    pub fn kernel_at_most(&self) -> u64 {
        self.peers * self.kernel
    }

    /// Descriptors of the rank.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        match self.peers {
            0 => 0,
            peers => DESCRIPTORS + peers,
        }
    }
}

/// Bytes of the kernel's buffers of one connection, both ways, at most. The kernel makes twice of what the knob sets,
/// for its own needs. Without the knob it is how far the kernel grows them.
fn kernel_buffers(knobs: &Knobs) -> u64 {
    if let Some(bytes) = knobs.stream().buffer {
        return 2 * 2 * bytes as u64;
    }
    let most = |name: &str, usual: u64| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let most = text.split_ascii_whitespace().nth(2);
        most.and_then(|bytes| bytes.parse().ok()).unwrap_or(usual)
    };
    most("tcp_wmem", 4 << 20) + most("tcp_rmem", 6 << 20)
}

/// How the ranks of a job lie on its nodes: in blocks whose sizes differ by one at most. Each rank talks with those of
/// its own node first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// Ranks of the job.
    pub ranks: usize,
    /// Nodes.
    pub nodes: usize,
    /// Ranks of the fullest node.
    pub per_node: usize,
    /// Peers of a rank on its own node, at most.
    pub near: usize,
    /// Peers of a rank on other nodes, at most.
    pub far: usize,
}

impl Spread {
    /// Of `ranks` on `nodes`, each of which talks with `peers`.
    #[must_use]
    pub fn new(ranks: usize, nodes: usize, peers: usize) -> Self {
        let nodes = nodes.clamp(1, ranks.max(1));
        let (per_node, least) = (ranks.div_ceil(nodes), ranks / nodes);
        let near = peers.min(per_node.saturating_sub(1));
        // Those of an emptier node have more peers elsewhere.
        let far = peers - peers.min(least.saturating_sub(1));
        Self {
            ranks,
            nodes,
            per_node,
            near,
            far,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_talk_with_their_own_node_first() {
        let spread = Spread::new(64, 4, 63);
        assert_eq!((spread.per_node, spread.near, spread.far), (16, 15, 48));
        let spread = Spread::new(64, 4, 10);
        assert_eq!((spread.near, spread.far), (10, 0));
        let spread = Spread::new(5, 2, 4);
        assert_eq!((spread.per_node, spread.near, spread.far), (3, 2, 3));
        assert_eq!(Spread::new(3, 1, 2).far, 0);
        assert_eq!(Spread::new(2, 9, 1).nodes, 2);
    }

    #[test]
    fn streams_grow_with_peers_and_the_kernel_with_its_knob() {
        let (knobs, ..) = Knobs::from_iter([("ONECOPY_TCP_BUFFER", "64K")]).expect("valid");
        let (one, ten) = (Streams::new(&knobs, 1), Streams::new(&knobs, 10));
        assert_eq!(one.kernel_at_most(), 256 << 10);
        assert_eq!(10 * one.most(), ten.most());
        assert!(one.least() < one.most());
        assert_eq!(Streams::new(&knobs, 0).descriptors(), 0);
    }
}
