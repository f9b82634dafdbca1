// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device's side: what the owners above ask for.
//!
//! A provider's objects keep alive what they were made from, and end when they are dropped: an order of drops cannot be
//! wrong. Numbers come back as they are; checks of what is under way stand above. An [`io::Error`] has the errno that
//! the device's library or the kernel gave. Then nothing was made, posted or changed.
//!
//! # Safety
//!
//! The trait only declares; each call says what it asks of its caller, and the trait what it asks of an implementation.
#![allow(
    unsafe_code,
    reason = "declares what touches memory behind the program's back"
)]

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::timing::Timing;

/// What a device can do, as it says itself (`ibv_query_device_ex`). Counts are the most that there can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub pairs: u32,
    /// Operations under way in one direction of one of them.
    pub depth: u32,
    /// Pieces of an operation.
    pub pieces: u32,
    /// Pieces of a receive that pairs share.
    pub shared_pieces: u32,
    /// Completions in a queue.
    pub completions: u32,
    /// Receives in a queue that pairs share; none if zero.
    pub shared_receives: u32,
    /// Registrations.
    pub registrations: u32,
    /// Bytes of one registration.
    pub registration_bytes: u64,
    /// Reads of a pair that are under way, or are served, at a time.
    pub reads: u8,
    /// Whether a read that has succeeded has brought its bytes. The kernel's software device (`rdma_rxe`) may say so of
    /// one that has not, where its network loses or reorders many packets (seen with Linux 7.3).
    pub sound_reads: bool,
    /// Ports, numbered from 1.
    pub ports: u8,
    /// Whether it has extended connections (XRC), whose receives processes share.
    pub shared_connections: bool,
    /// Whether it faults pages in when it touches them (on-demand paging).
    pub faults: bool,
    /// Whether it has atomic operations.
    pub atomics: bool,
    /// Interrupts (completion vectors) that queues of completions can use.
    pub interrupts: u32,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Whether it carries messages.
    pub active: bool,
    /// Bytes of a packet's payload at most: the active MTU.
    pub packet: u32,
    /// Bytes of a message at most.
    pub message: u32,
    /// Its number (LID) in a subnet of InfiniBand.
    pub lid: u16,
    /// Whether it is one of Ethernet (RoCE): peers are reached by addresses of IP.
    pub ethernet: bool,
    /// Megabits a second.
    pub speed: u32,
}

/// A row of a port's table of addresses (GIDs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its index in the table, which own paths name.
    pub index: u8,
    /// Its bytes: over Ethernet an IPv6 address, or `::ffff:a.b.c.d`.
    pub bytes: [u8; 16],
    /// Whether it is used in packets of UDP (RoCE v2), which routers pass on.
    pub routable: bool,
}

/// What others may do with registered memory. The device itself may read and write it in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it.
    pub remote_read: bool,
    /// Peers may write to it.
    pub remote_write: bool,
}

/// The keys of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// For own operations (`lkey`).
    pub own: u32,
    /// For operations of peers (`rkey`).
    pub peers: u32,
}

/// A peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The peer's address of its first byte.
    pub address: u64,
    /// Its key.
    pub key: u32,
}

/// A piece of own registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Its key.
    pub key: u32,
}

/// The kind of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A reliable connection.
    Connection,
    /// Datagrams.
    Datagrams,
    /// The sending end of an extended connection.
    SharedSend,
    /// The receiving end of an extended connection.
    SharedReceive,
}

/// Lengths of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Sends under way.
    pub sends: u32,
    /// Own receives; none where they come from a shared queue.
    pub receives: u32,
    /// Bytes that a request itself carries.
    pub inline: u32,
}

/// A queue pair to be made.
#[derive(Debug)]
pub struct PairSpec<'a, P: Provider> {
    /// Its kind.
    pub kind: Kind,
    /// Where its operations complete.
    pub completions: &'a P::Completions,
    /// Where its receives come from.
    pub receives: Option<&'a P::Receives>,
    /// The domain of an extended connection's receiving end.
    pub shared: Option<&'a P::Shared>,
    /// Lengths.
    pub depths: Depths,
}

/// A change of a queue pair's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It may take receives.
    Prepare {
        /// The own port.
        port: u8,
        /// The Q_Key that datagrams must have.
        qkey: u32,
    },
    /// It receives from this peer; datagrams from all.
    Receive {
        /// The peer; none for datagrams.
        peer: Option<Peer>,
        /// What a full receiver asks senders to wait.
        timing: Timing,
    },
    /// It sends.
    Send {
        /// The number of the first packet.
        first: u32,
        /// Reads of the peer that are under way at once.
        reads: u8,
        /// Times; those of datagrams mean nothing.
        timing: Timing,
    },
    /// Everything that was posted fails.
    Fail,
}

