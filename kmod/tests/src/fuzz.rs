// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random calls on the three devices, by several processes that map, unmap, fork, exec, exit, pass descriptors and get killed meanwhile.
//!
//! Most calls are nearly right, so that they get somewhere; one value in sixteen is a boundary. A seed gives the same calls of each
//! process again; how they interleave it cannot give. At the end every process must go when it is told to, the module must hold
//! nothing, and the kernel's slabs and pages must be back where they were after a tenth of the calls.

mod calls;
mod census;
mod dice;
mod inject;
mod memory;
mod report;
mod table;
mod worker;

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::outcome::{At, Fault, Outcome};
use crate::runner::say;
use crate::system::{self, OpenToAll};
use crate::{device, peer, probe};

use census::Census;
use dice::Dice;
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
    /// Minutes after which it is a failure that the calls are not done.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
}

/// How long an idle worker is left alone, and how long one that was killed may take to go.
const STALL: Duration = Duration::from_secs(4);
const BURIAL: Duration = Duration::from_secs(60);

/// How often it says how far it is.
const WORD: Duration = Duration::from_secs(60);
/// After how many calls one more worker is killed.
const KILLS: u64 = 2000;

/// A worker's place: who works there now.
struct Slot {
    pid: Option<Pid>,
    incarnation: u64,
    progress: u64,
    since: Instant,
    /// Set when it was told to go by force.
    killed: Option<Instant>,
}

/// How workers ended.
#[derive(Default)]
struct Ends {
    by_themselves: u64,
    killed: u64,
    stalled: u64,
    /// By a signal that nobody sent.
    crashed: Vec<String>,
}

struct Fuzzer<'a> {
    arguments: &'a Arguments,
    table: Table,
    boxes: Vec<(UnixDatagram, UnixDatagram)>,
    slots: Vec<Slot>,
    ends: Ends,
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
        inject::start()
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
        table: Table::new(arguments.workers)?,
        boxes,
        slots: (0..arguments.workers)
            .map(|_| Slot {
                pid: None,
                incarnation: 0,
                progress: 0,
                since: Instant::now(),
                killed: None,
            })
            .collect(),
        ends: Ends::default(),
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
    drop(injection);
    fuzzer.boxes.clear();
    problems.extend(gauges());
    problems.extend(before.compare(&Census::take()));
    problems.extend(report::print(&fuzzer.table, begin.elapsed()));
    let ends = &fuzzer.ends;
    say(&format!(
        "workers: {} ended by themselves, {} were killed, {} of them waiting, {} crashed",
        ends.by_themselves,
        ends.killed,
        ends.stalled,
        ends.crashed.len()
    ));
    for crash in ends.crashed.iter().take(5) {
        say(&format!("  crashed: {crash}"));
    }
    // A process whose memory allocation was made to fail may well abort.
    if !ends.crashed.is_empty() && !fuzzer.injecting {
        problems.push(format!("{} workers crashed", ends.crashed.len()));
    }
    for problem in &problems {
        say(&format!("FAIL fuzz: {problem}"));
    }
    if problems.is_empty() {
        say("ok fuzz");
    }
    Ok(problems.is_empty())
}

/// What the module holds when nobody is left.
fn gauges() -> Option<String> {
    let mut left = String::new();
    let empty = system::until(Duration::from_secs(20), || {
        let Ok(stats) = device::stats() else {
            return false;
        };
        left = format!(
            "{} segments, {} permits, {} regions, {} pinned pages",
            stats.segments, stats.permits, stats.regions, stats.pinned_pages
        );
        stats.segments + stats.permits + stats.regions + stats.pinned_pages == 0
    });
    (!empty).then(|| format!("left in the module: {left}"))
}

