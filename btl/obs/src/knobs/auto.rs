// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `auto` stands for, one rule per knob that has it.
//!
//! Listings and `docs/knobs.md` print a rule's text; [`Knobs`] and the tests evaluate the rule
//! itself. A rule of plain cases has no other text than its cases, so the two cannot differ.
//! `src/knob_defaults.rs` compares every rule with what the runtime does.

use super::{COOP_CHUNKS_MAX, KNOBS, KnobInfo, Knobs};
use crate::values::{ChunkCopy, CopyKernel, KIB, show_size};
use crate::{machine, seeds};

/// What it takes to copy so many bytes in two ways, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyTimes {
    /// Through chunks: the cost curve eager.
    pub chunks: f64,
    /// By a call of the kernel: the cost curve get.
    pub call: f64,
}

/// What copies take at each of [`seeds::ASK_SIZES`].
pub type AskedCopies = [CopyTimes; 2];

/// Whether chunks cost clearly less than calls of the kernel.
#[must_use]
pub fn chunks_are_cheaper(copies: &AskedCopies) -> bool {
    copies
        .iter()
        .all(|times| seeds::ASK_MARGIN * times.chunks < times.call)
}

/// What a rule may depend on, besides the knobs.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// Whether the string instruction takes lines without reading them ([`machine::strings_take_lines`]).
    pub strings_take_lines: bool,
    /// Bytes of the first data cache, where that is known.
    pub first_cache: Option<usize>,
    /// Ranks of the job.
    pub ranks: usize,
    /// Whether ranks outnumber processors.
    pub oversubscribed: bool,
    /// Whether the receiver maps the memory: it lies in the heap, or is attached.
    pub mapped: bool,
    /// Bytes of the message.
    pub len: usize,
    /// From which size on a layer copies plain memory more cheaply than chunks do; none without such a layer.
    pub copied_from: Option<usize>,
    /// Bytes that the slots of a ring take, whatever ONECOPY_EAGER_SLOTS_MAX says.
    pub slots_take: usize,
    /// Whether both ranks of a pair have `/dev/onecopy`.
    pub extension: bool,
    /// What copies take on this machine, where its curves are known.
    pub copies: Option<AskedCopies>,
}

impl Situation {
    /// As [`Self::here`], in a job whose ranks outnumber its processors or do not.
    #[must_use]
    pub fn among(oversubscribed: bool) -> Self {
        Self {
            oversubscribed,
            ..Self::here()
        }
    }

    /// A short message of plain memory, on this processor, in a job of two ranks that has a processor for each, and no
    /// kernel module.
    #[must_use]
    pub fn here() -> Self {
        Self {
            strings_take_lines: machine::strings_take_lines(),
            first_cache: machine::first_data_cache(),
            ranks: 2,
            oversubscribed: false,
            mapped: false,
            len: 0,
            copied_from: None,
            slots_take: usize::MAX,
            extension: false,
            copies: None,
        }
    }
}

/// What a rule comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes.
    Size(usize),
    /// A number.
    Count(usize),
    /// A switch that is on, or a word.
    Word(&'static str),
    /// A size that no message has.
    Never,
}

impl Value {
    /// As a number; `usize::MAX` for never.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Self::Size(number) | Self::Count(number) => number,
            Self::Never | Self::Word(_) => usize::MAX,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size(bytes) => f.write_str(&show_size(*bytes)),
            Self::Count(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
            Self::Never => f.write_str("never"),
        }
    }
}

/// A value for some situations.
#[derive(Debug)]
pub struct Case {
    value: Value,
    when: &'static str,
    holds: fn(&Knobs, &Situation) -> bool,
}