/// A peer's pair, and the path to its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The path to its port.
    pub path: Path,
    /// Its number.
    pub number: u32,
    /// The number of its first packet.
    pub first: u32,
    /// Bytes of a packet that both can take.
    pub packet: u32,
    /// Reads that are served at once.
    pub reads: u8,
}

/// What leads to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// The own port.
    pub port: u8,
    /// The own address, by its index in the port's table.
    pub from: u8,
    /// The peer's address.
    pub to: [u8; 16],
    /// The peer's number (LID) in a subnet of InfiniBand.
    pub lid: u16,
    /// Whether the address counts; else the number alone does.
    pub routed: bool,
}

/// What a send does.
#[derive(Debug)]
pub enum Verb<'a, P: Provider> {
    /// Arrives in a receive of the peer.
    Send,
    /// A datagram.
    SendTo {
        /// The address handle.
        ah: &'a P::AddressHandle,
        /// The peer's pair.
        number: u32,
        /// Its Q_Key.
        qkey: u32,
    },
    /// Arrives in a queue of receives that the peer's processes share.
    SendShared {
        /// That queue.
        receives: u32,
    },
    /// Arrives in the peer's memory.
    Write(Remote),
    /// Comes from the peer's memory.
    Read(Remote),
    /// The same by an extended connection. The memory is of the domain of that queue of receives.
    ReadShared {
        /// Where from.
        from: Remote,
        /// That queue.
        receives: u32,
    },
}

/// A send to be posted.
#[derive(Debug)]
pub struct Request<'a, P: Provider> {
    /// Comes back with the completion.
    pub id: u64,
    /// What it does.
    pub verb: Verb<'a, P>,
    /// Its memory.
    pub pieces: &'a [Piece],
    /// Immediate data for the receiver; a write that has it takes a receive, too.
    pub immediate: Option<u32>,
    /// Whether it tells of its completion.
    pub signaled: bool,
    /// Whether the bytes are copied when it is posted.
    pub inline: bool,
}

/// What has completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Of the request.
    pub id: u64,
    /// The number of a [`crate::Status`]. If it is no success, only `id`, this and `pair` mean something.
    pub status: u32,
    /// Whether it is a receive.
    pub received: bool,
    /// Bytes that came; of a datagram, with the 40 before its own ([`crate::queue::DATAGRAM_HEAD`]).
    pub bytes: u32,
    /// The immediate data of the send.
    pub immediate: Option<u32>,
    /// The own pair.
    pub pair: u32,
    /// The sender's pair, of a datagram.
    pub source: u32,
}

/// Something happened on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A port carries messages.
    PortUp(u8),
    /// A port carries none any more.
    PortDown(u8),
    /// A port's addresses changed.
    Addresses(u8),
    /// A pair has failed.
    PairFailed(u32),
    /// A shared queue of receives has fewer than its limit.
    ReceivesLow,
    /// A queue of completions was too short.
    QueueOverran,
    /// The device has failed.
    DeviceFailed,
    /// Anything else, by its number.
    Other(u32),
}

/// An object of a provider.
pub trait Object: Debug + Send + Sync + 'static {}
impl<T: Debug + Send + Sync + 'static> Object for T {}

