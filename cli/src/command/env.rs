// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy env`.

use std::path::Path;
use std::process::ExitCode;

use onecopy_obs::{KNOBS, Knobs, Origins, UnknownVariable};
use serde::Serialize;
use tabled::settings::Style;

use super::text::wrap;
use super::{CliError, print};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    name: &'static str,
    value: String,
    origin: String,
    default: String,
    range: String,
    r#type: String,
    area: &'static str,
    doc: &'static str,
}

#[derive(Serialize)]
struct Unknown {
    name: String,
    nearest: Option<&'static str>,
}

#[derive(Serialize)]
struct Listing {
    tune_file: Option<String>,
    warnings: Vec<String>,
    knobs: Vec<Line>,
    unknown: Vec<Unknown>,
}

fn lines(knobs: &Knobs, origins: &Origins) -> Vec<Line> {
    KNOBS
        .iter()
        .map(|info| Line {
            name: info.name,
            value: knobs.text(info.name).unwrap_or_default(),
            origin: origins.of(info.name).to_string(),
            default: info.default_text(),
            range: info.range(),
            r#type: info.type_name(),
            area: info.area,
            doc: info.doc,
        })
        .collect()
}

fn table(lines: &[Line]) -> String {
    let mut rows = tabled::builder::Builder::default();
    rows.push_record([
        "variable", "value", "origin", "default", "accepted", "meaning",
    ]);
    for line in lines {
        rows.push_record([
            line.name.to_owned(),
            line.value.clone(),
            line.origin.clone(),
            line.default.clone(),
            wrap(&line.range, 26),
            wrap(line.doc, 56),
        ]);
    }
    rows.build().with(Style::psql()).to_string()
}

fn json(
    lines: Vec<Line>,
    unknown: Vec<UnknownVariable>,
    file: Option<&Path>,
    warnings: Vec<String>,
) -> Result<String, CliError> {
    let listing = Listing {
        tune_file: file.map(|path| path.display().to_string()),
        warnings,
        knobs: lines,
        unknown: unknown
            .into_iter()
            .map(|UnknownVariable { name, nearest }| Unknown { name, nearest })
            .collect(),
    };
    serde_json::to_string_pretty(&listing).map_err(|error| CliError::Failed(error.into()))
}

pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    let onecopy::tune::Settings {
        knobs,
        origins,
        unknown,
        file,
        warnings,
        ..
    } = onecopy::tune::settings()?;
    let lines = lines(&knobs, &origins);
    if args.json {
        let text = json(lines, unknown, file.as_deref(), warnings)?;
        print(|out| writeln!(out, "{text}"))?;
    } else {
        let text = table(&lines);
        print(|out| {
            writeln!(out, "{text}")?;
            if let Some(file) = file {
                writeln!(out, "tune file: {}", file.display())?;
            }
            for warning in warnings {
                writeln!(out, "warning: {warning}")?;
            }
            unknown
                .iter()
                .try_for_each(|variable| writeln!(out, "unknown: {variable}"))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<Line>, Vec<UnknownVariable>) {
        let (knobs, origins, unknown) =
            Knobs::from_iter([("ONECOPY_COOP", "off"), ("ONECOPY_COP", "on")]).expect("valid");
        (lines(&knobs, &origins), unknown)
    }

    #[test]
    fn the_table_has_a_line_for_each_knob() {
        let text = table(&sample().0);
        for info in KNOBS {
            assert!(text.contains(info.name), "{}", info.name);
        }
        let coop = text
            .lines()
            .find(|line| line.contains("ONECOPY_COOP "))
            .expect("a line");
        assert!(
            coop.contains("off") && coop.contains("environment"),
            "{coop}"
        );
    }

    #[test]
    fn the_json_tells_values_origins_and_unknown_variables() {
        let (lines, unknown) = sample();
        let text = json(lines, unknown, None, Vec::new()).expect("serializable");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let knobs = value["knobs"].as_array().expect("a list");
        assert_eq!(knobs.len(), KNOBS.len());
        let coop = knobs
            .iter()
            .find(|knob| knob["name"] == "ONECOPY_COOP")
            .expect("listed");
        assert_eq!(coop["value"], "off");
        assert_eq!(coop["origin"], "environment");
        assert_eq!(coop["default"], "on");
        assert_eq!(value["unknown"][0]["name"], "ONECOPY_COP");
        assert_eq!(value["unknown"][0]["nearest"], "ONECOPY_COOP");
    }
}
