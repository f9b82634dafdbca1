// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info protocols`.

use std::io;
use std::process::ExitCode;

use serde::Serialize;
use tabled::settings::Style;

use super::super::{CliError, print, text};
use super::KnownPair;
use super::layers::{Pair, no_lane};
use onecopy::LayerId;
use onecopy::select::explain::{Memory, Protocol, Range, Table, between_nodes};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Explain the choice for messages of this size
    #[arg(long, value_name = "SIZE", value_parser = text::parse_size)]
    size: Option<u64>,

    /// Join the job as a rank and show what holds towards this rank
    #[arg(long, value_name = "RANK")]
    peer: Option<usize>,

    /// Show what holds between ranks on two nodes
    #[arg(long, conflicts_with = "peer")]
    between_nodes: bool,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Loser {
    protocol: &'static str,
    cost_us: Option<f64>,
    kind: &'static str,
    reason: String,
}

#[derive(Serialize)]
struct Line {
    from: u64,
    /// None: no end.
    to: Option<u64>,
    protocol: &'static str,
    /// None between nodes: how long it takes is the network's.
    cost_from_us: Option<f64>,
    cost_to_us: Option<f64>,
    losers: Vec<Loser>,
}

#[derive(Serialize)]
struct Case {
    /// `plain`, `heap`, `from heap` or `to heap`: where the two buffers lie.
    memory: &'static str,
    ranges: Vec<Line>,
}

#[derive(Serialize)]
struct Listing<'a> {
    pair: Option<&'a Pair>,
    size: Option<u64>,
    /// Whether the two ranks share memory, or a wire carries everything.
    shares_memory: bool,
    /// Between nodes: bytes of a message that one call gives to the kernel.
    piece: Option<usize>,
    /// Up to this size a message goes in chunks, whatever its case says, if its buffer has changed since it was last
    /// sent. First for plain memory, then for memory from `alloc`.
    rewritten_max: [u64; 2],
    cases: Vec<Case>,
}

const CASES: [(&str, Memory); 4] = [
    (
        "plain",
        Memory {
            from_heap: false,
            to_heap: false,
        },
    ),
    (
        "heap",
        Memory {
            from_heap: true,
            to_heap: true,
        },
    ),
    (
        "from heap",
        Memory {
            from_heap: true,
            to_heap: false,
        },
    ),
    (
        "to heap",
        Memory {
            from_heap: false,
            to_heap: true,
        },
    ),
];

fn round(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}

fn line(table: &Table<'_>, range: Range, size: Option<u64>, memory: Memory) -> Line {
    let shown_size = size.unwrap_or(range.from);
    let end = (range.to != u64::MAX).then_some(range.to);
    Line {
        from: range.from,
        to: end,
        protocol: range.protocol.name(),
        cost_from_us: table.cost_us(range.protocol, shown_size).map(round),
        cost_to_us: end
            .and_then(|end| table.cost_us(range.protocol, size.unwrap_or(end)))
            .map(round),
        losers: table
            .losers(shown_size, memory)
            .into_iter()
            .map(|loser| Loser {
                protocol: loser.protocol.name(),
                cost_us: loser.cost_us.map(round),
                kind: loser.why.kind(),
                reason: loser.why.to_string(),
            })
            .collect(),
    }
}

fn cases(table: &Table<'_>, size: Option<u64>) -> Vec<Case> {
    CASES
        .into_iter()
        .map(|(name, memory)| Case {
            memory: name,
            ranges: table
                .ranges(memory)
                .into_iter()
                .filter(|range| size.is_none_or(|size| (range.from..=range.to).contains(&size)))
                .map(|range| line(table, range, size, memory))
                .collect(),
        })
        .collect()
}

fn sizes(line: &Line) -> String {
    let show = |bytes| text::size(bytes);
    match line.to {
        Some(to) if to == line.from => show(to),
        Some(to) => format!("{} to {}", show(line.from), show(to)),
        None => format!("from {}", show(line.from)),
    }
}

