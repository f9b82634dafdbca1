// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of a rank, defined once.
//!
//! A counter is a plain field: the engine adds to it under its own lock, so counting costs one increment.

/// How a counter moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// It only grows.
    Sum,
    /// It is a present amount.
    Level,
    /// It is the largest amount so far.
    Peak,
}

/// One line of the table of counters.
#[derive(Debug)]
pub struct CounterInfo {
    /// The name of the field.
    pub name: &'static str,
    /// What is counted: `messages`, `bytes`, ...
    pub unit: &'static str,
    /// How the counter moves.
    pub kind: CounterKind,
    /// What it means.
    pub doc: &'static str,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident: $unit:literal $kind:ident;)+) => {
        /// The counters of one rank.
        ///
        /// Its form is that of as many `u64`, in the order of [`COUNTERS`].
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        /// Every counter, in the order of the documentation.
        pub static COUNTERS: &[CounterInfo] = &[$(
            CounterInfo {
                name: stringify!($field),
                unit: $unit,
                kind: CounterKind::$kind,
                doc: concat!($($doc),+).trim_ascii(),
            },
        )+];

        /// How many counters there are.
        pub const COUNT: usize = [$(stringify!($field)),+].len();

        // A field lies where its name stands.
        const _: () = {
            let offsets = [$(std::mem::offset_of!(Counters, $field)),+];
            let mut index = 0;
            while index < COUNT {
                assert!(offsets[index] == index * size_of::<u64>());
                index += 1;
            }
            assert!(size_of::<Counters>() == COUNT * size_of::<u64>());
        };

        impl Counters {
            const fn values(&self) -> [u64; COUNT] {
                [$(self.$field),+]
            }
        }
    };
}

