// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is copied between the processes of this node, by which mechanism, and why it was slow.
//!
//! *Collectors* observe: one by eBPF, for any program, one by the statistics pages of onecopy's own
//! ranks. Both give an [`Observed`]: figures since the start, by process ids. A [`report::Report`] is
//! made of it for people and programs: with names, percentiles and remedies.
//!
//! Nothing here starts a program or draws on a terminal; that is the command's.

pub mod bpf;
pub mod diff;
pub mod histogram;
pub mod job;
pub mod missed;
pub mod modules;
pub mod names;
pub mod observed;
pub mod own;
pub mod perfetto;
pub mod plain;
pub mod proc;
pub mod prometheus;
pub mod rdma;
pub mod report;
mod shares;

pub use observed::Observed;
