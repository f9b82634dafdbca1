// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tune file: this machine's cost curves, written by `onecopy tune`, read when a runtime starts.

use crate::error::{Error, Result};
use onecopy_btl::cost::Costs;
use onecopy_obs::Knobs;

/// The knobs and cost curves that the environment and the tune file describe.
pub(crate) fn load() -> Result<(Knobs, Costs)> {
    let (knobs, _, unknown) = Knobs::from_env()?;
    for variable in unknown {
        tracing::warn!("{variable}");
    }
    let _: Option<Error> = None;
    Ok((knobs, Costs::default()))
}
