// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy memory`.

mod between;

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use super::{CliError, print, text};
use between::NodesMemory;
use onecopy::memory::nodes::Spread;
use onecopy::memory::{Formula, PRIVATE_BASE, PRIVATE_PER_PEER, Traffic};
use onecopy::wireup::message::MAX_RANKS;
use onecopy_verbs::matching::RAILS_MAX;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of ranks
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: u32,

    /// Peers that each rank sends to; all others if not given
    #[arg(long, value_name = "K")]
    peers: Option<usize>,

    /// Number of nodes; the ranks lie on them in blocks
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    nodes: u32,

    /// Bytes that a rank may take for connections of an RDMA device; ONECOPY_VERBS_MEMORY if not given
    #[arg(long, value_name = "SIZE", value_parser = text::parse_size)]
    wire_budget: Option<u64>,

    /// Ports of RDMA devices that each rank uses; as many as it would use here if not given
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=RAILS_MAX as i64))]
    rails: Option<u32>,

    /// Bytes that each rank allocates with 'alloc'
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = text::parse_size)]
    heap: u64,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shared {
    base_per_rank: u64,
    ring_per_pair: u64,
    chunk: u64,
    chunks_per_peer: u64,
    pool_per_rank_at_most: u64,
    heap_per_rank: u64,
    at_start: u64,
    without_chunks: u64,
    at_most: u64,
}

#[derive(Serialize)]
struct PerConnection {
    /// Shared bytes of one ordered pair: its ring.
    ring: u64,
    /// Bytes of its sender's pool that it may hold at a time.
    pool_share: u64,
    /// Both, the connection on its own.
    at_most: u64,
    /// Private bytes of unmatched messages at the receiver.
    unexpected: u64,
}

#[derive(Serialize)]
struct PerSender {
    /// Bytes of its pool at most.
    pool_at_most: u64,
    /// What `ONECOPY_POOL_MAX` caps it to.
    pool_cap: u64,
    /// Rings that it writes, in other ranks' segments.
    rings: u64,
}

#[derive(Serialize)]
struct Private {
    base_per_rank: u64,
    per_peer: u64,
    per_rank: u64,
    unexpected_per_rank_at_most: u64,
    all_ranks: u64,
}

#[derive(Serialize)]
struct Collectives {
    channel: u64,
    channels_per_rank: u64,
    temporary_buffers: u64,
    at_most: u64,
}

#[derive(Serialize)]
struct Listing {
    ranks: usize,
    peers: usize,
    pairs: u64,
    formula: &'static str,
    shared: Shared,
    per_connection: PerConnection,
    per_sender: PerSender,
    collectives: Collectives,
    private: Private,
    address_range_per_segment: u64,
    worst: u64,
    /// None: all ranks are on one node.
    between_nodes: Option<NodesMemory>,
}

const FORMULA: &str = "n*base + pairs*ring + n*pool + n*heap";

fn listing(f: &Formula, between: Option<NodesMemory>) -> Listing {
    let n = f.traffic.ranks as u64;
    let share = f.share.min(f.chunks_max) * f.chunk;
    Listing {
        ranks: f.traffic.ranks,
        peers: f.traffic.peers,
        pairs: f.pairs(),
        formula: FORMULA,
        shared: Shared {
            base_per_rank: f.base,
            ring_per_pair: f.ring_at_most(),
            chunk: f.chunk,
            chunks_per_peer: f.share,
            pool_per_rank_at_most: f.pool_at_most(),
            heap_per_rank: f.heap_of_rank(),
            at_start: f.bases(),
            without_chunks: f.shared_least(),
            at_most: f.shared_most(),
        },
        per_connection: PerConnection {
            ring: f.ring_at_most(),
            pool_share: share,
            at_most: f.ring_at_most() + share,
            unexpected: f.credit,
        },
        per_sender: PerSender {
            pool_at_most: f.pool_at_most(),
            pool_cap: f.chunks_max * f.chunk,
            rings: f.traffic.peers as u64 * f.ring_at_most(),
        },
        collectives: Collectives {
            channel: f.channel(),
            channels_per_rank: f.channels,
            temporary_buffers: f.temporary_at_most(),
            at_most: f.collectives_at_most(),
        },
        private: Private {
            base_per_rank: PRIVATE_BASE,
            per_peer: PRIVATE_PER_PEER,
            per_rank: f.private_of_rank(),
            unexpected_per_rank_at_most: f.unexpected_of_rank(),
            all_ranks: n * f.private_of_rank(),
        },
        address_range_per_segment: f.address_range(),
        worst: f.worst(),
        between_nodes: between,
    }
}

fn show(out: &mut dyn Write, f: &Formula, l: &Listing) -> io::Result<()> {
    let (n, k) = (l.ranks, l.peers);
    if let Some(between) = &l.between_nodes {
        between.show_nodes(out)?;
    }
    writeln!(
        out,
        "{n} ranks, each sends to {k} others: {} ordered pairs\n",
        l.pairs
    )?;
    show_sum(out, f, l)?;
    show_bounds(out, f, l)?;
    show_private(out, f, l.peers)?;
    match &l.between_nodes {
        Some(between) => between.show(out),
        None => Ok(()),
    }
}

