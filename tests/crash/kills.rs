// SPDX-License-Identifier: MIT OR Apache-2.0
//! A random rank is killed at a random instant, again and again.

use super::job::{self, RANKS, Random};
use super::traffic;
use std::time::Instant;

/// Variables with the number of kills and the seed; `cargo xtask soak kills` sets them.
const COUNT: &str = "TEST_KILLS";
const SEED: &str = "TEST_SEED";

#[test]
fn random_kills_hurt_nobody_else() {
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (count, seed) = (number(COUNT, 40), number(SEED, 1));
    let mut random = Random(seed);
    // How long a run takes is found out, not known: instants are spread over it.
    let start = Instant::now();
    let ran = job::run("traffic", &[(traffic::ROUNDS, "2".to_owned())]);
    assert!(!traffic::verify(&ran, 0, "nobody dies"));
    let mut span = start.elapsed().as_micros() as u64;
    let variants = super::module::variants(job::say);
    let (mut deaths, mut runs) = (0, 0);
    let began = Instant::now();
    while deaths < count {
        assert!(
            runs < 20 * count,
            "only {deaths} of {runs} runs saw a death"
        );
        let victim = random.below(RANKS as u64) as usize;
        let micros = random.below(span);
        let way = random.below(4 + variants.len() as u64) as usize;
        let (layers, knobs): (_, &[_]) = match way.checked_sub(4) {
            None => (["all", "cico", "cico,heap", "cico,cma"][way], &[]),
            Some(way) => (variants[way].name, variants[way].knobs),
        };
        let sleep = ["auto", "off"][random.below(2) as usize];
        let what = format!(
            "seed {seed}, run {runs}: rank {victim} after {micros} us, layers {layers}, sleep {sleep}"
        );
        let mut env = vec![
            (traffic::ROUNDS, "2".to_owned()),
            (traffic::KILL, format!("{victim}:{micros}")),
            ("ONECOPY_WAIT_SLEEP", sleep.to_owned()),
        ];
        match knobs {
            [] => env.push(("ONECOPY_LAYERS", layers.to_owned())),
            knobs => env.extend(knobs.iter().map(|&(name, value)| (name, value.to_owned()))),
        }
        let ran = job::run("traffic", &env);
        runs += 1;
        if traffic::verify(&ran, victim, &what) {
            deaths += 1;
        } else {
            // It was over before.
            span = span * 9 / 10 + 1000;
        }
        if deaths % 20 == 0 && count > 100 {
            job::say(&format!(
                "{deaths} of {count} kills in {runs} runs, {:.0} s",
                began.elapsed().as_secs_f64()
            ));
        }
    }
    job::say(&format!(
        "{deaths} kills in {runs} runs: survivors intact, nothing left"
    ));
}
