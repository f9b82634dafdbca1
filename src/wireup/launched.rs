// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wire-up of a rank that `onecopy run` started: a conversation with the launcher over the socket that it left
//! open.
//!
//! Requests are answered in order, perhaps when no call waits for the answer any more: such answers are counted off.
//! Events may arrive at any time, also between a request and its answer. They are put
//! aside, and the descriptor that [`event_fd`](super::Wireup::event_fd) returns stays readable until
//! [`poll`](super::Wireup::poll) has given them out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use onecopy_shm::fdpass::{self, FdPassError, Wait};
use onecopy_shm::process;

use super::message::{MAX_MESSAGE, ToLauncher, ToRank};
use super::{
    Card, ENV_FD, ENV_JOB, ENV_RANK, ENV_SIZE, Emergency, Event, Introduction, Wireup, WireupError,
    environment,
};

/// A launcher that is alive answers an introduction within microseconds. So this is for one that was stopped or is
/// starved, as long as the default of `ONECOPY_JOIN_TIMEOUT`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Room for each message that can come after all cards have. The longest is a refusal, with 4096 bytes of text.
const SMALL_MESSAGE: usize = 8 * 1024;

/// A rank that a launcher started.
#[derive(Debug)]
pub struct Launched {
    socket: Arc<OwnedFd>,
    rank: usize,
    size: usize,
    job: u64,
    pid_ns: u64,
    /// Events that arrived while an answer was awaited.
    aside: VecDeque<Event>,
    /// Readable while `aside` is not empty.
    event_fd: EventFd,
    /// Readable while the socket or the event descriptor is.
    both: Epoll,
    joined: bool,
    /// Introductions that were asked for, and whose answers have not come. Of those that are not waited for any more
    /// they come late.
    owed: usize,
    /// How long an introduction is waited for.
    answer_timeout: Duration,
    /// What this rank grants its peers, until it has joined.
    grant: Option<OwnedFd>,
    buffer: Vec<u8>,
    host: Option<Host>,
}

/// The rank that introduces the others where no launcher of ours does. Its end is a death like another, not the end of
/// the job.
#[derive(Debug)]
struct Host {
    rank: usize,
    /// Its process: a child that it left behind may keep the connection open. None if the kernel does not offer it.
    process: Option<OwnedFd>,
    /// It announced that it leaves.
    left: bool,
    /// The connection is of no use any more.
    lost: bool,
    /// Ranks of other nodes, of which it brings the news.
    beyond: Vec<usize>,
}

/// An answer with its descriptors.
type Answer = (ToRank, Vec<OwnedFd>);

impl Launched {
    /// The wire-up that the launcher prepared for this process; none if there is no launcher.
    pub fn from_environment() -> Result<Option<Self>, WireupError> {
        let Some(number) = variable(ENV_FD, |text| environment::number(text, 1 << 30))? else {
            return Ok(None);
        };
        let needed = |name, parse: fn(&str) -> Result<u32, String>| {
            variable(name, parse)?.ok_or(WireupError::Environment {
                name,
                value: String::new(),
                reason: format!("not set, although {ENV_FD} is"),
            })
        };
        // The size comes first: in a job that is too large, the rank may be, too.
        let size = needed(ENV_SIZE, environment::ranks)?;
        let rank = needed(ENV_RANK, environment::rank)?;
        if rank >= size {
            return Err(WireupError::Environment {
                name: ENV_RANK,
                value: rank.to_string(),
                reason: format!("not below {ENV_SIZE}={size}"),
            });
        }
        let socket = process::take_inherited_socket(number.cast_signed()).map_err(|source| {
            WireupError::Environment {
                name: ENV_FD,
                value: number.to_string(),
                reason: environment::taken_before(&source).unwrap_or_else(|| format!(
                    "not the launcher's socket ({source}): was this process started by a rank instead of the launcher?"
                )),
            }
        })?;
        let mut this = Self::new(socket, rank as usize, size as usize)?;
        let named = std::env::var(ENV_JOB).ok().and_then(|id| id.parse().ok());
        this.job = named.unwrap_or(this.job);
        Ok(Some(this))
    }

