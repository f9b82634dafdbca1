// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long it takes to attach and detach, and the first touch of an attachment per 4 KiB page.
//!
//! Each case is measured several times in turns with the others, each time on a segment that nobody has touched, and
//! the least is reported. On an emulated processor only the ratios mean anything.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onecopy_sys::{CopyEnd, Segment};
use serde_json::json;

use crate::device::{self, export, map};
use crate::mem::{Area, HUGE, page_size};
use crate::outcome::{At, Outcome, check};
use crate::peer::{Link, Peer, peer};
use crate::probe;
use crate::runner::say;
use crate::system::{self, Parameter};

/// What the module is to reach, in nanoseconds per page of a huge source on an emulated processor.
const HUGE_GOAL: f64 = 1000.0;
/// And of an ordinary source: so many times faster than with one page per fault.
const ORDINARY_GOAL: f64 = 3.0;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Megabytes of each source.
    #[arg(long, default_value_t = 64)]
    megabytes: usize,
    /// How often each case is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Write the figures as JSON to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The file of another build of the module, to be measured in turn with this one.
    #[arg(long, value_name = "FILE")]
    other: Option<PathBuf>,
    /// The file of the module.
    #[arg(long, value_name = "FILE", default_value = "/payload/onecopy.ko")]
    module: PathBuf,
}

/// The module's name.
const NAME: &str = "onecopy";

/// What the source is made of.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Huge,
    Ordinary,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq)]
enum Operation {
    /// One load per page of a fresh mapping.
    Touch,
    /// PREFAULT, then one load per page.
    Prefault,
    /// COPY of everything to local memory: no mapping at all.
    Copy,
    /// Attached, and not touched.
    Attach,
    /// The end of that.
    Detach,
}

/// How often everything is attached and detached in one measurement of either.
const ATTACHES: usize = 1000;

struct Case {
    name: &'static str,
    source: Source,
    operation: Operation,
    /// Whether a fault maps one page, as if the module could do no better.
    single: bool,
}

const CASES: [Case; 10] = [
    Case {
        name: "huge source",
        source: Source::Huge,
        operation: Operation::Touch,
        single: false,
    },
    Case {
        name: "huge source, one page per fault",
        source: Source::Huge,
        operation: Operation::Touch,
        single: true,
    },
    Case {
        name: "ordinary source",
        source: Source::Ordinary,
        operation: Operation::Touch,
        single: false,
    },
    Case {
        name: "ordinary source, one page per fault",
        source: Source::Ordinary,
        operation: Operation::Touch,
        single: true,
    },
    Case {
        name: "huge source, PREFAULT",
        source: Source::Huge,
        operation: Operation::Prefault,
        single: false,
    },
    Case {
        name: "ordinary source, PREFAULT",
        source: Source::Ordinary,
        operation: Operation::Prefault,
        single: false,
    },
    Case {
        name: "ordinary source, COPY",
        source: Source::Ordinary,
        operation: Operation::Copy,
        single: false,
    },
    Case {
        name: "huge source, COPY",
        source: Source::Huge,
        operation: Operation::Copy,
        single: false,
    },
    Case {
        name: "attach",
        source: Source::Ordinary,
        operation: Operation::Attach,
        single: false,
    },
    Case {
        name: "detach what was not touched",
        source: Source::Ordinary,
        operation: Operation::Detach,
        single: false,
    },
];

/// Figures of all cases.
type Figures = [f64; CASES.len()];

/// The least times of all cases, in nanoseconds.
struct Times {
    module: Figures,
    /// With the other build of the module; infinite where there is none.
    other: Figures,
}

impl Times {
    /// How many times faster than with one page per fault: a huge source, an ordinary one.
    fn ratios(&self) -> (f64, f64) {
        let [huge, huge_single, ordinary, ordinary_single, ..] = self.module;
        (huge_single / huge, ordinary_single / ordinary)
    }
}

/// Measures all cases, and sets them beside what they are to reach. A figure decides nothing: machines differ, and may
/// be busy.
pub(crate) fn run(arguments: &Arguments) -> Outcome<()> {
    probe::install();
    let size = (arguments.megabytes << 20).next_multiple_of(HUGE);
    let times = measure_all(arguments, size)?;
    print(&times);
    match &arguments.json {
        Some(path) => write_json(path, arguments.rounds, size, &times),
        None => Ok(()),
    }
}

/// Every case in each round, with the other build of the module too if there is one.
fn measure_all(arguments: &Arguments, size: usize) -> Outcome<Times> {
    let sources = [source(Source::Huge, size)?, source(Source::Ordinary, size)?];
    let scratch = Area::new(size)?;
    scratch.mark(1);
    let mut times = Times {
        module: [f64::INFINITY; CASES.len()],
        other: [f64::INFINITY; CASES.len()],
    };
    for round in 0..arguments.rounds {
        let Some(other) = &arguments.other else {
            all(&sources, &scratch, &mut times.module)?;
            continue;
        };
        // The one that comes first now comes second the next time.
        let mut turns = [
            (other, &mut times.other),
            (&arguments.module, &mut times.module),
        ];
        if round % 2 == 1 {
            turns.reverse();
        }
        for (module, figures) in turns {
            change_to(module)?;
            all(&sources, &scratch, figures)?;
        }
    }
    if arguments.other.is_some() {
        change_to(&arguments.module)?;
    }
    for source in sources {
        source.dismiss()?;
    }
    Ok(times)
}

