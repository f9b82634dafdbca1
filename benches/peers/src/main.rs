// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares MPI libraries on one node. One C program, [`bench.c`](../bench.c), runs on each of them, and their jobs
//! take turns batch by batch in one run.
//!
//! - The jobs of all contestants stand side by side; only one works at a time, the others sleep. A change of the
//!   machine's state meets all of them.
//! - A batch of about 4 ms is bracketed by raw line hand-offs of its own two processes. These decide whether it counts
//!   as near or far, by the rule of [`onecopy_cli::bench::gate`] and the floor of the run.
//! - The same binary, built against the standard ABI, runs on onecopy, MPICH and Intel MPI. Open MPI does not have that
//!   ABI; it gets the same source through its own compiler wrapper.
//! - Ours also takes part without MPI, through the Rust interface, and so does the machine's limit.
//! - Payload is compared outside the timed loops: every contestant, pattern and size.
#![forbid(unsafe_code)]

mod conductor;
mod contestant;
mod install;
mod outcome;
mod peer;
mod plan;
mod point;
mod priority;
mod ratios;
mod report;
mod stage;
mod tables;

use clap::Parser;
use onecopy_bench::{BenchError, Mode, Pattern};
use onecopy_cli::bench::gate::State;
use onecopy_cli::bench::sizes;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// States of the machine.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WantedStates {
    /// The processors are close
    Near,
    /// They are not
    Far,
    /// Each of these
    Both,
}

impl WantedStates {
    fn states(self) -> Vec<State> {
        match self {
            Self::Near => vec![State::Near],
            Self::Far => vec![State::Far],
            Self::Both => vec![State::Near, State::Far],
        }
    }
}

/// Compares MPI libraries on one node, side by side in one run
#[derive(Debug, Parser)]
#[command(name = "cargo xtask peers")]
struct Args {
    /// Ranks of each job
    #[arg(short = 'n', long = "ranks", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: u16,
    /// How messages follow one another [default: ping-pong in three modes, bandwidth, rate, collectives; with more than
    /// 2 ranks collectives]
    #[arg(long, value_enum, value_delimiter = ',')]
    pattern: Vec<Pattern>,
    /// Memory of the messages [default: each for ping-pong, 'same' for all else]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Message sizes, separated by commas, with suffixes K, M, G
    #[arg(long, value_name = "LIST")]
    sizes: Option<String>,
    /// Who takes part, by the names in the table [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Batches for each result: near ones, or those of each '--state'
    #[arg(long, default_value_t = 9)]
    batches: u16,
    /// Go on until each result has its batches in this state of the machine. It changes by itself [default: near,
    /// as far as it is near when a result's turn comes]
    #[arg(long, value_enum)]
    state: Option<WantedStates>,
    /// Longest time that '--state' may take
    #[arg(long, value_name = "MINUTES", default_value_t = 60)]
    minutes: u16,
    /// Real-time priority of the ranks, where the system permits it, so that other work does not count. 0: none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=90))]
    priority: u8,
    /// Jobs of each library, which take turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=16))]
    jobs: u16,
    /// Make rank 0 the root of each collective, so that ranks may run ahead; otherwise roots take turns
    #[arg(long)]
    one_root: bool,
    /// Few sizes and few batches
    #[arg(long)]
    quick: bool,
    /// Neither memory nor the time of an empty job
    #[arg(long)]
    no_costs: bool,
    /// Write tables, graphs and one JSON record per line into this folder
    #[arg(long, value_name = "DIR", default_value = "bench-out/peers")]
    out: PathBuf,
    /// Another build of onecopy takes part as 'other': the folder with its command and its libraries
    #[arg(long, value_name = "DIR")]
    other: Option<PathBuf>,
    /// Where built onecopy is: the folder with the command and the libraries
    #[arg(long, value_name = "DIR", hide = true)]
    built: PathBuf,
    /// The root of the repository
    #[arg(long, value_name = "DIR", hide = true)]
    root: PathBuf,
}

fn main() -> ExitCode {
    // A rank of ours, through the Rust interface, is this program again.
    let result = if std::env::args().nth(1).as_deref() == Some("__bench-rank") {
        onecopy_bench::rank::main()
    } else {
        run(&Args::parse())
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("onecopy-peers: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Tells the user something that is no result.
fn note(text: &str) {
    // Nobody reads it if the stream is closed.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

fn run(args: &Args) -> Result<(), BenchError> {
    priority::tell(args.priority);
    let shop = install::Shop::open(&args.root, &args.built, args.other.as_deref())?;
    let contestants = contestant::all(&shop, &args.only)?;
    let plan = plan::Plan {
        ranks: usize::from(args.ranks),
        rounds: args.rounds(),
        sizes: args.sizes()?,
        collective_sizes: args.collective_sizes()?,
        one_root: args.one_root,
        batches: usize::from(if args.quick {
            args.batches.min(3)
        } else {
            args.batches
        }),
        jobs: usize::from(args.jobs),
        costs: !args.no_costs,
        states: args.state.map_or(Vec::new(), WantedStates::states),
        patience: Duration::from_secs(60 * u64::from(args.minutes)),
    };
    let run = conductor::run(&plan, &contestants)?;
    report::write(&run, &args.out)
}

impl Args {
    fn rounds(&self) -> Vec<(Pattern, Mode)> {
        let patterns: Vec<Pattern> = if self.pattern.is_empty() {
            let two = Pattern::EACH.into_iter().filter(|_| self.ranks == 2);
            two.chain([Pattern::Coll]).collect()
        } else {
            self.pattern.clone()
        };
        let mut rounds = Vec::new();
        for pattern in patterns {
            let each = match pattern {
                Pattern::Coll => Pattern::COLLECTIVES.to_vec(),
                Pattern::All => Pattern::EACH.to_vec(),
                one => vec![one],
            };
            for pattern in each {
                let modes = match self.mode {
                    Some(Mode::All) => Mode::EACH.to_vec(),
                    Some(mode) => vec![mode],
                    None if pattern == Pattern::PingPong && !self.quick => Mode::EACH.to_vec(),
                    None => vec![Mode::Same],
                };
                rounds.extend(modes.into_iter().map(|mode| (pattern, mode)));
            }
        }
        rounds
    }

    fn sizes(&self) -> Result<Vec<usize>, BenchError> {
        match &self.sizes {
            Some(list) => sizes::parse_list(list),
            None if self.quick => Ok(vec![8, 1 << 10, 64 << 10, 1 << 20]),
            None => Ok(vec![
                0,
                8,
                64,
                256,
                1 << 10,
                4 << 10,
                8 << 10,
                16 << 10,
                32 << 10,
                64 << 10,
                128 << 10,
                256 << 10,
                512 << 10,
                1 << 20,
                4 << 20,
                16 << 20,
            ]),
        }
    }

    fn collective_sizes(&self) -> Result<Vec<usize>, BenchError> {
        match &self.sizes {
            Some(list) => sizes::parse_list(list),
            None => Ok(vec![8, 1 << 10, 64 << 10, 1 << 20]),
        }
    }
}
