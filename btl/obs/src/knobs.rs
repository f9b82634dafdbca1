// SPDX-License-Identifier: MIT OR Apache-2.0
//! The knobs: everything that can be set from outside, defined once.
//!
//! A knob is an environment variable `ONECOPY_` + its name. A tune file, which `onecopy tune`
//! writes, may set the same names; the environment wins. Variables `ONECOPY_JOB_*` carry the
//! wire-up, `ONECOPY_VM_*` are for `onecopy vm`; neither are knobs.

mod audience;
pub mod auto;
mod origin;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

pub use self::audience::Audience;
use self::auto::{AskedCopies, Auto, Situation, Value};
pub use self::origin::{Origin, Origins};
pub use self::wire::StreamSettings;
use crate::seeds::Waits;
use crate::values::{
    Auto as OrAuto, ChunkCopy, CopyKernel, Count, FilePath, GIB, KIB, Kind, LayerList, Layers,
    LogLevel, MIB, ModuleAbi, Name, Names, NetAddress, NetAddresses, OneOf, PowerOfTwo, Ptracer,
    Size, Span, Switch, TIB, VerbsMode, WaitSleep, show_size,
};

/// What every variable of onecopy begins with.
pub const PREFIX: &str = "ONECOPY_";
/// What internal variables begin with: set by a launcher for its ranks, never by hand.
pub const JOB_PREFIX: &str = "ONECOPY_JOB_";
/// What `onecopy vm` reads about its cache begins so; no job does.
pub const VM_PREFIX: &str = "ONECOPY_VM_";

/// What the malloc front takes if its knobs are not set: it reads them itself, before anything else runs. Chosen by
/// magnitude: a copy that is saved takes some microseconds. Ranges are whole pages, of which so much wastes a sixteenth
/// at most.
pub const MALLOC_MIN: usize = 64 * KIB;
/// As [`MALLOC_MIN`]. Chosen by magnitude: as much as the largest block that glibc's own allocator learns to keep
/// (`M_MMAP_THRESHOLD`, mallopt(3)).
pub const MALLOC_KEEP: usize = 32 * MIB;

/// Chunks at most of a message that both sides copy. `onecopy_shm::coop` counts no more.
pub const COOP_CHUNKS_MAX: usize = 1 << 15;

/// One line of the table of knobs.
#[derive(Debug)]
pub struct KnobInfo {
    /// The environment variable.
    pub name: &'static str,
    /// What the knob belongs to.
    pub area: &'static str,
    /// Whether it is for users, for experts or for tests.
    pub audience: Audience,
    /// What it does.
    pub doc: &'static str,
    /// What `auto` stands for, if the knob accepts it.
    pub auto: Option<&'static Auto>,
    type_name: fn() -> String,
    default: fn() -> String,
    range: fn() -> String,
}

impl KnobInfo {
    /// The name of the value's syntax.
    #[must_use]
    pub fn type_name(&self) -> String {
        (self.type_name)()
    }

    /// The default, as text that the knob reads.
    #[must_use]
    pub fn default_text(&self) -> String {
        (self.default)()
    }

    /// The values accepted, in words.
    #[must_use]
    pub fn range(&self) -> String {
        (self.range)()
    }

    /// What it does, and what `auto` stands for.
    #[must_use]
    pub fn meaning(&self) -> String {
        match self.auto {
            Some(auto) => format!("{} auto: {}.", self.doc, auto.text()),
            None => self.doc.to_owned(),
        }
    }
}

const fn first(rules: &[&'static Auto]) -> Option<&'static Auto> {
    match rules {
        [auto, ..] => Some(auto),
        [] => None,
    }
}

/// A value that a knob cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {reason}; accepted: {range}")]
pub struct KnobError {
    /// The environment variable.
    pub name: String,
    /// The value as given.
    pub value: String,
    /// What is wrong with it.
    pub reason: String,
    /// The values accepted, in words.
    pub range: String,
}

/// A variable that looks like a knob and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// The variable.
    pub name: String,
    /// The knob whose name is nearest, if one is near.
    pub nearest: Option<&'static str>,
}

impl std::fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not a knob", self.name)?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean {nearest}?"),
            None => Ok(()),
        }
    }
}