impl Fuzzer<'_> {
    /// Lets workers work until so many calls are done, then ends them all.
    fn rounds(&mut self, calls: u64, begin: Instant, limit: Duration) -> Outcome {
        self.table.let_go();
        let mut next_kill = self.table.calls();
        let mut next_word = begin.elapsed() + WORD;
        let mut result = Ok(());
        while self.table.calls() < calls {
            std::thread::sleep(Duration::from_millis(10));
            self.reap();
            for index in 0..self.slots.len() {
                if self.slots[index].pid.is_none() {
                    self.spawn(index)?;
                }
            }
            self.watch()?;
            if self.table.calls() > next_kill {
                next_kill = self.table.calls() + KILLS;
                let victim = self.dice.below(self.slots.len() as u64) as usize;
                self.kill(victim);
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
        self.end_all()?;
        result
    }

    fn spawn(&mut self, index: usize) -> Outcome {
        let slot = &mut self.slots[index];
        slot.incarnation += 1;
        let plan = worker::Plan {
            slot: index,
            incarnation: slot.incarnation,
            seed: self.arguments.seed,
            inject: self.injecting,
        };
        let pid = peer::fork_plain(|| worker::work(&plan, &self.table, &self.boxes))?;
        slot.pid = Some(pid);
        slot.since = Instant::now();
        slot.killed = None;
        Ok(())
    }

    fn kill(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if let (Some(pid), None) = (slot.pid, slot.killed) {
            let _ = kill(pid, Signal::SIGKILL);
            slot.killed = Some(Instant::now());
            self.ends.killed += 1;
        }
    }

    /// Kills who waits for something that does not come; complains of who does not go.
    fn watch(&mut self) -> Outcome {
        for index in 0..self.slots.len() {
            let progress = self.table.progress(index);
            let slot = &mut self.slots[index];
            if progress != slot.progress {
                slot.progress = progress;
                slot.since = Instant::now();
            }
            let stalled = slot.since.elapsed() > STALL && slot.killed.is_none();
            if let (Some(pid), Some(since)) = (slot.pid, slot.killed)
                && since.elapsed() > BURIAL
            {
                return Err(Fault::Fail(format!(
                    "cannot be killed: {pid} {}",
                    system::where_is(pid)
                )));
            }
            if stalled {
                self.ends.stalled += 1;
                self.kill(index);
            }
        }
        Ok(())
    }

    fn reap(&mut self) {
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            let (pid, end) = match status {
                WaitStatus::Exited(pid, code) => {
                    (pid, (code != 0).then(|| format!("exit status {code}")))
                }
                WaitStatus::Signaled(pid, Signal::SIGKILL, _) => (pid, None),
                WaitStatus::Signaled(pid, signal, _) => (pid, Some(signal.to_string())),
                WaitStatus::StillAlive => break,
                _ => continue,
            };
            // Others are children of workers, which come here when the worker has gone.
            let Some(index) = self.slots.iter().position(|slot| slot.pid == Some(pid)) else {
                continue;
            };
            let slot = &mut self.slots[index];
            slot.pid = None;
            let incarnation = slot.incarnation;
            match end {
                None if slot.killed.is_none() => self.ends.by_themselves += 1,
                None => {}
                Some(how) => self
                    .ends
                    .crashed
                    .push(format!("worker {index}, incarnation {incarnation}: {how}")),
            }
        }
    }

    /// Ends everybody: first by asking, then by force.
    fn end_all(&mut self) -> Outcome {
        self.table.stop();
        let begin = Instant::now();
        loop {
            self.reap();
            let children = system::children();
            if children.is_empty() {
                for slot in &mut self.slots {
                    slot.pid = None;
                }
                return Ok(());
            }
            if begin.elapsed() > STALL {
                for pid in &children {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
            }
            if begin.elapsed() > BURIAL {
                let places: Vec<String> = children
                    .iter()
                    .map(|pid| format!("{pid} {}", system::where_is(*pid)))
                    .collect();
                return Err(Fault::Fail(format!(
                    "cannot be killed: {}",
                    places.join("; ")
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
