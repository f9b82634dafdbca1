// SPDX-License-Identifier: MIT OR Apache-2.0
//! The endpoint of a peer that a stream socket leads to: records, chunks and control frames travel on it.
//!
//! Until there is a connection, records wait in the buffer and chunks with their senders. The kernel copies a chunk out
//! of the sender's memory and into the receiver's; nothing else copies it, unless the kernel's buffer is full.
//!
//! A rank that waits for such a peer reads its stream with each poll at first, then more and more rarely. At last it
//! reads only when the [`Set`] says that something has arrived.

mod by_lane;
mod closing;
mod connector;
mod feed;
mod frame;
mod input;
mod lane;
mod leaving;
mod options;
mod output;
mod retry;
mod shared_lanes;
mod stream;

pub(crate) use by_lane::RemoteReads;
pub(crate) use connector::{Connector, Outcome};
pub(crate) use input::READ as STREAM_INPUT;
pub(crate) use options::SocketSettings;
pub(super) use output::Frame;
pub(crate) use output::most as stream_output;
pub(crate) use shared_lanes::SharedLanes;

use super::hub::Set;
use super::{BadRecord, CooperativeBlock, Endpoint, Medium, Naming, Pack, Part, Put, Record};
use closing::Closing;
use feed::{End, Feed};
use frame::{FrameKind, HEAD, NAMING_MAX};
use input::{FedInput, Input, Parsed};
use lane::{Carrier, LastOffer, PairLane};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use onecopy_obs::StreamSettings;
use onecopy_shm::copy::Kernel;
use onecopy_shm::fault;
use onecopy_shm::layout::{ChunkIndex, ChunkName, OutOfBounds};
use output::{ChunkOutcome, Output, Sending};
use shared_lanes::NamedLane;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use stream::{PollTurn, Stream};

/// Polls that find no more of a chunk, after which a read checks whether the stream has ended. A poll asks the kernel
/// how many bytes are unread, which does not show the end. The read is one more system call. Chosen by magnitude, as is
/// the next.
const WAITS: u32 = 16;
/// Polls of a lane for each read of the stream beside it. That stream carries only END and GIVEN_UP, or ends itself. A
/// poll of a lane needs no system call, a read of the stream does.
const SKIPS: u32 = 64;

/// The endpoint of a peer on another node.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Option<Stream>,
    output: Output,
    input: Input,
    turn: PollTurn,
    /// Whether its rank polls it. If not, the rank hears of it by the hub.
    polled: bool,
    credit_back: u64,
    /// Credit to be sent with whatever goes out next; 0: none.
    credit_due: u64,
    closing: Closing,
    /// Polls that found no more of a chunk.
    vain_looks: u32,
    /// Where the peer listens, for the words of an error.
    address: SocketAddr,
    settings: StreamSettings,
    bytes_in: u64,
    /// Its lane, where this rank has a device for lanes.
    lane_state: Option<Box<PairLane>>,
    last_offer: LastOffer,
    /// No transfer is ever open in it.
    block: Box<CooperativeBlock>,
}

impl Socket {
    /// The endpoint of a peer that listens at `address`, to which there is no connection yet.
    pub(crate) fn new(address: SocketAddr, settings: StreamSettings) -> Self {
        Self {
            stream: None,
            output: Output::default(),
            input: Input::new(),
            turn: PollTurn::default(),
            polled: false,
            credit_back: 0,
            credit_due: 0,
            closing: Closing::new(),
            vain_looks: 0,
            address,
            settings,
            bytes_in: 0,
            lane_state: None,
            last_offer: LastOffer::default(),
            block: Box::default(),
        }
    }

    /// Talks by this connection from now on.
    pub(crate) fn attach(&mut self, fd: OwnedFd, set: &Arc<Set>, rank: u32) -> nix::Result<()> {
        self.stream = Some(Stream::new(fd, set, rank)?);
        self.flush();
        Ok(())
    }

    /// Whether there is a connection, or was one.
    pub(crate) fn is_attached(&self) -> bool {
        self.stream.is_some()
    }

    /// The hub has found something at its connection: the next poll reads that, however often it was silent before.
    pub(crate) fn is_found_ready(&mut self) {
        self.turn = PollTurn::default();
        if let Some(lane_state) = &mut self.lane_state {
            lane_state.skipped = SKIPS;
        }
    }

    /// Whether records that came were not taken yet.
    pub(crate) fn has_unread(&self) -> bool {
        let by_lane = |lane_state: &PairLane| {
            let lane = lane_state.lane.filter(|_| lane_state.incoming.by_lane);
            !lane_state.incoming.carry_over.is_empty()
                || lane.is_some_and(|lane| lane_state.lanes.lock().unread(lane) > 0)
        };
        self.input.has_next() || self.lane_state.as_deref().is_some_and(by_lane)
    }

