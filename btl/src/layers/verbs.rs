// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes by devices for RDMA: they take over what the wire to another node carries. What makes them is the library's
//! endpoint, over `btl/verbs`; this says whether the machine has such a device, and opens it.

use crate::contract::{NodeFacts, Probe, Refusal};
use crate::lanes::LaneJob;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::geteuid;
use onecopy_obs::{Knobs, VerbsMode};
use onecopy_verbs::adapter::{Adapter, CACHE_ENTRIES, Lanes, Settings};
use onecopy_verbs::cache::Bounds;
use onecopy_verbs::device::Missing;
use onecopy_verbs::modes::{self, JobShape, Mode, Sizes};
use onecopy_verbs::port::{self, Search};
use onecopy_verbs::ud::{self, Datagrams};
use onecopy_verbs::{Chosen, Error, Limits, NodeShare, Provider, Rails, Verbs};

/// Bytes of a message that the request itself carries, at most: as perftest writes by default (`DEF_INLINE_WRITE`).
const INLINE: usize = 220;
/// Bytes of a long message that one port is asked for at a time, at most. Chosen by magnitude: at 10 GB/s that is 7 us,
/// many times what a request costs.
const STRIPE: usize = 64 << 10;

/// Whether there is a device by which a peer could be reached.
#[must_use]
pub fn probe(_: &NodeFacts) -> Probe {
    let verbs = match Verbs::load() {
        Ok(verbs) => verbs,
        Err(missing) => return Probe::Unavailable(without_library(missing)),
    };
    match port::choose(&verbs, None) {
        Ok(chosen) => Probe::Available {
            detail: describe(&chosen),
        },
        Err(error) => Probe::Unavailable(refusal(&error)),
    }
}

fn describe(chosen: &Chosen<Verbs>) -> String {
    let (name, port) = (chosen.device.name(), chosen.port);
    let kind = if chosen.state.ethernet {
        "RoCE"
    } else {
        "InfiniBand"
    };
    let locked = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((limit, _)) if !geteuid().is_root() && limit < 1 << 30 => {
            format!(
                ", {} KiB of locked memory permitted (ulimit -l)",
                limit >> 10
            )
        }
        _ => String::new(),
    };
    let extended = match chosen.device.limits().shared_connections {
        true => "reliable and extended connections (XRC)",
        false => "reliable connections, no extended ones (XRC),",
    };
    let reads = match chosen.device.limits().sound_reads {
        true => "",
        false => {
            ", no reads of peers' memory unless ONECOPY_VERBS_READ_MIN is set (it is a device in software)"
        }
    };
    format!("{name} port {port}, {kind}, {extended} or datagrams{reads}{locked}")
}

/// Why the mode that the knobs ask for cannot be had of this host's device; none: it can, or they ask for none.
#[must_use]
pub fn refused_mode(knobs: &Knobs) -> Option<Refusal> {
    let verbs = Verbs::load().ok()?;
    let chosen = choose(&verbs, knobs).ok()?;
    lacks(knobs, &chosen)
}

/// The same of a device.
fn lacks<P: Provider>(knobs: &Knobs, chosen: &Chosen<P>) -> Option<Refusal> {
    let mode = knobs.verbs_mode;
    let has = chosen.device.limits().shared_connections;
    (mode == VerbsMode::Extended && !has).then(|| {
        let name = chosen.device.name();
        Refusal::new(
            format!("ONECOPY_VERBS_MODE={mode}: {name} has no extended connections (XRC)"),
            "set ONECOPY_VERBS_MODE to auto, rc or ud on all ranks",
        )
    })
}

fn without_library(missing: &Missing) -> Refusal {
    Refusal::new(missing.seen(), Missing::REMEDY)
}

fn refusal(error: &Error) -> Refusal {
    let Error {
        call,
        object,
        reason,
        remedy,
    } = error;
    Refusal::new(format!("{call} {object}: {reason}"), remedy)
}

/// What the knobs say of lanes.
#[must_use]
pub fn settings(knobs: &Knobs) -> Settings {
    let small = |value: Option<usize>| value.and_then(|value| u8::try_from(value).ok());
    Settings {
        device: knobs.verbs_device.clone(),
        port: small(knobs.verbs_port),
        address: small(knobs.verbs_gid),
        lanes_max: knobs.verbs_lanes,
        slot: knobs.verbs_slot,
        receives: knobs.verbs_receives,
        receives_max: knobs.verbs_receives_max,
        sends: knobs.verbs_sends,
        window: u32::try_from(knobs.verbs_window).unwrap_or(u32::MAX),
        inline: INLINE,
        silence: knobs.verbs_timeout,
        read_min: knobs.read_min() as u64,
        trusts_reads: knobs.verbs_read_min.is_some(),
        stripe: STRIPE,
        rails: knobs.verbs_rails,
        cache: Bounds {
            bytes: knobs.verbs_cache,
            entries: CACHE_ENTRIES,
        },
    }
}

/// The setting by which no device reads memory of a peer: datagrams do not, and unsound reads are not trusted.
#[must_use]
pub fn reads_ruled_out(knobs: &Knobs) -> Option<String> {
    let mode = knobs.verbs_mode;
    if mode == VerbsMode::Datagrams {
        return Some(format!("ONECOPY_VERBS_MODE={mode}"));
    }
    if knobs.verbs_read_min.is_some() {
        return None;
    }
    unsound(&Verbs::load().ok()?, knobs)
        .map(|device| format!("ONECOPY_VERBS_READ_MIN=auto, as {device} is a device in software"))
}

/// A device of this rank of which a read that has succeeded may have brought nothing.
pub fn unsound<P: Provider>(provider: &P, knobs: &Knobs) -> Option<String> {
    let rails = rails(provider, knobs).ok()?;
    let mut devices = rails.iter().map(|chosen| &chosen.device);
    let unsound = devices.find(|device| !device.limits().sound_reads)?;
    Some(unsound.name().to_owned())
}

