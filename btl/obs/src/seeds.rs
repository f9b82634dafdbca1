// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures that were measured on particular machines, each with its reason. The rules of knobs and the runtime both
//! read them here.
//!
//! They are first guesses. `onecopy tune` replaces what it can measure: stores, copy kernels, cost curves. Between the
//! kernel and chunks a pair learns from its own transfers. A knob has the last word. The measurements are in
//! docs/performance.md.

use crate::values::{KIB, MIB};

/// A figure for each kind of stores into chunks.
#[derive(Clone, Copy, Debug)]
pub struct ByStores<T> {
    /// Stores into lines that were asked for ahead.
    pub owned: T,
    /// The string instruction, which takes lines without reading them.
    pub string: T,
}

impl<T: Copy> ByStores<T> {
    /// The one that counts.
    #[must_use]
    pub const fn by(&self, strings: bool) -> T {
        if strings { self.string } else { self.owned }
    }
}

/// Bytes of a chunk. A message of one chunk needs no request, neither to be sent nor to be received. With 8 KiB, where
/// stores need the lines that they write, windows of 16 KiB take 1.18 instead of 0.93 us each, both ways 2.7 instead of
/// 1.9. Strings begin slowly. With 32 KiB messages of 1 to 4 KiB are slower, as there are fewer chunks
/// (docs/performance.md, "How many chunks").
pub const CHUNK_SIZE: usize = 16 * KIB;

/// Slots in the ring of a pair, up to as many as [`RINGS_OF_RANK`] has room for. In a longer ring the consumer is
/// farther behind the lines that are written. Windows of 64 messages of 1 KiB take 0.140 us each with 256 slots, 0.161
/// with 128; both ways 0.299 and 0.382 (A, near, 11-29). More slots gain more, and a pair would take more than 16 KiB
/// (docs/performance.md, "Small messages").
pub const RING_SLOTS: usize = 256;
/// Rings that the first data cache has room for: what else a message touches needs the rest. A, with 48 KiB, gains from
/// twice 128 slots. D, with 32 KiB, loses: windows of 64 messages of 1000 bytes take 0.123 instead of 0.083 us each
/// near, and 0.455 instead of 0.296 apart (12-01; docs/performance.md, "Small messages").
pub const RINGS_IN_CACHE: usize = 3;
/// Slots that a ring always has: what went there before there were longer ones. Chosen by magnitude: 8 KiB for a pair.
/// What twice as many gain stands at [`RING_SLOTS`].
pub const RING_SLOTS_LEAST: usize = 128;
/// Slots that all rings to a rank have together before each has fewer: 1 MiB. Chosen by magnitude: in jobs of up to 64
/// ranks a pair has [`RING_SLOTS`] then. Larger ones would take tens of mebibytes of each rank.
pub const RINGS_OF_RANK: usize = 16 * 1024;

/// Bytes of chunks that messages to one peer may occupy. With half of them a sender of short messages waits: windows of
/// 4 KiB take 0.42 instead of 0.32 us each. Where strings write, twice as many gain nothing. With half as many, ranks
/// that both send and receive wait for each other (docs/performance.md, "How many chunks"). Two messages of 256 KiB
/// need a chunk more each where they do not begin at a cache line.
pub const PEER_SHARE: ByStores<usize> = ByStores {
    owned: MIB,
    string: (512 + 2 * 16) * KIB,
};

/// Where the search begins for the size from which on a layer that loads is cheaper than eager messages; the next one
/// is its double. `onecopy tune` measures the curves of such layers from here on. Those of both measured machines cross
/// at 4 KiB where memory is mapped.
pub const LOADS_FROM: usize = 512;
/// The same of calls of the kernel and the pipeline. No measurement stands behind it: chosen by magnitude. A call takes
/// a microsecond or so, in which a processor copies 4 KiB twice at 10 GB/s. The curves of the machine with stores cross
/// at 32 KiB, those of the other one nowhere.
pub const CALLS_FROM: usize = 4 * KIB;
/// The same of copies by both sides and by one. `onecopy tune` measures the curves of copies by both from here on,
/// which is the least chunk of mapped memory ([`COOP_MAPPED`]).
pub const BOTH_FROM: usize = COOP_MAPPED.0;

