// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes by devices for RDMA: they take over what the wire to another node carries. What makes them is the library's
//! endpoint, over `btl/verbs`; this says whether the machine has such a device, and opens it.

use crate::contract::{Here, Probe, Refusal};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::geteuid;
use onecopy_obs::Knobs;
use onecopy_verbs::adapter::{Adapter, Lanes, Settings};
use onecopy_verbs::device::Missing;
use onecopy_verbs::{Chosen, Error, Verbs, port};

/// Whether there is a device by which a peer could be reached.
#[must_use]
pub fn probe(_: &Here) -> Probe {
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
    format!("{name} port {port}, {kind}, reliable connections{locked}")
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
        slot: knobs.verbs_slot,
        receives: knobs.verbs_receives,
        receives_max: knobs.verbs_receives_max,
        sends: knobs.verbs_sends,
        window: u32::try_from(knobs.verbs_window).unwrap_or(u32::MAX),
        inline: knobs.verbs_inline,
        silence: knobs.verbs_timeout,
        read_min: knobs.verbs_read_min as u64,
        cache: (knobs.verbs_cache, knobs.verbs_cache_entries),
    }
}

/// Opens the device that the knobs name, or the best one.
pub fn open(knobs: &Knobs) -> Result<Box<dyn Lanes>, Refusal> {
    let verbs = Verbs::load().map_err(without_library)?;
    match Adapter::open(&verbs, settings(knobs)) {
        Ok(adapter) => Ok(Box::new(adapter)),
        Err(error) => Err(refusal(&error)),
    }
}
