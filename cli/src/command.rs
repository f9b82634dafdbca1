// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: one definition from which parser, man pages and completions come.

mod bench;
mod completions;
mod env;
mod info;
mod man;
mod memory;
mod on_node;
mod pair;
mod profile;
mod run;
mod text;
mod top;
mod trace;
mod tune;
mod vm;

use std::error::Error;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nix::errno::Errno;
use nix::sys::stat::{SFlag, fstat};
use onecopy_obs::{KnobError, Knobs, LogLevel};
use onecopy_shm::process::keep_ends_of_children;
use onecopy_trace::plain;

/// Messages between processes: on a node with one copy of a large one, between nodes by RDMA or TCP.
#[derive(Debug, Parser)]
#[command(name = "onecopy", version, after_help = AFTER_HELP, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "Every ONECOPY_ variable that a job reads is listed by 'onecopy env'.\n\n\
    Exit code: 0 success, 1 failure, 2 wrong usage or a knob out of range; 'run' ends with the code of its job.";

// A new subcommand is a file cli/src/command/NAME.rs with `Args` (clap) and `run(args) -> Result<ExitCode, CliError>`,
// a variant here, and an arm in `run` below. Its man page and completions follow from the variant; `#[command(hide =
// true)]` keeps it out of both. A comment here replaces that of its `Args` in all of them. What needs more than a line
// is explained there, and has none here.
#[derive(Debug, Subcommand)]
enum Command {
    /// List the knobs with value, where the value comes from, default, range and meaning
    Env(env::Args),
    /// Show the layers with what was seen of each, the machine as the runtime sees it, and which protocol carries which
    /// size
    Info(info::Args),
    /// Show the memory that a job will take, by formula, before it runs
    Memory(memory::Args),
    /// Measure this machine's cost curves and copy kernels, and write them to a file that every job reads
    Tune(tune::Args),
    /// A rank of 'info'
    #[command(name = "__prove", hide = true)]
    Prove,
    /// A rank of 'info nodes'
    #[command(name = info::NODES, hide = true)]
    Nodes,
    /// Makes a rank of 'run' one of several nodes
    #[command(name = on_node::COMMAND, hide = true)]
    OnNode(on_node::Args),
    /// A rank of 'tune'
    #[command(name = "__tune-rank", hide = true)]
    TuneRank(tune::RankArgs),
    Run(run::Args),
    /// Measures the machine's profile
    #[command(name = profile::COMMAND, hide = true)]
    Profile(profile::Args),
    /// Measure latency, bandwidth and message rate of each mechanism, and the distance to the machine's limits
    Bench(bench::Args),
    /// A rank of 'bench'
    #[command(name = "__bench-rank", hide = true)]
    BenchRank,
    /// A rank of 'bench net'
    #[command(name = bench::NET_RANK, hide = true)]
    NetRank(bench::NetRankArgs),
    Trace(trace::Args),
    Top(top::Args),
    /// Becomes the program of 'trace' once that observes it
    #[command(name = trace::GATE, hide = true)]
    Gate(trace::GateArgs),
    /// Boot a virtual machine with another kernel, the module and these tools, for a person or for one command
    Vm(vm::Args),
    /// Write the completions for a shell to standard output
    Completions(completions::Args),
    /// Write a man page for each subcommand into a directory
    Man(man::Args),
}