/// Announced messages from this size on are read by a device. Shorter ones are not worth a registration. Chosen by
/// magnitude, not by a measurement: to pin and unpin 16 pages takes some microseconds, and so do two copies of 64 KiB.
pub const READ_MIN: usize = 64 * KIB;

/// The longest message that goes eagerly beside a layer that could copy it at once. Beyond, a single copy wins even if
/// it has to be asked for. Plain buffers that change gain most by chunks, and are dearer so from 256 KiB on (A, 11-22).
/// Where strings write, 256 KiB take 4.6 instead of 5.9 us (B, 11-22; docs/performance.md, "Send up to 256 KiB
/// eagerly").
pub const EAGER_MOST: ByStores<usize> = ByStores {
    owned: 128 * KIB,
    string: 256 * KIB,
};

/// Up to this size chunks are cheaper for a sender that rewrites its plain buffer. To have it read in place costs it
/// the lines, which it has to take back. 128 KiB take 10.8 instead of 14.4 us. From 256 KiB on a single copy is cheaper
/// (A, 11-22; docs/performance.md, "Copy a buffer that is rewritten"). By strings 256 KiB take 23 instead of 83 us
/// (D, apart, 11-30), as long as two of them may wait.
pub const REWRITTEN_MAX: ByStores<usize> = ByStores {
    owned: 128 * KIB,
    string: 256 * KIB,
};

/// The longest payload that travels in slots. Chosen by magnitude: 17 slots, so that a ring of 256 holds fifteen such
/// messages.
pub const SLOTS_MOST: usize = KIB;

/// The shortest message that is sent in chunks that were just read, as a first guess. The lines of a chunk of one's own
/// are asked for while the peer answers, which costs nothing. To take over those that were just read costs a short
/// message more on two machines. With 1 KiB, B far takes 0.60 instead of 0.52 us for 1 KiB. With 2 KiB, G far takes up
/// to 0.97 instead of 0.71 for 2 KiB; with 4 KiB, 1.17 instead of 0.85 for 3 KiB (11-27; docs/performance.md, "Answer
/// in the chunks that were read").
pub const RETURN_MIN: usize = 3 * KIB;

/// The same on machines where the profile says that short messages gain by it. On D, 512 B take as long near as in
/// slots, and apart a third less (12-01).
pub const RETURN_MIN_IF_SHORT: usize = 512;

/// The same in memory that the receiver maps. Strings do not mind where the buffer's lines are, and to read it in place
/// is one copy less. By stores 32 KiB take 3.6 instead of 6.6 us (A, 11-22). 64 KiB was not measured, and is chosen by
/// magnitude: half of what plain memory has. By strings 64 KiB in place take 1.6 instead of 2.3 (B, near, 11-22).
pub const REWRITTEN_MAPPED_MAX: ByStores<usize> = ByStores {
    owned: 64 * KIB,
    string: 0,
};

/// Chunks of a cooperative transfer, so that the slower side is left with little. Chosen by magnitude: one side waits
/// for the other for a sixteenth of the time at most.
pub const COOP_STEPS: usize = 16;
/// The least and the largest chunk of mapped memory: to take one costs a hand-off of a line, next to nothing. Chosen by
/// magnitude: at 16 KiB a hand-off is a tenth of the copy. Messages beyond 4 MiB, sixteen of the largest, gain nothing
/// by larger ones.
pub const COOP_MAPPED: (usize, usize) = (16 * KIB, 256 * KIB);
/// The least and the largest chunk that the kernel copies: each call costs a microsecond or so. A shorter message is
/// cut in two. Chosen by magnitude: at 10 GB/s 128 KiB take 13 us, of which a call is a tenth. 512 KiB take 50, the
/// most for which one side waits.
pub const COOP_CALL: (usize, usize) = (128 * KIB, 512 * KIB);