    /// Bytes of chunks that were read since this was last asked.
    pub(crate) fn take_read(&mut self) -> u64 {
        std::mem::take(&mut self.bytes_in)
    }

    /// Whether a lane carries the frames from the peer.
    #[inline]
    pub(crate) fn is_by_lane(&self) -> bool {
        self.lane_state
            .as_ref()
            .is_some_and(|lane_state| lane_state.incoming.by_lane)
    }

    /// Bytes were read, perhaps more than the next record's.
    #[inline]
    fn note_read(&self) {
        if let Some(stream) = self.stream.as_ref().filter(|_| !self.polled) {
            stream.note();
        }
    }

    /// Writes what can be written.
    #[inline]
    fn flush(&mut self) {
        if self.lane_state.is_some() {
            return self.flush_by_lane();
        }
        if self.output.is_empty() {
            return;
        }
        let Some(stream) = &self.stream else { return };
        if let Err(errno) = self.output.flush(stream.fd.as_fd()) {
            self.cannot_write(errno);
        }
    }

    fn push(&mut self, what: FrameKind, value: u64) {
        if self.closing.permits_frames() {
            self.output.push(what, value);
            self.flush();
        }
    }

    /// Finds the next record: in what was read, else by reading more, but once: a peer that writes nothing else does
    /// not keep this rank.
    fn look(&mut self) {
        if let Some(lane_state) = &mut self.lane_state {
            lane_state.look(&mut self.output);
            self.drop_answers();
        }
        self.flush();
        if self.look_here() {
            return;
        }
        if self.closing.has_ended() && self.lane_state.is_none() {
            return;
        }
        let FedInput { mut feed, input } = match self.feed() {
            Some(found) => found,
            None => return,
        };
        match input.fill(&mut feed) {
            Ok(false) => {}
            Ok(true) => {
                self.note_read();
                self.look_here();
            }
            Err(end) => self.ended(end),
        }
        if self
            .lane_state
            .as_ref()
            .is_some_and(|lane_state| lane_state.incoming.by_lane)
        {
            self.look_at_stream();
        }
    }

    /// Where the next bytes from the peer are read: what is left of a lane, a lane, or the socket. None: there is no
    /// connection yet.
    #[inline]
    fn feed(&mut self) -> Option<FedInput<'_>> {
        let socket = self.stream.as_ref()?.fd.as_fd();
        let mut feed = Feed {
            carry_over: None,
            lane: None,
            socket: Some(socket).filter(|_| !self.closing.has_ended()),
        };
        if let Some(lane_state) = &mut self.lane_state {
            if lane_state.incoming.by_lane {
                feed.socket = None;
                feed.lane = lane_state
                    .lane
                    .filter(|_| !lane_state.handshake.sent_end)
                    .map(|name| NamedLane {
                        lanes: &lane_state.lanes,
                        name,
                    });
            }
            if !lane_state.incoming.carry_over.is_empty() {
                feed.carry_over = Some(&mut lane_state.incoming.carry_over);
            }
        }
        Some(FedInput {
            feed,
            input: &mut self.input,
        })
    }

    /// Finds the next record in what was read. `false`: more has to be read first.
    #[inline]
    fn look_here(&mut self) -> bool {
        loop {
            if self.input.has_next() {
                return true;
            }
            if self.input.awaits_part() {
                return self.look_for_part();
            }
            match self.input.parse() {
                Parsed::Record if self.closing.has_heard_farewell() => {
                    self.input.bad = Some("a record behind the farewell");
                }
                Parsed::Record => {}
                Parsed::Nothing => return false,
                Parsed::Control(what, value) => self.on_control_frame(what, value),
                Parsed::Offer(offer) => self.on_offer(&offer),
            }
        }
    }

    /// Looks for more of the chunk that is under way. `true`: nothing else is to be looked for.
    fn look_for_part(&mut self) -> bool {
        let Some(FedInput { mut feed, input }) = self.feed() else {
            return true;
        };
        if input.find_part(&mut feed) {
            return true;
        }
        if self
            .lane_state
            .as_ref()
            .is_some_and(|lane_state| lane_state.incoming.by_lane)
        {
            self.look_at_stream();
            return true;
        }
        let Some(stream) = &self.stream else {
            return true;
        };
        self.vain_looks = self.vain_looks.wrapping_add(1);
        if self.closing.has_ended() || !self.vain_looks.is_multiple_of(WAITS) {
            return true;
        }
        // Nothing is there, or nothing comes any more: only a read tells which.
        let mut peeked = [0];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        match recv(stream.fd.as_raw_fd(), &mut peeked, flags) {
            Ok(0) => self.ended(End::Closed),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => {}
            Err(errno) => self.ended(End::Failed(errno)),
        }
        true
    }

    fn on_control_frame(&mut self, what: FrameKind, value: u64) {
        match what {
            FrameKind::Credit => self.credit_back = value,
            FrameKind::GivenUp => self.closing.on_given_up(),
            FrameKind::Farewell => {
                self.closing.on_farewell();
                // The peer reads until it has this rank's farewell, and leaves once all that it sent is acknowledged.
                self.say_farewell();
                self.acknowledge();
            }
            FrameKind::Ready | FrameKind::Switch | FrameKind::End | FrameKind::Target => {
                self.on_lane_control(what, value);
            }
            FrameKind::Record | FrameKind::Offer => {}
        }
    }
}

