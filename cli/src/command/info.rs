// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info`.

mod collectives;
mod cuda;
mod layers;
mod memory;
mod module;
mod mpi;
mod nodes;
mod protocols;
mod shown;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use tabled::settings::Style;

use super::{CliError, pair, print, text};
use layers::{Layer, Pair, Wire};
use onecopy::machine::Machine;
use onecopy::select::explain::Layers;
use onecopy::tune::profile::{self, StoresOrigin};
use onecopy::{LayerState, Refusal, Runtime};

pub(super) use nodes::COMMAND as NODES;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<InfoCommand>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    /// Join the job as a rank and show what was proven with this rank ('onecopy run -n 2 onecopy info --peer 1')
    #[arg(long, value_name = "RANK")]
    peer: Option<usize>,
}

#[derive(Debug, clap::Subcommand)]
enum InfoCommand {
    /// Show which protocol carries which size, its estimated cost, and why the others do not
    Protocols(protocols::Args),
    /// Show how each collective is done at each size, and why
    Collectives(collectives::Args),
    /// Show how the pool of temporary buffers is set, and what it does in a trial
    Memory(memory::Args),
    /// Show what the kernel module onecopy shows: who exports what to whom, what is pinned, limits and counters
    Module(module::Args),
    /// Show how much of MPI the library libmpi_abi.so.1 implements
    Mpi(mpi::Args),
    /// Show the driver of CUDA and its devices, and how their memory is sent, or why not
    Cuda,
    /// Show the transport of each pair of nodes of a job, and why
    Nodes(nodes::Args),
}

/// What is known of a pair of ranks, and how.
pub(super) struct KnownPair {
    layers: Layers,
    pair: Option<Pair>,
    runtime: Option<Runtime>,
}

/// A refusal as it crosses a pipe.
#[derive(Debug, Clone, Serialize, serde::Deserialize)]
struct SentRefusal {
    reason: String,
    remedy: String,
}

/// What two ranks found: why layers are refused, by name.
type Proof = BTreeMap<String, SentRefusal>;

/// The layers with `peer`, if this process is a rank and is to join; otherwise what two ranks started for that find.
pub(super) fn look(peer: Option<usize>) -> Result<KnownPair, CliError> {
    let Some(peer) = peer else {
        return Ok(KnownPair::of(prove()?));
    };
    let runtime = Runtime::init()?;
    if runtime.rank() == peer && runtime.size() == 1 {
        return Err(CliError::Usage(format!(
            "--peer {peer}: this is rank {peer}, alone; start more ranks with 'onecopy run'"
        )));
    }
    // First, so that the layers report what has come of a lane.
    let wire = match runtime.rank() == peer {
        true => None,
        false => runtime.reach(peer)?,
    };
    let mut layers = Layers::default();
    for state in runtime.layers(peer)? {
        layers[state.layer] = state.refusal;
    }
    let rails = runtime.rails(peer)?;
    let pair = Pair {
        rank: runtime.rank(),
        ranks: runtime.size(),
        peer,
        oversubscribed: runtime.is_oversubscribed(),
        wire: wire.map(|reached| Wire {
            layer: reached.carrier.name(),
            place: reached.place.to_string(),
            rails,
        }),
    };
    Ok(KnownPair {
        layers,
        pair: Some(pair),
        runtime: Some(runtime),
    })
}

impl KnownPair {
    /// What is known without a job.
    fn of(layers: Layers) -> Self {
        Self {
            layers,
            pair: None,
            runtime: None,
        }
    }

    /// Whether this rank is the peer itself, so that another rank says what there is to say.
    fn is_peer(&self) -> bool {
        self.pair
            .as_ref()
            .is_some_and(|pair| pair.rank == pair.peer)
    }

