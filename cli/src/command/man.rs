// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy man`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use onecopy_obs::KNOBS;
use onecopy_obs::knobs::Audience;

use super::{Cli, CliError};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory; it is made if it does not exist
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(definition(), &args.dir))
        .map_err(CliError::io(args.dir.display().to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// The command without the generated `help` subcommands, which need no page; that of `env` has the knobs.
fn definition() -> clap::Command {
    Cli::command()
        .disable_help_subcommand(true)
        .mut_subcommand("env", |env| env.after_long_help(knobs()))
}

/// The table of knobs as text.
fn knobs() -> String {
    let mut text = String::new();
    for audience in [Audience::User, Audience::Expert, Audience::Test] {
        text.push_str(&format!("Knobs for {audience}:\n\n"));
        for knob in KNOBS.iter().filter(|knob| knob.audience == audience) {
            let (name, default) = (knob.name, knob.default_text());
            let (range, meaning) = (knob.range(), knob.meaning());
            text.push_str(&format!(
                "{name}: {meaning} Default: {default}; accepted: {range}.\n\n"
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_visible_subcommand_has_a_page() {
        let dir = std::env::temp_dir().join(format!("onecopy-man-{}", std::process::id()));
        run(Args { dir: dir.clone() }).expect("written");
        let mut pages: Vec<String> = std::fs::read_dir(&dir)
            .expect("readable")
            .map(|entry| {
                entry
                    .expect("readable")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect();
        let env = std::fs::read_to_string(dir.join("onecopy-env.1")).expect("readable");
        for knob in KNOBS {
            assert!(env.contains(knob.name), "{}", knob.name);
        }
        std::fs::remove_dir_all(&dir).expect("removable");
        pages.sort();
        assert!(pages.contains(&"onecopy.1".to_owned()), "{pages:?}");
        for command in definition().get_subcommands() {
            let page = format!("onecopy-{}.1", command.get_name());
            assert_eq!(pages.contains(&page), !command.is_hide_set(), "{page}");
        }
    }
}