/// From this size on receivers of a broadcast take shares of it from each other. Two processes that copy 64 KiB each
/// out of a third take twice as long as out of one each. Of 1 MiB they take a sixth longer. Chosen by magnitude: a
/// meeting costs some hand-offs, which the 25 us of such a copy hide.
pub const RELAY_MIN: usize = 256 * KIB;

/// From this length on all combine a share of a reduction for its root: below, one more hand-off costs more than the
/// shares save. Of 1 MiB the root alone takes 103 to 133 µs, all together 47 to 58 (docs/performance.md,
/// "Collectives").
pub const HELPED_MIN: usize = 128 * KIB;
/// From this size on both of two ranks copy in a broadcast: two hand-offs more, for half of the copy each. Of 1 MiB
/// that is 25 µs for 54 (docs/performance.md, "Collectives").
pub const HALVES_MIN: usize = 128 * KIB;

/// From so many bytes on two ranks give in spare slots, which they hand to each other. The slot's lines are in the
/// cache of who writes then. Shorter ones take a few nanoseconds more so (docs/performance.md, "Collectives").
pub const SPARE_SLOTS_MIN: usize = KIB + KIB / 4;

/// Between nodes: bytes of a fragment. Its steps on the node cost a few microseconds, which the wire's time for it must
/// hide; the last fragment's steps are hidden by nothing. Chosen by magnitude: at 10 GB/s a wire needs 13 us for so
/// much.
pub const WIRE_FRAGMENT: usize = 128 * KIB;
/// Between nodes: up to this size parts of several members cross as one block, for two copies more of each byte. Chosen
/// by magnitude, not by a measurement: these take some ten microseconds, about what another message costs a wire.
pub const PACKED_MAX: usize = 64 * KIB;
/// Between nodes: up to so many bytes to all other nodes a leader sends its vector to each of them. Two steps by shares
/// send fewer bytes, and cost the wire's latency once more. Chosen by magnitude, not by a measurement: at 1 to 10 GB/s
/// so many bytes take 3 to 30 µs, about the latency of a wire.
pub const WIRE_FLAT_MAX: usize = 32 * KIB;

/// From this size on what one member alone takes goes as a message though calls of the kernel are cheap: both sides
/// copy then. It is the smallest size at which most collectives gained (docs/performance.md, "Collectives").
pub const BOTH_COPY_MIN: usize = MIB;

/// Chunks count as cheaper than calls of the kernel where they are so by this factor, at both sizes. Then an owner is
/// asked to copy, and what one member alone takes goes as a message. An owner's answer costs hand-offs besides, so it
/// loses where both are nearly the same (docs/performance.md, "Collectives").
pub const ASK_MARGIN: f64 = 1.5;
/// The sizes at which that is looked at: both ends of where it is used.
pub const ASK_SIZES: [u64; 2] = [64 * KIB as u64, MIB as u64];

/// How a rank waits: polls before it yields, and yields before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Polls before the first yield.
    pub spin: usize,
    /// Yields before the sleep.
    pub yields: usize,
}

/// With a processor for each rank. Chosen by magnitude, not by a measurement. A thousand polls are tens of
/// microseconds, longer than any hand-off. Some thousand yields are a millisecond or two, beyond which being woken
/// costs little.
pub const WAITS: Waits = Waits {
    spin: 1000,
    yields: 4000,
};
/// With more ranks than processors: all there is to do is to make room. With 16 polls instead of 128, 8 bytes take four
/// ranks on two processors 1.8 to 2.5 instead of 5 us (B, 11-22; docs/performance.md, "Collectives"). Four yields are
/// chosen by magnitude: a turn or two of the ranks beside, then a sleep leaves them the processor.
pub const WAITS_OVERSUBSCRIBED: Waits = Waits {
    spin: 16,
    yields: 4,
};

/// From this size on copies go past the cache: the size of one machine's third-level cache, out of which such a copy
/// pushes everything else. `onecopy tune` finds where it pays on yours. Chosen by magnitude for others: most have a
/// third-level cache of this order.
pub const NT_MIN: usize = 32 * MIB;