/// What they say of lanes by datagrams.
fn datagrams(knobs: &Knobs) -> ud::Settings {
    let common = settings(knobs);
    ud::Settings {
        address: common.address,
        packet: sizes(knobs).packet as usize,
        receives: knobs.verbs_ud_receives,
        sends: common.sends,
        window: common.window,
        inline: common.inline,
        silence: knobs.verbs_ud_timeout,
        drop: u8::try_from(knobs.verbs_ud_drop).unwrap_or(100),
        seed: knobs.verbs_ud_seed as u64,
    }
}

/// What they say of the memory that lanes take.
#[must_use]
pub fn sizes(knobs: &Knobs) -> Sizes {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    Sizes {
        slot: number(knobs.verbs_slot),
        receives: number(knobs.verbs_receives),
        receives_max: number(knobs.verbs_receives_max),
        stripe: number(STRIPE),
        datagrams: number(knobs.verbs_ud_receives),
        sends: number(knobs.verbs_sends),
        depth: number(knobs.verbs_window),
        lanes: number(knobs.verbs_lanes),
        ..Sizes::default()
    }
}

/// How the ranks of a job reach one another by such a device, and why.
#[must_use]
pub fn mode(knobs: &Knobs, job: &JobShape, limits: &Limits) -> (Mode, Vec<String>) {
    let forced = |mode| {
        let reason = format!("ONECOPY_VERBS_MODE={}", knobs.verbs_mode);
        (mode, vec![reason])
    };
    match knobs.verbs_mode {
        VerbsMode::Connections => forced(Mode::Connections),
        VerbsMode::Extended => forced(Mode::Extended),
        VerbsMode::Datagrams => forced(Mode::Datagrams),
        VerbsMode::Auto => modes::choose(job, &sizes(knobs), limits, knobs.verbs_memory as u64),
    }
}

/// The device, port and address that the knobs name, or the first that will do.
///
/// # Errors
/// What there is, and why none of it will do.
pub fn choose<P: Provider>(provider: &P, knobs: &Knobs) -> Result<Chosen<P>, Error> {
    search(provider, knobs)?.first()
}

/// The rails of a rank here.
///
/// # Errors
/// As [`choose`].
pub fn rails<P: Provider>(provider: &P, knobs: &Knobs) -> Result<Vec<Chosen<P>>, Error> {
    let mut search = search(provider, knobs)?;
    let first = search.first()?;
    Ok(search.rails(first, settings(knobs).rails))
}

/// A look at the ports that the knobs permit.
fn search<'p, P: Provider>(provider: &'p P, knobs: &Knobs) -> Result<Search<'p, P>, Error> {
    let wanted = settings(knobs);
    let device = wanted.device.as_deref();
    Search::new(provider, device, wanted.port, wanted.address)
}

/// Opens the device that the knobs name, or the best one.
///
/// # Errors
/// A [`Refusal`]: no libibverbs, no device or port that fits, or none that could be set up.
pub fn open(knobs: &Knobs, job: &mut LaneJob<'_>) -> Result<Box<dyn Lanes>, Refusal> {
    let verbs = Verbs::load().map_err(without_library)?;
    open_of(&verbs, knobs, job)
}

/// The same of a provider's devices.
///
/// # Errors
/// As [`open`], but for the library.
pub fn open_of<P: Provider>(
    provider: &P,
    knobs: &Knobs,
    job: &mut LaneJob<'_>,
) -> Result<Box<dyn Lanes>, Refusal> {
    let mut search = search(provider, knobs).map_err(|error| refusal(&error))?;
    let chosen = search.first().map_err(|error| refusal(&error))?;
    if let Some(refusal) = lacks(knobs, &chosen) {
        return Err(refusal);
    }
    let (mode, reasons) = mode(knobs, &job.shape(), chosen.device.limits());
    tracing::info!("lanes by {mode:?}: {}", reasons.join("; "));
    let opened: Result<Box<dyn Lanes>, Error> = match mode {
        Mode::Connections => by_rails(search, chosen, settings(knobs)),
        Mode::Extended => {
            let file = (job.node_file)().map_err(|reason| {
                Refusal::new(reason, "ranks of a node share such connections by a file")
            })?;
            let share = NodeShare {
                nodes: job.nodes.clone(),
                file,
            };
            Adapter::on_extended(chosen, settings(knobs), share).map(|lanes| Box::new(lanes) as _)
        }
        Mode::Datagrams => {
            Datagrams::on(chosen, datagrams(knobs)).map(|lanes| Box::new(lanes) as _)
        }
    };
    opened.map_err(|error| refusal(&error))
}

/// Lanes by all ports that will do, or by `chosen` where one is enough: there is nothing to share out.
fn by_rails<P: Provider>(
    search: Search<'_, P>,
    chosen: Chosen<P>,
    settings: Settings,
) -> Result<Box<dyn Lanes>, Error> {
    let mut rails = match settings.rails {
        ..2 => vec![chosen],
        most => search.rails(chosen, most),
    };
    if rails.len() < 2
        && let Some(only) = rails.pop()
    {
        return Adapter::on(only, settings).map(|lanes| Box::new(lanes) as _);
    }
    let ports = rails.iter().map(|rail| {
        let (name, port) = (rail.device.name(), rail.port);
        format!("{name} port {port}, {} Mbit/s", rail.state.speed)
    });
    let ports = ports.collect::<Vec<_>>().join("; ");
    tracing::info!("lanes by {} rails: {ports}", rails.len());
    Rails::on(rails, settings).map(|lanes| Box::new(lanes) as _)
}
