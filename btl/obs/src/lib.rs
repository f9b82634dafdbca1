// SPDX-License-Identifier: MIT OR Apache-2.0
//! Knobs, counters and tracepoints: what can be set in onecopy, and what it reports.
//!
//! Each of the three is one table, written once by a macro beside its documentation. The parser,
//! the defaults, the ranges, the listings of `onecopy env` and the pages under `docs/` are all
//! derived from the table.
//!
//! * [`knobs`]: [`Knobs`] with a typed field per knob, read from `ONECOPY_*` variables and a tune
//!   file.
//! * [`machine`]: what a knob's `auto` stands for where the processor decides.
//! * [`counters`]: [`Counters`], plain integers that a rank adds to.
//! * [`stats`]: what a rank shows to tools: the counters, and what came from each peer.
//! * [`tracepoints`]: one function per event, which costs one branch while nobody listens.
#![forbid(unsafe_code)]

pub mod counters;
pub mod docs;
pub mod knobs;
pub mod machine;
pub mod seeds;
pub mod stats;
pub mod tracepoints;
pub mod values;

pub use counters::{COUNTERS, CounterInfo, CounterKind, CounterSnapshot, Counters};
pub use knobs::{
    KNOBS, KnobError, KnobInfo, Knobs, Origin, Origins, StreamSettings, UnknownVariable,
};
pub use tracepoints::{TRACEPOINTS, TracepointInfo};
pub use values::{
    ChunkCopy, CopyKernel, LayerList, LogLevel, ModuleAbi, NetAddress, Ptracer, VerbsMode,
    WaitSleep,
};
