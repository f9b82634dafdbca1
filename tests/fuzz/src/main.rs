// SPDX-License-Identifier: MIT OR Apache-2.0
//! One program for all targets, so that it is linked once. `ONECOPY_FUZZ` names the target.
#![no_main]

use std::sync::OnceLock;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("ONECOPY_FUZZ").unwrap_or_default();
        let found = onecopy_fuzz::target(&name);
        let target = found.unwrap_or_else(|| panic!("ONECOPY_FUZZ={name:?} is no target"));
        RUN.get_or_init(|| target.run);
    },
    |data: &[u8]| {
        if let Some(run) = RUN.get() {
            run(data);
        }
    }
);