counters! {
    /// Messages sent within one slot.
    sends_inline: "messages" Sum;
    /// Messages sent eagerly in several slots of a ring.
    sends_slots: "messages" Sum;
    /// Messages sent eagerly in chunks of the pool.
    sends_chunk: "messages" Sum;
    /// Messages sent by rendezvous.
    sends_rendezvous: "messages" Sum;
    /// Payload sent.
    bytes_sent: "bytes" Sum;
    /// Payload received.
    bytes_received: "bytes" Sum;
    /// Messages that found their receive posted.
    recv_expected: "messages" Sum;
    /// Messages that came before their receive.
    recv_unexpected: "messages" Sum;
    /// Payload held now for receives that are not yet posted.
    unexpected_bytes_now: "bytes" Level;
    /// The most payload ever held for receives that were not yet posted.
    unexpected_bytes_peak: "bytes" Peak;
    /// Payload copied from a peer's heap pages.
    map_bytes: "bytes" Sum;
    /// Payload read from a peer's memory by the kernel, by cross-memory attach.
    get_bytes: "bytes" Sum;
    /// Payload copied from a peer's attached memory.
    attach_bytes: "bytes" Sum;
    /// Payload read from a peer's memory by the kernel module.
    knem_bytes: "bytes" Sum;
    /// Payload in chunks that came from ranks on other nodes by TCP.
    tcp_bytes: "bytes" Sum;
    /// Bytes that came from ranks on other nodes by devices for RDMA.
    verbs_bytes: "bytes" Sum;
    /// Pairs of ranks on different nodes whose messages a device took over.
    lane_connects: "connections" Sum;
    /// Pairs that went back to TCP, because a device, its port or its peer failed.
    lane_demotions: "connections" Sum;
    /// Lanes that were silent and gave their place to others (`ONECOPY_VERBS_LANES`).
    lane_evictions: "connections" Sum;
    /// Announced messages that were read where they lay, by a device.
    lane_reads: "messages" Sum;
    /// Bytes of such messages that were read by another port than that of the pair's stream.
    lane_striped: "bytes" Sum;
    /// Further ports of a pair that failed after stripes could be read by them.
    lane_rails_lost: "connections" Sum;
    /// Stripes that were asked for again, of another port.
    lane_stripes_again: "stripes" Sum;
    /// Bytes that are pinned for a device now, beside those of the program.
    lane_pinned: "bytes" Level;
    /// Datagrams of devices that were sent again.
    lane_resends: "packets" Sum;
    /// Datagrams that came to a device and were of none of this rank's lanes.
    lane_foreign: "packets" Sum;
    /// Connections with ranks on other nodes that were made.
    wire_connects: "connections" Sum;
    /// Connections that were turned away: they did not prove to be of the job, or came for nothing.
    wire_refused: "connections" Sum;
    /// Windows of peers' memory that were attached.
    attaches: "windows" Sum;
    /// Copies that found their windows attached.
    attach_hits: "copies" Sum;
    /// Windows given up so that others fit.
    attach_evictions: "windows" Sum;
    /// Windows given up because the peer had no memory where it was read.
    attach_holes: "windows" Sum;
    /// Transfers that went another way because their memory was not attached and had not earned it.
    attach_unearned: "transfers" Sum;
    /// Windows of peers' memory that are attached now.
    attached_windows: "windows" Level;
    /// Bytes of peers' memory that are attached now.
    attached_bytes: "bytes" Level;
    /// Messages exposed as a region of the kernel module.
    knem_regions: "messages" Sum;
    /// Messages that the kernel module refused to expose; they went another way.
    knem_refused: "messages" Sum;
    /// Payload written by this rank, the sender, into a peer's buffer: by stores into its heap or by the kernel.
    put_bytes: "bytes" Sum;
    /// Payload moved through recycled chunks.
    pipeline_bytes: "bytes" Sum;
    /// Messages from a device's memory to a device's that were received by one copy, which a device made.
    device_direct: "messages" Sum;
    /// Payload of these messages.
    device_bytes: "bytes" Sum;
    /// Such messages that were offered so and received through host memory instead.
    device_declined: "messages" Sum;
    /// Long messages of a device's memory to ranks of the node that could not be offered so. The driver does not show
    /// the allocation to other processes, or the buffer is in several runs, or `ONECOPY_DEVICE_MAPPINGS` is 0. Pools
    /// and virtual memory are shown only if they were made for file descriptors, and the buffer is in one mapping.
    device_unoffered: "messages" Sum;
    /// Chunks of shared transfers copied by this rank as receiver.
    coop_chunks_receiver: "chunks" Sum;
    /// Chunks of shared transfers copied by this rank as sender.
    coop_chunks_sender: "chunks" Sum;
    /// Layers given up for a peer after a failure.
    demotions: "events" Sum;
    /// Collectives started.
    collectives: "collectives" Sum;
    /// Collectives that went by messages: the communicator has no channel, or two levels cannot carry them. Parts that
    /// go as messages beside a channel count as messages alone.
    coll_by_messages: "collectives" Sum;
    /// Collectives of two ranks in which this rank gave something piece by piece, through memory that both map.
    coll_in_pieces: "collectives" Sum;
    /// Collectives that went on two levels: on each node by shared memory, between nodes by messages of its leader.
    coll_two_level: "collectives" Sum;
    /// Times that a record found no room in the ring.
    ring_full: "events" Sum;
    /// Looks at how a send goes that found the receiver's credit used up.
    credit_stalls: "events" Sum;
    /// Sleeping peers that this rank woke.
    doorbells_rung: "events" Sum;
    /// Waits that slept.
    sleeps: "events" Sum;
    /// Times that a wait yielded the processor.
    yields: "events" Sum;
    /// Looks at whether peers live, and at events of the job.
    liveness_checks: "events" Sum;
    /// Peers that died.
    peer_deaths: "peers" Sum;
    /// Peers failed because what they wrote was not valid.
    protocol_errors: "events" Sum;
    /// Memory allocated now from this rank's heap.
    heap_bytes: "bytes" Level;
    /// Chunks that this rank's pool has now.
    pool_chunks: "chunks" Level;
    /// Chunks of peers, read before, in which messages to them went: they returned to their owners.
    chunks_returned: "chunks" Sum;
    /// Temporary buffers that this rank's pool has now, in use or free.
    buffers_bytes: "bytes" Level;
    /// Temporary buffers that are free now.
    buffers_free_bytes: "bytes" Level;
    /// The most bytes of temporary buffers that the pool ever had.
    buffers_peak_bytes: "bytes" Peak;
    /// Temporary buffers taken that were free.
    buffers_hits: "buffers" Sum;
    /// Temporary buffers taken that had to be made.
    buffers_misses: "buffers" Sum;
    /// Bytes by which the pool of temporary buffers has grown.
    buffers_grown_bytes: "bytes" Sum;
    /// Bytes of temporary buffers given back to the system.
    buffers_released_bytes: "bytes" Sum;
    /// Temporary buffers served beyond the pool's capacity.
    buffers_beyond_cap: "buffers" Sum;
    /// Temporary buffers that collectives hold now.
    coll_pool_bytes: "bytes" Level;
    /// Times that a collective found its part of the node's pool used up and took a slower way.
    coll_pool_refusals: "events" Sum;
    /// Receives whose buffer was too small for the message.
    truncations: "messages" Sum;
}