    /// Ends the part in the job, after everything was printed.
    fn finish(self) -> Result<ExitCode, CliError> {
        if let Some(runtime) = self.runtime {
            runtime.finalize()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One of the ranks of 'info nodes'.
pub(super) fn run_nodes_rank() -> Result<ExitCode, CliError> {
    nodes::run_rank()
}

/// Has two ranks prove their layers.
fn prove() -> Result<Layers, CliError> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let limit = std::time::Duration::from_secs(60);
    let quiet = [("ONECOPY_PRINT_ENV", "off".to_owned())];
    pair::run(&["__prove"], &quiet, limit, move |line| {
        // Nobody listens any more only when this command has failed.
        let _ = sender.send(line.to_owned());
    })?;
    let line = receiver.into_iter().last().unwrap_or_default();
    let mut proof: Proof =
        serde_json::from_str(&line).map_err(|error| CliError::Failed(error.into()))?;
    Ok(Layers::new(|layer| {
        let refusal = proof.remove(layer.name())?;
        Some(Refusal::new(refusal.reason, refusal.remedy))
    }))
}

/// One of the two.
pub(super) fn run_rank() -> Result<ExitCode, CliError> {
    let runtime = Runtime::init()?;
    if runtime.rank() == 0 && runtime.size() == 2 {
        let refusal = |state: LayerState| {
            let Refusal { reason, remedy } = state.refusal?;
            Some((
                state.layer.name().to_owned(),
                SentRefusal { reason, remedy },
            ))
        };
        let proof: Proof = runtime.layers(1)?.into_iter().filter_map(refusal).collect();
        let line = text::json_line(&proof)?;
        print(|out| writeln!(out, "{line}"))?;
    }
    runtime.finalize()?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Info<'a> {
    onecopy: &'static str,
    pair: Option<&'a Pair>,
    layers: &'a [Layer],
    /// What the kernel module guarantees, in the order of its questions.
    questions: [&'static str; 6],
    modules: &'a [layers::Module],
    /// Sums of what our kernel module shows of exports and pins.
    shown: Option<shown::Sums>,
    tune_file: Option<String>,
    profile: Option<String>,
    /// Where the kind of stores into chunks comes from.
    stores: String,
    /// Whether the string instruction is slow between some addresses.
    has_slow_rep_movsb: bool,
    machine: &'a Machine,
}

impl Info<'_> {
    /// As text.
    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let line = |out: &mut dyn Write, name: &str, text: &dyn std::fmt::Display| {
            writeln!(out, "{name:<16} {text}")
        };
        writeln!(out, "onecopy {}", self.onecopy)?;
        if let Some(pair) = self.pair {
            writeln!(out, "{pair}")?;
        }
        writeln!(out, "\n{}\n", table(self.layers))?;
        if let Some(guarantees) = layers::guarantees(self.modules) {
            writeln!(out, "{guarantees}\n")?;
        }
        if let Some(shown) = &self.shown {
            line(out, "exports", shown)?;
        }
        for (name, fact) in facts(self.machine) {
            line(out, name, &fact)?;
        }
        if let Some(profile) = &self.profile {
            line(out, "profile", profile)?;
        }
        line(out, "stores", &self.stores)?;
        line(out, "rep movsb", &rep_movsb(self.has_slow_rep_movsb))?;
        match &self.tune_file {
            Some(file) => line(out, "tune file", file),
            None => line(out, "tune file", &"none: cost curves are the built-in ones"),
        }
    }
}

/// Where the kind of stores into chunks comes from, and why it was not measured.
fn stores(from: StoresOrigin, lacks_profile: bool) -> String {
    match from {
        StoresOrigin::Seed(_) if lacks_profile => match profile::obstacle() {
            Some(obstacle) => format!("{}. It cannot be: {obstacle}", from),
            None => format!("{from}. The next job of two ranks here does"),
        },
        from => from.to_string(),
    }
}

/// The result of the probe of the string instruction.
fn rep_movsb(is_slow: bool) -> &'static str {
    if is_slow {
        "slow where a destination lies 1 to 63 bytes behind its source, modulo a page; vectors copy there"
    } else {
        "as fast between all addresses"
    }
}

fn table(layers: &[Layer]) -> String {
    let mut rows = tabled::builder::Builder::default();
    rows.push_record(["layer", "state", "seen", "reason", "remedy"]);
    for layer in layers {
        rows.push_record([
            layer.name.to_owned(),
            layer.state.to_owned(),
            text::wrap(&layer.seen, 34),
            text::wrap(layer.reason.as_deref().unwrap_or_default(), 34),
            text::wrap(layer.remedy.as_deref().unwrap_or_default(), 34),
        ]);
    }
    rows.build().with(Style::psql()).to_string()
}