/// What `auto` of a knob stands for.
#[derive(Debug)]
pub enum Auto {
    /// The value of the first case that holds, or the last one.
    Cases(&'static [Case], Value),
    /// A value computed from knobs and situation.
    Computed(fn() -> String, fn(&Knobs, &Situation) -> Value),
    /// The least size at which the first of two curves of `onecopy_btl::cost::Costs` is below the
    /// second, and what else is to be said.
    Crossing {
        /// The curve that wins for long messages.
        cheaper: &'static str,
        /// The curve that wins for short ones.
        than: &'static str,
        /// The least size that is considered; its double is the next.
        from: usize,
        /// What the curves do not say.
        note: &'static str,
    },
    /// Known where the job runs.
    Found(&'static str),
}

impl Auto {
    /// The rule in words: part of a sentence.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Cases(cases, last) => {
                let cases = cases
                    .iter()
                    .map(|case| format!("{} {}, ", case.value, case.when));
                let otherwise = if cases.len() == 0 { "" } else { "else " };
                format!("{}{otherwise}{last}", cases.collect::<String>())
            }
            Self::Computed(text, _) => text(),
            Self::Crossing {
                cheaper,
                than,
                note,
                ..
            } => {
                let note = if note.is_empty() {
                    String::new()
                } else {
                    format!("; {note}")
                };
                format!("where the cost curve {cheaper} falls below {than}{note}")
            }
            Self::Found(text) => (*text).to_owned(),
        }
    }

    /// What it comes to, where knobs and situation say it.
    #[must_use]
    pub fn value(&self, knobs: &Knobs, situation: &Situation) -> Option<Value> {
        match self {
            Self::Cases(cases, last) => Some(
                cases
                    .iter()
                    .find(|case| (case.holds)(knobs, situation))
                    .map_or(*last, |case| case.value),
            ),
            Self::Computed(_, value) => Some(value(knobs, situation)),
            Self::Crossing { .. } | Self::Found(_) => None,
        }
    }

    /// The number it comes to.
    pub(super) fn number(&self, knobs: &Knobs, situation: &Situation) -> usize {
        self.value(knobs, situation)
            .map_or(usize::MAX, Value::number)
    }

    /// The number it comes to on this processor, where each rank has one.
    pub(super) fn here(&self, knobs: &Knobs) -> usize {
        self.number(knobs, &Situation::here())
    }
}

const fn case(value: Value, when: &'static str, holds: fn(&Knobs, &Situation) -> bool) -> Case {
    Case { value, when, holds }
}

/// Whether chunks are written by the string instruction.
pub(super) fn writes_strings(knobs: &Knobs, situation: &Situation) -> bool {
    match knobs.chunk_copy {
        ChunkCopy::Auto => CHUNK_COPY.value(knobs, situation) == Some(Value::Word("string")),
        ChunkCopy::Owned => false,
        ChunkCopy::String => true,
    }
}

const BY_STRINGS: &str = "where chunks are written by strings";
const OVERSUBSCRIBED: &str = "where ranks outnumber processors";

fn oversubscribed(_: &Knobs, situation: &Situation) -> bool {
    situation.oversubscribed
}

/// Whether a knob says from which size on a layer copies memory of this kind. Each layer has one, whose rule is where
/// its curve falls below that of messages through chunks.
fn is_decided(knobs: &Knobs, situation: &Situation) -> bool {
    let begins = |info: &&KnobInfo| match info.auto {
        Some(Auto::Crossing { cheaper, than, .. }) if ["eager", "pipeline"].contains(than) => {
            (*cheaper == "map") == situation.mapped
        }
        _ => false,
    };
    let is_set = |info: &KnobInfo| knobs.text(info.name).is_some_and(|text| text != "auto");
    knobs.eager_max.is_some() || KNOBS.iter().filter(begins).any(is_set)
}

/// Whether messages go in chunks if their buffers have changed, up to some size.
pub(super) fn takes_rewritten(knobs: &Knobs, situation: &Situation) -> bool {
    has_chunks(knobs) && !is_decided(knobs, situation)
}

/// Of so many bytes of a message as many as let two of its length wait for their receiver.
pub(super) fn at_most_two_wait(knobs: &Knobs, situation: &Situation, bytes: usize) -> usize {
    let share = share(knobs, situation) / 2;
    bytes.min(knobs.eager_credit / 2).min(share)
}

/// Whether messages may go in chunks.
fn has_chunks(knobs: &Knobs) -> bool {
    knobs.layers.allows("cico")
}

