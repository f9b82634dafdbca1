// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases that every body runs over.

use crate::memory::Memory;
use onecopy::{Comm, CounterSnapshot, LayerId, Runtime};

/// Where a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferPlace {
    Plain,
    Heap,
}

/// A knob's name and value.
type Knob = (&'static str, &'static str);

/// A layer that is forced, and where the buffers lie.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    layers: &'static str,
    more: &'static [Knob],
    send: BufferPlace,
    recv: BufferPlace,
    /// Layers without which the case says nothing.
    needs: &'static [LayerId],
    /// Counters that are above zero at the end, in all ranks together.
    moves: &'static [&'static str],
    /// Counters that stay zero.
    never: &'static [&'static str],
    /// Whether the receiver copies with no help of the sender.
    alone: bool,
}

impl Case {
    pub(crate) fn layers(&self) -> &'static str {
        self.layers
    }

    /// The knobs that force it.
    pub(crate) fn knobs(&self) -> Vec<Knob> {
        let mut knobs = vec![
            ("ONECOPY_LAYERS", self.layers),
            ("ONECOPY_CMA_PTRACER", "any"),
        ];
        knobs.extend(self.more);
        knobs
    }
}

const fn case(
    name: &'static str,
    layers: &'static str,
    more: &'static [Knob],
    (send, recv): (BufferPlace, BufferPlace),
) -> Case {
    Case {
        name,
        layers,
        more,
        send,
        recv,
        needs: &[],
        moves: &[],
        never: &[],
        alone: false,
    }
}

/// A case in which the sender does not help to copy.
const fn alone(case: Case) -> Case {
    Case {
        alone: true,
        ..case
    }
}

/// A case of attached memory, which carries all large messages.
const fn xpmem(name: &'static str, more: &'static [Knob], moves: &'static [&'static str]) -> Case {
    Case {
        needs: &[LayerId::Xpmem],
        moves,
        never: &["map_bytes", "get_bytes", "knem_bytes"],
        ..case(name, "xpmem", more, PLAIN)
    }
}

/// A case of copies by the module, which carry all large messages.
const fn knem(name: &'static str, more: &'static [Knob], moves: &'static [&'static str]) -> Case {
    Case {
        needs: &[LayerId::Knem],
        moves,
        never: &["map_bytes", "get_bytes", "attach_bytes"],
        ..case(name, "knem", more, PLAIN)
    }
}

const PLAIN: (BufferPlace, BufferPlace) = (BufferPlace::Plain, BufferPlace::Plain);
const HEAP: (BufferPlace, BufferPlace) = (BufferPlace::Heap, BufferPlace::Heap);
const COOP_OFF: Knob = ("ONECOPY_COOP", "off");
const COOP_MIN: Knob = ("ONECOPY_COOP_MIN", "1");
const COOP_CHUNK: Knob = ("ONECOPY_COOP_CHUNK", "4K");
const EXTENSION: Knob = ("ONECOPY_MODULE_ABI", "onecopy");
const PLAIN_ABI: Knob = ("ONECOPY_MODULE_ABI", "plain");
const ATTACH_ALL: Knob = ("ONECOPY_ATTACH_MIN", "0");
// Few and small windows: messages are copied in parts, and windows come and go.
const WINDOW: Knob = ("ONECOPY_ATTACH_WINDOW", "2M");
const ONE_WINDOW: Knob = ("ONECOPY_ATTACH_BYTES", "2M");
const TWO_WINDOWS: Knob = ("ONECOPY_ATTACH_BYTES", "4M");
// What windows that are kept, that are made, and that have to go count.
const KEPT: &[&str] = &["attach_bytes", "attaches", "attach_hits"];
const ATTACHED: &[&str] = &["attach_bytes"];
const EVICTED: &[&str] = &["attach_bytes", "attach_evictions"];
const LITTLE: &[Knob] = &[
    ("ONECOPY_RING_SLOTS", "32"),
    ("ONECOPY_CHUNK_SIZE", "4K"),
    ("ONECOPY_POOL_PER_PEER", "4K"),
    ("ONECOPY_POOL_MAX", "16K"),
    ("ONECOPY_EAGER_CREDIT", "4K"),
    ("ONECOPY_PROGRESS_QUOTA", "1"),
    ("ONECOPY_PIPELINE_CHUNK", "1K"),
];

