// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank is killed at each labelled point, under each set of mechanisms that reaches it.

use super::job::{self, RANKS};
use super::traffic;
use onecopy_shm::fault::{LABELS, Label};
use std::collections::BTreeMap;

const FAULT: &str = "ONECOPY_JOB_FAULT";

/// Mechanisms, with knobs that make everything scarce: what a dead rank held is soon missed.
const VARIANTS: [(&str, &[(&str, &str)]); 4] = [
    ("all", &[]),
    ("cico", &[("ONECOPY_LAYERS", "cico")]),
    (
        "heap",
        &[("ONECOPY_LAYERS", "cico,heap"), ("ONECOPY_COOP", "off")],
    ),
    (
        "cma",
        &[
            ("ONECOPY_LAYERS", "cico,cma"),
            ("ONECOPY_COOP_MIN", "64K"),
            ("ONECOPY_CMA_MIN", "16K"),
        ],
    ),
];

fn env(variant: &[(&str, &str)], fault: String) -> Vec<(&'static str, String)> {
    let scarce = [
        ("ONECOPY_RING_SLOTS", "32"),
        ("ONECOPY_EAGER_SLOTS_MAX", "512"),
        ("ONECOPY_POOL_MAX", "256K"),
        ("ONECOPY_EAGER_CREDIT", "64K"),
        ("ONECOPY_HEAP_SIZE", "64M"),
    ];
    let all = scarce.iter().chain(variant);
    let mut env: Vec<_> = all
        .map(|&(name, value)| (known(name), value.to_owned()))
        .collect();
    env.push((FAULT, fault));
    env.push((traffic::ROUNDS, "2".to_owned()));
    env
}

fn known(name: &str) -> &'static str {
    [
        "ONECOPY_RING_SLOTS",
        "ONECOPY_EAGER_SLOTS_MAX",
        "ONECOPY_POOL_MAX",
        "ONECOPY_EAGER_CREDIT",
        "ONECOPY_HEAP_SIZE",
        "ONECOPY_LAYERS",
        "ONECOPY_COOP",
        "ONECOPY_COOP_MIN",
        "ONECOPY_CMA_MIN",
    ]
    .into_iter()
    .find(|other| *other == name)
    .expect("a name of the list")
}

#[test]
fn a_death_at_each_point_hurts_nobody_else() {
    let mut reached = BTreeMap::new();
    let mut delays = Vec::new();
    let mut deaths = 0;
    for (name, variant) in VARIANTS {
        // First nobody dies, and the passings are counted.
        let ran = job::run("traffic", &env(variant, "none:0".to_owned()));
        assert!(!traffic::verify(&ran, 0, name));
        for (index, label) in labels().enumerate() {
            let victim = index % RANKS;
            let passed = ran.said(victim, "passed");
            let count = passed.iter().filter(|words| words[0] == label.name);
            let count = count
                .filter_map(|words| words[1].parse::<u64>().ok())
                .max()
                .unwrap_or(0);
            *reached.entry(label.name).or_insert(0) += count;
            let mut at = vec![1, count / 2];
            at.retain(|&at| at > 0 && at <= count);
            at.dedup();
            for at in at {
                let fault = format!("{}:{at}:{victim}", label.name);
                let what = format!("{name}: {fault}");
                let start = job::now();
                let ran = job::run("traffic", &env(variant, fault));
                if traffic::verify(&ran, victim, &what) {
                    deaths += 1;
                    let errors = (0..RANKS).flat_map(|rank| ran.said(rank, "error"));
                    delays.extend(
                        errors
                            .filter_map(|words| words[1].parse::<u64>().ok())
                            .map(|t| t - start),
                    );
                }
            }
        }
    }
    let missed: Vec<_> = reached.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missed.is_empty(), "not reached by any traffic: {missed:?}");
    assert!(deaths >= labels().count(), "{deaths} deaths");
    job::say(&format!("{deaths} deaths at {} points", labels().count()));
}

/// Points of messages; those of collectives have their own test.
fn labels() -> impl Iterator<Item = &'static Label> {
    LABELS
        .iter()
        .filter(|label| !label.name.starts_with("coll."))
}

#[test]
fn labels_are_unique_and_documented() {
    for (index, label) in LABELS.iter().enumerate() {
        assert!(label.doc.ends_with('.'), "{}", label.name);
        assert!(LABELS[..index].iter().all(|other| other.name != label.name));
    }
}
