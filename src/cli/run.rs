// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy run`: starts the ranks of a job on this node.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use super::CliError;
use crate::launch::{Bind, Input, Job, LaunchError, Output, guard};

/// Start N ranks of a program on this node, wire them up, and end them together.
///
/// Standard input goes to rank 0; output is forwarded line by line. The exit code is that of the first rank that fails: 128 + number if a
/// signal killed it, 124 after a timeout, 127 or 126 if the program is not found or cannot be executed. Signals are passed on to the
/// ranks; the second INT, TERM, HUP or QUIT kills them.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of ranks.
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: u32,

    /// Processors: core (rank r on the r-th available one), none, or a list such as 0,2 or 0-3, used in turn. Default: core if there are
    /// enough processors, otherwise none.
    #[arg(long, value_name = "core|none|LIST", default_value = "auto", hide_default_value = true, value_parser = str::parse::<Bind>)]
    bind: Bind,

    /// Put `[rank]` in front of each line of output.
    #[arg(long)]
    tag_output: bool,

    /// End the job after this time, with exit code 124.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,

    /// When a rank fails, let the others go on. The exit code still is the first failure's.
    #[arg(long)]
    keep_going: bool,

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

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(value) {
        Ok(time) if !time.is_zero() && value <= 1e9 => Ok(time),
        _ => Err("not between 0 and 1e9 seconds".to_owned()),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("not of the form NAME=VALUE".to_owned()),
    }
}

/// Runs the job.
pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    let join_timeout = args.join_timeout()?;
    let code = args.conduct(join_timeout).unwrap_or_else(|error| {
        // A message that cannot be written has no other place to go.
        let _ = writeln!(std::io::stderr(), "onecopy run: {error}");
        error.code()
    });
    Ok(ExitCode::from(code.to_le_bytes()[0]))
}

impl Args {
    fn conduct(self, join_timeout: Duration) -> Result<i32, LaunchError> {
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
        Ok(job.run()?.code)
    }

    /// As the ranks will see it: `--env` comes before our own environment.
    fn join_timeout(&self) -> Result<Duration, CliError> {
        const NAME: &str = "ONECOPY_JOIN_TIMEOUT";
        let given = self.env.iter().rev().find(|(name, _)| name == NAME);
        let text = given
            .map(|(_, value)| value.clone())
            .or_else(|| std::env::var(NAME).ok());
        match text {
            None => Ok(Duration::from_secs(30)),
            Some(text) => {
                seconds(&text).map_err(|reason| CliError::Usage(format!("{NAME}={text}: {reason}")))
            }
        }
    }
}