    /// A wire-up over `socket`, whose other end is the launcher's.
    pub fn new(socket: OwnedFd, rank: usize, size: usize) -> Result<Self, WireupError> {
        const CALL: &str = "join";
        let peer = fdpass::peer_credentials(socket.as_fd())
            .map_err(|source| WireupError::Transport { call: CALL, source })?;
        let ours = nix::unistd::getuid().as_raw();
        if peer.uid != ours && peer.uid != 0 {
            return Err(WireupError::Stranger {
                call: CALL,
                theirs: peer.uid,
                ours,
            });
        }
        let system = |what| {
            move |errno: Errno| WireupError::System {
                call: CALL,
                what,
                source: errno.into(),
            }
        };
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event_fd = EventFd::from_value_and_flags(0, flags).map_err(system("eventfd"))?;
        let both = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system("epoll_create1"))?;
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        both.add(socket.as_fd(), readable)
            .map_err(system("epoll_ctl"))?;
        both.add(event_fd.as_fd(), readable)
            .map_err(system("epoll_ctl"))?;
        Ok(Self {
            socket: Arc::new(socket),
            rank,
            size,
            job: u64::from(peer.pid.unsigned_abs()),
            pid_ns: Card::of_this_process().pid_ns,
            aside: VecDeque::new(),
            event_fd,
            both,
            joined: false,
            owed: 0,
            answer_timeout: ANSWER_TIMEOUT,
            grant: None,
            buffer: vec![0; MAX_MESSAGE],
            host: None,
        })
    }

    /// As [`new`](Self::new), over a connection to rank `host`, which introduces the ranks of this job. Says hello
    /// first, and waits for at most `limit` to be let in.
    pub(crate) fn at_host(
        socket: OwnedFd,
        rank: usize,
        size: usize,
        host: usize,
        secret: [u8; 16],
        limit: Duration,
    ) -> Result<Self, WireupError> {
        const CALL: &str = "join";
        let process = process::peer_process(socket.as_fd());
        let mut this = Self::new(socket, rank, size)?;
        if let Some(process) = &process {
            let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            let added = this.both.add(process.as_fd(), readable);
            added.map_err(|errno| WireupError::System {
                call: CALL,
                what: "epoll_ctl",
                source: errno.into(),
            })?;
        }
        this.host = Some(Host {
            rank: host,
            process,
            left: false,
            lost: false,
            beyond: Vec::new(),
        });
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let hello = ToLauncher::Hello {
            rank: number(rank),
            size: number(size),
            secret,
        };
        this.send(CALL, &hello, &[])?;
        match this.answer(CALL, Some(limit), 0)?.0 {
            ToRank::Welcome => Ok(this),
            _ => this.unexpected(CALL, "the answer to hello"),
        }
    }

    /// The host forwards events of these ranks: without it this rank gets none.
    pub(crate) fn hears_by_host_of(&mut self, beyond: Vec<usize>) {
        if let Some(host) = &mut self.host {
            host.beyond = beyond;
        }
    }

    /// The connection to the host has ended, or the host has: the answer to report, if any.
    fn lose_host(&mut self) -> Option<Answer> {
        let host = self.host.as_mut().filter(|host| !host.lost)?;
        host.lost = true;
        // What is closed would be readable for ever. Both were added, so neither call fails.
        let _ = self.both.delete(self.socket.as_fd());
        if let Some(process) = &host.process {
            let _ = self.both.delete(process.as_fd());
        }
        let died = Event::Died {
            rank: host.rank,
            death: super::Death::Unknown,
        };
        let death = super::Death::Unheard;
        let beyond = std::mem::take(&mut host.beyond);
        if !beyond.is_empty() {
            // Refuses only when its counter is full: then it is readable already.
            let _ = self.event_fd.write(1);
        }
        let unheard = beyond.into_iter().map(|rank| Event::Died { rank, death });
        self.aside.extend(unheard);
        (!host.left).then(|| (ToRank::Event(died), Vec::new()))
    }

    fn host_is_lost(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.lost)
    }

    fn host_has_ended(&self) -> bool {
        let process = self.host.as_ref().and_then(|host| host.process.as_ref());
        process.is_some_and(|process| {
            let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
        })
    }

    fn send(
        &self,
        call: &'static str,
        message: &ToLauncher,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), WireupError> {
        fdpass::send(self.socket.as_fd(), &message.encode(), fds, Wait::Block)
            .map_err(|source| transport(call, source))
    }

    /// The next message of any kind, if there is one.
    fn receive(&mut self, call: &'static str) -> Result<Option<Answer>, WireupError> {
        if self.host_is_lost() {
            return Ok(None);
        }
        match fdpass::recv(self.socket.as_fd(), &mut self.buffer, 3, Wait::Never) {
            Ok(got) => {
                let message = ToRank::decode(&self.buffer[..got.len])
                    .map_err(|source| WireupError::BadMessage { call, source })?;
                if let (Some(host), ToRank::Event(Event::Left { rank })) =
                    (&mut self.host, &message)
                {
                    host.left |= *rank == host.rank;
                }
                Ok(Some((message, got.fds)))
            }
            Err(FdPassError::WouldBlock) if self.host_has_ended() => Ok(self.lose_host()),
            Err(FdPassError::WouldBlock) => Ok(None),
            Err(FdPassError::Closed) if self.host.is_some() => Ok(self.lose_host()),
            Err(source) => Err(transport(call, source)),
        }
    }

    /// The next message of any kind, if there is one, but for answers to introductions that no call waits for any more.
    /// `awaited`: how many are waited for.
    fn receive_in_time(
        &mut self,
        call: &'static str,
        awaited: usize,
    ) -> Result<Option<Answer>, WireupError> {
        loop {
            let got = self.receive(call);
            let answers = match &got {
                Ok(Some((message, _))) => matches!(
                    message,
                    ToRank::Introduction { .. } | ToRank::Refused { .. }
                ),
                // Nothing else brings descriptors.
                Err(WireupError::Transport { source, .. }) => {
                    matches!(source, FdPassError::FdsLost)
                }
                _ => false,
            };
            let late = answers && self.owed > awaited;
            if answers {
                self.owed = self.owed.saturating_sub(1);
            }
            if !late {
                return got;
            }
        }
    }

    /// The next message that is no event, and no late answer. Without a limit it waits for as long as the launcher
    /// lives. `awaited`: 1 if it is to be an introduction.
    fn answer(
        &mut self,
        call: &'static str,
        limit: Option<Duration>,
        awaited: usize,
    ) -> Result<Answer, WireupError> {
        let start = Instant::now();
        loop {
            match self.receive_in_time(call, awaited)? {
                Some((ToRank::Event(event), _)) => {
                    self.aside.push_back(event);
                    // Refuses only when its counter is full: then it is readable already.
                    let _ = self.event_fd.write(1);
                }
                Some((ToRank::Refused { reason }, _)) => {
                    return Err(WireupError::Refused { call, reason });
                }
                Some(answer) => return Ok(answer),
                None if self.host_is_lost() => {
                    let rank = self.host.as_ref().map_or(0, |host| host.rank);
                    return Err(WireupError::HostGone { call, rank });
                }
                None => {
                    if limit.is_some_and(|limit| start.elapsed() > limit) {
                        let waited = start.elapsed();
                        return Err(WireupError::NoAnswer { call, waited });
                    }
                    self.wait_readable(call)?;
                }
            }
        }
    }

    /// Waits for the socket, at most a second.
    fn wait_readable(&self, call: &'static str) -> Result<(), WireupError> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(1000_u16)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(WireupError::System {
                call,
                what: "poll on the launcher's socket",
                source: errno.into(),
            }),
        }
    }

    fn unexpected<T>(&self, call: &'static str, awaited: &'static str) -> Result<T, WireupError> {
        Err(WireupError::Unexpected { call, awaited })
    }
}