/// What is shown of the machine: labels and values.
type Facts = Vec<(&'static str, String)>;

fn facts(machine: &Machine) -> Facts {
    [
        of_processors(machine),
        of_memory(machine),
        of_kernel(machine),
    ]
    .concat()
}

fn of_processors(machine: &Machine) -> Facts {
    let affinity: Vec<String> = machine.affinity.iter().map(ToString::to_string).collect();
    let mut facts = vec![
        ("processor", machine.processor.clone()),
        (
            "processors",
            format!(
                "{} on; this process may run on {} ({})",
                machine.online,
                machine.affinity.len(),
                affinity.join(",")
            ),
        ),
        (
            "quota",
            machine.quota.map_or_else(
                || "no limit by the control group".to_owned(),
                |cpus| format!("{cpus} processors by the control group"),
            ),
        ),
        (
            "ranks",
            format!(
                "up to {} poll; more than that outnumber the processors, so they yield and sleep",
                machine.polling_ranks
            ),
        ),
    ];
    facts.extend(machine.nodes.iter().map(|node| {
        let processors = format!("{}: processors {}", node.node, node.processors);
        ("memory node", processors)
    }));
    facts.extend(machine.caches.iter().map(|cache| {
        let shared = format!("{}, shared by processors {}", cache.size, cache.processors);
        ("last cache", shared)
    }));
    facts
}

fn of_memory(machine: &Machine) -> Facts {
    let huge = machine.huge_page_kib.iter();
    let huge: Vec<String> = huge.map(|kib| text::size(kib << 10)).collect();
    vec![
        (
            "memory",
            format!(
                "{}, {} available",
                text::size(machine.memory),
                text::size(machine.available)
            ),
        ),
        (
            "pages",
            format!(
                "{}; huge {}",
                text::size(machine.page_size),
                huge.join(", ")
            ),
        ),
        (
            "huge pages",
            format!(
                "shared memory: {}; private memory: {}",
                machine.huge_shared, machine.huge_private
            ),
        ),
    ]
}

fn of_kernel(machine: &Machine) -> Facts {
    let mut facts = vec![
        (
            "kernel",
            format!("{} on {}", machine.kernel, machine.architecture),
        ),
        (
            "yama",
            machine.ptrace_scope.map_or_else(
                || "not there".to_owned(),
                |scope| format!("ptrace_scope {scope}"),
            ),
        ),
    ];
    facts.extend(machine.abilities.iter().map(|ability| {
        let means = match ability.works {
            true => String::new(),
            false => format!("; {}", ability.otherwise),
        };
        (ability.name, format!("{}{means}", ability.seen))
    }));
    facts
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    match &args.what {
        Some(InfoCommand::Protocols(more)) => return protocols::run(more, args.json, args.peer),
        Some(InfoCommand::Memory(more)) => return memory::run(more, args.json),
        Some(InfoCommand::Collectives(more)) => return collectives::run(more, args.json),
        Some(InfoCommand::Module(more)) => return module::run(more, args.json),
        Some(InfoCommand::Mpi(more)) => return mpi::run(more, args.json),
        Some(InfoCommand::Cuda) => return cuda::run(args.json),
        Some(InfoCommand::Nodes(more)) => return nodes::run(more, args.json),
        None => {}
    }
    let settings = onecopy::tune::settings()?;
    let known = look(args.peer)?;
    if known.is_peer() {
        return known.finish();
    }
    onecopy_shm::copy::probe_strings();
    let machine = Machine::here();
    let layers = layers::list(&known.layers, known.pair.as_ref(), &settings.knobs);
    let modules = layers::modules(&settings.knobs);
    let name = |path: std::path::PathBuf| path.display().to_string();
    let info = Info {
        onecopy: env!("CARGO_PKG_VERSION"),
        pair: known.pair.as_ref(),
        layers: &layers,
        questions: onecopy_btl::module::QUESTIONS,
        modules: &modules,
        // Why there is none, 'info module' says.
        shown: shown::ModuleLists::read(std::path::Path::new(shown::FOLDER))
            .ok()
            .map(|shown| shown.sums()),
        tune_file: settings.file.map(name),
        profile: settings.profile.map(name),
        stores: stores(settings.stores, settings.lacks_profile),
        has_slow_rep_movsb: onecopy_shm::copy::has_slow_strings(),
        machine: &machine,
    };
    if args.json {
        let text = text::json(&info)?;
        print(|out| writeln!(out, "{text}"))?;
    } else {
        print(|out| info.write(out))?;
    }
    known.finish()
}
