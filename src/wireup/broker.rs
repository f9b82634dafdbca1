// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other side of the wire-up: collects cards and segments, introduces ranks, and spreads the word of who died. It
//! runs in the launcher, which [adds](Broker::add) the ranks that it starts. When a foreign launcher started them it
//! runs in rank 0, which [seats](Broker::seat) them as they come.
//!
//! The broker never waits: what cannot be sent at once is queued per rank. It believes the kernel, not the rank: the
//! credentials that come with each message name the sender. One misbehaving rank loses its connection; the others do
//! not notice more than its death.
//!
//! In a job that spans nodes each has a broker of its own. It serves the ranks there and hears of the others from other
//! brokers (`beyond.rs`).

mod beyond;
mod client;

use beyond::OtherNodes;
use client::{Client, ClientState};

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use onecopy_shm::fdpass::{self, Credentials, FdPassError, Wait};
use onecopy_shm::process;

use crate::wireup::message::{MAX_MESSAGE, ToLauncher, ToRank};
use crate::wireup::oob::ToHost;
use crate::wireup::poll_args::Polled;
use crate::wireup::{Card, Death, Event, Missing};

/// When a rank's connection or process ends, its exit status may be a moment behind. Chosen by magnitude: two periods
/// of the looks at peers' lives.
const STATUS_DELAY: Duration = Duration::from_millis(20);

/// What the launcher should know.
#[derive(Debug, PartialEq)]
pub enum Notice {
    /// A rank wants the job to end.
    Abort { rank: usize, code: i32 },
    /// A rank broke the rules and lost its connection.
    Complaint { rank: usize, text: String },
    /// Not all ranks joined.
    GaveUp {
        missing: Vec<Missing>,
        waited: Option<Duration>,
    },
    /// A member of the job has ended without a word that it leaves.
    Deserted { rank: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gathering,
    Complete,
    GaveUp { waited_ms: u32 },
}

/// Introduces the ranks of one job.
#[derive(Debug)]
pub struct Broker {
    clients: Vec<Client>,
    phase: Phase,
    pid_ns: u64,
    own_uid: u32,
    join_timeout: Duration,
    first_join: Option<Instant>,
    notices: Vec<Notice>,
    /// The rank in whose process this broker runs, if it is one.
    own: Option<usize>,
    /// Messages to all that the own rank has not got yet, and since when.
    held: Option<(Instant, Vec<Vec<u8>>)>,
    buffer: Vec<u8>,
    beyond: Option<OtherNodes>,
}

/// Names what to poll for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A rank's socket, to read and perhaps to write.
    Socket(usize),
    /// The process that joined as this rank.
    Process(usize),
}

impl Broker {
    /// A broker without ranks.
    pub fn new(join_timeout: Duration) -> Self {
        Self {
            clients: Vec::new(),
            phase: Phase::Gathering,
            pid_ns: Card::of_this_process().pid_ns,
            own_uid: nix::unistd::getuid().as_raw(),
            join_timeout,
            first_join: None,
            notices: Vec::new(),
            own: None,
            held: None,
            buffer: vec![0; MAX_MESSAGE],
            beyond: None,
        }
    }

    /// Adds the next rank: our end of its socket, and its process.
    pub fn add(&mut self, socket: OwnedFd, child: Pid, child_fd: Option<Arc<OwnedFd>>) {
        let mut client = Client::vacant();
        client.seat(socket, child, child_fd);
        self.clients.push(client);
    }

    /// Room for `ranks` ranks that have not come yet.
    pub fn make_room(&mut self, ranks: usize) {
        let vacant = (0..ranks).map(|_| Client::vacant());
        self.clients.extend(vacant);
    }

    /// Whether this rank has not come yet.
    pub fn is_vacant(&self, rank: usize) -> bool {
        self.clients.get(rank).is_some_and(|client| !client.seated)
    }

    /// A rank has come: our end of its connection, and the process that connected.
    pub fn seat(
        &mut self,
        rank: usize,
        socket: OwnedFd,
        who: Credentials,
        process: Option<Arc<OwnedFd>>,
    ) {
        self.clients[rank].seat(socket, Pid::from_raw(who.pid), process);
    }

    /// Answers a rank's hello.
    pub fn welcome(&mut self, rank: usize) {
        self.send(rank, ToRank::Welcome.encode(), Vec::new());
    }

    /// Whether no rank can join any more: all have, or those that have were notified that not all will.
    pub fn is_settled(&self) -> bool {
        self.phase != Phase::Gathering
    }

    /// Whether no rank is connected, and no end of a rank is still to be judged.
    pub fn is_deserted(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.all(|client| client.socket.is_none() && client.ending.is_none())
    }

