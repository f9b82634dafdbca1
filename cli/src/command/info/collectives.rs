// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info collectives`.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use tabled::settings::Style;

use super::super::{CliError, print, text};
use onecopy::coll::nodes::Nodes;
use onecopy::coll::select::explain::{Choice, Table};
use onecopy::machine::Machine;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ranks of the communicator
    #[arg(short = 'n', long, value_name = "RANKS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=24_576))]
    ranks: u32,

    /// Nodes that they are on, in blocks
    #[arg(long, value_name = "NODES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=24_576))]
    nodes: u32,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    collective: &'static str,
    from: u64,
    to: Option<u64>,
    contribution_in_alloc: &'static str,
    contribution_elsewhere: &'static str,
    #[serde(rename = "how")]
    algorithm: &'static str,
    why: String,
}

#[derive(Serialize)]
struct Listing {
    ranks: usize,
    nodes: usize,
    channels: u32,
    copies_up_to: usize,
    collectives: Vec<Row>,
}

impl From<Choice> for Row {
    fn from(choice: Choice) -> Self {
        Self {
            collective: choice.collective,
            from: choice.from,
            to: choice.to,
            contribution_in_alloc: choice.placement.0,
            contribution_elsewhere: choice.placement.1,
            algorithm: choice.algorithm,
            why: choice.why,
        }
    }
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, CliError> {
    let settings = onecopy::tune::settings()?;
    let nodes = Nodes::blocks(args.ranks as usize, args.nodes as usize);
    let oversubscribed = nodes.largest() > Machine::here().polling_ranks;
    let (knobs, costs) = (&settings.knobs, &settings.costs);
    let table = if nodes.count() == 1 {
        Table::new(knobs, costs, nodes.ranks(), oversubscribed)
    } else {
        Table::between(knobs, costs, &nodes, oversubscribed)
    };
    let listing = Listing {
        ranks: table.ranks,
        nodes: table.nodes,
        channels: table.channels,
        copies_up_to: table.temp_max,
        collectives: table.choices.into_iter().map(Row::from).collect(),
    };
    if args.json || json {
        let json = text::json(&listing)?;
        print(|out| writeln!(out, "{json}"))?;
    } else {
        print(|out| write_table(out, &listing))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_table(out: &mut dyn Write, listing: &Listing) -> io::Result<()> {
    let mut builder = tabled::builder::Builder::default();
    builder.push_record(["collective", "bytes", "alloc", "other", "how", "why"]);
    for row in &listing.collectives {
        let bytes = match row.to {
            Some(to) => format!("{} to {}", text::size(row.from), text::size(to)),
            None if row.from == 0 => String::new(),
            None => format!("from {}", text::size(row.from)),
        };
        builder.push_record([
            row.collective.to_owned(),
            bytes,
            row.contribution_in_alloc.to_owned(),
            row.contribution_elsewhere.to_owned(),
            row.algorithm.to_owned(),
            text::wrap(&row.why, 60),
        ]);
    }
    let mut grid = builder.build();
    grid.with(Style::blank());
    let on = match listing.nodes {
        1 => String::new(),
        nodes => format!(" on {nodes} nodes, in blocks"),
    };
    let levels = match listing.nodes {
        1 => "",
        _ => {
            "\nlevels: by lines on each node, by messages between one rank of each. messages: from rank to rank. An operator of\n\
             the program goes by levels where the ranks of each node stand side by side."
        }
    };
    writeln!(
        out,
        "{} ranks{on}, {} channels. Bytes are a rank's contribution. It stands in its line, in the slot next to it, in its\n\
         buffer, or in a temporary copy of at most {}; or it goes as a message or in pieces.{levels}\n\n{grid}",
        listing.ranks,
        listing.channels,
        text::size(listing.copies_up_to as u64)
    )
}
