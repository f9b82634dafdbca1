// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens when a peer is gone: everything that waits for it ends with an error that names it, and what it held
//! comes back.

use super::Engine;
use crate::error::{Error, Result};
use crate::matching::Pattern;
use crate::peer::Gone;
use crate::proto;
use crate::request::RequestState;
use crate::state::Ending;
use crate::state::UnexpectedMessage;
use crate::state::lightweight::PostedReceive;
use crate::wireup::Death;
use onecopy_obs::tracepoints;
use onecopy_shm::liveness;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// What a look at the lives of the peers has found.
#[derive(Debug, Default)]
struct LifeReport {
    /// Ranks that do not talk with this one any more.
    given_up: Vec<u32>,
    /// Ranks whose process or memory has ended.
    ended: Vec<u32>,
    /// The wire-up has events.
    has_events: bool,
}

impl Engine {
    /// Looks whether all peers live, and what the launcher has to say. One system call, and more only if something
    /// happened.
    #[cold]
    pub(crate) fn check_peers(&mut self) {
        self.core.counters.liveness_checks += 1;
        self.lives.looks(Instant::now());
        self.try_again();
        self.look_at_retired();
        for lost in self.check_wires() {
            self.mark_gone(lost.rank, lost.gone);
        }
        self.carry_out_endings();
        let seen = self.look_at_lives();
        // Before the event that it has left, which would say less.
        for rank in seen.given_up {
            self.mark_gone(rank, Gone::given_up());
        }
        if seen.has_events {
            self.take_reports();
            self.carry_out_endings();
        }
        for rank in seen.ended {
            if !self.lives.is_gone(rank) {
                // The launcher knows how it ended; if it has not reported that yet, the end itself is enough.
                self.take_reports();
                self.carry_out_endings();
            }
            if !self.lives.is_gone(rank) {
                self.mark_gone(rank, Gone::Died(Death::Unknown));
            }
        }
        self.carry_out_endings();
        self.end_lonely_receives();
        self.report_stuck();
    }

    /// Looks at the processes of all peers, and whether the wire-up has events; nothing is done about it.
    fn look_at_lives(&self) -> LifeReport {
        let mut seen = LifeReport::default();
        let now = Instant::now();
        let mut descriptors: Vec<BorrowedFd<'_>> = Vec::new();
        let mut ranks = Vec::new();
        for peer in self.peers.iter().flatten() {
            if peer.life.is_gone() {
                continue;
            }
            if peer.endpoint.has_given_up() {
                seen.given_up.push(peer.rank);
            }
            // A peer whose memory has ended says nothing more. How it ended is worth waiting for a little; its process
            // is not.
            let grace = 2 * self.waits.policy.period;
            let shares_memory = peer.endpoint.shares_memory();
            if shares_memory && peer.life.ended_for(grace, now) {
                seen.ended.push(peer.rank);
            } else if let Some(pidfd) = &peer.life.pidfd {
                ranks.push(peer.rank);
                descriptors.push(pidfd.as_fd());
            }
        }
        let pids = descriptors.len();
        descriptors.extend(self.wireup.event_fd());
        let looked = liveness::readable(&descriptors, |index| {
            if index < pids {
                seen.ended.push(ranks[index]);
            } else {
                seen.has_events = true;
            }
        });
        seen.has_events |= looked.is_err();
        seen
    }

    /// Ends receives from any source, if no rank is left that could send to them.
    fn end_lonely_receives(&mut self) {
        let Some(error) = self.lonely() else {
            return;
        };
        let posted = self
            .receives
            .posted
            .take_where(|pattern, _| pattern.source.is_none());
        for receive in posted {
            self.fail_posted(receive, error.clone());
        }
    }