/// Defines [`Knobs`] and [`KNOBS`]: per knob its doc, audience, variable, field, type, default,
/// kind, and what `auto` stands for.
macro_rules! knobs {
    ($($area:literal {
        $(
            $(#[doc = $doc:literal])+
            $audience:ident $env:ident => $field:ident: $ty:ty = $default:expr, $kind:expr $(, auto::$auto:ident)?;
        )+
    })+) => {
        /// The value of every knob.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Knobs {
            $($($(#[doc = $doc])+ pub $field: $ty,)+)+
        }

        impl Default for Knobs {
            fn default() -> Self {
                Self { $($($field: $default,)+)+ }
            }
        }

        /// Every knob, in the order of the documentation.
        pub static KNOBS: &[KnobInfo] = &[$($(
            KnobInfo {
                name: stringify!($env),
                area: $area,
                audience: Audience::$audience,
                doc: concat!($($doc),+).trim_ascii(),
                auto: first(&[$(&auto::$auto)?]),
                type_name: || Kind::type_name(&$kind),
                default: || Kind::show(&$kind, &$default),
                range: || Kind::range(&$kind),
            },
        )+)+];

        impl Knobs {
            fn assign(&mut self, name: &str, text: &str) -> Result<(), String> {
                $($(if name == stringify!($env) {
                    self.$field = Kind::parse(&$kind, text)?;
                    return Ok(());
                })+)+
                Err("not a knob".to_owned())
            }

            /// The value of the knob with this environment name, as text that the knob reads.
            #[must_use]
            pub fn text(&self, name: &str) -> Option<String> {
                $($(if name == stringify!($env) {
                    return Some(Kind::show(&$kind, &self.$field));
                })+)+
                None
            }
        }

        #[cfg(test)]
        const FIELDS: &[(&str, &str)] = &[$($((stringify!($env), stringify!($field)),)+)+];
    };
}

const ANY_SIZE: Size = Size { min: 0, max: TIB };

knobs! {
    "layers" {
        /// The layers that may carry payload. On one node small messages and control always travel through cico.
        /// Without tcp, ranks on other nodes cannot be reached; verbs carries their messages where tcp connects them.
        User ONECOPY_LAYERS => layers: LayerList = LayerList::All, Layers;
        /// The smallest message by rendezvous over the heap layer.
        Expert ONECOPY_HEAP_MIN => heap_min: Option<usize> = None, OrAuto(ANY_SIZE), auto::HEAP_MIN;
        /// The smallest message by rendezvous over cross-memory attach.
        Expert ONECOPY_CMA_MIN => cma_min: Option<usize> = None, OrAuto(ANY_SIZE), auto::CMA_MIN;
        /// Which processes a rank permits to read its memory by cross-memory attach where Yama restricts it
        /// (ptrace_scope 1). peer permits one process at a time; any permits every process of the same user.
        User ONECOPY_CMA_PTRACER => cma_ptracer: Ptracer = Ptracer::Off, OneOf::<Ptracer>::new();
        /// The smallest message by rendezvous over attached memory.
        Expert ONECOPY_XPMEM_MIN => xpmem_min: Option<usize> = None,
            OrAuto(ANY_SIZE), auto::XPMEM_MIN;
        /// The smallest message by rendezvous over copies by the kernel module.
        Expert ONECOPY_KNEM_MIN => knem_min: Option<usize> = None, OrAuto(ANY_SIZE), auto::KNEM_MIN;
        /// By which interface of the kernel module the layers xpmem and knem work.
        Expert ONECOPY_MODULE_ABI => module_abi: ModuleAbi = ModuleAbi::Auto,
            OneOf::<ModuleAbi>::new(), auto::MODULE_ABI;
        /// A message at least this large has its memory attached when it is first seen. A smaller one has it attached
        /// when memory near it was asked for before.
        // Default: 512 KiB: from there on an attachment costs less than one copy by the kernel (C, 11-21;
        // docs/performance.md, "Attach for a single copy").
        Expert ONECOPY_ATTACH_MIN => attach_min: usize = 512 * KIB, ANY_SIZE;
        /// Attached windows of a peer's memory begin and end at multiples of this, which is rounded
        /// up to a multiple of 2 MiB.
        // Default: 8 MiB, by magnitude: most buffers are one window or two, and four page tables are soon filled.
        Expert ONECOPY_ATTACH_WINDOW => attach_window: usize = 8 * MIB,
            Size { min: 2 * MIB, max: GIB };
        /// Bytes of one peer's memory that may be attached at a time, in 512 windows at most. They take address range,
        /// and page tables where they are used. A value below 512 windows means fewer mappings, where the kernel
        /// permits no more (vm.max_map_count).
        // Default: 16 GiB, by magnitude: 47 bits of addresses have room for thousands of such peers.
        Expert ONECOPY_ATTACH_BYTES => attach_bytes: usize = 16 * GIB,
            Size { min: 2 * MIB, max: 16 * TIB };
    }

    "eager" {
        /// The largest payload that travels in the ring's own slots. Up to half a ring is accepted, and three eighths
        /// are used: that much finds room in every state of the ring. Larger eager messages take chunks of the
        /// sender's pool.
        Expert ONECOPY_EAGER_SLOTS_MAX => eager_slots_max: Option<usize> = None,
            OrAuto(Size { min: 0, max: 4 * KIB }), auto::EAGER_SLOTS_MAX;
        /// The largest message that is sent before the receiver asks for it. A longer one is announced, and its send
        /// waits for the receive. By default so are messages from 128 KiB on to a receiver that has seen that it copies
        /// such faster by a layer. So which of these wait for their receive may change while a job runs.
        User ONECOPY_EAGER_MAX => eager_max: Option<usize> = None,
            OrAuto(Size { min: 0, max: 64 * MIB }), auto::EAGER_MAX;
        /// The largest message that is sent eagerly if its buffer has changed since it was last sent, though others of
        /// its size are announced. Copied through chunks, the buffer's lines stay in the sender's cache. It has no
        /// effect where ONECOPY_EAGER_MAX is set, or a knob that says from which size on a layer copies such memory. It
        /// is never more than half of ONECOPY_EAGER_CREDIT, nor than half of ONECOPY_POOL_PER_PEER.
        Expert ONECOPY_REWRITTEN_MAX => rewritten_max: Option<usize> = None,
            OrAuto(Size { min: 0, max: MIB }), auto::REWRITTEN_MAX;
        /// Bytes of eager messages that may lie unmatched at a receiver, per sender. Beyond it a
        /// sender announces instead of sending. The default has room for two of the longest messages
        /// that go eagerly in chunks.
        // Default: twice 256 KiB (`seeds::EAGER_MOST`). Each message counts 64 bytes more than it has; the last 8 KiB
        // leave room for that and for short messages, by magnitude.
        User ONECOPY_EAGER_CREDIT => eager_credit: usize = 520 * KIB,
            Size { min: 4 * KIB, max: GIB };
        /// How many announced or synchronous messages to one peer may wait for its answer. A sender holds back further
        /// ones. While it holds back those of one communicator, up to 4096 more go out in others and in collectives.
        /// The receiver keeps up to 400 bytes for each. It remembers at least 262144. A larger value must be the same
        /// on all ranks.
        // The reason stands at `UNANSWERED_LEAST` in src/peer.rs.
        User ONECOPY_UNANSWERED_MAX => unanswered_max: usize = 262_144,
            Count { min: 16, max: 67_108_864 };
        /// Slots of 64 bytes in the ring of one sender and one receiver.
        User ONECOPY_RING_SLOTS => ring_slots: Option<usize> = None,
            OrAuto(PowerOfTwo { min: 32, max: 32768 }), auto::RING_SLOTS;
        /// Bytes in one chunk of a pool.
        Expert ONECOPY_CHUNK_SIZE => chunk_size: Option<usize> = None,
            OrAuto(Size { min: 4 * KIB, max: MIB }), auto::CHUNK_SIZE;
        /// How a sender writes to its chunks. owned: by stores into lines that it has asked for ahead; what takes two
        /// chunks goes in halves. string: above 8 KiB by the string instruction; what takes up to two chunks goes in
        /// halves, if the two ranks send in turn. Longer messages go in whole chunks. The first job on a machine
        /// measures which is faster there, and so does `onecopy tune`.
        Expert ONECOPY_CHUNK_COPY => chunk_copy: ChunkCopy = ChunkCopy::Auto,
            OneOf::<ChunkCopy>::new(), auto::CHUNK_COPY;
        /// Whether a rank maps the chunks of its peers writable. Then it sends its next message to a peer in the
        /// chunks that it has read. Their lines are in its cache and travel once, not twice. On processors of AMD a
        /// line that was read through such a mapping costs its owner half as much to write again, too.
        Expert ONECOPY_POOL_WRITABLE => pool_writable: Option<bool> = None,
            OrAuto(Switch), auto::POOL_WRITABLE;
        /// The shortest message that a rank sends in the chunks that it has read, where ONECOPY_POOL_WRITABLE lets it.
        /// To take over lines that were just read costs a short message more on some machines, and far less on others.
        /// So the first job on a machine measures whether 512 B gain there, and so does `onecopy tune`.
        // The reason stands at `RETURN_MIN` in seeds.rs.
        Expert ONECOPY_RETURN_MIN => return_min: usize = crate::seeds::RETURN_MIN, Size { min: 64, max: MIB };
        /// Bytes of chunks that messages to one peer may occupy at a time. A pipelined transfer recycles as many, but
        /// two chunks at least and 64 at most. Messages between nodes occupy no chunks.
        User ONECOPY_POOL_PER_PEER => pool_per_peer: Option<usize> = None,
            OrAuto(Size { min: 4 * KIB, max: GIB }), auto::POOL_PER_PEER;
        /// Bytes of chunks that one sender may have in all.
        // Default: 4 MiB, by magnitude: four peers have their full share at once (`seeds::PEER_SHARE`).
        User ONECOPY_POOL_MAX => pool_max: usize = 4 * MIB, Size { min: 4 * KIB, max: 64 * GIB };
        /// Bytes of host memory through which messages of one device's memory go: pinned, and not before it is needed.
        /// A message takes up to 2 MiB of it each way. One that finds nothing left goes on by 64 KiB of its own.
        // Default: 16 MiB, by magnitude: four messages each way at once have their full share.
        User ONECOPY_DEVICE_STAGING => device_staging: usize = 16 * MIB, Size { min: 2 * MIB, max: 64 * GIB };
        /// How many allocations of other ranks' devices a rank keeps open. Long messages between devices are copied
        /// once from them; what is not open is opened first. 64 is enough for most programs. 0: none, and all such
        /// messages go through host memory. Memory that its rank has freed stays with the device while another rank has
        /// it open. A kernel that occupies a whole device and waits for a message may hinder a copy within it.
        // Default: off. No device was at hand, and docs/running.md tells of a kernel for which both would wait.
        User ONECOPY_DEVICE_MAPPINGS => device_mappings: usize = 0, Count { min: 0, max: 4096 };
    }

    "rendezvous" {
        /// Bytes per step of a pipelined transfer through chunks, at most a chunk.
        Expert ONECOPY_PIPELINE_CHUNK => pipeline_chunk: Option<usize> = None,
            OrAuto(Size { min: KIB, max: MIB }), auto::PIPELINE_CHUNK;
        /// Whether sender and receiver both copy a large message when both wait for it.
        Expert ONECOPY_COOP => coop: bool = true, Switch;
        /// The smallest message that both sides copy.
        Expert ONECOPY_COOP_MIN => coop_min: Option<usize> = None, OrAuto(ANY_SIZE), auto::COOP_MIN;
        /// Bytes that one side takes at a time when both copy. It is never less than a 32768th of the message.
        // See `COOP_CHUNKS_MAX`.
        Expert ONECOPY_COOP_CHUNK => coop_chunk: Option<usize> = None,
            OrAuto(Size { min: 4 * KIB, max: GIB }), auto::COOP_CHUNK;
    }

    "memory" {
        /// Address range reserved for what a rank allocates from onecopy. Only what is used takes memory.
        User ONECOPY_HEAP_SIZE => heap_size: Option<usize> = None,
            OrAuto(Size { min: MIB, max: 16 * TIB }), auto::HEAP_SIZE;
        /// The smallest allocation of the program that the malloc front (`onecopy run --heap`)
        /// serves from the heap. Read from the environment only.
        User ONECOPY_MALLOC_MIN => malloc_min: usize = MALLOC_MIN, Size { min: 4 * KIB, max: TIB };
        /// How much of what the program has freed the malloc front keeps for its next allocations.
        /// Read from the environment only.
        User ONECOPY_MALLOC_KEEP => malloc_keep: usize = MALLOC_KEEP, Size { min: 0, max: TIB };
    }

    "buffers" {
        /// Bytes of temporary buffers that a rank retains. A request beyond it is served; its
        /// memory is released when given back.
        // Default: 32 MiB, by magnitude: eight of the largest.
        User ONECOPY_BUFFERS_CAP => buffers_cap: usize = 32 * MIB, ANY_SIZE;
        /// Temporary buffers that nothing needed for this long are released.
        // Default: 1 s, by magnitude: steps of programs are shorter, so that a loop keeps its buffers. Tests let
        // buffers go sooner, or keep them.
        Expert ONECOPY_BUFFERS_AGE => buffers_age: Duration = Duration::from_secs(1),
            Span { unit_ms: 1, min: 1, max: 86_400_000 };
        /// Bytes of shared memory that collectives may hold at a time on a node, in equal parts for its ranks. Half is
        /// for the channels of communicators, half for temporary buffers. Collectives that find it used up take slower
        /// ways. The same on all ranks.
        // Default: 20 MiB: as Sun MPI's MPI_SHM_GBPOOLSIZE (docs/tuning.md).
        User ONECOPY_COLL_POOL => coll_pool: usize = 20 * MIB, ANY_SIZE;
        /// From this size on the receivers of a broadcast take shares of it from each other, where they do not map
        /// the root's memory. Copies by the kernel out of one address space hinder each other. Up to 16 KiB are never
        /// shared.
        Expert ONECOPY_COLL_RELAY_MIN => coll_relay_min: Option<usize> = None,
            OrAuto(ANY_SIZE), auto::COLL_RELAY_MIN;
        /// Whether a rank that waits in a collective is asked to copy, piece by piece, what others would read by the
        /// kernel.
        Expert ONECOPY_COLL_ASK => coll_ask: Option<bool> = None, OrAuto(Switch), auto::COLL_ASK;
    }

    "waiting" {
        /// Polls before a wait first yields the processor. At most 16 where a rank's waiting threads outnumber its
        /// share of the processors: always where ranks outnumber processors.
        User ONECOPY_WAIT_SPIN => wait_spin: Option<usize> = None,
            OrAuto(Count { min: 0, max: 1_000_000_000 }), auto::WAIT_SPIN;
        /// Yields before a wait sleeps. At most 200 where a rank's waiting threads outnumber its
        /// share of the processors.
        User ONECOPY_WAIT_YIELD => wait_yield: Option<usize> = None,
            OrAuto(Count { min: 0, max: 1_000_000_000 }), auto::WAIT_YIELD;
        /// Whether a wait may sleep after its yields.
        User ONECOPY_WAIT_SLEEP => wait_sleep: WaitSleep = WaitSleep::Auto,
            OneOf::<WaitSleep>::new(), auto::WAIT_SLEEP;
        /// Records taken from one ring in one progress call, so that one busy peer does not keep out the others.
        // Default: 32, by magnitude: records of one peer for some microseconds. Tests take fewer, to leave records
        // behind.
        Expert ONECOPY_PROGRESS_QUOTA => progress_quota: usize = 32, Count { min: 1, max: 1024 };
        /// How often a wait looks whether its peers live. A rank that does not wait for so long looks once in ten of
        /// these.
        // Default: 10 ms, by magnitude: a look takes some microseconds, a thousandth of that.
        Expert ONECOPY_LIVENESS_PERIOD => liveness_period: Duration = Duration::from_millis(10),
            Span { unit_ms: 1, min: 1, max: 40 };
        /// How long a rank waits at the start for the others to join.
        // Default: 30 s, by magnitude: programs read files and load libraries before they join.
        User ONECOPY_JOIN_TIMEOUT => join_timeout: Duration = Duration::from_secs(30),
            Span { unit_ms: 1000, min: 1, max: 86_400 };
    }

    "network" {
        /// How long a connection to a rank on another node may be silent before it counts as lost. It is silent
        /// while what was sent stays unacknowledged, or while no sign of life comes.
        // Default: 20 s, by magnitude: switches come back within some seconds, and a program must not end for that.
        User ONECOPY_TCP_TIMEOUT => tcp_timeout: Duration = Duration::from_secs(20),
            Span { unit_ms: 1000, min: 1, max: 86_400 };
        /// How long a rank tries to connect with one on another node.
        // Default: 10 s, by magnitude: three packets that are lost are sent again within 7 s (RFC 6298).
        User ONECOPY_TCP_CONNECT_TIMEOUT => tcp_connect_timeout: Duration = Duration::from_secs(10),
            Span { unit_ms: 1000, min: 1, max: 86_400 };
        /// Bytes of the kernel's buffers for one connection, each way. 0: the kernel sizes them by the connection's
        /// speed.
        Expert ONECOPY_TCP_BUFFER => tcp_buffer: usize = 0, Size { min: 0, max: GIB };
        /// Bytes of a message that one call gives to the kernel.
        // Default: 256 KiB: 1 MiB one way takes 1.25 of a bare loop's time, 1.37 in pieces of 128 KiB (F, 11-25;
        // docs/performance.md, "Between nodes").
        Expert ONECOPY_TCP_PIECE => tcp_piece: usize = 256 * KIB, Size { min: KIB, max: MIB };
        /// The devices for RDMA, by their names, that carry messages to ranks on other nodes.
        User ONECOPY_VERBS_DEVICE => verbs_device: Option<String> = None, OrAuto(Names), auto::VERBS_DEVICE;
        /// Ports of such devices that a rank uses at once, at most. The stream of messages to a peer goes by one of
        /// them; long messages are read in stripes by all that lead there. 1: no message is striped.
        // Default: 4: see `RAILS_MAX` in btl/verbs/src/matching.rs.
        User ONECOPY_VERBS_RAILS => verbs_rails: usize = 4, Count { min: 1, max: 4 };
        /// The port of each of these devices.
        User ONECOPY_VERBS_PORT => verbs_port: Option<usize> = None,
            OrAuto(Count { min: 1, max: 254 }), auto::VERBS_PORT;
        /// The place of the own address among those of the port.
        User ONECOPY_VERBS_GID => verbs_gid: Option<usize> = None,
            OrAuto(Count { min: 0, max: 255 }), auto::VERBS_GID;
        /// How it reaches peers. rc: by a reliable connection to each. xrc: by an extended connection to each other
        /// node, where the device has them. ud: by datagrams, with one pair for all, whose order and losses are the
        /// library's; long messages are not read where they lie then. All ranks must use the same.
        User ONECOPY_VERBS_MODE => verbs_mode: VerbsMode = VerbsMode::Auto,
            OneOf::<VerbsMode>::new(), auto::VERBS_MODE;
        /// Bytes that a rank may take for connections with all its peers. Where they need more, extended connections
        /// are used if the device has them and they need less, else datagrams.
        // Default: 64 MiB, by magnitude: little beside a rank's memory, enough for hundreds of connections at least.
        User ONECOPY_VERBS_MEMORY => verbs_memory: usize = 64 * MIB, ANY_SIZE;
        /// Connections that a rank keeps with peers, at most, whichever of the two asked for them. With xrc, the peers
        /// that it reaches by them; with ud there is no bound. For another one, that which was silent longest goes, if
        /// it was silent for a second; else the new pair stays with tcp.
        // Default: 1024, by magnitude: more are seldom in use at once, and each takes memory of the device.
        User ONECOPY_VERBS_LANES => verbs_lanes: usize = 1024, Count { min: 1, max: 65536 };
        /// Bytes of a message by a device for RDMA. Longer pieces are cut.
        // Default: 8 KiB, by magnitude: two packets of the longest InfiniBand sends; at 10 GB/s it takes a microsecond.
        Expert ONECOPY_VERBS_SLOT => verbs_slot: usize = 8 * KIB, Size { min: KIB, max: MIB };
        /// Messages that a rank has room for at first, from all its peers together, and by how many that grows.
        // Default: 256, by magnitude: 2 MiB, the full windows of eight peers. Tests begin with fewer, to see them grow.
        Expert ONECOPY_VERBS_RECEIVES => verbs_receives: usize = 256, Count { min: 8, max: 16384 };
        /// Messages that a rank has room for at most, from all its peers together.
        // Default: 1024, by magnitude: four times that, 8 MiB, as much as Linux lets a user lock by default since 5.16.
        Expert ONECOPY_VERBS_RECEIVES_MAX => verbs_receives_max: usize = 1024,
            Count { min: 8, max: 16384 };
        /// Messages that a rank may have under way, to all its peers together.
        // Default: 64, by magnitude: two full windows. Tests take fewer, to run out of them.
        Expert ONECOPY_VERBS_SENDS => verbs_sends: usize = 64, Count { min: 8, max: 16384 };
        /// Messages under way to one peer, at most. By datagrams it is never more than 64.
        // Default: 32, by magnitude: 256 KiB, which take 26 us at 10 GB/s, several round trips.
        Expert ONECOPY_VERBS_WINDOW => verbs_window: usize = 32, Count { min: 4, max: 1024 };
        /// The smallest announced message that its receiver reads where it lies, by its device. Both sides must want
        /// that.
        Expert ONECOPY_VERBS_READ_MIN => verbs_read_min: Option<usize> = None, OrAuto(ANY_SIZE), auto::VERBS_READ_MIN;
        /// Bytes of the program's memory that stay registered with a device for the next message. 0: none does, and
        /// nothing watches what the program unmaps.
        // Default: 64 MiB, by magnitude: what is locked is lost to others.
        User ONECOPY_VERBS_CACHE => verbs_cache: usize = 64 * MIB, ANY_SIZE;
        /// How long a device asks a peer that does not answer, before messages to it go by tcp.
        // Default: 1 s, by magnitude: it has to be longer than the shortest time that a device can be given, twice 0.27
        // s.
        User ONECOPY_VERBS_TIMEOUT => verbs_timeout: Duration = Duration::from_secs(1),
            Span { unit_ms: 1000, min: 1, max: 600 };
        /// Datagrams that a rank has room for, from all its peers together.
        // Default: 160, by magnitude: five full windows. Tests take fewer, to lose datagrams.
        Expert ONECOPY_VERBS_UD_RECEIVES => verbs_ud_receives: usize = 160, Count { min: 8, max: 16384 };
        /// How long a peer acknowledges no datagram before messages to it go by tcp. Its program acknowledges them,
        /// when it calls the library. Time in which the own program does not call it does not count.
        // Default: 10 s, by magnitude: programs compute for seconds without a call.
        User ONECOPY_VERBS_UD_TIMEOUT => verbs_ud_timeout: Duration = Duration::from_secs(10),
            Span { unit_ms: 1000, min: 1, max: 600 };
        /// How many of a hundred datagrams that come a rank throws away.
        Test ONECOPY_VERBS_UD_DROP => verbs_ud_drop: usize = 0, Count { min: 0, max: 100 };
        /// Where the random numbers begin by which ONECOPY_VERBS_UD_DROP picks datagrams.
        Test ONECOPY_VERBS_UD_SEED => verbs_ud_seed: usize = 0, Count { min: 0, max: 4_294_967_295 };
        /// In a job that spans nodes, the address by which the ranks of other nodes reach this one. A name or a subnet
        /// serves for all nodes at once.
        User ONECOPY_NET_ADDRESS => net_address: Option<NetAddress> = None,
            OrAuto(NetAddresses), auto::NET_ADDRESS;
        /// A node from which nothing is heard for this long counts as dead, and with it its ranks. The value on rank 0
        /// counts for all nodes.
        // Default: 1 s, by magnitude: signs of life come several times in it, and hosts are threads that only wait.
        User ONECOPY_NODE_TIMEOUT => node_timeout: Duration = Duration::from_secs(1),
            Span { unit_ms: 1000, min: 1, max: 3600 };
        /// The name of this rank's node. Ranks of one machine that have different names share no memory, as if they
        /// were on several machines.
        Expert ONECOPY_NODE => node: Option<String> = None, OrAuto(Name), auto::NODE;
    }

    "copies" {
        /// What copies payload out of memory that a rank maps, or into it, below ONECOPY_NT_MIN. nt: non-temporal
        /// stores for all sizes, whatever ONECOPY_NT_MIN says. rep: the string instruction. ONECOPY_CHUNK_COPY says how
        /// chunks are written.
        Expert ONECOPY_COPY_KERNEL => copy_kernel: CopyKernel = CopyKernel::Auto,
            OneOf::<CopyKernel>::new(), auto::COPY_KERNEL;
        /// The smallest transfer between memory that a rank maps and its own that is copied by non-temporal stores,
        /// which leave the cache to others.
        Expert ONECOPY_NT_MIN => nt_min: Option<usize> = None, OrAuto(ANY_SIZE), auto::NT_MIN;
    }

    "MPI" {
        /// Whether the functions of MPI check what costs little to check: tags, ranks, committed datatypes.
        User ONECOPY_MPI_CHECKS => mpi_checks: bool = true, Switch;
    }

    "diagnosis" {
        /// The file with this machine's cost curves and thresholds, as `onecopy tune` writes it. none:
        /// no file.
        User ONECOPY_TUNE_FILE => tune_file: Option<Option<PathBuf>> = None,
            OrAuto(FilePath), auto::TUNE_FILE;
        /// How much the command `onecopy` logs to standard error. Programs have a `tracing`
        /// subscriber of their own, or log nothing.
        User ONECOPY_LOG => log: LogLevel = LogLevel::Warn, OneOf::<LogLevel>::new();
        /// Whether rank 0 prints every knob that is not at its default when it starts.
        User ONECOPY_PRINT_ENV => print_env: bool = false, Switch;
    }
}

/// What [`Knobs::load`] gives: the values, where each comes from, and variables that are no knobs.
pub type Loaded = (Knobs, Origins, Vec<UnknownVariable>);

impl Knobs {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// As [`Self::load`], and for a value that is no text.
    pub fn from_env() -> Result<Loaded, KnobError> {
        Self::from_iter(env_pairs()?)
    }

    /// Reads pairs of variable and value as if they were the environment. Of a variable that occurs
    /// twice, the later counts.
    ///
    /// # Errors
    /// As [`Self::load`].
    #[expect(
        clippy::should_implement_trait,
        reason = "fallible, so it cannot be the trait's"
    )]
    pub fn from_iter<I, K, V>(pairs: I) -> Result<Loaded, KnobError>
    where
        I: IntoIterator<Item = (K, V)>,
        K: AsRef<str>,
        V: AsRef<str>,
    {
        Self::load(pairs, std::iter::empty::<(&str, &str)>())
    }

    /// Reads pairs from the environment and pairs from a tune file, both by the names of the
    /// variables. The environment wins.
    ///
    /// # Errors
    /// [`KnobError`] for the first value that is not in its knob's range, or that contradicts another knob.
    pub fn load<E, F, K, V, L, W>(env: E, tune: F) -> Result<Loaded, KnobError>
    where
        E: IntoIterator<Item = (K, V)>,
        F: IntoIterator<Item = (L, W)>,
        K: AsRef<str>,
        V: AsRef<str>,
        L: AsRef<str>,
        W: AsRef<str>,
    {
        let mut knobs = Self::default();
        let mut origins = Origins::default();
        let mut unknown = Vec::new();
        for (name, value) in tune {
            knobs.take(
                name.as_ref(),
                value.as_ref(),
                Origin::File,
                &mut origins,
                &mut unknown,
            )?;
        }
        for (name, value) in env {
            knobs.take(
                name.as_ref(),
                value.as_ref(),
                Origin::Environment,
                &mut origins,
                &mut unknown,
            )?;
        }
        knobs.check()?;
        Ok((knobs, origins, unknown))
    }

    /// Sets one knob from text, by the name of its variable. [`check`](Knobs::check) afterwards, when all are set.
    ///
    /// # Errors
    /// [`KnobError`]: no such knob, or a value outside its range. Nothing was set.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), KnobError> {
        self.assign(name, value).map_err(|reason| KnobError {
            name: name.to_owned(),
            value: value.to_owned(),
            reason,
            range: info(name).map_or_else(
                || match nearest(name) {
                    Some(near) => format!("a knob such as {near}"),
                    None => "the knobs that `onecopy env` lists".to_owned(),
                },
                KnobInfo::range,
            ),
        })
    }

    /// Whether chunks are written by the string instruction.
    #[must_use]
    pub fn writes_strings(&self) -> bool {
        auto::writes_strings(self, &Situation::here())
    }

    /// Whether peers' chunks are mapped writable.
    #[must_use]
    pub fn maps_writable(&self) -> bool {
        auto::maps_pools_writable(self, &Situation::here())
    }

    /// Bytes from which on a device reads announced messages, if it does.
    #[must_use]
    pub fn read_min(&self) -> usize {
        self.verbs_read_min
            .unwrap_or_else(|| auto::VERBS_READ_MIN.here(self))
    }

    /// Bytes of the largest payload that may travel in slots, if a ring has room for it.
    #[must_use]
    pub fn slots_limit(&self) -> usize {
        self.eager_slots_max.unwrap_or(crate::seeds::SLOTS_MOST)
    }

    /// The same of what does travel there, where longer messages may go in chunks that return.
    #[must_use]
    pub fn slots_most(&self) -> usize {
        auto::slots(self, &Situation::here())
    }

    /// Bytes in one chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_size
            .unwrap_or_else(|| auto::CHUNK_SIZE.here(self))
    }

    /// Slots in the ring of a pair, in a job of so many ranks.
    #[must_use]
    pub fn ring_slots_among(&self, ranks: usize) -> usize {
        let situation = Situation {
            ranks,
            ..Situation::here()
        };
        self.ring_slots
            .unwrap_or_else(|| auto::RING_SLOTS.number(self, &situation))
    }

    /// Slots in the ring of a pair, in a job of any size.
    #[must_use]
    pub fn ring_slots_at_least(&self) -> usize {
        self.ring_slots_among(usize::MAX)
    }

    /// Bytes of chunks that messages to one peer may occupy at a time, but for pipelined transfers.
    #[must_use]
    pub fn peer_share(&self) -> usize {
        self.pool_per_peer
            .unwrap_or_else(|| auto::POOL_PER_PEER.here(self))
    }

    /// Bytes of the longest message that goes eagerly by default. `copied_from`: from which size on a layer of the pair
    /// copies plain memory; `slots_take`: what the slots of a ring take.
    #[must_use]
    pub fn eager_most(&self, copied_from: Option<usize>, slots_take: usize) -> usize {
        let situation = Situation {
            copied_from,
            slots_take,
            ..Situation::here()
        };
        auto::EAGER_MAX.number(self, &situation)
    }

    /// Bytes of the longest message that goes in chunks if its buffer has changed. `mapped`: the receiver maps that.
    #[must_use]
    pub fn rewritten_most(&self, mapped: bool) -> usize {
        let situation = Situation {
            mapped,
            ..Situation::here()
        };
        match self.rewritten_max {
            Some(set) if auto::takes_rewritten(self, &situation) => {
                auto::at_most_two_wait(self, &situation, set)
            }
            _ => auto::REWRITTEN_MAX.number(self, &situation),
        }
    }

    /// Bytes from which on copies of mapped memory go past the cache; `usize::MAX` for never.
    #[must_use]
    pub fn nt_from(&self) -> usize {
        match (self.copy_kernel, self.nt_min) {
            (CopyKernel::NonTemporal, _) | (_, None) => auto::NT_MIN.here(self),
            (_, Some(min)) => min,
        }
    }

    /// Bytes that one side takes at a time of a message of `len` bytes that both copy. `mapped`: the receiver maps it.
    #[must_use]
    pub fn coop_step(&self, mapped: bool, len: usize) -> usize {
        let situation = Situation {
            mapped,
            len,
            ..Situation::here()
        };
        match self.coop_chunk {
            Some(set) => set.max(len.div_ceil(COOP_CHUNKS_MAX)),
            None => auto::COOP_CHUNK.number(self, &situation),
        }
    }

    /// Bytes from which on the receivers of a broadcast take shares of it from each other, before the bound that slots
    /// set. `oversubscribed`: ranks outnumber processors.
    #[must_use]
    pub fn relay_from(&self, oversubscribed: bool) -> usize {
        self.coll_relay_min
            .unwrap_or_else(|| auto::COLL_RELAY_MIN.number(self, &Situation::among(oversubscribed)))
    }

    /// Whether a rank that waits in a collective copies, when it is asked, what others would read by the kernel.
    /// `oversubscribed`: ranks outnumber processors. `copies`: what copies take on this machine.
    #[must_use]
    pub fn asks_owners(&self, oversubscribed: bool, copies: AskedCopies) -> bool {
        let situation = Situation {
            copies: Some(copies),
            ..Situation::among(oversubscribed)
        };
        let auto = || auto::COLL_ASK.value(self, &situation) == Some(Value::Word("on"));
        self.coll_ask.unwrap_or_else(auto)
    }

    /// Polls and yields of a rank that waits. `oversubscribed`: ranks outnumber processors.
    #[must_use]
    pub fn waits(&self, oversubscribed: bool) -> Waits {
        let situation = Situation::among(oversubscribed);
        let auto = |rule: &Auto| rule.number(self, &situation);
        Waits {
            spin: self.wait_spin.unwrap_or_else(|| auto(&auto::WAIT_SPIN)),
            yields: self.wait_yield.unwrap_or_else(|| auto(&auto::WAIT_YIELD)),
        }
    }

    /// Whether a wait may sleep after its yields.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        match self.wait_sleep {
            WaitSleep::On => true,
            WaitSleep::Off => false,
            WaitSleep::Auto => {
                auto::WAIT_SLEEP.value(self, &Situation::here()) == Some(Value::Word("on"))
            }
        }
    }

    /// Chunks that messages to one peer may occupy.
    #[must_use]
    pub fn chunks_per_peer(&self) -> usize {
        (self.peer_share() / self.chunk_bytes()).max(1)
    }

    /// Chunks that a pipelined transfer recycles: as many as messages to one peer may occupy. Two at least, as the
    /// receiver copies out of one while the sender copies into another. 64 at most is chosen by magnitude: it is the
    /// larger default share (`seeds::PEER_SHARE`) in chunks of the default size.
    #[must_use]
    pub fn pipeline_chunks(&self) -> usize {
        self.chunks_per_peer().clamp(2, 64)
    }

    /// Bytes per step of a pipelined transfer; never more than a chunk.
    #[must_use]
    pub fn pipeline_step(&self) -> usize {
        let step = self.pipeline_chunk;
        step.unwrap_or_else(|| auto::PIPELINE_CHUNK.here(self))
            .min(self.chunk_bytes())
    }

    /// Checks what knobs demand of one another.
    ///
    /// # Errors
    /// [`KnobError`] for the first demand that is not met.
    pub fn check(&self) -> Result<(), KnobError> {
        let at_most = |name: &str, value: usize, limit_name: &str, limit: usize, what: &str| {
            if value <= limit {
                return Ok(());
            }
            Err(KnobError {
                name: name.to_owned(),
                value: show_size(value),
                reason: format!("more than {what}"),
                range: format!(
                    "up to {} while {limit_name}={}",
                    show_size(limit),
                    self.text(limit_name).unwrap_or_default()
                ),
            })
        };
        at_most(
            "ONECOPY_EAGER_SLOTS_MAX",
            self.slots_most(),
            "ONECOPY_RING_SLOTS",
            self.ring_slots_at_least() * 32,
            "half a ring",
        )?;
        at_most(
            "ONECOPY_CHUNK_SIZE",
            self.chunk_bytes(),
            "ONECOPY_POOL_PER_PEER",
            self.peer_share(),
            "a peer's share of the pool",
        )?;
        at_most(
            "ONECOPY_POOL_PER_PEER",
            self.peer_share(),
            "ONECOPY_POOL_MAX",
            self.pool_max,
            "the whole pool",
        )
    }

    fn take(
        &mut self,
        name: &str,
        value: &str,
        origin: Origin,
        origins: &mut Origins,
        unknown: &mut Vec<UnknownVariable>,
    ) -> Result<(), KnobError> {
        if !name.starts_with(PREFIX) || name.starts_with(JOB_PREFIX) || name.starts_with(VM_PREFIX)
        {
            return Ok(());
        }
        match info(name) {
            Some(info) => {
                self.set(name, value)?;
                origins.set(info.name, origin);
            }
            None if unknown.iter().any(|other| other.name == name) => {}
            None => unknown.push(UnknownVariable {
                name: name.to_owned(),
                nearest: nearest(name),
            }),
        }
        Ok(())
    }
}

