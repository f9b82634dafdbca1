// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `trace` and `top` observe with: the kernel's programs where they are permitted, the statistics pages of
//! onecopy's own ranks everywhere.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{ClockId, clock_gettime};

use onecopy_trace::bpf::WithinLimit;
use onecopy_trace::job::JobProcesses;
use onecopy_trace::missed::{System, missed};
use onecopy_trace::modules;
use onecopy_trace::names::Names;
use onecopy_trace::observed::Event;
use onecopy_trace::rdma::{self, Ports};
use onecopy_trace::report::{self, Report};
use onecopy_trace::{Observed, bpf, own, proc};

use crate::started;

/// Notes of a report. More come only from somebody who makes them on purpose. Chosen by magnitude.
const NOTES_MAX: usize = 64;

/// What a command takes of a processor at most, in all the times that it begins. Chosen by magnitude: a beginning takes
/// some milliseconds, so it ends only what would go on for ever.
const BEGINNING_MAX: Duration = Duration::from_secs(2);

/// Begins this command anew if a signal made it see less of the kernel than there is. To be called before anything is
/// begun that would be there twice.
pub(crate) fn begin_undisturbed() {
    // It goes on counting in what a process becomes.
    let taken =
        clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(BEGINNING_MAX, Duration::from);
    if bpf::sees_the_kernel() || taken >= BEGINNING_MAX {
        return;
    }
    let Ok(own) = std::env::current_exe() else {
        return;
    };
    let mut again = Command::new(own);
    started::pass_on(&mut again);
    let mut words = std::env::args_os();
    again.arg0(words.next().unwrap_or_default());
    // Refused where the file is another one or gone by now: then it goes on with what it sees.
    let _ = again.args(words).exec();
}

/// Each probe point that is watched takes two. A followed program has begun with what it is to have.
fn raise_the_limit_of_descriptors() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With what there is, less can be watched, which the report says.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// What to observe.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObserveOptions {
    /// Only the statistics pages.
    pub(crate) own: bool,
    /// This process and its descendants; the whole node if none.
    pub(crate) follow: Option<u32>,
    /// The words that start it: what they name may have the runtime in it.
    pub(crate) program: Vec<OsString>,
    /// Whether events of a timeline are kept.
    pub(crate) events: bool,
    /// The largest part of its callers' time that observing may take, in percent.
    pub(crate) max_overhead: Option<f64>,
}

/// The collectors, and names for what they see.
#[derive(Debug)]
pub(crate) struct Source {
    kernel: Option<bpf::Collector>,
    own: own::Collector,
    names: Names,
    system: System,
    max_overhead: Option<f64>,
    events: bool,
    job: Option<JobProcesses>,
    ports: Ports,
    modules: modules::Counters,
    notes: Vec<String>,
}

impl Source {
    /// Begins to observe. What is not permitted stands in the report's `limits`.
    pub(crate) fn open(wanted: &ObserveOptions) -> Self {
        let mut notes = Vec::new();
        let kernel = if wanted.own {
            None
        } else {
            raise_the_limit_of_descriptors();
            let options = bpf::Options {
                follow: wanted.follow,
                events: wanted.events,
                ..bpf::Options::default()
            };
            match bpf::Collector::start(&options) {
                Ok((mut collector, probes)) => {
                    if wanted.events {
                        for library in libraries() {
                            let runtime = collector.watch_runtime(&library);
                            // What refuses one probe point refuses all of a file.
                            notes.extend(runtime.iter().find_map(note_of));
                        }
                        // Before they begin, so that no event is missed.
                        let runtime = collector.watch_files(&files(&wanted.program));
                        notes.extend(runtime.iter().find_map(note_of));
                    }
                    notes.extend(probes.iter().filter_map(note_of));
                    Some(collector)
                }
                Err(error) => {
                    notes.push(format!(
                        "only onecopy's own ranks are seen, by their statistics pages: {error}"
                    ));
                    None
                }
            }
        };
        Self {
            kernel,
            own: own::Collector::new(),
            names: Names::new(Path::new("/proc")),
            system: System::read(Path::new("/proc")),
            max_overhead: wanted.max_overhead,
            events: wanted.events,
            job: wanted
                .follow
                .map(|pid| JobProcesses::new(Path::new("/proc"), pid)),
            ports: Ports::look(Path::new(rdma::DEVICES)),
            modules: modules::Counters::look(Path::new("/")),
            notes,
        }
    }

