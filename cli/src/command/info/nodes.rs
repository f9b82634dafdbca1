// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info nodes`: the transport of each pair of nodes, and why.
//!
//! The lowest rank of each node connects with that of each other node, and rank 0 collects what came of it. Under a
//! launcher the ranks of the job do so; else ranks are started for that, on nodes that all are this machine.

use super::super::{CliError, pair, print, text};
use onecopy::{Comm, LayerId, Runtime};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;
use tabled::settings::Style;

/// The hidden command that a rank runs which was started for this.
pub(in crate::command) const COMMAND: &str = "__nodes";
/// For ranks that are started for this. Chosen by magnitude: twice the time of those of one node, since connections may
/// be tried for long.
const LIMIT: Duration = Duration::from_secs(120);
const TAG: i32 = 1;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Start so many ranks on this machine; as many as nodes if not given
    #[arg(short = 'n', long = "ranks", value_name = "N", requires = "nodes",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,

    /// Start ranks on so many nodes, all of which are this machine; without it, join the job as a rank of it
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: Option<u32>,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// A node and its ranks.
#[derive(Debug, Serialize, Deserialize)]
struct Node {
    node: u32,
    ranks: Vec<usize>,
}

/// Two nodes, and what leads from the first to the second.
#[derive(Debug, Serialize, Deserialize)]
struct NodePair {
    nodes: [u32; 2],
    /// The ranks that have tried it: the lowest of each node.
    ranks: [usize; 2],
    /// The layer; none: they do not reach each other.
    layer: Option<String>,
    /// Where the other one listens.
    place: Option<String>,
    reason: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Listing {
    nodes: Vec<Node>,
    pairs: Vec<NodePair>,
}

/// Why it is this layer that carries what comes from `peer`.
fn reason(runtime: &Runtime, layer: LayerId, peer: usize) -> Result<String, onecopy::Error> {
    let (wire, lane) = (LayerId::WIRE, LayerId::LANE);
    if layer == lane {
        return Ok(format!("a lane has taken over what {wire} carried"));
    }
    let states = runtime.layers(peer)?;
    let state = states.into_iter().find(|state| state.layer == lane);
    Ok(match state.and_then(|state| state.refusal) {
        Some(refusal) => format!("connected; no {lane}: {refusal}"),
        None => format!("connected; {lane} takes over now"),
    })
}

fn try_pair(runtime: &Runtime, nodes: [&Node; 2]) -> NodePair {
    let ranks = nodes.map(|node| node.ranks[0]);
    let pair = |layer, place, reason| NodePair {
        nodes: nodes.map(|node| node.node),
        ranks,
        layer,
        place,
        reason,
    };
    match runtime.reach(ranks[1]) {
        Ok(Some(reached)) => {
            let name = reached.carrier.name().to_owned();
            let reason = reason(runtime, reached.carrier, ranks[1]);
            let reason = reason.unwrap_or_else(|error| error.to_string());
            pair(Some(name), Some(reached.place.to_string()), reason)
        }
        Ok(None) => pair(None, None, "the two share memory".to_owned()),
        Err(error) => pair(None, None, error.to_string()),
    }
}

/// The nodes of the job, in the order of their lowest ranks.
fn nodes(runtime: &Runtime) -> Result<Vec<Node>, CliError> {
    let mut nodes: Vec<Node> = Vec::new();
    for rank in 0..runtime.size() {
        let node = runtime.node(rank)?;
        match nodes.iter_mut().find(|known| known.node == node) {
            Some(known) => known.ranks.push(rank),
            None => nodes.push(Node {
                node,
                ranks: vec![rank],
            }),
        }
    }
    Ok(nodes)
}

/// What a rank has found out, from a message.
fn heard(world: &Comm, from: usize) -> Result<Vec<NodePair>, CliError> {
    let length = world.probe(from, TAG)?.bytes;
    let mut bytes = vec![0u8; length];
    world.recv(&mut bytes, from, TAG)?;
    serde_json::from_slice(&bytes).map_err(|error| CliError::Failed(error.into()))
}

/// What is shown for a node that cannot report what it has found.
fn all_unreachable(nodes: &[Node], index: usize, why: &str) -> Vec<NodePair> {
    let (node, others) = (&nodes[index], nodes[index + 1..].iter());
    let pair = |other: &Node| NodePair {
        nodes: [node.node, other.node],
        ranks: [node.ranks[0], other.ranks[0]],
        layer: None,
        place: None,
        reason: format!("not known, as node {} cannot tell: {why}", node.node),
    };
    others.map(pair).collect()
}

/// Tries the pairs of nodes of a job, and leaves it. Some at rank 0.
fn try_pairs(runtime: Runtime) -> Result<Option<Listing>, CliError> {
    let nodes = nodes(&runtime)?;
    let (rank, world) = (runtime.rank(), runtime.world());
    let own = nodes.iter().position(|node| node.ranks[0] == rank);
    let (mut pairs, mut reached) = (Vec::new(), true);
    if let Some(index) = own {
        let others = nodes[index + 1..].iter();
        pairs.extend(others.map(|other| try_pair(&runtime, [&nodes[index], other])));
        reached = runtime.reach(0).is_ok();
        if index > 0 && reached {
            let bytes = text::json_line(&pairs)?;
            world.send(bytes.as_bytes(), 0, TAG)?;
        }
    }
    if rank == 0 {
        for index in 1..nodes.len() {
            // Its own way there was tried before.
            let of_node = match &pairs[index - 1] {
                NodePair {
                    layer: None,
                    reason,
                    ..
                } => all_unreachable(&nodes, index, reason),
                _ => heard(&world, nodes[index].ranks[0])
                    .unwrap_or_else(|error| all_unreachable(&nodes, index, &error.to_string())),
            };
            pairs.extend(of_node);
        }
    }
    drop(world);
    match reached && pairs.iter().all(|pair| pair.layer.is_some()) {
        true => runtime.finalize()?,
        // A rank that is not reached is not met.
        false => drop(runtime),
    }
    Ok((rank == 0).then_some(Listing { nodes, pairs }))
}

/// One of the ranks that were started for this.
pub(super) fn run_rank() -> Result<ExitCode, CliError> {
    if let Some(listing) = try_pairs(Runtime::init()?)? {
        let line = text::json_line(&listing)?;
        print(|out| writeln!(out, "{line}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn started(ranks: u32, nodes: u32) -> Result<Listing, CliError> {
    if nodes > ranks {
        return Err(CliError::Usage(format!(
            "--nodes {nodes}: {ranks} ranks are on {ranks} nodes at most"
        )));
    }
    let (sender, receiver) = channel();
    let quiet = [("ONECOPY_PRINT_ENV", "off".to_owned())];
    let on = (ranks as usize, nodes as usize);
    pair::run_on_nodes(on, &[COMMAND], &quiet, Some(LIMIT), move |line| {
        // Nobody listens any more only when this command has failed.
        let _ = sender.send(line.to_owned());
    })?;
    let line = receiver.into_iter().last().unwrap_or_default();
    serde_json::from_str(&line).map_err(|error| CliError::Failed(error.into()))
}

fn list(ranks: &[usize]) -> String {
    let words: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    words.join(",")
}

fn show(listing: &Listing, json: bool) -> Result<(), CliError> {
    if json {
        let text = text::json(listing)?;
        return print(|out| writeln!(out, "{text}"));
    }
    print(|out| {
        for node in &listing.nodes {
            writeln!(out, "node {}: ranks {}", node.node, list(&node.ranks))?;
        }
        if listing.pairs.is_empty() {
            return writeln!(out, "One node: its ranks share memory; see 'onecopy info'.");
        }
        let mut rows = tabled::builder::Builder::default();
        rows.push_record(["nodes", "ranks", "layer", "at", "reason"]);
        for pair in &listing.pairs {
            rows.push_record([
                format!("{} - {}", pair.nodes[0], pair.nodes[1]),
                format!("{} - {}", pair.ranks[0], pair.ranks[1]),
                pair.layer.clone().unwrap_or_else(|| "none".to_owned()),
                pair.place.clone().unwrap_or_default(),
                text::wrap(&pair.reason, 60),
            ]);
        }
        writeln!(out, "\n{}", rows.build().with(Style::psql()))
    })
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, CliError> {
    let json = json || args.json;
    if let Some(nodes) = args.nodes {
        show(&started(args.ranks.unwrap_or(nodes), nodes)?, json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(listing) = try_pairs(Runtime::init()?)? {
        show(&listing, json)?;
    }
    Ok(ExitCode::SUCCESS)
}