/// A number from the environment, if the variable is set.
fn variable(
    name: &'static str,
    parse: impl Fn(&str) -> Result<u32, String>,
) -> Result<Option<u32>, WireupError> {
    let Some(value) = environment::variable(name) else {
        return Ok(None);
    };
    let number = parse(&value);
    number.map(Some).map_err(|reason| WireupError::Environment {
        name,
        value,
        reason,
    })
}

fn transport(call: &'static str, source: FdPassError) -> WireupError {
    match source {
        FdPassError::Closed => WireupError::LauncherGone { call },
        source => WireupError::Transport { call, source },
    }
}

impl Wireup for Launched {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn job(&self) -> u64 {
        self.job
    }

    fn grant(&mut self, grant: Option<BorrowedFd<'_>>) -> Result<(), WireupError> {
        let copied = grant.map(|fd| fd.try_clone_to_owned()).transpose();
        self.grant = copied.map_err(|source| WireupError::System {
            call: "grant",
            what: "dup",
            source,
        })?;
        Ok(())
    }

    fn join(&mut self, card: Card, segment: BorrowedFd<'_>) -> Result<Vec<Card>, WireupError> {
        const CALL: &str = "join";
        if std::mem::replace(&mut self.joined, true) {
            return Err(WireupError::Order {
                call: CALL,
                reason: "this rank has joined already",
            });
        }
        let grant = self.grant.take();
        let grant = grant.as_ref().map(AsFd::as_fd);
        let fds: Vec<_> = std::iter::once(segment).chain(grant).collect();
        self.send(CALL, &ToLauncher::Join { card }, &fds)?;
        let mut all = Vec::new();
        while all.len() < self.size {
            match self.answer(CALL, None, 0)?.0 {
                ToRank::Cards {
                    first,
                    total,
                    cards,
                } if first as usize == all.len()
                    && total as usize == self.size
                    && !cards.is_empty()
                    && all.len() + cards.len() <= self.size =>
                {
                    all.extend(cards);
                }
                ToRank::Absent {
                    waited_ms: 0,
                    missing,
                } => return Err(WireupError::Absent { missing }),
                ToRank::Absent { waited_ms, missing } => {
                    let waited = Duration::from_millis(waited_ms.into());
                    return Err(WireupError::Timeout { missing, waited });
                }
                _ => return self.unexpected(CALL, "the answer to join"),
            }
        }
        self.buffer = vec![0; SMALL_MESSAGE];
        Ok(all)
    }

