// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices for lanes: a model of them, or that of a bed.
#![allow(dead_code, reason = "each test program uses a part")]

use onecopy::Knobs;
use onecopy_btl::lanes::Open;
use onecopy_btl::layers::verbs::open_of;
use onecopy_btl::registry::lanes_of_this_host;
use onecopy_verbs::model::Fabric;
use std::time::Duration;

/// Devices of so many nodes.
pub(crate) fn fabric(nodes: u32) -> Fabric {
    let names: Vec<String> = (0..nodes).map(|node| format!("m{node}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Fabric::new(&names)
}

/// Whether this runs in a bed that has a device.
pub(crate) fn is_real() -> bool {
    std::env::var_os("BED").is_some()
}

/// The device of a rank: that of its node, or the bed's.
pub(crate) fn device(fabric: &Fabric, node: u32) -> Open {
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
            verbs_device: Some(format!("m{node}")),
            ..knobs.clone()
        };
        open_of(&fabric, &knobs, job)
    })
}
