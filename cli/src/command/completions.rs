// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, CliError, print};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    // The generator panics when its output fails, so it writes to memory.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "onecopy", &mut text);
    print(|out| out.write_all(&text))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_learns_each_subcommand() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "onecopy", &mut text);
            let text = String::from_utf8(text).expect("text");
            for command in Cli::command()
                .get_subcommands()
                .filter(|command| !command.is_hide_set())
            {
                assert!(
                    text.contains(command.get_name()),
                    "{shell}: {}",
                    command.get_name()
                );
            }
        }
    }
}