    fn introduce(&mut self, peer: usize) -> Result<Introduction, WireupError> {
        const CALL: &str = "introduce";
        let number = u32::try_from(peer).ok().filter(|_| peer < self.size);
        let number = number.ok_or(WireupError::NoSuchRank {
            call: CALL,
            rank: peer,
            size: self.size,
        })?;
        match self.send(CALL, &ToLauncher::Introduce { peer: number }, &[]) {
            // Read on: what the host sent last comes first.
            Err(WireupError::LauncherGone { .. }) if self.host.is_some() => {}
            sent => sent?,
        }
        self.owed += 1;
        let (message, fds) = self.answer(CALL, Some(self.answer_timeout), 1)?;
        let ToRank::Introduction {
            peer,
            uid,
            pid,
            pid_ns,
            pidfd,
            grant,
        } = message
        else {
            return self.unexpected(CALL, "the answer to introduce");
        };
        let mut fds = fds.into_iter();
        let memory = fds.next();
        let process = if pidfd { fds.next() } else { None };
        let granted = if grant { fds.next() } else { None };
        let complete = process.is_some() == pidfd && granted.is_some() == grant;
        let whole = complete && fds.next().is_none() && peer == number;
        let Some(memory) = memory.filter(|_| whole) else {
            return self.unexpected(CALL, "the descriptors that an introduction announces");
        };
        if !process
            .as_ref()
            .is_none_or(|fd| process::is_pidfd(fd.as_fd()))
        {
            return self.unexpected(CALL, "the descriptor of a process with an introduction");
        }
        // The number that counts is the one in our own pid namespace.
        let pid = match &process {
            Some(fd) => process::pid_of(fd.as_fd()),
            None => (pid > 0 && pid_ns != 0 && pid_ns == self.pid_ns).then_some(pid),
        };
        Ok(Introduction {
            memory,
            grant: granted,
            pidfd: process,
            pid,
            uid,
        })
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.both.0.as_fd())
    }

    fn poll(&mut self) -> Result<Option<Event>, WireupError> {
        const CALL: &str = "poll";
        if let Some(event) = self.aside.pop_front() {
            if self.aside.is_empty() {
                // Silences the descriptor; it refuses if it was silent.
                let _ = self.event_fd.read();
            }
            return Ok(Some(event));
        }
        match self.receive_in_time(CALL, 0) {
            Ok(None) => Ok(None),
            Ok(Some((ToRank::Event(event), _))) => Ok(Some(event)),
            Ok(Some((ToRank::Refused { reason }, _))) => {
                Err(WireupError::Refused { call: CALL, reason })
            }
            Ok(Some(_)) => self.unexpected(CALL, "an event"),
            // The descriptor stays readable: it is looked at again.
            Err(WireupError::Transport { source, .. }) if source.is_transient() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn leave(&mut self) -> Result<(), WireupError> {
        match self.send("leave", &ToLauncher::Leave, &[]) {
            // The host has left before us: the ranks that are left know.
            Err(WireupError::LauncherGone { .. }) if self.host.is_some() => Ok(()),
            sent => sent,
        }
    }

    fn emergency(&self) -> Arc<dyn Emergency> {
        Arc::new(LaunchedEmergency(Arc::clone(&self.socket)))
    }
}

/// The connection to the launcher, which takes each message as a whole.
struct LaunchedEmergency(Arc<OwnedFd>);

impl Emergency for LaunchedEmergency {
    fn abort(&self, code: i32) -> Result<(), WireupError> {
        let message = ToLauncher::Abort { code }.encode();
        fdpass::send(self.0.as_fd(), &message, &[], Wait::Block)
            .map_err(|source| transport("abort", source))
    }
}

#[cfg(test)]
mod tests;