    /// Reports sends that are held back for long, so that no rank waits for them in silence.
    fn report_stuck(&mut self) {
        let me = self.core.me;
        for peer in self.peers.iter_mut().flatten() {
            if let Some(text) = peer.outbound.stuck(me, peer.rank, Instant::now()) {
                tracing::warn!("{text}");
                // Programs in C have no subscriber to that. A program without standard error gets no report.
                let line = format!("onecopy: {text}\n");
                let _ = std::io::stderr().lock().write_all(line.as_bytes());
            }
        }
    }

    /// Whether a rank that waits can get no message from anyone. Then every other rank is gone, and it has no second
    /// thread that could send one to itself. The error names one that has left.
    pub(crate) fn lonely(&self) -> Option<Error> {
        if !self.core.single_threaded {
            return None;
        }
        self.lives.alone(self.core.me)
    }

    /// What `look` finds for a caller that waits for it: an error if it waits for any source and no rank is left.
    pub(crate) fn awaited<R>(
        &mut self,
        pattern: &Pattern,
        look: impl FnOnce(&mut Self, &Pattern) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        let found = look(self, pattern)?;
        match self.lonely() {
            Some(error) if found.is_none() && pattern.source.is_none() => Err(error),
            _ => Ok(found),
        }
    }

    /// Carries out the ends that were found. While that goes on, more may be found.
    #[cold]
    pub(super) fn carry_out_endings(&mut self) {
        while self.core.agenda.has_endings() {
            let endings = self.core.agenda.take_endings();
            let reported = endings.iter().filter_map(|ending| match ending {
                Ending::Reported(rank, _) => Some(*rank),
                _ => None,
            });
            let reported: Vec<u32> = reported.collect();
            if !reported.is_empty() {
                self.look_for_last_words(&reported);
            }
            for ending in endings {
                match ending {
                    Ending::Peer(rank, gone) => self.end_peer(rank, gone),
                    Ending::Reported(rank, gone) => {
                        if self.is_gone_now(rank, &gone) {
                            self.mark_gone(rank, gone);
                        }
                    }
                    Ending::Everything(error) => self.end_everything(error),
                }
            }
        }
    }

    /// All requests end with the error, as do those that are asked for later.
    pub(crate) fn end_everything(&mut self, error: Error) {
        self.lives.end_everything(&error);
        self.revoke_sender_writes(|_| true);
        // Threads that rest look at their requests, and for this.
        self.core.requests.count_completed();
        // A lightweight receive has no request that could carry the error.
        for receive in self.receives.posted.take_where(|_, _| true) {
            self.fail_posted(receive, error.clone());
        }
        for id in self.core.requests.ids_where(|request| {
            !matches!(request.state, RequestState::Done | RequestState::External)
        }) {
            self.core.requests.complete(id, Err(error.clone()));
        }
    }

    /// A peer has broken the protocol.
    #[cold]
    pub(crate) fn fail_peer(&mut self, rank: u32, gone: Gone) {
        self.end_peer(rank, gone);
        self.carry_out_endings();
    }

    /// This rank talks with a peer no more.
    fn end_peer(&mut self, rank: u32, gone: Gone) {
        if let Gone::Protocol(detail) = &gone
            && !self.lives.is_gone(rank)
        {
            self.core.counters.protocol_errors += 1;
            tracepoints::protocol_error(rank as usize, detail);
        }
        self.mark_gone(rank, gone);
    }

    /// A peer is gone. What it had sent before is still received; then everything that waits for it ends.
    #[cold]
    pub(crate) fn mark_gone(&mut self, rank: u32, gone: Gone) {
        if self.lives.is_gone(rank) || rank == self.core.me {
            return;
        }
        if let Gone::Died(death) = &gone {
            self.core.counters.peer_deaths += 1;
            tracepoints::peer_died(rank as usize, &death.to_string());
        }
        let given_up = matches!(gone, Gone::Protocol(_) | Gone::Unreachable(_));
        if !given_up {
            self.take_last_words(rank);
        }
        self.lives.mark(rank, gone.clone());
        self.forget_wire(rank);
        if given_up {
            self.announce_given_up(rank);
        }
        self.waits.gone = self.waits.gone.wrapping_add(1);
        self.revoke_sender_writes(|transfer| transfer.peer == rank);
        self.forget_peer(rank, &gone);
        self.end_requests_with(rank, &gone);
    }

