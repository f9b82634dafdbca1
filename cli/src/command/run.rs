// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy run`: starts the ranks of a job on this node.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::{CliError, text};
use onecopy::wireup::exit_code;
use onecopy::wireup::message::MAX_RANKS;
use onecopy_launch::{Bind, Input, Job, LaunchError, Output, guard};

/// Start N ranks of a program on this node, wire them up, and end them together.
///
/// Standard input goes to rank 0; output is forwarded line by line. The exit code is that of the first rank that fails.
/// It is 128 + number if a signal killed it, and 124 after a timeout. It is 127 or 126 if the program is not found or
/// cannot be executed. Signals are passed on to the ranks; the second INT, TERM, HUP or QUIT kills them.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of ranks.
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: u32,

    /// Processors: core (rank r on the r-th available one), none, or a list such as 0,2 or 0-3, used in turn. Default:
    /// core if there are enough processors, otherwise none.
    #[arg(long, value_name = "core|none|LIST", default_value = "auto", hide_default_value = true, value_parser = str::parse::<Bind>)]
    bind: Bind,

    /// Put `[rank]` in front of each line of output.
    #[arg(long)]
    tag_output: bool,

    /// End the job after this time, with exit code 124.
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds)]
    timeout: Option<Duration>,

    /// When a rank fails, let the others go on. The exit code still is the first failure's.
    #[arg(long)]
    keep_going: bool,

    /// Serve large allocations of the program (malloc and its relatives) from memory that its peers can read in place.
    /// So its own buffers need a single copy and no privilege. For dynamically linked programs; see ONECOPY_MALLOC_MIN.
    #[arg(long)]
    heap: bool,

    /// Set an environment variable for the ranks. May be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,

    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROG ARGS"
    )]
    program: Vec<OsString>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("not of the form NAME=VALUE".to_owned()),
    }
}

/// The variable that names what the dynamic linker loads before everything else.
const PRELOAD: &str = "LD_PRELOAD";
/// The malloc front, as it is installed beside the command.
const FRONT: &str = "libonecopy_heap.so";

/// Where the malloc front is: in the folder of libraries of the prefix that we are installed in, or beside us, as cargo
/// builds it.
fn front() -> Result<PathBuf, LaunchError> {
    let system = |source| LaunchError::System {
        what: "--heap: our own place in the file system (/proc/self/exe)",
        source,
    };
    let own = std::env::current_exe().map_err(system)?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let installed = folder.with_file_name("lib").join(FRONT);
    [installed, folder.join(FRONT)]
        .into_iter()
        .find(|place| place.exists())
        .ok_or_else(|| LaunchError::System {
            what: "--heap: the malloc front, libonecopy_heap.so, in ../lib of this command or beside it (build it with cargo build -p onecopy-heap, or run cargo xtask install)",
            source: std::io::ErrorKind::NotFound.into(),
        })
}

/// The front before what else is to be preloaded.
fn preload(front: PathBuf, env: &[(String, String)]) -> OsString {
    let given = env.iter().rev().find(|(name, _)| name == PRELOAD);
    let other = given
        .map(|(_, value)| OsString::from(value))
        .or_else(|| std::env::var_os(PRELOAD));
    let mut all = front.into_os_string();
    if let Some(other) = other.filter(|other| !other.is_empty()) {
        all.push(":");
        all.push(other);
    }
    all
}

/// Runs the job.
pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    let join_timeout = args.join_timeout()?;
    super::profile::ensure(&args.env);
    let code = args.conduct(join_timeout).unwrap_or_else(|error| {
        // A message that cannot be written has no other place to go.
        let _ = writeln!(std::io::stderr(), "onecopy run: {error}");
        error.code()
    });
    let code = if code == 0 { 0 } else { exit_code(code) };
    Ok(ExitCode::from(code.to_le_bytes()[0]))
}

impl Args {
    fn conduct(self, join_timeout: Duration) -> Result<i32, LaunchError> {
        let front = self.heap.then(front).transpose()?;
        let link = match guard::enter()? {
            guard::Role::Launcher(link) => link,
            guard::Role::Guardian { code } => return Ok(code),
        };
        let mut words = self.program.into_iter();
        let program = words.next().unwrap_or_default();
        let mut job = Job::new(program, self.ranks as usize)
            .args(words)
            .bind(self.bind)
            .input(Input::Inherit)
            .output(Output::Forward {
                tag: self.tag_output,
            })
            .join_timeout(join_timeout)
            .keep_going(self.keep_going)
            .exclusive(true)
            .forward_signals(true)
            .guard(link);
        if let Some(limit) = self.timeout {
            job = job.timeout(limit);
        }
        for (name, value) in &self.env {
            job = job.env(name, value);
        }
        if let Some(front) = front {
            job = job.env(PRELOAD, preload(front, &self.env));
        }
        Ok(job.run()?.code)
    }

    /// As the ranks will see it: `--env` comes before our own environment, and that before the tune file.
    fn join_timeout(&self) -> Result<Duration, CliError> {
        let settings = onecopy::tune::settings_with(&self.env)?;
        Ok(settings.knobs.join_timeout)
    }
}