fn print(times: &Times) {
    for ((case, nanoseconds), other) in CASES.iter().zip(&times.module).zip(&times.other) {
        let beside = if other.is_finite() {
            format!(
                "; the other module {other:.0}, {:.3} of it",
                nanoseconds / other
            )
        } else {
            String::new()
        };
        let (name, unit) = (case.name, per(case));
        say(&format!("{name:36} {nanoseconds:8.0} ns {unit}{beside}"));
    }
    let (huge, ordinary) = times.ratios();
    say(&format!(
        "huge source: {:.3} us per page at first touch, goal {:.0} us under emulation; {huge:.1} times faster than one page per fault",
        times.module[0] / 1000.0,
        HUGE_GOAL / 1000.0
    ));
    say(&format!(
        "ordinary source: {ordinary:.1} times faster than one page per fault, goal {ORDINARY_GOAL:.0} times"
    ));
}

fn write_json(path: &Path, rounds: usize, size: usize, times: &Times) -> Outcome {
    let cases: Vec<_> = CASES
        .iter()
        .zip(&times.module)
        .zip(&times.other)
        .map(|((case, nanoseconds), other)| {
            let other = other.is_finite().then_some(*other);
            json!({"case": case.name, "nanoseconds": nanoseconds, "unit": per(case), "other": other})
        })
        .collect();
    let (huge, ordinary) = times.ratios();
    let all = json!({
        "bytes": size,
        "rounds": rounds,
        "cases": cases,
        "ratio": {"huge": huge, "ordinary": ordinary},
        "goal": {"huge_ns_per_page": HUGE_GOAL, "ordinary_ratio": ORDINARY_GOAL},
    });
    std::fs::write(path, format!("{all:#}\n")).at(path.display())
}

/// Each case once; the least of what it ever took remains.
fn all(sources: &[Peer; 2], scratch: &Area, least: &mut Figures) -> Outcome {
    for (case, least) in CASES.iter().zip(least) {
        let owner = &sources[usize::from(case.source == Source::Ordinary)];
        *least = measure(case, owner, scratch)?.min(*least);
    }
    Ok(())
}

/// Loads another module in place of the one that is loaded, as soon as nobody uses that any more.
fn change_to(module: &Path) -> Outcome {
    let gone = system::until(Duration::from_secs(20), || system::unload(NAME).is_ok());
    check!(gone, "{NAME} cannot be unloaded");
    system::load(module).at(module.display())
}

/// What the nanoseconds of a case are of.
fn per(case: &Case) -> &'static str {
    match case.operation {
        Operation::Touch | Operation::Prefault | Operation::Copy => "per page",
        Operation::Attach | Operation::Detach => "per attachment",
    }
}

/// A process whose memory is all there; it exports it anew whenever it is told to.
fn source(kind: Source, size: usize) -> Outcome<Peer> {
    let owner = peer(move |link: &Link| {
        let area = match kind {
            Source::Huge => Area::huge(size)?,
            Source::Ordinary => Area::new(size)?,
        };
        area.mark(1);
        link.send(0)?;
        loop {
            let segment = match link.receive()? {
                0 => return Ok(()),
                _ => export(&area, true)?,
            };
            link.give(segment.as_fd())?;
            link.receive()?;
        }
    })?;
    owner.link.receive()?;
    Ok(owner)
}

/// Nanoseconds per page or attachment, once.
fn measure(case: &Case, owner: &Peer, scratch: &Area) -> Outcome<f64> {
    let _parameters = if case.single {
        Some([
            Parameter::set("huge", "0")?,
            Parameter::set("fault_around", "1")?,
        ])
    } else {
        None
    };
    owner.link.send(1)?;
    let segment = device::segment(owner.link.take()?);
    let spent = match case.operation {
        operation @ (Operation::Attach | Operation::Detach) => {
            attach(operation, &segment, scratch.length())?
        }
        operation => touch(operation, &segment, scratch)?,
    };
    drop(segment);
    owner.link.send(0)?;
    Ok(spent)
}

/// Nanoseconds until an attachment is there, or gone: the median, since some are interrupted.
fn attach(operation: Operation, segment: &Segment, size: usize) -> Outcome<f64> {
    let mut spent = Vec::with_capacity(ATTACHES);
    for _ in 0..ATTACHES {
        let begin = Instant::now();
        let view = map(segment, size, false)?;
        let attached = begin.elapsed();
        view.unmap()?;
        spent.push(match operation {
            Operation::Detach => begin.elapsed() - attached,
            _ => attached,
        });
    }
    spent.sort_unstable();
    Ok(spent[ATTACHES / 2].as_nanos() as f64)
}

/// Nanoseconds per page until all of a fresh attachment, or a copy of it, has been looked at.
fn touch(operation: Operation, segment: &Segment, scratch: &Area) -> Outcome<f64> {
    let device = device::onecopy()?;
    let size = scratch.length();
    let view = map(segment, size, false)?;
    let begin = Instant::now();
    let touched = match operation {
        Operation::Touch | Operation::Attach | Operation::Detach => &view,
        Operation::Prefault => {
            let done = device.prefault(view.base(), size as u64, false);
            done.result.at("PREFAULT")?;
            &view
        }
        Operation::Copy => {
            let to = CopyEnd::Own(scratch.base() as u64);
            let done = device::copy(&device, CopyEnd::Segment(segment, 0), to, size);
            done.result.at("COPY")?;
            scratch
        }
    };
    for offset in (0..size).step_by(page_size()) {
        std::hint::black_box(touched.load(offset));
    }
    let spent = begin.elapsed();
    // What was touched was the owner's memory.
    touched.verify_marks(1)?;
    view.unmap()?;
    Ok(spent.as_nanos() as f64 / (size / page_size()) as f64)
}