impl Counters {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds to the payload held for receives that are not yet posted, and keeps the peak.
    #[inline]
    pub fn hold_unexpected(&mut self, bytes: u64) {
        self.unexpected_bytes_now += bytes;
        self.unexpected_bytes_peak = self.unexpected_bytes_peak.max(self.unexpected_bytes_now);
    }

    /// Takes from the payload held for receives that are not yet posted.
    #[inline]
    pub fn release_unexpected(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.unexpected_bytes_now);
        self.unexpected_bytes_now = self.unexpected_bytes_now.saturating_sub(bytes);
    }

    /// The values at this moment.
    #[must_use]
    pub const fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot(*self)
    }
}

/// The values of all counters at one moment; its fields are those of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterSnapshot(Counters);

impl std::ops::Deref for CounterSnapshot {
    type Target = Counters;
    fn deref(&self) -> &Counters {
        &self.0
    }
}

impl CounterSnapshot {
    /// Every counter with its value.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'static CounterInfo, u64)> + use<> {
        COUNTERS.iter().zip(self.0.values())
    }

    /// The value of the counter with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter()
            .find(|(info, _)| info.name == name)
            .map(|(_, value)| value)
    }

    /// What was added since an earlier snapshot to each counter that only grows, and the present value of the others.
    pub fn since(
        &self,
        earlier: &Self,
    ) -> impl ExactSizeIterator<Item = (&'static CounterInfo, u64)> + use<> {
        self.iter()
            .zip(earlier.0.values())
            .map(|((info, now), before)| match info.kind {
                CounterKind::Sum => (info, now.saturating_sub(before)),
                CounterKind::Level | CounterKind::Peak => (info, now),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_shows_each_field_under_its_name() {
        let mut counters = Counters::new();
        counters.sends_inline = 7;
        counters.truncations = 3;
        let snapshot = counters.snapshot();
        counters.sends_inline += 1;
        assert_eq!((snapshot.sends_inline, counters.sends_inline), (7, 8));
        assert_eq!(snapshot.get("sends_inline"), Some(7));
        assert_eq!(snapshot.get("truncations"), Some(3));
        assert_eq!(snapshot.get("no_such_counter"), None);
        assert_eq!(snapshot.iter().len(), COUNTERS.len());
        assert_eq!(snapshot.iter().map(|(_, value)| value).sum::<u64>(), 10);
    }

    #[test]
    fn differences_are_taken_of_sums_only() {
        let mut counters = Counters::new();
        counters.sends_slots = 5;
        counters.hold_unexpected(100);
        let before = counters.snapshot();
        counters.sends_slots += 2;
        counters.release_unexpected(60);
        counters.hold_unexpected(10);
        let after = counters.snapshot();
        let increase = |name| {
            after
                .since(&before)
                .find(|(info, _)| info.name == name)
                .map(|(_, value)| value)
        };
        assert_eq!(increase("sends_slots"), Some(2));
        assert_eq!(increase("unexpected_bytes_now"), Some(50));
        assert_eq!(increase("unexpected_bytes_peak"), Some(100));
    }

    #[test]
    fn names_are_unique_and_documented() {
        for (index, info) in COUNTERS.iter().enumerate() {
            assert!(info.doc.ends_with('.'), "{}", info.name);
            assert!(!info.unit.is_empty());
            assert!(
                COUNTERS[..index]
                    .iter()
                    .all(|other| other.name != info.name)
            );
        }
    }
}
