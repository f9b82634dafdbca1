// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy bench`.

mod net;

use super::{CliError, print};
use crate::bench::book::Book;
use crate::bench::engine::{Plan, Watch};
use crate::bench::jobs::Layout;
use crate::bench::machine::{self, Machine};
use crate::bench::record::Run;
use crate::bench::{sizes, svg, table};
use indicatif::{ProgressBar, ProgressStyle};
use onecopy_bench::{BenchError, Mechanism, Mode, Pattern};
use onecopy_shm::limits::largest_pool;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Without PATTERN: ping-pong in every mode, the other patterns in mode 'same', and graphs in ./bench-out.

Each batch of 3 to 5 ms is bracketed by raw hand-offs of a cache line. 'near' and 'far' tell in which state these found the machine; \
the bounds are printed with the results. 'limit' is what the machine itself allowed in the same run. Up to 56 bytes that is a raw hand-off, \
above it a copy straight from the peer's pages by one core. For cma and knem it is process_vm_readv. 'x' is the median divided by it.

Collectives ('coll', or one by name) also tell the median in hand-offs and the target where there is one. They tell the most memory that \
the pools of temporary buffers of all ranks had.

--json FILE gets one JSON object a line, one for each pattern, mode, mechanism and size.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    between: Option<BenchCommand>,
    /// How messages follow one another
    #[arg(value_enum)]
    pattern: Option<Pattern>,
    /// Ranks of the job; the first and the last exchange messages while the others wait in a receive. All take part in
    /// collectives
    #[arg(short = 'n', long = "ranks", value_name = "RANKS", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(2..=1024))]
    ranks: u16,
    /// What carries the messages; may be given several times
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    mechanism: Vec<Mechanism>,
    /// Which memory the messages use; may be given several times
    #[arg(long, value_enum, value_name = "MODE", value_delimiter = ',')]
    mode: Vec<Mode>,
    /// Message sizes, separated by commas, with suffixes K, M, G
    #[arg(long, value_name = "LIST")]
    sizes: Option<String>,
    /// Make rank 0 the root of each collective, so that ranks may run ahead; otherwise roots take turns
    #[arg(long)]
    one_root: bool,
    /// Fewer batches: under twenty seconds in all
    #[arg(long)]
    quick: bool,
    /// Batches to keep per result, counting only those with fast hand-offs
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000))]
    batches: Option<u16>,
    /// Processors for the first and the last rank, and then for the others
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    bind: Vec<usize>,
    /// Write one JSON record per pattern, mode, mechanism and size to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the graphs into this directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Keep the results with the machine's fingerprint under benches/record [default name: the day]
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    record: Option<String>,
}

/// What is measured otherwise.
#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    Net(net::Args),
}

pub(super) use net::{RANK as NET_RANK, RankArgs as NetRankArgs};

/// Runs a rank of 'bench net'.
pub(crate) fn run_net_rank(args: &NetRankArgs) -> Result<ExitCode, CliError> {
    net::run_rank(args)
}

