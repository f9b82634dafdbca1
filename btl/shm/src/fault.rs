// SPDX-License-Identifier: MIT OR Apache-2.0
//! Points at which a test kills the process.
//!
//! Without the feature `fault-points` nothing of this is in the program. With it,
//! `ONECOPY_JOB_FAULT=label:count[:rank]` in the environment kills a process at a label. It does so when that rank, or
//! any rank if none is given, passes it for the `count`-th time. The process sends itself `SIGKILL`, which no handler
//! sees. `ONECOPY_JOB_FAULT=list` counts passings instead, see `passed`.
//!
//! `ONECOPY_JOB_LIMIT=label:number` makes something run out early that would take long to use up, see [`limit`].

/// A place where a process may be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// What has happened there, and what has not.
    pub doc: &'static str,
}

macro_rules! labels {
    ($($name:literal $doc:literal,)+) => {
        /// All labels.
        pub static LABELS: &[Label] = &[$(Label { name: $name, doc: $doc }),+];
    };
}

labels! {
    "join.before" "The segment exists; the launcher does not know of it.",
    "join.after" "All ranks have joined; no peer is connected.",
    "connect.mapped" "A peer's segment is mapped; no layer is proven.",
    "connect.proven" "The layers towards a peer are proven; nothing was sent.",
    "connect.begun" "A connection with a rank on another node is begun; nothing was sent.",
    "proof.sent" "This rank has answered the one that it connects with.",
    "inbound.proven" "A rank that connects has proven who it is; it was not notified.",
    "frame.partial" "A chunk is given to the kernel, or a part of it.",
    "farewell.sent" "This rank has sent its farewell to a rank on another node.",
    "ring.claim" "Slots are claimed, nothing is written to them.",
    "ring.publish" "Payload is written; the header is not.",
    "ring.published" "A record is published; the consumer was not notified.",
    "ring.release" "Records were read; the tail does not show that.",
    "ring.released" "The tail shows that records were read; a producer that waits was not notified.",
    "active.set" "The sender's bit stands in the bitmap; the doorbell was not rung.",
    "doorbell.armed" "The rank is about to sleep.",
    "doorbell.rung" "A sleeper was woken.",
    "chunk.written" "A chunk is filled; no record names it.",
    "chunk.read" "A chunk was read; it was not given back.",
    "chunk.return" "A message is in a chunk of the peer's, and counted; no record names it.",
    "credit.given" "Credit was given back.",
    "rts.sent" "A message is announced.",
    "cts.sent" "The receiver has asked for something.",
    "data.sent" "A chunk of an announced message is sent.",
    "fin.sent" "An announced or synchronous message is received, and the sender was notified.",
    "device.accepted" "A buffer in a device is to fetch a message itself; nothing was copied.",
    "coop.opened" "A cooperative transfer is open.",
    "coop.claimed" "A chunk of a cooperative transfer is taken and not copied.",
    "coop.done" "The sender has copied a chunk and reported that.",
    "coop.closed" "A cooperative transfer is over; the sender was not notified.",
    "xpmem.attached" "A window of the peer's memory is mapped; nothing was copied.",
    "knem.exposed" "A message is exposed as a region; it is not announced.",
    "coll.publish" "A contribution to a collective is written; its line does not say so.",
    "coll.published" "A contribution is published; sleepers were not woken.",
    "coll.read" "A part of a member's buffer was read; more may be needed.",
    "coll.written" "Something was written into a member's buffer; it was not notified.",
    "coll.asked" "A member was called to copy what this rank cannot read; it was not woken.",
    "coll.answer" "What a member called for is copied to it; it was not notified.",
    "coll.done" "All that is needed of a collective was read; no member was notified.",
    "coll.failed" "A communicator is given up; nobody was woken.",
    "leave.before" "Everything is sent; the last barrier is not begun.",
    "leave.met" "All ranks have come to the last barrier; the launcher does not know that this one leaves.",
    "leave.after" "The launcher knows that this rank leaves.",
}

/// Passes the point `label`.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn point(label: &'static str) {
    let _ = label;
}

/// How many there may be of what `label` names: `usual`, unless a test wants fewer.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
#[must_use]
pub fn limit(label: &'static str, usual: u32) -> u32 {
    let _ = label;
    usual
}

#[cfg(feature = "fault-points")]
pub(crate) use armed::Order;
#[cfg(feature = "fault-points")]
pub use armed::{limit, passed, point};

#[cfg(feature = "fault-points")]
mod armed {
    use super::LABELS;
    use crate::sync::{AtomicU64, Ordering};
    use std::sync::OnceLock;

    /// What a test orders by a variable of the environment: `label:count[..][:rank]`.
    #[derive(Debug)]
    pub(crate) struct Order {
        /// Of what.
        pub(crate) label: String,
        /// At which time, from 1.
        pub(crate) count: u64,
        /// And at all later ones.
        pub(crate) lasting: bool,
        /// Whether it is meant for this process: it names its rank, or none.
        pub(crate) here: bool,
    }

    impl Order {
        /// The order that a variable holds.
        pub(crate) fn of(variable: &str) -> Option<Self> {
            let text = std::env::var(variable).ok()?;
            let mut parts = text.split(':');
            let label = parts.next()?.to_owned();
            let count = parts.next().unwrap_or_default();
            let lasting = count.ends_with("..");
            let count = count.trim_end_matches("..").parse().unwrap_or(1);
            let here = parts
                .next()
                .is_none_or(|rank| std::env::var("ONECOPY_JOB_RANK").as_deref() == Ok(rank));
            Some(Self {
                label,
                count,
                lasting,
                here,
            })
        }
    }

    fn plan() -> Option<&'static Order> {
        static PLAN: OnceLock<Option<Order>> = OnceLock::new();
        PLAN.get_or_init(|| Order::of("ONECOPY_JOB_FAULT")).as_ref()
    }

    fn counts() -> &'static [AtomicU64] {
        static COUNTS: OnceLock<Vec<AtomicU64>> = OnceLock::new();
        COUNTS.get_or_init(|| LABELS.iter().map(|_| AtomicU64::new(0)).collect())
    }

    /// Passes the point `label`.
    ///
    /// # Panics
    /// If there is no such label.
    pub fn point(label: &'static str) {
        let Some(plan) = plan() else { return };
        let index = LABELS.iter().position(|known| known.name == label);
        let index = index.unwrap_or_else(|| panic!("{label} is not in the list of fault points"));
        let count = counts()[index].fetch_add(1, Ordering::Relaxed) + 1;
        if plan.here && plan.label == label && plan.count == count {
            // Nothing after this line happens.
            let _ =
                nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
        }
    }

    /// How many there may be of what `label` names: `usual`, unless a test wants fewer.
    #[must_use]
    pub fn limit(label: &'static str, usual: u32) -> u32 {
        static LIMIT: OnceLock<Option<(String, u32)>> = OnceLock::new();
        let limit = LIMIT.get_or_init(|| {
            let text = std::env::var("ONECOPY_JOB_LIMIT").ok()?;
            let (label, number) = text.split_once(':')?;
            Some((label.to_owned(), number.parse().ok()?))
        });
        match limit {
            Some((name, number)) if name == label => usual.min(*number),
            _ => usual,
        }
    }

    /// How often each label was passed so far, while `ONECOPY_JOB_FAULT` is set.
    #[must_use]
    pub fn passed() -> Vec<(&'static str, u64)> {
        LABELS
            .iter()
            .zip(counts())
            .map(|(label, count)| (label.name, count.load(Ordering::Relaxed)))
            .collect()
    }
}
