// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of a rank: its peers, requests, matching, and the progress that moves them all.
//!
//! It is used behind a [`onecopy_shm::gate::Gate`], by one thread at a time.

mod connect;
mod deaths;
mod polling;
mod progress;
mod reports;
mod sleep;
mod start;
mod wires;
mod writers;

use self::polling::Polling;
use crate::error::{Error, Result};
use crate::matching::{Envelope, MatchBits, Pattern};
use crate::peer::{Incoming, PairSettings, Peer, Target};
use crate::proto;
use crate::proto::direct::{AtOnce, Look, ReceiveProgress, SendProgress};
use crate::request::{Request, RequestId, RequestState, SendPlan, Status, UserBuf};
use crate::state::lightweight::PostedReceive;
use crate::state::{Core, Lives, Receives, UnexpectedMessage, Waits};
use crate::wireup::Wireup;
use onecopy_btl::link::Permitted;

/// How a send is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendMode {
    /// Complete when the buffer may be used again.
    Standard,
    /// Complete only when matched.
    Synchronous,
}

/// A rank's engine.
pub(crate) struct Engine {
    pub(crate) core: Core,
    pub(crate) receives: Receives,
    /// The threads that wait.
    pub(crate) waits: Waits,
    pub(crate) peers: Vec<Option<Box<Peer>>>,
    pub(crate) polling: Polling,
    /// Which ranks are gone.
    pub(crate) lives: Lives,
    pub(crate) wireup: Box<dyn Wireup>,
    pub(crate) permitted: Permitted,
    exports: Exports,
    /// The node of each rank; those of one node share memory.
    nodes: Vec<u32>,
    other_nodes: wires::OtherNodes,
}

/// The memory of ranks that a kernel module exposes.
struct Exports {
    /// The card that each rank published when it joined.
    of_ranks: Vec<onecopy_btl::module::Export>,
    /// This rank's own, as long as the engine lives.
    _own: onecopy_btl::module::Exposed,
}

impl Engine {
    /// Notifies the threads that wait, if something arrived that one of them may wait for.
    #[inline]
    pub(crate) fn notify(&mut self) {
        let (completed, kept) = (self.core.requests.completed, self.receives.unexpected.kept);
        let stages = &self.core.stages;
        self.waits.notify(completed, kept, || stages.added());
    }

    /// Moves all messages that can move. `waiting` says that the caller waits, so that a sender takes part in
    /// cooperative transfers. Gives whether anything moved.
    #[inline]
    pub(crate) fn progress_messages(&mut self, waiting: bool) -> bool {
        let moved = self.move_messages(waiting);
        self.end_what_ended();
        moved
    }

    /// Takes what has come from a peer for receives that wait, before one of `len` bytes is posted, which may find its
    /// message behind that. Says whether it should look.
    #[inline]
    pub(crate) fn catch_up(&mut self, rank: u32, len: usize) -> bool {
        let looked = self.take_expected(rank, len);
        self.end_what_ended();
        looked
    }

    /// Takes what has come from a peer, for one that waits for its answer to the send `id`.
    #[inline]
    pub(crate) fn take_answer(&mut self, rank: u32, id: RequestId) {
        self.take_fin_or_all(rank, id);
        self.end_what_ended();
    }

    /// Takes all that a peer on this node has sent so far.
    pub(crate) fn drain_peer(&mut self, rank: u32) {
        self.take_all_from(rank);
        self.end_what_ended();
    }

    /// Carries out the ends that its parts have found and put on the agenda.
    #[inline(always)]
    fn end_what_ended(&mut self) {
        if self.core.agenda.has_endings() {
            self.carry_out_endings();
        }
    }