/// For a short message.
impl Medium for Socket {
    type Room<'e> = Frame<'e>;

    #[inline]
    fn of(endpoint: &mut Endpoint) -> Option<&mut Self> {
        endpoint.wire()
    }

    #[inline]
    fn claim(&mut self, _: usize) -> Option<Self::Room<'_>> {
        if !self.closing.permits_frames() {
            return None;
        }
        if self.output.is_full() {
            self.flush();
            if self.output.is_full() {
                return None;
            }
        }
        if self.credit_due > 0 {
            let total = std::mem::take(&mut self.credit_due);
            self.output.push(FrameKind::Credit, total);
        }
        if let Some(lane_state) = &mut self.lane_state {
            lane_state.retry.talks();
        }
        Some(self.output.frame())
    }

    #[inline]
    fn notify(&mut self) -> bool {
        self.flush();
        false
    }

    #[inline]
    fn is_empty(&mut self) -> bool {
        if self.input.has_next() {
            return false;
        }
        let by_lane = self
            .lane_state
            .as_ref()
            .is_some_and(|lane_state| lane_state.incoming.by_lane);
        if !by_lane && self.output.is_empty() && !self.turn.is_due() {
            return true;
        }
        self.look();
        let found = self.input.has_next();
        self.turn.found(found);
        if self.turn.is_quiet() {
            if self.credit_due > 0 {
                self.send_credit();
            }
            if by_lane && self.turn.is_due() {
                self.acknowledge();
            }
        }
        !found
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<Record>, BadRecord> {
        if !self.input.has_next() {
            self.look();
        }
        match self.input.bad {
            Some(what) => Err(BadRecord {
                slot: 0,
                header: 0,
                meta: 0,
                what,
            }),
            None => Ok(self.input.record()),
        }
    }

    #[inline]
    fn read(&self, _: &Record, offset: usize, out: &mut [u8]) {
        self.input.read(offset, out);
    }

    #[inline]
    fn pass(&mut self, _: Record, _: Option<ChunkName>) -> bool {
        if let Some(FedInput { mut feed, input }) = self.feed() {
            input.advance(&mut feed);
        }
        // What no receive wants of a chunk is read there, and the next record with it.
        self.note_read();
        false
    }

    #[inline]
    fn notify_room(&self) -> bool {
        false
    }

    #[inline]
    fn part(&self) -> Option<Part> {
        self.input.part()
    }

    fn read_chunk(
        &mut self,
        _: ChunkName,
        offset: usize,
        out: &mut [u8],
        _: Kernel,
    ) -> Result<(), OutOfBounds> {
        let by_lane = self
            .lane_state
            .as_ref()
            .is_some_and(|lane_state| lane_state.incoming.by_lane);
        let Some(FedInput { mut feed, input }) = self.feed() else {
            return onecopy_shm::layout::check_range("the chunk of no frame", 0, 1, 0);
        };
        let read = input.read_part(&mut feed, offset, out);
        self.note_read();
        if !by_lane {
            self.bytes_in += out.len() as u64;
        }
        read
    }
}

