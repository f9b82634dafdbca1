// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info memory`.

use std::process::ExitCode;

use serde::Serialize;
use tabled::settings::Style;

use super::super::{CliError, print, text};
use onecopy::memory::pool::{MemoryKind, Pool, PoolBuf, Settings, Stats};
use onecopy::wireup::message::MAX_RANKS;
use onecopy::{Options, Result, Runtime, Threads};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ranks that share the collectives' pool
    #[arg(short = 'n', long = "ranks", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: u32,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// What a pool holds and has done after a step of the trial.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Row {
    pub(super) step: &'static str,
    size: u64,
    free: u64,
    hits: u64,
    misses: u64,
    grown: u64,
    released: u64,
    beyond_cap: u64,
    collective: u64,
    refusals: u64,
    /// Shared memory of the rank as the kernel counts it.
    kernel: u64,
}

#[derive(Serialize)]
struct Listing<'a> {
    buckets: &'a [usize],
    cap: u64,
    near: u64,
    age_ms: u64,
    collectives_node: u64,
    ranks: u32,
    collectives_rank: u64,
    trial: &'a [Row],
}

/// The most that the trial takes. Chosen by magnitude: twice the largest bucket, and no burden for
/// any machine.
const TRIAL: u64 = 8 << 20;

fn row(step: &'static str, runtime: &Runtime) -> Row {
    let Stats {
        bytes,
        free_bytes,
        hits,
        misses,
        grown_bytes,
        released_bytes,
        beyond_cap,
        collective_bytes,
        collective_refusals,
        ..
    } = runtime.buffers().stats();
    Row {
        step,
        size: bytes,
        free: free_bytes,
        hits,
        misses,
        grown: grown_bytes,
        released: released_bytes,
        beyond_cap,
        collective: collective_bytes,
        refusals: collective_refusals,
        kernel: runtime.segment_bytes(),
    }
}

/// One buffer of each bucket, as many as the trial may take.
fn one_of_each(pool: &Pool) -> Result<Vec<PoolBuf>> {
    let mut left = TRIAL;
    let sizes = pool.settings().buckets.sizes().iter();
    sizes
        .take_while(|&&size| {
            let has_room = size as u64 <= left;
            left = left.saturating_sub(size as u64);
            has_room
        })
        .map(|&size| pool.take(size, MemoryKind::Shared))
        .collect()
}

/// Has the pool of a fresh rank go through all it can do.
pub(super) fn trial(runtime: &Runtime) -> Result<Vec<Row>> {
    let pool = runtime.buffers();
    let mut rows = vec![row("at the start", runtime)];
    let mut add_row = |step| rows.push(row(step, runtime));
    let out = one_of_each(pool)?;
    add_row("one of each bucket in use");
    drop(out);
    add_row("given back");
    let out = one_of_each(pool)?;
    add_row("once more in use");
    drop(out);
    let share = pool.settings().collective_share;
    let size = share.clamp(1, TRIAL);
    let mut held = Vec::new();
    // The pool's bookkeeping is what is tried, so nothing is written to the memory.
    // A share that is larger than four times the trial is not used up.
    while held.len() < 4
        && let Some(buf) = pool.try_take_collective(usize::try_from(size).unwrap_or(usize::MAX))
    {
        held.push(buf);
    }
    add_row("collectives take their share");
    drop(held);
    for _ in 0..2 {
        pool.age_out();
    }
    add_row("unneeded for the age");
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let mut builder = tabled::builder::Builder::default();
    builder.push_record([
        "step",
        "size",
        "free",
        "hits",
        "misses",
        "grown",
        "released",
        "beyond cap",
        "collectives",
        "refused",
        "kernel counts",
    ]);
    for row in rows {
        let size = text::size;
        builder.push_record([
            row.step.to_owned(),
            size(row.size),
            size(row.free),
            row.hits.to_string(),
            row.misses.to_string(),
            size(row.grown),
            size(row.released),
            row.beyond_cap.to_string(),
            size(row.collective),
            row.refusals.to_string(),
            size(row.kernel),
        ]);
    }
    builder.build().with(Style::psql()).to_string()
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, CliError> {
    let knobs = onecopy::tune::settings()?.knobs;
    let ranks = args.ranks as usize;
    let settings = Settings::new(&knobs, ranks, Threads::Single);
    let options = Options {
        wireup: Some(Box::new(onecopy::wireup::singleton::Singleton::new())),
        knobs: knobs.clone(),
        ..Options::default()
    };
    let runtime = Runtime::init_with(options)?;
    let trial = trial(&runtime)?;
    let listing = Listing {
        buckets: settings.buckets.sizes(),
        cap: settings.cap,
        near: settings.near(),
        age_ms: u64::try_from(settings.age.as_millis()).unwrap_or(u64::MAX),
        collectives_node: knobs.coll_pool as u64,
        ranks: args.ranks,
        collectives_rank: settings.collective_share,
        trial: &trial,
    };
    if json || args.json {
        let text = text::json(&listing)?;
        print(|out| writeln!(out, "{text}"))?;
    } else {
        let size = text::size;
        let buckets: Vec<String> = listing.buckets.iter().map(|&b| size(b as u64)).collect();
        let buckets = text::wrap(&buckets.join(", "), 90).replace('\n', "\n                 ");
        print(|out| {
            writeln!(out, "The pool of temporary buffers of a rank\n")?;
            writeln!(out, "{:<16} {buckets}", "buckets")?;
            writeln!(
                out,
                "{:<16} {} retained at most; from {} on growth releases what is free",
                "capacity",
                size(listing.cap),
                size(listing.near)
            )?;
            writeln!(
                out,
                "{:<16} released when not needed for {:?}",
                "age", settings.age
            )?;
            writeln!(
                out,
                "{:<16} {} per node, {} for each of {ranks} ranks",
                "collectives",
                size(listing.collectives_node),
                size(listing.collectives_rank)
            )?;
            writeln!(
                out,
                "\nA rank's pool, tried just now; counters say the same of a program's:\n\n{}",
                table(&trial)
            )
        })?;
    }
    runtime.finalize()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_ends_where_it_began() {
        onecopy::local(1, |runtime| {
            let rows = trial(&runtime).expect("a trial");
            let (first, last) = (rows[0], rows[rows.len() - 1]);
            assert_eq!((first.size, first.kernel), (0, last.kernel));
            assert_eq!((last.size, last.collective), (0, 0));
            assert_eq!(last.grown, last.released);
            assert!(last.hits > 0 && last.refusals > 0);
            let peak = rows.iter().map(|row| row.kernel).max();
            assert!(peak > Some(first.kernel + (4 << 20)), "{rows:#?}");
        });
    }
}
