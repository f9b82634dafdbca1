// SPDX-License-Identifier: MIT OR Apache-2.0
//! Targets of coverage-guided fuzzing: everything that reads what a peer, a launcher or a user
//! writes. `cargo xtask verify fuzz` runs them with libFuzzer; `cargo test` runs each once on every
//! input kept under `corpus` and `regressions`.

mod coll;
mod engine;
mod input;
mod messages;
#[path = "../../rogue/seal.rs"]
mod seal;
mod settings;
mod stage;

/// Something to fuzz.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is the name of its corpus too.
    pub name: &'static str,
    /// Runs the production code on an input. A defect panics, or the sanitizer ends the process.
    pub run: fn(&[u8]),
    /// Inputs to begin with, made from what correct sides write.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "records",
        run: messages::records,
        seeds: messages::records_seeds,
    },
    Target {
        name: "wireup",
        run: messages::wireup,
        seeds: messages::wireup_seeds,
    },
    Target {
        name: "broker",
        run: messages::broker,
        seeds: messages::broker_seeds,
    },
    Target {
        name: "oob",
        run: messages::oob,
        seeds: messages::oob_seeds,
    },
    Target {
        name: "pmi",
        run: settings::pmi,
        seeds: settings::pmi_seeds,
    },
    Target {
        name: "settings",
        run: settings::settings,
        seeds: settings::settings_seeds,
    },
    Target {
        name: "datatypes",
        run: messages::datatypes,
        seeds: messages::datatypes_seeds,
    },
    Target {
        name: "offer",
        run: messages::offer,
        seeds: messages::offer_seeds,
    },
    Target {
        name: "coll",
        run: coll::run,
        seeds: coll::seeds,
    },
    Target {
        name: "engine",
        run: engine::run,
        seeds: engine::seeds,
    },
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
