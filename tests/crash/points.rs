// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank is killed at each labelled point, under each set of layers that reaches it.

use super::job::{self, CrashRun};
use super::labels::{self, CrashJob, FAULT, Fault, Label, NO_FAULT};
use super::traffic;
use onecopy_shm::fault::LABELS;
use std::collections::BTreeMap;

/// A name, and knobs.
type Variant = (&'static str, &'static [(&'static str, &'static str)]);

/// Layers, with knobs that make everything scarce: what a dead rank held is soon missed.
const VARIANTS: [Variant; 4] = [
    ("all", &[]),
    // Chunks return there on every machine.
    (
        "cico",
        &[("ONECOPY_LAYERS", "cico"), ("ONECOPY_POOL_WRITABLE", "on")],
    ),
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

/// Traffic under one of the variants.
struct Traffic<'a>(&'a [Variant]);

impl CrashJob for Traffic<'_> {
    fn run(&self, variant: usize, fault: Option<Fault>) -> (CrashRun, bool) {
        let (name, knobs) = self.0[variant];
        let order = fault.map_or(NO_FAULT.to_owned(), |fault| fault.to_string());
        let ran = job::run("traffic", &env(knobs, order.clone()));
        let victim = fault.map_or(0, |fault| fault.victim);
        let died = traffic::verify(&ran, victim, &format!("{name}: {order}"));
        (ran, died)
    }

    fn moments(&self, passings: u64) -> Vec<u64> {
        let mut moments = vec![1, passings / 2];
        moments.retain(|&moment| moment > 0);
        moments.dedup();
        moments
    }
}

fn env(knobs: &[(&'static str, &'static str)], fault: String) -> Vec<(&'static str, String)> {
    let scarce = [
        ("ONECOPY_RING_SLOTS", "32"),
        ("ONECOPY_EAGER_SLOTS_MAX", "512"),
        ("ONECOPY_POOL_MAX", "256K"),
        ("ONECOPY_EAGER_CREDIT", "64K"),
        ("ONECOPY_HEAP_SIZE", "64M"),
    ];
    let all = scarce.iter().chain(knobs);
    let mut env: Vec<_> = all.map(|&(name, value)| (name, value.to_owned())).collect();
    env.push((FAULT, fault));
    env.push((traffic::ROUNDS, "2".to_owned()));
    env
}

/// Kills a rank at each of the labels that `wanted` picks, under each variant.
fn kill_at(variants: &[Variant], wanted: impl Fn(&str) -> bool) -> BTreeMap<&'static str, Label> {
    labels::kill_at_each(&Traffic(variants), variants.len(), wanted)
}

/// Labels that nobody passed.
fn missed(labels: &BTreeMap<&'static str, Label>) -> Vec<&'static str> {
    let missed = labels.iter().filter(|(_, label)| label.passings() == 0);
    missed.map(|(&name, _)| name).collect()
}

fn say_deaths(name: &str, labels: &BTreeMap<&'static str, Label>) {
    let deaths: usize = labels.values().map(|label| label.deaths).sum();
    job::say(&format!("{name}: {deaths} deaths at {labels:?}"));
}

/// Whether only collectives pass it: they have a test of their own.
fn of_collectives(label: &str) -> bool {
    label.starts_with("coll.")
}

/// Whether only the layers of the kernel module pass it.
fn of_the_module(label: &str) -> bool {
    label.starts_with("xpmem.") || label.starts_with("knem.")
}

/// Whether only messages of a device's memory pass it: `mpi/tests/cuda` kills there.
fn of_a_device(label: &str) -> bool {
    label.starts_with("device.")
}

/// Whether only ranks on several nodes pass it.
fn of_a_wire(label: &str) -> bool {
    [
        "connect.begun",
        "proof.sent",
        "inbound.proven",
        "frame.partial",
        "farewell.sent",
    ]
    .contains(&label)
}

#[test]
fn a_death_at_each_point_hurts_nobody_else() {
    let labels = kill_at(&VARIANTS, |label| {
        !of_the_module(label) && !of_collectives(label) && !of_a_wire(label) && !of_a_device(label)
    });
    say_deaths("traffic", &labels);
    assert_eq!(missed(&labels), [""; 0], "not reached by any traffic");
}

/// Kills where a layer of the module is at work, by one of its interfaces.
fn kill_where_at_work(name: &str) {
    let variants = super::module::variants(job::say);
    let Some(module) = variants.iter().find(|variant| variant.name == name) else {
        return;
    };
    let own = format!("{}.", module.layer);
    let labels = kill_at(&[(module.name, module.knobs)], |label| {
        label.starts_with(&own)
            || ["rts.sent", "fin.sent", "coop.claimed", "coop.done"].contains(&label)
    });
    say_deaths(module.name, &labels);
    let mut missed = missed(&labels);
    // The extension of knem exposes nothing.
    missed.retain(|&label| of_the_module(label) && name != "knem, extension");
    assert_eq!(missed, [""; 0], "{name}");
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