    /// To be called often. Finds what cannot be found later: new processes, while they live and have names, their
    /// statistics pages, and the files that they map. Gives up detail where observing takes too much.
    pub(crate) fn look(&mut self) {
        if let Some(job) = &mut self.job {
            job.look();
            self.names.learn(job.living());
        }
        let mut notes = Vec::new();
        if let Some(kernel) = &mut self.kernel {
            let percent = self.max_overhead;
            if percent.is_some_and(|percent| kernel.limit(percent) == WithinLimit::No) {
                notes.push("counting alone takes more than --max-overhead permits".to_owned());
            }
            self.names.learn(kernel.processes());
            if self.events {
                let refused = match &self.job {
                    Some(job) => kernel.watch_mapped(job.living()),
                    None => kernel.watch_mapped(proc::numbers(Path::new("/proc"))),
                };
                notes.extend(refused.iter().filter_map(note_of));
            }
        }
        if let Err(error) = self.own.look() {
            notes.push(format!("statistics pages: {error}"));
        }
        for note in notes {
            self.note(note);
        }
    }

    /// The figures since the start.
    pub(crate) fn observe(&mut self) -> Observed {
        if let Some(job) = &mut self.job {
            job.look();
            self.names.learn(job.living());
        }
        let mut observed = self
            .kernel
            .as_mut()
            .map_or_else(Observed::default, bpf::Collector::observe);
        let job = self.job.as_ref();
        let is_wanted = |pid, began| job.is_none_or(|job| job.has(pid, began));
        match self.own.observe_those(is_wanted) {
            Ok(own) => observed.join(own),
            Err(error) => self.note(format!("statistics pages: {error}")),
        }
        self.names.complete(&mut observed);
        observed
    }

    fn note(&mut self, text: String) {
        // Others' files may have any number of them.
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Events since the last call.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.kernel
            .as_mut()
            .map_or_else(Vec::new, bpf::Collector::events)
    }

    /// The figures as a report.
    pub(crate) fn report(&mut self, observed: &Observed, program: &[String]) -> Report {
        let name = |pid| report::who(observed, pid);
        let missed = missed(observed, name, self.system);
        let mut notes = self.notes.clone();
        notes.extend(self.own.refused.iter().cloned());
        let mut report = report::build(observed, program, missed, notes);
        report.rdma = self.ports.traffic();
        report.modules = self.modules.added();
        report
    }
}

/// What is lost by a probe that refused.
fn note_of(probe: &bpf::Probe) -> Option<String> {
    let is_there = |module| Path::new("/sys/module").join(module).exists();
    if probe.module.is_some_and(|module| !is_there(module)) {
        // Nothing is lost of a module that is not there.
        return None;
    }
    match probe.state {
        bpf::State::Refused { errno } if !probe.lost.is_empty() => {
            let mut text = format!("without {}: {}", probe.name, probe.lost);
            if errno != 0 {
                text.push_str(&format!(" ({})", nix::errno::Errno::from_raw(errno).desc()));
            }
            if !probe.remedy.is_empty() {
                text.push_str(&format!("; {}", probe.remedy));
            }
            Some(text)
        }
        _ => None,
    }
}

/// The files that the words of a command name: its program, which may be one that is searched for, and others that it
/// may start.
fn files(words: &[OsString]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = words.iter().map(PathBuf::from).collect();
    if let Some(name) = words
        .first()
        .filter(|name| !name.as_bytes().contains(&b'/'))
    {
        let places = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&places).map(|folder| folder.join(name));
        found.extend(places.take(1024).find(|place| place.is_file()));
    }
    found.retain(|path| path.is_file());
    found
}

/// Where the runtime's probe points are: this command, and the libraries that were installed with it.
fn libraries() -> Vec<PathBuf> {
    let Ok(own) = std::env::current_exe() else {
        return Vec::new();
    };
    let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
    let mut all = vec![own];
    for name in ["libmpi_abi.so.1", "libmpi_abi.so"] {
        let places = [folder.with_file_name("lib").join(name), folder.join(name)];
        if let Some(place) = places.into_iter().find(|place| place.exists()) {
            all.push(place);
            break;
        }
    }
    all
}