/// The shared memory of the node, summand by summand.
fn show_sum(out: &mut dyn Write, f: &Formula, l: &Listing) -> io::Result<()> {
    let n = l.ranks;
    writeln!(out, "Shared memory of the node = {FORMULA}")?;
    let line = |out: &mut dyn Write, name: &str, sum: String, bytes: u64, when: &str| {
        writeln!(
            out,
            "  {name:<8} {sum:<34} = {bytes:>13} B  {:>10}  {when}",
            text::size(bytes)
        )
    };
    line(
        out,
        "base",
        format!("{n} x {}", f.base),
        f.bases(),
        "at the start: header, 256 B of control lines per rank, a page of the first channel",
    )?;
    line(
        out,
        "rings",
        format!("{} x {}", l.pairs, f.ring),
        f.rings(),
        "with a pair's first message: ONECOPY_RING_SLOTS x 64 B",
    )?;
    line(
        out,
        "heap",
        format!("{n} x {}", f.heap_of_rank()),
        n as u64 * f.heap_of_rank(),
        "what 'alloc' gave (--heap)",
    )?;
    line(out, "", "without chunks".into(), f.shared_least(), "")?;
    line(
        out,
        "pools",
        format!("{n} x {}", f.pool_at_most()),
        n as u64 * f.pool_at_most(),
        "only if chunks are used, at most",
    )?;
    line(out, "", "at most".into(), f.shared_most(), "")
}

/// What bounds the pools, and what a connection and a sender take of the sum.
fn show_bounds(out: &mut dyn Write, f: &Formula, l: &Listing) -> io::Result<()> {
    let (size, k) = (text::size, l.peers);
    writeln!(
        out,
        "\nPools: a sender takes {} chunks of {} first and doubles; at most {} peers x {} chunks, ONECOPY_POOL_MAX {}",
        f.pool_after(1) / f.chunk,
        size(f.chunk),
        k,
        f.share,
        size(f.chunks_max * f.chunk)
    )?;
    writeln!(
        out,
        "Collectives: at most {} (ONECOPY_COLL_POOL) on the node while they are used; not in the sums. Of that {} per communicator and rank, for {} of them, and the rest for temporary buffers",
        size(f.collectives_at_most()),
        size(f.channel()),
        f.channels
    )?;
    writeln!(
        out,
        "Per connection: ring {} + up to {} of its sender's pool (ONECOPY_POOL_PER_PEER) = {}",
        size(l.per_connection.ring),
        size(l.per_connection.pool_share),
        size(l.per_connection.at_most)
    )?;
    writeln!(
        out,
        "Per sender: pool up to {}, and {} in rings of its peers' segments",
        size(l.per_sender.pool_at_most),
        size(l.per_sender.rings)
    )
}

/// What is no shared memory, and the worst of all for `k` peers.
fn show_private(out: &mut dyn Write, f: &Formula, k: usize) -> io::Result<()> {
    let size = text::size;
    writeln!(
        out,
        "\nPrivate memory per rank, estimated = {PRIVATE_BASE} + {k} x {PRIVATE_PER_PEER} = {} B, {}",
        f.private_of_rank(),
        size(f.private_of_rank())
    )?;
    writeln!(
        out,
        "Unmatched eager messages per rank, at most = {k} x {} (ONECOPY_EAGER_CREDIT) = {} B, {}",
        f.credit,
        f.unexpected_of_rank(),
        size(f.unexpected_of_rank())
    )?;
    writeln!(
        out,
        "Worst of all, shared and private = {} B, {}",
        f.worst(),
        size(f.worst())
    )?;
    writeln!(
        out,
        "Address range of each segment: {}, of which only the above takes memory",
        size(f.address_range())
    )
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let mut knobs = onecopy::tune::settings()?.knobs;
    if let Some(budget) = args.wire_budget {
        knobs.verbs_memory = usize::try_from(budget).unwrap_or(usize::MAX);
    }
    let (ranks, nodes) = (args.ranks as usize, args.nodes as usize);
    let peers = args.peers.unwrap_or(ranks - 1);
    if peers >= ranks {
        return Err(CliError::Usage(format!(
            "--peers {peers}: each of {ranks} ranks has {} others",
            ranks - 1
        )));
    }
    if nodes > ranks {
        return Err(CliError::Usage(format!(
            "--nodes {nodes}: {ranks} ranks are on {ranks} nodes at most"
        )));
    }
    onecopy::memory::geometry(&knobs, ranks)
        .check()
        .map_err(|bad| CliError::Usage(bad.to_string()))?;
    let spread = Spread::new(ranks, nodes, peers);
    let traffic = Traffic {
        ranks: spread.per_node,
        peers: spread.near,
        heap: args.heap,
    };
    let formula = Formula::on_node(&knobs, traffic, ranks);
    let between = (nodes > 1).then(|| NodesMemory::new(&knobs, spread, args.rails));
    let listing = listing(&formula, between);
    if args.json {
        let text = text::json(&listing)?;
        print(|out| writeln!(out, "{text}"))?;
    } else {
        print(|out| show(out, &formula, &listing))?;
    }
    Ok(ExitCode::SUCCESS)
}