pub(super) static HEAP_MIN: Auto = Auto::Crossing {
    cheaper: "map",
    than: "eager",
    from: seeds::LOADS_FROM,
    note: "without cico, all that slots do not hold",
};
pub(super) static CMA_MIN: Auto = Auto::Crossing {
    cheaper: "get_coop",
    than: "pipeline",
    from: seeds::CALLS_FROM,
    note: "get instead of get_coop with ONECOPY_COOP=off; 0 without the layer cico; from 32 KiB on a pair goes by the times \
           that it has seen, and so do collectives of two ranks from 64 KiB on",
};
pub(super) static XPMEM_MIN: Auto = Auto::Crossing {
    cheaper: "attach",
    than: "eager",
    from: seeds::LOADS_FROM,
    note: "0 without the layer cico",
};
pub(super) static KNEM_MIN: Auto = Auto::Crossing {
    cheaper: "module_coop",
    than: "pipeline",
    from: seeds::CALLS_FROM,
    note: "module instead of module_coop with ONECOPY_COOP=off; 0 without the layer cico; from 32 KiB on a pair goes by the \
           times that it has seen, and so do collectives of two ranks from 64 KiB on",
};
pub(super) static COOP_MIN: Auto = Auto::Crossing {
    cheaper: "map_coop",
    than: "map",
    from: seeds::BOTH_FROM,
    note: "likewise for each layer, attached memory not below ONECOPY_ATTACH_MIN; nowhere with ONECOPY_COOP=off",
};
pub(super) static MODULE_ABI: Auto = Auto::Cases(
    &[case(
        Value::Word("onecopy"),
        "where both ranks have /dev/onecopy",
        |_, situation| situation.extension,
    )],
    Value::Word("plain"),
);

pub(super) static EAGER_SLOTS_MAX: Auto = Auto::Computed(
    || {
        format!(
            "{}, or less than ONECOPY_RETURN_MIN where messages go in chunks that return: to ranks of this node, unless \
             the pool is too small for a rank to keep any",
            show_size(seeds::SLOTS_MOST)
        )
    },
    |knobs, situation| {
        let returns = has_chunks(knobs) && maps_pools_writable(knobs, situation);
        let most = seeds::SLOTS_MOST;
        Value::Size(if returns {
            most.min(knobs.return_min.saturating_sub(1))
        } else {
            most
        })
    },
);

/// Bytes of the largest payload that travels in slots, if a ring has room for it.
pub(super) fn slots(knobs: &Knobs, situation: &Situation) -> usize {
    knobs
        .eager_slots_max
        .unwrap_or_else(|| EAGER_SLOTS_MAX.number(knobs, situation))
}

/// Whether ranks map the chunks of their peers writable.
pub(super) fn maps_pools_writable(knobs: &Knobs, situation: &Situation) -> bool {
    knobs
        .pool_writable
        .unwrap_or_else(|| POOL_WRITABLE.value(knobs, situation) == Some(Value::Word("on")))
}

pub(super) static EAGER_MAX: Auto = Auto::Computed(
    || {
        format!(
            "below half of ONECOPY_EAGER_CREDIT where no layer copies. Else below the first size that a layer copies more \
             cheaply, and then at most {}, or {} {BY_STRINGS}; half of ONECOPY_EAGER_CREDIT; half of \
             ONECOPY_POOL_PER_PEER, or all of it {BY_STRINGS}. Without the layer cico up to ONECOPY_EAGER_SLOTS_MAX",
            show_size(seeds::EAGER_MOST.owned),
            show_size(seeds::EAGER_MOST.string)
        )
    },
    |knobs, situation| {
        let slots = slots(knobs, situation).min(situation.slots_take);
        let credit = knobs.eager_credit / 2;
        let first = match situation.copied_from {
            _ if !has_chunks(knobs) => return Value::Size(slots),
            // An announcement only bounds memory: half the credit may travel eagerly.
            None => return Value::Size(credit.saturating_sub(1).max(slots)),
            // With a layer that copies it also saves a copy.
            Some(first) => first,
        };
        // Owned lines are asked for while the receiver still reads those of the message before.
        let strings = writes_strings(knobs, situation);
        let share = share(knobs, situation) / if strings { 1 } else { 2 };
        let most = seeds::EAGER_MOST.by(strings).min(share).min(credit);
        Value::Size(first.saturating_sub(1).clamp(slots, most.max(slots)))
    },
);
pub(super) static REWRITTEN_MAX: Auto = Auto::Computed(
    || {
        format!(
            "{} in memory from `alloc`, or {} {BY_STRINGS}; else {}, or {} {BY_STRINGS}; 0 where another knob decides, \
             and without the layer cico",
            show_size(seeds::REWRITTEN_MAPPED_MAX.owned),
            show_size(seeds::REWRITTEN_MAPPED_MAX.string),
            show_size(seeds::REWRITTEN_MAX.owned),
            show_size(seeds::REWRITTEN_MAX.string),
        )
    },
    |knobs, situation| {
        if !takes_rewritten(knobs, situation) {
            return Value::Size(0);
        }
        let most = match situation.mapped {
            true => seeds::REWRITTEN_MAPPED_MAX,
            false => seeds::REWRITTEN_MAX,
        };
        let most = most.by(writes_strings(knobs, situation));
        Value::Size(at_most_two_wait(knobs, situation, most))
    },
);
pub(super) static CHUNK_COPY: Auto = Auto::Cases(
    &[case(
        Value::Word("string"),
        "as a first guess on processors of AMD and Hygon with fast strings",
        |_, situation| situation.strings_take_lines,
    )],
    Value::Word("owned"),
);
pub(super) static POOL_WRITABLE: Auto = Auto::Cases(
    &[case(Value::Word("on"), BY_STRINGS, writes_strings)],
    Value::Word("off"),
);
pub(super) static POOL_PER_PEER: Auto = Auto::Computed(
    || {
        format!(
            "{}, or {} {BY_STRINGS}; never more than ONECOPY_POOL_MAX",
            show_size(seeds::PEER_SHARE.owned),
            show_size(seeds::PEER_SHARE.string)
        )
    },
    |knobs, situation| {
        let share = seeds::PEER_SHARE.by(writes_strings(knobs, situation));
        Value::Size(share.min(knobs.pool_max))
    },
);
/// Bytes of a slot.
const SLOT: usize = 64;

