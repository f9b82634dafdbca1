// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps that a test lets fail, though the machine would let them pass. Points at which a test kills
//! the process are in [`crate::fault`].
//!
//! Without the feature `fault-points` nothing of this is in the program. With it,
//! `ONECOPY_JOB_FAIL=label:count[:rank]` in the environment makes the `count`-th attempt of a step
//! fail, once, in that rank (in each rank, if none is given). With `count..` all later attempts fail
//! too. The first failure says so on the standard error. So a test that counts up knows when the
//! step is not reached as often any more.

use std::io;

/// A step that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// The error that it fails with.
    pub errno: i32,
}

macro_rules! steps {
    ($($name:literal $errno:ident $doc:literal,)+) => {
        /// All steps.
        pub static STEPS: &[Step] = &[$(Step { name: $name, doc: $doc, errno: libc::$errno }),+];
    };
}

steps! {
    "segment.create" EMFILE "The rank makes its memfd.",
    "segment.reserve" ENOSPC "Memory of a segment is reserved: rings, chunks, channels, the heap.",
    "segment.map" ENOMEM "A range of a segment is mapped.",
    "socket.send" ENOBUFS "A packet is sent, with descriptors perhaps.",
    "socket.receive" ENOMEM "A packet is received.",
    "socket.accept" EMFILE "A connection of a rank on another node is accepted.",
    "socket.connect" ENOBUFS "A connection with a rank on another node is begun.",
    "pidfd.open" EMFILE "A descriptor of another process is opened.",
    "cma.refused" EPERM "Another process's memory is read or written by the kernel; it is not permitted.",
    "cma.gone" ESRCH "The same; there is no such process.",
    "cma.fault" EFAULT "The same; there is no such memory.",
    "doorbell.sleep" ENOSYS "The rank goes to sleep.",
    "ring.claim" EAGAIN "Room for a record is claimed in a ring; it is full.",
    "receive.number" ENOMEM "A number is taken for a receive; all are taken, and it becomes a request.",
    "handle.place" ENOMEM "A place in a table of objects is taken.",
}

/// Attempts the step `label`: whether it is to go on.
///
/// # Errors
/// None: nothing fails on demand in this build.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn attempt(label: &'static str) -> io::Result<()> {
    let _ = label;
    Ok(())
}

/// Attempts the step `label`: whether it is to go on.
///
/// # Errors
/// The step's own, where `ONECOPY_JOB_FAIL` orders it for this rank.
///
/// # Panics
/// If there is no such step.
#[cfg(feature = "fault-points")]
pub fn attempt(label: &'static str) -> io::Result<()> {
    use crate::fault::Order;
    use crate::sync::{AtomicU64, Ordering};
    use std::io::Write;
    use std::sync::OnceLock;

    static PLAN: OnceLock<Option<Order>> = OnceLock::new();
    static DONE: AtomicU64 = AtomicU64::new(0);
    let plan = PLAN.get_or_init(|| Order::of("ONECOPY_JOB_FAIL").filter(|order| order.here));
    let Some(order) = plan else {
        return Ok(());
    };
    let step = STEPS.iter().find(|step| step.name == label);
    let step = step.unwrap_or_else(|| panic!("{label} is not in the list of steps that fail"));
    if order.label != label {
        return Ok(());
    }
    let attempts = DONE.fetch_add(1, Ordering::Relaxed) + 1;
    if attempts == order.count {
        let _ = writeln!(io::stderr(), "onecopy: {label} fails by order");
    }
    if attempts == order.count || order.lasting && attempts > order.count {
        return Err(io::Error::from_raw_os_error(step.errno));
    }
    Ok(())
}