/// A device's side.
///
/// # Safety
///
/// An implementation touches memory that was registered or posted only while an operation is posted. That time ends
/// with its completion, or with the drop of its pair, its receives' queue and that queue's pairs. It uses the keys of
/// the registration. It stays within the pieces that were posted, or within the registered range for a peer.
pub unsafe trait Provider: Debug + Send + Sync + Sized + 'static {
    /// An open device.
    type Context: Object + Clone;
    /// A domain: what is made of it works together.
    type Domain: Object + Clone;
    /// Registered memory.
    type Memory: Object;
    /// What tells of completions.
    type Channel: Object;
    /// A queue of completions.
    type Completions: Object + Clone;
    /// A queue of receives.
    type Receives: Object;
    /// A queue pair.
    type QueuePair: Object;
    /// A peer's address.
    type AddressHandle: Object;
    /// A domain that processes share receives in.
    type Shared: Object + Clone;

    /// The names of the devices, in the library's order.
    fn devices(&self) -> io::Result<Vec<String>>;
    /// Opens one.
    fn open(&self, name: &str) -> io::Result<Self::Context>;
    /// What it can do.
    fn limits(context: &Self::Context) -> io::Result<Limits>;
    /// A port; the first is 1.
    fn port(context: &Self::Context, port: u8) -> io::Result<Port>;
    /// A port's addresses.
    fn addresses(context: &Self::Context, port: u8) -> io::Result<Vec<Address>>;
    /// Readable when something has happened.
    fn events(context: &Self::Context) -> BorrowedFd<'_>;
    /// What has happened, if anything; does not wait.
    fn next_event(context: &Self::Context) -> io::Result<Option<Event>>;

    /// A domain.
    fn domain(context: &Self::Context) -> io::Result<Self::Domain>;
    /// Registers memory, which pins its pages. The drop of what is returned ends that.
    ///
    /// # Safety
    ///
    /// The memory stays mapped until what is returned is dropped and every operation with it has ended. Until then,
    /// nothing relies on its bytes where the device or a peer may write.
    unsafe fn register(
        domain: &Self::Domain,
        at: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> io::Result<Self::Memory>;
    /// Its keys.
    fn keys(memory: &Self::Memory) -> Keys;

    /// A channel that tells of completions.
    fn channel(context: &Self::Context) -> io::Result<Self::Channel>;
    /// The channel's descriptor, which is readable while the channel has events.
    fn descriptor(channel: &Self::Channel) -> BorrowedFd<'_>;
    /// Takes the channel's events without waiting, and returns how many there were.
    fn take_wakes(channel: &Self::Channel) -> io::Result<u32>;
    /// A queue of at least `length` completions, of which `channel` tells.
    fn completions(
        context: &Self::Context,
        length: u32,
        channel: Option<&Self::Channel>,
    ) -> io::Result<Self::Completions>;
    /// Resizes the queue to `length` completions.
    fn lengthen(queue: &Self::Completions, length: u32) -> io::Result<()>;
    /// Has the channel tell of the next completion, once. What has completed before is not told.
    fn arm(queue: &Self::Completions) -> io::Result<()>;
    /// Takes completions, without a system call. Gives how many there are. After an error, what it took may be lost.
    fn poll(queue: &Self::Completions, into: &mut [Finished]) -> io::Result<usize>;

    /// A queue of at most `length` receives that pairs share. With `shared`, processes share it.
    fn receives(
        domain: &Self::Domain,
        length: u32,
        shared: Option<(&Self::Shared, &Self::Completions)>,
    ) -> io::Result<Self::Receives>;
    /// Has the device report, once, when there are fewer than `limit` receives.
    fn report_below(receives: &Self::Receives, limit: u32) -> io::Result<()>;
    /// The number (SRQN) by which a peer's request names these receives on an extended connection.
    fn number_of_receives(receives: &Self::Receives) -> io::Result<u32>;
    /// A domain that processes share receives in, by a file.
    fn shared(context: &Self::Context, file: Option<BorrowedFd<'_>>) -> io::Result<Self::Shared>;

    /// A queue pair, and the bytes that its requests can carry.
    fn pair(domain: &Self::Domain, spec: &PairSpec<'_, Self>)
    -> io::Result<(Self::QueuePair, u32)>;
    /// The receiving end of an extended connection that another process of the domain has made. It exists as long as
    /// any process has it open.
    fn open_pair(
        domain: &Self::Domain,
        shared: &Self::Shared,
        completions: &Self::Completions,
        number: u32,
    ) -> io::Result<Self::QueuePair>;
    /// Its number.
    fn number(pair: &Self::QueuePair) -> u32;
    /// Changes its state.
    fn change(pair: &Self::QueuePair, kind: Kind, change: &Change) -> io::Result<()>;
    /// A peer's address. May wait a second for a peer that does not answer.
    fn address_handle(domain: &Self::Domain, path: &Path) -> io::Result<Self::AddressHandle>;

    /// Posts a send.
    ///
    /// # Safety
    ///
    /// Unless it is inline, its pieces stay until the completion or the drop of the pair. Until then, nothing else
    /// writes to them. For a read, nothing relies on their bytes either.
    unsafe fn send(pair: &Self::QueuePair, request: &Request<'_, Self>) -> io::Result<()>;
    /// Posts a receive of the pair's own.
    ///
    /// # Safety
    ///
    /// As [`Self::send`], for a read.
    unsafe fn receive(pair: &Self::QueuePair, id: u64, pieces: &[Piece]) -> io::Result<()>;
    /// Posts a receive that pairs share.
    ///
    /// # Safety
    ///
    /// As [`Self::send`], for a read, until the queue and all its pairs are dropped.
    unsafe fn receive_shared(
        receives: &Self::Receives,
        id: u64,
        pieces: &[Piece],
    ) -> io::Result<()>;
}
