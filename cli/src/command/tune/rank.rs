// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank of `onecopy tune`: whether its layer carries the messages, and what they take.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::super::{CliError, print, text};
use onecopy::{Comm, LayerId, Runtime};
use onecopy_bench::curve::{Batch, Curve};

#[derive(Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// The curve that is measured
    #[arg(long)]
    curve: String,
    /// Sizes
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Batches per size
    #[arg(long)]
    batches: u32,
    /// Whether buffers come from 'alloc'
    #[arg(long)]
    heap: bool,
}

/// What rank 0 says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum RankReply {
    /// The layer does not work with the peer.
    Refused(String),
    /// A batch.
    Batch(Batch),
}

/// The layer of a curve, and whether both sides copy; none if no layer has it.
fn layer_of(curve: &str) -> Option<(LayerId, bool)> {
    LayerId::SINGLE.into_iter().find_map(|layer| {
        let [one_sided, cooperative] = layer.labels()?.curves;
        (curve == one_sided || curve == cooperative).then_some((layer, curve == cooperative))
    })
}

/// Whether the messages went the way that is measured.
fn went_as_meant(curve: &str, runtime: &Runtime) -> bool {
    let counters = runtime.counters();
    match layer_of(curve) {
        Some((layer, cooperative)) => {
            layer.bytes(&counters) > 0 && (counters.coop_chunks_receiver > 0) == cooperative
        }
        None if curve == "eager" => counters.sends_chunk > 0 && counters.sends_rendezvous == 0,
        None => counters.pipeline_bytes > 0,
    }
}

fn print_reply(reply: &RankReply) -> Result<(), CliError> {
    let line = text::json_line(reply)?;
    print(|out| writeln!(out, "{line}"))
}

pub(crate) fn run(args: &RankArgs) -> Result<ExitCode, CliError> {
    let runtime = Runtime::init()?;
    let (rank, world) = (runtime.rank(), runtime.world());
    if runtime.size() != 2 {
        return Err(CliError::Usage(
            "only 'onecopy tune' starts this command".into(),
        ));
    }
    let needed = layer_of(&args.curve).map(|(layer, _)| layer);
    let states = runtime.layers(1 - rank)?;
    let refusal = states
        .iter()
        .find(|state| Some(state.layer) == needed)
        .and_then(|state| state.refusal.as_ref());
    // The layers are proven in each direction on its own; both must agree on whether to go on.
    let mut theirs = [0u8];
    let mine = [u8::from(refusal.is_some())];
    world.sendrecv(&mine, 1 - rank, 2, &mut theirs, 1 - rank, 2)?;
    if mine[0] + theirs[0] > 0 {
        if rank == 0 {
            let text = refusal.map_or_else(
                || "refused to the other rank".to_owned(),
                ToString::to_string,
            );
            print_reply(&RankReply::Refused(text))?;
        }
        runtime.finalize()?;
        return Ok(ExitCode::SUCCESS);
    }
    let most = args.sizes.iter().copied().max().unwrap_or(0);
    if args.heap {
        let (mut out, mut back) = (runtime.alloc(most)?, runtime.alloc(most)?);
        out.fill(1);
        back.fill(2);
        measure(args, rank, &world, &out, &mut back)?;
    } else {
        measure(args, rank, &world, &vec![1; most], &mut vec![2; most])?;
    }
    if !went_as_meant(&args.curve, &runtime) {
        return Err(CliError::Failed(
            format!(
                "messages did not go by {}: {:?}",
                args.curve,
                runtime.counters()
            )
            .into(),
        ));
    }
    runtime.finalize()?;
    Ok(ExitCode::SUCCESS)
}

fn measure(
    args: &RankArgs,
    rank: usize,
    world: &Comm,
    out: &[u8],
    back: &mut [u8],
) -> Result<(), CliError> {
    let curve = Curve {
        sizes: &args.sizes,
        batches: args.batches,
    };
    curve.measure(world, out, back, |batch| match rank {
        0 => print_reply(&RankReply::Batch(batch)),
        _ => Ok(()),
    })
}