pub(super) static RING_SLOTS: Auto = Auto::Computed(
    || {
        let (most, least) = (seeds::RING_SLOTS, seeds::RING_SLOTS_LEAST);
        let ranks = seeds::RINGS_OF_RANK / most;
        let cache = show_size(most * SLOT * seeds::RINGS_IN_CACHE);
        format!(
            "{most} in jobs of up to {ranks} ranks where the first data cache has {cache} or more, else fewer, {least} \
             at least"
        )
    },
    |_, situation| {
        let of_all = seeds::RINGS_OF_RANK / situation.ranks.max(1);
        let of_cache = situation
            .first_cache
            .map_or(usize::MAX, |bytes| bytes / seeds::RINGS_IN_CACHE / SLOT);
        let each = of_all.min(of_cache).max(1);
        Value::Count((1 << each.ilog2()).clamp(seeds::RING_SLOTS_LEAST, seeds::RING_SLOTS))
    },
);
pub(super) static CHUNK_SIZE: Auto = Auto::Computed(
    || {
        format!(
            "{}; never more than ONECOPY_POOL_PER_PEER",
            show_size(seeds::CHUNK_SIZE)
        )
    },
    |knobs, situation| Value::Size(seeds::CHUNK_SIZE.min(share(knobs, situation))),
);
pub(super) static PIPELINE_CHUNK: Auto = Auto::Computed(
    || "ONECOPY_CHUNK_SIZE".to_owned(),
    |knobs, situation| Value::Size(chunk(knobs, situation)),
);

fn share(knobs: &Knobs, situation: &Situation) -> usize {
    knobs
        .pool_per_peer
        .unwrap_or_else(|| POOL_PER_PEER.number(knobs, situation))
}

fn chunk(knobs: &Knobs, situation: &Situation) -> usize {
    knobs
        .chunk_size
        .unwrap_or_else(|| CHUNK_SIZE.number(knobs, situation))
}