    /// Receives what a peer that has ended had sent before.
    fn take_last_words(&mut self, rank: u32) {
        // A rank may have written to us before we ever connected: its bit is set, its segment still introduced.
        for word in 0..self.core.home.active_words() {
            let active = self.core.home.take_active(word);
            if active != 0 {
                self.activate(word, active);
            }
        }
        if let Some(peer) = &mut self.peers[rank as usize] {
            // Another thread that writes there does not keep this rank here.
            for _ in 0..peer.endpoint.looks_at_most() {
                if peer.endpoint.is_empty()
                    || proto::incoming::drain(
                        &mut self.core,
                        &mut self.receives,
                        peer,
                        proto::incoming::Drain::Final,
                    )
                    .is_err()
                {
                    break;
                }
            }
        }
    }

    /// Takes back what was kept of a peer that is gone: it is polled no more, and nothing goes to it or comes.
    fn forget_peer(&mut self, rank: u32, gone: &Gone) {
        self.polling.ranks.retain(|&r| r != rank);
        self.core.agenda.forget(rank);
        if let Some(peer) = &mut self.peers[rank as usize] {
            peer.life.gone = Some(gone.clone());
            self.core.requests.forget_abandoned(rank);
            peer.polled = false;
            peer.outbound.clear();
            peer.inbound.incoming = None;
            let lives = matches!(gone, Gone::Protocol(_) | Gone::Unreachable(_));
            peer.endpoint.reclaim_all(&mut self.core.home, lives);
            self.receives.transfers.drop_of(rank);
            proto::layers::detach(&mut self.core.counters, &peer.link);
        }
        // Whole messages that came before the end stay receivable; announced and half-received ones are lost.
        let lost = self
            .receives
            .unexpected
            .take_where(|source, message| source == rank && !message.is_whole());
        for message in lost {
            if let UnexpectedMessage::Partial(partial) = message {
                // The whole of it was counted when its first chunk came.
                self.core.release_stored(partial.bytes, partial.total);
            }
        }
    }

    fn fail_posted(&mut self, receive: PostedReceive, error: Error) {
        let lightweight = &mut self.receives.lightweight;
        lightweight.fail(&mut self.core.requests, receive, error);
    }

    /// Ends all requests that wait for a peer that is gone.
    fn end_requests_with(&mut self, rank: u32, gone: &Gone) {
        let error = gone.error(rank);
        for id in self
            .core
            .requests
            .ids_where(|request| request.peer == rank && request.state != RequestState::Done)
        {
            self.core.requests.complete(id, Err(error.clone()));
        }
        let any_fails = !matches!(gone, Gone::Left);
        let failed = self.receives.posted.take_where(|pattern: &Pattern, _| {
            pattern.source == Some(rank) || (any_fails && pattern.source.is_none())
        });
        for receive in failed {
            self.fail_posted(receive, error.clone());
        }
    }

    /// Lets a rank that lives know that this one does not talk with it any more. So it does not wait for what will
    /// not come. It finds that in this rank's segment when it is woken, or with its next look at the lives of its
    /// peers.
    fn announce_given_up(&mut self, rank: u32) {
        self.core.home.give_up(rank);
        if let Some(peer) = &mut self.peers[rank as usize] {
            peer.endpoint.give_up();
        }
    }

    /// A peer has reported that `rank` is dead.
    pub(crate) fn believe_dead(&mut self, rank: usize, death: Death) {
        if self.lives.knows(rank) {
            self.mark_gone(rank as u32, Gone::Died(death));
            self.carry_out_endings();
        }
    }
}