    /// What is settled for every peer on this node.
    fn peer_settings(&self) -> PairSettings<'_> {
        PairSettings {
            knobs: &self.core.knobs,
            costs: &self.core.costs,
            chunks: self.core.chunks,
        }
    }

    /// Whether `rank` shares memory with this one.
    pub(crate) fn shares_node(&self, rank: u32) -> bool {
        self.nodes[rank as usize] == self.nodes[self.core.me as usize]
    }

    /// Whether these ranks share memory, each with each.
    pub(crate) fn share_node(&self, ranks: &[u32]) -> bool {
        ranks
            .windows(2)
            .all(|pair| self.node(pair[0]) == self.node(pair[1]))
    }

    /// The node of a rank.
    pub(crate) fn node(&self, rank: u32) -> u32 {
        self.nodes[rank as usize]
    }

    /// The peer, connected now if it was not before.
    #[inline]
    pub(crate) fn peer(&mut self, rank: u32) -> Result<(&mut Core, &mut Peer)> {
        if self.peers[rank as usize].is_none() {
            let connected = self.connect(rank);
            self.end_what_ended();
            connected?;
        }
        let Self { core, peers, .. } = self;
        match &mut peers[rank as usize] {
            Some(peer) => Ok((core, peer)),
            None => Err(Error::NoSuchRank {
                rank: rank as usize,
                size: core.size as usize,
            }),
        }
    }

    /// Sends at once what can be sent at once. `decided`: how it goes, if that is decided.
    #[inline(always)]
    pub(crate) fn send_now(
        &mut self,
        dest: u32,
        bits: MatchBits,
        bytes: &[u8],
        at_once: AtOnce,
        decided: Option<SendPlan>,
    ) -> SendProgress {
        let Some(Some(peer)) = self.peers.get_mut(dest as usize) else {
            return SendProgress::Later(decided);
        };
        proto::direct::send(&mut self.core, peer, bits, bytes, at_once, decided)
    }

    /// Goes on with a send of which `sent` bytes went out at once.
    pub(crate) fn send_rest(
        &mut self,
        dest: u32,
        context: u32,
        tag: i32,
        buf: UserBuf,
        sent: u64,
    ) -> RequestId {
        let len = buf.len();
        let state = RequestState::Queued(Some(SendPlan::Chunks { sent }));
        let request = Request {
            state,
            peer: dest,
            context,
            tag,
            buf,
            len,
            sync: false,
            result: None,
        };
        let id = self.core.requests.insert(request);
        let Self { core, peers, .. } = self;
        if let Some(peer) = &mut peers[dest as usize] {
            peer.outbound.outbox.push_back(id);
            core.agenda.make_busy(dest);
        }
        id
    }

    /// Starts a send.
    pub(crate) fn send(
        &mut self,
        dest: usize,
        context: u32,
        tag: i32,
        buf: UserBuf,
        mode: SendMode,
    ) -> Result<RequestId> {
        self.send_planned(dest, MatchBits { context, tag }, buf, mode, None)
    }

    /// As [`Self::send`]; `plan`: how it goes, if that is decided.
    pub(crate) fn send_planned(
        &mut self,
        dest: usize,
        MatchBits { context, tag }: MatchBits,
        buf: UserBuf,
        mode: SendMode,
        plan: Option<SendPlan>,
    ) -> Result<RequestId> {
        let dest = self.core.check_rank(dest)?;
        if tag < 0 {
            return Err(Error::BadTag { tag });
        }
        self.lives.check()?;
        if let Some(error) = self.lives.error_of(dest) {
            return Err(error);
        }
        let len = buf.len();
        let request = Request {
            state: RequestState::Queued(plan),
            peer: dest,
            context,
            tag,
            buf,
            len,
            sync: mode == SendMode::Synchronous,
            result: None,
        };
        let id = self.core.requests.insert(request);
        if let (SendMode::Standard, Some(SendPlan::Announced { coop_id })) = (mode, plan)
            && self.announce(dest, id, context, coop_id)
        {
            return Ok(id);
        }
        if dest == self.core.me {
            proto::own::send(&mut self.core, &mut self.receives, id);
            return Ok(id);
        }
        match self.peer(dest) {
            Ok((core, peer)) => {
                peer.outbound.outbox.push_back(id);
                proto::outgoing::flush(core, peer);
                if peer.has_output() || !peer.outbound.announced.is_empty() {
                    core.agenda.make_busy(dest);
                }
                Ok(id)
            }
            Err(error) => {
                self.core.requests.remove(id);
                Err(error)
            }
        }
    }

    /// Announces the send `id` of a context at once, past the queue. `false`: something comes first.
    #[inline]
    fn announce(&mut self, dest: u32, id: RequestId, context: u32, coop_id: u32) -> bool {
        let Self { core, peers, .. } = self;
        let Some(Some(peer)) = peers.get_mut(dest as usize) else {
            return false;
        };
        let out = proto::rendezvous::announce_at_once(core, peer, id, context, coop_id);
        if out && (peer.has_output() || !peer.outbound.announced.is_empty()) {
            core.agenda.make_busy(dest);
        }
        out
    }

    /// Receives at once what is there, or comes while it is looked for.
    #[inline(always)]
    pub(crate) fn receive_now(
        &mut self,
        source: u32,
        context: u32,
        tag: Option<i32>,
        out: &mut [u8],
        look: Look,
    ) -> ReceiveProgress {
        let Self {
            core,
            receives,
            peers,
            ..
        } = self;
        let Some(Some(peer)) = peers.get_mut(source as usize) else {
            return ReceiveProgress::Nothing;
        };
        let wanted = Pattern {
            context,
            source: Some(source),
            tag,
        };
        proto::direct::receive(core, receives, peer, wanted, out, look)
    }

    /// Goes on with a receive of which the first chunks were received at once.
    pub(crate) fn receive_rest(&mut self, begun: Incoming, buf: UserBuf) -> RequestId {
        let Envelope {
            context,
            source,
            tag,
        } = begun.envelope;
        let id = self.core.requests.insert(Request {
            peer: source,
            ..Request::receive(RequestState::Receiving, context, tag, buf)
        });
        if let Some(peer) = &mut self.peers[source as usize] {
            peer.inbound.incoming = Some(Incoming {
                target: Target::Request(id),
                ..begun
            });
        }
        id
    }

    /// Posts a receive, or matches it at once.
    pub(crate) fn receive(
        &mut self,
        source: Option<usize>,
        context: u32,
        tag: Option<i32>,
        buf: UserBuf,
    ) -> Result<RequestId> {
        let pattern = self.check_receive(source, context, tag)?;
        Ok(self.receive_as(pattern, buf))
    }

    /// What a receive accepts, if anything can ever match it.
    #[inline(always)]
    pub(crate) fn check_receive(
        &self,
        source: Option<usize>,
        context: u32,
        tag: Option<i32>,
    ) -> Result<Pattern> {
        let alive = |rank: usize| self.lives.is_there(rank);
        let goes_on = self.lives.fatal().is_none();
        if source.is_some_and(alive) && tag.is_none_or(|tag| tag >= 0) && goes_on {
            return Ok(Pattern {
                context,
                source: source.map(|rank| rank as u32),
                tag,
            });
        }
        self.check_receive_slowly(source, context, tag)
    }

    fn check_receive_slowly(
        &self,
        source: Option<usize>,
        context: u32,
        tag: Option<i32>,
    ) -> Result<Pattern> {
        let source = source.map(|s| self.core.check_rank(s)).transpose()?;
        if let Some(tag) = tag
            && tag < 0
        {
            return Err(Error::BadTag { tag });
        }
        self.lives.check()?;
        let pattern = Pattern {
            context,
            source,
            tag,
        };
        match self.lives.unmatchable(&pattern) {
            Some(error) if self.receives.unexpected.find(&pattern).is_none() => Err(error),
            _ => Ok(pattern),
        }
    }

    /// Receives what `pattern` accepts, which was checked.
    pub(crate) fn receive_as(&mut self, pattern: Pattern, buf: UserBuf) -> RequestId {
        let unexpected = self.receives.unexpected.find(&pattern);
        let (context, tag) = (pattern.context, pattern.tag.unwrap_or(0));
        let request = Request::receive(RequestState::Receiving, context, tag, buf);
        let id = self.core.requests.insert(request);
        if let Some(entry) = unexpected {
            self.accept_entry(entry, id);
            return id;
        }
        let entry = self
            .receives
            .posted
            .post(pattern, PostedReceive::Request(id));
        if let Some(request) = self.core.requests.get_mut(id) {
            request.state = RequestState::Posted(entry);
        }
        id
    }

    /// Gives the unexpected message `entry` to the receive `id`.
    pub(crate) fn accept_entry(&mut self, entry: crate::matching::EntryId, id: RequestId) {
        let envelope = self.receives.unexpected.envelope(entry);
        let message = self.receives.unexpected.take(entry);
        if let UnexpectedMessage::Partial(partial) = message {
            let Self { core, peers, .. } = self;
            if let Some(peer) = &mut peers[envelope.source as usize] {
                proto::eager::adopt(core, peer, envelope, id, partial);
            }
            return;
        }
        self.accept(envelope, message, id);
    }

    /// Gives a whole message to the receive `id`.
    pub(crate) fn accept(&mut self, envelope: Envelope, message: UnexpectedMessage, id: RequestId) {
        let Self {
            core,
            receives,
            peers,
            ..
        } = self;
        if envelope.source == core.me {
            proto::own::accept(core, &mut receives.transfers, envelope, message, id);
        } else if let Some(peer) = &mut peers[envelope.source as usize] {
            proto::incoming::accept(core, &mut receives.transfers, peer, envelope, message, id);
            if peer.has_output() {
                core.agenda.make_busy(envelope.source);
            }
        }
    }

    /// Takes back a receive that no message has matched. Says whether that was possible.
    pub(crate) fn cancel(&mut self, id: RequestId) -> bool {
        let Some(request) = self.core.requests.get(id) else {
            return false;
        };
        let RequestState::Posted(entry) = request.state else {
            return false;
        };
        self.receives.posted.cancel(entry);
        self.core.requests.complete(id, Err(Error::Cancelled));
        true
    }

    /// Throws away messages that came before their receive and that no call will receive.
    #[cold]
    pub(crate) fn discard(&mut self, which: impl FnMut(&Envelope) -> bool) {
        let entries = self.receives.unexpected.ids_where(which);
        for entry in entries {
            // Given to a receive that is over: its sender is answered, and has its credit back.
            let nothing = UserBuf::Many(Default::default());
            let over = Request::receive(RequestState::Receiving, 0, 0, nothing);
            let id = self.core.requests.insert(over);
            self.core.requests.remove(id);
            self.accept_entry(entry, id);
        }
    }

    /// Gives up a request whose end no call waits for any more. What has gone out in part, or was asked for, is broken
    /// off.
    #[cold]
    pub(crate) fn abandon(&mut self, id: RequestId) {
        self.revoke_sender_writes(|transfer| transfer.request == id);
        self.end_what_ended();
        let Some(request) = self.core.requests.abandon(id) else {
            return;
        };
        let Some(Some(peer)) = self.peers.get_mut(request.peer as usize) else {
            return;
        };
        match request.state {
            RequestState::Queued(Some(SendPlan::Chunks { sent: 1.. })) => {
                proto::broken::break_off(&mut self.core, peer);
            }
            RequestState::Awaiting(_) => proto::broken::withdraw(&mut self.core, peer, id),
            _ => {}
        }
    }

    /// Whether nothing more waits to be written to any peer.
    pub(crate) fn is_flushed(&self) -> bool {
        self.peers.iter().flatten().all(|peer| !peer.has_output())
    }

    /// Takes the result of a completed request and forgets the request.
    #[inline]
    pub(crate) fn take_result(&mut self, id: RequestId) -> Option<Result<Status>> {
        match self.core.requests.get(id) {
            Some(request) if request.state != RequestState::Done => None,
            Some(_) => self.core.requests.finish(id),
            None => Some(Err(Error::Cancelled)),
        }
    }
}