/// All cases.
pub(crate) static CASES: &[Case] = &[
    Case {
        moves: &[
            "pipeline_bytes",
            "sends_chunk",
            "sends_inline",
            "sends_slots",
        ],
        never: &["map_bytes", "get_bytes", "put_bytes"],
        ..case("cico", "cico", &[], PLAIN)
    },
    Case {
        moves: &["pipeline_bytes"],
        never: &["map_bytes", "get_bytes", "put_bytes"],
        ..case("cico in little memory", "cico", LITTLE, PLAIN)
    },
    Case {
        needs: &[LayerId::Heap],
        moves: &["map_bytes"],
        never: &["get_bytes"],
        ..case("heap", "heap", &[], HEAP)
    },
    alone(Case {
        needs: &[LayerId::Heap],
        moves: &["map_bytes"],
        never: &["get_bytes"],
        ..case("heap, receiver alone", "heap", &[COOP_OFF], HEAP)
    }),
    Case {
        needs: &[LayerId::Heap],
        moves: &["map_bytes"],
        never: &["get_bytes"],
        ..case(
            "heap to plain",
            "heap",
            &[],
            (BufferPlace::Heap, BufferPlace::Plain),
        )
    },
    Case {
        needs: &[LayerId::Heap],
        moves: &["put_bytes"],
        never: &["get_bytes"],
        ..case(
            "plain to heap",
            "heap",
            &[],
            (BufferPlace::Plain, BufferPlace::Heap),
        )
    },
    Case {
        needs: &[LayerId::Heap],
        moves: &["put_bytes"],
        never: &["get_bytes"],
        ..case(
            "plain to heap, put alone",
            "heap",
            &[COOP_OFF],
            (BufferPlace::Plain, BufferPlace::Heap),
        )
    },
    Case {
        needs: &[LayerId::Cma],
        moves: &["get_bytes"],
        never: &["map_bytes"],
        ..case("cma", "cma", &[], PLAIN)
    },
    alone(Case {
        needs: &[LayerId::Cma],
        moves: &["get_bytes"],
        never: &["map_bytes"],
        ..case("cma, receiver alone", "cma", &[COOP_OFF], PLAIN)
    }),
    Case {
        needs: &[LayerId::Cma],
        moves: &["coop_chunks_receiver"],
        never: &["map_bytes"],
        ..case("cma, small chunks", "cma", &[COOP_MIN, COOP_CHUNK], PLAIN)
    },
    Case {
        needs: &[LayerId::Heap],
        moves: &["coop_chunks_receiver"],
        never: &["get_bytes"],
        ..case("heap, small chunks", "heap", &[COOP_MIN, COOP_CHUNK], HEAP)
    },
    xpmem("xpmem, extension", &[EXTENSION, ATTACH_ALL], KEPT),
    alone(xpmem(
        "xpmem, extension, receiver alone",
        &[EXTENSION, ATTACH_ALL, COOP_OFF],
        ATTACHED,
    )),
    xpmem(
        "xpmem, extension, small chunks",
        &[EXTENSION, ATTACH_ALL, COOP_MIN, COOP_CHUNK],
        &["attach_bytes", "coop_chunks_receiver"],
    ),
    xpmem(
        "xpmem, extension, few windows",
        &[EXTENSION, ATTACH_ALL, WINDOW, ONE_WINDOW],
        EVICTED,
    ),
    Case {
        layers: "xpmem,cico",
        ..xpmem("xpmem, extension, earned", &[EXTENSION], ATTACHED)
    },
    // By the extension nothing is registered.
    Case {
        never: &["map_bytes", "get_bytes", "attach_bytes", "knem_regions"],
        ..knem("knem, extension", &[EXTENSION], &["knem_bytes"])
    },
    alone(knem(
        "knem, extension, receiver alone",
        &[EXTENSION, COOP_OFF],
        &["knem_bytes"],
    )),
    knem(
        "knem, extension, small chunks",
        &[EXTENSION, COOP_MIN, COOP_CHUNK],
        &["knem_bytes", "coop_chunks_receiver"],
    ),
    xpmem("xpmem, plain", &[PLAIN_ABI, ATTACH_ALL], KEPT),
    alone(xpmem(
        "xpmem, plain, receiver alone",
        &[PLAIN_ABI, ATTACH_ALL, COOP_OFF],
        ATTACHED,
    )),
    xpmem(
        "xpmem, plain, small chunks",
        &[PLAIN_ABI, ATTACH_ALL, COOP_MIN, COOP_CHUNK],
        &["attach_bytes", "coop_chunks_receiver"],
    ),
    xpmem(
        "xpmem, plain, few windows",
        &[PLAIN_ABI, ATTACH_ALL, WINDOW, TWO_WINDOWS],
        EVICTED,
    ),
    Case {
        layers: "xpmem,cico",
        ..xpmem("xpmem, plain, earned", &[PLAIN_ABI], ATTACHED)
    },
    // Nobody writes into a region.
    Case {
        never: &["map_bytes", "get_bytes", "attach_bytes", "put_bytes"],
        ..knem("knem, plain", &[PLAIN_ABI], &["knem_bytes", "knem_regions"])
    },
    alone(knem(
        "knem, plain, receiver alone",
        &[PLAIN_ABI, COOP_OFF],
        &["knem_bytes"],
    )),
    knem(
        "knem, plain, small chunks",
        &[PLAIN_ABI, COOP_MIN, COOP_CHUNK],
        &["knem_bytes", "coop_chunks_receiver"],
    ),
    Case {
        ..case("all, plain", "all", &[], PLAIN)
    },
    Case {
        needs: &[LayerId::Heap],
        moves: &["map_bytes"],
        ..case("all, heap", "all", &[], HEAP)
    },
    Case {
        needs: &[LayerId::Heap, LayerId::Cma],
        moves: &["get_bytes"],
        never: &["attach_bytes"],
        ..case("heap and cma", "heap,cma", &[], PLAIN)
    },
];

