// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy tune`.

mod fit;
mod kernels;
mod rank;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tabled::settings::Style;

use super::{CliError, pair, print, text};
use onecopy::measure::{self, Comparison};
use onecopy::tune::{self, CurveText, Fingerprint, TuneFile, profile};
use onecopy::{Costs, Curve, LayerId};
use onecopy_bench::curve::Batch;
use onecopy_btl::registry::Power;
use onecopy_obs::seeds;
use rank::RankReply;
pub(super) use rank::{RankArgs, run as run_rank};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Take fewer batches and smaller messages: some seconds instead of a minute
    #[arg(long)]
    quick: bool,

    /// The file to write. Default: the one that every job reads, onecopy/tune.json in $XDG_CONFIG_HOME or ~/.config
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Values of knobs.
type Knobs = Vec<(&'static str, String)>;

/// How a protocol is forced, and over which sizes it is measured.
struct Plan {
    curve: &'static str,
    env: Knobs,
    heap: bool,
    least: u64,
    most: u64,
}

const EAGER: &[(&str, &str)] = &[
    ("ONECOPY_LAYERS", "cico"),
    ("ONECOPY_EAGER_MAX", "64M"),
    ("ONECOPY_EAGER_CREDIT", "1G"),
];
const PIPELINE: &[(&str, &str)] = &[("ONECOPY_LAYERS", "cico"), ("ONECOPY_EAGER_MAX", "0")];

/// The knobs that send everything by one layer.
fn forced(layer: LayerId, cooperative: bool) -> Knobs {
    let mut env = vec![
        ("ONECOPY_LAYERS", format!("{layer},{}", LayerId::CHUNKS)),
        ("ONECOPY_EAGER_MAX", "0".to_owned()),
        (
            "ONECOPY_COOP",
            if cooperative { "on" } else { "off" }.to_owned(),
        ),
    ];
    if cooperative {
        env.push(("ONECOPY_COOP_MIN", "0".to_owned()));
    }
    env.extend(
        layer
            .row()
            .min
            .iter()
            .map(|knob| (knob.name, "0".to_owned())),
    );
    if layer.power() == Power::Attach {
        env.push(("ONECOPY_ATTACH_MIN", "0".to_owned()));
    }
    env
}

/// All plans, in the order of [`Costs::names`].
fn plans(quick: bool) -> Vec<Plan> {
    let most = if quick { 4 << 20 } else { 16 << 20 };
    let owned = |env: &[(&'static str, &str)]| {
        let owned = env.iter().map(|&(name, value)| (name, value.to_owned()));
        owned.collect()
    };
    let plan = |curve, env, heap, least, most| Plan {
        curve,
        env,
        heap,
        least,
        most,
    };
    let mut plans = vec![
        plan("eager", owned(EAGER), false, 64, 256 << 10),
        plan("pipeline", owned(PIPELINE), false, 1024, most),
    ];
    for layer in LayerId::SINGLE {
        let Some(labels) = layer.labels() else {
            continue;
        };
        let [one_sided, cooperative] = labels.curves;
        let maps = layer.power() == Power::Map;
        let least = if layer.power().loads() {
            seeds::LOADS_FROM as u64
        } else {
            1024
        };
        let both = seeds::BOTH_FROM as u64;
        plans.push(plan(one_sided, forced(layer, false), maps, least, most));
        plans.push(plan(cooperative, forced(layer, true), maps, both, most));
    }
    plans
}

impl Plan {
    fn sizes(&self) -> Vec<u64> {
        std::iter::successors(Some(self.least), |size| Some(size * 2))
            .take_while(|&size| size <= self.most)
            .collect()
    }
}

/// What became of a curve.
enum CurveOutcome {
    Measured(Vec<Batch>),
    Refused(String),
}

/// How long the stores that fill chunks are compared. Chosen by magnitude: twelve times what a job's first start may
/// take for it.
const STORES: Duration = Duration::from_millis(500);

/// Measures a plan on ranks with these knobs.
fn measure(
    plan: &Plan,
    chunk_knobs: &BTreeMap<String, String>,
    rounds: u32,
    progress: &ProgressBar,
) -> Result<CurveOutcome, CliError> {
    let sizes = plan.sizes();
    let list: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let (list, rounds) = (list.join(","), rounds.to_string());
    let mut command = vec![
        "__tune-rank",
        "--curve",
        plan.curve,
        "--sizes",
        &list,
        "--batches",
        &rounds,
    ];
    if plan.heap {
        command.push("--heap");
    }
    // What the user has set for jobs must not bend the measurement.
    let mut env: BTreeMap<&str, String> = onecopy_obs::KNOBS
        .iter()
        .map(|info| (info.name, info.default_text()))
        .collect();
    let chunk_knobs = chunk_knobs.iter();
    env.extend(chunk_knobs.map(|(name, value)| (name.as_str(), value.clone())));
    env.extend(plan.env.iter().cloned());
    env.insert("ONECOPY_TUNE_FILE", "none".to_owned());
    let env: Vec<(&str, String)> = env.into_iter().collect();
    let (sender, receiver) = mpsc::channel();
    let bar = progress.clone();
    pair::run(&command, &env, Duration::from_secs(300), move |line| {
        bar.inc(1);
        // Nobody listens any more only when this command has failed.
        let _ = sender.send(serde_json::from_str::<RankReply>(line));
    })?;
    let mut batches = Vec::new();
    for reply in receiver {
        match reply.map_err(|error| CliError::Failed(error.into()))? {
            RankReply::Refused(reason) => return Ok(CurveOutcome::Refused(reason)),
            RankReply::Batch(batch) => batches.push(batch),
        }
    }
    Ok(CurveOutcome::Measured(batches))
}

/// Sizes at which old and new curves are compared in the table.
const SAMPLES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];

fn row(name: &str, old: &Curve, new: Option<&Curve>, note: String) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    for size in SAMPLES {
        let seed = text::micros(old.estimate(size) / 1000.0);
        row.push(match new {
            Some(new) => format!("{seed} -> {}", text::micros(new.estimate(size) / 1000.0)),
            None => seed,
        });
    }
    row.push(note);
    row
}

fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:24} [{bar:40}] {percent:>3} %")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    ProgressBar::new(length).with_style(style)
}

/// What was measured, in the order in which it was.
struct Measured {
    machine: measure::Measured,
    /// By plan.
    found: Vec<CurveOutcome>,
    kernels: kernels::Kernels,
}

impl Measured {
    fn measure(quick: bool) -> Result<Self, CliError> {
        let batches = if quick { 12 } else { 60 };
        let plans = plans(quick);
        let lines: u64 = plans.iter().map(|plan| plan.sizes().len() as u64).sum();
        let progress = bar(lines * u64::from(batches) + kernels::STEPS + 1);
        // First, as the curves through chunks depend on them.
        progress.set_message("stores");
        let machine =
            measure::measure(STORES, STORES).map_err(|error| CliError::Failed(error.into()))?;
        progress.inc(1);
        let knobs = machine.knobs();
        let mut found = Vec::new();
        for plan in &plans {
            progress.set_message(format!("curve {}", plan.curve));
            found.push(measure(plan, &knobs, batches, &progress)?);
        }
        progress.set_message("copy kernels");
        let kernels = kernels::calibrate(quick, || progress.inc(1));
        progress.finish_and_clear();
        Ok(Self {
            machine,
            found,
            kernels,
        })
    }

    /// The fastest probe of the hand-off. A batch counts whose probes are close to it.
    fn floor(&self) -> f64 {
        let batches = self.found.iter().filter_map(|found| match found {
            CurveOutcome::Measured(batches) => Some(batches),
            CurveOutcome::Refused(_) => None,
        });
        batches
            .flatten()
            .map(|batch| batch.before_ns.min(batch.after_ns))
            .fold(f64::INFINITY, f64::min)
    }