/// To the peer.
impl Socket {
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        let has_output = |lane_state: &PairLane| {
            lane_state.outgoing.device_backlog || !lane_state.outgoing.control.is_empty()
        };
        !self.output.is_empty() || self.lane_state.as_deref().is_some_and(has_output)
    }

    pub(super) fn push_out(&mut self) {
        self.flush();
        if !self.polled {
            self.send_credit();
        }
    }

    pub(super) fn credit_back(&self) -> u64 {
        self.credit_back
    }

    /// What stands before a chunk's bytes: credit, which is sent if some is due, then the record that names it.
    fn front_of<const N: usize>(
        &self,
        naming: Naming,
        body: &[u8; N],
    ) -> [u8; 2 * HEAD + NAMING_MAX] {
        let head = frame::Head {
            what: FrameKind::Record,
            kind: naming.kind,
            len: N,
            chunk: naming.len,
            value: naming.meta,
        };
        let credit = frame::Head::control(FrameKind::Credit, self.credit_due);
        let mut front = [0; 2 * HEAD + NAMING_MAX];
        front[..HEAD].copy_from_slice(&credit.encode());
        front[HEAD..2 * HEAD].copy_from_slice(&head.encode());
        front[2 * HEAD..2 * HEAD + N].copy_from_slice(body); // short
        front
    }

    pub(super) fn put_chunk<const N: usize>(
        &mut self,
        naming: Naming,
        body: impl FnOnce(ChunkName) -> [u8; N],
        source: &impl Pack,
    ) -> Put {
        const { assert!(N <= NAMING_MAX) };
        self.flush();
        let Some(stream) = &self.stream else {
            return Put::NoRoom;
        };
        // Behind what waits nothing is added: it would have to be copied as a whole.
        if !self.output.is_empty() || !self.closing.permits_frames() {
            return Put::NoRoom;
        }
        if naming.len > frame::CHUNK_MAX {
            return Put::Withdrawn;
        }
        if let Some(lane_state) = &mut self.lane_state {
            lane_state.retry.talks();
        }
        let front = self.front_of(naming, &body(ChunkName::Sent(ChunkIndex(0))));
        let begin = if self.credit_due > 0 { 0 } else { HEAD };
        let front = &front[begin..2 * HEAD + N];
        let carrier = self.lane_state.as_ref();
        match carrier.map_or(Carrier::Stream, |lane_state| lane_state.outgoing.carrier) {
            Carrier::Stream => {}
            Carrier::Lane => {
                let put = self.put_by_lane(front, naming.len, source);
                if put != Put::NoRoom {
                    self.credit_due = 0;
                }
                return put;
            }
            Carrier::AwaitingEnd => return Put::NoRoom,
        }
        let mut sending = Sending::new(&mut self.output, stream.fd.as_fd(), front, naming.len);
        let shown = source.show(|_, bytes| sending.piece(bytes));
        if shown.is_err() && !sending.has_begun() {
            return Put::Withdrawn;
        }
        let sent = sending.end();
        fault::point("frame.partial");
        match sent {
            ChunkOutcome::All => {}
            ChunkOutcome::Nothing => return Put::NoRoom,
            ChunkOutcome::Failed(errno) => self.cannot_write(errno),
            ChunkOutcome::Torn => self.cut(),
        }
        self.credit_due = 0;
        Put::Sent
    }

    pub(super) fn could_write(&mut self) -> bool {
        self.flush();
        let Some(stream) = &self.stream else {
            return false;
        };
        if let Some(lane_state) = &self.lane_state
            && lane_state.outgoing.carrier != Carrier::Stream
        {
            let lane = lane_state.lane.unwrap_or(u64::MAX);
            let room = lane_state.outgoing.carrier == Carrier::Lane
                && lane_state.lanes.lock().has_room(lane, usize::MAX);
            return room && self.closing.permits_frames();
        }
        if self.output.blocked && stream.can_write() {
            self.output.blocked = false;
        }
        !self.output.blocked && self.closing.permits_frames()
    }

    pub(super) fn wait_for_room(&self, waiting: bool) {
        if let Some(stream) = &self.stream {
            let blocked = |lane_state: &PairLane| match lane_state.outgoing.carrier {
                Carrier::Stream => self.output.blocked,
                Carrier::Lane | Carrier::AwaitingEnd => !lane_state.outgoing.control.is_empty(),
            };
            let blocked = self
                .lane_state
                .as_deref()
                .map_or(self.output.blocked, blocked);
            stream.watch(waiting && blocked);
        }
    }
}

/// From the peer.
impl Socket {
    pub(super) fn chunk_bytes(&self) -> usize {
        frame::CHUNK_MAX
    }

    /// Credit goes out with the next record to the peer. Without one it goes out when the stream has been quiet for a
    /// while, or when more credit is given. A system call for credit alone costs as much as one for a message. Where no
    /// poll finds the stream quiet, it goes out at once.
    pub(super) fn give_credit(&mut self, total: u64) {
        let due = std::mem::replace(&mut self.credit_due, total);
        if due > 0 || !self.polled {
            self.send_credit();
        }
    }

    fn send_credit(&mut self) {
        // The value is a total, and a later one replaces it: it may wait until there is room.
        if self.output.is_full() {
            return;
        }
        let total = std::mem::take(&mut self.credit_due);
        if total > 0 {
            self.push(FrameKind::Credit, total);
        }
    }

    pub(super) fn set_polling(&mut self, polling: bool) {
        self.polled = polling;
        self.send_credit();
        self.is_found_ready();
        self.acknowledge();
    }
}

/// What is shared besides: nothing.
impl Socket {
    #[inline]
    pub(super) fn block(&self) -> &CooperativeBlock {
        &self.block
    }
}

#[cfg(test)]
mod tests;
