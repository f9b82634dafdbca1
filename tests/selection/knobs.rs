// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings that cannot be used are named, with what could be, before anything starts.

use crate::processes::Ranks;

#[test]
fn a_bad_value_is_named_with_its_range() {
    for (name, value, range) in [
        ("ONECOPY_EAGER_SLOTS_MAX", "5000", "4 KiB"),
        ("ONECOPY_RING_SLOTS", "100", "power of two"),
        ("ONECOPY_CHUNK_SIZE", "1K", "4 KiB"),
        ("ONECOPY_LAYERS", "cico,nosuch", "cma"),
        ("ONECOPY_LIVENESS_PERIOD", "1000", "40"),
        ("ONECOPY_COOP", "maybe", "off"),
        ("ONECOPY_PROGRESS_QUOTA", "0", "1024"),
        ("ONECOPY_POOL_PER_PEER", "1G", "ONECOPY_POOL_MAX"),
    ] {
        let ran = Ranks::new(2, "none").env(name, value).run();
        let errors = ran.reports("ERROR ");
        assert_eq!(errors.len(), 2, "{ran:#?}");
        for error in errors {
            assert!(error.contains(name), "{error}");
            assert!(error.contains(range), "{error} does not name {range}");
        }
        assert!(ran.reports("DONE ").is_empty());
    }
}