    /// The curves that could be fitted, by name, and a table of all.
    fn curves(&self) -> Result<(BTreeMap<String, CurveText>, String), CliError> {
        let floor = self.floor();
        let chosen = onecopy_obs::Knobs::from_iter(self.machine.knobs())?.0;
        let mut seeds = Costs::seeds(&chosen);
        let mut curves = BTreeMap::new();
        let mut rows = tabled::builder::Builder::default();
        let mut head = vec!["curve".to_owned()];
        head.extend(SAMPLES.map(|size| format!("{}, us", text::size(size))));
        head.push("batches kept".to_owned());
        rows.push_record(head);
        for (name, found) in Costs::names().zip(&self.found) {
            let Some(seed) = seeds.named(name) else {
                continue;
            };
            let (curve, note) = found.fit(floor);
            rows.push_record(row(name, seed, curve.as_ref(), note));
            curves.extend(curve.map(|curve| (name.to_owned(), curve.into())));
        }
        Ok((curves, rows.build().with(Style::psql()).to_string()))
    }
}

impl CurveOutcome {
    /// The curve, if there is one, and a note on it.
    fn fit(&self, floor: f64) -> (Option<Curve>, String) {
        let batches = match self {
            Self::Measured(batches) => batches,
            Self::Refused(reason) => {
                let note = format!("seed kept: {reason}");
                return (None, text::wrap(&note, 50));
            }
        };
        let points = fit::points(batches, floor);
        let kept = format!("{} of {}", points.kept, batches.len());
        match fit::curve(&points.points) {
            Some(curve) => (Some(curve), kept),
            None => (None, format!("seed kept: {kept}, too few")),
        }
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    let output = args.output.or_else(tune::default_path).ok_or_else(|| {
        CliError::Usage("there is no home to write tune.json to; give --output FILE".into())
    })?;
    let measured = Measured::measure(args.quick)?;
    let (curves, table) = measured.curves()?;
    let mut knobs = measured.machine.knobs();
    knobs.extend(measured.kernels.knobs());
    let file = TuneFile {
        format: tune::FORMAT,
        onecopy: env!("CARGO_PKG_VERSION").to_owned(),
        date: onecopy::machine::today(),
        machine: Fingerprint::here(),
        curves,
        knobs,
    };
    write(&output, &text::json(&file)?).map_err(CliError::io(output.display().to_string()))?;
    print(|out| {
        writeln!(out, "{}", file.machine)?;
        writeln!(
            out,
            "hand-off floor {:.0} ns; batches count whose probes are within 1.4 of it\n",
            measured.floor()
        )?;
        writeln!(out, "built-in -> measured\n{table}\n")?;
        writeln!(out, "{}", text_of(&measured.machine))?;
        writeln!(out, "{}", measured.kernels)?;
        writeln!(out, "written: {}", output.display())?;
        if Some(&output) != tune::default_path().as_ref() {
            writeln!(out, "to use it: ONECOPY_TUNE_FILE={}", output.display())?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a file, whole or not at all. Others may read it, as the user's mask says; nobody else may write to it, or it
/// would not be used.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)?;
    writeln!(file, "{text}")?;
    file.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}

/// What was found about chunks.
fn text_of(measured: &measure::Measured) -> String {
    let measure::Measured { stores, returns } = measured;
    format!(
        "stores into chunks, 4 and 16 KiB: owned takes {}\n\
         640 B to 2 KiB: in chunks that return they take {}\n",
        verdict(profile::KNOB, "string", stores),
        verdict(profile::RETURN_KNOB, "others", returns)
    )
}

/// How the first of two values of a knob does beside the second, which is called `other`.
fn verdict<T: Display>(knob: &str, other: &str, found: &Comparison<T>) -> String {
    let Comparison {
        rounds,
        ratio,
        busy,
        faster,
    } = found;
    let verdict = match faster {
        Some(value) => format!("{knob}={value}"),
        None if *busy => "other programs ran, so that does not count".to_owned(),
        None => "neither is clearly faster".to_owned(),
    };
    format!("{ratio:.2} of the time of {other} ({rounds} rounds); {verdict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_set_knobs_that_exist() {
        for plan in plans(false) {
            assert!(onecopy_obs::Knobs::from_iter(plan.env.iter().cloned()).is_ok());
            assert!(plan.sizes().len() >= 5, "{}", plan.curve);
        }
        let names: Vec<_> = plans(true).iter().map(|plan| plan.curve).collect();
        assert!(names.into_iter().eq(Costs::names()));
    }
}