/// The line of the table for the knob with this environment name.
#[must_use]
pub fn info(name: &str) -> Option<&'static KnobInfo> {
    KNOBS.iter().find(|info| info.name == name)
}

/// The variables of this process that begin with [`PREFIX`], for [`Knobs::load`].
///
/// # Errors
/// [`KnobError`] for a value that is no text (UTF-8).
pub fn env_pairs() -> Result<Vec<(String, String)>, KnobError> {
    let mut pairs = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        let value = value.into_string().map_err(|value| KnobError {
            name: name.to_owned(),
            value: value.to_string_lossy().into_owned(),
            reason: "not valid UTF-8".to_owned(),
            range: info(name).map_or_else(|| "text".to_owned(), KnobInfo::range),
        })?;
        pairs.push((name.to_owned(), value));
    }
    pairs.sort();
    Ok(pairs)
}

/// The knob whose name is nearest to a wrong one, if one is near.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    let wrong = name.strip_prefix(PREFIX).unwrap_or(name).to_uppercase();
    KNOBS
        .iter()
        .map(|info| {
            let right = &info.name[PREFIX.len()..];
            (strsim::damerau_levenshtein(&wrong, right), info.name)
        })
        .min()
        .filter(|&(distance, _)| distance <= (wrong.len() / 2).min(4))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests;