fn run(command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Env(args) => env::run(args),
        Command::Info(args) => info::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Tune(args) => tune::run(args),
        Command::Prove => info::run_rank(),
        Command::Nodes => info::run_nodes_rank(),
        Command::OnNode(args) => on_node::run(args),
        Command::TuneRank(args) => tune::run_rank(&args),
        Command::Run(args) => run::run(args),
        Command::Profile(args) => profile::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::BenchRank => bench::run_rank(),
        Command::NetRank(args) => bench::run_net_rank(&args),
        Command::Trace(args) => trace::run(args),
        Command::Top(args) => top::run(&args),
        Command::Gate(args) => trace::run_gate(args),
        Command::Vm(args) => vm::run(&args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}

impl Command {
    /// Whether the command works on text alone, so that no knob may get in its way; `env` reports knobs itself.
    const fn ignores_knobs(&self) -> bool {
        matches!(
            self,
            Self::Env(_)
                | Self::Gate(_)
                | Self::Vm(_)
                | Self::Completions(_)
                | Self::Man(_)
                | Self::OnNode(_)
        )
    }

    /// The log level, and warnings about settings.
    fn settings(&self) -> Result<(LogLevel, Vec<String>), CliError> {
        match self {
            // The file is what it makes: an old one must not be in its way.
            Self::Tune(_) => {
                let (knobs, _, unknown) = Knobs::from_env()?;
                Ok((knobs.log, unknown.iter().map(ToString::to_string).collect()))
            }
            // What they start themselves does not repeat earlier warnings.
            Self::Prove | Self::Nodes | Self::NetRank(_) | Self::Profile(_) | Self::TuneRank(_) => {
                Ok((LogLevel::Warn, Vec::new()))
            }
            _ => {
                let settings = onecopy::tune::settings()?;
                let unknown = settings.unknown.iter().map(ToString::to_string);
                let messages = unknown.chain(settings.warnings).collect();
                Ok((settings.knobs.log, messages))
            }
        }
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CliError {
    /// A knob has a value that it cannot take.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The options are well formed but cannot be followed.
    #[allow(dead_code, reason = "for the commands that need it")]
    #[error("{0}")]
    Usage(String),
    /// Something could not be written or read.
    #[error("{what}: {source}")]
    Io {
        /// The object and what was done with it.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// Nobody reads standard output any more.
    #[error("standard output: {0}")]
    Unread(io::Error),
    /// The command ran and failed.
    #[allow(dead_code, reason = "for the commands that need it")]
    #[error(transparent)]
    Failed(#[from] Box<dyn Error + Send + Sync>),
}

impl From<onecopy::Error> for CliError {
    fn from(error: onecopy::Error) -> Self {
        match error {
            onecopy::Error::Knob(error) => Self::Knob(error),
            bad @ onecopy::Error::TuneFile { .. } => Self::Usage(bad.to_string()),
            other => Self::Failed(other.into()),
        }
    }
}

/// Whether it is a character device. A terminal that is gone does not say any more that it was one.
fn is_character_device(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|found| found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits())
}

impl CliError {
    /// Wraps an I/O error with the object and what was done with it.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// One of writing to standard output. Only there a reader that goes has seen enough: a pipe by name was asked for.
    fn stdout(source: io::Error) -> Self {
        let is_unread = source.kind() == io::ErrorKind::BrokenPipe
            // A terminal that is gone. A disk says the same of a defect.
            || source.raw_os_error() == Some(Errno::EIO as i32) && is_character_device(io::stdout());
        if is_unread {
            Self::Unread(source)
        } else {
            Self::io("standard output")(source)
        }
    }

    /// Whether it says that nobody reads standard output any more.
    pub(crate) const fn is_unread(&self) -> bool {
        matches!(self, Self::Unread(_))
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Knob(_) | Self::Usage(_) => 2,
            Self::Unread(_) => 0,
            Self::Io { .. } | Self::Failed(_) => 1,
        }
    }
}

/// Writes to standard output through a buffer and reports what cannot be written.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), CliError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    write(&mut out)
        .and_then(|()| out.flush())
        .map_err(CliError::stdout)
}

fn complain(text: &str) {
    // Names and contents of files may be in it.
    let lines: Vec<String> = text.split('\n').map(plain::text).collect();
    // When standard error is closed there is no reader left.
    let _ = writeln!(io::stderr().lock(), "onecopy: {}", lines.join("\n"));
}

/// Logs to standard error at the level of the knob.
fn start_log(level: LogLevel) {
    use tracing::level_filters::LevelFilter;
    let filter = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Fails only if a log exists already, which then stays.
    let _ = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(filter)
        .with_target(false)
        .try_init();
}

fn start(command: Command) -> Result<ExitCode, CliError> {
    // Of all that a command starts, it wants to know how it ended.
    keep_ends_of_children().map_err(CliError::io("the action of SIGCHLD"))?;
    if !command.ignores_knobs() {
        let (log, messages) = command.settings()?;
        start_log(log);
        // `run` starts itself a second time as its own guardian; the first says it already.
        let first = !onecopy_launch::guard::is_second();
        for message in messages.into_iter().filter(|_| first) {
            tracing::warn!("{message}");
        }
    }
    run(command)
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    match start(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            let code = error.exit_code();
            if code != 0 {
                let mut text = error.to_string();
                let mut source = match &error {
                    // Its text has the source's already.
                    CliError::Io { .. } | CliError::Unread(_) => None,
                    other => other.source(),
                };
                while let Some(inner) = source {
                    text.push_str(": ");
                    text.push_str(&inner.to_string());
                    source = inner.source();
                }
                complain(&text);
            }
            ExitCode::from(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_has_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{} {}",
                    command.get_name(),
                    arg.get_id()
                );
            }
        }
    }

    /// The explanation of a subcommand is in its help and its page, and is no dead comment.
    #[test]
    fn what_needs_it_is_explained_at_length() {
        let all = Cli::command();
        for (name, words) in [
            (
                "run",
                &["Standard input goes to rank 0", "The exit code"][..],
            ),
            (
                "trace",
                &["p99", "CAP_BPF", "--check", "--max-overhead", "exit code"],
            ),
            (
                "trace",
                &[
                    "--json",
                    "--perfetto",
                    "--prometheus",
                    "replaced as a whole",
                ],
            ),
            (
                "top",
                &[
                    "bytes per second",
                    "CAP_BPF",
                    "--own",
                    "costs",
                    "--json",
                    "129",
                ],
            ),
        ] {
            let command = all.find_subcommand(name).expect(name);
            let about = command.get_long_about().expect(name).to_string();
            let mut page = Vec::new();
            let written = clap_mangen::Man::new(command.clone()).render(&mut page);
            written.expect("written");
            let page = String::from_utf8(page).expect("text").replace("\\-", "-");
            for word in words {
                assert!(about.contains(word), "{name}: {word} in {about}");
                assert!(page.contains(word), "{name}: {word} in {page}");
            }
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = CliError::stdout(io::ErrorKind::BrokenPipe.into());
        assert_eq!(closed.exit_code(), 0);
        let named = CliError::io("a pipe")(io::ErrorKind::BrokenPipe.into());
        assert_eq!(named.exit_code(), 1);
        let full = CliError::stdout(io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit_code(), 1);
    }
}
