// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `trace` and `top` observe with: the kernel's programs where they are permitted, the statistics pages of
//! onecopy's own ranks everywhere.

use std::collections::BTreeSet;
use std::path::Path;

use onecopy_trace::identity::Names;
use onecopy_trace::missed::{System, missed};
use onecopy_trace::modules;
use onecopy_trace::observed::Event;
use onecopy_trace::rdma::{self, Ports};
use onecopy_trace::report::{self, Report};
use onecopy_trace::{Observed, bpf, own, proc};

/// What to observe.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Only the statistics pages.
    pub(crate) own: bool,
    /// This process and its descendants; the whole node if none.
    pub(crate) follow: Option<u32>,
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
    follow: Option<u32>,
    followed: BTreeSet<u32>,
    ports: Ports,
    modules: modules::Counters,
    limits: Vec<String>,
}

impl Source {
    /// Begins to observe. What is not permitted is said in the report's `limits`.
    pub(crate) fn open(wanted: &Wanted) -> Self {
        let mut limits = Vec::new();
        let kernel = if wanted.own {
            None
        } else {
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
                            limits.extend(runtime.iter().find_map(limit_of));
                        }
                    }
                    limits.extend(probes.iter().filter_map(limit_of));
                    Some(collector)
                }
                Err(error) => {
                    limits.push(format!(
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
            follow: wanted.follow,
            followed: wanted.follow.into_iter().collect(),
            ports: Ports::look(Path::new(rdma::DEVICES)),
            modules: modules::Counters::look(Path::new("/")),
            limits,
        }
    }

    /// The figures since the start.
    pub(crate) fn observe(&mut self) -> Observed {
        if self.follow.is_some() {
            proc::add_descendants(&mut self.followed);
            self.names.learn(self.followed.iter().copied());
        }
        let mut observed = Observed::default();
        if let Some(kernel) = &mut self.kernel {
            if let Some(percent) = self.max_overhead {
                kernel.limit(percent);
            }
            observed = kernel.observe();
        }
        match self.own.observe() {
            Ok(mut own) => {
                if self.follow.is_some() {
                    let followed = &self.followed;
                    own.pairs.retain(|key, _| followed.contains(&key.caller));
                    own.counters.retain(|pid, _| followed.contains(pid));
                }
                observed.join(own);
            }
            Err(error) => self.limit(format!("statistics pages: {error}")),
        }
        self.names.complete(&mut observed);
        observed
    }

    fn limit(&mut self, text: String) {
        if !self.limits.contains(&text) {
            self.limits.push(text);
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
        let missed = missed(observed, name, &self.system);
        let mut limits = self.limits.clone();
        limits.extend(self.own.refused.iter().cloned());
        let mut report = report::build(observed, program, missed, limits);
        report.rdma = self.ports.traffic();
        report.modules = self.modules.added();
        report
    }
}

/// What is lost by a probe that refused.
fn limit_of(probe: &bpf::Probe) -> Option<String> {
    const OF_MODULES: [(&str, &str); 4] = [
        ("onecopy_", "onecopy"),
        ("kprobe oc_", "onecopy"),
        ("kprobe xpmem_", "xpmem"),
        ("kprobe knem_", "knem"),
    ];
    let module = OF_MODULES
        .iter()
        .find(|(prefix, _)| probe.name.starts_with(prefix));
    if module.is_some_and(|(_, module)| !Path::new("/sys/module").join(module).exists()) {
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

/// Where the runtime's probe points are: this command, and the libraries that were installed with it.
fn libraries() -> Vec<std::path::PathBuf> {
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
