// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy env`.

use std::path::PathBuf;
use std::process::ExitCode;

use onecopy::Costs;
use onecopy_obs::knobs::Audience;
use onecopy_obs::knobs::auto::{Auto, Situation};
use onecopy_obs::values::show_size;
use onecopy_obs::{KNOBS, Knobs, LayerList, Origin, Origins, UnknownVariable};
use serde::Serialize;
use tabled::settings::Style;

use super::text::wrap;
use super::{CliError, print};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show the knobs for experts, too; without it only those of them that are set
    #[arg(long)]
    all: bool,
    /// Print JSON instead of a table: every knob, with the field 'audience'
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
    audience: String,
    doc: &'static str,
    /// What `auto` stands for, in words.
    auto: Option<String>,
    /// What it comes to on this processor, where a job has one for each rank and nothing else has a say.
    auto_here: Option<String>,
}

#[derive(Serialize)]
struct Unknown {
    name: String,
    nearest: Option<&'static str>,
}

#[derive(Serialize)]
struct Listing {
    tune_file: Option<String>,
    profile: Option<String>,
    warnings: Vec<String>,
    knobs: Vec<Line>,
    unknown: Vec<Unknown>,
}

/// Where the curves of a rule cross, in a job whose knobs leave that to them.
fn crossing(auto: &Auto, knobs: &Knobs, mut costs: Costs) -> Option<String> {
    let Auto::Crossing {
        cheaper,
        than,
        from,
        ..
    } = auto
    else {
        return None;
    };
    let by_curves = knobs.coop && knobs.layers == LayerList::All;
    let (cheaper, than) = (*costs.named(cheaper)?, *costs.named(than)?);
    let size = Costs::crossing(&cheaper, &than, *from as u64).filter(|_| by_curves)?;
    Some(show_size(usize::try_from(size).ok()?))
}

/// What `auto` comes to, if neither the message nor the peer has a say.
fn here(auto: &Auto, knobs: &Knobs, costs: &Costs) -> Option<String> {
    let here = Situation {
        copies: Some(costs.asked_copies()),
        ..Situation::here()
    };
    let Some(value) = auto.value(knobs, &here) else {
        return crossing(auto, knobs, *costs);
    };
    let others = [
        Situation {
            ranks: usize::MAX,
            ..here
        },
        Situation {
            mapped: true,
            ..here
        },
        Situation {
            len: 16 << 20,
            ..here
        },
        Situation {
            copied_from: Some(1),
            ..here
        },
        Situation {
            slots_take: 0,
            ..here
        },
        Situation {
            extension: true,
            ..here
        },
    ];
    let always = |other| auto.value(knobs, other) == Some(value);
    others.iter().all(always).then(|| value.to_string())
}

fn lines(knobs: &Knobs, origins: &Origins, costs: &Costs) -> Vec<Line> {
    KNOBS
        .iter()
        .map(|info| Line {
            name: info.name,
            value: knobs.text(info.name).unwrap_or_default(),
            origin: origins.origin(info.name).to_string(),
            default: info.default_text(),
            range: info.range(),
            r#type: info.type_name(),
            area: info.area,
            audience: info.audience.to_string(),
            doc: info.doc,
            auto: info.auto.map(Auto::text),
            auto_here: info.auto.and_then(|auto| here(auto, knobs, costs)),
        })
        .collect()
}

impl Line {
    fn is_shown(&self, all: bool) -> bool {
        all || self.audience == Audience::User.to_string()
            || self.origin != Origin::Default.to_string()
    }

    fn meaning(&self) -> String {
        match &self.auto {
            Some(auto) => format!("{} auto: {auto}.", self.doc),
            None => self.doc.to_owned(),
        }
    }

    /// The value, and what `auto` comes to.
    fn in_force(&self) -> String {
        match &self.auto_here {
            Some(here) if self.value == "auto" => format!("auto: {here}"),
            _ => self.value.clone(),
        }
    }
}