pub(super) static COOP_CHUNK: Auto = Auto::Computed(
    || {
        let ((least, most), (least_call, most_call)) = (seeds::COOP_MAPPED, seeds::COOP_CALL);
        format!(
            "a {}th of the message, rounded up to a power of two. Where the receiver maps the memory it is {} to {}. Else it is \
             {} to {}; of a message below {} it is half, rounded up to 4 KiB",
            seeds::COOP_STEPS,
            show_size(least),
            show_size(most),
            show_size(least_call),
            show_size(most_call),
            show_size(2 * least_call),
        )
    },
    |_, situation| {
        let page = 4 * KIB;
        let (least, most) = match (situation.mapped, seeds::COOP_CALL) {
            (true, _) => seeds::COOP_MAPPED,
            (false, (least, most)) => (situation.len.div_ceil(2).clamp(page, least), most),
        };
        let part = situation
            .len
            .div_ceil(seeds::COOP_STEPS)
            .next_power_of_two()
            .clamp(least, most);
        let part = part.max(situation.len.div_ceil(COOP_CHUNKS_MAX));
        Value::Size(part.next_multiple_of(page))
    },
);
pub(super) static HEAP_SIZE: Auto = Auto::Found(
    "the machine's memory, rounded up to a power of two. It is less where the address space (ulimit -v) or files (ulimit -f) are limited",
);
pub(super) static COLL_RELAY_MIN: Auto = Auto::Cases(
    &[case(Value::Never, OVERSUBSCRIBED, oversubscribed)],
    Value::Size(seeds::RELAY_MIN),
);
pub(super) static COLL_ASK: Auto = Auto::Computed(
    || {
        let [short, long] = seeds::ASK_SIZES.map(|size| show_size(size as usize));
        format!(
            "off {OVERSUBSCRIBED}. Else it is on where {} times the cost curve eager is below get, at {short} and at {long}",
            seeds::ASK_MARGIN,
        )
    },
    |_, situation| {
        let cheaper = situation.copies.as_ref().is_some_and(chunks_are_cheaper);
        Value::Word(if cheaper && !situation.oversubscribed {
            "on"
        } else {
            "off"
        })
    },
);
pub(super) static WAIT_SPIN: Auto = Auto::Cases(
    &[case(
        Value::Count(seeds::WAITS_OVERSUBSCRIBED.spin),
        OVERSUBSCRIBED,
        oversubscribed,
    )],
    Value::Count(seeds::WAITS.spin),
);
pub(super) static WAIT_YIELD: Auto = Auto::Cases(
    &[case(
        Value::Count(seeds::WAITS_OVERSUBSCRIBED.yields),
        OVERSUBSCRIBED,
        oversubscribed,
    )],
    Value::Count(seeds::WAITS.yields),
);
pub(super) static WAIT_SLEEP: Auto = Auto::Cases(&[], Value::Word("on"));
pub(super) static COPY_KERNEL: Auto =
    Auto::Found("memcpy, and non-temporal stores from ONECOPY_NT_MIN on");
pub(super) static NT_MIN: Auto = Auto::Cases(
    &[
        case(
            Value::Size(0),
            "where ONECOPY_COPY_KERNEL is nt",
            |knobs, _| knobs.copy_kernel == CopyKernel::NonTemporal,
        ),
        case(Value::Never, "where it is memcpy or rep", |knobs, _| {
            knobs.copy_kernel != CopyKernel::Auto
        }),
    ],
    Value::Size(seeds::NT_MIN),
);
pub(super) static TUNE_FILE: Auto = Auto::Found(
    "onecopy/tune.json below $XDG_CONFIG_HOME or ~/.config, if it was written on this machine. The machine's profile below $XDG_CACHE_HOME or ~/.cache is read, too",
);
pub(super) static NET_ADDRESS: Auto = Auto::Found(
    "the address by which the nodes found one another. It is up and reaches beyond its link, or it is a loopback address where all ranks share one network namespace",
);
pub(super) static VERBS_DEVICE: Auto =
    Auto::Found("all that have a port with a link and an address by which peers can reach it");
pub(super) static VERBS_PORT: Auto =
    Auto::Found("all with a link and an address by which peers can reach it");
pub(super) static VERBS_GID: Auto = Auto::Found(
    "over Ethernet the first address of RoCE v2, of IP version 4 before version 6, and no link-local one before others",
);
pub(super) static VERBS_READ_MIN: Auto = Auto::Computed(
    || {
        format!(
            "{}, but never by the kernel's software device (rdma_rxe), which may say of a read that brought nothing that it has succeeded",
            show_size(seeds::READ_MIN)
        )
    },
    |_, _| Value::Size(seeds::READ_MIN),
);
pub(super) static VERBS_MODE: Auto = Auto::Found(
    "rc, if a device has a connection for each peer on other nodes, there are at most ONECOPY_VERBS_LANES peers, and what these take is within ONECOPY_VERBS_MEMORY; else xrc, if a device has it, and the same holds of it; else ud",
);
pub(super) static NODE: Auto = Auto::Found(
    "the same name on the whole machine. Ranks of one machine are on several nodes all the same if they have no network namespace, no /proc and no /dev/shm in common",
);