/// What is refused for the same reason at every size of a case, by its reason: shown once, below the table.
fn refused(case: &Case) -> Vec<(&str, Vec<&'static str>)> {
    let everywhere = |loser: &&Loser| {
        let same =
            |other: &Loser| (other.protocol, &other.reason) == (loser.protocol, &loser.reason);
        loser.kind == "refused" && case.ranges.iter().all(|line| line.losers.iter().any(same))
    };
    let mut by_reason: Vec<(&str, Vec<&'static str>)> = Vec::new();
    let first = case.ranges.first().map_or(&[][..], |line| &line.losers[..]);
    for loser in first.iter().filter(everywhere) {
        match by_reason
            .iter_mut()
            .find(|(reason, _)| *reason == loser.reason)
        {
            Some((_, protocols)) => protocols.push(loser.protocol),
            None => by_reason.push((&loser.reason, vec![loser.protocol])),
        }
    }
    by_reason
}

fn losers(line: &Line, refused: &[(&str, Vec<&'static str>)]) -> String {
    // Between nodes each layer that copies is refused for the one reason, which is shown above the table.
    let apart = line.cost_from_us.is_none();
    let is_above = |loser: &Loser| {
        let mut above = refused.iter().flat_map(|(_, protocols)| protocols);
        above.any(|&protocol| protocol == loser.protocol)
    };
    let explained = line.losers.iter().filter(|&loser| match apart {
        true => loser.kind != "refused" || loser.protocol == Protocol::Read.name(),
        false => !is_above(loser),
    });
    let lines: Vec<String> = explained
        .map(|loser| {
            let cost = loser
                .cost_us
                .map_or_else(String::new, |us| format!(" {}:", text::micros(us)));
            text::wrap(&format!("{}:{cost} {}", loser.protocol, loser.reason), 74)
        })
        .collect();
    lines.join("\n")
}

fn overview(case: &Case) -> String {
    let refused = refused(case);
    let mut rows = tabled::builder::Builder::default();
    rows.push_record([
        "size",
        "protocol",
        "estimate, us",
        "the others, at the first size",
    ]);
    for line in &case.ranges {
        let end = line
            .cost_to_us
            .map_or_else(String::new, |us| format!(" to {}", text::micros(us)));
        let from = line.cost_from_us.map(text::micros).unwrap_or_default();
        rows.push_record([
            sizes(line),
            line.protocol.to_owned(),
            format!("{from}{end}"),
            losers(line, &refused),
        ]);
    }
    let mut shown = rows.build().with(Style::psql()).to_string();
    // Between nodes the reason stands above the table.
    let apart = case.ranges.iter().all(|line| line.cost_from_us.is_none());
    for (reason, protocols) in refused.iter().filter(|_| !apart) {
        let line = format!("{}: {reason}", protocols.join(", "));
        shown.push('\n');
        shown.push_str(&text::wrap(&line, 110));
    }
    shown
}

fn one(case: &Case) -> String {
    let mut rows = tabled::builder::Builder::default();
    rows.push_record(["protocol", "estimate, us", "why"]);
    for line in &case.ranges {
        rows.push_record([
            line.protocol.to_owned(),
            line.cost_from_us.map(text::micros).unwrap_or_default(),
            format!("chosen: carries {} here", sizes(line)),
        ]);
        for loser in &line.losers {
            rows.push_record([
                loser.protocol.to_owned(),
                loser.cost_us.map(text::micros).unwrap_or_default(),
                text::wrap(&loser.reason, 80),
            ]);
        }
    }
    rows.build().with(Style::psql()).to_string()
}

impl Listing<'_> {
    fn show(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.show_pair(out)?;
        self.show_cases(out)
    }

    /// What holds for all cases.
    fn show_pair(&self, out: &mut dyn io::Write) -> io::Result<()> {
        match self.pair {
            Some(pair) => writeln!(out, "{pair}")?,
            None if !self.shares_memory => writeln!(
                out,
                "Two ranks on two nodes; the receive is posted and the pair otherwise idle."
            )?,
            None => writeln!(
                out,
                "Layers as two ranks on this machine proved them; the receive is posted and the pair otherwise idle."
            )?,
        }
        if let Some(piece) = self.piece {
            writeln!(
                out,
                "A wire carries what the ring and the chunks carry on a node, in pieces of up to {} (ONECOPY_TCP_PIECE). No layer \
                 copies from rank to rank.",
                text::size(piece as u64)
            )?;
        }
        let [plain, heap] = self
            .rewritten_max
            .map(|max| (max > 0).then(|| text::size(max)));
        let sizes = match (plain, heap) {
            (Some(plain), Some(heap)) => Some(format!("up to {plain}, from alloc up to {heap}")),
            (Some(plain), None) => Some(format!("up to {plain}, not from alloc")),
            (None, Some(heap)) => Some(format!("from alloc up to {heap}")),
            (None, None) => None,
        };
        if let Some(sizes) = sizes {
            writeln!(
                out,
                "A buffer that has changed since it was last sent goes in chunks {sizes}: its lines stay in the sender's cache."
            )?;
        }
        Ok(())
    }

    fn show_cases(&self, out: &mut dyn io::Write) -> io::Result<()> {
        // On a wire it does not matter where the buffers lie.
        let shown = if self.shares_memory {
            self.cases.len()
        } else {
            1
        };
        for case in &self.cases[..shown] {
            let what = match case.memory {
                _ if !self.shares_memory => "any memory",
                "plain" => "plain memory on both sides",
                "heap" => "memory from alloc on both sides",
                "from heap" => "from memory of alloc to plain memory",
                _ => "from plain memory to memory of alloc",
            };
            match self.size {
                Some(size) => {
                    writeln!(out, "\n{} bytes, {what}\n{}", size, one(case))?;
                }
                // The mixed cases differ in the last lines only: `--size` and JSON have them.
                None if matches!(case.memory, "plain" | "heap") => {
                    writeln!(out, "\n{what}\n{}", overview(case))?;
                }
                None => {}
            }
        }
        Ok(())
    }
}

pub(super) fn run(args: &Args, json: bool, peer: Option<usize>) -> Result<ExitCode, CliError> {
    let settings = onecopy::tune::settings()?;
    let known = match args.between_nodes {
        true => {
            let mut layers = between_nodes();
            layers[LayerId::LANE] = no_lane(&settings.knobs);
            KnownPair::of(layers)
        }
        false => super::look(args.peer.or(peer))?,
    };
    if known.is_peer() {
        return known.finish();
    }
    let table = Table::new(&settings.knobs, &settings.costs, known.layers.clone());
    let cases = cases(&table, args.size);
    let thresholds = table.thresholds();
    // Between nodes nothing is read in place, so it does not matter whose cache has it.
    let rewritten_max = match table.shares_memory() {
        true => [thresholds.rewritten_max, thresholds.rewritten_heap_max],
        false => [0; 2],
    };
    let piece = (!table.shares_memory()).then(|| settings.knobs.stream().piece);
    let listing = Listing {
        pair: known.pair.as_ref(),
        size: args.size,
        shares_memory: table.shares_memory(),
        piece,
        rewritten_max,
        cases,
    };
    if json || args.json {
        let text = text::json(&listing)?;
        print(|out| writeln!(out, "{text}"))?;
    } else {
        print(|out| listing.show(out))?;
    }
    known.finish()
}
