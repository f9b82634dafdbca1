// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices for lanes: a model of them, or that of a bed.
#![allow(dead_code, reason = "each test program uses a part")]

use onecopy::Knobs;
use onecopy_btl::lanes::Open;
use onecopy_btl::layers::verbs::open_of;
use onecopy_btl::registry::lanes_of_this_host;
use onecopy_verbs::model::{Fabric, usual_limits};
use std::time::Duration;

/// Devices of so many nodes.
pub(crate) fn fabric(nodes: u32) -> Fabric {
    let names: Vec<String> = (0..nodes).map(|node| format!("m{node}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Fabric::new(&names)
}

/// Devices of two nodes with two rails each: m0 and r0, m1 and r1.
pub(crate) fn fabric_of_rails() -> Fabric {
    let fabric = Fabric::new(&[]);
    for node in 0..2 {
        for (network, rail) in ["m", "r"].iter().enumerate() {
            let name = format!("{rail}{node}");
            fabric.add_in(&name, usual_limits(), network as u8, 25_000);
        }
    }
    fabric
}

/// The devices of a rank with two rails.
pub(crate) fn device_with_rails(fabric: &Fabric, node: u32) -> Open {
    device_of(fabric, format!("m{node},r{node}"))
}

/// Whether this runs in a bed that has two rails.
pub(crate) fn has_rails() -> bool {
    std::env::var_os("BED").is_some_and(|bed| bed == "rails")
}

/// Whether this runs in a bed that has a device.
pub(crate) fn is_real() -> bool {
    std::env::var_os("BED").is_some()
}

/// The device of a rank: that of its node, or the bed's.
pub(crate) fn device(fabric: &Fabric, node: u32) -> Open {
    device_of(fabric, format!("m{node}"))
}

fn device_of(fabric: &Fabric, names: String) -> Open {
    if is_real() {
        // Guests are translated: what answers at once elsewhere may take a second.
        return Open::by(|knobs, job| {
            let knobs = Knobs {
                verbs_timeout: Duration::from_secs(20),
                verbs_ud_timeout: Duration::from_secs(20),
                ..knobs.clone()
            };
            lanes_of_this_host().open(&knobs, job)
        });
    }
    let fabric = fabric.clone();
    Open::by(move |knobs, job| {
        let knobs = Knobs {
            verbs_device: Some(names.clone()),
            ..knobs.clone()
        };
        open_of(&fabric, &knobs, job)
    })
}
