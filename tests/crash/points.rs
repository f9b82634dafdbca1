// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank is killed at each labelled point, under each set of layers that reaches it.

use super::job::{self, RANKS};
use super::traffic;
use onecopy_shm::fault::LABELS;
use std::collections::BTreeMap;

const FAULT: &str = "ONECOPY_JOB_FAULT";

/// Layers, with knobs that make everything scarce: what a dead rank held is soon missed.
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
        "ONECOPY_MODULE_ABI",
        "ONECOPY_XPMEM_MIN",
        "ONECOPY_KNEM_MIN",
        "ONECOPY_ATTACH_MIN",
    ]
    .into_iter()
    .find(|other| *other == name)
    .expect("a name of the list")
}

/// Kills a rank at each of the labels that `wanted` picks, under each variant; how often each label was passed, and how
/// many died.
fn kill_at(
    variants: &[(&str, &[(&str, &str)])],
    wanted: impl Fn(&str) -> bool,
) -> (BTreeMap<&'static str, u64>, usize) {
    let mut reached = BTreeMap::new();
    let mut deaths = 0;
    for &(name, variant) in variants {
        // First nobody dies, and the passings are counted.
        let ran = job::run("traffic", &env(variant, "none:0".to_owned()));
        assert!(!traffic::verify(&ran, 0, name));
        let labels = LABELS.iter().enumerate();
        for (index, label) in labels.filter(|(_, label)| wanted(label.name)) {
            let count = |rank: usize| {
                let passed = ran.said(rank, "passed");
                let of_label = passed.iter().filter(|words| words[0] == label.name);
                let counts = of_label.filter_map(|words| words[1].parse::<u64>().ok());
                counts.max().unwrap_or(0)
            };
            // Each rank's turn comes. Some labels are passed by ranks alone that answer, or that ask.
            let ranks = (index..index + RANKS).map(|rank| rank % RANKS);
            let mut passes = ranks.map(|rank| (rank, count(rank)));
            let (victim, count) = passes
                .find(|&(_, count)| count > 0)
                .unwrap_or((index % RANKS, 0));
            *reached.entry(label.name).or_insert(0) += count;
            let mut at = vec![1, count / 2];
            at.retain(|&at| at > 0 && at <= count);
            at.dedup();
            for at in at {
                let fault = format!("{}:{at}:{victim}", label.name);
                let what = format!("{name}: {fault}");
                let ran = job::run("traffic", &env(variant, fault));
                deaths += usize::from(traffic::verify(&ran, victim, &what));
            }
        }
    }
    (reached, deaths)
}

/// Whether only collectives pass it: they have a test of their own.
fn of_collectives(label: &str) -> bool {
    label.starts_with("coll.")
}

/// Whether only the layers of the kernel module pass it.
fn of_the_module(label: &str) -> bool {
    label.starts_with("xpmem.") || label.starts_with("knem.")
}

/// Whether only ranks on several nodes pass it.
fn of_a_wire(label: &str) -> bool {
    [
        "connect.begun",
        "proof.sent",
        "inbound.proven",
        "frame.partial",
        "farewell.said",
    ]
    .contains(&label)
}

#[test]
fn a_death_at_each_point_hurts_nobody_else() {
    let (reached, deaths) = kill_at(&VARIANTS, |label| {
        !of_the_module(label) && !of_collectives(label) && !of_a_wire(label)
    });
    let missed: Vec<_> = reached.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missed.is_empty(), "not reached by any traffic: {missed:?}");
    assert!(deaths >= reached.len(), "{deaths} deaths");
    job::say(&format!("{deaths} deaths at {} points", reached.len()));
}

/// Kills where a layer of the module is at work, by one of its interfaces.
fn kill_where_at_work(name: &str) {
    let variants = super::module::variants(job::say);
    let Some(module) = variants.iter().find(|variant| variant.name == name) else {
        return;
    };
    let wanted = |label: &str| {
        let own = label.starts_with(&format!("{}.", module.layer));
        own || ["rts.sent", "fin.sent", "coop.claimed", "coop.done"].contains(&label)
    };
    let (reached, deaths) = kill_at(&[(module.name, module.knobs)], wanted);
    job::say(&format!("{}: {deaths} deaths at {reached:?}", module.name));
    assert!(deaths >= 3, "{}: {deaths} deaths", module.name);
    // The extension of knem exposes nothing.
    let missed = reached
        .iter()
        .find(|(label, count)| **count == 0 && of_the_module(label));
    assert!(
        missed.is_none() || module.name == "knem, extension",
        "{missed:?}"
    );
}

#[test]
fn xpmem_by_extension() {
    kill_where_at_work("xpmem, extension");
}

#[test]
fn xpmem_by_plain() {
    kill_where_at_work("xpmem, plain");
}

#[test]
fn knem_by_extension() {
    kill_where_at_work("knem, extension");
}

#[test]
fn knem_by_plain() {
    kill_where_at_work("knem, plain");
}

#[test]
fn labels_are_unique_and_documented() {
    for (index, label) in LABELS.iter().enumerate() {
        assert!(label.doc.ends_with('.'), "{}", label.name);
        assert!(LABELS[..index].iter().all(|other| other.name != label.name));
    }
}