    /// Whether every rank that is served here is out of the job, in whatever way.
    pub fn all_are_out(&self) -> bool {
        (0..self.clients.len()).all(|rank| {
            let client = &self.clients[rank];
            let gone = client.socket.is_none() && client.ending.is_none();
            let came = client.seated || self.is_settled();
            self.is_out(rank) || !self.is_here(rank) || gone && came
        })
    }

    /// Whether this rank is out of the job, in whatever way.
    pub fn is_out(&self, rank: usize) -> bool {
        matches!(
            self.clients[rank].state,
            ClientState::Left | ClientState::Gone
        )
    }

    /// Whether all queues are empty.
    pub fn nothing_to_send(&self) -> bool {
        self.clients.iter().all(|client| client.queue.is_empty())
    }

    /// Descriptors to poll.
    pub fn polled(&self) -> impl Iterator<Item = Polled<'_, Token>> {
        let bound = 64 + 2 * self.clients.len();
        self.clients
            .iter()
            .enumerate()
            .flat_map(move |(rank, client)| {
                let socket = client.socket.as_ref().map(|socket| {
                    // A rank that does not read its answers is not asked for more questions.
                    let read = client.queue.len() < bound;
                    let write = !client.queue.is_empty() && client.stuck.is_none();
                    Polled {
                        token: Token::Socket(rank),
                        fd: socket.as_fd(),
                        read,
                        write,
                    }
                });
                let watched = client.state == ClientState::Joined && client.ending.is_none();
                let process = client.process.as_ref().filter(|_| watched);
                let process = process.map(|fd| Polled::for_read(Token::Process(rank), fd.as_fd()));
                socket.into_iter().chain(process)
            })
    }

    /// Serves what is ready.
    pub fn ready(&mut self, token: Token, now: Instant) {
        match token {
            Token::Socket(rank) => {
                self.flush(rank);
                self.drain(rank, now);
            }
            Token::Process(rank) => {
                // What it sent before it ended comes first.
                self.drain(rank, now);
                self.clients[rank].ending.get_or_insert(now);
            }
        }
    }

    /// The launcher's child of this rank has ended.
    pub fn child_ended(&mut self, rank: usize, death: Death, now: Instant) {
        self.drain(rank, now);
        let client = &mut self.clients[rank];
        client.child_death = Some(death);
        let own = client
            .joined_as
            .is_some_and(|who| who.pid == client.child.as_raw());
        if own || client.ending.is_some() {
            self.gone(rank, death);
        }
    }

    /// Does what is due, and returns what the launcher should know.
    pub fn tick(&mut self, now: Instant) -> Vec<Notice> {
        for rank in 0..self.clients.len() {
            if self.clients[rank]
                .stuck
                .is_some_and(|(_, since)| since <= now)
            {
                self.flush(rank);
            }
            let client = &self.clients[rank];
            if let Some(since) = client.ending {
                let late = now.duration_since(since) >= STATUS_DELAY;
                if let Some(death) = client.child_death.or(late.then_some(Death::Unknown)) {
                    self.gone(rank, death);
                }
            }
        }
        if let (Phase::Gathering, Some(first)) = (self.phase, self.first_join)
            && self.decides()
        {
            let waited = now.duration_since(first);
            if waited >= self.join_timeout {
                self.give_up(Some(waited));
            }
        }
        std::mem::take(&mut self.notices)
    }

    /// When [`tick`](Self::tick) has something to do at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let ending = self.clients.iter().filter_map(|client| client.ending).min();
        let ending = ending.map(|since| since + STATUS_DELAY);
        let stuck = self
            .clients
            .iter()
            .filter_map(|client| Some(client.stuck?.1));
        let gathers = self.phase == Phase::Gathering && self.decides();
        let joining = self.first_join.filter(|_| gathers);
        let joining = joining.and_then(|first| first.checked_add(self.join_timeout));
        ending.into_iter().chain(joining).chain(stuck).min()
    }

    fn drain(&mut self, rank: usize, now: Instant) {
        // Bounded, so that one talkative rank does not keep the others waiting.
        for _ in 0..64 {
            let Some(socket) = &self.clients[rank].socket else {
                return;
            };
            match fdpass::recv(socket.as_fd(), &mut self.buffer, 2, Wait::Never) {
                Ok(got) => {
                    let message = ToLauncher::decode(&self.buffer[..got.len]);
                    let checked = message
                        .map_err(|error| error.to_string())
                        .and_then(|message| self.check(rank, got.from).map(|from| (message, from)))
                        .and_then(|(message, from)| self.serve(rank, message, from, got.fds, now));
                    if let Err(text) = checked {
                        return self.disconnect(rank, text, now);
                    }
                }
                Err(FdPassError::WouldBlock) => return,
                Err(FdPassError::Closed) => return self.clients[rank].hang_up(now),
                Err(error) => return self.disconnect(rank, error.to_string(), now),
            }
        }
    }

    /// Is the sender who it should be?
    fn check(&self, rank: usize, from: Option<Credentials>) -> Result<Credentials, String> {
        let from = from.ok_or("a message without credentials")?;
        if from.uid != self.own_uid && from.uid != 0 && self.own_uid != 0 {
            return Err(format!(
                "a message from user {}; ranks must run as user {}, who started the job",
                from.uid, self.own_uid
            ));
        }
        match self.clients[rank].joined_as {
            Some(known) if known.pid != from.pid => Err(format!(
                "a message from process {} although process {} has joined as this rank",
                from.pid, known.pid
            )),
            _ => Ok(from),
        }
    }

    fn serve(
        &mut self,
        rank: usize,
        message: ToLauncher,
        from: Credentials,
        fds: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), String> {
        match message {
            ToLauncher::Join { card } => self.join(rank, card, from, fds, now)?,
            ToLauncher::Introduce { peer } => self.introduce(rank, peer),
            ToLauncher::Leave => {
                if self.clients[rank].state == ClientState::Joined {
                    self.clients[rank].state = ClientState::Left;
                    self.announce(rank, Event::Left { rank });
                }
            }
            ToLauncher::Abort { code } => {
                self.announce(rank, Event::Abort { code });
                self.notices.push(Notice::Abort { rank, code });
            }
            ToLauncher::Hello { .. } => return Err("a second hello".to_owned()),
        }
        Ok(())
    }

    fn join(
        &mut self,
        rank: usize,
        card: Card,
        from: Credentials,
        fds: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), String> {
        let client = &mut self.clients[rank];
        if client.state != ClientState::Outside {
            return Err("a second join".to_owned());
        }
        let mut fds = fds.into_iter();
        let segment = fds.next().ok_or("a join without segment")?;
        client.card = Some(card.clone());
        client.segment = Some(Arc::new(segment));
        client.grant = fds.next().map(Arc::new);
        client.joined_as = Some(from);
        client.process = match &client.child_fd {
            Some(fd) if from.pid == client.child.as_raw() => Some(Arc::clone(fd)),
            // It waits for our answer, so it is alive, or has just been killed: then its connection ends.
            _ if from.pid > 0 => process::pidfd_open(Pid::from_raw(from.pid))
                .ok()
                .map(Arc::new),
            _ => None,
        };
        client.state = ClientState::Joined;
        if !self.decides() {
            self.send_beyond(Some(rank), || ToHost::Joined { rank, card });
        }
        self.joined(rank, now);
        Ok(())
    }

    /// One more has joined: who is to hear of it?
    fn joined(&mut self, rank: usize, now: Instant) {
        self.first_join.get_or_insert(now);
        match self.phase {
            Phase::GaveUp { waited_ms } => {
                let missing = self.missing();
                self.send_absent(rank, waited_ms, missing);
            }
            _ if !self.decides() => {}
            _ if self.clients.iter().all(|client| client.card.is_some()) => self.complete(),
            // A rank that can no longer come has been waited for already.
            _ if self
                .clients
                .iter()
                .any(|client| client.state == ClientState::Gone) =>
            {
                self.give_up(None)
            }
            _ => {}
        }
    }

    fn complete(&mut self) {
        self.phase = Phase::Complete;
        let cards: Vec<Card> = self
            .clients
            .iter()
            .filter_map(|client| client.card.clone())
            .collect();
        for message in ToRank::all_cards(&cards) {
            for rank in 0..self.clients.len() {
                if self.is_here(rank) {
                    self.spread(rank, message.clone());
                }
            }
            self.send_beyond(None, || ToHost::Encoded(message));
        }
    }

    fn missing(&self) -> Vec<Missing> {
        if let Some(absent) = self.beyond.as_ref().and_then(OtherNodes::absent) {
            return absent.to_vec();
        }
        let clients = self.clients.iter().enumerate();
        clients
            .filter(|(_, client)| {
                client.state == ClientState::Outside || client.state == ClientState::Gone
            })
            .map(|(rank, client)| Missing {
                rank,
                running: client.child_death.is_none(),
            })
            .collect()
    }

    fn give_up(&mut self, waited: Option<Duration>) {
        if self.phase != Phase::Gathering {
            return;
        }
        let waited_ms = waited.map_or(0, |time| {
            u32::try_from(time.as_millis()).unwrap_or(1).max(1)
        });
        self.phase = Phase::GaveUp { waited_ms };
        let missing = self.missing();
        for rank in 0..self.clients.len() {
            if self.clients[rank].state == ClientState::Joined {
                self.send_absent(rank, waited_ms, missing.clone());
            }
        }
        if self.decides() {
            let missing = missing.clone();
            self.send_beyond(None, || ToHost::Absent { waited_ms, missing });
        }
        self.notices.push(Notice::GaveUp { missing, waited });
    }

    fn send_absent(&mut self, rank: usize, waited_ms: u32, missing: Vec<Missing>) {
        if !self.is_here(rank) {
            return;
        }
        let message = ToRank::Absent { waited_ms, missing };
        self.spread(rank, message.encode());
    }

    fn introduce(&mut self, rank: usize, peer: u32) {
        let client = self.clients.get(peer as usize);
        let found = client.and_then(|client| {
            let who = client.joined_as?;
            let fds = (client.process.clone(), client.grant.clone());
            Some((client.segment.clone()?, fds, who))
        });
        let Some((segment, (process, grant), who)) = found else {
            let reason = match self.is_here(peer as usize) {
                true => format!("rank {peer} has not joined"),
                false => {
                    format!("rank {peer} is on another node, and shares no memory with this one")
                }
            };
            return self.send(rank, ToRank::Refused { reason }.encode(), Vec::new());
        };
        let message = ToRank::Introduction {
            peer,
            uid: who.uid,
            pid: who.pid,
            pid_ns: self.pid_ns,
            pidfd: process.is_some(),
            grant: grant.is_some(),
        };
        let fds = [segment].into_iter().chain(process).chain(grant).collect();
        self.send(rank, message.encode(), fds);
    }

    /// The rank in whose process this broker runs: it gets messages to all last. News of an abort, of a death or of
    /// ranks that did not join may end it, and this broker with it.
    pub(crate) fn runs_in(&mut self, rank: usize) {
        self.own = Some(rank);
    }

    /// Since when messages to all are held back from the own rank.
    pub(crate) fn held_since(&self) -> Option<Instant> {
        self.held.as_ref().map(|(since, _)| *since)
    }

    /// All others were notified, or will not be: notifies the own rank.
    pub(crate) fn release(&mut self) {
        if let (Some((_, messages)), Some(rank)) = (self.held.take(), self.own) {
            for message in messages {
                self.send(rank, message, Vec::new());
            }
        }
    }

    /// Sends a message to all to one of them.
    fn spread(&mut self, rank: usize, message: Vec<u8>) {
        if self.own == Some(rank) {
            let held = self
                .held
                .get_or_insert_with(|| (Instant::now(), Vec::new()));
            held.1.push(message);
        } else {
            self.send(rank, message, Vec::new());
        }
    }

    /// Notifies all other members, and other brokers.
    fn announce(&mut self, from: usize, event: Event) {
        let message = ToRank::Event(event).encode();
        for rank in 0..self.clients.len() {
            let joined = self.clients[rank].state == ClientState::Joined;
            if rank == from || !joined || !self.is_here(rank) {
                continue;
            }
            self.spread(rank, message.clone());
        }
        self.send_beyond(Some(from), || ToHost::Event(event));
    }

    fn send(&mut self, rank: usize, message: Vec<u8>, fds: Vec<Arc<OwnedFd>>) {
        self.clients[rank].queue.push_back((message, fds));
        self.flush(rank);
    }

    fn flush(&mut self, rank: usize) {
        if let Err(text) = self.clients[rank].flush() {
            // What it waits for cannot come any more: it hears why, and the others of its end.
            self.disconnect(rank, text, Instant::now());
        }
    }

    fn disconnect(&mut self, rank: usize, text: String, now: Instant) {
        self.clients[rank].disconnect(text.clone(), now);
        self.notices.push(Notice::Complaint { rank, text });
    }

    fn gone(&mut self, rank: usize, death: Death) {
        let client = &mut self.clients[rank];
        client.ending = None;
        let was = client.state;
        match was {
            ClientState::Outside => {
                client.state = ClientState::Gone;
                if !self.decides() {
                    self.send_beyond(Some(rank), || ToHost::Event(Event::Died { rank, death }));
                }
            }
            ClientState::Joined => {
                client.state = ClientState::Gone;
                if !client.disconnected {
                    self.notices.push(Notice::Deserted { rank });
                }
                self.announce(rank, Event::Died { rank, death });
            }
            ClientState::Left | ClientState::Gone => return,
        }
        let waiting = self
            .clients
            .iter()
            .any(|client| client.state == ClientState::Joined);
        if self.phase == Phase::Gathering && waiting && self.decides() {
            self.give_up(None);
        }
    }
}

#[cfg(test)]
mod tests;
