// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the table of knobs and its parsers.

use super::*;
use crate::values::{KIB, MIB, parse_size, show_size};
use proptest::prelude::*;

fn from(pairs: &[(&str, &str)]) -> Result<Loaded, KnobError> {
    Knobs::from_iter(pairs.iter().copied())
}

fn fails(name: &str, value: &str) -> String {
    match from(&[(name, value)]) {
        Ok(_) => panic!("{name}={value} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn without_variables_all_is_default() {
    let (knobs, origins, unknown) = from(&[("PATH", "/bin"), ("HOME", "/root")]).expect("valid");
    assert_eq!(knobs, Knobs::default());
    assert_eq!(unknown, []);
    assert!(
        KNOBS
            .iter()
            .all(|info| origins.origin(info.name) == Origin::Default)
    );
    knobs.check().expect("defaults agree with one another");
}

#[test]
fn names_follow_the_fields() {
    for (env, field) in FIELDS {
        assert_eq!(*env, format!("ONECOPY_{}", field.to_uppercase()));
    }
    assert_eq!(FIELDS.len(), KNOBS.len());
    for (index, knob) in KNOBS.iter().enumerate() {
        assert!(knob.doc.ends_with('.'), "{}", knob.name);
        assert!(!knob.name.starts_with(JOB_PREFIX));
        assert!(KNOBS[..index].iter().all(|other| other.name != knob.name));
    }
}

#[test]
fn what_accepts_auto_says_what_it_stands_for() {
    for knob in KNOBS {
        let accepts = knob.default_text() == "auto";
        assert_eq!(knob.auto.is_some(), accepts, "{}", knob.name);
        assert!(!knob.doc.contains("auto:"), "{}: said twice", knob.name);
        assert_eq!(knob.meaning().contains(" auto: "), accepts);
    }
    let text = |name| info(name).expect("a knob").meaning();
    assert!(
        text("ONECOPY_WAIT_YIELD")
            .ends_with("auto: 4 where ranks outnumber processors, else 4000.")
    );
    assert!(text("ONECOPY_WAIT_SLEEP").ends_with("auto: on."));
}

#[test]
fn what_auto_stands_for_would_be_accepted() {
    let times = auto::CopyTimes {
        chunks: 1.0,
        call: 2.0,
    };
    for (strings_take_lines, oversubscribed, mapped) in [
        (false, false, false),
        (true, false, true),
        (false, true, true),
        (true, true, false),
    ] {
        let situation = Situation {
            strings_take_lines,
            first_cache: (!mapped).then_some(32 * KIB),
            ranks: if oversubscribed { 100 } else { 2 },
            oversubscribed,
            mapped,
            len: 1 << 20,
            copied_from: Some(128 * KIB),
            slots_take: 2 * KIB,
            extension: mapped,
            copies: mapped.then_some([times; 2]),
        };
        for knob in KNOBS {
            let value = knob
                .auto
                .and_then(|auto| auto.value(&Knobs::default(), &situation));
            if let Some(value) = value.filter(|value| *value != Value::Never) {
                Knobs::default()
                    .set(knob.name, &value.to_string())
                    .expect(knob.name);
            }
        }
    }
}

#[test]
fn the_processor_decides_what_auto_stands_for() {
    let here = Situation::here();
    let strings = |strings_take_lines| Situation {
        strings_take_lines,
        ..here
    };
    let value_of = |rule: &Auto, strings_take_lines| {
        rule.value(&Knobs::default(), &strings(strings_take_lines))
    };
    for (rule, by_stores, by_strings) in [
        (
            &auto::CHUNK_COPY,
            Value::Word("owned"),
            Value::Word("string"),
        ),
        (
            &auto::POOL_PER_PEER,
            Value::Size(MIB),
            Value::Size(544 * KIB),
        ),
        (&auto::POOL_WRITABLE, Value::Word("off"), Value::Word("on")),
    ] {
        assert_eq!(value_of(rule, false), Some(by_stores));
        assert_eq!(value_of(rule, true), Some(by_strings));
    }
    let knobs = Knobs::default();
    assert_eq!(knobs.writes_strings(), crate::machine::strings_take_lines());
    assert_eq!(knobs.maps_writable(), knobs.writes_strings());
}

#[test]
fn every_default_is_in_range_and_reads_back() {
    let defaults = Knobs::default();
    for knob in KNOBS {
        let text = knob.default_text();
        assert_eq!(defaults.text(knob.name), Some(text.clone()));
        let (knobs, origins, _) = from(&[(knob.name, &text)]).expect(knob.name);
        assert_eq!(knobs, defaults, "{}", knob.name);
        assert_eq!(origins.origin(knob.name), Origin::Environment);
    }
}

#[test]
fn values_reach_their_fields() {
    let (knobs, origins, _) = from(&[
        ("ONECOPY_EAGER_SLOTS_MAX", "2K"),
        ("ONECOPY_EAGER_MAX", "64KiB"),
        ("ONECOPY_HEAP_MIN", "auto"),
        ("ONECOPY_POOL_MAX", "8 MiB"),
        ("ONECOPY_RING_SLOTS", "256"),
        ("ONECOPY_COOP", "off"),
        ("ONECOPY_WAIT_SLEEP", "on"),
        ("ONECOPY_LIVENESS_PERIOD", "5"),
        ("ONECOPY_JOIN_TIMEOUT", "2min"),
        ("ONECOPY_TUNE_FILE", "/tmp/t"),
        ("ONECOPY_COPY_KERNEL", "nt"),
        ("ONECOPY_LAYERS", "^cma"),
    ])
    .expect("valid");
    assert_eq!(knobs.eager_slots_max, Some(2 * KIB));
    assert_eq!(knobs.eager_max, Some(64 * KIB));
    assert_eq!(knobs.heap_min, None);
    assert_eq!(knobs.pool_max, 8 * MIB);
    assert_eq!(knobs.ring_slots, Some(256));
    assert!(!knobs.coop);
    assert_eq!(knobs.wait_sleep, WaitSleep::On);
    assert_eq!(knobs.liveness_period, Duration::from_millis(5));
    assert_eq!(knobs.join_timeout, Duration::from_secs(120));
    assert_eq!(knobs.tune_file, Some(Some(PathBuf::from("/tmp/t"))));
    assert_eq!(knobs.copy_kernel, CopyKernel::NonTemporal);
    assert!(knobs.layers.allows("heap") && !knobs.layers.allows("cma"));
    assert_eq!(origins.origin("ONECOPY_HEAP_MIN"), Origin::Environment);
    assert_eq!(origins.origin("ONECOPY_CMA_MIN"), Origin::Default);
}

#[test]
fn the_environment_wins_over_the_file() {
    let (knobs, origins, unknown) = Knobs::load(
        [("ONECOPY_HEAP_MIN", "4K")],
        [
            ("ONECOPY_HEAP_MIN", "8K"),
            ("ONECOPY_CMA_MIN", "16K"),
            ("ONECOPY_NO_SUCH_THING_AT_ALL", "1"),
        ],
    )
    .expect("valid");
    assert_eq!(knobs.heap_min, Some(4 * KIB));
    assert_eq!(knobs.cma_min, Some(16 * KIB));
    assert_eq!(origins.origin("ONECOPY_HEAP_MIN"), Origin::Environment);
    assert_eq!(origins.origin("ONECOPY_CMA_MIN"), Origin::File);
    assert_eq!(unknown.len(), 1);
    assert_eq!(unknown[0].nearest, None);
}

#[test]
fn unknown_variables_are_reported_with_the_nearest_knob() {
    let (_, _, unknown) = from(&[
        ("ONECOPY_EAGR_MAX", "1K"),
        ("ONECOPY_RINGSLOTS", "64"),
        ("ONECOPY_JOB_FD", "3"),
        ("ONECOPY_XYZZY", "1"),
        ("ONECOPY_eager_max", "1"),
    ])
    .expect("unknown variables are no error");
    let near: Vec<_> = unknown.iter().map(|var| var.nearest).collect();
    assert_eq!(
        near,
        [
            Some("ONECOPY_EAGER_MAX"),
            Some("ONECOPY_RING_SLOTS"),
            None,
            Some("ONECOPY_EAGER_MAX")
        ]
    );
    assert_eq!(
        unknown[0].to_string(),
        "ONECOPY_EAGR_MAX is not a knob; did you mean ONECOPY_EAGER_MAX?"
    );
}

#[test]
fn a_value_out_of_range_is_named_with_its_range() {
    assert_eq!(
        fails("ONECOPY_RING_SLOTS", "100"),
        "ONECOPY_RING_SLOTS=100: not a power of two; accepted: auto, or a power of two from 32 to 32768"
    );
    assert_eq!(
        fails("ONECOPY_EAGER_SLOTS_MAX", "5K"),
        "ONECOPY_EAGER_SLOTS_MAX=5K: too large; accepted: auto, or 0 to 4 KiB"
    );
    assert_eq!(
        fails("ONECOPY_LIVENESS_PERIOD", "41"),
        "ONECOPY_LIVENESS_PERIOD=41: too long; accepted: 1 ms to 40 ms"
    );
    assert_eq!(
        fails("ONECOPY_LAYERS", "cico,xpmen"),
        "ONECOPY_LAYERS=cico,xpmen: no layer is called 'xpmen'; accepted: all, or a list of self, heap, xpmem, cma, knem, cico, verbs, tcp; ^ before the \
         list: all but these"
    );
    assert_eq!(
        fails("ONECOPY_LOG", "loud"),
        "ONECOPY_LOG=loud: not one of the words; accepted: off, error, warn, info, debug, trace"
    );
}

#[test]
fn no_knob_but_paths_and_names_takes_rubbish() {
    let free = [
        "ONECOPY_TUNE_FILE",
        "ONECOPY_NET_ADDRESS",
        "ONECOPY_NODE",
        "ONECOPY_VERBS_DEVICE",
    ];
    for knob in KNOBS.iter().filter(|knob| !free.contains(&knob.name)) {
        for rubbish in [
            "",
            " ",
            "-1",
            "ﬀ",
            "12x",
            "99999999999999999999999",
            "1e3",
            "^",
            ",",
        ] {
            let message = fails(knob.name, rubbish);
            assert!(message.contains(knob.name), "{message}");
            assert!(message.contains(&knob.range()), "{message}");
        }
    }
    for name in free {
        fails(name, "");
    }
}

#[test]
fn knobs_that_contradict_each_other_are_named() {
    let error = from(&[
        ("ONECOPY_RING_SLOTS", "32"),
        ("ONECOPY_EAGER_SLOTS_MAX", "2K"),
    ])
    .expect_err("half a ring is 1 KiB");
    assert_eq!(
        error.to_string(),
        "ONECOPY_EAGER_SLOTS_MAX=2 KiB: more than half a ring; accepted: up to 1 KiB while ONECOPY_RING_SLOTS=32"
    );
    from(&[
        ("ONECOPY_CHUNK_COPY", "string"),
        ("ONECOPY_CHUNK_SIZE", "1M"),
    ])
    .expect_err("more than POOL_PER_PEER");
    from(&[
        ("ONECOPY_CHUNK_SIZE", "1M"),
        ("ONECOPY_POOL_PER_PEER", "1M"),
    ])
    .expect("agree");
}

/// A default that is more than another knob permits yields to it: nobody set it, so nobody could mend it.
#[test]
fn no_default_contradicts_a_knob_that_is_set() {
    let values = [
        "0", "1", "2", "16", "32", "64", "100", "1000", "4K", "8K", "64K", "1M", "1G", "16T", "on",
        "off",
    ];
    for knob in KNOBS {
        for value in values {
            if let Err(error) = from(&[(knob.name, value)]) {
                assert_eq!(error.name, knob.name, "{error}");
            }
        }
    }
}

#[test]
fn set_names_an_unknown_knob() {
    let error = Knobs::default()
        .set("ONECOPY_COPP", "on")
        .expect_err("no such knob");
    assert!(error.to_string().contains("ONECOPY_COOP"), "{error}");
}

proptest! {
    #[test]
    fn sizes_read_back(bytes in 0..=usize::MAX) {
        prop_assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
    }

    #[test]
    fn round_sizes_read_back(number in 0usize..4096, shift in 0u32..44) {
        let bytes = number << shift;
        prop_assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
    }

    #[test]
    fn units_agree(number in 0usize..=1024, unit in 0usize..5) {
        let (letter, factor) = [("", 1), ("k", KIB), ("M", MIB), ("g", GIB), ("T", TIB)][unit];
        for suffix in ["", "B", "iB"] {
            if letter.is_empty() && suffix == "iB" {
                continue;
            }
            prop_assert_eq!(parse_size(&format!("{number}{letter}{suffix}")), Ok(number * factor));
            prop_assert_eq!(parse_size(&format!(" {number} {letter}{suffix} ")), Ok(number * factor));
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(index in 0..KNOBS.len(), text in ".{0,24}") {
        let _ = from(&[(KNOBS[index].name, &text)]);
        let _ = from(&[(&format!("ONECOPY_{text}"), "1")]);
    }

    #[test]
    fn sizes_of_a_knob_read_back(bytes in 0usize..=4096) {
        let (knobs, ..) = from(&[("ONECOPY_EAGER_SLOTS_MAX", &bytes.to_string())]).expect("in range");
        prop_assert_eq!(knobs.eager_slots_max, Some(bytes));
        let text = knobs.text("ONECOPY_EAGER_SLOTS_MAX").expect("a knob");
        let (again, ..) = from(&[("ONECOPY_EAGER_SLOTS_MAX", &text)]).expect("in range");
        prop_assert_eq!(again, knobs);
    }
}

#[test]
fn rings_leave_room_in_the_first_cache() {
    let slots = |first_cache: Option<usize>, ranks| {
        let situation = Situation {
            first_cache,
            ranks,
            ..Situation::here()
        };
        auto::RING_SLOTS.number(&Knobs::default(), &situation)
    };
    for (kib, expected) in [(1, 128), (32, 128), (48, 256), (64, 256), (128, 256)] {
        assert_eq!(slots(Some(kib * KIB), 2), expected, "{kib} KiB");
    }
    assert_eq!(slots(None, 2), 256);
    assert_eq!(slots(Some(usize::MAX), 1000), 128);
}