/// Runs a rank of the benchmark.
pub(crate) fn run_rank() -> Result<ExitCode, CliError> {
    onecopy_bench::rank::main().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn failed(error: BenchError) -> CliError {
    match error {
        BenchError::Usage(text) => CliError::Usage(text),
        BenchError::Io { what, source } => CliError::Io { what, source },
        other => CliError::Failed(Box::new(other)),
    }
}

struct Progress(ProgressBar);

impl Progress {
    fn new(points: usize) -> Self {
        let bar = ProgressBar::new(points as u64);
        let form = "{bar:30} {pos}/{len} {msg} [{elapsed}, left {eta}]";
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        Self(bar)
    }
}

impl Watch for Progress {
    fn point(&mut self, pattern: Pattern, mode: Mode, size: usize) {
        let size = sizes::format(size);
        let text = format!("{} {} {size}", pattern.name(), mode.name());
        self.0.set_message(text);
    }

    fn done(&mut self) {
        self.0.inc(1);
    }

    fn note(&mut self, text: &str) {
        self.0.suspend(|| super::complain(text));
    }
}

impl Args {
    fn asked_for(&self, mode: &Mode) -> bool {
        self.mode.contains(mode) || self.mode.contains(&Mode::All)
    }

    /// What is measured, one after the other.
    fn rounds(&self, modes: &[Mode], patterns: &[Pattern]) -> Vec<(Pattern, Mode)> {
        // Mode by mode, so that the buffers of each are made once.
        let mut rounds = Vec::new();
        for &mode in modes {
            for &pattern in patterns {
                let asked = self.asked_for(&mode) || mode == Mode::Same;
                if asked || pattern == Pattern::PingPong {
                    rounds.push((pattern, mode));
                }
            }
        }
        rounds
    }

    /// By what messages go, each once. `collective`: collectives alone are measured.
    fn mechanisms(&self, collective: bool) -> Result<Vec<Mechanism>, BenchError> {
        let mut mechanisms = self.mechanism.clone();
        if mechanisms.is_empty() && collective {
            mechanisms.extend([Mechanism::Heap, Mechanism::Auto]);
        } else if mechanisms.is_empty() {
            mechanisms.push(Mechanism::All);
        }
        if collective && mechanisms.contains(&Mechanism::Unix) {
            return Err(BenchError::Usage(
                "a socket between two ranks has no collectives; leave out '--mechanism unix'"
                    .to_owned(),
            ));
        }
        if mechanisms.contains(&Mechanism::All) {
            mechanisms.retain(|m| *m != Mechanism::All && !Mechanism::EACH.contains(m));
            mechanisms.splice(0..0, Mechanism::EACH);
        }
        let mut seen = Vec::new();
        mechanisms.retain(|m| {
            !seen.contains(m) && {
                seen.push(*m);
                true
            }
        });
        Ok(mechanisms)
    }

    fn plan(&self, processors: &[usize]) -> Result<Plan, BenchError> {
        let patterns = match self.pattern {
            Some(Pattern::All) => Pattern::EACH.to_vec(),
            Some(Pattern::Coll) => Pattern::COLLECTIVES.to_vec(),
            Some(pattern) => vec![pattern],
            None if self.quick => vec![Pattern::PingPong, Pattern::Rate],
            None if !self.mode.is_empty() || self.ranks > 2 => vec![Pattern::PingPong],
            None => Pattern::EACH.to_vec(),
        };
        let modes: Vec<Mode> = match self.mode.as_slice() {
            [] if self.pattern.is_none() && !self.quick && self.ranks == 2 => Mode::EACH.to_vec(),
            [] => vec![Mode::Same],
            _ => Mode::EACH
                .into_iter()
                .filter(|mode| self.asked_for(mode))
                .collect(),
        };
        let rounds = self.rounds(&modes, &patterns);
        let collective = patterns.iter().all(|pattern| pattern.is_collective());
        let mechanisms = self.mechanisms(collective)?;
        let few = if self.quick { 3 } else { 8 };
        let batches = self.batches.map_or(few, usize::from);
        // Every job has two ranks with two buffers each, and the limits have four shared pools besides.
        let share = machine::available_bytes() / (mechanisms.len() + 2);
        Ok(Plan {
            rounds,
            mechanisms,
            sizes: match &self.sizes {
                Some(list) => sizes::parse_list(list)?,
                None if collective => sizes::COLLECTIVE.to_vec(),
                None => sizes::DEFAULT.to_vec(),
            },
            one_root: self.one_root,
            batches,
            most_batches: batches * 2 + 2,
            layout: Layout::new(
                usize::from(self.ranks),
                processors,
                largest_pool(share.saturating_mul(2)),
            ),
        })
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    if let Some(BenchCommand::Net(args)) = &args.between {
        return net::run(args);
    }
    let processors = if args.bind.is_empty() {
        onecopy::machine::spread_processors()
            .into_iter()
            .map(usize::from)
            .collect()
    } else {
        args.bind.clone()
    };
    let plan = args.plan(&processors).map_err(failed)?;
    let here = Machine::here();
    print(|out| write_heading(out, &here, &plan.layout, processors.len()))?;
    let mut progress = Progress::new(plan.points());
    let run = plan.run(&mut progress).map_err(failed)?;
    progress.0.finish_and_clear();
    print(|out| table::write(&run, out))?;
    let written = write_files(&args, &run, here)?;
    print(|out| {
        for path in &written {
            writeln!(out, "written: {}", path.display())?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn write_heading(
    out: &mut dyn Write,
    here: &Machine,
    layout: &Layout,
    processors: usize,
) -> io::Result<()> {
    writeln!(out, "{here}")?;
    let places = layout.processors.iter().map(usize::to_string);
    let places = places.collect::<Vec<_>>().join(",");
    write!(out, "{} ranks on processors {places}", layout.ranks)?;
    if layout.ranks > processors {
        write!(out, "; MORE RANKS THAN PROCESSORS ({processors})")?;
    }
    if machine::is_translated() {
        write!(out, "\n{}", machine::TRANSLATED)?;
    }
    writeln!(out, "\n")
}

/// Writes each file that is asked for. Gives their paths.
fn write_files(args: &Args, run: &Run, here: Machine) -> Result<Vec<PathBuf>, CliError> {
    let mut written = Vec::new();
    if let Some(path) = &args.json {
        write_records(run, path)?;
        written.push(path.clone());
    }
    let default_graphs = args.pattern.is_none() && args.ranks == 2;
    let graphs = args
        .svg
        .clone()
        .or_else(|| default_graphs.then(|| PathBuf::from("bench-out")));
    if let Some(directory) = graphs {
        written.extend(svg::write(run, &directory).map_err(failed)?);
    }
    if let Some(name) = &args.record {
        written.extend(record(run, here, name)?);
    }
    Ok(written)
}

fn write_records(run: &Run, path: &Path) -> Result<(), CliError> {
    let mut text = Vec::new();
    for record in run.records() {
        serde_json::to_writer(&mut text, &record)
            .map_err(|error| CliError::Failed(Box::new(error)))?;
        text.push(b'\n');
    }
    fs::write(path, text).map_err(CliError::io(path.display().to_string()))
}

fn record(run: &Run, machine: Machine, name: &str) -> Result<Vec<PathBuf>, CliError> {
    let date = onecopy::machine::today();
    let name = if name.is_empty() { &date } else { name };
    if name.contains('/') {
        return Err(CliError::Usage(format!("'{name}' is not a plain name")));
    }
    let directory = Path::new("benches/record");
    fs::create_dir_all(directory).map_err(CliError::io(directory.display().to_string()))?;
    let path = directory.join(format!("{name}.json"));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("onecopy {}", arguments.join(" "));
    let book = Book::new(run, machine, date.clone(), command);
    let text = book
        .text()
        .map_err(|error| CliError::Failed(Box::new(error)))?;
    fs::write(&path, text).map_err(CliError::io(path.display().to_string()))?;
    let mut written = vec![path];
    written.extend(svg::write(run, &directory.join(name)).map_err(failed)?);
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plan(words: &[&str]) -> Plan {
        let cli = Cli::parse_from(std::iter::once(&"bench").chain(words));
        cli.args.plan(&[0, 1]).unwrap()
    }

    #[test]
    fn the_default_is_everything_once() {
        let plan = plan(&[]);
        assert_eq!(plan.rounds.len(), 7);
        assert_eq!(plan.rounds[0], (Pattern::PingPong, Mode::Same));
        assert!(plan.rounds.contains(&(Pattern::PingPong, Mode::Rewrite)));
        assert!(!plan.rounds.contains(&(Pattern::Bw, Mode::Rewrite)));
        assert_eq!(plan.mechanisms, Mechanism::EACH);
        assert_eq!(plan.sizes, sizes::DEFAULT);
    }

    #[test]
    fn what_is_asked_for_is_what_runs() {
        let plan = plan(&[
            "bibw",
            "-n",
            "4",
            "--mechanism",
            "heap",
            "--mode",
            "offcache,same",
            "--sizes",
            "8,1M",
        ]);
        let rounds = [Mode::Same, Mode::OffCache].map(|mode| (Pattern::BiBw, mode));
        assert_eq!(plan.rounds, rounds);
        assert_eq!(plan.mechanisms, [Mechanism::Heap]);
        assert_eq!(plan.sizes, [8, 1 << 20]);
        assert_eq!(plan.layout.processors, [0, 1, 0, 1]);
    }

    #[test]
    fn all_is_no_mechanism_of_its_own() {
        let plan = plan(&["--quick", "--mechanism", "unix,all,heap"]);
        assert_eq!(plan.mechanisms.len(), Mechanism::EACH.len() + 1);
        assert!(!plan.mechanisms.contains(&Mechanism::All));
        assert_eq!(plan.rounds.len(), 2);
    }
}