fn table(lines: &[Line], all: bool) -> String {
    let mut rows = tabled::builder::Builder::default();
    rows.push_record([
        "variable", "value", "origin", "default", "accepted", "meaning",
    ]);
    for line in lines.iter().filter(|line| line.is_shown(all)) {
        rows.push_record([
            line.name.to_owned(),
            line.in_force(),
            line.origin.clone(),
            line.default.clone(),
            wrap(&line.range, 26),
            wrap(&line.meaning(), 56),
        ]);
    }
    rows.build().with(Style::psql()).to_string()
}

fn json(
    lines: Vec<Line>,
    unknown: Vec<UnknownVariable>,
    [tune_file, profile]: [Option<PathBuf>; 2],
    warnings: Vec<String>,
) -> Result<String, CliError> {
    let text = |path: PathBuf| path.display().to_string();
    let listing = Listing {
        tune_file: tune_file.map(text),
        profile: profile.map(text),
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
        costs,
        profile,
        lacks_profile: _,
        stores: _,
    } = onecopy::tune::settings()?;
    let lines = lines(&knobs, &origins, &costs);
    if args.json {
        let text = json(lines, unknown, [file, profile], warnings)?;
        print(|out| writeln!(out, "{text}"))?;
    } else {
        let text = table(&lines, args.all);
        let hidden = lines.iter().filter(|line| !line.is_shown(args.all)).count();
        print(|out| {
            writeln!(out, "{text}")?;
            if hidden > 0 {
                writeln!(out, "and {hidden} knobs for experts: onecopy env --all")?;
            }
            for (what, file) in [("tune file", &file), ("profile", &profile)] {
                if let Some(file) = file {
                    writeln!(out, "{what}: {}", file.display())?;
                }
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
    use onecopy::select::Thresholds;
    use onecopy_btl::LayerId;
    use onecopy_btl::registry::LayerSet;
    use onecopy_obs::knobs::info;

    fn sample() -> (Vec<Line>, Vec<UnknownVariable>) {
        let (knobs, origins, unknown) =
            Knobs::from_iter([("ONECOPY_COOP", "off"), ("ONECOPY_COP", "on")]).expect("valid");
        (lines(&knobs, &origins, &Costs::default()), unknown)
    }

    #[test]
    fn the_table_has_a_line_for_each_knob() {
        let text = table(&sample().0, true);
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
    fn what_curves_decide_is_a_threshold_of_a_pair() {
        let (knobs, costs) = (Knobs::default(), Costs::default());
        let found = Thresholds::with_layers(&knobs, &costs, LayerSet::ALL);
        for layer in LayerId::SINGLE {
            let name = layer.row().min.as_ref().expect("a knob").name;
            let auto = info(name).and_then(|info| info.auto).expect("a rule");
            let min = show_size(found.min[layer] as usize);
            assert_eq!(here(auto, &knobs, &costs), Some(min), "{name}");
            let alone = Knobs {
                coop: false,
                ..Knobs::default()
            };
            assert_eq!(here(auto, &alone, &costs), None, "{name}");
        }
    }

    #[test]
    fn users_see_their_knobs_and_what_is_set() {
        let text = table(&sample().0, false);
        for info in KNOBS {
            let is_shown = info.audience == Audience::User || info.name == "ONECOPY_COOP";
            // Docs of others may name it, too.
            let row = format!(" {} ", info.name);
            let has_row = text.lines().any(|line| line.starts_with(&row));
            assert_eq!(has_row, is_shown, "{}", info.name);
        }
        assert!(text.contains("auto: 1000"), "what auto comes to");
    }

    #[test]
    fn the_json_tells_values_origins_and_unknown_variables() {
        let (lines, unknown) = sample();
        let text = json(lines, unknown, [None, None], Vec::new()).expect("serializable");
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
        assert_eq!(coop["audience"], "experts");
        let spin = knobs
            .iter()
            .find(|knob| knob["name"] == "ONECOPY_WAIT_SPIN");
        let spin = spin.expect("listed");
        assert_eq!(spin["audience"], "users");
        assert_eq!(spin["value"], "auto");
        assert_eq!(spin["auto_here"], "1000");
        assert_eq!(value["unknown"][0]["name"], "ONECOPY_COP");
        assert_eq!(value["unknown"][0]["nearest"], "ONECOPY_COOP");
    }
}
