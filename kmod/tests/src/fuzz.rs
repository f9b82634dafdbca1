// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random calls on the three devices, by several processes that map, unmap, fork, exec, exit, pass descriptors and get
//! killed meanwhile.
//!
//! More than nine calls in ten have a wrong structure and are refused. The others are nearly right, so that they get
//! somewhere; one value in sixteen of theirs is a boundary. A seed gives the same calls of each process again; how they
//! interleave it cannot give. At the end every process must go when it is told to, and the module must hold nothing.
//! The kernel's slabs and pages must be back where they were after a tenth of the calls.

mod calls;
mod life;
mod memory;
mod report;
mod table;
mod worker;

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;

use crate::census::Census;
use crate::crew::Crew;
use crate::dice::Dice;
use crate::outcome::{At, Fault, Outcome};
use crate::runner::say;
use crate::system::OpenToAll;
use crate::{device, inject, probe, runner};

use table::Table;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Calls on the devices, of all processes together.
    #[arg(long, default_value_t = 1_000_000)]
    calls: u64,
    /// What the dice begin with.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Processes at a time, each with a second thread and now and then a child.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Leave the kernel's fault injection alone.
    #[arg(long)]
    no_inject: bool,
    /// A process that is killed may take so many times longer to go: for slow kernels and busy machines.
    #[arg(long, default_value_t = 1)]
    patience: u32,
    /// Minutes after which it is a failure that the calls are not done.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
}

/// How often it says how far it is.
const WORD: Duration = Duration::from_secs(60);
/// After how many calls one more worker is killed.
const KILLS: u64 = 24_000;

struct Fuzzer<'a> {
    arguments: &'a Arguments,
    table: Table,
    boxes: Vec<(UnixDatagram, UnixDatagram)>,
    crew: Crew,
    dice: Dice,
    injecting: bool,
}

/// Runs until the calls are done. Whether all is well.
pub(crate) fn run(arguments: &Arguments) -> Outcome<bool> {
    device::onecopy().at("is the module loaded?")?;
    set_child_subreaper(true).at("becoming a subreaper")?;
    probe::install();
    let _open: Vec<OpenToAll> = ["/dev/xpmem", "/dev/knem", "/dev/onecopy"]
        .into_iter()
        .map(OpenToAll::device)
        .collect::<Outcome<_>>()?;
    let boxes = (0..arguments.workers)
        .map(|_| {
            let (left, right) = UnixDatagram::pair().at("socketpair")?;
            left.set_nonblocking(true).at("a socket")?;
            right.set_nonblocking(true).at("a socket")?;
            Ok((left, right))
        })
        .collect::<Outcome<Vec<_>>>()?;
    let injection = if arguments.no_inject {
        None
    } else {
        inject::start(1)
    };
    say(&format!(
        "fuzz: seed {}, {} calls, {} workers, fault injection: {}",
        arguments.seed,
        arguments.calls,
        arguments.workers,
        injection
            .as_ref()
            .map_or("none".to_owned(), inject::Injection::names)
    ));
    let mut fuzzer = Fuzzer {
        arguments,
        table: Table::new(arguments.workers, calls::CALLS.len())?,
        boxes,
        crew: Crew::new(arguments.workers, arguments.patience, injection.is_some()),
        dice: Dice::new(arguments.seed),
        injecting: injection.is_some(),
    };
    let begin = Instant::now();
    let limit = Duration::from_secs(arguments.minutes * 60);
    let mut problems = Vec::new();
    // What a kernel allocates once and keeps, it has allocated by then.
    if let Err(fault) = fuzzer.rounds(arguments.calls / 10, begin, limit) {
        problems.push(fault.to_string());
    }
    let before = Census::take();
    if problems.is_empty()
        && let Err(fault) = fuzzer.rounds(arguments.calls, begin, limit)
    {
        problems.push(fault.to_string());
    }
    if let Some(injection) = injection {
        problems.extend(injection.end(false, say));
    }
    fuzzer.boxes.clear();
    problems.extend(runner::held(Duration::from_secs(20))?);
    problems.extend(before.compare(&Census::take()));
    problems.extend(report::print(&fuzzer.table, begin.elapsed()));
    let (line, crashed) = fuzzer.crew.summary();
    say(&line);
    for crash in &crashed {
        say(&format!("  crashed: {crash}"));
    }
    // Also with fault injection: below functions of the module nothing fails that ends a process.
    if !crashed.is_empty() {
        problems.push(format!("crashed: {}", crashed.join("; ")));
    }
    Ok(runner::verdict("fuzz", &problems))
}

impl Fuzzer<'_> {
    /// Lets workers work until so many calls are done, then ends them all.
    fn rounds(&mut self, calls: u64, begin: Instant, limit: Duration) -> Outcome {
        self.table.notes.let_go();
        let mut next_kill = self.table.calls();
        let mut next_word = begin.elapsed() + WORD;
        let mut result = Ok(());
        while self.table.calls() < calls {
            std::thread::sleep(Duration::from_millis(10));
            self.crew.reap();
            for index in 0..self.crew.places() {
                if self.crew.is_vacant(index) {
                    self.spawn(index)?;
                }
            }
            let table = self.table;
            // The others go all the same, or what they have would count as left.
            result = self.crew.watch(|place| table.progress(place));
            if result.is_err() {
                break;
            }
            if self.table.calls() > next_kill {
                next_kill = self.table.calls() + KILLS;
                let victim = self.dice.below(self.crew.places() as u64) as usize;
                self.crew.kill(victim);
            }
            if begin.elapsed() > next_word {
                next_word += WORD;
                let (done, seconds) = (self.table.calls(), begin.elapsed().as_secs());
                say(&format!("fuzz: {done} calls after {seconds} s"));
            }
            if begin.elapsed() > limit {
                let done = self.table.calls();
                result = Err(Fault::Fail(format!("{done} calls within {limit:?}")));
                break;
            }
        }
        self.table.notes.stop();
        self.crew.end_all()?;
        result
    }

    fn spawn(&mut self, index: usize) -> Outcome {
        let (seed, inject) = (self.arguments.seed, self.injecting);
        let (table, boxes) = (&self.table, &self.boxes);
        self.crew.hire(index, |incarnation| {
            let plan = worker::Plan {
                slot: index,
                incarnation,
                seed,
                inject,
            };
            life::work(&plan, table, boxes)
        })
    }
}