/// The case of this name.
pub(crate) fn named(name: &str) -> &'static Case {
    let found = CASES.iter().find(|case| case.name == name);
    found.expect("a case of this name")
}

/// Something that every layer must do.
pub(crate) struct Body {
    pub(crate) name: &'static str,
    /// Numbers of ranks that it is run on.
    pub(crate) ranks: &'static [usize],
    pub(crate) run: fn(&Rank<'_>),
}

/// A rank in a case.
pub(crate) struct Rank<'rt> {
    pub(crate) rt: &'rt Runtime,
    pub(crate) world: Comm,
    pub(crate) me: usize,
    pub(crate) size: usize,
    case: &'static Case,
}

impl<'rt> Rank<'rt> {
    pub(crate) fn new(rt: &'rt Runtime, case: &'static Case) -> Self {
        Self {
            rt,
            world: rt.world(),
            me: rt.rank(),
            size: rt.size(),
            case,
        }
    }

    /// Why the case cannot be run here.
    pub(crate) fn lacks(&self) -> Option<String> {
        for peer in 0..self.size {
            if peer == self.me {
                continue;
            }
            let layers = self.rt.layers(peer).expect("layers");
            for state in layers {
                if let Some(refusal) = state.refusal
                    && self.case.needs.contains(&state.layer)
                {
                    return Some(format!("{}: {refusal}", state.layer));
                }
            }
        }
        None
    }

    fn buffer(&self, place: BufferPlace, len: usize) -> Memory {
        Memory::new(self.rt, len, place == BufferPlace::Heap)
    }

    /// A buffer to send from, filled with message `seed`.
    pub(crate) fn message(&self, len: usize, seed: usize) -> Memory {
        let mut buffer = self.buffer(self.case.send, len);
        crate::bytes::fill(&mut buffer, seed);
        buffer
    }

    /// A buffer to receive into.
    pub(crate) fn space(&self, len: usize) -> Memory {
        let mut buffer = self.buffer(self.case.recv, len);
        buffer.fill(0xee);
        buffer
    }

    /// The other of two ranks.
    pub(crate) fn peer(&self) -> usize {
        1 - self.me
    }

    /// That the case's layer carried what it was to carry. `counters` are from before the last barrier.
    pub(crate) fn check_counters(&self, counters: &CounterSnapshot) {
        let count = |name: &str| counters.get(name).expect("a counter of this name");
        assert_eq!(count("demotions"), 0, "{counters:?}");
        // Where barriers go by messages, between nodes at least, some of the last one's may have come: a byte from each
        // other rank.
        let by_messages = count("coll_by_messages") + count("coll_two_level");
        let barrier = by_messages.min(self.size as u64 - 1);
        assert!(count("unexpected_bytes_now") <= barrier, "{counters:?}");
        let alone = self.case.alone.then_some(&"coop_chunks_receiver");
        for name in self.case.never.iter().chain(alone) {
            assert_eq!(count(name), 0, "{name}: {counters:?}");
        }
        if self.size != 2 {
            return;
        }
        for name in self.case.moves {
            let (mine, mut theirs) = ([count(name)], [0u64]);
            let peer = self.peer();
            self.world
                .sendrecv(&mine, peer, 0, &mut theirs, peer, 0)
                .expect("exchange");
            assert!(mine[0] + theirs[0] > 0, "{name}: {counters:?}");
        }
    }
}
