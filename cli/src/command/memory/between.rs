// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank takes to talk with ranks on other nodes, by each way there could be.

use crate::command::text;
use onecopy::LayerId;
use onecopy::memory::nodes::{Spread, Streams};
use onecopy_btl::layers::verbs::{mode, rails, settings, sizes};
use onecopy_obs::Knobs;
use onecopy_verbs::modes::{JobShape, Mode, Need, Sizes};
use onecopy_verbs::{Limits, Verbs, model};
use serde::Serialize;
use std::io::{self, Write};

/// What the ranks of several nodes take beside the shared memory of their nodes.
#[derive(Serialize)]
pub(super) struct NodesMemory {
    ranks: usize,
    nodes: usize,
    /// Ranks of the fullest node, which the rest of the listing is about.
    ranks_per_node: usize,
    /// Peers of a rank on other nodes, at most.
    peers: usize,
    /// Ports of RDMA devices that a rank uses for connections.
    rails: u32,
    wires: Vec<Wire>,
    /// Which of them a run uses.
    chosen: &'static str,
    reasons: Vec<String>,
}

/// A way to other nodes, and what one rank takes for it.
#[derive(Serialize)]
struct Wire {
    /// `tcp`, `rc`, `xrc` or `ud`.
    name: &'static str,
    formula: &'static str,
    /// Connections, or pairs of a device.
    connections: u64,
    /// Private bytes that are there once each peer has sent a short message, and at most.
    private: [u64; 2],
    /// Bytes that are pinned at most: a part of the private ones.
    pinned: u64,
    /// Bytes of the kernel and the device, at most.
    kernel: u64,
    /// All together, at most.
    at_most: u64,
    /// Descriptors of the process.
    descriptors: Option<u64>,
}

fn stream(streams: &Streams) -> Wire {
    Wire {
        name: LayerId::WIRE.name(),
        formula: "peers x (state + input + output) + peers x kernel's buffers",
        connections: streams.peers,
        private: [streams.least(), streams.most()],
        pinned: 0,
        kernel: streams.kernel_at_most(),
        at_most: streams.most() + streams.kernel_at_most(),
        descriptors: Some(streams.descriptors()),
    }
}

fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Connections => "rc",
        Mode::Extended => "xrc",
        Mode::Datagrams => "ud",
    }
}

fn pairs(need: &Need, reads: bool) -> Wire {
    Wire {
        name: name(need.mode),
        formula: match (need.mode, reads) {
            (Mode::Connections, true) => {
                "rails x ((receives + sends) x slot + reads x stripe + peers x pair)"
            }
            (Mode::Connections, false) => "rails x ((receives + sends) x slot + peers x pair)",
            (Mode::Extended, true) => {
                "(receives + sends) x slot + reads x stripe + other nodes x (initiator + target)"
            }
            (Mode::Extended, false) => {
                "(receives + sends) x slot + other nodes x (initiator + target)"
            }
            (Mode::Datagrams, _) => "(receives + sends) x packet + pair",
        },
        connections: need.pairs.into(),
        private: [need.pinned, need.pinned_max],
        pinned: need.pinned_max,
        kernel: need.kept,
        at_most: need.pinned_max + need.kept,
        descriptors: None,
    }
}

/// This machine's device: its name, its limits, and the ports that a rank uses. Or why there is none.
fn device(knobs: &Knobs) -> Result<(String, Limits, u32), String> {
    let library = Verbs::load().map_err(ToString::to_string)?;
    let found = rails(&library, knobs).map_err(|error| error.to_string())?;
    let Some(first) = found.first() else {
        return Err("this machine has no RDMA device".to_owned());
    };
    let device = &first.device;
    let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
    Ok((device.name().to_owned(), device.limits().clone(), count))
}

impl NodesMemory {
    /// `rails`: as many as are used here if none.
    pub(super) fn new(knobs: &Knobs, spread: Spread, rails: Option<u32>) -> Self {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let job = JobShape {
            per_node: number(spread.per_node),
            nodes: number(spread.nodes),
            peers: number(spread.far),
        };
        let found = device(knobs);
        let here = found.as_ref().map_or(1, |(_, _, rails)| *rails);
        let limits = found.as_ref().map_or_else(
            |_| Limits {
                shared_connections: false,
                ..model::usual_limits()
            },
            |(_, limits, _)| limits.clone(),
        );
        let sizes = Sizes {
            rails: rails.unwrap_or(here),
            reads: settings(knobs).reads_by(&limits),
            ..sizes(knobs)
        };
        let mut wires = vec![stream(&Streams::new(knobs, spread.far))];
        let modes = [Mode::Connections, Mode::Extended, Mode::Datagrams];
        wires.extend(modes.map(|mode| pairs(&Need::of(mode, &job, &sizes), sizes.reads)));
        let (mode, why) = mode(knobs, &job, &limits);
        let (wire, lane) = (LayerId::WIRE.name(), LayerId::LANE.name());
        let mut reasons = Vec::new();
        let chosen = match &found {
            _ if !knobs.layers.allows(wire) => {
                reasons.push(format!(
                    "ONECOPY_LAYERS switches {wire} off: nodes do not reach each other"
                ));
                "none"
            }
            Ok((device, ..)) if knobs.layers.allows(lane) => {
                reasons.push(format!(
                    "{device} is here, and ONECOPY_LAYERS permits {lane}"
                ));
                name(mode)
            }
            Ok((device, ..)) => {
                reasons.push(format!(
                    "{device} is here, but ONECOPY_LAYERS switches {lane} off"
                ));
                wire
            }
            Err(reason) => {
                reasons.push(format!("no RDMA device: {reason}"));
                wire
            }
        };
        let mode = name(mode);
        reasons.push(format!("with an RDMA device the mode would be {mode}:"));
        reasons.extend(why.into_iter().map(|line| format!("  {line}")));
        Self {
            ranks: spread.ranks,
            nodes: spread.nodes,
            ranks_per_node: spread.per_node,
            peers: spread.far,
            rails: sizes.rails,
            wires,
            chosen,
            reasons,
        }
    }

    /// What the rest of the listing is about.
    pub(super) fn show_nodes(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self {
            ranks,
            nodes,
            ranks_per_node,
            ..
        } = self;
        writeln!(
            out,
            "{ranks} ranks on {nodes} nodes. One node, of {ranks_per_node} ranks; those of other nodes have a place in \
             its segments:\n"
        )
    }

    pub(super) fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\nBetween nodes: each rank talks with up to {} ranks of other nodes (ports of RDMA devices: {}). A rank takes, by",
            self.peers, self.rails
        )?;
        for wire in &self.wires {
            let [least, most] = wire.private.map(text::size);
            let pinned = if wire.pinned > 0 { ", pinned" } else { "" };
            let private = match least == most {
                true => format!("{most} of its own{pinned}"),
                false => format!("{least} to {most} of its own{pinned}"),
            };
            writeln!(
                out,
                "  {:<4} {:>6} connections, {private}, up to {} of the kernel's: at most {} B, {}\n       = {}",
                wire.name,
                wire.connections,
                text::size(wire.kernel),
                wire.at_most,
                text::size(wire.at_most),
                wire.formula,
            )?;
        }
        writeln!(out, "Chosen: {}", self.chosen)?;
        for reason in &self.reasons {
            writeln!(out, "  {reason}")?;
        }
        Ok(())
    }
}
