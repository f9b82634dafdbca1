// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long the first touch of an attachment takes, per 4 KiB page.
//!
//! Each case is measured several times in turns with the others, each time on a segment that nobody has touched, and
//! the least is reported. On an emulated processor only the ratios mean anything.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

use onecopy_sys::Place;
use serde_json::json;

use crate::device::{self, export, map};
use crate::mem::{Area, HUGE, page_size};
use crate::outcome::{At, Outcome};
use crate::peer::{Link, Peer, peer};
use crate::probe;
use crate::runner::say;
use crate::system::Parameter;

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
}

/// What the source is made of.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Huge,
    Ordinary,
}

/// How it is touched.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// One load per page of a fresh mapping.
    Touch,
    /// PREFAULT, then one load per page.
    Prefault,
    /// COPY of everything to local memory: no mapping at all.
    Copy,
}

struct Case {
    name: &'static str,
    source: Source,
    way: Way,
    /// Whether a fault maps one page, as if the module could do no better.
    single: bool,
}

const CASES: [Case; 7] = [
    Case {
        name: "huge source",
        source: Source::Huge,
        way: Way::Touch,
        single: false,
    },
    Case {
        name: "huge source, one page per fault",
        source: Source::Huge,
        way: Way::Touch,
        single: true,
    },
    Case {
        name: "ordinary source",
        source: Source::Ordinary,
        way: Way::Touch,
        single: false,
    },
    Case {
        name: "ordinary source, one page per fault",
        source: Source::Ordinary,
        way: Way::Touch,
        single: true,
    },
    Case {
        name: "huge source, PREFAULT",
        source: Source::Huge,
        way: Way::Prefault,
        single: false,
    },
    Case {
        name: "ordinary source, PREFAULT",
        source: Source::Ordinary,
        way: Way::Prefault,
        single: false,
    },
    Case {
        name: "ordinary source, COPY",
        source: Source::Ordinary,
        way: Way::Copy,
        single: false,
    },
];

/// Measures all cases, and sets them beside what they are to reach. A figure decides nothing: machines differ, and may
/// be busy.
pub(crate) fn run(arguments: &Arguments) -> Outcome<()> {
    probe::install();
    let size = (arguments.megabytes << 20).next_multiple_of(HUGE);
    let sources = [source(Source::Huge, size)?, source(Source::Ordinary, size)?];
    let scratch = Area::new(size)?;
    scratch.mark(1);
    let mut least = [f64::INFINITY; CASES.len()];
    for _ in 0..arguments.rounds {
        for (case, least) in CASES.iter().zip(&mut least) {
            let owner = &sources[usize::from(case.source == Source::Ordinary)];
            *least = measure(case, owner, &scratch)?.min(*least);
        }
    }
    for source in sources {
        source.dismiss()?;
    }
    for (case, nanoseconds) in CASES.iter().zip(&least) {
        say(&format!("{:36} {nanoseconds:8.0} ns per page", case.name));
    }
    let huge = least[1] / least[0];
    let ordinary = least[3] / least[2];
    say(&format!(
        "huge source: {:.3} us per page at first touch, goal {:.0} us under emulation; {huge:.1} times faster than one page per fault",
        least[0] / 1000.0,
        HUGE_GOAL / 1000.0
    ));
    say(&format!(
        "ordinary source: {ordinary:.1} times faster than one page per fault, goal {ORDINARY_GOAL:.0} times"
    ));
    if let Some(path) = &arguments.json {
        let cases: Vec<_> = CASES
            .iter()
            .zip(&least)
            .map(|(case, nanoseconds)| json!({"case": case.name, "ns_per_page": nanoseconds}))
            .collect();
        let all = json!({
            "bytes": size,
            "rounds": arguments.rounds,
            "cases": cases,
            "ratio": {"huge": huge, "ordinary": ordinary},
            "goal": {"huge_ns_per_page": HUGE_GOAL, "ordinary_ratio": ORDINARY_GOAL},
        });
        std::fs::write(path, format!("{all:#}\n")).at(path.display())?;
    }
    Ok(())
}

/// A process whose memory is all there; it exports it anew whenever it is told to.
fn source(kind: Source, size: usize) -> Outcome<Peer> {
    let owner = peer(move |link: &Link| {
        let area = match kind {
            Source::Huge => Area::huge(size)?,
            Source::Ordinary => Area::new(size)?,
        };
        area.mark(1);
        link.tell(0)?;
        loop {
            let segment = match link.hear()? {
                0 => return Ok(()),
                _ => export(&area, true)?,
            };
            link.give(segment.as_fd())?;
            link.hear()?;
        }
    })?;
    owner.link.hear()?;
    Ok(owner)
}

/// Nanoseconds per page, once.
fn measure(case: &Case, owner: &Peer, scratch: &Area) -> Outcome<f64> {
    let _parameters = if case.single {
        Some([
            Parameter::set("huge", "0")?,
            Parameter::set("fault_around", "1")?,
        ])
    } else {
        None
    };
    owner.link.tell(1)?;
    let segment = device::segment(owner.link.take()?);
    let device = device::onecopy()?;
    let size = scratch.length();
    let view = map(&segment, size, false)?;
    let begin = Instant::now();
    match case.way {
        Way::Touch => {}
        Way::Prefault => device
            .prefault(view.base(), size as u64, false)
            .result
            .at("PREFAULT")?,
        Way::Copy => {
            let to = Place::Own(scratch.base() as u64);
            device::copy(&device, Place::Segment(&segment, 0), to, size)
                .result
                .at("COPY")?;
        }
    }
    let touched = if case.way == Way::Copy {
        scratch
    } else {
        &view
    };
    for offset in (0..size).step_by(page_size()) {
        std::hint::black_box(touched.load(offset));
    }
    let spent = begin.elapsed();
    // What was touched was the owner's memory.
    touched.verify_marks(1)?;
    view.unmap()?;
    drop(segment);
    owner.link.tell(0)?;
    Ok(spent.as_nanos() as f64 / (size / page_size()) as f64)
}
